"""One rank: its host, its streams and links, and its places (rules 1 to 6, 8, 15 and 17)."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from itertools import chain, repeat
from typing import NamedTuple

from oracle.addresses import Addresses, Wanted
from oracle.flows import alone_ns, work
from oracle.order import Action, Given, Order
from simulator.hardware import Hardware
from simulator.plan import COMPUTE, COPY, DETACH, NOWHERE, Code


class Room:
    """One instance of a tier: what it holds and can hold, and who stands in line for more (rule 8)."""

    def __init__(self, capacity: int | float) -> None:
        self.capacity = capacity
        self.used = self.peak = 0
        self.line: list[Action] = []

    def is_behind(self, action: Action) -> bool:
        """Whether somebody is before it in line."""
        return any(other.takes_turns_in_line < action.takes_turns_in_line for other in self.line)

    def change(self, size: int) -> None:
        """Take so much, or free it."""
        self.used += size
        self.peak = max(self.peak, self.used)


class Residency(NamedTuple):
    """A place taken or freed."""

    time_ns: int
    rank: int
    tier: int
    tensor: int
    delta_bytes: int


def usable(hardware: Hardware, tier: str) -> int | float:
    """What a tier has room for: two chunks for each channel of a staged link over it, and device, are kept."""
    devices = hardware.topology.sharing[hardware.tiers[tier].scope]
    over = [link for link in hardware.links.values() for stage in link.via[1:] if hardware.links[stage].source == tier]
    kept = sum(2 * link.chunk_bytes * link.channels for link in over) * devices
    return hardware.tiers[tier].capacity_bytes - hardware.tiers[tier].reserved_bytes - kept


class Rank:
    """What one rank has issued and holds."""

    def __init__(self, number: int, given: Given, hardware: Hardware, rooms: list[Room], *, wait_for_end: bool) -> None:
        self.number, self.given, self.hardware, self.rooms = number, given, hardware, rooms
        self.wait_for_end, self.now, self.names = wait_for_end, 0, list(hardware.tiers)
        self.tier = self.names.index(hardware.compute_tier)
        cores = hardware.host_compute
        loads = [self.names.index(link.source) for link in hardware.links.values() if link.loads_bytes_per_s]
        self.order = Order(number, given, self.tier, None if cores is None else self.names.index(cores.tier), loads)
        self.actions, self.sizes = self.order.actions, self.order.sizes
        self.queues = [list(names) for names in hardware.copy_queues.values()]
        self.queues += [[name] for name in hardware.links if not any(name in names for names in self.queues)]
        self.ways = {(link.source, link.target): name for name, link in reversed(hardware.links.items())}
        self.issued: list[Action] = []
        self.rows: list[Residency] = []
        self.addresses: Addresses | None = None
        if given.allocator == "best_fit":
            self.addresses = Addresses(int(rooms[self.tier].capacity), hardware.allocator)
        self.held = [[False] * len(self.sizes) for _ in self.names]
        self.valid = [[False] * len(self.sizes) for _ in self.names]
        for t, home in enumerate(given.plan.home):
            if home != NOWHERE:
                self.valid[home][t] = True
                self._hold(home, t)
                if self.addresses and home == self.tier and self.sizes[t]:
                    self.addresses.take(None, [(t, self.sizes[t])], 0)
        self.host_ns = given.starts_ns + hardware.host.fixed.launch_ns * (given.plan.fixed is not None)
        self.pending: Action | None = None
        self.is_full = self.has_issued_all = False
        self.owed = 0
        self.codes = self._codes()
        fixed, graph = given.plan.fixed, given.graph
        used = (
            {b for kind, _, b, _ in fixed.codes() if kind == COMPUTE}
            if fixed
            else range(1 + max(op.stream for op in graph.ops) + len(graph.groups))
        )
        self.streams = sorted(used)

    def of(self, kind: int) -> Iterator[Action]:
        """The actions of a kind that were issued, in issue order."""
        return (action for action in self.issued if action.kind == kind)

    # rule 1: the host

    def _codes(self) -> Iterator[tuple[Code, int]]:
        """All actions, each with the step that it is of."""
        plan = self.given.plan
        if plan.fixed is not None:
            codes = list(plan.fixed.codes())
            yield from chain.from_iterable(zip(codes, repeat(lap), strict=False) for lap in range(plan.repeats))
        elif callable(plan.actions):
            yield from ((code, 0) for code in plan.actions(self))  # type: ignore[arg-type]

    def chosen(self, op: int) -> tuple[int, ...]:
        """What a runtime asks: the candidates that an op reads next; each is to be paid for."""
        assert self.given.chosen is not None
        found = self.given.chosen(op, self.order.times.get(op, 0))
        self.owed += len(found)
        return found

    def _price_ns(self, action: Action) -> int:
        host, is_fixed = self.hardware.host, self.given.plan.fixed is not None
        if is_fixed:
            return host.fixed.step_ns
        costs, op = host.reactive, self.given.graph.ops[action.a] if action.kind == COMPUTE else None
        price = {
            COMPUTE: costs.inspect_ns + costs.compute_ns, COPY: costs.copy_ns, DETACH: costs.detach_ns,
        }.get(action.kind, costs.sync_ns)  # fmt: skip
        if action.kind == COPY and action.b == self.tier and self.given.graph.tensors[action.a].persistent:
            price += costs.update_ns
        if op is None or op.dynamic is not None:
            price, self.owed = price + self.owed * costs.select_ns, 0
        return price

    def issue(self) -> bool:
        """Pay for actions and issue them; wait at a sync, and where the queue is full. Return whether some were."""
        did = False
        while not self.has_issued_all:
            if self.pending is None:
                code = next(self.codes, None)
                if code is None:
                    self.has_issued_all = True
                    break
                self.pending = self.order.add(*code)
                self.host_ns += self._price_ns(self.pending)
            if self.host_ns > self.now or self._keeps_waiting(self.pending):
                break
            self.pending.issued_ns = self.host_ns = self.now
            self.issued.append(self.pending)
            self.pending, did = None, True
        return did

    def _keeps_waiting(self, action: Action) -> bool:
        if action.kind == COMPUTE:
            depth = self.hardware.host.queue_depth
            ahead = sum(a.kind == COMPUTE and not a.has_started for a in self.issued)
            self.is_full = ahead > depth // 2 if self.is_full else ahead >= depth
            return self.is_full
        return self.awaited is not None

    @property
    def awaited(self) -> int | None:
        """The tensor that the host waits for at a sync."""
        action = self.pending
        if action is None or action.kind in {COMPUTE, COPY, DETACH} or self.host_ns > self.now:
            return None
        return None if all(other.has_ended for other in action.after) else action.a

    # heads, and what starts

    def heads(self) -> Iterator[Action]:
        """The first action of each stream and each queue."""
        waiting = [a for a in self.issued if not a.has_started]
        for stream in self.streams:
            yield from [a for a in waiting if (a.kind, a.b) == (COMPUTE, stream)][:1]
        for queue in self.queues:
            yield from [a for a in waiting if a.kind == COPY and self.link(a) in queue][:1]

    def link(self, copy: Action) -> str:
        """The first link between the two tiers of a copy."""
        return self.ways[self.names[copy.b], self.names[copy.c]]

    def queue(self, copy: Action) -> list[Action]:
        """All copies of a copy's queue that were issued."""
        names = next(names for names in self.queues if self.link(copy) in names)
        return [a for a in self.issued if a.kind == COPY and self.link(a) in names]

    def free_channels(self, copy: Action) -> list[int]:
        """The channels of a copy's queue that carry nothing."""
        busy = {a.channel for a in self.queue(copy) if a.is_under_way}
        return [i for i in range(self.hardware.links[self.link(copy)].channels) if i not in busy]

    def is_stopped(self, action: Action) -> bool:
        """Rule 17: once compaction is asked for, no compute starts, and no copy from or to the tier."""
        is_of_tier = self.tier == self.tier_of(action) if action.kind == COMPUTE else self.tier in {action.b, action.c}
        return self.addresses is not None and self.addresses.compaction is not None and is_of_tier

    def tier_of(self, action: Action) -> int:
        """The tier that the device of a compute works in, or that a copy goes to."""
        return self.order.tiers[action.a] if action.kind == COMPUTE else action.c

    def is_eligible(self, copy: Action) -> bool:
        """Rules 4 and 8: the last compute before a copy has started, or ended; and the line between streams is past."""
        if copy.gate is not None and not (copy.gate.has_ended if self.wait_for_end else copy.gate.has_started):
            return False
        return all(before.has_started for before in copy.line)

    def has_source(self, copy: Action) -> bool:
        """Rule 4: whether what a copy copies is valid, and all has ended that must have."""
        return self.valid[copy.b][copy.a] and all(other.has_ended for other in copy.after)

    def awaited_computes(self, compute: Action) -> list[Action]:
        """Rule 2: the computes of other streams that a compute waits for."""
        return [a for a in compute.after if a.kind == COMPUTE and a.b != compute.b and not a.has_ended]

    def lacked(self, compute: Action) -> list[int]:
        """Rules 3 and 5: the tensors that are not there for a compute, or on which something earlier has not ended."""
        moves = [a.a for a in compute.after if a.kind != COMPUTE and not a.has_ended]
        there = self.tier_of(compute)
        return sorted({*moves, *(t for t in compute.needs if not self.valid[compute.sources.get(t, there)][t])})

    def wanted(self, action: Action) -> Wanted:
        """The places that an action takes."""
        if action.kind == COPY:
            return [] if self.held[action.c][action.a] else [(action.a, self.sizes[action.a])]
        op = self.given.graph.ops[action.a]
        new = [(t, self.sizes[t]) for t in action.writes if not self.held[self.tier_of(action)][t]]
        return [(item, size) for item, size in (*new, (-1 - action.a, op.workspace_bytes)) if size]

    def ahead_in_line(self, compute: Action) -> list[Action]:
        """Rule 8, between streams: what must have started before a compute that takes room, and has not."""
        return [before for before in compute.line if self.wanted(compute) and not before.has_started]

    def start(self, action: Action) -> bool:
        """Start an action if it can."""
        if self.is_stopped(action):
            return False
        if action.kind == COPY:
            if not self.free_channels(action) or not self.is_eligible(action) or not self.has_source(action):
                return False
        elif self.runs(action.b) or self.awaited_computes(action) or self.lacked(action) or self.ahead_in_line(action):
            return False
        if not self._take(action):
            return False
        action.start_ns = self.now
        if action.kind == COPY:
            action.channel = min(self.free_channels_but(action))
        return True

    def free_channels_but(self, copy: Action) -> list[int]:
        """The channels that were free before a copy started."""
        busy = {a.channel for a in self.queue(copy) if a.is_under_way and a is not copy}
        return [i for i in range(self.hardware.links[self.link(copy)].channels) if i not in busy]

    def runs(self, stream: int) -> Action | None:
        """What a stream runs, or waits with at a meeting."""
        return next((a for a in self.of(COMPUTE) if a.b == stream and a.is_under_way), None)

    def duration_ns(self, compute: Action) -> int:
        """What a compute takes: measured, or the traffic of what it reads for certain and of what it has chosen."""
        op = self.given.graph.ops[compute.a]
        arithmetic, memory = self._pace()
        if op.duration_ns is not None:
            own = op.kind == "compute" and op.device != "host"
            return -(-op.duration_ns // arithmetic) if own else op.duration_ns
        if op.device == "host":
            return self.hardware.host_compute.launch_ns + alone_ns(op, self.hardware)
        assert not op.flops
        costs, rate = self.hardware.compute, self.hardware.tiers[self.hardware.compute_tier].bandwidth_bytes_per_s
        assert rate is not None
        assert costs.achieved_bandwidth_fraction == 1.0
        times = 2 if op.dynamic is not None and op.dynamic.updates else 1
        traffic = op.read_bytes + op.write_bytes + times * sum(self.sizes[t] for t in compute.chosen)
        return costs.launch_ns - (-work(traffic, int(rate * memory)) >> 32)

    def _pace(self) -> tuple[Fraction, Fraction]:
        """How many times as fast its device computes, and its memory is, as that of the machine (rule 14)."""
        for key, pace in self.hardware.ranks.items():
            first, last = int(key.split("-")[0]), int(key.split("-")[-1])
            if first <= self.number <= last:
                return Fraction(str(pace.compute)), Fraction(str(pace.memory))
        return Fraction(1), Fraction(1)

    # places

    def _take(self, action: Action) -> bool:
        """Rule 8: take room if it is there and nobody is before it in line; else stand in line."""
        tier, wanted = self.tier_of(action), self.wanted(action)
        room, size = self.rooms[tier], sum(size for _, size in wanted)
        if size and (room.is_behind(action) or not self._fits(action, tier, wanted)):
            if action not in room.line:
                room.line.append(action)
            return False
        if action in room.line:
            room.line.remove(action)
        if action.kind == COPY:
            self._hold(tier, action.a)
            return True
        op = self.given.graph.ops[action.a]
        for t in action.writes:
            self._hold(tier, t)
        self._change(tier, -1 - action.a, op.workspace_bytes)
        return True

    def _fits(self, action: Action, tier: int, wanted: Wanted) -> bool:
        """Whether there is room, and (rule 17) a hole; what fits in bytes alone asks for compaction."""
        room = self.rooms[tier]
        if room.used + sum(size for _, size in wanted) > room.capacity:
            return False
        if self.addresses is None or tier != self.tier or self.addresses.take(action, wanted, self.now):
            return True
        self.addresses.ask(self.now)
        return False

    def _hold(self, tier: int, t: int) -> None:
        if not self.held[tier][t]:
            self.held[tier][t] = True
            self._change(tier, t, self.sizes[t])

    def _change(self, tier: int, item: int, size: int) -> None:
        if size:
            self.rooms[tier].change(size)
            self.rows.append(Residency(self.now, self.number, tier, item, size))

    def _give(self, action: Action, tier: int, item: int, size: int) -> None:
        if size and self.addresses is not None and tier == self.tier:
            self.addresses.give(action, item, self.now)
        self._change(tier, item, -size)

    def end_compute(self, compute: Action) -> None:
        """What it wrote is valid in the tier of its device, and stale elsewhere."""
        compute.end_ns, op, worked_in = self.now, self.given.graph.ops[compute.a], self.tier_of(compute)
        self._give(compute, worked_in, -1 - compute.a, op.workspace_bytes)
        for t in compute.writes:
            for tier in range(len(self.names)):
                self.valid[tier][t] = tier == worked_in

    def end_copy(self, copy: Action) -> None:
        """What it copied is valid at its target."""
        copy.end_ns = self.now
        self.valid[copy.c][copy.a] = True

    def free(self) -> bool:
        """Rule 5: let each detach act whose earlier actions have ended; return whether one did."""
        did = False
        for detach in self.of(DETACH):
            if not detach.has_ended and all(a.has_ended for a in detach.after):
                detach.end_ns, did = self.now, True
                if self.held[detach.b][detach.a]:
                    self.held[detach.b][detach.a] = self.valid[detach.b][detach.a] = False
                    self._give(detach, detach.b, detach.a, self.sizes[detach.a])
        return did
