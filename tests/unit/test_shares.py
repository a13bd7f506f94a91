"""How ranks that share a tier divide its room."""

from __future__ import annotations

from rank_stories import cluster, team

from simulator.graph import Job
from simulator.hardware import Hardware
from simulator.policies import FREE
from simulator.run.placement import shares

HBM, DDR = 0, 1
SMALL, LARGE = (team(f"w {size} persistent, a 40", "f: w -> a, 5 ns", groups={}) for size in (10, 50))


def machine(nodes: int = 1, scope: str = "node") -> Hardware:
    document = cluster(4, nodes, scope="supernode").model_dump(by_alias=True)
    document["tiers"]["ddr"] |= {"capacity": "200 B", "scope": scope}
    return Hardware.model_validate(document)


def test_each_rank_gets_its_homes_and_an_equal_part_of_the_rest():
    job = Job("two", (SMALL, LARGE), (0, 0, 0, 1), ("small", "large"))
    homes = [(DDR, FREE), (DDR, FREE)]
    assert shares(job, machine(), homes) == [(100, 10 + 30), (100, 50 + 30)]
    assert shares(job, machine(scope="supernode"), homes) == [(100, 10 + 30), (100, 50 + 30)]
    assert shares(job, machine(scope="device"), homes) == [(100, 200), (100, 200)]


def test_the_fullest_node_counts():
    job = Job("two", (SMALL, LARGE), (0, 0, 0, 1), ("small", "large"))
    homes = [(DDR, FREE), (DDR, FREE)]
    assert shares(job, machine(nodes=2), homes) == [(100, 10 + 70), (100, 50 + 70)]
    assert shares(job, machine(nodes=2), [(HBM, FREE)] * 2) == [(100, 100)] * 2


def test_homes_that_do_not_fit_together_leave_less_than_they_take():
    job = Job.of(LARGE, 4)
    document = machine().model_dump(by_alias=True)
    document["tiers"]["ddr"]["capacity"] = "120 B"
    assert shares(job, Hardware.model_validate(document), [(DDR, FREE)]) == [(100, 30)]
