"""`reactive`: the runtime baseline, which decides while it runs.

Before each op the runtime looks at what is there, fetches what the op lacks, evicts under pressure and frees what
is dead (it counts references). It knows the op at hand and, with `look_ahead`, a few more. It counts room in issue
order, and waits for what it gives up unused, so whatever it issues can run: it never blocks itself where each link has
a queue of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Annotated, Literal

from pydantic import Field

from simulator.document import Part
from simulator.plan import Code, Plan, View
from simulator.policies.late import LateOps
from simulator.policies.problem import Problem
from simulator.policies.reactive.on_demand import OnDemand
from simulator.policies.reactive.runtime import Runtime
from simulator.policies.reactive.tables import Tables
from simulator.policies.reactive.victims import Furthest, LeastRecent, LeastUsed, Oldest, Staying, Victims
from simulator.policies.search import tune

EVICT: dict[str, Callable[[Problem], Victims]] = {"lru": LeastRecent, "fifo": Oldest, "furthest": Furthest}
CACHES: dict[str, Callable[[Problem], Victims]] = {**EVICT, "lfu": LeastUsed, "hot": LeastRecent}
"""Orders of eviction where late reads are handled on demand; ``hot`` keeps the likeliest candidates beside."""
ORDERS = ("lru", "lfu", "hot")
"""What ``best`` tries of them."""
LOOK_AHEAD = (32, 0, 64)
"""What ``best`` tries."""


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
    late = LateOps(problem) if options.late == "on_demand" and problem.graph.has_late else None
    if late is not None:
        late.check("reactive")
    tables = Tables(problem, late)
    evict = (tuple(EVICT) if late is None else ORDERS) if options.evict == "best" else (options.evict,)
    look_ahead = LOOK_AHEAD if options.look_ahead == "best" else (options.look_ahead,)
    if tables.nothing_moves:
        evict = evict[:1]
    if tables.nothing_moves or (options.look_ahead == "best" and tables.only_late_moves):
        look_ahead = (0,)
    return tune(problem, (evict, look_ahead), partial(_make, tables, options.synchronous))


def _make(tables: Tables, synchronous: bool, evict: str, look_ahead: int) -> Plan:
    problem = tables.problem
    runtime = partial(_start, tables, evict, look_ahead, synchronous)
    how = "" if tables.late is None else ", fetches late reads on demand"
    note = f"evicts {evict}, looks {look_ahead} ops ahead{how}"
    return Plan(
        "reactive",
        problem.tiers,
        tables.homes,
        runtime,
        problem.graph.steps,
        notes=(note,),
        looks=False,
        untouched=tables.untouched,
    )


def _start(tables: Tables, evict: str, ahead: int, synchronous: bool, view: View) -> Iterator[Code]:
    """Start a fresh runtime; a plan may be run more than once."""
    victims = CACHES[evict](tables.problem)
    if tables.late is None:
        return Runtime(tables, victims, ahead, synchronous=synchronous).run(view)
    if evict == "hot":
        victims = Staying(victims, tables.hottest)
    return OnDemand(tables, victims, ahead, synchronous=synchronous).run(view)
