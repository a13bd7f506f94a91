"""What all rows of a run share, and which rows there are."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import translate
from functools import cached_property, partial
from pathlib import Path

from simulator import bounds, engine, formats, metrics
from simulator.builders import build
from simulator.catalog import Loaded
from simulator.cost import durations_ns
from simulator.errors import ConfigError, Shortfall
from simulator.graph import Graph, TensorKind
from simulator.hardware import Hardware
from simulator.lifetime import lifetimes
from simulator.plan import FREE, NOWHERE, Plan
from simulator.policies import POLICIES, static
from simulator.policies.problem import Problem, Replay
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
    problem
        What every policy has to solve.
    is_changed
        Whether the machine was changed for this run; what the scenario expects is then not checked.
    """

    loaded: Loaded
    problem: Problem
    is_changed: bool = False

    @property
    def graph(self) -> Graph:
        """What runs."""
        return self.problem.graph

    @property
    def hardware(self) -> Hardware:
        """Where, with all changes."""
        return self.problem.hardware

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

    def bound(self, *, may_repeat: bool = False) -> bounds.Bound:
        """What no plan can beat; without `may_repeat`, no plan that runs each op once in a step."""
        found = self._bounds.get(may_repeat)
        if found is None:
            found = self._bounds[may_repeat] = self.limits(may_repeat=may_repeat).step(self.problem.budget_bytes)
        return found

    def limits(self, *, may_repeat: bool = False) -> bounds.Limits:
        """All that no plan can beat, as far as the scenario asks for it."""
        if may_repeat not in self._limits:
            facts = (self.graph, self.hardware, self.problem.durations_ns, self.bound_facts[0])
            relaxed = self.loaded.scenario.bound == "relaxation"
            self._limits[may_repeat] = bounds.Limits(*facts, relaxed=relaxed, may_repeat=may_repeat)
        return self._limits[may_repeat]

    def unfit(self, *, may_repeat: bool = False) -> Shortfall | None:
        """What no plan can fit, if there is such a thing; without `may_repeat`, no plan that runs each op once."""
        if may_repeat not in self._unfit:
            found = bounds.infeasible(self.graph, self.hardware, *self.bound_facts, may_repeat=may_repeat)
            self._unfit[may_repeat] = found
        return self._unfit[may_repeat]

    @cached_property
    def _bounds(self) -> dict[bool, bounds.Bound]:
        return {}

    @cached_property
    def _limits(self) -> dict[bool, bounds.Limits]:
        return {}

    @cached_property
    def _unfit(self) -> dict[bool, Shortfall | None]:
        return {}

    def may_repeat(self, row: str) -> bool:
        """Whether the row's plan may run an op again: unless it is a policy that never does."""
        choice = self._choice(row)
        if choice.policy not in POLICIES:
            return True
        entry = POLICIES[choice.policy]
        return entry.may_repeat(entry.read_options(choice.options))

    def _choice(self, row: str) -> PolicyChoice:
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
        choice = self._choice(row)
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
            return partial(_read_plan, path, choice.policy)
        if choice.policy not in POLICIES:
            do = nearest(choice.policy, tuple(POLICIES)) + ", or a plan file that ends in .jsonl or .json"
            raise ConfigError(where("policy"), "a policy is one that hosim has", repr(choice.policy), do)
        entry = POLICIES[choice.policy]
        options = entry.read_options(choice.options, partial(where, "options"))
        return lambda problem: entry.plan(problem, options)


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


def _read_plan(path: Path, name: str, problem: Problem) -> Plan:
    """Read a plan and call it by its file, which is how people know it."""
    return replace(formats.read_plan(path, problem.graph, problem.tiers), policy=name)


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
    graph = build(loaded.workload, loaded.workload_dir, reader)
    hardware, scenario = loaded.hardware, loaded.scenario
    _check_expectations(loaded)
    homes = home_ids(loaded, graph)
    times = durations_ns(graph, hardware)
    usable = hardware.tiers[hardware.compute_tier].usable_bytes
    budget = usable if scenario.budget_bytes is None else scenario.budget_bytes
    problem = Problem(
        graph, hardware, homes, budget, times, lifetimes(graph), lambda plan: _trial(case, plan), scenario.switches
    )
    case = Case(loaded, problem, is_changed)
    return case


def execute(case: Case, plan: Plan, progress: Callable[[int, int], None] | None = None) -> Trace:
    """Replay a plan of the case."""
    problem = case.problem
    program = engine.Program(problem.graph, plan, problem.durations_ns)
    return engine.run(
        [program],
        problem.hardware,
        budget_bytes=problem.budget_bytes,
        switches=problem.switches,
        progress=progress,
    )


def _trial(case: Case, plan: Plan) -> Replay:
    """What a policy learns by trying a plan."""
    trace = execute(case, plan)
    found = metrics.summarise(case.problem.graph, case.problem.hardware, trace, None)
    peaks = {tier: found[f"peak_{tier}_bytes"] for tier in case.problem.tiers}
    waits = {cause: found[f"wait_{cause}_ns"] for cause in CAUSES}
    return Replay(trace.status, found["makespan_ns"], found["step_ns"], peaks, waits, trace)


def home_ids(loaded: Loaded, graph: Graph) -> tuple[int, ...]:
    """Resolve the homes of a scenario; the last match wins.

    Parameters
    ----------
    loaded
        Its scenario maps tensor kinds, or shell patterns of tensor names, to tiers.
    graph
        The tensors.

    Returns
    -------
    tuple of int
        For each tensor a tier id, or `FREE`.

    Raises
    ------
    ConfigError
        If a pattern matches no tensor.
    """
    hardware = loaded.hardware
    ids = {**{name: i for i, name in enumerate(hardware.tiers)}, "free": FREE}
    homes = [ids[hardware.compute_tier] if t.persistent else FREE for t in graph.tensors]
    kinds = {kind.value for kind in TensorKind}
    for pattern, tier in loaded.scenario.homes.items():
        if pattern in kinds:
            chosen = [i for i, t in enumerate(graph.tensors) if t.kind == pattern]
        else:
            matches = re.compile(translate(pattern)).match
            chosen = [i for i, t in enumerate(graph.tensors) if matches(t.name)]
            if not chosen:
                must = f"a home is for a tensor kind ({', '.join(sorted(kinds))}) or for names that some tensor has"
                do = (
                    f"correct the pattern; the first tensor is {graph.tensors[0].name!r}"
                    if graph.tensors
                    else "drop it"
                )
                raise ConfigError(loaded.place("homes", pattern), must, repr(pattern), do)
        for i in chosen:
            homes[i] = ids[tier]
    return tuple(homes)
