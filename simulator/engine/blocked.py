"""When nothing can move any more: who waits for what, in sentences, from the first blocked step on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain

from simulator.engine.host import Host
from simulator.engine.link import LinkQueue
from simulator.engine.places import Places, Transfer
from simulator.engine.rounds import ISSUE_MASK
from simulator.engine.stream import Queued, Stream
from simulator.graph import Graph
from simulator.units import human

_LARGEST = 3


class Explainer:
    """Follows the waits of one rank: first what it lacks itself, then for whom it waits.

    Parameters
    ----------
    graph
        For names.
    places, streams, links
        The rank's state when nothing could move.
    """

    def __init__(self, graph: Graph, places: Places, streams: list[Stream], links: list[LinkQueue]) -> None:
        self._graph, self._places, self._streams, self._links = graph, places, streams, links
        self._told: set[str] = set()

    def sentences(self, host: Host) -> tuple[list[str], list[str]]:
        """Tell the chain of waits: what the rank lacks itself, and for which ranks it waits.

        Nothing if the host has issued everything and all of it has ended.
        """
        peers = [self._meeting(stream) for stream in self._streams if stream.running is not None]
        stuck = [stream for stream in self._streams if stream.running is None and stream.queue]
        told = [*chain.from_iterable(map(self._compute, sorted(stuck, key=lambda stream: stream.queue[0][0])))]
        if host.awaited >= 0:
            told += [f"the host waits at a sync for {self._name(host.awaited)}", *self._tensor(host.awaited, None)]
        told += chain.from_iterable(self._head(link.queue[0]) for link in self._links if link.queue)
        if not told and not peers:
            unsettled = sorted(self._places.waiters)
            told = [f"an action that names {self._name(t)} waits for its earlier users" for t in unsettled]
        if not told and not peers and not host.finished:
            told = ["the host could not issue its next action"]
        return told, peers

    def _once(self, sentence: str, rest: Iterable[str] = ()) -> Iterator[str]:
        """Tell a sentence and the rest if it is new; a chain that comes back to one is a cycle."""
        if sentence not in self._told:
            self._told.add(sentence)
            yield sentence
            yield from rest

    def _name(self, tensor: int) -> str:
        return repr(self._graph.tensors[tensor].name)

    def _op(self, queued: Queued) -> str:
        return f"op {self._graph.ops[queued[1]].name!r} (action {queued[0] & ISSUE_MASK})"

    def _meeting(self, stream: Stream) -> str:
        meeting, running = stream.meeting, stream.running
        if meeting is None or running is None:
            return ""
        group = stream.columns.roles.calls[running[1]].group
        return f"{self._op(running)} waits for rank {meeting.peer} to come to the collective of group {group!r}"

    def _compute(self, stream: Stream) -> Iterator[str]:
        """Why the head cannot start; nothing if that is for a compute of another stream, which tells on its own."""
        what, lacked = self._op(stream.queue[0]), stream.lacks()
        if stream.behind():
            return
        if lacked is None:
            yield self._room(what, stream.columns.compute_tier, stream.room_bytes())
        else:
            rest = self._tensor(lacked[0], stream.queue[0][0])
            yield from self._once(f"{what} waits for tensor {self._name(lacked[0])}", rest)

    def _tensor(self, tensor: int, before: int | None) -> Iterator[str]:
        transfer = self._places.first_transfer(tensor, before)
        if transfer is None:
            yield f"no action that was issued brings tensor {self._name(tensor)}"
            return
        head = transfer[1].link.queue[0]
        if head is transfer:
            yield from self._head(head)
        else:
            copy = f"the copy of {self._name(tensor)} (action {transfer[0] & ISSUE_MASK})"
            yield from self._once(f"{copy} is behind action {head[0] & ISSUE_MASK} in its channel", self._head(head))

    def _head(self, head: Transfer) -> Iterator[str]:
        """Why the first copy of a link cannot start."""
        link, tensor, tiers = head[1].link, head[1].tensor, self._places.tiers
        way = f"from {tiers[link.source].name} to {tiers[link.target].name}"
        what = f"the copy of {self._name(tensor)} {way} (action {head[0] & ISSUE_MASK})"
        if link.is_gated(head[1], head[3]):
            yield from self._once(f"{what} waits for the compute issued before it")
        elif link.lacks_tensor(head[1], head[3]):
            yield from self._once(f"{what} waits for its source", self._tensor(tensor, head[0]))
        else:
            yield from self._once(self._room(what, link.target, self._places.size_bytes[tensor]))

    def _room(self, what: str, tier: int, size: int) -> str:
        instance = self._places.tiers[tier]
        held = [t for t, flag in enumerate(self._places.held[tier]) if flag]
        held.sort(key=lambda t: (-self._places.size_bytes[t], t))
        largest = ", ".join(f"{self._name(t)} {human(self._places.size_bytes[t], 'B')}" for t in held[:_LARGEST])
        used, capacity = human(instance.used, "B"), human(instance.capacity, "B")
        return (
            f"{what} waits for {human(size, 'B')} of room in {instance.name}: {used} of {capacity} are held"
            f"{instance.in_pieces}, largest {largest or 'nothing'}; no issued detach will free more, so detach "
            "something before it, or give more room"
        )
