"""Rules of issue order beside places: values, barriers and the turns of collectives.

A *value* of a tensor is named by the op that made it, or is the one that the training step began with. In program
order an op reads of each tensor the value that the last op before it has made. A plan may run ops again, or in
another order, as long as every compute finds these values; a tensor that only ever holds one value cannot break this.

What is copied into the compute tier before a barrier is used before it; what comes home at the end of a training step
stays for the next, whatever barriers that has. Each rank comes to the collectives of a group in program order, once
each, on one stream.
"""

from __future__ import annotations

from simulator.graph import Call, Graph, Roles
from simulator.plan import COMPUTE, COPY, DETACH
from simulator.referee.breach import Breach

INITIAL = -1
"""The maker of a value that a training step began with."""


class Values:
    """The value that each tensor holds, as issued.

    Parameters
    ----------
    graph
        What runs.

    Attributes
    ----------
    unlike
        How many tensors that outlast the step do not hold the value that program order leaves in them.
    """

    def __init__(self, graph: Graph) -> None:
        exists, makers = set(graph.inputs), [0] * len(graph.tensors)
        for op in graph.ops:
            for t in op.writes:
                makers[t] += 1
        self._changes = [count + (t in exists) > 1 for t, count in enumerate(makers)]
        self._reads: list[tuple[tuple[int, int], ...]] = []
        self._writes: list[tuple[int, ...]] = []
        latest: dict[int, int] = {}
        for i, op in enumerate(graph.ops):
            self._reads.append(tuple([(t, latest.get(t, INITIAL)) for t in op.reads if self._changes[t]]))
            self._writes.append(tuple([t for t in op.writes if self._changes[t]]))
            latest.update(dict.fromkeys(self._writes[i], i))
        outlasts = {t for t, tensor in enumerate(graph.tensors) if tensor.persistent} | set(graph.outputs)
        self._final = {t: maker for t, maker in latest.items() if t in outlasts}
        self.begin_step()

    def begin_step(self) -> None:
        """Go to the start of a training step: what it finds is the initial value."""
        self._made_by: dict[int, int] = {}
        self.unlike = len(self._final)

    def wrong_read(self, op: int) -> tuple[int, int, int] | None:
        """The first tensor that does not hold what the op reads of it: (tensor, its maker, whose it should be)."""
        for t, maker in self._reads[op]:
            found = self._made_by.get(t, INITIAL)
            if found != maker:
                return t, found, maker
        return None

    def write(self, op: int) -> None:
        """Note what the op makes."""
        for t in self._writes[op]:
            if t in self._final:
                was, final = self._made_by.get(t, INITIAL), self._final[t]
                self.unlike += (op != final) - (was != final)
            self._made_by[t] = op

    def first_made(self) -> int | None:
        """The first tensor that outlasts the step and that some op of it has written."""
        return min((t for t in self._made_by if t in self._final), default=None)

    def first_unlike(self) -> tuple[int, int, int]:
        """The first tensor that `unlike` counts: (tensor, its maker, whose it should be)."""
        return next(
            (t, found, maker)
            for t, maker in sorted(self._final.items())
            if (found := self._made_by.get(t, INITIAL)) != maker
        )


class Barriers:
    """Follows the steps of a plan past the barriers of its graph.

    Parameters
    ----------
    graph, compute_tier
        What runs, and where.
    """

    def __init__(self, graph: Graph, compute_tier: int) -> None:
        self._graph, self._here = graph, compute_tier
        self._has_some = any(op.barrier for op in graph.ops)
        self._unused: set[int] = set()

    def step(self, kind: int, a: int, b: int, c: int) -> Breach | None:
        """Take the next step of the plan; say what it breaks, if it breaks anything.

        Parameters
        ----------
        kind, a, b, c
            Its code.
        """
        if not self._has_some:
            return None
        if kind == COPY and c == self._here:
            self._unused.add(a)
        elif kind == DETACH and b == self._here:
            self._unused.discard(a)
        elif kind == COMPUTE:
            op, unused = self._graph.ops[a], self._unused
            unused.difference_update(op.reads, op.writes)
            if op.barrier and unused:
                names = ", ".join(repr(self._graph.tensors[t].name) for t in sorted(unused)[:3])
                found = f"{names} copied in before it and not used yet ({len(unused)} in all)"
                return Breach(f"no copy in is moved across barrier {op.name!r}", found, "copy it in behind the barrier")
        return None

    def begin_step(self) -> None:
        """The next training step begins."""
        self._unused.clear()


class Turns:
    """Follows the steps of a plan through the collectives of its graph.

    Parameters
    ----------
    graph
        What runs.
    """

    def __init__(self, graph: Graph) -> None:
        self._ops = graph.ops
        self._roles = Roles(graph)
        self._done = dict.fromkeys(self._roles.ops, 0)
        self._streams: dict[Call, int] = {}

    def step(self, kind: int, a: int, b: int) -> Breach | None:
        """Take the next step of the plan; say what it breaks, if it breaks anything.

        Parameters
        ----------
        kind, a, b
            The first numbers of its code.
        """
        if kind != COMPUTE or a not in self._roles.calls:
            return None
        call = self._roles.calls[a]
        line = self._roles.ops[call]
        due = line[self._done[call] % len(line)]
        self._done[call] += 1
        if due != a:
            must = f"collectives of group {call.group!r} are issued in program order, each once in a step"
            found = f"op {self._ops[a].name!r} where op {self._ops[due].name!r} is due"
            return Breach(must, found, "issue them in program order, or the other members meet something else")
        if self._streams.setdefault(call, b) != b:
            must = f"collectives of group {call.group!r} run on one stream"
            return Breach(must, f"streams {self._streams[call]} and {b}", "issue them on one")
        return None
