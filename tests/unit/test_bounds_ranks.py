"""Bounds of ranks that meet, worked out by hand; a byte takes a nanosecond on every link and port."""

from __future__ import annotations

from dataclasses import replace

from rank_stories import cluster, job_of, perform, team

from simulator import metrics
from simulator.bounds import Bound, Limits, Precedence, Team, Timing, streams_of
from simulator.cost import durations_ns
from simulator.graph import Graph, Job
from simulator.hardware import Hardware
from simulator.hardware.device import HostCompute
from simulator.plan import NOWHERE

HBM, DDR = 0, 1
ALL = {"all": ((0, 1),)}
NEXT = {"next": ((0, 1),)}


def team_of(job: Job, hardware: Hardware) -> Team:
    lowest = [job.graph_of.index(number) for number in range(len(job.graphs))]
    times = tuple(durations_ns(graph, hardware, rank) for graph, rank in zip(job.graphs, lowest, strict=True))
    return Team(job, hardware, times, tuple(streams_of(graph) for graph in job.graphs))


def limits(job: Job, hardware: Hardware, homes: dict[str, int], budget: int = 10**6) -> list[Bound]:
    found = team_of(job, hardware)
    return [
        Limits(
            order,
            hardware,
            [homes.get(t.name, NOWHERE) for t in graph.tensors],
            sharers=found.sharers(number),
        ).step(budget)
        for number, (graph, order) in enumerate(zip(job.graphs, found.timings(), strict=True))
    ]


def test_a_collective_starts_when_its_slowest_member_comes():
    """Rank 0 computes for 10 ns and waits for rank 1, which computes for 70; then 20 B take 20 ns, then 5."""
    fast, slow = (team("a 20", f"f: -> a, {ns} ns", "sum: a -> a, all_reduce all 20", "g: a ->, 5 ns", groups=ALL)
                  for ns in (10, 70))  # fmt: skip
    assert [found.ns for found in limits(job_of([fast, slow]), cluster(2), {})] == [95, 95]
    assert [found.kind for found in limits(job_of([fast, slow]), cluster(2), {})] == ["critical path"] * 2
    alone = Timing.alone(Precedence.of(fast), durations_ns(fast, cluster(2)))
    assert (alone.path_ns, list(alone.leads_ns), list(alone.tails_ns)) == (35, [0, 10, 30], [25, 5, 0])


def test_the_way_goes_over_the_stages_of_a_pipeline_and_back():
    """Of two steps the second is bounded: what stage 1 still does when stage 0 has ended is not in its way."""
    groups = {"next": ((0, 1),), "back": ((1, 0),)}
    first = team("x 4 persistent, a 30, b 30", "f: x -> a, 10 ns", "give: a ->, send next 30",
                 "take: -> b, recv back 30", "g: b -> x, 20 ns", groups=groups, steps=2)  # fmt: skip
    second = team("y 4 persistent, a 30, b 30", "take: -> a, recv next 30", "f: a -> b, 40 ns",
                  "give: b ->, send back 30", "g: -> y, 7 ns", groups=groups, steps=2)  # fmt: skip
    hardware, job = cluster(2), job_of([first, second])
    assert [found.ns for found in limits(job, hardware, {"x": HBM, "y": HBM})] == [130, 47]
    plans = [(first, "compute f; compute give 1; compute take 2; compute g; detach a hbm; detach b hbm"),
             (second, "compute take 1; compute f; compute give 2; compute g; detach a hbm; detach b hbm")]  # fmt: skip
    trace = perform(hardware, plans, "x hbm, y hbm")
    assert metrics.summarise(job, hardware, trace)["step_ns"] == 130


def test_what_takes_room_comes_after_the_last_that_took_some_has_begun():
    """Nothing else keeps a receive from the step before: its tensor is new, and it depends on no compute."""
    whole = "x 4 persistent, a 30, b 8"
    give = team(whole, "f: -> b, 10 ns", "give: x ->, send next 30", groups=NEXT, steps=2)
    take = team(whole, "take: -> a, recv next 30", "f: a -> b, 40 ns", "g: b -> x, 9 ns", groups=NEXT, steps=2)
    hardware = cluster(2)
    assert limits(job_of([give, take]), hardware, {"x": HBM})[1].ns == 49
    late = replace(take, ops=(*take.ops[:2], replace(take.ops[2], workspace_bytes=1)))
    assert limits(job_of([give, late]), hardware, {"x": HBM})[1].ns == 30 + 40
    bigger = replace(late, ops=(*late.ops[:2], replace(late.ops[2], duration_ns=35)))
    assert limits(job_of([give, bigger]), hardware, {"x": HBM})[1].ns == 40 + 35


STREAMED = team("w 30 persistent, x 4 persistent, n 4 persistent", "f: w x -> x, 7 ns",
                "sum: x n -> n, all_reduce all 8", groups={"all": ((0, 1, 2, 3),)}, steps=2)  # fmt: skip


def test_a_shared_bus_carries_what_all_that_are_alike_are_forced_to_move():
    """Four ranks read 30 B each over a bus of 2 B/ns: 60 ns, and then f."""
    supply = {"pool": {"links": ["h2d"], "bandwidth": "2 GB/s", "scope": "supernode"}}
    homes = {"w": DDR, "x": HBM, "n": HBM}
    (found,) = limits(job_of([STREAMED] * 4), cluster(4, 2, scope="supernode", buses=supply), homes)
    assert (found.kind, found.ns) == ("bus pool", 67)
    supply["pool"]["scope"] = "node"
    (found,) = limits(job_of([STREAMED] * 4), cluster(4, 2, scope="supernode", buses=supply), homes)
    assert (found.terms["bus pool"], found.terms["link h2d"]) == (37, 37)


def test_the_memory_of_a_lower_tier_bounds_as_a_bus_does():
    """As above; where each byte passes the memory three times, 4 times 30 B take 180 ns."""
    homes, h = {"w": DDR, "x": HBM, "n": HBM}, cluster(4, 2, scope="supernode")
    ddr = h.tiers["ddr"].model_copy(update={"bandwidth_bytes_per_s": 2 * 10**9, "scope": "supernode"})
    h = h.model_copy(update={"tiers": {**h.tiers, "ddr": ddr}})
    (found,) = limits(job_of([STREAMED] * 4), h, homes)
    assert (found.kind, found.ns) == ("bus memory.ddr", 67)
    thrice = {name: link.model_copy(update={"passes": {"ddr": 3}}) for name, link in h.links.items()}
    (found,) = limits(job_of([STREAMED] * 4), h.with_links(thrice), homes)
    assert (found.kind, found.ns) == ("bus memory.ddr", 187)


def with_cores(nodes: int, **more):
    """Four ranks on so many nodes, whose cores work in DDR at 1 B/ns."""
    h = cluster(4, nodes, scope="supernode")
    ddr = h.tiers["ddr"].model_copy(update={"bandwidth_bytes_per_s": 10**9, "scope": "node", **more})
    cores = HostCompute.model_validate({"tier": "ddr", "peak": {"bf16": "1 GFLOP/s"}})
    return h.model_copy(update={"tiers": {**h.tiers, "ddr": ddr}, "host_compute": cores})


def updated_by_host(read_bytes: int, steps: int = 2):
    """A step of 10 ns, a sum, an update on the host, and what waits for it on all ranks for 5 ns."""
    sums = [f"{name}: {x} -> {x}, all_reduce all 8" for name, x in (("sum", "x"), ("end", "y"))]
    ops = "f: h -> x, 10 ns", sums[0], "adam: x -> h, 1 ns", "g: h -> y, 5 ns", sums[1], "z: y ->, 1 ns"
    g = team("x 4, y 4, h 4 persistent", *ops, groups={"all": ((0, 1, 2, 3),)}, steps=steps)
    adam = replace(g.ops[2], device="host", stream=1, duration_ns=None, read_bytes=read_bytes, write_bytes=0)
    return replace(g, ops=(*g.ops[:2], adam, *g.ops[3:]))


def test_ranks_that_meet_share_the_cores_of_their_host():
    """60 ns of each update, one after another, between f with the sum and g; two nodes have cores of their own."""
    g = updated_by_host(60)
    for nodes, ranks in ((4, 1), (2, 2), (1, 4)):
        hardware = with_cores(nodes)
        (found,) = limits(job_of([g] * 4), hardware, {"h": DDR})
        alone_ns = team_of(job_of([g] * 4), hardware).timings()[0].path_ns
        assert found.terms["memory ddr"] == alone_ns + (ranks - 1) * 60


def test_so_do_unlike_ranks_and_each_update_counts_as_often_as_there_are_such_ranks():
    more, less = updated_by_host(60), updated_by_host(30)
    found = limits(job_of([more, less, less, less]), with_cores(1), {"h": DDR})
    alone_ns = team_of(job_of([more] * 4), with_cores(1)).timings()[0].path_ns
    assert {bound.terms["memory ddr"] for bound in found} == {alone_ns + 3 * 30}


def test_cores_are_not_shared_for_certain_where_ranks_may_do_the_same_at_other_times():
    g, tight = updated_by_host(60), with_cores(1, capacity_bytes=40)
    assert "memory ddr" not in limits(job_of([g] * 4), tight, {"h": DDR})[0].terms
    apart = replace(team_of(job_of([g] * 4), with_cores(1)), draws=True)
    assert not apart.timings()[0].hosted
    once = updated_by_host(60, steps=1)
    assert limits(job_of([once] * 4), tight, {"h": DDR})[0].terms["memory ddr"] > 4 * 60, "the run is its window"


def test_copies_that_wait_for_a_collective_of_whenever_are_not_bounded():
    """The last op is a sum that f does not come before: the next step's copies may begin with the step before."""
    loose = replace(STREAMED, ops=(STREAMED.ops[0], replace(STREAMED.ops[1], reads=(2,))))
    homes = {"w": DDR, "x": HBM, "n": HBM}
    (found,) = limits(job_of([loose] * 4), cluster(4, 2, scope="supernode"), homes)
    assert found.terms["link h2d"] == 0
    (found,) = limits(job_of([replace(loose, steps=1)] * 4), cluster(4, 2, scope="supernode"), homes)
    assert found.terms["link h2d"] == 30


def test_where_shared_room_may_be_short_ranks_need_not_do_the_same_at_the_same_time():
    supply = {"pool": {"links": ["h2d"], "bandwidth": "2 GB/s", "scope": "supernode"}}
    hardware = cluster(4, 2, scope="supernode", buses=supply)
    ddr = hardware.tiers["ddr"].model_copy(update={"capacity_bytes": 150, "scope": "supernode"})
    tight = hardware.model_copy(update={"tiers": {**hardware.tiers, "ddr": ddr}})
    assert team_of(job_of([STREAMED] * 4), hardware).sharers(0) == {"pool": 4}
    assert team_of(job_of([STREAMED] * 4), tight).sharers(0) == {}


def test_ranks_that_never_meet_may_begin_in_turn_but_all_of_a_run_of_one_step_counts():
    supply = {"pool": {"links": ["h2d"], "bandwidth": "2 GB/s", "scope": "supernode"}}
    hardware = cluster(4, 2, scope="supernode", buses=supply)
    lonely = replace(STREAMED, ops=STREAMED.ops[:1])
    assert team_of(job_of([lonely] * 4), hardware).sharers(0) == {}
    assert team_of(job_of([replace(lonely, steps=1)] * 4), hardware).sharers(0) == {"pool": 4}


def test_ranks_that_meet_otherwise_are_told_apart():
    pairs = team("a 20", "f: -> a, 1 ns", "sum: a -> a, all_reduce some 20", groups={"some": ((0, 1), (2,), (3,))})
    found = team_of(job_of([pairs] * 4), cluster(4))
    assert found.first_alike == (0, 0, 2, 2)
    assert found.timings()[0].path_ns == 21
    halves = team("a 20", "f: -> a, 1 ns", "sum: a -> a, all_reduce some 20", groups={"some": ((0, 1), (2, 3))})
    assert team_of(job_of([halves] * 4), cluster(4)).first_alike == (0, 0, 0, 0)
    other = replace(halves, name="other")
    assert team_of(job_of([halves, other, halves, halves]), cluster(4)).first_alike == (0, 1, 2, 2)


SAVED = (
    "f: -> a, 1 ns",
    "g: -> b, 1 ns",
    "sum: b -> b, all_reduce all 4",
    "h: -> c, 9 ns",
    "k: c b ->, 1 ns",
    "m: a ->, 1 ns",
)


def room(graph: Graph, budget: int) -> dict[str, int]:
    homes = {t.name: HBM for t in graph.tensors if t.persistent}
    (found,) = limits(job_of([graph] * 2), cluster(2), homes, budget)
    return {kind: ns for kind, ns in found.terms.items() if kind.startswith("room")}


def test_a_value_counts_beside_a_collective_if_it_is_needed_for_certain():
    """While h runs a, which m reads, and b, which the sum may be working on and k reads, are both needed."""
    g = team("a 40, b 40, c 40", *SAVED, groups=ALL)
    assert room(g, 120) == {}
    assert room(g, 100) == {"room at 2 ops": 1 + 40 + 9 + 1 + 40 + 1}


def test_a_value_that_only_a_collective_still_needs_does_not_count():
    """The sum may be over before h starts, and nothing reads b then."""
    ops = (*SAVED[:4], "k: c ->, 1 ns", SAVED[5])
    g = team("a 40, b 40, c 40", *ops, groups=ALL)
    assert room(g, 80) == {}
    assert room(g, 70) == {"room at 2 ops": 1 + 40 + 1 + 9 + 1 + 40 + 1}
