"""A machine of some cards that meet over a fabric and have host memory, and a scenario on it, for any workload."""

from __future__ import annotations

from pathlib import Path

MACHINE = """
schema: hosim/hardware/1
name: two
title: some cards
compute_tier: hbm
compute:
  peak: {bf16: 100 TFLOP/s}
  achieved_fraction: {matmul: 0.6}
tiers:
  hbm: {capacity: 24 GB, bandwidth: 1 TB/s}
  ddr: {scope: node, capacity: 256 GB}
links:
  d2h: {source: hbm, target: ddr, bandwidth: 20 GB/s}
  h2d: {source: ddr, target: hbm, bandwidth: 20 GB/s}
topology: {devices_per_node: 16, nodes: 1}
fabrics:
  nvlink: {scope: node, bandwidth: 50 GB/s, latency: 5 us}
"""
SCENARIO = """
schema: hosim/scenario/1
name: some_ranks
hardware: machine.yaml
workload: workload.yaml
policies: [resident]
"""


def lay(folder: Path, workload: str, scenario: str = SCENARIO) -> Path:
    """Write the three documents into a folder, and return the path of the scenario."""
    for name, text in {"machine": MACHINE, "workload": workload, "scenario": scenario}.items():
        (folder / f"{name}.yaml").write_text(text, encoding="utf-8")
    return folder / "scenario.yaml"
