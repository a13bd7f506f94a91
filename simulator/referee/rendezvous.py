"""Checks before a run that ranks come to their collectives in an order in which they meet.

Only collectives are walked, stream by stream: one is over once it is the next on some stream of every member. What is
stuck then never moves, whatever computes and copies do. The converse does not hold: what a collective reads, or the
room that it takes, can still keep a member from coming, and shows as a run that is ``blocked``.
"""

from __future__ import annotations

from collections.abc import Sequence

from simulator.errors import PlanError
from simulator.graph import Call, Job, Members, Roles
from simulator.plan import COMPUTE, Plan

_Place = tuple[int, int]
"""A rank, and one of its streams."""
_Line = list[tuple[int, Call]]
"""The collectives of a stream in the order of a plan: op and call."""


def check_order(job: Job, plans: Sequence[Plan]) -> None:
    """Check that no circle of ranks waits for one another.

    Parameters
    ----------
    job
        What all ranks run; `check_job` has found that members agree.
    plans
        What was decided, for each rank. Reactive plans are not looked at.

    Raises
    ------
    PlanError
        With who waits for whom.
    """
    roles = {id(graph): Roles(graph) for graph in job.graphs}
    if not any(found.ops for found in roles.values()) or any(plan.fixed is None for plan in plans):
        return
    messages = any(call.role for found in roles.values() for call in found.ops)
    if messages or len({id(plan) for plan in plans}) > 1:
        _Walk(job, plans, roles).run()


class _Walk:
    """One walk over one repeat of all plans.

    Parameters
    ----------
    job, plans
        What ranks run, in which order.
    roles
        By id of a graph, who meets there.
    """

    def __init__(self, job: Job, plans: Sequence[Plan], roles: dict[int, Roles]) -> None:
        self._job, self._plans = job, plans
        self._roles = [roles[id(job.graph(rank))] for rank in range(job.ranks)]
        lines: dict[tuple[int, int], dict[int, _Line]] = {}
        self._lines: dict[_Place, _Line] = {}
        for rank, plan in enumerate(plans):
            key = (id(plan), job.graph_of[rank])
            if key not in lines:
                lines[key] = _lines(self._roles[rank], plan)
            self._lines |= {(rank, stream): line for stream, line in lines[key].items()}
        self._at = dict.fromkeys(self._lines, 0)
        self._there: dict[tuple[str, Members], list[_Place]] = {}

    def run(self) -> None:
        """Let all meet whom they can; if some are left, say who waits for whom."""
        moved = list(self._lines)
        while moved:
            place = moved.pop()
            if self._at[place] == len(self._lines[place]):
                continue
            call = self._next(place)[1]
            members = self._roles[place[0]].members[call][place[0]]
            there = self._there.setdefault((call.group, members), [])
            there.append(place)
            if len(there) == len(members):
                moved += there
                for met in there:
                    self._at[met] += 1
                del self._there[call.group, members]
        stuck = {place[0]: place for place in sorted(self._at) if self._at[place] < len(self._lines[place])}
        if stuck:
            raise self._circle(stuck)

    def _next(self, place: _Place) -> tuple[int, Call]:
        return self._lines[place][self._at[place]]

    def _circle(self, stuck: dict[int, _Place]) -> PlanError:
        """Follow the waits of the lowest rank until they come back."""
        seen: dict[int, str] = {}
        rank = next(iter(stuck))
        while rank not in seen:
            op, call = self._next(stuck[rank])
            members = self._roles[rank].members[call][rank]
            there = {place[0] for place in self._there.get((call.group, members), [])}
            other = min((one for one in members if one not in there), default=rank)
            name = self._job.graph(rank).ops[op].name
            seen[rank] = f"rank {rank} at op {name!r} (group {call.group!r}) for rank {other}"
            rank = other if other in stuck else rank
        return PlanError(
            f"plan {self._plans[rank].name!r}, collectives of job {self._job.name!r}",
            "ranks come to their collectives in an order in which they meet",
            f"that they wait for one another: {', '.join(seen.values())}",
            "run them in the same order on all ranks, or on streams of their own",
        )


def _lines(roles: Roles, plan: Plan) -> dict[int, _Line]:
    """By stream, the collectives of one repeat of a fixed plan."""
    found: dict[int, _Line] = {}
    for kind, op, stream, _ in plan.fixed.codes() if plan.fixed is not None else ():
        if kind == COMPUTE and op in roles.calls:
            found.setdefault(stream, []).append((op, roles.calls[op]))
    return found
