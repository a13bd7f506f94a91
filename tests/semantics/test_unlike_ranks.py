"""Ranks whose devices are unlike (rule 14): what their own pace changes, to the nanosecond, and what it does not."""

from __future__ import annotations

import pytest
from rank_stories import cluster, job_of, perform, spans, stalls, team
from stories import graph, machine

from simulator.bounds import Limits, Team
from simulator.catalog.text import validated
from simulator.cost import durations_ns
from simulator.errors import ConfigError
from simulator.graph import Graph, Op
from simulator.hardware import Hardware
from simulator.plan import NOWHERE

SUM = team("y 4", "f: ->, 10 ns", "tool: -> y, 7 ns, delay", "sum: y -> y, all_reduce all 40",
           groups={"all": ((0, 1),)})  # fmt: skip
PLAN = "compute f; compute tool; compute sum 1"


def paced(hardware: Hardware, **ranks: dict[str, float]) -> Hardware:
    """The machine with these paces: ``rank1={"compute": 0.5}``."""
    document = hardware.model_dump(by_alias=True)
    return Hardware.model_validate(document | {"ranks": {key.removeprefix("rank"): of for key, of in ranks.items()}})


def test_a_slow_rank_takes_longer_to_compute_and_its_peers_wait_for_it():
    """What was measured takes twice its time; a delay and a collective take theirs."""
    h, programs = paced(cluster(2), rank1={"compute": 0.5}), [(SUM, PLAN)] * 2
    t = perform(h, programs)
    assert spans(t, programs, h) == [
        "0: 0-10 f", "0: 10-17 tool", "0: 27-67 sum", "1: 0-20 f", "1: 20-27 tool", "1: 27-67 sum",
    ]  # fmt: skip
    assert stalls(t, programs) == ["0.1: 0-17 sum order", "0.1: 17-27 sum peer 1", "1.1: 0-27 sum order"]


def test_a_pace_may_be_written_as_a_multiple():
    assert paced(cluster(2), rank1={"compute": "0.5x"}).ranks == paced(cluster(2), rank1={"compute": 0.5}).ranks
    for text in ("0.5 x", "x", "-1x", "11x", "1.2.3x"):
        with pytest.raises(ValueError, match="ranks"):
            paced(cluster(2), rank1={"compute": text})


def test_its_bound_is_the_step_that_it_has():
    h, programs = paced(cluster(2), rank1={"compute": 0.5}), [(SUM, PLAN)] * 2
    perform(h, programs)
    job = job_of([SUM, SUM])
    whole = Team(job, h, (durations_ns(SUM, h, 0),), ((0, 0, 1),))
    (timing,) = whole.timings()
    assert whole.first_alike == (0, 1)
    assert Limits(timing, h, (NOWHERE,)).step(100).ns == 67


def test_arithmetic_and_traffic_have_factors_of_their_own_and_a_launch_has_none():
    compute = {"peak": {"bf16": "1 GFLOP/s"}, "launch": "3 ns", "fill": "4 ns"}
    h = paced(cluster(3, compute=compute), rank0={"memory": 0.5}, rank2={"compute": 4.0})
    ops = Op("m", flops=40, op_class="matmul"), Op("t", read_bytes=30)
    of_ranks = [durations_ns(Graph("g", (), ops), device) for device in h.devices(3)]
    assert of_ranks == [[3 + 4 + 40, 3 + 60], [3 + 4 + 40, 3 + 30], [3 + 1 + 10, 3 + 30]]


def test_kernels_that_share_a_device_share_that_of_their_rank():
    """Two kernels of 40 ns of arithmetic each, one after the other in effect; at a quarter of the pace, 160 ns each."""
    h = paced(cluster(2, hbm="1 kB", compute={"peak": {"bf16": "1 GFLOP/s"}}), rank1={"compute": 0.25})
    g = Graph("ops", (), tuple(Op(name, flops=40, op_class="matmul") for name in "ab"))
    programs = [(g, "compute a 0; compute b 1")] * 2
    assert spans(perform(h, programs), programs, h) == ["0: 0-80 a", "0: 0-80 b", "1: 0-320 a", "1: 0-320 b"]


def test_copies_share_the_memory_of_their_own_rank():
    """30 B come in beside 50 B of traffic: a half each until 60 ns; at half the bandwidth, until 120 ns."""
    document = cluster(2, hbm="1 kB").model_dump(by_alias=True)
    document["tiers"]["hbm"]["shared"] = True
    h = paced(Hardware.model_validate(document), rank1={"memory": 0.5})
    g = graph("x 30 persistent", "t: ->, bytes 50", "k: x ->, 5 ns")
    programs = [(g, "copy x ddr hbm; compute t; compute k; detach x hbm")] * 2
    assert spans(perform(h, programs, "x ddr"), programs, h) == [
        "0: 0-60 h2d x", "0: 0-80 t", "0: 80-85 k", "1: 0-120 h2d x", "1: 0-160 t", "1: 160-165 k",
    ]  # fmt: skip


def test_each_rank_has_the_room_of_its_own_device():
    """Two tensors of 40 B: at once where there are 80 B, one after the other where there are 40."""
    h = paced(cluster(2, hbm="80 B"), rank1={"capacity": 0.5})
    g = graph("x 40 persistent, y 40 persistent", "a: x ->, 50 ns", "b: y ->, 5 ns")
    plan = "copy x ddr hbm; copy y ddr hbm; compute a; detach x hbm; compute b; detach y hbm"
    programs = [(g, plan)] * 2
    t = perform(h, programs, "x ddr,y ddr")
    assert [line for line in spans(t, programs, h) if line.endswith((" y", " b"))] == [
        "0: 40-80 h2d y", "0: 90-95 b", "1: 90-130 h2d y", "1: 130-135 b",
    ]  # fmt: skip


def test_like_paces_are_one_device_and_a_pace_of_one_is_no_pace():
    h = paced(cluster(8), rank0={"compute": 0.5}, **{"rank2-3": {"compute": 0.5, "memory": 1.0}}, rank5={"memory": 1.0})
    devices = h.devices(6)
    assert devices[0] is devices[2] is devices[3]
    assert devices[1] is devices[4] is devices[5] is h
    assert not devices[0].ranks


@pytest.mark.parametrize(
    ("ranks", "message"),
    [
        ({"8": {"compute": 0.5}}, "ranks, 8: ranks are some of 0 to 7, one for each device, in order, found '8'"),
        ({"6-9": {"compute": 0.5}}, "found '6-9'"),
        ({"3-1": {"compute": 0.5}}, "found '3-1'"),
        ({"two": {"compute": 0.5}}, "a key of ranks is a rank or several: 5, or 8-15, found 'two'"),
        (
            {"1-3": {}, "3": {}},
            "the device of a rank has one pace, found '1-3' and '3'; let them have no rank in common",
        ),
        ({"1": {"capacity": 0.1}}, "ranks, 1, capacity: reserved memory is part of the capacity, found 50 of 10 B"),
        ({"1": {"compute": 0}}, "greater than 0, found 0"),
        ({"1": {"compute": 80}}, "less than or equal to 10, found 80"),
        ({"1": {"speed": 1}}, "only known keys stand here, found 'speed'; use one of compute, memory, capacity"),
    ],
)
def test_paces_that_cannot_be(ranks, message):
    document = cluster(8, hbm="100 B").model_dump(by_alias=True, mode="json") | {"ranks": ranks}
    document["tiers"]["hbm"]["reserved"] = "50 B"
    with pytest.raises(ConfigError, match=message):
        validated(Hardware, document, "story", lambda *path: f"story, {', '.join(path)}")


def test_a_machine_without_paces_is_the_same_for_all():
    h = machine()
    assert all(device is h for device in h.devices(3))
