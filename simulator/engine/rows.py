"""Rows of the trace as they are written down: short, and in full only when a block of them is closed.

A number that is packed costs as much as a dozen of a loop's steps, and a row of spans has nine. What is the same for
all spans of a track, or is in the key of a step anyway, is taken apart for a whole block at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from struct import Struct

import numpy as np

from simulator.engine.rounds import ISSUE_MASK, RANK_SHIFT
from simulator.plan import Code
from simulator.trace import SPANS

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


def spans(rows: bytearray) -> bytes:
    """Spans in full, with the columns `SPANS`."""
    key, where, item, issued_ns, start_ns, end_ns = np.frombuffer(bytes(rows), np.int64).reshape(-1, _SHORT).T
    track, channel = where >> 1 & (1 << _TRACK_BITS) - 1, where >> 1 + _TRACK_BITS
    about = (key >> RANK_SHIFT, where & 1, item, track, channel, key & ISSUE_MASK, issued_ns, start_ns, end_ns)
    found = np.empty((len(key), len(SPANS)), np.int64)
    for at, values in enumerate(about):
        found[:, at] = values
    return found.tobytes()


def issued(codes: Sequence[Code]) -> bytes:
    """What a host issued, with the columns of `ISSUED`."""
    return np.fromiter(chain.from_iterable(codes), np.int64, 4 * len(codes)).tobytes()
