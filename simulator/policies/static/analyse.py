"""First pass: find which tensors idle, when and for how long, and what it costs and gains to spend that time away.

A score with named terms decides which idle intervals are spent away, and later explains the decision. A term is the
binary logarithm of a quantity, so that terms add up, units do not matter, and size, idle time and bandwidth rank by
*room times time gained, per link time taken*. Intervals that cannot hide their copies come last.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from math import log2
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from simulator.graph import TensorKind
from simulator.lifetime import NEVER, IdleInterval, idle_intervals, live_bytes
from simulator.plan import FREE, NOWHERE
from simulator.policies.problem import Problem


class PricedIdle(NamedTuple):
    """An idle interval that a tensor can spend away from the compute tier.

    Attributes
    ----------
    after, before
        The uses on either side (op indices); the number of ops where an output waits for the end of the step.
    wraps
        The interval spans the step boundary: the tensor's home is away, and `before` comes first in the step.
    returns
        Whether a copy in ends the interval (not if the next use only writes, or there is none).
    lead_ns, trail_ns
        Idle time before the next use, and, if the interval wraps, after the last one [ns].
    out_ns, in_ns
        Times of the copies out (0 if the copy away is still valid, or if the next use only writes) and in (0 if there
        is none) [ns].
    away
        Tier that it goes to.
    """

    tensor: int
    after: int
    before: int
    wraps: bool
    returns: bool
    size_bytes: int
    lead_ns: int
    trail_ns: int
    out_ns: int
    in_ns: int
    away: int

    @property
    def exposed_ns(self) -> int:
        """Time by which the copies outlast the idle time on free links [ns]."""
        if self.wraps:
            return max(0, self.in_ns - self.lead_ns) + max(0, self.out_ns - self.trail_ns)
        return max(0, self.out_ns + self.in_ns - self.lead_ns)

    def spent_in(self, problem: Problem, tier: int) -> PricedIdle:
        """Return the interval as spent in a tier, with the times of its copies over the whole path.

        Parameters
        ----------
        problem
            Problem to plan for.
        tier
            The tier.
        """
        compute_tier = problem.compute_tier
        out_ns = problem.copy_ns(self.tensor, compute_tier, tier) if self.out_ns else 0
        in_ns = problem.copy_ns(self.tensor, tier, compute_tier) if self.in_ns else 0
        return self._replace(away=tier, out_ns=out_ns, in_ns=in_ns)

    def stretched(self, lasts_ns: int, computes_ns: int) -> PricedIdle:
        """Return the interval with its idle times scaled from a step of `computes_ns` to one of `lasts_ns`."""
        lead_ns, trail_ns = (idle_ns * lasts_ns // max(1, computes_ns) for idle_ns in (self.lead_ns, self.trail_ns))
        return self._replace(lead_ns=lead_ns, trail_ns=trail_ns)

    def ranges(self, ops: int) -> tuple[tuple[int, int], ...]:
        """Return the first and last op of each range of ops during which the tensor is away.

        Parameters
        ----------
        ops
            Number of ops of a step.
        """
        if self.wraps:
            return (0, self.before - 1), (self.after + 1, ops - 1)
        return ((self.after + 1, self.before - 1),)


_NEVER_STORED = (TensorKind.WEIGHT, TensorKind.EXPERT, TensorKind.KV_CACHE)


@dataclass(frozen=True)
class Analysis:
    """Idle intervals of a problem, as the other passes need them.

    Attributes
    ----------
    problem, asked
        Problem to plan for; tensors that option `move` asks to leave.
    live_bytes
        By op: live bytes if everything stays in the compute tier [B].
    forced
        Idle intervals of tensors that live elsewhere: they are away whether it helps or not.
    idle_homes
        Tensors whose home is free and that no op uses: they live away at no cost.
    moving_homes
        Tensors that get a home away if they move at all, so that they are detached and never stored.
    """

    problem: Problem
    asked: frozenset[int]
    live_bytes: NDArray[np.int64]
    forced: tuple[PricedIdle, ...]
    idle_homes: tuple[int, ...]
    moving_homes: frozenset[int]

    @cached_property
    def candidates(self) -> tuple[PricedIdle, ...]:
        """All other idle intervals; where everything fits, nobody asks for their prices."""
        problem, uses = self.problem, self.problem.lifetimes.uses
        free = (t for t in sorted(problem.lifetimes.inputs) if uses[t] and problem.homes[t] == FREE and problem.away(t))
        over_boundary = (_over_step_boundary(problem, tensor) for tensor in free)
        return (*_between_uses(problem, self.moving_homes), *over_boundary)

    @cached_property
    def ranking(self) -> list[tuple[PricedIdle, Score]]:
        """The candidates with their scores: those that were asked for first, then by score.

        An op needs all its tensors at once, so copies in for it with like scores queue up, and each scores lower than
        the one before: of several KV caches some blocks each leave, rather than all blocks of a few. Candidates with
        like scores (`_SHADES`) are spread over the step, as tensor ids follow its course.
        """
        queues_ns: dict[tuple[int, int, int], int] = {}
        alike: dict[tuple[bool, int], list[tuple[PricedIdle, Score]]] = {}
        for idle, alone in sorted(((idle, scored(idle, self.asked)) for idle in self.candidates), key=ranking_key):
            queue = idle.before, idle.away, round(alone.total * _SHADES)
            queue_ns = queues_ns.get(queue, 0)
            queues_ns[queue] = queue_ns + idle.in_ns
            queued = scored(idle, self.asked, queue_ns) if queue_ns else alone
            key = not queued.is_asked, -round(queued.total * _SHADES)
            alike.setdefault(key, []).append((idle, queued))
        return [pair for key in sorted(alike) for pair in spread(alike[key])]


def analyse(problem: Problem, asked: frozenset[int] = frozenset()) -> Analysis:
    """Find the idle intervals of all tensors that may move.

    Parameters
    ----------
    problem, asked
        Problem to plan for; tensors that were asked to leave.
    """
    live, lifetimes = live_bytes(problem.graph), problem.lifetimes
    forced, unused = list[PricedIdle](), list[int]()
    for tensor in sorted(lifetimes.inputs):
        if problem.pinned(tensor):
            continue
        if lifetimes.uses[tensor]:
            forced += [] if problem.homes[tensor] == FREE else [_over_step_boundary(problem, tensor)]
            continue
        live -= problem.sizes[tensor]
        unused += [tensor] if problem.homes[tensor] == FREE else []
    return Analysis(problem, asked, live, tuple(forced), tuple(unused), moving_homes(problem))


def moving_homes(problem: Problem) -> frozenset[int]:
    """Find read-only tensors that get a home in another tier if they move at all.

    These are the weights, experts and blocks of a KV cache whose home is free, unless the copy in before the first use
    would be exposed at the beginning of each step.

    Parameters
    ----------
    problem
        Problem to plan for.
    """
    lifetimes, compute_tier = problem.lifetimes, problem.compute_tier
    leaving = set()
    for tensor, fields in enumerate(problem.graph.tensors):
        first = lifetimes.first_use[tensor]
        is_read_only = tensor in lifetimes.inputs and first != NEVER and not lifetimes.writes[tensor]
        may_go = problem.homes[tensor] == FREE and problem.neighbours
        if not may_go or not is_read_only or fields.kind not in _NEVER_STORED:
            continue
        if problem.copy_ns(tensor, problem.neighbours[0], compute_tier) <= problem.clock[first]:
            leaving.add(tensor)
    return frozenset(leaving)


def _between_uses(problem: Problem, moving_homes: frozenset[int]) -> Iterator[PricedIdle]:
    """Yield idle intervals between two uses in a step, and then those of outputs that wait for the end of the step."""
    graph, lifetimes, ops = problem.graph, problem.lifetimes, len(problem.graph.ops)
    waiting = (t for t in graph.outputs if not graph.tensors[t].persistent and lifetimes.last_use[t] < ops - 1)
    intervals = chain(idle_intervals(graph), (IdleInterval(t, lifetimes.last_use[t], ops) for t in waiting))
    for idle in intervals:
        tensor, after, before, wraps = idle
        if wraps or problem.pinned(tensor):
            continue
        lives_away = tensor in lifetimes.inputs and problem.homes[tensor] != FREE
        writes = lifetimes.writes[tensor]
        clean = lives_away and (not writes or writes[0] > after)
        clean = clean or tensor in moving_homes
        is_read = lifetimes.is_read(tensor, before)
        yield priced(problem, idle, goes_out=before == ops or (is_read and not clean), returns=is_read)


def _over_step_boundary(problem: Problem, tensor: int) -> PricedIdle:
    """Price the interval over the step boundary of a tensor that exists from the start."""
    lifetimes, stays = problem.lifetimes, problem.graph.tensors[tensor].persistent
    first, last = lifetimes.first_use[tensor], lifetimes.last_use[tensor] if stays else len(problem.graph.ops) - 1
    is_stored, is_read = stays and bool(lifetimes.writes[tensor]), lifetimes.is_read(tensor, first)
    return priced(problem, IdleInterval(tensor, last, first, wraps=True), goes_out=is_stored, returns=is_read)


def priced(problem: Problem, idle: IdleInterval, *, goes_out: bool, returns: bool) -> PricedIdle:
    """Add to an idle interval its idle times, and the times of its copies to and from the best tier.

    Parameters
    ----------
    problem, idle
        Problem to plan for, and the idle interval.
    goes_out, returns
        Whether a copy out begins it, and whether a copy in ends it.
    """
    compute_tier, away = problem.compute_tier, next(iter(problem.away(idle.tensor)), NOWHERE)
    clock, may_move = problem.clock, away != NOWHERE
    begin_ns = clock[idle.after + 1]
    lead_ns, trail_ns = (clock[idle.before], clock[-1] - begin_ns) if idle.wraps else (clock[idle.before] - begin_ns, 0)
    out_ns = problem.copy_ns(idle.tensor, compute_tier, away) if goes_out and may_move else 0
    in_ns = problem.copy_ns(idle.tensor, away, compute_tier) if returns and may_move else 0
    return PricedIdle(*idle, returns, problem.sizes[idle.tensor], lead_ns, trail_ns, out_ns, in_ns, away)


Alike = TypeVar("Alike")

TERMS = ("size", "idle", "bandwidth", "exposed")
"""The terms of a score, in order: for the room gained; for the idle time left after these copies and those that come in
for the same op before them; against the link time that the copies take; against copies that outlast the idle time."""

_EXPOSED = 64.0
"""Weight of an exposed copy: more than the other terms can add up to, so that it ranks behind all hidden ones."""

_BITS = 64
"""Doublings of the exposed time that weigh as much as being exposed at all: times below 2**64 at most double it."""


_SHADES = 64
"""Fractions of a doubling to which scores are rounded to count as alike: idle times within 1 % of one another do."""


class Score(NamedTuple):
    """The score of an idle interval: intervals with a higher score leave first.

    Attributes
    ----------
    queue_ns
        Time of the copies in for the same op that were counted before it [ns].
    is_asked
        Whether the tensor was asked to leave, whatever the score.
    """

    total: float
    terms: tuple[float, ...]
    queue_ns: int = 0
    is_asked: bool = False


def scored(idle: PricedIdle, asked: frozenset[int] = frozenset(), queue_ns: int = 0) -> Score:
    """Score an idle interval.

    Parameters
    ----------
    idle
        The interval.
    asked
        Tensors that were asked to leave.
    queue_ns
        Time of the copies that come in for the same op before this one [ns].
    """
    taken_ns, exposed_ns = idle.out_ns + idle.in_ns, idle.exposed_ns
    gained_ns = max(0, idle.lead_ns + idle.trail_ns - taken_ns - queue_ns)
    terms = (
        log2(1 + idle.size_bytes),
        log2(1 + gained_ns),
        -log2(1 + taken_ns),
        -_EXPOSED * (1 + log2(1 + exposed_ns) / _BITS) if exposed_ns else 0.0,
    )
    return Score(sum(terms), terms, queue_ns, idle.tensor in asked)


def ranking_key(pair: tuple[PricedIdle, Score]) -> tuple[bool, float, int, int]:
    """Return the sort key of an idle interval with its score: those that were asked for first, then the best score."""
    idle, score = pair
    return not score.is_asked, -score.total, idle.tensor, idle.after


def spread(items: Sequence[Alike]) -> list[Alike]:
    """Order items of the same score so that the first few, however many, lie evenly over the step.

    Parameters
    ----------
    items
        Items of the same score, in the order of the step.
    """
    if len(items) < 3:
        return [*items]
    width = (len(items) - 1).bit_length()
    return [items[i] for i in sorted(range(len(items)), key=lambda i: int(f"{i:0{width}b}"[::-1], 2))]
