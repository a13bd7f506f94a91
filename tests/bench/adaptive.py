"""Whether decisions that adapt beat the fixed ones: tuned weights of `static`'s score; learning which tensors leave.

    python tests/bench/adaptive.py tune     weights of the score's terms, tuned on half of a family of jobs
    python tests/bench/adaptive.py learn    a bandit over orders of leaving, while the length of the sequence changes

*Tune*: the terms for size, idle time and bandwidth each get a weight (1 in hosim; that for size stays 1, as only the
order counts). The family: steps of the acceptance graph of several depths, budgets and rates, and small problems of
`tests/families.py`, compiled without the search of single changes, which would hide what the order does. A member
counts by the logarithm of its step over its lower bound. scipy's differential evolution sees one half, and Nelder-Mead
goes on from its best; the other half is the test.

*Learn*: each round is a training step of some length, drawn from long ones for the first half of the rounds and from
short ones for the second. An arm is an order in which tensors leave, compiled once without any search; a round's
reward is its step over what the ops alone take, with 2 % of noise. UCB1 (Auer et al. 2002) learns one arm for all
lengths, or one for each length. Beside them: `static` compiled for each length, `reactive`, the best single arm in
hindsight, and the bound. Needs scipy (the extra ``study``).
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from importlib import import_module
from pathlib import Path
from random import Random
from typing import Any
from unittest import mock

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1]))

import planning
from families import member
from scipy.optimize import differential_evolution, minimize

from simulator import catalog
from simulator.catalog import Axis
from simulator.errors import CapacityError
from simulator.lifetime import live_bytes
from simulator.policies import POLICIES, Problem, static
from simulator.run.case import prepare

analyse, room, select = (import_module(f"simulator.policies.static.{name}") for name in ("analyse", "room", "select"))
Weights = tuple[float, float, float]
ONES = (1.0, 1.0, 1.0)
DEPTHS, SHARES, RATES = (6, 10), (0.2, 0.35, 0.5), (8, 20, 50)
SMALL_MEMBERS, BOUNDS = 48, [(0.0, 3.0), (0.0, 3.0)]
LENGTHS = (1024, 2048, 3072, 4096, 5120, 6144, 7168, 8192)
ARMS: dict[str, Weights] = {
    "room x time / link": ONES,
    "largest": (1, 0, 0),
    "smallest": (-1, 0, 0),
    "idle longest": (0, 1, 0),
    "idle shortest": (0, -1, 0),
    "large and idle": (1, 1, 0),
    "idle, mostly": (1, 3, 1),
    "cheap to move": (0, 0, 1),
}
ROUNDS, NOISE, SEEDS = 400, 0.02, 20


@contextmanager
def weighted(weights: Weights, *, searches: bool = True, tries: int | None = None) -> Iterator[None]:
    """Let `static` rank by other weights; without the search of single changes, or with few candidates."""
    scored = analyse.scored

    def other(*arguments: object, **more: object) -> Any:
        score = scored(*arguments, **more)
        terms = (*(weight * term for weight, term in zip(weights, score.terms, strict=False)), score.terms[3])
        return score._replace(total=sum(terms), terms=terms)

    with ExitStack() as stack:
        for module in (analyse, select, room):
            stack.enter_context(mock.patch.object(module, "scored", other))
        if not searches:
            stack.enter_context(mock.patch.object(static, "SMALL", 0))
        if tries is not None:
            stack.enter_context(mock.patch.object(static, "TRIES", tries))
        yield


def step_ns(problem: Problem, policy: str = "static") -> float:
    """Return the step of a policy's plan; infinite if it finds none that runs."""
    try:
        found = problem.replay(POLICIES[policy].plan(problem))
    except CapacityError:
        return math.inf
    return found.step_ns if found.status == "ok" else math.inf


def family() -> list[Problem]:
    """Return the jobs in a fixed, shuffled order; those that do not fit are left out."""
    problems = [member(number)[1] for number in range(SMALL_MEMBERS)]
    for depth in DEPTHS:
        for share in SHARES:
            for rate in RATES:
                try:
                    problems.append(planning.case(depth, share, rate).problem)
                except CapacityError:
                    continue
    with weighted(ONES, searches=False):
        fitting = [problem for problem in problems if step_ns(problem) < math.inf]
    Random(40).shuffle(fitting)
    return fitting


def losses(problems: Sequence[Problem], weights: Weights) -> list[float]:
    """Return the logarithm of each member's step over its bound; of one that fits no more, that of twice the bound."""
    with weighted(weights, searches=False):
        steps = [step_ns(problem) / problem.bound_ns for problem in problems]
    return [math.log(min(step, 2.0)) for step in steps]


def tune() -> None:
    """Tune on one half, and print both halves with the fixed weights and the tuned ones."""
    problems = family()
    train, test = problems[::2], problems[1::2]

    def mean_loss(point: Sequence[float]) -> float:
        return sum(losses(train, (1.0, float(point[0]), float(point[1])))) / len(train)

    wide = differential_evolution(
        mean_loss, BOUNDS, x0=[1.0, 1.0], popsize=6, maxiter=4, polish=False, init="sobol", rng=40
    )
    found = [wide, minimize(mean_loss, wide.x, method="Nelder-Mead", options={"maxfev": 16})]
    best = min(found, key=lambda result: result.fun)
    tuned = (1.0, *(round(float(weight), 3) for weight in best.x))
    print(f"{len(train)} jobs to tune on, {len(test)} to test, {sum(result.nfev for result in found)} evaluations")
    print("weights of size, idle, bandwidth   over the bound, tuned on   over the bound, test   faster / slower there")
    for weights in (ONES, tuned):
        seen, unseen = losses(train, weights), losses(test, weights)
        fixed = losses(test, ONES)
        faster = sum(ours < theirs - 1e-4 for ours, theirs in zip(unseen, fixed, strict=True))
        slower = sum(ours > theirs + 1e-4 for ours, theirs in zip(unseen, fixed, strict=True))
        means = [math.expm1(sum(part) / len(part)) for part in (seen, unseen)]
        named = ", ".join(f"{weight:g}" for weight in weights)
        print(f"{named:33}  {means[0]:23.2%}   {means[1]:20.2%}   {faster} / {slower} of {len(test)}")


def table() -> dict[int, dict[str, float]]:
    """Return for each length the step of each arm and policy over what the ops alone take."""
    loaded = catalog.resolve("tiny_train_910c")
    axis = Axis("length", ("workload.sequence",), "a bench")
    longest = prepare(catalog.at(loaded, {axis: LENGTHS[-1]}))
    budget = int(live_bytes(longest.graph).max() * 0.45)
    rows = {}
    for length in LENGTHS:
        problem = planning.within(prepare(catalog.at(loaded, {axis: length})), budget).problem
        alone = problem.clock[-1]
        row = {"static": step_ns(problem) / alone, "reactive": step_ns(problem, "reactive") / alone}
        for name, weights in ARMS.items():
            with weighted(weights, searches=False, tries=1):
                row[name] = min(step_ns(problem) / alone, 10.0)
        rows[length] = row | {"bound": problem.bound_ns / alone}
    return rows


def learned(rows: dict[int, dict[str, float]], seed: int, *, by_length: bool) -> tuple[float, float]:
    """Return the mean of all rounds, and that of their second and last quarters, by UCB1."""
    draw, names, seen = Random(seed), list(ARMS), dict[tuple[int, str], list[float]]()
    taken = []
    for turn, length in enumerate(lengths(seed)):
        key = length if by_length else 0
        tries = {name: seen.setdefault((key, name), []) for name in names}
        total = sum(map(len, tries.values()))

        def promise(name: str, tries: dict[str, list[float]] = tries, total: int = total) -> float:
            costs = tries[name]
            return (
                math.inf if not costs else -sum(costs) / len(costs) + 0.2 * math.sqrt(2 * math.log(total) / len(costs))
            )

        arm = max(names, key=promise)
        cost = rows[length][arm]
        tries[arm].append(cost * draw.gauss(1.0, NOISE))
        taken.append((turn, cost))
    settled = [cost for turn, cost in taken if turn % (ROUNDS // 2) >= ROUNDS // 4]
    return sum(cost for _, cost in taken) / ROUNDS, sum(settled) / len(settled)


def lengths(seed: int) -> list[int]:
    """Return the length of each round: long ones first, then short ones."""
    draw, half = Random(1000 + seed), len(LENGTHS) // 2
    return [draw.choice(LENGTHS[half:] if turn < ROUNDS // 2 else LENGTHS[:half]) for turn in range(ROUNDS)]


def learn() -> None:
    """Print the step of each arm and policy by length, and the means over all rounds."""
    rows = table()
    names = [*ARMS, "reactive", "static", "bound"]
    print(f"{'step over its ops alone':24}" + "".join(f"{length:>8,}" for length in rows) + "    all rounds  settled")
    count = {length: sum(lengths(seed).count(length) for seed in range(SEEDS)) / SEEDS / ROUNDS for length in rows}
    for name in names:
        mean = sum(row[name] * count[length] for length, row in rows.items())
        print(f"{name:24}" + "".join(f"{row[name]:8.3f}" for row in rows.values()) + f"{mean:14.3f}")
    for by_length in (False, True):
        runs = [learned(rows, seed, by_length=by_length) for seed in range(SEEDS)]
        means = [sum(part) / SEEDS for part in zip(*runs, strict=True)]
        name = f"learned{', by length' if by_length else ''}"
        print(f"{name:24}{'':{8 * len(rows)}}{means[0]:14.3f}{means[1]:9.3f}")


def main() -> None:
    """Run one of the two experiments."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("experiment", choices=("tune", "learn"))
    {"tune": tune, "learn": learn}[parser.parse_args().experiment]()


if __name__ == "__main__":
    main()
