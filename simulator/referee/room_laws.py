"""Laws of room: no tier overflows, what ranks share is stored once, and who is next in line gets room that fits."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from simulator.columns import NONE, Bools, Ints, lasts, running
from simulator.graph import Job, Tensor
from simulator.hardware import Hardware
from simulator.plan import NOWHERE, Plan
from simulator.referee.facts import broken
from simulator.referee.start_laws import NEVER_NS, Requests
from simulator.trace import Block, Trace, instances


class Room:
    """Checks, as places are taken and freed, that each tier instance holds between nothing and its capacity.

    A rank that stands for others counts on its instance of a shared tier for as many of them as are there. Who is first
    in line for room of an instance does not fit, as long as it waits.

    Parameters
    ----------
    hardware, stands_in, budget_bytes
        The machine; for each rank the one whose rows are its own, too; what may be used of the compute tier [B].
    spare
        What rows count but a tier stores once for several ranks, by tier and instance [B].
    """

    def __init__(self, hardware: Hardware, stands_in: Sequence[int], budget_bytes: int | float, spare: Ints) -> None:
        self._names, ranks, on_node = hardware.tier_names, len(stands_in), hardware.topology.devices_per_node
        usable = {name: tier.usable_bytes for name, tier in hardware.tiers.items()}
        capacities = (usable | {hardware.compute_tier: budget_bytes}).values()
        self._capacity = np.array([int(min(capacity, NEVER_NS)) for capacity in capacities])
        sharers = [instances(tier.scope, on_node, stands_in) for tier in hardware.tiers.values()]
        instance, self._counts = (np.array(column) for column in zip(*sharers, strict=True))
        self._instance, self._ranks = instance + np.arange(len(sharers))[:, None] * ranks, ranks
        self._used, self._spare = np.zeros(len(sharers) * ranks, np.int64), spare.ravel()
        self._changes, self._waiting = [np.empty((3, 0), np.int64)], [np.empty((7, 0), np.int64)]
        self._rows = self._now_ns = 0

    def take(self, rows: Block) -> None:
        """Check that time moves forward and what each tier instance holds, at each row; rows come in order.

        Parameters
        ----------
        rows
            Rows of the residencies.
        """
        time, tier, tiers = rows["time_ns"], rows["tier"], len(self._names)
        before = np.append(self._now_ns, time)
        found = "{:,} ns after {:,} ns"
        self._check(np.diff(before) >= 0, "places are taken and freed in the order of time", found, time, before)
        law = f"a place lies in one of the {tiers} tiers"
        self._check((tier >= 0) & (tier < tiers), law, "tier {}", tier)
        where = self._instance[tier, rows["rank"]]
        used = running(where, rows["delta_bytes"] * self._counts[tier, rows["rank"]]) + self._used[where]
        stored = used - self._spare[where]
        for number, name in enumerate(self._names):
            capacity = int(self._capacity[number])
            has_room = (tier != number) | ((used >= 0) & (stored <= capacity))
            limit = "no limit" if capacity == NEVER_NS else f"{capacity:,} B"
            law = f"a tier holds at least 0 B and at most its capacity ({limit} in {name})"
            self._check(has_room, law, "{:,} B at {:,} ns", used, time)
        self._used[where] = used
        self._changes.append(np.stack((where, time, stored)))
        self._rows, self._now_ns = self._rows + len(time), int(before[-1])

    def _check(self, holds: Bools, law: str, found: str, *shown: Ints) -> None:
        if not holds.all():
            i = int(np.argmin(holds))
            raise broken(f"trace, residencies row {self._rows + i:,}", law, found.format(*(int(c[i]) for c in shown)))

    def wait(self, rank: int, requests: Requests) -> None:
        """Take what only room kept from starting on a rank."""
        where = self._instance[requests.tier, rank]
        self._waiting.append(np.stack((where, np.full(len(where), rank), *requests[1:])))

    def check_lines(self, until_ns: int = NEVER_NS) -> None:
        """Check who waited for room before a time, before which nobody else did, and forget what was before.

        Parameters
        ----------
        until_ns
            When that is [ns].
        """
        changes, rows = (np.concatenate(parts, axis=1) for parts in (self._changes, self._waiting))
        changes = changes[:, np.argsort(changes[0], kind="stable")]
        for where in np.unique(rows[0]).tolist():
            self._check_line(where, changes[1:, changes[0] == where], rows[1:, rows[0] == where], until_ns)
        rows = rows[:, rows[4] > until_ns]
        rows[3] = np.maximum(rows[3], until_ns)
        holds_on = lasts(changes[0]) | (np.append(changes[1], 0)[1:] > until_ns)
        self._changes, self._waiting = [changes[:, holds_on]], [rows]

    def _check_line(self, where: int, changes: Ints, rows: Ints, until_ns: int) -> None:
        times, used = changes[:, lasts(changes[0])]
        rank, size, since, start, is_copy, issue = rows
        points = np.unique(np.concatenate((times, since, start[start != NEVER_NS])))
        points = points[points < until_ns]
        begin, end = np.searchsorted(points, since), np.searchsorted(points, start)
        first = np.full(len(points), NONE)
        for row in np.lexsort((issue, rank, is_copy))[::-1].tolist():
            first[begin[row] : end[row]] = row
        at = np.flatnonzero(first != NONE)
        now, tier = np.append(0, used)[np.searchsorted(times, points[at], "right")], where // self._ranks
        wrong = np.flatnonzero(now + size[first[at]] <= self._capacity[tier])
        if len(wrong):
            i, row = int(wrong[0]), int(first[at[wrong[0]]])
            must = f"what is first in line for room of a tier ({self._names[tier]}) starts when it fits"
            found = f"{int(size[row]):,} B beside {int(now[i]):,} B at {int(points[at[i]]):,} ns do not start"
            raise broken(f"trace, rank {int(rank[row])}, action {int(issue[row]):,}", must, found)


def _instances(hardware: Hardware, ranks: int) -> list[Ints]:
    """By tier, for each rank the node of a tier that nodes have, else 0."""
    each = hardware.topology.devices_per_node
    return [np.arange(ranks) // (each if tier.scope == "node" else ranks) for tier in hardware.tiers.values()]


def stored_once(job: Job, hardware: Hardware, plans: Sequence[Plan]) -> Ints:
    """Add up what ranks have at home in a tier less what is stored there, all shared tensors, by tier and instance [B].

    Parameters
    ----------
    job, hardware, plans
        What ranks run, where, and by which plans.
    """
    scopes, instance = [tier.scope for tier in hardware.tiers.values()], _instances(hardware, job.ranks)
    spare = np.zeros((len(scopes), job.ranks), np.int64)
    shared: dict[int, list[tuple[Tensor, int]]] = {}
    stored = set[tuple[int, int, int, str, int]]()
    for rank, plan in enumerate(plans):
        if id(plan) not in shared:
            tensors = zip(job.graph(rank).tensors, plan.home, strict=True)
            mine = [(t, home) for t, home in tensors if t.shared and t.persistent and home != NOWHERE]
            shared[id(plan)] = [(t, home) for t, home in mine if scopes[home] != "device"]
        for t, home in shared[id(plan)]:
            sharer = rank // hardware.topology.devices_per_node if t.shared == "node" else 0
            place = (home, int(instance[home][rank]), sharer, t.name, t.size_bytes)
            spare[place[:2]] += t.size_bytes if place in stored else 0
            stored.add(place)
    return spare


def check_stored_once(hardware: Hardware, trace: Trace, spare: Ints) -> None:
    """Check that a trace says what is stored once, for each instance of a tier that has a simulated rank.

    Parameters
    ----------
    hardware, trace, spare
        The machine, what happened there, and what is stored once.
    """
    told, instance = np.zeros_like(spare), _instances(hardware, spare.shape[1])
    for rank, tier, _, size in trace.stored_once:
        told[tier, instance[tier][rank]] += size
    for tier, name in enumerate(hardware.tiers):
        for i in np.unique(instance[tier][list(trace.stands_in)]).tolist():
            if told[tier, i] != spare[tier, i]:
                must = f"what is stored once in {name} is counted once"
                found = f"{told[tier, i]:,} B less on instance {i}, not {spare[tier, i]:,} B"
                raise broken("trace, stored_once", must, found)
