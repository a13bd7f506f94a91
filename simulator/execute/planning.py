"""Plans a step that was recorded here: its machine, its documents, and what its plan says."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any, cast

import torch

from simulator import catalog
from simulator.catalog.loaded import check_budget, check_tiers
from simulator.catalog.text import validated
from simulator.errors import ConfigError, insist
from simulator.execute.calls import Turn, into, turns_of
from simulator.execute.held import IN, OUT
from simulator.execute.on_demand import OnDemand
from simulator.execute.storages import StepMemory
from simulator.graph import Graph, Job, Op
from simulator.hardware import Hardware
from simulator.importers.torch import imported
from simulator.plan import COPY, NOWHERE, Actions, Code
from simulator.policies import POLICIES
from simulator.run import run_case
from simulator.run.case import prepare
from simulator.run.results import Result
from simulator.scenario import Scenario
from simulator.units import nearest


class UnfitError(ConfigError):
    """No plan of a step fits its budget."""


def scenario_of(where: str, policies: Sequence[Any], homes: Any = None, others: tuple[str, ...] = ()) -> Scenario:
    """Make the scenario of rows and homes, before a step runs; machine and workload are not known yet.

    A row may also be one of `others`.

    Raises
    ------
    ConfigError
        If a policy is none that there is, or a row is wrong.
    """
    story = {
        "name": "step", "hardware": "-", "workload": "-", "policies": policies, "homes": homes or {},
        "switches": {"copies_wait_for": "end"},
    }  # fmt: skip
    scenario = validated(Scenario, story, where, lambda *keys: f"{where}, {'.'.join(keys)}")
    must, names = "a policy is one that there is, or the file of a plan", tuple(dict.fromkeys((*POLICIES, *others)))
    for choice in scenario.policies:
        is_there = choice.is_file or choice.policy in names
        insist(is_there, where, must, repr(choice.policy), nearest(choice.policy, names))
    return scenario


def typical(took_ns: Sequence[Sequence[int]]) -> list[int]:
    """Return how long each op takes in a typical one of some steps: its median time, stretched to the median step.

    What disturbs an op makes it longer, each time another one: medians alone would add up to less than any step.
    """
    medians, step_ns = [*map(statistics.median, zip(*took_ns, strict=True))], statistics.median(map(sum, took_ns))
    stretch = step_ns / max(1, sum(medians))
    return [round(median_ns * stretch) for median_ns in medians]


def machine_of(
    where: str, hardware: str | Path | None, memory: StepMemory, rates: tuple[float, float] | None
) -> Hardware:
    """Return the machine of a profile; without one, a machine whose copies out, and in, have these bandwidths [B/s].

    Without rates they are measured.

    Raises
    ------
    ConfigError
        If there is no such profile, or its machine does not compute in the memory's first tier, above the other.
    """
    top, below = memory.device.tiers
    if hardware is not None:
        machine = catalog.read_hardware(hardware)
        fits, others = machine.compute_tier == top and below in machine.tiers, ", ".join(machine.tiers)
        must, found = f"the machine computes in {top}, and has {below}", f"{machine.compute_tier} of {others}"
        insist(fits, where, must, found, "take a profile of hosim calibrate")
        return machine
    out, back = rates or rates_of(memory)
    ways = (("d2h", top, below, out), ("h2d", below, top, back))
    return Hardware.model_validate({
        "name": "this", "compute_tier": top, "compute": {"peak": {"fp32": "1 TFLOP/s"}, "launch": "0 ns"},
        "tiers": {top: {"capacity": "inf", "bandwidth": "10 GB/s"}, below: {"capacity": "inf"}},
        "links": {name: {"source": a, "target": b, "bandwidth": f"{rate / 1e6:.6f} MB/s"} for name, a, b, rate in ways},
        "assumed": {"compute": "each op has its time", "tiers": "room is the scenario's budget", "links": "measured"},
    })  # fmt: skip


def rates_of(memory: StepMemory) -> tuple[float, float]:
    """Measure copies out of, and into, storages that are new, as a step has them [B/s]."""
    device, tier, took_s = memory.device, memory.tier, {OUT: list[float](), IN: list[float]()}
    offset = tier.allot(_TRIED_BYTES)
    for _ in range(_TRIES):
        storage = torch.ones(_TRIED_BYTES, dtype=torch.uint8, device=device.name).untyped_storage()
        for way, times_s in took_s.items():
            if way == IN:
                device.resize(storage, 0)
                device.resize(storage, _TRIED_BYTES)
            begun, ended = device.move(way, storage, tier, offset, device.now())
            device.finish()
            times_s.append(device.seconds(ended) - device.seconds(begun))
    tier.release(offset, _TRIED_BYTES)
    out, back = (_TRIED_BYTES / statistics.median(times_s) for times_s in took_s.values())
    return out, back


_TRIED_BYTES, _TRIES = 1 << 25, 5


class Planning:
    """A step that was recorded, for inputs of some shapes, and its plan.

    Parameters
    ----------
    name, record
        Its name; its last run on demand.

    Attributes
    ----------
    imported, ids
        The workload that the record makes. Storage -> its tensor, if an op uses it.
    took_ns
        By step under a plan, until enough were timed: how long each op took [ns].
    beside_bytes
        How much storages take that no op of the graph uses [B].
    result, codes, turns
        Once there is a plan: its row, with all that is predicted; its actions; what happens at each call.
    compute_tier, below
        Id of the compute tier in the plan; tensors that live in the lower tier between steps.
    """

    result: Result
    codes: list[Code]
    turns: list[Turn]

    def __init__(self, name: str, record: OnDemand) -> None:
        how = "A step that ran was recorded; each op takes as long as it took in a step under a plan."
        self.imported, self._name, self._record = imported(name, record, free_early=False, how=how), name, record
        by_name = {tensor.name: t for t, tensor in enumerate(self.recorded.tensors)}
        used = dict.fromkeys(storage for call in record.calls for storage in (*call.reads, *call.writes))
        self.ids = {s: by_name[s.name] for s in used | {s: None for s in record.before if s not in record.died}}
        beside = {*record.lasting} - self.ids.keys() - record.died.keys()  # old gradients are gone at once
        self.beside_bytes = sum(storage.size_bytes for storage in beside)
        self.took_ns, self.below, self.compute_tier = list[list[int]](), set[int](), 0

    @property
    def recorded(self) -> Graph:
        """The recorded graph."""
        return cast(Graph, self.imported.graph)

    def lasting(self, inputs: Sequence[torch.Tensor]) -> dict[int, Any]:
        """Return what persistent tensors are now: the storages of the inputs, and those that are still there."""
        return {self.ids[s]: memory for s, memory in self._record.present(inputs).items() if s in self.ids}

    def _time(self, took_ns: Iterable[int]) -> None:
        """Make the workload anew; its ops take so long."""
        funcs = (call.func for call in self._record.sequence if call.op is not None)
        timed = zip(self.recorded.ops, took_ns, funcs, strict=False)  # a planned step may have one op more
        ops = (replace(op, duration_ns=ns, repeatable=op.repeatable and bool(into(f))) for op, ns, f in timed)
        graph = replace(self.recorded, ops=tuple(ops))
        self.imported = replace(self.imported, files={**self.imported.files, ".jsonl": graph})

    def plan(self, took_ns: Iterable[int], machine: Hardware, scenario: Scenario, memory: StepMemory) -> None:
        """Plan the step, whose ops take so long, on a machine; if none fits, what was planned before then stands.

        Raises
        ------
        UnfitError
            If no plan fits.
        ConfigError
            If the plan uses other tiers, or breaks a rule.
        """
        self._time(took_ns)
        tiers = memory.device.tiers
        where, graph = f"plan of {self._name}", self._with_end(scenario, tiers[1])
        if memory.budget_bytes < inf:
            scenario = scenario.model_copy(update={"budget_bytes": round(memory.budget_bytes - self.beside_bytes)})
        plans = {f"plan {choice.row}": Path(choice.policy) for choice in scenario.policies if choice.is_file}
        work = self.imported.workload.model_copy(update={"steps": 1})
        paths = {"graph": Path("graph.jsonl"), **plans}
        loaded = catalog.Loaded(scenario, machine, work, Path(), Path(), paths)
        check_tiers(loaded)
        check_budget(loaded, f"{where}, budget")
        (result,) = run_case(prepare(loaded, Job.of(graph))).values()
        if result.status != "ok":
            short = result.shortfall and f"{result.shortfall.short_bytes:,} B short"
            why = f"{result.status}: {short}" if short else str(result.summary.get("notes"))
            why = why.replace(result.policy, Path(result.policy).name)  # a long path would hide the reason
            must, do = "a plan is of this step, and keeps the rules", "plan the step anew, or correct it"
            insist(result.status != "failed", where, must, why, do)
            do = "give it a larger budget, another policy, or homes below"
            raise UnfitError(where, "a plan of the step fits the budget", why, do)
        issued = result.recorded
        codes, ids = [*cast(Actions, issued.actions).codes()], {*map([*issued.tiers].index, tiers)}
        others = sum(kind == COPY and not {*more} <= ids for kind, _, *more in codes)
        must, found = f"a plan copies between {' and '.join(tiers)}", f"{others:,} copies elsewhere"
        insist(not others, where, must, found, "drop other tiers")
        self.result, self.codes, self.compute_tier = result, codes, issued.tiers.index(tiers[0])
        self.below = {t for t, home in enumerate(issued.home) if home not in (self.compute_tier, NOWHERE)}
        self.turns = turns_of(graph, self._record.sequence, self.ids, codes, self.below)

    def _with_end(self, scenario: Scenario, below: str) -> Graph:
        """Return the graph with an op that uses what the step leaves, but for homes below: the caller has that.

        A plan that exists knows nothing of it.
        """
        graph = self.recorded
        if scenario.policies[0].is_file:
            return graph
        home = {t: tier for pattern, tier in scenario.homes.items() for t in graph.matching(pattern)}
        new = {*graph.outputs}.difference(graph.inputs, graph.made_on_host)
        left = tuple(sorted(t for t in new if home.get(t) != below))
        return replace(graph, ops=(*graph.ops, Op("step/end", left, duration_ns=0))) if left else graph
