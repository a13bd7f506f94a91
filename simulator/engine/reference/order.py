"""What follows from the order of issue alone: which earlier actions an action waits for (rules 2, 4 to 6, 8 and 15)."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from simulator.draws import Draws
from simulator.engine.program import Columns, Program, Reveals
from simulator.engine.reference.actions import Action, ComputeAction, CopyAction
from simulator.engine.reference.clock import RANK_SHIFT
from simulator.engine.reference.rank import Rank
from simulator.errors import PlanError
from simulator.graph import Graph
from simulator.plan import ABSENT, VALID, PlacesAsIssued


class IssuedReads(Reveals):
    """Rule 15: the reads of each issue of an op with dynamic reads, and from when on they are known.

    Parameters
    ----------
    graph, draws, columns
        The ops, what they choose, and the compiled graph.

    Attributes
    ----------
    possible
        Per op: its reads that some op reads dynamically.
    """

    def __init__(self, graph: Graph, draws: Draws, columns: Columns) -> None:
        super().__init__(graph)
        self.draws, candidates = draws, graph.candidates
        self.possible = [tuple([t for t in op.reads if t in candidates]) for op in graph.ops]
        certain = graph.certain.ops
        self._certain = [op.reads for op in certain]
        self._written = {op: certain[op].writes for op, reads in graph.dynamic_reads.items() if reads.updates}
        self._durations = {op: draws.durations_ns(op) for op in graph.dynamic_reads}
        self._chosen_bytes = {op: draws.chosen_bytes(op).tolist() for op in graph.dynamic_reads}
        self._last: dict[int, ComputeAction] = {}

    def set_reads(self, compute: ComputeAction) -> None:
        """Set what this issue of its op reads and writes, and what that takes."""
        op = compute.op
        if op in self.issues:
            self.issues[op] += 1
            self._last[op] = compute
        compute.reads = self._certain[op]
        if op in self.step_of:
            step = self.step_of[op]
            self.step_of[op] += 1
            chosen = self.draws.chosen(op, step)
            compute.reads = (*chosen, *self._certain[op])
            if op in self._written:
                compute.writes = (*chosen, *self._written[op])
            compute.duration_ns, compute.chosen_bytes = self._durations[op][step], self._chosen_bytes[op][step]

    def _has_ended(self, op: int) -> bool:
        return self._last[op].has_ended


@dataclass(slots=True)
class RoomLine:
    """Rule 8, between streams: what stands in line for room of a tier that ops work in.

    Attributes
    ----------
    needed
        By stream, tensors that its computes name -> their copies, since the last compute that takes room.
    taker, brought
        The last compute that takes room; the last copy of each tensor into the tier.
    """

    needed: list[dict[int, CopyAction]]
    taker: ComputeAction | None = None
    brought: dict[int, CopyAction] = field(default_factory=dict)

    def ahead(self, stream: int) -> list[ComputeAction | CopyAction]:
        """Return the last compute that takes room, and the copies since that other streams need, if not started."""
        ahead: list[ComputeAction | CopyAction] = [
            c for other, of in enumerate(self.needed) if other != stream for c in of.values()
        ]
        if self.taker is not None and self.taker.stream != stream:
            ahead.append(self.taker)
        return [action for action in ahead if not action.has_started]


class Order:
    """Lays out the actions of one rank as they are issued.

    Parameters
    ----------
    program, rank
        What the rank runs, and the rank.

    Attributes
    ----------
    number
        How many actions it has laid out.
    dynamic
        What its dynamic reads choose, if it has any.
    """

    def __init__(self, program: Program, rank: Rank) -> None:
        columns = rank.columns
        self._graph, self._columns, self._clock, self._rank = program.graph, columns, rank.clock, rank
        self.number, self._first_key, self._streams = 0, rank.id << RANK_SHIFT, rank.streams
        self._routes = {(link.source, link.target): link for link in reversed(rank.links)}
        self.dynamic = None if program.draws is None else IssuedReads(program.graph, program.draws, columns)
        self.issued = PlacesAsIssued(program.plan.home, len(rank.rooms), columns.compute_tier)
        if self.dynamic is not None:
            self.issued.updated = program.graph.updated
        self._uses, self._writes = [[dict[int, ComputeAction]() for _ in rank.streams] for _ in range(2)]
        """By stream: tensor -> the last compute that uses it, and that writes it."""
        self._last: list[ComputeAction | None] = [None] * len(rank.streams)
        self._fence: dict[int, list[Action]] = {}  # tensor -> last detach
        self._moves: defaultdict[int, list[Action]] = defaultdict(list)  # tensor -> moves that have not ended
        self._previous: ComputeAction | None = None
        self._lines = {tier: RoomLine([{} for _ in rank.streams]) for tier in columns.tiers}

    def compute(self, op: int, stream: int) -> ComputeAction:
        """Lay out a compute."""
        columns, key, now, queue = self._columns, self._first_key + self.number, self._clock.now, self._streams[stream]
        reads, writes, tier, duration_ns = columns.of_op[op]
        sources, moves = self._sources(reads, tier) if columns.in_place else {}, dict[int, list[Action]]()
        compute = ComputeAction(key, now, (), op, stream, tier, queue, reads, writes, sources, moves, duration_ns)
        if self.dynamic is not None:
            self.dynamic.set_reads(compute)
            writes = compute.writes
        in_tier = tuple([tensor for tensor in reads if tensor not in sources]) if sources else compute.reads
        if (missing := self.issued.missing(in_tier, tier)) is not None:
            rule = "a tensor that a compute reads is valid in the tier of its device"
            self.refuse(f"compute {self._graph.ops[op].name}", rule, missing, "copy it in first")
        for tensor in compute.reads:
            if (fence := self._fence.get(tensor)) and not fence[0].has_ended:
                moves[tensor] = fence
        for tensor in writes:
            if tensor in self._moves and (unended := self._unended(tensor)):
                moves[tensor] = unended
        uses, written = self._uses[stream], self._writes[stream]
        if len(self._streams) > 1:
            others = [self._unended_computes(self._writes, tensor) for tensor in reads]
            others += [self._unended_computes(self._uses, tensor) for tensor in writes]
            compute.after = [*dict.fromkeys(c for of in others for c in of if c.stream != stream)]
            self._stand_in_line(compute, writes)
        self.issued.write(writes, tier)
        for tensor in reads:
            uses[tensor] = compute
        for tensor in writes:
            uses[tensor] = written[tensor] = compute
        self._last[stream] = compute
        if tier == columns.compute_tier:
            self._previous = compute
        return compute

    def _sources(self, reads: tuple[int, ...], tier: int) -> dict[int, int]:
        """Rule 3: find from where a compute loads what it may read in place and will not find in its tier."""
        states, in_place = self.issued.state, self._columns.in_place
        away = [tensor for tensor in reads if tensor in in_place and states[tier][tensor] != VALID]
        valid = (
            (tensor, [source for source in self._rank.loads if states[source][tensor] == VALID]) for tensor in away
        )
        return {tensor: sources[0] for tensor, sources in valid if sources}

    def _stand_in_line(self, compute: ComputeAction, writes: tuple[int, ...]) -> None:
        """Rule 8, between streams: note what is ahead of a compute that takes room, and of those after it."""
        states, sizes, stream = self.issued.state[compute.tier], self._columns.size_bytes, compute.stream
        line = self._lines[compute.tier]
        for tensor in (*compute.reads, *writes):
            if tensor in line.brought:
                line.needed[stream][tensor] = line.brought[tensor]
        if self._columns.workspace_bytes[compute.op] or any(states[t] == ABSENT and sizes[t] for t in writes):
            compute.line = line.ahead(stream)
            line.taker = compute
            for needed in line.needed:
                needed.clear()

    def copy(self, tensor: int, source: int, target: int) -> CopyAction:
        """Lay out a copy."""
        if broken_rule := self.issued.copy(tensor, source, target):
            self.refuse("copy", broken_rule, tensor, "drop this copy, or copy from where it is valid")
        link = self._routes.get((source, target))
        if link is None:
            names = [room.name for room in self._rank.rooms]
            do = "copy along the links of the hardware profile, or add the link"
            where = f"action {self.number} (copy {names[source]} -> {names[target]})"
            raise PlanError(where, "a link joins the two tiers", "none", do)
        after = [*self._unended_computes(self._writes, tensor), *self._fence.get(tensor, ())]
        copy = CopyAction(self._first_key + self.number, self._clock.now, after, tensor, link, self._previous)
        if target in self._lines and len(self._streams) > 1:
            copy.line = self._lines[target].ahead(self._previous.stream if self._previous else 0)
            self._lines[target].brought[tensor] = copy
        self._moves[tensor].append(copy)
        return copy

    def detach(self, tensor: int, tier: int) -> Action:
        """Lay out a detach."""
        detach = self.sync(tensor)
        if tensor in self._columns.outputs:
            valid = [place for place, state in enumerate(self.issued.state) if state[tensor] == VALID]
            if valid == [tier]:  # rule 6
                last = [compute for compute in self._last if compute and not compute.has_ended]
                detach.after = [*last, *self._unended(tensor)]
        if broken_rule := self.issued.detach(tensor, tier):
            self.refuse("detach", broken_rule, tensor, "drop this detach")
        self._moves[tensor], self._fence[tensor] = [detach], [detach]
        return detach

    def sync(self, tensor: int) -> Action:
        """Lay out a sync: it waits for all earlier actions that name the tensor, as a detach does."""
        after = [*self._unended_computes(self._uses, tensor), *self._unended(tensor)]
        return Action(self._first_key + self.number, self._clock.now, after)

    def _unended(self, tensor: int) -> list[Action]:
        """Return the moves of a tensor that have not ended."""
        self._moves[tensor] = [move for move in self._moves[tensor] if not move.has_ended]
        return [*self._moves[tensor]]

    @staticmethod
    def _unended_computes(by_stream: list[dict[int, ComputeAction]], tensor: int) -> list[ComputeAction]:
        """Return the last compute of each stream that uses, or writes, a tensor, if it has not ended."""
        return [of[tensor] for of in by_stream if tensor in of and not of[tensor].has_ended]

    def refuse(self, action: str, must: str, tensor: int, do: str) -> None:
        """Meet an action that cannot act: a fixed plan was checked before its run, or blocks where it is wrong."""
