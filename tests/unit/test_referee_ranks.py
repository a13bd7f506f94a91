"""What the referee says of ranks that meet: before a run of their job and their plans, after it of their trace."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from rank_stories import cluster, job_of, perform, team
from stories import steps

from simulator.errors import ConfigError, InvariantError, PlanError
from simulator.hardware import DevicePace
from simulator.plan import NOWHERE, Plan
from simulator.referee import check_job, check_order, check_plan, check_trace
from simulator.trace import CAUSES, RESIDENCIES, SPANS, WAITS, Table

PAIR = {"all": ((0, 1),)}
PEER, COLLECTIVE = CAUSES.index("peer"), CAUSES.index("collective")


def summing(*ops: str, groups=PAIR, **more):
    return team("a 40, b 40", *ops, groups=groups, **more)


# before the run: the job


def refused(*graphs, ranks=2):
    with pytest.raises(ConfigError) as error:
        check_job(job_of(list(graphs)), cluster(ranks))
    return str(error.value)


def test_a_job_of_members_that_agree_is_fine():
    one = summing("sum: -> a, all_reduce all 40", "give: a ->, send next 7", groups={**PAIR, "next": ((0, 1),)})
    two = summing("add: -> a, all_reduce all 40", "take: -> b, recv next 7", groups={**PAIR, "next": ((0, 1),)})
    check_job(job_of([one, two]), cluster(2))


def test_more_ranks_than_devices():
    g = summing("sum: -> a, all_reduce all 40")
    assert "each rank has a device of its own, found 3 ranks for 2" in refused(g, g, g)


@pytest.mark.parametrize(
    ("other", "found"),
    [
        ("all_gather all 40", "(all_gather of 40 B, auto)"),
        ("all_reduce all 41", "(all_reduce of 41 B, auto)"),
        ("all_reduce all 40 ring", "(all_reduce of 40 B, ring)"),
    ],
)
def test_members_agree_on_what_they_do(other, found):
    first = "sum: -> a, all_reduce all 40"
    one, two = summing(first, "more: -> b, all_reduce all 40"), summing(first, f"else: -> b, {other}")
    said = refused(one, two)
    assert "group 'all': members meet as often as one another, and agree on kind, size and algorithm" in said
    assert "op 'more' of rank 0 (all_reduce of 40 B, auto) and op 'else' of rank 1" in said
    assert found in said
    assert "as number 2 there" in said


def test_a_message_is_as_long_as_what_is_received():
    groups = {"next": ((0, 1),)}
    said = refused(summing("give: ->, send next 40", groups=groups), summing("take: -> a, recv next 39", groups=groups))
    assert "op 'give' of rank 0 (send of 40 B, auto) and op 'take' of rank 1 (recv of 39 B, auto)" in said


def test_whoever_never_comes_is_named_with_who_would_wait():
    one = summing("sum: -> a, all_reduce all 40", "more: -> b, all_reduce all 40")
    said = refused(one, summing("add: -> a, all_reduce all 40"))
    assert "op 'more' of rank 0 (all_reduce of 40 B, auto) and nothing of rank 1 as number 2 there" in said
    said = refused(summing("f: -> a, 5 ns"), one)
    assert "op 'sum' of rank 1 (all_reduce of 40 B, auto) and nothing of rank 0 as number 1 there" in said
    groups = {"next": ((0, 1),)}
    said = refused(summing("give: ->, send next 40", groups=groups), summing("f: -> a, 5 ns", groups=groups))
    assert "op 'give' of rank 0 (send of 40 B, auto) and nothing of rank 1 as number 1 there" in said


@pytest.mark.parametrize(
    ("groups", "op", "must"),
    [
        ({"all": ((0, 7),)}, "s: -> a, all_reduce all 4", "ranks of the job (0 to 2), found [0, 7]"),
        ({"all": ((0, 0),)}, "s: -> a, all_reduce all 4", "ranks of the job (0 to 2), found [0, 0]"),
        ({"all": ((0, 1), (1, 2))}, "s: -> a, all_reduce all 4", "once for a collective, found rank 1 2 times"),
        ({"all": ((0, 1), (0, 2))}, "s: a ->, send all 4", "a rank is there once for send, found rank 0 2 times"),
        ({"all": ((0, 1, 2),)}, "s: a ->, send all 4", "of pairs (from, to), found [0, 1, 2] for send"),
        ({"all": ((0, 1),)}, "s: -> a, all_reduce all 4", "comes to a group is a member, found op 's' of rank 2"),
        ({"all": ((1, 0),)}, "s: a ->, send all 4", "comes to a group is a member, found op 's' of rank 0"),
    ],
)  # fmt: skip
def test_groups_are_sound(groups, op, must):
    g = team("a 40 persistent", op, groups=groups)
    assert must in refused(g, g, g, ranks=3)


def test_messages_have_groups_of_their_own():
    both = summing("s: ->, send all 40", "sum: -> b, all_reduce all 40")
    assert "a group is for collectives of all its members, or for messages (send, recv)" in refused(both, both)


def test_graphs_name_the_same_members():
    one = summing("sum: -> a, all_reduce all 40", groups={"all": ((0, 1), (2,))})
    two = summing("sum: -> a, all_reduce all 40", groups={"all": ((0, 1, 2),)})
    assert "[0, 1] in the graph of rank 0, [0, 1, 2] in that of rank 1" in refused(one, two, two, ranks=3)


def test_members_run_as_many_steps():
    one = summing("sum: -> a, all_reduce all 40")
    said = refused(one, summing("sum: -> a, all_reduce all 40", steps=2))
    assert "members run as many steps, found 1 step of rank 0 and 2 steps of rank 1" in said


# before the run: the plans


def plan_of(g, text):
    h = cluster(2)
    return Plan("hand", h.tier_names, tuple(NOWHERE for _ in g.tensors), steps(g, h, text))


TWO = {"one": ((0, 1),), "two": ((0, 1),)}


def test_ranks_that_wait_for_one_another_in_a_circle_are_told_before_the_run():
    g = summing("sum: -> a, all_reduce one 40", "add: -> b, all_reduce two 40", groups=TWO)
    job = job_of([g, g])
    ends = "; detach a hbm; detach b hbm"
    one, other = plan_of(g, "compute sum; compute add" + ends), plan_of(g, "compute add; compute sum" + ends)
    check_order(job, [one, one])
    check_order(job, [one, plan_of(g, "compute add 1; compute sum 2" + ends)])
    circle = (
        "found that they wait for one another: rank 0 at op 'sum' (group 'one') for rank 1, "
        "rank 1 at op 'add' (group 'two') for rank 0"
    )
    with pytest.raises(PlanError, match=re.escape(circle)):
        check_order(job, [one, other])


def test_a_circle_of_messages_is_told():
    groups = {"next": ((0, 1), (1, 0))}
    g = summing("give: ->, send next 40", "take: -> b, recv next 40", groups=groups)
    job = job_of([g, g])
    with pytest.raises(PlanError, match=r"rank 0 at op 'give' \(group 'next'\) for rank 1, rank 1 at op 'give'"):
        check_order(job, [plan_of(g, "compute give; compute take")] * 2)
    check_order(job, [plan_of(g, "compute give; compute take"), plan_of(g, "compute take; compute give")])


def test_collectives_of_a_group_are_issued_in_program_order_on_one_stream():
    g = summing("sum: -> a, all_reduce all 40", "add: -> b, all_reduce all 30")
    ends = "; detach a hbm; detach b hbm"
    check_plan(g, cluster(2), plan_of(g, "compute sum 1; compute add 1" + ends))
    with pytest.raises(
        PlanError, match=r"in program order, .* found op 'add' on stream 0 where op 'sum' on stream 0 is due"
    ):
        check_plan(g, cluster(2), plan_of(g, "compute add; compute sum" + ends))
    with pytest.raises(PlanError, match=r"on one stream, found op 'add' on stream 2 where op 'add' on stream 1 is due"):
        check_plan(g, cluster(2), plan_of(g, "compute sum 1; compute add 2" + ends))


# after the run: a trace, spoilt

OPS = ("sum: a -> a, all_reduce all 40", "g: b -> b, 30 ns", "h: a -> a, 5 ns")
EARLY = team("a 40, b 1", "f: -> a b, 5 ns", *OPS, groups=PAIR)
LATE = team("a 40, b 1", "f: -> a b, 50 ns", *OPS, groups=PAIR)
TEXT = "compute f; compute sum 1; compute g; compute h; detach a hbm; detach b hbm"
POOL = {"pool": {"links": ["h2d", "d2h"], "bandwidth": "1 GB/s", "scope": "node"}}


def story():
    """Rank 0 comes to the sum at 5 ns, rank 1 at 50; it lasts until 90, and h of both waits for it."""
    h = cluster(2)
    return h, [EARLY, LATE], perform(h, [(EARLY, TEXT), (LATE, TEXT)])


def judge(h, graphs, trace):
    job = job_of(graphs)
    plans = [Plan("story", h.tier_names, tuple(NOWHERE for _ in g.tensors), steps(g, h, TEXT)) for g in graphs]
    return check_trace(job, h, plans, trace)


def spoilt(trace, name, change):
    """The trace with one table changed: `change` gets its rows as dictionaries."""
    columns = {"spans": SPANS, "waits": WAITS, "residencies": RESIDENCIES}[name]
    whole = getattr(trace, name).whole()
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*(whole[c].tolist() for c in columns), strict=True)]
    change(rows)
    table = Table(columns)
    table.append(np.array([[row[c] for c in columns] for row in rows], np.int64).tobytes())
    return replace(trace, **{name: table})


def shift(of, **changes):
    """Add to columns of the rows that match."""

    def change(rows):
        found = [row for row in rows if all(row[name] == value for name, value in of.items())]
        assert found
        for row in found:
            for name, value in changes.items():
                row[name] += value

    return change


SUM = 1


@pytest.mark.parametrize(
    ("spoils", "law"),
    [
        (
            [
                ("spans", shift({"item": SUM}, end_ns=-1)),
                ("spans", shift({"item": 3}, start_ns=-1, end_ns=-1)),
                ("waits", shift({"cause": COLLECTIVE}, end_ns=-1)),
                ("residencies", shift({"time_ns": 95}, time_ns=-1)),
            ],
            "a collective takes at least its time alone, found takes ns 39, alone ns 40",
        ),
        (
            [
                ("spans", shift({"item": SUM}, end_ns=1)),
                ("spans", shift({"item": 3}, start_ns=1, end_ns=1)),
                ("waits", shift({"cause": COLLECTIVE}, end_ns=1)),
                ("residencies", shift({"time_ns": 95}, time_ns=1)),
            ],
            "a collective takes its time alone if its members are in no other meanwhile, found takes ns 41",
        ),
        ([("waits", shift({"cause": PEER}, on=1))], "a rank waits for a member of the meeting, found rank 2"),
        (
            [("waits", shift({"rank": 0, "stream": 0, "cause": PEER}, on=-1))],
            "an op waits for a peer while a collective of its rank waits for that peer",
        ),
        (
            [("waits", shift({"rank": 0, "cause": COLLECTIVE}, blocker=1))],
            "a wait for a collective lasts while that is under way",
        ),
        (
            [
                ("spans", shift({"rank": 1, "item": 0}, end_ns=-2)),
                ("waits", shift({"rank": 1, "stream": 1}, end_ns=-2)),
                ("spans", shift({"rank": 1, "item": SUM}, start_ns=-2)),
            ],
            "a compute takes its own time",
        ),
    ],
)  # fmt: skip
def test_each_broken_law_of_meetings_is_named(spoils, law):
    h, graphs, trace = story()
    judge(h, graphs, trace)
    for name, change in spoils:
        trace = spoilt(trace, name, change)
    with pytest.raises(InvariantError) as error:
        judge(h, graphs, trace)
    assert law in str(error.value)


@pytest.mark.parametrize(("column", "by", "law"), [("start_ns", 1, "start"), ("end_ns", 1, "end")])
def test_members_are_together_from_start_to_end(column, by, law):
    g = team("a 40", "sum: -> a, all_reduce all 40", groups=PAIR)
    h, text = cluster(2), "compute sum; detach a hbm"
    trace = perform(h, [(g, text)] * 2)
    wrong = spoilt(trace, "spans", shift({"rank": 1}, **{column: by}))
    moment = 0 if law == "start" else 40
    wrong = spoilt(wrong, "residencies", shift({"rank": 1, "time_ns": moment}, time_ns=by))
    if law == "start":
        wrong = spoilt(wrong, "residencies", lambda rows: rows.sort(key=lambda row: row["time_ns"]))
        host = CAUSES.index("host")
        wait = dict(zip(WAITS, (1, 0, 0, 0, 0, 1, host, -1, -1, -1), strict=True))
        wrong = spoilt(wrong, "waits", lambda rows: rows.append(wait))
        wrong = spoilt(wrong, "spans", shift({"rank": 1}, issued_ns=1))
    plans = [Plan("story", h.tier_names, (NOWHERE,), steps(g, h, text))] * 2
    with pytest.raises(InvariantError, match=f"the members of a collective {law} at the same instant"):
        check_trace(job_of([g, g]), h, plans, wrong)


def test_a_wait_for_a_peer_ends_when_it_comes():
    """Rank 2 comes last, at 50 ns; rank 1 has come at 20 ns, and nobody waits for it after that."""
    groups = {"all": ((0, 1, 2),)}
    graphs = [team("a 30", f"f: -> a, {ns} ns", "sum: a -> a, all_reduce all 30", groups=groups) for ns in (5, 20, 50)]
    h, text = cluster(3), "compute f; compute sum; detach a hbm"
    trace = perform(h, [(g, text) for g in graphs])
    plans = [Plan("story", h.tier_names, (NOWHERE,), steps(g, h, text)) for g in graphs]
    wrong = spoilt(trace, "waits", shift({"rank": 0, "cause": PEER, "on": 2}, on=-1))
    with pytest.raises(InvariantError, match=r"a wait for a peer ends when that rank comes.*rank 1, there at ns 20"):
        check_trace(job_of(graphs), h, plans, wrong)


def test_a_member_that_took_no_part_is_missed():
    h, graphs, trace = story()
    alone = replace(trace, status="ok")
    without = spoilt(
        alone, "spans", lambda rows: rows.remove(next(r for r in rows if (r["rank"], r["item"]) == (1, SUM)))
    )
    with pytest.raises(InvariantError, match=r"when a run completes, every action has run"):
        judge(h, graphs, without)


def test_ports_carry_no_more_than_their_bandwidth():
    """Two collectives at once take 80 ns on a port; as if each had it alone, it would carry twice too much."""
    g = team("a 40, b 40", "sum: -> a, all_reduce one 40", "add: -> b, all_reduce two 40", groups=TWO)
    h, text = cluster(2), "compute sum 0; compute add 1; detach a hbm; detach b hbm"
    trace = perform(h, [(g, text)] * 2)
    wrong = spoilt(trace, "spans", shift({"end_ns": 80}, end_ns=-40))
    wrong = spoilt(wrong, "residencies", shift({"time_ns": 80}, time_ns=-40))
    plans = [Plan("story", h.tier_names, (NOWHERE,) * 2, steps(g, h, text))] * 2
    with pytest.raises(InvariantError, match=r"port 'net.out' of rank 0: .* found 80 B from 0 to 40 ns"):
        check_trace(job_of([g, g]), h, plans, wrong)


def test_a_bus_of_a_node_carries_no_more_than_its_bandwidth():
    """Four ranks that copy over one bus take 120 ns; on a machine without it, each takes 30."""
    g = team("w 30 persistent", "f: w ->, 5 ns", groups={})
    free, pool = cluster(4, 2), cluster(4, 2, buses=POOL)
    text = "copy w ddr hbm; compute f; detach w hbm"
    plans = [Plan("story", free.tier_names, (1,), steps(g, free, text))] * 4
    for fold in ("never", "always"):
        check_trace(job_of([g] * 4), pool, plans, perform(pool, [(g, text)] * 4, "w ddr", fold=fold))
        trace = perform(free, [(g, text)] * 4, "w ddr", fold=fold)
        with pytest.raises(InvariantError, match=r"bus 'pool' of node 0: .* found 60 B from 0 to 30 ns"):
            check_trace(job_of([g] * 4), pool, plans, trace)


def test_a_tier_of_a_node_holds_what_its_ranks_hold_together():
    g = team("w 30 persistent", "f: w ->, 5 ns", groups={})
    h = cluster(4, 2)
    document = h.model_dump(by_alias=True)
    document["tiers"]["ddr"] |= {"scope": "node", "capacity": "60 B"}
    wide = type(h).model_validate(document)
    document["tiers"]["ddr"]["capacity"] = "59 B"
    narrow = type(h).model_validate(document)
    text = "copy w ddr hbm; compute f; detach w hbm"
    plans = [Plan("story", h.tier_names, (1,), steps(g, h, text))] * 4
    for fold in ("never", "always"):
        trace = perform(wide, [(g, text)] * 4, "w ddr", fold=fold)
        with pytest.raises(InvariantError, match=r"at most its capacity \(ddr\), found holds B 60, of B 59, at ns 0"):
            check_trace(job_of([g] * 4), narrow, plans, trace)


def test_each_rank_holds_no_more_than_its_own_device_has():
    g, h = team("w 30 persistent", "f: w ->, 5 ns", groups={}), cluster(2, hbm="30 B")
    text = "copy w ddr hbm; compute f; detach w hbm"
    plans = [Plan("story", h.tier_names, (1,), steps(g, h, text))] * 2
    trace = perform(h, [(g, text)] * 2, "w ddr")
    unlike = h.model_copy(update={"ranks": {"1": DevicePace(capacity=0.9)}})
    with pytest.raises(InvariantError, match=r"at most its capacity \(hbm\), found holds B 30, of B 27, at ns 0"):
        check_trace(job_of([g] * 2), unlike, plans, trace)


def test_whoever_stands_for_another_runs_the_same_in_the_same_company():
    h, graphs, trace = story()
    with pytest.raises(InvariantError, match=r"a rank that stands for another runs the same.*found rank 0 for rank 1"):
        judge(h, graphs, replace(trace, stands_in=(0, 0)))


def test_room_is_taken_when_a_member_comes_and_not_before():
    """Rank 0 comes at 5 ns, but has taken the room of the sum at 4 ns."""
    a = team("a 40, x 4", "f: -> x, 5 ns", "sum: x -> a, all_reduce all 40", groups=PAIR)
    b = team("a 40, x 4", "f: -> x, 25 ns", "sum: x -> a, all_reduce all 40", groups=PAIR)
    h, text = cluster(2), "compute f; compute sum; detach x hbm; detach a hbm"
    trace = perform(h, [(a, text), (b, text)])
    plans = [Plan("story", h.tier_names, (NOWHERE,) * 2, steps(g, h, text)) for g in (a, b)]
    wrong = spoilt(trace, "residencies", shift({"time_ns": 5, "rank": 0, "tensor": 0}, time_ns=-1))
    with pytest.raises(InvariantError, match=r"room is taken when a compute that writes.* time_ns 4, tier 0, tensor 0"):
        check_trace(job_of([a, b]), h, plans, wrong)


# a trace that ends in a circle, spoilt

IN_CIRCLE = ("f: -> x, 5 ns", "p: x -> x a, all_reduce one 40", "q: x -> x, all_reduce two 40")
CIRCLE = [
    team("x 20, a 20, w 10 persistent", *ops, groups=TWO) for ops in (IN_CIRCLE, IN_CIRCLE[:1] + IN_CIRCLE[:0:-1])
]
CIRCLE_TEXTS = ("compute f; compute p 1; copy w ddr hbm; compute q 2", "compute f; compute q 2; compute p 1")
CIRCLE_ENDS = ("; detach w hbm; detach x hbm; detach a hbm", "; detach x hbm; detach a hbm")


def in_circle(*spoils):
    h = cluster(2)
    texts = [text + end for text, end in zip(CIRCLE_TEXTS, CIRCLE_ENDS, strict=True)]
    trace = perform(h, list(zip(CIRCLE, texts, strict=True)), "w ddr")
    assert trace.status == "blocked"
    for name, change in spoils:
        trace = spoilt(trace, name, change)
    homes = (NOWHERE, NOWHERE, 1)
    plans = [Plan("story", h.tier_names, homes, steps(g, h, text)) for g, text in zip(CIRCLE, texts, strict=True)]
    check_trace(job_of(CIRCLE), h, plans, trace)


@pytest.mark.parametrize(
    ("spoils", "law"),
    [
        ([("waits", shift({"rank": 0, "op": 1}, issue=-1))], "a wait is of the compute that follows it"),
        ([("waits", shift({"rank": 0, "op": 1}, start_ns=2))], "every nanosecond of a stream"),
        (
            [
                ("spans", shift({"rank": 0, "item": 2}, start_ns=-1, end_ns=-1)),
                ("residencies", shift({"rank": 0, "tensor": 2, "time_ns": 5}, time_ns=-1)),
                ("residencies", lambda rows: rows.sort(key=lambda row: row["time_ns"])),
            ],
            "a copy waits until the last compute issued before it has started, found starts at ns 4, not before ns 5",
        ),
        (
            [("residencies", shift({"rank": 0, "tensor": 1}, time_ns=-1))],
            "room is taken when a compute that writes, or a copy into the place, starts, found time_ns 4",
        ),
    ],
)
def test_laws_hold_up_to_where_a_blocked_rank_stands(spoils, law):
    in_circle()
    with pytest.raises(InvariantError) as error:
        in_circle(*spoils)
    assert law in str(error.value)
