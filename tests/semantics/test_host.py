"""Ops of the host: a stream of their own, places in its tier, cores and a memory that copies and other ranks share."""

from __future__ import annotations

from dataclasses import replace

import pytest
from policy_problems import problem, replay
from rank_stories import cluster, perform
from stories import graph, machine, steps, timeline, waits

from simulator import engine
from simulator.bounds import Limits, Precedence, Timing
from simulator.cost import durations_ns
from simulator.engine import choice
from simulator.engine.reference.actions import ComputeAction
from simulator.engine.reference.kernels import Kernels
from simulator.engine.reference.ledger import HOST_COMPUTE, Ledger
from simulator.engine.reference.order import Order
from simulator.engine.reference.rank import Rank
from simulator.errors import ConfigError, InvariantError, PlanError, ScopeError
from simulator.plan import NOWHERE, Actions, Plan
from simulator.policies import POLICIES
from simulator.policies.weave import woven
from simulator.referee import check_plan

UPDATE = graph("w 40 persistent, m 20 persistent, g 40", "f: w -> g, 10 ns", "u: g m w -> m w, host, 30 ns",
               "k: w ->, 5 ns")  # fmt: skip
PLAN = (
    "compute f; copy g hbm ddr; detach g hbm; copy w hbm ddr; compute u 1; detach g ddr; copy w ddr hbm; "
    "detach w ddr; compute k"
)


def test_an_op_of_the_host_runs_alone_beside_the_accelerator():
    """It moves 50 B through the memory of its tier at 1 B per ns."""
    g, h = graph("w 40 persistent", "u: w ->, host, bytes 50", "k: ->, 5 ns"), machine(ddr={})
    t = perform(h, [(g, "compute u 1; compute k")], "w ddr")
    assert timeline(t, g, h) == ["0-50 u", "0-5 k"]
    assert waits(t, g) == []


def test_it_works_on_what_is_valid_in_its_tier_and_makes_other_copies_stale():
    """The gradient goes out, the host updates, the weight comes back; its place in HBM was held all the time."""
    h = machine("80 B", ddr={})
    t = perform(h, [(UPDATE, PLAN)], "w hbm, m ddr")
    assert timeline(t, UPDATE, h) == ["0-10 f", "10-50 d2h g", "50-90 d2h w", "90-120 u", "120-160 h2d w", "160-165 k"]
    of_k = [wait for wait in waits(t, UPDATE) if " k " in wait]
    assert of_k == ["10-50 k transfer", "50-90 k transfer", "90-120 k host_compute", "120-160 k transfer"]


def test_copies_and_cores_share_the_memory_max_min():
    """30 B come in beside 50 B of traffic: a half each until 60 ns, then the op has all for its last 20."""
    g = graph("w 40 persistent, x 30 persistent", "u: w ->, host, bytes 50", "k: x ->, 5 ns")
    h = machine(ddr={})
    t = perform(h, [(g, "copy x ddr hbm; compute u 1; compute k; detach x hbm")], "w ddr, x ddr")
    assert timeline(t, g, h) == ["0-60 h2d x", "0-80 u", "60-65 k"]
    assert waits(t, g) == ["0-60 k transfer"]


@pytest.mark.parametrize("work", ["flops", "bytes"])
def test_two_ranks_of_a_node_share_its_cores_and_its_memory(work):
    """Alone each op takes 50 ns; folded, one rank stands for both."""
    g, h = graph("w 40 persistent", f"u: w ->, host, {work} 50", "k: ->, 5 ns"), cluster(2, ddr={})
    both = [(g, "compute u 1; compute k")] * 2
    assert timeline(perform(h, both, "w ddr"), g, h) == ["0-100 u", "0-100 u", "0-5 k", "0-5 k"]
    assert timeline(perform(h, both, "w ddr", fold="always"), g, h) == ["0-100 u", "0-5 k"]


@pytest.mark.parametrize(("shares", "ns"), [({}, 200), ({"class_bandwidth": {"matmul": 0.625}}, 160)])
def test_ops_of_two_ranks_reach_no_more_of_the_memory_than_the_cores_do(shares, ns):
    """Alone each takes 100 ns for 50 B, as kernels of these cores reach half; both get what any class reaches."""
    g, h = graph("w 40 persistent", "u: w ->, host, bytes 50", "k: ->, 5 ns"), cluster(2, ddr={})
    h = h.model_copy(update={"host_compute": h.host_compute.model_copy(update={"achieved_bandwidth_fraction": 0.5})})
    h = h.model_copy(update={"host_compute": h.host_compute.model_copy(update=shares)})
    both = [(g, "compute u 1; compute k")] * 2
    assert timeline(perform(h, both[:1], "w ddr"), g, h)[0] == "0-100 u"
    assert timeline(perform(h, both, "w ddr"), g, h)[:2] == [f"0-{ns} u"] * 2
    assert timeline(perform(h, both, "w ddr", fold="always"), g, h)[0] == f"0-{ns} u"


def test_what_the_cores_do_not_reach_is_left_to_copies():
    """40 B come in beside 50 B of traffic, each at half of the memory; then the op goes on as fast as before."""
    g = graph("w 40 persistent, x 40 persistent", "u: w ->, host, bytes 50", "k: x ->, 5 ns")
    h = machine(ddr={})
    h = h.model_copy(update={"host_compute": h.host_compute.model_copy(update={"achieved_bandwidth_fraction": 0.5})})
    t = perform(h, [(g, "copy x ddr hbm; compute u 1; compute k; detach x hbm")], "w ddr, x ddr")
    assert timeline(t, g, h) == ["0-80 h2d x", "0-100 u", "80-85 k"]


def test_arithmetic_and_traffic_of_two_ranks_do_not_meet():
    h = cluster(2, ddr={})
    graphs = [graph("w 40 persistent", f"u: w ->, host, {work} 50", "k: ->, 5 ns") for work in ("flops", "bytes")]
    t = perform(h, [(g, "compute u 1; compute k") for g in graphs], "w ddr")
    assert timeline(t, graphs[0], h) == ["0-50 u", "0-50 u", "0-5 k", "0-5 k"]


def test_4_a_copy_does_not_wait_for_an_op_of_the_host_that_was_issued_before_it():
    """`u` waits for `g`, which takes 40 ns to come out; `x` comes in meanwhile."""
    g = graph("x 20 persistent, g 40", "f: -> g, 10 ns", "u: g ->, host, 30 ns", "k: x ->, 5 ns")
    h = machine(ddr={"bandwidth": "10 GB/s"})
    text = "compute f; copy g hbm ddr; detach g hbm; compute u 1; detach g ddr; copy x ddr hbm; compute k; detach x hbm"
    t = perform(h, [(g, text)], "x ddr")
    assert timeline(t, g, h) == ["0-10 f", "0-20 h2d x", "10-50 d2h g", "20-25 k", "50-80 u"]


def test_8_it_takes_room_in_its_tier_and_waits_for_it():
    """DDR has room for 50 B: for `y` and the workspace of `u` once `x` is gone, and for `x` once `u` has ended."""
    g = graph("x 20 persistent, y 30", "k: x ->, 50 ns", "u: -> y, host, 10 ns, workspace 10", "e: ->, 1 ns")
    h = machine(ddr={"capacity": "50 B"})
    text = "copy x ddr hbm; detach x ddr; compute k; compute u 1; detach y ddr; copy x hbm ddr; detach x hbm; compute e"
    t = perform(h, [(g, text)], "x ddr")
    assert timeline(t, g, h) == ["0-20 h2d x", "20-70 k", "20-30 u", "30-50 d2h x", "70-71 e"]
    assert [wait for wait in waits(t, g) if " u " in wait] == ["0-20 u capacity"]


def test_11_a_copy_behind_one_of_what_the_host_makes_waits_for_the_host():
    """`x` stands behind `w` in the queue of the link, and `w` waits for `u`."""
    g = graph("w 10 persistent, x 10 persistent", "u: -> w, host, 40 ns", "k: x ->, 5 ns")
    h = machine(ddr={})
    text = "compute u 1; copy w ddr hbm; copy x ddr hbm; compute k; detach x hbm; detach w ddr"
    t = perform(h, [(g, text)], "w hbm, x ddr")
    assert timeline(t, g, h) == ["0-40 u", "40-50 h2d w", "50-60 h2d x", "60-65 k"]
    assert waits(t, g) == ["0-40 k host_compute", "40-50 k transfer", "50-60 k transfer"]


def plan_of(text: str) -> Plan:
    h = machine(ddr={})
    return Plan("p", h.tier_names, (0, 1, NOWHERE), steps(UPDATE, h, text))


@pytest.mark.skipif(not engine.replay.is_built(), reason="the replay is not built")
def test_the_compiled_engine_leaves_it_to_the_reference_by_name():
    program = engine.Program(UPDATE, plan_of(PLAN), [10, 30, 5])
    with choice.using("auto"):
        assert engine.run([program], machine(ddr={})).status == "ok"
    must = "the compiled engine covers the run, found the host computes"
    with choice.using("compiled"), pytest.raises(ConfigError, match=must):
        engine.run([program], machine(ddr={}))


def alone(patch: pytest.MonkeyPatch) -> None:
    """Kernels share nothing."""
    patch.setattr(Kernels, "run", lambda self, compute: iter([self.rank.clock.end_after(compute.duration_ns)]))


def wrong_cause(patch: pytest.MonkeyPatch) -> None:
    """Whatever another stream runs is taken for op `u`."""
    patch.setattr(Ledger, "_reason_of_running", lambda self, compute: (HOST_COMPUTE, -1, -1, 0))


def elsewhere(patch: pytest.MonkeyPatch) -> None:
    """A workspace lies in HBM, whoever needs it."""
    record = Rank._record
    patch.setattr(Rank, "_record", lambda self, tier, item, size: record(self, 0 if item < 0 else tier, item, size))


def as_point(patch: pytest.MonkeyPatch) -> None:
    """A copy waits for the start of an op of the host as for another."""
    compute = Order.compute

    def and_note(self: Order, op: int, stream: int) -> ComputeAction:
        self._previous = compute(self, op, stream)
        return self._previous

    patch.setattr(Order, "compute", and_note)


WORK = graph("w 40 persistent, x 30 persistent, y 5", "u: w ->, host, bytes 50, workspace 7", "k: w x -> y, 5 ns",
             "v: x y -> x, host, 9 ns", "e: x ->, 1 ns")  # fmt: skip
TEXT = (
    "copy x ddr hbm; copy w ddr hbm; compute u 1; compute k; detach w hbm; copy y hbm ddr; detach y hbm; compute v 1; "
    "detach y ddr; copy w ddr hbm; copy x ddr hbm; compute e; detach x hbm; detach w hbm"
)


@pytest.mark.parametrize(
    ("broken", "law"),
    [
        (alone, "a link, a bus, a port or a memory carries at most its bandwidth"),
        (wrong_cause, "a wait for an op of the host lasts while that is under way"),
        (elsewhere, "an op's workspace is held for its span, in the tier of its device"),
        (as_point, "the first in line for room of a tier"),
    ],
)
def test_the_referee_knows_what_the_host_may_not_do(broken, law, monkeypatch):
    perform(machine(ddr={}), [(WORK, TEXT)], "w ddr, x ddr")
    broken(monkeypatch)
    with pytest.raises(InvariantError, match=law):
        perform(machine(ddr={}), [(WORK, TEXT)], "w ddr, x ddr")


def test_the_referee_knows_cores_that_are_faster_than_themselves(monkeypatch):
    g = graph("w 40 persistent", "u: w ->, host, flops 50", "k: ->, 5 ns")
    alone(monkeypatch)
    with pytest.raises(InvariantError, match="vector unit of the host of node 0: a unit computes at most at its peak"):
        perform(cluster(2, ddr={}), [(g, "compute u 1; compute k")] * 2, "w ddr")


def test_a_machine_without_cores_refuses_an_op_of_the_host():
    with pytest.raises(ConfigError, match=r"host_compute: .* states its cores \(op 'u' is of the host\), found none"):
        durations_ns(UPDATE, machine())
    g = graph("w 40 persistent", "u: w ->, host, flops 50")
    wrong = machine(ddr={}).model_copy(update={"host_compute": None})
    with pytest.raises(ConfigError, match="add host_compute, or run the op on the accelerator"):
        durations_ns(g, wrong)


def test_a_data_type_without_a_rate_there_is_refused():
    g = graph("w 40 persistent", "u: w ->, host, flops 50")
    fp8 = replace(g, ops=tuple(replace(op, dtype="fp8") for op in g.ops))
    with pytest.raises(ConfigError, match=r"host_compute\.peak: .* found bf16; add host_compute\.peak\.fp8"):
        durations_ns(fp8, machine(ddr={}))


def test_a_stream_runs_ops_of_one_device():
    h = machine(ddr={})
    check_plan(UPDATE, h, plan_of(PLAN))
    with pytest.raises(PlanError, match="ops of one stream are of one device, found one of the host after others"):
        check_plan(UPDATE, h, plan_of(PLAN.replace("compute u 1", "compute u")))


def test_what_it_reads_is_valid_in_its_own_tier():
    with pytest.raises(PlanError, match=r"a tensor that an action reads is valid \(ddr\), found 'w' absent in ddr"):
        check_plan(UPDATE, machine(ddr={}), plan_of(PLAN.replace("copy w hbm ddr; ", "")))


@pytest.mark.parametrize(("work", "kind"), [("flops", "vector unit of the host"), ("bytes", "memory ddr")])
def test_ranks_that_do_the_same_bound_a_step_by_what_they_share(work, kind):
    """Two ops of 50 ns alone, one behind the other, and as many of the other rank."""
    g = graph("w 40 persistent", f"u: w -> w, host, {work} 50", f"v: w -> w, host, {work} 50", "k: ->, 5 ns")
    h, timing = cluster(2, ddr={}), Timing.alone(Precedence.of(g), [50, 50, 5])
    assert Limits(timing, h, [1]).step(100).ns == 100
    both = Limits(timing, h, [1], sharers={"memory.ddr": 2}).step(100)
    assert (both.ns, both.kind) == (200, kind)
    t = perform(h, [(g, "compute u 1; compute v 1; compute k")] * 2, "w ddr")
    assert max(t.spans.whole()["end_ns"]) == 200


def test_a_policy_sends_out_what_the_host_reads_and_takes_back_what_it_wrote():
    """The gradient leaves right behind the op that makes it; the state, which the host alone uses, never moves."""
    given = problem(UPDATE.repeated(2), 200, {"w": 0, "m": 1}, hardware=machine("200 B", ddr={}))
    plan = POLICIES["resident"].plan(given)
    tensors, ops = [t.name for t in UPDATE.tensors], [op.name for op in UPDATE.ops]
    said = [(("compute", "copy", "detach")[kind], (tensors if kind else ops)[a]) for kind, a, *_ in plan.fixed.codes()]
    assert said == [
        ("compute", "f"), ("copy", "g"), ("detach", "g"), ("copy", "w"), ("compute", "u"), ("copy", "w"),
        ("compute", "k"), ("detach", "g"), ("detach", "w"),
    ]  # fmt: skip
    assert replay(given, plan).step_ns == 165


def test_a_plan_of_parts_is_refused():
    given = problem(UPDATE, 200, {"w": 0, "m": 1}, hardware=machine("200 B", ddr={}))
    with pytest.raises(ScopeError, match="a plan with ops of the host is one list, or decided action by action"):
        woven(given, lambda view: replace(POLICIES["static"].plan(view), static_parts=(Actions(),)))
