"""Checks that ranks meet: before anything is decided whom they name and what they do, and before a run in which order.

`check_job` refuses what no plan could mend: whoever comes to a collective is met there, by members who do the same.
`check_order` lets each collective follow those before it on a stream of some member: ranks meet unless these form a
circle, which never moves, whatever computes and copies do. The converse does not hold: what a collective reads, or the
room that it takes, can still keep a member from coming, and shows as a run that is ``blocked``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise, zip_longest

from simulator.errors import ConfigError, PlanError, insist
from simulator.graph import Call, Group, Job, Members, Roles
from simulator.hardware import Hardware
from simulator.plan import COMPUTE, Plan
from simulator.units import counted

_Meeting = tuple[str, Members, int]
"""A group, who meets there, and how often they did before."""


def check_job(job: Job, hardware: Hardware) -> None:
    """Check what all ranks run, before it is planned.

    Parameters
    ----------
    job
        What all ranks run.
    hardware
        Where.

    Raises
    ------
    ConfigError
        If there are more ranks than devices; the members of a group cannot meet; a rank comes to a collective of which
        it is no member; or members disagree on the kind, the size, the algorithm or the number of their collectives.
    """
    devices = hardware.topology.devices
    must, found = "each rank has a device of its own", f"{counted(job.ranks, 'rank')} for {devices:,}"
    do = "raise topology.nodes or topology.devices_per_node, or run fewer ranks"
    insist(job.ranks <= devices, f"hardware {hardware.name!r}, topology", must, found, do)
    roles = [Roles(graph) for graph in job.graphs]
    for about in roles:
        for group in about.graph.groups:
            _check_group(job, group, {call.role for call in about.ops if call.group == group.name})
    alike = set[tuple[int, Call, int]]()
    for rank, number in enumerate(job.graph_of):
        mine = roles[number]
        for call, ops in mine.ops.items():
            if rank not in mine.members[call]:
                found = f"{_op(rank, mine, ops[0])}, which is in none of its members"
                must, do = "a rank that comes to a group is a member", "add the rank to the group, or remove the op"
                raise ConfigError(_where(job, call.group), must, found, do)
            for other in mine.others(call, rank):
                theirs, pair = roles[job.graph_of[other]], (number, call, job.graph_of[other])
                _check_members(job, call, (rank, mine), (other, theirs))
                if pair not in alike and (mine is not theirs or call.role):
                    _check_alike(job, call, (rank, mine), (other, theirs))
                alike.add(pair)


def _where(job: Job, group: str) -> str:
    return f"job {job.name!r}, group {group!r}"


def _check_group(job: Job, group: Group, roles: set[str]) -> None:
    where, ranks = _where(job, group.name), range(job.ranks)
    for members in group.members:
        are_ranks, shown = len({*members}.intersection(ranks)) == len(members), str(list(members))
        must = f"members are different ranks of the job (0 to {job.ranks - 1:,})"
        insist(are_ranks, where, must, shown, "correct its members")
        must = "a group is for collectives of all its members, or for messages (send, recv) of pairs (from, to)"
        is_of_one_kind = not roles - {""} or ("" not in roles and len(members) == 2)
        insist(is_of_one_kind, where, must, f"{shown} for {_listed(roles)}", "give messages a group of pairs")
    for role in sorted(roles):
        ends = {"send": slice(0, 1), "recv": slice(1, 2), "": slice(None)}[role]
        often = Counter(rank for members in group.members for rank in members[ends])
        rank, times = max(often.items(), key=lambda item: item[1], default=(0, 0))
        must, found = f"a rank is there once for {role or 'a collective'}", f"rank {rank} {times} times"
        insist(times <= 1, where, must, found, "correct its members")


def _listed(roles: set[str]) -> str:
    return ", ".join(role or "a collective" for role in sorted(roles))


def _check_members(job: Job, call: Call, mine: tuple[int, Roles], other: tuple[int, Roles]) -> None:
    """Check that two ranks that meet name the same ones."""
    named = mine[1].members[call][mine[0]]
    theirs = other[1].members.get(call.answer, {}).get(other[0], named)
    if named != theirs:
        found = f"{list(named)} in the graph of rank {mine[0]}, {list(theirs)} in that of rank {other[0]}"
        must, do = "members name the same ranks, in the same order", "correct the members of one"
        raise ConfigError(_where(job, call.group), must, found, do)


def _check_alike(job: Job, call: Call, mine: tuple[int, Roles], other: tuple[int, Roles]) -> None:
    """Compare the collectives of two ranks that meet there, one after another."""
    (rank, one), (peer, two) = mine, other
    pairs = zip_longest(one.ops[call], two.ops.get(call.answer, []))
    for number, (a, b) in enumerate(pairs, 1):
        sides = [None if op is None else roles.graph.ops[op].collective for op, roles in ((a, one), (b, two))]
        first, second = (
            (about.size_bytes, about.algorithm, call.role or about.kind) if about else None for about in sides
        )
        if first != second:
            found = f"{_op(rank, one, a)} and {_op(peer, two, b)} as number {number} there"
            must = "members meet as often as one another, and agree on kind, size and algorithm"
            do = "make them agree, or give one another group"
            raise ConfigError(_where(job, call.group), must, found, do)
    steps = (f"{counted(about.graph.steps, 'step')} of rank {at}" for at, about in (mine, other))
    found, do = " and ".join(steps), "give all graphs the same steps"
    insist(one.graph.steps == two.graph.steps, _where(job, call.group), "members run as many steps", found, do)


def _op(rank: int, roles: Roles, op: int | None) -> str:
    """Name an op with its rank and what it is: ``op 'sum' of rank 0 (all_reduce of 40 B, auto)``."""
    if op is None:
        return f"nothing of rank {rank}"
    what = roles.graph.ops[op]
    about = what.collective
    said = f" ({about.kind} of {about.size_bytes:,} B, {about.algorithm})" if about is not None else ""
    return f"op {what.name!r} of rank {rank}{said}"


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
    known = [Roles(graph) for graph in job.graphs]
    if not any(roles.ops for roles in known) or any(plan.fixed is None for plan in plans):
        return
    if all(not call.role for roles in known for call in roles.ops) and len({id(plan) for plan in plans}) == 1:
        return
    order, steps = TopologicalSorter[_Meeting](), dict[tuple[_Meeting, _Meeting], tuple[int, str]]()
    lines: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for rank, plan in enumerate(plans):
        key = id(plan), job.graph_of[rank]
        if key not in lines:
            lines[key] = _line(known[key[1]], plan)
        roles, met, before = known[key[1]], Counter[Call](), dict[int, tuple[_Meeting, str]]()
        for op, stream in lines[key]:
            call = roles.calls[op]
            meeting = call.group, roles.members[call][rank], met[call]
            met[call] += 1
            if stream in before:
                order.add(meeting, before[stream][0])
                steps[before[stream][0], meeting] = rank, before[stream][1]
            before[stream] = meeting, f"op {roles.graph.ops[op].name!r} (group {call.group!r})"
    try:
        order.prepare()
    except CycleError as error:
        raise _circle(job, plans, [steps[pair] for pair in pairwise(error.args[1])]) from None


def _line(roles: Roles, plan: Plan) -> list[tuple[int, int]]:
    """The collectives of one repeat of a fixed plan, each with its stream."""
    codes = plan.fixed.codes() if plan.fixed is not None else ()
    return [(op, stream) for kind, op, stream, _ in codes if kind == COMPUTE and op in roles.calls]


def _circle(job: Job, plans: Sequence[Plan], steps: Sequence[tuple[int, str]]) -> PlanError:
    """Say who waits for whom, from the lowest rank on: at each meeting for the rank that meets somewhere else before.

    Parameters
    ----------
    steps
        From each meeting of the circle to the next: the rank that comes to them in this order, and its op at the first.
    """
    waits = [(rank, op, steps[i - 1][0]) for i, (rank, op) in enumerate(steps) if steps[i - 1][0] != rank]
    first = waits.index(min(waits))
    said = [f"rank {rank} at {op} for rank {other}" for rank, op, other in waits[first:] + waits[:first]]
    return PlanError(
        f"plan {plans[min(waits)[0]].name!r}, collectives of job {job.name!r}",
        "ranks come to their collectives in an order in which they meet",
        f"that they wait for one another: {', '.join(said)}",
        "run them in the same order on all ranks, or on streams of their own",
    )
