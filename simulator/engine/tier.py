"""One instance of a tier: its room, and who waits for it."""

from __future__ import annotations

from heapq import heappop, heappush

from simulator.engine.rounds import Rounds
from simulator.engine.waits import Taker

Queue = list[tuple[int, Taker]]


class TierInstance:
    """Room that is taken and freed; two queues, computes first, each strictly in (rank, issue) order.

    Parameters
    ----------
    name, number
        Its tier's name and id.
    capacity
        What fits [B], or ``inf``.
    rounds
        Where a waiting head is put on the agenda when room is freed.
    """

    __slots__ = ("_computes", "_copies", "_rounds", "capacity", "name", "number", "used")

    def __init__(self, name: str, number: int, capacity: int | float, rounds: Rounds) -> None:
        self.name, self.number, self.capacity, self.used = name, number, capacity, 0
        self._computes: Queue = []
        self._copies: Queue = []
        self._rounds = rounds

    def admit_compute(self, head: Taker, key: int, size: int) -> bool:
        """Take room for a compute, or put it in the queue."""
        return self._admit(self._computes, head, key, size)

    def admit_copy(self, head: Taker, key: int, size: int) -> bool:
        """Take room for a copy, or put it in the queue; computes that wait go first."""
        if self._computes:
            self._wait(self._copies, head, key)
            return False
        return self._admit(self._copies, head, key, size)

    def _admit(self, queue: Queue, head: Taker, key: int, size: int) -> bool:
        if (not queue or key <= queue[0][0]) and self._take(head, size):
            if queue and key == queue[0][0]:
                heappop(queue)
                self._consider_next()
            return True
        self._wait(queue, head, key)
        return False

    def _take(self, head: Taker, size: int) -> bool:
        """Take room, if there is as much."""
        if self.used + size > self.capacity:
            return False
        self.used += size
        return True

    def _wait(self, queue: Queue, head: Taker, key: int) -> None:
        if not any(key == waiting for waiting, _ in queue):
            heappush(queue, (key, head))

    def _consider_next(self) -> None:
        queue = self._computes or self._copies
        if queue:
            self._rounds.consider(queue[0][1], queue[0][0])

    def settle(self, item: int, size: int) -> None:
        """Take room at time 0."""
        self.used += size

    @property
    def in_pieces(self) -> str:
        """What else stands in the way of whoever waits for room, for people."""
        return ""

    def release(self, size: int, item: int) -> None:
        """Free the room of a tensor, or a workspace (`simulator.offsets`); the first in the queue tries again."""
        self.used -= size
        if self._computes or self._copies:
            self._consider_next()
