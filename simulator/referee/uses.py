"""What each op of a graph reads and writes, as columns."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import numpy as np

from simulator.graph import Graph
from simulator.referee.earlier import Bools, Ints


class Uses:
    """What each op of a graph reads and writes, as flat columns.

    Parameters
    ----------
    op
        Op ids, ascending.
    tensor
        The tensor that the op uses, each once.
    reads, writes
        How it uses it.
    """

    def __init__(self, op: Ints, tensor: Ints, reads: Bools, writes: Bools) -> None:
        self.op, self.tensor, self.reads, self.writes = op, tensor, reads, writes

    @classmethod
    def of(cls, graph: Graph) -> Uses:
        """Collect the uses of a graph."""
        n = max(len(graph.tensors), 1)
        read = _keys([op.reads for op in graph.ops], n)
        written = _keys([op.writes for op in graph.ops], n)
        both = _distinct(np.concatenate((read, written)))
        return cls(both // n, both % n, _contains(read, both), _contains(written, both))

    def expand(self, ops: Ints) -> tuple[Ints, Ints]:
        """For each of `ops` find its uses: positions in `ops`, and positions in these columns."""
        first = np.searchsorted(self.op, ops, "left")
        count = np.searchsorted(self.op, ops, "right") - first
        who = np.repeat(np.arange(len(ops)), count)
        return who, np.arange(len(who)) - np.repeat(np.cumsum(count) - count - first, count)


def _keys(tensors: Sequence[tuple[int, ...]], n: int) -> Ints:
    counts = [len(t) for t in tensors]
    flat = np.fromiter(chain.from_iterable(tensors), np.int64, sum(counts))
    return _distinct(np.repeat(np.arange(len(tensors)), counts) * n + flat)


def _distinct(keys: Ints) -> Ints:
    keys = np.sort(keys)
    new = np.ones(len(keys), bool)
    new[1:] = keys[1:] != keys[:-1]
    return keys[new]


def _contains(keys: Ints, wanted: Ints) -> Bools:
    """Whether each wanted key is among the sorted keys."""
    if not len(keys):
        return np.zeros(len(wanted), bool)
    at = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return np.asarray(keys[at] == wanted)
