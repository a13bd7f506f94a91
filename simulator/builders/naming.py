"""How builders name what they make, so that patterns in scenarios fit every graph."""

from __future__ import annotations


def blocks(layers: int) -> list[str]:
    """Names of the layers, padded so that they sort: ``L00``, ``L01`` ..."""
    return numbered("L", layers, 2)


def numbered(prefix: str, count: int, digits: int = 1) -> list[str]:
    """Names with numbers of equal width, so that they sort.

    Parameters
    ----------
    prefix
        What comes before the number.
    count
        How many.
    digits
        Least width of the number.
    """
    width = max(digits, len(str(count - 1)))
    return [f"{prefix}{i:0{width}d}" for i in range(count)]
