"""The runtime that handles late reads when they are revealed: it syncs, looks, and fetches what is chosen."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import chain, pairwise

from simulator.plan import SYNC, Code, View
from simulator.policies.late import LateOps
from simulator.policies.reactive.runtime import Runtime
from simulator.policies.reactive.tables import Tables
from simulator.policies.reactive.victims import Victims


class OnDemand(Runtime):
    """The state of one run whose late reads are fetched once they are known.

    What is chosen stays until it is read; copies of candidates may stay longer, also from one step to the next.

    Parameters
    ----------
    tables, victims, ahead, synchronous
        As for `Runtime`; the tables know of late reads.
    """

    def __init__(self, tables: Tables, victims: Victims, ahead: int, *, synchronous: bool) -> None:
        super().__init__(tables, victims, ahead, synchronous=synchronous)
        self._ops = tables.late or LateOps(tables.problem)
        self._awaited: dict[int, tuple[int, ...]] = {}
        self._is_last = False

    def _parts_looking(self, view: View) -> Iterator[list[Code]]:
        """Decide for the ops up to the next that reveals, or reads, what is late; then look."""
        tables, codes, revealed = self._tables, self._codes, self._ops.revealed
        every = list(zip(tables.computes, tables.moves, tables.busy, strict=True))
        cuts = sorted({0, len(every), *(op + 1 for op in revealed), *(op + 1 for op in self._ops.late)})
        for step in range(view.steps):
            self._is_last = step == view.steps - 1
            for start, stop in pairwise(cuts):
                self._decide_beside(step * len(every), every[start:stop])
                self._early.difference_update(self._awaited.pop(stop - 1, ()))
                if stop - 1 in revealed:
                    codes.append((SYNC, self._ops.signal[stop - 1], 0, 0))
                    yield codes
                    codes.clear()
                    for late in revealed[stop - 1]:
                        self._bring(late, view.chosen(late))
            self._go_home()
            yield codes
            codes.clear()

    def _decide_beside(self, base: int, ops: Sequence[tuple[Code, tuple[int, ...], bool]]) -> None:
        """Issue some ops, with what is awaited meanwhile as if each of them used it."""
        if not self._awaited:
            self._decide(base, ops)
            return
        for entry in ops:
            for chosen in self._awaited.values():
                self._touch(chosen)
            self._decide(base, (entry,))

    def run(self, view: View) -> Iterator[Code]:
        """Issue all steps of the run.

        Parameters
        ----------
        view
            Asked how many steps there are and what is chosen, and for nothing else.
        """
        return chain.from_iterable(self._parts_looking(view))

    def _bring(self, late: int, chosen: Sequence[int]) -> None:
        """Fetch what an op is known to read; what the revealing op used, which was issued, may leave for it."""
        candidates = self._ops.candidates
        self._awaited[late] = wanted = tuple([t for t in chosen if t in candidates])
        self._touch(wanted)
        for tensor in wanted:
            if not self._here[tensor]:
                self._make_room(self._sizes[tensor], ())
                self._copy(tensor, self._copy_at[tensor], self._tier)
                self._arrive(tensor)

    def _touch(self, tensors: Sequence[int]) -> None:
        for tensor in tensors:
            if self._here[tensor]:
                self._victims.touch(tensor)

    def _make_room(self, needed: int, moves: Collection[int], keep_after: int | None = None) -> None:
        """Evict as ever, but nothing that is awaited."""
        if self._room[self._tier] < needed:
            super()._make_room(needed, {*moves, *chain.from_iterable(self._awaited.values())}, keep_after)

    def _goes_home(self, tensor: int) -> bool:
        """Whether a tensor leaves when a step ends; candidates do when the run ends."""
        return self._is_last or tensor not in self._ops.candidates
