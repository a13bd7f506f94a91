"""Files of comma-separated values, as other people write them."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path

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
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            yield from csv.reader(file)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ConfigError(str(path), f"{what} can be read", str(error), "correct the path or the file") from None
