"""Second pass: which gaps a tensor spends away, so that live bytes fit a limit at the least cost."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simulator.policies.problem import Problem
from simulator.policies.profile import Profile
from simulator.policies.static.analyse import Analysis, Idle


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
    """

    gaps: tuple[Idle, ...]
    live_bytes: NDArray[np.int64]
    excess_bytes: int


def select(problem: Problem, analysis: Analysis, limit_bytes: int | float) -> Selection:
    """Choose gaps by worth until live bytes fit the limit everywhere, then give back those that turn out needless.

    Gaps that hide their own copies come first; among them the one that frees the most room over time per time of link
    that it takes. A gap is only taken if it helps somewhere. One sort, and a few range operations per gap.

    Parameters
    ----------
    problem
        What to plan for.
    analysis
        Its idle gaps.
    limit_bytes
        What live bytes shall not exceed [B].
    """
    profile, ops = Profile(analysis.live_bytes), len(problem.graph.ops)
    for gap in analysis.forced:
        _add(profile, gap, -gap.size_bytes, ops)
    taken = _take(profile, analysis.candidates, limit_bytes, ops)
    chosen = list(analysis.forced)
    for gap in reversed(taken):
        if _peak(profile, gap, ops) + gap.size_bytes <= limit_bytes:
            _add(profile, gap, gap.size_bytes, ops)
        else:
            chosen.append(gap)
    chosen.sort(key=lambda g: (g.after, g.tensor, g.before))
    values = profile.values()
    excess = max(0, int(values.max()) - limit_bytes) if len(values) else 0
    return Selection(tuple(chosen), values, int(excess))


def _take(profile: Profile, candidates: Iterable[Idle], limit_bytes: int | float, ops: int) -> list[Idle]:
    taken: list[Idle] = []
    ranked = sorted(candidates, key=lambda g: (g.exposed_ns > 0, -g.worth, g.tensor, g.after))
    over = profile.peak(0, ops - 1) > limit_bytes
    for count, gap in enumerate(ranked):
        if not over:
            break
        if _peak(profile, gap, ops) > limit_bytes:
            _add(profile, gap, -gap.size_bytes, ops)
            taken.append(gap)
            over = count % 8 != 7 or profile.peak(0, ops - 1) > limit_bytes
    return taken


def _ranges(gap: Idle, ops: int) -> tuple[tuple[int, int], ...]:
    """Ops during which the tensor is away."""
    if gap.wraps:
        return (0, gap.before - 1), (gap.after + 1, ops - 1)
    return ((gap.after + 1, gap.before - 1),)


def _add(profile: Profile, gap: Idle, delta_bytes: int, ops: int) -> None:
    for first, last in _ranges(gap, ops):
        profile.add(first, last, delta_bytes)


def _peak(profile: Profile, gap: Idle, ops: int) -> int:
    return max(profile.peak(first, last) for first, last in _ranges(gap, ops))
