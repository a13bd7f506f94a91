"""Second pass: which gaps a tensor spends away, so that live bytes fit a limit at the least cost."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from simulator.policies.problem import Problem
from simulator.policies.profile import Profile
from simulator.policies.static.analyse import Analysis, Idle, lives_away_if_it_moves
from simulator.policies.static.score import Score


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
    given_back
        Gaps that were taken, and turned out needless once others were.
    """

    gaps: tuple[Idle, ...]
    live_bytes: NDArray[np.int64]
    excess_bytes: int
    limit_bytes: int | float
    given_back: frozenset[Idle] = frozenset()


class Rank(Protocol):
    """Scores gaps."""

    def __call__(self, gap: Idle, recompute_ns: int = 0) -> Score:
        """Score a gap whose tensor takes so long to make again [ns]."""
        ...


def ranked(problem: Problem, analysis: Analysis, score: Rank) -> list[tuple[Idle, Score]]:
    """Sort the candidates: those that the rules by kind do not mind first, then by score; ties by tensor and op."""
    scored = [(gap, score(gap)) for gap in analysis.candidates]
    scored.sort(key=lambda pair: (bool(pair[1].last_resort), -pair[1].total, pair[0].tensor, pair[0].after))
    return scored


def select(
    problem: Problem, analysis: Analysis, limit_bytes: int | float, order: Iterable[tuple[Idle, Score]]
) -> Selection:
    """Take gaps in order until live bytes fit the limit everywhere, then give back those that turn out needless.

    A gap is only taken if it helps somewhere. One sort, and a few range operations per gap. A weight that is detached
    and never stored lives away, so that its gap over the step boundary is taken with the first of its others.

    Parameters
    ----------
    problem
        What to plan for.
    analysis
        Its idle gaps.
    limit_bytes
        What live bytes shall not exceed [B].
    order
        The candidates, as `ranked` sorts them.
    """
    ops = len(problem.graph.ops)
    profile = Profile(analysis.live_bytes)
    for gap in analysis.forced:
        _add(profile, gap, -gap.size_bytes, ops)
    taken = _take(problem, profile, [gap for gap, _ in order], limit_bytes)
    chosen, given_back = list(analysis.forced), []
    away = _homes_away(problem, taken)
    for gap in reversed(taken):
        if not (gap.wraps and away.get(gap.tensor)) and _peak(profile, gap, ops) + gap.size_bytes <= limit_bytes:
            _add(profile, gap, gap.size_bytes, ops)
            given_back.append(gap)
            if gap.tensor in away:
                away[gap.tensor] -= 1
        else:
            chosen.append(gap)
    chosen.sort(key=lambda g: (g.after, g.tensor, g.before))
    values = profile.values()
    excess = max(0, int(values.max()) - limit_bytes) if len(values) else 0
    return Selection(tuple(chosen), values, int(excess), limit_bytes, frozenset(given_back))


def explain(
    problem: Problem, selection: Selection, order: Iterable[tuple[Idle, Score]], forced: Iterable[tuple[Idle, Score]]
) -> list[Choice]:
    """Say of every gap why it is spent away or not, best score first.

    Parameters
    ----------
    problem
        What was planned for.
    selection
        What leaves.
    order, forced
        The candidates, and the gaps that the homes force, with their scores.
    """
    chosen, ops = frozenset(selection.gaps), len(problem.graph.ops)
    profile = Profile(selection.live_bytes)
    found = [Choice(gap, Decision.MOVE, score, "its home is in another tier") for gap, score in forced]
    for gap, score in order:
        if gap in chosen:
            reason = f"without it the budget is exceeded{'; a last resort' if score.last_resort else ''}"
            found.append(Choice(gap, Decision.MOVE, score, reason))
            continue
        if gap in selection.given_back:
            reason = "taken at first, then needless"
        elif _peak(profile, gap, ops) + gap.size_bytes <= selection.limit_bytes:
            reason = "there is room for it while it idles"
        else:
            reason = score.last_resort or "others with a better score made the room"
        found.append(Choice(gap, Decision.KEEP, score, reason))
    return found


def _homes_away(problem: Problem, taken: Iterable[Idle]) -> dict[int, int]:
    """For each weight that may not be stored, how many of its gaps within the step were taken."""
    found: dict[int, int] = {}
    for gap in taken:
        if not gap.wraps and lives_away_if_it_moves(problem, gap.tensor):
            found[gap.tensor] = found.get(gap.tensor, 0) + 1
    return found


def _take(problem: Problem, profile: Profile, candidates: list[Idle], limit_bytes: int | float) -> list[Idle]:
    ops = len(problem.graph.ops)
    around = {gap.tensor: gap for gap in candidates if gap.wraps}
    taken: dict[Idle, None] = {}
    over = profile.peak(0, ops - 1) > limit_bytes
    for count, gap in enumerate(candidates):
        if not over:
            break
        if gap in taken or _peak(profile, gap, ops) <= limit_bytes:
            continue
        group = [gap]
        if not gap.wraps and around.get(gap.tensor, gap) not in taken and lives_away_if_it_moves(problem, gap.tensor):
            group.insert(0, around[gap.tensor])
        for member in group:
            _add(profile, member, -member.size_bytes, ops)
            taken[member] = None
        over = count % 8 != 7 or profile.peak(0, ops - 1) > limit_bytes
    return list(taken)


def _add(profile: Profile, gap: Idle, delta_bytes: int, ops: int) -> None:
    for first, last in gap.ranges(ops):
        profile.add(first, last, delta_bytes)


def _peak(profile: Profile, gap: Idle, ops: int) -> int:
    return max(profile.peak(first, last) for first, last in gap.ranges(ops))
