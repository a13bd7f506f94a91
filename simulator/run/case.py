"""What all rows of a run share, and which rows there are."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import translate
from functools import partial
from pathlib import Path

from simulator import bounds, engine, formats, metrics, referee
from simulator.builders import build_job
from simulator.catalog import Loaded
from simulator.cost import durations_ns
from simulator.errors import ConfigError, Shortfall
from simulator.graph import Graph, Job, TensorKind
from simulator.hardware import Hardware
from simulator.lifetime import lifetimes
from simulator.plan import FREE, Plan
from simulator.policies import POLICIES, static
from simulator.policies.problem import Problem, Replay, streams_of
from simulator.policies.turns import staggered
from simulator.report.names import folder_names
from simulator.run.shares import sharers, shares, turns
from simulator.run.task import Task
from simulator.scenario import PolicyChoice
from simulator.trace import CAUSES, Trace
from simulator.units import nearest

Policy = Callable[[Problem], Plan]
"""What decides: any function from a problem to a plan."""
Policies = Sequence[str] | Mapping[str, Policy]


@dataclass(frozen=True, eq=False)
class Case:
    """What all rows of a run share.

    Attributes
    ----------
    loaded
        The scenario, its machine and its workload.
    job
        What all ranks run.
    tasks
        What every policy has to solve: one for each graph of the job.
    is_changed
        Whether the machine was changed for this run; what the scenario expects is then not checked.
    """

    loaded: Loaded
    job: Job
    tasks: tuple[Task, ...]
    is_changed: bool = False

    @property
    def problem(self) -> Problem:
        """What every policy has to solve for rank 0."""
        return self.tasks[self.job.graph_of[0]].problem

    @property
    def graph(self) -> Graph:
        """What rank 0 runs."""
        return self.problem.graph

    @property
    def hardware(self) -> Hardware:
        """Where, with all changes."""
        return self.problem.hardware

    @property
    def compute_ns(self) -> int:
        """Time of all ops but collectives, of the graph that has most of it [ns]."""
        return max(
            sum(0 if op.collective else ns for op, ns in zip(task.graph.ops, task.problem.durations_ns, strict=True))
            for task in self.tasks
        )

    def bound(self, *, may_repeat: bool = False, in_turn: bool = False) -> bounds.Bound:
        """What no plan can beat; without `may_repeat`, no plan that runs each op once in a step.

        Without `in_turn`, no plan whose ranks begin together, if they meet.
        """
        found = [task.bound(may_repeat=may_repeat, in_turn=in_turn) for task in self.tasks]
        return max(found, key=lambda bound: bound.ns)

    def least_peak_bytes(self, step_ns: int, *, may_repeat: bool = False, in_turn: bool = False) -> int:
        """No plan whose step takes at most `step_ns` has a lower peak in the compute tier [B]."""
        limits = [task.limits(may_repeat=may_repeat, in_turn=in_turn) for task in self.tasks]
        return max(one.peak_bytes(step_ns) for one in limits)

    def unfit(self, *, may_repeat: bool = False) -> Shortfall | None:
        """What no plan can fit, if there is such a thing; without `may_repeat`, no plan that runs each op once."""
        found = (task.unfit(may_repeat=may_repeat) for task in self.tasks)
        return max(filter(None, found), key=lambda short: short.gap_bytes, default=None)

    def may_repeat(self, row: str) -> bool:
        """Whether the row's plan may run an op again: unless it is a policy that never does."""
        choice = self.choice(row)
        if choice.policy not in POLICIES:
            return True
        entry = POLICIES[choice.policy]
        return entry.may_repeat(entry.read_options(choice.options))

    def choice(self, row: str) -> PolicyChoice:
        """The row of the scenario with this name, or else the policy with its default options."""
        known = {choice.row: choice for choice in self.loaded.scenario.policies}
        return known.get(row, PolicyChoice(policy=row))

    def rows(self, policies: Policies | None = None) -> dict[str, Policy]:
        """Say which rows to run, each with the function that decides.

        Parameters
        ----------
        policies
            As in `run`.

        Raises
        ------
        ConfigError
            If a policy or an option is not known.
        """
        choices = {choice.row: choice for choice in self.loaded.scenario.policies}
        if policies is not None and not isinstance(policies, Mapping):
            choices = {c.row: c for name in _chosen(policies) for c in self._named(name)}
        places = {choice.row: i for i, choice in enumerate(self.loaded.scenario.policies)}
        found = {row: self._policy(choice, places.get(row)) for row, choice in choices.items()}
        return {**found, **_functions(policies)} if isinstance(policies, Mapping) else found

    def static_options(self, row: str) -> static.Options | None:
        """Options of a row whose policy is `static`; None for other rows.

        Parameters
        ----------
        row
            A row of the scenario, or the name of a policy.
        """
        choice = self.choice(row)
        if choice.policy != "static":
            return None
        return static.Options.model_validate(choice.options)

    def _named(self, name: str) -> list[PolicyChoice]:
        """Rows with this label or else with this policy; else the policy with its default options."""
        own = self.loaded.scenario.policies
        found = [c for c in own if c.row == name] or [c for c in own if c.policy == name]
        if not found and name not in POLICIES:
            known = tuple(dict.fromkeys([*(c.row for c in own), *POLICIES]))
            must = "a policy is a row of the scenario or one that hosim has"
            raise ConfigError("policies", must, repr(name), nearest(name, known))
        return found or [PolicyChoice(policy=name)]

    def _policy(self, choice: PolicyChoice, place: int | None) -> Policy:
        def where(*keys: str) -> str:
            return self.loaded.place("policies", choice.row if place is None else str(place), *keys)

        if choice.is_file:
            path = self.loaded.paths[f"plan {choice.row}"]
            if len(self.tasks) > 1 and "*" not in str(path):
                must, found = "a file has the plan of one graph", f"one file for {len(self.tasks)} graphs"
                do = "name a file for each, with * for the graph's name, or name a policy"
                raise ConfigError(where("policy"), must, found, do)
            return partial(self._read_plan, str(path), choice.policy)
        if choice.policy not in POLICIES:
            do = nearest(choice.policy, tuple(POLICIES)) + ", or a plan file that ends in .jsonl or .json"
            raise ConfigError(where("policy"), "a policy is one that hosim has", repr(choice.policy), do)
        entry = POLICIES[choice.policy]
        options = entry.read_options(choice.options, partial(where, "options"))
        return partial(decided, choice, lambda problem: entry.plan(problem, options))

    def _read_plan(self, path: str, name: str, problem: Problem) -> Plan:
        """Read the plan of a graph, known by its file; ``*`` is the graph's name."""
        number = next(number for number, graph in enumerate(self.job.graphs) if graph is problem.graph)
        file = path.replace("*", list(folder_names(self.job.labels).values())[number])
        return replace(formats.read_plan(Path(file), problem.graph, problem.tiers), file=name)


def decided(choice: PolicyChoice, decide: Policy, problem: Problem) -> Plan:
    """Decide as a row does: as if alone, or in turns, if it says so.

    Parameters
    ----------
    choice
        The row.
    decide
        What its policy does.
    problem
        What is to be solved.
    """
    if choice.staggered:
        return staggered(problem, decide)
    return decide(problem.lone or problem if choice.alone else problem)


def _chosen(policies: Sequence[str]) -> Sequence[str]:
    names = [policies] if isinstance(policies, str) else policies
    if not isinstance(names, Sequence) or not names or not all(isinstance(name, str) for name in names):
        must, do = "policies is a list of at least one name, or functions by name", "name a row, or leave policies out"
        raise ConfigError("policies", must, repr(policies), do)
    return names


def _functions(policies: Mapping[str, Policy]) -> Mapping[str, Policy]:
    for name, decide in policies.items():
        if not callable(decide):
            must = "a policy by name is a function from a problem to a plan"
            raise ConfigError(f"policies, {name}", must, repr(decide), "write a function, or policies=[names]")
    return policies


LEAST_PEAK = "least_peak_bytes"
"""Column: no plan with a step as short has a lower peak in the compute tier [B]."""

COMPARED = ("slowdown_vs_fastest", "slowdown_vs_compute")
"""Columns that only a table of several rows has."""


def _check_expectations(loaded: Loaded) -> None:
    known = (*metrics.columns(loaded.hardware), LEAST_PEAK, *COMPARED)
    for number, one in enumerate(loaded.scenario.expect):
        if one.column not in known:
            where = loaded.place("expect", str(number), "column")
            must = "an expectation names a column of the summary"
            raise ConfigError(where, must, repr(one.column), nearest(one.column, known))


def prepare(loaded: Loaded, *, is_changed: bool = False) -> Case:
    """Build everything that the rows of a scenario share; nothing runs.

    Parameters
    ----------
    loaded
        The scenario with its machine and its workload.
    is_changed
        Whether the machine was changed for this run.
    """
    reader = partial(formats.read_graph, views=loaded.workload.views)
    job = build_job(loaded.workload, loaded.workload_dir, reader)
    return prepare_job(loaded, job, is_changed=is_changed)


def prepare_job(loaded: Loaded, job: Job, *, is_changed: bool = False) -> Case:
    """Build everything that the rows of a scenario share, for a job that was built before.

    Parameters
    ----------
    loaded, is_changed
        As for `prepare`; of the workload only its name counts.
    job
        What all ranks run.

    Raises
    ------
    ConfigError
        If a document is wrong, or ranks do not meet (`simulator.referee.check_job`).
    """
    _check_expectations(loaded)
    referee.check_job(job, loaded.hardware)
    homes = home_ids(loaded, job.graphs)
    room = shares(job, loaded.hardware, homes) if job.ranks > 1 else [None]
    team = _team(loaded, job)
    tasks = [_task(loaded, team, number, home, room[number]) for number, home in enumerate(homes)]
    return Case(loaded, job, tuple(tasks), is_changed)


def _team(loaded: Loaded, job: Job) -> bounds.Team:
    """All ranks with the times of their ops, and the streams on which they run."""
    first = [job.graph_of.index(number) if graph.meets else None for number, graph in enumerate(job.graphs)]
    times = [durations_ns(graph, loaded.hardware, rank) for graph, rank in zip(job.graphs, first, strict=True)]
    streams = [streams_of(graph, loaded.scenario.switches) for graph in job.graphs]
    return bounds.Team(job, loaded.hardware, tuple(times), tuple(streams))


def _task(
    loaded: Loaded, team: bounds.Team, number: int, homes: tuple[int, ...], room: tuple[int | float, ...] | None
) -> Task:
    job, hardware, scenario = team.job, loaded.hardware, loaded.scenario
    graph = job.graphs[number]
    usable = hardware.tiers[hardware.compute_tier].usable_bytes
    budget = usable if scenario.budget_bytes is None else scenario.budget_bytes
    facts = (graph, hardware, homes, budget, list(team.times_ns[number]), lifetimes(graph))
    lone = Problem(*facts, lambda plan: _trial(task, plan, 1), scenario.switches)
    shared = sharers(job.ranks, hardware)
    together = job.ranks if shared else 1
    problem = replace(
        lone,
        replay=lambda plan: _trial(task, plan, together),
        sharers=shared,
        room_bytes=room,
        turns=turns(job, hardware, shared),
        lone=lone,
    )
    task = Task(problem if job.ranks > 1 else lone, number, team, scenario.bound)
    return task


def execute(case: Case, plans: Sequence[Plan], progress: Callable[[int, int], None] | None = None) -> Trace:
    """Replay the plans of a case, one for each graph, on all ranks; what a search has replayed already is known."""
    if case.job.ranks == 1 and (known := case.tasks[0].tries.take(plans[0])) is not None:
        return known
    found: dict[int, engine.Program] = {}
    for task, plan in zip(case.tasks, plans, strict=True):
        programs = _programs(task.graph, plan, task.problem.durations_ns)
        found |= {rank: programs[i % len(programs)] for i, rank in enumerate(task.ranks)}
    return engine.run(
        [found[rank] for rank in range(case.job.ranks)],
        case.hardware,
        budget_bytes=case.problem.budget_bytes,
        switches=case.problem.switches,
        progress=progress,
        fold=case.loaded.scenario.fold,
    )


def _programs(graph: Graph, plan: Plan, times_ns: list[int]) -> list[engine.Program]:
    """What ranks of a graph run in turn: one for each time at which the plan lets them begin."""
    known = {start: engine.Program(graph, plan, times_ns, start) for start in plan.starts_ns}
    return [known[start] for start in plan.starts_ns]


def _trial(task: Task, plan: Plan, ranks: int) -> Replay:
    """What a policy learns by trying a plan: on one rank that stands for so many, if it can, which all do the same."""
    problem = task.problem
    in_turn = _programs(task.alone, plan, problem.durations_ns)
    programs = [in_turn[rank % len(in_turn)] for rank in range(ranks)]
    if engine.obstacle(programs, problem.hardware):
        programs = programs[:1]
    budget, switches = problem.budget_bytes, problem.switches
    whole = engine.run(programs, problem.hardware, budget_bytes=budget, switches=switches, fold="always")
    traces = list({id(trace): trace for trace in whole.by_rank()}.values())
    rows = [metrics.summarise(problem.graph, problem.hardware, trace) for trace in traces]
    trace, found = max(zip(traces, rows, strict=True), key=lambda one: one[1]["step_ns"] or 0)
    peaks = {tier: found[f"peak_{tier}_bytes"] for tier in problem.tiers}
    waits = {cause: found[f"wait_{cause}_ns"] for cause in CAUSES}
    if task.ranks == (0,) and trace.status == "ok":
        task.tries.note(plan, whole, found["step_ns"])
    demand = {name: one.demand for name, one in metrics.crowds(problem.hardware, whole).items()} if ranks > 1 else {}
    return Replay(trace.status, found["makespan_ns"], found["step_ns"], peaks, waits, trace, demand)


def home_ids(loaded: Loaded, graphs: Sequence[Graph]) -> list[tuple[int, ...]]:
    """Resolve the homes of a scenario; the last match wins.

    Parameters
    ----------
    loaded
        Its scenario maps tensor kinds, or shell patterns of tensor names, to tiers.
    graphs
        The tensors.

    Returns
    -------
    list of tuple of int
        For each graph and tensor a tier id, or `FREE`.

    Raises
    ------
    ConfigError
        If a pattern matches no tensor.
    """
    hardware = loaded.hardware
    ids = {**{name: i for i, name in enumerate(hardware.tiers)}, "free": FREE}
    homes = [[ids[hardware.compute_tier] if t.persistent else FREE for t in graph.tensors] for graph in graphs]
    for pattern, tier in loaded.scenario.homes.items():
        chosen = [_matching(graph, pattern) for graph in graphs]
        if not any(chosen) and pattern not in _KINDS:
            raise _unmatched(loaded, pattern, graphs[0])
        for home, tensors in zip(homes, chosen, strict=True):
            for tensor in tensors:
                home[tensor] = ids[tier]
    return [tuple(home) for home in homes]


_KINDS = {kind.value for kind in TensorKind}


def _matching(graph: Graph, pattern: str) -> list[int]:
    """Tensors of a kind, or with a name that matches."""
    if pattern in _KINDS:
        return [i for i, t in enumerate(graph.tensors) if t.kind == pattern]
    matches = re.compile(translate(pattern)).match
    return [i for i, t in enumerate(graph.tensors) if matches(t.name)]


def _unmatched(loaded: Loaded, pattern: str, graph: Graph) -> ConfigError:
    must = f"a home is for a tensor kind ({', '.join(sorted(_KINDS))}) or for names that some tensor has"
    do = f"correct the pattern; the first tensor is {graph.tensors[0].name!r}" if graph.tensors else "drop it"
    return ConfigError(loaded.place("homes", pattern), must, repr(pattern), do)
