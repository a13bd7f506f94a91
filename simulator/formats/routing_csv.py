"""What routers choose, as a table of commas: shares of experts, or what was chosen step by step.

The first line names the columns, and says so what the file is::

    layer,expert,share        step,op,chosen
    0,0,0.0071                0,L00/decode/ffn.experts,3 17 40
    0,1,0.0213                0,L01/decode/ffn.experts,0 17 99

Shares of a layer need not add up to 1; layers are matched with ops in program order. Of what is chosen, numbers are
positions among the op's candidates; steps and positions count from 0.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path

from simulator.draws import Routing, Shares
from simulator.errors import ConfigError
from simulator.formats.csv_rows import read_rows, whole

_SHARES, _ROUTING = ("layer", "expert", "share"), ("step", "op", "chosen")
_LARGEST = 1_000_000


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
    rows = read_rows(path, "a file of routing")
    head = tuple(next(rows, ()))
    lines = _Lines(path, [(number, row) for number, row in enumerate(rows, 2) if row])
    if head == _SHARES:
        return Shares(lines.shares(), str(path))
    if head == _ROUTING:
        return Routing(lines.routing(), str(path))
    must = f"the first line is {','.join(_SHARES)} or {','.join(_ROUTING)}"
    raise ConfigError(f"{path}:1", must, repr(",".join(head)), "name the columns")


class _Lines:
    """The lines below the first one, with their numbers."""

    def __init__(self, path: Path, rows: list[tuple[int, list[str]]]) -> None:
        self._path, self._rows = path, rows

    def shares(self) -> Mapping[int, Mapping[int, float]]:
        found: dict[int, dict[int, float]] = {}
        for number, (layer, expert, share) in self._fields():
            value = self._share(number, share)
            known = found.setdefault(self._whole(number, "layer", layer), {})
            at = self._whole(number, "expert", expert)
            if at in known:
                raise self._error(number, "a layer names each expert once", f"{at} twice")
            known[at] = value
        return found

    def routing(self) -> Mapping[tuple[int, str], tuple[int, ...]]:
        found: dict[tuple[int, str], tuple[int, ...]] = {}
        for number, (step, op, chosen) in self._fields():
            key = self._whole(number, "step", step), op.strip()
            if key in found:
                raise self._error(number, "a step names each op once", f"{op!r} twice")
            found[key] = tuple([self._whole(number, "chosen", one) for one in chosen.split()])
        return found

    def _fields(self) -> Iterator[tuple[int, tuple[str, str, str]]]:
        if not self._rows:
            raise ConfigError(str(self._path), "a file of routing has lines", "none", "add them")
        for number, row in self._rows:
            if len(row) != len(_SHARES):
                raise self._error(number, "a line has three fields", f"{len(row)}")
            yield number, (row[0], row[1], row[2])

    def _whole(self, number: int, what: str, text: str) -> int:
        found = whole(text, 0, _LARGEST)
        if found is None:
            raise self._error(number, f"{what} is a whole number from 0 to {_LARGEST:,}", repr(text))
        return found

    def _share(self, number: int, text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not 0 <= value < math.inf:
            raise self._error(number, "a share is a number from 0", repr(text))
        return value

    def _error(self, number: int, must: str, found: str) -> ConfigError:
        return ConfigError(f"{self._path}:{number}", must, found, "correct the line")
