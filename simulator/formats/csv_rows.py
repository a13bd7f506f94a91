"""Files of comma-separated values, as other people write them."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path

from simulator import inputs
from simulator.errors import ConfigError


def read_rows(path: Path, what: str) -> Iterator[list[str]]:
    """Read the rows of a file one after another, its head first; a file may be larger than the memory.

    Parameters
    ----------
    path
        The file.
    what
        What a message calls it, such as ``a file of requests``.

    Raises
    ------
    ConfigError
        If it cannot be read.
    """
    lines = (line.decode("utf-8") for block in inputs.blocks(path) for line in block)
    try:
        yield from csv.reader(lines)
    except (UnicodeDecodeError, csv.Error) as error:
        raise ConfigError(str(path), f"{what} can be read", str(error), "correct the path or the file") from None


def whole(text: str, least: int, most: int) -> int | None:
    """Read a whole number in digits; None if it is none, or out of range.

    Parameters
    ----------
    text
        A field.
    least, most
        The range.
    """
    digits = text.strip()
    if not (digits.isascii() and digits.isdigit()) or len(digits.lstrip("0")) > len(str(most)):
        return None
    number = int(digits.lstrip("0") or "0")
    return number if least <= number <= most else None
