"""`hybrid`: a compiled static part for known reads, and a cache for dynamic reads.

`static` plans all reads known before the run, in the budget less the cache; for the host this part is a fixed plan. The
likeliest candidates with a free home live in the compute tier as far as they fit; if all fit, and no other candidate
may move, nothing is left to decide. The runtime decides about the other candidates: it syncs an output of the op that
reveals a choice, copies in the chosen candidates missing from the cache, and evicts others. It may also fetch for the
dynamic reads revealed next: all candidates, or a guess. Copies stay in the cache from one step to the next, and leave
when the run ends.

If a cache beside the static part may cost more than compiling saves, or does not fit, a fully reactive runtime is tried
as well: it holds chosen candidates only while an op awaits them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache, partial
from itertools import chain
from typing import Annotated, Literal

from pydantic import Field

from simulator.document import Part
from simulator.errors import CapacityError, ScopeError, Shortfall
from simulator.lifetime import live_bytes
from simulator.plan import COMPUTE, PART, Actions, Code, Plan, View
from simulator.policies import reactive, static
from simulator.policies.decide import Best, tune
from simulator.policies.problem import Problem
from simulator.policies.runtime_cache import Eviction, RuntimeCache
from simulator.policies.working_sets import DynamicReaders, WorkingSets
from simulator.units import Bytes, human, require


class Options(Part):
    """Options for dynamic reads; ``best`` tries the values by replay and takes the fastest.

    Attributes
    ----------
    cache
        Size of the cache for candidates of dynamic reads [B]; default: all memory beside a static part that moves
        nothing, but at least the candidates that may be chosen at once.
    evict
        Order of eviction: ``lru``, ``lfu``, or ``hot``: the likeliest stay, of the others least recent use
        first.
    prefetch
        Tensors fetched ahead when dynamic reads are revealed, for the dynamic reads revealed next: none (``none``), all
        of their candidates (``next_layer_all``), or a guess at their choice (``speculative``).
    accuracy
        Probability that each choice is guessed right; only of ``prefetch: speculative``.
    """

    cache: Bytes | None = None
    evict: Literal["best", "lru", "lfu", "hot"] = "best"
    prefetch: Literal["none", "next_layer_all", "speculative"] = "none"
    accuracy: Annotated[float, Field(ge=0, le=1)] = 0.8

    def _check(self) -> None:
        is_guess = "accuracy" not in self.model_fields_set or self.prefetch == "speculative"
        found, do = f"accuracy with prefetch: {self.prefetch}", "write prefetch: speculative, or remove accuracy"
        require(is_guess, "an accuracy is of a guess", found, "accuracy", do=do)


def plan(problem: Problem, options: Options) -> Plan:
    """Plan what is known, and handle dynamic reads at run time; if there are none, return the plan of `static`.

    Parameters
    ----------
    problem
        Problem to run.
    options
        See `Options`.

    Raises
    ------
    CapacityError
        If the cache has no room for what one op may choose, or the static part does not fit beside it.
    ScopeError
        If dynamic reads cannot be handled at run time.
    """
    if not problem.graph.dynamic_reads:
        return static.plan(problem, static.Options())
    dynamic = DynamicReaders(problem)
    dynamic.check("hybrid")
    for op in problem.graph.certain.ops:  # a tensor that is read in both ways, static part and cache would both move
        for tensor in (t for t in op.reads if t in dynamic.candidates):
            must, read = "every read of a candidate is dynamic", problem.graph.tensors[tensor].name
            do = "use reactive with dynamic: on_demand"
            raise ScopeError("policy 'hybrid'", must, f"{read!r} by {op.name!r}", do)
    is_doubtful = bool(dynamic.free) or _spare_bytes(dynamic) < dynamic.most_awaited_bytes
    if options.cache is not None or options.prefetch != "none" or not is_doubtful:
        return _best_with_static_part(dynamic, options)
    best = Best[Plan](problem)
    for make in (_best_with_static_part, _decide_at_run_time):
        with best.trying():
            plan = make(dynamic, options)
            best.offer(plan, plan)
    return best.chosen()


def _best_with_static_part(dynamic: DynamicReaders, options: Options) -> Plan:
    """Find the fastest plan with a static part."""
    orders = reactive.ON_DEMAND if options.evict == "best" else (options.evict,)
    compiled = cache(partial(_compile, dynamic, options))
    rows = (_resident_sets(dynamic, options), orders)
    return tune(dynamic.problem, rows, lambda resident, order: _with_cache(options, order, *compiled(resident)))


def _decide_at_run_time(dynamic: DynamicReaders, options: Options) -> Plan:
    """Make a runtime that decides about everything while it runs."""
    runtime = reactive.plan(dynamic.problem, reactive.Options(evict=options.evict, dynamic="on_demand"))
    note = "nothing is compiled: one undivided cache is faster here"
    return replace(runtime, policy="hybrid", notes=(note, *runtime.notes))


def _resident_sets(dynamic: DynamicReaders, options: Options) -> tuple[frozenset[int], ...]:
    """List sets of candidates that may live in the compute tier: all if they fit, else the likeliest for several rooms.

    The rooms are those beside a cache for what passes through, and a static part of which nothing moves, or of which as
    much moves as under a runtime; and none.
    """
    if not dynamic.free:
        return (frozenset(),)
    settled = dynamic.settled(dynamic.free)
    if not settled.candidates and _spare_bytes(settled) >= 0:
        return (dynamic.free,)
    cache_bytes = _in_passing_bytes(dynamic, options) if options.cache is None else options.cache
    demand_bytes = WorkingSets(dynamic).demand_bytes - dynamic.most_awaited_bytes
    rooms = (_spare_bytes(dynamic), dynamic.problem.budget_bytes - demand_bytes, cache_bytes)
    return tuple(dict.fromkeys(dynamic.hottest(room - cache_bytes, dynamic.free) for room in rooms))


def _compile(dynamic: DynamicReaders, options: Options, resident: frozenset[int]) -> tuple[DynamicReaders, Plan, int]:
    """Compile the static part with some candidates in the compute tier; return the other reads, the plan, their cache.

    Raises
    ------
    CapacityError
        As `plan`.
    """
    dynamic = dynamic.settled(resident)
    problem = dynamic.problem
    if not dynamic.candidates:
        return dynamic, static.plan(problem, static.Options()), 0
    for tensor in dynamic.candidates:  # one that comes in through another tier would need room for a cache there, too
        home = problem.homes[tensor]
        if (home, problem.compute_tier) not in problem.links:
            must, do = "a link leads from the home of each candidate into the compute tier", "change its home"
            found = f"none from {problem.tiers[home]}, the home of {problem.graph.tensors[tensor].name!r}"
            raise ScopeError("policy 'hybrid'", must, found, do)
    cache_bytes = _cache_bytes(dynamic, options.cache)
    left_bytes = problem.budget_bytes - cache_bytes
    without_reads = replace(problem, graph=problem.graph.certain, budget_bytes=left_bytes, popularity={})
    planned = static.plan(without_reads, static.Options())
    notes = [f"static part: {note}" for note in planned.notes]
    if resident:
        size, tier = human(sum(problem.sizes[t] for t in resident), "B"), problem.tiers[problem.compute_tier]
        notes.append(f"{size} of the candidates stay in {tier}")
    return dynamic, replace(planned, notes=tuple(notes)), cache_bytes


def _cache_bytes(dynamic: DynamicReaders, asked: int | None) -> int:
    """Return the size of the cache [B]: the option; else what is left, but at least what may be chosen at once."""
    problem, least = dynamic.problem, dynamic.most_awaited_bytes
    if asked is not None and asked < least:
        moment = f"op {problem.graph.ops[dynamic.awaited_bytes.argmax()].name}, for its candidates"
        larger = (f"give the cache at least {human(least, 'B')} ({least:,} B)",)
        tier = f"the cache in {problem.tiers[problem.compute_tier]}"
        raise CapacityError(Shortfall(tier, least, asked, moment, levers=larger))
    return max(least, _spare_bytes(dynamic)) if asked is None else asked


def _spare_bytes(dynamic: DynamicReaders) -> int:
    """Return the room left for the cache if the static part moves nothing [B]; negative if that does not fit."""
    problem, certain = dynamic.problem, dynamic.problem.graph.certain
    live = live_bytes(certain)
    away = sum(problem.sizes[t] for t in dynamic.candidates)
    return int(min(problem.budget_bytes - (int(live.max()) - away), away))


def _with_cache(options: Options, order: str, dynamic: DynamicReaders, planned: Plan, cache_bytes: int) -> Plan:
    """Put a cache beside the static part if some candidates live away."""
    if not dynamic.candidates:
        return planned
    problem, static_part = dynamic.problem, planned.fixed or Actions()
    guess = f" with accuracy {options.accuracy:g}" if options.prefetch == "speculative" else ""
    note = f"a cache of {human(cache_bytes, 'B')} evicts {order} and fetches {options.prefetch}{guess} ahead"
    parts, ends = _parts(dynamic, static_part)
    homes = {t: problem.homes[t] for t in dynamic.candidates}
    hottest = dynamic.hottest(cache_bytes - _in_passing_bytes(dynamic, options), dynamic.candidates)
    stay = hottest if order == "hot" else frozenset[int]()

    def issue(view: View) -> Iterator[Code]:
        # Straight from home: on another way the static part may have no room for what passes.
        cache = RuntimeCache(homes, cache_bytes, Eviction(order, problem, stay), is_direct=True)
        return chain.from_iterable(_batches(dynamic, ends, options, cache, view))

    return replace(
        planned, policy="hybrid", actions=issue, notes=(*planned.notes, note), looks=False, static_parts=parts
    )


def _batches(
    dynamic: DynamicReaders, ends: list[int], options: Options, cache: RuntimeCache, view: View
) -> Iterator[list[Code]]:
    """Issue the static part by its parts; after each op that reveals dynamic reads, fetch the chosen candidates."""
    revealed, order = dynamic.revealed, sorted(dynamic.revealed)
    following = dict(zip(order, (*order[1:], *order[:1]), strict=True))
    for step in range(view.steps):
        is_last = step == view.steps - 1
        for part, op in enumerate(ends):
            cache.codes.append((PART, part, 0, 0))
            cache.awaited.pop(op, None)
            if op in revealed:
                yield from cache.reveal(revealed[op], view)
                yield cache.take()
                if following[op] > op or not is_last:
                    _fetch_ahead(dynamic, options, cache, view, op, following[op])
        for tensor in [*cache.resident] if is_last else ():
            cache.evict(tensor)
        yield cache.take()


def _fetch_ahead(
    dynamic: DynamicReaders, options: Options, cache: RuntimeCache, view: View, op: int, coming: int
) -> None:
    """Fetch ahead, as far as there is room, for the ops whose dynamic reads are revealed next."""
    fences, prefetch, wanted = dynamic.problem.fences, options.prefetch, dict[int, None]()
    for reader in dynamic.revealed[coming] if prefetch != "none" else ():
        # What the first revealing op of a step reveals may be read after the last revealing op: then in this step.
        if (coming > op or reader < op) and fences[reader] <= op + 1:
            is_guess = prefetch == "speculative"
            reads = dynamic.readers[reader]
            guess = view.predicted(reader, options.accuracy) if is_guess else reads.candidates
            wanted |= dict.fromkeys(t for t in guess if t in cache.homes)
    for tensor in wanted:
        if tensor not in cache.resident:
            if not cache.make_room(cache.sizes[tensor], wanted):
                return
            cache.fetch(tensor)


def _parts(dynamic: DynamicReaders, steps: Actions) -> tuple[tuple[Actions, ...], list[int]]:
    """Cut the static part after each op that reveals or reads dynamically; return the parts, and these ops, then -1.

    What is revealed is synced.
    """
    parts, ends = [Actions()], list[int]()
    for code in steps.codes():
        parts[-1].append(*code)
        if code[0] == COMPUTE and (code[1] in dynamic.readers or code[1] in dynamic.revealed):
            if code[1] in dynamic.revealed:
                parts[-1].sync(dynamic.signal(code[1]))
            parts.append(Actions())
            ends.append(code[1])
    return tuple(parts), [*ends, -1]


def _in_passing_bytes(dynamic: DynamicReaders, options: Options) -> int:
    """Return the room for what passes through the cache [B]: candidates that ops await, and those fetched ahead."""
    awaited, sizes = dynamic.most_awaited_bytes, dynamic.problem.sizes
    if options.prefetch == "next_layer_all":
        every = ({t for op in readers for t in dynamic.readers[op].candidates} for readers in dynamic.revealed.values())
        return awaited + max(sum(sizes[t] for t in candidates) for candidates in every)
    return awaited * 2 if options.prefetch == "speculative" else awaited
