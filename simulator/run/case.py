"""The case of a run: what its rows share, and which rows there are."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from simulator import bounds, catalog, engine, formats, metrics, ordering, referee
from simulator.builders import build_job
from simulator.catalog import Loaded
from simulator.catalog.text import errors_at
from simulator.cost import durations_ns
from simulator.draws import popularity
from simulator.errors import ConfigError, Shortfall, insist
from simulator.graph import Graph, Job
from simulator.hardware import Hardware
from simulator.plan import Plan
from simulator.policies import POLICIES, static
from simulator.policies.decide import Policy, decided
from simulator.policies.in_place import in_place
from simulator.policies.problem import Problem
from simulator.policies.weave import woven
from simulator.report.expectations import check_columns
from simulator.report.files import folder_names
from simulator.run.placement import check_in_place, home_ids, sharers, shares, turns, with_lasting_outputs
from simulator.run.task import RunDraws, Task, Trials
from simulator.scenario import AllocatorKind, PolicyChoice, Scenario, label_of
from simulator.scenario.question import Question
from simulator.trace import Trace
from simulator.units import FieldError, nearest
from simulator.workload.job import JobDocument

Policies = Sequence[str] | Mapping[str, Policy]


@dataclass(frozen=True, eq=False)
class Case:
    """What the rows of a run share.

    Attributes
    ----------
    loaded
        The scenario, its machine and its workload.
    rooms
        What each rank may use of its compute tier [B].
    tasks
        The tasks that every policy has to solve: one for each graph of the job.
    trials
        Replays the plans that policies try for them.
    is_changed
        Whether the machine was changed for this run; what the scenario expects is then not checked.
    with_bounds
        Whether rows are compared with their bounds, which takes longer.
    others
        Cases of the same run in which the host runs more of what the workload leaves to policies (``on: any``).
    order_bound_ns
        What no order of the ops makes a step shorter than [ns], if they were ordered for this case.
    changed
        Cases of rows that change the machine or the order of ops for themselves, by that change: see `for_row`.
    ran
        The last fixed plans of several ranks that ran, and what came of them: other rows may have the same.
    """

    loaded: Loaded
    job: Job
    rooms: tuple[int | float, ...]
    tasks: tuple[Task, ...]
    trials: Trials
    is_changed: bool = False
    with_bounds: bool = True
    others: tuple[Case, ...] = ()
    order_bound_ns: int | None = None
    changed: dict[str, Case] = field(default_factory=dict, init=False, repr=False)
    ran: list[object] = field(default_factory=list, init=False, repr=False)

    @property
    def problem(self) -> Problem:
        """The problem that every policy has to solve for rank 0."""
        return self.tasks[self.job.graph_of[0]].problem

    @property
    def graph(self) -> Graph:
        """The graph that rank 0 runs."""
        return self.problem.graph

    @property
    def hardware(self) -> Hardware:
        """The machine, with all changes."""
        return self.problem.hardware

    @property
    def compute_ns(self) -> int:
        """Time of all ops of stream 0 except collectives, in the graph, and of the rank, where that is longest [ns]."""
        return max(task.compute_ns for task in self.tasks)

    def bound(self, budget_bytes: int | float | None = None, **kind: bool) -> bounds.Bound:
        """Return the bound that no plan of a kind can beat: see `simulator.run.task.Task.limits`.

        Parameters
        ----------
        budget_bytes
            Budget of the compute tier [B]; default: that of the case.
        **kind
            See `simulator.run.task.Task.limits`.
        """
        rooms = [task.problem.budget_bytes if budget_bytes is None else budget_bytes for task in self.tasks]
        steps = (task.limits(**kind).step(room) for task, room in zip(self.tasks, rooms, strict=True))
        return max(steps, key=lambda bound: bound.ns)

    def least_peak_bytes(self, step_ns: int, **kind: bool) -> int:
        """Return a bound on the peak in the compute tier of plans of a kind whose step takes at most `step_ns` [B]."""
        return max(task.limits(**kind).peak_bytes(step_ns) for task in self.tasks)

    def unfit(self, row: str | None = None) -> Shortfall | None:
        """Return the shortfall if no plan of a row fits; without a row, if none that runs each op once a step does."""
        may_repeat = row is not None and self.may_repeat(row)
        reports = (task.unfit(may_repeat=may_repeat) for task in self.tasks)
        return max(filter(None, reports), key=lambda report: report.short_bytes, default=None)

    def may_repeat(self, row: str) -> bool:
        """Return whether the row's plan may run an op again; false only of a policy that never does."""
        choice = self.choice(row)
        entry = POLICIES.get(choice.policy)
        return entry is None or entry.may_repeat(entry.read_options(choice.options))

    def for_row(self, row: str) -> Case:
        """Return the case with what a row changes of machine and order; rows that change the same share it."""
        choice = self.choice(row)
        is_ordered = choice.order != "program"
        if not (choice.set_ or is_ordered):
            return self
        change = repr((choice.set_, is_ordered))
        if change not in self.changed:
            settled = replace(self.loaded, workload=self.loaded.workload.settled[0])  # the others are changed below
            loaded, (job, order_bound_ns) = settled.for_row(choice), (self.job, None)
            if is_ordered:
                job, order_bound_ns = _ordered(loaded, job)
            case = prepare(loaded, job, is_changed=self.is_changed, with_bounds=self.with_bounds)
            others = tuple(other.for_row(row) for other in self.others)
            self.changed[change] = replace(case, order_bound_ns=order_bound_ns, others=others)
        return self.changed[change]

    def ways(self, row: str) -> tuple[Case, ...]:
        """Return the cases, on its machine, that a row's policy may choose from."""
        on_machine = self.for_row(row)
        return on_machine, *on_machine.others

    def choice(self, row: str) -> PolicyChoice:
        """Return the row of the scenario with this name, or else a row of the policy with its default options."""
        by_row = {choice.row: choice for choice in self.loaded.scenario.policies}
        return by_row.get(row, PolicyChoice(policy=row))

    def rows(self, policies: Policies | None = None) -> dict[str, Policy]:
        """Return the rows to run by name, each with the function that makes its plan.

        Parameters
        ----------
        policies
            As in `run`.

        Raises
        ------
        ConfigError
            If a policy or an option is not known.
        """
        functions = policies if isinstance(policies, Mapping) else {}
        for name, decide in functions.items():
            if not callable(decide):
                must = "a policy by name is a function from a problem to a plan"
                raise ConfigError(f"policies, {name}", must, repr(decide), "write a function, or policies=[names]")
            with errors_at("policies"):
                label_of(name)
        choices: Sequence[PolicyChoice] = self.loaded.scenario.policies
        if policies is not None and not isinstance(policies, Mapping):
            choices = rows_named(self.loaded.scenario, policies)
        given = {name: partial(woven, decide=decide) for name, decide in functions.items()}
        return {**{choice.row: self._policy(choice) for choice in choices}, **given}

    def static_options(self, row: str) -> static.Options | None:
        """Return the options of a row whose policy is `static`; None for other rows.

        Parameters
        ----------
        row
            A row of the scenario, or the name of a policy.
        """
        choice = self.choice(row)
        return static.Options.model_validate(choice.options) if choice.policy == "static" else None

    def _policy(self, choice: PolicyChoice) -> Policy:
        """Return the function that makes a row's plan: its policy with its options, or one that reads its plan file."""
        rows = [other.row for other in self.loaded.scenario.policies]
        place = str(rows.index(choice.row)) if choice.row in rows else choice.row
        where = partial(self.loaded.place, "policies", place)
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
        loading = choice.in_place or ("choose" if choice.policy == "static" else "never")
        decide = partial(entry.function, options=options)
        graphs = [graph for way in (self, *self.others) for graph in way.job.graphs]
        decide = partial(woven, decide=decide) if any(graph.on_host for graph in graphs) else decide
        if any(graph.in_place for graph in graphs):
            decide = partial(in_place, choice=loading, decide=decide)
        return partial(decided, choice, decide)

    def _read_plan(self, path: str, name: str, problem: Problem) -> Plan:
        """Read the plan of a graph from its file; ``*`` in the path stands for the graph's name."""
        index = next(index for index, graph in enumerate(self.job.graphs) if graph is problem.graph)
        file = path.replace("*", list(folder_names(self.job.labels).values())[index])
        return replace(formats.read_plan(Path(file), problem.graph, problem.tiers, problem.hardware.roles), file=name)


def rows_named(scenario: Scenario, policies: Sequence[str]) -> list[PolicyChoice]:
    """Return the rows with these names: by label, or else by policy, or else the policy with its default options.

    Parameters
    ----------
    scenario, policies
        The scenario, and at least one name.

    Raises
    ------
    ConfigError
        If there is no such row and no such policy.
    """
    names = [policies] if isinstance(policies, str) else policies
    if not isinstance(names, Sequence) or not names or not all(isinstance(name, str) for name in names):
        must, do = "policies is a list of at least one name, or functions by name", "name a row, or leave policies out"
        raise ConfigError("policies", must, repr(policies), do)
    chosen, rows = list[PolicyChoice](), scenario.policies
    for name in names:
        matches = [row for row in rows if row.row == name] or [row for row in rows if row.policy == name]
        if not matches and name not in POLICIES:
            choices = tuple(dict.fromkeys([*(row.row for row in rows), *POLICIES]))
            must = "a policy is a row of the scenario or one that hosim has"
            raise ConfigError("policies", must, repr(name), nearest(name, choices))
        chosen += matches or [PolicyChoice(policy=name)]
    return chosen


def names_in(policies: Policies | None) -> tuple[str, ...]:
    """Return the names of rows or policies to run; none if that is all rows, or functions."""
    if policies is None or isinstance(policies, Mapping):
        return ()
    return (policies,) if isinstance(policies, str) else tuple(policies) if isinstance(policies, Sequence) else ()


def asked_columns(loaded: Loaded) -> tuple[str, ...]:
    """Return the columns that the question of a scenario adds to its rows."""
    return tuple(catalog.question(loaded, Question, {}).columns(loaded.hardware.compute_tier))


def check_expectations(loaded: Loaded, columns: tuple[str, ...] = ()) -> None:
    """Check that the expectations of a scenario are about columns that its rows have, by default those of a run."""
    asked = asked_columns(loaded) if loaded.scenario.frontier else ()
    columns = columns or (*metrics.columns(loaded.hardware), *asked)
    for position, expected in enumerate(loaded.scenario.expect):
        try:
            check_columns(expected, columns)
        except FieldError as error:
            raise error.at(loaded.place("expect", str(position), *error.path)) from None


def prepare(loaded: Loaded, job: Job | None = None, *, is_changed: bool = False, with_bounds: bool = True) -> Case:
    """Build everything that the rows of a scenario share, without running anything.

    Parameters
    ----------
    loaded
        The scenario with its machine and its workload.
    job
        What all ranks run, if it was built before; then only the name of the workload counts.
    is_changed
        Whether the machine was changed for this run.
    with_bounds
        Whether rows are compared with their bounds, which takes longer.

    Raises
    ------
    ConfigError
        If a document is wrong, or ranks do not meet (`simulator.referee.check_job`).
    """
    settled = () if loaded.is_job_given else loaded.workload.settled[1:]
    ways = [replace(loaded, workload=way) for way in settled]
    others = tuple(prepare(way, is_changed=is_changed, with_bounds=with_bounds) for way in ways)
    if job is None:
        job = build_job(loaded.workload, loaded.workload_dir, formats.read_graph)
    check_expectations(loaded)
    referee.check_job(job, loaded.hardware)
    check_in_place(loaded, job)
    homes, hardware, scenario = home_ids(loaded, job.graphs), loaded.hardware, loaded.scenario
    if any(graph.outputs for graph in job.graphs):
        pairs = zip(job.graphs, homes, strict=True)
        job = replace(job, graphs=tuple(with_lasting_outputs(loaded, graph, home) for graph, home in pairs))
    room = shares(job, hardware, homes) if job.ranks > 1 else [None]
    draws = RunDraws.of(loaded, job)
    trials, shared = Trials(draws), sharers(job.ranks, hardware) if job.ranks > 1 else {}
    times = _times_ns(job, hardware)
    ran = zip(job.graphs, times, map(job.ranks_of, range(len(times))), strict=True)
    measured = [draws.measured_ns(*of_graph) for of_graph in ran]
    streams = tuple(bounds.streams_of(graph, scenario.switches.collectives) for graph in job.graphs)
    certain = [draws.least(graph, job.ranks_of(i)).certain for i, graph in enumerate(job.graphs)]
    are_drawn = any(graph.dynamic_reads for graph in job.graphs) and not draws.are_alike
    team = bounds.Team(replace(job, graphs=tuple(certain)), hardware, tuple(measured), streams, are_drawn)
    groups = turns(job, hardware, shared) if shared else ()
    rooms, tasks = hardware.rooms(job.ranks, scenario.budget_bytes), list[Task]()
    for i, (graph, home) in enumerate(zip(job.graphs, homes, strict=True)):
        problem = Problem(
            graph,
            hardware,
            home,
            min([rooms[rank] for rank in job.ranks_of(i)]),
            times[i],
            trials,
            switches=scenario.switches,
            sharers=shared,
            room_bytes=room[i],
            ranks=job.ranks if shared else 1,
            turns=groups,
            popularity=popularity(graph, draws.origin, scenario.seed) if graph.dynamic_reads else {},
        )
        tasks.append(Task(problem, i, team, draws))
    return Case(loaded, job, rooms, tuple(tasks), trials, is_changed, with_bounds, others)


def _ordered(loaded: Loaded, job: Job) -> tuple[Job, int | None]:
    """Order the ops of a job for a machine; return it with what no order makes a step shorter than [ns]."""
    hardware, scenario = loaded.hardware, loaded.scenario
    if isinstance(document := loaded.workload, JobDocument):
        linked = [{edge.from_, edge.to} for edge in document.edges]
        odd = next((" and ".join(pair) for pair in document.sharing if {*pair} not in linked), "")
        must, do = "list scheduling knows by their edge how programs on a rank depend", "drop order, or add an edge"
        insist(not odd, loaded.place("policies"), must, f"none between {odd}", do)
    streams = [bounds.streams_of(graph, scenario.switches.collectives) for graph in job.graphs]
    rooms = hardware.rooms(job.ranks, scenario.budget_bytes)
    least = [min([rooms[rank] for rank in job.ranks_of(graph)]) for graph in range(len(job.graphs))]
    ordered, bound_ns = ordering.mpmd(job, _times_ns(job, hardware), streams, least)
    is_certain = not (hardware.ranks or any(graph.spreads or graph.dynamic_reads for graph in job.graphs))
    return ordered, bound_ns if is_certain else None  # where times differ, some rank may be faster


def _times_ns(job: Job, hardware: Hardware) -> list[list[int]]:
    """Return, for each graph, the time of each op alone, on the first rank that runs it [ns]."""
    meeting = (job.graph_of.index(i) if graph.meets else None for i, graph in enumerate(job.graphs))
    return [durations_ns(graph, hardware, rank) for graph, rank in zip(job.graphs, meeting, strict=True)]


def execute(
    case: Case,
    plans: Sequence[Plan],
    progress: Callable[[int, int], None] | None = None,
    allocator: AllocatorKind = "ideal",
) -> Trace:
    """Replay the plans of a case, one for each graph, on all ranks; or return the trace if a search just did that.

    Parameters
    ----------
    case, plans
        What runs, and what was decided for each graph.
    progress
        Called now and then.
    allocator
        How places of the compute tier get addresses.
    """
    if case.job.ranks == 1 and allocator == "ideal" and (tried := case.trials.pop_trace(case.problem, plans[0])):
        return tried
    programs: dict[int, engine.Program] = {}
    for task, plan in zip(case.tasks, plans, strict=True):
        of_ranks = engine.programs_of(task.graph, plan, [*map(task.own, task.ranks)], allocator)
        programs.update(zip(task.ranks, of_ranks, strict=True))
    return engine.run(
        [programs[rank] for rank in range(case.job.ranks)],
        case.hardware,
        budget_bytes=case.rooms,
        switches=case.problem.switches,
        progress=progress,
        fold="auto",
    )
