"""More room in a tier below, or another tier, never hurts `static`: exactly so on a fixed family of small problems.

As for bandwidth and budget (`test_static_monotone.py`), an optimal planner would keep this law always, and a heuristic
does where its local search reaches the optimum. Without that search it may be led to other idle intervals; that is
bounded here by what was found on the family, 12 % of the step. A further tier beside the first it may leave alone,
so that the law holds without that search as well.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from families import member
from policy_problems import DDR, replay

from simulator.hardware import Hardware
from simulator.policies import POLICIES, Problem

EXACT = [4, *(pytest.param(number, marks=pytest.mark.slow) for number in (0, 1, 2, 3, 5))]
SAMPLE = range(100)
BESIDE = [8, 84, *(pytest.param(n, marks=pytest.mark.slow) for n in SAMPLE if n not in (8, 84))]
SIXTHS = (0, 2, 4, 6)


def over_ssd(p: Problem, capacity: int) -> Problem:
    """The problem with so much DDR [B], and behind it an SSD: a third as fast to write, a fifth to read."""
    document = p.hardware.model_dump(mode="json")
    rate = p.hardware.links["d2h"].bandwidth_bytes_per_s
    document["tiers"]["ddr"]["capacity"] = f"{capacity} B"
    document["tiers"]["ssd"] = {"capacity": "inf"}
    document["links"]["write"] = {"source": "ddr", "target": "ssd", "bandwidth": f"{rate // 3} B/s"}
    document["links"]["read"] = {"source": "ssd", "target": "ddr", "bandwidth": f"{rate // 5} B/s"}
    return on(p, document)


def over_slow_links(p: Problem) -> Problem:
    """The problem with links to DDR that take four times as long."""
    document = p.hardware.model_dump(mode="json")
    for name in ("d2h", "h2d"):
        rate = p.hardware.links[name].bandwidth_bytes_per_s
        document["links"][name]["bandwidth"] = f"{max(4, rate) // 4} B/s"
    return on(p, document)


def beside_pool(p: Problem) -> Problem:
    """The problem with a pool on links of its own, at half the rates to DDR and back."""
    document = p.hardware.model_dump(mode="json")
    document["tiers"]["pool"] = {"capacity": "inf"}
    for name, source, target, like in (("to", "hbm", "pool", "d2h"), ("from", "pool", "hbm", "h2d")):
        link = p.hardware.links[like]
        rate, latency = f"{link.bandwidth_bytes_per_s // 2} B/s", f"{link.latency_ns} ns"
        document["links"][name] = {"source": source, "target": target, "bandwidth": rate, "latency": latency}
    return on(p, document)


def on(p: Problem, machine: dict[str, Any]) -> Problem:
    """The problem on another machine."""
    return replace(p, hardware=Hardware.model_validate(machine))


def capacities(p: Problem, **options: int) -> list[int]:
    """From what is at home in DDR, and one tensor more, to all that `static` would put there."""
    wanted = replay(p, POLICIES["static"].plan(p, options)).peak_bytes["ddr"]
    least = max(p.sizes) + sum(size for t, size in enumerate(p.sizes) if p.homes[t] == DDR and t in p.lifetimes.inputs)
    return [least + max(0, wanted - least) * sixths // 6 for sixths in SIXTHS]


def steps_ns(p: Problem, **options: int) -> list[int]:
    """The step at each capacity [ns]."""
    found = []
    for capacity in capacities(p, **options):
        problem = over_ssd(p, capacity)
        done = replay(problem, POLICIES["static"].plan(problem, options))
        assert done.status == "ok"
        assert done.peak_bytes["ddr"] <= capacity
        found.append(done.step_ns)
    return found


@pytest.mark.parametrize("number", EXACT)
def test_more_room_in_ddr_never_makes_a_step_longer(number):
    steps = steps_ns(member(number)[1])
    assert steps == sorted(steps, reverse=True)


@pytest.mark.usefixtures("no_improvement")
@pytest.mark.slow
def test_the_anomalies_without_local_search_are_bounded():
    worst = []
    for number in SAMPLE:
        steps = steps_ns(member(number)[1])
        worst.append(max(later / earlier - 1 for i, earlier in enumerate(steps) for later in steps[i:]))
    assert max(worst) <= 0.123
    assert sum(one > 0 for one in worst) <= 4


@pytest.mark.usefixtures("no_improvement")
@pytest.mark.parametrize("number", BESIDE)
def test_a_pool_that_is_slower_than_ddr_never_makes_a_step_longer(number):
    """What has room in DDR stays away from a slower pool."""
    p = over_slow_links(member(number)[1])
    alone, both = (replay(q, POLICIES["static"].plan(q)).step_ns for q in (p, beside_pool(p)))
    assert both <= alone
