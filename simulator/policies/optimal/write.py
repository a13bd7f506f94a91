"""From a solution to a plan: each copy is issued where the solution has it, the copies of a link in its order."""

from __future__ import annotations

from bisect import bisect_right

from simulator.plan import FREE, Plan
from simulator.policies.optimal.program import Solution
from simulator.policies.optimal.space import Space
from simulator.policies.problem import Problem
from simulator.policies.writer import Writer


def write(problem: Problem, space: Space, solution: Solution) -> Plan:
    """Write the plan of one step, which is repeated if there are several.

    At each point, after the op: copies out, then the rooms that are given up, then copies in. What is given up is
    issued no later than it happens, what is taken in the order in which it is, so that the plan fits as issued.
    """
    taken = solution.taken
    chosen = {tensor: problem.away(tensor)[0] for tensor in space.idle_homes}
    chosen |= {t: problem.away(t)[0] for c, t in space.homes.items() if c in taken and problem.homes[t] == FREE}
    writer = Writer(problem, "optimal", chosen)
    ops = range(-1, len(problem.graph.ops))
    out_at: dict[int, int] = {}
    outs: dict[int, list[int]] = {op: [] for op in ops}
    position = -1
    for o in _needed(space, solution):
        out_at[o] = position = max(position, space.outs[o].written - space.lead)
        outs[position].append(space.outs[o].tensor)
    leave: dict[int, list[int]] = {op: [] for op in ops}
    for g, gap in enumerate(space.gaps):
        if (gap.choice is None or gap.choice in taken) and g not in space.leading:
            copied_at = -1 if gap.out is None else out_at.get(gap.out, -1)
            leave[max(gap.after - space.lead, copied_at)].append(gap.tensor)
    ins: dict[int, list[int]] = {op: [] for op in ops}
    for g, start_ns in solution.ins_ns.items():
        last_begun = bisect_right(solution.starts_ns, start_ns, hi=space.gaps[g].before) - 1
        ins[max(last_begun - space.lead, -1)].append(space.gaps[g].tensor)
    for op in ops:
        if op >= 0:
            writer.compute(op)
        for tensor in outs[op]:
            _copy(writer, tensor, out=True)
        for tensor in leave[op]:
            writer.evict(tensor)
        for tensor in space.dead.get(op + space.lead, ()):
            writer.detach(tensor, problem.compute_tier)
        for tensor in ins[op]:
            _copy(writer, tensor, out=False)
    return writer.finish(())


def _needed(space: Space, solution: Solution) -> list[int]:
    """Copies out that the chosen gaps need, in the order of their link."""
    chosen = [gap for gap in space.gaps if gap.choice is None or gap.choice in solution.taken]
    needed = {gap.out for gap in chosen if gap.out is not None}
    return [o for o in solution.outs_ns if o in needed and space.outs[o].needless_if not in solution.taken]


def _copy(writer: Writer, tensor: int, *, out: bool) -> None:
    """Copy out or in over the link between the compute tier and the tier below."""
    ends = writer.problem.compute_tier, writer.problem.away(tensor)[0]
    writer.copy(tensor, *(ends if out else reversed(ends)))
