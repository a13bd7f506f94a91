"""Rule 13: why a rank is blocked, in sentences."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from simulator.engine.reference.actions import ComputeAction, CopyAction
from simulator.engine.reference.clock import ISSUE_MASK
from simulator.engine.reference.host import HostThread
from simulator.graph import Graph
from simulator.units import human

_LARGEST = 3
"""A sentence about a wait for room names this many of the tensors that hold it: the largest."""


class Explainer:
    """Explains why one rank is blocked, from what is left once nothing could move.

    Parameters
    ----------
    graph
        For names.
    host
        The host of the rank.
    """

    def __init__(self, graph: Graph, host: HostThread) -> None:
        self._graph, self._rank, self._host = graph, host.rank, host

    def sentences(self, *, is_alone: bool) -> tuple[list[str], list[str]]:
        """Return sentences on what the rank lacks itself, and on which ranks it waits for.

        Both are empty if the host has issued all actions and all of them have ended. They name the rank unless it
        `is_alone`.
        """
        rank, host = self._rank, self._host
        peers = list[str]()
        for compute in chain.from_iterable(queue.running for queue in rank.streams):
            if compute.meeting:
                group = rank.columns.roles.calls[compute.op].group
                call = f"to come to the collective of group {group!r}"
                peers.append(f"{self._op_name(compute)} waits for rank {compute.meeting.peer} {call}")
        stuck = [queue.waiting[0] for queue in rank.streams if not queue.running and queue.waiting]
        sentences = [*chain.from_iterable(map(self._about_compute, sorted(stuck, key=lambda head: head.key)))]
        if host.awaited >= 0:
            sentences.append(f"the host waits for {self._name(host.awaited)}")
            sentences += self._about_tensor(host.awaited, None)
        heads = [link.queue.waiting[0] for link in rank.links if link.queue.waiting]
        sentences += chain.from_iterable(map(self._about_copy, heads))
        if not sentences and not peers:
            awaited = sorted(rank.changes)
            sentences = [f"an action that names {self._name(t)} waits for its earlier users" for t in awaited]
        if not sentences and not peers and not host.finished:
            sentences = ["the host could not issue its next action"]
        name = "" if is_alone else f"rank {rank.id}: "
        lacked = dict.fromkeys(sentences)  # chains of several heads may join
        return [f"{name}{sentence}" for sentence in lacked], [f"{name}{sentence}" for sentence in peers]

    def _name(self, tensor: int) -> str:
        return repr(self._graph.tensors[tensor].name)

    def _op_name(self, compute: ComputeAction) -> str:
        return f"op {self._graph.ops[compute.op].name!r} (action {compute.key & ISSUE_MASK})"

    def _about_compute(self, head: ComputeAction) -> Iterator[str]:
        """Explain why a stream's head cannot start; not if it waits for another stream or a link, explained itself."""
        rank, name = self._rank, self._op_name(head)
        if any(not other.has_ended for other in head.after):
            return
        lacked = rank.lacked_tensor(head)
        if lacked is not None:
            yield f"{name} waits for tensor {self._name(lacked)}"
            yield from self._about_tensor(lacked, head.key)
        elif not rank.ahead_in_line(head):
            yield self._about_room(name, head.tier, sum(size for _, size in rank.wanted(head)))

    def _about_tensor(self, tensor: int, before: int | None) -> Iterator[str]:
        copies = self._rank.transfers.get(tensor, ())
        first = next((copy for copy in copies if before is None or copy.key < before), None)
        if first is None:
            yield f"no action that was issued brings tensor {self._name(tensor)}"
            return
        head: CopyAction = first.queue.waiting[0]
        if head is not first:
            copy = f"the copy of {self._name(tensor)} (action {first.key & ISSUE_MASK})"
            yield f"{copy} is behind action {head.key & ISSUE_MASK} in its channel"
        yield from self._about_copy(head)

    def _about_copy(self, head: CopyAction) -> Iterator[str]:
        """Explain why a link's head cannot start."""
        rank, link, rooms = self._rank, head.link, self._rank.rooms
        way = f"from {rooms[link.source].name} to {rooms[link.target].name}"
        copy = f"the copy of {self._name(head.tensor)} {way} (action {head.key & ISSUE_MASK})"
        if rank.ahead_of(head):
            yield f"{copy} waits for actions issued before it"
        elif rank.lacks_source(head):
            yield f"{copy} waits for its source"
            yield from self._about_tensor(head.tensor, head.key)
        else:
            yield self._about_room(copy, link.target, rank.columns.size_bytes[head.tensor])

    def _about_room(self, action: str, tier: int, size: int) -> str:
        room, sizes = self._rank.rooms[tier], self._rank.columns.size_bytes
        held = [t for t, flag in enumerate(self._rank.held[tier]) if flag]
        held.sort(key=lambda t: (-sizes[t], t))
        largest = ", ".join(f"{self._name(t)} {human(sizes[t], 'B')}" for t in held[:_LARGEST])
        used, capacity = human(room.used, "B"), human(room.size, "B")
        return (
            f"{action} waits for {human(size, 'B')} of room in {room.name}: {used} of {capacity} are held"
            f"{room.address_text}, largest {largest or 'nothing'}; no issued detach will free more, so detach "
            "something before it, or give more room"
        )
