"""How builders name what they make, so that patterns in scenarios fit every graph."""

from __future__ import annotations


def blocks(layers: int) -> list[str]:
    """Names of the layers, padded so that they sort: ``L00``, ``L01`` ..."""
    width = max(2, len(str(layers - 1)))
    return [f"L{i:0{width}d}" for i in range(layers)]
