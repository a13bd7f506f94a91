"""Writes the trace, in blocks of columns."""

from __future__ import annotations

from simulator.trace import ISSUED, RATES, RESIDENCIES, SPANS, WAITS, Table, Trace

_BLOCK_ROWS = 1024
"""Small enough that a block is still in the cache when it is closed."""
_NUMBER_BYTES = 8


class Recorder:
    """Rows of the trace on their way into blocks; a row is added with one ``+=`` of its bytes.

    Parameters
    ----------
    ranks
        How many ranks issue steps.
    """

    __slots__ = ("_issued", "_tables", "rates", "residencies", "spans", "waits")

    def __init__(self, ranks: int) -> None:
        self.spans = bytearray()
        self.waits = bytearray()
        self.residencies = bytearray()
        self.rates = bytearray()
        columns = (SPANS, WAITS, RESIDENCIES, RATES)
        rows = (self.spans, self.waits, self.residencies, self.rates)
        self._tables = [(Table(names), flat) for names, flat in zip(columns, rows, strict=True)]
        self._issued = [Table(ISSUED) for _ in range(ranks)]

    def issued(self, rank: int) -> bytearray:
        """Where a rank's runtime writes down what it issues."""
        rows = bytearray()
        self._tables.append((self._issued[rank], rows))
        return rows

    def flush(self, least_rows: int = _BLOCK_ROWS) -> None:
        """Turn each list of at least so many rows into a block."""
        for table, rows in self._tables:
            if len(rows) >= least_rows * len(table.columns) * _NUMBER_BYTES:
                table.append(bytes(rows))
                rows.clear()

    def trace(self, blocked: tuple[str, ...], stands_in: tuple[int, ...]) -> Trace:
        """Close the trace; it is ``ok`` if nothing is blocked."""
        self.flush(1)
        spans, waits, residencies, rates = (table for table, _ in self._tables[:4])
        status = "blocked" if blocked else "ok"
        return Trace(status, spans, waits, residencies, tuple(self._issued), blocked, stands_in, rates=rates)
