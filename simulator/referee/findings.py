"""Finds waste in a trace that breaks no law: dead tensors that are held, copies that nothing uses."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from simulator.plan import COMPUTE, COPY, DETACH, SYNC
from simulator.referee.facts import Facts
from simulator.referee.place_laws import Held
from simulator.trace import NONE, Ints
from simulator.units import human

_MOVED = ("unread_copies", "unread_bytes", "unchosen_copies", "unchosen_bytes")
_Row = tuple[str, str, int, int]
"""Tensor name, tier, size [B], time dead and held [ns]."""


@dataclass(frozen=True, slots=True)
class Findings:
    """Remarks on a trace that obeys every law.

    Attributes
    ----------
    worst
        ``(tensor name, tier, size [B], time dead and held [ns])`` of the tensor with the most bytes x time for which it
        was held after its last use; None if there is none.
    unread_copies
        Transfers whose copy no action used before it was detached.
    unchosen_copies, unchosen_bytes
        The same for candidates of dynamic reads, which could have been chosen when they were copied.
    """

    worst: _Row | None = None
    unread_copies: int = 0
    unread_bytes: int = 0
    unchosen_copies: int = 0
    unchosen_bytes: int = 0

    @property
    def remarks(self) -> tuple[str, ...]:
        """The findings as sentences; none if there is nothing to remark."""
        sentences = []
        if self.worst:
            name, tier, size, ns = self.worst
            most = f"most of all {name!r} ({human(size, 'B')} for {human(ns, 'ns')} in all)"
            sentences.append(f"{tier} holds dead tensors, {most}: detach them after their last use")
        if self.unread_copies:
            copies = "copy is" if self.unread_copies == 1 else "copies are"
            sentences.append(f"{self.unread_copies:,} {copies} never used ({human(self.unread_bytes, 'B')}): drop them")
        if self.unchosen_copies:
            copies = "copy of a dynamic read was" if self.unchosen_copies == 1 else "copies of dynamic reads were"
            sentences.append(f"{self.unchosen_copies:,} {copies} not chosen ({human(self.unchosen_bytes, 'B')})")
        return tuple(sentences)


def findings_of(facts: Facts, held: Held) -> Findings:
    """Find what a rank held although it was dead, and copied for nothing.

    A value is dead from the end of the last compute that uses it before a compute writes the tensor anew, unless the
    tensor is persistent or an output. Persistent tensors and outputs are never dead.
    """
    program, moved = facts.program, _unread_copies(facts)
    is_dynamic = np.isin(moved, list(program.graph.candidates))
    counts: dict[str, int] = {}
    for name, tensors in (("unchosen", moved[is_dynamic]), ("unread", moved[~is_dynamic])):
        counts |= {f"{name}_copies": len(tensors), f"{name}_bytes": int(program.sizes[tensors].sum())}
    dead_ns, graph, tiers = _dead_ns(facts, held), program.graph, program.plan.tiers
    places = np.argwhere(dead_ns).tolist()
    rows = [(graph.tensors[t].name, tiers[i], graph.tensors[t].size_bytes, int(dead_ns[t, i])) for t, i in places]
    return Findings(_worst(rows), **counts)


def _dead_ns(facts: Facts, held: Held) -> Ints:
    """Add up how long each tensor was dead in each tier before its detach [ns]."""
    program, tiers, accesses = facts.program, facts.program.tiers, facts.accesses
    is_mortal = ~program.persistent
    is_mortal[list(program.graph.outputs)] = False
    rows = accesses.pick(np.isin(accesses.kind, (COMPUTE, DETACH)) & is_mortal[accesses.place // tiers])
    tensor, is_use = rows.place // tiers, rows.kind == COMPUTE
    used = facts.latest(np.where(is_use, facts.end[rows.issue], NONE), tensor)
    order = np.argsort(tensor, kind="stable")
    following = np.append(order[is_use[order]], NONE)[np.cumsum(is_use[order]) - is_use[order]]
    is_read_next = np.empty(len(order), bool)
    is_read_next[order] = (following != NONE) & (tensor[following] == tensor[order]) & rows.reads[following]
    freed = facts.start[rows.issue]
    has_acted = (freed != facts.never) & (freed != NONE)
    dead = np.flatnonzero(~is_use & has_acted & (used != NONE) & ~is_read_next)
    place, freed = rows.place[dead], freed[dead]
    stretch = np.searchsorted(held.place * facts.stride + held.freed, place * facts.stride + freed)
    dead_ns = np.zeros((len(program.sizes), tiers), np.int64)
    ns = facts.times(freed) - facts.times(np.maximum(used[dead], held.taken[stretch]))
    np.add.at(dead_ns.reshape(-1), place, ns)
    return dead_ns


def _unread_copies(facts: Facts) -> Ints:
    """Return the tensors whose copies were detached before any action used them, once for each such copy."""
    program, accesses = facts.program, facts.accesses
    never_ran = (accesses.kind == COPY) & (facts.row[accesses.issue] == NONE)
    rows = accesses.pick((accesses.kind != SYNC) & ~never_ran)
    rows = rows.pick(np.argsort(rows.place, kind="stable"))
    arrives, leaves = (rows.kind == COPY) & rows.makes, rows.kind == DETACH
    wasted = rows.place[:-1][arrives[:-1] & leaves[1:] & (rows.place[1:] == rows.place[:-1])]
    tensor, homes = wasted // program.tiers, np.array(program.plan.home, np.int64)
    return np.asarray(tensor[(homes[tensor] != wasted % program.tiers) & ~np.isin(tensor, program.graph.outputs)])


def merged(by_rank: Sequence[Findings]) -> Findings:
    """Merge the findings of all ranks, folded ones included."""
    sums = {name: sum(getattr(findings, name) for findings in by_rank) for name in _MOVED}
    return Findings(_worst(findings.worst for findings in by_rank if findings.worst), **sums)


def _worst(rows: Iterable[_Row]) -> _Row | None:
    return max(rows, key=lambda row: row[2] * row[3], default=None)
