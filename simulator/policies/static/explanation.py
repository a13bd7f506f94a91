"""Answers to what a compiler engineer asks of a plan: which intervals, why, where cache operators are, what links do.

A tensor that is recomputed idles from its last use to the run that makes it again. In that interval it is neither kept
nor moved: this third choice costs the time of the run, and saves the room meanwhile and the copies out and in. A dead
tensor that is made again only because others are made of it is made *in passing*: that costs time and saves none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.lifetime import IdleInterval
from simulator.plan import COMPUTE, COPY, NOWHERE, Plan
from simulator.policies import recompute
from simulator.policies.problem import Problem, Replay
from simulator.policies.profile import Profile
from simulator.policies.static import Compiled, Options, compiled
from simulator.policies.static.analyse import PricedIdle, Score, priced, ranking_key, scored
from simulator.policies.static.cache_ops import Role
from simulator.policies.static.mix import Rewritten
from simulator.policies.static.place import Augmented
from simulator.policies.static.room import PlannedRoom
from simulator.policies.static.select import Selection, exceeds
from simulator.trace import Trace, pick, tuples

IN_PASSING = "an input of other tensors that are remade"
CHEAPER = "remaking it takes less time than its copies"
_DEARER = "remaking it takes as long as its copies or longer, but no time of the links"


class Decision(StrEnum):
    """Decision about an idle interval."""

    KEEP = "keep"
    MOVE = "move"
    RECOMPUTE = "recompute"


@dataclass(frozen=True, slots=True)
class IdleDecision:
    """A decision about one idle interval, with its reason.

    Attributes
    ----------
    interval
        The interval; if the tensor is made again, up to the run that makes it.
    decision
        Keep, move or recompute.
    remake_ns
        Time to make the tensor again if everything else that is live then is there [ns]; None if that is impossible or
        not allowed. Where the decision is to recompute, what its op reads may be recomputed too, by its own decision.
    """

    interval: PricedIdle
    decision: Decision
    score: Score
    reason: str
    remake_ns: int | None = None


_SLOTS = 64
"""Slots into which the ledger of links cuts a step."""


class Slot(NamedTuple):
    """A slot of the step on a link.

    Attributes
    ----------
    start_ns, end_ns
        Its part of the step [ns].
    wanted_ns, busy_ns
        Time of copies there: with just-in-time positions, and in the replay [ns].
    servers
        Number of copies that the link serves at a time.
    """

    link: str
    number: int
    start_ns: int
    end_ns: int
    wanted_ns: int
    busy_ns: int
    servers: int

    @property
    def is_oversubscribed(self) -> bool:
        """Whether copies want more time than the link can serve."""
        return self.wanted_ns > (self.end_ns - self.start_ns) * self.servers


HopCopy = tuple[tuple[int, int], int, int]
"""Hop, start and end [ns] of a copy over one link."""


def ledger(augmented: Augmented, trace: Trace, slots: int = _SLOTS) -> list[Slot]:
    """Count how long each link is wanted and busy in each slot of the step; copies outside the step count at its ends.

    *Wanted* is the time of just-in-time copies: each copy out starts right after the last use, each copy in ends at its
    next use. Where more is wanted than a link can serve, placement must move copies to other slots.

    Parameters
    ----------
    augmented
        Augmented graph with its plan.
    trace
        Trace of its replay.
    slots
        Number of slots.
    """
    problem, (busy, length_ns) = augmented.problem, _replayed_copies(augmented, trace)
    width_ns = -(-max(length_ns, problem.clock[-1], 1) // slots)
    borders = np.arange(slots + 1) * width_ns
    borders[[0, -1]] = -(2**62), 2**62
    occupied: dict[tuple[int, int], NDArray[np.int64]] = {}
    for row, copies in enumerate((_just_in_time_copies(augmented), busy)):
        for hop, start, end in copies:
            occupied.setdefault(hop, np.zeros((2, slots), np.int64))[row] += np.diff(borders.clip(start, end))
    counted = []
    for hop in (hop for hop in problem.link_names if hop in occupied):
        for index, (wanted_ns, busy_ns) in enumerate(occupied[hop].T.tolist()):
            start_ns, link = index * width_ns, problem.links[hop]
            times = (start_ns, start_ns + width_ns, wanted_ns, busy_ns)
            counted.append(Slot(problem.link_names[hop], index, *times, link.servers))
    return counted


def _just_in_time_copies(augmented: Augmented) -> Iterator[HopCopy]:
    """Yield just-in-time copies: out right after the last use, and in so that they end at the next."""
    problem, starts, durations = augmented.problem, augmented.problem.clock, augmented.problem.durations_ns
    for cache_op in augmented.cache_ops:
        if cache_op.role is Role.DETACH:
            continue
        after = augmented.intervals[cache_op.trip].after
        moment = starts[after] + durations[after] if after >= 0 else 0
        if cache_op.role is Role.PREFETCH:
            moment = starts[cache_op.before] - problem.copy_ns(cache_op.tensor, cache_op.source, cache_op.target)
        for hop in pairwise(problem.path(cache_op.source, cache_op.target)):
            begin, moment = moment, moment + problem.copy_ns(cache_op.tensor, *hop)
            yield hop, begin, moment


def _replayed_copies(augmented: Augmented, trace: Trace) -> tuple[list[HopCopy], int]:
    """Return the copies of the last step, and its length [ns]."""
    spans, actions = trace.spans.whole(), augmented.plan.fixed or ()
    last = spans["issue"] >= len(actions) * (augmented.plan.repeats - 1)
    origin = int(spans["end_ns"][~last & (spans["kind"] == COMPUTE)].max(initial=0))
    hops = augmented.problem.hardware.hops
    rows = tuples(pick(spans, last & (spans["kind"] == COPY)), "track", "start_ns", "end_ns")
    copies = [(hops[track], start - origin, end - origin) for track, start, end in rows]
    return copies, int(spans["end_ns"][last].max(initial=origin)) - origin


@dataclass(frozen=True)
class Explanation:
    """A compiled plan with its reasons.

    Attributes
    ----------
    augmented
        The compiled graph, with its plan and its problem; if ops run again, it has an op for each run.
    plan
        The plan for the problem as given.
    choices
        The decision about each idle interval, best score first; at last those to make a tensor again, in order.
    slots
        The ledger of channel occupancy.
    """

    augmented: Augmented
    plan: Plan
    choices: tuple[IdleDecision, ...]
    replay: Replay
    slots: tuple[Slot, ...]

    def decided(self, decision: Decision) -> list[IdleDecision]:
        """Return the choices with this decision."""
        return [choice for choice in self.choices if choice.decision is decision]

    @cached_property
    def waited_ns(self) -> Counter[tuple[int, int]]:
        """Op and tensor -> how long the op waited for it in the last step of the replay [ns].

        The `stall_ns` of a prefetch is what the pass expects if the copy begins at its position; copies before it on
        its channel, and tensors that have not left the room it needs, add to that.
        """
        waited_ns: Counter[tuple[int, int]] = Counter()
        if self.replay.trace is None or self.replay.status != "ok":
            return waited_ns
        spans, waits = self.replay.trace.spans.whole(), self.replay.trace.waits.whole()
        begin = int(spans["end_ns"][spans["kind"] == COMPUTE].max(initial=0)) - self.replay.step_ns
        last = pick(waits, waits["start_ns"] >= begin)
        for op, tensor, start, end in tuples(last, "op", "tensor", "start_ns", "end_ns"):
            waited_ns[op, tensor] += end - start
        return waited_ns


def explained(problem: Problem, options: Options) -> Explanation:
    """Compile a plan and say why it is as it is.

    Parameters
    ----------
    problem, options
        As for `plan`.

    Raises
    ------
    CapacityError
        If no plan was found that fits.
    """
    result = compiled(problem, options)
    augmented, problem = result.augmented, result.augmented.problem
    remakes = recompute.remakes(problem.graph) if options.recompute else ()
    again_ns = {idle: sum(problem.durations_ns[op] for op in ops) for idle, ops in remakes}
    replay = problem.replay(augmented.plan)
    slots = () if replay.trace is None else tuple(ledger(augmented, replay.trace))
    return Explanation(augmented, result.plan, tuple(_idle_decisions(result, again_ns)), replay, slots)


def _idle_decisions(result: Compiled, again_ns: Mapping[IdleInterval, int]) -> Iterator[IdleDecision]:
    """Yield the decision about every idle interval with its reason: first those that homes force, then by score.

    Each is priced and scored in the tier that it goes to or, if it is kept, in the first that has room for it. Tensors
    that are made again come last.
    """
    problem, selection, spent = result.augmented.problem, result.augmented.selection, result.augmented.intervals
    analysis, asked = selection.analysis, selection.analysis.asked
    in_tier, below = dict(zip(selection.intervals, spent, strict=True)), PlannedRoom(problem, spent)
    for idle in (in_tier[forced] for forced in analysis.forced):
        yield IdleDecision(idle, Decision.MOVE, scored(idle, asked), "its home is in another tier")
    live, choices = Profile(selection.live_bytes), []
    for idle, alone in analysis.ranking:
        interval, made_ns = in_tier.get(idle), again_ns.get(IdleInterval(*idle[:4]))
        if interval is not None:
            decision, why = Decision.MOVE, _why_moved(problem, interval, alone)
        else:
            interval = idle.spent_in(problem, below.nearest(idle))
            decision, why = Decision.KEEP, _why_kept(selection, live, idle, alone)
        choices.append(IdleDecision(interval, decision, scored(interval, asked, alone.queue_ns), why, made_ns))
    yield from sorted(choices, key=lambda choice: ranking_key((choice.interval, choice.score)))
    if result.rewritten is not None:
        yield from _remake_decisions(result.rewritten, below)


def _why_moved(problem: Problem, idle: PricedIdle, score: Score) -> str:
    nearest = problem.away(idle.tensor)[0]
    further = f"; {problem.tiers[nearest]} is full or too slow" if idle.away != nearest else ""
    why = "the option move asks for it" if score.is_asked else "the budget is exceeded otherwise"
    return why + further


def _why_kept(selection: Selection, live: Profile, idle: PricedIdle, score: Score) -> str:
    if idle in selection.given_back:
        return "taken at first; later choices made it needless"
    asked = "; the option move asks for it, but its copies outlast the idle time" if score.is_asked else ""
    if not exceeds(live, idle, selection.limit_bytes - idle.size_bytes):
        return f"it fits while it idles{asked}"
    return f"other intervals, with a score as good or better, free the memory{asked}"


def _remake_decisions(rewritten: Rewritten, below: PlannedRoom) -> Iterator[IdleDecision]:
    """Yield the decision to recompute each tensor, in the order in which they are recomputed."""
    problem, op_of = rewritten.problem, rewritten.op_of
    lifetimes = problem.lifetimes
    first = {op: run for run, op in reversed([*enumerate(op_of)])}
    holds: dict[int, int] = {}
    for tensor, original in enumerate(rewritten.tensor_of):
        before = holds.get(original, NOWHERE)
        holds[original] = tensor
        if before == NOWHERE:
            continue
        by, after = lifetimes.writes[tensor][0], lifetimes.last_use[before]
        made_ns = problem.durations_ns[by]
        idle = priced(problem, IdleInterval(before, after, by), goes_out=True, returns=True)
        if may_move := not problem.pinned(before):
            idle = idle.spent_in(problem, below.nearest(idle))
        is_cheaper = not may_move or made_ns < idle.out_ns + idle.in_ns
        in_passing = all(first[op_of[op]] != op for op in lifetimes.uses[tensor][1:])
        why = IN_PASSING if in_passing else CHEAPER if is_cheaper else _DEARER
        yield IdleDecision(idle, Decision.RECOMPUTE, scored(idle, queue_ns=made_ns), why, made_ns)
