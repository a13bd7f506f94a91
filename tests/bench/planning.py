"""How planning time grows, from 200 to 200,000 operators of the acceptance step, and what one plan costs in replays.

    python tests/bench/planning.py --json

Times are processor seconds of this process, so that a busy machine does not spoil them; the replays that validate a
plan are part of its time. ``ratio`` is the time of a plan over that of one replay of it, measured in the same run. The
exponent is the slope of log time over log operators by least squares, and the largest slope between neighbours. It is
measured with one candidate, because small graphs are given more of them than large ones, which would
flatter it; what the default options take is measured at 24,579 operators. ``--recompute`` measures the mix of copies
and recompute: the exponent with one rewritten graph at any size, and what the default options take.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1]))

import bars
from acceptance_graph import graph

from simulator import catalog
from simulator.graph import Job
from simulator.lifetime import live_bytes
from simulator.policies import POLICIES, static
from simulator.policies.static import mix
from simulator.run.case import Case, prepare
from simulator.scenario import Scenario

LAYERS = (8, 32, 128, 512, 1024, 2048, 8333)
MUST = {"exponent": 1.15, "seconds_at_24579": 3.0}
MUST_MIXED = {"exponent": 1.15, "seconds_at_24579": 10.0}
SETTINGS = {"hidden": (0.5, 50), "stalled": (0.25, 16)}
"""Name -> share of the peak, and GiB/s each way: one that hides every copy, one that cannot."""


def case(layers: int, share: float, rate: int) -> Case:
    """The acceptance step with so many layers."""
    scenario = Scenario.model_validate(
        {
            "name": "planning",
            "hardware": "residency_acceptance",
            "workload": "residency_acceptance",
            "policies": ["static"],
        }
    )
    loaded = catalog.resolve(scenario, {"links.*.bandwidth": f"{rate} GiB/s"})
    found = prepare(loaded, Job.of(graph(layers)), is_changed=True)
    budget = int(live_bytes(found.graph).max() * share)
    return within(found, budget)


def within(found: Case, budget: int) -> Case:
    """The same case with a budget."""
    loaded = replace(found.loaded, scenario=found.loaded.scenario.model_copy(update={"budget_bytes": budget}))
    return prepare(loaded, found.job, is_changed=True)


def measure(layers: int, setting: str, **options: int) -> dict[str, float | int | str]:
    """Plan one case."""
    found = case(layers, *SETTINGS[setting])
    replays = []

    def timed(problem, plan):
        began = time.process_time()
        done = found.problem.trial(problem, plan)
        replays.append(time.process_time() - began)
        return done

    problem = replace(found.problem, trial=timed)
    began = time.process_time()
    plan = POLICIES["static"].plan(problem, options)
    seconds = time.process_time() - began
    tried = len(replays)
    done = problem.replay(plan)
    return {
        "setting": setting,
        "layers": layers,
        "ops": len(found.graph.ops),
        "seconds": seconds,
        "replays": tried,
        "ratio": seconds / replays[-1],
        "us_per_op": 1e6 * seconds / len(found.graph.ops),
        "stall_share": done.wait_ns["transfer"] / done.step_ns + done.wait_ns["capacity"] / done.step_ns,
    }


@contextmanager
def one_each() -> Iterator[None]:
    """Let one candidate, and one rewritten graph, be compiled at any size: small ones are given more of them."""
    effort, largest, tries = static.LARGEST, mix.LARGEST, static.TRIES
    static.LARGEST, mix.LARGEST, static.TRIES = 0, 10**9, 1
    yield
    static.LARGEST, mix.LARGEST, static.TRIES = effort, largest, tries


def exponents(rows: list[dict]) -> tuple[float, float]:
    """Slope of log seconds over log ops: by least squares, and the largest between neighbours a factor of 3 apart."""
    points = [(math.log(row["ops"]), math.log(row["seconds"])) for row in rows]
    n, mx, my = len(points), sum(x for x, _ in points) / len(points), sum(y for _, y in points) / len(points)
    fitted = sum((x - mx) * (y - my) for x, y in points) / sum((x - mx) ** 2 for x, _ in points)
    steep = [
        (b[1] - a[1]) / (b[0] - a[0])
        for i, a in enumerate(points)
        for b in points[i + 1 :]
        if 3 <= math.exp(b[0] - a[0]) <= 5
    ]
    return (fitted, max(steep)) if n > 1 and steep else (fitted, fitted)


def main() -> int:
    """Measure all sizes; 1 if a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", nargs="+", type=int, default=LAYERS, help="24 ops each, and 3")
    parser.add_argument("--settings", nargs="+", choices=tuple(SETTINGS), default=tuple(SETTINGS))
    parser.add_argument("--recompute", action="store_true", help="let ops run again")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    must = MUST_MIXED if args.recompute else MUST
    measure(8, "hidden")
    result: dict[str, dict] = {}
    for setting in args.settings:
        default = measure(1024, setting, recompute=args.recompute)
        rows = []
        for layers in args.layers:
            with one_each():
                rows.append(measure(layers, setting, recompute=args.recompute))
            if not args.json:
                told = "{setting:<8} {ops:>8,} ops {seconds:8.2f} s {us_per_op:7.1f} us/op {replays} replays"
                print(told.format(**rows[-1]) + f", {rows[-1]['ratio']:.1f} times one replay", flush=True)
        fitted, steepest = exponents(rows) if len(rows) > 1 else (None, None)
        large = default["seconds"]
        result[setting] = {
            "rows": rows,
            "exponent": fitted,
            "steepest": steepest,
            "default": default,
            "seconds_at_24579": large,
        }
        if not args.json:
            if fitted is not None:
                grows = f"exponent {fitted:.2f}, at most {steepest:.2f} between sizes"
                print(f"{setting:<8} {grows} (must {must['exponent']})")
            print(f"{setting:<8} default options at 24,579 ops: {large:.2f} s (must {must['seconds_at_24579']})")
    figures = {
        f"{setting} {name}": one[name] for setting, one in result.items() for name in must if one[name] is not None
    }
    misses = bars.missed(figures, most={name: must[name.split()[1]] for name in figures})
    print(json.dumps({"result": result, "must": must, "missed": misses}, indent=1) if args.json else bars.told(misses))
    return bool(misses)


if __name__ == "__main__":
    sys.exit(main())
