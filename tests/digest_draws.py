"""What the cases whose digests are kept are drawn from: machines, graphs and plans of a few bytes and nanoseconds."""

from __future__ import annotations

from random import Random
from typing import Any

from walks import HBM, Walk

from simulator import Collective, CollectiveKind, Graph, GraphBuilder, Hardware, Plan
from simulator.lifetime import live_bytes
from simulator.plan import NOWHERE

RATES = ("0.25 GB/s", "1 GB/s", "3 GB/s", "0.7 GB/s", "inf")


class Draw(Random):
    """Draws from ranges and sequences by `choice` alone, which is the same in every version of Python."""

    def whole(self, low: int, high: int) -> int:
        """A whole number, both ends included."""
        return self.choice(range(low, high + 1))

    def happens(self, times: int, of: int) -> bool:
        """Whether something happens that does so many times of so many."""
        return self.choice(range(of)) < times

    def some(self, options: list[str], most: int) -> list[str]:
        """Different ones of the options, at most so many."""
        left = list(options)
        return [left.pop(self.choice(range(len(left)))) for _ in range(min(self.whole(0, most), len(left)))]


def _link(draw: Draw, source: str, target: str) -> dict[str, Any]:
    link: dict[str, Any] = {
        "source": source,
        "target": target,
        "bandwidth": draw.choice(RATES),
        "latency": f"{draw.whole(0, 5)} ns",
        "channels": draw.whole(1, 3),
        "sharing": draw.choice(("fifo", "fair", "servers")),
    }
    if draw.happens(1, 2):
        link["efficiency"] = [{"size": "4 B", "fraction": 0.25}, {"size": "32 B", "fraction": 1.0}]
    return link


def machine_of(draw: Draw) -> dict[str, Any]:
    """HBM and DDR, perhaps an SSD behind it and a pool beside it, a staged link, buses, and a shared copy queue."""
    tiers = {"hbm": {"capacity": "inf", "bandwidth": "1 TB/s"}, "ddr": {"capacity": "inf", "scope": "node"}}
    links = {"d2h": _link(draw, "hbm", "ddr"), "h2d": _link(draw, "ddr", "hbm")}
    if draw.happens(1, 2):
        tiers["ssd"] = {"capacity": "inf", "scope": "node"}
        links |= {"write": _link(draw, "ddr", "ssd"), "read": _link(draw, "ssd", "ddr")}
        if draw.happens(1, 3):
            links["direct"] = _link(draw, "ssd", "hbm")
        elif draw.happens(1, 2):
            chunk, channels = f"{draw.whole(1, 60)} B", draw.whole(1, 2)
            way = {"via": ["read", "h2d"], "chunk": chunk, "sharing": "servers", "channels": channels}
            links["direct"] = {"source": "ssd", "target": "hbm", **way}
        if draw.happens(1, 4):
            tiers["pool"] = {"capacity": "inf", "scope": "supernode"}
            links |= {"put": _link(draw, "hbm", "pool"), "get": _link(draw, "pool", "hbm")}
    costs = ("inspect", "compute", "copy", "detach", "sync", "select", "update")
    machine: dict[str, Any] = {
        "compute_tier": "hbm",
        "compute": {"peak": {"bf16": "1 TFLOP/s"}},
        "tiers": tiers,
        "links": links,
        "host": {
            "queue_depth": draw.choice((1, 2, 1024)),
            "fixed": {"launch": f"{draw.whole(0, 9)} ns", "step": f"{draw.whole(0, 3)} ns"},
            "reactive": {name: f"{draw.whole(0, 3)} ns" for name in costs},
        },
    }
    if draw.happens(1, 2) and (on_bus := draw.some(sorted(links), 3)):
        machine["buses"] = {"bus": {"links": on_bus, "bandwidth": draw.choice(RATES)}}
    together = draw.some(sorted(set(links) - {"direct"}), 4)
    if draw.happens(1, 4) and len(together) > 1:
        machine["copy_queues"] = {"copies": together}
        for name in together:
            links[name]["channels"] = links[together[0]]["channels"]
    return machine


def graph_of(draw: Draw, most_ops: int, most_steps: int, *, may_fence: bool = False) -> Graph:
    """A few ops in up to three phases: persistent tensors, in-place writes, workspaces, barriers, outputs."""
    builder, known, made = GraphBuilder("drawn"), [], []
    steps = draw.whole(1, most_steps)
    for i in range(draw.whole(0, 3)):
        builder.tensor(f"w{i}", draw.whole(0, 40), draw.choice(("weight", "optimizer_state")), persistent=True)
        known.append(f"w{i}")
    if steps == 1 and draw.happens(1, 2):
        builder.tensor("x", draw.whole(0, 40), "input")
        known.append("x")
    ops = draw.whole(1, most_ops)
    turn, has_barriers = draw.whole(0, ops), may_fence and draw.happens(1, 3)
    for i in range(ops):
        reads = draw.some(known, 3)
        writes = draw.some(known, 1) if draw.happens(1, 2) else []
        if draw.happens(3, 4) or not known:
            builder.tensor(f"a{i}", draw.whole(0, 40))
            known.append(f"a{i}")
            made.append(f"a{i}")
            writes.append(f"a{i}")
        builder.op(
            f"op{i}", reads, writes,
            phase="forward" if i < turn else "backward",
            workspace_bytes=draw.whole(0, 40) if draw.happens(1, 2) else 0,
            duration_ns=draw.whole(0, 30),
            repeatable=draw.happens(5, 6),
            barrier=has_barriers and draw.happens(1, 4),
        )  # fmt: skip
    return builder.build(draw.some(made, 2), steps)


def of_kind(graph: Graph, kind: str) -> set[int]:
    """Tensors of a kind."""
    return {t for t, tensor in enumerate(graph.tensors) if tensor.kind == kind}


def _least_bytes(graph: Graph, stays: set[int]) -> int:
    """The largest working set, with what stays in HBM."""
    size = [tensor.size_bytes for tensor in graph.tensors]
    return max(op.workspace_bytes + sum(size[t] for t in {*op.reads, *op.writes} | stays) for op in graph.ops)


def budget_of(draw: Draw, graph: Graph, stays: set[int]) -> int:
    """From what some op needs to somewhat more than all that is live; seldom a little too small [B]."""
    least, most = _least_bytes(graph, stays), int(live_bytes(graph).max())
    return max(1, least + draw.whole(-2, max(20, most - least + 20)))


def walk_of(
    draw: Draw, graph: Graph, machine: dict[str, Any], tiers: tuple[int, ...], streams: int
) -> tuple[Plan, int]:
    """A random plan for a graph, and its peak in HBM in issue order [B]."""
    document = {key: value for key, value in machine.items() if key != "assumed"}
    hardware = Hardware.model_validate({"schema": "hosim/hardware/1", "name": "drawn", **document})
    inputs = set(graph.inputs)
    home = [draw.choice(tiers) if t in inputs else NOWHERE for t in range(len(graph.tensors))]
    stays = {t for t, tier in enumerate(home) if tier == HBM}
    walk = Walk(draw.choice, graph, hardware, home, _least_bytes(graph, stays) + draw.whole(0, 80))
    walk.through(streams)
    plan = Plan("walk", hardware.tier_names, tuple(home), walk.steps, graph.steps)
    if streams == 1 and draw.happens(1, 2):
        codes = [*walk.steps.codes()] * graph.steps
        plan = Plan("walk", hardware.tier_names, tuple(home), lambda view: iter(codes))
    return plan, walk.peak[HBM]


def cluster_of(draw: Draw, ranks: int) -> dict[str, Any]:
    """A machine of so many devices on a fabric, on one node or two, that perhaps share wires."""
    machine, nodes = machine_of(draw), draw.choice((1, 2))
    machine.pop("copy_queues", None)
    machine["topology"] = {"devices_per_node": ranks // nodes, "nodes": nodes}
    rate, latency = draw.choice(("300 MB/s", "1 GB/s", "2500 MB/s")), f"{draw.whole(0, 3)} ns"
    machine["fabrics"] = {"net": {"scope": "supernode", "bandwidth": rate, "latency": latency}}
    buses = {"wire": ["h2d"], "both": ["h2d", "d2h"], "mixed": ["h2d", "net.in"]}
    machine["buses"] = {
        name: {"links": links, "bandwidth": draw.choice(RATES[:-1]), "scope": draw.choice(("device", "node"))}
        for name, links in buses.items()
        if draw.happens(1, 2)
    }
    return machine


def stage_of(draw: Draw, groups: dict[str, list[range]], half: int, part: str, steps: int) -> Graph:
    """Layers with weights that come and go, and collectives; the first half sends at its end, the second receives."""
    builder = GraphBuilder(part)
    for name, members in groups.items():
        builder.group(name, members)
    builder.group("next", [(r, r + half) for r in range(half)])
    builder.tensor("x", 10, persistent=True)
    builder.tensor("m", 7, persistent=True)
    kinds = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast")
    for i in range(draw.whole(1, 4)):
        builder.tensor(f"w{i}", draw.whole(1, 40), "weight", persistent=True)
        builder.tensor(f"y{i}", draw.whole(1, 20))
        builder.op(f"f{i}", ["x", f"w{i}"], ["x", f"y{i}"], duration_ns=draw.whole(0, 30), phase="forward")
        if draw.happens(1, 2):
            about = draw.choice(("x", f"y{i}"))
            met = Collective(CollectiveKind(draw.choice(kinds)), draw.choice(("tensor", "data")), draw.whole(0, 60))
            builder.op(f"c{i}", [about], [about], "collective", collective=met, phase="forward")
        if draw.happens(1, 2):
            builder.op(f"g{i}", [f"y{i}", f"w{i}"], ["x"], duration_ns=draw.whole(0, 30), phase="backward")
    if part != "only":
        met = Collective(CollectiveKind("send" if part == "first" else "recv"), "next", 30)
        builder.op("pass on", ["m"], ["m"], "collective", collective=met)
    return builder.build(steps=steps)
