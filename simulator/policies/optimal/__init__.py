"""`optimal`: the best plan over one lower tier for a small graph, by constraint programming. A yardstick, no compiler.

It is the best of all plans for one compute stream that

- run each op once, in program order, and never let the host wait (no `Sync`);
- keep each tensor in the compute tier or in one tier below it, with at most one copy out of each version of a tensor,
  and one copy in for each stretch between two uses that it spends away;
- give up room as soon as nobody needs it, and cross no barrier with a copy in;
- repeat themselves, if there are several steps.

Free are: which stretches are spent away; where a tensor of free home lives; when each copy goes out (also ahead of the
last use) and comes in; and the order of the copies on each link. ::

    window    of several steps, the one that counts     -> Problem
    space     what there is to decide                   -> Space
    program   the scheduling problem, for CP-SAT        -> Solution
    write     the plan that a solution is               -> Plan

The search starts from the plan of `static`: its step is the horizon, and no longer one is looked at.

*The objective* of a plan is its step by the program alone. It is the plan's if its replay takes just as long, to the
nanosecond; then the plan says so in its notes, else it says that it has none. All numbers are whole, so that a proof is
a proof: *proved* means that no plan of this kind has a shorter step.

*Several steps*: the program looks at the window of one step (see `window`), so that what it finds no step can beat, the
last one of two steps or of a hundred. It leaves out what the step before holds or copies late. A plan whose replay
reaches the objective is proved; where late copies make every step longer than that, the plan is the best that was
found, and says how far it may be from the best there is.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, Any

from pydantic import Field

from simulator.bounds import Limits
from simulator.document import Part
from simulator.errors import CapacityError, InvariantError, ScopeError
from simulator.hardware import asked_bytes_per_s
from simulator.plan import NOWHERE, Plan
from simulator.policies import static
from simulator.policies.baselines import Lookahead, OffloadSaved, Resident, lookahead, offload_saved, resident
from simulator.policies.optimal.program import Program, write
from simulator.policies.optimal.space import find_space, window
from simulator.policies.problem import Problem
from simulator.units import human

MOST_OPS = 60


class Options(Part):
    """When to stop.

    Attributes
    ----------
    time_limit_s
        Seconds after which the fastest plan so far is returned; it says then that it is not proved optimal, and what
        is left of the gap. Only a search that ends by itself gives the same plan on every machine.
    """

    time_limit_s: Annotated[float, Field(gt=0)] = Field(60, description="when the search stops [s]")


def plan(problem: Problem, options: Options) -> Plan:
    """Find the plan with the shortest step.

    Parameters
    ----------
    problem
        What to plan for: at most 60 ops, copies whose times do not depend on each other.
    options
        See `Options`.

    Raises
    ------
    ScopeError
        If the graph is too large, the machine is not one that the program describes, or the solver is not installed.
    CapacityError
        If no plan fits the budget.
    """
    _check_scope(problem)
    search = Search(problem, options.time_limit_s)
    best = search.run()
    return replace(best, policy="optimal", notes=(_verdict(search, options.time_limit_s), _objective(search)))


class Search:
    """The fastest plan so far, and what no plan beats.

    Parameters
    ----------
    problem
        What to plan for.
    time_limit_s
        When to stop [s].

    Attributes
    ----------
    plan, step_ns
        The fastest plan and its replayed step [ns].
    objective_ns
        The step of the solution that the plan was written from, by the program alone [ns]; None if the plan is not one
        of the program's, or its replay took another time.
    least_ns
        No plan of the space is faster [ns].
    is_over
        Whether the search ended by itself.
    """

    def __init__(self, problem: Problem, time_limit_s: float) -> None:
        self._problem, self._until = problem, time.monotonic() + time_limit_s
        lead = int(problem.graph.steps > 1)
        self._seen = window(problem) if lead else problem
        self._space = find_space(self._seen, lead)
        self._before_ns = -problem.durations_ns[-1] if lead else problem.hardware.host.fixed.launch_ns
        self.plan: Plan | None = None
        self.step_ns: int | float = math.inf
        self.objective_ns: int | None = None
        self.least_ns = _least_ns(problem)
        self.is_over = False

    @property
    def is_proved(self) -> bool:
        """Whether no plan of the space is faster."""
        return self.step_ns == self.least_ns

    @property
    def premise(self) -> str:
        """What the program lacks to tell a plan that has no objective."""
        if self._space.lead:
            return "copies of the step before are late and delay this step, and the program looks at a step alone"
        return "it is no plan over one lower tier, or none was found in time"

    def run(self) -> Plan:
        """Start from what other policies find, solve, replay, and return the fastest plan.

        Raises
        ------
        CapacityError
            If no plan fits: that of the least demand among the other policies'.
        """
        refused = self._start()
        horizon_ns = self._horizon_ns() - self._before_ns
        program = Program(self._seen, self._space, horizon_ns, max(0, self.least_ns - self._before_ns))
        self._solve(program)
        if self.objective_ns is None:
            program.compute_first()
            self._solve(program)
        if self.step_ns < self.least_ns:
            rule = f"no plan takes less than {self.least_ns:,} ns"
            raise InvariantError("policy 'optimal'", rule, f"{self.step_ns:,} ns", "report this")
        if self.plan is None:
            raise refused or InvariantError("policy 'optimal'", "a policy says why it has no plan", "none", "report")
        return self.plan

    def _solve(self, program: Program) -> None:
        """Look for the shortest step, replay it, and note what no plan beats."""
        verdict = program.solve(self._until - time.monotonic())
        self.is_over = verdict.is_over
        if self.plan is not None or verdict.solution is not None:
            self.least_ns = max(self.least_ns, verdict.least_ns + self._before_ns)
        if verdict.solution is not None:
            plan = write(self._problem, self._space, verdict.solution)
            self._offer(plan, verdict.solution.length_ns + self._before_ns)

    def _start(self) -> CapacityError | None:
        """Take the fastest of other policies' plans; those that may cross a barrier only if there is none."""
        policies: list[tuple[Callable[[Problem, Any], Plan], Any]] = [(static.plan, static.Options())]
        if not any(op.barrier for op in self._problem.graph.ops):
            policies += [(resident, Resident()), (offload_saved, OffloadSaved()), (lookahead, Lookahead())]
        refused = []
        for decide, options in policies:
            try:
                self._offer(decide(self._problem, options))
            except CapacityError as error:
                refused.append(error)
        return min(refused, key=lambda error: error.report.gap_bytes, default=None)

    def _offer(self, plan: Plan, objective_ns: int | None = None) -> None:
        """Replay a plan and keep it if it is the fastest, or as fast and as long as the program says."""
        try:
            replayed = self._problem.replay(plan)
        except CapacityError:
            return
        if replayed.status != "ok":
            return
        is_told = objective_ns == replayed.step_ns
        if replayed.step_ns < self.step_ns or (replayed.step_ns == self.step_ns and is_told):
            self.plan, self.step_ns = plan, replayed.step_ns
            self.objective_ns = objective_ns if is_told else None

    def _horizon_ns(self) -> int:
        """The step of the fastest plan; without one, all ops and copies one after another."""
        if self.step_ns < math.inf:
            return int(self.step_ns)
        copies = sum(gap.in_ns or 0 for gap in self._space.gaps) + sum(out.takes_ns for out in self._space.outs)
        return self._before_ns + self._seen.clock[-1] + copies


def _least_ns(problem: Problem) -> int:
    """What the bounds say; in a run of one step nothing happens before the launch [ns]."""
    homes = [h if there else NOWHERE for h, there in zip(problem.homes, problem.starts_with, strict=True)]
    limits = Limits.alone(problem.graph, problem.hardware, problem.durations_ns, homes)
    launch_ns = problem.hardware.host.fixed.launch_ns if problem.graph.steps == 1 else 0
    return launch_ns + limits.step(problem.budget_bytes).ns


def _verdict(search: Search, time_limit_s: float) -> str:
    others = "no plan over one lower tier"
    if search.is_proved:
        return f"proved optimal: {others} has a shorter step"
    share = search.step_ns / search.least_ns - 1 if search.least_ns else 0.0
    late, stopped = "the replay delays what the program finds best", f"the search stopped after {time_limit_s:g} s"
    why = late if search.is_over else stopped
    return f"not proved optimal ({why}): {others} takes less than {search.least_ns:,} ns, a gap of {share:.2%}"


def _objective(search: Search) -> str:
    if search.objective_ns is None:
        return f"objective: none, for the program cannot tell this plan: {search.premise}"
    return f"objective: {search.objective_ns:,} ns by the program alone, which is the step of the replay"


def _check_scope(problem: Problem) -> None:
    """Refuse what the program does not describe.

    Raises
    ------
    ScopeError
        If the solver is not installed; or the graph is too large or has collectives; or copies may slow each other
        down; or tensors go to several tiers; or the host's own time matters.
    """
    try:
        import ortools.sat.python.cp_model  # noqa: F401, PLC0415 - an extra
    except ImportError:
        raise _error("its solver is installed", "no ortools", 'pip install "hosim[solve]"') from None
    ops = len(problem.graph.ops)
    if ops > MOST_OPS:
        raise _error(f"a graph has at most {MOST_OPS} ops", f"{ops:,}", "use 'static' for large graphs")
    if problem.graph.meets:
        found = "a collective"
        raise _error("an op takes its time, whatever other ranks do", found, "use 'static' for several ranks")
    if problem.switches.copies_wait_for != "start" or problem.switches.hbm_contention:
        found = "other switches"
        raise _error("copies wait for the start of an op, and take no bandwidth from it", found, "leave them out")
    host = problem.hardware.host
    if host.fixed.step_ns or host.queue_depth < ops:
        found = f"{host.fixed.step_ns} ns a step and a queue of {host.queue_depth}"
        raise _error("a fixed plan's steps cost nothing, and all ops can be issued ahead", found, "change the host")
    _check_tiers(problem)


def _check_tiers(problem: Problem) -> None:
    moving = [t for t in range(len(problem.sizes)) if problem.away(t)]
    tiers = {problem.away(t)[0] for t in moving}
    if len(tiers) > 1:
        names = ", ".join(problem.tiers[tier] for tier in sorted(tiers))
        raise _error("all that moves goes to one tier", names, "give all tensors the same home below")
    for away in tiers:
        here = problem.compute_tier
        for hop in ((here, away), (away, here)):
            _check_link(problem, hop)
        demand, room = sum(problem.sizes), problem.capacities[away]
        if demand > room:
            found = f"{demand:,} B of tensors and {room:,} B of room"
            raise _error(f"{problem.tiers[away]} has room for all tensors", found, "raise its capacity")


def _check_link(problem: Problem, hop: tuple[int, int]) -> None:
    names = f"{problem.tiers[hop[0]]} to {problem.tiers[hop[1]]}"
    if hop not in problem.links:
        raise _error("a link joins the tiers directly", f"none from {names}", "add one")
    link = problem.links[hop]
    if link.channels > 1:
        raise _error("a link serves one copy at a time", f"{link.channels} channels from {names}", "set channels to 1")
    name = problem.link_names[hop]
    if any(name in queue and len(queue) > 1 for queue in problem.hardware.queues):
        raise _error("a link has a copy queue of its own", f"{name!r} in a shared one", "remove copy_queues")
    if len(problem.hardware.passing((name,))) > 1 or link.via:
        raise _error("no other link slows copies down", f"{name!r}, whose way another shares", "remove the staged link")
    for bus_name, bus in problem.hardware.buses.items():
        asked = asked_bytes_per_s(problem.hardware, bus)
        if name in bus.links and asked > bus.bandwidth_bytes_per_s:
            has, wants = human(bus.bandwidth_bytes_per_s, "B/s"), human(asked, "B/s")
            found = f"bus {bus_name!r}, of {has}, under links of {wants} together"
            do = f"plan with 'static', or give the bus what its links ask for: --set buses.{bus_name}.bandwidth=inf"
            raise _error("no bus slows copies down", found, do)


def _error(must: str, found: str, do: str) -> ScopeError:
    return ScopeError("policy 'optimal'", must, found, do)
