"""One rank's host: it issues steps in order, pays for each, and waits only at a sync."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import TYPE_CHECKING

import simpy

from simulator.engine.link import Transfer
from simulator.engine.places import Detaching, wait_for
from simulator.engine.rounds import ISSUE_MASK, RANK_SHIFT
from simulator.errors import InvariantError, PlanError
from simulator.hardware import Host as HostCosts
from simulator.plan import COMPUTE, COPY, DETACH, Code, Plan, Steps

if TYPE_CHECKING:
    from simulator.engine.issued import Issued
    from simulator.engine.rank import Rank
    from simulator.engine.stream import Stream

_STEPS_PER_CHECKPOINT = 8192


class Host:
    """The runtime of one rank.

    Parameters
    ----------
    rank
        Whose places, streams and links it issues to.
    plan
        What it issues.
    view
        What a reactive plan may look at.

    Notes
    -----
    A full queue (`is_full`) is filled up again once half of it has started (`ahead` is at `resume_at`).
    """

    def __init__(self, rank: Rank, plan: Plan, view: Issued | None) -> None:
        machine, costs = rank.machine, rank.machine.hardware.host
        self.places = rank.places
        self.is_full = self.is_busy = self.finished = False
        self.awaited = -1
        self.watchers: list[Stream] = []
        self.ahead, self._depth, self.resume_at = 0, costs.queue_depth, costs.queue_depth // 2
        self._columns, self._streams, self._routes = rank.columns, rank.streams, rank.routes
        self._view, self._checkpoint = view, machine.checkpoint
        self._rows = None if view is None else machine.recorder.issued[rank.number]
        self._codes, self._costs, self._launch = _program(plan, costs, view)
        self._code: Code | None = None
        self._key = rank.number << RANK_SHIFT
        self._gate = rank.streams[0]

    def begin(self) -> None:
        """Pay for the launch, then issue."""
        if self._launch:
            self._pay(self._launch)
        else:
            self.advance()

    def _pay(self, cost: int) -> None:
        self.is_busy = True
        self.places.rounds.env.timeout(cost).callbacks.append(self._paid)

    def _paid(self, event: simpy.Event) -> None:
        self.is_busy = False
        self.advance()
        self.places.rounds.close()

    def advance(self) -> None:
        """Issue steps until one costs time, the queue is full, or a sync has to wait."""
        self.is_full, self.awaited = False, -1
        if self._code is None or self._issue(self._code):
            self._code = None
            self._pull()
        if self.watchers:
            self.places.rounds.restless += self.watchers
            self.watchers.clear()

    def _pull(self) -> None:
        """Pull steps from the plan and issue them, as far as possible now."""
        costs = self._costs
        for code in self._codes:
            if costs[code[0]]:
                self._code = code
                self._pay(costs[code[0]])
                return
            if not self._issue(code):
                self._code = code
                return
        self.finished = True

    def _issue(self, code: Code) -> bool:
        """Issue a step, unless it has to wait."""
        kind, a, b, _ = code
        if kind == COMPUTE:
            if self.ahead >= self._depth:
                self.is_full = True
                return False
            if b >= len(self._streams):
                raise self._unknown_stream(b)
            self._issue_compute(a, self._streams[b])
        elif kind == COPY:
            self._issue_copy(code)
        elif kind == DETACH:
            if self._view is not None:
                self._view.detach(self._key & ISSUE_MASK, a, b)
            Detaching(self.places, self._key, a, b)
        elif not self.places.settled(a):
            self._await(a)
            return False
        self._key += 1
        if self._rows is not None:
            self._rows += code
        if not self._key % _STEPS_PER_CHECKPOINT:
            self._checkpoint()
        return True

    def _await(self, tensor: int) -> None:
        """Wait at a sync; look again when the next step that names the tensor ends."""
        self.awaited = tensor
        if not wait_for(self.places.users(tensor), self):
            self.places.wait_for_moves(tensor, self.places.moves_issued[tensor], self._key, self)

    def look_again(self) -> None:
        """Go on at the sync."""
        self.advance()

    def _issue_compute(self, op: int, stream: Stream) -> None:
        places, columns = self.places, self._columns
        if self._view is not None:
            self._view.compute(self._key & ISSUE_MASK, op)
        number = stream.issued = stream.issued + 1
        turns: tuple[tuple[int, int], ...] = ()
        reads, writes = columns.reads[op], columns.writes[op]
        if reads or writes:
            ended, last_use, fence = places.moves_ended, stream.last_use, places.fence
            for tensor in reads:
                last_use[tensor] = number
                if fence[tensor] > ended[tensor]:
                    turns += ((tensor, fence[tensor]),)
            for tensor in writes:
                last_use[tensor] = stream.last_write[tensor] = number
                if places.moves_issued[tensor] > ended[tensor]:
                    turns += ((tensor, places.moves_issued[tensor]),)
        self.ahead += 1
        self._gate = stream
        stream.queue.append((self._key, op, places.rounds.env.now, turns))
        if stream.running is None and len(stream.queue) == 1:
            places.rounds.consider(stream, self._key)

    def _unknown_stream(self, number: int) -> PlanError:
        return PlanError(
            f"step {self._key & ISSUE_MASK} (compute)",
            f"a reactive plan uses compute streams 0 to {len(self._streams) - 1}",
            f"stream {number}",
            "issue it on stream 0, or make a fixed plan",
        )

    def _issue_copy(self, code: Code) -> None:
        places = self.places
        _, tensor, source, target = code
        if self._view is not None:
            self._view.copy(self._key & ISSUE_MASK, tensor, source, target)
        link = self._routes.get((source, target))
        if link is None:
            names = [tier.name for tier in places.tiers]
            raise PlanError(
                f"step {self._key & ISSUE_MASK} (copy {names[source]} -> {names[target]})",
                "a link joins the two tiers",
                "none",
                "copy along the links of the hardware profile, or add the link",
            )
        link.append(Transfer(link, self._key, code, self._gate))


def _program(plan: Plan, costs: HostCosts, view: Issued | None) -> tuple[Iterator[Code], tuple[int, ...], int]:
    """The codes that the host pulls, the cost of each kind of step, and the cost of the launch."""
    steps = plan.steps
    if isinstance(steps, Steps):
        codes = chain.from_iterable(steps.codes() for _ in range(plan.repeats))
        return codes, (costs.fixed.step_ns,) * 4, costs.fixed.launch_ns
    if view is None:
        raise InvariantError("engine", "a reactive plan has a view", "none", "report this")
    reactive = costs.reactive
    prices = (
        reactive.inspect_ns + reactive.compute_ns,
        reactive.copy_ns,
        reactive.detach_ns,
        reactive.sync_ns,
    )
    return steps(view), prices, 0
