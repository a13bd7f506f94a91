"""Addresses and compaction (rule 17), for the allocator `best_fit`."""

from __future__ import annotations

from dataclasses import dataclass, field

from oracle.order import Action
from simulator.hardware import Allocator

Wanted = list[tuple[int, int]]
"""Places to take at once, with their sizes: tensors, and last a workspace (-1 - op)."""


@dataclass
class Compaction:
    """One compaction: who asked, when, from when on it runs, and until when."""

    asked_ns: int
    start_ns: int = -1
    end_ns: int = -1
    pages: int = 0


@dataclass
class Addresses:
    """Where the places of one rank's compute tier lie."""

    size: int
    figures: Allocator
    places: dict[tuple[int, int], tuple[int, int]] = field(default_factory=dict)
    compaction: Compaction | None = None
    done: list[Compaction] = field(default_factory=list)
    rows: list[tuple[int, int, int, int]] = field(default_factory=list)

    def _holes(self) -> list[tuple[int, int]]:
        """The holes as (size, offset), the smallest first, and of one size the lowest."""
        taken = sorted(self.places.values())
        starts = [0, *(offset + size for offset, size in taken)]
        ends = [*(offset for offset, _ in taken), self.size]
        return sorted((end - start, start) for start, end in zip(starts, ends, strict=True) if end > start)

    def take(self, action: Action | None, wanted: Wanted, now: int) -> bool:
        """Take the smallest hole that suffices for each of these, or nothing if one finds none."""
        before = dict(self.places)
        for item, size in wanted:
            fitting = [hole for hole in self._holes() if hole[0] >= size]
            if not fitting:
                self.places = before
                return False
            self.places[self._key(action, item)] = fitting[0][1], size
        self.rows += [(now, item, *self.places[self._key(action, item)]) for item, _ in wanted]
        return True

    @staticmethod
    def _key(action: Action | None, item: int) -> tuple[int, int]:
        """A workspace is of one action, a tensor of all."""
        return item, action.issue if action is not None and item < 0 else -1

    def give(self, action: Action | None, item: int, now: int) -> None:
        """Give a place back."""
        offset, size = self.places.pop(self._key(action, item))
        self.rows.append((now, item, offset, -size))

    def ask(self, now: int) -> None:
        """Ask for a compaction, if the framework has one and none is asked for."""
        if self.figures.compaction is not None and self.compaction is None:
            self.compaction = Compaction(now)

    def start(self, now: int) -> None:
        """Nothing runs any more: count the pages, and take the time of all of them."""
        cost = self.figures.compaction
        assert self.compaction is not None
        assert cost is not None
        counted = sum(size for _, size in self.places.values())
        if cost.pages == "moved":
            low = counted = 0
            for offset, size in sorted(self.places.values()):
                counted += size if offset > low else 0
                low += size
        pages = -(-counted // self.figures.page_bytes)
        takes = cost.per_event_ns if cost.per_page_ns is None else cost.per_page_ns * pages
        self.compaction.start_ns, self.compaction.pages = now, pages
        self.compaction.end_ns = now + (takes or 0)

    def finish(self, now: int) -> None:
        """Move all places down, in the order of their addresses, until they touch."""
        assert self.compaction is not None
        low = 0
        for key, (offset, size) in sorted(self.places.items(), key=lambda place: place[1]):
            if offset != low:
                self.rows += [(now, key[0], offset, -size), (now, key[0], low, size)]
            self.places[key] = low, size
            low += size
        self.done.append(self.compaction)
        self.compaction = None
