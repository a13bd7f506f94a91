"""Runs the plans of a case on all ranks, and follows a run whose trace is not kept."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from simulator import engine, metrics, referee
from simulator.plan import Plan
from simulator.run.case import Case
from simulator.run.task import Task
from simulator.run.trial import programs_of
from simulator.scenario import AllocatorKind
from simulator.trace import Happened, Trace


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
        programs = programs_of(task.graph, plan, task.problem.durations_ns, allocator=allocator)
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
    program = programs_of(task.graph, plan, problem.durations_ns, task.draws(0))[0]
    budget, switches = problem.budget_bytes, problem.switches
    return engine.follow(program, case.hardware, forward, budget_bytes=budget, switches=switches, progress=progress)


class Follower:
    """Holds one rank's run against the laws, and counts it.

    Parameters
    ----------
    case, label, plan
        What runs, what the row is called, and what was decided.
    """

    def __init__(self, case: Case, label: str, plan: Plan) -> None:
        task, switches = case.tasks[0], case.loaded.scenario.switches
        drawn = referee.Drawn(plan, task.draws(0), case.choice(label).allocator, task.pinned)
        self._watch = referee.Watch(task.graph, case.hardware, drawn, case.problem.budget_bytes, switches)
        self._following = metrics.Following.plan(task.graph, case.hardware, plan)

    def take(self, happened: Happened) -> None:
        """Take what happened since the last time."""
        self._watch.take(happened)
        self._following.take(happened)

    def finish(self, trace: Trace) -> tuple[referee.Findings, metrics.Ran]:
        """What the referee noticed, and what the row is counted from.

        Parameters
        ----------
        trace
            How the run ended.
        """
        return self._watch.finish(trace), self._following.ran(trace)
