"""The referee on traces made by hand: a good one passes, and each law that is broken is named with row and numbers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hand import (
    D2H,
    DDR,
    H2D,
    HBM,
    MACHINE,
    ORDER,
    PLAN,
    TEXT,
    TRANSFER,
    A,
    F,
    G,
    Rows,
    W,
    add,
    both,
    drop,
    judge,
    plan_of,
    put,
)
from stories import graph, machine

from simulator import engine
from simulator.cost import durations_ns
from simulator.errors import InvariantError, PlanError
from simulator.plan import COMPUTE, COPY, DETACH
from simulator.referee import check_trace
from simulator.scenario import Switches
from simulator.trace import CAUSES, SPANS, Table


def test_a_good_trace_passes_with_nothing_to_remark():
    found = judge(Rows())
    assert found.remarks == ()
    assert found.worst is None


def test_what_was_issued_may_be_recorded():
    rows = Rows(issued=[list(code) for code in PLAN.fixed.codes()])
    judge(rows)
    rows.issued.pop()
    with pytest.raises(InvariantError, match="the host issues the actions of the plan, in order"):
        judge(rows)


BROKEN = {
    "issue out of range": (put("spans", 0, issue=9), "a span belongs to an action that was issued, found issue 9"),
    "another op than issued": (
        put("spans", 1, item=G),
        "a span is of the action that was issued, found issue 1, item 1",
    ),
    "two spans of one step": (
        add("spans", [0, COMPUTE, G, 0, 0, 3, 0, 25, 30]),
        "an action has one span, found issue 3",
    ),
    "ends before it starts": (put("spans", 2, end_ns=19), "an action is issued, then starts, then ends"),
    "a step never ran": (both(drop("spans", 2), drop("residencies", 6)), "when a run completes, every action has run"),
    "wrong stream": (put("spans", 2, track=1), "a compute runs on its stream, found stream 1"),
    "wrong link": (put("spans", 0, track=D2H), "a transfer takes a link from its source to its target, found link 0"),
    "no such link": (put("spans", 0, track=7), "a transfer takes a link of the machine, found link 7"),
    "no such channel": (put("spans", 0, channel=1), "a transfer takes a channel of its link, found channel 1"),
    "two ops at once": (
        put("spans", 2, start_ns=19, end_ns=24),
        "a stream runs one op at a time, in issue order, found starts at ns 19, not before ns 20",
    ),
    "issued out of order": (put("spans", 1, issued_ns=5), "the host issues in order and pays for each action"),
    "an op takes longer": (
        put("spans", 2, end_ns=26),
        "a compute takes its own time, found takes ns 6, alone ns 5",
    ),
    "a transfer is too fast": (
        put("spans", 0, end_ns=9),
        "a transfer takes at least its time alone, found takes ns 9, alone ns 10",
    ),
    "time runs backwards": (
        put("residencies", 4, time_ns=9),
        "residencies row 4: places are taken and freed in the order of time, found at ns 9, after ns 10",
    ),
    "wrong size": (put("residencies", 2, delta_bytes=5), "a place is taken, then freed, with its tensor's size"),
    "freed and never taken": (
        add("residencies", [20, 0, DDR, A, -4], 6),
        "a place is taken, then freed, with its tensor's size, in turn, found time_ns 20, tier 1, tensor 1",
    ),
    "a negative tier": (
        both(drop("residencies", 0), add("residencies", [0, 0, DDR, W, -10], 0)),
        "a tier holds at least 0 B and at most its capacity",
    ),
    "freed without a detach": (
        both(add("residencies", [20, 0, DDR, W, -10], 6), add("residencies", [25, 0, DDR, W, 10])),
        "only a detach frees a place",
    ),
    "a detach that never acts": (drop("residencies", 6), "when a run completes, every detach has acted"),
    "away from home": (
        both(put("residencies", 0, tier=HBM), drop("residencies", 1)),
        "a run begins with all tensors at home",
    ),
    "freed too early": (
        both(drop("residencies", 5), add("residencies", [15, 0, HBM, W, -10], 4)),
        "tensors of a compute, and both ends of a copy, are held while it runs, found tensor 0, from ns 10",
    ),
    "target taken too late": (
        both(drop("residencies", 1), add("residencies", [5, 0, HBM, W, 10], 1)),
        "tensors of a compute, and both ends of a copy, are held while it runs, found tensor 0, from ns 0",
    ),
    "target taken too early": (
        both(
            put("spans", 0, start_ns=2, end_ns=12),
            put("spans", 1, start_ns=12, end_ns=22),
            put("spans", 2, start_ns=22, end_ns=27),
            *(put("residencies", row, time_ns=time) for row, time in enumerate((12, 12, 22, 22, 27), 2)),
        ),
        "room is taken when a compute that writes, or a copy into the place, starts, found time_ns 0, tier 0, tensor 0",
    ),
    "workspace held too long": (
        both(drop("residencies", 4), add("residencies", [21, 0, HBM, -1, -2], 5)),
        "an op's workspace is held for its span, in the tier of its device",
    ),
    "workspace elsewhere": (
        both(put("residencies", 3, tier=DDR), put("residencies", 4, tier=DDR)),
        "an op's workspace is held for its span, in the tier of its device",
    ),
    "read before valid": (
        both(
            put("spans", 1, start_ns=9, end_ns=19),
            put("residencies", 2, time_ns=9),
            put("residencies", 3, time_ns=9),
            put("residencies", 4, time_ns=19),
        ),
        (
            "a tensor that a compute reads, or a copy moves, is valid before it starts, found starts at ns 9, "
            "not before ns 10"
        ),
    ),
    "a hole in the ledger": (
        put("waits", 0, end_ns=9),
        "every nanosecond of a stream, from 0 to its last end, is one compute or one wait",
    ),
    "a wait of no length": (
        add("waits", [0, 0, G, 3, 20, 20, ORDER, -1, -1, -1]),
        "a wait takes time, found start_ns 20, end_ns 20",
    ),
    "an unknown cause": (put("waits", 0, cause=17), "a wait has one of the causes capacity, transfer, host"),
    "a wait of another op": (put("waits", 0, op=G), "a wait names the op of its action"),
    "a wait of a later step": (put("waits", 0, op=G, issue=3), "a wait is of the compute that follows it"),
    "a wait for nothing under way": (
        put("waits", 0, blocker=A),
        "a wait for a transfer lasts while that transfer is under way",
    ),
    "a wait that outlasts its cause": (
        both(
            put("spans", 1, start_ns=11, end_ns=21),
            put("spans", 2, start_ns=21, end_ns=26),
            add("waits", [0, 0, F, 1, 10, 11, ORDER, -1, -1, -1]),
            put("residencies", 2, time_ns=11),
            put("residencies", 3, time_ns=11),
            put("residencies", 4, time_ns=21),
            put("residencies", 5, time_ns=21),
            put("residencies", 6, time_ns=26),
        ),
        "a wait that is not for room ends when data, order, line and host let the op start",
    ),
}


@pytest.mark.parametrize("spoil", BROKEN)
def test_each_broken_law_is_named(spoil: str):
    rows = Rows()
    change, message = BROKEN[spoil]
    change(rows)
    with pytest.raises(InvariantError) as error:
        judge(rows)
    assert message in str(error.value)
    assert str(error.value).endswith("report this: it is a bug of hosim")


def test_the_message_names_plan_step_row_law_and_numbers():
    rows = Rows()
    put("spans", 2, start_ns=19, end_ns=24)(rows)
    with pytest.raises(InvariantError) as error:
        judge(rows)
    assert str(error.value) == (
        "trace of plan 'hand', rank 0, action 3 (compute g), spans row 2: a stream runs one op at a time, in issue "
        "order, found starts at ns 19, not before ns 20; report this: it is a bug of hosim"
    )


def test_the_budget_is_the_capacity_of_the_compute_tier():
    judge(Rows(), budget=16)
    with pytest.raises(InvariantError, match=r"at most its capacity \(hbm\), found holds B 16, of B 15, at ns 10"):
        judge(Rows(), budget=15)


def test_a_status_that_is_unknown_or_has_no_reason_is_refused():
    for status, blocked in (("fine", ()), ("blocked", ()), ("ok", ("f waits",))):
        with pytest.raises(InvariantError, match="a trace is ok, or blocked with the reasons"):
            judge(Rows(), status=status, blocked=blocked)


def test_a_blocked_run_is_judged_by_what_happened():
    rows = Rows()
    drop("spans", 2)(rows)
    drop("residencies", 6)(rows)
    needy = graph("w 10 persistent, a 4", "f: w -> a, 10 ns, workspace 2", "g: a ->, 5 ns, workspace 97")
    judge(rows, g=needy, status="blocked", blocked=("g waits",))
    with pytest.raises(InvariantError, match=r"first in line for room .*97 B beside 4 B at 20 ns do not start"):
        judge(rows, g=needy, status="blocked", blocked=("g waits",), budget=101)
    with pytest.raises(InvariantError, match="an action starts as soon as it can"):
        judge(rows, status="blocked", blocked=("g waits",))
    put("spans", 1, end_ns=21)(rows)
    with pytest.raises(InvariantError, match="a compute takes its own time"):
        judge(rows, g=needy, status="blocked", blocked=("g waits",))


def test_an_exclusive_step_waits_for_earlier_ones_and_later_ones_for_it():
    g = graph("a 4, b 4", "f: -> a, 10 ns", "g: -> a, 5 ns")
    plan = plan_of("compute f 0; compute g 1; detach a hbm", g, {})
    rows = Rows(
        [[0, COMPUTE, 0, 0, 0, 0, 0, 0, 10], [0, COMPUTE, 1, 1, 0, 1, 0, 10, 15]],
        [[0, 1, 1, 1, 0, 10, ORDER, 0, -1, -1]],
        [[0, 0, HBM, 0, 4], [15, 0, HBM, 0, -4]],
    )
    judge(rows, plan, g=g)
    rows.spans[1][7:] = [9, 14]
    rows.waits[0][5] = 9
    with pytest.raises(InvariantError, match="actions that name the same tensor take effect in issue order"):
        judge(rows, plan, g=g)


def test_copies_start_in_issue_order_and_after_their_program_point():
    g = graph("v 4 persistent, w 4 persistent, x 5 persistent", "f: x -> , 10 ns")
    text = "copy x pool hbm; compute f; copy v ddr hbm; copy w ddr hbm; detach v hbm; detach w hbm; detach x hbm"
    wide = {"channels": 2, "sharing": "servers", "bandwidth": "2 GB/s"}
    two = machine(h2d=wide, read={"source": "pool", "target": "hbm"})
    plan, read, pool = plan_of(text, g, {"v": "ddr", "w": "ddr", "x": "pool"}, two), 2, 2

    def rows(first: int, second: int) -> Rows:
        """`x` comes from 0 to 5 ns, and `f` runs from then to 15."""
        taken = [[0, 0, HBM, 2, 5], [first, 0, HBM, 0, 4], [second, 0, HBM, 1, 4]]
        freed = [[first + 4, 0, HBM, 0, -4], [second + 4, 0, HBM, 1, -4], [15, 0, HBM, 2, -5]]
        return Rows(
            [
                [0, COPY, 2, read, 0, 0, 0, 0, 5],
                [0, COPY, 0, H2D, 0, 2, 0, first, first + 4],
                [0, COPY, 1, H2D, 1, 3, 0, second, second + 4],
                [0, COMPUTE, 0, 0, 0, 1, 0, 5, 15],
            ],
            [[0, 0, 0, 1, 0, 5, TRANSFER, 2, read, 2]],
            [[0, 0, DDR, 0, 4], [0, 0, DDR, 1, 4], [0, 0, pool, 2, 5], *sorted(taken + freed)],
        )

    for first, second, law in (
        (6, 5, "a link starts its transfers in issue order"),
        (4, 5, "a copy waits until the last compute issued before it has started"),
        (5, 6, r"first in line for room of a tier \(hbm\) starts when it fits, found 4 B beside 9 B at 5 ns"),
    ):
        with pytest.raises(InvariantError, match=law):
            check_trace(g, two, [plan], rows(first, second).trace(), 100)
    check_trace(g, two, [plan], rows(5, 5).trace(), 100)
    with pytest.raises(InvariantError, match="a copy waits until the last compute issued before it has ended"):
        check_trace(g, two, [plan], rows(5, 5).trace(), 100, Switches(copies_wait_for="end"))
    check_trace(g, two, [plan], rows(15, 15).trace(), 100, Switches(copies_wait_for="end"))


def test_a_channel_of_a_copy_queue_serves_all_its_links_in_turn():
    g = graph("a 4, w 4 persistent", "f: -> a, 1 ns", "g: a w ->, 1 ns")
    plan = plan_of("compute f; copy a hbm ddr; copy w ddr hbm; compute g; detach w hbm; detach a hbm; detach a ddr", g)
    spans = [[0, COMPUTE, 0, 0, 0, 0, 0, 0, 1], [0, COPY, 0, D2H, 0, 1, 0, 1, 5]]
    spans += [[0, COPY, 1, H2D, 0, 2, 0, 2, 6], [0, COMPUTE, 1, 0, 0, 3, 0, 6, 7]]
    places = [[0, 0, DDR, 1, 4], [0, 0, HBM, 0, 4], [1, 0, DDR, 0, 4], [2, 0, HBM, 1, 4]]
    places += [[7, 0, HBM, 1, -4], [7, 0, HBM, 0, -4], [7, 0, DDR, 0, -4]]
    rows = Rows(spans, [[0, 0, 1, 3, 1, 6, TRANSFER, 1, H2D, 1]], places)
    apart, shared = machine(), machine(queue=("d2h", "h2d"))
    with pytest.raises(InvariantError, match="a wait for a transfer lasts while that transfer is under way"):
        check_trace(g, apart, [plan], rows.trace(), 100)
    with pytest.raises(InvariantError, match="a channel runs one transfer at a time, in issue order"):
        check_trace(g, shared, [plan], rows.trace(), 100)


def test_a_link_carries_no_more_than_its_bandwidth():
    g = graph("v 4 persistent, w 4 persistent", "f: -> , 10 ns")
    plan = plan_of("copy v ddr hbm; copy w ddr hbm; compute f; detach v hbm; detach w hbm", g, {"v": "ddr", "w": "ddr"})
    two = machine(h2d={"channels": 2})
    spans = [[0, COPY, 0, H2D, 0, 0, 0, 0, 4], [0, COPY, 1, H2D, 1, 1, 0, 0, 4], [0, COMPUTE, 0, 0, 0, 2, 0, 0, 10]]
    places = [[0, 0, DDR, 0, 4], [0, 0, DDR, 1, 4], [0, 0, HBM, 0, 4], [0, 0, HBM, 1, 4]]
    places += [[4, 0, HBM, 0, -4], [4, 0, HBM, 1, -4]]
    with pytest.raises(InvariantError, match=r"link 'h2d' of rank 0: a link, a bus, .*, found 8 B from 0 to 4 ns"):
        check_trace(g, two, [plan], Rows(spans, [], places).trace(), 100)


def test_a_host_runs_no_further_ahead_than_its_queue():
    shallow = machine(host={"queue_depth": 1})
    g = graph("a 4", "f: ->, 10 ns", "g: ->, 5 ns", "h: ->, 5 ns")
    plan = plan_of("compute f; compute g; compute h", g, {})
    spans = [
        [0, COMPUTE, 0, 0, 0, 0, 0, 0, 10],
        [0, COMPUTE, 1, 0, 0, 1, 0, 10, 15],
        [0, COMPUTE, 2, 0, 0, 2, 10, 15, 20],
    ]
    check_trace(g, shallow, [plan], Rows(spans, [], []).trace(), 100)
    spans[2][6] = 9
    with pytest.raises(InvariantError, match="at most 1 computes are issued and not yet started"):
        check_trace(g, shallow, [plan], Rows(spans, [], []).trace(), 100)


def test_nothing_is_issued_after_a_sync_before_the_tensor_settles():
    g = graph("w 10 persistent", "f: ->, 1 ns")
    plan = plan_of("copy w ddr hbm; sync w; compute f; detach w hbm", g)
    host = CAUSES.index("host")
    spans = [[0, COPY, 0, H2D, 0, 0, 0, 0, 10], [0, COMPUTE, 0, 0, 0, 2, 10, 10, 11]]
    waits = [[0, 0, 0, 2, 0, 10, host, -1, -1, -1]]
    places = [[0, 0, DDR, 0, 10], [0, 0, HBM, 0, 10], [11, 0, HBM, 0, -10]]
    judge(Rows(spans, waits, places), plan, g=g)
    spans[1][6] = 9
    with pytest.raises(InvariantError, match="a host issues nothing after a sync before"):
        judge(Rows(spans, waits, places), plan, g=g)


def test_findings_tell_what_was_dead_and_still_held_and_what_was_copied_for_nothing():
    text = TEXT.replace("detach a hbm", "copy a hbm ddr; detach a ddr; detach a hbm")
    rows = Rows()
    rows.spans.append([0, COPY, A, D2H, 0, 4, 0, 20, 24])
    rows.residencies[6:] = [[20, 0, DDR, A, 4], [29, 0, DDR, A, -4], [30, 0, HBM, A, -4]]
    found = judge(rows, plan_of(text))
    assert found.worst == ("a", "hbm", 4, 5)
    assert (found.unread_copies, found.unread_bytes) == (1, 4)
    assert found.remarks == (
        "hbm holds dead tensors, most of all 'a' (4 B for 5 ns in all): detach them after their last use",
        "1 copy is never used (4 B): drop them",
    )


def test_a_reactive_plan_is_judged_by_its_record():
    reactive = replace(PLAN, actions=lambda view: iter(()))
    rows = Rows(issued=[list(code) for code in PLAN.fixed.codes()])
    judge(rows, reactive)
    rows.issued[4] = [DETACH, W, DDR, 0]
    rows.residencies[6] = [25, 0, DDR, W, -10]
    with pytest.raises(PlanError, match="action 4"):
        judge(rows, reactive)


def test_an_output_stays_until_the_ops_before_its_detach_have_ended():
    g = replace(graph("a 4", "f: -> a, 10 ns", "g: ->, 5 ns"), outputs=(0,))
    plan = plan_of("compute f; compute g; detach a hbm", g, {})

    def rows(freed: int) -> Rows:
        spans = [[0, COMPUTE, F, 0, 0, 0, 0, 0, 10], [0, COMPUTE, G, 0, 0, 1, 0, 10, 15]]
        return Rows(spans, [], [[0, 0, HBM, 0, 4], [freed, 0, HBM, 0, -4]])

    judge(rows(15), plan, g=g)
    with pytest.raises(InvariantError, match=r"an output stays until the computes .* found starts at ns 10"):
        judge(rows(10), plan, g=g)


def test_each_rank_is_judged_and_named():
    g = graph("w 10 persistent, a 4", "f: w -> a, 10 ns, workspace 2", "g: a ->, 5 ns")
    trace = engine.run([engine.Program(g, PLAN, durations_ns(g, MACHINE))] * 2, MACHINE)
    assert check_trace(g, MACHINE, [PLAN, PLAN], trace).remarks == ()
    late = {name: column.copy() for name, column in trace.spans.whole().items()}
    last = int(np.flatnonzero((late["rank"] == 1) & (late["item"] == G) & (late["kind"] == COMPUTE))[0])
    late["end_ns"][last] += 1
    with pytest.raises(
        InvariantError, match=rf"rank 1, action 3 \(compute g\), spans row {last}: a compute takes its own"
    ):
        check_trace(g, MACHINE, [PLAN, PLAN], replace(trace, spans=_table(late)))


def _table(columns: dict[str, np.ndarray]) -> Table:
    table = Table(SPANS)
    table.append(np.stack([columns[name] for name in SPANS], axis=1).astype(np.int64).tobytes())
    return table


def test_nothing_is_issued_while_a_copy_blocks_the_host():
    blocking = machine(h2d={"blocking": True})
    g = graph("w 10 persistent", "f: ->, 1 ns")
    plan = plan_of("copy w ddr hbm; compute f; detach w hbm", g)
    spans = [[0, COPY, 0, H2D, 0, 0, 0, 0, 10], [0, COMPUTE, 0, 0, 0, 1, 10, 10, 11]]
    waits = [[0, 0, 0, 1, 0, 10, CAUSES.index("host"), -1, -1, -1]]
    places = [[0, 0, DDR, 0, 10], [0, 0, HBM, 0, 10], [11, 0, HBM, 0, -10]]
    check_trace(g, blocking, [plan], Rows(spans, waits, places).trace(), 100)
    spans[1][6] = 9
    with pytest.raises(InvariantError, match="nor while a copy blocks it"):
        check_trace(g, blocking, [plan], Rows(spans, waits, places).trace(), 100)


@pytest.mark.parametrize(
    "host",
    [{"each_layer": "3 ns"}, {"each_step": "3 ns"}, {"each_class": {"vector": "3 ns"}}, {"fixed": {"compute": "3 ns"}}],
)
def test_the_host_has_paid_for_each_step_layer_and_compute(host):
    g, waiting = graph("a 4", "A/f: ->, 10 ns"), [[0, 0, 0, 0, 0, 3, CAUSES.index("host"), -1, -1, -1]]
    plan, spans = plan_of("compute A/f", g, {}), [[0, COMPUTE, 0, 0, 0, 0, 3, 3, 13]]
    check_trace(g, machine(host=host), [plan], Rows(spans, waiting, []).trace(), 100)
    spans[0][6] = 2
    with pytest.raises(InvariantError, match="the host issues in order and pays for each action"):
        check_trace(g, machine(host=host), [plan], Rows(spans, waiting, []).trace(), 100)
