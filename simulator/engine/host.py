"""One rank's host: it issues steps in order, pays for each, and waits only at a sync."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import TYPE_CHECKING

import simpy

from simulator.engine.link import LinkQueue, Transfer
from simulator.engine.places import Detaching, Places, Wakeup
from simulator.engine.program import Columns
from simulator.engine.stream import Stream
from simulator.errors import InvariantError, PlanError
from simulator.hardware import Host as HostCosts
from simulator.plan import COMPUTE, COPY, SYNC, Code, Plan, Steps

if TYPE_CHECKING:
    from simulator.engine.issued import Issued


class Host:
    """The runtime of one rank.

    Parameters
    ----------
    plan
        What it issues.
    costs
        What it pays, and how far it may run ahead.
    places, columns, streams
        The rank's places, compiled graph and compute streams.
    routes
        (source tier, target tier) -> link.
    issued_rows
        Flat list that takes what was issued.
    """

    def __init__(  # noqa: PLR0913, PLR0917 - the host touches every part of its rank
        self,
        plan: Plan,
        costs: HostCosts,
        places: Places,
        columns: Columns,
        streams: list[Stream],
        routes: dict[tuple[int, int], LinkQueue],
        issued_rows: list[int],
        view: Issued | None,
    ) -> None:
        self.places, self.rank = places, places.rank
        self.is_full = self.is_busy = False
        self.awaited = -1
        self.watchers: list[Stream] = []
        self._columns, self._streams, self._routes = columns, streams, routes
        self._rows, self._view = issued_rows, view
        self._codes, self._costs, self._launch = _program(plan, costs, view)
        self._depth = costs.queue_depth
        self._code: Code | None = None
        self._issue = 0
        self._gate: tuple[Stream, int] | None = None
        self.finished = False

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
        codes, costs, code = self._codes, self._costs, self._code
        while True:
            if code is None:
                code = next(codes, None)
                if code is None:
                    self.finished = True
                    break
                if costs[code[0]]:
                    self._code = code
                    self._pay(costs[code[0]])
                    break
            if not self._try_issue(code):
                self._code = code
                break
            code = self._code = None
        self._wake_watchers()

    def _wake_watchers(self) -> None:
        if self.watchers:
            self.places.rounds.restless += self.watchers
            self.watchers.clear()

    def _try_issue(self, code: Code) -> bool:
        """Issue a step, unless it has to wait."""
        kind, a, b, c = code
        if kind == COMPUTE:
            if self._ahead() >= self._depth:
                self.is_full = True
                return False
            self._issue_compute(a, b)
        elif kind == SYNC:
            if not self.places.settled(a):
                self.awaited = a
                self.places.wait(a, Wakeup(self._resume))
                return False
        elif kind == COPY:
            self._issue_copy(a, b, c)
        else:
            self._issue_detach(a, b)
        self._rows += code
        self._issue += 1
        return True

    def _resume(self) -> None:
        if not self.is_busy:
            self.advance()

    def _ahead(self) -> int:
        """Computes issued and not yet started."""
        return sum([s.issued - s.started for s in self._streams])

    def _issue_compute(self, op: int, number: int) -> None:
        places, columns = self.places, self._columns
        if self._view is not None:
            self._view.compute(self._issue, op)
        issued, fence = places.issued, places.fence
        turns = []
        for tensor in columns.shared[op]:
            turns.append(fence[tensor])
            issued[tensor] += 1
        for tensor in columns.exclusive[op]:
            turn = issued[tensor]
            turns.append(turn)
            issued[tensor] = fence[tensor] = turn + 1
        stream = self._streams[number]
        stream.append((self._issue, op, places.rounds.env.now, turns))
        self._gate = (stream, stream.issued)

    def _issue_copy(self, tensor: int, source: int, target: int) -> None:
        places = self.places
        if self._view is not None:
            self._view.copy(self._issue, tensor, source, target)
        link = self._routes.get((source, target))
        if link is None:
            names = [tier.name for tier in places.tiers]
            raise PlanError(
                f"step {self._issue} (copy {names[source]} -> {names[target]})", "a link joins the two tiers", "none",
                "copy along the links of the hardware profile, or add the link",
            )  # fmt: skip
        transfer = Transfer(
            link, self._issue, places.rounds.env.now, (tensor, source, target), places.shared_turn(tensor)
        )
        transfer.gate = self._gate
        places.begin_step(tensor, transfer)
        link.append(transfer)

    def _issue_detach(self, tensor: int, tier: int) -> None:
        if self._view is not None:
            self._view.detach(self._issue, tensor, tier)
        Detaching(self.places, self._issue, tensor, tier)


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
