"""The state that a reactive plan may look at: every place as it will be once all issued steps have acted.

It is also where a step that cannot act is refused at once, because nobody could check a reactive plan before its run.
"""

from __future__ import annotations

from simulator.engine.book import Book
from simulator.engine.places import Places
from simulator.errors import PlanError
from simulator.graph import Graph
from simulator.plan import COMPUTE, COPY, DETACH, Code

ABSENT, VALID, STALE = range(3)
_STATES = ("absent", "valid", "stale")


class Issued:
    """Read-only for the plan; the host reports each step to it before issuing it.

    Parameters
    ----------
    places
        The rank's places, for what has happened on the device.
    book
        The rank's count of issued steps.
    graph
        For what ops read and write, and for names in messages.
    home
        Tier id of each tensor at time 0, or -1.
    """

    def __init__(self, places: Places, book: Book, graph: Graph, home: tuple[int, ...]) -> None:
        self._places, self._book, self._graph = places, book, graph
        self._compute_tier = book.compute_tier
        self._state = [bytearray(len(home)) for _ in places.tiers]
        for tensor, tier in enumerate(home):
            if tier >= 0:
                self._state[tier][tensor] = VALID

    @property
    def now_ns(self) -> int:
        """The time [ns]."""
        return int(self._places.rounds.clock.now)

    def place(self, tensor: int, tier: int) -> str:
        """State of a place once all issued steps have acted: ``absent``, ``valid`` or ``stale``."""
        return _STATES[self._state[tier][tensor]]

    def settled(self, tensor: int) -> bool:
        """Whether every issued step that names the tensor has ended."""
        return self._book.settled(tensor)

    def room_bytes(self, tier: int) -> int | float:
        """What is free in the tier now [B]."""
        instance = self._places.tiers[tier]
        return instance.capacity - instance.used

    def note(self, issue: int, code: Code) -> None:
        """Check and note a step."""
        kind, a, b, c = code
        if kind == COMPUTE:
            self._compute(issue, a, b)
        elif kind == COPY:
            self._copy(issue, a, b, c)
        elif kind == DETACH:
            self._detach(issue, a, b)

    def _compute(self, issue: int, op: int, stream: int) -> None:
        if stream >= len(self._places.streams):
            raise PlanError(
                f"step {issue} (compute)",
                f"a reactive plan uses compute streams 0 to {len(self._places.streams) - 1}",
                f"stream {stream}",
                "issue it on stream 0, or make a fixed plan",
            )
        here = self._state[self._compute_tier]
        node = self._graph.ops[op]
        for tensor in node.reads:
            if here[tensor] != VALID:
                self._refuse(issue, f"compute {node.name}", "what a compute reads is valid in the compute tier", tensor,
                             self._compute_tier, "copy it in first")  # fmt: skip
        for tensor in node.writes:
            for state in self._state:
                if state[tensor] == VALID:
                    state[tensor] = STALE
            here[tensor] = VALID

    def _copy(self, issue: int, tensor: int, source: int, target: int) -> None:
        if self._state[source][tensor] != VALID:
            self._refuse(issue, "copy", "the source of a copy is valid", tensor, source, "copy from where it is valid")
        if self._state[target][tensor] == VALID:
            self._refuse(issue, "copy", "the target of a copy is not valid yet", tensor, target, "drop this copy")
        self._state[target][tensor] = VALID

    def _detach(self, issue: int, tensor: int, tier: int) -> None:
        if self._state[tier][tensor] == ABSENT:
            self._refuse(issue, "detach", "a detached place is present", tensor, tier, "drop this detach")
        self._state[tier][tensor] = ABSENT

    def _refuse(self, issue: int, what: str, must: str, tensor: int, tier: int, do: str) -> None:
        name, where = self._graph.tensors[tensor].name, self._places.tiers[tier].name
        found = f"{name!r} {_STATES[self._state[tier][tensor]]} in {where}"
        raise PlanError(f"step {issue} ({what})", must, found, do)
