"""Dependencies that follow from issue order: which earlier actions must end before an action may take effect.

Each action that names a tensor is shared (a compute that reads it, a copy of it) or exclusive (a compute that writes
it, a detach). Shared actions overlap; an exclusive one waits for all earlier actions that name the tensor, and all
later ones wait for it. Computes of one stream are in order anyway, so two kinds of counts keep this order:

- per stream, how many computes have ended; an action that must follow computes knows the number (from 1) of the last of
  them;
- per tensor, how many of its *moves* (copies and detaches) have ended. An exclusive action with `n` moves issued before
  it waits until `n` have ended, a shared one until those up to the last detach (the *fence*) have. As nothing behind
  an exclusive action can begin before that has ended, a count is enough.

Room in the compute tier is given in issue order: with several streams, a compute that takes room, or a copy into that
tier, waits for the start of the last compute before it that takes some, and of the copies into it that computes of
other streams before it need. Otherwise one stream could take what another needs to go on, although all fits in issue
order.

Once a compute has waited for a tensor, later computes of its stream need not, until the tensor is detached. While a
tensor has been neither detached nor copied since a compute wrote it, no other copy of it is valid.

The k-th issue of an op with dynamic reads reads what is drawn for step k. In issue order it names all its candidates,
so a detach after it waits for it; but only its other reads, and what is chosen, must be valid when it starts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import repeat
from typing import Any

from simulator.draws import Draws
from simulator.engine.link import LinkQueue, QueuedCopy
from simulator.engine.places import Places
from simulator.engine.program import Columns, Program
from simulator.engine.stream import NEVER, Count, QueuedCompute, Stream, Waits, unmet
from simulator.errors import PlanError
from simulator.graph import Graph
from simulator.plan import ABSENT, VALID, Code, PlacesAsIssued


@dataclass(slots=True)
class Exclusive:
    """A detach of a tensor, or a sync on it: it takes effect once all earlier actions that name the tensor have ended.

    Attributes
    ----------
    tensor, tier
        Which tensor; where a detach gives up its place.
    moves
        Moves of the tensor that must have ended.
    users
        Ends of computes issued before that use the tensor; of all, where an output's only valid copy is given up.
    """

    tensor: int
    tier: int
    moves: int
    users: Waits


class RevealTracker:
    """The reads of each issue of an op with dynamic reads, and from when on they are known.

    Parameters
    ----------
    graph, draws
        The ops, and what they choose.
    columns
        The compiled graph.

    Attributes
    ----------
    steps
        By op with dynamic reads, the step that its next issue belongs to.
    certain, possible
        Per op: its reads that no op reads dynamically; its other reads. That earlier ops named the latter says nothing
        about them, since they may not have read them.
    """

    def __init__(self, graph: Graph, draws: Draws, columns: Columns) -> None:
        self.draws = draws
        self._reads_of, candidates = graph.dynamic_reads, graph.candidates
        self.certain = [tuple([t for t in reads if t not in candidates]) for reads in columns.reads]
        self.possible = [tuple([t for t in reads if t in candidates]) for reads in columns.reads]
        chosen_by = {op: frozenset(reads.candidates) for op, reads in self._reads_of.items()}
        possible = enumerate(self.possible)
        self._others = [tuple([t for t in reads if t not in chosen_by.get(op, ())]) for op, reads in possible]
        self._durations = {op: draws.durations_ns(op) for op in self._reads_of}
        self._chosen_bytes = {op: draws.chosen_bytes(op).tolist() for op in self._reads_of}
        self.steps = dict.fromkeys(self._reads_of, 0)
        self._revealed_by: dict[int, tuple[int, Waits]] = {
            reads.revealed_by: (0, ()) for reads in self._reads_of.values()
        }

    def needed(self, op: int, stream: Stream, count: int) -> tuple[int, ...]:
        """Return the possible reads that this issue of an op, compute number `count` of the stream, does read."""
        if op in self._revealed_by:
            self._revealed_by[op] = self._revealed_by[op][0] + 1, ((stream.ended, count),)
        if op not in self.steps:
            return self._others[op]
        self.steps[op] += 1
        return (*self.draws.chosen(op, self.steps[op] - 1), *self._others[op])

    def set_time(self, op: int, compute: QueuedCompute) -> None:
        """Set the time and the chosen bytes of the compute just counted, of an op with dynamic reads."""
        step = self.steps[op] - 1
        compute.duration_ns, compute.chosen_bytes = self._durations[op][step], self._chosen_bytes[op][step]

    def is_revealed(self, op: int) -> bool:
        """Return whether the next reads of an op are known: the op that reveals them was issued and has ended."""
        times, end = self._revealed_by[self._reads_of[op].revealed_by]
        return times > self.steps[op] and unmet(end, 0) is None

    def is_predictable(self, op: int) -> bool:
        """Return whether the next reads of an op can be guessed: the last reveal before theirs has ended."""
        reveals = sorted(self._revealed_by)
        position = reveals.index(self._reads_of[op].revealed_by)
        needed = self.steps[op] + (position > 0)
        times, end = self._revealed_by[reveals[position - 1]]
        return times >= needed > 0 and unmet(end, 0) is None


Routes = list[list[LinkQueue | None]]
"""By source and target tier: the rank's link between them."""

Action = QueuedCompute | QueuedCopy | Exclusive
Counted = tuple[int, int, Any, int]
"""An action's kind, its op or tensor, what it waits for (by its kind), and what the host pays for it [ns]."""


class DependencyCounter:
    """Counts actions in issue order, and gives each the counts that it must wait for.

    Parameters
    ----------
    program, columns
        What the rank runs, and its compiled graph.
    places, streams, routes
        Its places, streams and links.
    """

    def __init__(
        self, program: Program, columns: Columns, places: Places, streams: list[Stream], routes: Routes
    ) -> None:
        self._graph, self._columns, self._number = program.graph, columns, 0
        self._places, self._streams, self._routes = places, streams, routes
        dynamic = None if program.draws is None else RevealTracker(program.graph, program.draws, columns)
        self._dynamic, tensors = dynamic, len(columns.size_bytes)
        self._ends = [stream.ended for stream in streams]
        self._free = [QueuedCompute(stream, is_free=True) for stream in streams]
        self._reads = columns.reads if dynamic is None else dynamic.certain
        self._computes = [0] * len(streams)
        self._last_use = [[NEVER] * tensors for _ in streams]
        self._last_write = [[NEVER] * tensors for _ in streams]
        self._waited = [[NEVER] * len(streams) for _ in streams]
        self._moves, self._fence = [0] * tensors, [NEVER] * tensors
        self._ready: list[set[int]] = [set() for _ in streams]  # tensors that need no further wait
        self._sole: set[int] = set()  # tensors with no other valid copy
        self._issued = PlacesAsIssued(program.plan.home, len(places.tiers), columns.compute_tier)
        self._last_stream, self._room_stream = 0, 0
        self._room_count = NEVER
        self._copies = dict.fromkeys((link.started for row in routes for link in row if link), 0)
        self._brought: dict[int, tuple[Count, int]] = {}  # tensors to their last copies into the compute tier
        self._needed: list[dict[Count, int]] = [
            {} for _ in streams
        ]  # copies since the last compute with room, by stream
        self._count: tuple[Callable[[int, int, int], Action], ...]
        self._count = (self._compute, self._copy, self._detach, self._sync)

    def actions(self, codes: Iterable[Code], price_ns: int) -> Iterator[Counted]:
        """Count actions one after another, as the host asks for them.

        Parameters
        ----------
        codes
            Their codes.
        price_ns
            What the host pays for each [ns].
        """
        for self._number, (kind, a, b, c) in enumerate(codes):
            yield kind, a, self._count[kind](a, b, c), price_ns

    def laps(self, codes: Iterable[Code], laps: int, price_ns: int) -> Iterator[list[Counted]]:
        """Count the actions of a lap once for all laps: from lap to lap, all counts grow by what one lap adds.

        Counts follow from the issue order alone. One that refers to the lap before is not positive, and in the first
        lap nothing waits for it.
        """
        codes, computes, moves = list(codes), self._computes, self._moves
        for _ in self.actions(codes, price_ns):
            pass
        self._places.moves_per_lap[:] = moves
        for stream in self._streams:
            stream.started.per_lap = stream.ended.per_lap = computes[stream.index]
        for last in (self._last_use, self._last_write):
            for per_lap, counts in zip(computes, last, strict=True):
                counts[:] = [count - per_lap for count in counts]
        self._fence = [fence - moved for fence, moved in zip(self._fence, moves, strict=True)]
        self._room_count -= computes[self._room_stream]
        for count, copies in self._copies.items():
            count.per_lap, self._copies[count] = copies, 0
        self._brought = {t: (count, copy - count.per_lap) for t, (count, copy) in self._brought.items()}
        self._needed = [{count: copy - count.per_lap for count, copy in of.items()} for of in self._needed]
        self._moves, self._computes = [0] * len(moves), [0] * len(computes)
        self._waited = [[NEVER] * len(computes) for _ in computes]
        for tensors in (*self._ready, self._sole):
            tensors.clear()
        return repeat([*self.actions(codes, price_ns)], laps)

    def _compute(self, op: int, stream: int, _: int) -> QueuedCompute:
        columns, dynamic, last_use, ready = self._columns, self._dynamic, self._last_use[stream], self._ready[stream]
        self._last_stream = stream
        count = self._computes[stream] = self._computes[stream] + 1
        after = self._awaited_ends(op, stream) if len(self._streams) > 1 else ()
        for tensor in columns.reads[op]:
            last_use[tensor] = count
        for tensor in columns.writes[op]:
            last_use[tensor] = self._last_write[stream][tensor] = count
        reads = [tensor for tensor in self._reads[op] if tensor not in ready]
        writes = [tensor for tensor in columns.writes[op] if tensor not in self._sole]
        ready.update(reads, writes)
        self._sole.update(writes)
        chosen = () if dynamic is None else dynamic.needed(op, self._streams[stream], count)
        reads += chosen
        if len(self._streams) > 1:
            self._note_copies((*self._reads[op], *chosen, *columns.writes[op]), self._needed[stream])
        workspace_bytes, is_timed = columns.workspace_bytes[op], dynamic is not None and op in dynamic.steps
        if not (reads or writes or after or workspace_bytes or is_timed):
            return self._free[stream]
        if (missing := self._issued.missing(reads)) is not None:
            rule = "what a compute reads is valid in the compute tier"
            self._refuse(f"compute {self._graph.ops[op].name}", rule, missing, "copy it in first")
        fence, moves, per_lap = self._fence, self._moves, self._places.moves_per_lap
        due = [(tensor, fence[tensor]) for tensor in reads if fence[tensor] > NEVER]
        due += [(tensor, moves[tensor]) for tensor in writes if moves[tensor] or per_lap[tensor]]
        compute = QueuedCompute(self._streams[stream], due, reads, writes, after)
        states, sizes = self._issued.in_compute_tier, columns.size_bytes
        if workspace_bytes or any(states[t] == ABSENT and sizes[t] for t in writes):  # it takes room
            compute.line = self._line_before(stream)
            self._room_stream, self._room_count = stream, count
            for needed in self._needed:
                needed.clear()
        self._issued.write(writes)
        if dynamic is not None and is_timed:
            dynamic.set_time(op, compute)
        return compute

    def _note_copies(self, tensors: Iterable[int], needed: dict[Count, int]) -> None:
        """Note the last copies of these tensors, which a compute names: room of other streams waits for them."""
        for started, copy in [self._brought[tensor] for tensor in tensors if tensor in self._brought]:
            needed[started] = max(copy, needed.get(started, NEVER))

    def _line_before(self, stream: int) -> Waits:
        """Return the starts of other streams that room waits for: of the last compute with room, and copies since."""
        if len(self._streams) == 1:
            return ()
        line = [count for other, needed in enumerate(self._needed) if other != stream for count in needed.items()]
        if self._room_stream != stream and self._room_count > NEVER:
            line.append((self._streams[self._room_stream].started, self._room_count))
        return tuple(line)

    def _awaited_ends(self, op: int, stream: int) -> Waits:
        """Return the last ends of other streams' computes that write what this one reads, or use what it writes.

        A later compute of this stream need not wait for what an earlier one has waited for.
        """
        after, reads, writes = [], self._columns.reads[op], self._columns.writes[op]
        for other, waited in enumerate(self._waited[stream]):
            if other != stream:
                use, write = self._last_use[other], self._last_write[other]
                count = max([NEVER, *(write[t] for t in reads), *(use[t] for t in writes)])
                if count > waited:
                    self._waited[stream][other] = count
                    after.append((self._ends[other], count))
        return tuple(after)

    def _last_ends(self, last: list[list[int]], tensor: int) -> Waits:
        """Return for each stream the end of the compute that is last to use (or write) a tensor, if there is one."""
        by_stream = zip(self._ends, last, strict=True)
        return tuple([(end, counts[tensor]) for end, counts in by_stream if counts[tensor] > NEVER])

    def _refuse(self, action: str, must: str, tensor: int, do: str) -> None:
        """Do nothing: a fixed plan was checked before its run; one that was not blocks where it is wrong."""

    def _copy(self, tensor: int, source: int, target: int) -> QueuedCopy:
        if broken_rule := self._issued.copy(tensor, source, target):
            self._refuse("copy", broken_rule, tensor, "drop this copy, or copy from where it is valid")
        link = self._routes[source][target]
        if link is None:
            names = [tier.name for tier in self._places.tiers]
            do = "copy along the links of the hardware profile, or add the link"
            where = f"action {self._number} (copy {names[source]} -> {names[target]})"
            raise PlanError(where, "a link joins the two tiers", "none", do)
        writers = self._last_ends(self._last_write, tensor) if tensor in self._columns.written else ()
        self._moves[tensor] += 1
        self._sole.discard(tensor)
        after: Waits = ((self._streams[self._last_stream].pace, self._computes[self._last_stream]),)
        self._copies[link.started] += 1
        if target == self._columns.compute_tier:
            after += self._line_before(self._last_stream)
            self._brought[tensor] = link.started, self._copies[link.started]
        return QueuedCopy(link, tensor, self._fence[tensor], after, writers)

    def _detach(self, tensor: int, tier: int, _: int) -> Exclusive:
        moves, users, state = self._moves[tensor], self._last_ends(self._last_use, tensor), self._issued.state
        if tensor in self._columns.outputs and [t for t, of in enumerate(state) if of[tensor] == VALID] == [tier]:
            users = tuple(zip(self._ends, self._computes, strict=True))
        if broken_rule := self._issued.detach(tensor, tier):
            self._refuse("detach", broken_rule, tensor, "drop this detach")
        self._moves[tensor] = self._fence[tensor] = moves + 1
        self._sole.discard(tensor)
        for ready in self._ready:
            ready.discard(tensor)
        return Exclusive(tensor, tier, moves, users)

    def _sync(self, tensor: int, tier: int, _: int) -> Exclusive:
        return Exclusive(tensor, tier, self._moves[tensor], self._last_ends(self._last_use, tensor))
