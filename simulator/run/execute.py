"""Runs plans: those of a case on all ranks, and one that a policy tries."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from simulator import engine, metrics
from simulator.draws import Draws
from simulator.graph import Graph
from simulator.lifetime import lifetimes
from simulator.plan import Plan
from simulator.policies.problem import Problem, Replay
from simulator.run.lots import Lots
from simulator.run.tries import Tries
from simulator.scenario import AllocatorKind
from simulator.trace import CAUSES, Happened, Trace

if TYPE_CHECKING:
    from simulator.run.case import Case
    from simulator.run.task import Task


def execute(
    case: Case,
    plans: Sequence[Plan],
    progress: Callable[[int, int], None] | None = None,
    allocator: AllocatorKind = "ideal",
) -> Trace:
    """Replay the plans of a case, one for each graph, on all ranks; what a search has replayed already is known."""
    if (
        case.job.ranks == 1
        and allocator == "ideal"
        and (known := case.tasks[0].trier.tries.take(case.problem, plans[0])) is not None
    ):
        return known
    found: dict[int, engine.Program] = {}
    for task, plan in zip(case.tasks, plans, strict=True):
        programs = _programs(task.graph, plan, task.problem.durations_ns, allocator=allocator)
        of_ranks = {rank: programs[i % len(programs)] for i, rank in enumerate(task.ranks)}
        found |= _with_draws(task, of_ranks) if task.graph.has_late else of_ranks
    return engine.run(
        [found[rank] for rank in range(case.job.ranks)],
        case.hardware,
        budget_bytes=case.problem.budget_bytes,
        switches=case.problem.switches,
        progress=progress,
        fold=case.loaded.scenario.fold,
    )


def _with_draws(task: Task, of_ranks: Mapping[int, engine.Program]) -> dict[int, engine.Program]:
    """Programs with what each rank draws; ranks that choose the same keep one program."""
    known: dict[tuple[int, int], engine.Program] = {}
    found = {}
    for rank, program in of_ranks.items():
        draws = task.draws(rank)
        found[rank] = known.setdefault((id(program), id(draws)), replace(program, draws=draws))
    return found


def follow(
    case: Case, plan: Plan, forward: Callable[[Happened], None], progress: Callable[[int, int], None] | None = None
) -> Trace:
    """Replay the plan of a case of one rank, and hand on what happens instead of keeping it.

    Parameters
    ----------
    case, plan
        What runs, and what was decided.
    forward
        Takes what happened since the last time.
    progress
        Called now and then.
    """
    task, problem = case.tasks[0], case.problem
    program = _programs(task.graph, plan, problem.durations_ns, task.draws(0))[0]
    budget, switches = problem.budget_bytes, problem.switches
    return engine.follow(program, case.hardware, forward, budget_bytes=budget, switches=switches, progress=progress)


def _programs(
    graph: Graph,
    plan: Plan,
    times_ns: Sequence[int],
    draws: Draws | None = None,
    allocator: AllocatorKind = "ideal",
) -> list[engine.Program]:
    """What ranks of a graph run in turn: one for each time at which the plan lets them begin."""
    known = {start: engine.Program(graph, plan, times_ns, start, draws, allocator) for start in plan.starts_ns}
    return [known[start] for start in plan.starts_ns]


def alone(graph: Graph, times_ns: Sequence[int]) -> Graph:
    """The graph as one rank runs it if the others always come in time: its collectives take their time alone."""
    if not graph.meets:
        return graph
    timed = zip(graph.ops, times_ns, strict=True)
    ops = [replace(op, collective=None, duration_ns=ns) if op.collective else op for op, ns in timed]
    return replace(graph, ops=tuple(ops))


@dataclass(frozen=True, eq=False)
class Trier:
    """Tries plans for the policies of a graph.

    Attributes
    ----------
    lots
        What late reads choose.
    tries
        What was replayed for the row at hand.
    keeps
        Whether runs are kept; if not, a policy sees the last step of what it tries.
    """

    lots: Lots
    tries: Tries
    keeps: bool = True

    def trial(self, problem: Problem, plan: Plan, ranks: int = 1) -> Replay:
        """What a policy learns by trying a plan: on one rank that stands for so many, if it can, which all do the same.

        A fixed plan is tried as if ops with late reads read all candidates, and took what is expected; a runtime is
        tried with draws that are not those of the run.
        """
        self.tries.begin()
        graph, draws = problem.graph, self.lots.rehearsal(problem.graph) if plan.fixed is None else None
        times_ns = problem.durations_ns
        in_turn = _programs(alone(graph, times_ns), plan, times_ns, draws, problem.allocator)
        programs = [in_turn[rank % len(in_turn)] for rank in range(ranks)]
        if engine.obstacle(programs, problem.hardware):
            programs = programs[:1]
        budget, switches = problem.budget_bytes, problem.switches
        if self.keeps:
            whole = engine.run(programs, problem.hardware, budget_bytes=budget, switches=switches, fold="always")
            traces = list({id(trace): trace for trace in whole.by_rank()}.values())
            every = [(trace, metrics.Ran.of(graph, problem.hardware, trace)) for trace in traces]
        else:
            following = metrics.Following.plan(graph, problem.hardware, plan)
            forward = following.take
            whole = engine.follow(programs[0], problem.hardware, forward, budget_bytes=budget, switches=switches)
            every = [(ran.trace, ran) for ran in (following.ran(whole),)]
        rows = [(*one, metrics.counted(graph, problem.hardware, one[1])) for one in every]
        trace, ran, found = max(rows, key=lambda one: one[2]["step_ns"] or 0)
        peaks = {tier: found[f"peak_{tier}_bytes"] for tier in problem.tiers}
        waits = {cause: found[f"wait_{cause}_ns"] for cause in CAUSES}
        if self.keeps and ranks == 1 and trace.status == "ok" and not graph.has_late:
            self.tries.note(problem, plan, whole, found["step_ns"])
        crowds = metrics.crowds(problem.hardware, whole).items() if ranks > 1 else ()
        demand = {name: one.demand for name, one in crowds}
        return Replay(trace.status, found["makespan_ns"], found["step_ns"], peaks, waits, trace, ran.begun_ns, demand)

    def under(self, problem: Problem, allocator: AllocatorKind, ranks: int = 1) -> Problem:
        """The problem where plans are tried under another allocator, on one rank that stands for so many."""
        found = replace(
            problem,
            allocator=allocator,
            replay=lambda plan: self.trial(found, plan, ranks),
            lone=self.under(problem.lone, allocator) if problem.lone else None,
            backbone=lambda budget_bytes: self.backbone(found, budget_bytes),
        )
        return found

    def backbone(self, problem: Problem, budget_bytes: int | float) -> Problem:
        """The problem without what late reads choose, in a smaller budget."""
        graph = problem.graph.certain
        found = replace(
            problem,
            graph=graph,
            budget_bytes=budget_bytes,
            lifetimes=lifetimes(graph),
            popularity={},
            lone=None,
            backbone=None,
        )
        return replace(found, replay=lambda plan: self.trial(found, plan))
