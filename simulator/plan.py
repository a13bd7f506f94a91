"""Plans: a fixed list of actions, or a generator that the host pulls.

An action is one of four, and each is a code of four whole numbers ``(kind, a, b, c)``:

===========  ==================================  =============================================
``COMPUTE``  ``a`` op, ``b`` stream              run an op
``COPY``     ``a`` tensor, ``b`` and ``c`` tiers  copy from tier ``b`` into tier ``c``
``DETACH``   ``a`` tensor, ``b`` tier            free the tensor's place in the tier
``SYNC``     ``a`` tensor                        the host waits for all earlier actions that name it
===========  ==================================  =============================================

A *prefetch* is a copy into the compute tier. A *store* is a copy out, followed by a detach of the compute tier.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol, Self

COMPUTE, COPY, DETACH, SYNC = range(4)
PART = SYNC + 1
"""A reactive plan issues ``(PART, i, 0, 0)`` in place of all actions of the i-th of its `static_parts`."""

NOWHERE = -1
"""Home of a tensor that does not exist at time 0."""

FREE = NOWHERE - 1
"""Home of a tensor whose place a scenario leaves to the policy; a plan has none."""

Code = tuple[int, int, int, int]
"""An action in numbers: kind, and its three operands (unused ones are 0)."""


class Actions:
    """A fixed list of actions in four columns of whole numbers."""

    __slots__ = ("a", "b", "c", "kind")

    def __init__(self) -> None:
        self.kind, self.a, self.b, self.c = array("b"), array("i"), array("i"), array("i")

    @classmethod
    def from_columns(cls, kind: Iterable[int], a: Iterable[int], b: Iterable[int], c: Iterable[int]) -> Self:
        """Make actions from the four columns of their codes."""
        actions = cls()
        for column, values in ((actions.kind, kind), (actions.a, a), (actions.b, b), (actions.c, c)):
            column.extend(values)
        return actions

    def append(self, kind: int, a: int, b: int = 0, c: int = 0) -> None:
        """Append the action of a code."""
        self.kind.append(kind)
        self.a.append(a)
        self.b.append(b)
        self.c.append(c)

    def compute(self, op: int, stream: int = 0) -> None:
        """Run an op on a stream."""
        self.append(COMPUTE, op, stream)

    def copy(self, tensor: int, source: int, target: int) -> None:
        """Copy a tensor from one tier into another."""
        self.append(COPY, tensor, source, target)

    def detach(self, tensor: int, tier: int) -> None:
        """Free a tensor's place in a tier once all earlier users of the tensor have ended."""
        self.append(DETACH, tensor, tier)

    def sync(self, tensor: int) -> None:
        """Make the host wait until every earlier action that names the tensor has ended."""
        self.append(SYNC, tensor)

    def codes(self) -> Iterator[Code]:
        """Iterate over the codes."""
        return zip(self.kind, self.a, self.b, self.c, strict=True)

    __iter__ = codes

    def __len__(self) -> int:
        return len(self.kind)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Actions):
            return NotImplemented
        return (self.kind, self.a, self.b, self.c) == (other.kind, other.a, other.b, other.c)

    __hash__ = None  # type: ignore[assignment]


ABSENT, VALID, STALE = range(3)
STATES = ("absent", "valid", "stale")


class PlacesAsIssued:
    """States of all places (a tensor in a tier) *as issued*: once every action issued so far has taken effect.

    Policies and the engine share this class; the referee keeps its own, so that neither hides a mistake of the other.

    Parameters
    ----------
    home
        Tier of each tensor at time 0, or `NOWHERE`.
    tiers
        Number of tiers.
    compute_tier
        The tier that ops of the accelerator read and write.

    Attributes
    ----------
    updated
        Tensors that ops may have written: whoever does not know copies them out even where that is not needed.
    state
        By tier and tensor: `ABSENT`, `VALID`, or `STALE` once an op has written the tensor elsewhere.
    """

    updated: frozenset[int] = frozenset()

    def __init__(self, home: Sequence[int], tiers: int, compute_tier: int) -> None:
        self.state = [[ABSENT] * len(home) for _ in range(tiers)]
        self.in_compute_tier = self.state[compute_tier]
        for tensor, tier in enumerate(home):
            if tier != NOWHERE:
                self.state[tier][tensor] = VALID

    def missing(self, tensors: Iterable[int], tier: int) -> int | None:
        """Return the first of these tensors that no op of a tier could read, as it is not valid there."""
        state = self.state[tier]
        for tensor in tensors:  # a generator takes longer than this, and most ops have a few
            if state[tensor] != VALID:
                return tensor
        return None

    def write(self, tensors: Iterable[int], tier: int) -> None:
        """Mark tensors that an op of a tier writes as valid there, and stale elsewhere."""
        for tensor in tensors:
            for state in self.state:
                if state[tensor] == VALID:
                    state[tensor] = STALE
            self.state[tier][tensor] = VALID

    def copy(self, tensor: int, source: int, target: int) -> str:
        """Mark the target as valid; or return the rule that the copy breaks."""
        if self.state[source][tensor] != VALID:
            return "a tensor to copy is valid at its source"
        may_be_new = tensor in self.updated and self.state[target] is not self.in_compute_tier
        if self.state[target][tensor] == VALID and not may_be_new:
            return "a tensor to copy is not yet valid at its target"
        self.state[target][tensor] = VALID
        return ""

    def detach(self, tensor: int, tier: int) -> str:
        """Mark the place as absent; or return the rule that the detach breaks."""
        if self.state[tier][tensor] == ABSENT:
            return "a tensor to detach is there"
        self.state[tier][tensor] = ABSENT
        return ""

    def as_text(self, tensor: int, tiers: Iterable[str]) -> str:
        """Return the states of a tensor's places as text: ``absent in hbm, valid in ddr``."""
        return ", ".join(f"{STATES[state[tensor]]} in {name}" for name, state in zip(tiers, self.state, strict=True))


class View(Protocol):
    """Read-only state of the run that a reactive plan may look at, as of now."""

    @property
    def steps(self) -> int:
        """Number of steps; a plan may be tried over fewer than it will run."""

    @property
    def now_ns(self) -> int:
        """The time [ns]."""

    def place(self, tensor: int, tier: int) -> str:
        """Return the state of a place as issued: ``absent``, ``valid`` or ``stale``."""

    def settled(self, tensor: int) -> bool:
        """Return whether every issued action that names the tensor has ended."""

    def room_bytes(self, tier: int) -> int | float:
        """Return the free bytes of the tier now [B]."""

    def chosen(self, op: int) -> tuple[int, ...]:
        """Return which candidates the next run of an op reads; known once the op that reveals the choice has ended.

        A plan that has synced what the revealing op writes may ask, even if it does not look at the machine (`looks`).
        """

    def predicted(self, op: int, accuracy: float) -> tuple[int, ...]:
        """Guess what the next run of an op chooses; `accuracy` is the probability that each choice is guessed right.

        The guess is available one revealing op early: once the revealing op that comes before the one for this op has
        ended. Before the first of a step comes the last of the step before.
        """


@dataclass(frozen=True, slots=True)
class Plan:
    """Decisions of a policy for one rank.

    Attributes
    ----------
    tiers
        Tier names; tier ids in `home` and `actions` index them.
    home
        Tier id of each tensor at time 0, or `NOWHERE`.
    actions
        A fixed list, run `repeats` times; or a function from a `View` to a generator of codes, run
        once; it may be called again for the same run, and then has to do the same.
    repeats
        Number of times that the host runs a fixed list.
    notes
        Sentences of the policy about its decisions.
    looks
        Whether a reactive plan looks at the machine: at its time, at room, at what has settled. One that does not
        (places as issued are always there to look at) is replayed faster.
    starts_ns
        Start offsets of the ranks that run the plan [ns]: of n offsets, rank i has the one at i modulo n. So ranks that
        share a link copy over it at different times.
    static_parts
        Compiled parts of a reactive plan that decides about dynamic reads alone: they cost the host what a fixed plan
        does. Actions on candidates of dynamic reads, and each sync, count as decided at run time. The plan issues its
        parts in turn, step after step; in between it copies and detaches candidates, which no part does.
    file
        File that it was read from, as people wrote it; empty if it was made here.
    """

    policy: str
    tiers: tuple[str, ...]
    home: tuple[int, ...]
    actions: Actions | Callable[[View], Iterator[Code]]
    repeats: int = 1
    notes: tuple[str, ...] = field(default=())
    looks: bool = True
    starts_ns: tuple[int, ...] = (0,)
    static_parts: tuple[Actions, ...] = ()
    file: str = ""

    @property
    def name(self) -> str:
        """Name in messages: its file, if it was read from one."""
        return self.file or self.policy

    @property
    def fixed(self) -> Actions | None:
        """The actions of a fixed plan; None if the plan is reactive."""
        return self.actions if isinstance(self.actions, Actions) else None
