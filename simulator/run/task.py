"""One graph of a job: the problem that a policy solves, how plans for it are tried, and what no plan can beat.

What dynamic reads choose is drawn once for each rank, or read from a file for all. Plans are tried with other draws, on
one rank that stands for all that run the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, partial

from simulator import bounds, engine, formats, metrics
from simulator.catalog import Loaded
from simulator.cost import chosen_op, duration_ns, durations_ns
from simulator.draws import Draws, Origin, Routing, delays_ns, drawn
from simulator.errors import ConfigError, Shortfall, insist
from simulator.graph import Graph, Job
from simulator.hardware import Hardware
from simulator.plan import Plan
from simulator.policies.problem import Problem, Replay
from simulator.trace import CAUSES, Trace


@dataclass(frozen=True, eq=False)
class RunDraws:
    """The draws of a run, each made when it is first asked for.

    Attributes
    ----------
    origin, seed
        Where draws come from, and their seed.
    hardware, devices
        The machine; and as each rank sees it.
    """

    origin: Origin
    seed: int
    hardware: Hardware
    devices: Sequence[Hardware]
    _known: dict[tuple[int, ...], Draws] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, loaded: Loaded, job: Job) -> RunDraws:
        """Read where draws come from.

        Raises
        ------
        ConfigError
            If a file of draws is wrong, or names ops that have no dynamic reads in the job; or if draws are given for
            a job without dynamic reads.
        """
        scenario, machines = loaded.scenario, (loaded.hardware, loaded.hardware.devices(job.ranks))
        choosing = {graph.ops[op].name for graph in job.graphs for op in graph.dynamic_reads}
        rule, do = "draws are for ops with dynamic reads", "remove them, or say experts: each in the workload"
        is_needless = "draws" in scenario.model_fields_set and not choosing
        insist(not is_needless, loaded.place("draws"), rule, "none in the graph", do)
        if scenario.draws.file is None:
            return cls(scenario.draws, scenario.seed, *machines)
        origin = formats.read_routing(loaded.paths["draws"])
        strange = {name for _, name in origin.by_step} - choosing if isinstance(origin, Routing) else ()
        if strange:
            rule, do = "each op in the file is one of the graph with dynamic reads", "take the file of this model"
            raise ConfigError(origin.source, rule, repr(min(strange)), do)
        return cls(origin, scenario.seed, *machines)

    @property
    def are_alike(self) -> bool:
        """Whether all ranks of a graph choose the same: choices that are read from a file."""
        return isinstance(self.origin, Routing)

    def draws(self, graph: Graph, rank: int = 0, *, rehearsal: bool = False) -> Draws | None:
        """Return what dynamic reads of a rank choose; None if its graph has none.

        A rehearsal has other draws than the run, with the same shares: runtimes are tried with it.
        """
        if not graph.dynamic_reads:
            return None
        device = self.hardware if rehearsal else self.devices[rank]
        key = id(graph), 0 if self.are_alike else rank, rehearsal, id(device)
        if key not in self._known:
            self._known[key] = drawn(graph, device, self.origin, self.seed, rank=key[1], rehearsal=rehearsal)
        return self._known[key]

    def least(self, graph: Graph, ranks: Sequence[int]) -> Graph:
        """Return a graph with the shortest of each delay that ranks draw."""
        if not graph.spreads:
            return graph
        drawn_ns, ops = [delays_ns(graph, self.seed, rank) for rank in ranks], list(graph.ops)
        for op in graph.spreads:
            ops[op] = replace(ops[op], duration_ns=min(of_rank[op] for of_rank in drawn_ns))
        return replace(graph, ops=tuple(ops))

    def measured_ns(self, graph: Graph, times_ns: Sequence[int], ranks: Sequence[int]) -> Sequence[int]:
        """Return the time of each op in the measured step of the first of some ranks [ns], from its planned time.

        Of several ranks that draw for themselves, it is the least time of each op.

        Parameters
        ----------
        graph, times_ns, ranks
            The graph that the ranks run, and the time of each op that policies know [ns].
        """
        device, least, draws = self.devices[ranks[0]], self.least(graph, ranks), self.draws(graph, ranks[0])
        if draws is not None and len(ranks) > 1 and not self.are_alike:
            return durations_ns(least.certain, device)
        if least is not graph or device is not self.hardware:
            times_ns = durations_ns(least, device, ranks[0] if graph.meets else None)
        return times_ns if draws is None else draws.step_durations_ns(times_ns, graph.steps - 1)

    def shorter_ns(self, graph: Graph, op: int, ranks: Sequence[int]) -> int:
        """Return the most by which an op may be shorter in the measured step, or on some rank, than before [ns]."""
        if op in graph.spreads and graph.steps > 1:
            took_ns = [delays_ns(graph, self.seed, rank)[op] for rank in ranks]
            return max(took_ns) - min(took_ns)
        reads = graph.ops[op].dynamic if op >= 0 else None
        if graph.steps == 1 or reads is None:
            return 0
        most, least = sum(graph.tensors[t].size_bytes for t in reads.candidates), graph.certain.ops[op]
        devices = {id(device): device for device in self.devices}.values()
        return max(duration_ns(chosen_op(least, most), of) - duration_ns(least, of) for of in devices)


class Trials:
    """Replays the plans that policies try, and keeps the trace of the fastest: if chosen, it need not run again.

    Parameters
    ----------
    drawn
        What dynamic reads choose.
    """

    def __init__(self, drawn: RunDraws) -> None:
        self._drawn = drawn
        self.begin(lambda _: None)

    def begin(self, tell: Callable[[int], None]) -> None:
        """Count plans from 0, and forget the fastest.

        Parameters
        ----------
        tell
            Called before each plan is tried, with its number from 1 on.
        """
        self.begun, self._tell = 0, tell
        self._fastest: tuple[int, Problem, Plan, Trace] | None = None

    def __call__(self, problem: Problem, plan: Plan) -> Replay:
        """Replay a plan, and return what a policy learns from that; on one rank, if that can stand for all others.

        A fixed plan is tried as if ops with dynamic reads read all candidates and took their expected time; a runtime
        is tried with draws other than those of the run.
        """
        self.begun += 1
        self._tell(self.begun)
        graph, hardware, times_ns = problem.graph, problem.hardware, problem.durations_ns
        draws = self._drawn.draws(graph, rehearsal=True) if plan.fixed is None else None
        tried = graph
        if graph.meets:  # as if no other rank kept it waiting: its collectives take their time alone
            timed = zip(graph.ops, times_ns, strict=True)
            ops = [replace(op, collective=None, duration_ns=ns) if op.collective else op for op, ns in timed]
            tried = replace(graph, ops=tuple(ops))
        programs = engine.programs_of(tried, plan, [engine.Own(times_ns, draws)] * problem.ranks, problem.allocator)
        if problem.ranks > 1 and engine.folding_obstacle(programs, hardware):
            programs = programs[:1]
        budget, switches = problem.budget_bytes, problem.switches
        whole = engine.run(programs, hardware, budget_bytes=budget, switches=switches, fold="always")
        different = {id(trace): trace for trace in whole.by_rank()}.values()
        ran_by_rank = [metrics.RankRun.of(graph, hardware, trace) for trace in different]
        rows = ((metrics.tried_figures(graph, hardware, ran), ran) for ran in ran_by_rank)
        row, ran = max(rows, key=lambda counted: counted[0]["step_ns"] or 0)
        is_alike = not (graph.dynamic_reads or graph.spreads or hardware.ranks)
        is_whole = row["status"] == "ok" and tried is graph and is_alike
        if is_whole and (self._fastest is None or row["step_ns"] < self._fastest[0]):
            self._fastest = row["step_ns"], problem, plan, whole
        crowds = metrics.crowds(hardware, whole) if problem.ranks > 1 else {}
        peaks = {tier: row[f"peak_{tier}_bytes"] for tier in problem.tiers}
        waits = {cause: row.get(f"wait_{cause}_ns", 0) for cause in CAUSES}
        demand = {name: crowd.demand for name, crowd in crowds.items()}
        whole_ns, step_ns = row["makespan_ns"], row["step_ns"]
        return Replay(ran.trace.status, whole_ns, step_ns, peaks, waits, ran.trace, ran.begun_ns, demand)

    def pop_trace(self, problem: Problem, plan: Plan) -> Trace | None:
        """Return the trace of a plan on one rank if it is the fastest plan that was tried; keep no trace after that.

        Parameters
        ----------
        problem, plan
            What runs, without draws, and what was decided. The same plan for another problem is another run.
        """
        kept, self._fastest = self._fastest, None
        if kept is None or kept[1] is not problem:
            return None
        renamed = replace(kept[2], policy=plan.policy, notes=plan.notes, file=plan.file)  # which change no run
        return kept[3] if renamed == plan else None


@dataclass(frozen=True, eq=False)
class Task:
    """One graph of a job.

    Attributes
    ----------
    problem
        The problem that every policy has to solve.
    number, team
        Index of the graph in the job; all ranks of the job, without what dynamic reads choose.
    drawn
        What dynamic reads choose.
    """

    problem: Problem
    number: int
    team: bounds.Team
    drawn: RunDraws
    _limits: dict[tuple[bool, bool], bounds.Limits] = field(default_factory=dict, init=False, repr=False)

    @property
    def times_ns(self) -> Sequence[int]:
        """Time of each op alone in the measured step [ns]."""
        return self.team.times_ns[self.number]

    def draws(self, rank: int) -> Draws | None:
        """Return what dynamic reads of a rank choose; None if there are none."""
        return self.drawn.draws(self.graph, rank)

    def delays_ns(self, rank: int) -> dict[int, int]:
        """Return how long the delays of a rank take that vary, by op [ns]."""
        return delays_ns(self.graph, self.drawn.seed, rank)

    @cached_property
    def devices(self) -> Sequence[Hardware]:
        """The machine as each rank of the job sees it."""
        return self.problem.hardware.devices(self.team.job.ranks)

    @cached_property
    def own(self) -> Callable[[int], engine.Own]:
        """Rank -> the times of its ops, what it draws, and its device, if that is unlike others."""
        planned_ns, meeting = self.problem.durations_ns, self.ranks[0] if self.graph.meets else None
        by_device: dict[int, Sequence[int]] = {id(self.problem.hardware): planned_ns}

        def of(rank: int) -> engine.Own:
            device = self.devices[rank]
            if id(device) not in by_device:
                by_device[id(device)] = durations_ns(self.graph, device, meeting)
            times_ns, delays = by_device[id(device)], self.delays_ns(rank) if self.graph.delays else {}
            if delays:
                times_ns = [delays.get(op, ns) for op, ns in enumerate(times_ns)]
            return engine.Own(times_ns, self.draws(rank), None if device is self.problem.hardware else device)

        return cache(of)

    @cached_property
    def compute_ns(self) -> int:
        """Time of all ops of stream 0 except collectives, of the rank where that is longest [ns]."""
        is_alike = not (self.problem.hardware.ranks or self.graph.spreads)
        times = [self.times_ns] if is_alike else [self.own(rank).durations_ns for rank in self.ranks]
        line = [op for op, node in enumerate(self.graph.ops) if not (node.collective or node.stream)]
        return max(sum(of_rank[op] for op in line) for of_rank in {id(of): of for of in times}.values())

    @cached_property
    def ranks(self) -> tuple[int, ...]:
        """Ranks that run it, ascending."""
        return self.team.job.ranks_of(self.number)

    @property
    def graph(self) -> Graph:
        """The graph that runs."""
        return self.problem.graph

    @property
    def label(self) -> str:
        """Its label with its ranks, for people."""
        label, first, last = self.team.job.labels[self.number], self.ranks[0], self.ranks[-1]
        if len(self.ranks) == 1:
            return f"{label}, rank {first}"
        return f"{label}, {len(self.ranks)} ranks from {first} to {last}"

    @cached_property
    def pinned(self) -> list[int]:
        """Tensors (ids) that the scenario keeps in the compute tier."""
        return [tensor for tensor in range(len(self.graph.tensors)) if self.problem.pinned(tensor)]

    @cached_property
    def lap_bound(self) -> bounds.Bound:
        """A bound on the mean lap of plans that repeat, and that are right whatever dynamic reads choose."""
        return bounds.mean_step(self.graph, self.problem.hardware, self.problem.known_homes)

    def limits(self, *, may_repeat: bool = False, in_turn: bool = False) -> bounds.Limits:
        """Return the limits that no plan of a kind can beat, computed once for each kind.

        Parameters
        ----------
        may_repeat
            Whether plans count that run an op again within a step.
        in_turn
            Whether plans count whose ranks do not begin together. These ranks need not do the same at the same time,
            nor measure the same step; so each rank is bounded as if the others always came in time.
        """
        if (may_repeat, in_turn) not in self._limits:
            precedence = self.team.precedences[self.number]
            if in_turn:
                timing = bounds.Timing.alone(precedence, self.times_ns, may_repeat=may_repeat)
            else:
                timing = self.team.timings(may_repeat=may_repeat)[self.number]
            shorter_ns = max(timing.shorter_ns, self.drawn.shorter_ns(self.graph, precedence.last, self.ranks))
            self._limits[may_repeat, in_turn] = bounds.Limits(
                replace(timing, shorter_ns=shorter_ns, outlasting=self.graph.cacheable),
                self.devices[self.ranks[0]],
                self.problem.known_homes,
                may_repeat=may_repeat,
                sharers={} if in_turn else self.team.sharers(self.number),
            )
        return self._limits[may_repeat, in_turn]

    @cached_property
    def unfit(self) -> Callable[..., Shortfall | None]:
        """Shortfall of plans that run each op once in a step, or (``may_repeat=True``) of all, if none fits."""
        problem, graph = self.problem, self.team.job.graphs[self.number]
        about = graph, problem.hardware, problem.known_homes, problem.budget_bytes
        return cache(partial(bounds.infeasible, *about))
