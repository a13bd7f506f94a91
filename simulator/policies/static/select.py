"""Second pass: which gaps a tensor spends away, so that live bytes fit a limit at the least cost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from heapq import heappop, heappush
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.policies.problem import Problem
from simulator.policies.profile import Profile
from simulator.policies.static.analyse import Analysis, Idle
from simulator.policies.static.room import Room, chooses, held
from simulator.policies.static.score import Rank, Score, spread

SHADES = 64
"""Scores that are the same in whole parts of this size count as alike: idle times within 1 % of one another do."""


class Decision(StrEnum):
    """What becomes of a gap."""

    KEEP = "keep"
    MOVE = "move"
    RECOMPUTE = "recompute"


class Remade(NamedTuple):
    """How a tensor that was given up is made again.

    Attributes
    ----------
    tensor
        The tensor that holds its value from then on.
    by
        The op that makes it: one that ran before.
    time_ns
        How long that takes [ns]; what the op reads may have been made again as well, which is told there.
    """

    tensor: int
    by: int
    time_ns: int


@dataclass(frozen=True, slots=True)
class Choice:
    """A decision about one gap, with its reason.

    Attributes
    ----------
    gap
        The gap.
    decision
        Keep, move or recompute.
    score
        See `Score`.
    reason
        Why, as a phrase.
    remake_ns
        What making the tensor again takes, or would take if all else that is live then were there [ns]; None if it
        cannot be, or may not.
    remade
        How it is made again, if that was decided.
    """

    gap: Idle
    decision: Decision
    score: Score
    reason: str
    remake_ns: int | None = None
    remade: Remade | None = None


class Ranking(NamedTuple):
    """The candidates, best first.

    Attributes
    ----------
    score
        What scores them.
    order
        Each with its score.
    """

    score: Rank
    order: list[tuple[Idle, Score]]


@dataclass(frozen=True, slots=True)
class Selection:
    """What leaves.

    Attributes
    ----------
    gaps
        The chosen gaps, by op and tensor.
    live_bytes
        By op: what is live in the compute tier then, if each copy in comes right before its use [B].
    excess_bytes
        By how much the largest of these exceeds the limit [B]; 0 if all fit.
    limit_bytes
        What live bytes had to fit [B].
    ranking
        By which it was chosen.
    given_back
        Gaps that were taken, and turned out needless once others were.
    """

    gaps: tuple[Idle, ...]
    live_bytes: NDArray[np.int64]
    excess_bytes: int
    limit_bytes: int | float
    ranking: Ranking
    given_back: frozenset[Idle] = frozenset()


def ranked(problem: Problem, analysis: Analysis, score: Rank) -> Ranking:
    """Sort the candidates: what shall leave first, then what the rules by kind do not mind, each by score.

    All that one op needs must be there at once, so that of its copies in with like scores each stands behind others:
    where these are blocks of a few caches, some of each leave rather than all of a few. Those whose scores are
    alike (`SHADES`) are spread over the step, of which tensors follow the course.
    """
    found = sorted(((gap, score(gap)) for gap in analysis.candidates), key=_turn)
    queues_ns: dict[tuple[int, int, int], int] = {}
    alike: dict[tuple[bool, bool, int], list[tuple[Idle, Score]]] = {}
    for gap, alone in found:
        queue = gap.before, gap.away, round(alone.total * SHADES)
        queue_ns = queues_ns.get(queue, 0)
        queues_ns[queue] = queue_ns + gap.in_ns
        queued = score(gap, queue_ns=queue_ns) if queue_ns else alone
        key = not queued.is_asked, bool(queued.last_resort), -round(queued.total * SHADES)
        alike.setdefault(key, []).append((gap, queued))
    return Ranking(score, [pair for key in sorted(alike) for pair in spread(alike[key])])


def _turn(pair: tuple[Idle, Score]) -> tuple[bool, bool, float, int, int]:
    gap, score = pair
    return not score.is_asked, bool(score.last_resort), -score.total, gap.tensor, gap.after


def select(
    problem: Problem,
    analysis: Analysis,
    limit_bytes: int | float,
    ranking: Ranking,
) -> Selection:
    """Take gaps in order until live bytes fit the limit everywhere, then give back those that turn out needless.

    What is asked for and hides its copies is taken in any case; another gap only if it helps somewhere. One sort, and
    a few range operations per gap. What is detached and never stored lives away, so that all of its gaps that help are
    taken with the first, and the one over the step boundary in any case.

    Parameters
    ----------
    problem
        What to plan for.
    analysis
        Its idle gaps.
    limit_bytes
        What live bytes shall not exceed [B].
    ranking
        The candidates.
    """
    ops = len(problem.graph.ops)
    profile = Profile(analysis.live_bytes)
    for gap in analysis.forced:
        _add(profile, gap, -gap.size_bytes, ops)
    offers = _Offers(problem, analysis, ranking)
    taken = _take(profile, ops, offers, limit_bytes)
    chosen, given_back = list(analysis.forced), []
    away = Counter(gap.tensor for gap in taken if not gap.wraps and gap.tensor in analysis.moving_homes)
    for gap in reversed(taken):
        if gap in offers.asked:
            chosen.append(gap)
        elif not (gap.wraps and away.get(gap.tensor)) and not _exceeds(profile, gap, ops, limit_bytes - gap.size_bytes):
            _add(profile, gap, gap.size_bytes, ops)
            given_back.append(gap)
            if gap.tensor in away:
                away[gap.tensor] -= 1
        else:
            chosen.append(gap)
    chosen.sort(key=lambda g: (g.after, g.tensor, g.before))
    values = profile.values()
    excess = max(0, int(values.max()) - limit_bytes) if len(values) else 0
    return Selection(tuple(chosen), values, int(excess), limit_bytes, ranking, frozenset(given_back))


def explain(
    problem: Problem,
    selection: Selection,
    spent: Sequence[Idle],
    forced: Iterable[Idle],
) -> list[Choice]:
    """Say of every gap why it is spent away or not, best score first; those that the homes force come before.

    Each is told, and scored, in the tier that it really goes to; what is kept, in the first that has room for it.

    Parameters
    ----------
    problem
        What was planned for.
    selection, spent
        What leaves, and the same gaps in their tiers.
    forced
        The gaps that the homes force.
    """
    score, order = selection.ranking
    in_tier, below = dict(zip(selection.gaps, spent, strict=True)), held(problem, spent)
    why_kept = _WhyKept(problem, selection)
    found = []
    for gap, first_score in order:
        told = in_tier.get(gap)
        if told is not None:
            decision, why = Decision.MOVE, _why_moved(problem, told, first_score)
        else:
            told = gap.spent_in(problem, below.nearest(gap))
            decision, why = Decision.KEEP, why_kept(gap, first_score)
        found.append(Choice(told, decision, score(told, queue_ns=first_score.queue_ns), why))
    found.sort(key=lambda choice: _turn((choice.gap, choice.score)))
    at_home = (in_tier[gap] for gap in forced)
    return [*(Choice(gap, Decision.MOVE, score(gap), "its home is in another tier") for gap in at_home), *found]


def _why_moved(problem: Problem, gap: Idle, score: Score) -> str:
    nearest = problem.away(gap.tensor)[0]
    further = f"; {problem.tiers[nearest]} has no room or no time for it" if gap.away != nearest else ""
    why = "asked for by the option move" if score.is_asked else "without it the budget is exceeded"
    return f"{why}{further}{'; a last resort' if score.last_resort else ''}"


class _WhyKept:
    """Says why a gap is not spent away."""

    def __init__(self, problem: Problem, selection: Selection) -> None:
        self._selection, self._ops = selection, len(problem.graph.ops)
        self._profile = Profile(selection.live_bytes)

    def __call__(self, gap: Idle, score: Score) -> str:
        if gap in self._selection.given_back:
            return "taken at first; others that were taken later made it needless"
        asked = "; the option move asks for it, but copies would outlast that" if score.is_asked else ""
        if not _exceeds(self._profile, gap, self._ops, self._selection.limit_bytes - gap.size_bytes):
            return f"there is room for it while it idles{asked}"
        return score.last_resort or f"others, of a better score or alike, made the room while it idles{asked}"


class _Offers:
    """The candidates in order; one that finds no room in a tier below comes again by its score in the next."""

    def __init__(self, problem: Problem, analysis: Analysis, ranking: Ranking) -> None:
        self._problem, self._room = problem, Room(problem)
        self._again, self._order = ranking
        self._is_counted = self._room.is_scarce
        self.asked = dict.fromkeys(gap for gap, score in self._order if score.is_asked and not gap.exposed_ns)
        self.together: dict[int, list[Idle]] = {tensor: [] for tensor in analysis.moving_homes}
        for gap in sorted(
            (gap for gap, _ in self._order if gap.tensor in self.together), key=lambda gap: not gap.wraps
        ):
            self.together[gap.tensor].append(gap)
        for gap in analysis.forced if self._is_counted else ():
            self._room.enter((gap,), gap.away)

    def __iter__(self) -> Iterator[Idle]:
        if not self._is_counted:
            yield from (gap for gap, _ in self._order)
            return
        tiers = self._problem.neighbours
        heap = [(_turn(pair), 0, pair[0], pair[1].queue_ns) for pair in self._order]
        while heap:
            _, nth, gap, queue_ns = heappop(heap)
            fits = not self._room.is_short_for((gap,), tiers[nth], gap.size_bytes)
            if fits or nth + 1 == len(tiers) or not chooses(self._problem, gap.tensor):
                yield gap
            else:
                further = gap.spent_in(self._problem, tiers[nth + 1])
                heappush(heap, (_turn((further, self._again(further, queue_ns=queue_ns))), nth + 1, gap, queue_ns))

    def accept(self, gap: Idle) -> None:
        """Count a gap in the first tier that has room."""
        if self._is_counted:
            self._room.enter((gap,), self._room.nearest(gap))


def _take(profile: Profile, ops: int, offers: _Offers, limit_bytes: int | float) -> list[Idle]:
    taken: dict[Idle, None] = {}

    def take(gap: Idle) -> None:
        for member in offers.together.get(gap.tensor, (gap,)):
            helps = member in offers.asked or member.wraps or _exceeds(profile, member, ops, limit_bytes)
            if member not in taken and helps:
                _add(profile, member, -member.size_bytes, ops)
                taken[member] = None
                offers.accept(member)

    for gap in offers.asked:
        take(gap)
    over = profile.exceeds(0, ops - 1, limit_bytes)
    for count, gap in enumerate(offers):
        if not over:
            break
        if gap not in taken and _exceeds(profile, gap, ops, limit_bytes):
            take(gap)
            over = count % 8 != 7 or profile.exceeds(0, ops - 1, limit_bytes)
    return list(taken)


def _add(profile: Profile, gap: Idle, delta_bytes: int, ops: int) -> None:
    for first, last in gap.ranges(ops):
        profile.add(first, last, delta_bytes)


def _exceeds(profile: Profile, gap: Idle, ops: int, limit_bytes: int | float) -> bool:
    return any(profile.exceeds(first, last, limit_bytes) for first, last in gap.ranges(ops))
