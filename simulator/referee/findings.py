"""Remarks on a trace that breaks no law: what was dead and still held, what was moved for nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from simulator.plan import COMPUTE, COPY, DETACH, SYNC
from simulator.referee.facts import Facts
from simulator.referee.op_columns import ProgramColumns
from simulator.referee.place_laws import Held
from simulator.trace import NONE, Ints, firsts, lasts
from simulator.units import human

_MOVED = ("unread_copies", "unread_bytes", "unchosen_copies", "unchosen_bytes")
_Row = tuple[str, str, int, int]


@dataclass(frozen=True, slots=True)
class Findings:
    """What the referee noticed in a trace that obeys every law.

    Attributes
    ----------
    worst
        ``(tensor name, tier, size [B], time dead and held [ns])`` of the tensor that was held for the most bytes x time
        after its last use; None if there is none.
    unread_copies
        Transfers whose copy nobody used before it was given up.
    unread_bytes
        Their size [B].
    unchosen_copies, unchosen_bytes
        The same of candidates of dynamic reads, which could have been chosen when they were copied.
    """

    worst: _Row | None = None
    unread_copies: int = 0
    unread_bytes: int = 0
    unchosen_copies: int = 0
    unchosen_bytes: int = 0

    @property
    def remarks(self) -> tuple[str, ...]:
        """The findings as sentences; none if there is nothing to remark."""
        said = []
        if self.worst:
            name, tier, size, ns = self.worst
            most = f"most of all {name!r} ({human(size, 'B')} for {human(ns, 'ns')} in all)"
            said.append(f"{tier} holds dead tensors, {most}: detach them after their last use")
        if self.unread_copies:
            what = "copy is" if self.unread_copies == 1 else "copies are"
            said.append(f"{self.unread_copies:,} {what} never used ({human(self.unread_bytes, 'B')}): drop them")
        if self.unchosen_copies:
            what = "copy of a dynamic read was" if self.unchosen_copies == 1 else "copies of dynamic reads were"
            said.append(f"{self.unchosen_copies:,} {what} not chosen ({human(self.unchosen_bytes, 'B')})")
        return tuple(said)


class Look:
    """Collects the findings of one rank, part by part.

    A value is dead from the end of the last compute that uses it before a compute writes the tensor anew, unless the
    tensor is persistent or an output. Persistent tensors and outputs are never dead.

    Parameters
    ----------
    program
        What the rank runs.
    """

    def __init__(self, program: ProgramColumns) -> None:
        self._program, self._moved = program, Counter[str]()
        self._mortal = ~program.persistent
        self._mortal[list(program.graph.outputs)] = False
        self._is_late = np.isin(np.arange(len(program.sizes)), list(program.graph.candidates))
        shape = len(program.sizes), program.tiers
        self._dead_ns, self._undecided_ns = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
        self._unread = np.zeros(shape, bool)

    def take(self, facts: Facts, held: Held) -> None:
        """Look at a part."""
        self._look_for_dead(facts, held)
        tensors = self._unread_copies(facts)
        is_late = self._is_late[tensors]
        for what, some in (("unchosen", tensors[is_late]), ("unread", tensors[~is_late])):
            self._moved[f"{what}_copies"] += len(some)
            self._moved[f"{what}_bytes"] += int(self._program.sizes[some].sum())

    def _look_for_dead(self, facts: Facts, held: Held) -> None:
        """Count how long tensors were dead before their detach; a later part decides if no compute here is next."""
        rows = facts.accesses.pick(np.isin(facts.accesses.kind, (COMPUTE, DETACH)))
        tensor, is_use = rows.place // facts.program.tiers, rows.kind == COMPUTE
        used = facts.latest("used", tensor, np.where(is_use, facts.end[rows.issue], NONE))
        order = np.argsort(tensor, kind="stable")
        uses = order[is_use[order]]
        first = uses[firsts(tensor[uses])]
        decided = tensor[first[~rows.reads[first]]]
        self._dead_ns[decided] += self._undecided_ns[decided]
        self._undecided_ns[tensor[first]] = 0
        following = np.append(uses, NONE)[np.searchsorted(np.flatnonzero(is_use[order]), np.arange(len(order)))]
        next_use = np.empty(len(order), np.int64)
        next_use[order] = np.where(tensor[following] == tensor[order], following, NONE)
        freed = facts.start[rows.issue]
        has_acted = (freed != facts.never) & (freed != NONE)
        dead = np.flatnonzero(~is_use & has_acted & self._mortal[tensor] & (used != NONE))
        dead = dead[(next_use[dead] == NONE) | ~rows.reads[next_use[dead]]]
        place, freed, next_use = rows.place[dead], freed[dead], next_use[dead]
        stretch = np.searchsorted(held.place * facts.stride + held.freed, place * facts.stride + freed)
        ns = facts.times(freed) - facts.times(np.maximum(used[dead], held.taken[stretch]))
        for total, mine in ((self._dead_ns, next_use != NONE), (self._undecided_ns, next_use == NONE)):
            np.add.at(total.reshape(-1), place[mine], ns[mine])

    def _unread_copies(self, facts: Facts) -> Ints:
        """Tensors that were copied and detached again before any action used the copy, once for each such copy."""
        unread, every, tiers = self._unread.reshape(-1), facts.accesses, self._program.tiers
        never_ran = (every.kind == COPY) & (facts.row[every.issue] == NONE)
        rows, known = every.pick((every.kind != SYNC) & ~never_ran), np.flatnonzero(unread)
        place = np.append(known, rows.place)
        arrives = np.append(np.ones(len(known), bool), (rows.kind == COPY) & rows.makes)
        leaves = np.append(np.zeros(len(known), bool), rows.kind == DETACH)
        order = np.argsort(place, kind="stable")
        place, arrives, leaves = place[order], arrives[order], leaves[order]
        wasted = place[:-1][arrives[:-1] & leaves[1:] & (place[1:] == place[:-1])]
        unread[place[lasts(place)]] = arrives[lasts(place)]
        tensor, homes = wasted // tiers, np.array(self._program.plan.home, np.int64)
        return np.asarray(tensor[(homes[tensor] != wasted % tiers) & ~np.isin(tensor, self._program.graph.outputs)])

    def found(self) -> Findings:
        """The findings, behind the last part."""
        total_ns, tensors = self._dead_ns + self._undecided_ns, self._program.graph.tensors
        tiers = self._program.plan.tiers
        places = np.argwhere(total_ns).tolist()
        rows = [(tensors[t].name, tiers[i], tensors[t].size_bytes, int(total_ns[t, i])) for t, i in places]
        return Findings(_worst(rows), **self._moved)


def merged(found: Sequence[Findings]) -> Findings:
    """Merge the findings of all ranks, folded ones included."""
    sums = {name: sum(getattr(one, name) for one in found) for name in _MOVED}
    return Findings(_worst(one.worst for one in found if one.worst), **sums)


def _worst(rows: Iterable[_Row]) -> _Row | None:
    return max(rows, key=lambda row: row[2] * row[3], default=None)
