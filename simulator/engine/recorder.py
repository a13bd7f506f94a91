"""Writes the trace: rows are packed into bytes as they happen, and now and then closed as a block of columns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from simulator.trace import ISSUED, SPANS, TABLES, Happened, Table, Trace, packer

span_row, code_row = packer(SPANS), packer(ISSUED)

Forward = Callable[[Happened], None]
"""Takes what happened since it was called last."""

_BLOCK_ROWS = 1024
"""Small enough that a block is still in the cache when it is closed."""
_NUMBER_BYTES = 8


class Recorder:
    """Collects the rows of the trace; a row is added with one ``+=`` of its bytes (`packer`).

    Parameters
    ----------
    ranks
        How many ranks issue actions.
    forward
        Of a run of one rank, takes the rows instead of the trace, which then has none.

    Attributes
    ----------
    spans, waits, residencies, rates, addresses, reserved, compactions
        Take rows of these tables.
    issued, laps
        By rank, takes what its runtime issues; how many actions its plan has, if that is repeated for each step.
    """

    def __init__(self, ranks: int, forward: Forward | None = None) -> None:
        self._forward = forward
        self._tables = [Table(columns) for columns in (*TABLES.values(), *[ISSUED] * ranks)]
        self._rows = [bytearray() for _ in self._tables]
        self.spans, self.waits, self.residencies, self.rates, *others = self._rows
        self.addresses, self.reserved, self.compactions, *self.issued = others
        self.laps = [0] * ranks

    def flush(self, least_rows: int = _BLOCK_ROWS) -> None:
        """Close a block of each table that has so many rows; or forward all rows, once there are so many spans."""
        if self._forward is not None and len(self.spans) < (least_rows - 1) * len(SPANS) * _NUMBER_BYTES:
            return
        for table, rows in zip(self._tables, self._rows, strict=True):
            if self._forward is not None or len(rows) >= least_rows * len(table.columns) * _NUMBER_BYTES:
                table.append(bytes(rows))
                rows.clear()
        if self._forward is not None:
            self._forward({name: table.drain() for name, table in zip((*TABLES, "issued"), self._tables, strict=True)})

    def trace(self, blocked: tuple[str, ...], stands_in: tuple[int, ...]) -> Trace:
        """Close the trace; it is ``ok`` if nothing is blocked."""
        self.flush(1)
        status, issued = "blocked" if blocked else "ok", tuple(self._tables[len(TABLES) :])
        tables: dict[str, Any] = dict(zip(TABLES, self._tables, strict=False))
        return Trace(status, issued=issued, laps=tuple(self.laps), blocked=blocked, stands_in=stands_in, **tables)
