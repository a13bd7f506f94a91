"""Rule 8: the room of tiers, as SimPy Containers whose queue is in (rank, issue) order, computes before copies."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import simpy
from simpy.resources.container import ContainerGet
from simpy.resources.resource import SortedQueue

from simulator.engine.allocators import Wanted
from simulator.engine.reference.clock import START, Clock
from simulator.errors import CapacityError, Shortfall

_COPIES = 1 << 62
"""Added to the key of a copy to make its place in line: computes come first."""


HOME = -1
"""The key of a home, which takes its room before all actions."""


class Gate:
    """Stops what starts while it is closed: only a compaction closes it.

    Attributes
    ----------
    opens
        The event that opens it; None while it is open.
    """

    opens: simpy.Event | None = None


@dataclass(slots=True, eq=False)
class RoomClaim:
    """What an action asks of a tier, all or nothing.

    Attributes
    ----------
    key, is_copy
        Whose turn it is, and whether it is a copy, before which computes go.
    """

    key: int
    wanted: Wanted
    gate: Gate
    is_copy: bool = False


class Ask(ContainerGet):
    """An action in line for room; `key` is its place there."""

    def __init__(self, room: Room, claim: RoomClaim) -> None:
        self.claim, self.is_its_turn = claim, True
        self.key = claim.key + _COPIES * claim.is_copy
        super().__init__(room, sum([size for _, size in claim.wanted]))
        self.is_its_turn = False


class Room(simpy.Container):
    """The room of one instance of a tier: its level is what is free [B].

    Parameters
    ----------
    clock
        The clock.
    name, index
        Name and id of the tier.
    size
        What fits [B], or ``inf``.

    Attributes
    ----------
    used
        What is taken [B].
    has_line
        Whether only the first in line may take room; if not, each place waits for its own range alone.
    """

    GetQueue = SortedQueue
    has_line = True

    def __init__(self, clock: Clock, name: str, index: int, size: int | float) -> None:
        super().__init__(clock, init=max(0, size))
        self.clock, self.name, self.index, self.size, self.used = clock, name, index, size, 0

    def ask(self, claim: RoomClaim) -> Ask:
        """Return the event that this claim is granted, now in the turn of its action or later in line."""
        ask = Ask(self, claim)
        if ask.triggered:
            self.let_next_try()
        return ask

    def _do_get(self, event: ContainerGet) -> bool:
        """Grant room to the first in line, in its own turn."""
        claim = event.claim if isinstance(event, Ask) and event.is_its_turn else None
        if claim and claim.gate.opens is None and self.level >= event.amount and self._finds_place(claim):
            self.used += int(event.amount)
            super()._do_get(event)
        return not self.has_line

    def _finds_place(self, claim: RoomClaim) -> bool:
        """Return whether what fits in bytes finds its places."""
        return True

    def let_next_try(self) -> None:
        """Give a turn to the first in line; or to all, where there is no line."""
        for ask in self.get_queue[:1] if self.has_line else [*self.get_queue]:
            self.clock.turn(START, ask.claim.key).callbacks.append(partial(self._retry, ask))

    def _retry(self, ask: Ask, turn: simpy.Event) -> None:
        """Try to grant what stands in line, in its turn."""
        if not ask.triggered:
            ask.is_its_turn = True
            self._trigger_get(None)
            ask.is_its_turn = False
            if ask.triggered:
                self.let_next_try()

    def take_home(self, item: int, size: int, tensor: str) -> None:
        """Take the room of a home, at time 0.

        Raises
        ------
        CapacityError
            If the homes are too large.
        """
        if size > self.level:
            raise CapacityError(Shortfall(self.name, self.used + size, int(self.size), f"the home of {tensor}"))
        if size:
            Ask(self, RoomClaim(HOME, [(item, size)], Gate()))

    def release(self, size: int, item: int) -> None:
        """Free the room of a tensor, or of a workspace, and let those in line try."""
        self.used -= size
        self.put(size)
        self.let_next_try()

    @property
    def address_text(self) -> str:
        """What a message about a wait for room adds about addresses."""
        return ""
