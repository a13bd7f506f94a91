"""Random plans: a walk in issue order that fetches, stores and evicts as it is drawn, within a budget."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from simulator.graph import Graph
from simulator.hardware import Hardware
from simulator.plan import NOWHERE, Actions

ABSENT, VALID, STALE = range(3)
HBM, DDR, SSD = range(3)


class Walk:
    """Makes the steps of one training step, in issue order; `choose` draws each decision from a sequence."""

    def __init__(
        self, choose: Callable[[Sequence[Any]], Any], graph: Graph, hardware: Hardware, home: list[int], budget: int
    ) -> None:
        self.choose, self.graph, self.home, self.budget = choose, graph, home, budget
        self.size = [t.size_bytes for t in graph.tensors]
        self.tiers = len(hardware.tiers)
        names = hardware.tier_names
        self.linked = {(names.index(k.source), names.index(k.target)) for k in hardware.links.values()}
        self.loads = [*hardware.loads]
        self.state = [[ABSENT] * self.tiers for _ in self.size]
        for t, tier in enumerate(home):
            if tier != NOWHERE:
                self.state[t][tier] = VALID
        self.used = [sum(s for s, h in zip(self.size, home, strict=True) if h == tier) for tier in range(self.tiers)]
        self.peak = list(self.used)
        self.steps = Actions()
        self.maker = [-1] * len(self.size)
        self.read: dict[int, list[int]] = {}

    def through(self, streams: int = 0) -> None:
        """Walk through the whole step; each op runs on one of so many streams, or on the one that the graph says."""
        for op in range(len(self.graph.ops)):
            for _ in range(self.choose(range(3))):
                self.wander(op)
            self.run(op, self.choose(range(streams)) if streams else self.graph.ops[op].stream)
            if self.choose(range(4)) == 0:
                self.repeat(self.choose(range(op + 1)))
            self.bury(op)
        self.finish()

    def take(self, tier: int, size: int) -> None:
        self.used[tier] += size
        self.peak[tier] = max(self.peak[tier], self.used[tier])

    def copy(self, t: int, source: int, target: int) -> None:
        if self.state[t][target] == ABSENT:
            self.take(target, self.size[t])
        self.state[t][target] = VALID
        self.steps.copy(t, source, target)

    def detach(self, t: int, tier: int) -> None:
        self.used[tier] -= self.size[t]
        self.state[t][tier] = ABSENT
        self.steps.detach(t, tier)

    def needed(self, t: int, after: int) -> bool:
        """Whether the value of `t` is used by an op after `after`, or must last to the end of the step."""
        for op in self.graph.ops[after + 1 :]:
            if t in op.reads:
                return True
            if t in op.writes:
                return False
        return self.graph.tensors[t].persistent or t in self.graph.outputs

    def evict(self, t: int, after: int) -> None:
        """Give up the place in HBM; keep a copy elsewhere if the value is needed."""
        if self.needed(t, after) and VALID not in self.state[t][DDR:] and self.state[t][HBM] == VALID:
            self.copy(t, HBM, DDR)
        self.detach(t, HBM)

    def make_room(self, size: int, keep: set[int], after: int) -> bool:
        """Evict until so much more fits in HBM."""
        while self.used[HBM] + size > self.budget:
            victims = [t for t, s in enumerate(self.state) if s[HBM] != ABSENT and t not in keep and self.size[t]]
            if not victims:
                return False
            self.evict(self.choose(victims), after)
        return True

    def fetch(self, t: int, keep: set[int], after: int) -> bool:
        """Bring a valid value into HBM, by DDR if no link leads there from where it is."""
        if self.state[t][HBM] == VALID:
            return True
        if self.state[t][HBM] == ABSENT and not self.make_room(self.size[t], keep | {t}, after):
            return False
        source = next(tier for tier in range(1, self.tiers) if self.state[t][tier] == VALID)
        if (source, HBM) not in self.linked:
            self.copy(t, source, DDR)
            source = DDR
        self.copy(t, source, HBM)
        if self.choose(range(4)) == 0:
            self.detach(t, source)
        return True

    def wander(self, op: int) -> None:
        """Do something that nobody asked for."""
        present = [t for t, s in enumerate(self.state) if VALID in s]
        if not present:
            return
        t = self.choose(present)
        what = self.choose(("fetch", "store", "spill", "evict", "sync"))
        places = self.state[t]
        if what == "fetch" and places[HBM] == ABSENT and self.used[HBM] + self.size[t] <= self.budget:
            self.fetch(t, set(), op - 1)
        elif what == "store" and places[HBM] == VALID and places[DDR] != VALID:
            self.copy(t, HBM, DDR)
        elif what == "spill" and self.tiers > SSD and places[DDR] == VALID and places[SSD] != VALID:
            self.copy(t, DDR, SSD)
        elif what == "evict" and places[HBM] != ABSENT:
            self.evict(t, op - 1)
        elif what == "sync":
            self.steps.sync(t)

    def repeat(self, op: int) -> None:
        """Run an op again, if it finds what it found before, and what it makes is what its tensors should hold."""
        what = self.graph.ops[op]
        same = [self.maker[t] for t in what.reads] == self.read[op] and all(self.maker[t] == op for t in what.writes)
        if what.device == "host":
            if what.repeatable and same and all(self.state[t][DDR] == VALID for t in what.reads):
                self.execute(op, what.stream)
            return
        missing = [t for t in what.writes if self.state[t][HBM] == ABSENT]
        room = sum(self.size[t] for t in missing) + what.workspace_bytes
        there = all(self.state[t][HBM] == VALID for t in what.reads)
        if what.repeatable and same and there and self.used[HBM] + room <= self.budget:
            self.execute(op, what.stream)

    def run(self, op: int, stream: int) -> None:
        what = self.graph.ops[op]
        working = {*what.reads, *what.writes}
        if what.device == "host":
            for t in (t for t in what.reads if self.state[t][DDR] != VALID):
                self.copy(t, next(tier for tier in (HBM, SSD) if self.state[t][tier : tier + 1] == [VALID]), DDR)
            self.read[op] = [self.maker[t] for t in what.reads]
            self.execute(op, stream)
            return
        for t in what.reads:
            if not self.reads_in_place(t):
                self.fetch(t, working, op - 1)
        missing = [t for t in what.writes if self.state[t][HBM] == ABSENT]
        room = sum(self.size[t] for t in missing)
        self.make_room(room + what.workspace_bytes, working, op - 1)
        self.read[op] = [self.maker[t] for t in what.reads]
        self.execute(op, stream)

    def reads_in_place(self, t: int) -> bool:
        """Whether the next op of the accelerator leaves this where it is, if it may."""
        may = t in self.graph.in_place and self.state[t][HBM] != VALID
        return may and any(self.state[t][tier] == VALID for tier in self.loads) and self.choose((True, True, False))

    def execute(self, op: int, stream: int) -> None:
        """Take room, run the op, and make what it writes."""
        what = self.graph.ops[op]
        tier = DDR if what.device == "host" else HBM
        room = sum(self.size[t] for t in what.writes if self.state[t][tier] == ABSENT)
        self.take(tier, room + what.workspace_bytes)
        self.used[tier] -= what.workspace_bytes
        for t in what.writes:
            self.state[t] = [STALE if s != ABSENT else ABSENT for s in self.state[t]]
            self.state[t][tier] = VALID
            self.maker[t] = op
        self.steps.compute(op, stream)

    def bury(self, op: int) -> None:
        """Detach what is dead after `op`, now or later."""
        for t, places in enumerate(self.state):
            if not self.needed(t, op) and self.choose((False, True)):
                for tier, state in enumerate(places):
                    if state != ABSENT:
                        self.detach(t, tier)

    def finish(self) -> None:
        """Bring all persistent tensors home and give up everything else, the outputs last."""
        last = len(self.graph.ops) - 1
        outputs = [t for t in self.graph.outputs if not self.graph.tensors[t].persistent]
        for t, tensor in enumerate(self.graph.tensors):
            if not tensor.persistent and t not in outputs:
                self.drop(t, range(self.tiers))
        for t in self._by_home():
            self.bring_home(t, last)
            self.drop(t, [tier for tier in range(self.tiers) if tier != self.home[t]])
        for t in outputs:
            self.drop(t, range(self.tiers))

    def _by_home(self) -> list[int]:
        """Persistent tensors, those at home in HBM last, when the others have left it."""
        persistent = [t for t, tensor in enumerate(self.graph.tensors) if tensor.persistent]
        return sorted(persistent, key=lambda t: self.home[t] == HBM)

    def bring_home(self, t: int, last: int) -> None:
        home, places = self.home[t], self.state[t]
        if places[home] == VALID:
            return
        if home == HBM:
            at_home = {u for u in self._by_home() if self.home[u] == HBM}
            self.fetch(t, at_home, last)
        elif home == DDR:
            self.copy(t, next(tier for tier in (HBM, SSD) if tier < self.tiers and places[tier] == VALID), DDR)
        else:
            if places[DDR] != VALID:
                self.copy(t, HBM, DDR)
            self.copy(t, DDR, SSD)

    def drop(self, t: int, tiers) -> None:
        for tier in tiers:
            if self.state[t][tier] != ABSENT:
                self.detach(t, tier)
