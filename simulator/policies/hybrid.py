"""`hybrid`: a compiled backbone, and a cache for what only the run can tell.

All that is known before is planned by `static`, in the budget less the room of a cache; its steps cost the host what
those of a fixed plan do. Of what is read late and has a free home, the likeliest live in the compute tier as far as
there is room; if all do, and no other may move, there is nothing left to decide. Of other late reads the runtime
decides: it syncs what reveals them, copies in what is chosen and not in the cache, and lets others leave. It may fetch
for the ops whose late reads are revealed next, all candidates or a guess. Copies stay in the cache from one step to the
next; when the run ends they leave.

Where a cache beside the backbone could cost more than compiling saves, or has no room, a runtime that decides of
everything on demand is tried as well: it has what is awaited only while that is awaited.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from simulator.document import Part
from simulator.errors import CapacityError, InvariantError, ScopeError, Shortfall
from simulator.lifetime import lifetimes, live_bytes
from simulator.plan import COMPUTE, PART, Code, Plan, Steps, View
from simulator.policies import reactive, static
from simulator.policies.late import CACHES, LateOps, leaving
from simulator.policies.late_cache import Cache
from simulator.policies.problem import Problem
from simulator.policies.reactive.tables import Tables
from simulator.policies.search import Best, tune
from simulator.units import Bytes, FieldError, human

_TRIES = 4
"""So often a cache that is too large may shrink by what the backbone lacks beside it."""


class Options(Part):
    """How late reads are handled; ``best`` tries the values by replay and takes the fastest.

    Attributes
    ----------
    cache
        Room for what is read late [B]; default: all that the backbone leaves when nothing of it moves, or else what may
        be chosen at once.
    evict
        Who leaves the cache first: ``lru``, ``lfu``, or ``hot``: the likeliest stay, of the others least recent use
        first.
    prefetch
        When late reads are revealed, what is fetched for the ops whose late reads are revealed next: nothing
        (``none``), all of their candidates (``next_layer_all``), or a guess at what they choose (``speculative``).
    accuracy
        How likely each of what is chosen is guessed; without a guess there is none.
    """

    cache: Bytes | None = Field(None, description="room for what is read late")
    evict: Literal["best", "lru", "lfu", "hot"] = Field("best", description="who leaves the cache first")
    prefetch: Literal["none", "next_layer_all", "speculative"] = Field("none", description="what is fetched ahead")
    accuracy: Annotated[float, Field(ge=0, le=1)] = Field(0.8, description="how often a guess is right")

    @model_validator(mode="after")
    def _accuracy_is_of_a_guess(self) -> Self:
        if "accuracy" in self.model_fields_set and self.prefetch != "speculative":
            must, do = "an accuracy is of a guess", "write prefetch: speculative, or remove accuracy"
            raise FieldError(must, f"accuracy with prefetch: {self.prefetch}", do, ("accuracy",))
        return self


def plan(problem: Problem, options: Options) -> Plan:
    """Plan what is known, and handle what is read late at run time; without late reads it is the plan of `static`.

    Parameters
    ----------
    problem
        What to run.
    options
        See `Options`.

    Raises
    ------
    CapacityError
        If the cache has no room for what one op may choose, or the backbone none beside it.
    ScopeError
        If late reads cannot be handled at run time.
    """
    if not problem.graph.has_late:
        return static.plan(problem, static.Options())
    ops = LateOps(problem)
    ops.check("hybrid")
    _check_apart(ops)
    if not _may_be_slower(ops, options):
        return _compiled(ops, options)
    best = Best[None](problem)
    for make in (_compiled, _undivided):
        try:
            best.offer(make(ops, options))
        except CapacityError as error:
            best.refuse(error)
    return best.plan()


def _compiled(ops: LateOps, options: Options) -> Plan:
    """The fastest plan with a compiled backbone."""
    orders = CACHES if options.evict == "best" else (options.evict,)
    divided = cache(partial(_divided, ops.problem, options))
    return tune(ops.problem, (_divisions(ops, options), orders), lambda here, order: divided(here)(order))


def _undivided(ops: LateOps, options: Options) -> Plan:
    """The runtime that decides of everything, on demand."""
    made = reactive.plan(ops.problem, reactive.Options(evict=options.evict, late="on_demand"))
    return replace(
        made, policy="hybrid", notes=("nothing is compiled: room that is not divided is worth more here", *made.notes)
    )


def _may_be_slower(ops: LateOps, options: Options) -> bool:
    """Whether dividing the room could cost more than compiling saves, if nothing is asked for that divides it.

    It costs nothing where the backbone stays as a whole, and homes are given: then all else is the cache's.
    """
    is_asked = options.cache is not None or options.prefetch != "none"
    return not is_asked and (bool(ops.free) or _left_bytes(ops) < max(ops.awaited_bytes))


def _divisions(ops: LateOps, options: Options) -> tuple[frozenset[int], ...]:
    """Which candidates with a free home may live in the compute tier, to be tried: all if they fit, else some, or none.

    Some are the likeliest that have room beside a cache of what comes and goes, and beside a backbone of which nothing
    moves, or of which as much moves as a runtime would let go.
    """
    if not ops.free:
        return (frozenset(),)
    every = LateOps(ops.settled(ops.free))
    if not every.candidates and _left_bytes(every) >= 0:
        return (ops.free,)
    cache_bytes = _in_passing(ops, options) if options.cache is None else options.cache
    spare = ops.problem.budget_bytes - Tables(ops.problem, ops).demand_bytes + max(ops.awaited_bytes)
    rooms = (_left_bytes(ops) - cache_bytes, spare - cache_bytes, 0)
    return tuple(dict.fromkeys(ops.hottest(room, ops.free) for room in rooms))


def _divided(problem: Problem, options: Options, here: frozenset[int]) -> Callable[[str], Plan]:
    """Plan what is known, with some candidates in the compute tier; return what makes a plan from an order of leaving.

    Raises
    ------
    CapacityError
        As `plan`.
    """
    ops = LateOps(LateOps(problem).settled(here))
    if not ops.candidates:
        return lambda _: static.plan(ops.problem, static.Options())
    cache_bytes = _cache_bytes(ops, options.cache)
    try:
        backbone = static.plan(backbone_of(ops.problem, cache_bytes), static.Options())
    except CapacityError as error:
        raise _beside(ops, options.cache, error) from None
    notes = [f"of all but what is read late: {note}" for note in backbone.notes]
    if here:
        size, tier = human(sum(problem.sizes[t] for t in here), "B"), problem.tiers[problem.compute_tier]
        notes.append(f"{size} of what is read late stays in {tier}")
    return partial(_make, ops, replace(backbone, notes=tuple(notes)), cache_bytes, options)


def _check_apart(ops: LateOps) -> None:
    """Refuse what is read late by one op and for certain by another: backbone and cache would both move it."""
    graph = ops.problem.graph
    for op in graph.certain.ops:
        both = next((t for t in op.reads if t in ops.candidates), None)
        if both is not None:
            must, found = (
                "what is read late is read by no op for certain",
                f"{graph.tensors[both].name!r} by {op.name!r}",
            )
            raise ScopeError("policy 'hybrid'", must, found, "use reactive with late: on_demand")


def backbone_of(problem: Problem, cache_bytes: int | float) -> Problem:
    """The problem of the backbone: without what is read late, in the budget less the room of the cache.

    Parameters
    ----------
    problem, cache_bytes
        The whole, in which no candidate has a free home; the room of the cache [B].

    Raises
    ------
    ScopeError
        If the graph cannot be had without late reads.
    """
    if problem.backbone is None:
        must, do = "late reads can be left out of the graph", "use reactive"
        raise ScopeError("policy 'hybrid'", must, "no such graph", do)
    return replace(problem.backbone(problem.budget_bytes - cache_bytes), homes=problem.homes)


def _cache_bytes(ops: LateOps, asked: int | None) -> int:
    """The room of the cache [B]: as asked, or what the backbone leaves, and never less than one op may choose."""
    problem, least = ops.problem, max(ops.awaited_bytes)
    if asked is not None and asked < least:
        at = f"op {problem.graph.ops[ops.awaited_bytes.index(least)].name!r}, for what may be chosen"
        larger = (f"give the cache at least {human(least, 'B')} ({least:,} B)",)
        tier = f"the cache in {problem.tiers[problem.compute_tier]}"
        raise CapacityError(Shortfall(tier, least, asked, at, levers=larger))
    return max(least, _left_bytes(ops)) if asked is None else asked


def _left_bytes(ops: LateOps) -> int:
    """What is left for the cache if nothing of the backbone moves [B]; below 0 if that does not fit."""
    problem, certain = ops.problem, ops.problem.graph.certain
    live = live_bytes(certain, lifetimes(certain))
    away = sum(problem.sizes[t] for t in ops.candidates)
    return int(min(problem.budget_bytes - (int(live.max()) - away), away))


def _beside(ops: LateOps, asked: int | None, error: CapacityError) -> CapacityError:
    """Why the backbone does not fit; beside a cache that is too large, with how large it may be."""
    most = 0 if asked is None else _most_beside(ops, asked, error.report)
    if most < max(ops.awaited_bytes):
        return error
    smaller = (f"give the cache at most {human(most, 'B')} ({most:,} B)",)
    tier = f"{ops.problem.tiers[ops.problem.compute_tier]} beside the cache"
    return CapacityError(replace(error.report, tier=tier, levers=smaller, rooms=()))


def _most_beside(ops: LateOps, asked: int, short: Shortfall) -> int:
    """The largest cache [B] beside which the backbone has a plan: smaller by what it lacks, as often as it does.

    If that takes too long, or another tier is too small, one beside which nothing of it moves.
    """
    problem, left, room = ops.problem, _left_bytes(ops), asked
    for _ in range(_TRIES):
        room -= short.gap_bytes
        if room <= left or short.tier != problem.tiers[problem.compute_tier]:
            break
        try:
            static.plan(backbone_of(problem, room), static.Options())
        except CapacityError as error:
            short = error.report
        else:
            return room
    return left


def _make(ops: LateOps, backbone: Plan, cache_bytes: int, options: Options, order: str) -> Plan:
    problem = ops.problem
    moved = {a for kind, a, _, _ in _steps(backbone).codes() if kind != COMPUTE}
    exists = {t for t, home in enumerate(backbone.home) if home == problem.compute_tier}
    guess = f" with accuracy {options.accuracy:g}" if options.prefetch == "speculative" else ""
    note = f"a cache of {human(cache_bytes, 'B')}, evicts {order}, fetches {options.prefetch}{guess} ahead"
    parts, ends = _parts(ops, _steps(backbone))
    start = partial(_run, ops, (backbone.home, ends), cache_bytes, options, order)
    return Plan(
        "hybrid",
        problem.tiers,
        backbone.home,
        start,
        problem.graph.steps,
        notes=(*backbone.notes, note),
        looks=False,
        untouched=frozenset(exists - moved - set(ops.signal.values())),
        backbone=parts,
    )


def _run(
    ops: LateOps,
    backbone: tuple[tuple[int, ...], Sequence[int]],
    cache_bytes: int,
    options: Options,
    order: str,
    view: View,
) -> Iterator[Code]:
    """Issue a part, and behind the op that ends it, as it reveals or reads what is late, what is decided there."""
    home, ends = backbone
    cache = Cache(ops, home, cache_bytes, leaving(order, ops, cache_bytes - _in_passing(ops, options)))
    ahead = Ahead(ops, options, view)
    for _ in range(view.steps):
        for part, op in enumerate(ends):
            yield PART, part, 0, 0
            cache.read(op)
            for late in ops.revealed.get(op, ()):
                yield from cache.bring(late, view.chosen(late))
            if op in ops.revealed:
                yield from cache.fetch(ahead.of(op))
    yield from cache.clear()


def _parts(ops: LateOps, steps: Steps) -> tuple[tuple[Steps, ...], list[int]]:
    """The steps of the backbone, cut behind each op that reveals or reads what is late; and that op of each, or -1.

    What is revealed is synced.
    """
    parts, ends = [Steps()], list[int]()
    for code in steps.codes():
        parts[-1].append(*code)
        if code[0] == COMPUTE and (code[1] in ops.late or code[1] in ops.revealed):
            if code[1] in ops.revealed:
                parts[-1].sync(ops.signal[code[1]])
            parts.append(Steps())
            ends.append(code[1])
    return tuple(parts), [*ends, -1]


def _in_passing(ops: LateOps, options: Options) -> int:
    """What comes and goes beside what stays in the cache [B]: what is awaited, and what is fetched ahead."""
    awaited = max(ops.awaited_bytes)
    if options.prefetch == "next_layer_all":
        every = ({t for op in together for t in ops.late[op].candidates} for together in ops.revealed.values())
        return awaited + max(sum(ops.problem.sizes[t] for t in candidates) for candidates in every)
    return awaited * 2 if options.prefetch == "speculative" else awaited


def _steps(backbone: Plan) -> Steps:
    """The steps of a plan of `static`, which is fixed."""
    if backbone.fixed is None:
        raise InvariantError("hybrid", "the backbone has a fixed plan", "a reactive one", "report this")
    return backbone.fixed


class Ahead:
    """What is fetched for the ops whose late reads are revealed next."""

    def __init__(self, ops: LateOps, options: Options, view: View) -> None:
        self._ops, self._options, self._view = ops, options, view
        order = sorted(ops.revealed)
        self._next = dict(zip(order, (*order[1:], order[0]), strict=True))
        self._steps_left = view.steps

    def of(self, op: int) -> list[int]:
        """What to fetch after an op that has just revealed late reads."""
        coming, prefetch = self._next[op], self._options.prefetch
        if coming <= op:
            self._steps_left -= 1
        if prefetch == "none" or not self._steps_left:
            return []
        # What the first op of a step reveals may be read behind the last one that reveals: then in the step at hand.
        readers = [late for late in self._ops.revealed[coming] if coming > op or late < op]
        fences = self._ops.problem.fences
        return [tensor for late in readers if fences[late] <= op + 1 for tensor in self._wanted(late)]

    def _wanted(self, late: int) -> tuple[int, ...]:
        if self._options.prefetch == "next_layer_all":
            return self._ops.late[late].candidates
        return self._view.predicted(late, self._options.accuracy)
