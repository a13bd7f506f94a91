"""`reactive`: the runtime baseline, which decides while it runs.

Before each op the runtime inspects the compute tier, fetches the tensors that the op lacks, evicts under pressure and
frees dead tensors (by reference counts). It knows the current op and, with `look_ahead`, a few more. It never blocks
itself where each link has a queue of its own (`runtime_cache` says why).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from functools import partial
from itertools import chain
from typing import Annotated, Any, Literal

from pydantic import Field

from simulator.document import Part
from simulator.errors import CapacityError
from simulator.plan import COMPUTE, SYNC, Actions, Code, Plan, View
from simulator.policies.decide import tune
from simulator.policies.problem import Problem
from simulator.policies.runtime_cache import Eviction, RuntimeCache
from simulator.policies.working_sets import DynamicReaders, WorkingSets

_EVICT = ("lru", "fifo", "furthest")
ON_DEMAND = ("lru", "lfu", "hot")
_LOOK_AHEAD = (32, 0, 64)
"""Orders, and numbers of ops, that ``best`` tries; `ON_DEMAND` where dynamic reads are handled on demand."""

_AT_ONCE = 64
"""Codes that are decided before they are handed on: singly takes longer, and a run that blocks should end soon."""
_SHORT, _REMEMBERED = 20_000, 1_000_000
"""Most ops of a run whose actions are remembered, and about as many actions as are: they take 13 MB."""


class Options(Part):
    """Options of the runtime; ``best`` tries the values by replay, option by option, and takes the fastest.

    Attributes
    ----------
    evict
        ``lru``: least recent use first. ``fifo``: oldest producer first, then the larger. ``furthest``: furthest next
        use first, by the known order of all ops. ``lfu``: least often used first. ``hot``: the likeliest candidates of
        dynamic reads stay, as far as every op fits beside them; else ``lru``. ``best`` tries the first three, and for
        dynamic reads on demand lru, lfu and hot.
    look_ahead
        Number of ops ahead for which it fetches, without evicting their tensors (``best``: 0, 32, 64).
    synchronous
        Whether the host waits for each copy as it is issued.
    drains
        Whether the host, when an op does not fit, first waits for all issued work, as an allocator does after a
        failure.
    dynamic
        Handling of dynamic reads. ``all``: fetch all candidates before an op. ``on_demand``: sync an output of the
        revealing op, and fetch the chosen candidates; copies may then stay from step to step.
    """

    evict: Literal["best", "lru", "fifo", "furthest", "lfu", "hot"] = "best"
    look_ahead: Annotated[int, Field(ge=0)] | Literal["best"] = "best"
    synchronous: bool = False
    drains: bool = False
    dynamic: Literal["all", "on_demand"] = "all"


def plan(problem: Problem, options: Options) -> Plan:
    """Plan a runtime that fetches on demand and evicts under pressure.

    Persistent tensors with a free home start in the compute tier, in the order of their first use, as long as the
    largest working set fits beside them; the others start away. At the end of a step everything goes home.

    Parameters
    ----------
    problem
        Problem to run.
    options
        See `Options`.

    Raises
    ------
    CapacityError
        If pinned tensors and the working set of some op exceed the budget together.
    """
    dynamic = DynamicReaders(problem, on_demand=options.dynamic == "on_demand")
    dynamic.check("reactive", writes_back=True)
    sets = WorkingSets(dynamic)
    evict: tuple[str, ...] = (ON_DEMAND if dynamic.readers else _EVICT) if options.evict == "best" else (options.evict,)
    look_ahead: tuple[int, ...] = _LOOK_AHEAD if options.look_ahead == "best" else (options.look_ahead,)
    if sets.nothing_moves:
        evict, look_ahead = evict[:1], (0,)
    elif dynamic.readers and sets.fits_without(dynamic.candidates) and options.look_ahead == "best":
        look_ahead = (0,)
    return tune(problem, (evict, look_ahead), partial(_make, sets, options))


def _make(sets: WorkingSets, options: Options, evict: str, look_ahead: int) -> Plan:
    problem, homes = sets.problem, dict(enumerate(sets.homes))
    stay = sets.pinned | sets.hottest if evict == "hot" else sets.pinned

    def issue(view: View) -> Iterator[Code]:
        eviction = Eviction(evict, problem, stay)
        cache = RuntimeCache(
            homes, problem.budget_bytes, eviction, synchronous=options.synchronous, drains=options.drains
        )
        return chain.from_iterable(_batches(sets, look_ahead, cache, view))

    def remembered(view: View) -> Iterator[Code]:
        about = evict, look_ahead, options.synchronous, options.drains, view.steps, sets.homes, problem.ways
        plans: dict[Any, Actions] = problem.graph.known.setdefault(Options, {})
        if about not in plans:
            try:
                plans[about] = Actions.from_columns(*zip(*issue(view), strict=True))
            except CapacityError:
                return issue(view)  # a run may block before
            while sum(map(len, plans.values())) > _REMEMBERED:
                del plans[next(iter(plans))]
        return plans[about].codes()

    is_short = len(sets.ops) * problem.graph.steps <= _SHORT and not sets.dynamic.revealed
    how = ", fetches dynamic reads on demand" if sets.dynamic.readers else ""
    note = f"evicts {evict}, looks {look_ahead} ops ahead{how}"
    decide = remembered if is_short else issue
    return Plan("reactive", problem.tiers, sets.homes, decide, problem.graph.steps, (note,), looks=False)


def _batches(sets: WorkingSets, ahead: int, cache: RuntimeCache, view: View) -> Iterator[list[Code]]:
    """Issue all steps, op by op: fetch what the op needs and what ops in view will need, and free dead tensors."""
    eviction, revealed = cache.eviction, sets.dynamic.revealed
    codes, resident, awaited, unused = cache.codes, cache.resident, cache.awaited, cache.unused
    computes = [(COMPUTE, op, stream, 0) for op, stream in enumerate(sets.problem.streams)]
    fences, ops, room, tier = sets.problem.fences, len(computes), cache.room, cache.tier
    workspaces = [op.workspace_bytes for op in sets.ops]
    in_view = [min(op + ahead + 1, bisect_right(fences, op, 0, ops)) for op in range(ops)] if ahead else ()
    for step in range(view.steps):
        base, seen = step * ops, 0
        for op, (compute, uses, workspace_bytes) in enumerate(zip(computes, sets.uses, workspaces, strict=True)):
            if awaited:
                eviction.use(chain.from_iterable(awaited.values()))
            eviction.now = base + op
            absent = [tensor for tensor in eviction.use(uses) if tensor not in resident]
            unused.difference_update(uses)
            if absent or room[tier] < workspace_bytes:
                _admit(sets, cache, op, absent)
            if in_view and in_view[op] > (seen := max(seen, op + 1)):
                _look_ahead(sets, cache, op, base, range(seen, in_view[op]))
                seen = in_view[op]
            codes.append(compute)
            _conclude(sets, cache, op)
            unused.difference_update(awaited.pop(op, ()))
            if op in revealed:
                codes.append((SYNC, sets.dynamic.signal(op), 0, 0))
                yield from cache.reveal(revealed[op], view)
            if len(codes) >= _AT_ONCE:
                yield cache.take()
        _end_step(sets, cache, is_last=step == view.steps - 1)
        yield cache.take()


def _admit(sets: WorkingSets, cache: RuntimeCache, op: int, absent: list[int]) -> None:
    """Make room for the absent tensors of an op and its workspace, and fetch those that it reads."""
    reads, needed_bytes = sets.reads[op], sets.ops[op].workspace_bytes
    for tensor in absent:
        needed_bytes += cache.sizes[tensor]
    if cache.room[cache.tier] < needed_bytes:
        cache.drain(sets.ops[op - 1])
        cache.make_room(needed_bytes, sets.uses[op])
    for tensor in absent:
        (cache.fetch if tensor in reads else cache.hold)(tensor)


def _conclude(sets: WorkingSets, cache: RuntimeCache, op: int) -> None:
    """Mark copies of what an op wrote as stale, and free tensors that are dead after it."""
    dynamic = sets.dynamic.readers.get(op)
    for tensor in (*sets.ops[op].writes, *(cache.awaited.get(op, ()) if dynamic and dynamic.updates else ())):
        cache.is_clean[tensor] = False
    for tensor in sets.problem.lifetimes.dead_after[op]:
        cache.leave(tensor)
        cache.drop(tensor)


def _look_ahead(sets: WorkingSets, cache: RuntimeCache, op: int, base: int, into_view: range) -> None:
    """Prefetch for the ops that come into view, as far as there is room, without evicting what ops in view need."""
    resident, is_clean, needed_until = cache.resident, cache.is_clean, cache.needed_until
    for coming in into_view:
        uses = sets.uses[coming]
        cache.eviction.use(uses)
        for tensor in uses:
            needed_until[tensor] = base + coming
        for tensor in sets.reads[coming]:
            if tensor not in resident and is_clean[tensor]:
                needed_bytes = cache.sizes[tensor] + sets.ops[op].workspace_bytes
                if cache.make_room(needed_bytes, sets.uses[op], until=base + op):
                    cache.fetch(tensor)
                    cache.unused.add(tensor)


def _end_step(sets: WorkingSets, cache: RuntimeCache, *, is_last: bool) -> None:
    """Bring persistent tensors home (what dynamic reads choose and no op writes after the last step only).

    Release the outputs.
    """
    may_stay = () if is_last else sets.dynamic.candidates & sets.problem.graph.cacheable
    for tensor in sets.guests:
        if tensor in cache.resident and tensor not in may_stay:
            cache.evict(tensor)
    for tensor in sets.residents:
        if tensor not in cache.resident:
            cache.make_room(cache.sizes[tensor], sets.residents)
            cache.fetch(tensor)
            cache.unused.add(tensor)
        cache.drop(tensor)
    for tensor in sets.guests:
        cache.bring_home(tensor)
    for tensor in sets.outputs:
        if tensor in cache.resident:
            cache.leave(tensor)
        cache.drop(tensor)
