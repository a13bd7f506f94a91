"""Runs training steps of PyTorch within a budget, under hosim's plans."""

from __future__ import annotations

import statistics
import tempfile
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Lock
from time import perf_counter
from typing import Any

import yaml
import torch

from simulator.document import Part
from simulator.errors import ConfigError, insist
from simulator.execute.mode import Planned, turns_of
from simulator.execute.record import OnDemand, alike
from simulator.execute.storages import ExecutionError, Memory
from simulator.execute.tiers import FileTier
from simulator.importers import torch as capture
from simulator.importers.torch_run import ModuleWatch, step_of, tensors
from simulator.run import run

_ONE = Lock()
"""Held while a step runs: two at once would share the machine, and neither plan knows of the other."""


@dataclass(eq=False)
class Planning:
    """A step that was recorded, and its plan.

    Attributes
    ----------
    record
        The last run on demand.
    graph, ids, turns
        Its graph, the graph's tensor of each storage of the record, and what happens at its calls.
    result
        The row of the plan, with what is predicted; None while there is no plan.
    compute_tier
        Id of the compute tier.
    is_timed
        Whether ops were timed under a plan, so that interpreter time counts as it does in a run.
    """

    record: OnDemand
    input_of: dict[Any, int]
    imported: Any = None
    graph: Any = None
    ids: dict[Any, int] = field(default_factory=dict)
    turns: Any = None
    result: Any = None
    compute_tier: int = 0
    is_timed: bool = False


class Offloaded:
    """A training step that runs within a budget; call it as the step itself.

    The first calls run on demand: what an op reads comes in, and what was not used for longest leaves. Once two calls
    in a row are alike the step is planned, and then again with the times of its ops under that plan; each further call
    executes the plan. Inputs of other shapes have a plan of their own.

    Parameters
    ----------
    step
        Runs a whole step.
    budget_bytes, policy
        Room of the compute tier [B]; the policy that plans.
    tier, rates
        The lower tier; bandwidth of copies out and in [B/s].
    strict
        Whether a step that is not the recorded one is an error; else a warning, and it goes on without a plan.

    Attributes
    ----------
    steps
        For each call: ``plan`` (its policy, or ``on demand``), ``step_s``, ``stall_s``, ``peak_bytes``, ``out_bytes``
        and ``in_bytes``.
    """

    def __init__(self, step: Callable[..., Any], name: str, budget_bytes: int, policy: Any, tier: FileTier, rates: tuple[float, float], *, strict: bool) -> None:
        self._step, self._name, self._policy, self._rates, self._strict = step, name, policy, rates, strict
        self._memory, self._known = Memory(budget_bytes, tier), dict[tuple[Any, ...], Planning]()
        self.steps, self._watch = list[dict[str, Any]](), ModuleWatch(has_memory=True)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run a step."""
        must, do = "one offloaded step runs at a time", "run the other one after it"
        insist(_ONE.acquire(blocking=False), self._name, must, "another in the midst of its run", do)
        try:
            key = tuple((tuple(t.shape), t.dtype) for t in tensors((args, kwargs)))
            planning = self._known.get(key)
            if planning is None or planning.result is None:
                return self._on_demand(key, args, kwargs)
            return self._planned(key, planning, args, kwargs)
        finally:
            _ONE.release()

    def _timed(self, plan: str, mode: Any, args: Any, kwargs: Any) -> Any:
        """Run a step in a mode, and note what it took; whatever happens, all storages are there when it ends."""
        memory, begun_s = self._memory, perf_counter()
        memory.peak_bytes, memory.waited_s, memory.moved_bytes = memory.used_bytes, 0.0, dict.fromkeys(memory.moved_bytes, 0)
        try:
            with mode:
                made = self._step(*args, **kwargs)
            if isinstance(mode, Planned):
                mode.finish()
        finally:
            memory.settle()
        out_bytes, in_bytes = memory.moved_bytes.values()
        row = {"plan": plan, "step_s": perf_counter() - begun_s, "stall_s": memory.waited_s, "peak_bytes": memory.peak_bytes}
        self.steps.append(row | {"out_bytes": out_bytes, "in_bytes": in_bytes})
        return made

    def _on_demand(self, key: tuple[Any, ...], args: Any, kwargs: Any) -> Any:
        with self._watch as watch:
            record = OnDemand(watch, (args, kwargs), self._memory)
            input_of = {record._storage(tensor): position for position, tensor in enumerate(tensors((args, kwargs)))}
            made = self._timed("on demand", record, args, kwargs)
        before = self._known.get(key)
        self._known[key] = planning = Planning(record, input_of)
        if before is not None and alike(before.record.sequence, record.sequence):
            self._plan(planning, record.took_ns)
        return made

    def _planned(self, key: tuple[Any, ...], planning: Planning, args: Any, kwargs: Any) -> Any:
        given = list(tensors((args, kwargs)))
        held = {}
        for storage, ref in planning.record.lasting.items():
            position = planning.input_of.get(storage)
            memory = ref() if position is None else given[position].untyped_storage()
            if storage in planning.ids and memory is not None:
                held[planning.ids[storage]] = memory
        mode = Planned(planning.graph, planning.turns, self._memory, planning.compute_tier, held)
        try:
            made = self._timed(planning.result.label, mode, args, kwargs)
        except ExecutionError:
            del self._known[key]
            raise
        if mode.difference:
            del self._known[key]
            must, do = "a step makes the calls that were recorded", "the next calls are recorded and planned again"
            error = ExecutionError(self._name, must, mode.difference, do)
            if self._strict:
                raise error
            warnings.warn(str(error), stacklevel=3)
        elif not planning.is_timed:
            planning.is_timed = True
            self._plan(planning, mode.took_ns)
        return made

    def _plan(self, planning: Planning, took_ns: list[int]) -> None:
        """Plan a step whose ops take so long."""
        record, where = planning.record, f"plan of {self._name}"
        if planning.imported is None:
            planning.imported = capture.imported(self._name, record, free_early=False)
        imported = planning.imported
        ops = tuple(replace(op, duration_ns=ns) for op, ns in zip(imported.graph.ops, took_ns, strict=True))
        planning.graph = replace(imported.graph, ops=ops)
        index = {tensor.name: t for t, tensor in enumerate(planning.graph.tensors)}
        used = {storage for call in record.calls for storage in (*call.reads, *call.writes)}
        planning.ids = {storage: index[storage.name] for storage in used}
        with tempfile.TemporaryDirectory() as folder:
            story = documents(Path(folder), imported, planning.graph, self._memory.budget_bytes, self._policy, self._rates)
            (result,) = run(story).values()
        must, do = "the step fits the budget", "give it a larger budget"
        insist(result.status == "ok", where, must, f"{result.status}: {result.shortfall or result.summary.get('notes')}", do)
        planning.result, (plan,) = result, result.plans
        planning.compute_tier = plan.tiers.index(_RAM)
        codes = list(plan.fixed if plan.fixed is not None else plan.actions(_Once()))
        tiers = planning.compute_tier, 1 - planning.compute_tier
        planning.turns = turns_of(planning.graph, record.sequence, planning.ids, codes, tiers)


class _Once:
    """What a runtime sees that runs for one step, and does not look at the machine."""

    steps = 1


_RAM, _DISK = "ram", "disk"


def documents(folder: Path, imported: Any, graph: Any, budget_bytes: float, policy: Any, rates: tuple[float, float]) -> Path:
    """Write machine, graph, workload and scenario of a step into a folder, and return the scenario."""
    files = {".yaml": imported.workload.model_copy(update={"steps": 1}), ".jsonl": graph}
    replace(imported, files=files).write(folder / "step.yaml")
    ways = {"d2h": (_RAM, _DISK, rates[0]), "h2d": (_DISK, _RAM, rates[1])}
    links = {name: {"source": a, "target": b, "bandwidth": f"{rate / 1e6:.6f} MB/s"} for name, (a, b, rate) in ways.items()}
    machine = {
        "schema": "hosim/hardware/1", "name": "this", "compute_tier": _RAM,
        "compute": {"peak": {"fp32": "1 TFLOP/s"}, "launch": "0 ns"},
        "tiers": {_RAM: {"capacity": "inf", "bandwidth": "10 GB/s"}, _DISK: {"capacity": "inf"}},
        "links": links,
        "assumed": {"compute": "ops have their times", "tiers": "the budget is the scenario's", "links": "measured"},
    }  # fmt: skip
    scenario = {
        "schema": "hosim/scenario/1", "name": "step", "hardware": "machine.yaml", "workload": "step.yaml",
        "budget": f"{budget_bytes:.0f} B", "policies": [policy], "switches": {"copies_wait_for": "end"},
        "assumed": {"budget": "as asked"},
    }  # fmt: skip
    (folder / "machine.yaml").write_text(yaml.safe_dump(machine, sort_keys=False), encoding="utf-8")
    path = folder / "scenario.yaml"
    path.write_text(yaml.safe_dump(scenario, sort_keys=False), encoding="utf-8")
    return path


def offload(
    step: Any, *, budget: str | int, policy: Any = "static", optimizer: Any = None, loss: Callable[[Any], Any] | None = None,
    folder: str | Path | None = None, pace: tuple[float, float] | None = None, strict: bool = False,
) -> Offloaded:
    """Make a training step run within a budget, with the same numbers.
    """
    from simulator.units import parse  # noqa: PLC0415

    is_module = isinstance(step, torch.nn.Module)
    name = getattr(step, "__name__", type(step).__name__)
    runs = step_of(step, optimizer, loss) if is_module else step
    tier = FileTier(folder or tempfile.gettempdir(), pace=pace)
    rates = pace or measured(tier)
    return Offloaded(runs, name, int(budget), policy, tier, rates, strict=strict)


def measured(tier: FileTier, size: int = 1 << 25, times: int = 4) -> tuple[float, float]:
    """Measure copies out of, and into, storages that are new, as a step has them [B/s]."""
    took: tuple[list[float], list[float]] = ([], [])
    offset = tier.allot(size)
    for _ in range(times):
        storage = torch.ones(size, dtype=torch.uint8).untyped_storage()
        for way, move in enumerate((tier.write, tier.read)):
            if way:
                storage.resize_(0)
                storage.resize_(size)
            begun_s = perf_counter()
            move(offset, storage.data_ptr(), size)
            took[way].append(perf_counter() - begun_s)
    tier.release(offset, size)
    return size / statistics.median(took[0]), size / statistics.median(took[1])
