"""The ops and tensors of a graph in columns of numbers, over which engines loop."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Self

import numpy as np
from numpy.typing import NDArray

from simulator.graph.ops import Op, OpKind, Tensor


@dataclass(frozen=True, slots=True, eq=False)
class GraphColumns:
    """The ops and tensors of a graph in columns of numbers, in order of their ids.

    Attributes
    ----------
    reads_at, reads
        Op `i` reads the tensors ``reads[reads_at[i]:reads_at[i + 1]]``, in its order.
    is_collective
        Whether an op is of kind ``collective``, with members or without.
    is_persistent, is_output, is_written
        Whether a tensor is persistent, an output of the graph (persistent or not), and written by some op.
    """

    reads_at: NDArray[np.int64]
    reads: NDArray[np.int32]
    writes_at: NDArray[np.int64]
    writes: NDArray[np.int32]
    workspace_bytes: NDArray[np.int64]
    streams: NDArray[np.int32]
    is_collective: NDArray[np.uint8]
    size_bytes: NDArray[np.int64]
    is_persistent: NDArray[np.uint8]
    is_output: NDArray[np.uint8]
    is_written: NDArray[np.uint8]

    @classmethod
    def of(cls, tensors: Sequence[Tensor], ops: Sequence[Op], outputs: Sequence[int]) -> Self:
        """Make the columns of a graph that has these tensors, ops and outputs."""
        reads_at, reads = _joined([op.reads for op in ops])
        writes_at, writes = _joined([op.writes for op in ops])
        is_output, is_written = np.zeros((2, len(tensors)), np.uint8)
        is_output[list(outputs)] = is_written[writes] = 1
        return cls(
            reads_at,
            reads,
            writes_at,
            writes,
            np.fromiter([op.workspace_bytes for op in ops], np.int64, len(ops)),
            np.fromiter([op.stream for op in ops], np.int32, len(ops)),
            np.frombuffer(bytes([op.kind is OpKind.COLLECTIVE for op in ops]), np.uint8),
            np.fromiter([tensor.size_bytes for tensor in tensors], np.int64, len(tensors)),
            np.frombuffer(bytes([tensor.persistent for tensor in tensors]), np.uint8),
            is_output,
            is_written,
        )


def _joined(ids: list[tuple[int, ...]]) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Return where each of these lists begins in all of them together, with the end, and all of them together."""
    starts = np.zeros(len(ids) + 1, np.int64)
    np.cumsum(np.fromiter(map(len, ids), np.int64, len(ids)), out=starts[1:])
    return starts, np.fromiter(chain.from_iterable(ids), np.int32, int(starts[-1]))
