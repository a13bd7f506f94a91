"""A collective that has its fabrics for itself takes exactly its closed form, for every member."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from rank_stories import perform, team
from stories import machine

from simulator.cost import durations_ns
from simulator.cost.collectives import algorithms, collective_ns
from simulator.graph import CollectiveKind
from simulator.hardware import Hardware

TOGETHER = [kind for kind in CollectiveKind if kind not in (CollectiveKind.SEND, CollectiveKind.RECV)]


@st.composite
def fabrics(draw, scope):
    return {
        "scope": scope,
        "bandwidth": f"{draw(st.integers(10**3, 10**12))} B/s",
        "planes": draw(st.integers(1, 7)),
        "latency": f"{draw(st.integers(0, 5_000))} ns",
        "achieved_bandwidth": draw(st.floats(0.01, 1)),
    }


@st.composite
def machines(draw):
    per_node, nodes = draw(st.integers(2, 4)), draw(st.integers(1, 3))
    document = machine(hbm="8 TiB").model_dump(by_alias=True)
    document["topology"] = {"devices_per_node": per_node, "nodes": nodes}
    document["fabrics"] = {"wide": draw(fabrics("supernode"))}
    if draw(st.booleans()):
        document["fabrics"]["near"] = draw(fabrics("node"))
        document["fabrics"]["wide"] |= draw(st.sampled_from([{}, {"chunk": f"{draw(st.integers(1, 10**8))} B"}]))
    return Hardware.model_validate(document)


@given(st.data(), machines(), st.integers(0, 10**9))
def test_a_collective_alone_takes_its_closed_form(data, hardware, size):
    ranks = range(hardware.topology.devices)
    members = tuple(data.draw(st.sampled_from([ranks, sorted(data.draw(st.sets(st.sampled_from(ranks), min_size=1)))])))
    kind = data.draw(st.sampled_from(TOGETHER))
    algorithm = data.draw(st.sampled_from(["auto", *(algorithms(kind, members, hardware) if len(members) > 1 else ())]))
    late = data.draw(st.integers(0, 100))
    meets = team(
        "a 4", f"f: -> a, {late} ns", f"all: a -> a, {kind} all {size} {algorithm}", groups={"all": (members,)}
    )
    alone = team("a 4", "f: -> a, 1 ns", groups={})
    trace = perform(
        hardware, [(meets, "compute f; compute all") if r in members else (alone, "compute f") for r in ranks]
    )
    spans = trace.spans.whole()
    times = [
        (rank, start, end)
        for rank, item, start, end in zip(
            *(spans[c].tolist() for c in ("rank", "item", "start_ns", "end_ns")), strict=True
        )
        if item == 1
    ]
    expected = collective_ns(meets.ops[1].collective, members, hardware)
    assert trace.status == "ok"
    assert sorted(times) == [(rank, late, late + expected) for rank in members]
    assert durations_ns(meets, hardware)[1] == expected


@given(st.data(), machines(), st.integers(0, 10**9))
def test_a_message_alone_takes_its_closed_form(data, hardware, size):
    source, target = data.draw(st.permutations(range(hardware.topology.devices)).map(lambda ranks: ranks[:2]))
    groups = {"next": ((source, target),)}
    give = team("a 4 persistent", f"give: a -> a, send next {size}", groups=groups)
    take = team("a 4 persistent", f"take: a -> a, recv next {size}", groups=groups)
    alone = team("a 4 persistent", "f: a -> a, 0 ns", groups={})
    programs = [(alone, "compute f")] * hardware.topology.devices
    programs[source], programs[target] = (give, "compute give"), (take, "compute take")
    trace = perform(hardware, programs, "a hbm")
    expected = collective_ns(give.ops[0].collective, (source, target), hardware)
    assert trace.status == "ok"
    assert max(trace.spans.whole()["end_ns"].tolist()) == expected == durations_ns(take, hardware)[0]
