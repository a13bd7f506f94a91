"""What the order of issue alone says of the actions of one rank (rules 2, 4 to 6, 8 and 15)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from simulator.graph import Graph
from simulator.plan import COMPUTE, COPY, DETACH, NOWHERE, Plan

Chosen = Callable[[int, int], tuple[int, ...]]
"""What an op with dynamic reads chooses in a step."""


@dataclass(frozen=True)
class Given:
    """What a rank runs: a graph with its plan, when it begins, what it chooses, and how it gives out addresses."""

    graph: Graph
    plan: Plan
    starts_ns: int = 0
    chosen: Chosen | None = None
    allocator: str = "ideal"


@dataclass(eq=False)
class Action:
    """One action that a host issues, and when what happened to it.

    A collective *starts* when its rank arrives, and *begins* when the last one has arrived.
    """

    rank: int
    issue: int
    lap: int
    kind: int
    a: int
    b: int
    c: int
    named: dict[int, bool] = field(default_factory=dict)
    needs: Sequence[int] = ()
    writes: Sequence[int] = ()
    chosen: Sequence[int] = ()
    sources: dict[int, int] = field(default_factory=dict)
    after: list[Action] = field(default_factory=list)
    line: list[Action] = field(default_factory=list)
    gate: Action | None = None
    issued_ns: int | None = None
    start_ns: int | None = None
    begin_ns: int | None = None
    end_ns: int | None = None
    channel: int = 0
    flows: int = 0
    meeting: Any = None

    @property
    def has_started(self) -> bool:
        return self.start_ns is not None

    @property
    def has_ended(self) -> bool:
        return self.end_ns is not None

    @property
    def is_under_way(self) -> bool:
        return self.has_started and not self.has_ended

    @property
    def takes_turns_in_line(self) -> tuple[bool, int, int]:
        """Rule 8: computes first, each in (rank, issue) order."""
        return self.kind == COPY, self.rank, self.issue


class Order:
    """Lays out the actions of a rank as they come, whatever has happened by then."""

    def __init__(self, rank: int, given: Given, tier: int, host_tier: int | None, loads: Sequence[int] = ()) -> None:
        self.rank, self.given, self.tier, self.loads = rank, given, tier, loads
        self.tiers = [tier if op.device == "accelerator" or host_tier is None else host_tier for op in given.graph.ops]
        self.sizes = [t.size_bytes for t in given.graph.tensors]
        self.actions: list[Action] = []
        self.places = [{home} - {NOWHERE} for home in given.plan.home]
        self.valid = [set(place) for place in self.places]
        self.times: dict[int, int] = {}
        self.last: Action | None = None
        worked_in = {tier, *self.tiers}
        self.taker: dict[int, list[Action]] = {tier: [] for tier in worked_in}
        self.brought: dict[tuple[int, int], Action] = {}
        self.needed: dict[int, list[tuple[int, Action]]] = {tier: [] for tier in worked_in}

    def add(self, code: tuple[int, int, int, int], lap: int) -> Action:
        """Lay out the next action."""
        action = Action(self.rank, len(self.actions), lap, *code, gate=self.last)
        if action.kind == COMPUTE:
            self._compute(action)
        else:
            action.named = {action.a: action.kind == DETACH}
        if action.kind == COPY:
            self.places[action.a].add(action.c)
            self.valid[action.a].add(action.c)
        action.after = [other for other in self.actions if self._waits(action, other)]
        if action.kind == DETACH:
            self._detach(action)
        self._stand_in_line(action)
        self.actions.append(action)
        return action

    def _compute(self, action: Action) -> None:
        op = self.given.graph.ops[action.a]
        action.needs, action.writes = op.reads, op.writes
        for t in self.given.graph.in_place.intersection(op.reads):  # rule 3: what it does not find it may load
            elsewhere = [tier for tier in self.loads if tier in self.valid[t]]
            if self.tier not in self.valid[t] and elsewhere and op.device == "accelerator":
                action.sources[t] = elsewhere[0]
        if op.dynamic is not None and self.given.chosen is not None:
            step = self.times.get(action.a, 0)
            self.times[action.a] = step + 1
            action.chosen = self.given.chosen(action.a, step)
            left = {*op.dynamic.candidates} - {*action.chosen}
            action.needs, action.writes = ([t for t in ids if t not in left] for ids in (op.reads, op.writes))
        action.named = {t: t in action.writes for t in (*op.reads, *op.writes)}

    def _waits(self, action: Action, other: Action) -> bool:
        """Rule 5: actions on a tensor take effect in issue order, only reads overlap; a sync waits for all of them.

        Rule 15: an op with dynamic reads waits for no move of a candidate that it has not chosen.
        """
        if other.kind not in {COMPUTE, COPY, DETACH}:
            return False
        mine = action.named
        if action.kind == COMPUTE and other.kind != COMPUTE:
            mine = {t: x for t, x in mine.items() if x or t in action.needs}
        waits_for_all = action.kind not in {COMPUTE, COPY, DETACH}
        return any(t in other.named and (waits_for_all or x or other.named[t]) for t, x in mine.items())

    def _detach(self, action: Action) -> None:
        """Rule 6: what gives up an output's only valid copy waits for the last compute of each stream."""
        graph, t = self.given.graph, action.a
        if t in graph.outputs and not graph.tensors[t].persistent and self.valid[t] == {action.b}:
            action.after += [other for other in self.actions if other.kind == COMPUTE]
        self.places[t].discard(action.b)
        self.valid[t].discard(action.b)

    def _stand_in_line(self, action: Action) -> None:
        """Rule 8, between the streams of a rank: what takes room of a tier in which ops work, after whom.

        That is the last compute before it that takes some, and the copies that computes of other streams since need.
        """
        stream = action.b if action.kind == COMPUTE else self.last.b if self.last else 0
        tier = self.tiers[action.a] if action.kind == COMPUTE else action.c
        if action.kind not in {COMPUTE, COPY} or tier not in self.taker:
            return
        line = self.taker[tier] + [copy for other, copy in self.needed[tier] if other != stream]
        if action.kind == COPY:
            action.line = line
            self.brought[tier, action.a] = action
        else:
            op = self.given.graph.ops[action.a]
            action.line = line
            self.last = action if op.device == "accelerator" else self.last
            if op.workspace_bytes or any(self.sizes[t] for t in action.writes if tier not in self.places[t]):
                self.taker[tier], self.needed[tier] = [action], []
            else:
                used = [(tier, t) for t in action.named if t in action.needs or t in action.writes]
                self.needed[tier] += [(action.b, self.brought[place]) for place in used if place in self.brought]
            for t in action.writes:
                self.places[t].add(tier)
                self.valid[t] = {tier}
