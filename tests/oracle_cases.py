"""Random runs of what the second simulator knows beside one rank that counts bytes: ranks, ways, choices, holes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dynamic_cases import DDR, HBM, on_demand, plan_of
from dynamic_strategies import graphs_of, origins, seeds
from dynamic_strategies import machines as dynamic_machines
from hypothesis import strategies as st
from strategies import allocators, cases, graphs, homes, least_budget, links, machines, rates, tighten, with_links
from walks import SSD, Walk

from simulator.cost import durations_ns
from simulator.draws import drawn
from simulator.engine import Program
from simulator.graph import Collective, CollectiveKind, Graph, Group, OpKind, Tensor
from simulator.hardware import Compaction, Hardware
from simulator.plan import Plan

KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast")
TREES = ("all_reduce", "broadcast")


@dataclass(frozen=True)
class Run:
    """What runs: a program for each rank, a machine, and a budget of the compute tier."""

    programs: Sequence[Program]
    hardware: Hardware
    budget_bytes: int

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(repr(self))

    def __repr__(self) -> str:
        shown = {"host", "tiers", "links", "buses", "copy_queues", "topology", "fabrics", "allocator"}
        told = [
            (p.plan.home, p.starts_ns, p.allocator, list(p.plan.fixed or ()),
             [(op.name, op.reads, op.writes, op.workspace_bytes, op.duration_ns, op.collective) for op in p.graph.ops])
            for p in self.programs
        ]  # fmt: skip
        return (
            f"Run({told}, groups={self.programs[0].graph.groups}, "
            f"tensors={[(t.name, t.size_bytes) for t in self.programs[0].graph.tensors]}, "
            f"steps={self.programs[0].graph.steps}, budget={self.budget_bytes}, "
            f"{self.hardware.model_dump(include=shown, exclude_defaults=True)})"
        )


class OwnStreams(Walk):
    """A walk whose collectives run on a stream of their group, and all else on stream 0."""

    streams: dict[int, int]

    def run(self, op: int, stream: int) -> None:
        """Run an op on its stream."""
        super().run(op, self.streams.get(op, stream))


def _walk(
    draw: Callable[..., Any], graph: Graph, hardware: Hardware, streams: dict[int, int],
    tiers: tuple[int, ...] = (HBM, DDR, SSD),
) -> OwnStreams:  # fmt: skip
    """Walk through a graph, in as much room as is drawn, with homes among these tiers."""
    home = draw(homes(graph, hardware, tiers))
    room = least_budget(graph, home) + draw(st.integers(0, 60))
    walk = OwnStreams(lambda options: draw(st.sampled_from(options)), graph, hardware, home, room)
    walk.streams = streams
    walk.through()
    return walk


def _plan(walk: Walk, graph: Graph, hardware: Hardware) -> Plan:
    return Plan("random", hardware.tier_names, tuple(walk.home), walk.steps, graph.steps)


@st.composite
def clusters(draw, ranks: int) -> Hardware:
    """A machine of several devices, whose ranks share tiers and buses, joined by one or two fabrics."""
    document = draw(machines(queues=False)).model_dump(by_alias=True)
    nodes = draw(st.sampled_from([1, 2])) if ranks % 2 == 0 else 1
    document["topology"] = {"devices_per_node": ranks // nodes, "nodes": nodes}

    def fabric(scope: str) -> dict[str, Any]:
        chunk = {"chunk": f"{draw(st.integers(1, 30))} B"} if scope == "supernode" and draw(st.booleans()) else {}
        return {"scope": scope, "bandwidth": draw(st.sampled_from(["0.3 GB/s", "1 GB/s", "2.5 GB/s"])),
                "planes": draw(st.integers(1, 2)), "latency": f"{draw(st.integers(0, 4))} ns",
                "achieved_bandwidth": draw(st.sampled_from([1.0, 0.7])), **chunk}  # fmt: skip

    document["fabrics"] = {"wide": fabric("supernode")}
    if ranks // nodes > 1 and draw(st.booleans()):
        document["fabrics"]["near"] = fabric("node")
    capped = [*document["links"], *(f"{name}.{way}" for name in document["fabrics"] for way in ("out", "in"))]
    for i in range(draw(st.integers(0, 2))):
        names = draw(st.lists(st.sampled_from(capped), min_size=1, max_size=3, unique=True))
        scope = draw(st.sampled_from(["device", "node", "supernode"]))
        document["buses"][f"shared{i}"] = {"links": names, "bandwidth": draw(rates), "scope": scope}
    return Hardware.model_validate(document)


@st.composite
def ranks_that_meet(draw, most: int = 4) -> Run:
    """Ranks that meet: all do the same, or each runs the same ops at its own pace by a plan of its own."""
    ranks = draw(st.integers(2, most))
    hardware, graph = draw(clusters(ranks)), draw(graphs(max_steps=2))
    pairs = tuple((r, r + 1) for r in range(0, ranks - 1, 2))
    splits = [tuple((r,) for r in range(ranks)), (tuple(range(ranks)),), (*pairs, *[(ranks - 1,)] * (ranks % 2))]
    groups = [Group(f"g{i}", draw(st.sampled_from(splits))) for i in range(draw(st.integers(1, 2)))]
    met: dict[int, Collective] = {}
    for op in range(len(graph.ops)):
        if draw(st.booleans()):
            group = draw(st.sampled_from([g.name for g in groups] + ["next"] * (len(pairs) * 2 == ranks)))
            kind = CollectiveKind.SEND if group == "next" else CollectiveKind(draw(st.sampled_from(KINDS)))
            algorithms = (
                ["auto"] if kind == CollectiveKind.SEND else ["auto", "ring", "tree" if kind in TREES else "direct"]
            )
            met[op] = Collective(kind, group, draw(st.integers(0, 60)), draw(st.sampled_from(algorithms)))
    groups.append(Group("next", pairs))
    streams = {g.name: draw(st.integers(0, 2)) for g in groups}
    programs = []
    in_step = draw(st.booleans()) and all(c.kind != CollectiveKind.SEND for c in met.values())
    for rank in range(ranks):
        if in_step and programs:  # all come at once to what they share
            programs.append(programs[0])
            continue
        mine = _of_rank(draw, graph, groups, met, rank)
        walk = _walk(draw, mine, hardware, {op: streams[c.group] for op, c in met.items()})
        starts_ns = draw(st.sampled_from([0, 0, 0, 7]))
        programs.append((mine, walk, starts_ns))
    if draw(st.booleans()):  # tiers below have room for all homes, and for what issue order needs on some ranks
        hardware = tighten(hardware, [_scarce(draw, graph, programs, tier) for tier in range(len(hardware.tiers))])
    budget = max(1, *(walk.peak[HBM] for _, walk, _ in programs))
    allocator = draw(st.sampled_from(["ideal", "ideal", "best_fit"]))
    hardware = hardware.model_copy(update={"allocator": draw(allocators)})
    found = [
        Program(mine, _plan(walk, mine, hardware), durations_ns(mine, hardware), starts_ns, allocator=allocator)
        for mine, walk, starts_ns in programs
    ]
    return Run(found, hardware, budget)


def _scarce(draw: Callable[..., Any], graph: Graph, programs: Sequence[Any], tier: int) -> int:
    """Room of a shared tier that may be too little for all ranks at once."""
    sizes, walks = [t.size_bytes for t in graph.tensors], [walk for _, walk, _ in programs]
    at_home = sum(size for walk in walks for size, home in zip(sizes, walk.home, strict=True) if home == tier)
    return max(at_home, draw(st.integers(1, len(walks))) * max(walk.peak[tier] for walk in walks))


def _of_rank(
    draw: Callable[..., Any], graph: Graph, groups: Sequence[Group], met: dict[int, Collective], rank: int
) -> Graph:
    """The graph of one rank: its ops take times of their own, and it sends or receives."""
    ops = []
    for i, op in enumerate(graph.ops):
        if (about := met.get(i)) is None:
            ops.append(replace(op, duration_ns=draw(st.integers(0, 30))))
            continue
        kind = CollectiveKind.RECV if about.kind == CollectiveKind.SEND and rank % 2 else about.kind
        about = replace(about, kind=kind)
        ops.append(replace(op, kind=OpKind.COLLECTIVE, collective=about, duration_ns=None, repeatable=False))
    return replace(graph, ops=tuple(ops), groups=tuple(groups))


@st.composite
def staged_machines(draw) -> Hardware:
    """A machine with an SSD below DDR, and a staged link over both; perhaps one back, and others' copies beside it."""
    document = draw(machines()).model_dump(by_alias=True)
    sharing = ("fifo", "fair", "servers")
    document["tiers"]["ssd"] = {"capacity": "inf", "scope": "node"}
    document["links"] = {name: document["links"][name] for name in ("d2h", "h2d")}
    document["links"] |= {name: draw(links(*ends, sharing, flat=False, one_channel=False))
                          for name, ends in (("write", ("ddr", "ssd")), ("read", ("ssd", "ddr")))}  # fmt: skip
    for name, way, ends in (("direct", ["read", "h2d"], ("ssd", "hbm")), ("back", ["d2h", "write"], ("hbm", "ssd"))):
        if name == "direct" or draw(st.booleans()):
            over_servers = any(document["links"][wire]["sharing"] == "servers" for wire in way)
            document["links"][name] = {
                "source": ends[0], "target": ends[1], "via": way, "chunk": f"{draw(st.integers(1, 25))} B",
                "sharing": "servers" if over_servers else draw(st.sampled_from(sharing)),
                "channels": draw(st.integers(1, 2)),
                **draw(st.sampled_from([{}, {"latency": "3 ns"}, {"bandwidth": "0.5 GB/s"}])),
            }  # fmt: skip
    names, queues = sorted(document["links"]), document["copy_queues"]
    for bus in document["buses"].values():
        bus["links"] = draw(st.lists(st.sampled_from(names), min_size=1, max_size=3, unique=True))
    for queue in queues:
        queues[queue] = draw(st.lists(st.sampled_from(names), min_size=2, max_size=4, unique=True))
        for name in queues[queue]:
            document["links"][name]["channels"] = document["links"][queues[queue][0]]["channels"]
    return Hardware.model_validate(document)


@st.composite
def staged(draw) -> Run:
    """One rank whose copies may go chunk by chunk over two links that others use."""
    hardware, graph = draw(staged_machines()), draw(graphs(max_ops=8))
    walk = _walk(draw, graph, hardware, {}, (SSD, SSD, DDR, DDR, HBM))
    if draw(st.booleans()):
        hardware = tighten(hardware, walk.peak)
    program = Program(graph, _plan(walk, graph, hardware), durations_ns(graph, hardware))
    return Run([program], hardware, max(walk.peak[HBM], 1))


@st.composite
def choosing(draw, *, updates: bool = False) -> Run:
    """One rank with dynamic reads: by a plan that brings all candidates, or a runtime that brings what is chosen.

    Perhaps ops update what they have chosen, which goes home, or all candidates do.
    """
    is_decided = draw(st.booleans())
    of_plans = {} if is_decided else {"early": st.booleans(), "readers": st.integers(1, 2)}
    graph, hardware = draw(graphs_of(layers=2, updates=st.just(updates), **of_plans)), draw(dynamic_machines())
    draws = drawn(graph, hardware, draw(origins), draw(seeds))
    if is_decided:
        keep, looks = draw(st.integers(0, 3)), draw(st.booleans())
        plan = plan_of(graph, on_demand(graph, keep), hardware, looks=looks)
        budget = 10**6
    else:
        walk = _walk(draw, graph, hardware, {})
        plan, budget = _plan(walk, graph, hardware), max(walk.peak[HBM], 1)
    return Run([Program(graph, plan, durations_ns(graph, hardware), draws=draws)], hardware, budget)


@st.composite
def with_holes(draw) -> Run:
    """One rank whose places get addresses by best fit, on a machine that compacts, or does not."""
    case, allocator = draw(cases(max_ops=8, max_steps=2)), draw(allocators)
    if allocator.compaction is None and draw(st.booleans()):
        cost = Compaction.model_validate({"per_event": f"{draw(st.integers(0, 60))} ns"})
        allocator = allocator.model_copy(update={"compaction": cost})
    hardware = case.hardware.model_copy(update={"allocator": allocator})
    if draw(st.booleans()):  # one queue for all copies, also for those that compaction does not stop
        channels = draw(st.integers(1, 2))
        hardware = with_links(hardware, channels=channels)
        hardware = hardware.model_copy(update={"copy_queues": {"copies": tuple(hardware.links)}})
    program = Program(case.graph, case.plan, durations_ns(case.graph, hardware), allocator="best_fit")
    return Run([program], hardware, case.budget_bytes + draw(st.sampled_from([0, 0, 0, 5])))


@st.composite
def hosted(draw) -> Run:
    """One or two ranks of a node some of whose ops run on the host, in DDR, whose bandwidth copies share."""
    document, graph = draw(machines()).model_dump(by_alias=True), draw(graphs(max_ops=8, max_steps=2))
    ranks, part = draw(st.integers(1, 2)), st.sampled_from([1.0, 0.6])
    document["topology"] = {"devices_per_node": ranks, "nodes": 1}
    document["tiers"]["ddr"]["bandwidth"] = draw(st.sampled_from(["0.4 GB/s", "1 GB/s", "3 GB/s"]))
    document["host_compute"] = {
        "tier": "ddr", "peak": {"bf16": "1 GFLOP/s"}, "launch": draw(st.sampled_from(["0 ns", "3 ns"])),
        "achieved_bandwidth": draw(part), "class_bandwidth": draw(st.sampled_from([{}, {"vector": 0.3}])),
        "achieved_fraction": {"vector": draw(part), "matmul": draw(part)},
    }  # fmt: skip
    hardware, ops = Hardware.model_validate(document), list(graph.ops)
    for i in draw(st.sets(st.integers(0, len(ops) - 1), min_size=1)):
        modelled = {
            "duration_ns": None, "flops": draw(st.integers(0, 40)), "read_bytes": draw(st.integers(0, 40)),
            "write_bytes": draw(st.sampled_from([0, 7])), "op_class": draw(st.sampled_from(["vector", "matmul"])),
        }  # fmt: skip
        ops[i] = replace(ops[i], device="host", stream=1, **(modelled if draw(st.booleans()) else {}))
    graph, programs, budget = replace(graph, ops=tuple(ops)), list[Program](), 1
    for _ in range(ranks):
        walk = _walk(draw, graph, hardware, {})
        budget = max(budget, walk.peak[HBM])
        programs.append(Program(graph, _plan(walk, graph, hardware), durations_ns(graph, hardware)))
    return Run(programs, hardware, budget)


@st.composite
def hosts_that_meet(draw, max_steps: int = 3) -> Run:
    """Ranks of one or two kinds whose ops of the host share cores, and which meet: those of a kind do the same."""
    ranks = draw(st.sampled_from([2, 4, 4]))
    document, graph = draw(clusters(ranks)).model_dump(by_alias=True), draw(graphs(max_ops=8, max_steps=max_steps))
    document["tiers"]["ddr"] |= {"bandwidth": draw(st.sampled_from(["0.2 GB/s", "0.5 GB/s", "2 GB/s"]))}
    document["tiers"]["ddr"]["scope"] = draw(st.sampled_from(["node", "node", "supernode"]))
    document["host_compute"] = {
        "tier": "ddr", "peak": {"bf16": "1 GFLOP/s"}, "launch": draw(st.sampled_from(["0 ns", "3 ns"])),
        "achieved_bandwidth": draw(st.sampled_from([1.0, 0.6])), "class_bandwidth": {"vector": 0.3},
    }  # fmt: skip
    hardware = Hardware.model_validate(document)
    groups = [Group("all", (tuple(range(ranks)),)), Group("each", tuple((r,) for r in range(ranks)))]
    does = [draw(st.sampled_from(["host", "host", "meet", "own"])) for _ in graph.ops]
    met = {
        op: Collective(CollectiveKind("all_reduce"), draw(st.sampled_from(groups)).name, draw(st.integers(0, 60)))
        for op, what in enumerate(does)
        if what == "meet"
    }
    streams, kinds = {"all": draw(st.sampled_from([0, 0, 2])), "each": 3}, draw(st.integers(1, 2))
    budget, of_kind = 1, list[Program]()
    for _ in range(kinds):
        ops = [replace(op, duration_ns=draw(st.integers(0, 30))) for op in graph.ops]
        for i, what in enumerate(does):
            if what == "meet":
                about = {"kind": OpKind.COLLECTIVE, "collective": met[i], "duration_ns": None, "repeatable": False}
                ops[i] = replace(ops[i], **about)
            elif what == "host":
                work = {"flops": draw(st.integers(0, 40)), "read_bytes": draw(st.integers(0, 60))}
                of_class = draw(st.sampled_from(["vector", "matmul"]))
                ops[i] = replace(ops[i], device="host", stream=1, duration_ns=None, op_class=of_class, **work)
        mine = replace(graph, ops=tuple(ops), groups=tuple(groups))
        walk = _walk(draw, mine, hardware, {op: streams[c.group] for op, c in met.items()})
        budget = max(budget, walk.peak[HBM])
        of_kind.append(Program(mine, _plan(walk, mine, hardware), durations_ns(mine, hardware)))
    return Run([of_kind[rank % kinds] for rank in range(ranks)], hardware, budget)


@st.composite
def loading(draw) -> Run:
    """One or two ranks whose kernels may read some weights in place, over links with copies, in tiers of their node."""
    document, graph = draw(machines()).model_dump(by_alias=True), draw(graphs(max_ops=8, max_steps=3))
    into = [link for link in document["links"].values() if link["target"] == "hbm"]
    for link in draw(st.lists(st.sampled_from(into), min_size=1, unique_by=id)):
        link["loads"] = draw(st.sampled_from(["0.2 GB/s", "1 GB/s", "inf"]))
    ranks = draw(st.integers(1, 2))
    document["topology"] = {"devices_per_node": ranks, "nodes": 1}
    document["compute"]["launch"], document["tiers"]["hbm"]["bandwidth"] = f"{draw(st.integers(0, 3))} ns", "1 GB/s"
    ops, tensors = list(graph.ops), [*graph.tensors]
    for _ in range(draw(st.integers(1, 3))):
        for i in draw(st.sets(st.integers(0, len(ops) - 1), min_size=1, max_size=3)):
            ops[i] = replace(ops[i], reads=(*ops[i].reads, len(tensors)))
        tensors.append(Tensor(f"r{len(tensors)}", draw(st.integers(0, 60)), persistent=True))
    is_modelled = draw(st.booleans())
    for i in range(len(ops)) if is_modelled else ():
        if draw(st.booleans()):
            ops[i] = replace(
                ops[i], duration_ns=None, read_bytes=draw(st.integers(0, 60)), write_bytes=draw(st.integers(0, 9))
            )
    graph = replace(graph, ops=tuple(ops), tensors=tuple(tensors))
    some = draw(st.sets(st.sampled_from(sorted(graph.may_stay_away)), min_size=1))
    graph, hardware = replace(graph, in_place=frozenset(some)), Hardware.model_validate(document)
    programs, budget, streams = list[Program](), 1, 1 if is_modelled else draw(st.integers(1, 2))
    for _ in range(ranks):
        home = draw(homes(graph, hardware))
        room = least_budget(graph, home) + draw(st.integers(0, 60))
        walk = Walk(lambda options: draw(st.sampled_from(options)), graph, hardware, home, room)
        walk.through(streams)
        budget = max(budget, walk.peak[HBM])
        programs.append(Program(graph, _plan(walk, graph, hardware), durations_ns(graph, hardware)))
    return Run(programs, hardware, budget)
