"""The state that a reactive plan may look at: every place as it will be once all issued steps have acted.

It is also where a step that cannot act is refused at once, because nobody could check a reactive plan before its run.
"""

from __future__ import annotations

from simulator.engine.book import Book, ComputeStep, CopyStep, DetachStep
from simulator.engine.link import LinkQueue
from simulator.engine.places import Places
from simulator.engine.program import Columns, outputs
from simulator.errors import PlanError
from simulator.graph import Graph

ABSENT, VALID, STALE = range(3)
_STATES = ("absent", "valid", "stale")

Homes = tuple[int, ...]


class Issued(Book):
    """A book that also follows the places; read-only for the plan.

    Parameters
    ----------
    places, columns, routes
        See `Book`; places also for what has happened on the device.
    graph
        For names in messages.
    home
        Tier id of each tensor at time 0, or -1.
    """

    def __init__(
        self, places: Places, columns: Columns, routes: dict[tuple[int, int], LinkQueue], graph: Graph, home: Homes
    ) -> None:
        super().__init__(places, columns, routes)
        self._graph, self._compute_tier, self._outputs = graph, columns.compute_tier, outputs(graph)
        self._state = [bytearray(len(home)) for _ in places.tiers]
        for tensor, tier in enumerate(home):
            if tier >= 0:
                self._state[tier][tensor] = VALID

    @property
    def now_ns(self) -> int:
        """The time [ns]."""
        return self._places.rounds.clock.now

    def place(self, tensor: int, tier: int) -> str:
        """State of a place once all issued steps have acted: ``absent``, ``valid`` or ``stale``."""
        return _STATES[self._state[tier][tensor]]

    def room_bytes(self, tier: int) -> int | float:
        """What is free in the tier now [B]."""
        instance = self._places.tiers[tier]
        return instance.capacity - instance.used

    def _look_up(self, op: int, stream: int) -> ComputeStep:
        """Check and note what no earlier compute has seen to."""
        step = super()._look_up(op, stream)
        here = self._state[self._compute_tier]
        for tensor in step.reads:
            if here[tensor] != VALID:
                self._refuse(f"compute {self._graph.ops[op].name}", "what a compute reads is valid in the compute tier",
                             tensor, self._compute_tier, "copy it in first")  # fmt: skip
        for tensor in step.writes:
            for state in self._state:
                if state[tensor] == VALID:
                    state[tensor] = STALE
            here[tensor] = VALID
        return step

    def _copy(self, tensor: int, source: int, target: int) -> CopyStep:
        if self._state[source][tensor] != VALID:
            self._refuse("copy", "the source of a copy is valid", tensor, source, "copy from where it is valid")
        if self._state[target][tensor] == VALID:
            self._refuse("copy", "the target of a copy is not valid yet", tensor, target, "drop this copy")
        self._state[target][tensor] = VALID
        return super()._copy(tensor, source, target)

    def _detach(self, tensor: int, tier: int) -> DetachStep:
        if self._state[tier][tensor] == ABSENT:
            self._refuse("detach", "a detached place is present", tensor, tier, "drop this detach")
        self._state[tier][tensor] = ABSENT
        return super()._detach(tensor, tier)

    def _parts_with_output(self, tensor: int) -> bool:
        return tensor in self._outputs and all(state[tensor] != VALID for state in self._state)

    def _refuse(self, what: str, must: str, tensor: int, tier: int, do: str) -> None:
        name, where = self._graph.tensors[tensor].name, self._places.tiers[tier].name
        found = f"{name!r} {_STATES[self._state[tier][tensor]]} in {where}"
        raise PlanError(f"step {self._steps} ({what})", must, found, do)
