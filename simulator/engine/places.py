"""One rank's places (tensor x tier) and the order in which steps that name the same tensor take effect.

Each step that names a tensor is an *access* of it: shared (a compute that reads it, a copy of it) or exclusive (a
compute that writes it, a detach). Shared accesses overlap; an exclusive one waits for all earlier accesses, and all
later ones wait for it. As no later access can begin before, let alone end, that order needs two counters per tensor:
an exclusive access with `n` accesses issued before it may act once `n` have ended, a shared one once the accesses up
to the last exclusive one have ended. That number is the access's *turn*.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Protocol

from simulator.engine.rounds import Rounds
from simulator.engine.tier import TierInstance

if TYPE_CHECKING:
    from simulator.engine.link import Transfer


class Waiter(Protocol):
    """Someone who waits for an access of a tensor to end, or for it to become valid."""

    def tensor_moved(self, tensor: int) -> None:
        """Look again."""


class Places:
    """Places, turns and waiters of one rank.

    Parameters
    ----------
    rank
        Its number.
    size_bytes
        Size of each tensor [B].
    tiers
        The rank's tier instances, by tier id.
    rounds
        The agenda of the instant.
    residencies
        Flat list that takes the rows of the trace.
    """

    def __init__(
        self,
        rank: int,
        size_bytes: list[int],
        tiers: list[TierInstance],
        rounds: Rounds,
        residencies: list[int],
    ) -> None:
        tensors = len(size_bytes)
        self.rank, self.size_bytes, self.tiers, self.rounds = rank, size_bytes, tiers, rounds
        self.held = [bytearray(tensors) for _ in tiers]
        self.valid = [bytearray(tensors) for _ in tiers]
        self.issued = [0] * tensors
        self.fence = [0] * tensors
        self.ended = [0] * tensors
        self.waiters: dict[int, list[tuple[int, int, Waiter]]] = {}
        self._pending: dict[int, deque[Transfer | Detaching]] = {}
        self._residencies = residencies

    def hold(self, tensor: int, tier: int) -> None:
        """Mark a place as taken; its room was granted before."""
        self.held[tier][tensor] = 1
        if self.size_bytes[tensor]:
            self.note(tier, tensor, self.size_bytes[tensor])

    def note(self, tier: int, tensor: int, delta_bytes: int) -> None:
        """Write a row of the residencies."""
        self._residencies += (self.rounds.env.now, self.rank, tier, tensor, delta_bytes)

    def free(self, tensor: int, tier: int) -> None:
        """Give a place up."""
        size = self.size_bytes[tensor] if self.held[tier][tensor] else 0
        self.held[tier][tensor] = 0
        self.valid[tier][tensor] = 0
        if size:
            self.note(tier, tensor, -size)
            self.tiers[tier].release(size)

    def shared_turn(self, tensor: int) -> int:
        """Register a shared access and return its turn."""
        self.issued[tensor] += 1
        return self.fence[tensor]

    def exclusive_turn(self, tensor: int) -> int:
        """Register an exclusive access and return its turn."""
        turn = self.issued[tensor]
        self.issued[tensor] = self.fence[tensor] = turn + 1
        return turn

    def end_access(self, tensor: int) -> None:
        """Count an access as ended and wake whoever waits for it."""
        self.ended[tensor] += 1
        if tensor in self.waiters:
            self.wake(tensor)

    def wake(self, tensor: int) -> None:
        """Let those look again who wait for as many accesses to have ended as have."""
        waiters, ended = self.waiters[tensor], self.ended[tensor]
        while waiters and waiters[0][0] <= ended:
            heappop(waiters)[2].tensor_moved(tensor)
        if not waiters:
            del self.waiters[tensor]

    def wait(self, tensor: int, turn: int, issue: int, waiter: Waiter) -> None:
        """Wake `waiter` when so many accesses of the tensor have ended; at the next end if they have already."""
        turn = max(turn, self.ended[tensor] + 1)
        if tensor in self.waiters:
            heappush(self.waiters[tensor], (turn, issue, waiter))
        else:
            self.waiters[tensor] = [(turn, issue, waiter)]

    def settled(self, tensor: int) -> bool:
        """Whether all issued accesses have ended."""
        return self.ended[tensor] == self.issued[tensor]

    def begin_step(self, tensor: int, step: Transfer | Detaching) -> None:
        """Remember a copy or detach of the tensor until it ends."""
        if tensor in self._pending:
            self._pending[tensor].append(step)
        else:
            self._pending[tensor] = deque((step,))

    def end_step(self, tensor: int, step: Transfer | Detaching) -> None:
        """Forget it."""
        step.ended = True
        steps = self._pending[tensor]
        while steps and steps[0].ended:
            steps.popleft()

    def pending(self, tensor: int, before: int | None = None) -> Transfer | Detaching | None:
        """The earliest copy or detach of the tensor that has not ended, among those issued before a step."""
        steps = self._pending.get(tensor)
        if steps and (before is None or steps[0].issue < before):
            return steps[0]
        return None


class Detaching:
    """A detach that was issued: it acts once it is its turn."""

    __slots__ = ("_places", "_turn", "ended", "issue", "tensor", "tier")

    def __init__(self, places: Places, issue: int, tensor: int, tier: int) -> None:
        self._places, self.issue, self.tensor, self.tier = places, issue, tensor, tier
        self._turn = turn = places.exclusive_turn(tensor)
        self.ended = False
        places.begin_step(tensor, self)
        if places.ended[tensor] == turn:
            places.rounds.frees.append(self)
        else:
            places.wait(tensor, turn, issue, self)

    def tensor_moved(self, tensor: int) -> None:
        """Act in the present round: all earlier accesses have ended."""
        self._places.rounds.frees.append(self)

    def act(self) -> None:
        """Free the place."""
        places, tensor = self._places, self.tensor
        places.free(tensor, self.tier)
        places.end_step(tensor, self)
        places.end_access(tensor)


Resume = Callable[[], None]


class Wakeup:
    """Calls a function once when an access of a tensor ends."""

    __slots__ = ("_resume",)

    def __init__(self, resume: Resume) -> None:
        self._resume = resume

    def tensor_moved(self, tensor: int) -> None:
        """Call it."""
        self._resume()
