"""Files of comma-separated values, as other people write them."""

from __future__ import annotations

import csv
from pathlib import Path

from simulator.errors import ConfigError


def read_rows(path: Path, what: str) -> list[list[str]]:
    """Read all rows of a file, its head among them.

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
        return list(csv.reader(path.read_text(encoding="utf-8-sig").splitlines()))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ConfigError(str(path), f"{what} can be read", str(error), "correct the path or the file") from None
