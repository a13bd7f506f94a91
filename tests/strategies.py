"""Random graphs, machines and valid plans, small enough that a counterexample reads like a story.

Sizes are tens of bytes and rates about a byte per nanosecond, so that transfers and ops take about as long as each
other. A plan is made by a walk in issue order that fetches, stores and evicts at random and keeps what is live in
issue order within a budget; nothing here knows the project's policies.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from hypothesis import strategies as st
from walks import DDR, HBM, SSD, Walk

from simulator.graph import Graph
from simulator.graph_builder import GraphBuilder
from simulator.hardware import Allocator, Hardware
from simulator.plan import COMPUTE, COPY, DETACH, NOWHERE, Actions, Plan

sizes = st.integers(0, 40)
times = st.integers(0, 30)


@st.composite
def graphs(draw, max_ops: int = 6, max_steps: int = 3) -> Graph:
    """A graph of a few ops: persistent tensors, in-place writes, workspace, outputs, an input if it runs one step."""
    builder = GraphBuilder("random")
    steps = draw(st.integers(1, max_steps))
    known = []
    for i in range(draw(st.integers(0, 3))):
        builder.tensor(f"w{i}", draw(sizes), "weight", persistent=True)
        known.append(f"w{i}")
    if steps == 1 and draw(st.booleans()):
        builder.tensor("x", draw(sizes), "input")
        known.append("x")
    made = []
    for i in range(draw(st.integers(1, max_ops))):
        reads = draw(st.lists(st.sampled_from(known), max_size=3, unique=True)) if known else []
        writes = draw(st.lists(st.sampled_from(known), max_size=1)) if known and draw(st.booleans()) else []
        if draw(st.integers(0, 3)):
            builder.tensor(f"a{i}", draw(sizes))
            known.append(f"a{i}")
            made.append(f"a{i}")
            writes.append(f"a{i}")
        workspace = draw(sizes) if draw(st.booleans()) else 0
        repeatable = draw(st.integers(0, 5)) > 0
        builder.op(f"op{i}", reads, writes, workspace_bytes=workspace, duration_ns=draw(times), repeatable=repeatable)
    return builder.build(draw(st.lists(st.sampled_from(made), max_size=2, unique=True)) if made else [], steps)


rates = st.sampled_from(["0.25 GB/s", "1 GB/s", "3 GB/s", "0.7 GB/s", "inf"])


@st.composite
def links(draw, source: str, target: str, sharing: tuple[str, ...], *, flat: bool, one_channel: bool) -> dict[str, Any]:
    """One direction between two tiers."""
    link: dict[str, Any] = {
        "source": source,
        "target": target,
        "bandwidth": draw(rates),
        "latency": f"{draw(st.integers(0, 5))} ns",
        "channels": 1 if one_channel else draw(st.integers(1, 3)),
        "sharing": draw(st.sampled_from(sharing)),
    }
    if not flat and draw(st.booleans()):
        link["efficiency"] = [{"size": "4 B", "fraction": 0.25}, {"size": "32 B", "fraction": 1.0}]
    return link


@st.composite
def machines(
    draw,
    sharing: tuple[str, ...] = ("fifo", "fair", "servers"),
    *,
    buses: bool = True,
    queues: bool = True,
    host: bool = True,
    flat: bool = False,
    one_channel: bool = False,
    staged: bool = False,
) -> Hardware:
    """A device with memory below it: DDR, perhaps an SSD, links both ways, perhaps a bus, or a shared copy queue.

    A link past DDR is a wire or, with `staged`, perhaps goes via the others.
    """

    def link(source: str, target: str) -> dict[str, Any]:
        return draw(links(source, target, sharing, flat=flat, one_channel=one_channel))

    tiers = {"hbm": {"capacity": "inf", "bandwidth": "1 TB/s"}, "ddr": {"capacity": "inf", "scope": "node"}}
    found = {"d2h": link("hbm", "ddr"), "h2d": link("ddr", "hbm")}
    if draw(st.booleans()):
        tiers["ssd"] = {"capacity": "inf", "scope": "node"}
        found["write"] = link("ddr", "ssd")
        found["read"] = link("ssd", "ddr")
        if draw(st.booleans()):
            found["direct"] = link("ssd", "hbm")
            if staged and draw(st.booleans()):
                way = {"via": ["read", "h2d"], "chunk": f"{draw(st.integers(1, 60))} B", "sharing": "servers"}
                found["direct"] = {**way, "source": "ssd", "target": "hbm", "channels": draw(st.integers(1, 2))}
    document: dict[str, Any] = {
        "name": "random",
        "compute_tier": "hbm",
        "compute": {"peak": {"bf16": "1 TFLOP/s"}},
        "tiers": tiers,
        "links": found,
    }
    if buses and draw(st.booleans()):
        on_bus = draw(st.lists(st.sampled_from(sorted(found)), min_size=1, max_size=3, unique=True))
        document["buses"] = {"bus": {"links": on_bus, "bandwidth": draw(rates)}}
    if buses:
        for name in draw(st.lists(st.sampled_from(sorted(tiers.keys() - {"hbm"})), unique=True)):
            tiers[name]["bandwidth"] = draw(rates)
            for way in (way for way in found.values() if name in (way["source"], way["target"]) and "via" not in way):
                way["passes"] = draw(st.sampled_from([{}, {}, {name: 1}, {name: 3}]))
    if queues and draw(st.integers(0, 3)) == 0:
        together = draw(st.lists(st.sampled_from(sorted(found)), min_size=2, max_size=4, unique=True))
        document["copy_queues"] = {"copies": together}
        for name in together:
            found[name]["channels"] = found[together[0]]["channels"]
    if host:
        document["host"] = {
            "queue_depth": draw(st.sampled_from([1, 2, 1024])),
            "fixed": {"launch": f"{draw(st.integers(0, 9))} ns", "step": f"{draw(st.integers(0, 3))} ns"},
        }
    return Hardware.model_validate(document)


allocators = st.builds(
    lambda page, cost, pages, remaps, rounding: Allocator.model_validate(
        {
            "page": f"{page} B",
            "compaction": None if cost is None else {"per_page": f"{cost} ns", "pages": pages},
            "caching": {"rounding": f"{rounding} B", "small": "8 B", "small_segment": "16 B", "own_segment": "24 B",
                        "large_segment": "32 B", "segment_rounding": "16 B", "remaps": remaps},
        }
    ),
    st.integers(1, 20),
    st.none() | st.integers(0, 5),
    st.sampled_from(["in_use", "moved"]),
    st.booleans(),
    st.sampled_from([1, 4, 8]),
)  # fmt: skip
"""Pages, prices and pools of a few bytes."""


@dataclass(frozen=True)
class Case:
    """A graph on a machine under a valid fixed plan, with the budget that its issue order keeps to."""

    graph: Graph
    hardware: Hardware
    plan: Plan
    budget_bytes: int
    peaks: tuple[int, ...]

    def _repr_pretty_(self, printer, cycle) -> None:
        printer.text(repr(self))

    def __repr__(self) -> str:
        ops = [(op.name, op.reads, op.writes, op.workspace_bytes, op.duration_ns) for op in self.graph.ops]
        return (
            f"Case(steps={self.graph.steps}, tensors={[(t.name, t.size_bytes) for t in self.graph.tensors]}, "
            f"ops={ops}, outputs={self.graph.outputs}, home={self.plan.home}, budget={self.budget_bytes}, "
            f"plan={list(self.plan.fixed or ())}, "
            f"hardware={self.hardware.model_dump(include={'links', 'buses', 'host', 'tiers'}, exclude_defaults=True)})"
        )


@st.composite
def homes(draw, graph: Graph, hardware: Hardware, tiers: tuple[int, ...] = (HBM, DDR, SSD)) -> list[int]:
    """A home for what exists before the first op."""
    some = [tier for tier in tiers if tier < len(hardware.tiers)]
    exists = set(graph.inputs)
    return [draw(st.sampled_from(some)) if t in exists else NOWHERE for t in range(len(graph.tensors))]


def least_budget(graph: Graph, home: list[int]) -> int:
    """What any walk needs: the largest working set, or what is at home in HBM, and two tensors on their way out."""
    size = [t.size_bytes for t in graph.tensors]
    working = max(op.workspace_bytes + sum(size[t] for t in {*op.reads, *op.writes}) for op in graph.ops)
    return max(working, sum(s for s, h in zip(size, home, strict=True) if h == HBM))


@st.composite
def cases(
    draw,
    sharing: tuple[str, ...] = ("fifo", "fair", "servers"),
    *,
    max_ops: int = 6,
    max_steps: int = 3,
    ample: bool = False,
    buses: bool = True,
    queues: bool = True,
    host: bool = True,
    flat: bool = False,
    one_channel: bool = False,
    streams: int = 1,
) -> Case:
    """A graph, a machine and a valid plan; tiers are as tight as issue order allows, unless `ample`."""
    graph = draw(graphs(max_ops=max_ops, max_steps=max_steps))
    hardware = draw(machines(sharing, buses=buses, queues=queues, host=host, flat=flat, one_channel=one_channel))
    home = draw(homes(graph, hardware))
    slack = 10**6 if ample else draw(st.integers(0, 80))
    room = least_budget(graph, home) + slack
    walk = Walk(lambda options: draw(st.sampled_from(options)), graph, hardware, home, room)
    walk.through(streams)
    plan = Plan("random", hardware.tier_names, tuple(home), walk.steps, graph.steps)
    budget = max(walk.peak[HBM], 1)
    if ample:
        budget = 10**9
    elif draw(st.booleans()):
        hardware = tighten(hardware, walk.peak)
    return Case(graph, hardware, plan, budget, tuple(walk.peak))


def tighten(hardware: Hardware, peaks: list[int]) -> Hardware:
    """The same machine with no more room below HBM than issue order needs."""
    tiers = {
        name: tier if i == HBM else tier.model_copy(update={"capacity_bytes": peaks[i] + tier.staging_bytes})
        for i, (name, tier) in enumerate(hardware.tiers.items())
    }
    return hardware.model_copy(update={"tiers": tiers})


def with_links(hardware: Hardware, **update: Any) -> Hardware:
    """The same machine with fields of all its links changed."""
    changed = {name: link.model_copy(update=update) for name, link in hardware.links.items()}
    return hardware.model_copy(update={"links": changed})


def with_host(hardware: Hardware, **update: Any) -> Hardware:
    """The same machine with fields of its host changed."""
    return hardware.model_copy(update={"host": hardware.host.model_copy(update=update)})


def scaled(case: Case, factor: int) -> Case:
    """The same case with all bytes and byte rates multiplied."""
    tensors = tuple(replace(t, size_bytes=t.size_bytes * factor) for t in case.graph.tensors)
    ops = tuple(replace(op, workspace_bytes=op.workspace_bytes * factor) for op in case.graph.ops)
    hardware = case.hardware
    tiers = {
        n: t.model_copy(
            update={
                "capacity_bytes": t.capacity_bytes * factor,
                "bandwidth_bytes_per_s": t.bandwidth_bytes_per_s and t.bandwidth_bytes_per_s * factor,
            }
        )
        for n, t in hardware.tiers.items()
    }
    changed = {
        n: k.model_copy(update={"bandwidth_bytes_per_s": k.bandwidth_bytes_per_s * factor})
        for n, k in hardware.links.items()
    }
    buses = {
        n: b.model_copy(update={"bandwidth_bytes_per_s": b.bandwidth_bytes_per_s * factor})
        for n, b in hardware.buses.items()
    }
    return Case(
        replace(case.graph, tensors=tensors, ops=ops),
        hardware.model_copy(update={"tiers": tiers, "links": changed, "buses": buses}),
        case.plan,
        case.budget_bytes * factor,
        tuple(p * factor for p in case.peaks),
    )


def leaves_unused(case: Case) -> bool:
    """Whether a tensor is copied into HBM and leaves it again before an op uses it, within a step or across two."""
    fresh: set[int] = set()
    for kind, a, tier, target in [*(case.plan.fixed or Actions()).codes()] * 2:
        if kind == COMPUTE:
            fresh -= {*case.graph.ops[a].reads, *case.graph.ops[a].writes}
        elif kind in {COPY, DETACH} and tier == HBM and a in fresh:
            return True
        elif kind == COPY and target == HBM:
            fresh.add(a)
    return False
