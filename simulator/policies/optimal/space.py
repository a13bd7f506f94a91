"""Which decisions there are: the gaps that a tensor may spend away, and the copies that this takes.

*Base* is what the compute tier holds if nothing moves: what exists from the start, and from each op what it takes at
its start and gives up at its end. Moving only ever takes tensors out of it, gap by gap.

*Window*: one step out of several is a problem of its own, from the start of the last op of the step before to its end.
In a run of several steps the step time is the distance of the ends of the last op in the last two steps, and so of its
starts. Nothing that a step brings into the compute tier starts before the last op of the step before has (it is issued
after it), and nothing that it writes is copied out before. So a step, seen alone, begins with this op: the *lead*.

While the lead runs, the compute tier holds what the lead uses, and what is at home there. What the lead uses and is at
home elsewhere leaves once it has ended, and comes back for its next use. Copies back home need not end with the step.

What this leaves out is what the step before may still hold or copy when the window opens: outputs that leave late, and
copies out that are under way. Without it a step can only be shorter, so that *every* last step of a run is a solution.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from simulator.cost import transfer_ns
from simulator.graph import Op
from simulator.lifetime import lifetimes
from simulator.policies.problem import Problem


@dataclass(frozen=True, slots=True)
class Out:
    """A copy out of one version of a tensor, at most one: later gaps find what is away still valid.

    Attributes
    ----------
    tensor
        Tensor id.
    written
        The op that makes the version, or -1 if it exists from the start.
    takes_ns
        Time of the copy [ns].
    needless_if
        The choice with which the version is away from the start; None if there is no such choice.
    """

    tensor: int
    written: int
    takes_ns: int
    needless_if: int | None


@dataclass(frozen=True, slots=True)
class Gap:
    """A stretch without use that a tensor may spend away.

    Attributes
    ----------
    tensor
        Tensor id.
    after, before
        The ops on either side; -1 is the start of the step, the number of ops its end.
    choice
        Which yes-or-no decision takes it; None if the tensor is away whether it helps or not.
    out
        The copy out that must have ended before the room is free; None if the value is away already.
    in_ns
        Time of the copy in that ends it [ns]; None if nothing comes in.
    size_bytes
        Room that it leaves [B].
    """

    tensor: int
    after: int
    before: int
    choice: int | None
    out: int | None
    in_ns: int | None
    size_bytes: int


@dataclass
class Space:
    """All decisions of one step.

    Attributes
    ----------
    lead
        How many ops come before the first of the step: 1 in a window, else 0.
    gaps, outs
        What may be away, and the copies out that this may take.
    leading
        Gaps of what may be away before its first use in the step.
    choices
        How many yes-or-no decisions there are.
    homes
        Choice -> tensor, for choices that put the home of a tensor away.
    idle_homes
        Tensors whose home is free and that no op uses: they live away at no cost.
    dead
        Op -> tensors whose room is given up after it, because they are written anew before they are read.
    start_bytes, taken_bytes, freed_bytes
        The base: at the start, taken at the start of each op, given up at its end [B].
    at_home_bytes
        What must fit before the first op if nothing is away [B].
    """

    lead: int = 0
    gaps: list[Gap] = field(default_factory=list)
    leading: list[int] = field(default_factory=list)
    outs: list[Out] = field(default_factory=list)
    choices: int = 0
    homes: dict[int, int] = field(default_factory=dict)
    idle_homes: list[int] = field(default_factory=list)
    dead: dict[int, list[int]] = field(default_factory=dict)
    start_bytes: int = 0
    taken_bytes: list[int] = field(default_factory=list)
    freed_bytes: list[int] = field(default_factory=list)
    at_home_bytes: int = 0

    def new_choice(self) -> int:
        """Number a new decision."""
        self.choices += 1
        return self.choices - 1


def find_space(problem: Problem, lead: int = 0) -> Space:
    """Find what there is to decide; `lead`: how many ops of a window come before its step."""
    workspace = [op.workspace_bytes for op in problem.graph.ops]
    space = Space(lead, taken_bytes=list(workspace), freed_bytes=list(workspace))
    for tensor, uses in enumerate(problem.lifetimes.uses):
        exists, free = problem.starts_with[tensor], len(problem.away(tensor)) > 0
        size = problem.sizes[tensor]
        if not uses:
            _add_unused(problem, space, tensor)
            continue
        if exists:
            space.start_bytes += size
            space.at_home_bytes += size
        else:
            space.taken_bytes[uses[0]] += size
        if tensor in set(problem.lifetimes.dead_after[uses[-1]]):
            space.freed_bytes[uses[-1]] += size
        if free:
            _Finder(problem, space, tensor).find(uses)
    return space


def _add_unused(problem: Problem, space: Space, tensor: int) -> None:
    """What no op uses stays where it is; it lives away if that is free."""
    if not problem.starts_with[tensor]:
        return
    if problem.away(tensor):
        space.idle_homes.append(tensor)
        return
    space.at_home_bytes += problem.sizes[tensor]
    if problem.graph.tensors[tensor].persistent or tensor in problem.graph.outputs:
        space.start_bytes += problem.sizes[tensor]


class _Finder:
    """Finds the gaps of one tensor that may move."""

    def __init__(self, problem: Problem, space: Space, tensor: int) -> None:
        self._problem, self._space, self._tensor = problem, space, tensor
        self._size = problem.sizes[tensor]
        here, away = problem.compute_tier, problem.away(tensor)[0]
        self._out_ns = transfer_ns(self._size, problem.links[here, away])
        self._in_ns = transfer_ns(self._size, problem.links[away, here])
        self._home: int | None = None
        self._is_home_free = problem.homes[tensor] < 0
        self._version = -1
        self._out: int | None = None

    def find(self, uses: Sequence[int]) -> None:
        space, problem, tensor = self._space, self._problem, self._tensor
        exists, is_read = problem.starts_with[tensor], problem.lifetimes.is_read
        if exists and self._is_home_free:
            self._home = space.new_choice()
            space.homes[self._home] = tensor
        since = -1
        if uses[0] < space.lead:
            since, *uses = uses
        if exists:
            space.leading.append(len(space.gaps))
            self._add(since, uses[0], self._home, None, returns=is_read(tensor, uses[0]))
        for after, before in pairwise(uses):
            self._pass(after)
            if is_read(tensor, before):
                if before > after + 1 and self._size:
                    self._add(after, before, space.new_choice(), self._copy_out(), returns=True)
            elif before > after + 1:
                space.dead.setdefault(after, []).append(tensor)
                space.freed_bytes[after] += self._size
                space.taken_bytes[before] += self._size
        self._pass(uses[-1])
        if problem.graph.tensors[tensor].persistent:
            out = self._copy_out() if self._version >= 0 else None
            self._add(uses[-1], len(problem.graph.ops), self._home, out, returns=False)
        elif tensor in problem.graph.outputs and self._size and uses[-1] < len(problem.graph.ops) - 1:
            self._add(uses[-1], len(problem.graph.ops), space.new_choice(), self._copy_out(), returns=False)

    def _pass(self, op: int) -> None:
        """Begin a new version if the op writes the tensor."""
        if op in self._problem.lifetimes.writes[self._tensor]:
            self._version, self._out = op, None

    def _copy_out(self) -> int | None:
        """The copy out of the present version; None if its home is away in any case."""
        original = self._version < 0
        if original and not self._is_home_free:
            return None
        if self._out is None:
            self._out = len(self._space.outs)
            self._space.outs.append(Out(self._tensor, self._version, self._out_ns, self._home if original else None))
        return self._out

    def _add(self, after: int, before: int, choice: int | None, out: int | None, *, returns: bool) -> None:
        in_ns = self._in_ns if returns else None
        self._space.gaps.append(Gap(self._tensor, after, before, choice, out, in_ns, self._size))


def window(problem: Problem) -> Problem:
    """The window of one step of a problem with several: op 0 is the lead, all others follow by one."""
    graph = problem.graph
    last = graph.ops[-1]
    used = dict.fromkeys((*last.reads, *last.writes))
    stay = tuple(t for t in used if graph.tensors[t].persistent)
    fresh_bytes = sum(problem.sizes[t] for t in used if t not in stay)
    lead = Op(
        f"{last.name} of the step before",
        reads=stay,
        workspace_bytes=last.workspace_bytes + fresh_bytes,
        duration_ns=problem.durations_ns[-1],
        barrier=True,
    )
    seen = replace(graph, ops=(lead, *(replace(op, late=None) for op in graph.ops)), steps=1)
    durations_ns = [problem.durations_ns[-1], *problem.durations_ns]
    return replace(problem, graph=seen, durations_ns=durations_ns, lifetimes=lifetimes(seen))
