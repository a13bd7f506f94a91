"""Why one gap is spent away rather than another: a score whose terms are named, and kept for the reader.

A term is the binary logarithm of a quantity, so that terms add up, no unit matters, and size, idle time and bandwidth
rank by *room times time gained, per time of link taken*. The rules by kind come first: what they
call a last resort is only taken if the budget cannot be met otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import log2
from typing import NamedTuple, Protocol, TypeVar

from simulator.graph import TensorKind
from simulator.policies.problem import Problem
from simulator.policies.static.analyse import Idle

Alike = TypeVar("Alike")

TERMS = ("size", "idle", "bandwidth", "exposed")
"""The terms of a score, in order: of the room that is gained; of the idle time that is left after the copies, and after
those that come in for the same op before; against the time that the copies take of the links; against copies that last
longer than the idle time."""

EXPOSED = 64.0
"""What an exposed copy counts: more than the sum of the other terms can, so that it comes behind all that hide."""

BITS = 64
"""Of the times of copies beyond the idle time, as many doublings weigh as much as that there are any."""


class Score(NamedTuple):
    """The score of a gap: the higher, the rather is it spent away.

    Attributes
    ----------
    total
        Sum of the terms.
    terms
        What each of `TERMS` adds.
    last_resort
        Why the rules by kind would rather keep the tensor; empty if they do not mind.
    queue_ns
        What was counted as coming in for the same op before [ns].
    is_asked
        Whether it was asked that the tensor leaves, whatever the score.
    """

    total: float
    terms: tuple[float, ...]
    last_resort: str = ""
    queue_ns: int = 0
    is_asked: bool = False


class Rank(Protocol):
    """Scores gaps."""

    def __call__(self, gap: Idle, queue_ns: int = 0) -> Score:
        """Score a gap behind copies that take so long [ns]."""
        ...


class Scorer:
    """Scores the gaps of one problem.

    Parameters
    ----------
    problem
        What to plan for.
    asked
        Tensors that it was asked for to leave.
    """

    def __init__(self, problem: Problem, asked: frozenset[int] = frozenset()) -> None:
        self._asked, self._tensors = asked, problem.graph.tensors
        self._update_is_short = _update_is_short(problem)

    def __call__(self, gap: Idle, queue_ns: int = 0) -> Score:
        """Score a gap.

        Parameters
        ----------
        gap
            The gap.
        queue_ns
            What copies take that come in for the same op before this one [ns].
        """
        taken_ns, exposed_ns = gap.out_ns + gap.in_ns, gap.exposed_ns
        gained_ns = max(0, gap.lead_ns + gap.trail_ns - taken_ns - queue_ns)
        terms = (
            log2(1 + gap.size_bytes),
            log2(1 + gained_ns),
            -log2(1 + taken_ns),
            -EXPOSED * (1 + log2(1 + exposed_ns) / BITS) if exposed_ns else 0.0,
        )
        is_asked = gap.tensor in self._asked
        return Score(sum(terms), terms, "" if is_asked else self._last_resort(gap), queue_ns, is_asked)

    def _last_resort(self, gap: Idle) -> str:
        about = self._tensors[gap.tensor]
        if about.kind is TensorKind.ACTIVATION and not about.persistent and gap.exposed_ns:
            return "short-lived: it would be away for less time than its copies take"
        if about.kind is TensorKind.OPTIMIZER_STATE and self._update_is_short:
            return "optimizer state: the update is shorter than its copies"
        return ""


def spread(row: Sequence[Alike]) -> list[Alike]:
    """Order what has the same score so that however many are taken from the front, they lie evenly over the row.

    Parameters
    ----------
    row
        What has the same score, in the order of the step.
    """
    if len(row) < 3:
        return [*row]
    width = (len(row) - 1).bit_length()
    return [row[i] for i in sorted(range(len(row)), key=lambda i: int(f"{i:0{width}b}"[::-1], 2))]


def _update_is_short(problem: Problem) -> bool:
    """Whether storing all optimizer state that may move takes longer than the update that changes it."""
    ops, here = problem.graph.ops, problem.compute_tier
    update_ns = sum(ns for op, ns in zip(ops, problem.durations_ns, strict=True) if op.phase == "update")
    states = (t for t, about in enumerate(problem.graph.tensors) if about.kind is TensorKind.OPTIMIZER_STATE)
    moving = [t for t in states if not problem.pinned(t) and problem.lifetimes.uses[t]]
    return update_ns < sum(problem.copy_ns(t, here, problem.away(t)[0]) for t in moving)
