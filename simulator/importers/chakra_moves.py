"""Memory loads and stores of a Chakra trace, as the copies of a recorded plan between the compute tier and one below.

Each moves a tensor of its own size. What a store moves is made by the last op that it depends on. A load brings back
the newest store of its size that it follows, or else something that was there before the step. What depends on a load
reads its tensor. The plan issues all nodes in one order in which each follows what it depends on, and keeps the
dependencies that data does not keep by syncs: of a load on what it does not read, and of anything on a store. So
nodes that wait for the host come as late as they may, and copies before computes; of equals, the lowest id.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from typing import Any

from simulator.errors import insist
from simulator.formats.plan_jsonl import SCHEMA
from simulator.importers.chakra_nodes import LOAD, STORE, ChakraNode
from simulator.importers.recordings import Event, Recording, Storage, whole
from simulator.units import human

_MOST_FOLLOWED = 20_000_000
"""Most dependencies that are followed to find out what loads bring back, and what the host waits for."""
_DEVICE, _BELOW = "compute", "below"
REMOTE = "remote"
"""What the names of tensors begin with that were below before the step."""


def waits_for_host(node: ChakraNode, other: ChakraNode) -> bool:
    """Return whether a node comes behind another one only if the host waits for that, unless they share a tensor.

    Copies of one direction queue up on their link, and ops wait for one another by tensors of the graph.
    """
    if node.moves and other.moves:
        return node.type != other.type
    return node.moves or other.type == STORE


class RecordedMoves:
    """The tensors that loads and stores move, and the plan that moves them.

    Parameters
    ----------
    nodes
        The nodes of the device in order, with their ops.
    recording
        Receives the tensors, and what is told of them.
    where
        The trace, for messages.
    """

    def __init__(self, nodes: Sequence[ChakraNode], recording: Recording, where: str) -> None:
        self._nodes, self._recording, self._where = nodes, recording, where
        self._places = {node.id: place for place, node in enumerate(nodes)}
        self._moved, self._marks = dict[int, Storage](), dict[int, Storage]()
        self._through, self._away, self._followed, ended = dict[int, set[int]](), dict[int, Storage](), 0, set[int]()
        self._stored = dict[int, frozenset[int]]()
        begin, end = (Event(name, more={"duration_ns": 0, "stream": 0}) for name in ("begin", "end"))
        self._issued: dict[Event | ChakraNode, list[Storage]] = {begin: []}  # with what the host waits for before
        for node in nodes:
            before = self._before(node)
            if not (node.op or node.moves):  # what is behind it is behind what was before it
                self._through[node.id] = {self._places[other.id] for other in before}
                continue
            stored = {self._stored[other.id] for other in before}  # sizes of all stores before it
            self._stored[node.id] = stored.pop() if len(stored) == 1 else frozenset[int]().union(*stored)
            self._follow(len(self._stored[node.id]) if stored else 1)
            if node.moves:
                self._moved[node.id] = self._tensor(node, next((other.op for other in before[::-1] if other.op), begin))
            elif node.op:
                node.op.reads.update((self._moved[other.id], None) for other in before if other.type == LOAD)
            awaited = [other for other in before if other.id not in ended and self._must_wait(node, other, before)]
            self._issued.setdefault(node.op or node, []).extend(self._mark(other) for other in awaited)
            ended.update(other.id for other in awaited)
        read = {storage for op in recording.ops for storage in op.reads}
        self._loaded = dict.fromkeys(self._moved[node.id] for node in nodes if node.type == LOAD)
        end.reads.update(dict.fromkeys(storage for storage in self._loaded if storage not in read))
        recording.ops = [begin, *recording.ops, end]
        self._issued[end] = []
        for name, moves in (("loads", LOAD), ("stores", STORE)):
            sizes = [self._moved[node.id].size_bytes for node in nodes if node.type == moves]
            recording.kept[f"memory {name}"] = f"{len(sizes):,} of {human(sum(sizes), 'B')}"

    def _before(self, node: ChakraNode) -> list[ChakraNode]:
        """Return the nodes that a node depends on, in order."""
        others, place = (*node.after, *node.under), self._places[node.id]
        earlier = [other for other in others if self._places.get(other, place) < place]
        places = {end for other in earlier for end in self._through.get(other, (self._places[other],))}
        return [self._nodes[end] for end in sorted(places)]

    def _tensor(self, node: ChakraNode, maker: Event) -> Storage:
        """Return what a node moves: a store what its maker then writes, a load what a store moved, or its own."""
        size_bytes = whole(node.attrs.get("tensor_size"))
        where, do = f"{self._where}: node {node.id}", "state it, in bytes"
        insist(size_bytes, where, "a load or store states its tensor_size", "none", do)
        if node.type == LOAD:
            storage = self._away.pop(self._store_before(node, size_bytes), None)
            if storage is None:
                storage = self._recording.storage(size_bytes, "weight", persistent=True)
                storage.name = f"{REMOTE}{node.id}"
            storage.stays = storage.persistent
        else:
            storage = self._away[node.id] = self._recording.storage(size_bytes)
            storage.stays, maker.writes[storage] = True, None
            self._stored[node.id] |= {size_bytes}
        return storage

    def _store_before(self, node: ChakraNode, size_bytes: int) -> int:
        """Return the id of the newest store of a size that a load follows, and that none has brought back; or -1."""
        before, away = self._before(node), self._away
        direct = [other.id for other in before if other.id in away and away[other.id].size_bytes == size_bytes]
        if direct:
            return direct[-1]
        left, seen = [-self._places[other.id] for other in before], set[int]()
        heapq.heapify(left)
        while left and size_bytes in self._stored[node.id]:
            place = -heapq.heappop(left)
            store = self._away.get(self._nodes[place].id)
            if store and store.size_bytes == size_bytes:
                return self._nodes[place].id
            fresh = {-self._places[other.id] for other in self._before(self._nodes[place])} - seen
            seen |= fresh
            self._follow(1 + len(fresh))
            for other in fresh:
                heapq.heappush(left, other)
        return -1

    def _must_wait(self, node: ChakraNode, other: ChakraNode, before: list[ChakraNode]) -> bool:
        """Return whether the host must wait for a node before it issues another, which no third node between does."""
        is_maker = node.type == STORE and other in [third for third in before if third.op][-1:]
        has_same = node.moves and self._moved[node.id] is self._moved.get(other.id)
        if is_maker or has_same or not waits_for_host(node, other):
            return False
        self._follow(sum(len(third.after) for third in before))
        return not any(other.id in third.after for third in before)

    def _follow(self, count: int) -> None:
        """Count dependencies that were followed; refuse too many."""
        self._followed += count
        must = f"the order of loads and stores is found within {_MOST_FOLLOWED:,} dependencies"
        insist(self._followed <= _MOST_FOLLOWED, self._where, must, "more", "record fewer steps")

    def _mark(self, node: ChakraNode) -> Storage:
        """Return what the host waits for: the tensor of a copy, or one of no bytes that an op writes for it alone."""
        if node.op and node.id not in self._marks:
            self._marks[node.id] = self._recording.storage(0)
            node.op.writes[self._marks[node.id]] = None
        return self._marks[node.id] if node.op else self._moved[node.id]

    def plan(self) -> Iterator[dict[str, Any]]:
        """Yield the lines of the plan; ops and tensors have their names by now."""
        ops = [item for item in self._issued if isinstance(item, Event)]
        last = {storage: op for op in ops for storage in (*op.reads, *op.writes)}
        first = 1 + max(op.more["stream"] for op in ops)
        self._streams = {group: stream for stream, group in enumerate(self._recording.groups, first)}
        homes = {s.name: _BELOW if s in self._loaded else _DEVICE for s in last if s.persistent}
        actions = list[dict[str, Any]]()
        for item, syncs in self._issued.items():
            actions += ({"sync": storage.name} for storage in syncs)
            actions += self._compute(item, last) if isinstance(item, Event) else self._copy(item)
        actions += ({"detach": storage.name, "tier": _BELOW} for storage in self._away.values())
        header = {"schema": SCHEMA, "policy": "recorded", "tiers": [_DEVICE, _BELOW], "repeats": 1}
        yield {**header, "homes": len(homes), "actions": len(actions)}
        yield from ({"home": name, "tier": tier} for name, tier in homes.items())
        yield from actions

    def _copy(self, node: ChakraNode) -> Iterator[dict[str, Any]]:
        name, ends = self._moved[node.id].name, (_BELOW, _DEVICE) if node.type == LOAD else (_DEVICE, _BELOW)
        yield {"copy": name, "from": ends[0], "to": ends[1]}
        if node.type == STORE:
            yield {"detach": name, "tier": _DEVICE}

    def _compute(self, op: Event, last: dict[Storage, Event]) -> Iterator[dict[str, Any]]:
        """Yield an op on its stream, and the end of the tensors that nothing uses behind it."""
        collective = op.more.get("collective")
        yield {"compute": op.name, "stream": self._streams[collective.group] if collective else op.more["stream"]}
        for storage in {**op.reads, **op.writes}:
            if last[storage] is op and (storage in self._loaded or not storage.stays):
                yield {"detach": storage.name, "tier": _DEVICE}
                if storage in self._loaded and not storage.persistent:
                    yield {"detach": storage.name, "tier": _BELOW}
