"""What the runtime of the open-source HyperOffload makes of a schedule: the steps of a plan, right or wrong."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

from simulator.errors import ConfigError
from simulator.graph import Graph
from simulator.lifetime import lifetimes
from simulator.plan import Steps

HERE, HOST = 0, 1
"""The device, which is the compute tier, and the host."""

ACTIONS = ("COPY_D2H", "RELEASE_DEVICE", "COPY_H2D", "RELEASE_HOST")

Action = tuple[int, str, int]
"""Op, action, storage."""


class Runtime:
    """One run of a schedule.

    Parameters
    ----------
    where
        What messages call the schedule.
    graph
        What runs.
    ops, tensors
        Ids in the schedule -> ids in the graph.

    Attributes
    ----------
    steps
        What was issued.
    faults
        Reads of what is absent, and copies in of what is absent or old, in the order of happening.
    copies_out, copies_in, host_peak_bytes
        Copies that were made, and the most that the host held [B].
    """

    def __init__(self, where: str, graph: Graph, ops: Mapping[int, int], tensors: Mapping[int, int]) -> None:
        self._where, self._graph, self._ops, self._tensors = where, graph, ops, tensors
        self._held: tuple[set[int], set[int]] = (set(), set())
        self._old: set[int] = set()
        self._host_bytes = 0
        self._at = ""
        self.steps = Steps()
        self.faults: list[ConfigError] = []
        self.copies_out = self.copies_in = self.host_peak_bytes = 0

    def run(self, pre: Iterable[Action], post: Iterable[Action]) -> None:
        """Run all ops with what the schedule says for before and after each.

        Raises
        ------
        ConfigError
            If the schedule names an op, a storage or an action that does not exist.
        """
        before, after = self._by_op("pre", pre), self._by_op("post", post)
        dead_after = lifetimes(self._graph).dead_after
        for op, what in enumerate(self._graph.ops):
            self._at = f"before op {what.name!r}"
            self._act(before.get(op, ()))
            self._compute(op)
            self._at = f"after op {what.name!r}"
            self._act(after.get(op, ()))
            for tensor in dead_after[op]:
                self._give_up(tensor)
        for tensor in sorted(self._held[HERE] | self._held[HOST]):
            self._give_up(tensor)

    def _by_op(self, table: str, actions: Iterable[Action]) -> dict[int, list[tuple[str, int]]]:
        found: dict[int, list[tuple[str, int]]] = defaultdict(list)
        for op, action, storage in actions:
            given = {"op": (op, self._ops), "action": (action, ACTIONS), "storage": (storage, self._tensors)}
            for what, (name, known) in given.items():
                if name not in known:
                    must = f"an entry is an op, one of {', '.join(ACTIONS)}, and a storage that some op accesses"
                    raise ConfigError(f"{self._where}.{table}", must, f"{what} {name!r}", "correct it")
            found[self._ops[op]].append((action, self._tensors[storage]))
        return found

    def _act(self, actions: Iterable[tuple[str, int]]) -> None:
        act = {"COPY_D2H": self._copy_out, "COPY_H2D": self._copy_in}
        for action, tensor in actions:
            if action in act:
                act[action](tensor)
            else:
                self._release(tensor, HERE if action == "RELEASE_DEVICE" else HOST)

    def _compute(self, op: int) -> None:
        what = self._graph.ops[op]
        for tensor in what.reads:
            if tensor not in self._held[HERE]:
                self._fault("what an op reads is on the device", tensor, "released, and not copied in")
        self.steps.compute(op)
        self._held[HERE].update(what.writes)
        self._old.update(self._held[HOST].intersection(what.writes))

    def _copy_out(self, tensor: int) -> None:
        if tensor in self._held[HOST]:
            return
        if tensor not in self._held[HERE]:
            self._fault("what is copied out is on the device", tensor, "not there")
        self._held[HOST].add(tensor)
        self._host_bytes += self._graph.tensors[tensor].size_bytes
        self.host_peak_bytes = max(self.host_peak_bytes, self._host_bytes)
        self.steps.copy(tensor, HERE, HOST)
        self.copies_out += 1

    def _copy_in(self, tensor: int) -> None:
        if tensor in self._held[HERE]:
            return
        if tensor not in self._held[HOST]:
            self._fault("what is copied in has a copy on the host", tensor, "without one")
        elif tensor in self._old:
            found = "whose copy on the host is older than its last write"
            self._fault("what is copied in is what was written last", tensor, found)
        self._held[HERE].add(tensor)
        self.steps.copy(tensor, HOST, HERE)
        self.copies_in += 1

    def _release(self, tensor: int, tier: int) -> None:
        if tensor not in self._held[tier]:
            return
        self._held[tier].remove(tensor)
        self.steps.detach(tensor, tier)
        if tier == HOST:
            self._old.discard(tensor)
            self._host_bytes -= self._graph.tensors[tensor].size_bytes

    def _give_up(self, tensor: int) -> None:
        self._release(tensor, HERE)
        self._release(tensor, HOST)

    def _fault(self, must: str, tensor: int, how: str) -> None:
        name = repr(self._graph.tensors[tensor].name)
        self.faults.append(ConfigError(f"{self._where}, {self._at}", must, f"{name} {how}", "correct the schedule"))
