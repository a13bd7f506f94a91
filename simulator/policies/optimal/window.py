"""One step out of several, as a problem of its own: from the start of the last op of the step before to its end.

In a run of several steps the step time is the distance of the ends of the last op in the last two steps, and so of its
starts. Nothing that a step brings into the compute tier starts before the last op of the step before has (it is issued
after it), and nothing that it writes is copied out before. So a step, seen alone, begins with this op: the *lead*.

While the lead runs, the compute tier holds what the lead uses, and what is at home there. What the lead uses and is at
home elsewhere leaves once it has ended, and comes back for its next use. Copies back home need not end with the step.

What this leaves out is what the step before may still hold or copy when the window opens: outputs that leave late, and
copies out that are under way. Without it a step can only be shorter, so that *every* last step of a run is a solution.
"""

from __future__ import annotations

from dataclasses import replace

from simulator.graph import Op
from simulator.lifetime import lifetimes
from simulator.policies.problem import Problem


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
