"""The runtime itself: a loop over the ops that yields the codes it issues."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from itertools import chain, islice, pairwise

from simulator.errors import CapacityError, Shortfall
from simulator.plan import COPY, DETACH, SYNC, Code, View
from simulator.policies.reactive.tables import Tables
from simulator.policies.reactive.victims import Victims

NONE = -1
"""The tier of a copy that does not exist."""

_AT_ONCE = 64
"""Ops that it decides for at a time."""


class Runtime:
    """The state of one run, as issued.

    Parameters
    ----------
    tables
        What it looks up.
    victims
        The order of eviction.
    ahead
        How many ops it looks ahead, as far as there is no barrier between.
    synchronous
        Whether the host waits for each copy.
    """

    __slots__ = (
        "_codes",
        "_coming",
        "_copy_at",
        "_copy_valid",
        "_direct",
        "_early",
        "_here",
        "_needed_until",
        "_room",
        "_sizes",
        "_synchronous",
        "_tables",
        "_tier",
        "_victims",
    )

    def __init__(self, tables: Tables, victims: Victims, ahead: int, *, synchronous: bool) -> None:
        problem = tables.problem
        self._tables, self._victims, self._synchronous = tables, victims, synchronous
        self._coming = tables.coming(ahead) if ahead else []
        self._sizes, self._tier = problem.sizes, problem.compute_tier
        self._direct = [[False] * len(problem.capacities) for _ in problem.capacities]
        n = len(self._sizes)
        self._codes: list[Code] = []
        self._here = [False] * n
        self._copy_at = [NONE] * n
        self._copy_valid = [False] * n
        self._needed_until = [NONE] * n
        self._early = set[int]()
        self._room = list(problem.capacities)
        for tensor, tier in enumerate(tables.homes):
            if tier == self._tier:
                self._room[tier] -= self._sizes[tensor]
                if not tables.pinned[tensor]:
                    self._here[tensor] = True
                    victims.add(tensor)
            elif tier >= 0:
                self._room[tier] -= self._sizes[tensor]
                self._copy_at[tensor], self._copy_valid[tensor] = tier, True

    def run(self, view: View) -> Iterator[Code]:
        """Issue all steps of the run.

        Parameters
        ----------
        view
            Asked how many steps there are; this runtime keeps its own books and does not look at the machine.
        """
        return chain.from_iterable(self._parts(view.steps))

    def _parts(self, steps: int) -> Iterator[list[Code]]:
        """Decide for some ops at a time: nothing that is decided depends on the machine."""
        tables, codes = self._tables, self._codes
        ops = len(tables.moves)
        for base in range(0, steps * ops, ops):
            left = zip(tables.computes, tables.moves, tables.busy, strict=True)
            for _ in range(0, ops, _AT_ONCE):
                self._decide(base, islice(left, _AT_ONCE))
                yield codes
                codes.clear()
            self._go_home()
            yield codes
            codes.clear()

    def _decide(self, base: int, ops: Iterable[tuple[Code, tuple[int, ...], bool]]) -> None:
        """Issue some ops of the step that begins at op `base` of the run, and what they need."""
        tables, here, append, ahead = self._tables, self._here, self._codes.append, bool(self._coming)
        early, victims, touch = self._early, self._victims, self._victims.touch
        tells_time = victims.tells_time
        for compute, moves, busy in ops:
            if tells_time:
                victims.now = base + compute[1]
            if early:
                early.difference_update(moves)
            absent: tuple[int, ...] = ()
            for tensor in moves:
                if here[tensor]:
                    touch(tensor)
                else:
                    absent = (*absent, tensor)
            if absent:
                self._admit(compute[1], absent)
            elif busy and self._room[self._tier] < tables.born_bytes[compute[1]]:
                self._make_room(tables.born_bytes[compute[1]], tables.kept[compute[1]])
            if ahead:
                self._look_ahead(compute[1], base)
            append(compute)
            if busy:
                self._conclude(compute[1])

    def _conclude(self, op: int) -> None:
        """Note what the op has taken and written, and free what is dead after it."""
        tables = self._tables
        self._room[self._tier] -= tables.held_bytes[op]
        for tensor in tables.writes[op]:
            self._copy_valid[tensor] = False
        for tensor in tables.problem.lifetimes.dead_after[op]:
            self._codes.append((DETACH, tensor, self._tier, 0))
            self._leave(tensor)
            self._drop_copy(tensor)

    def _admit(self, op: int, absent: tuple[int, ...]) -> None:
        """Make room for what the op lacks, and fetch what it reads of it."""
        tables, sizes = self._tables, self._sizes
        needed, made = tables.born_bytes[op], tables.made[op]
        for tensor in absent:
            needed += sizes[tensor]
        if self._room[self._tier] < needed:
            self._make_room(needed, tables.kept[op])
        for tensor in absent:
            if tensor not in made:
                self._copy(tensor, self._copy_at[tensor], self._tier)
            self._arrive(tensor)

    def _arrive(self, tensor: int) -> None:
        self._here[tensor] = True
        self._room[self._tier] -= self._sizes[tensor]
        self._victims.add(tensor)

    def _arrive_early(self, tensor: int) -> None:
        """Take in what the op at hand does not need."""
        self._arrive(tensor)
        self._early.add(tensor)

    def _look_ahead(self, op: int, base: int) -> None:
        """Fetch what the ops that come into view lack, as far as there is room: at the first op all that are seen."""
        tables, here = self._tables, self._here
        for coming in self._coming[op]:
            for tensor in tables.moves[coming]:
                self._needed_until[tensor] = base + coming
                if here[tensor]:
                    self._victims.touch(tensor)
            for tensor in tables.reads[coming]:
                if not here[tensor] and self._copy_valid[tensor]:
                    needed = self._sizes[tensor] + tables.born_bytes[op]
                    self._make_room(needed, tables.kept[op], keep_after=base + op)
                    if self._room[self._tier] >= needed:
                        self._copy(tensor, self._copy_at[tensor], self._tier)
                        self._arrive_early(tensor)

    def _make_room(self, needed: int, moves: Collection[int], keep_after: int | None = None) -> None:
        """Evict until there is room, never what is in `moves`; stop at what is needed after op `keep_after`."""
        while self._room[self._tier] < needed:
            victim = self._victims.first(moves)
            if victim < 0 or (keep_after is not None and self._needed_until[victim] > keep_after):
                return
            self._evict(victim)

    def _evict(self, tensor: int) -> None:
        """Let a tensor leave; what came early, and is not used yet, once it has come.

        Until then what is issued later may take the room that is freed here, and keep the copy out.
        """
        if tensor in self._early:
            self._early.remove(tensor)
            self._codes.append((SYNC, tensor, 0, 0))
        if not self._copy_valid[tensor]:
            if self._copy_at[tensor] == NONE:
                self._copy_at[tensor] = tier = self._room_away(tensor)
                self._room[tier] -= self._sizes[tensor]
            self._copy(tensor, self._tier, self._copy_at[tensor])
            self._copy_valid[tensor] = True
        self._codes.append((DETACH, tensor, self._tier, 0))
        self._leave(tensor)

    def _leave(self, tensor: int) -> None:
        self._room[self._tier] += self._sizes[tensor]
        if self._here[tensor]:
            self._here[tensor] = False
            self._victims.discard(tensor)

    def _drop_copy(self, tensor: int) -> None:
        tier = self._copy_at[tensor]
        if tier != NONE:
            self._codes.append((DETACH, tensor, tier, 0))
            self._room[tier] += self._sizes[tensor]
            self._copy_at[tensor], self._copy_valid[tensor] = NONE, False

    def _copy(self, tensor: int, source: int, target: int) -> None:
        if self._direct[source][target]:
            self._codes.append((COPY, tensor, source, target))
            return
        hops = tuple(pairwise(self._tables.problem.path(source, target)))
        if len(hops) == 1 and not self._synchronous:
            self._direct[source][target] = True
        for start, end in hops:
            if end != target and self._room[end] < self._sizes[tensor]:
                raise self._too_small(tensor, end)
            self._codes.append((COPY, tensor, start, end))
            if self._synchronous:
                self._codes.append((SYNC, tensor, 0, 0))
        for _, tier in hops[:-1]:
            self._codes.append((DETACH, tensor, tier, 0))

    def _room_away(self, tensor: int) -> int:
        tiers = self._tables.problem.away(tensor)
        for tier in tiers:
            if self._room[tier] >= self._sizes[tensor]:
                return tier
        raise self._too_small(tensor, tiers[0])

    def _too_small(self, tensor: int, tier: int) -> CapacityError:
        problem, size = self._tables.problem, self._sizes[tensor]
        capacity = int(problem.capacities[tier])
        demand = int(capacity - self._room[tier]) + size
        name, tier_name = problem.graph.tensors[tensor].name, problem.tiers[tier]
        lever = "a smaller batch or a shorter sequence needs less"
        return CapacityError(Shortfall(tier_name, demand, capacity, f"copy of {name!r}", ((name, size),), (lever,)))

    def _goes_home(self, tensor: int) -> bool:
        """Whether a tensor leaves for its home, which is another tier, when a step ends."""
        return True

    def _go_home(self) -> None:
        """End the step: bring every persistent tensor home, and release the outputs last."""
        tables, tier, here, copy_at = self._tables, self._tier, self._here, self._copy_at
        for tensor in tables.guests:
            if here[tensor] and self._goes_home(tensor):
                self._evict(tensor)
        for tensor in tables.residents:
            if not here[tensor]:
                self._make_room(self._sizes[tensor], tables.staying)
                self._copy(tensor, copy_at[tensor], tier)
                self._arrive_early(tensor)
            if copy_at[tensor] != NONE:
                self._drop_copy(tensor)
        for output in tables.outputs:
            if here[output] or tables.pinned[output]:
                self._codes.append((DETACH, output, tier, 0))
                self._leave(output)
            self._drop_copy(output)
