"""Decide by replay: the fastest of several plans that fits, and the plan of a row under its conditions.

A row decides over few steps, with its allocator, as if alone or with start offsets.

*Start offsets*: while ranks that share a link do the same at the same time, the link is crowded when all copy, and idle
when none does. A rank that begins later copies while others compute. That lasts, because ranks which never meet keep
their distance. No step is shorter than the shared link needs for the bytes of all, so nothing is won where that link is
never idle. Ranks that meet in each step wait for the last one to begin, so they get no offsets (both proofs:
docs/explanation/many-ranks.md).
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache, partial
from itertools import product
from math import inf, isfinite
from typing import Any, Generic, TypeVar

from simulator.bounds.cuts import time_ns
from simulator.errors import CapacityError, InvariantError
from simulator.plan import COPY, Plan
from simulator.policies.problem import Problem, Replay
from simulator.scenario import PolicyChoice
from simulator.units import human

Policy = Callable[[Problem], Plan]
"""A function from a problem to a plan."""

_PARTS = 256
"""Parts of the budget, of 0.4 % each, by which smaller ones are tried: each costs a plan and a replay."""
_DOUBLED = (1, 2, 4, 8, 16, 32, 64, 128)
"""Parts to leave out, in turn, until a plan runs: most plans that block lack little."""

Candidate = TypeVar("Candidate")


class Best(Generic[Candidate]):
    """The fastest plan so far, or whatever a policy keeps in its place.

    Parameters
    ----------
    problem
        Problem that the plans are for.

    Attributes
    ----------
    candidate
        Candidate that was offered with the fastest plan.
    """

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self.candidate: Candidate | None = None
        self._least: CapacityError | None = None
        self._blocked: Candidate | None = None
        self.step_ns: int | float = inf
        self.replays = 0

    @contextmanager
    def trying(self) -> Iterator[None]:
        """Make and offer a plan in this context: if it does not fit, the search notes that and goes on."""
        try:
            yield
        except CapacityError as error:
            if self._least is None or error.report.short_bytes < self._least.report.short_bytes:
                self._least = error

    def offer(self, plan: Plan, candidate: Candidate) -> Replay | None:
        """Replay a plan and keep it if it is the fastest so far; return the replay, or None if it does not fit.

        Parameters
        ----------
        plan
            The plan.
        candidate
            What `chosen` returns if this plan wins.
        """
        self.replays += 1
        with self.trying():
            replay = self._problem.replay(plan)
            problem, compute_tier = self._problem, self._problem.hardware.compute_tier
            rooms = zip(problem.tiers, problem.capacities, strict=True)  # the engine keeps the budget, see `unblocked`
            fits = all(replay.peak_bytes.get(name, 0) <= room for name, room in rooms if name != compute_tier)
            if replay.status == "blocked":
                self._blocked = self._blocked or candidate
            elif fits and replay.step_ns < self.step_ns:
                self.step_ns, self.candidate = replay.step_ns, candidate
            return replay
        return None

    def chosen(self) -> Candidate:
        """Return the fastest candidate; if all plans block themselves, the first, so that its row shows what waits.

        Plans may block themselves where links share a queue; a blocked one is only returned if none was refused.

        Raises
        ------
        CapacityError
            If none fits: that of the least demand.
        """
        chosen = self.candidate or (None if self._least else self._blocked)
        if chosen is None:
            none = InvariantError("search for a plan", "a plan was tried or refused", "none", "report this")
            raise self._least or none
        return chosen


def tune(problem: Problem, options: Sequence[Sequence[Any]], make: Callable[..., Plan]) -> Plan:
    """Choose values for several options by replay and return the fastest plan.

    Options are chosen one after another, starting from the first value of each; if no plan on that way fits, all
    combinations are tried. If all options have one value, nothing is replayed. The search ends with a plan under which
    the only stream never waits, as no other can be faster.

    Parameters
    ----------
    problem
        Problem that the plans are for.
    options
        For each option the values to try; the search starts from the first ones.
    make
        Makes a plan from one value of each option, or raises `CapacityError`.

    Raises
    ------
    CapacityError
        If no plan fits: that of the least demand.
    """
    start = tuple(values[0] for values in options)
    if all(len(values) == 1 for values in options):
        return make(*start)
    best, tried, fixed = Best[tuple[tuple[Any, ...], Plan]](problem), set[tuple[Any, ...]](), list[Plan]()
    is_plain = not any(problem.streams) and not problem.graph.dynamic_reads
    busy_ns = sum(problem.durations_ns) if is_plain else -1

    def attempt(values: tuple[Any, ...]) -> None:
        """Try a combination once; replay fixed plans that differ only in their notes once."""
        if values in tried or best.step_ns <= busy_ns:
            return
        tried.add(values)
        with best.trying():
            plan = make(*values)
            bare = replace(plan, notes=())
            if plan.fixed is None or bare not in fixed:
                fixed.append(bare)
                best.offer(plan, (values, plan))

    for position, values in enumerate(options):
        chosen = best.candidate[0] if best.candidate else start
        for value in values:
            attempt((*chosen[:position], value, *chosen[position + 1 :]))
    for combination in product(*options) if best.step_ns == inf else ():
        attempt(combination)
    return best.chosen()[1]


def decided(choice: PolicyChoice, decide: Policy, problem: Problem) -> Plan:
    """Decide on the plan of a row.

    Parameters
    ----------
    choice
        The row.
    decide
        Its policy, with options.
    problem
        Problem to plan for.
    """
    rehearsal = problem.rehearsal
    if choice.allocator != "ideal":
        rehearsal, decide = replace(rehearsal, allocator=choice.allocator), partial(unblocked, decide=decide)
    plan = staggered(rehearsal, decide) if choice.staggered else decide(rehearsal.alone if choice.alone else rehearsal)
    return replace(plan, repeats=problem.graph.steps)


def unblocked(problem: Problem, decide: Policy) -> Plan:
    """Decide; if a fixed plan blocks itself under the allocator of the row, plan with a smaller budget.

    Replays keep the whole budget. Plans for budgets smaller by one part, two, four and so on are replayed until one
    runs; bisection then looks for a larger budget, which need not be the largest whose plan runs.

    Parameters
    ----------
    problem
        Problem to plan for; plans are tried under the allocator of the row.
    decide
        Policy of the row, with options.

    Returns
    -------
    Plan
        The first plan if it runs, or if no other does; else one with a note that says with how much it was planned.
    """
    plan = decide(problem)
    if plan.fixed is None or not isfinite(problem.budget_bytes) or problem.replay(plan).status == "ok":
        return plan
    whole = int(problem.budget_bytes)

    @cache
    def smaller(parts: int) -> Plan | None:
        """Return a plan for a budget that is smaller by so many parts, if it runs in the whole one, as do its tries."""
        reduced = replace(
            problem,
            budget_bytes=whole - whole * parts // _PARTS,
            trial=lambda tried, plan: problem.trial(replace(tried, budget_bytes=whole), plan),
        )
        try:
            plan = decide(reduced)
            return plan if problem.replay(plan).status == "ok" else None
        except CapacityError:
            return None

    sufficient = next((parts for parts in _DOUBLED if smaller(parts)), 0)
    if not sufficient:
        return plan
    parts = bisect_left(range(sufficient), True, sufficient // 2 + 1, key=lambda parts: smaller(parts) is not None)
    amounts = f"{human(whole - whole * parts // _PARTS, 'B')} of {human(whole, 'B')}"
    note = f"planned with {amounts}, as a plan with all of it blocks itself under this allocator"
    return _with_note(smaller(parts) or plan, note)


def staggered(problem: Problem, decide: Policy) -> Plan:
    """Decide, and offset the starts of ranks if that makes the step shorter, or as short with less contention.

    Parameters
    ----------
    problem
        Problem to plan for; `Problem.turns` says into how many groups its ranks may be divided.
    decide
        Policy, with options. Its plan is tried, and also the one for each rank alone: with offsets, it nearly is.

    Returns
    -------
    Plan
        The fastest by replay, with a note that says so; the plan that begins together if no offsets are better.
    """
    plan = decide(problem)
    if not problem.turns or plan.fixed is None:
        why = "they share no link, meet in each step, or run for less than three steps with a fixed plan"
        return _with_note(plan, f"ranks begin together: {why}")
    together = problem.replay(plan)
    if together.status != "ok":
        return plan
    best, least = plan, _cost(together)
    for base in (plan, decide(problem.alone)):
        step_ns, supply_ns = problem.replay(base).step_ns, _supply_ns(problem, base)
        for groups in problem.turns:
            turned = replace(base, starts_ns=tuple(step_ns * turn // groups for turn in range(groups)))
            replay = problem.replay(turned)
            is_lasting = replay.status == "ok" and replay.step_ns >= supply_ns
            if is_lasting and _cost(replay) < least:
                best, least = turned, _cost(replay)
    if best is plan:
        return _with_note(plan, "ranks begin together: no turns are faster")
    steps = f"{human(least[0], 'ns')} a step in place of {human(together.step_ns, 'ns')}"
    late = f"ranks begin in {len(best.starts_ns)} turns, up to {human(max(best.starts_ns), 'ns')} late, once"
    return _with_note(best, f"{late}: {steps}")


def _cost(replay: Replay) -> tuple[int, float]:
    """Return the step, and the highest demand on a shared bus."""
    return replay.step_ns, max(replay.demand.values(), default=0.0)


def _supply_ns(problem: Problem, plan: Plan) -> int:
    """Return how long a shared bus is busy with the bytes of all ranks [ns]; no offsets make a step shorter."""
    moved, hardware, supply_ns = Counter[str](), problem.hardware, 0
    for kind, tensor, source, target in plan.fixed or ():
        if kind == COPY:
            moved[problem.link_names[source, target]] += problem.sizes[tensor]
    for name, ranks in problem.sharers.items():
        bus = hardware.caps[name]
        size = ranks * sum(times * moved[link] for link, times in hardware.passing(bus.links).items())
        supply_ns = max(supply_ns, time_ns(size, bus.bandwidth_bytes_per_s))
    return supply_ns


def _with_note(plan: Plan, note: str) -> Plan:
    return replace(plan, notes=(*plan.notes, note))
