"""Jobs of ranks that meet, drawn at random, with their machines."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import strategies as st
from rank_stories import cluster, team
from stories import steps

from simulator import engine
from simulator.cost import durations_ns
from simulator.graph import Collective, CollectiveKind, Graph, Group, OpKind
from simulator.hardware import DevicePace
from simulator.plan import COMPUTE, NOWHERE, Actions, Plan

RANKS = 8
KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast")


def bandwidth(draw):
    return f"{draw(st.sampled_from([300, 700, 1000, 2500]))} MB/s"


@st.composite
def machines(draw):
    buses = {}
    for name, links in (("pool", ["h2d"]), ("both", ["h2d", "d2h"]), ("mixed", ["h2d", "net.in"])):
        if draw(st.booleans()):
            scope = draw(st.sampled_from(["device", "node", "supernode"]))
            buses[name] = {"links": links, "bandwidth": bandwidth(draw), "scope": scope}
    link = {"channels": draw(st.integers(1, 2)), "sharing": draw(st.sampled_from(["fifo", "fair", "servers"]))}
    nodes = draw(st.sampled_from([1, 2, 4]))
    latency = f"{draw(st.integers(0, 3))} ns"
    h = cluster(RANKS, nodes, latency=latency, scope="supernode", buses=buses, hbm="200 B", h2d=link, d2h=link)
    rate = draw(st.sampled_from([None, 10**9, 3 * 10**9]))
    ddr = h.tiers["ddr"].model_copy(update={"bandwidth_bytes_per_s": rate})
    return h.model_copy(update={"tiers": {**h.tiers, "ddr": ddr}})


def partition(draw, ranks, least=1):
    size = draw(st.sampled_from([n for n in (1, 2, 4, 8) if least <= n <= len(ranks) and len(ranks) % n == 0]))
    return tuple(tuple(ranks[i : i + size]) for i in range(0, len(ranks), size))


@st.composite
def contended(draw):
    """A job with little memory bandwidth; some kernels take as long as their traffic, on two streams or one."""
    programs, hardware = draw(jobs())
    document = hardware.model_dump(by_alias=True)
    document["tiers"]["hbm"] |= {"bandwidth": f"{draw(st.integers(1, 4))} GB/s", "shared": draw(st.booleans())}
    hardware = type(hardware).model_validate(document)
    known = {}
    for program in programs:
        if id(program) not in known:
            ops = tuple(
                replace(op, duration_ns=None, read_bytes=draw(st.integers(0, 50)), flops=draw(st.integers(0, 20_000)))
                if op.collective is None and draw(st.booleans())
                else op
                for op in program.graph.ops
            )
            g = replace(program.graph, ops=ops)
            codes = [*program.plan.fixed.codes()]
            modelled = [i for i, op in enumerate(ops) if op.collective is None and op.duration_ns is None]
            aside = draw(st.sampled_from(modelled)) if modelled and not hardware.shares_memory else -1
            columns = zip(*((k, a, 7 if (k, a) == (COMPUTE, aside) else b, c) for k, a, b, c in codes), strict=True)
            plan = replace(program.plan, actions=Actions.from_columns(*map(list, columns)))
            known[id(program)] = engine.Program(g, plan, durations_ns(g, hardware))
    return [known[id(program)] for program in programs], hardware


@st.composite
def jobs(draw, max_steps=1):
    """One graph for all ranks, or a first half that sends to a second half."""
    repeats = draw(st.integers(1, max_steps))
    halves = draw(st.booleans())
    classes = [tuple(range(4)), tuple(range(4, 8))] if halves else [tuple(range(8))]
    groups = {f"g{i}": sum((partition(draw, ranks) for ranks in classes), ()) for i in range(draw(st.integers(1, 2)))}
    # the whole partition must look the same to every rank of a class; equal parts of equal size do
    streams = {name: draw(st.integers(0, 2)) for name in groups}
    groups["next"] = tuple((r, r + 4) for r in range(4))
    programs = []
    hardware = draw(machines())
    for number, _ in enumerate(classes):
        ops, text = [], []
        count = draw(st.integers(1, 5))
        tensors = [f"w{i} {draw(st.integers(1, 40))} persistent" for i in range(count)]
        tensors += [*(f"y{i} 3 persistent" for i in range(count)), "x 10 persistent", "m 7 persistent"]
        for i in range(count):
            text.append(f"copy w{i} ddr hbm")
            ops.append(f"f{i}: w{i} x -> x, {draw(st.integers(0, 30))} ns")
            text.append(f"compute f{i}")
            if draw(st.booleans()):
                group = draw(st.sampled_from([g for g in groups if g != "next"]))
                about = draw(st.sampled_from(["x", f"y{i}"]))  # one that the next op needs, or one that nothing does
                what = f"{draw(st.sampled_from(KINDS))} {group} {draw(st.integers(0, 60))}"
                ops.append(f"c{i}: {about} -> {about}, {what}")
                text.append(f"compute c{i} {streams[group]}")
            text.append(f"detach w{i} hbm")
        if halves:
            ops.append("give: m -> m, send next 30" if number == 0 else "take: m -> m, recv next 30")
            text.append(f"compute {'give' if number == 0 else 'take'} {draw(st.integers(0, 2))}")
        g = team(", ".join(tensors), *ops, groups=groups, steps=repeats)
        home = tuple(1 if t.name.startswith("w") else 0 if t.persistent else NOWHERE for t in g.tensors)
        plan = Plan("story", hardware.tier_names, home, steps(g, hardware, "; ".join(text)), repeats)
        programs += [engine.Program(g, plan, durations_ns(g, hardware))] * (4 if halves else 8)
    return programs, hardware


BOTH = ((0, 1),)
EACH = ((0,), (1,))
KINDS_OF_TWO = tuple(CollectiveKind(kind) for kind in KINDS[:-1])


@st.composite
def meeting(draw, graph: Graph) -> Graph:
    """The same graph, some of its ops collectives of one of two groups, the others perhaps on several streams."""
    groups = tuple(Group(name, draw(st.sampled_from([BOTH, BOTH, EACH]))) for name in ("one", "two"))
    ops, streams = [], draw(st.sampled_from([(0,), (0,), (0, 0, 1), (0, 2, 1)]))
    for op in graph.ops:
        if draw(st.booleans()):
            kind, group = draw(st.sampled_from(KINDS_OF_TWO)), draw(st.sampled_from(groups)).name
            collective = Collective(kind, group, draw(st.integers(0, 40)))
            ops.append(replace(op, kind=OpKind.COLLECTIVE, collective=collective, duration_ns=None, repeatable=False))
        else:
            ops.append(replace(op, stream=draw(st.sampled_from(streams))))
    return replace(graph, ops=tuple(ops), groups=groups)


@st.composite
def paces(draw, ranks=RANKS):
    """The pace of some ranks, alone or several at a time."""
    ends = sorted(draw(st.lists(st.integers(0, ranks - 1), min_size=1, max_size=4, unique=True)))
    factor, size = st.sampled_from([0.3, 0.5, 1.0, 1.25, 4.0]), st.sampled_from([0.7, 1.0, 1.0, 1.5])
    spans = zip(ends, [*(end - 1 for end in ends[1:]), ranks - 1], strict=True)
    keys = [f"{first}-{last}" if draw(st.booleans()) else str(first) for first, last in spans]
    return {key: DevicePace(compute=draw(factor), memory=draw(factor), capacity=draw(size)) for key in keys}


def unlike(programs, hardware, ranks):
    """The same on a machine whose ranks have these paces; programs of like devices stay one object."""
    hardware, known, found = hardware.model_copy(update={"ranks": ranks}), {}, []
    for ran, device in zip(programs, hardware.devices(len(programs)), strict=True):
        if (key := (id(ran), id(device))) not in known:
            is_plain = device is hardware
            known[key] = ran if is_plain else replace(ran, durations_ns=durations_ns(ran.graph, device), device=device)
        found.append(known[key])
    return found, hardware
