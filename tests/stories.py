"""Small stories for the tests of the engine: 1 byte takes 1 ns, an op is a line, a plan is a sentence."""

from __future__ import annotations

from typing import Any

import both_engines

from simulator import engine
from simulator.cost import durations_ns
from simulator.graph import Graph
from simulator.graph_builder import GraphBuilder
from simulator.hardware import Hardware
from simulator.plan import NOWHERE, Actions, Plan
from simulator.trace import CAUSES, Trace


def machine(hbm: str = "100 B", *, host: dict[str, Any] | None = None, buses: dict[str, Any] | None = None,
            compute: dict[str, Any] | None = None, queue: tuple[str, ...] = (), ddr: dict[str, Any] | None = None,
            **links: dict[str, Any]) -> Hardware:  # fmt: skip
    """HBM and an endless DDR; 1 GB/s is 1 byte per ns. ``d2h={"channels": 2}`` changes a link; `queue` joins some.

    With figures of `ddr` (bytes take 1 ns, and FLOP, too) the host computes there.

    A link from or to another tier (``read={"source": "pool", "target": "hbm"}``) brings it along, endless too.
    """
    base = {"d2h": {"source": "hbm", "target": "ddr"}, "h2d": {"source": "ddr", "target": "hbm"}}
    below = {"ddr", *(link[end] for link in links.values() for end in ("source", "target") if end in link)} - {"hbm"}
    return Hardware.model_validate(
        {
            "schema": "hosim/hardware/1",
            "name": "story",
            "compute_tier": "hbm",
            "compute": {"peak": {"bf16": "1 TFLOP/s"}, **(compute or {})},
            "host": host or {},
            "tiers": {
                "hbm": {"capacity": hbm, "bandwidth": "1 GB/s"},
                **{name: {"capacity": "inf", "scope": "node"} for name in sorted(below)},
                **(
                    {"ddr": {"capacity": "inf", "scope": "node", "bandwidth": "1 GB/s", **ddr}}
                    if ddr is not None
                    else {}
                ),
            },
            **({"host_compute": {"tier": "ddr", "peak": {"bf16": "1 GFLOP/s"}}} if ddr is not None else {}),
            "links": {n: {"bandwidth": "1 GB/s", **base.get(n, {}), **links.get(n, {})} for n in {**base, **links}},
            "buses": buses or {},
            "copy_queues": {"copies": queue} if queue else {},
        }
    )


def graph(tensors: str, *ops: str, steps: int = 1) -> Graph:
    """``"a 40, w 10 persistent"`` and ``"name: a b -> c, 10 ns, workspace 5"``."""
    builder = GraphBuilder("story")
    for words in (item.split() for item in tensors.split(",")):
        persistent = "persistent" in words
        builder.tensor(words[0], int(words[1]), "input" if "input" in words else "activation", persistent=persistent)
    for line in ops:
        name, rest = line.split(":")
        flow, *more = rest.split(",")
        reads, writes = flow.split("->")
        fields: dict[str, Any] = {"duration_ns": 0}
        for item in (m.split() for m in more):
            if item[0] == "workspace":
                fields["workspace_bytes"] = int(item[1])
            elif item[0] == "host":
                fields["device"] = "host"
            elif item[0] == "delay":
                fields["kind"] = "delay"
            elif item[0] in {"flops", "bytes"}:  # of a kernel whose time is modelled
                fields |= {"duration_ns": None, "write_bytes": 0, "read_bytes": 0}
                fields |= {"flops": int(item[1])} if item[0] == "flops" else {"read_bytes": int(item[1])}
            else:
                fields["duration_ns"] = int(item[0])
        builder.op(name.strip(), reads.split(), writes.split(), **fields)
    return builder.build(steps=steps)


def steps(g: Graph, hardware: Hardware, text: str) -> Actions:
    """``"compute f [stream]; copy x hbm ddr; detach x hbm; sync x"``."""
    ops = {op.name: i for i, op in enumerate(g.ops)}
    tensors = {t.name: i for i, t in enumerate(g.tensors)}
    tiers = {name: i for i, name in enumerate(hardware.tier_names)}
    found = Actions()
    for words in (step.split() for step in text.split(";")):
        if words[0] == "compute":
            found.compute(ops[words[1]], int(words[2]) if len(words) > 2 else 0)
        elif words[0] == "copy":
            found.copy(tensors[words[1]], tiers[words[2]], tiers[words[3]])
        elif words[0] == "detach":
            found.detach(tensors[words[1]], tiers[words[2]])
        else:
            found.sync(tensors[words[1]])
    return found


def play(hardware: Hardware, g: Graph, text: Any, home: str = "", allocator: Any = "ideal", **more: Any) -> Trace:
    """Run the plan; `home` says where tensors are at time 0 (``"w ddr, x hbm"``)."""
    places = dict(item.split() for item in home.split(",")) if home else {}
    homes = tuple(hardware.tier_names.index(places[t.name]) if t.name in places else NOWHERE for t in g.tensors)
    what = steps(g, hardware, text) if isinstance(text, str) else text
    plan = Plan("story", hardware.tier_names, homes, what, g.steps if isinstance(text, str) else 1)
    program = engine.Program(g, plan, durations_ns(g, hardware), allocator=allocator)
    return both_engines.run([program], hardware, **more)


def timeline(trace: Trace, g: Graph, hardware: Hardware) -> list[str]:
    """What ran when, by start, link and issue: ``"10-50 d2h a"``, ``"0-10 f"``."""
    s = trace.spans.whole()
    rows = sorted(zip(*(s[c].tolist() for c in ("start_ns", "issue", "kind", "item", "track", "end_ns")), strict=True))
    return [
        f"{start}-{end} {hardware.link_names[track]} {g.tensors[item].name}"
        if kind
        else f"{start}-{end} {g.ops[item].name}"
        for start, _, kind, item, track, end in rows
    ]


def waits(trace: Trace, g: Graph) -> list[str]:
    """Why the stream waited: ``"20-50 e capacity"``."""
    w = trace.waits.whole()
    rows = zip(*(w[c].tolist() for c in ("start_ns", "end_ns", "op", "cause")), strict=True)
    return [f"{start}-{end} {g.ops[op].name} {CAUSES[cause]}" for start, end, op, cause in rows]


def peak_bytes(trace: Trace, tier: int) -> int:
    """Largest sum of the places of a tier."""
    r = trace.residencies.whole()
    return int(max(r["delta_bytes"][r["tier"] == tier].cumsum(), default=0))
