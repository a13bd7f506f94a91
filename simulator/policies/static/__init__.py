"""`static`: a compiler that places every copy before the run, by time, bandwidth and room.

Passes, each a pure function with a typed hand-over::

    analyse   lifetimes in time         -> Analysis    idle gaps that a tensor could spend away
    select    what leaves               -> Selection    gaps, so that live bytes fit a limit
    insert    cache operators           -> Augmented    the graph with a Store, Detach and Prefetch for each gap
    refine    placement                 -> Augmented    each cache operator just in time, or early
    validate  replay                    -> Candidate    the fastest of a few that really fit

If ops may run again, `mix` rewrites the graph first, and the same passes compile it.

All are near-linear in ops and gaps: ranges of live bytes change in `profile`, and compute time is a prefix sum.
"""

from __future__ import annotations

from simulator.policies.static.compiler import Compiled, Options, compiled, plan, witness
from simulator.policies.static.explanation import Explanation, explained

__all__ = ["Compiled", "Explanation", "Options", "compiled", "explained", "plan", "witness"]
