"""Laws of places: each is taken and freed in turn, by the actions that make and give up what is there."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from simulator.plan import COMPUTE, DETACH
from simulator.referee.facts import Facts, covered
from simulator.trace import NONE, Bools, Ints, pick, turns


class Held(NamedTuple):
    """When each place of a tensor was held.

    Attributes
    ----------
    place
        ``tensor * tiers + tier`` of each stretch, ascending, then by time.
    taken, freed
        From and to (positions of the clock); `Facts.never` if it was not freed.
    """

    place: Ints
    taken: Ints
    freed: Ints


def check_places(facts: Facts) -> Held:
    """Check who takes and frees each place, and that what an action uses is there while it runs.

    When a detach acts is noted as its start and end, `NONE` if it frees 0 B. Rows that no action of the part has given
    up stay for later ones.
    """
    _check_begins_at_home(facts)
    tiers, sizes = facts.program.tiers, facts.program.sizes
    mine = np.flatnonzero(facts.residencies["tensor"] >= 0)
    mine = mine[np.argsort(facts.residencies["tensor"][mine] * tiers + facts.residencies["tier"][mine], kind="stable")]
    rows = pick(facts.residencies, mine)
    place = rows["tensor"] * tiers + rows["tier"]
    number, size, shown = turns(place), sizes[rows["tensor"]], ("time_ns", "tier", "tensor", "delta_bytes")
    right = rows["delta_bytes"] == np.where(number % 2, -size, size)
    facts.check(right, "a place is taken, then freed, with its tensor's size, in turn", "residencies", rows, *shown)
    takes = np.flatnonzero(number % 2 == 0)
    is_freed = np.append(number % 2 == 1, False)[takes + 1]
    freed = np.where(is_freed, np.append(rows["at"], facts.never)[takes + 1], facts.never)
    held = Held(place[takes], rows["at"][takes], freed)
    is_given_up = _pair_detaches(facts, held)
    _check_is_there(facts, held)
    is_explained = (rows["is_explained"][takes] == 1) | _is_taken_at_start(facts, held)
    law, may_wait = "room is taken when a compute that writes, or a copy into the place, starts", not facts.is_last
    facts.check(is_explained | (~is_given_up & may_wait), law, "residencies", pick(rows, takes), *shown)
    facts.residencies["is_explained"][mine[takes]] = is_explained
    gone = takes[is_given_up]
    facts.residencies["stays"][mine[np.append(gone, gone + 1)]] = 0
    _check_ends_at_home(facts, held.place[held.freed == facts.never])
    return held


def _check_begins_at_home(facts: Facts) -> None:
    if facts.first:
        return
    homes, rows = facts.program.homes, facts.residencies
    first = pick(rows, np.arange(len(rows["row"])) < len(homes))
    place = np.sort((first["tensor"] * facts.program.tiers + first["tier"])[first["delta_bytes"] > 0])
    if not np.array_equal(place, homes) or first["time_ns"].any():
        found = f"{len(np.intersect1d(place, homes)):,} of {len(homes):,} held"
        raise facts.broken("a run begins with all tensors at home", "residencies", found)
    rows["is_explained"][: len(homes)] = 1


def _check_ends_at_home(facts: Facts, last: Ints) -> None:
    program = facts.program
    due = program.homes[program.persistent[program.homes // program.tiers]]
    if facts.is_last and facts.complete and not np.array_equal(last, due):
        odd = np.setxor1d(last, due)
        tensor, tier = divmod(int(odd[0]), program.tiers)
        found = f"{program.graph.tensors[tensor].name!r} in {program.plan.tiers[tier]} ({len(odd):,} places in all)"
        raise facts.broken("persistent tensors end where they began, and nothing else is held", "its end", found)


def _pair_detaches(facts: Facts, held: Held) -> Bools:
    """Pair the k-th detach of a place with the end of its k-th stretch, when it acts; return which stretches end so."""
    detaches, tiers = facts.steps(DETACH), facts.program.tiers
    place, many = facts.a[detaches] * tiers + facts.b[detaches], len(detaches) + len(held.place) + 1
    stretch = np.append(held.place * many + turns(held.place), NONE)
    wanted, is_given_up = place * many + turns(place), np.zeros(len(held.place), bool)
    at = np.searchsorted(stretch[:-1], wanted)
    acted = np.append(held.freed, facts.never)[at]
    acted[stretch[at] != wanted] = facts.never
    is_given_up[at[acted != facts.never]] = True
    odd = np.flatnonzero((held.freed != facts.never) & ~is_given_up)
    if facts.is_last and len(odd):
        tensor, tier = divmod(int(held.place[odd[0]]), tiers)
        found = f"tensor {tensor} freed in {facts.program.plan.tiers[tier]} without one"
        raise facts.broken("only a detach frees a place", "residencies", found)
    acted[facts.program.sizes[facts.a[detaches]] == 0] = NONE
    law = "when a run completes, every detach has acted"
    facts.check_steps(detaches, (acted != facts.never) | (not facts.complete), law, ("tier", facts.b[detaches]))
    facts.start[detaches] = facts.end[detaches] = acted
    return is_given_up


def _is_taken_at_start(facts: Facts, held: Held) -> Bools:
    """Whether each place was taken as an action that fills it started, or once a collective that does had come."""
    made, stride = facts.accesses.pick(facts.accesses.makes), facts.stride
    start, arrived = facts.start[made.issue], facts.arrived[made.issue]
    early = np.flatnonzero(arrived < start)
    waiting = made.place[early], arrived[early], start[early]
    begun = np.isin(held.place * stride + held.taken, made.place * stride + start)
    return begun | covered((held.place, held.taken, held.taken), waiting, stride, joined=True)


def _check_is_there(facts: Facts, held: Held) -> None:
    used = facts.accesses.pick(facts.accesses.kind < DETACH)
    start, end, tensor = facts.start[used.issue], facts.end[used.issue], used.place // facts.program.tiers
    holds = (start == facts.never) | (facts.program.sizes[tensor] == 0)
    holds |= covered((used.place, start, end), held, facts.stride)
    law = "what a compute reads and writes, and both ends of a copy, are held while it runs"
    shown = ("tensor", tensor), ("from ns", facts.times(start)), ("to ns", facts.times(end))
    facts.check_steps(used.issue, holds, law, *shown)


def check_workspace(facts: Facts) -> None:
    """Check that an op's workspace is held in the compute tier for exactly its span.

    A collective holds it from when it has come, which is before it starts.
    """
    size, rows = facts.program.workspace, facts.residencies
    ran, unmet = facts.ran(COMPUTE), np.unique(facts.a[facts.unmet])
    ran = ran[(size[facts.a[ran]] > 0) & ~np.isin(facts.a[ran], unmet)]
    for sign, moment, low, high in ((1, "start", facts.arrived, facts.start), (-1, "end", facts.end, facts.end)):
        mine = np.flatnonzero((rows["tensor"] < 0) & (rows["delta_bytes"] * sign > 0))
        mine = mine[~np.isin(-1 - rows["tensor"][mine], unmet)]
        op, law = -1 - rows["tensor"][mine], f"an op's workspace is held for its span, in the compute tier ({moment})"
        right = (op < len(size)) & (rows["tier"][mine] == facts.program.compute_tier)
        right &= rows["delta_bytes"][mine] == sign * size[np.minimum(op, len(size) - 1)]
        shown = ("time_ns", "tier", "tensor", "delta_bytes")
        facts.check(right, law, "residencies", pick(rows, mine), *shown)
        key = op * facts.stride + rows["at"][mine]
        first, last = (np.sort(facts.a[ran] * facts.stride + when[ran]) for when in (low, high))
        if not facts.is_last:
            is_of_part = np.searchsorted(last, key) + turns(key) < np.searchsorted(last, key, "right")
            mine, key = mine[is_of_part], key[is_of_part]
        rows["stays"][mine] = 0
        key = np.sort(key)
        if len(key) != len(last) or (key < first).any() or (key > last).any():
            odd = np.append(np.setxor1d(key, last), last)[:1]
            name, at = facts.program.graph.ops[int(odd[0]) // facts.stride].name, facts.times(odd % facts.stride)
            raise facts.broken(law, "residencies", f"op {name!r} at {int(at[0]):,} ns")
