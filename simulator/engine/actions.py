"""Detach and sync, with the counts of what must have happened before they act; compute and copy start elsewhere."""

from __future__ import annotations

from dataclasses import dataclass

import simpy

from simulator.engine.places import Places
from simulator.engine.rounds import Recurring
from simulator.engine.stream import Computes, wait_for_end


@dataclass(slots=True)
class Sync:
    """A sync.

    Attributes
    ----------
    tensor
        What the host waits for.
    moves
        Moves of the tensor that must have ended.
    users
        Computes issued before that use the tensor.
    """

    tensor: int
    moves: int
    users: Computes


@dataclass(slots=True)
class Detach:
    """A detach.

    Attributes
    ----------
    tensor, tier
        Whose place is given up, and where.
    moves
        Moves of the tensor that must have ended.
    users
        Computes issued before that use the tensor; all, where an output's only valid copy is given up.
    """

    tensor: int
    tier: int
    moves: int
    users: Computes


class Detaching:
    """A detach that was issued: it acts when all earlier actions that name the tensor have ended.

    Parameters
    ----------
    places
        The places of the rank.
    detach
        What is given up.
    issued
        Its key, its time of issue [ns] and its lap.
    """

    __slots__ = ("_detach", "_issued", "_places")

    def __init__(self, places: Places, detach: Detach, issued: tuple[int, int, int]) -> None:
        self._places, self._detach, self._issued = places, detach, issued

    def look_again(self) -> None:
        """Wait for the first user that has not ended, then for earlier moves; or free the place in this round."""
        places, detach, rounds = self._places, self._detach, self._places.rounds
        key, issued_ns, lap = self._issued
        if wait_for_end(detach.users, lap, self.look_again):
            return
        moves = detach.moves + lap * places.moves_per_lap[detach.tensor]
        if places.moves_ended[detach.tensor] < moves:
            places.wait_for_moves(detach.tensor, moves, key, self.look_again)
        elif issued_ns > rounds.clock.now:
            rounds.clock.at(issued_ns, Recurring(rounds.clock, self._act_now))
        else:
            rounds.frees.append(self._act)

    def _act(self) -> None:
        self._places.free(self._detach.tensor, self._detach.tier)

    def _act_now(self, event: simpy.Event) -> None:
        self._places.rounds.frees.append(self._act)
        self._places.rounds.close()
