"""Staged links: the closed form, the bandwidth that they share, and the room that they keep."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from simulator import engine, referee
from simulator.cost import durations_ns
from simulator.cost.service import transfer_ns
from simulator.errors import InvariantError
from simulator.hardware import Hardware
from simulator.metrics import summarise
from simulator.plan import Plan
from tests.stories import graph, play, steps, timeline

READ = {"source": "ssd", "target": "ddr"}
H2D = {"source": "ddr", "target": "hbm"}
OVER = {"source": "ssd", "target": "hbm", "via": ["read", "h2d"]}


def deep(read: str = "1 GB/s", h2d: str = "4 GB/s", chunk: str = "4 B", ddr: str = "inf", **more: Any) -> Hardware:
    """HBM, DDR and an SSD; 1 GB/s is 1 byte per ns, and `over` goes from the SSD to HBM without a stop."""
    links = {
        "read": {**READ, "bandwidth": read, **more.pop("on_read", {})},
        "h2d": {**H2D, "bandwidth": h2d, **more.pop("on_h2d", {})},
        "over": {**OVER, "chunk": chunk, **more.pop("on_over", {})},
    }
    return Hardware.model_validate(
        {
            "name": "deep",
            "compute_tier": "hbm",
            "compute": {"peak": {"bf16": "1 TFLOP/s"}},
            "tiers": {
                "hbm": {"capacity": "1000 B", "bandwidth": "1 GB/s"},
                "ddr": {"capacity": ddr, "scope": "node"},
                "ssd": {"capacity": "inf", "scope": "node"},
            },
            "links": links,
            **more,
        }
    )


def chunk_by_chunk(chunks: int, times: list[Fraction], room: int) -> Fraction:
    """When the last chunk is across: each link moves one at a time, each tier between has room for so many."""
    ends = [[Fraction(0)] * chunks for _ in times]
    for j in range(chunks):
        for i, takes in enumerate(times):
            ready = [ends[i][j - 1]] * (j > 0) + [ends[i - 1][j]] * (i > 0)
            if i + 1 < len(times) and j >= room:
                ready.append(ends[i + 1][j - room])
            ends[i][j] = max(ready, default=Fraction(0)) + takes
    return ends[-1][-1]


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 9), st.integers(1, 7), st.tuples(*2 * [st.sampled_from([1, 2, 4, 8])]))
def test_alone_it_takes_what_chunks_in_a_pipeline_take(chunks, chunk, rates):
    machine = deep(f"{rates[0]} GB/s", f"{rates[1]} GB/s", f"{chunk} B")
    size = chunks * chunk
    times = [Fraction(chunk, rate) for rate in rates]
    exact = chunk_by_chunk(chunks, times, room=2)
    fill = min(times)
    assert exact == fill + Fraction(size, min(rates))
    takes = transfer_ns(size, machine.links["over"])
    assert takes == -(-fill // 1) + -(-Fraction(size, min(rates)) // 1), "each part ends on a whole ns"
    g = graph(f"w {size} input", "f: w -> , 1 ns")
    trace = play(machine, g, "copy w ssd hbm; compute f", "w ssd")
    assert timeline(trace, g, machine)[0] == f"0-{takes} over w", "the engine agrees to the nanosecond"


def test_two_chunks_of_room_are_what_lets_links_work_side_by_side():
    times = [Fraction(1), Fraction(3), Fraction(2)]
    in_turn, enough, more = (chunk_by_chunk(10, times, room) for room in (1, 2, 3))
    assert enough == more == 6 + 9 * 3
    assert in_turn > enough


def test_three_links_fill_two_tiers():
    machine = Hardware.model_validate(
        {
            "name": "deeper",
            "compute_tier": "hbm",
            "compute": {"peak": {"bf16": "1 TFLOP/s"}},
            "tiers": {
                "hbm": {"capacity": "1 kB", "bandwidth": "1 GB/s"},
                "ddr": {"capacity": "100 B"},
                "pool": {"capacity": "100 B", "scope": "supernode"},
                "ssd": {"capacity": "inf"},
            },
            "links": {
                "read": {"source": "ssd", "target": "pool", "bandwidth": "2 GB/s", "latency": "5 ns"},
                "pull": {"source": "pool", "target": "ddr", "bandwidth": "1 GB/s", "latency": "3 ns"},
                "h2d": {"source": "ddr", "target": "hbm", "bandwidth": "4 GB/s"},
                "over": {"source": "ssd", "target": "hbm", "via": ["read", "pull", "h2d"], "chunk": "8 B"},
            },
            "topology": {"devices_per_node": 2},
        }
    )
    assert transfer_ns(80, machine.links["over"]) == 5 + 3 + (4 + 2) + 80
    assert (machine.tiers["ddr"].staging_bytes, machine.tiers["ddr"].usable_bytes) == (16, 84)
    assert machine.tiers["pool"].staging_bytes == 32, "each device that shares the tier has chunks of its own there"


def test_latencies_come_first_and_take_no_bandwidth():
    machine = deep(on_read={"latency": "10 ns"}, on_h2d={"latency": "2 ns"})
    g = graph("w 40 input, x 8 input", "f: w x -> , 1 ns")
    trace = play(machine, g, "copy w ssd hbm; copy x ddr hbm; compute f", "w ssd, x ddr")
    assert timeline(trace, g, machine) == ["0-53 over w", "0-4 h2d x", "53-54 f"]
    assert machine.links["over"].latency_ns == 12


def test_it_shares_what_it_goes_via():
    machine = deep(read="2 GB/s", h2d="2 GB/s")
    g = graph("w 40 input, x 40 input", "f: w x -> , 1 ns")
    trace = play(machine, g, "copy w ssd hbm; copy x ddr hbm; compute f", "w ssd, x ddr")
    # a chunk of 4 B fills for 2 ns, while x has 2 B/ns of h2d; then both have 1 B/ns: x has 36 B left and ends at 38,
    # when w has 4 B left, which take 2 ns
    assert timeline(trace, g, machine) == ["0-40 over w", "0-38 h2d x", "40-41 f"]


def test_a_bus_over_both_links_of_the_way_carries_each_byte_twice():
    machine = deep(read="4 GB/s", h2d="4 GB/s", buses={"dram": {"links": ["read", "h2d"], "bandwidth": "4 GB/s"}})
    g = graph("w 40 input", "f: w -> , 1 ns")
    trace = play(machine, g, "copy w ssd hbm; compute f", "w ssd")
    assert timeline(trace, g, machine) == ["0-21 over w", "21-22 f"]


def test_one_server_carries_one_copy():
    servers = {"sharing": "servers", "channels": 4}
    machine = deep(read="4 GB/s", h2d="8 GB/s", on_read=servers)
    assert transfer_ns(40, machine.links["over"]) == 1 + 40, "one copy gets one of the four servers, 1 B/ns"
    machine = deep(read="4 GB/s", h2d="8 GB/s", on_read=servers, on_over=servers)
    g = graph(", ".join(f"w{i} 40 input" for i in range(5)), "f: w0 w1 w2 w3 w4 -> , 1 ns")
    text = "; ".join(f"copy w{i} ssd hbm" for i in range(5)) + "; compute f"
    trace = play(machine, g, text, ", ".join(f"w{i} ssd" for i in range(5)))
    assert timeline(trace, g, machine) == [*(f"0-41 over w{i}" for i in range(4)), "41-82 over w4", "82-83 f"]
    assert machine.tiers["ddr"].staging_bytes == 4 * 2 * 4


def test_reading_and_writing_an_ssd_may_differ():
    on_ssd = {"sharing": "servers", "channels": 2}
    machine = deep(read="4 GB/s", on_read=on_ssd, h2d="8 GB/s")
    document = machine.model_dump(mode="json", by_alias=True, exclude_unset=True)
    document["links"]["write"] = {"source": "ddr", "target": "ssd", "bandwidth": "1 GB/s", **on_ssd}
    machine = Hardware.model_validate(document)
    g = graph("a 20 input, b 20 input, c 20 input, x 20 input, y 20 input", "f: -> , 1 ns")
    text = "copy a ssd ddr; copy b ssd ddr; copy c ssd ddr; copy x ddr ssd; copy y ddr ssd; compute f"
    trace = play(machine, g, text, "a ssd, b ssd, c ssd, x ddr, y ddr")
    assert sorted(timeline(trace, g, machine)) == [
        "0-1 f", "0-10 read a", "0-10 read b", "0-40 write x", "0-40 write y", "10-20 read c"
    ]  # fmt: skip


def test_its_own_rate_and_latency_may_be_stated():
    machine = deep(on_over={"bandwidth": "0.5 GB/s", "latency": "7 ns"})
    assert transfer_ns(40, machine.links["over"]) == 7 + 1 + 80
    again = Hardware.model_validate(machine.model_dump(mode="json", by_alias=True))
    assert again.links["over"].bandwidth_bytes_per_s == machine.links["over"].bandwidth_bytes_per_s
    assert "bandwidth_bytes_per_s" not in deep().links["over"].model_fields_set, "what follows was not stated"


def test_a_faster_way_makes_it_faster():
    machine = deep()
    links = {**machine.links, "read": machine.links["read"].model_copy(update={"bandwidth_bytes_per_s": 2 * 10**9})}
    assert machine.with_links(links).links["over"].bandwidth_bytes_per_s == 2 * 10**9


def test_the_referee_counts_what_goes_via_a_link():
    machine = deep(read="2 GB/s", h2d="2 GB/s")
    g = graph("w 40 persistent, x 40 persistent", "f: w x -> , 1 ns")
    text = "copy w ssd hbm; copy x ddr hbm; compute f; detach w hbm; detach x hbm"
    trace = play(machine, g, text, "w ssd, x ddr")
    homes = tuple(machine.tier_names.index(tier) for tier in ("ssd", "ddr"))
    plan = Plan("story", machine.tier_names, homes, steps(g, machine, text), 1)
    referee.check_trace(g, machine, [plan], trace)
    crowded = machine.model_dump(mode="json", by_alias=True, exclude_unset=True)
    crowded["links"]["h2d"]["bandwidth"] = "1.9 GB/s"
    crowded["links"]["over"]["bandwidth"] = "1.9 GB/s"
    with pytest.raises(InvariantError, match=r"link 'h2d' of rank 0.*carries at most its bandwidth"):
        referee.check_trace(g, Hardware.model_validate(crowded), [plan], trace)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"via": ["read", "h2s"]}, "a link goes via other links.*'h2s'"),
        ({"via": ["h2d", "read"]}, "the links that a link goes via connect"),
        ({"via": ["read"]}, "via two others at least"),
        ({"via": ["read", "over"]}, "links that are wires"),
        ({"target": "ddr"}, "end at its target"),
        ({"chunk": "0 B"}, "stores and forwards chunks"),
        ({"chunk": "60 B"}, "has room for the chunks.*make it at least .* the chunks smaller"),
        ({"channels": 2}, "several channels over servers are servers"),
    ],
)
def test_a_way_that_is_none_is_refused(more, message):
    servers = {"sharing": "servers", "channels": 2} if "channels" in more else {}
    with pytest.raises(ValidationError, match=message):
        deep(ddr="100 B", on_over=more, on_read=servers)


def test_chunks_of_all_links_that_find_no_room_are_one_message():
    """24 B each, of which DDR has room for those of one."""
    back = {"source": "hbm", "target": "ssd", "via": ["d2h", "write"], "chunk": "12 B"}
    ways = {"d2h": ("hbm", "ddr"), "write": ("ddr", "ssd")}
    links = {name: {"source": a, "target": b, "bandwidth": "1 GB/s"} for name, (a, b) in ways.items()}
    document = deep(chunk="12 B").model_dump(mode="json", by_alias=True)
    document["links"] |= links | {"back": back}
    document["tiers"]["ddr"]["capacity"] = "30 B"
    with pytest.raises(
        ValidationError, match="48 B of chunks of over and back and 30 B of room; make it at least 48 B"
    ):
        Hardware.model_validate(document)


def test_a_link_has_a_bandwidth_or_a_way():
    with pytest.raises(ValidationError, match=r"a link has a bandwidth, or goes via others, found neither"):
        deep(on_over={"via": []})


def test_ranks_share_the_drives_and_may_stand_for_one_another():
    drives = {"drives": {"links": ["read"], "bandwidth": "2 GB/s", "scope": "node"}}
    machine = deep(read="2 GB/s", h2d="8 GB/s", topology={"devices_per_node": 4}, buses=drives)
    g = graph("w 40 persistent, x 40 persistent", "f: w x -> , 1 ns")
    homes = tuple(machine.tier_names.index(tier) for tier in ("ssd", "ddr"))
    text = "copy w ssd hbm; copy x ddr hbm; compute f; detach w hbm; detach x hbm"
    plan = Plan("story", machine.tier_names, homes, steps(g, machine, text), 1)
    program = engine.Program(g, plan, durations_ns(g, machine))
    folded, whole = (engine.run(4 * [program], machine, fold=fold) for fold in ("always", "never"))
    ends = whole.spans.whole()
    assert set(ends["rank"].tolist()) == {0, 1, 2, 3}
    assert folded.spans.whole()["end_ns"].tolist() == ends["end_ns"][ends["rank"] == 0].tolist()
    # each has 0.5 B/ns of the drives: a chunk of 4 B passes h2d in half a ns, which makes one, and then 40 B flow
    assert timeline(folded, g, machine)[0] == "0-81 over w"
    for trace in (folded, whole):
        referee.check_trace(g, machine, 4 * [plan], trace)
    assert machine.tiers["ddr"].staging_bytes == 4 * 2 * 4


def test_what_a_staged_link_carries_counts_on_the_links_below_too():
    h, g = deep(), graph("w 12 persistent, v 8 persistent", "f: w v ->, 5 ns")
    t = play(h, g, "copy w ssd hbm; copy v ddr hbm; compute f; detach v hbm; detach w hbm", "w ssd, v ddr")
    row = summarise(g, h, t)
    assert [row[f"moved_{name}_bytes"] for name in ("read", "h2d", "over")] == [12, 20, 12]
