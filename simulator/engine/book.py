"""What the issue order asks of each step: which earlier steps must have ended before it may take effect.

Each step that names a tensor is shared (a compute that reads it, a copy of it) or exclusive (a compute that writes
it, a detach). Shared steps overlap; an exclusive one waits for all earlier steps that name the tensor, and all later
ones wait for it. Computes of one stream are in order anyway, so that two kinds of counters keep this order:

- of each stream, how many computes have ended; a step that follows computes knows the number (1 is the first) of the
  last one that it follows;
- per tensor, how many of its *moves* (copies and detaches) have ended. An exclusive step with `n` moves issued before
  it waits until `n` have ended, a shared one until those up to the last detach (the *fence*) have. As nothing behind
  an exclusive step can begin before that has ended, a count is enough.

Room in the compute tier is given in issue order: with several streams, a compute that takes room, or a copy into that
tier, waits for the start of the last compute before it that takes some. Otherwise one stream could take what another
needs to go on, although all fits in issue order.

Such counts follow from the issue order alone. That makes a fixed plan cheap to replay: its steps are counted once,
and in each repeat (*lap*) every count is larger by what one lap adds. A count that refers to the lap before is not
positive; in the first lap it asks for nothing.

What a compute has seen to, those behind it on the only stream need not look at again, until the tensor moves. A tensor
that some compute of this lap uses, and that was not detached since, is in its turn and valid. If a compute wrote it,
and it was not copied either since, no other copy is valid.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import NoReturn

from simulator.engine.late import Decider, LateReads, LateStep
from simulator.engine.link import CopyStep, LinkQueue
from simulator.engine.places import Places
from simulator.engine.program import Columns
from simulator.engine.refusals import no_link, unknown_stream
from simulator.engine.steps import ComputeStep, DetachStep, SyncStep, free_compute
from simulator.engine.waits import ISSUE_MASK, NEVER, Computes, Issuer, Step
from simulator.plan import Code

Routes = list[list[LinkQueue | None]]
"""By source and target tier: the rank's link between them."""


class Book:
    """Counts steps in issue order.

    Parameters
    ----------
    places
        The rank's places, with its streams.
    columns
        Its compiled graph.
    routes
        The rank's links.

    Attributes
    ----------
    host
        Who issues the steps, if they are not counted before.
    note
        Takes the code of each step as it is issued.
    late
        What late reads choose, if there are some.
    decider
        Counts the steps of candidates of late reads, where those are decided at run time and this is a lap's book.
    lap_length
        How many steps a lap of a fixed plan has whose laps are counted as they are issued.
    """

    __slots__ = (
        "_alone",
        "_at",
        "_columns",
        "_computes",
        "_count",
        "_fence",
        "_free",
        "_gate",
        "_held",
        "_last_taker",
        "_last_use",
        "_last_write",
        "_light",
        "_moves",
        "_moves_per_lap",
        "_outputs",
        "_places",
        "_reads",
        "_routes",
        "_seen_after",
        "_size_bytes",
        "_sole",
        "_streams",
        "_tracked",
        "_writes",
        "_written",
        "decider",
        "host",
        "lap_length",
        "late",
        "note",
    )

    def __init__(self, places: Places, columns: Columns, routes: Routes) -> None:
        tensors = len(columns.size_bytes)
        self._places, self._columns, self._routes = places, columns, routes
        self._streams, self._alone = places.streams, len(places.streams) == 1
        self._reads, self._writes, self._moves_per_lap = columns.reads, columns.writes, places.moves_per_lap
        self._computes = [0] * len(self._streams)
        self._last_use = [[NEVER] * tensors for _ in self._streams]
        self._last_write = [[NEVER] * tensors for _ in self._streams]
        self._moves, self._fence = [0] * tensors, [NEVER] * tensors
        self._seen_after = [[NEVER] * len(self._streams) for _ in self._streams]
        self._sole = [False] * tensors
        self._light = columns.light if self._alone else [None] * len(columns.light)
        self._size_bytes, self._written, self._outputs = columns.size_bytes, columns.written, columns.outputs
        self._tracked = columns.tracked
        self._gate, self._at = 0, -1
        self._held = list(columns.starts_here)
        self._last_taker = (0, NEVER)
        self.host: Issuer | None = None
        self.note: Callable[[Code], None] = deque[Code](maxlen=0).append
        self.late: LateReads | None = None
        self.decider: Decider | None = None
        self.lap_length = ISSUE_MASK
        compute = self._compute if self._alone else self._compute_beside
        self._free = free_compute()
        self._count: tuple[Callable[[Code], Step], ...] = (compute, self._copy, self._detach, self._sync)

    def take_late(self, late: LateReads) -> None:
        """Count ops with late reads, and all that read what others read late, by what they read this time."""
        self.late = late
        self._light = [None if late.concerns[op] else reads for op, reads in enumerate(self._light)]
        if self._alone:
            self._reads, self._count = late.certain, (self._compute_late, *self._count[1:])

    @property
    def _number(self) -> int:
        """Number of the step at hand."""
        return self._at if self.host is None else self.host.key & ISSUE_MASK

    def issue(self, codes: Iterable[Code], host: Issuer) -> Step | None:
        """Count and issue steps until one has to wait; that one, or None if there are no more.

        A compute that only reads what earlier ones have seen to joins those in the queue at once; they share a step.
        """
        note, count, prices, looks, lap = self.note, self._count, host.prices, host.looks, host.lap
        computes, last_use, light, free = self._computes, self._last_use[0], self._light, self._free
        key, now, credit, queue = host.key, host.now, host.credit, self._streams[0].queue
        for code in codes:
            kind, item, at, _ = code
            note(code)
            now += prices[kind]
            if not (kind or at) and credit and queue and (reads := light[item]) is not None:
                number = computes[0] + 1
                for tensor in reads:
                    if last_use[tensor] <= 0:
                        break
                    last_use[tensor] = number
                else:
                    computes[0] = number
                    credit -= 1
                    queue.append((key, item, free, now, lap))
                    host.key = key = key + 1
                    continue
            host.now, host.credit = now, credit
            step = count[kind](code)
            if (looks and host.must_wait()) or not step.issue(host):
                return step
            now, credit = host.now, host.credit
            host.key = key = key + 1
        host.now = now
        return None

    def _compute(self, code: Code) -> ComputeStep:
        """Count a compute of the only stream; it sees to what no earlier one has."""
        _, op, stream, _ = code
        if stream:
            raise unknown_stream(self._number, stream, len(self._streams))
        last_use, last_write, sole = self._last_use[0], self._last_write[0], self._sole
        self._computes[0] = number = self._computes[0] + 1
        unseen: tuple[int, ...] = ()
        unwritten: tuple[int, ...] = ()
        for tensor in self._reads[op]:
            if last_use[tensor] <= 0:
                unseen = (*unseen, tensor)
            last_use[tensor] = number
        for tensor in self._writes[op]:
            if not sole[tensor]:
                unwritten = (*unwritten, tensor)
                sole[tensor] = True
            last_use[tensor] = last_write[tensor] = number
        return self._look_up(op, 0, unseen, unwritten)

    def _compute_late(self, code: Code) -> ComputeStep | LateStep:
        """Count a compute of the only stream, where earlier ones may have named what they did not read."""
        late, op = self.late, code[1]
        if late is None or not late.concerns[op]:
            return self._compute(code)
        if self.host is None:
            return self._late_step(code, late)
        number = self._computes[0] + 1
        if op in late:
            self._admit_late(op, late)
        reads = late.needed(op, self._streams[0], number)
        step = self._compute(code)
        for tensor in late.possible[op]:
            self._last_use[0][tensor] = number
        if reads:
            step = self._look_up(op, 0, (*step.reads, *reads), tuple(step.writes))
        return late.timed(step)

    def _late_step(self, code: Code, late: LateReads) -> LateStep:
        """Count what is certain of a compute in a lap; what it reads late has another count in each."""
        step = LateStep()
        step.certain, step.late, step.decider, step.made = self._compute(code), late, self.decider, None
        step.number, possible = self._computes[0], late.possible[code[1]]
        step.fence = {tensor: self._fence[tensor] for tensor in possible}
        for tensor in possible:
            self._last_use[0][tensor] = step.number
        return step

    def _admit_late(self, op: int, late: LateReads) -> None:
        """Let an op with late reads be issued; a fixed plan was checked before."""

    def _compute_beside(self, code: Code) -> ComputeStep:
        """Count a compute of one of several streams."""
        _, op, stream, _ = code
        if not 0 <= stream < len(self._streams):
            raise unknown_stream(self._number, stream, len(self._streams))
        self._gate, reads, writes = stream, self._reads[op], self._writes[op]
        self._computes[stream] = number = self._computes[stream] + 1
        after = self._after(op, stream)
        last_use, last_write = self._last_use[stream], self._last_write[stream]
        for tensor in reads:
            last_use[tensor] = number
        for tensor in writes:
            last_use[tensor] = last_write[tensor] = number
        step = self._look_up_beside(op, stream, number)
        step.after = after
        if self._takes_room(op):
            step.line = self._line(stream)
            self._last_taker = (stream, number)
        return step

    def _look_up_beside(self, op: int, stream: int, number: int) -> ComputeStep:
        late, reads, writes = self.late, self._reads[op], self._writes[op]
        if late is None:
            return self._look_up(op, stream, reads, writes)
        if op in late:
            self._admit_late(op, late)
        reads = (*late.certain[op], *late.needed(op, self._streams[stream], number))
        return late.timed(self._look_up(op, stream, reads, writes))

    def _takes_room(self, op: int) -> bool:
        """Whether a compute takes room in the compute tier, as issued; from now on it has."""
        held, size_bytes = self._held, self._columns.size_bytes
        takes = self._columns.workspace_bytes[op] > 0
        for tensor in self._writes[op]:
            takes = takes or (not held[tensor] and size_bytes[tensor] > 0)
            held[tensor] = True
        return takes

    def _line(self, stream: int) -> Computes:
        """The last compute that takes room, unless it is one of this stream."""
        other, number = self._last_taker
        return () if other == stream or number == NEVER else ((self._streams[other], number),)

    def _after(self, op: int, stream: int) -> Computes:
        """Computes of other streams that write what this one reads, or use what it writes: the last of each stream.

        What an earlier compute of this stream has waited for, a later one need not.
        """
        found, reads, writes = [], self._reads[op], self._writes[op]
        for other, seen in enumerate(self._seen_after[stream]):
            if other != stream:
                use, write = self._last_use[other], self._last_write[other]
                number = max([NEVER, *(write[t] for t in reads), *(use[t] for t in writes)])
                if number > seen:
                    self._seen_after[stream][other] = number
                    found.append((self._streams[other], number))
        return tuple(found)

    def _look_up(self, op: int, stream: int, reads: tuple[int, ...], writes: tuple[int, ...]) -> ComputeStep:
        """A compute that must see to these tensors itself, because no earlier one does."""
        fence, moves, per_lap, turns = self._fence, self._moves, self._moves_per_lap, []
        for tensor in reads:
            if fence[tensor] > NEVER:
                turns.append((tensor, fence[tensor]))
        for tensor in writes:
            if moves[tensor] or per_lap[tensor]:
                turns.append((tensor, moves[tensor]))
        step = ComputeStep()
        step.op, step.stream = op, self._streams[stream]
        step.queue, step.turns = step.stream.queue, turns
        step.reads, step.writes = reads, writes
        step.after = step.line = ()
        step.duration_ns = -1
        step.is_free = self._alone and not (reads or writes or self._columns.workspace_bytes[op])
        return step

    def _sync(self, code: Code) -> SyncStep:
        step = SyncStep()
        step.places, tensor = self._places, code[1]
        step.tensor, step.moves, step.users = tensor, self._moves[tensor], self._latest(self._last_use, tensor)
        return step

    def _detach(self, code: Code) -> DetachStep:
        _, tensor, tier, _ = code
        step, moves = DetachStep(), self._moves[tensor]
        step.tensor, step.tier, step.places, step.moves = tensor, tier, self._places, moves
        parts = tensor in self._outputs and self._parts_with_output(tensor)
        step.users = self._issued() if parts else self._latest(self._last_use, tensor)
        self._moves[tensor] = self._fence[tensor] = moves + 1
        self._sole[tensor] = False
        if self._alone:
            self._last_use[0][tensor] = self._last_write[0][tensor] = NEVER
        elif tier == self._columns.compute_tier:
            self._held[tensor] = False
        return step

    def _copy(self, code: Code) -> CopyStep:
        _, tensor, source, target = code
        step, gate = CopyStep(), self._gate
        step.link = link = self._routes[source][target] or self._no_link(source, target)
        step.tensor, step.alone_ns = tensor, link.alone_ns[self._size_bytes[tensor]]
        step.gate, step.gate_number = self._streams[gate], self._computes[gate]
        step.moves, step.line = self._fence[tensor], ()
        step.writers = self._latest(self._last_write, tensor) if self._written[tensor] else ()
        self._moves[tensor] += 1
        self._sole[tensor] = False
        if not self._alone and target == self._columns.compute_tier:
            self._held[tensor] = True
            step.line = self._line(self._gate)
        return step

    def _no_link(self, source: int, target: int) -> NoReturn:
        names = [tier.name for tier in self._places.tiers]
        raise no_link(self._number, names[source], names[target])

    def _latest(self, last: list[list[int]], tensor: int) -> Computes:
        """The compute that a list by stream and tensor names, for each stream that has one, unless it has ended.

        In a plan of several laps, that is another compute in each.
        """
        has_laps = self.host is None
        if self._alone:
            stream, number = self._streams[0], last[0][tensor]
            return ((stream, number),) if number > (NEVER if has_laps else stream.ended) else ()
        found = [(stream, numbers[tensor]) for stream, numbers in zip(self._streams, last, strict=True)]
        return tuple([at for at in found if at[1] > (NEVER if has_laps else at[0].ended)])

    def _issued(self) -> Computes:
        """The last compute issued on each stream."""
        return tuple(zip(self._streams, self._computes, strict=True))

    def _parts_with_output(self, tensor: int) -> bool:
        """Whether the present step, a detach, gives up the only valid copy of an output."""
        return self._number % self.lap_length in self._columns.parting

    def settled(self, tensor: int) -> bool:
        """Whether all steps so far that name the tensor have ended."""
        if self._places.moves_ended[tensor] < self._moves[tensor]:
            return False
        return all(stream.ended >= number for stream, number in self._latest(self._last_use, tensor))

    def laps(self, codes: Iterable[Code]) -> list[tuple[int, Step]]:
        """Count the steps of a lap that is run many times, each with its kind."""
        codes = list(codes)
        self._count_lap(codes)
        self._begin_lap()
        return self._count_lap(codes)

    def _count_lap(self, codes: list[Code]) -> list[tuple[int, Step]]:
        steps = []
        for self._at, code in enumerate(codes):
            kind = code[0]
            steps.append((kind, self._count[kind](code)))
        return steps

    def _begin_lap(self) -> None:
        """Go from the end of the first lap to the start of any: count from there, and take nothing as seen to."""
        places = self._places
        for stream, computes in zip(self._streams, self._computes, strict=True):
            stream.per_lap = computes
            for last in (self._last_use[stream.number], self._last_write[stream.number]):
                last[:] = [number - computes if number > NEVER else NEVER for number in last]
        places.moves_per_lap[:] = self._moves
        self._fence = [f - moves if f > NEVER else NEVER for f, moves in zip(self._fence, self._moves, strict=True)]
        self._moves, self._computes = [0] * len(self._moves), [0] * len(self._computes)
        self._seen_after = [[NEVER] * len(self._streams) for _ in self._streams]
        taker, number = self._last_taker
        self._last_taker = (taker, number - self._streams[taker].per_lap if number > NEVER else NEVER)
        self._sole = [False] * len(self._sole)
