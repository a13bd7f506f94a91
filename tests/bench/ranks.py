"""What a training step on many ranks takes to simulate, each of them on its own: time and memory over the ranks.

    python tests/bench/ranks.py
    python tests/bench/ranks.py --json 8 1024

The step of `llama3_8b_layer_scaling` (one layer of LLaMA3-8B, twice) with so many replicas, policy ``resident``: plan,
replay and both checks of the referee, unfolded. Both engines run in turns, each count in a process of its own. Seconds
are of the processor, without imports; memory is the most that was ever held, imports included (``base_bytes``: what
they hold alone); both are medians of all turns. ``share`` is the time by the compiled engine over that by simpy at the
last count, ``growth`` the slope of log over log between the last two counts by the compiled one; 1 is linear. It ends
with 1 if a figure misses its bar.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import bars
from folding import folded

from simulator import catalog
from simulator.run import run_case
from simulator.run.case import prepare

RANKS = (256, 512, 1024)
MOST = {"share": 0.4, "exponent": 1.1}
ENGINES = ("simpy", "compiled")
SCENARIO = "llama3_8b_layer_scaling"


def measure(ranks: int) -> dict[str, float | int]:
    """Run one count in this process."""
    base = _most_bytes()
    begun = time.process_time()
    loaded = catalog.resolve(SCENARIO, {"workload.parallel.data": ranks})
    with folded("never"):
        (row,) = run_case(prepare(loaded), ["resident"]).values()
    ops = ranks * len(row.graph.ops) * row.graph.steps
    return {
        "ranks": ranks,
        "processor_seconds": round(time.process_time() - begun, 2),
        "ops": ops,
        "step_ns": row.summary["step_ns"],
        "base_bytes": base,
        "most_bytes": _most_bytes(),
    }


def _most_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _apart(ranks: int, engine: str) -> dict[str, float | int]:
    command, env = [sys.executable, __file__, "--one", str(ranks)], {**os.environ, "HOSIM_ENGINE": engine}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=env)
    found: dict[str, float | int] = json.loads(done.stdout)
    return found


Rows = dict[str, list[dict[str, float | int]]]
"""By engine, a row for each count of ranks."""


def in_turns(counts: Sequence[int], turns: int) -> Rows:
    """Medians of all counts by both engines."""
    rows: Rows = {engine: [] for engine in ENGINES}
    for count in counts:
        runs = [[_apart(count, engine) for engine in ENGINES] for _ in range(turns)]
        for engine, of in zip(ENGINES, zip(*runs, strict=True), strict=True):
            rows[engine].append({key: statistics.median(run[key] for run in of) for key in of[0]})
    return rows


def growth(rows: list[dict[str, float | int]]) -> dict[str, float]:
    """Exponents of time, and of memory beyond the base, between the last two counts."""
    few, many = rows[-2:]
    span = math.log(many["ranks"] / few["ranks"])
    sizes = [row["most_bytes"] - row["base_bytes"] for row in (few, many)]
    return {
        "processor_seconds": round(math.log(many["processor_seconds"] / few["processor_seconds"]) / span, 2),
        "bytes": round(math.log(sizes[1] / sizes[0]) / span, 2),
    }


def main() -> int:
    """Measure all counts; 1 if a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ranks", nargs="*", type=int, default=RANKS)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.one:
        print(json.dumps(measure(asked.one)))
        return 0
    rows = in_turns(asked.ranks, asked.turns)
    grows = growth(rows["compiled"]) if len(asked.ranks) > 1 else {}
    slow, fast = (rows[engine][-1]["processor_seconds"] for engine in ENGINES)
    figures = {"share": fast / slow} | ({"exponent": grows["processor_seconds"]} if grows else {})
    misses = bars.missed(figures, most={name: MOST[name] for name in figures})
    if asked.json:
        print(json.dumps({"rows": rows, "growth": grows, **figures, "missed": misses}, indent=2))
        return bool(misses)
    for engine, row in ((name, row) for name in ENGINES for row in rows[name]):
        beyond = (row["most_bytes"] - row["base_bytes"]) / 1e6
        print(f"{engine:8} {row['ranks']:6,.0f} ranks  {row['ops']:8,.0f} ops  "
              f"{row['processor_seconds']:6.2f} s of processor  {row['most_bytes'] / 1e6:6.0f} MB, "
              f"{1e3 * beyond / row['ranks']:.0f} kB a rank")  # fmt: skip
    print(f"compiled: grows with exponent {grows}")
    print(f"compiled takes {figures['share']:.2f} of simpy's time (must {MOST['share']}; exponent {MOST['exponent']})")
    print(bars.told(misses))
    return bool(misses)


if __name__ == "__main__":
    sys.exit(main())
