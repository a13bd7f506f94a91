"""A chain of six layers forward and backward, small enough to work out by hand, as files that people would write.

An op takes 100 us; an activation has 1 MB and crosses a link of 4 GB/s in 250 us. Seven are alive at once at the end
of forward, four fit.
"""

from __future__ import annotations

import json
import re
import textwrap
from pathlib import Path

LAYERS = 6

MACHINE = """\
schema: hosim/hardware/1
name: bench_machine
title: a machine for tests
compute_tier: hbm
compute:
  peak: {bf16: 1 TFLOP/s}
tiers:
  hbm: {capacity: 100 MB, bandwidth: 1 TB/s}
  ddr: {capacity: 1 GB}
links:
  d2h: {source: hbm, target: ddr, bandwidth: 4 GB/s}
  h2d: {source: ddr, target: hbm, bandwidth: 4 GB/s}
assumed:
  compute: round numbers
  tiers: round numbers
  links: round numbers
"""

WORKLOAD = """\
schema: hosim/workload/1
name: chain
title: six layers forward and backward
graph: graph.jsonl
steps: 2
assumed:
  steps: the first warms up
"""

SCENARIO = """\
schema: hosim/scenario/1
name: chain
title: six layers on a machine with room for four
hardware: machine.yaml
workload: workload.yaml
budget: 4.3 MB
policies:
  - resident
  - {policy: reactive, options: {evict: lru, look_ahead: 0}}
  - static
assumed:
  budget: room for four activations
"""


def graph_lines() -> list[dict[str, object]]:
    """The graph as JSON records."""
    tensors: list[dict[str, object]] = [
        {"tensor": "w", "size_bytes": 100_000, "kind": "weight", "persistent": True},
        *({"tensor": f"a{i}", "size_bytes": 1_000_000} for i in range(LAYERS)),
        *({"tensor": f"g{i}", "size_bytes": 100_000, "kind": "gradient"} for i in range(LAYERS)),
    ]
    ops: list[dict[str, object]] = []
    for i in range(LAYERS):
        reads = ["w", *([f"a{i - 1}"] if i else [])]
        ops.append({"op": f"fwd/{i}", "reads": reads, "writes": [f"a{i}"], "duration_ns": 100_000, "phase": "forward"})
    for i in reversed(range(LAYERS)):
        reads = ["w", f"a{i}", *([f"g{i + 1}"] if i + 1 < LAYERS else [])]
        ops.append({"op": f"bwd/{i}", "reads": reads, "writes": [f"g{i}"], "duration_ns": 100_000, "phase": "backward"})
    ops.append({"op": "update", "reads": ["w", "g0"], "writes": ["w"], "duration_ns": 100_000, "phase": "update"})
    return [{"schema": "hosim-graph/1", "name": "chain", "steps": 2}, *tensors, *ops]


def plan_lines(*, detach_early: bool = False, never_detach: bool = False) -> list[dict[str, object]]:
    """A plan that keeps everything; or one that gives up `a0` before it is read; or one that gives up nothing."""
    steps: list[dict[str, object]] = []
    for line in graph_lines():
        if "op" not in line:
            continue
        steps.append({"compute": line["op"]})
        if detach_early and line["op"] == "fwd/1":
            steps.append({"detach": "a0", "tier": "hbm"})
        if never_detach and line["op"] == "fwd/5":
            continue
    names = [*(f"a{i}" for i in range(LAYERS)), *(f"g{i}" for i in range(LAYERS))]
    steps += [{"detach": name, "tier": "hbm"} for name in names if not (detach_early and name == "a0")]
    header = {"schema": "hosim-plan/1", "policy": "mine", "tiers": ["hbm", "ddr"], "repeats": 2}
    return [header, {"home": "w", "tier": "hbm"}, *steps]


def write_lines(path: Path, lines: list[dict[str, object]]) -> Path:
    """Write JSON lines."""
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return path


def write_open(folder: Path, text: str, name: str = "scenario") -> Path:
    """Write a scenario, and beside it what its claim leaves open: what follows there on the line of its source."""
    story, opened, expected = re.fullmatch(r"(.*?  source: table \d\n)?(.*?)(expect:\n.*)?", text, re.DOTALL).groups("")
    if not story:
        write(folder, **{name: text})
        return folder / f"{name}.yaml"
    write(folder, **{name: story + expected, f"{name}.open": textwrap.dedent(opened) or "selects: []\n"})
    return folder / f"{name}.yaml"


def write(folder: Path, **documents: str) -> Path:
    """Write the scenario with its machine, its workload and its graph; return the scenario's path.

    Parameters
    ----------
    folder
        An existing folder.
    documents
        ``machine``, ``workload`` or ``scenario`` instead of the ones above.
    """
    chosen = {"machine": MACHINE, "workload": WORKLOAD, "scenario": SCENARIO, **documents}
    for name, text in chosen.items():
        (folder / f"{name}.yaml").write_text(text, encoding="utf-8")
    write_lines(folder / "graph.jsonl", graph_lines())
    return folder / "scenario.yaml"
