"""Turns: ranks that share a link begin at different times, so that fewer of them pull over it at once.

While ranks do the same at the same time, what they share is crowded when all pull, and idle when none does. A rank that
begins later pulls while others compute. That lasts, because ranks which never meet keep their distance. It cannot beat
the time in which the shared link carries the bytes of all, so nothing is won where that is never idle; and ranks that
meet in each step wait for the last one to begin, so that they are left alone (both proofs:
docs/explanation/many-ranks.md).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from math import inf

from simulator.cost import ceil_div
from simulator.plan import COPY, Plan
from simulator.policies.problem import Problem, Replay
from simulator.units import human

_NS_PER_S = 10**9


@dataclass(frozen=True, slots=True)
class _Candidate:
    plan: Plan
    replay: Replay

    @property
    def cost(self) -> tuple[int, float]:
        """The step, and how much more than it carries the most crowded link is asked for."""
        return self.replay.step_ns, max(self.replay.demand.values(), default=0.0)


def staggered(problem: Problem, decide: Callable[[Problem], Plan]) -> Plan:
    """Decide, and let ranks take turns if the step is then shorter, or as short with less asked for at once.

    Parameters
    ----------
    problem
        What is to be solved; `Problem.turns` says into how many groups its ranks may be divided.
    decide
        The policy. Its plan is tried, and also the one it makes as if each rank were alone: with turns, it nearly is.

    Returns
    -------
    Plan
        The fastest by replay, with a note that says so; the plan that begins together if no turns are better.
    """
    own = decide(problem)
    if not problem.turns or own.fixed is None:
        why = "they share no link, meet in each step, or run for less than three steps with a fixed plan"
        return _noted(own, f"ranks begin together: {why}")
    together = _Candidate(own, problem.replay(own))
    if together.replay.status != "ok":
        return own
    found = [one for one in _candidates(problem, together, decide) if _lasts(problem, one)]
    best = min([together, *found], key=lambda one: one.cost)
    if best is together:
        return _noted(own, "ranks begin together: no turns are faster")
    return _noted(best.plan, _told(together.replay.step_ns, best))


def _candidates(problem: Problem, together: _Candidate, decide: Callable[[Problem], Plan]) -> Iterator[_Candidate]:
    """Each plan with its ranks spread evenly over a step, in few groups and in more."""
    bases = [together]
    if problem.lone is not None:
        plan = decide(problem.lone)
        bases.append(_Candidate(plan, problem.replay(plan)))
    for base in bases:
        for groups in problem.turns:
            starts = tuple(base.replay.step_ns * turn // groups for turn in range(groups))
            plan = replace(base.plan, starts_ns=starts)
            yield _Candidate(plan, problem.replay(plan))


def _lasts(problem: Problem, one: _Candidate) -> bool:
    """Whether ranks could go on so: all buses together carry what is copied in a step, in the time of a step."""
    return one.replay.status == "ok" and one.replay.step_ns >= supply_ns(problem, one.plan)


def supply_ns(problem: Problem, plan: Plan) -> int:
    """No turns make a step shorter: the time for which a shared bus is busy with the bytes of all ranks [ns].

    Parameters
    ----------
    problem
        Who shares what.
    plan
        A fixed plan that all of them run.
    """
    moved = Counter[str]()
    for kind, tensor, source, target in plan.fixed.codes() if plan.fixed else ():
        if kind == COPY:
            moved[problem.link_names[source, target]] += problem.sizes[tensor]
    found, hardware = 0, problem.hardware
    for name, ranks in problem.sharers.items():
        bus = hardware.buses[name]
        size = ranks * sum(times * moved[link] for link, times in hardware.passing(bus.links).items())
        if bus.bandwidth_bytes_per_s != inf:
            found = max(found, ceil_div(size * _NS_PER_S, int(bus.bandwidth_bytes_per_s)))
    return found


def _told(before_ns: int, best: _Candidate) -> str:
    starts, step_ns = best.plan.starts_ns, best.replay.step_ns
    text = f"ranks begin in {len(starts)} turns, up to {human(max(starts), 'ns')} late, once"
    if step_ns == before_ns:
        return f"{text}: the step takes as long, and less is asked for at once"
    after = ceil_div(max(starts), before_ns - step_ns)
    return f"{text}: {human(step_ns, 'ns')} a step in place of {human(before_ns, 'ns')}, won back after {after:,} steps"


def _noted(plan: Plan, note: str) -> Plan:
    return replace(plan, notes=(*plan.notes, note))
