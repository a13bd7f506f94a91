"""`reactive`: the runtime baseline, which decides while it runs.

Before each op the runtime looks at what is there, fetches what the op lacks, evicts under pressure and frees what
is dead (it counts references). It knows the op at hand and, with `look_ahead`, a few more. It counts room in issue
order, so whatever it issues can run: it never blocks itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Annotated, Literal

from pydantic import Field

from simulator.document import Part
from simulator.plan import Code, Plan, View
from simulator.policies.problem import Problem
from simulator.policies.reactive.runtime import Runtime
from simulator.policies.reactive.tables import Tables
from simulator.policies.reactive.victims import Furthest, LeastRecent, Oldest, Victims
from simulator.policies.search import tune

EVICT: dict[str, Callable[[Problem], Victims]] = {"lru": LeastRecent, "fifo": Oldest, "furthest": Furthest}
LOOK_AHEAD = (32, 0, 64)
"""What ``best`` tries."""


class Options(Part):
    """How the runtime behaves; ``best`` tries the values by replay, option by option, and takes the fastest.

    Attributes
    ----------
    evict
        ``lru``: least recent use first. ``fifo``: oldest producer first, then the larger. ``furthest``: furthest next
        use first, which needs to know the order of all ops.
    look_ahead
        How many ops ahead it fetches, without evicting what these ops need (``best``: 0, 32, 64).
    synchronous
        The host waits for each copy as it is issued.
    """

    evict: Literal["best", "lru", "fifo", "furthest"] = Field("best", description="who leaves first")
    look_ahead: Annotated[int, Field(ge=0)] | Literal["best"] = Field("best", description="ops fetched ahead")
    synchronous: bool = Field(False, description="the host waits for each copy")


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
    tables = Tables(problem)
    evict = tuple(EVICT) if options.evict == "best" else (options.evict,)
    look_ahead = LOOK_AHEAD if options.look_ahead == "best" else (options.look_ahead,)
    if tables.nothing_moves:
        evict, look_ahead = evict[:1], look_ahead[:1]
    return tune(problem, (evict, look_ahead), partial(_make, tables, options.synchronous))


def _make(tables: Tables, synchronous: bool, evict: str, look_ahead: int) -> Plan:
    problem = tables.problem
    runtime = partial(_start, tables, EVICT[evict], look_ahead, synchronous)
    note = f"evicts {evict}, looks {look_ahead} ops ahead"
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


def _start(
    tables: Tables, order: Callable[[Problem], Victims], ahead: int, synchronous: bool, view: View
) -> Iterator[Code]:
    """Start a fresh runtime; a plan may be run more than once."""
    return Runtime(tables, order(tables.problem), ahead, synchronous=synchronous).run(view)
