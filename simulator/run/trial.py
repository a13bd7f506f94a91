"""Tries plans for policies: on one rank, beside what is not known yet; what was replayed need not be replayed again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from simulator import engine, metrics
from simulator.draws import Draws
from simulator.graph import Graph
from simulator.lifetime import lifetimes
from simulator.plan import Plan
from simulator.policies.problem import Problem, Replay
from simulator.run.lots import Lots
from simulator.scenario import AllocatorKind
from simulator.trace import CAUSES, Trace


class Tries:
    """The fastest plan that was tried since the last row, and what happened; a replay of the same is the same."""

    def __init__(self) -> None:
        self._fastest: tuple[Problem, Plan, Trace, int] | None = None
        self._begun = 0
        self._tell: Callable[[int], None] = _silent

    @contextmanager
    def told(self, tell: Callable[[int], None]) -> Iterator[None]:
        """Tell of each plan that is tried meanwhile which it is, from 1 on.

        Parameters
        ----------
        tell
            Called before it is tried.
        """
        self._begun, self._tell = 0, tell
        try:
            yield
        finally:
            self._tell = _silent

    def begin(self) -> None:
        """Note that one more plan is tried."""
        self._begun += 1
        self._tell(self._begun)

    def note(self, problem: Problem, plan: Plan, trace: Trace, step_ns: int) -> None:
        """Keep a replay that ended, if it is faster than all before.

        Parameters
        ----------
        problem, plan, trace, step_ns
            What was tried, for what, what happened, and how long its last step took [ns].
        """
        if self._fastest is None or step_ns < self._fastest[3]:
            self._fastest = problem, plan, trace, step_ns

    def take(self, problem: Problem, plan: Plan) -> Trace | None:
        """Return what happened under this plan, if that is kept, and forget it in any case; its words do not count.

        Parameters
        ----------
        problem, plan
            Another problem, such as a machine that was changed, is another replay.
        """
        kept, self._fastest = self._fastest, None
        if kept is None or kept[0] is not problem or _decides(kept[1]) != _decides(plan):
            return None
        return kept[2]


def _silent(number: int) -> None:
    """Tell nothing."""


def _decides(plan: Plan) -> tuple[object, ...]:
    """All of a plan that the engine heeds."""
    return plan.tiers, plan.home, plan.steps, plan.repeats, plan.looks, plan.untouched, plan.starts_ns, plan.backbone


def programs_of(
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
        in_turn = programs_of(alone(graph, times_ns), plan, times_ns, draws, problem.allocator)
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
