"""`optimal`: the best plan over one lower tier for a small graph, by constraint programming: a yardstick, no compiler.

It is the best of all plans for one compute stream that

- run each op once, in program order, and never let the host wait (no `Sync`);
- keep each tensor in the compute tier or in one tier below it, with at most one copy out of each version of a tensor,
  and one copy in for each idle interval spent away;
- free memory after the last use, and cross no barrier with a copy in;
- repeat themselves, if there are several steps.

The solver chooses the intervals spent away, the homes of tensors with a free home, the times of all copies (a copy out
may precede the last use), and their order on each link. The step of `static` is the horizon of the search.

All numbers are whole, so *proved* is exact: no plan of this kind has a shorter step, and the replay of this plan takes
just as long, to the nanosecond.

*Several steps*: the program models the window of one step (see `window`), and no step of any number beats its minimum.
The model leaves out places and late copies of the step before. A plan whose replay reaches the minimum is proved; if
late copies lengthen every step, the plan is the best found, and its notes bound the distance to the optimum.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Annotated

from pydantic import Field

from simulator.document import Part
from simulator.errors import InvariantError, ScopeError
from simulator.hardware import asked_bytes_per_s
from simulator.plan import Plan
from simulator.policies import static
from simulator.policies.decide import Best
from simulator.policies.optimal.schedule import ScheduleModel
from simulator.policies.problem import Problem
from simulator.units import human

MOST_OPS = 60
"""A graph of this size is solved within minutes, mostly."""


class Options(Part):
    """Options of the search: its time limit.

    Attributes
    ----------
    time_limit_s
        Seconds after which the fastest plan so far is returned; its notes then say that it is not proved optimal, and
        the gap left. Only a search that ends by itself gives the same plan on every machine.
    """

    time_limit_s: Annotated[float, Field(gt=0)] = Field(60, description="when the search stops [s]")


@dataclass(frozen=True, slots=True)
class Optimum:
    """The fastest plan found, and a lower bound.

    Attributes
    ----------
    plan, step_ns
        The plan and its replayed step [ns].
    least_ns
        No plan of the program's kind is faster [ns].
    is_over
        Whether the search ended by itself.
    """

    plan: Plan
    step_ns: int
    least_ns: int
    is_over: bool

    @property
    def is_proved(self) -> bool:
        """Whether no plan of the program's kind is faster."""
        return self.step_ns == self.least_ns


def plan(problem: Problem, options: Options) -> Plan:
    """Find the plan with the shortest step.

    Parameters
    ----------
    problem
        Problem to plan for: at most 60 ops, and copies that do not slow each other down.
    options
        See `Options`.

    Raises
    ------
    ScopeError
        If the graph is too large, the program does not describe the machine, or the solver is not installed.
    CapacityError
        If no plan fits the budget.
    """
    best, others = optimum(problem, options.time_limit_s), "no plan over one lower tier"
    note = f"proved optimal: {others} has a shorter step"
    if not best.is_proved:
        late = "the replay delays copies of the program's best plan"
        why = late if best.is_over else f"the search stopped after {options.time_limit_s:g} s"
        gap = best.step_ns / max(1, best.least_ns) - 1
        note = f"not proved optimal ({why}): {others} takes less than {best.least_ns:,} ns, a gap of at most {gap:.2%}"
    return replace(best.plan, policy="optimal", notes=(note,))


def optimum(problem: Problem, time_limit_s: float) -> Optimum:
    """Start from the plan of `static`, solve, replay, and return the fastest plan; errors as for `plan`."""
    _check_scope(problem)
    until, best = time.monotonic() + time_limit_s, Best[Plan](problem)
    with best.trying():
        compiled = static.plan(problem, static.Options())
        best.offer(compiled, compiled)
    # A window begins with the last op of the step before; the only step of a run is counted from its launch on.
    launch_ns = problem.hardware.host.fixed.launch_ns if problem.graph.steps == 1 else 0
    before_ns = launch_ns if problem.graph.steps == 1 else -problem.durations_ns[-1]
    least_ns = launch_ns + problem.bound_ns
    program = ScheduleModel(problem, best.step_ns - before_ns, max(0, least_ns - before_ns))
    for refine in (program.compute_first, None):
        verdict = program.solve(until - time.monotonic())
        least_ns = max(least_ns, verdict.least_ns + before_ns)
        if verdict.plan is not None:
            best.offer(verdict.plan, verdict.plan)
        if refine is None or best.step_ns <= verdict.step_ns + before_ns:
            break
        refine()
    plan = best.chosen()
    if best.step_ns < least_ns:
        rule = f"no plan takes less than {least_ns:,} ns"
        raise InvariantError("policy 'optimal'", rule, f"{best.step_ns:,} ns", "report this")
    return Optimum(plan, int(best.step_ns), least_ns, verdict.is_over)


def _check_scope(problem: Problem) -> None:
    """Refuse problems outside of the program's scope.

    Raises
    ------
    ScopeError
        If the graph, the machine or the switches are outside of it, or there is no solver.
    """
    if find_spec("ortools") is None:
        do = 'pip install "hosim[solve]"'
        raise ScopeError("policy 'optimal'", "its solver is installed", "no ortools", do)
    strange = next(_out_of_scope(problem), "")
    if strange:
        must = (
            f"a graph has at most {MOST_OPS} ops and no collective, the host neither computes nor takes time, and "
            "tensors move to one tier that holds them all, over a link each way with one channel and full bandwidth"
        )
        raise ScopeError("policy 'optimal'", must, strange, "change that, or plan with 'static'")


def _out_of_scope(problem: Problem) -> Iterator[str]:
    """Yield phrases that say what is outside of the program's scope."""
    graph, hardware, size_bytes = problem.graph, problem.hardware, sum(problem.sizes)
    if len(graph.ops) > MOST_OPS:
        yield f"{len(graph.ops):,} ops"
    if graph.meets:
        yield "a collective"
    if graph.on_host:
        yield "an op of the host"
    if hardware.shares_memory:
        yield "copies that take bandwidth from kernels"
    if problem.switches.copies_wait_for != "start":
        yield "copies that wait for the end of an op"
    if not hardware.host.issues_freely or hardware.host.queue_depth < len(graph.ops):
        pays = "no time" if hardware.host.issues_freely else "time"
        yield f"a host that takes {pays}, with a queue of {hardware.host.queue_depth}"
    tiers = sorted({problem.away(t)[0] for t in range(len(problem.sizes)) if problem.away(t)})
    if len(tiers) > 1:
        yield f"moves to {', '.join(problem.tiers[tier] for tier in tiers)}"
    for away in tiers:
        if size_bytes > problem.capacities[away]:
            yield f"{size_bytes:,} B of tensors and {problem.capacities[away]:,} B of {problem.tiers[away]}"
        for hop in ((problem.compute_tier, away), (away, problem.compute_tier)):
            yield from _slowdowns(problem, hop)


def _slowdowns(problem: Problem, hop: tuple[int, int]) -> Iterator[str]:
    """Yield phrases that say what may slow down copies over a hop."""
    hardware, ends = problem.hardware, f"from {problem.tiers[hop[0]]} to {problem.tiers[hop[1]]}"
    if hop not in problem.links:
        yield f"no link {ends}"
        return
    link, name = problem.links[hop], problem.link_names[hop]
    if link.channels > 1:
        yield f"{link.channels} channels {ends}"
    if any(name in queue and len(queue) > 1 for queue in hardware.queues):
        yield f"{name!r} in a queue with other links"
    if len(hardware.passing((name,))) > 1 or link.via:
        yield f"{name!r}, whose way another link shares"
    for bus_name, bus in hardware.caps.items():
        asked = asked_bytes_per_s(hardware, bus)
        if name in bus.links and asked > bus.bandwidth_bytes_per_s:
            has, wants = human(bus.bandwidth_bytes_per_s, "B/s"), human(asked, "B/s")
            yield f"bus {bus_name!r}, of {has}, under links of {wants} together"
