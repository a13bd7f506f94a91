"""Execution traces of Chakra: the device's ops, and the loads and stores of its memory as a plan of copies."""

from __future__ import annotations

import heapq
from collections import defaultdict
from contextlib import suppress
from dataclasses import replace
from graphlib import CycleError, TopologicalSorter
from operator import attrgetter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import cast

import orjson

from simulator import formats
from simulator.document import MOST_RANKS
from simulator.errors import ConfigError, insist
from simulator.graph import Collective, CollectiveKind, Graph
from simulator.importers import recordings
from simulator.importers.chakra_moves import REMOTE, RecordedMoves, waits_for_host
from simulator.importers.chakra_nodes import COLLECTIVE, COMPUTE, LOAD, OWN, RECEIVE, SEND, TYPES, ChakraNode, load
from simulator.importers.imported import Imported
from simulator.importers.operators import Memory, Tree, arithmetic, base_name, dtype_of
from simulator.importers.recordings import ALONE, Event, Recording, Storage, collective_kind, short, whole
from simulator.importers.streams import Activity, replay
from simulator.inputs import shown
from simulator.interrupts import no_garbage_search

_COLLECTIVES = "all_reduce reduce all_gather gather scatter broadcast all_to_all reduce_scatter reduce_scatter barrier"
_PLAN = ".plan.jsonl"
_MOST_LINKED = 20_000_000


def _own(path: Path, header: dict[str, int | str], nodes: list[ChakraNode]) -> Imported:
    """Read what hosim wrote: each node carries the lines of the graph and of the plan that it is."""
    graph, plan = (
        [str(header.get(name, "")), *(str(n.attrs.get(name, "")) for n in order)]
        for name, order in ((OWN[0], sorted(nodes, key=lambda node: whole(node.attrs.get(OWN[2])))), (OWN[1], nodes))
    )
    with TemporaryDirectory() as folder:
        files = [Path(folder) / f"{path.stem}{end}" for end in (".jsonl", _PLAN)]
        for file, lines in zip(files, (graph, plan), strict=True):
            file.write_text("".join(lines), encoding="utf-8")
        try:
            imported, tiers = recordings.read_graph(files[0]), formats.jsonl.first(files[1]).get("tiers", ())
            formats.read_plan(files[1], cast(Graph, imported.graph), tuple(tiers))
        except ConfigError as error:
            raise ConfigError(f"{shown(path)}: lines that hosim wrote", *error.args[1:]) from None
    derived = f"The plan is that of the trace: name *{_PLAN} as a policy of a scenario on the same tiers."
    contents = {**imported.files, _PLAN: "".join(plan).encode()}
    return replace(imported, files=contents, derived=(*imported.derived, derived))


def _in_order(nodes: dict[int, ChakraNode], where: str) -> list[ChakraNode]:
    """Sort nodes topologically: those of the device early, those that wait for the host late, copies before computes.

    Old converters wrote a node's parent as a control dependency: if these make a cycle, they are ignored.
    """
    moves = any(node.moves for node in nodes.values())
    for parents_count in (True, False):
        sorter, ready, ordered = TopologicalSorter[int](), list[tuple[bool, bool, bool, int]](), list[ChakraNode]()
        for node in nodes.values():
            sorter.add(node.id, *(nodes.keys() & {*node.after, *(node.under if parents_count else ())}))
        with suppress(CycleError):
            sorter.prepare()
            while sorter.is_active():
                for node in map(nodes.__getitem__, sorter.get_ready()):
                    others = (nodes[other] for other in (*node.after, *node.under) if moves and other in nodes)
                    is_late = any(waits_for_host(node, other) for other in others)
                    heapq.heappush(ready, (node.is_on_host, is_late, bool(moves) and not node.moves, node.id))
                ordered.append(nodes[heapq.heappop(ready)[-1]])
                sorter.done(ordered[-1].id)
            return ordered
    raise ConfigError(where, "no node depends on itself", "nodes in a circle", "record the trace again")


@no_garbage_search()
def read_chakra(source: str | Path, *, ranks: int = 1) -> Imported:
    """Read an execution trace of Chakra: the device's ops, their storages, collectives and recorded durations.

    Parameters
    ----------
    source
        The trace (``.et``, perhaps compressed, or the first file in a tar archive).
    ranks
        Number of ranks in collectives that have no recorded duration.

    Raises
    ------
    ConfigError
        If the file is no trace, its version is not supported, or its dependencies form a cycle.
    """
    path, recording = Path(source), Recording()
    insist(1 <= ranks <= MOST_RANKS, "ranks", f"from 1 to {MOST_RANKS:,} ranks meet", str(ranks), "correct --ranks")
    header, nodes = load(path, recording.derived)
    if OWN[0] in header:
        return _own(path, header, sorted(nodes.values(), key=attrgetter("id")))
    recording.kept["nodes"] = f"{len(nodes):,}"
    is_of_host = all(node.is_on_host for node in nodes.values())
    if is_of_host or any(node.moves for node in nodes.values()):
        recording.derived += ["Nothing ran on a device: the nodes of the host are the ops."] * is_of_host
        for node in nodes.values():
            node.is_on_host = False
    recording.dropped["nodes of the host"] = sum(node.is_on_host for node in nodes.values())
    moves = _Reader(nodes, _in_order(nodes, shown(path)), recording, ranks).read(shown(path))
    imported = recording.imported(path, "A step")
    return imported if moves is None else _with_plan(imported, moves)


def _with_plan(imported: Imported, moves: RecordedMoves) -> Imported:
    """Add the recorded plan, which a run without a scenario has as a row; it is of one step."""
    about: dict[str, object] = {"plan": _PLAN, "steps": 1, "assumed": {"steps": "the recording is of one step"}}
    if any(tensor.name.startswith(REMOTE) for tensor in cast(Graph, imported.graph).tensors):
        about["remote"] = (f"{REMOTE}*",)
    text = "Loads and stores are copies of a recorded plan, a row of runs without a scenario; lower tiers are remote."
    plan = b"".join(orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE) for line in moves.plan())
    files = {**imported.files, ".yaml": imported.workload.model_copy(update=about), _PLAN: plan}
    return replace(imported, files=files, derived=(*imported.derived, text))


class _Reader:
    """Turns nodes into ops: the kernels of one operator form one op, which reads and writes what the operator does."""

    def __init__(self, by_id: dict[int, ChakraNode], nodes: list[ChakraNode], recording: Recording, ranks: int) -> None:
        self._nodes, self._recording, self._ranks = nodes, recording, ranks
        on_device = [node for node in nodes if not node.is_on_host]
        for node in on_device:  # a kernel's launcher is its first dependency
            before = (by_id[node_id] for node_id in (*node.after, *node.under) if node_id in by_id)
            if launcher := next((other for other in before if other.is_on_host), None):
                node.launcher, node.operator = launcher, node.operator._replace(schema=launcher.operator.schema)
        self._timed, self._moves = any(node.took for node in on_device), any(node.moves for node in nodes)
        self._memory = Memory(Tree([node.operator for node in nodes]), recording)
        self._ops, self._links, self._linked = dict[object, Event](), dict[int, tuple[Storage, ...]](), 0

    def read(self, where: str) -> RecordedMoves | None:
        """Make the ops; return what moves between them, if the trace loads or stores memory."""
        recording = self._recording
        for node in self._nodes:
            if node.is_on_host:
                self._memory.fold(node.operator, None)
                continue
            links = dict.fromkeys(link for other in node.after for link in self._links.get(other, ()))
            if node.type in (COMPUTE, COLLECTIVE, SEND, RECEIVE):
                node.op = self._op(node, links)
            elif not node.moves:
                kind = TYPES[node.type].lower() if node.type < LOAD else "unknown"
                recording.dropped[f"nodes of kind {kind}"] += 1
            if node.op is None:  # what is behind it is behind what was before it
                self._links[node.id], self._linked = tuple(links), self._linked + len(links)
                must = f"nodes that are no ops stand between at most {_MOST_LINKED:,} pairs of ops"
                insist(self._linked <= _MOST_LINKED, where, must, "more", "record fewer steps")
        if not self._timed:
            recording.derived.append("Without times a roofline gives them; float counts as bf16.")
        elif recording.ops and not self._moves:
            self._replay()
        if recording.groups:
            text = "Collectives without a duration take the machine's time, and so the recorded step is not known."
            recording.derived.append(text)
            recording.step_ns = 0
            for op in (op for op in recording.ops if "collective" in op.more):
                op.more["duration_ns"] = None
        return RecordedMoves(self._nodes, recording, where) if self._moves else None

    def _replay(self) -> None:
        """Give ops the times of their nodes: as recorded, or as soon as the nodes that they depend on have ended."""
        if not any(node.start for node in self._nodes):
            text = "The trace has no starts: a node begins once those it depends on have ended"
            self._recording.derived.append(f"{text}, and its thread or stream is free.")
            ends, free = dict[int, int](), defaultdict[tuple[bool, str], int](int)
            for node in self._nodes:
                stream = node.is_on_host, node.stream
                node.start = max((free[stream], *(ends.get(other, 0) for other in node.after)))
                ends[node.id] = free[stream] = node.start + node.took
        ran = dict[int, Activity]()
        for node in sorted(self._nodes, key=attrgetter("start")):
            if node.op:
                launcher, start_ns = node.launcher, 1000 * node.start
                launched_ns = min(start_ns, 1000 * (launcher.start + launcher.took)) if launcher else None
                after = [ran[other] for other in node.after if other in ran and ran[other].end_ns <= start_ns]
                times_ns = start_ns, start_ns + 1000 * node.took
                ran[node.id] = Activity(node.op, *times_ns, node.stream, launched_ns, after=after)
        replay(self._recording, ran.values(), self._recording.ops, calls=((), ()))

    def _op(self, node: ChakraNode, links: dict[Storage, None]) -> Event | None:
        """Return the op that a node belongs to; None for a collective that no other rank joins."""
        launcher, operator = node.launcher or node, node.operator
        key = (launcher.attrs.get("rf_id") or -launcher.id, launcher.name) if node.launcher else node.id
        if key in self._ops:
            return self._ops[key]
        op = Event(short(launcher.name))
        self._memory.use(operator, op)
        if node.type != COMPUTE and not self._joins_collective(node, op):
            return None
        is_timed = bool(node.took) if self._moves else self._timed
        if self._moves or not (op.reads or op.writes):  # its dependencies become tensors of 0 bytes
            op.reads.update(links)
            self._links[node.id] = (self._recording.storage(0),)
            op.writes[self._links[node.id][0]] = None
        if self._moves:
            op.more["stream"] = 2 if node.is_of_host else int(node.type != COMPUTE and is_timed)
            op.more["duration_ns"] = 1000 * node.took if is_timed else None
        if node.type == COMPUTE:
            by_shapes = arithmetic(launcher.name, operator.shapes_in, operator.shapes_out)
            stated = 0 if is_timed else whole(node.attrs.get("num_ops"))
            op.more["op_class"], op.more["flops"] = ("matmul", stated) if stated else by_shapes
            op.more["dtype"] = dtype_of(operator.types, "tf32" if is_timed else "bf16")
            if node.id in self._links and not is_timed:
                op.more["read_bytes"] = whole(node.attrs.get("tensor_size"))
        self._ops[key] = op
        self._recording.ops.append(op)
        return op

    def _joins_collective(self, node: ChakraNode, op: Event) -> bool:
        """Make an op a collective; return whether it has a recorded duration or other ranks join it."""
        names = dict[object, str](enumerate(_COLLECTIVES.split()))
        kind = collective_kind(names.get(node.attrs.get("comm_type", -1), base_name(op.name)))
        group, members = "all", [list(range(self._ranks))]
        if node.type != COLLECTIVE:  # all ranks run this: each meets a neighbour, at the price of a message
            pairs = [[*range(i, i + 2 + (i + 3 == self._ranks))] for i in range(0, self._ranks - 1, 2)]
            kind, group, members = CollectiveKind.BROADCAST, "pairs", pairs
        op.is_collective = True
        if node.took:
            return True
        if kind is None or self._ranks == 1:
            self._recording.dropped[ALONE] += 1
            return False
        self._recording.groups.setdefault(group, members)
        op.more["collective"] = Collective(kind, group, whole(node.attrs.get("comm_size")))
        return True
