"""Who gets how much of a link: max-min fair rates, and transfers that end when their service is done.

A *pipe* is all flows of one link with the same cap; they have the same rate at all times, so that one virtual clock
(service per flow since the pipe began) and one heap of finish tags serve them all, and a change costs O(log n).
A *domain* is the pipes that can influence one another: those of one link, or of links that share a bus.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from fractions import Fraction
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Protocol

import simpy

from simulator.cost import FULL_RATE, ceil_div

if TYPE_CHECKING:
    from simulator.engine.rounds import Rounds


class Resource:
    """Something with a bandwidth [B/s] that flows share: a link, a bus, or the compute tier."""

    __slots__ = ("bandwidth",)

    def __init__(self, bandwidth: int | float) -> None:
        self.bandwidth = bandwidth


class Owner(Protocol):
    """What a flow belongs to."""

    def end(self) -> None:
        """The flow's service has reached its work."""


class Path:
    """What a flow goes through.

    Attributes
    ----------
    unit
        The bandwidth that work and rates are counted against [B/s]: that of the flow's own link; if that is endless,
        that of the narrowest bus it is on.
    shared
        Resources whose bandwidth the flow shares max-min.
    even
        ``fifo``: the flows of this path each get at most an equal part of the unit, even if another leaves its part.
    """

    __slots__ = ("even", "shared", "unit")

    def __init__(self, unit: int | float, shared: tuple[Resource, ...], *, even: bool) -> None:
        self.unit, self.shared, self.even = unit, shared, even


class Pipe:
    """The flows of one path with one cap, and their virtual clock."""

    __slots__ = ("cap", "clock", "path", "rate", "tags")

    def __init__(self, path: Path, cap: int) -> None:
        self.path, self.cap = path, cap
        self.clock = 0
        self.rate = 0
        self.tags: list[tuple[int, int, Owner]] = []


def max_min_rates(pipes: list[Pipe]) -> list[int]:
    """Rate of each flow of each pipe, as a share of the pipe's unit in fixed point, rounded down.

    Progressive filling: raise the rate of all flows together; a flow stops at its cap or when a resource on its path
    is used up; go on with the rest. Each flow ends with its own cap reached or a saturated resource on its path.

    Parameters
    ----------
    pipes
        All pipes of a domain, each with at least one flow.
    """
    caps = _own_caps(pipes)
    if not any(p.path.shared for p in pipes):
        return caps
    if len(pipes) == 1 and all(r.bandwidth == pipes[0].path.unit for r in pipes[0].path.shared):
        return [min(caps[0], FULL_RATE // len(pipes[0].tags))]
    rates = _fill(pipes, [Fraction(cap, FULL_RATE) * _finite(p.path.unit) for cap, p in zip(caps, pipes, strict=True)])
    return [max(1, math.floor(r * FULL_RATE / _finite(p.path.unit))) for r, p in zip(rates, pipes, strict=True)]


def _own_caps(pipes: list[Pipe]) -> list[int]:
    """Each flow's cap from its size, and from its equal part where a link shares evenly."""
    flows: dict[Path, int] = {}
    for pipe in pipes:
        flows[pipe.path] = flows.get(pipe.path, 0) + len(pipe.tags)
    return [min(p.cap, FULL_RATE // flows[p.path]) if p.path.even else p.cap for p in pipes]


def _finite(bandwidth: int | float) -> int:
    return FULL_RATE if bandwidth == math.inf else int(bandwidth)


def _fill(pipes: list[Pipe], caps: list[Fraction]) -> list[Fraction]:
    """Progressive filling in exact arithmetic [B/s per flow]."""
    left = {r: Fraction(int(r.bandwidth)) for p in pipes for r in p.path.shared if r.bandwidth != math.inf}
    rates = [Fraction(0)] * len(pipes)
    rising = list(range(len(pipes)))
    while rising:
        users = {r: sum(len(pipes[i].tags) for i in rising if r in pipes[i].path.shared) for r in left}
        level = min([caps[i] for i in rising] + [left[r] / n for r, n in users.items() if n])
        full = {r for r, n in users.items() if n and left[r] / n == level}
        done = [i for i in rising if caps[i] == level or any(r in full for r in pipes[i].path.shared)]
        for i in done:
            rates[i] = level
            for r in pipes[i].path.shared:
                if r in left:
                    left[r] -= level * len(pipes[i].tags)
        rising = [i for i in rising if i not in done]
    return rates


class Domain:
    """Flows that can influence one another.

    Parameters
    ----------
    rounds
        The agenda of the instant: rates are set anew once it is settled.
    """

    __slots__ = (
        "_changed",
        "_clock",
        "_generation",
        "_now",
        "_pipes",
        "_rounds",
    )

    def __init__(self, rounds: Rounds) -> None:
        self._clock, self._rounds = rounds.clock, rounds
        self._pipes: dict[Hashable, Pipe] = {}
        self._now = 0
        self._generation = 0
        self._changed = False

    def join(self, path: Path, cap: int, work: int, key: int, owner: Owner) -> None:
        """Begin a flow now; `key` decides among flows that end at the same instant."""
        self._advance()
        pipe = self._pipes.get((path, cap))
        if pipe is None:
            pipe = self._pipes[path, cap] = Pipe(path, cap)
        heappush(pipe.tags, (pipe.clock + work, key, owner))
        self._change()

    def _advance(self) -> None:
        """Bring the virtual clocks up to the present."""
        elapsed = self._clock.now - self._now
        if elapsed:
            for pipe in self._pipes.values():
                pipe.clock += pipe.rate * elapsed
            self._now = self._clock.now

    def _change(self) -> None:
        if not self._changed:
            self._changed = True
            self._rounds.touched.append(self)

    def reset_rates(self) -> None:
        """Share the resources anew and arm the timer of the next end."""
        self._changed = False
        self._generation += 1
        pipes = list(self._pipes.values())
        if not pipes:
            return
        for pipe, rate in zip(pipes, max_min_rates(pipes), strict=True):
            pipe.rate = rate
        wait = min(ceil_div(max(0, p.tags[0][0] - p.clock), p.rate) for p in pipes)
        timer = self._clock.timeout(wait, value=self._generation)
        timer.callbacks.append(self._timer)

    def _timer(self, event: simpy.Event) -> None:
        """End what is done by now; a timer of an older generation only closes the round."""
        if event.value == self._generation:
            self._advance()
            ended: list[tuple[int, Owner]] = []
            for name, pipe in list(self._pipes.items()):
                while pipe.tags and pipe.tags[0][0] <= pipe.clock:
                    ended.append(heappop(pipe.tags)[1:])
                if not pipe.tags:
                    del self._pipes[name]
            ended.sort(key=lambda end: end[0])
            self._change()
            for _, owner in ended:
                owner.end()
        self._rounds.close()
