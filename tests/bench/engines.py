"""Both engines on the same cases, in turns in one process: how many times as fast the compiled one is; how it grows.

    python tests/bench/engines.py
    python tests/bench/engines.py --ops 100000 --cases decode pool64

Times are of the processor. Each case has a process of its own, and both engines must give the same spans there.
``growth`` is what an op of `decode` costs at a million of them over what it costs at ten thousand, by the compiled
engine, and ``bytes_per_op`` the memory that the run takes besides its trace. It ends with 1 if a figure misses its bar.
"""

from __future__ import annotations

import argparse
import gc
import json
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import bars

from simulator import engine
from simulator.trace import TABLES, Trace

MOST = {"growth": 1.0, "bytes_per_op": 100.0}
ENGINES = ("simpy", "compiled")


def compared(name: str, ops: int, turns: int) -> dict[str, Any]:
    """Run a case by both engines in turns, in this process."""
    from cases import CASES

    case = CASES[name](ops)
    times: dict[str, list[float]] = {name: [] for name in ENGINES}
    spans = {}
    for _ in range(turns):
        for by in ENGINES:
            with engine.using(by):
                begun = time.process_time()
                trace = case.run()
                times[by].append(time.process_time() - begun)
            spans[by] = trace.spans.whole()
    if any((spans["simpy"][column] != values).any() for column, values in spans["compiled"].items()):
        raise SystemExit(f"{name}: the engines do not give the same")
    steps = sum(len(table) for table in trace.issued) or case.steps
    ratios = [slow / fast for slow, fast in zip(*times.values(), strict=True)]
    found = {f"{by} [us an op]": 1e6 * statistics.median(of) / steps for by, of in times.items()}
    return {"ops": steps, **found, "ratio": statistics.median(ratios), "least": min(ratios), "most": max(ratios)}


def alone(ops: int) -> dict[str, float]:
    """Run `decode` by the compiled engine, in this process: time, and memory besides the trace."""
    from cases import CASES

    case = CASES["decode"](ops)
    gc.collect()
    with engine.using("compiled"):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        begun = time.process_time()
        trace = case.run()
        seconds = time.process_time() - begun
        grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    return {"us_per_op": 1e6 * seconds / case.steps, "bytes_per_op": (grown - _bytes(trace)) / case.steps}


def _bytes(trace: Trace) -> int:
    tables = [*(getattr(trace, name) for name in TABLES), *trace.issued]
    return sum(8 * len(table.columns) * len(table) for table in tables)


def _apart(**asked: Any) -> Any:
    options = [word for name, value in asked.items() for word in (f"--{name}", str(value))]
    done = subprocess.run([sys.executable, __file__, *options], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    return json.loads(done.stdout)


def main() -> int:
    """Compare all cases, and see how the compiled engine grows; 1 if a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", help="default: all")
    parser.add_argument("--ops", type=int, default=100_000, help="operators of each run (default: 100000)")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    parser.add_argument("--alone", type=int, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.case or asked.alone:
        print(json.dumps(alone(asked.alone) if asked.alone else compared(asked.case, asked.ops, asked.turns)))
        return 0
    from cases import CASES

    names = asked.cases or [*CASES]
    result = {name: _apart(case=name, ops=asked.ops, turns=asked.turns) for name in names}
    runs = {ops: [_apart(alone=ops) for _ in range(asked.turns)] for ops in (10_000, 1_000_000)}
    medians = {
        ops: {key: statistics.median(run[key] for run in of) for key in MOST | {"us_per_op": 0} if key in of[0]}
        for ops, of in runs.items()
    }
    growth = medians[1_000_000]["us_per_op"] / medians[10_000]["us_per_op"]
    figures = {"growth": growth, "bytes_per_op": medians[1_000_000]["bytes_per_op"]}
    misses = bars.missed(figures, most=MOST)
    if asked.json:
        print(json.dumps({"result": result, **figures, "must": MOST, "missed": misses}, indent=1))
        return bool(misses)
    print(f"{'case':<10} {'simpy us/op':>12} {'compiled':>9} {'ratio':>6} {'least':>6} {'most':>6}")
    for name, row in result.items():
        ratios = f"{row['ratio']:>6.1f} {row['least']:>6.1f} {row['most']:>6.1f}"
        print(f"{name:<10} {row['simpy [us an op]']:>12.2f} {row['compiled [us an op]']:>9.3f} {ratios}")
    print(f"an op at 1M costs {growth:.2f} of one at 10k (must {MOST['growth']:g})")
    print(f"an op at 1M takes {figures['bytes_per_op']:.0f} B besides its trace (must {MOST['bytes_per_op']:g})")
    print(bars.told(misses))
    return bool(misses)


if __name__ == "__main__":
    sys.exit(main())
