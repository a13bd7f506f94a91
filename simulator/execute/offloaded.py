"""Runs training steps of PyTorch within a budget: on demand until they can be planned, then under the plan."""

from __future__ import annotations

import os
import statistics
import tempfile
import warnings
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Lock
from time import perf_counter
from typing import Any, cast

import torch
import yaml

from simulator.errors import insist
from simulator.execute.measured import trace_of
from simulator.execute.mode import PlannedStep, Turn, turns_of
from simulator.execute.record import OnDemand
from simulator.execute.storages import StepMemory
from simulator.execute.tiers import FileTier
from simulator.graph import Graph
from simulator.importers.imported import Imported
from simulator.importers.recordings import Storage
from simulator.importers.torch import imported
from simulator.importers.torch_run import ModuleWatch, tensors
from simulator.run import run
from simulator.run.results import Result
from simulator.trace import Trace

COMPUTE_TIER, LOWER_TIER = "ram", "disk"
_ONE = Lock()
"""Held while a step runs: two at once would share the machine, and neither plan knows of the other."""


@dataclass(frozen=True, slots=True)
class Executed:
    """A step that ran.

    Attributes
    ----------
    plan
        The row whose plan it was; ``on demand`` before there was one.
    step_s, stall_s
        How long it took; how long it waited for copies and for room, until its last op had ended [s].
    peak_bytes
        Most bytes of storages in the compute tier [B].
    out_bytes, in_bytes
        Bytes copied out and in [B].
    trace
        What happened when; None unless a step under a plan was asked to keep it.
    """

    plan: str
    step_s: float
    stall_s: float
    peak_bytes: int
    out_bytes: int
    in_bytes: int
    trace: Trace | None = field(default=None, repr=False)


@dataclass(eq=False, slots=True)
class Planning:
    """A step that was recorded, for inputs of some shapes.

    Attributes
    ----------
    record, input_of
        Its last run on demand; storage -> position among the tensors of the inputs.
    imported
        The graph that the record makes; None before it is planned.
    result, turns
        The row that was planned, with all that is predicted; what happens at each call.
    is_timed
        Whether ops were timed under a plan, as they will run.
    """

    record: OnDemand
    input_of: Mapping[Storage, int]
    imported: Imported | None = None
    result: Result | None = None
    turns: list[Turn] = field(default_factory=list)
    is_timed: bool = False

    @property
    def graph(self) -> Graph:
        """The recorded graph."""
        return cast(Graph, cast(Imported, self.imported).graph)

    @property
    def ids(self) -> dict[Storage, int]:
        """Return the graph's tensor of each storage that an op uses."""
        by_name = {tensor.name: t for t, tensor in enumerate(self.graph.tensors)}
        return {s: by_name[s.name] for call in self.record.calls for s in (*call.reads, *call.writes)}

    def lasting(self, inputs: list[torch.Tensor]) -> dict[Storage, Any]:
        """Return what persistent storages are now: those of the inputs, and those that are still there."""
        present = {storage: ref() for storage, ref in self.record.lasting.items()}
        present |= {storage: inputs[position].untyped_storage() for storage, position in self.input_of.items()}
        return {storage: memory for storage, memory in present.items() if memory is not None}


class Offloaded:
    """A training step that runs within a budget: call it as the step itself, and close it at the end.

    The first calls run on demand: what an op uses comes in, and what was not used for longest leaves. Once two calls in
    a row are alike the step is planned; the first call under the plan times its ops, and it is planned again. Each
    further call executes that plan. Inputs of other shapes have a plan of their own.

    Parameters
    ----------
    step, name
        Runs a whole step; its name in messages.
    budget_bytes, policy
        Room of the compute tier [B]; the policy, or row of a scenario, that plans.
    tier, rates
        The lower tier; bandwidth of copies out and in [B/s].
    strict
        Whether a step that cannot go on under its plan is an error; else it goes on without, with a warning.

    Attributes
    ----------
    steps
        What was measured, call by call.
    budget_bytes, beside_bytes
        The budget; how much of it storages take that no op of the graph uses, such as counts of steps [B].
    """

    def __init__(  # noqa: PLR0913 - a step, and how it runs
        self,
        step: Callable[..., Any],
        name: str,
        budget_bytes: float,
        policy: str | Mapping[str, Any],
        tier: FileTier,
        rates: tuple[float, float],
        *,
        strict: bool,
    ) -> None:
        self._step, self._name, self._policy, self._rates, self._strict = step, name, policy, rates, strict
        self._memory, self._plannings = StepMemory(budget_bytes, tier), dict[tuple[Any, ...], Planning]()
        self._watch, self._process = ModuleWatch(has_memory=True), os.getpid()
        self.steps, self.budget_bytes, self.beside_bytes = list[Executed](), budget_bytes, 0
        self.close = weakref.finalize(self, self._memory.close)

    def __enter__(self) -> Offloaded:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def predicted(self) -> Result | None:
        """The row that was planned last, with all that is predicted; None while nothing is planned."""
        return next((made.result for made in reversed(self._plannings.values()) if made.result is not None), None)

    def keep_traces(self) -> None:
        """Keep the trace of each step under a plan from now on (`Executed.trace`)."""
        self._memory.notes = []

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run a step, and return what it returns.

        Raises
        ------
        ConfigError
            If it was closed, another one runs, or the process is a fork; if no plan fits the budget.
        ExecutionError
            If one op needs more than the budget; with `strict`, if the step cannot go on under its plan.
        """
        where = f"step {self._name}"
        insist(self.close.alive, where, "an offloaded step is open", "a closed one", "offload it again")
        do = "run it where it was made"
        insist(os.getpid() == self._process, where, "it runs in the process that made it", "a fork", do)
        must, do = "one offloaded step runs at a time", "run it after the other"
        insist(_ONE.acquire(blocking=False), where, must, "another in the midst of its run", do)
        try:
            inputs = list(tensors((args, kwargs)))
            key = tuple((tuple(tensor.shape), tensor.dtype) for tensor in inputs)
            planning = self._plannings.get(key)
            if planning is None or planning.result is None:
                return self._run_on_demand(key, args, kwargs)
            return self._run_planned(key, planning, args, kwargs)
        finally:
            _ONE.release()

    def _run_on_demand(self, key: tuple[Any, ...], args: Any, kwargs: Any) -> Any:
        before = self._plannings.get(key)
        with self._watch as watch:
            record = OnDemand(watch, (args, kwargs), self._memory, None if before is None else before.record)
            positions = {record.storage_of(tensor): n for n, tensor in enumerate(tensors((args, kwargs)))}
            made = self._measured("on demand", record, args, kwargs)
        self._plannings[key] = planning = Planning(record, positions)
        if before is not None and before.record.functions() == record.functions():
            self._plan(planning, record.took_ns)
        return made

    def _run_planned(self, key: tuple[Any, ...], planning: Planning, args: Any, kwargs: Any) -> Any:
        row = cast(Result, planning.result)
        ids, inputs = planning.ids, list(tensors((args, kwargs)))
        lasting = {ids[s]: memory for s, memory in planning.lasting(inputs).items() if s in ids}
        compute_tier = row.plans[0].tiers.index(COMPUTE_TIER)
        mode = PlannedStep(planning.graph, planning.turns, self._memory, compute_tier, lasting)
        made = self._measured(row.label, mode, args, kwargs)
        if mode.stopped is not None:
            del self._plannings[key]
            if self._strict:
                raise mode.stopped
            warnings.warn(
                f"{mode.stopped}. It went on without a plan; the next calls are recorded again.", stacklevel=3
            )
        elif not planning.is_timed:
            planning.is_timed = True
            self._plan(planning, mode.took_ns)
        return made

    def _measured(self, plan: str, mode: OnDemand | PlannedStep, args: Any, kwargs: Any) -> Any:
        """Run a step in a mode and note what it took; whatever happens, all storages are there when it ends."""
        memory = self._memory
        memory.begin()
        begun_s = perf_counter()
        try:
            with mode:
                made = self._step(*args, **kwargs)
            stall_s = memory.waited_s
            mode.finish()
        finally:
            memory.settle()
        took_s, (out_bytes, in_bytes) = perf_counter() - begun_s, memory.moved_bytes.values()
        trace = None
        if memory.notes is not None and isinstance(mode, PlannedStep) and mode.stopped is None:
            trace = trace_of(mode, cast(Result, self.predicted).hardware, memory.notes, begun_s)
        self.steps.append(Executed(plan, took_s, stall_s, memory.peak_bytes, out_bytes, in_bytes, trace))
        return made

    def _plan(self, planning: Planning, took_ns: list[int]) -> None:
        """Plan a step whose ops take so long."""
        record, where = planning.record, f"plan of {self._name}"
        planning.imported = planning.imported or imported(self._name, record, free_early=False)
        timed = zip(planning.graph.ops, took_ns, strict=True)
        graph = replace(planning.graph, ops=tuple(replace(op, duration_ns=ns) for op, ns in timed))
        beside = {*record.lasting} - planning.ids.keys() - record.died.keys()  # old gradients are gone at once
        self.beside_bytes = sum(storage.size_bytes for storage in beside)
        with tempfile.TemporaryDirectory() as folder:
            budget_bytes = self.budget_bytes - self.beside_bytes
            story = write_documents(Path(folder), planning.imported, graph, budget_bytes, self._policy, self._rates)
            (result,) = run(story).values()
        must, do = "a plan of the step fits the budget", "give it a larger budget, or another policy"
        why = (
            f"{result.status}: {result.shortfall.short_bytes:,} B short"
            if result.shortfall
            else str(result.summary.get("notes"))
        )
        insist(result.status == "ok", where, must, why, do)
        plan = result.plans[0]
        codes = [*(plan.actions(_ONE_STEP) if callable(plan.actions) else plan.actions)]
        planning.turns, planning.result = turns_of(graph, record.sequence, planning.ids, codes), result


class _OneStep:
    """What a runtime sees that decides for one step and does not look at the machine."""

    steps = 1


_ONE_STEP: Any = _OneStep()


def write_documents(
    folder: Path,
    recorded: Imported,
    graph: Graph,
    budget_bytes: float,
    policy: str | Mapping[str, Any],
    rates: tuple[float, float],
) -> Path:
    """Write machine, graph, workload and scenario of a step into a folder, and return the scenario."""
    files: dict[str, Any] = {".yaml": recorded.workload.model_copy(update={"steps": 1}), ".jsonl": graph}
    replace(recorded, files=files).write(folder / "step.yaml")
    ways = (("d2h", COMPUTE_TIER, LOWER_TIER, rates[0]), ("h2d", LOWER_TIER, COMPUTE_TIER, rates[1]))
    links = {name: {"source": a, "target": b, "bandwidth": f"{rate / 1e6:.6f} MB/s"} for name, a, b, rate in ways}
    machine = {
        "schema": "hosim/hardware/1", "name": "this", "compute_tier": COMPUTE_TIER,
        "compute": {"peak": {"fp32": "1 TFLOP/s"}, "launch": "0 ns"},
        "tiers": {COMPUTE_TIER: {"capacity": "inf", "bandwidth": "10 GB/s"}, LOWER_TIER: {"capacity": "inf"}},
        "links": links,
        "assumed": {"compute": "each op has its time", "tiers": "room is the scenario's budget", "links": "measured"},
    }  # fmt: skip
    scenario = {
        "schema": "hosim/scenario/1", "name": "step", "hardware": "machine.yaml", "workload": "step.yaml",
        "budget": f"{budget_bytes:.0f} B", "policies": [policy], "switches": {"copies_wait_for": "end"},
        "assumed": {"budget": "as asked"},
    }  # fmt: skip
    for name, document in (("machine", machine), ("scenario", scenario)):
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(document, sort_keys=False), encoding="utf-8")
    return folder / "scenario.yaml"


def rates_of(tier: FileTier) -> tuple[float, float]:
    """Measure copies out of, and into, storages that are new, as a step has them [B/s]."""
    took_s: tuple[list[float], list[float]] = ([], [])
    offset = tier.allot(_TRIED_BYTES)
    for _ in range(_TRIES):
        storage = torch.ones(_TRIED_BYTES, dtype=torch.uint8).untyped_storage()
        for way, move in enumerate((tier.write, tier.read)):
            if way:
                storage.resize_(0)
                storage.resize_(_TRIED_BYTES)
            begun_s = perf_counter()
            move(offset, storage.data_ptr(), _TRIED_BYTES)
            took_s[way].append(perf_counter() - begun_s)
    tier.release(offset, _TRIED_BYTES)
    return _TRIED_BYTES / statistics.median(took_s[0]), _TRIED_BYTES / statistics.median(took_s[1])


_TRIED_BYTES, _TRIES = 1 << 25, 5
