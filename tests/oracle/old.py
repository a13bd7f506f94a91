"""A second simulator, slow and plain, written from docs/reference/semantics.md (rules 1 to 10) and nothing else.

It looks at every step at every instant, keeps the work left of every flow, and knows one rank, fixed plans, links
without a way over others, buses, shared queues, and kernels that copies do not slow down. No line of the engine's is
used. What it reads of the project are the documents that it is given: a graph, a machine and the steps of a plan.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import pairwise

from simulator.graph import Graph
from simulator.hardware import Hardware, Link
from simulator.plan import COMPUTE, COPY, DETACH, NOWHERE, Plan

ONE = 1 << 32
"""A whole rate, and a nanosecond of work at it."""


@dataclass(eq=False)
class Step:
    """One step that the host issues."""

    number: int
    lap: int
    kind: int
    a: int
    b: int
    c: int
    named: dict[int, bool] = field(default_factory=dict)
    after: list[Step] = field(default_factory=list)
    line: Step | None = None
    gate: Step | None = None
    issued_ns: int | None = None
    start_ns: int | None = None
    end_ns: int | None = None
    channel: int = 0

    @property
    def has_started(self) -> bool:
        return self.start_ns is not None

    @property
    def has_ended(self) -> bool:
        return self.end_ns is not None


@dataclass(eq=False)
class Flow:
    """The bytes of a transfer under way: what is left of its work, and how fast it goes."""

    step: Step
    link: str
    cap: int
    left: int
    joins_ns: int
    rate: int = 0


@dataclass(frozen=True)
class Told:
    """What happened: spans as (issue, issued, start, end, channel), and the most each tier held [B]."""

    status: str
    spans: list[tuple[int, int, int, int, int]]
    peaks: list[int]
    step_ns: int | None
    makespan_ns: int


class Oracle:
    """One run."""

    def __init__(self, graph: Graph, hardware: Hardware, plan: Plan, budget: int, *, wait_for_end: bool) -> None:
        self.graph, self.hardware, self.wait_for_end = graph, hardware, wait_for_end
        self.size = [t.size_bytes for t in graph.tensors]
        self.names = list(hardware.tiers)
        self.here = self.names.index(hardware.compute_tier)
        self.capacity = [tier.usable_bytes for tier in hardware.tiers.values()]
        self.capacity[self.here] = budget
        self.held = [[home == tier for home in plan.home] for tier in range(len(self.names))]
        self.valid = [list(row) for row in self.held]
        self.used = [sum(s for s, h in zip(self.size, row, strict=True) if h) for row in self.held]
        self.peaks = list(self.used)
        self.steps = self._lay_out(plan)
        self.streams = {s.b: [o for o in self.steps if (o.kind, o.b) == (COMPUTE, s.b)] for s in self._of(COMPUTE)}
        self.queues = self._queues()
        self.in_line: list[list[Step]] = [[] for _ in self.names]
        self.flows: list[Flow] = []
        self.now = self.host_ns = hardware.host.fixed.launch_ns * bool(self.steps)
        self.next, self.has_paid, self.is_full = 0, False, False
        self.now = 0

    def _of(self, kind: int) -> Iterator[Step]:
        return (step for step in self.steps if step.kind == kind)

    def _lay_out(self, plan: Plan) -> list[Step]:
        """All steps, with what the order of issue alone says of them."""
        codes = list(plan.fixed.codes()) if plan.fixed is not None else []
        steps = [Step(lap * len(codes) + i, lap, *code) for lap in range(plan.repeats) for i, code in enumerate(codes)]
        places = [{tier} - {NOWHERE} for tier in plan.home]
        valid, lasting = [set(place) for place in places], {t.name for t in self.graph.tensors if t.persistent}
        last: Step | None = None
        taker: Step | None = None
        for at, step in enumerate(steps):
            before = steps[:at]
            step.gate = last
            if step.kind == COMPUTE:
                op = self.graph.ops[step.a]
                step.named = {t: t in op.writes for t in (*op.reads, *op.writes)}
                new = [t for t in op.writes if self.here not in places[t]]
                step.line, last = taker, step
                if op.workspace_bytes or any(self.size[t] for t in new):
                    taker = step
                for t in op.writes:
                    places[t].add(self.here)
                    valid[t] = {self.here}
            else:
                step.named = {step.a: step.kind == DETACH}
            if step.kind == COPY:
                places[step.a].add(step.c)
                valid[step.a].add(step.c)
                step.line = taker if step.c == self.here else None
            step.after = [o for o in before if self._waits(step, o)]
            if step.kind == DETACH:
                places[step.a].discard(step.b)
                was_only = valid[step.a] == {step.b}
                valid[step.a].discard(step.b)
                is_output = step.a in self.graph.outputs and self.graph.tensors[step.a].name not in lasting
                if is_output and was_only:
                    step.after += [o for o in before if o.kind == COMPUTE]
        return steps

    @staticmethod
    def _waits(step: Step, other: Step) -> bool:
        """Rule 5: whether a step takes effect behind an earlier one; a sync waits for all that name its tensor."""
        if other.kind not in {COMPUTE, COPY, DETACH}:
            return False
        waits_for_all = step.kind not in {COMPUTE, COPY, DETACH}
        return any(t in other.named and (waits_for_all or x or other.named[t]) for t, x in step.named.items())

    def _queues(self) -> list[tuple[list[str], list[Step]]]:
        """For each queue its links and its copies in issue order; a copy takes the first link between its tiers."""
        links = self.hardware.links
        shared = [list(names) for names in self.hardware.copy_queues.values()]
        alone = [[name] for name in links if not any(name in names for names in shared)]
        found: list[tuple[list[str], list[Step]]] = [(names, []) for names in shared + alone]
        for step in self._of(COPY):
            next(steps for names, steps in found if self._link(step) in names).append(step)
        return found

    def _link(self, step: Step) -> str:
        ends = (self.names[step.b], self.names[step.c])
        return next(name for name, link in self.hardware.links.items() if (link.source, link.target) == ends)

    def run(self) -> Told:
        """Go from instant to instant until nothing more can happen."""
        while True:
            self._instant()
            then = self._next_ns()
            if then is None:
                return self._told()
            for flow in self.flows:
                if flow.joins_ns <= self.now:
                    flow.left -= flow.rate * (then - self.now)
            self.now = then

    def _instant(self) -> None:
        """Rule 9: ends, frees, and grants and starts, round after round."""
        while True:
            self._set_rates()
            did = self._end_what_is_done()
            did |= self._go_on_with_the_host()
            did |= self._free_and_start()
            if not did:
                return

    def _free_and_start(self) -> bool:
        did = False
        while True:
            freed = bool([step for step in self._of(DETACH) if self._free(step)])
            started = False
            while self._start_first():
                started = True
                self._go_on_with_the_host()
            did |= freed or started
            if not freed and not started:
                return did

    def _next_ns(self) -> int | None:
        found = [
            s.start_ns + self._duration_ns(s) for s in self._of(COMPUTE) if s.start_ns is not None and not s.end_ns
        ]
        found += [f.joins_ns if f.joins_ns > self.now else self.now - (-max(f.left, 0) // f.rate) for f in self.flows]
        if self.next < len(self.steps) and self.host_ns > self.now:
            found.append(self.host_ns)
        return min((ns for ns in found if ns > self.now), default=None)

    def _duration_ns(self, step: Step) -> int:
        return self.graph.ops[step.a].duration_ns or 0

    def _end_what_is_done(self) -> bool:
        ended = [
            s for s in self._of(COMPUTE) if s.start_ns is not None and not s.has_ended
            and s.start_ns + self._duration_ns(s) <= self.now
        ]  # fmt: skip
        for step in ended:
            step.end_ns, op = self.now, self.graph.ops[step.a]
            self.used[self.here] -= op.workspace_bytes
            for t in op.writes:
                for tier in range(len(self.names)):
                    self.valid[tier][t] = tier == self.here
        done = [f for f in self.flows if f.joins_ns <= self.now and f.rate and f.left <= 0]
        for flow in done:
            self.flows.remove(flow)
            flow.step.end_ns = self.now
            self.valid[flow.step.c][flow.step.a] = True
        return bool(ended or done)

    def _go_on_with_the_host(self) -> bool:
        """Rule 1: pay for each step and issue it; wait at a sync, and where the queue is full."""
        did, price = False, self.hardware.host.fixed.step_ns
        while self.next < len(self.steps):
            step = self.steps[self.next]
            if not self.has_paid:
                self.host_ns, self.has_paid = self.host_ns + price, True
            if self.host_ns > self.now or self._keeps_waiting(step):
                return did
            step.issued_ns = self.host_ns = self.now
            self.has_paid, did = False, True
            self.next += 1
        return did

    def _keeps_waiting(self, step: Step) -> bool:
        if step.kind == COMPUTE:
            depth = self.hardware.host.queue_depth
            ahead = sum(s.issued_ns is not None and not s.has_started for s in self._of(COMPUTE))
            self.is_full = ahead > depth // 2 if self.is_full else ahead >= depth
            if self.is_full:
                return True
        elif step.kind not in {COPY, DETACH} and not all(o.has_ended for o in step.after):
            return True
        self.host_ns = max(self.host_ns, self.now)
        return False

    def _free(self, step: Step) -> bool:
        if step.issued_ns is None or step.has_ended or not all(o.has_ended for o in step.after):
            return False
        step.end_ns = self.now
        if self.held[step.b][step.a]:
            self.used[step.b] -= self.size[step.a]
        self.held[step.b][step.a] = self.valid[step.b][step.a] = False
        return True

    def _start_first(self) -> bool:
        """Start the first head that can start, in issue order."""
        heads = [next((s for s in steps if not s.has_started), None) for steps in self.streams.values()]
        heads += [next((s for s in steps if not s.has_started), None) for _, steps in self.queues]
        return any(self._start(head) for head in sorted((h for h in heads if h), key=lambda s: s.number))

    def _start(self, step: Step) -> bool:
        if step.issued_ns is None or not all(o.has_ended for o in step.after):
            return False
        return self._start_compute(step) if step.kind == COMPUTE else self._start_copy(step)

    def _start_compute(self, step: Step) -> bool:
        op = self.graph.ops[step.a]
        is_busy = any(s.has_started and not s.has_ended for s in self.streams[step.b])
        if is_busy or not all(self.valid[self.here][t] for t in op.reads):
            return False
        new = [t for t in op.writes if not self.held[self.here][t]]
        if not self._takes(step, self.here, op.workspace_bytes + sum(self.size[t] for t in new)):
            return False
        for t in new:
            self.held[self.here][t] = True
        step.start_ns = self.now
        return True

    def _start_copy(self, step: Step) -> bool:
        names, steps = next((names, steps) for names, steps in self.queues if step in steps)
        link = self.hardware.links[self._link(step)]
        busy = {s.channel for s in steps if s.has_started and not s.has_ended}
        gate = step.gate
        is_gated = gate is not None and not (gate.has_ended if self.wait_for_end else gate.has_started)
        if is_gated or len(busy) == self.hardware.links[names[0]].channels or not self.valid[step.b][step.a]:
            return False
        if step.line is not None and not step.line.has_started:
            return False
        if not self._takes(step, step.c, 0 if self.held[step.c][step.a] else self.size[step.a]):
            return False
        self.held[step.c][step.a] = True
        step.start_ns, step.channel = self.now, min(set(range(link.channels)) - busy)
        unit = self._unit(self._link(step))
        needed = 0 if unit == math.inf else -(-self.size[step.a] * 10**9 * ONE // int(unit))
        at = self.now + link.latency_ns
        self.flows.append(Flow(step, self._link(step), _cap(link, self.size[step.a]), needed, at))
        return True

    def _takes(self, step: Step, tier: int, size: int) -> bool:
        """Rule 8: take room if it is there and nobody is before it in line; else stand in line."""
        line, is_copy = self.in_line[tier], step.kind == COPY
        if size:
            if not is_copy and step.line is not None and not step.line.has_started:
                return False
            is_behind = any((s.kind == COPY, s.number) < (is_copy, step.number) for s in line)
            if is_behind or self.used[tier] + size > self.capacity[tier]:
                if step not in line:
                    line.append(step)
                return False
        if step in line:
            line.remove(step)
        self.used[tier] += size
        self.peaks[tier] = max(self.peaks[tier], self.used[tier])
        return True

    def _buses(self, link: str) -> list[str]:
        return [name for name, bus in self.hardware.buses.items() if link in bus.links]

    def _unit(self, name: str) -> int | float:
        """What the rate of a link is a share of: its bandwidth, or that of its narrowest bus if it has no limit."""
        rate = self.hardware.links[name].bandwidth_bytes_per_s
        limits = [self.hardware.buses[bus].bandwidth_bytes_per_s for bus in self._buses(name)]
        return rate if rate != math.inf else min(limits, default=rate)

    def _set_rates(self) -> None:
        """Rule 10: each flow's part of its link, then max-min over what links share."""
        active = [f for f in self.flows if f.joins_ns <= self.now]
        limits: dict[str, Fraction] = {}
        on: dict[str, list[Flow]] = {}
        caps: dict[int, Fraction] = {}
        for flow in active:
            link, unit = self.hardware.links[flow.link], self._unit(flow.link)
            whole, cap = ONE if unit == math.inf else int(unit), flow.cap
            if link.sharing == "fifo" and link.channels > 1 and link.bandwidth_bytes_per_s != math.inf:
                cap = min(cap, ONE // sum(f.link == flow.link for f in active))
            caps[id(flow)] = Fraction(cap * whole, ONE)
            shared = {bus: self.hardware.buses[bus].bandwidth_bytes_per_s for bus in self._buses(flow.link)}
            if link.sharing == "fair" and link.channels > 1:
                shared[f"link {flow.link}"] = link.bandwidth_bytes_per_s
            for name, limit in shared.items():
                if limit != math.inf:
                    limits[name] = Fraction(int(limit))
                    on.setdefault(name, []).append(flow)
        rates = _max_min(active, caps, limits, on)
        for flow in active:
            unit = self._unit(flow.link)
            flow.rate = max(1, math.floor(rates[id(flow)] * ONE / (ONE if unit == math.inf else int(unit))))

    def _told(self) -> Told:
        is_done = all(s.has_ended for s in self.steps if s.kind in {COMPUTE, COPY, DETACH})
        spans = [
            (s.number, s.issued_ns or 0, s.start_ns or 0, s.end_ns, s.channel)
            for s in self.steps if s.kind in {COMPUTE, COPY} and s.end_ns is not None
        ]  # fmt: skip
        makespan = max((end for *_, end, _ in spans), default=0)
        laps = 1 + max((s.lap for s in self.steps), default=0)
        ends = [max((s.end_ns or 0 for s in self._of(COMPUTE) if s.lap == lap), default=0) for lap in range(laps)]
        step = (ends[-1] - ends[-2] if laps > 1 else makespan) if is_done else None
        return Told("ok" if is_done else "blocked", spans, self.peaks, step, makespan)


def _cap(link: Link, size: int) -> int:
    """The most that a transfer of a size gets of its link, as a share in 2^-32."""
    if link.bandwidth_bytes_per_s == math.inf:
        return ONE
    points, share = [(p.size_bytes, p.fraction) for p in link.efficiency], 1.0
    if points:
        share = points[0][1] if size <= points[0][0] else points[-1][1]
        for (low, first), (high, last) in pairwise(points):
            if low <= size < high:
                position = (math.log(size) - math.log(low)) / (math.log(high) - math.log(low))
                share = first + (last - first) * position
    if link.sharing == "servers":
        share = min(share, 1 / link.channels)
    return max(1, math.floor(share * ONE))


def _max_min(
    flows: Sequence[Flow], caps: dict[int, Fraction], limits: dict[str, Fraction], on: dict[str, list[Flow]]
) -> dict[int, Fraction]:
    """Settle the flow that is held back most, again and again [B/s]."""
    rates: dict[int, Fraction] = {}
    while len(rates) < len(flows):
        offers: dict[int, Fraction] = {}
        for flow in flows:
            if id(flow) not in rates:
                parts = [caps[id(flow)]]
                for name, users in on.items():
                    if flow in users:
                        used = sum((rates[id(u)] for u in users if id(u) in rates), Fraction(0))
                        parts.append((limits[name] - used) / sum(id(u) not in rates for u in users))
                offers[id(flow)] = min(parts)
        least = min(offers, key=lambda one: offers[one])
        rates[least] = offers[least]
    return rates
