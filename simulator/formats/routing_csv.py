"""What routers choose, as a table of commas: shares of experts, or what was chosen step by step.

The first line names the columns, and says so what the file is::

    layer,expert,share        step,op,chosen
    0,0,0.0071                0,L00/decode/ffn.experts,3 17 40
    0,1,0.0213                0,L01/decode/ffn.experts,0 17 99

Shares of a layer need not add up to 1; layers are matched with ops in program order. Of what is chosen, numbers are
positions among the op's candidates; steps and positions count from 0.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator
from pathlib import Path

from simulator import inputs
from simulator.draws import Routing, Shares
from simulator.errors import ConfigError

_SHARES, _ROUTING = ("layer", "expert", "share"), ("step", "op", "chosen")
_MOST_CHOICES = 1_000_000


class Table:
    """A file whose first line, the head, names columns, and what is wrong with its other lines."""

    def __init__(self, path: Path, what: str) -> None:
        self.path, self.what, self.rows = path, what, self._read()
        self.head = next(self.rows, [])

    def _read(self) -> Iterator[list[str]]:
        """Read the rows one after another; a file may be larger than the memory."""
        lines = (line.decode("utf-8") for block in inputs.blocks(self.path) for line in block)
        try:
            yield from csv.reader(lines)
        except (UnicodeDecodeError, csv.Error) as error:
            do = "correct the path or the file"
            raise ConfigError(str(self.path), f"{self.what} can be read", str(error), do) from None

    def error(self, number: int, must: str, found: str, do: str = "correct the line") -> ConfigError:
        """Make the error that says what is wrong with a line."""
        return ConfigError(f"{self.path}:{number}", must, found, do)

    def whole(self, number: int, what: str, text: str, least: int, most: int) -> int:
        """Read a whole number in digits."""
        digits = text.strip()
        if digits.isascii() and digits.isdigit() and len(digits.lstrip("0")) <= len(str(most)):
            found = int(digits.lstrip("0") or "0")
            if least <= found <= most:
                return found
        raise self.error(number, f"{what} is a whole number from {least} to {most:,}", repr(text))


def read(path: Path) -> Shares | Routing:
    """Read a file of shares, or of what was chosen.

    Parameters
    ----------
    path
        The file.

    Raises
    ------
    ConfigError
        If it cannot be read, has other columns, or a line is wrong; the message names the line.
    """
    table = Table(path, "a file of routing")
    head, rows = tuple(table.head), [(number, row) for number, row in enumerate(table.rows, 2) if row]
    if head not in (_SHARES, _ROUTING):
        must = f"the first line is {','.join(_SHARES)} or {','.join(_ROUTING)}"
        raise table.error(1, must, repr(",".join(head)), "name the columns")
    if not rows:
        raise ConfigError(str(path), "a file of routing has lines", "none", "add them")
    shares: dict[int, dict[int, float]] = {}
    routing: dict[tuple[int, str], tuple[int, ...]] = {}
    for number, row in rows:
        if len(row) != len(_SHARES):
            raise table.error(number, "a line has three fields", f"{len(row)}")
        if head == _SHARES:
            _add_share(table, number, row, shares)
        else:
            _add_choice(table, number, row, routing)
    return Shares(shares, str(path)) if head == _SHARES else Routing(routing, str(path))


def _add_share(table: Table, number: int, row: list[str], found: dict[int, dict[int, float]]) -> None:
    try:
        value = float(row[2])
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise table.error(number, "a share is a number from 0", repr(row[2]))
    layer, expert = (table.whole(number, what, row[at], 0, _MOST_CHOICES) for at, what in enumerate(_SHARES[:2]))
    if expert in found.setdefault(layer, {}):
        raise table.error(number, "a layer names each expert once", f"{expert} twice")
    found[layer][expert] = value


def _add_choice(table: Table, number: int, row: list[str], found: dict[tuple[int, str], tuple[int, ...]]) -> None:
    key = table.whole(number, "step", row[0], 0, _MOST_CHOICES), row[1].strip()
    if key in found:
        raise table.error(number, "a step names each op once", f"{row[1]!r} twice")
    found[key] = tuple([table.whole(number, "chosen", one, 0, _MOST_CHOICES) for one in row[2].split()])
