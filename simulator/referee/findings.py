"""Remarks on a trace that breaks no law: what was dead and still held, what was moved for nothing."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from simulator.plan import COMPUTE, COPY, DETACH
from simulator.referee.columns import NONE, Bools, Ints
from simulator.referee.facts import Facts
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


class Look:
    """Collects the findings of one rank, part by part."""

    def __init__(self) -> None:
        self._copies, self._bytes = {True: 0, False: 0}, {True: 0, False: 0}

    def take(self, facts: Facts, held: Held) -> None:
        """Look at a part.

        A value is dead from the end of the last compute that uses it before a compute writes the tensor anew, unless
        the tensor is persistent or an output. Persistent tensors and outputs are never dead.
        """
        mortal = np.array([not t.persistent for t in facts.graph.tensors], bool)
        mortal[list(facts.graph.outputs)] = False
        follower, last_end = _neighbours(facts, held)
        dead = mortal[facts.a[held.detaches]] & (follower != _READS)
        dead &= (last_end != NONE) & (held.detached != facts.never) & (held.detached != NONE)
        issues, freed = held.detaches[dead], held.detached[dead]
        place = facts.a[issues] * facts.tiers + facts.b[issues]
        since = np.maximum(last_end[dead], _taken_before(facts, held, place, freed))
        ns, is_known = facts.times(freed) - facts.times(since), follower[dead] != _UNKNOWN
        np.add.at(facts.earlier.dead_ns, place[is_known], ns[is_known])
        np.add.at(facts.earlier.undecided_ns, place[~is_known], ns[~is_known])
        unread = _unread_copies(facts)
        candidates = sorted({t for op in facts.graph.ops if op.late for t in op.late.candidates})
        is_late = np.isin(unread, candidates)
        for late, tensors in ((True, unread[is_late]), (False, unread[~is_late])):
            self._copies[late] += len(tensors)
            self._bytes[late] += int(facts.sizes[tensors].sum())

    def found(self, facts: Facts) -> Findings:
        """The findings, behind the last part."""
        total = facts.earlier.dead_ns + facts.earlier.undecided_ns
        return Findings(
            dead_byte_ns=_by_tier(facts, total),
            worst=_worst(facts, total),
            unread_copies=self._copies[False],
            unread_bytes=self._bytes[False],
            unchosen_copies=self._copies[True],
            unchosen_bytes=self._bytes[True],
        )


_UNKNOWN, _WRITES, _READS = range(3)
"""What the next compute that names a tensor does: that may be for a later part to tell."""


def _neighbours(facts: Facts, held: Held) -> tuple[Ints, Ints]:
    """For each detach: what the tensor's next compute does, and when its last compute ended.

    What that says of the detaches of earlier parts is noted.
    """
    by_compute, which = facts.compute_uses()
    used, earlier = facts.uses.tensor[which], facts.earlier
    tensor = np.concatenate((used, facts.a[held.detaches]))
    issue = np.concatenate((by_compute, held.detaches))
    is_detach = np.arange(len(issue)) >= len(by_compute)
    end = np.concatenate((facts.end[by_compute], np.full(len(held.detaches), NONE)))
    does = np.where(facts.uses.reads[which], _READS, _WRITES)
    does = np.concatenate((does, np.full(len(held.detaches), _UNKNOWN)))
    order = np.lexsort((issue, tensor))
    tensor, is_detach, end, does = tensor[order], is_detach[order], end[order], does[order]
    last_end = facts.running_max(tensor, end, earlier.used_ns)
    np.maximum.at(earlier.used_ns, used, facts.times(facts.end[by_compute]))
    n = len(tensor)
    following = np.where(is_detach, n, np.arange(n))
    following = np.append(np.minimum.accumulate(following[::-1])[::-1] if n else following, n)
    same = np.append(tensor, NONE)[following[1:]] == tensor
    next_does = np.where(same, np.append(does, _UNKNOWN)[following[1:]], _UNKNOWN)
    first = np.flatnonzero(np.append(True, tensor[1:] != tensor[:-1])) if n else np.empty(0, np.int64)
    first_use = following[first]
    is_used = np.append(tensor, NONE)[first_use] == tensor[first]
    _decide(facts, tensor[first[is_used]], does[first_use[is_used]] == _READS)
    back = np.empty(len(held.detaches), np.int64)
    back[order[is_detach] - len(by_compute)] = np.flatnonzero(is_detach)
    return next_does[back], last_end[back]


def _decide(facts: Facts, tensor: Ints, reads: Bools) -> None:
    """Note whether what was detached in earlier parts was dead: unless the tensor's next compute reads it."""
    places = tensor[:, None] * facts.tiers + np.arange(facts.tiers)
    earlier = facts.earlier
    earlier.dead_ns[places[~reads]] += earlier.undecided_ns[places[~reads]]
    earlier.undecided_ns[places] = 0


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
    """Tensors of copies whose target was detached before a compute or another copy used it, each as often as it was."""
    by_compute, which = facts.compute_uses()
    copies, detaches, unread = facts.ran(COPY), facts.steps(DETACH), facts.earlier.unread
    tiers, known = facts.tiers, np.flatnonzero(facts.earlier.unread)
    used = (facts.uses.tensor[which] * tiers + facts.compute_tier, facts.a[copies] * tiers + facts.b[copies])
    made, gone = facts.a[copies] * tiers + facts.c[copies], facts.a[detaches] * tiers + facts.b[detaches]
    homes = np.array(facts.plan.home, np.int64)
    place = np.concatenate((known, *used, made, gone))
    issue = np.concatenate((np.full(len(known), NONE), by_compute, copies, copies, detaches))
    counts = [len(known), len(used[0]), len(copies), len(copies), len(detaches)]
    what = np.repeat([COPY, COMPUTE, COMPUTE, COPY, DETACH], counts)
    order = np.lexsort((issue, place))
    place, what = place[order], what[order]
    wasted = (what[:-1] == COPY) & (what[1:] == DETACH) & (place[1:] == place[:-1])
    at_home = homes[place[:-1] // tiers] == place[:-1] % tiers
    kept = np.isin(place[:-1] // tiers, facts.graph.outputs)
    last = np.append(place[1:] != place[:-1], True)[: len(place)]
    unread[place[last]] = what[last] == COPY
    return np.asarray(place[:-1][wasted & ~at_home & ~kept] // tiers)
