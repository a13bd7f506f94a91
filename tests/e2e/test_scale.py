"""What a run holds in memory: linear in the ops of a graph, and in the steps of a run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import chain
import pytest

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="what a process has held is read in /proc"),
]
_PEAK = """
import re, resource, sys
from simulator.cli import main
try:
    main(sys.argv[1:])
except SystemExit as ended:
    assert not ended.code, ended.code
own = re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read()).group(1)
print(max(int(own), resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss))
"""
# Freed memory goes back at once: otherwise glibc raises this threshold as a process frees memory, and keeps holes of
# up to 32 MiB, so that peaks of the same command differ by up to a seventh.
_RETURN_FREED = {"MALLOC_MMAP_THRESHOLD_": "65536"}


def peak_kib(*arguments: object) -> int:
    """The most that any of its processes holds; what is told of itself counts its parent, so that /proc is asked."""
    command = [sys.executable, "-c", _PEAK, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=os.environ | _RETURN_FREED)
    return int(done.stdout.splitlines()[-1])


def chain_of(folder: Path, ops: int) -> None:
    """A chain forward and backward with so many ops."""
    half = ops // 2
    records: list[dict[str, object]] = [{"schema": "hosim-graph/1", "name": "chain"}]
    records += [{"tensor": f"{name}{i}", "size_bytes": 1000} for i in range(half) for name in "ag"]
    forward = [{"reads": [f"a{i - 1}"] if i else [], "writes": [f"a{i}"], "op": f"f{i}"} for i in range(half)]
    back = [
        {"reads": [f"a{i}", f"g{i + 1}"] if i < half - 1 else [f"a{i}"], "writes": [f"g{i}"], "op": f"b{i}"}
        for i in reversed(range(half))
    ]
    records += [{**op, "duration_ns": 1000} for op in forward + back]
    chain.write_lines(folder / "graph.jsonl", records)


def test_the_memory_of_a_graph_is_linear_in_its_ops(tmp_path):
    """Each doubling adds twice what the one before added."""
    found = []
    for ops in (40_000, 80_000, 160_000):
        (tmp_path / str(ops)).mkdir()
        chain_of(tmp_path / str(ops), ops)
        found.append(peak_kib("check", tmp_path / str(ops) / "graph.jsonl"))
    first, second, third = found
    assert third - second < 2.1 * (second - first)


def test_the_memory_of_a_run_is_linear_in_its_steps(tmp_path):
    """Each doubling adds at most twice what the one before added."""
    found = []
    for steps in (10_000, 20_000, 40_000):
        (tmp_path / str(steps)).mkdir()
        path = chain.write(tmp_path / str(steps))
        workload = path.parent / "workload.yaml"
        workload.write_text(
            workload.read_text(encoding="utf-8").replace("steps: 2", f"steps: {steps}"), encoding="utf-8"
        )
        found.append(peak_kib("run", path, "--policy", "static", "--no-what-if"))
    first, second, third = found
    assert third - second < 2.1 * (second - first)
