"""Bounds worked out by hand, on a machine in which a byte takes a nanosecond unless a story says otherwise."""

from __future__ import annotations

from dataclasses import replace

import pytest
from bounding import bound
from stories import graph, machine

from simulator.bounds import Bound, infeasible, raise_advice
from simulator.cost import durations_ns
from simulator.graph import Graph, Op
from simulator.hardware import Hardware
from simulator.plan import FREE, NOWHERE

HBM, DDR, SSD = 0, 1, 2


def limit(g: Graph, homes: dict[str, int], budget: int = 10**6, hardware: Hardware | None = None) -> Bound:
    hardware = hardware or machine()
    return bound(g, hardware, durations_ns(g, hardware), ids(g, homes), budget)


def ids(g: Graph, homes: dict[str, int]) -> list[int]:
    return [homes.get(t.name, NOWHERE) for t in g.tensors]


def with_ssd(**direct: dict[str, str]) -> Hardware:
    """DDR, and an SSD below it; every link 1 byte per ns but those to the SSD, which are half as fast."""
    slow = {"bandwidth": "0.5 GB/s"}
    base = machine(
        read={"source": "ddr", "target": "hbm", **slow}, write={"source": "ddr", "target": "hbm", **slow}
    ).model_dump()
    base["tiers"]["ssd"] = {"capacity": "inf"}
    base["links"]["read"] |= {"source": "ssd", "target": "ddr"}
    base["links"]["write"] |= {"source": "ddr", "target": "ssd"}
    base["links"] |= direct
    return Hardware.model_validate(base)


def test_compute_alone_is_a_bound():
    g = graph("a 10", "f: -> a, 7 ns", "g: a ->, 5 ns")
    assert limit(g, {}) == Bound(12, "compute", {"compute": 12, "link d2h": 0, "link h2d": 0})


def test_what_is_read_and_lives_elsewhere_comes_in_and_goes_back_if_it_was_written():
    g = graph("w 30 persistent, s 20 persistent, a 1", "f: w s -> a s, 7 ns", "g: w a ->, 5 ns")
    found = limit(g, {"w": DDR, "s": DDR})
    assert (found.ns, found.kind) == (50 + 7 + 20, "link h2d before f, link d2h after f")
    assert found.terms == {"compute": 12, "link h2d": 50, "link d2h": 20, found.kind: 77}


def test_in_several_steps_the_way_back_may_end_in_the_next():
    g = graph("s 20 persistent", "f: s -> s, 7 ns", steps=2)
    assert limit(g, {"s": DDR}).terms == {"compute": 7, "link h2d": 20, "link d2h": 0}


def test_what_is_overwritten_before_it_is_read_need_not_come_in():
    g = graph("s 20 persistent", "f: -> s, 7 ns", "g: s ->, 1 ns")
    terms = {"compute": 8, "link h2d": 0, "link d2h": 20, "link d2h after f": 7 + 20}
    assert limit(g, {"s": DDR}).terms == terms


def test_what_lives_in_the_compute_tier_or_is_free_need_not_move():
    g = graph("w 30 persistent", "f: w -> w, 7 ns")
    assert limit(g, {"w": HBM}).kind == "compute"
    assert limit(g, {"w": FREE}).kind == "compute"


SAVED = graph("a 40, b 40, c 40", "f: -> a, 1 ns", "g: -> b, 1 ns", "h: -> c, 1 ns", "k: c ->, 1 ns", "m: a b ->, 1 ns")


def test_what_the_budget_cannot_hold_goes_out_and_comes_in_again():
    """While h and k run, a, b and c are needed: 120 B; 30 B leave between f and h, and come back between k and m.

    Whole tensors move, so that takes 40 ns each way.
    """
    assert limit(SAVED, {}, 120).ns == 5
    ns = 1 + 40 + 1 + 1 + 40 + 1
    assert limit(SAVED, {}, 90).terms == {"compute": 5, "room at 2 ops": ns, "link h2d": 30, "link d2h": 30}


def with_room(hardware: Hardware, ddr: int) -> Hardware:
    """The same machine with so much DDR [B]."""
    tiers = hardware.tiers | {"ddr": hardware.tiers["ddr"].model_copy(update={"capacity_bytes": ddr})}
    return hardware.model_copy(update={"tiers": tiers})


def test_what_a_full_tier_cannot_hold_goes_on_to_the_next_and_back():
    """While h runs, 30 B are out of HBM, and 20 B of them out of DDR, over links half as fast: a tensor of 40 B."""
    found = limit(SAVED, {}, 90, with_room(with_ssd(), 10))
    assert found == Bound(164, "room at 2 ops", found.terms)  # f, 80 ns out, h, k, 80 ns back, m
    assert (found.terms["link write"], found.terms["link read"]) == (40, 40)
    assert limit(SAVED, {}, 90, with_room(with_ssd(), 30)).terms["room at 2 ops"] == 84
    assert limit(SAVED, {}, 90, with_room(with_ssd(), 10**6)).terms["link read"] == 0


def test_what_is_at_home_in_a_full_tier_and_needed_later_takes_its_room():
    """w leaves DDR or keeps out of it 20 B of what h puts out; what is at home on the SSD keeps nothing out."""
    g = replace(SAVED, tensors=(*SAVED.tensors, replace(SAVED.tensors[0], name="w", persistent=True)))
    g = replace(g, ops=(*g.ops[:4], replace(g.ops[4], reads=(0, 1, 3))))
    assert limit(g, {"w": DDR}, 120, with_room(with_ssd(), 40)).terms["link read"] == 0
    assert limit(g, {"w": DDR}, 120, with_room(with_ssd(), 30)).terms["link read"] == 20
    assert limit(g, {"w": DDR}, 120, with_room(with_ssd(), 30)).terms["link write"] == 20
    assert limit(g, {"w": SSD}, 120, with_room(with_ssd(), 30)).terms["link read"] == 80
    assert limit(g, {"w": SSD}, 120, with_room(with_ssd(), 30)).terms["link write"] == 0


def test_a_bus_carries_what_passes_both_tiers_twice():
    hardware = with_room(with_ssd(), 10)
    bus = {"buses": {"ddr": {"links": ["h2d", "read"], "bandwidth": "1 GB/s"}}}
    both = Hardware.model_validate(hardware.model_dump(mode="json") | bus)
    assert limit(SAVED, {}, 90, with_room(both, 10)).terms["bus ddr"] == 30 + 20


def test_a_link_past_a_full_tier_shares_what_it_cannot_hold():
    direct = with_ssd(direct={"source": "ssd", "target": "hbm", "bandwidth": "0.5 GB/s"})
    terms = limit(SAVED, {}, 90, with_room(direct, 10)).terms
    assert (terms["link read"], terms["link write"], terms["links into hbm and ddr"]) == (0, 40, 20)


def test_links_of_a_copy_queue_take_turns():
    found = bound(SAVED, machine(queue=("d2h", "h2d")), durations_ns(SAVED, machine()), ids(SAVED, {}), 90)
    assert (found.terms["queue copies"], found.terms["link h2d"], found.terms["link d2h"]) == (60, 30, 30)


PUT_OUT = replace(
    graph("a 40, b 40, z 30", "f: -> a, 1 ns", "g: -> b, 2 ns", "h: a ->, 3 ns", "k: -> z, 4 ns", "m: b ->, 5 ns"),
    outputs=(2,),
)


def test_outputs_leave_while_what_must_come_back_comes_or_in_turn_with_it():
    """a is out at g, then b at h; each comes back next, b behind k, beside which it has no room. Nor has z beside m."""
    assert limit(PUT_OUT, {}, 50).terms["room at 3 ops"] == 1 + 40 + 2 + 40 + 3 + 4 + 40 + 5
    together = machine(queue=("d2h", "h2d"))
    assert limit(PUT_OUT, {}, 50, together).ns == 1 + 40 + 2 + (40 + 40) + 3 + 4 + (40 + 30) + 5
    two = machine(queue=("d2h", "h2d"), d2h={"channels": 2}, h2d={"channels": 2})
    assert limit(PUT_OUT, {}, 50, two).ns == 1 + 40 + 2 + 40 + 3 + 4 + 40 + 5
    not_kept = replace(PUT_OUT, outputs=())
    assert limit(not_kept, {}, 50, together).ns == 1 + 40 + 2 + (40 + 40) + 3 + 4 + 40 + 5


def test_an_output_counts_until_the_step_ends_but_need_not_come_back():
    g = replace(SAVED, outputs=(0,), ops=(*SAVED.ops[:4], replace(SAVED.ops[4], reads=(1,))))
    assert limit(g, {}, 80).terms == {"compute": 5, "room at h": 1 + 40 + 3, "link h2d": 0, "link d2h": 40}
    assert limit(replace(g, outputs=()), {}, 80).kind == "compute"


def test_workspace_counts_against_the_budget():
    g = graph("a 40", "f: -> a, 1 ns", "g: ->, 1 ns, workspace 30", "h: a ->, 1 ns")
    assert limit(g, {}, 60).terms == {"compute": 3, "room at g": 1 + 40 + 1 + 40 + 1, "link h2d": 10, "link d2h": 10}


def test_a_dead_value_counts_nothing():
    """b is written anew before it is read."""
    g = graph("a 40, b 40", "f: -> b, 1 ns", "g: -> a, 1 ns", "h: a ->, 1 ns", "k: -> b, 1 ns", "m: b ->, 1 ns")
    assert limit(g, {}, 40).ns == 5


def test_what_has_its_home_in_the_compute_tier_stays_there():
    g = graph("w 40 persistent, a 20", "f: -> a, 1 ns, workspace 10", "g: ->, 1 ns, workspace 50", "h: w a ->, 1 ns")
    assert infeasible(g, machine(), ids(g, {"w": HBM}), 90) is None
    assert limit(g, {"w": HBM}, 90).terms == {
        "compute": 3,
        "room at g": 1 + 20 + 1 + 20 + 1,
        "link h2d": 20,
        "link d2h": 20,
    }
    found = infeasible(g, machine(), ids(g, {"w": HBM}), 89)
    assert (found.demand_bytes, found.at, found.largest[0]) == (90, "op g", ("workspace of g", 50))
    assert (
        found.levers[0] == "leave the homes of activation tensors free (--home activation=free): they hold 40 B of hbm"
    )


def test_a_free_home_may_be_below_from_the_start_but_what_is_read_comes_in():
    g = graph("w 40 persistent", "f: ->, 1 ns, workspace 50", "g: w ->, 1 ns")
    assert limit(g, {"w": FREE}, 50).terms == {"compute": 2, "room at f": 42, "link h2d": 40, "link d2h": 0}


def test_a_path_takes_every_link_that_cannot_be_avoided():
    g = graph("w 30 persistent", "f: w ->, 1 ns")
    assert limit(g, {"w": SSD}, hardware=with_ssd()).terms["link read"] == 60
    assert limit(g, {"w": SSD}, hardware=with_ssd()).terms["link h2d"] == 30
    beside = with_ssd(direct={"source": "ssd", "target": "hbm", "bandwidth": "1 GB/s"})
    assert limit(g, {"w": SSD}, hardware=beside).terms == {
        "compute": 1,
        **dict.fromkeys(("link d2h", "link h2d", "link read", "link write", "link direct"), 0),
        "links into hbm": 15,
        "links into hbm before f": 16,
    }


def test_a_bus_carries_both_directions():
    both = {"duplex": {"links": ["d2h", "h2d"], "bandwidth": "1 GB/s"}}
    g = graph("s 20 persistent", "f: s -> s, 7 ns")
    assert limit(g, {"s": DDR}, hardware=machine(buses=both)).terms["bus duplex"] == 40


def test_latency_and_efficiency_count_once_for_each_whole_tensor_and_channel():
    slow = machine(h2d={"latency": "5 ns", "efficiency": [{"size": "10 B", "fraction": 0.5}], "channels": 2})
    g = graph("v 10 persistent, w 20 persistent", "f: v w ->, 1 ns")
    assert limit(g, {"v": DDR, "w": DDR}, hardware=slow).terms["link h2d"] == (5 + 20 + 5 + 40) // 2


def test_an_endless_link_bounds_nothing():
    g = graph("w 20 persistent", "f: w ->, 1 ns")
    assert limit(g, {"w": DDR}, hardware=machine(h2d={"bandwidth": "inf"})).kind == "compute"


def test_an_op_that_needs_more_than_the_budget_is_infeasible():
    g = graph("a 40, b 30", "f: -> a, 1 ns", "g: a -> b, 1 ns, workspace 20")
    assert infeasible(g, machine(), ids(g, {}), 90) is None
    found = infeasible(g, machine(), ids(g, {}), 89)
    assert (found.tier, found.demand_bytes, found.capacity_bytes, found.short_bytes, found.at) == (
        "hbm",
        90,
        89,
        1,
        "op g",
    )
    assert found.largest == (("a", 40), ("b", 30), ("workspace of g", 20))
    assert found.rooms == ({"hbm": 90},)
    assert found.levers == (
        "split the 1 op over the budget; op g alone uses 90 B",
        "make the batch smaller, or the sequence shorter",
    )


def test_homes_that_do_not_fit_are_infeasible():
    g = graph("v 40 persistent, w 30 persistent, a 1", "f: v -> a, 1 ns", "g: w a ->, 1 ns")
    found = infeasible(g, machine(), ids(g, {"v": HBM, "w": HBM}), 60)
    assert (found.tier, found.demand_bytes, found.capacity_bytes, found.at) == ("hbm", 71, 60, "op f")
    assert found.rooms == ({"hbm": 71},)
    assert found.levers == (
        "leave the homes of activation tensors free (--home activation=free): they hold 70 B of hbm",
    )
    ddr = machine().tiers["ddr"].model_copy(update={"capacity_bytes": 69})
    tight = machine().model_copy(update={"tiers": {**machine().tiers, "ddr": ddr}})
    assert infeasible(g, machine(), ids(g, {"v": DDR, "w": DDR}), 60) is None
    found = infeasible(g, tight, ids(g, {"v": DDR, "w": DDR}), 60)
    assert (found.tier, found.at) == ("ddr", "the homes at time 0")
    assert found.rooms == ({"ddr": 70},)
    assert found.levers == (
        "leave the homes of activation tensors free (--home activation=free): they hold 70 B of ddr",
    )


def test_where_nothing_else_can_help_only_the_least_budget_is_named():
    """What op g writes has no home to leave, and no cut of 90 B into a few parts fits into 1 B."""
    g = graph("v 40 persistent, w 30 persistent, a 40, b 30", "f: v w -> a, 1 ns", "g: a -> b, 1 ns, workspace 20")
    homes = ids(g, {"v": HBM, "w": HBM})
    found = infeasible(g, machine("200 B"), homes, 1)
    assert (found.levers, found.rooms) == ((), ({"hbm": 160},))
    assert infeasible(g, machine("200 B"), homes, 160) is None
    assert infeasible(g, machine("200 B"), homes, 159) is not None


def test_a_lever_helps_on_its_own():
    """Op f uses 110 B, op g 90 B beside 70 B that stay: which of the two are too large for what, and what is not."""
    g = graph("v 40 persistent, w 30 persistent, a 40, b 30", "f: v w -> a, 1 ns", "g: a -> b, 1 ns, workspace 20")
    homes = ids(g, {"v": HBM, "w": HBM})

    def helps(budget: int) -> tuple[str, ...]:
        return infeasible(g, machine("200 B"), homes, budget).levers

    free = "leave the homes of activation tensors free (--home activation=free): they hold 70 B of hbm"
    smaller = "make the batch smaller, or the sequence shorter"
    assert helps(110) == (free, "split the 1 op over the budget; op g alone uses 90 B", smaller)
    assert helps(109) == ("split the 2 ops over the budget; op f alone uses 110 B", smaller)
    assert helps(70) == ()


@pytest.mark.parametrize(("budget", "fits"), [(90, True), (89, False)])
def test_what_is_needed_at_once_fits_in_all_tiers_together(budget: int, fits: bool):
    ddr = machine().tiers["ddr"].model_copy(update={"capacity_bytes": 30})
    small = machine().model_copy(update={"tiers": {**machine().tiers, "ddr": ddr}})
    found = infeasible(SAVED, small, ids(SAVED, {}), budget)
    if fits:
        assert found is None
    else:
        assert found.tier == "hbm"
        assert found.short_bytes == 1
        assert found.rooms == ({"hbm": 90}, {"ddr": 31})


def test_without_a_tier_below_everything_needed_must_fit():
    alone = Hardware.model_validate(
        {
            "name": "alone",
            "compute_tier": "hbm",
            "compute": {"peak": {"bf16": "1 TFLOP/s"}},
            "tiers": {"hbm": {"capacity": "100 B", "bandwidth": "1 GB/s"}},
        }
    )
    found = infeasible(SAVED, alone, ids(SAVED, {}), 100)
    assert (found.demand_bytes, found.at) == (120, "op h")
    assert found.largest == (("a", 40), ("b", 40), ("c", 40))
    assert (found.rooms, found.levers[0]) == (({"hbm": 120},), "add a tier with a link from hbm")


def test_room_is_told_to_the_byte():
    assert raise_advice(machine(), 89, {"hbm": 90}) == "raise the budget in hbm by 1 B to 90 B"
    hbm, ddr = (machine().tiers[name].model_copy(update={"capacity_bytes": 7000, "reserved_bytes": 500})
                for name in ("hbm", "ddr"))  # fmt: skip
    tight = machine().model_copy(update={"tiers": {"hbm": hbm, "ddr": ddr}})
    hbm_by_1, ddr_by_2 = (f"raise the capacity of {what} B)" for what in (
        "hbm by 1 B to 7.00 kB (7,001", "ddr by 2 B to 7.00 kB (7,002",
    ))  # fmt: skip
    assert raise_advice(tight, None, {"hbm": 6501, "ddr": 6502}) == f"{hbm_by_1} and {ddr_by_2}"
    both = f"{hbm_by_1} and raise the budget in hbm by 1 B to 6.50 kB (6,501 B)"
    assert raise_advice(tight, 6500, {"hbm": 6501}) == both


def again(g: Graph, homes: dict[str, int], budget: float) -> Bound:
    h = machine()
    return bound(g, h, durations_ns(g, h), ids(g, homes), budget, may_repeat=True)


def test_what_can_be_made_again_need_not_be_kept():
    """The same step as above: a and b leave for nothing, because f and g can run again."""
    assert limit(SAVED, {}, 90).kind == "room at 2 ops"
    assert again(SAVED, {}, 90) == Bound(5, "compute", {"compute": 5, "link h2d": 0, "link d2h": 0})


def test_what_cannot_be_made_again_counts_also_where_ops_run_again():
    """x came with the step, and a is not repeatable: while h runs, 40 B of the two are needed beyond the budget."""
    ops = ("f: -> a, 1 ns", "g: x ->, 1 ns", "h: -> c, 1 ns", "k: c ->, 1 ns", "m: a x ->, 1 ns")
    g = graph("x 40 input, a 40, c 40", *ops)
    assert again(g, {"x": FREE}, 80).terms["link d2h"] == 0
    once = replace(g, ops=(replace(g.ops[0], repeatable=False), *g.ops[1:]))
    assert again(once, {"x": FREE}, 80).terms["link h2d"] == 40
    assert again(g, {"x": DDR}, 80).terms["link h2d"] == 40
    assert again(g, {"x": HBM}, 60).terms["link d2h"] == 20


def test_a_home_elsewhere_is_left_and_reached_also_where_ops_run_again():
    g = graph("w 30 persistent, s 20 persistent, a 1", "f: w s -> a s, 7 ns", "g: w a ->, 5 ns")
    assert again(g, {"w": DDR, "s": DDR}, 99) == limit(g, {"w": DDR, "s": DDR}, 99)


def test_what_can_be_made_again_needs_no_room_in_any_tier():
    ddr = machine().tiers["ddr"].model_copy(update={"capacity_bytes": 10})
    g, h = SAVED, machine().model_copy(update={"tiers": {**machine().tiers, "ddr": ddr}})
    assert infeasible(g, h, ids(g, {}), 80) is not None
    assert infeasible(g, h, ids(g, {}), 80, may_repeat=True) is None
    kept = replace(g, ops=tuple(replace(op, repeatable=False) for op in g.ops))
    assert infeasible(kept, h, ids(g, {}), 80, may_repeat=True) == infeasible(g, h, ids(g, {}), 80)


def test_streams_that_share_a_device_are_bounded_by_what_it_does():
    """Two matmuls of 40 FLOP at 1 FLOP a ns, reading 10 and 90 bytes at 1 byte a ns; measured ones do not count."""
    hardware = machine("1 kB", compute={"peak": {"bf16": "1 GFLOP/s"}})
    ops = tuple(Op(f"f{i}", flops=40, read_bytes=10 + 80 * i, op_class="matmul", stream=i) for i in range(2))
    terms = limit(Graph("two", (), ops), {}, hardware=hardware).terms
    assert {k: ns for k, ns in terms.items() if ns} == {
        "compute": 40,
        "critical path": 90,
        "matrix unit": 80,
        "memory hbm": 100,
    }
    measured = tuple(replace(op, duration_ns=7) for op in ops)
    assert limit(Graph("two", (), measured), {}, hardware=hardware).ns == 7
