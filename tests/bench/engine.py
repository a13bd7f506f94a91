"""How fast the engine is, in a form that a noisy machine can't spoil: ratios within one process, medians over several.

    python tests/bench/engine.py --ops 100000 --json

``R`` is operators per second over simpy's bare timeouts per second, measured in the same process just before and just
after; seconds are of its processor. Each figure is the median over fresh processes. The run is only counted if every
operator completed. It ends with 1 if a figure misses its bar (`must`), and says which.
"""

from __future__ import annotations

import argparse
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

LEAST = {"decode": 0.18, "compute": 0.28, "reactive": 0.18, "pool64": 0.12, "pool384": 0.08}
MOST = {"growth": 1.5, "bytes_per_op": 500, "ranks": 2.5}
MUST = LEAST | MOST
AIM = {"decode": 0.25, "compute": 0.40, "reactive": 0.28, "growth": 1.25, "bytes_per_op": 300,
       "pool64": 0.18, "pool384": 0.13, "ranks": 2.5}  # fmt: skip
RANK_OPS = 4
"""So many times the ops for the cases of many ranks: each rank has few of its own."""


def timeouts_per_s() -> float:
    """Bare timeouts per second of one process in a stock simpy environment."""
    import simpy  # the parent process needs none of this

    env = simpy.Environment()

    def process():
        for _ in range(100_000):
            yield env.timeout(1)

    env.process(process())
    start = time.process_time()
    env.run()
    return 100_000 / (time.process_time() - start)


def measure(name: str, ops: int) -> dict[str, float]:
    """Measure one case in this process."""
    from cases import CASES

    case = CASES[name](ops)
    before = timeouts_per_s()
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.process_time()
    trace = case.run()
    seconds = time.process_time() - start
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory) * 1024
    reference = (before + timeouts_per_s()) / 2
    done = int((trace.spans.whole()["kind"] == 0).sum())
    if trace.status != "ok" or done != case.computes:
        raise SystemExit(f"{name}: only {done} of {case.computes} computes completed, status {trace.status}")
    steps = sum(len(table) for table in trace.issued) or case.steps
    rate = steps / seconds
    return {"ops": steps, "us_per_op": 1e6 / rate, "R": rate / reference, "bytes_per_op": grown / steps}


def fresh(name: str, ops: int, runs: int) -> dict[str, float]:
    """Medians of one case over fresh processes."""
    command = [sys.executable, __file__, "--case", name, "--ops", str(ops), "--json"]
    found = [
        json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout) for _ in range(runs)
    ]
    medians = {key: statistics.median(run[key] for run in found) for key in found[0]}
    return {**medians, "R_least": min(run["R"] for run in found), "R_most": max(run["R"] for run in found)}


def main() -> int:
    """Measure all cases, or one in this process; 1 if a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ops", type=int, default=100_000, help="operators of each run (default: 100000)")
    parser.add_argument("--runs", type=int, default=7, help="fresh processes for each figure (default: 7)")
    parser.add_argument("--case", help="measure this case once, in this process")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--no-growth", action="store_true", help="leave out the runs of 10,000 and 1,000,000 operators")
    parser.add_argument("--ranks", action="store_true", help="measure 1, 64 and 384 unfolded ranks on one pool instead")
    options = parser.parse_args()
    if options.case:
        print(json.dumps(measure(options.case, options.ops)))
        return 0
    result, figures, table = _ranks(options) if options.ranks else _one_rank(options)
    least, most = ({name: bar for name, bar in of.items() if name in figures} for of in (LEAST, MOST))
    misses = bars.missed(figures, least=least, most=most)
    if options.json:
        print(json.dumps({"result": result, "must": MUST, "aim": AIM, "missed": misses}, indent=1))
    else:
        print("\n".join((*table, bars.told(misses))))
    return bool(misses)


Measured = tuple[dict[str, Any], dict[str, float], list[str]]
"""All that was found, the figures to judge, and lines for people."""


def _one_rank(options: argparse.Namespace) -> Measured:
    """Measure one rank, and unless that is left out how time and memory grow with operators."""
    names = ("decode", "compute", "reactive")
    result: dict[str, Any] = {name: fresh(name, options.ops, options.runs) for name in names}
    figures = {name: result[name]["R"] for name in names}
    table = [f"{'case':<10} {'R':>6} {'least':>6} {'most':>6} {'must':>6} {'aim':>6} {'us/op':>7} {'B/op':>6}"]
    for name in names:
        row = result[name]
        rates = f"{row['R']:>6.3f} {row['R_least']:>6.3f} {row['R_most']:>6.3f} {MUST[name]:>6.2f} {AIM[name]:>6.2f}"
        table.append(f"{name:<10} {rates} {row['us_per_op']:>7.2f} {row['bytes_per_op']:>6.0f}")
    if options.no_growth:
        return result, figures, table
    small, large = (fresh("decode", ops, max(3, options.runs // 2)) for ops in (10_000, 1_000_000))
    growth, kept = small["R"] / large["R"], large["bytes_per_op"]
    result |= {"growth": {"10k": small, "1M": large, "ratio": growth}, "bytes_per_op": {"1M": kept}}
    table.append(f"an op at 1M costs {growth:.2f} of one at 10k (must {MUST['growth']}, aim {AIM['growth']})")
    table.append(f"an op at 1M takes {kept:.0f} B, trace kept (must {MUST['bytes_per_op']}, aim {AIM['bytes_per_op']})")
    return result, {**figures, "growth": growth, "bytes_per_op": kept}, table


def _ranks(options: argparse.Namespace) -> Measured:
    """Measure ranks on one pool, and what an op costs at 384 of them against one."""
    names = ("pool1", "pool64", "pool384")
    found = {name: fresh(name, RANK_OPS * options.ops, options.runs) for name in names}
    ratio, table = found["pool1"]["R"] / found["pool384"]["R"], []
    for name in names:
        row = found[name]
        bar = f"must {MUST[name]}, aim {AIM[name]}" if name in MUST else ""
        spread = f"{row['R_least']:.3f} to {row['R_most']:.3f}"
        table.append(f"{name:<8} R {row['R']:.3f} ({spread}) {row['bytes_per_op']:.0f} B/op {bar}".rstrip())
    table.append(f"an op at 384 ranks costs {ratio:.2f} of one at one rank (must {MUST['ranks']})")
    return {**found, "ranks": ratio}, {**{name: found[name]["R"] for name in names}, "ranks": ratio}, table


if __name__ == "__main__":
    sys.exit(main())
