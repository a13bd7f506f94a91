"""The fixed family of small problems on which planners are compared with the optimum: seeded, varied, never changed.

Four shapes in turn: chains, training steps that save for backward, streamed weights, and a mixture, of 8 to 40 ops.
Durations and sizes are nearly alike in some members and span three orders of magnitude in others. Moving every tensor
once would take between a fifth and three times as long as all ops. Budgets go from what an op and the pinned tensors
need at least to almost all that is live at once.

`fresh` is a second family: 6 to 14 ops with few, unlike tensors and one to three steps, of training with and without
optimizer states, streamed weights and mixtures. No heuristic was tuned on it when it was made; since then its members
have guided what the search of small graphs tries.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from random import Random

from policy_problems import DDR, HBM, machine, problem

from simulator.graph import Graph
from simulator.graph_builder import GraphBuilder
from simulator.hardware import Hardware
from simulator.lifetime import live_bytes
from simulator.policies import FREE, Problem

MEMBERS = 200
SHAPES = ("chain", "training", "streamed", "mixed")


class Draw(Random):
    """Draws the figures of one member; how far they spread is drawn first."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self._decades = self.choice((0.2, 1.0, 3.0))

    def size(self) -> int:
        """Size of a tensor [B]."""
        return round(10 ** (5 - self.random() * min(self._decades, 2)))

    def duration(self) -> int:
        """Time of an op [ns]."""
        return round(10 ** (5.5 - self.random() * self._decades))

    def workspace(self) -> int:
        """Workspace of an op [B]; most have none."""
        return self.size() // 2 if self.random() < 0.3 else 0


def member(number: int) -> tuple[str, Problem]:
    """A member of the family, with its shape."""
    draw = Draw(number)
    shape = SHAPES[number % len(SHAPES)]
    graph, homes = _SHAPES[shape](draw)
    found = [homes.get(t.name, HBM if t.persistent else FREE) for t in graph.tensors]
    least = least_budget(graph, found)
    most = max(int(live_bytes(graph).max()), least + 1)
    budget = int(least + (most - least) * draw.random())
    return shape, problem(graph, budget, homes, _machine(draw, graph))


def least_budget(graph: Graph, homes: list[int]) -> int:
    """What some op uses, and what stays beside it because it is at home in the compute tier."""
    stay = {t for t, tensor in enumerate(graph.tensors) if homes[t] == HBM and tensor.persistent}
    size = [t.size_bytes for t in graph.tensors]
    return max(op.workspace_bytes + sum(size[t] for t in stay | {*op.reads, *op.writes}) for op in graph.ops)


def faster(hardware: Hardware, factor: float) -> Hardware:
    """The machine with all links faster."""
    links = {
        name: link.model_copy(update={"bandwidth_bytes_per_s": int(link.bandwidth_bytes_per_s * factor)})
        for name, link in hardware.links.items()
    }
    return hardware.model_copy(update={"links": links})


def _machine(draw: Draw, graph: Graph) -> Hardware:
    moved = sum(t.size_bytes for t in graph.tensors)
    compute_ns = sum(op.duration_ns or 0 for op in graph.ops)

    def link() -> dict[str, str]:
        share = 10 ** draw.uniform(-0.7, 0.5)
        bytes_per_s = max(1, round(moved * 10**9 / (compute_ns * share)))
        return {"bandwidth": f"{bytes_per_s} B/s", "latency": f"{draw.choice((0, 0, 1000))} ns"}

    return machine(d2h=link(), h2d=link())


def _chain(draw: Draw) -> tuple[Graph, dict[str, int]]:
    """Each op reads what the one before made, and some read what was made long ago."""
    builder = GraphBuilder("chain")
    ops = draw.randint(10, 30)
    for i in range(ops):
        builder.tensor(f"a{i}", draw.size())
        reads = [f"a{i - 1}"] if i else []
        if i > 3 and draw.random() < 0.6:
            reads.append(f"a{draw.randrange(i - 1)}")
        builder.op(f"op{i}", reads, [f"a{i}"], duration_ns=draw.duration(), workspace_bytes=draw.workspace())
    return builder.build([f"a{ops - 1}"]), {}


def _training(draw: Draw) -> tuple[Graph, dict[str, int]]:
    """Forward saves, backward reads in reverse; layers alike or not."""
    builder = GraphBuilder("training")
    layers = draw.randint(5, 20)
    shapes = [(draw.size(), draw.duration()) for _ in range(layers)]
    shapes = [shapes[0]] * layers if draw.random() < 0.5 else shapes
    builder.tensor("w", draw.size() // 4, "weight", persistent=True)
    for i, (size, duration) in enumerate(shapes):
        builder.tensor(f"a{i}", size)
        reads = ["w", f"a{i - 1}"] if i else ["w"]
        builder.op(f"f{i}", reads, [f"a{i}"], phase="forward", duration_ns=duration)
    for i in reversed(range(layers)):
        size, duration = shapes[i]
        builder.tensor(f"g{i}", size)
        reads = ["w", f"a{i}", f"g{i + 1}"] if i < layers - 1 else ["w", f"a{i}"]
        more = {"duration_ns": 2 * duration, "workspace_bytes": draw.workspace()}
        builder.op(f"b{i}", reads, [f"g{i}"], phase="backward", **more)
    return builder.build(), {}


def _streamed(draw: Draw) -> tuple[Graph, dict[str, int]]:
    """Weights that live below, or wherever the policy likes; some are written back."""
    builder = GraphBuilder("streamed")
    layers = draw.randint(8, 20)
    home = draw.choice((DDR, DDR, FREE))
    builder.tensor("x", draw.size(), "input")
    before = "x"
    for i in range(layers):
        builder.tensor(f"w{i}", draw.size(), "weight", persistent=True)
        builder.tensor(f"a{i}", draw.size() // 4)
        writes = [f"a{i}", f"w{i}"] if draw.random() < 0.2 else [f"a{i}"]
        builder.op(f"op{i}", [before, f"w{i}"], writes, duration_ns=draw.duration())
        before = f"a{i}"
    return builder.build([before]), {f"w{i}": home for i in range(layers)}


def _mixed(draw: Draw) -> tuple[Graph, dict[str, int]]:
    """A random graph with all kinds of homes, in-place writes and overwrites."""
    builder, homes, known = GraphBuilder("mixed"), {}, []
    for i in range(draw.randint(1, 4)):
        builder.tensor(f"w{i}", draw.size(), "weight", persistent=True)
        homes[f"w{i}"] = draw.choice((HBM, DDR, FREE))
        known.append(f"w{i}")
    for i in range(draw.randint(8, 24)):
        reads = draw.sample(known, min(len(known), draw.randint(1, 3)))
        writes = [draw.choice(known)] if draw.random() < 0.25 else []
        builder.tensor(f"a{i}", draw.size())
        known.append(f"a{i}")
        more = {"duration_ns": draw.duration(), "workspace_bytes": draw.workspace()}
        builder.op(f"op{i}", reads, [*dict.fromkeys(writes), f"a{i}"], **more)
    return builder.build([known[-1]]), homes


_SHAPES: dict[str, Callable[[Draw], tuple[Graph, dict[str, int]]]] = {
    "chain": _chain,
    "training": _training,
    "streamed": _streamed,
    "mixed": _mixed,
}


FRESH = 320
FRESH_SHAPES = ("training", "streamed", "saved", "mixed")


class Fresh(Draw):
    """Draws the figures of one member of the second family, and homes that fit one another."""

    def __init__(self, number: int) -> None:
        Random.__init__(self, 10_000 + number)
        self._sizes, self._times = self.choice((0.3, 1.0, 1.5)), self.choice((0.3, 1.0, 2.0))
        self._homes = self.choice(("free", "any", "any", "ddr"))

    def size(self, share: float = 1.0) -> int:
        """Size of a tensor [B]."""
        return max(1, round(share * 10 ** (6.2 - self.random() * self._sizes)))

    def duration(self) -> int:
        """Time of an op [ns]."""
        return round(10 ** (5.5 - self.random() * self._times))

    def workspace(self, share: float = 0.3) -> int:
        """Workspace of an op [B]; this share of them has one."""
        return self.size(0.1) if self.random() < share else 0

    def home(self) -> int:
        """Home of a persistent tensor."""
        if self._homes == "free":
            return FREE
        return DDR if self._homes == "ddr" and self.random() < 0.8 else self.choice((HBM, DDR, FREE, FREE))


def fresh(number: int) -> tuple[str, Problem]:
    """A member of the second family, with its shape."""
    draw, shape = Fresh(number), FRESH_SHAPES[number % len(FRESH_SHAPES)]
    steps = draw.choice((1, 2, 3, 3))
    graph, homes = _FRESH[shape](draw)
    graph = replace(graph, steps=steps)
    found = [homes.get(t.name, HBM if t.persistent else FREE) for t in graph.tensors]
    budget = max(least_budget(graph, found), int(int(live_bytes(graph).max()) * draw.uniform(0.5, 0.9)))
    moved, took_ns = sum(t.size_bytes for t in graph.tensors), sum(op.duration_ns or 0 for op in graph.ops)

    def link() -> dict[str, str]:
        bandwidth = max(1, round(moved * 1e9 / (took_ns * 10 ** draw.uniform(-0.6, 0.7))))
        return {"bandwidth": f"{bandwidth} B/s", "latency": f"{draw.choice((0, 0, 84, 12865))} ns"}

    return shape, problem(graph, budget, homes, machine(d2h=link(), h2d=link()))


def _fresh_streamed(draw: Fresh) -> tuple[Graph, dict[str, int]]:
    builder, homes = GraphBuilder("fresh"), {"x": HBM}
    layers = draw.randint(6, 14)
    builder.tensor("x", draw.size(0.2), "weight", persistent=True)
    before = "x"
    for i in range(layers):
        builder.tensor(f"w{i}", draw.size(), "weight", persistent=True)
        homes[f"w{i}"] = draw.home()
        builder.tensor(f"a{i}", draw.size(0.2))
        more = {"duration_ns": draw.duration(), "workspace_bytes": draw.workspace()}
        builder.op(f"op{i}", [before, f"w{i}"], [f"a{i}"], **more)
        before = f"a{i}"
    return builder.build(), homes


def _fresh_training(draw: Fresh, *, with_states: bool = True) -> tuple[Graph, dict[str, int]]:
    """Forward saves, backward updates weights and states, or only reads the weights, which are at home here."""
    builder, homes, layers = GraphBuilder("fresh"), {}, draw.randint(3, 7)
    for i in range(layers):
        builder.tensor(f"w{i}", draw.size(0.7), "weight", persistent=True)
        homes[f"w{i}"] = draw.home() if with_states else HBM
        builder.tensor(f"a{i}", draw.size(draw.choice((0.2, 1.5))))
        reads = [f"w{i}", *([f"a{i - 1}"] if i else [])]
        builder.op(f"f{i}", reads, [f"a{i}"], phase="forward", duration_ns=draw.duration())
    for i in reversed(range(layers)):
        if with_states:
            builder.tensor(f"m{i}", draw.size(1.4), "optimizer_state", persistent=True)
            homes[f"m{i}"] = draw.home()
        builder.tensor(f"g{i}", draw.size(0.1))
        states, gradient = [f"m{i}"] if with_states else [], [f"g{i + 1}"] if i < layers - 1 else []
        writes = [f"g{i}", *([f"w{i}", f"m{i}"] if with_states else [])]
        more = {"duration_ns": draw.duration(), "workspace_bytes": draw.workspace(0.2)}
        builder.op(f"b{i}", [f"w{i}", f"a{i}", *states, *gradient], writes, phase="backward", **more)
    return builder.build(), homes


def _fresh_mixed(draw: Fresh) -> tuple[Graph, dict[str, int]]:
    builder, homes, known = GraphBuilder("fresh"), {}, []
    for i in range(draw.randint(2, 5)):
        builder.tensor(f"w{i}", draw.size(), "weight", persistent=True)
        homes[f"w{i}"] = draw.home()
        known.append(f"w{i}")
    for i in range(draw.randint(6, 14)):
        reads = draw.sample(known, min(len(known), draw.randint(1, 3)))
        writes = [draw.choice(known)] if draw.random() < 0.15 else []
        builder.tensor(f"a{i}", draw.size())
        known.append(f"a{i}")
        more = {"duration_ns": draw.duration(), "workspace_bytes": draw.workspace()}
        builder.op(f"op{i}", reads, [*dict.fromkeys(writes), f"a{i}"], **more)
    return builder.build(), homes


_FRESH: dict[str, Callable[[Fresh], tuple[Graph, dict[str, int]]]] = {
    "training": _fresh_training,
    "streamed": _fresh_streamed,
    "saved": partial(_fresh_training, with_states=False),
    "mixed": _fresh_mixed,
}
