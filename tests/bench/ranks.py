"""What a training step on many ranks takes to simulate, each of them on its own: time and memory over the ranks.

    python tests/bench/ranks.py
    python tests/bench/ranks.py --json 8 1024

The step of `llama3_8b_layer_scaling` (one layer of LLaMA3-8B, twice) with so many replicas, policy ``resident``: plan,
replay and both checks of the referee, unfolded. Each count runs in a process of its own; seconds are of its processor,
without imports; memory is the most that it ever held, imports included (``base_bytes``: what they hold alone).
``growth`` is the slope of log over log between the last two counts; 1 is linear. It ends with 1 if a count takes longer
than it may.
"""

from __future__ import annotations

import argparse
import json
import math
import resource
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import bars

from simulator import catalog
from simulator.run import run_case
from simulator.run.case import prepare
from simulator.run.studies import points_of

RANKS = (256, 512, 1024)
MOST_SECONDS = 60.0
SCENARIO = "llama3_8b_layer_scaling"


def measure(ranks: int) -> dict[str, float | int]:
    """Run one count in this process."""
    base = _most_bytes()
    scenario = catalog.read_scenario(SCENARIO)
    one = {"fold": "never", "scaling": {"parallel.data": (ranks,)}}
    begun = time.process_time()
    study = points_of(catalog.resolve(scenario.model_copy(update=one)))
    (row,) = run_case(prepare(study.at((ranks,))), ["resident"]).values()
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


def _apart(ranks: int) -> dict[str, float | int]:
    done = subprocess.run([sys.executable, __file__, "--one", str(ranks)], capture_output=True, text=True, check=True)
    found: dict[str, float | int] = json.loads(done.stdout)
    return found


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
    """Measure all counts; 1 if one takes longer than it may."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ranks", nargs="*", type=int, default=RANKS)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.one:
        print(json.dumps(measure(asked.one)))
        return 0
    rows = [_apart(ranks) for ranks in asked.ranks]
    grows = growth(rows) if len(rows) > 1 else {}
    seconds = {f"{row['ranks']:,} ranks [s]": row["processor_seconds"] for row in rows}
    misses = bars.missed(seconds, most=dict.fromkeys(seconds, MOST_SECONDS))
    if asked.json:
        print(json.dumps({"rows": rows, "growth": grows, "missed": misses}, indent=2))
    else:
        for row in rows:
            beyond = (row["most_bytes"] - row["base_bytes"]) / 1e6
            print(f"{row['ranks']:6,} ranks  {row['ops']:8,} ops  "
                  f"{row['processor_seconds']:6.2f} s of processor  {row['most_bytes'] / 1e6:6.0f} MB, "
                  f"{1e3 * beyond / row['ranks']:.0f} kB a rank")  # fmt: skip
        print("grows with exponent", grows)
        print(f"{bars.told(misses)} (must: {MOST_SECONDS:g} s for each count)")
    return bool(misses)


if __name__ == "__main__":
    sys.exit(main())
