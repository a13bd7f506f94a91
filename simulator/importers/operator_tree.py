"""Operators of a trace as a tree: which of them become ops, and what storages those read and write."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from simulator.importers import operators
from simulator.importers.operators import View
from simulator.importers.recordings import Event, Recording, collective_kind

_PHASES = {"Optimizer.step#": "update", "autograd::engine::evaluate_function": "backward"}
"""How the names of what holds ops begin -> their phase."""
_GATHERS = "torch::autograd::AccumulateGrad"


class Node(NamedTuple):
    """An operator of a trace.

    Attributes
    ----------
    id, parent, rf_id
        Its number, that of what called it, and that by which Kineto knows it.
    name, schema
        What it is; empty of what is no operator.
    reads, writes
        Tensors of each argument; those that it puts out.
    texts
        Arguments that are texts.
    shapes_in, shapes_out, types
        Sizes of both, and types of what it reads.
    more
        Other facts by name, such as of a collective.
    """

    id: int
    parent: int
    rf_id: int
    name: str
    schema: str
    reads: list[list[View]]
    writes: list[View]
    texts: Sequence[str] = ()
    shapes_in: Any = None
    shapes_out: Any = None
    types: Any = None
    more: Mapping[str, Any] = {}

    @property
    def is_operator(self) -> bool:
        """Whether it may do work, and does not only hold others that do."""
        return bool(self.schema or self.more.get("kernel_backend") or self.is_collective) and operators.works(self.name)

    @property
    def is_collective(self) -> bool:
        """Whether ranks meet in it."""
        return self.name == "record_param_comms" and collective_kind(self.collective) is not None

    @property
    def collective(self) -> str:
        """The name of the collective; of versions that have no key for it, the first text that it reads."""
        return str(self.more.get("collective_name") or next(iter(self.texts), ""))


class Tree:
    """The nodes of a trace, and which of them become ops.

    Parameters
    ----------
    nodes
        By id.

    Attributes
    ----------
    nodes
        By id.
    owner
        Id of a node -> that of the op that it is, or is a part of.
    phase
        Id of a node -> its phase.
    gathers
        Ids of nodes that add to gradients.
    devices
        Those that count: all but the CPU, or the CPU if there is no other.
    trains
        Whether there is a backward.
    """

    def __init__(self, nodes: Sequence[Node]) -> None:
        self.nodes, self.owner, self.phase, self.gathers = nodes, dict[int, int](), dict[int, str](), set[int]()
        named = {view.device for node in nodes for some in (node.writes, *node.reads) for view in some} - {""}
        self.devices = frozenset(named - {"cpu"} or named)
        kept = self._kept()
        for node in nodes:
            begins = (phase for name, phase in _PHASES.items() if node.name.startswith(name))
            self.phase[node.id] = next(begins, self.phase.get(node.parent, ""))
            if node.parent in self.gathers or node.name.startswith(_GATHERS):
                self.gathers.add(node.id)
            if node.parent in self.owner or node.id in kept:
                self.owner[node.id] = self.owner.get(node.parent, node.id)
        self.trains = "backward" in self.phase.values()

    def _kept(self) -> set[int]:
        """Ids of nodes that work, with none below that do; or that put out what none below makes, and so work, too."""
        kept, holds, made = set[int](), set[int](), dict[int, set[int]]()
        for node in reversed(self.nodes):
            below = made.pop(node.id, set())
            fresh = self.storages(node.writes) - self.storages(*node.reads)
            if node.is_operator and self._touches(node) and (node.id not in holds or fresh - below):
                kept.add(node.id)
            if node.id in kept or operators.MAKES.fullmatch(operators.plain(node.name)):
                below |= fresh
            if node.parent < node.id:
                beside = made.get(node.parent, set())
                small, large = sorted((below, beside), key=len)
                large |= small
                made[node.parent] = large
                holds.update({node.parent} if node.id in kept or node.id in holds else ())
        return kept

    def here(self, some: list[View]) -> list[View]:
        """Those of some tensors that are on the device and not empty."""
        return [view for view in some if view.device in self.devices and view.size_bytes]

    def storages(self, *several: list[View]) -> set[int]:
        """Ids of the storages of tensors that are on the device and not empty."""
        return {view.storage for some in several for view in self.here(some)}

    def _touches(self, node: Node) -> bool:
        return any(map(self.here, (node.writes, *node.reads)))


class Memory:
    """Storages of a trace, and what ops do with them.

    Parameters
    ----------
    tree
        The nodes.
    recording
        Takes storages.
    """

    def __init__(self, tree: Tree, recording: Recording) -> None:
        self._tree, self._recording = tree, recording
        self._number: dict[int, int] = {}
        self._stretched: set[int] = set()

    def _see(self, view: View, kind: str = "weight") -> int:
        """The storage of a view, which was there before if nothing made it."""
        number = self._number.get(view.storage)
        if number is None:
            number = self._number[view.storage] = self._recording.storage(view.until_bytes, kind, persistent=True)
        storage = self._recording.storages[number]
        if view.tensor not in self._stretched:
            storage.size_bytes = max(storage.size_bytes, view.until_bytes)
        return number

    def _make(self, view: View) -> int:
        self._number[view.storage] = number = self._recording.storage(view.until_bytes)
        return number

    def fold(self, node: Node, into: Event | None) -> None:
        """Take notice of a node that is no op: a view, an empty tensor, or what holds others."""
        base = operators.plain(node.name)
        makes, stretches = operators.MAKES.fullmatch(base), operators.STRETCHES.fullmatch(base)
        taken = self._tree.storages(*node.reads)
        if into is None:
            self._see_all(node)
        for view in self._tree.here(node.writes):
            if stretches:
                self._stretched.add(view.tensor)
            elif makes and view.storage not in taken:
                if into is None:
                    self._make(view)
                elif self._number.get(view.storage) not in into.writes:
                    into.more["workspace_bytes"] = into.more.get("workspace_bytes", 0) + view.until_bytes
            if node.id in self._tree.gathers and view.storage in self._number:
                self._recording.storages[self._number[view.storage]].kind = "gradient"

    def _see_all(self, node: Node) -> None:
        types = node.types if isinstance(node.types, list) else []
        for at, some in enumerate(node.reads):
            kind = "input" if at < len(types) and operators.is_number(types[at]) else "weight"
            for view in self._tree.here(some):
                self._see(view, kind)

    def use(self, node: Node, op: Event) -> None:
        """Let an op read and write what its node does."""
        self._see_all(node)
        changed, storages = operators.changed(node.schema), self._recording.storages
        taken = self._tree.storages(*node.reads)
        for at, some in enumerate(node.reads):
            for view in self._tree.here(some):
                number = self._number[view.storage]
                if storages[number].is_written:
                    op.reads[number] = None
                if at in changed or not storages[number].is_written:
                    op.writes[number] = None
        mine = dict[int, int]()
        for view in self._tree.here(node.writes):
            if view.storage not in taken:
                number = mine[view.storage] = mine[view.storage] if view.storage in mine else self._make(view)
                storages[number].size_bytes = max(storages[number].size_bytes, view.until_bytes)
                op.writes[number] = None
            elif not node.schema:
                op.writes[self._number[view.storage]] = None
        for number in op.writes:
            storages[number].is_written = True
            if node.id in self._tree.gathers:
                storages[number].kind = "gradient"
