"""Checks that ranks can meet: their members and collectives before anything is decided, their order before a run.

`check_job` refuses what no plan could mend: all members of a collective must come to it, and agree on it. `check_order`
makes each collective follow those before it on a stream of some member: if these dependencies form a circle, the ranks
wait forever, whatever computes and copies do. Without a circle they may still not meet: a tensor that a collective
reads, or the room that it takes, can keep a member from arriving; the run is then ``blocked``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from graphlib import CycleError, TopologicalSorter
from itertools import accumulate, pairwise, product, zip_longest
from typing import Any, NamedTuple

import numpy as np

from simulator.errors import ConfigError, PlanError, insist
from simulator.graph import Call, Group, Job, Members, Roles
from simulator.hardware import Hardware
from simulator.plan import COMPUTE, Plan
from simulator.units import counted

_Meeting = tuple[str, Members, int]
"""A group, its members, and how many times they met before."""


def check_job(job: Job, hardware: Hardware) -> None:
    """Check what all ranks run, before it is planned.

    Parameters
    ----------
    job, hardware
        The graphs of all ranks, and the machine.

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
    for of_graph in roles:
        for group in of_graph.graph.groups:
            _check_group(job, group, {call.role for call in of_graph.ops if call.group == group.name})
    alike = set[tuple[int, Call, int]]()
    for rank, graph_id in enumerate(job.graph_of):
        rank_roles = roles[graph_id]
        for call, ops in rank_roles.ops.items():
            if rank not in rank_roles.members[call]:
                found = f"{_op_text(rank, rank_roles, ops[0])}, which is in none of its members"
                must, do = "a rank that comes to a group is a member", "add the rank to the group, or remove the op"
                raise ConfigError(_where(job, call.group), must, found, do)
            for peer in rank_roles.others(call, rank):
                peer_roles, pair = roles[job.graph_of[peer]], (graph_id, call, job.graph_of[peer])
                _check_members(job, call, (rank, rank_roles), (peer, peer_roles))
                if pair not in alike and (rank_roles is not peer_roles or call.role):
                    _check_alike(job, call, (rank, rank_roles), (peer, peer_roles))
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
        kinds = ", ".join(role or "a collective" for role in sorted(roles))
        insist(is_of_one_kind, where, must, f"{shown} for {kinds}", "give messages a group of pairs")
    for role in sorted(roles):
        ends = {"send": slice(0, 1), "recv": slice(1, 2), "": slice(None)}[role]
        counts = Counter(rank for members in group.members for rank in members[ends])
        rank, times = max(counts.items(), key=lambda item: item[1], default=(0, 0))
        must, found = f"a rank is there once for {role or 'a collective'}", f"rank {rank} {times} times"
        insist(times <= 1, where, must, found, "correct its members")


def _check_members(job: Job, call: Call, first: tuple[int, Roles], second: tuple[int, Roles]) -> None:
    """Check that two ranks that meet name the same members."""
    named = first[1].members[call][first[0]]
    theirs = second[1].members.get(call.answer, {}).get(second[0], named)
    if named != theirs:
        found = f"{list(named)} in the graph of rank {first[0]}, {list(theirs)} in that of rank {second[0]}"
        must, do = "members name the same ranks, in the same order", "correct the members of one"
        raise ConfigError(_where(job, call.group), must, found, do)


def _check_alike(job: Job, call: Call, first: tuple[int, Roles], second: tuple[int, Roles]) -> None:
    """Compare the collectives at which two ranks meet, one after another."""
    (rank, roles), (peer, peer_roles), where = first, second, _where(job, call.group)
    pairs = zip_longest(roles.ops[call], peer_roles.ops.get(call.answer, []))
    for turn, (op, peer_op) in enumerate(pairs, 1):
        if _asked(roles, op, call) != _asked(peer_roles, peer_op, call):
            found = f"{_op_text(rank, roles, op)} and {_op_text(peer, peer_roles, peer_op)} as number {turn} there"
            must = "members meet as often as one another, and agree on kind, size and algorithm"
            raise ConfigError(where, must, found, "make them agree, or give one another group")
    steps, peer_steps = roles.graph.steps, peer_roles.graph.steps
    found = f"{counted(steps, 'step')} of rank {rank} and {counted(peer_steps, 'step')} of rank {peer}"
    insist(steps == peer_steps, where, "members run as many steps", found, "give all graphs the same steps")


def _asked(roles: Roles, op: int | None, call: Call) -> object:
    """Return what members of a collective must agree on: size, algorithm and kind; None if there is none."""
    collective = None if op is None else roles.graph.ops[op].collective
    return collective and (collective.size_bytes, collective.algorithm, call.role or collective.kind)


def _op_text(rank: int, roles: Roles, op_id: int | None) -> str:
    """Name an op with its rank and its collective: ``op 'sum' of rank 0 (all_reduce of 40 B, auto)``."""
    if op_id is None:
        return f"nothing of rank {rank}"
    op = roles.graph.ops[op_id]
    call = op.collective
    about = f" ({call.kind} of {call.size_bytes:,} B, {call.algorithm})" if call is not None else ""
    return f"op {op.name!r} of rank {rank}{about}"


def check_order(job: Job, plans: Sequence[Plan]) -> None:
    """Check that no circle of ranks waits for one another.

    Parameters
    ----------
    job
        The graphs of all ranks, which `check_job` has passed.
    plans
        The plan of each rank. If one is reactive, nothing is checked.

    Raises
    ------
    PlanError
        If there is one: it names who waits for whom.
    """
    by_graph = [Roles(graph) for graph in job.graphs]
    if not any(roles.ops for roles in by_graph) or any(plan.fixed is None for plan in plans):
        return
    if all(not call.role for roles in by_graph for call in roles.ops) and len({id(plan) for plan in plans}) == 1:
        return
    lines: dict[tuple[int, int], _Line] = {}
    for rank, plan in enumerate(plans):
        key = id(plan), job.graph_of[rank]
        if key not in lines:
            calls, codes = by_graph[key[1]].calls, plan.fixed.codes() if plan.fixed is not None else ()
            ops = [(op, stream) for kind, op, stream, _ in codes if kind == COMPUTE and op in calls]
            lines[key] = _Line(by_graph[key[1]], ops, [])
        lines[key].ranks.append(rank)
    if not _wait_in_a_circle([*lines.values()]):
        return
    order, steps = TopologicalSorter[_Meeting](), dict[tuple[_Meeting, _Meeting], tuple[int, str]]()
    for rank, plan in enumerate(plans):
        roles, ops, _ = lines[id(plan), job.graph_of[rank]]
        met, before = Counter[Call](), dict[int, tuple[_Meeting, str]]()
        for op, stream in ops:
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


class _Line(NamedTuple):
    """The collectives of ranks that run the same, each with its stream."""

    roles: Roles
    ops: list[tuple[int, int]]
    ranks: list[int]


def _wait_in_a_circle(lines: Sequence[_Line]) -> bool:
    """Return whether some meeting waits for itself.

    Meetings are numbers here, so that those of many ranks are told apart at once; which they are is asked of few jobs.
    """
    times, pairs = dict[tuple[str, Members], int](), list[np.ndarray[Any, np.dtype[np.int64]]]()
    counts = [Counter(line.roles.calls[op] for op, _ in line.ops) for line in lines]
    for (roles, _, ranks), met in zip(lines, counts, strict=True):
        for rank, (call, count) in product(ranks, met.items()):
            team = call.group, roles.members[call][rank]
            times[team] = max(count, times.get(team, 0))
    begins, total = dict(zip(times, accumulate(times.values(), initial=0), strict=False)), sum(times.values())
    for (roles, ops, ranks), met in zip(lines, counts, strict=True):
        places, before, turns = {call: i for i, call in enumerate(met)}, Counter[Call](), list[int]()
        for op, _ in ops:
            turns.append(before[roles.calls[op]])
            before[roles.calls[op]] += 1
        calls = np.array([places[roles.calls[op]] for op, _ in ops], np.int64)
        in_turn = sorted(range(len(ops)), key=lambda i: ops[i][1])
        follows = [pair for pair in pairwise(in_turn) if ops[pair[0]][1] == ops[pair[1]][1]]
        neighbours, counted_turns = np.array(follows, np.int64).reshape(-1, 2), np.array(turns, np.int64)
        for rank in ranks:
            of_rank = np.array([begins[call.group, roles.members[call][rank]] for call in met], np.int64)
            pairs.append((of_rank[calls] + counted_turns)[neighbours] @ np.array([total, 1]))
    steps = np.sort(np.concatenate(pairs))  # each is of all that meet there
    befores, afters = np.divmod(steps[np.diff(steps, prepend=-1) > 0], max(1, total))
    waits, behind = np.bincount(afters, minlength=total).tolist(), afters.tolist()
    first = np.searchsorted(befores, np.arange(total + 1)).tolist()
    ready = [meeting for meeting, count in enumerate(waits) if not count]
    for meeting in ready:  # it grows meanwhile
        for other in behind[first[meeting] : first[meeting + 1]]:
            waits[other] -= 1
            ready += [] if waits[other] else [other]
    return len(ready) < total


def _circle(job: Job, plans: Sequence[Plan], steps: Sequence[tuple[int, str]]) -> PlanError:
    """Make the error of a circle: from the lowest rank on, who waits at which op for which rank.

    Parameters
    ----------
    steps
        From each meeting of the circle to the next: the rank that comes to them in this order, and its op at the first.
    """
    waits = [(rank, op, steps[i - 1][0]) for i, (rank, op) in enumerate(steps) if steps[i - 1][0] != rank]
    first = waits.index(min(waits))
    sentences = [f"rank {rank} at {op} for rank {other}" for rank, op, other in waits[first:] + waits[:first]]
    return PlanError(
        f"plan {plans[min(waits)[0]].name!r}, collectives of job {job.name!r}",
        "ranks come to their collectives in an order in which they meet",
        f"that they wait for one another: {', '.join(sentences)}",
        "run them in the same order on all ranks, or on streams of their own",
    )
