"""Laws of places: each is taken and freed in turn, by the actions that fill it and detach it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from simulator.errors import PlanError
from simulator.graph import Graph
from simulator.hardware import Hardware
from simulator.plan import COMPUTE, DETACH, NOWHERE, Plan
from simulator.referee.facts import Facts, among, covered
from simulator.trace import NONE, Bools, Ints, ordinals, pick


class Held(NamedTuple):
    """Stretches of time in which places of tensors were held.

    Attributes
    ----------
    place
        ``tensor * tiers + tier`` of each stretch, ascending, then by time.
    taken, freed
        When it begins and ends (positions of the clock); `Facts.never` if the place was not freed.
    """

    place: Ints
    taken: Ints
    freed: Ints


_SHOWN = ("time_ns", "tier", "tensor", "delta_bytes")
"""Columns of the residencies that a message shows."""


def check_places(facts: Facts) -> Held:
    """Check which actions take and free each place, and that what an action uses is held while it runs.

    The time at which a detach acts becomes its start and end; `NONE` if it frees 0 B.
    """
    program, homes, rows = facts.program, facts.program.homes, facts.residencies
    first = pick(rows, np.arange(len(rows["row"])) < len(homes))
    place = np.sort((first["tensor"] * program.tiers + first["tier"])[first["delta_bytes"] > 0])
    if not np.array_equal(place, homes) or first["time_ns"].any():
        at_home = f"{len(np.intersect1d(place, homes)):,} of {len(homes):,} held"
        raise facts.broken("a run begins with all tensors at home", "residencies", at_home)
    held, taking = _stretches(facts)
    _pair_detaches(facts, held)
    _check_is_there(facts, held)
    holds = np.full(len(rows["row"]), True)
    holds[taking] = (taking < len(homes)) | _is_taken_at_start(facts, held)
    law = "room is taken when a compute that writes, or a copy into the place, starts"
    facts.check(holds, law, "residencies", rows, *_SHOWN)
    last, due = held.place[held.freed == facts.never], homes[program.persistent[homes // program.tiers]]
    if facts.complete and not np.array_equal(last, due):
        odd = np.setxor1d(last, due)
        tensor, tier = divmod(int(odd[0]), program.tiers)
        found = f"{program.graph.tensors[tensor].name!r} in {program.plan.tiers[tier]} ({len(odd):,} places in all)"
        raise facts.broken("persistent tensors end where they began, and nothing else is held", "its end", found)
    return held


def _stretches(facts: Facts) -> tuple[Held, Ints]:
    """Check that places are taken and freed in turn; return when they were held, and the rows that take them."""
    rows, tiers = facts.residencies, facts.program.tiers
    by_place = np.flatnonzero(rows["tensor"] >= 0)
    place = rows["tensor"][by_place] * tiers + rows["tier"][by_place]
    order = np.argsort(place, kind="stable")
    by_place, place = by_place[order], place[order]
    turn, size, holds = ordinals(place), facts.program.sizes[place // tiers], np.full(len(rows["row"]), True)
    holds[by_place] = rows["delta_bytes"][by_place] == np.where(turn % 2, -size, size)
    facts.check(holds, "a place is taken, then freed, with its tensor's size, in turn", "residencies", rows, *_SHOWN)
    takes = np.flatnonzero(turn % 2 == 0)
    is_freed = np.append(turn % 2 == 1, False)[takes + 1]
    freed = np.where(is_freed, np.append(rows["at"][by_place], facts.never)[takes + 1], facts.never)
    return Held(place[takes], rows["at"][by_place[takes]], freed), by_place[takes]


def _pair_detaches(facts: Facts, held: Held) -> None:
    """Pair the k-th detach of a place with the end of its k-th stretch, which is when it acts."""
    detaches, tiers = facts.actions(DETACH), facts.program.tiers
    place, many = facts.a[detaches] * tiers + facts.b[detaches], len(detaches) + len(held.place) + 1
    stretch = np.append(held.place * many + ordinals(held.place), NONE)
    wanted, is_given_up = place * many + ordinals(place), np.zeros(len(held.place), bool)
    match = np.searchsorted(stretch[:-1], wanted)
    acted = np.append(held.freed, facts.never)[match]
    acted[stretch[match] != wanted] = facts.never
    is_given_up[match[acted != facts.never]] = True
    odd = np.flatnonzero((held.freed != facts.never) & ~is_given_up)
    if len(odd):
        tensor, tier = divmod(int(held.place[odd[0]]), tiers)
        place_name = f"tensor {tensor} freed in {facts.program.plan.tiers[tier]} without one"
        raise facts.broken("only a detach frees a place", "residencies", place_name)
    acted[facts.program.sizes[facts.a[detaches]] == 0] = NONE
    law = "when a run completes, every detach has acted"
    facts.check_actions(detaches, (acted != facts.never) | (not facts.complete), law, ("tier", facts.b[detaches]))
    facts.start[detaches] = facts.end[detaches] = acted


def _is_taken_at_start(facts: Facts, held: Held) -> Bools:
    """Flag the places that were taken when an action that fills them started, or once such a collective had arrived."""
    made, stride = facts.accesses.pick(facts.accesses.makes), facts.stride
    start, arrived = facts.start[made.issue], facts.arrived[made.issue]
    early = np.flatnonzero(arrived < start)
    waiting = made.place[early], arrived[early], start[early]
    begun = among(held.place * stride + held.taken, np.sort(made.place * stride + start))
    return begun | covered((held.place, held.taken, held.taken), waiting, stride, joined=True)


def _check_is_there(facts: Facts, held: Held) -> None:
    uses = np.flatnonzero(facts.accesses.kind < DETACH)
    issue, place = facts.accesses.issue[uses], facts.accesses.place[uses]
    start, end, tensor = facts.start[issue], facts.end[issue], place // facts.program.tiers
    holds = (start == facts.never) | (facts.program.sizes[tensor] == 0)
    holds |= covered((place, start, end), held, facts.stride)
    law = "tensors of a compute, and both ends of a copy, are held while it runs"
    shown = ("tensor", tensor), ("from ns", facts.times(start)), ("to ns", facts.times(end))
    facts.check_actions(issue, holds, law, *shown)


def check_workspace(facts: Facts) -> None:
    """Check that an op's workspace is held in the tier of its device for exactly its span.

    A collective holds it from its arrival, which is before it starts.
    """
    size, rows = facts.program.workspace, facts.residencies
    ran, unmet = facts.ran(COMPUTE), np.unique(facts.a[facts.unmet])
    ran = ran[(size[facts.a[ran]] > 0) & ~np.isin(facts.a[ran], unmet)]
    for sign, moment, low, high in ((1, "start", facts.arrived, facts.start), (-1, "end", facts.end, facts.end)):
        rows_at = np.flatnonzero((rows["tensor"] < 0) & (rows["delta_bytes"] * sign > 0))
        rows_at = rows_at[~np.isin(-1 - rows["tensor"][rows_at], unmet)]
        op = -1 - rows["tensor"][rows_at]
        law = f"an op's workspace is held for its span, in the tier of its device ({moment})"
        tier = facts.program.tier_of[np.minimum(op, len(size) - 1)]
        is_right = (op < len(size)) & (rows["tier"][rows_at] == tier)
        is_right &= rows["delta_bytes"][rows_at] == sign * size[np.minimum(op, len(size) - 1)]
        facts.check(is_right, law, "residencies", pick(rows, rows_at), *_SHOWN)
        key = np.sort(op * facts.stride + rows["at"][rows_at])
        first, last = (np.sort(facts.a[ran] * facts.stride + when[ran]) for when in (low, high))
        if len(key) != len(last) or (key < first).any() or (key > last).any():
            odd = np.append(np.setxor1d(key, last), last)[:1]
            name, time_ns = facts.program.graph.ops[int(odd[0]) // facts.stride].name, facts.times(odd % facts.stride)
            raise facts.broken(law, "residencies", f"op {name!r} at {int(time_ns[0]):,} ns")


def check_homes(graph: Graph, hardware: Hardware, plan: Plan) -> None:
    """Check the tiers, homes and repeats of a plan.

    Parameters
    ----------
    graph, hardware, plan
        The graph, the machine, and the plan.

    Raises
    ------
    PlanError
        If one of them breaks a rule.
    """
    name = f"plan {plan.name!r}"
    if plan.tiers != hardware.tier_names:
        must = f"its tiers are those of {hardware.name!r} ({', '.join(hardware.tier_names)})"
        raise PlanError(name, must, ", ".join(plan.tiers) or "none", "make the plan for this machine")
    if len(plan.home) != len(graph.tensors):
        found = f"{len(plan.home):,} homes for {len(graph.tensors):,} tensors"
        raise PlanError(f"{name}, homes", "every tensor has an entry", found, "make the plan for this graph")
    inputs, demand, tiers = set(graph.inputs), [0] * len(plan.tiers), ", ".join(plan.tiers)
    for t, (tensor, home) in enumerate(zip(graph.tensors, plan.home, strict=True)):
        where = f"{name}, home of {tensor.name!r}"
        if not NOWHERE <= home < len(plan.tiers):
            must = f"a home is a tier id from 0 to {len(plan.tiers) - 1}, or {NOWHERE} for none"
            raise PlanError(where, must, str(home), "give it one of the tiers")
        if (t in inputs) != (home != NOWHERE):
            must = "exactly the tensors before the first op have a home (persistent tensors and inputs)"
            found = "none" if home == NOWHERE else plan.tiers[home]
            raise PlanError(where, must, found, f"give it one of {tiers}" if t in inputs else "leave it out")
        demand[home] += tensor.size_bytes if home != NOWHERE else 0
    for tier, used in zip(plan.tiers, demand, strict=True):
        room, do = hardware.tiers[tier].usable_bytes, "give some tensors another home, or raise the capacity"
        if tier != hardware.compute_tier and used > room:
            must = f"the homes in {tier} fit there ({room:,} B)"
            raise PlanError(f"{name}, homes", must, f"{used:,} B", do)
    if plan.fixed is not None and (plan.repeats < 1 or graph.steps % plan.repeats):
        must = f"its repeats divide the {graph.steps} training steps of the graph"
        raise PlanError(
            name, must, f"{plan.repeats} repeats", "make a plan of one training step and repeat it for each"
        )
