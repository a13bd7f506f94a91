"""What whole commands take, each as a process of its own: seconds by the clock and of processor, and memory.

    python tests/bench/commands.py
    python tests/bench/commands.py --steps 100 --runs 1

Seconds are the median over some runs, with the least and the most; memory is the most that a process ever held.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
LONG = {
    "schema": "hosim/scenario/1",
    "name": "long",
    "title": "DeepSeek-V3 decodes token after token, its experts in DDR",
    "hardware": "h100_sxm",
    "workload": "workload.yaml",
    "homes": {"expert": "ddr"},
    "draws": {"distribution": "zipf", "skew": 1.1},
    "policies": [{"policy": "hybrid", "options": {"evict": "lru"}}],
}


FIRST = "llama3_8b_train_910c"
BOTH = ["--policy", "static", "--policy", "reactive"]
CELLS = [
    "sweep",
    FIRST,
    *BOTH,
    "--grid",
    "links.*.bandwidth=16..200 GB/s:7",
    "--grid",
    "tiers.hbm.capacity=32..128 GB:8",
]
THOUSAND = ["--set", "workload.model.layers=19", "--grid", "tiers.hbm.capacity=32..80 GB:10"]
"""Nineteen layers have 1,000 ops."""


def write_long(folder: Path, steps: int) -> Path:
    """Write the scenario of a long decode with its workload, one sequence."""
    workload: dict[str, Any] = yaml.safe_load((ROOT / "workloads" / "deepseek_v3_decode.yaml").read_text())
    workload |= {"name": "workload", "batch": 1, "steps": steps, "experts": "each"}
    (folder / "workload.yaml").write_text(yaml.safe_dump(workload))
    (folder / "long.yaml").write_text(yaml.safe_dump(LONG))
    return folder / "long.yaml"


def measure(arguments: list[str], folder: Path, *, again: bool = False) -> tuple[float, float, float]:
    """Run hosim once: seconds by the clock, seconds of processor, and the most memory of a process [MB].

    What an earlier run kept is there only if it is run again.
    """
    if not again:
        shutil.rmtree(folder / "kept", ignore_errors=True)
    command = [sys.executable, "-m", "simulator", *arguments]
    where = {**os.environ, "PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": str(folder / "kept")}
    begin = time.perf_counter()
    process = subprocess.Popen(command, cwd=folder, env=where, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - begin
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"hosim {' '.join(arguments)}: ended with {process.returncode}")
    return seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024 / 1e6


def main() -> None:
    """Measure all commands."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=3, help="runs of each (default: 3)")
    parser.add_argument("--steps", type=int, default=1000, help="steps of the long decode (default: 1000)")
    asked = parser.parse_args()
    with TemporaryDirectory() as name:
        folder = Path(name)
        long = str(write_long(folder, asked.steps))
        commands = {
            "hosim --help": ["--help"],
            "hosim run tiny_train_910c": ["run", "tiny_train_910c"],
            f"hosim run {FIRST}": ["run", FIRST],
            f"hosim run {FIRST} --out": ["run", FIRST, "--out", "first"],
            "sweep, 7 x 8 cells of two rows": CELLS,
            "the same again": CELLS,
            "sweep, 100 cells of 1,000 ops": [
                "sweep",
                FIRST,
                *BOTH,
                "--grid",
                "links.*.bandwidth=16..200 GB/s:10",
                *THOUSAND,
            ],
            f"{asked.steps:,} decode steps": ["run", long],
        }
        print(f"{'command':<38} {'seconds':>8} {'least':>6} {'most':>6} {'processor':>10} {'memory':>9}")
        for label, arguments in commands.items():
            runs = (measure(arguments, folder, again=label.endswith("again")) for _ in range(asked.runs))
            seconds, processor, memory = zip(*runs, strict=True)
            times = f"{statistics.median(seconds):>8.2f} {min(seconds):>6.2f} {max(seconds):>6.2f}"
            print(f"{label:<38} {times} {statistics.median(processor):>10.2f} {max(memory):>6.0f} MB")


if __name__ == "__main__":
    main()
