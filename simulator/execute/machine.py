"""The machine and the documents with which a step that runs here is planned."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

import torch
import yaml

from simulator.errors import ConfigError, insist
from simulator.execute.accelerator import PinnedTier, Processor
from simulator.execute.calls import codes_of
from simulator.execute.held import IN, OUT
from simulator.execute.tiers import FileTier
from simulator.importers.imported import Imported
from simulator.plan import COPY
from simulator.run import run
from simulator.run.results import Result


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


def planned(
    where: str,
    recorded: Imported,
    machine: str | Mapping[str, Any],
    scenario: Mapping[str, Any],
    budget_bytes: float,
    tiers: tuple[str, str],
) -> tuple[Result, ConfigError | None]:
    """Plan a recorded step within a budget on two tiers; return its row, and why that does not run, if so.

    Raises
    ------
    ConfigError
        If the machine has not these tiers, or the plan uses others.
    """
    with tempfile.TemporaryDirectory() as folder:
        budget = {"budget": f"{budget_bytes:.0f} B"} if budget_bytes < inf else {}
        (result,) = run(write_documents(Path(folder), recorded, machine, {**scenario, **budget})).values()
    both, found = " and ".join(tiers), ", ".join(result.hardware.tiers)
    has_both, do = result.hardware.tiers.keys() >= {*tiers}, "take a profile of hosim calibrate"
    insist(has_both, where, f"a step is planned on tiers {both}", found, do)
    if result.status == "ok":
        ids = {*map([*result.plans[0].tiers].index, tiers)}
        others = [code for code in codes_of(result.plans[0]) if code[0] == COPY and not {*code[2:]} <= ids]
        insist(
            not others, where, f"a plan copies between {both}", f"{len(others):,} copies elsewhere", "drop other tiers"
        )
        return result, None
    must, do = "a plan of the step fits the budget", "give it a larger budget, another policy, or homes below"
    short = result.shortfall and f"{result.shortfall.short_bytes:,} B short"
    why = f"{result.status}: {short}" if short else str(result.summary.get("notes"))
    (row,) = scenario["policies"]
    why = why.replace(row, Path(row).name) if isinstance(row, str) else why  # a long path would hide the reason
    return result, ConfigError(where, must, why, do)


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
