"""How fast both engines are, in a form that a noisy machine can hardly spoil: ratios in one process, and in turns.

    python tests/bench/engine.py
    python tests/bench/engine.py --cases decode pool64 --ops 100000 --json

Times are of the processor. Each case has a process of its own, in which both engines run it in turns and must give the
same spans. ``ratio`` is how many times as fast the compiled engine is. ``R`` is what simpy runs: operators per second,
over bare timeouts per second of a stock environment just before and just after. ``growth`` is what an op of `decode`
costs at a million of them over what it costs at ten thousand, by the compiled engine, and ``bytes_per_op`` the memory
that this run takes besides its trace. It ends with 1 if a figure misses its bar, and says which.
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
from contextlib import suppress
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import bars
import numpy as np

from simulator import engine
from simulator.errors import ConfigError
from simulator.trace import TABLES, Block, Trace, pick

MOST = {"growth": 1.0, "bytes_per_op": 100.0}
LEAST = {"decode": 0.048, "compute": 0.128, "reactive": 0.026, "pool1": 0.025, "pool64": 0.024, "pool384": 0.011}
"""R of simpy: a quarter of that of the event loop which it replaced, in turns with it. Speed is not its aim."""
ENGINES = ("simpy", "compiled")
FEW = 4
"""So many times the ops for the cases of many ranks: each rank has few of its own."""


def timeouts_per_s() -> float:
    """Bare timeouts per second of one process in a stock simpy environment."""
    import simpy  # the parent process needs none of this

    env = simpy.Environment()

    def process():
        for _ in range(100_000):
            yield env.timeout(1)

    env.process(process())
    begun = time.process_time()
    env.run()
    return 100_000 / (time.process_time() - begun)


def compared(name: str, ops: int, turns: int) -> dict[str, Any]:
    """Run a case by both engines in turns, in this process; what the compiled one refuses is run by simpy alone."""
    from cases import CASES

    case = CASES[name](ops)
    times: dict[str, list[float]] = {by: [] for by in ENGINES}
    spans, rates = {}, list[float]()
    for _ in range(turns):
        before = timeouts_per_s()
        for by in ENGINES:
            with engine.using(by), suppress(ConfigError):
                begun = time.process_time()
                trace = case.run()
                times[by].append(time.process_time() - begun)
                spans[by] = _in_order(trace.spans.whole())
                if trace.status != "ok" or int((spans[by]["kind"] == 0).sum()) != case.computes:
                    raise SystemExit(f"{name}: not all computes were completed by {by}, status {trace.status}")
        rates.append((before + timeouts_per_s()) / 2)
    if any((spans["simpy"][column] != values).any() for column, values in spans.get("compiled", {}).items()):
        raise SystemExit(f"{name}: the engines do not give the same")
    steps = sum(len(table) for table in trace.issued) or case.steps
    ratios = [slow / fast for slow, fast in zip(*times.values(), strict=False)]
    return {
        "ops": steps,
        "R": statistics.median(steps / slow / rate for slow, rate in zip(times["simpy"], rates, strict=True)),
        **{f"{by}_us_per_op": 1e6 * statistics.median(of) / steps for by, of in times.items() if of},
        **({"ratio": statistics.median(ratios), "least": min(ratios), "most": max(ratios)} if ratios else {}),
    }


def _in_order(spans: Block) -> Block:
    """Spans by rank and issue, in whatever order they ended."""
    return pick(spans, np.lexsort((spans["issue"], spans["rank"])))


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


def grown(turns: int) -> dict[str, float]:
    """What an op costs at a million of them over what it costs at ten thousand, and the memory that it takes there."""
    few, many = ([_apart(alone=ops) for _ in range(turns)] for ops in (10_000, 1_000_000))
    times = [statistics.median(run["us_per_op"] for run in runs) for runs in (many, few)]
    return {"growth": times[0] / times[1], "bytes_per_op": statistics.median(run["bytes_per_op"] for run in many)}


def main() -> int:
    """Compare all cases, and see how the compiled engine grows; 1 if a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", default=[*LEAST], choices=LEAST, help="default: all")
    parser.add_argument("--ops", type=int, default=100_000, help="operators of each run (default: 100000)")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    parser.add_argument("--alone", type=int, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.case or asked.alone:
        print(json.dumps(alone(asked.alone) if asked.alone else compared(asked.case, asked.ops, asked.turns)))
        return 0
    ops = {name: asked.ops * (FEW if name.startswith("pool") else 1) for name in asked.cases}
    found = {name: _apart(case=name, ops=ops[name], turns=asked.turns) for name in asked.cases}
    growth = grown(asked.turns)
    figures = {name: row["R"] for name, row in found.items()} | growth
    misses = bars.missed(figures, least={name: LEAST[name] for name in found}, most=MOST)
    if asked.json:
        print(json.dumps({"result": found, **growth, "must": LEAST | MOST, "missed": misses}, indent=1))
        return bool(misses)
    print(f"{'case':<10} {'R of simpy':>10} {'must':>6} {'us/op':>7} {'compiled':>9} {'ratio':>6}  least   most")
    for name, row in found.items():
        by_compiled = "  refused"
        if "ratio" in row:
            by_compiled = (
                f"{row['compiled_us_per_op']:>9.3f} {row['ratio']:>6.1f} {row['least']:>6.1f} {row['most']:>6.1f}"
            )
        print(f"{name:<10} {row['R']:>10.3f} {LEAST[name]:>6.3f} {row['simpy_us_per_op']:>7.2f} {by_compiled}")
    print(f"an op at 1M costs {growth['growth']:.2f} of one at 10k (must {MOST['growth']:g})")
    print(f"an op at 1M takes {growth['bytes_per_op']:.0f} B besides its trace (must {MOST['bytes_per_op']:g})")
    print(bars.told(misses))
    return bool(misses)


if __name__ == "__main__":
    sys.exit(main())
