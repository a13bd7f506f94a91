"""Small stories of several ranks: 1 byte takes 1 ns on every port, too."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import both_engines
from stories import graph, machine, steps

from simulator import engine, referee
from simulator.cost import durations_ns
from simulator.graph import Collective, CollectiveKind, Graph, Group, Job, OpKind
from simulator.hardware import Hardware
from simulator.plan import COMPUTE, NOWHERE, Plan
from simulator.trace import CAUSES, Trace


def cluster(ranks: int, nodes: int = 1, *, latency: str = "0 ns", scope: str = "node",
            buses: dict[str, Any] | None = None, **more: Any) -> Hardware:  # fmt: skip
    """The machine of the stories, so many times, joined by a fabric at 1 byte per ns and port."""
    document = machine(**more).model_dump(by_alias=True)
    document["topology"] = {"devices_per_node": ranks // nodes, "nodes": nodes}
    document["buses"] = buses or {}
    document["fabrics"] = {"net": {"scope": scope, "bandwidth": "1 GB/s", "latency": latency}}
    return Hardware.model_validate(document)


def team(tensors: str, *ops: str, groups: dict[str, tuple[tuple[int, ...], ...]], steps: int = 1) -> Graph:
    """As `graph`; a collective is ``"sum: a -> a, all_reduce all 40"``: kind, group, bytes, algorithm."""
    plain, met = [], {}
    for line in ops:
        name, rest = line.split(":")
        words = rest.split(",")[-1].split()
        if words and words[0] in {str(kind) for kind in CollectiveKind}:
            met[name.strip()] = Collective(CollectiveKind(words[0]), words[1], int(words[2]), *words[3:])
            line = line[: line.rindex(",")]  # noqa: PLW2901
        plain.append(line)
    g = graph(tensors, *plain, steps=steps)
    found = tuple(
        replace(op, kind=OpKind.COLLECTIVE, collective=met[op.name], duration_ns=None) if op.name in met else op
        for op in g.ops
    )
    return replace(g, ops=found, groups=tuple(Group(name, members) for name, members in groups.items()))


def perform(hardware: Hardware, programs: list[tuple[Graph, Any]], home: str = "",
            starts: tuple[int, ...] = (0,), **more: Any) -> Trace:  # fmt: skip
    """Run a graph and a plan on each rank, and have the referee judge it; `home` and `starts` hold for all.

    What a plan writes and does not detach is detached at its end.
    """
    places = dict(item.split() for item in home.split(",")) if home else {}
    team: list[engine.Program] = []
    known: dict[object, engine.Program] = {}
    for (g, text), device in zip(programs, hardware.devices(len(programs)), strict=True):
        start = starts[len(team) % len(starts)]
        if (id(g), text, start, id(device)) not in known:
            homes = tuple(hardware.tier_names.index(places[t.name]) if t.name in places else NOWHERE for t in g.tensors)
            what = steps(g, hardware, text + _detaches(g, text)) if isinstance(text, str) else text
            plan = Plan("story", hardware.tier_names, homes, what, g.steps if isinstance(text, str) else 1)
            times_ns, own = durations_ns(g, device), {"device": None if device is hardware else device}
            known[id(g), text, start, id(device)] = engine.Program(g, plan, times_ns, start, **own)
        team.append(known[id(g), text, start, id(device)])
    trace = both_engines.run(team, hardware, **more)
    job, plans = job_of([program.graph for program in team]), [program.plan for program in team]
    referee.check_trace(job, hardware, plans, trace, switches=more.get("switches"))
    return trace


def _detaches(g: Graph, text: str) -> str:
    """Detach what does not outlast the story and is left in hbm."""
    of_host = {t for op in g.ops if op.device == "host" for t in op.writes}
    new = (tensor.name for t, tensor in enumerate(g.tensors) if not tensor.persistent and t not in of_host)
    left = [name for name in new if f"detach {name} hbm" not in text]
    return "".join(f"; detach {name} hbm" for name in left)


def job_of(graphs: list[Graph]) -> Job:
    """Make the job in which each rank runs the graph of its number."""
    known: dict[int, Graph] = {id(g): g for g in graphs}
    numbers = {key: number for number, key in enumerate(known)}
    labels = tuple(f"program {number}" for number in range(len(known)))
    return Job("story", tuple(known.values()), tuple(numbers[id(g)] for g in graphs), labels)


def spans(trace: Trace, programs: list[tuple[Graph, Any]], hardware: Hardware) -> list[str]:
    """What ran when, rank by rank: ``"1: 10-50 sum"``."""
    s = trace.spans.whole()
    names = ("rank", "start_ns", "issue", "kind", "item", "track", "end_ns")
    return [
        f"{rank}: {start}-{end} "
        + (f"{hardware.link_names[track]} {programs[rank][0].tensors[item].name}" if kind != COMPUTE
           else programs[rank][0].ops[item].name)
        for rank, start, _, kind, item, track, end in sorted(zip(*(s[c].tolist() for c in names), strict=True))
    ]  # fmt: skip


def stalls(trace: Trace, programs: list[tuple[Graph, Any]]) -> list[str]:
    """Why each stream waited: ``"1.0: 20-50 e peer 0"``."""
    w = trace.waits.whole()
    names = ("rank", "stream", "start_ns", "end_ns", "op", "cause", "on")
    return [
        f"{rank}.{stream}: {start}-{end} {programs[rank][0].ops[op].name} {CAUSES[cause]}{f' {on}' if on >= 0 else ''}"
        for rank, stream, start, end, op, cause, on in sorted(zip(*(w[c].tolist() for c in names), strict=True))
    ]
