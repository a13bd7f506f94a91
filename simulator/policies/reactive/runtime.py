"""The runtime itself: a loop over the ops that yields the codes it issues."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from itertools import chain, islice, pairwise

from simulator.errors import CapacityError, Shortfall
from simulator.plan import COPY, DETACH, FREE, SYNC, Code, View
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
        "_below",
        "_codes",
        "_coming",
        "_copy_at",
        "_copy_valid",
        "_direct",
        "_early",
        "_here",
        "_may_lie_elsewhere",
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
        self._below = [dict[int, None]() for _ in problem.capacities]
        has_several = len(problem.neighbours) > 1
        self._may_lie_elsewhere = [has_several and home == FREE for home in problem.homes]
        for tensor, tier in enumerate(tables.homes):
            if tier == self._tier:
                self._room[tier] -= self._sizes[tensor]
                if not tables.pinned[tensor]:
                    self._here[tensor] = True
                    victims.add(tensor)
            elif tier >= 0:
                self._lie(tensor, tier)
                self._copy_valid[tensor] = True

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
                self._lie(tensor, self._room_away(tensor))
            self._copy(tensor, self._tier, self._copy_at[tensor])
            self._copy_valid[tensor] = True
        self._codes.append((DETACH, tensor, self._tier, 0))
        self._leave(tensor)
        if self._may_lie_elsewhere[tensor]:
            lying = self._below[self._copy_at[tensor]]
            del lying[tensor]
            lying[tensor] = None

    def _lie(self, tensor: int, tier: int) -> None:
        """Take the place of a copy in a tier below."""
        self._copy_at[tensor] = tier
        if self._may_lie_elsewhere[tensor]:
            self._below[tier][tensor] = None
        self._room[tier] -= self._sizes[tensor]

    def _leave(self, tensor: int) -> None:
        self._room[self._tier] += self._sizes[tensor]
        if self._here[tensor]:
            self._here[tensor] = False
            self._victims.discard(tensor)

    def _drop_copy(self, tensor: int) -> None:
        tier = self._copy_at[tensor]
        if tier != NONE:
            self._codes.append((DETACH, tensor, tier, 0))
            self._lift(tensor)
            self._copy_valid[tensor] = False

    def _lift(self, tensor: int) -> None:
        """Give up the place of a copy in a tier below."""
        tier = self._copy_at[tensor]
        self._copy_at[tensor] = NONE
        self._below[tier].pop(tensor, None)
        self._room[tier] += self._sizes[tensor]

    def _copy(self, tensor: int, source: int, target: int) -> None:
        if self._direct[source][target]:
            self._codes.append((COPY, tensor, source, target))
            return
        hops = tuple(pairwise(self._tables.problem.path(source, target)))
        if len(hops) == 1 and not self._synchronous:
            self._direct[source][target] = True
        for start, end in hops:
            if end != target and not self._demote_for(tensor, end):
                raise self._too_small(tensor, end)
            self._codes.append((COPY, tensor, start, end))
            if self._synchronous:
                self._codes.append((SYNC, tensor, 0, 0))
        for _, tier in hops[:-1]:
            self._codes.append((DETACH, tensor, tier, 0))

    def _room_away(self, tensor: int) -> int:
        """The nearest tier with room for it, on the way there, too; or else one in which others make room."""
        tiers, size, path = self._tables.problem.away(tensor), self._sizes[tensor], self._tables.problem.path
        for tier in tiers:
            if all(self._room[hop] >= size for hop in path(self._tier, tier)[1:]):
                return tier
        for tier in tiers:
            if self._demote_for(tensor, tier):
                return tier
        raise self._too_small(tensor, tiers[0])

    def _demote_for(self, tensor: int, tier: int) -> bool:
        """Move to the next tier, until there is room for it in this one, what left the compute tier longest ago."""
        size = self._sizes[tensor]
        while self._room[tier] < size:
            victim = next((t for t in self._below[tier] if t != tensor and self._may_demote(t, tier)), NONE)
            if victim == NONE:
                return False
            if self._here[victim]:
                self._drop_copy(victim)
            else:
                self._move_below(victim, self._next_tier(victim, tier))
        return True

    def _may_demote(self, tensor: int, tier: int) -> bool:
        """Whether a copy may leave its tier: another one has room for it, or it is one too many."""
        if self._here[tensor]:
            return self._tables.homes[tensor] < 0
        return self._next_tier(tensor, tier) != NONE

    def _next_tier(self, tensor: int, tier: int) -> int:
        """The nearest tier that has room for what lies in this one, and a way there that no other tier is on."""
        problem = self._tables.problem
        behind = problem.neighbours[problem.neighbours.index(tier) + 1 :]
        fits = (
            other for other in behind if (tier, other) in problem.links and self._room[other] >= self._sizes[tensor]
        )
        return next(fits, NONE)

    def _move_below(self, tensor: int, target: int) -> None:
        """Move a copy from one tier below to another."""
        source = self._copy_at[tensor]
        self._copy(tensor, source, target)
        self._codes.append((DETACH, tensor, source, 0))
        self._lift(tensor)
        self._lie(tensor, target)

    def _too_small(self, tensor: int, tier: int) -> CapacityError:
        problem, size = self._tables.problem, self._sizes[tensor]
        capacity = int(problem.capacities[tier])
        demand = int(capacity - self._room[tier]) + size
        name, tier_name = problem.graph.tensors[tensor].name, problem.tiers[tier]
        lever = "a smaller batch or a shorter sequence needs less"
        others = [problem.tiers[other] for other in problem.neighbours if other != tier]
        at = f"copy of {name!r}" + (f", which cannot go on to {' or '.join(others)} either" if others else "")
        return CapacityError(Shortfall(tier_name, demand, capacity, at, ((name, size),), (lever,)))

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
        for tensor in tables.guests:
            if copy_at[tensor] != tables.homes[tensor]:
                if not self._demote_for(tensor, tables.homes[tensor]):
                    raise self._too_small(tensor, tables.homes[tensor])
                self._move_below(tensor, tables.homes[tensor])
        for output in tables.outputs:
            if here[output] or tables.pinned[output]:
                self._codes.append((DETACH, output, tier, 0))
                self._leave(output)
            self._drop_copy(output)
