"""Small graphs with dynamic reads, and a runtime that brings what is chosen, for the tests."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import both_engines
import numpy as np
from policy_problems import DDR, HBM, machine

from simulator import engine
from simulator.cost import durations_ns
from simulator.draws import Draws
from simulator.graph import Graph
from simulator.graph_builder import GraphBuilder
from simulator.hardware import Hardware
from simulator.plan import COMPUTE, COPY, DETACH, NOWHERE, SYNC, Code, Plan, View
from simulator.trace import Trace

__all__ = ["DDR", "HBM", "chosen_flags", "machine", "moe", "on_demand", "plan_of", "play"]


def moe(
    layers: int = 2, experts: int = 3, *, size: int = 10, samples: int = 1, each: int = 1, steps: int = 2,
    readers: int = 1, early: bool = False, updates: bool = False,
) -> Graph:  # fmt: skip
    """Layers of a router ``L0/route``, an op ``L0/shared`` and an op ``L0/experts``, one after another.

    With more readers, ``L0/experts.1`` and so on read experts that the same router reveals; early, all routers come
    before the first layer. With updates, ``L0/update`` of each layer, the last one first, writes what it has chosen.
    """
    b = GraphBuilder("moe")
    b.tensor("x", 0, persistent=True)
    last = "x"
    of_layers: list[list[str]] = []

    def route(layer: int) -> None:
        b.tensor(f"L{layer}/routed", 1)
        b.op(f"L{layer}/route", [last], [f"L{layer}/routed"], duration_ns=5)

    for layer in range(layers if early else 0):
        route(layer)
    for layer in range(layers):
        names = [f"L{layer}/expert.{i}" for i in range(experts)]
        for i, name in enumerate(names):
            b.tensor(name, size + i, "expert", persistent=True)
        for made in ("shared", "out"):
            b.tensor(f"L{layer}/{made}", 1)
        if not early:
            route(layer)
        b.op(f"L{layer}/shared", [last], [f"L{layer}/shared"], duration_ns=3)
        dynamic = b.dynamic_reads("o", f"L{layer}/route", names, samples=samples, each=each)
        made = [f"L{layer}/routed", f"L{layer}/shared", *names]
        b.op(f"L{layer}/experts", made, [f"L{layer}/out"], read_bytes=0, write_bytes=0, dynamic=dynamic)
        for reader in range(1, readers):
            b.tensor(f"L{layer}/out.{reader}", 1)
            b.op(
                f"L{layer}/experts.{reader}",
                made,
                [f"L{layer}/out.{reader}"],
                read_bytes=0,
                write_bytes=0,
                dynamic=dynamic,
            )
        last = f"L{layer}/out"
        of_layers.append(names)
    for layer in range(layers if updates else 0)[::-1]:
        names, how = of_layers[layer], {"samples": samples, "each": each, "updates": True}
        dynamic = b.dynamic_reads("u", f"L{layer}/route", names, **how)  # type: ignore[arg-type]
        more = {"read_bytes": 0, "write_bytes": 0}
        b.op(f"L{layer}/update", [last, *names], names, dynamic=dynamic, **more)  # type: ignore[arg-type]
    return b.build(steps=steps)


def chosen_flags(graph: Graph, choices: Mapping[str, list[list[int]]]) -> dict[int, np.ndarray]:
    """By op name and step, positions of the chosen candidates, as `Draws` holds them."""
    found = {}
    for op, what in enumerate(graph.ops):
        if what.dynamic:
            flags = np.zeros((graph.steps, len(what.dynamic.candidates)), bool)
            for step, chosen in enumerate(choices[what.name]):
                flags[step, chosen] = True
            found[op] = flags
    return found


def on_demand(graph: Graph, keep: int = 0, asked: list[tuple[int, int]] | None = None):  # type: ignore[no-untyped-def]  # noqa: C901
    """A runtime that syncs behind each router and brings what is chosen; of these, `keep` stay until others come.

    What an op updates it copies home, as it knows what that is.

    Parameters
    ----------
    graph
        What runs; experts are at home in DDR, all else is made or in HBM.
    keep
        How many experts stay in HBM, also from one step to the next.
    asked
        Takes (op, how many steps were issued before) of each look at what is chosen.
    """
    reveals = {op.dynamic.revealed_by: i for i, op in enumerate(graph.ops) if op.dynamic}
    is_updated = bool(graph.updated)
    keep = 0 if is_updated else keep
    dies = {t: max(i for i, op in enumerate(graph.ops) if t in (*op.reads, *op.writes))
            for t, tensor in enumerate(graph.tensors) if not tensor.persistent}  # fmt: skip

    def steps(view: View) -> Iterator[Code]:  # noqa: C901
        here: list[int] = []
        brought: dict[int, tuple[int, ...]] = {}
        issued = 0
        for _ in range(graph.steps):
            for op, what in enumerate(graph.ops):
                yield COMPUTE, op, 0, 0
                issued += 1
                if op in reveals:
                    yield SYNC, what.writes[0], 0, 0
                    issued += 1
                    if asked is not None:
                        asked.append((reveals[op], issued))
                    brought[reveals[op]] = view.chosen(reveals[op])
                    for tensor in brought[reveals[op]]:
                        if tensor in here:
                            here.remove(tensor)
                        else:
                            yield COPY, tensor, DDR, HBM
                            issued += 1
                        here.append(tensor)
                if what.dynamic and what.dynamic.updates:
                    for tensor in brought[op]:
                        here.remove(tensor)
                        yield COPY, tensor, HBM, DDR
                        yield DETACH, tensor, HBM, 0
                        issued += 2
                elif what.dynamic and not is_updated:
                    while len(here) > keep:
                        yield DETACH, here.pop(0), HBM, 0
                        issued += 1
                for tensor, last in dies.items():
                    if last == op:
                        yield DETACH, tensor, HBM, 0
                        issued += 1
        for tensor in here:
            yield DETACH, tensor, HBM, 0

    return steps


def plan_of(graph: Graph, steps: object, hardware: Hardware, *, looks: bool = False) -> Plan:
    """A plan with experts at home in DDR."""
    home = tuple(NOWHERE if not t.persistent else DDR if t.kind == "expert" else HBM for t in graph.tensors)
    return Plan("dynamic", hardware.tier_names, home, steps, looks=looks)  # type: ignore[arg-type]


def play(graph: Graph, plan: Plan, hardware: Hardware, draws: Draws | None, **more: object) -> Trace:
    """Run a plan with draws."""
    return both_engines.run(
        [engine.Program(graph, plan, durations_ns(graph, hardware), draws=draws)],
        hardware,
        **more,  # type: ignore[arg-type]
    )
