"""One short story per rule of ranks that meet, each with an exact timeline (semantics 14)."""

from __future__ import annotations

import pytest
from rank_stories import cluster, perform, spans, stalls, team

from simulator.hardware import Hardware

PAIR = {"all": ((0, 1),)}


def test_ranks_have_their_own_device_and_share_what_the_node_has():
    pool = {"pool": {"links": ["h2d"], "bandwidth": "1 GB/s", "scope": "node"}}
    g = team("w 30 persistent", "f: w ->, 5 ns", groups={})
    programs = [(g, "copy w ddr hbm; compute f; detach w hbm")] * 4
    for nodes, end in ((1, 120), (2, 60), (4, 30)):
        h = cluster(4, nodes, buses=pool, scope="supernode")
        t = perform(h, programs, "w ddr")
        each = [line for rank in range(4) for line in (f"{rank}: 0-{end} h2d w", f"{rank}: {end}-{end + 5} f")]
        assert spans(t, programs, h) == each, "the bus of a node is shared by its ranks only"


def test_a_rank_that_begins_later_pulls_while_others_compute():
    """Two ranks share 1 byte per ns: together both wait 60 for 30 bytes; one that begins 30 later, only 30."""
    h = cluster(2, buses={"pool": {"links": ["h2d"], "bandwidth": "1 GB/s", "scope": "node"}})
    g = team("w 30 persistent", "f: w ->, 30 ns", groups={}, steps=2)
    programs = [(g, "copy w ddr hbm; compute f; detach w hbm")] * 2
    together = perform(h, programs, "w ddr")
    assert spans(together, programs, h)[:4] == ["0: 0-60 h2d w", "0: 60-90 f", "0: 90-150 h2d w", "0: 150-180 f"]
    t = perform(h, programs, "w ddr", starts=(0, 30))
    assert spans(t, programs, h) == [
        "0: 0-30 h2d w", "0: 30-60 f", "0: 60-90 h2d w", "0: 90-120 f",
        "1: 30-60 h2d w", "1: 60-90 f", "1: 90-120 h2d w", "1: 120-150 f",
    ]  # fmt: skip
    assert stalls(t, programs)[2:4] == ["1.0: 0-30 f host", "1.0: 30-60 f transfer 1"]


def test_a_collective_starts_when_the_last_member_has_come_and_ends_for_all():
    h = cluster(2)
    a = team("a 40", "f: -> a, 5 ns", "sum: a -> a, all_reduce all 40", groups=PAIR)
    b = team("a 40", "f: -> a, 25 ns", "sum: a -> a, all_reduce all 40", groups=PAIR)
    programs = [(a, "compute f; compute sum"), (b, "compute f; compute sum")]
    t = perform(h, programs)
    assert t.status == "ok"
    assert spans(t, programs, h) == ["0: 0-5 f", "0: 25-65 sum", "1: 0-25 f", "1: 25-65 sum"]
    assert stalls(t, programs) == ["0.0: 5-25 sum peer 1"]


def test_each_hop_costs_its_latency_before_the_bytes_flow():
    h = cluster(4, latency="3 ns")
    g = team("a 40", "sum: -> a, all_reduce all 40 ring", groups={"all": ((0, 1, 2, 3),)})
    programs = [(g, "compute sum")] * 4
    t = perform(h, programs)
    assert spans(t, programs, h)[0] == f"0: 0-{6 * 3 + 60} sum", "2 (n - 1) hops, 2 (n - 1) / n of the bytes"


def test_levels_of_a_collective_work_side_by_side_on_all_but_the_first_chunk():
    """A sum of 160 bytes in chunks of 32: near 24, wide 8, near 24; then near 192 beside wide 32."""
    for rate, end in ((1, 5 + 24 + 8 + 24 + 192), (10, 5 + 24 + 80 + 24 + 320)):
        document = cluster(8, 2, scope="supernode").model_dump(by_alias=True)
        wide = {"scope": "supernode", "bandwidth": f"{10**9 // rate} B/s", "chunk": "32 B"}
        document["fabrics"] = {"near": {"bandwidth": "1 GB/s"}, "wide": wide}
        h = Hardware.model_validate(document)
        groups = {"all": (tuple(range(8)),)}
        g = team("a 40", "f: -> a, 5 ns", "sum: a -> a, all_reduce all 160 hierarchical", groups=groups)
        programs = [(g, "compute f; compute sum")] * 8
        assert spans(perform(h, programs), programs, h)[-1] == f"7: 5-{end} sum"


def test_a_compute_that_needs_what_a_collective_makes_waits_for_it_or_for_the_late_peer():
    h = cluster(2)
    ops = ("sum: a -> a, all_reduce all 40", "g: b -> b, 30 ns", "h: a -> a, 5 ns")
    a = team("a 40, b 1", "f: -> a b, 5 ns", *ops, groups=PAIR)
    b = team("a 40, b 1", "f: -> a b, 50 ns", *ops, groups=PAIR)
    text = "compute f; compute sum 1; compute g; compute h"
    programs = [(a, text), (b, text)]
    t = perform(h, programs)
    assert spans(t, programs, h) == [
        "0: 0-5 f", "0: 5-35 g", "0: 50-90 sum", "0: 90-95 h",
        "1: 0-50 f", "1: 50-90 sum", "1: 50-80 g", "1: 90-95 h",
    ]  # fmt: skip
    assert stalls(t, programs) == [
        "0.0: 35-50 h peer 1", "0.0: 50-90 h collective",
        "0.1: 0-5 sum order", "0.1: 5-50 sum peer 1",
        "1.0: 80-90 h collective", "1.1: 0-50 sum order",
    ]  # fmt: skip


def test_a_message_takes_the_senders_port_out_and_the_receivers_port_in():
    h = cluster(3)
    groups = {"next": ((0, 1), (1, 2))}
    first = team("x 20", "f: -> x, 10 ns", "give: x ->, send next 20", groups=groups)
    middle = team("x 20, y 20", "take: -> x, recv next 20", "f: x -> y, 10 ns", "give: y ->, send next 20",
                  groups=groups)  # fmt: skip
    last = team("y 20", "take: -> y, recv next 20", "f: y ->, 10 ns", groups=groups)
    programs = [
        (first, "compute f; compute give"),
        (middle, "compute take; compute f; compute give"),
        (last, "compute take; compute f"),
    ]
    t = perform(h, programs)
    assert spans(t, programs, h) == [
        "0: 0-10 f", "0: 10-30 give",
        "1: 10-30 take", "1: 30-40 f", "1: 40-60 give",
        "2: 40-60 take", "2: 60-70 f",
    ]  # fmt: skip
    assert stalls(t, programs) == ["1.0: 0-10 take peer 0", "2.0: 0-40 take peer 1"]


def test_collectives_of_two_groups_share_a_port():
    h = cluster(2)
    groups = {"one": ((0, 1),), "two": ((0, 1),)}
    g = team("a 40, b 40", "sum: -> a, all_reduce one 40", "add: -> b, all_reduce two 40", groups=groups)
    programs = [(g, "compute sum 0; compute add 1")] * 2
    t = perform(h, programs)
    assert spans(t, programs, h)[:2] == ["0: 0-80 sum", "0: 0-80 add"]


def test_a_collective_shares_a_bus_with_copies():
    h = cluster(2, buses={"port": {"links": ["h2d", "net.in"], "bandwidth": "1 GB/s"}})
    g = team("w 40 persistent, a 40", "sum: -> a, all_reduce all 40", "f: w ->, 1 ns", groups=PAIR)
    programs = [(g, "copy w ddr hbm; compute sum 1; compute f; detach w hbm")] * 2
    t = perform(h, programs, "w ddr")
    assert spans(t, programs, h)[:3] == ["0: 0-80 h2d w", "0: 0-80 sum", "0: 80-81 f"]


def test_a_bus_over_both_ports_carries_what_is_sent_and_what_is_received():
    duplex = {"links": ["net.out", "net.in"], "bandwidth": "1 GB/s"}
    g = team("a 4 persistent", "sum: a -> a, all_reduce all 40", groups=PAIR)
    give, take = (team("a 4 persistent", f"give: a -> a, {way} all 40", groups=PAIR) for way in ("send", "recv"))
    for scope, times in (("device", (80, 40)), ("node", (160, 80))):
        h = cluster(2, buses={"duplex": {**duplex, "scope": scope}})
        for programs, took in (
            ([(g, "compute sum")] * 2, times[0]),
            ([(give, "compute give"), (take, "compute give")], times[1]),
        ):
            t = perform(h, programs, "a hbm")
            assert {line.split()[1] for line in spans(t, programs, h)} == {f"0-{took}"}, scope


def test_a_member_waits_with_its_room_taken():
    h = cluster(2, hbm="50 B")
    a = team("a 40, b 20", "sum: -> a, all_reduce all 40", "f: -> b, 5 ns", groups=PAIR)
    b = team("a 40, b 20", "f: -> b, 30 ns", "sum: -> a, all_reduce all 40", groups=PAIR)
    programs = [(a, "compute sum 1; compute f; detach a hbm; detach b hbm"),
                (b, "compute f; detach b hbm; compute sum 1; detach a hbm")]  # fmt: skip
    t = perform(h, programs)
    assert spans(t, programs, h) == ["0: 30-70 sum", "0: 70-75 f", "1: 0-30 f", "1: 30-70 sum"]
    assert "0.0: 0-70 f capacity 0" in stalls(t, programs)


def test_ranks_that_never_meet_are_blocked_and_told_who_waits_for_whom():
    h = cluster(2)
    groups = {"one": ((0, 1),), "two": ((0, 1),)}
    g = team("a 40, b 40", "sum: -> a, all_reduce one 40", "add: -> b, all_reduce two 40", groups=groups)
    t = perform(h, [(g, "compute sum; compute add"), (g, "compute add; compute sum")])
    assert t.status == "blocked"
    assert t.blocked == (
        "rank 0: op 'sum' (action 0) waits for rank 1 to come to the collective of group 'one'",
        "rank 1: op 'add' (action 0) waits for rank 0 to come to the collective of group 'two'",
    )


def test_a_circle_of_sums_over_what_both_ranks_hold_is_told_with_all_that_happened_before():
    """Each sum has a stream of its own, so that nothing but the tensor that both add to keeps them apart."""
    h = cluster(2)
    groups = {"one": ((0, 1),), "two": ((0, 1),)}
    ops = ("f: -> a, 5 ns", "sum: a -> a, all_reduce one 40", "add: a -> a, all_reduce two 40")
    a, b = team("a 40", *ops, groups=groups), team("a 40", ops[0], ops[2], ops[1], groups=groups)
    programs = [(a, "compute f; compute sum 1; compute add 2"), (b, "compute f; compute add 2; compute sum 1")]
    t = perform(h, programs)
    assert t.blocked == (
        "rank 0: op 'sum' (action 1) waits for rank 1 to come to the collective of group 'one'",
        "rank 1: op 'add' (action 1) waits for rank 0 to come to the collective of group 'two'",
    )
    assert spans(t, programs, h) == ["0: 0-5 f", "1: 0-5 f"]
    assert stalls(t, programs) == ["0.1: 0-5 sum order", "1.2: 0-5 add order"]


@pytest.mark.parametrize(("first", "second"), [("give", "take"), ("take", "give")])
def test_two_that_both_send_first_or_both_receive_first_wait_for_each_other(first, second):
    h = cluster(2)
    groups = {"there": ((0, 1),), "back": ((1, 0),)}
    programs = []
    for out, back in (("there", "back"), ("back", "there")):
        ops = {"give": f"give: x -> x, send {out} 20", "take": f"take: x -> x, recv {back} 20"}
        g = team("x 20", "f: -> x, 7 ns", ops[first], ops[second], groups=groups)
        programs.append((g, f"compute f; compute {first} 1; compute {second} 2"))
    t = perform(h, programs)
    met = ("there", "back") if first == "give" else ("back", "there")
    assert t.blocked == tuple(
        f"rank {rank}: op '{first}' (action 1) waits for rank {1 - rank} "
        f"to come to the collective of group '{met[rank]}'"
        for rank in (0, 1)
    )
    assert stalls(t, programs) == [f"{rank}.1: 0-7 {first} order" for rank in (0, 1)]


def test_three_that_wait_in_a_triangle_are_all_told():
    h = cluster(3)
    groups = {"a": ((0, 1),), "b": ((1, 2),), "c": ((0, 2),)}
    programs = []
    for first, second in ("ac", "ba", "cb"):
        ops = (f"p: x -> x, all_reduce {first} 20", f"q: x -> x, all_reduce {second} 20")
        g = team("x 20", "f: -> x, 7 ns", *ops, groups=groups)
        programs.append((g, f"compute f; compute p {'abc'.index(first)}; compute q {'abc'.index(second)}"))
    t = perform(h, programs)
    assert t.blocked == tuple(
        f"rank {rank}: op 'p' (action 1) waits for rank {(rank + 1) % 3} to come to the collective of group '{group}'"
        for rank, group in enumerate("abc")
    )


def test_what_a_rank_lacks_itself_is_told_before_who_waits_for_it():
    """Rank 1 has no room for `sum`, so that rank 0 waits for it; the copy behind `sum` of rank 0 goes on."""
    h = cluster(2, hbm="60 B")
    groups = {"one": ((0, 1),)}
    a = team("a 20, w 10 persistent", "sum: -> a, all_reduce one 40", "g: w ->, 5 ns", groups=groups)
    b = team("a 20, b 50, w 10 persistent", "f: -> b, 5 ns", "sum: -> a, all_reduce one 40", "g: b w ->, 5 ns",
             groups=groups)  # fmt: skip
    programs = [(a, "compute sum 1; copy w ddr hbm; compute g; detach w hbm"),
                (b, "compute f; compute sum 1; copy w ddr hbm; compute g; detach w hbm")]  # fmt: skip
    t = perform(h, programs, "w ddr")
    assert t.blocked[0].startswith("rank 1: op 'sum' (action 1) waits for 20 B of room in hbm: 50 B of 60 B are held")
    assert t.blocked[-1] == "rank 0: op 'sum' (action 0) waits for rank 1 to come to the collective of group 'one'"
    assert spans(t, programs, h) == ["0: 0-10 h2d w", "0: 10-15 g", "1: 0-5 f"]
    assert stalls(t, programs) == ["0.0: 0-10 g transfer 1"]


def test_room_is_given_in_issue_order_between_streams():
    """What `t` takes would be lacking for `s2`, which `h` needs to free what `t` needs: all fits in issue order."""
    h = cluster(2, hbm="60 B")
    groups = {"one": ((0, 1),), "two": ((0, 1),)}
    ops = ("s1: -> c, all_reduce one 10", "s2: -> a, all_reduce one 40", "h: a ->, 5 ns",
           "t: -> b, all_reduce two 30", "m: b ->, 5 ns")  # fmt: skip
    g = team("a 40, b 30, c 10", *ops, groups=groups)
    text = "compute s1 1; compute s2 1; compute h; detach a hbm; compute t 2; compute m; detach b hbm; detach c hbm"
    programs = [(g, text)] * 2
    t = perform(h, programs)
    assert t.status == "ok", t.blocked
    assert spans(t, programs, h)[:5] == ["0: 0-10 s1", "0: 10-50 s2", "0: 50-55 h", "0: 55-85 t", "0: 85-90 m"]
    assert {"0.2: 0-10 t collective", "0.2: 10-55 t capacity 0"} < set(stalls(t, programs))


def test_to_stand_in_line_behind_a_collective_that_has_not_started_is_no_wait_for_room():
    """There is room for all; `f` stands behind `s2`, and that behind `s1`, for which a peer is late."""
    h = cluster(2, hbm="200 B")
    ops = ("s2: -> a, all_reduce all 40", "f: -> b, 5 ns")
    early = team("a 40, b 30, c 10", "s1: -> c, all_reduce all 10", *ops, groups=PAIR)
    late = team("a 40, b 30, c 10, d 1", "e: -> d, 20 ns", "s1: d -> c, all_reduce all 10", *ops, groups=PAIR)
    text = "compute s1 1; compute s2 1; compute f"
    programs = [(early, text), (late, f"compute e; {text}")]
    t = perform(h, programs)
    assert spans(t, programs, h)[:3] == ["0: 20-30 s1", "0: 30-70 s2", "0: 30-35 f"]
    assert stalls(t, programs) == [
        "0.0: 0-20 f peer 1", "0.0: 20-30 f collective", "0.1: 0-20 s1 peer 1",
        "1.0: 20-30 f collective", "1.1: 0-20 s1 order",
    ]  # fmt: skip


def test_a_line_that_leads_to_a_wait_for_room_is_one():
    """`f` stands behind `s`, which lacks the room that `k` holds until it has ended."""
    h = cluster(2, hbm="60 B")
    groups = {"one": ((0, 1),), "two": ((0, 1),)}
    ops = ("k: -> d, all_reduce two 40", "s1: -> c, all_reduce one 10", "s: -> a, all_reduce one 30", "f: -> b, 5 ns")
    g = team("a 30, b 5, c 10, d 40", *ops, groups=groups)
    programs = [(g, "compute k 2; detach d hbm; compute s1 1; compute s 1; compute f")] * 2
    t = perform(h, programs)
    assert spans(t, programs, h)[:4] == ["0: 0-50 k", "0: 0-20 s1", "0: 50-80 s", "0: 50-55 f"]
    assert stalls(t, programs)[:3] == ["0.0: 0-20 f collective", "0.0: 20-50 f capacity 0", "0.1: 20-50 s capacity 0"]


def test_a_copy_in_waits_in_line_for_room_too():
    h = cluster(2, hbm="60 B")
    groups = {"one": ((0, 1),), "two": ((0, 1),)}
    ops = ("s1: -> c, all_reduce one 10", "s2: -> a, all_reduce one 40", "h: a ->, 5 ns", "t: ->, all_reduce two 10",
           "m: w ->, 5 ns")  # fmt: skip
    g = team("w 30 persistent, a 40, c 10", *ops, groups=groups)
    text = "compute s1 1; compute s2 1; compute h; detach a hbm; compute t 2; copy w ddr hbm; compute m; detach w hbm"
    programs = [(g, f"{text}; detach c hbm")] * 2
    t = perform(h, programs, "w ddr")
    assert t.status == "ok", t.blocked
    assert spans(t, programs, h)[2:6] == ["0: 20-60 s2", "0: 60-65 h", "0: 65-95 h2d w", "0: 95-100 m"]


def test_what_goes_over_a_shared_bus_is_written_down_at_each_change():
    """The second copy begins at 40 and leaves the first one half of the bus; alone each takes 1 byte a ns."""
    h = cluster(2, buses={"pool": {"links": ["h2d"], "bandwidth": "1 GB/s", "scope": "node"}})
    early = team("w 80 persistent", "f: w ->, 1 ns", groups={})
    late = team("w 60 persistent", "g: ->, 40 ns", "h: ->, 1 ns", "f: w ->, 1 ns", groups={})
    programs = [(early, "copy w ddr hbm; compute f; detach w hbm"),
                (late, "compute g; compute h; copy w ddr hbm; compute f; detach w hbm")]  # fmt: skip
    t = perform(h, programs, "w ddr")
    assert spans(t, programs, h)[0] == "0: 0-120 h2d w"
    rates = t.rates.whole()
    found = zip(*(rates[name].tolist() for name in ("time_ns", "bus", "instance", "bytes_per_s")), strict=True)
    assert list(found) == [(0, 0, 0, 10**9), (40, 0, 0, 10**9), (120, 0, 0, 10**9), (140, 0, 0, 0)]
