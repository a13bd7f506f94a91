"""The machine and the documents with which a step that runs here is planned."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
import yaml

from simulator.execute.tiers import FileTier
from simulator.importers.imported import Imported

COMPUTE_TIER, LOWER_TIER = "ram", "disk"


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


def machine_of(rates: tuple[float, float]) -> dict[str, Any]:
    """Return the profile of a machine whose copies out and in have these bandwidths [B/s]."""
    ways = (("d2h", COMPUTE_TIER, LOWER_TIER, rates[0]), ("h2d", LOWER_TIER, COMPUTE_TIER, rates[1]))
    return {
        "schema": "hosim/hardware/1", "name": "this", "compute_tier": COMPUTE_TIER,
        "compute": {"peak": {"fp32": "1 TFLOP/s"}, "launch": "0 ns"},
        "tiers": {COMPUTE_TIER: {"capacity": "inf", "bandwidth": "10 GB/s"}, LOWER_TIER: {"capacity": "inf"}},
        "links": {name: {"source": a, "target": b, "bandwidth": f"{rate / 1e6:.6f} MB/s"} for name, a, b, rate in ways},
        "assumed": {"compute": "each op has its time", "tiers": "room is the scenario's budget", "links": "measured"},
    }  # fmt: skip


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
