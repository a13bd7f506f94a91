"""`recompute`: drops repeatable tensors under memory pressure, and reruns their ops before use; copies nothing.

The policy walks the step in issue order. When the next op does not fit, it drops the tensors with the highest

    ``score = size * idle time ** weight / time of the ops to rerun``

until it fits; the fastest plan of several weights wins. So each byte is freed where it costs least compute. Tensors
that are used again before they could be remade go last; tensors that are slow to remake go late.

When an op reads a dropped tensor, the ops that produce it are rerun from live tensors. Their other outputs are kept
while they fit and are needed, so backward recomputes each layer once. A tight budget leaves checkpoints at growing
distances: of `n` equal layers about the square root of ``2 n`` stay, and the others are rerun once, as in checkpointing
by hand (Chen et al., arXiv 1604.06174; the rule is that of dynamic tensor rematerialisation, Kirisame et al., arXiv
2006.09616, with known next uses instead of guesses). A tighter budget reruns layers more than once.

Some tensors are remade several times after their own uses, as inputs of others. A second pass keeps those until their
last such use, and the faster of the two plans wins.

A tensor is queued with the score of its producer alone. Its true score is computed when it comes first, as dropping its
inputs only lowers it. So each choice costs a few heap operations and the ops of one chain.

An op may be rerun before op ``k`` if it repeats its first run there and changes nothing else:

- it is a compute that the graph calls repeatable, and no collective or host op;
- it writes no persistent tensor, and updates nothing in place;
- none of its inputs and outputs has been overwritten between its first run and ``k``.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from heapq import heappop, heappush
from itertools import chain

from simulator.document import Part
from simulator.graph import Graph, OpKind
from simulator.lifetime import NEVER, IdleInterval, Lifetimes, idle_intervals, live_bytes
from simulator.plan import VALID, Plan
from simulator.policies.decide import tune
from simulator.policies.problem import Problem
from simulator.policies.profile import Profile
from simulator.policies.writer import Writer
from simulator.units import counted, human

_LONGEST_CHAIN = 256
"""Most ops to make a tensor again; a tensor that takes more is kept, so that each choice takes bounded time."""

TIME_WEIGHTS = (0.0, 0.5, 1.0)
"""Exponents of the idle time in the score: each is tried, and the fastest plan wins."""


Rank = tuple[bool, float]
"""Whether a tensor is used again sooner than it can be made again, and its negated score: the least goes first."""


class Options(Part):
    """No options."""


def plan(problem: Problem, options: Options) -> Plan:
    """Free tensors under memory pressure, and rerun their ops before their next use.

    Persistent tensors stay in the compute tier; those with a home in another tier come in when the step starts and go
    back when it ends, as in `resident`.

    Parameters
    ----------
    problem, options
        Problem to plan for; nothing to choose.

    Raises
    ------
    CapacityError
        If no plan was found that fits; the report has the least peak reached.
    """
    walker, limit = Walker(problem), problem.budget_bytes
    values = [TIME_WEIGHTS, walker.keeping(limit)]
    return tune(problem, values, lambda weight, keeps: walker.walk(limit, weight, keeps).plan())


class Walker:
    """Passes over the step under several limits, each made once.

    Parameters
    ----------
    problem
        Problem to plan for.

    Attributes
    ----------
    remaker, uses
        The remaker of its tensors; the tensors that each op uses.
    """

    def __init__(self, problem: Problem) -> None:
        self.problem, ops = problem, problem.graph.ops
        self.remaker, self.uses = Remaker(problem.graph), [(*dict.fromkeys((*op.reads, *op.writes)),) for op in ops]
        self._least_bytes = least_peak_bytes(problem, self.remaker)
        self._walks: dict[tuple[int | float, float, bool], RecomputePass] = {}

    def keeping(self, limit_bytes: int | float) -> tuple[bool, ...]:
        """Return the values of `keeps` to try: also True if some tensor is made again in passing several times."""
        again = self.walk(limit_bytes, TIME_WEIGHTS[0]).made_in_passing.values()
        return (False, True) if any(len(ops) > 1 for ops in again) else (False,)

    def walk(self, limit_bytes: int | float, weight: float, keeps: bool = False) -> RecomputePass:
        """Make a pass that gives up tensors until the step keeps to a limit, as far as that is possible.

        Parameters
        ----------
        limit_bytes
            The limit of live bytes in the compute tier [B].
        weight
            Exponent of the idle time in the score.
        keeps
            Whether tensors live on that help to make others again.
        """
        key = max(limit_bytes, self._least_bytes), weight, keeps
        if key not in self._walks:
            kept = self.walk(limit_bytes, weight).made_in_passing if keeps else {}
            self._walks[key] = RecomputePass(self, weight, key[0], kept)
        return self._walks[key]


def least_peak_bytes(problem: Problem, remaker: Remaker) -> int:
    """Return the peak if everything that can be recomputed is held only while ops use it [B].

    No plan of this policy needs less; a lower limit only makes it recompute in vain.

    Parameters
    ----------
    problem, remaker
        Problem to plan for, and the remaker of its tensors.
    """
    graph, live = problem.graph, Profile(live_bytes(problem.graph))
    for idle in idle_intervals(graph):
        if not graph.tensors[idle.tensor].persistent and remaker.maker(idle.tensor, idle.before) != NEVER:
            live.add(idle.after + 1, idle.before - 1, -problem.sizes[idle.tensor])
    return live.peak(0, live.length - 1)


class RecomputePass:
    """A pass over the step in issue order.

    Parameters
    ----------
    walker
        The problem, and the remaker of its tensors.
    weight
        Exponent of the idle time in the score.
    limit_bytes
        The limit that it tries to keep to [B].
    kept
        Tensor that lives beyond its last use -> the ops before which it helps to make others again.

    Attributes
    ----------
    made_in_passing
        Tensor that was made again after its last use, on the way to others -> the ops before which it was.
    """

    def __init__(
        self, walker: Walker, weight: float, limit_bytes: int | float, kept: Mapping[int, Sequence[int]]
    ) -> None:
        problem, self._remaker, self._weight, self._limit = walker.problem, walker.remaker, weight, limit_bytes
        self._problem, self._uses = problem, walker.uses
        self._ops, self._compute_tier = problem.graph.ops, problem.compute_tier
        self._writer = Writer(problem, "recompute")
        self._places = self._writer.in_compute_tier  # looked at so often that a call each time would take half as long
        uses, self._dies = list(problem.lifetimes.uses), list(problem.lifetimes.dies)
        self._helpers_before: dict[int, list[int]] = {}
        for tensor, ops in kept.items():
            uses[tensor] += tuple(ops)
            self._dies[tensor] = ops[-1]
            for op in ops:
                self._helpers_before.setdefault(op, []).append(tensor)
        self._uses_left = [list(reversed(ops)) for ops in uses]
        self.made_in_passing: dict[int, list[int]] = {}
        homed = zip(problem.graph.tensors, problem.homes, strict=True)
        self._may_go = [not t.persistent and t.size_bytes > 0 and home != self._compute_tier for t, home in homed]
        self._mortal = frozenset(chain.from_iterable(problem.lifetimes.dead_after))
        self._idle_since = [0] * len(problem.sizes)
        self._queue: list[tuple[Rank, int, int]] = []
        self._given_up: set[int] = set()
        self._repeated_runs = self.again_ns = 0
        self._run()

    def plan(self) -> Plan:
        """End the plan.

        Raises
        ------
        CapacityError
            If it does not fit.
        """
        gone, runs = counted(len(self._given_up), "tensor"), counted(self._repeated_runs, "rerun")
        note = f"{gone} dropped, and remade by {runs}, {human(self.again_ns, 'ns')} in all"
        return self._writer.finish((note,) if self._repeated_runs else ())

    def _run(self) -> None:
        """Issue all ops of the step."""
        writer, places, uses_left = self._writer, self._places, self._uses_left
        for op, (node, uses) in enumerate(zip(self._ops, self._uses, strict=True)):
            for tensor in self._problem.arrivals.get(op, ()):
                writer.fetch(tensor)
            missing = [t for t in node.reads if places[t] != VALID]
            if missing:
                self._make_again(missing, op)
            self._make_room(op, uses)
            writer.compute(op, again=True)
            for t in (*uses, *self._helpers_before.get(op, ())):
                uses_left[t].pop()
                if not uses_left[t] and t in self._mortal:
                    writer.release(t)
                self._enqueue(t, op + 1)

    def _next_use(self, tensor: int) -> int:
        return self._uses_left[tensor][-1] if self._uses_left[tensor] else NEVER

    def _make_again(self, wanted: list[int], before: int) -> None:
        """Run the ops that make the wanted tensors; keep what else is needed later, and drop the rest."""
        writer, needed = self._writer, set(self._ops[before].reads)
        ops = self._remaker.chain(wanted, before, writer.resident) or ()
        last = {t: op for op in ops for t in (*self._ops[op].reads, *self._ops[op].writes)}
        locked = needed | last.keys()
        for op in ops:
            node = self._ops[op]
            self._make_room(op, locked)
            writer.compute(op, again=True)
            for t in {*node.reads, *node.writes}:
                if last[t] == op and t not in needed:
                    locked.discard(t)
                    if self._next_use(t) != NEVER:
                        self._enqueue(t, before)
                    elif t in self._mortal:
                        writer.release(t)
                        self.made_in_passing.setdefault(t, []).append(before)
        self._repeated_runs += len(ops)
        self.again_ns += self._time_ns(ops)

    def _make_room(self, op: int, locked: Collection[int]) -> None:
        """Give up tensors until the op has room, or none is left that may go."""
        writer, node, sizes, places = self._writer, self._ops[op], self._problem.sizes, self._places
        room = node.workspace_bytes + sum([sizes[t] for t in node.writes if places[t] != VALID])
        kept: list[tuple[Rank, int, int]] = []
        while writer.live_bytes(self._compute_tier) + room > self._limit and self._queue:
            rank, tensor, next_use = entry = heappop(self._queue)
            if next_use != self._next_use(tensor) or places[tensor] != VALID:
                continue
            if tensor in locked:
                kept.append(entry)
                continue
            true_rank = self._true_rank(tensor, next_use)
            if true_rank is not None and true_rank > rank:
                heappush(self._queue, (true_rank, tensor, next_use))
            elif true_rank is not None:
                writer.detach(tensor, self._compute_tier)
                self._given_up.add(tensor)
        for entry in kept:
            heappush(self._queue, entry)

    def _enqueue(self, tensor: int, now: int) -> None:
        """Queue the tensor as one that may be given up until its next use."""
        if self._may_go[tensor] and self._uses_left[tensor] and self._places[tensor] == VALID:
            self._idle_since[tensor], next_use = now, self._uses_left[tensor][-1]
            maker = self._remaker.maker(tensor, next_use)
            if maker != NEVER:
                cost_ns = self._problem.durations_ns[maker]
                heappush(self._queue, (self._rank_for(tensor, next_use, cost_ns), tensor, next_use))

    def _true_rank(self, tensor: int, next_use: int) -> Rank | None:
        """Return the rank of the tensor in the queue; None if it cannot be recomputed."""
        dies, places = self._dies, self._places
        ops = self._remaker.chain(
            (tensor,),
            next_use,
            lambda other: places[other] == VALID and dies[other] >= next_use and other != tensor,  # it will be there
            _LONGEST_CHAIN,
        )
        return None if ops is None else self._rank_for(tensor, next_use, self._time_ns(ops))

    def _rank_for(self, tensor: int, next_use: int, cost_ns: int) -> Rank:
        clock = self._problem.clock
        idle_ns = clock[next_use] - clock[min(self._idle_since[tensor], next_use)]
        score = self._problem.sizes[tensor] * float(idle_ns) ** self._weight / max(1, cost_ns)
        return idle_ns < max(1, cost_ns), -score

    def _time_ns(self, ops: Sequence[int]) -> int:
        return sum(map(self._problem.durations_ns.__getitem__, ops))


class Remaker:
    """Find the ops that make tensors again.

    Parameters
    ----------
    graph
        The graph.
    """

    def __init__(self, graph: Graph) -> None:
        self._graph, self._writes = graph, Lifetimes.of(graph).writes
        self._until = [self._repeatable_until(op) for op in range(len(graph.ops))]

    def _repeatable_until(self, op: int) -> int:
        """Return the last op before which this one may run again; `NEVER` if there is none."""
        node, tensors, last = self._graph.ops[op], self._graph.tensors, len(self._graph.ops)
        if node.kind is not OpKind.COMPUTE or not node.repeatable or any(tensors[t].persistent for t in node.writes):
            return NEVER
        reads = frozenset(node.reads)
        for t in reads.union(node.writes):
            position = bisect_right(self._writes[t], op)
            if t in reads and position and self._writes[t][position - 1] == op:
                return NEVER
            if position < len(self._writes[t]):
                last = min(last, self._writes[t][position])
        return last

    def maker(self, tensor: int, before: int) -> int:
        """Return the op whose rerun makes what the tensor holds before an op; `NEVER` if there is none."""
        position = bisect_left(self._writes[tensor], before)
        op = self._writes[tensor][position - 1] if position else NEVER
        return op if op != NEVER and self._until[op] >= before else NEVER

    def chain(
        self, wanted: Collection[int], before: int, is_there: Callable[[int], bool], most_ops: int | None = None
    ) -> tuple[int, ...] | None:
        """Find the ops to run again before an op, in program order.

        Parameters
        ----------
        wanted
            Tensors that are not there.
        before
            The op that needs them.
        is_there
            Whether another tensor may be read.
        most_ops
            Return None if more ops are needed.

        Returns
        -------
        tuple of int or None
            None if they cannot be made again from what is there, or not by so few ops.
        """
        ops, maker, nodes = set[int](), self.maker, self._graph.ops
        asked, todo = set(wanted), list(wanted)
        while todo:
            op = maker(todo.pop(), before)
            if op == NEVER or (most_ops is not None and len(ops) > most_ops):
                return None
            if op in ops:
                continue
            ops.add(op)
            for t in nodes[op].reads:
                if t not in asked and not is_there(t):
                    asked.add(t)
                    todo.append(t)
        return tuple(sorted(ops))


def remakes(graph: Graph, most_ops: int = _LONGEST_CHAIN) -> Iterator[tuple[IdleInterval, tuple[int, ...]]]:
    """Yield idle intervals, each with the ops that recompute its tensor at the end if all else that is live stays.

    Parameters
    ----------
    graph
        The graph.
    most_ops
        Intervals that take more ops than this are left out, as are those whose tensor cannot be made again; so the
        time that this takes is in proportion to the number of idle intervals.
    """
    lifetimes, remaker = Lifetimes.of(graph), Remaker(graph)
    for idle in idle_intervals(graph):
        if idle.wraps or not lifetimes.is_read(idle.tensor, idle.before):
            continue

        def is_there(t: int, idle: IdleInterval = idle) -> bool:
            return t != idle.tensor and NEVER < lifetimes.born[t] < idle.before <= lifetimes.dies[t]

        ops = remaker.chain((idle.tensor,), idle.before, is_there, most_ops)
        if ops is not None:
            yield idle, ops
