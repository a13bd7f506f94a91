"""When an iteration ends: with its last op if the room that its stores leave is not needed yet, else with its stores.

A store is of a layer. One that has begun when the last op ends is waited for, as nothing in flight is called off; those
that have not are left to the next iteration, whose copies they contend with. No more has happened by then than in a
replay of all of them, which begin one after another.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

Way = tuple[str, str]


class Stored(NamedTuple):
    """The copies of a layer's blocks from one tier to another.

    Attributes
    ----------
    way, tokens
        From where to where, and how much.
    start_ns, end_ns
        When the first of them begins and the last one ends, from the start of the iteration [ns].
    moved_bytes
        Links that they pass, each with what goes over it [B].
    """

    way: Way
    tokens: int
    start_ns: int
    end_ns: int
    moved_bytes: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class Replayed:
    """What became of an iteration.

    Attributes
    ----------
    status
        As of a row of `simulator.run`.
    ns, stall_ns, drain_ns
        How long it took; of it, how long compute waited, and for how long only copies ran after the last op [ns].
    waits_ns, moved_bytes
        Cause -> what of the stall it is [ns]; link -> what was copied over it [B].
    why
        What is in its way, if it did not run.
    stores
        Its stores.
    """

    status: str
    ns: int = 0
    stall_ns: int = 0
    drain_ns: int = 0
    waits_ns: Mapping[str, int] | None = None
    moved_bytes: Mapping[str, int] | None = None
    why: str = ""
    stores: tuple[Stored, ...] = ()

    def until(self, at_ns: int) -> tuple[Replayed, Counter[Way]]:
        """What it comes to if it ends at a time, or with the stores that have begun by then; and what is left.

        Parameters
        ----------
        at_ns
            Not before its last op has ended [ns].

        Returns
        -------
        tuple
            What became of it, and tokens of a layer that are left of each way.
        """
        waiting = [one for one in self.stores if one.start_ns >= at_ns]
        if not waiting:
            return self, Counter()
        begun = (one.end_ns for one in self.stores if one.start_ns < at_ns)
        ns = max(at_ns, max(begun, default=0))
        moved = Counter(self.moved_bytes)
        moved.subtract(_moved(waiting))
        done = replace(self, ns=ns, drain_ns=self.drain_ns - (self.ns - ns), moved_bytes=dict(moved))
        left = Counter[Way]()
        for one in waiting:
            left[one.way] += one.tokens
        return done, left

    @property
    def ops_ns(self) -> int:
        """When its last op ended [ns]."""
        return self.ns - self.drain_ns


def _moved(stores: Iterable[Stored]) -> Counter[str]:
    found = Counter[str]()
    for one in stores:
        found.update(dict(one.moved_bytes))
    return found
