"""`reactive`: the runtime baseline, which decides while it runs.

Before each op the runtime looks at what is there, fetches what the op lacks, evicts under pressure and frees what
is dead (it counts references). It knows the op at hand and, with `look_ahead`, a few more. It counts room in issue
order, and waits for what it gives up unused, so whatever it issues can run: it never blocks itself where each link has
a queue of its own.
"""

from __future__ import annotations

from functools import partial
from typing import Annotated, Literal

from pydantic import Field

from simulator.document import Part
from simulator.plan import Plan
from simulator.policies.problem import Problem
from simulator.policies.runtime import OpByOp, Runtime
from simulator.policies.runtime.runtime_cache import Setting
from simulator.policies.runtime.working_sets import DynamicReads, WorkingSets
from simulator.policies.search import tune

EVICT = ("lru", "fifo", "furthest")
ON_DEMAND = ("lru", "lfu", "hot")
LOOK_AHEAD = (32, 0, 64)
"""What ``best`` tries; the second where dynamic reads are handled on demand."""


class Options(Part):
    """How the runtime behaves; ``best`` tries the values by replay, option by option, and takes the fastest.

    Attributes
    ----------
    evict
        ``lru``: least recent use first. ``fifo``: oldest producer first, then the larger. ``furthest``: furthest next
        use first, which needs to know the order of all ops. ``lfu``: least often used first. ``hot``: the likeliest
        candidates of late reads stay once they are there, as far as all ops have room beside; else ``lru``. ``best``
        tries the first three, and for late reads on demand lru, lfu and hot.
    look_ahead
        How many ops ahead it fetches, without evicting what these ops need (``best``: 0, 32, 64).
    synchronous
        The host waits for each copy as it is issued.
    late
        What it does about late reads: fetches ``all`` candidates before an op; or syncs what reveals them, and fetches
        what is chosen, ``on_demand``; copies may then stay from step to step.
    """

    evict: Literal["best", "lru", "fifo", "furthest", "lfu", "hot"] = Field("best", description="who leaves first")
    look_ahead: Annotated[int, Field(ge=0)] | Literal["best"] = Field("best", description="ops fetched ahead")
    synchronous: bool = Field(False, description="the host waits for each copy")
    late: Literal["all", "on_demand"] = Field("all", description="what it does about late reads")


def plan(problem: Problem, options: Options) -> Plan:
    """Make a runtime that fetches on demand and evicts under pressure.

    Persistent tensors whose home is free start in the compute tier, in the order of their first use, as far as they
    leave room for the largest working set; the others start away. At the end of a step everything goes home.

    Parameters
    ----------
    problem
        What to run.
    options
        See `Options`.

    Raises
    ------
    CapacityError
        If what is pinned and the working set of some op exceed the budget together.
    """
    dynamic = DynamicReads(problem, on_demand=options.late == "on_demand")
    dynamic.check("reactive")
    sets = WorkingSets(problem, dynamic)
    evict: tuple[str, ...] = (ON_DEMAND if dynamic.readers else EVICT) if options.evict == "best" else (options.evict,)
    look_ahead: tuple[int, ...] = LOOK_AHEAD if options.look_ahead == "best" else (options.look_ahead,)
    if sets.nothing_moves:
        evict = evict[:1]
    if sets.nothing_moves or (options.look_ahead == "best" and sets.only_dynamic_moves):
        look_ahead = (0,)
    return tune(problem, (evict, look_ahead), partial(_make, sets, options.synchronous))


def _make(sets: WorkingSets, synchronous: bool, evict: str, look_ahead: int) -> Plan:
    problem, homes, pinned = sets.problem, sets.homes, sets.pinned
    here = (t for t, home in enumerate(homes) if pinned[t] and home == problem.compute_tier)
    setting = Setting(
        problem,
        {t: home for t, home in enumerate(homes) if not pinned[t]},
        problem.budget_bytes - sum(problem.sizes[t] for t in here),
        evict,
        sets.hottest if evict == "hot" else (),
        synchronous,
    )
    runtime = Runtime(sets.dynamic, setting, partial(OpByOp, sets, look_ahead))
    how = ", fetches late reads on demand" if sets.dynamic.readers else ""
    note = f"evicts {evict}, looks {look_ahead} ops ahead{how}"
    untouched = frozenset(t for t, about in enumerate(problem.graph.tensors) if pinned[t] and about.persistent)
    steps = problem.graph.steps
    return Plan("reactive", problem.tiers, homes, runtime, steps, (note,), looks=False, untouched=untouched)
