"""Values that a later op needs, but not the op that runs: a tight budget has to keep them elsewhere.

A plan that may run ops again need not keep what it can make again. Only those of its values count that no op can make
again: those that the step began with, and those of ops that are not repeatable.

Where collectives run beside computes, program order does not say what is there when an op runs. Such a graph has a
*line*, the ops of stream 0 (see `precedence`). While an op of the line runs, a value is surely needed if the op that
made or used it before has surely ended by then, and its next reader has surely not begun. For what runs beside the
line, only what it uses itself counts, and what stays in the compute tier.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from simulator.bounds.cuts import cuts_of
from simulator.bounds.precedence import Precedence
from simulator.hardware import Hardware
from simulator.lifetime import Lifetimes, working_set_bytes
from simulator.plan import FREE, NOWHERE
from simulator.trace import Bools, Ints, held_bytes

_MOST_SUMS = 1000
"""Most sums of sizes that are kept for a window; of more, the smallest size counts alone."""


class Stretches(NamedTuple):
    """Idle stretches, by column: each lies over ops of the line that do not use a tensor whose value is needed.

    Attributes
    ----------
    tensor, size
        Tensor id; size [B].
    after
        The last use before it: an op, or -1 for the start of the step.
    first, last
        First and last op that it lies over.
    due
        The op of the line that surely starts no sooner than the one that reads the value; the number of ops if no op
        of the step reads it, or none of the line is known to wait for that.
    made
        The last op of the line that surely starts no later than the op that made the value; -1 if it was not made in
        the step, or there is none.
    maker
        The op that made the value; -1 if it was not made in the step.
    """

    tensor: Ints
    size: Ints
    after: Ints
    first: Ints
    last: Ints
    due: Ints
    made: Ints
    maker: Ints

    def bytes_at(self, ops: int) -> Ints:
        """Return the bytes that lie idle at each of so many ops [B]."""
        return held_bytes(self.first, self.last, self.size, ops)

    def where(self, mask: Bools) -> Stretches:
        """Return the stretches that a mask flags."""
        return Stretches(*(column[mask] for column in self))

    def must_stay(self, precedence: Precedence) -> Bools:
        """Flag the stretches whose value must be kept somewhere, because no op can make it again."""
        repeatable = np.array([*(op.repeatable for op in precedence.whole.ops), False])
        return ~repeatable[self.maker]


class Demand:
    """Bytes that must be held while each op runs: what it uses, and what is needed later; all by op [B].

    Parameters
    ----------
    precedence, hardware, homes
        Order of the ops; machine; and tier id of each tensor at time 0, or `FREE`.
    may_repeat
        Whether ops may run again; then only values count that no op can make again, or that stay.

    Attributes
    ----------
    cuts
        Cuts that may be short of room, that around the compute tier first.
    work
        Bytes that each op uses, its workspace included.
    stays
        Bytes that are needed later and stay in the compute tier, which is their home.
    held
        `work` and `stays` together.
    idle
        Bytes that are needed later.
    made_in
        By cut, those of `idle` that were within before in the same step (an op made or used them there, or their home
        is within), and what stays in the compute tier.
    read_in
        By cut, those of `idle` that an op of the step reads later and need not fetch from a home outside; and what
        stays in the compute tier.
    stretches
        Stretches of all values, also of those that can be made again.
    moving
        Stretches whose values may leave the compute tier.
    enters
        Tensor that comes from a home -> op of the line that awaits its first reader; the number of ops if none is known
        to.
    leaves
        In a run of one step, tensor that goes to a home -> last op of the line to start no later than its last write.
    lifetimes, precedence, hardware, homes, may_repeat
        Lifetimes of the graph's tensors; and as given.
    """

    def __init__(
        self, precedence: Precedence, hardware: Hardware, homes: Sequence[int], *, may_repeat: bool = False
    ) -> None:
        graph, compute_tier = precedence.graph, hardware.compute_tier_id
        self.precedence, self.hardware, self.homes, self.may_repeat = precedence, hardware, homes, may_repeat
        if working_set_bytes not in graph.known:
            graph.known[working_set_bytes] = working_set_bytes(graph)
        self.lifetimes, self.work = Lifetimes.of(graph), graph.known[working_set_bytes]
        self.enters, self.leaves = self._enters_and_leaves()
        sizes, inputs, ops = [tensor.size_bytes for tensor in graph.tensors], self.lifetimes.inputs, len(graph.ops)
        self.cuts = cuts_of(hardware, sum(sizes))
        home = np.array([homes[t] if t in inputs else NOWHERE for t in range(len(sizes))], np.int64)
        is_pinned = np.array([t.persistent for t in graph.tensors], bool) & (home == compute_tier)
        key = (Stretches, precedence.streams, is_pinned.tobytes(), may_repeat)
        if key not in graph.known:  # no figure of a machine is in them
            rows = [
                row for t, size in enumerate(sizes) for row in self._stretches_of(t, size, is_there=bool(is_pinned[t]))
            ]
            graph.known[key] = Stretches(*np.array(rows, np.int64).reshape(-1, len(Stretches._fields)).T)
        self.stretches = idle = graph.known[key]
        home, is_pinned, stays = home[idle.tensor], is_pinned[idle.tensor], home[idle.tensor] == compute_tier
        self.moving = idle.where(~stays & (idle.size > 0))
        counts = idle.must_stay(precedence) | stays if may_repeat else np.ones(len(idle.size), bool)
        since = np.array([-1 if op < 0 else precedence.no_sooner(op) for op in self.lifetimes.first_use], np.int64)
        is_new = (idle.after >= 0) & (since[idle.tensor] >= 0)
        is_made = stays | ((home == NOWHERE) & (is_new | (graph.steps == 1)))
        pinned, line = idle.where(is_pinned).bytes_at(ops), np.array(precedence.streams) == 0

        def by_op(mask: Bools) -> Ints:
            return np.asarray(idle.where(mask & ~is_pinned).bytes_at(ops) * line + pinned)

        self.stays, self.idle = by_op(stays), by_op(counts)
        self.held = self.work + self.stays
        self.made_in, self.read_in = list[Ints](), list[Ints]()
        for cut in self.cuts:
            inside = np.isin(home, list(cut.tiers))
            is_fetched = ~inside & (home != NOWHERE) & (home != FREE)
            self.made_in.append(by_op(counts & (is_made | (inside & (graph.steps == 1)))))
            self.read_in.append(by_op(counts & (stays | ((idle.due < ops) & ~is_fetched))))

    def _enters_and_leaves(self) -> tuple[dict[int, int], dict[int, int]]:
        """Find the tensors that come from a home, and those that go to one."""
        precedence, lifetimes, tensors = self.precedence, self.lifetimes, self.precedence.graph.tensors
        followed = lifetimes.inputs - precedence.written_on_host
        at_home = [t for t in followed if lifetimes.uses[t] and self.homes[t] not in {FREE, NOWHERE}]
        read = [t for t in at_home if lifetimes.is_read(t, lifetimes.first_use[t])]
        made = [t for t in at_home if lifetimes.writes[t] and tensors[t].persistent and precedence.graph.steps == 1]
        enters = {t: precedence.awaited_by(lifetimes.first_use[t]) for t in read}
        return enters, {t: precedence.no_sooner(lifetimes.writes[t][-1]) for t in made}

    def _stretches_of(self, tensor: int, size: int, *, is_there: bool) -> Iterator[tuple[int, ...]]:
        """Yield the stretches of a tensor in order; of one that is pinned, over all ops between its uses."""
        precedence, lifetimes = self.precedence, self.lifetimes
        uses, writes, ops = lifetimes.uses[tensor], lifetimes.writes[tensor], len(precedence.graph.ops)
        if tensor in precedence.written_on_host and not is_there:
            return
        if uses and tensor in lifetimes.inputs and lifetimes.is_read(tensor, uses[0]):
            uses = (-1, *uses)
        if not (precedence.in_line or is_there):
            uses = self._bounding_uses(tensor, uses)
        for after, reader in pairwise((*(uses or (-1,)), ops)):
            first, last = after + 1, reader - 1
            if not is_there:
                first, last = precedence.follows[after] if after >= 0 else 0, precedence.ended[reader]
            if first <= last and (lifetimes.is_read(tensor, reader) if reader < ops else tensor in lifetimes.stays):
                due = precedence.awaited_by(reader) if reader < ops else ops
                version = bisect_right(writes, after) - 1
                maker = writes[version] if version >= 0 else -1
                made = precedence.no_sooner(maker) if maker >= 0 else -1
                yield tensor, size, after, first, last, due, made, maker

    def _bounding_uses(self, tensor: int, uses: Sequence[int]) -> tuple[int, ...]:
        """Leave out uses beside the line through which the tensor is needed anyway: the next use bounds more."""
        precedence, graph, kept = self.precedence, self.precedence.graph, list[int]()
        is_needed = tensor in self.lifetimes.stays
        for use in reversed(uses):
            reads, writes = (graph.ops[use].reads, graph.ops[use].writes) if use >= 0 else ((), ())
            is_beside = use >= 0 and precedence.streams[use] > 0 and use != uses[0]
            if not (is_beside and is_needed and tensor in reads) or (self.may_repeat and tensor in writes):
                kept.append(use)
                is_needed = tensor in reads
        return tuple(kept[::-1])


def tightest(ops: Ints, demand: Ints, count: int) -> Ints:
    """Cut ops into so many equally long stretches, and return the op of each at which most is needed."""
    if len(ops) <= count:
        return ops
    stretch = np.arange(len(ops)) * count // len(ops)
    in_turn = np.lexsort((-demand[ops], stretch))
    return ops[in_turn[np.flatnonzero(np.diff(stretch, prepend=-1))]]


class Counted:
    """Tensors that windows count, by the start and the end of a window.

    Parameters
    ----------
    held
        What takes room beside them, by start or by end [B].
    size, starts, ends
        Sizes of tensors [B]; starts and ends of the windows that count each: a first index and one behind the last.
    is_whole
        Whether to count that whole tensors move.
    """

    def __init__(
        self, held: Ints, size: Ints, starts: tuple[Ints, Ints], ends: tuple[Ints, Ints], *, is_whole: bool
    ) -> None:
        self._size, self._starts, self._ends, self._is_whole = size, starts, ends, is_whole
        points = held.size + 1
        self._bytes = np.zeros((points, points), np.int64)
        for start, sign in zip(starts, (1, -1), strict=True):
            for end, change in zip(ends, (sign * size, -sign * size), strict=True):
                np.add.at(self._bytes.reshape(-1), start * points + end, change)
        for axis in (0, 1):  # in place: large arrays are costly to make
            np.cumsum(self._bytes, axis, out=self._bytes)
        self._bytes = self._bytes[:-1, :-1]
        self._bytes += held
        self._smallest = np.zeros_like(self._bytes if is_whole else self._bytes[:0])
        for t in np.argsort(-size, kind="stable").tolist() if is_whole else ():
            self._smallest[starts[0][t] : starts[1][t], ends[0][t] : ends[1][t]] = size[t]

    def least(self, room: int) -> Ints:
        """Return what moves in each window at least, given the room [B]."""
        lack = self._bytes - room
        if self._is_whole:
            np.maximum(lack, self._smallest, out=lack, where=lack > 0)
        return np.maximum(lack, 0, out=lack)

    def moved(self, start: int, end: int, room: int) -> int:
        """Return what moves in one window at least, given the room [B]."""
        lack = int(self._bytes[start, end]) - room
        if lack <= 0 or not self._is_whole:
            return max(0, lack)
        (first, behind), (early, late) = self._starts, self._ends
        counts = (first <= start) & (start < behind) & (early <= end) & (end < late)
        return whole_bytes(self._size[counts].tolist(), lack)


def whole_bytes(sizes: Sequence[int], lack: int) -> int:
    """Return the least sum of some sizes that is no less than a lack, or less if they are many [B].

    Parameters
    ----------
    sizes
        Sizes of tensors [B].
    lack
        Bytes that some of these have together at least [B].
    """
    sums, least = {0}, sum(sizes)
    for size in sizes:
        if len(sums) > _MOST_SUMS:
            return max(lack, min(sizes))
        reached = {total + size for total in sums}
        least = min((total for total in reached if lack <= total < least), default=least)
        sums |= {total for total in reached if total < lack}
    return max(lack, least)
