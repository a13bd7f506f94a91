"""Laws of room: bytes are conserved, no tier overflows, and what a step uses is there while it runs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from simulator.columns import NONE, Bools, Ints, lasts, running, turns
from simulator.hardware import Hardware
from simulator.plan import COMPUTE, COPY, DETACH
from simulator.referee.breach import broken
from simulator.referee.facts import Facts, Intervals
from simulator.trace import Block, instances, pick


@dataclass(frozen=True, slots=True)
class Held:
    """When each place of a tensor was held.

    Attributes
    ----------
    place
        ``tensor * tiers + tier`` of each stretch, ascending, then by time.
    taken, freed
        From and to (positions of the clock); `Facts.never` if it was not freed.
    taken_row
        Row of the residencies.
    is_new
        Whether it was taken in the part.
    detaches, detached
        Detaches that were issued, and when each acted, or `Facts.never`; `NONE` where it frees 0 B.
    """

    place: Ints
    taken: Ints
    freed: Ints
    taken_row: Ints
    is_new: Bools
    detaches: Ints
    detached: Ints


class Room:
    """Checks, as places are taken and freed, that each tier instance holds between nothing and its capacity.

    A rank that stands for others counts on its instance of a shared tier for as many of them as are there.

    Parameters
    ----------
    hardware, stands_in, budget_bytes
        The machine; for each rank the one whose rows are its own, too; what may be used of the compute tier [B].
    once
        For each tier, by instance, what rows count but the tier stores once for several ranks [B]; default: nothing.

    Attributes
    ----------
    names, capacity_bytes, sharers
        By tier, its name, what may be used of it [B], and its `instances`.
    """

    def __init__(
        self,
        hardware: Hardware,
        stands_in: Sequence[int],
        budget_bytes: int | float,
        once: Mapping[str, Mapping[int, int]] | None = None,
    ) -> None:
        self.names, ranks = hardware.tier_names, len(stands_in)
        capacity = {name: tier.usable_bytes for name, tier in hardware.tiers.items()}
        self.capacity_bytes = [*(capacity | {hardware.compute_tier: budget_bytes}).values()]
        on_node = hardware.topology.devices_per_node
        self.sharers = [instances(tier.scope, on_node, stands_in) for tier in hardware.tiers.values()]
        spare = [[(once or {}).get(name, {}).get(instance, 0) for instance in range(ranks)] for name in self.names]
        self._spare = np.array(spare, np.int64)
        self._used = np.zeros((len(hardware.tiers), ranks), np.int64)
        self._known: list[list[Ints]] = [[] for _ in hardware.tiers]
        self._rows = self._now_ns = 0

    def take(self, rows: Block) -> None:
        """Check that time moves forward and what each tier instance holds, at each row; rows come in order.

        Parameters
        ----------
        rows
            Rows of the residencies.
        """
        time = rows["time_ns"]
        back = np.flatnonzero(np.diff(time, prepend=self._now_ns) < 0)
        if len(back):
            i = int(back[0])
            found = f"{int(time[i]):,} ns after {int(time[i - 1]) if i else self._now_ns:,} ns"
            raise broken(self._where(i), "places are taken and freed in the order of time", found)
        odd = np.flatnonzero((rows["tier"] < 0) | (rows["tier"] >= len(self.capacity_bytes)))
        if len(odd):
            must = f"a place lies in one of the {len(self.capacity_bytes)} tiers"
            raise broken(self._where(int(odd[0])), must, f"tier {int(rows['tier'][odd[0]])}")
        for number in range(len(self.capacity_bytes)):
            self._take_of(number, rows)
        self._rows += len(time)
        self._now_ns = int(time[-1]) if len(time) else self._now_ns

    def _take_of(self, number: int, rows: Block) -> None:
        """Check the rows of one tier."""
        (instance, counts), known = self.sharers[number], self._used[number]
        at = np.flatnonzero(rows["tier"] == number)
        at = at[np.argsort(instance[rows["rank"][at]], kind="stable")]
        rank, delta = rows["rank"][at], rows["delta_bytes"][at]
        where = instance[rank]
        used = running(where, delta * counts[rank]) + known[where]
        wrong = np.flatnonzero((used < 0) | (used - self._spare[number][where] > self.capacity_bytes[number]))
        if len(wrong):
            first, name = int(wrong[0]), self.names[number]
            must = (
                f"a tier holds at least 0 B and at most its capacity ({_bytes(self.capacity_bytes[number])} in {name})"
            )
            found = f"{int(used[first]):,} B at {int(rows['time_ns'][at[first]]):,} ns"
            raise broken(self._where(int(at[first])), must, found)
        known[where] = used
        if self.capacity_bytes[number] != math.inf:
            self._known[number].append(np.stack((where, rows["time_ns"][at], used - self._spare[number][where])))

    def used_bytes(self, tier: int, instance: int) -> tuple[Ints, Ints]:
        """When what an instance holds changed, and what it held then, as far back as is not forgotten [ns], [B]."""
        where, time, used = self._sorted(tier)
        mine = slice(*np.searchsorted(where, [instance, instance + 1]))
        time, used = time[mine], used[mine]
        last = lasts(time)
        return time[last], used[last]

    def forget(self, until_ns: int) -> None:
        """Forget what was before a time, but for what was held then."""
        for tier in range(len(self._known)):
            rows = self._sorted(tier)
            is_last = lasts(rows[0])
            self._known[tier] = [rows[:, is_last | (np.append(rows[1, 1:], 0)[: len(is_last)] > until_ns)]]

    def _sorted(self, tier: int) -> Ints:
        """Instance, time and bytes held of all changes that are known, by instance."""
        rows = np.concatenate([np.empty((3, 0), np.int64), *self._known[tier]], axis=1)
        if len(self._known[tier]) > 1:
            rows = rows[:, np.argsort(rows[0], kind="stable")]
        self._known[tier] = [rows]
        return rows

    def _where(self, row: int) -> str:
        return f"trace, residencies row {self._rows + row:,}"


def _bytes(capacity: int | float) -> str:
    return "no limit" if capacity == math.inf else f"{capacity:,} B"


def check_held(facts: Facts) -> Held:
    """Check that a place is taken once before it is freed once, each time with the tensor's size, and pair the two."""
    rows, earlier, tiers = facts.residencies, facts.earlier, facts.tiers
    known, mine = np.flatnonzero(earlier.taken_ns != NONE), np.flatnonzero(rows["tensor"] >= 0)
    place = np.append(known, rows["tensor"][mine] * tiers + rows["tier"][mine])
    row = np.append(earlier.taken_row[known], rows["row"][mine])
    at = np.append(facts.at(earlier.taken_ns[known]), facts.residency_time[mine])
    delta = np.append(facts.sizes[known // tiers], rows["delta_bytes"][mine])
    order = np.argsort(place, kind="stable")
    place, row, at, delta, is_new = place[order], row[order], at[order], delta[order], order >= len(known)
    number, size = turns(place), facts.sizes[place // tiers]
    law = "a place is taken, then freed, with its tensor's size, in turn"
    shown = {"time_ns": facts.times(at), "tier": place % tiers, "tensor": place // tiers, "delta_bytes": delta}
    facts.check(delta == np.where(number % 2, -size, size), law, "residencies", {"row": row, **shown}, *shown)
    takes, is_free = np.flatnonzero(number % 2 == 0), np.append(number % 2 == 1, False)
    freed = np.where(is_free[takes + 1], np.append(at, facts.never)[takes + 1], facts.never)
    detaches, detached = _pair_detaches(facts, place[is_free[:-1]], at[is_free[:-1]])
    left = takes[freed == facts.never]
    earlier.taken_ns[:], earlier.taken_row[:] = NONE, NONE
    earlier.taken_ns[place[left]], earlier.taken_row[place[left]] = facts.times(at[left]), row[left]
    return Held(place[takes], at[takes], freed, row[takes], is_new[takes], detaches, detached)


def _pair_detaches(facts: Facts, freed_place: Ints, freed_at: Ints) -> tuple[Ints, Ints]:
    """Give each detach the time of its free: the k-th of a place is the k-th free there; `NONE` if it frees 0 B."""
    detaches = facts.steps(DETACH)
    place = facts.source[detaches]
    order = np.argsort(place, kind="stable")
    many = len(detaches) + len(freed_place) + 1
    asked, answered = place[order] * many + turns(place[order]), freed_place * many + turns(freed_place)
    if not np.isin(answered, asked).all():
        worst = int(freed_place[np.argmin(np.isin(answered, asked))])
        found = f"tensor {worst // facts.tiers} freed in {facts.plan.tiers[worst % facts.tiers]} without one"
        raise facts.broken("only a detach frees a place", "residencies", found)
    at = np.minimum(np.searchsorted(answered, asked), max(len(answered) - 1, 0))
    acted = answered[at] == asked if len(answered) else np.zeros(len(asked), bool)
    when = np.full(len(detaches), facts.never)
    when[order[acted]] = freed_at[at[acted]]
    when[facts.sizes[facts.a[detaches]] == 0] = NONE
    law = "when a run completes, every detach has acted"
    facts.check_steps(detaches, (when != facts.never) | (not facts.complete), law, ("tier", facts.b[detaches]))
    return detaches, when


def check_ends_as_it_began(facts: Facts, held: Held) -> None:
    """Check that the homes are held from time 0, and that a run which completes holds these alone at its end."""
    homes, tiers = facts.program.homes, facts.tiers
    in_first = np.isin(held.taken_row, facts.residencies["row"][: len(homes)])
    right = np.array_equal(held.place[in_first], homes) and not facts.times(held.taken[in_first]).any()
    if not facts.first and not right:
        found = f"{int(in_first.sum()):,} of {len(homes):,} held"
        raise facts.broken("a run begins with all tensors at home", "residencies", found)
    last, due = held.place[held.freed == facts.never], homes[facts.program.persistent[homes // tiers]]
    if facts.is_last and facts.complete and not np.array_equal(last, due):
        odd = np.setxor1d(last, due)
        tensor, tier = divmod(int(odd[0]), tiers) if len(odd) else (NONE, 0)
        found = f"{facts.graph.tensors[tensor].name!r} in {facts.plan.tiers[tier]} ({len(odd):,} places in all)"
        raise facts.broken("persistent tensors end where they began, and nothing else is held", "its end", found)


def check_outputs(facts: Facts, held: Held) -> Ints:
    """Check that the only valid copy of an output stays until the computes issued before its detach have ended.

    Returns
    -------
    by detach
        Until when it keeps its tensor there at least (position of the clock, or `NONE`).
    """
    issued = {at: i for i, at in enumerate(held.detaches.tolist())}
    parting = np.array([issued[at] for at in _parting(facts) if at in issued], np.int64)
    detaches, gone = held.detaches[parting], held.detached[parting]
    last = facts.latest(np.where(facts.kind == COMPUTE, facts.end, NONE), facts.earlier.host.ended_ns)[detaches]
    facts.check_steps(
        detaches,
        (gone >= last) | (gone == NONE),
        "an output stays until the computes issued before its last detach have ended",
        ("detached at ns", facts.times(gone)),
        ("they end at ns", facts.times(last)),
    )
    stays = np.full(len(held.detaches), NONE, np.int64)
    stays[parting] = last
    return stays


def _parting(facts: Facts) -> list[int]:
    """Detaches that leave no valid copy of an output."""
    valid = facts.earlier.parted
    found: list[int] = []
    if not valid:
        return found
    columns = (facts.kind.tolist(), facts.a.tolist(), facts.b.tolist(), facts.c.tolist())
    for at, (kind, a, b, c) in enumerate(zip(*columns, strict=True)):
        if kind == COMPUTE:
            for t in facts.graph.ops[a].writes:
                if t in valid:
                    valid[t] = {facts.compute_tier}
        elif a in valid and kind == COPY:
            valid[a].add(c)
        elif a in valid and kind == DETACH and b in valid[a]:
            valid[a].remove(b)
            if not valid[a]:
                found.append(at)
    return found


def check_there(facts: Facts, held: Held) -> None:
    """Check that what a compute uses, and both ends of a copy, are held from its start to its end."""
    stretches = Intervals(held.place, held.taken, held.freed, facts.stride)
    copies = facts.steps(COPY)
    for law, issue, place in (
        ("what an op reads and writes is resident while it runs", *facts.used),
        ("a copy holds its source until it ends", copies, facts.source[copies]),
        ("a copy holds its target from its start", copies, facts.target[copies]),
    ):
        start, end, tensor = facts.start[issue], facts.end[issue], place // facts.tiers
        holds = (start == facts.never) | (facts.sizes[tensor] == 0) | stretches.cover(place, start, end)
        shown = ("tensor", tensor), ("from ns", facts.times(start)), ("to ns", facts.times(end))
        facts.check_steps(issue, holds, law, *shown)


def check_taken_at_start(facts: Facts, held: Held) -> None:
    """Check that a place is taken when a compute that writes it, or a copy into it, starts; the homes at time 0.

    A collective takes its places when it has come, which is before it starts.
    """
    issue, place = facts.made
    start, arrived = facts.start[issue], facts.arrived[issue]
    begun = np.unique(place * facts.stride + start)
    early = np.flatnonzero(arrived < start)
    waiting = Intervals(place[early], arrived[early], start[early], facts.stride, joined=True)
    first = facts.residencies["row"][: 0 if facts.first else len(facts.program.homes)]
    taken = held.place * facts.stride + held.taken
    holds = np.isin(taken, begun) | np.isin(held.taken_row, first) | waiting.cover(held.place, held.taken, held.taken)
    shown = {"time_ns": facts.times(held.taken), "tier": held.place % facts.tiers, "tensor": held.place // facts.tiers}
    law = "room is taken when a compute that writes, or a copy into the place, starts"
    facts.check(holds | ~held.is_new, law, "residencies", {"row": held.taken_row, **shown}, *shown)


def check_workspace(facts: Facts) -> None:
    """Check that an op's workspace is held in the compute tier for exactly its span.

    A collective holds it from when it has come, which is before it starts.
    """
    size, rows = facts.program.workspace, {**facts.residencies, "at": facts.residency_time}
    ran, unmet = facts.ran(COMPUTE), np.unique(facts.a[facts.unmet])
    ran = ran[(size[facts.a[ran]] > 0) & ~np.isin(facts.a[ran], unmet)]
    for sign, moment, from_, to in (
        (1, "start", facts.arrived[ran], facts.start[ran]),
        (-1, "end", facts.end[ran], facts.end[ran]),
    ):
        mine = pick(rows, (rows["tensor"] < 0) & (rows["delta_bytes"] * sign > 0))
        mine = pick(mine, ~np.isin(-1 - mine["tensor"], unmet))
        op = -1 - mine["tensor"]
        law = f"an op's workspace is taken at its start and freed at its end, in the compute tier ({moment})"
        right = (op < len(size)) & (mine["tier"] == facts.compute_tier)
        right &= mine["delta_bytes"] == sign * size[np.minimum(op, len(size) - 1)]
        facts.check(right, law, "residencies", mine, "time_ns", "tier", "tensor", "delta_bytes")
        held = np.sort(op * facts.stride + mine["at"])
        low, spans = (np.sort(facts.a[ran] * facts.stride + when) for when in (from_, to))
        if len(held) != len(spans) or (held < low).any() or (held > spans).any():
            odd = int(np.setxor1d(held, spans)[0]) if len(np.setxor1d(held, spans)) else int(spans[0])
            name = facts.graph.ops[odd // facts.stride].name
            found = f"op {name!r} at {int(facts.times(np.array([odd % facts.stride]))[0]):,} ns"
            raise facts.broken(law, "residencies", found)
