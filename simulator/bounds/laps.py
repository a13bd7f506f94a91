"""What a plan that repeats takes for a lap at least on average, whatever late reads choose.

At time 0 a tensor whose home is not the compute tier is nowhere else. A plan that is fixed before the run, and right
whatever is chosen, issues a copy in of each candidate of a late read in its first lap; so in every lap, as all laps
have the same steps. It does the same with all that is read before it is written, and copies home what was written. A
run has ended when all its copies have. So the links that lead from there to the compute tier carry in ``n`` laps ``n``
times what they must carry in one, and the makespan is at least ``n`` times as long as that takes.

A single step may take less, because an op with late reads waits only for what is chosen: the rest may come behind it,
in the next step.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from simulator.bounds.before import Before
from simulator.bounds.forced import forced
from simulator.bounds.idle import Idle
from simulator.bounds.order import Order
from simulator.bounds.step_time import Bound, copy_terms
from simulator.graph import Graph
from simulator.hardware import Hardware


def of_laps(graph: Graph, hardware: Hardware, homes: Sequence[int]) -> Bound:
    """Bound the mean lap of a plan that has a lap for each step.

    Parameters
    ----------
    graph, hardware, homes
        As for `bound`; all candidates of late reads are among what ops read.

    Returns
    -------
    Bound
        Of one lap: the time that each link, queue and bus needs for what must pass it.
    """
    lap = replace(graph, steps=1)
    order = Order.alone(Before.of(lap), [0] * len(lap.ops))
    found = forced(order, hardware, homes, Idle(lap, hardware, homes, before=order.before), math.inf)
    terms = copy_terms(found, hardware, {})
    kind = max(terms, key=lambda term: terms[term])
    return Bound(terms[kind], kind, terms)
