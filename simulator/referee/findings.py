"""Remarks on a trace that breaks no law: what was dead and still held, what was moved for nothing."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from simulator.plan import COMPUTE, COPY, DETACH
from simulator.referee.facts import NONE, Facts, Ints
from simulator.referee.place_laws import Held
from simulator.units import human

_WORST = 5


@dataclass(frozen=True, slots=True)
class Findings:
    """What the referee noticed in a trace that obeys every law.

    Attributes
    ----------
    dead_byte_ns
        Tier -> bytes x time [B ns] that tensors were held after their last use.
    worst
        ``(tensor name, tier, size [B], time dead and held [ns])``, most byte-time first.
    unread_copies
        Transfers whose copy nobody used before it was given up.
    unread_bytes
        Their size [B].
    unchosen_copies, unchosen_bytes
        The same of candidates of late reads, which could have been chosen when they were copied.
    """

    dead_byte_ns: dict[str, int]
    worst: tuple[tuple[str, str, int, int], ...] = ()
    unread_copies: int = 0
    unread_bytes: int = 0
    unchosen_copies: int = 0
    unchosen_bytes: int = 0

    @property
    def remarks(self) -> tuple[str, ...]:
        """The findings as sentences; none if there is nothing to remark."""
        said = []
        if self.worst:
            name, tier, size, ns = self.worst[0]
            said.append(
                f"{tier} holds dead tensors, most of all {name!r} ({human(size, 'B')} for {human(ns, 'ns')} in all): "
                "detach them after their last use"
            )
        if self.unread_copies:
            what = "copy is" if self.unread_copies == 1 else "copies are"
            said.append(f"{self.unread_copies:,} {what} never used ({human(self.unread_bytes, 'B')}): drop them")
        if self.unchosen_copies:
            what = "copy of a late read was" if self.unchosen_copies == 1 else "copies of late reads were"
            said.append(f"{self.unchosen_copies:,} {what} not chosen ({human(self.unchosen_bytes, 'B')})")
        return tuple(said)


def look(facts: Facts, held: Held) -> Findings:
    """Collect the findings of one rank.

    A value is dead from the end of the last compute that uses it before a compute writes the tensor anew, unless
    the tensor is persistent or an output. Persistent tensors and outputs are never dead.
    """
    mortal = np.array([not t.persistent for t in facts.graph.tensors], bool)
    mortal[list(facts.graph.outputs)] = False
    next_reads, last_end = _neighbours(facts, held)
    dead = mortal[facts.a[held.detaches]] & ~next_reads & (last_end != NONE) & (held.detached != facts.never)
    issues, freed = held.detaches[dead], held.detached[dead]
    place = facts.a[issues] * facts.tiers + facts.b[issues]
    since = np.maximum(last_end[dead], _taken_before(facts, held, place, freed))
    total = np.zeros(len(facts.sizes) * facts.tiers, np.int64)
    np.add.at(total, place, facts.times(freed) - facts.times(since))
    copies = _unread_copies(facts)
    candidates = sorted({t for op in facts.graph.ops if op.late for t in op.late.candidates})
    late = np.isin(facts.a[copies], candidates)
    unread, unchosen = copies[~late], copies[late]
    return Findings(
        dead_byte_ns=_by_tier(facts, total),
        worst=_worst(facts, total),
        unread_copies=len(unread),
        unread_bytes=int(facts.sizes[facts.a[unread]].sum()),
        unchosen_copies=len(unchosen),
        unchosen_bytes=int(facts.sizes[facts.a[unchosen]].sum()),
    )


def _neighbours(facts: Facts, held: Held) -> tuple[np.ndarray, Ints]:
    """For each detach: whether the tensor's next compute reads it, and when its last compute ended."""
    by_compute, which = facts.compute_uses()
    tensor = np.concatenate((facts.uses.tensor[which], facts.a[held.detaches]))
    issue = np.concatenate((by_compute, held.detaches))
    is_detach = np.arange(len(issue)) >= len(by_compute)
    end = np.concatenate((facts.end[by_compute], np.full(len(held.detaches), NONE)))
    reads = np.concatenate((facts.uses.reads[which], np.zeros(len(held.detaches), bool)))
    order = np.lexsort((issue, tensor))
    tensor, is_detach, end, reads = tensor[order], is_detach[order], end[order], reads[order]
    last_end = facts.running_max(tensor, end)
    n = len(tensor)
    following = np.where(is_detach, n, np.arange(n))
    following = np.append(np.minimum.accumulate(following[::-1])[::-1] if n else following, n)[1:]
    same = np.append(tensor, NONE)[following] == tensor
    next_reads = same & np.append(reads, False)[following]
    back = np.empty(len(held.detaches), np.int64)
    back[order[is_detach] - len(by_compute)] = np.flatnonzero(is_detach)
    return next_reads[back], last_end[back]


def _taken_before(facts: Facts, held: Held, place: Ints, freed: Ints) -> Ints:
    """When the stretches that ended at these moments began."""
    key = held.place * facts.stride + held.freed
    return held.taken[np.searchsorted(key, place * facts.stride + freed)]


def _by_tier(facts: Facts, total_ns: Ints) -> dict[str, int]:
    found = dict.fromkeys(facts.plan.tiers, 0)
    for place in np.flatnonzero(total_ns).tolist():
        tensor, tier = divmod(place, facts.tiers)
        found[facts.plan.tiers[tier]] += int(facts.sizes[tensor]) * int(total_ns[place])
    return found


def _worst(facts: Facts, total_ns: Ints) -> tuple[tuple[str, str, int, int], ...]:
    places = np.flatnonzero(total_ns)
    weight = total_ns[places] * facts.sizes[places // facts.tiers].astype(float)
    heaviest = places[np.argsort(-weight, kind="stable")[:_WORST]].tolist()
    return tuple(
        (
            facts.graph.tensors[place // facts.tiers].name,
            facts.plan.tiers[place % facts.tiers],
            int(facts.sizes[place // facts.tiers]),
            int(total_ns[place]),
        )
        for place in heaviest
    )


def _unread_copies(facts: Facts) -> Ints:
    """Copies whose target was detached before a compute or another copy used it."""
    by_compute, which = facts.compute_uses()
    copies, detaches = facts.ran(COPY), facts.steps(DETACH)
    tiers = facts.tiers
    used = (facts.uses.tensor[which] * tiers + facts.compute_tier, facts.a[copies] * tiers + facts.b[copies])
    made, gone = facts.a[copies] * tiers + facts.c[copies], facts.a[detaches] * tiers + facts.b[detaches]
    homes = np.array(facts.plan.home, np.int64)
    place = np.concatenate((*used, made, gone))
    issue = np.concatenate((by_compute, copies, copies, detaches))
    what = np.repeat([COMPUTE, COMPUTE, COPY, DETACH], [len(used[0]), len(copies), len(copies), len(detaches)])
    order = np.lexsort((issue, place))
    place, issue, what = place[order], issue[order], what[order]
    wasted = (what[:-1] == COPY) & (what[1:] == DETACH) & (place[1:] == place[:-1])
    at_home = homes[place[:-1] // tiers] == place[:-1] % tiers
    kept = np.isin(place[:-1] // tiers, facts.graph.outputs)
    return np.sort(issue[:-1][wasted & ~at_home & ~kept])
