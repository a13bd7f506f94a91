"""The state that a reactive plan may look at: every place as it will be once all issued steps have acted.

It is also where a step that cannot act is refused at once, because nobody could check a reactive plan before its run.
"""

from __future__ import annotations

from simulator.engine.places import Places
from simulator.errors import PlanError
from simulator.graph import Graph

ABSENT, VALID, STALE = range(3)
_STATES = ("absent", "valid", "stale")


class Issued:
    """Read-only for the plan; the host reports each step to it before issuing it.

    Parameters
    ----------
    places
        The rank's places, for what has happened on the device.
    graph
        For what ops read and write, and for names in messages.
    home
        Tier id of each tensor at time 0, or -1.
    compute_tier
        Id of the tier that kernels work in.
    """

    def __init__(self, places: Places, graph: Graph, home: tuple[int, ...], compute_tier: int) -> None:
        self._places, self._graph, self._compute_tier = places, graph, compute_tier
        self._state = [bytearray(len(home)) for _ in places.tiers]
        for tensor, tier in enumerate(home):
            if tier >= 0:
                self._state[tier][tensor] = VALID

    @property
    def now_ns(self) -> int:
        """The time [ns]."""
        return int(self._places.rounds.env.now)

    def place(self, tensor: int, tier: int) -> str:
        """State of a place once all issued steps have acted: ``absent``, ``valid`` or ``stale``."""
        return _STATES[self._state[tier][tensor]]

    def settled(self, tensor: int) -> bool:
        """Whether every issued step that names the tensor has ended."""
        return self._places.settled(tensor)

    def room_bytes(self, tier: int) -> int | float:
        """What is free in the tier now [B]."""
        instance = self._places.tiers[tier]
        return instance.capacity - instance.used

    def compute(self, issue: int, op: int) -> None:
        """Check and note a compute."""
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

    def copy(self, issue: int, tensor: int, source: int, target: int) -> None:
        """Check and note a copy."""
        if self._state[source][tensor] != VALID:
            self._refuse(issue, "copy", "the source of a copy is valid", tensor, source, "copy from where it is valid")
        if self._state[target][tensor] == VALID:
            self._refuse(issue, "copy", "the target of a copy is not valid yet", tensor, target, "drop this copy")
        self._state[target][tensor] = VALID

    def detach(self, issue: int, tensor: int, tier: int) -> None:
        """Check and note a detach."""
        if self._state[tier][tensor] == ABSENT:
            self._refuse(issue, "detach", "a detached place is present", tensor, tier, "drop this detach")
        self._state[tier][tensor] = ABSENT

    def _refuse(self, issue: int, what: str, must: str, tensor: int, tier: int, do: str) -> None:
        name, where = self._graph.tensors[tensor].name, self._places.tiers[tier].name
        found = f"{name!r} {_STATES[self._state[tier][tensor]]} in {where}"
        raise PlanError(f"step {issue} ({what})", must, found, do)
