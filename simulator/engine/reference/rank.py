"""One rank: its computes, copies and detaches as SimPy processes (rules 2 to 6), and the places of its tensors."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Generator, Iterable, Sequence
from heapq import heappop, heappush
from typing import Any

import simpy

from simulator.cost.service import work
from simulator.engine.allocators import Wanted
from simulator.engine.program import Columns
from simulator.engine.reference.actions import Action, ComputeAction, CopyAction, Queue, RankLink, first_unended
from simulator.engine.reference.clock import FREE, ISSUE_MASK, START
from simulator.engine.reference.network import Network, Path
from simulator.engine.reference.rooms import Gate, Room, RoomClaim
from simulator.graph import Graph
from simulator.offsets import workspace
from simulator.plan import COMPUTE, COPY
from simulator.trace import RESIDENCIES, Recorder, packer, span_row

_residency_row = packer(RESIDENCIES)

NO_COPY = 1 << 62
"""Stands for the key of no copy: above all keys."""

Steps = Generator[simpy.Event, Any, None]
"""What a process goes through."""


class Rank:
    """What one rank has, and what its actions do; its host begins them.

    Parameters
    ----------
    network, recorder
        Where flows share bandwidth; what takes rows of the trace.
    rank_id, columns
        Its number, and its compiled graph.
    rooms, links
        Its tier instances, by tier id; where its copies stand in line.

    Attributes
    ----------
    clock, streams, idle
        The clock; where its computes stand in line, and those of the streams that wait.
    held, valid
        By tier and tensor: whether there is a place, and whether its content is valid.
    transfers
        Tensor -> its copies that were issued and have not ended, in issue order.
    computes_ended
        How many of its computes have ended.
    waits_for_ends
        Whether a copy waits for the end of the last compute before it, not for its start.
    loads
        Tier -> the link over which kernels load from it, and the path of that; none where nothing is read in place.
    kernel
        What a compute does from its start to its end; None: it takes its time alone.
    gate, changes
        Stops its computes while closed; tensor -> the event of its next change, if something waits for it.
    on_start, on_wait_end, on_change
        Called as a compute starts; before that, if its stream waited; and once something has happened to the rank.
    """

    def __init__(
        self,
        network: Network,
        recorder: Recorder,
        rank_id: int,
        columns: Columns,
        rooms: list[Room],
        links: list[RankLink],
    ) -> None:
        self.clock, self.network, self.id, self.columns, self.rooms = network.clock, network, rank_id, columns, rooms
        self.tier, self.links, self._recorder = columns.compute_tier, links, recorder
        self.streams, self.idle = [Queue() for _ in range(columns.streams)], set[Queue]()
        self.loads: dict[int, tuple[RankLink, Path]] = {}
        self.held = [[False] * len(columns.size_bytes) for _ in rooms]
        self.valid = [[False] * len(columns.size_bytes) for _ in rooms]
        self.transfers: defaultdict[int, list[CopyAction]] = defaultdict(list)
        self.computes_ended, self.waits_for_ends = 0, False
        self.kernel: Callable[[ComputeAction], Steps] | None = None
        self.gate, self._open = Gate(), Gate()
        self.on_start: Callable[[], None]
        self.on_wait_end: Callable[[ComputeAction], None]
        self.on_change: Callable[[], None]
        self.changes: dict[int, simpy.Event] = {}

    # computes

    def run_stream(self, queue: Queue) -> Steps:
        """Run the computes of a stream one after another, in issue order (rules 2 and 3)."""
        clock = self.clock
        while True:
            if not queue.waiting:
                yield self._idle(queue, queue.change(clock))
            compute: ComputeAction = queue.waiting[0]
            if not clock.takes_turn(START):
                yield clock.turn(START, compute.key)
            while (awaited := self._awaited_by_compute(compute)) is not None:
                yield self._idle(queue, awaited)
                yield clock.turn(START, compute.key)
            if wanted := self.wanted(compute):
                claim = RoomClaim(compute.key, wanted, self.gate_of(compute))
                yield self._idle(queue, self.rooms[compute.tier].ask(claim))
            self._begin(compute)
            if self.kernel is None:
                yield clock.end_after(compute.duration_ns)
            else:
                yield from self.kernel(compute)
            self._end(compute)

    def _idle(self, queue: Queue, awaited: simpy.Event) -> simpy.Event:
        """Note that a stream waits, for the ledger, and return what it waits for."""
        if not awaited.triggered:
            self.idle.add(queue)
            self.on_change()
        return awaited

    def _awaited_by_compute(self, compute: ComputeAction) -> simpy.Event | None:
        """Return what the head of a stream waits for, but for room; None if nothing."""
        if self.gate.opens is not None and compute.tier == self.tier:  # rule 17
            return self.gate.opens
        if compute.after and (other := first_unended(compute.after)):  # rule 2
            return other.ended(self.clock)
        if (tensor := self.lacked_tensor(compute)) is not None:  # rules 3 and 5
            return self.changes.setdefault(tensor, self.clock.event())
        ahead = self.ahead_in_line(compute) if compute.line else ()  # rule 8
        return ahead[0].started(self.clock) if ahead else None

    def gate_of(self, compute: ComputeAction) -> Gate:
        """Return the gate of a compute: a compaction of the compute tier stops no op of the host."""
        return self.gate if compute.tier == self.tier else self._open

    def lacked_tensor(self, compute: ComputeAction) -> int | None:
        """Return the first tensor that the head of a stream lacks; None if none.

        It lacks a tensor on which something earlier has not ended, or that it reads and that is not valid. The first is
        the one whose last copy was issued first (rule 11). A tensor that is there stays until the head runs.
        """
        valid, sources = self.valid[compute.tier], compute.sources
        if compute.lacked is None:
            named = [tensor for tensor in compute.reads if not valid[tensor]]
            if compute.moves:
                named += [tensor for tensor, moves in compute.moves.items() if first_unended(moves)]
            if not named:
                return None
            copies = {t: [copy.key for copy in self.transfers.get(t, ()) if copy.key < compute.key] for t in named}
            compute.lacked = sorted(((max(keys, default=NO_COPY), t) for t, keys in copies.items()), reverse=True)
        while compute.lacked:
            tensor = compute.lacked[-1][1]
            valid = self.valid[sources.get(tensor, compute.tier)]
            if (tensor in compute.reads and not valid[tensor]) or first_unended(compute.moves.get(tensor, ())):
                return tensor
            compute.lacked.pop()
        return None

    def ahead_in_line(self, compute: ComputeAction) -> list[ComputeAction | CopyAction]:
        """Return what must have started before a compute that takes room, and has not."""
        ahead = [other for other in compute.line if not other.has_started]
        return ahead if ahead and self.wanted(compute) else []

    def wanted(self, compute: ComputeAction) -> Wanted:
        """Return the places that a compute takes in its tier, the workspace last."""
        held, sizes, op = self.held[compute.tier], self.columns.size_bytes, compute.op
        wanted = [(tensor, sizes[tensor]) for tensor in compute.writes if not held[tensor] and sizes[tensor]]
        if workspace_bytes := self.columns.workspace_bytes[op]:
            wanted.append((workspace(op, compute.stream), workspace_bytes))
        return wanted

    def _begin(self, compute: ComputeAction) -> None:
        """Let a compute start, with its places."""
        self.hold(compute.writes, compute.tier)
        if workspace_bytes := self.columns.workspace_bytes[compute.op]:
            self._record(compute.tier, -1 - compute.op, workspace_bytes)
        compute.queue.start_first(self.clock.now)
        if compute.queue in self.idle:
            self.idle.remove(compute.queue)
            self.on_wait_end(compute)
        self.on_start()
        if self.idle:
            self.on_change()

    def _end(self, compute: ComputeAction) -> None:
        """End a compute: what it wrote is valid in its tier, and stale elsewhere."""
        op = compute.op
        compute.queue.running.clear()
        self._record_span(compute, COMPUTE, op, compute.stream, 0)
        if workspace_bytes := self.columns.workspace_bytes[op]:
            self._record(compute.tier, -1 - op, -workspace_bytes)
            self.rooms[compute.tier].release(workspace_bytes, workspace(op, compute.stream))
        valid_here = self.valid[compute.tier]
        for tensor in compute.writes:
            for valid in self.valid:
                valid[tensor] = False
            valid_here[tensor] = True
        self.computes_ended += 1
        compute.end()
        if self.idle:
            self.on_change()

    # copies

    def run_copies(self, queue: Queue) -> Steps:
        """Start the copies of a queue one after another, in issue order: rule 4."""
        clock, is_alone = self.clock, len(queue.free) == 1
        while True:
            while not (queue.waiting and queue.free):
                yield queue.change(clock)
            copy: CopyAction = queue.waiting[0]
            is_its_turn = False
            while (awaited := self._awaited_by_copy(copy)) is not None or not is_its_turn:
                yield awaited or clock.turn(START, copy.key)
                is_its_turn = awaited is None
            link, tensor = copy.link, copy.tensor
            size = self.columns.size_bytes[tensor]
            if size and not self.held[link.target][tensor]:
                yield self.rooms[link.target].ask(RoomClaim(copy.key, [(tensor, size)], link.gate, is_copy=True))
            copy.channel, copy.point = heappop(queue.free), None  # the lowest free channel
            self.hold((tensor,), link.target)
            queue.start_first(clock.now)
            self.on_change()
            if is_alone:
                yield from self._carry(copy, size)
            else:
                clock.process(self._carry(copy, size))

    def _carry(self, copy: CopyAction, size: int) -> Steps:
        """Let a copy cross its link; then its target is valid."""
        link, tensor, queue = copy.link, copy.tensor, copy.queue
        if link.path is None:
            yield self.clock.end_after(link.alone_ns(size))
        else:  # as a flow beside others, after its latency (and fill)
            needed, lead = work(size, link.path.unit), link.lead_ns(size)
            if lead:
                yield self.clock.end_after(lead)
            if needed or not lead:
                yield self.network.flow(link.path, link.cap(size), needed, copy.key)
        queue.running.remove(copy)
        heappush(queue.free, copy.channel)
        queue.wake()
        self._record_span(copy, COPY, tensor, link.index, copy.channel)
        self.valid[link.target][tensor] = True
        self.transfers[tensor].remove(copy)
        copy.end()
        self._change(tensor)

    def ahead_of(self, copy: CopyAction) -> Action | None:
        """Return the last compute before a copy until it is eligible (rule 4), or what is ahead in line (rule 8)."""
        point = copy.point
        if point is not None and not (point.has_ended if self.waits_for_ends else point.has_started):
            return point
        return next((other for other in copy.line if not other.has_started), None)

    def lacks_source(self, copy: CopyAction) -> bool:
        """Return whether its source is not valid, or something earlier on its tensor has not ended."""
        is_valid = self.valid[copy.link.source][copy.tensor]
        return not is_valid or first_unended(copy.after) is not None

    def _awaited_by_copy(self, copy: CopyAction) -> simpy.Event | None:
        """Return what the head of a queue waits for, but for room; None if nothing."""
        clock = self.clock
        if copy.link.gate.opens is not None:  # rule 17
            return copy.link.gate.opens
        if ahead := self.ahead_of(copy):  # rules 4 and 8
            return ahead.ended(clock) if ahead.has_started else ahead.started(clock)
        if earlier := first_unended(copy.after):  # rule 5
            return earlier.ended(clock)
        return self.changes.setdefault(copy.tensor, clock.event()) if self.lacks_source(copy) else None

    # detaches

    def detach(self, detach: Action, tensor: int, tier: int) -> None:
        """Give up a place once all earlier actions that name the tensor have ended: rule 5."""
        earlier = first_unended(detach.after)
        awaited = earlier.ended(self.clock) if earlier else self.clock.turn(FREE, detach.key)
        then = self.detach if earlier else self._free
        awaited.callbacks.append(lambda event: then(detach, tensor, tier))

    def _free(self, detach: Action, tensor: int, tier: int) -> None:
        """Let a detach act."""
        detach.after = ()
        if self.held[tier][tensor]:
            self.held[tier][tensor] = self.valid[tier][tensor] = False
            if size := self.columns.size_bytes[tensor]:
                self._record(tier, tensor, -size)
                self.rooms[tier].release(size, tensor)
        detach.end()
        self._change(tensor)

    # places

    def take_homes(self, graph: Graph, homes: Sequence[int], elsewhere: Collection[int]) -> None:
        """Put each tensor that exists at time 0 at home; another rank stores those that are `elsewhere` for all."""
        at_home = [(tensor, home) for tensor, home in enumerate(homes) if home >= 0]
        for tensor, home in at_home:
            if tensor not in elsewhere:
                self.rooms[home].take_home(tensor, self.columns.size_bytes[tensor], graph.tensors[tensor].name)
        for tensor, home in at_home:
            self.valid[home][tensor] = True
            self.hold((tensor,), home)

    def hold(self, tensors: Iterable[int], tier: int) -> None:
        """Mark the places of these tensors as held, unless they are; their room was granted before."""
        held = self.held[tier]
        for tensor in tensors:
            if not held[tensor]:
                held[tensor] = True
                if size := self.columns.size_bytes[tensor]:
                    self._record(tier, tensor, size)

    def _change(self, tensor: int) -> None:
        """Wake those who wait for a tensor."""
        if tensor in self.changes:
            self.changes.pop(tensor).succeed()
        self.on_change()

    def _record(self, tier: int, tensor: int, delta_bytes: int) -> None:
        self._recorder.residencies += _residency_row(self.clock.now, self.id, tier, tensor, delta_bytes)

    def _record_span(self, action: Action, kind: int, item: int, track: int, channel: int) -> None:
        issue, now_ns = action.key & ISSUE_MASK, self.clock.now
        row = span_row(self.id, kind, item, track, channel, issue, action.issued_ns, action.start_ns, now_ns)
        self._recorder.spans += row
