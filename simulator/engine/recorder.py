"""Writes the trace, in blocks of columns.

Rows of spans are written down short, and in full only when a block of them is closed: a number that is packed costs as
much as a dozen of a loop's steps, and such a row has nine. What is the same for all spans of a track, or is in the key
of a step anyway, is taken apart for a whole block at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from struct import Struct
from typing import Any

import numpy as np

from simulator.engine.waits import ISSUE_MASK, RANK_SHIFT
from simulator.plan import Code
from simulator.trace import (
    ADDRESSES,
    COMPACTIONS,
    ISSUED,
    RATES,
    RESERVED,
    RESIDENCIES,
    SPANS,
    WAITS,
    Happened,
    Table,
    Trace,
)

_SHORT = 6
_TRACK_BITS = 20
"""Up to a million streams or links."""

SPAN_BYTES = 8 * _SHORT
"""Size of the row of a span as it is written down [B]."""

span_row: Callable[..., bytes] = Struct(f"={_SHORT}q").pack
"""Pack a span: the key of its step, its place (see `place`), item, time of issue, start and end [ns]."""


def place(kind: int, track: int, channel: int = 0) -> int:
    """Put in one number where spans are: ``COMPUTE`` or ``COPY``, the stream or link, and its channel."""
    return kind + 2 * (track + (channel << _TRACK_BITS))


def _full_spans(rows: bytearray) -> bytes:
    """Spans in full, with the columns `SPANS`."""
    key, where, item, issued_ns, start_ns, end_ns = np.frombuffer(bytes(rows), np.int64).reshape(-1, _SHORT).T
    track, channel = where >> 1 & (1 << _TRACK_BITS) - 1, where >> 1 + _TRACK_BITS
    about = (key >> RANK_SHIFT, where & 1, item, track, channel, key & ISSUE_MASK, issued_ns, start_ns, end_ns)
    found = np.empty((len(key), len(SPANS)), np.int64)
    for at, values in enumerate(about):
        found[:, at] = values
    return found.tobytes()


def _full_codes(codes: Sequence[Code]) -> bytes:
    """What a host issued, with the columns of `ISSUED`."""
    return np.fromiter(chain.from_iterable(codes), np.int64, 4 * len(codes)).tobytes()


Forward = Callable[[Happened], None]
"""Takes what happened since it was called last."""

_BLOCK_ROWS = 1024
"""Small enough that a block is still in the cache when it is closed."""
_MOST_ROWS = 16 * _BLOCK_ROWS
"""Rows of many ranks come together: they are closed in parts, as each is copied while it is."""
_NUMBER_BYTES = 8
_TABLES = ("spans", "waits", "residencies", "rates", "addresses", "reserved", "compactions")
"""All but what hosts issued."""


@dataclass(frozen=True, slots=True)
class _Open:
    """The rows of a table that are in no block yet: how long one is as written down, and how they are read."""

    table: Table
    rows: Any
    length: int
    read: Callable[[Any], bytes]


_NO_CODES = _Open(Table(ISSUED), [], 1, _full_codes)


class Recorder:
    """Rows of the trace on their way into blocks; a row is added with one ``+=`` of its bytes.

    Parameters
    ----------
    ranks
        How many ranks issue steps.
    forward
        Of a run of one rank, takes the rows instead of the trace, which then has none.

    Attributes
    ----------
    spans
        Takes rows that `span_row` packs.
    waits, residencies, rates, addresses, reserved, compactions
        Take rows as they are in the trace.
    """

    __slots__ = (
        "_forward",
        "_issued",
        "_open",
        "addresses",
        "compactions",
        "rates",
        "reserved",
        "residencies",
        "spans",
        "waits",
    )

    def __init__(self, ranks: int, forward: Forward | None = None) -> None:
        self._forward = forward
        self.spans = bytearray()
        self.waits = bytearray()
        self.residencies = bytearray()
        self.rates = bytearray()
        self.addresses, self.reserved, self.compactions = bytearray(), bytearray(), bytearray()
        self._open = [_Open(Table(SPANS), self.spans, SPAN_BYTES, _full_spans)]
        in_full = (
            (WAITS, self.waits),
            (RESIDENCIES, self.residencies),
            (RATES, self.rates),
            (ADDRESSES, self.addresses),
            (RESERVED, self.reserved),
            (COMPACTIONS, self.compactions),
        )
        for names, flat in in_full:
            self._open.append(_Open(Table(names), flat, len(names) * _NUMBER_BYTES, bytes))
        self._issued = [Table(ISSUED) for _ in range(ranks)]

    def issued(self, rank: int) -> list[Code]:
        """Where a rank's runtime writes down what it issues."""
        codes: list[Code] = []
        self._open.append(_Open(self._issued[rank], codes, 1, _full_codes))
        return codes

    def flush(self, least_rows: int = _BLOCK_ROWS) -> None:
        """Turn each list of at least so many rows into a block; or hand on all rows, if there are so many spans."""
        if self._forward is not None:
            if len(self.spans) >= (least_rows - 1) * SPAN_BYTES:
                self._hand_on(self._forward)
            return
        for one in self._open:
            if len(one.rows) >= least_rows * one.length:
                block = _MOST_ROWS * one.length
                for start in range(0, len(one.rows), block):
                    one.table.append(one.read(one.rows[start : start + block]))
                one.rows.clear()

    def _hand_on(self, forward: Forward) -> None:
        happened = {}
        for name, one in zip((*_TABLES, "issued"), (*self._open, _NO_CODES), strict=False):
            block = Table(one.table.columns)
            block.append(one.read(one.rows))
            one.rows.clear()
            happened[name] = block.whole()
        forward(happened)

    def trace(self, blocked: tuple[str, ...], stands_in: tuple[int, ...]) -> Trace:
        """Close the trace; it is ``ok`` if nothing is blocked."""
        self.flush(1)
        tables = [one.table for one in self._open[: len(_TABLES)]]
        spans, waits, residencies, rates, addresses, reserved, compactions = tables
        return Trace(
            "blocked" if blocked else "ok",
            spans,
            waits,
            residencies,
            tuple(self._issued),
            blocked,
            stands_in,
            rates=rates,
            addresses=addresses,
            reserved=reserved,
            compactions=compactions,
        )
