"""Where the training steps of a reactive run begin, from what its host issues, as it issues it.

A training step is over at the first place, once all its ops have run, where what is held is what was held at time 0.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from simulator.graph import Graph
from simulator.plan import COMPUTE, COPY, DETACH, NOWHERE
from simulator.trace import Block

Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]

_CODES = 1 << 14
"""So many codes are looked at together, at most."""


class IssuedSteps:
    """The training steps of a run whose host decides as it goes.

    Parameters
    ----------
    graph
        What runs.
    home
        Tier of each tensor at time 0, or `NOWHERE`.
    compute_tier
        Id of the tier that computes write to.

    Attributes
    ----------
    starts
        Issue number at which each step begins that began, from 0.
    """

    def __init__(self, graph: Graph, home: Sequence[int], compute_tier: int) -> None:
        self._ops, self._here, self._steps = len(graph.ops), compute_tier, graph.steps
        self._writes = [op.writes for op in graph.ops]
        self._home = np.array(home, np.int64)
        self._exists = np.array([t.size_bytes > 0 for t in graph.tensors] or [False], bool)
        self._may_stay = np.zeros(len(self._exists), bool)
        self._may_stay[list(graph.cacheable)] = True
        self._tiers = 1 + max([compute_tier, *home])
        self._held = np.zeros(len(self._exists) * self._tiers, bool)
        housed = np.flatnonzero((self._home != NOWHERE) & self._exists[: len(home)])
        self._held[housed * self._tiers + self._home[housed]] = True
        self._unlike = self._issued = 0
        self._first_run = np.full(self._ops, -1, np.int64)
        self._stream = np.full(self._ops, -1, np.int64)
        self._in_order, self._one_stream = True, True
        self.starts: list[int] = [0]

    def take(self, codes: Block) -> None:
        """Follow what is issued next."""
        columns = [codes[name] for name in ("kind", "a", "b", "c")]
        for first in range(0, len(columns[0]), _CODES):
            kind, a, b, c = (column[first : first + _CODES] for column in columns)
            self._grow(int(max(b.max(), c.max())))
            computes = np.flatnonzero(kind == COMPUTE)
            self._note_streams(a[computes], b[computes])
            level = np.flatnonzero(self._unlike_home(kind, a, b, c) == 0) + self._issued
            self._divide(computes + self._issued, a[computes], level)
            self._issued += len(kind)

    def keeps_program(self, streams: Sequence[int]) -> bool:
        """Whether in each step the first runs of its ops were in program order, each op on its stream.

        Parameters
        ----------
        streams
            By op, the stream that it should run on.
        """
        complete = len(self.starts) == self._steps and (self._first_run >= 0).all()
        last = bool((np.diff(self._first_run) > 0).all())
        is_right = self._one_stream and np.array_equal(self._stream, np.array(streams, np.int64))
        return bool(self._in_order and complete and last and is_right)

    def _grow(self, tier: int) -> None:
        """Make room for tiers up to this one."""
        if tier >= self._tiers:
            held = self._held.reshape(-1, self._tiers)
            self._held = np.pad(held, ((0, 0), (0, tier + 1 - self._tiers))).ravel()
            self._tiers = tier + 1

    def _note_streams(self, op: Ints, stream: Ints) -> None:
        new = self._stream[op] < 0
        self._stream[op[new]] = stream[new]
        self._one_stream = self._one_stream and bool((self._stream[op] == stream).all())

    def _divide(self, at: Ints, op: Ints, level: Ints) -> None:
        """Find the steps that end with these computes, where nothing is held but what was at time 0."""
        while len(self.starts) < self._steps:
            first = self._first_run.copy()
            ops, where = np.unique(op, return_index=True)
            first[ops] = np.where(first[ops] < 0, at[where], first[ops])
            reached = int(first.max()) if (first >= 0).all() else None
            ends = level[np.searchsorted(level, reached) :] if reached is not None else level[:0]
            if not len(ends):
                self._first_run = first
                return
            end = int(ends[0])
            self._in_order = self._in_order and bool((np.diff(first) > 0).all())
            self.starts.append(end + 1)
            self._first_run = np.full(self._ops, -1, np.int64)
            op, at, level = op[at > end], at[at > end], ends[1:]
        ops, where = np.unique(op, return_index=True)
        new = self._first_run[ops] < 0
        self._first_run[ops[new]] = at[where[new]]

    def _unlike_home(self, kind: Ints, a: Ints, b: Ints, c: Ints) -> Ints:
        """After each step, how many places are held that are no homes, or are homes that are not held.

        Copies that may outlast a step, because late reads may choose them again, do not count.
        """
        computes, copies, detaches = (np.flatnonzero(kind == k) for k in (COMPUTE, COPY, DETACH))
        written = [self._writes[op] for op in a[computes].tolist()]
        counts = np.array([len(tensors) for tensors in written], np.int64)
        flat = np.array([t for tensors in written for t in tensors], np.int64)
        tensor = np.concatenate((flat, a[copies], a[detaches]))
        tier = np.concatenate((np.full(len(flat), self._here), c[copies], b[detaches]))
        issue = np.concatenate((np.repeat(computes, counts), copies, detaches))
        held = np.arange(len(tensor)) < len(tensor) - len(detaches)
        counted = self._exists[tensor] & ~(self._may_stay[tensor] & (self._home[tensor] != tier))
        tensor, tier, issue, held = tensor[counted], tier[counted], issue[counted], held[counted]
        place = tensor * self._tiers + tier
        order = np.lexsort((issue, place))
        place, issue, held, tensor, tier = (x[order] for x in (place, issue, held, tensor, tier))
        same = place[1:] == place[:-1]
        before = np.append(False, held[:-1])[: len(held)]
        first = np.append(True, ~same)[: len(held)]
        before[first] = self._held[place[first]]
        last = np.append(~same, True)[: len(held)]
        self._held[place[last]] = held[last]
        change = np.where(self._home[tensor] == tier, -1, 1) * (held.astype(np.int64) - before)
        found = np.bincount(issue, change, len(kind)).astype(np.int64)
        found[:1] += self._unlike
        found = np.cumsum(found)
        self._unlike = int(found[-1]) if len(found) else self._unlike
        return found
