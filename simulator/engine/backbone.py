"""The backbone of a plan that is decided at run time only in part: counted once, and issued lap after lap.

A runtime decides about tensors of its own, which the backbone neither moves nor writes. Their steps are counted as they
are issued, as if there were no laps, and so are those reads of the backbone that are late. All else that the backbone
asks for is larger by the same amount in each lap (see `simulator.engine.book`), whatever is decided in between.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, islice
from typing import TYPE_CHECKING

from simulator.engine.steps import Step
from simulator.plan import COMPUTE, PART, Code, Steps

if TYPE_CHECKING:
    from simulator.engine.host import Host
    from simulator.engine.issued import Issued

Counted = tuple[int, Step]
"""The kind of a step, and the step."""


def spelled_out(codes: Iterator[Code], parts: Sequence[Steps]) -> Iterator[Code]:
    """The codes of a plan with the steps of each part in its place."""
    return chain.from_iterable(parts[code[1]].codes() if code[0] == PART else (code,) for code in codes)


class Backbone:
    """Issues the parts of a backbone, and between them what is decided.

    Parameters
    ----------
    parts
        The parts; a lap is all of them in turn.
    codes
        What the plan issues, parts by their numbers.
    decided
        Counts what is decided.
    """

    __slots__ = ("_at", "_codes", "_computes", "_counted", "_decided", "_lap", "_part", "_parts", "_rest")

    def __init__(self, parts: Sequence[Steps], codes: Iterator[Code], decided: Issued) -> None:
        self._codes, self._decided = codes, decided
        self._parts = [list(part.codes()) for part in parts]
        self._computes = [part.kind.count(COMPUTE) for part in parts]
        counted = iter(decided.count_backbone(chain.from_iterable(self._parts)))
        self._counted = [list(islice(counted, len(part))) for part in parts]
        self._lap = self._at = 0
        self._part = -1
        self._rest: Iterator[Counted] = iter(())

    def issue(self, host: Host) -> Step | None:
        """Issue steps until one has to wait; that one, or None if there are no more."""
        while True:
            step = self._go_on(host) if self._part >= 0 else None
            if step is None:
                step = self._decided.issue(iter(self._next_decided, None), host)
            if step is not None or self._part < 0:
                return step
            self._begin(host)

    def _next_decided(self) -> Code | None:
        """The next step that is decided; None if a part comes first, or nothing more."""
        code = next(self._codes, None)
        if code is None or code[0] != PART:
            return code
        self._part = code[1]
        return None

    def _begin(self, host: Host) -> None:
        """Begin with a part."""
        host.lap, self._at = self._lap, 0
        self._rest = iter(self._counted[self._part])

    def _go_on(self, host: Host) -> Step | None:
        """Issue the rest of a part, and note what is issued; the step that has to wait, if one has."""
        first, part = host.key, self._parts[self._part]
        step = host.issue_counted(self._rest)
        issued = self._at + host.key - first + (step is not None)
        self._decided.noted += part[self._at : issued]
        self._at = issued
        if step is None:
            self._end(host)
        return step

    def _end(self, host: Host) -> None:
        """All of a part is issued: what is decided next comes behind its computes."""
        self._decided.go_past(self._computes[self._part])
        if self._part == len(self._parts) - 1:
            self._lap += 1
        self._part, host.lap = -1, 0
