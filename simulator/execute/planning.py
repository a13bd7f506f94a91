"""Plans a step that was recorded here: its machine, its documents, and what its plan says."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from pathlib import Path
from typing import Any, cast

import torch
import yaml

from simulator.errors import ConfigError, insist
from simulator.execute.accelerator import PinnedTier, Processor
from simulator.execute.calls import Turn, codes_of, into, turns_of
from simulator.execute.held import IN, OUT
from simulator.execute.on_demand import OnDemand
from simulator.execute.tiers import FileTier
from simulator.graph import Graph, Op
from simulator.importers.imported import Imported
from simulator.importers.recordings import Storage
from simulator.importers.torch import imported
from simulator.plan import COPY, NOWHERE
from simulator.policies import POLICIES
from simulator.run import run
from simulator.run.results import Result
from simulator.scenario import PolicyChoice
from simulator.units import nearest


def write_documents(
    folder: Path, recorded: Imported, machine: str | Mapping[str, Any], scenario: Mapping[str, Any]
) -> Path:
    """Write machine, graph, workload and scenario of a step into a folder, and return the scenario."""
    work = {**recorded.files, ".yaml": recorded.workload.model_copy(update={"steps": 1})}
    replace(recorded, files=work).write(folder / "step.yaml")
    scenario = {
        "schema": "hosim/scenario/1", "name": "step", "hardware": machine, "workload": "step.yaml",
        "switches": {"copies_wait_for": "end"}, "assumed": {key: "as asked" for key in ("budget",) if key in scenario},
        **scenario,
    }  # fmt: skip
    if not isinstance(machine, str):
        (folder / "machine.yaml").write_text(yaml.safe_dump({**machine}, sort_keys=False), encoding="utf-8")
        scenario["hardware"] = "machine.yaml"
    (folder / "scenario.yaml").write_text(yaml.safe_dump(scenario, sort_keys=False), encoding="utf-8")
    return folder / "scenario.yaml"


def _choice(row: Any) -> PolicyChoice:
    return PolicyChoice.model_construct(policy=str(row if isinstance(row, str) else row.get("policy")))


def check_policy(where: str, row: Any, others: tuple[str, ...]) -> None:
    """Refuse a row whose policy there is not, before a step runs; rows of `others` have no plan.

    Raises
    ------
    ConfigError
        If it is none.
    """
    choice, policies = _choice(row), tuple(dict.fromkeys((*POLICIES, *others)))
    must, found = "a policy is one that there is, or the file of a plan", repr(choice.policy)
    insist(choice.is_file or choice.policy in policies, where, must, found, nearest(choice.policy, policies))


def typical(took_ns: Sequence[Sequence[int]]) -> list[int]:
    """Return how long each op takes in a typical one of some steps: its median time, stretched to the median step.

    What disturbs an op makes it longer, each time another one: medians alone would add up to less than any step.
    """
    medians, step_ns = [*map(statistics.median, zip(*took_ns, strict=True))], statistics.median(map(sum, took_ns))
    stretch = step_ns / max(1, sum(medians))
    return [round(median_ns * stretch) for median_ns in medians]


def machine_of(tiers: tuple[str, str], rates: tuple[float, float]) -> dict[str, Any]:
    """Return the profile of a machine whose copies out of the first tier, and into it, have these bandwidths [B/s]."""
    top, below = tiers
    ways = (("d2h", top, below, rates[0]), ("h2d", below, top, rates[1]))
    return {
        "schema": "hosim/hardware/1", "name": "this", "compute_tier": top,
        "compute": {"peak": {"fp32": "1 TFLOP/s"}, "launch": "0 ns"},
        "tiers": {top: {"capacity": "inf", "bandwidth": "10 GB/s"}, below: {"capacity": "inf"}},
        "links": {name: {"source": a, "target": b, "bandwidth": f"{rate / 1e6:.6f} MB/s"} for name, a, b, rate in ways},
        "assumed": {"compute": "each op has its time", "tiers": "room is the scenario's budget", "links": "measured"},
    }  # fmt: skip


def rates_of(device: Processor, tier: FileTier | PinnedTier) -> tuple[float, float]:
    """Measure copies out of, and into, storages that are new, as a step has them [B/s]."""
    took_s: tuple[list[float], list[float]] = ([], [])
    offset = tier.allot(_TRIED_BYTES)
    for _ in range(_TRIES):
        storage = torch.ones(_TRIED_BYTES, dtype=torch.uint8, device=device.name).untyped_storage()
        for way, times_s in zip((OUT, IN), took_s, strict=True):
            if way == IN:
                device.resize(storage, 0)
                device.resize(storage, _TRIED_BYTES)
            begun, ended = device.move(way, storage, tier, offset, device.now())
            device.finish()
            times_s.append(device.seconds(ended) - device.seconds(begun))
    tier.release(offset, _TRIED_BYTES)
    return _TRIED_BYTES / statistics.median(took_s[0]), _TRIED_BYTES / statistics.median(took_s[1])


_TRIED_BYTES, _TRIES = 1 << 25, 5


@dataclass(eq=False, slots=True)
class Planning:
    """A step that was recorded, for inputs of some shapes.

    Attributes
    ----------
    record, input_of
        Its last run on demand; storage -> position among the tensors of the inputs.
    imported, ids
        The workload that the record makes; None before it is planned. Storage -> its tensor, if an op uses it.
    result, turns
        The row that was planned, with all that is predicted; what happens at each call.
    took_ns
        By step under a plan, until enough were timed: how long each op took [ns].
    beside_bytes
        How much storages take that no op of the graph uses [B].
    """

    record: OnDemand
    input_of: Mapping[Storage, int]
    imported: Imported | None = None
    ids: dict[Storage, int] = field(default_factory=dict)
    result: Result | None = None
    turns: list[Turn] = field(default_factory=list)
    took_ns: list[list[int]] = field(default_factory=list)
    beside_bytes: int = 0

    @property
    def recorded(self) -> Graph:
        """The recorded graph."""
        return cast(Graph, cast(Imported, self.imported).graph)

    @property
    def below(self) -> set[int]:
        """Tensors that live in the lower tier between steps."""
        plan = cast(Result, self.result).plans[0]
        return {t for t, home in enumerate(plan.home) if home not in (self.compute_tier, NOWHERE)}

    @property
    def compute_tier(self) -> int:
        """Id of the compute tier in the plan."""
        result = cast(Result, self.result)
        return result.plans[0].tiers.index(result.hardware.compute_tier)

    def lasting(self, inputs: list[torch.Tensor]) -> dict[int, Any]:
        """Return what persistent tensors are now: the storages of the inputs, and those that are still there."""
        present = {storage: ref() for storage, ref in self.record.lasting.items()}
        present |= {storage: inputs[position].untyped_storage() for storage, position in self.input_of.items()}
        return {self.ids[s]: memory for s, memory in present.items() if memory is not None and s in self.ids}

    def time(self, name: str, took_ns: Iterable[int]) -> None:
        """Make the workload from the record, or make it anew; its ops take so long."""
        record = self.record
        how = "A step that ran was recorded; each op takes as long as it took in a step under a plan."
        self.imported = self.imported or imported(name, record, free_early=False, how=how)
        funcs = (call.func for call in record.sequence if call.op is not None)
        timed = zip(self.recorded.ops, took_ns, funcs, strict=False)  # a planned step may have one op more
        ops = (replace(op, duration_ns=ns, repeatable=op.repeatable and bool(into(f))) for op, ns, f in timed)
        graph = replace(self.recorded, ops=tuple(ops))
        self.imported = replace(self.imported, files={**self.imported.files, ".jsonl": graph})
        by_name = {tensor.name: t for t, tensor in enumerate(graph.tensors)}
        used = dict.fromkeys(storage for call in record.calls for storage in (*call.reads, *call.writes))
        self.ids = {s: by_name[s.name] for s in used | {s: None for s in record.before if s not in record.died}}
        beside = {*record.lasting} - self.ids.keys() - record.died.keys()  # old gradients are gone at once
        self.beside_bytes = sum(storage.size_bytes for storage in beside)

    def plan(
        self,
        name: str,
        machine: str | Mapping[str, Any],
        scenario: Mapping[str, Any],
        budget_bytes: float,
        tiers: tuple[str, str],
    ) -> ConfigError | None:
        """Plan the step on a machine; return why no plan fits, if so: what was planned before then stands.

        Raises
        ------
        ConfigError
            If the machine has not these tiers, or the plan uses others or breaks a rule.
        """
        graph, where = self._with_end(scenario, tiers[1]), f"plan of {name}"
        recorded, room_bytes = cast(Imported, self.imported), budget_bytes - self.beside_bytes
        recorded = replace(recorded, files={**recorded.files, ".jsonl": graph})
        scenario = {**scenario, "budget": f"{room_bytes:.0f} B"} if room_bytes < inf else scenario
        with tempfile.TemporaryDirectory() as folder:
            (result,) = run(write_documents(Path(folder), recorded, machine, scenario)).values()
        both, found = " and ".join(tiers), ", ".join(result.hardware.tiers)
        has_both, do = result.hardware.tiers.keys() >= {*tiers}, "take a profile of hosim calibrate"
        insist(has_both, where, f"a step is planned on tiers {both}", found, do)
        if result.status != "ok":
            return _unfit(where, result, scenario)
        codes, ids = codes_of(result.plans[0]), {*map([*result.plans[0].tiers].index, tiers)}
        others = sum(kind == COPY and not {*more} <= ids for kind, _, *more in codes)
        insist(not others, where, f"a plan copies between {both}", f"{others:,} copies elsewhere", "drop other tiers")
        self.result = result
        self.turns = turns_of(graph, self.record.sequence, self.ids, codes, self.below)
        return None

    def _with_end(self, scenario: Mapping[str, Any], below: str) -> Graph:
        """Return the graph with an op that uses what the step leaves, but for homes below: the caller has that.

        A plan that exists knows nothing of it.
        """
        (row,), graph = scenario["policies"], self.recorded
        if _choice(row).is_file:
            return graph
        home = {t: tier for pattern, tier in scenario["homes"].items() for t in graph.matching(pattern)}
        new = {*graph.outputs}.difference(graph.inputs, graph.made_on_host)
        left = tuple(sorted(t for t in new if home.get(t) != below))
        return replace(graph, ops=(*graph.ops, Op("step/end", left, duration_ns=0))) if left else graph


def _unfit(where: str, result: Result, scenario: Mapping[str, Any]) -> ConfigError:
    """Return why a plan does not fit; raise it if it breaks a rule."""
    short = result.shortfall and f"{result.shortfall.short_bytes:,} B short"
    why = f"{result.status}: {short}" if short else str(result.summary.get("notes"))
    (row,) = scenario["policies"]
    why = why.replace(row, Path(row).name) if isinstance(row, str) else why  # a long path would hide the reason
    if result.status == "failed":
        raise ConfigError(
            where, "a plan is of this step, and keeps the rules", why, "plan the step anew, or correct it"
        )
    do = "give it a larger budget, another policy, or homes below"
    return ConfigError(where, "a plan of the step fits the budget", why, do)
