"""How far a policy is from the optimum, over a fixed family of random small problems: 200, or 320 fresh ones.

    python tests/bench/optimum.py                 `static` against the optima that are stored
    python tests/bench/optimum.py --family fresh  the same for smaller graphs with few, unlike tensors
    python tests/bench/optimum.py --more          give each member more bandwidth, room or steps: who gets slower?
    python tests/bench/optimum.py --solve 120     solve again first, two minutes a member at most, and store

The optima are stored beside this file because they take long, and because they are facts: the step of the best plan
that `optimal` found [ns], and what no plan of its space beats [ns]. Where the two differ the member is not proved, and
the true gap lies between the gap to the one and to the other; the distribution is given for both. It ends with 1 if the
median or the 95th percentile of the gap to the best known plans misses its bar.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1]))

import bars
from families import FRESH, MEMBERS, faster, fresh, member
from policy_problems import replay

from simulator.errors import CapacityError
from simulator.lifetime import live_bytes
from simulator.policies import POLICIES, Problem
from simulator.policies.optimal import optimum

FAMILIES = {"small": (member, MEMBERS, "optima.json"), "fresh": (fresh, FRESH, "optima_fresh.json")}
"""By name: what makes a member, how many there are, and the file of their optima."""
MOST = {"median": 0.0, "p95": 0.03}


def solve(number: int, family: str, time_limit_s: float) -> dict[str, int | None]:
    """The optimum of one member."""
    try:
        search = optimum(FAMILIES[family][0](number)[1], time_limit_s)
    except CapacityError:
        return {"member": number, "step_ns": None, "least_ns": None}
    return {"member": number, "step_ns": search.step_ns, "least_ns": search.least_ns}


def measure(number: int, family: str, policy: str) -> dict[str, float | int | str | None]:
    """The step of the policy's plan for one member, and the processor time that planning took."""
    shape, problem = FAMILIES[family][0](number)
    start = time.process_time()
    try:
        found = problem.replay(POLICIES[policy].plan(problem))
        step_ns = found.step_ns if found.status == "ok" else None
    except CapacityError:
        step_ns = None
    plan_s = time.process_time() - start
    return {"member": number, "shape": shape, "step_ns": step_ns, "plan_s": plan_s, "bound_ns": problem.bound_ns}


def given_more(problem: Problem) -> Iterator[tuple[str, Problem]]:
    """The problem with more of something, which should make no step longer."""
    top, graph, trial = int(live_bytes(problem.graph).max()), problem.graph, replay
    for times in (1.5, 3):
        yield f"{times:g}x bandwidth", replace(problem, hardware=faster(problem.hardware, times), trial=trial)
    for share in (0.25, 0.6):
        budget_bytes = int(problem.budget_bytes + (top - problem.budget_bytes) * share)
        yield f"{share:.0%} of the room that lacks", replace(problem, budget_bytes=budget_bytes, trial=trial)
    if graph.steps > 1 and all(graph.tensors[t].persistent for t in graph.inputs):
        yield "5 more steps", replace(problem, graph=replace(graph, steps=graph.steps + 5))


def anomalies(number: int, family: str, policy: str) -> list[tuple[int, str, float]]:
    """For each change that gives one member more: its number, the change, and by how much the step is longer."""
    problem = FAMILIES[family][0](number)[1]

    def step_ns(given: Problem) -> float:
        try:
            found = given.replay(POLICIES[policy].plan(given))
        except CapacityError:
            return math.inf
        return found.step_ns if found.status == "ok" else math.inf

    base_ns = step_ns(problem)
    more = given_more(problem) if base_ns < math.inf else ()
    return [(number, name, step_ns(given) / base_ns - 1) for name, given in more]


def tell_anomalies(policy: str, found: list[tuple[int, str, float]]) -> None:
    """Print how many changes that give more made a step longer, and which."""
    longer = sorted((change for change in found if change[2] > 0), key=lambda change: -change[2])
    print(f"{policy}: of {len(found)} changes that give more, {len(longer)} made a step longer")
    for number, name, by in longer:
        print(f"  {number}: {name}: {by:.2%}")


def merged(old: dict[str, int | None] | None, new: dict[str, int | None]) -> dict[str, int | None]:
    """The better of two solutions: both are valid."""
    if old is None or old["step_ns"] is None or new["step_ns"] is None:
        return new
    step, least = min(old["step_ns"], new["step_ns"]), max(old["least_ns"] or 0, new["least_ns"] or 0)
    return {"member": new["member"], "step_ns": step, "least_ns": least}


def is_proved(optimum: dict[str, int | None]) -> bool:
    """Whether the step and what no plan beats are one."""
    return optimum["step_ns"] == optimum["least_ns"]


def quantile(sorted_gaps: list[float], share: float) -> float:
    """The smallest gap that at least this share of the members does not exceed."""
    return sorted_gaps[min(len(sorted_gaps) - 1, max(0, -int(-share * len(sorted_gaps) // 1) - 1))]


def distribution(gaps: list[float]) -> dict[str, float]:
    """Median, 95th percentile, worst, and the share of members without a gap."""
    ordered = sorted(gaps)
    zero = sum(gap <= 0 for gap in ordered) / len(ordered)
    return {"median": quantile(ordered, 0.5), "p95": quantile(ordered, 0.95), "worst": ordered[-1], "optimal": zero}


def compare(optima: list[dict], rows: list[dict]) -> dict:
    """Distributions of the gap, and the members with the largest."""
    both = [(o, r) for o, r in zip(optima, rows, strict=True) if o["step_ns"] is not None]
    fits = [(o, r) for o, r in both if r["step_ns"] is not None]
    best = [(r["step_ns"] / o["step_ns"] - 1, r["member"], r["shape"]) for o, r in fits]
    return {
        "members": len(optima),
        "infeasible": len(optima) - len(both),
        "no_plan": [r["member"] for o, r in both if r["step_ns"] is None],
        "proved": sum(is_proved(o) for o, _ in both) / len(both),
        "to_best_known": distribution([gap for gap, *_ in best]),
        "to_least": distribution([r["step_ns"] / o["least_ns"] - 1 for o, r in fits]),
        "bound_share": sorted(r["bound_ns"] / o["step_ns"] for o, r in both),
        "by_shape": {s: distribution([g for g, _, shape in best if shape == s]) for s in sorted({b[2] for b in best})},
        "worst": [{"member": m, "shape": s, "gap": g} for g, m, s in sorted(best, reverse=True)[:8]],
        "plan_s": sum(r["plan_s"] for r in rows),
    }


def tell(policy: str, found: dict, misses: list[str]) -> None:
    """Print the result for people."""
    print(f"{policy} on {found['members']} members, {found['infeasible']} of them infeasible, ", end="")
    print(f"{found['proved']:.1%} of the optima proved; without a plan: {found['no_plan'] or 'none'}")
    print(f"{'gap':<24} {'median':>8} {'p95':>8} {'worst':>8} {'optimal':>8}")
    rows = {"to the best known plan": found["to_best_known"], "to what none beats": found["to_least"]}
    for name, row in {**rows, **{f"  {s}": row for s, row in found["by_shape"].items()}}.items():
        print(f"{name:<24} {row['median']:>8.2%} {row['p95']:>8.2%} {row['worst']:>8.2%} {row['optimal']:>8.0%}")
    print(f"must: median at most {MOST['median']:.0%}, 95th percentile at most {MOST['p95']:.0%}; {bars.told(misses)}")
    print("largest gaps: " + ", ".join(f"{w['member']} ({w['shape']}) {w['gap']:.1%}" for w in found["worst"]))
    shares = found["bound_share"]
    print(f"the bound is {sum(shares) / len(shares):.1%} of the best step on average, ", end="")
    print(f"median {quantile(shares, 0.5):.0%}, {sum(share == 1 for share in shares)} times the step itself")
    print(f"planning took {found['plan_s']:.1f} s in all")


def main() -> int:
    """Compare, after solving again if asked; 1 if the gap to the best known plans misses its bar."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--policy", default="static", help="whose gap (default: static)")
    parser.add_argument("--solve", type=float, help="solve again, so many seconds for a member at most, and store")
    parser.add_argument("--only-unproved", action="store_true", help="solve only what is not proved yet")
    parser.add_argument("--family", choices=FAMILIES, default="small", help="which problems (default: small)")
    parser.add_argument("--members", type=int, help="only the first so many")
    parser.add_argument("--more", action="store_true", help="give more, and count the steps that get longer")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args()
    _, members, name = FAMILIES[options.family]
    numbers, store = range(options.members or members), Path(__file__).with_name(name)
    stored = {o["member"]: o for o in json.loads(store.read_text())} if store.exists() else {}
    with ProcessPoolExecutor(2) as pool:
        if options.solve:
            asked = [n for n in numbers if not (options.only_unproved and n in stored and is_proved(stored[n]))]
            for new in pool.map(partial(solve, family=options.family, time_limit_s=options.solve), asked):
                stored[new["member"]] = merged(stored.get(new["member"]), new)
                lines = ",\n".join(json.dumps(stored[n]) for n in sorted(stored))
                store.write_text(f"[\n{lines}\n]\n")
        if options.more:
            found = pool.map(partial(anomalies, family=options.family, policy=options.policy), numbers)
            tell_anomalies(options.policy, [change for changes in found for change in changes])
            return 0
        rows = list(pool.map(partial(measure, family=options.family, policy=options.policy), numbers, chunksize=4))
    found = compare([stored[n] for n in numbers], rows)
    misses = bars.missed(found["to_best_known"], most=MOST)
    if options.json:
        print(json.dumps({"policy": options.policy, **found, "must": MOST, "missed": misses}, indent=1))
    else:
        tell(options.policy, found, misses)
    return bool(misses)


if __name__ == "__main__":
    sys.exit(main())
