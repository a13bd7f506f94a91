"""Remarks on a trace that breaks no law: what was dead and still held, what was moved for nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from simulator.columns import NONE, Bools, Ints, firsts, lasts
from simulator.plan import COMPUTE, COPY, DETACH
from simulator.referee.facts import Facts
from simulator.referee.place_laws import Held
from simulator.units import human

_WORST = 5
_MOVED = ("unread_copies", "unread_bytes", "unchosen_copies", "unchosen_bytes")
_Row = tuple[str, str, int, int]


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
    worst: tuple[_Row, ...] = ()
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
        self._moved = Counter[str]()

    def take(self, facts: Facts, held: Held) -> None:
        """Look at a part.

        A value is dead from the end of the last compute that uses it before a compute writes the tensor anew, unless
        the tensor is persistent or an output. Persistent tensors and outputs are never dead.
        """
        mortal = ~facts.program.persistent
        mortal[list(facts.graph.outputs)] = False
        follower, last_end = _neighbours(facts, held)
        dead = mortal[facts.a[held.detaches]] & (follower != _READS)
        dead &= (last_end != NONE) & (held.detached != facts.never) & (held.detached != NONE)
        issues, freed = held.detaches[dead], held.detached[dead]
        place = facts.source[issues]
        since = np.maximum(last_end[dead], _taken_before(facts, held, place, freed))
        ns, is_known = facts.times(freed) - facts.times(since), follower[dead] != _UNKNOWN
        np.add.at(facts.earlier.dead_ns, place[is_known], ns[is_known])
        np.add.at(facts.earlier.undecided_ns, place[~is_known], ns[~is_known])
        unread = _unread_copies(facts)
        is_late = np.isin(unread, list(facts.graph.candidates))
        for what, tensors in (("unchosen", unread[is_late]), ("unread", unread[~is_late])):
            self._moved[f"{what}_copies"] += len(tensors)
            self._moved[f"{what}_bytes"] += int(facts.sizes[tensors].sum())

    def found(self, facts: Facts) -> Findings:
        """The findings, behind the last part."""
        total_ns = facts.earlier.dead_ns + facts.earlier.undecided_ns
        places, dead = np.flatnonzero(total_ns), dict.fromkeys(facts.plan.tiers, 0)
        rows = []
        for place, ns in zip(places.tolist(), total_ns[places].tolist(), strict=True):
            tensor, tier = facts.graph.tensors[place // facts.tiers], facts.plan.tiers[place % facts.tiers]
            dead[tier] += tensor.size_bytes * ns
            rows.append((tensor.name, tier, tensor.size_bytes, ns))
        return Findings(dead, _worst(rows), **self._moved)


def merged(found: Sequence[Findings]) -> Findings:
    """What was noticed on all ranks, of those that were folded, too."""
    dead: Counter[str] = Counter()
    for one in found:
        dead.update(one.dead_byte_ns)
    sums = {name: sum(getattr(one, name) for one in found) for name in _MOVED}
    return Findings(dict(dead), _worst(row for one in found for row in one.worst), **sums)


def _worst(rows: Iterable[_Row]) -> tuple[_Row, ...]:
    return tuple(sorted(rows, key=lambda row: -row[2] * row[3])[:_WORST])


_UNKNOWN, _WRITES, _READS = range(3)
"""What the next compute that names a tensor does: that may be for a later part to tell."""


def _neighbours(facts: Facts, held: Held) -> tuple[Ints, Ints]:
    """For each detach: what the tensor's next compute does, and when its last compute ended.

    What that says of the detaches of earlier parts is noted.
    """
    (by_compute, which), earlier = facts.compute_uses, facts.earlier
    used, detaches, reads = facts.uses.tensor[which], held.detaches, facts.uses.reads[which]
    tensor, issue = np.append(used, facts.a[detaches]), np.append(by_compute, detaches)
    end = np.append(facts.end[by_compute], np.full(len(detaches), NONE))
    does = np.append(np.where(reads, _READS, _WRITES), np.full(len(detaches), _UNKNOWN))
    order = np.lexsort((issue, tensor))
    tensor, end, does, is_detach = tensor[order], end[order], does[order], order >= len(used)
    last_end = facts.running_max(tensor, end, earlier.used_ns)
    np.maximum.at(earlier.used_ns, used, facts.times(facts.end[by_compute]))
    n, first = len(tensor), np.flatnonzero(firsts(tensor))
    following = np.minimum.accumulate(np.append(np.where(is_detach, n, np.arange(n)), n)[::-1])[::-1]
    at_all, does = np.append(tensor, NONE)[following], np.append(does, _UNKNOWN)[following]
    next_does = np.where(at_all[1:] == tensor, does[1:], _UNKNOWN)
    is_used = at_all[first] == tensor[first]
    _decide(facts, tensor[first[is_used]], does[first[is_used]] == _READS)
    back = np.empty(len(detaches), np.int64)
    back[order[is_detach] - len(used)] = np.flatnonzero(is_detach)
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


def _unread_copies(facts: Facts) -> Ints:
    """Tensors of copies whose target was detached before a compute or another copy used it, each as often as it was."""
    tiers, unread, copies, detaches = facts.tiers, facts.earlier.unread, facts.ran(COPY), facts.steps(DETACH)
    known, homes = np.flatnonzero(unread), np.array(facts.plan.home, np.int64)
    parts = (
        (COPY, np.full(len(known), NONE), known),
        (COMPUTE, *facts.used),
        (COMPUTE, copies, facts.source[copies]),
        (COPY, copies, facts.target[copies]),
        (DETACH, detaches, facts.source[detaches]),
    )
    what = np.repeat([kind for kind, *_ in parts], [len(issues) for _, issues, _ in parts])
    issue, place = (np.concatenate([part[i] for part in parts]) for i in (1, 2))
    order = np.lexsort((issue, place))
    place, what = place[order], what[order]
    wasted = (what[:-1] == COPY) & (what[1:] == DETACH) & (place[1:] == place[:-1])
    tensor, tier = place[:-1] // tiers, place[:-1] % tiers
    kept = np.isin(tensor, facts.graph.outputs)
    last = lasts(place)
    unread[place[last]] = what[last] == COPY
    return np.asarray(tensor[wasted & (homes[tensor] != tier) & ~kept])
