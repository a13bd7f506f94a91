"""One graph of a job: what a policy has to solve for it, how plans for it are tried, and what no plan can beat.

Late reads are drawn once for each rank, or read for all, and drawn apart for trying plans. Plans are tried on one rank,
beside what is not known yet; what was replayed need not be replayed again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, partial

from simulator import bounds, engine, formats, metrics
from simulator.catalog import Loaded
from simulator.cost import chosen_op, duration_ns, durations_ns
from simulator.draws import Draws, Origin, Routing, drawn, popularity
from simulator.errors import ConfigError, Shortfall
from simulator.graph import Graph, Job
from simulator.hardware import Hardware
from simulator.lifetime import lifetimes
from simulator.plan import NOWHERE, Plan
from simulator.policies.problem import Problem, Replay
from simulator.scenario import AllocatorKind
from simulator.trace import CAUSES, Trace


@dataclass(frozen=True, eq=False)
class Lots:
    """The draws of a run; each is made when it is first asked for.

    Attributes
    ----------
    origin, seed
        Where draws come from, and what they begin with.
    hardware
        Where ops run.
    """

    origin: Origin
    seed: int
    hardware: Hardware
    _known: dict[tuple[int, int, bool], Draws] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, loaded: Loaded, job: Job) -> Lots:
        """Read where draws come from.

        Raises
        ------
        ConfigError
            If a file of draws is wrong, or says what ops choose that nobody in the job has; or if draws are given for
            a job in which nothing is drawn.
        """
        scenario = loaded.scenario
        origin: Origin = scenario.draws
        if "draws" in scenario.model_fields_set and not any(graph.has_late for graph in job.graphs):
            must, do = "draws are for ops with late reads", "remove them, or say experts: each in the workload"
            raise ConfigError(loaded.place("draws"), must, "none in what runs", do)
        if scenario.draws.file is not None:
            origin = formats.read_routing(loaded.paths["draws"])
        if isinstance(origin, Routing):
            _check_ops(origin, job)
        return cls(origin, scenario.seed, loaded.hardware)

    @property
    def are_alike(self) -> bool:
        """Whether all ranks that run the same choose the same: what a file says was chosen."""
        return isinstance(self.origin, Routing)

    def draws(self, graph: Graph, rank: int = 0, *, rehearsal: bool = False) -> Draws | None:
        """What late reads of a rank choose; None if its graph has none.

        A rehearsal has draws with the same shares that are not those of the run: what a runtime is tried with.
        """
        if not graph.has_late:
            return None
        key = id(graph), 0 if self.are_alike else rank, rehearsal
        if key not in self._known:
            self._known[key] = drawn(graph, self.hardware, self.origin, self.seed, rank=key[1], rehearsal=rehearsal)
        return self._known[key]

    def popularity(self, graph: Graph) -> dict[int, tuple[float, ...]]:
        """For each op with late reads, the share of each candidate in what is chosen."""
        return popularity(graph, self.origin, self.seed) if graph.has_late else {}

    def measured_ns(self, graph: Graph, times_ns: Sequence[int], ranks: Sequence[int]) -> Sequence[int]:
        """Time of each op in the step that is measured [ns], from what it takes as planned.

        Of several ranks that draw for themselves, that is what ops take at least.
        """
        if not graph.has_late:
            return times_ns
        draws = self.draws(graph, ranks[0])
        if draws is None or (len(ranks) > 1 and not self.are_alike):
            return durations_ns(graph.certain, self.hardware)
        return draws.step_durations_ns(times_ns, graph.steps - 1)

    def shorter_ns(self, graph: Graph, op: int, ranks: Sequence[int]) -> int:
        """How much less an op may take in the step that is measured than in the one before [ns]."""
        late = graph.ops[op].late if op >= 0 else None
        draws = self.draws(graph, ranks[0])
        if graph.steps == 1 or late is None or draws is None:
            return 0
        if len(ranks) == 1 or self.are_alike:
            before, last = draws.durations_ns(op)[-2:]
            return max(0, before - last)
        every, least = sum(graph.tensors[t].size_bytes for t in late.candidates), graph.certain.ops[op]
        return duration_ns(chosen_op(least, every), self.hardware) - duration_ns(least, self.hardware)


def _check_ops(origin: Routing, job: Job) -> None:
    """Refuse choices of ops that no graph of the job has, or that read nothing late: they are of another model."""
    choosing = {op.name for graph in job.graphs for op in graph.ops if op.late is not None}
    strange = sorted({name for _, name in origin.by_step} - choosing)
    if strange:
        more = f" and {len(strange) - 1:,} more" if len(strange) > 1 else ""
        must = "each op in the file is one with late reads of what runs"
        raise ConfigError(origin.source, must, f"{strange[0]!r}{more}", "take the file of this model")


class Tries:
    """The fastest plan that was tried since the last row, and what happened; a replay of the same is the same."""

    def __init__(self) -> None:
        self._fastest: tuple[Problem, Plan, Trace, int] | None = None
        self._begun = 0
        self._tell: Callable[[int], None] | None = None

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
            self._tell = None

    def begin(self) -> None:
        """Note that one more plan is tried."""
        self._begun += 1
        if self._tell is not None:
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
        graph, draws = problem.graph, self.lots.draws(problem.graph, rehearsal=True) if plan.fixed is None else None
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

    def posed(self, pose: Callable[..., Problem], ranks: int = 1) -> Problem:
        """Pose a problem whose plans are tried here, on one rank that stands for so many.

        Parameters
        ----------
        pose
            Makes it, with the ways to try its plans and to change it.
        ranks
            So many do the same.
        """
        found: Problem = pose(
            replay=lambda plan: self.trial(found, plan, ranks),
            backbone=lambda budget_bytes: self._backbone(found, budget_bytes),
            under=lambda allocator: self._under(found, allocator, ranks),
        )
        return found

    def _under(self, problem: Problem, allocator: AllocatorKind, ranks: int = 1) -> Problem:
        """The problem where plans are tried under another allocator."""
        lone = self._under(problem.lone, allocator) if problem.lone else None
        return self.posed(partial(replace, problem, allocator=allocator, lone=lone), ranks)

    def _backbone(self, problem: Problem, budget_bytes: int | float) -> Problem:
        """The problem without what late reads choose, in a smaller budget."""
        graph = problem.graph.certain
        changes = {"graph": graph, "lifetimes": lifetimes(graph), "popularity": {}, "lone": None}
        return self.posed(partial(replace, problem, budget_bytes=budget_bytes, **changes))


@dataclass(frozen=True, eq=False)
class Task:
    """One graph of a job.

    Attributes
    ----------
    problem
        What every policy has to solve for it.
    number, team
        Which graph of the job it is; all ranks of the job, without what late reads choose.
    trier
        How plans are tried; it knows what late reads choose.
    """

    problem: Problem
    number: int
    team: bounds.Team
    trier: Trier

    @property
    def times_ns(self) -> Sequence[int]:
        """Time of each op in the step that is measured, alone [ns]."""
        return self.team.times_ns[self.number]

    def draws(self, rank: int) -> Draws | None:
        """What late reads of a rank choose; None if there are none."""
        return self.trier.lots.draws(self.graph, rank)

    @cached_property
    def ranks(self) -> tuple[int, ...]:
        """Ranks that run it, ascending."""
        return self.team.job.ranks_of(self.number)

    @property
    def graph(self) -> Graph:
        """What runs."""
        return self.problem.graph

    @property
    def said(self) -> str:
        """Its label with its ranks, for people."""
        label, first, last = self.team.job.labels[self.number], self.ranks[0], self.ranks[-1]
        if len(self.ranks) == 1:
            return f"{label}, rank {first}"
        if last - first < len(self.ranks):
            return f"{label}, ranks {first} to {last}"
        return f"{label}, {len(self.ranks)} ranks from {first} to {last}"

    @property
    def bound_facts(self) -> tuple[list[int], int | float]:
        """What a bound may rely on: where each tensor is at time 0, and the budget [B]."""
        exists = self.problem.starts_with
        homes = [home if there else NOWHERE for home, there in zip(self.problem.homes, exists, strict=True)]
        return homes, self.problem.budget_bytes

    @property
    def pinned(self) -> list[int]:
        """Tensors (ids) that the scenario keeps in the compute tier."""
        return [tensor for tensor in range(len(self.graph.tensors)) if self.problem.pinned(tensor)]

    @cached_property
    def bound(self) -> Callable[..., bounds.Bound]:
        """What no plan of a kind can beat: see `limits`."""
        return cache(lambda **kind: self.limits(**kind).step(self.problem.budget_bytes))

    @cached_property
    def lap_bound(self) -> bounds.Bound:
        """What each lap of a plan takes at least on average that repeats, and is right whatever late reads choose."""
        return bounds.mean_step(self.graph, self.problem.hardware, self.bound_facts[0])

    @cached_property
    def limits(self) -> Callable[..., bounds.Limits]:
        """All that no plan of a kind can beat: of plans that run each op once in a step unless it is `may_repeat`.

        If it is `in_turn`, also of plans whose ranks do not begin together. They need not do the same at the same time,
        and their steps that count may have different numbers; so each is then bounded as if the others came in time.
        """
        return cache(self._limits)

    def _limits(self, *, may_repeat: bool = False, in_turn: bool = False) -> bounds.Limits:
        precedence = bounds.Precedence.of(self.team.job.graphs[self.number], self.problem.streams)
        if in_turn:
            timing = bounds.Timing.alone(precedence, self.times_ns, may_repeat=may_repeat)
        else:
            timing = self.team.timings(may_repeat=may_repeat)[self.number]
        shorter_ns = self.trier.lots.shorter_ns(self.graph, precedence.last, self.ranks)
        return bounds.Limits(
            replace(timing, shorter_ns=shorter_ns, outlasting=self.graph.cacheable),
            self.problem.hardware,
            self.bound_facts[0],
            may_repeat=may_repeat,
            sharers={} if in_turn else self.team.sharers(self.number),
        )

    @cached_property
    def unfit(self) -> Callable[..., Shortfall | None]:
        """What no plan of a kind can fit, if there is such a thing: see `limits`."""
        facts = (self.team.job.graphs[self.number], self.problem.hardware, *self.bound_facts)
        return cache(partial(bounds.infeasible, *facts))
