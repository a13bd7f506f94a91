"""From decisions to a plan: each copy is issued where the program says, copies of a link in its order."""

from __future__ import annotations

from simulator.plan import FREE, Plan
from simulator.policies.optimal.program import Decisions
from simulator.policies.optimal.space import Space
from simulator.policies.problem import Problem
from simulator.policies.writer import Writer


def write(problem: Problem, space: Space, decisions: Decisions, notes: tuple[str, ...] = ()) -> Plan:
    """Write the plan of one step, which is repeated if there are several.

    At each point, after the op: copies out, then the rooms that are given up, then copies in. What is given up is
    issued no later than it happens, what is taken in the order in which it is, so that the plan fits as issued.
    """
    taken = decisions.taken
    chosen = {tensor: problem.away(tensor)[0] for tensor in space.idle_homes}
    chosen |= {t: problem.away(t)[0] for c, t in space.homes.items() if c in taken and problem.homes[t] == FREE}
    writer = Writer(problem, "optimal", chosen)
    out_at, position = {}, -1
    for o in decisions.outs:
        out_at[o] = position = max(position, space.outs[o].written - space.lead)
    ops = len(problem.graph.ops)
    leave: dict[int, list[int]] = {}
    for g, gap in enumerate(space.gaps):
        is_away = gap.choice is None or gap.choice in taken
        if is_away and g not in space.leading:
            copied_at = -1 if gap.out is None else out_at.get(gap.out, -1)
            leave.setdefault(max(gap.after - space.lead, copied_at), []).append(gap.tensor)
    for op in range(-1, ops):
        if op >= 0:
            writer.compute(op)
        for o, at in out_at.items():
            if at == op:
                _copy(writer, space.outs[o].tensor, out=True)
        for tensor in leave.get(op, ()):
            writer.evict(tensor)
        for tensor in space.dead.get(op + space.lead, ()):
            writer.detach(tensor, problem.compute_tier)
        for g, at in decisions.ins:
            if max(at - space.lead, -1) == op:
                _copy(writer, space.gaps[g].tensor, out=False)
    return writer.finish(notes)


def _copy(writer: Writer, tensor: int, *, out: bool) -> None:
    """Copy out or in over the link between the compute tier and the tier below."""
    ends = writer.problem.compute_tier, writer.problem.away(tensor)[0]
    writer.copy(tensor, *(ends if out else reversed(ends)))
