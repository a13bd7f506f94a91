"""Runs each replay by both engines, and compares all that they tell."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from simulator import engine
from simulator.engine import Program, choice, replay
from simulator.engine.program import simulated_for
from simulator.hardware import Hardware
from simulator.scenario import Switches
from simulator.trace import TABLES, Ints, Table, Trace


class BothEngines:
    """Stands in for `simulator.engine.run`: runs what it is given by both engines.

    Attributes
    ----------
    counts
        How many replays were compared, and how many were left to the reference, by the reason.
    """

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def __call__(
        self, programs: Sequence[Program], hardware: Hardware, *, fold: Any = "never", progress: Any = None,
        budget_bytes: int | float | None = None, switches: Switches | None = None,
    ) -> Trace:  # fmt: skip
        switches = switches or Switches()
        about = programs, hardware, budget_bytes, switches
        try:
            with choice.using("simpy"):
                expected = choice.run(programs, hardware, budget_bytes=budget_bytes, switches=switches, fold=fold)
        except Exception:
            found = replay.replay(*about, simulated_for(programs, hardware, fold))
            self.counts["refused" if found is None else "not refused"] += 1
            raise
        given = *about, expected.stands_in  # perhaps folded on trial
        if reason := replay.why_not(programs, hardware, switches):
            self.counts[reason] += 1
            assert replay.replay(*given) is None
            return expected
        found = replay.replay(*given)
        if expected.status == "blocked":
            assert found is None
            self.counts["blocked"] += 1
            return expected
        assert found is not None
        assert differences(expected, found) == []
        self.counts["compared"] += 1
        return expected

    @property
    def left_out(self) -> set[str]:
        """Why some were left to the reference."""
        return set(self.counts) - {"compared", "blocked", "refused", "not refused"}


def run(programs: Sequence[Program], hardware: Hardware, **more: Any) -> Trace:
    """Run programs by both engines, which must tell the same; by one where a test has chosen it."""
    if choice.CHOICE in os.environ or not replay.is_built():
        return engine.run(programs, hardware, **more)
    both = BothEngines()
    try:
        return both(programs, hardware, **more)
    finally:
        assert not both.counts["not refused"], "the compiled engine runs what the other refuses"


ORDER = {
    "spans": ("rank", "issue"), "residencies": ("rank", "tier"), "addresses": ("rank", "tier"),
    "reserved": ("rank", "tier"), "compactions": ("rank", "tier"), "waits": ("rank", "stream", "start_ns", "end_ns"),
    "rates": ("bus", "instance"),
}  # fmt: skip
"""By what rows are sorted before they are compared: who ended first within an instant is nobody's to tell.

What is taken and freed in a tier of a rank stays as it was written, as it decides a peak.
"""


def differences(one: Trace, other: Trace) -> list[str]:
    """What two traces do not have in common."""
    fields = ("status", "laps", "stored_once", "stands_in", "blocked")
    found = [name for name in fields if getattr(one, name) != getattr(other, name)]
    tables = [(name, getattr(one, name), getattr(other, name)) for name in TABLES]
    tables += [(f"issued {rank}", *both) for rank, both in enumerate(zip(one.issued, other.issued, strict=True))]
    differing = ((name, _first_difference(*both, ORDER.get(name, ()))) for name, *both in tables)
    return found + [f"{name}, row {row}" for name, row in differing if row is not None]


def _first_difference(one: Table, other: Table, order: Sequence[str]) -> int | None:
    """The first row in which two tables differ; None if they are the same."""
    rows = [_sorted(table, order) for table in (one, other)]
    shared = min(map(len, rows))
    differs = np.flatnonzero((rows[0][:shared] != rows[1][:shared]).any(1))
    if len(differs):
        return int(differs[0])
    return None if len(rows[0]) == len(rows[1]) else shared


def _sorted(table: Table, order: Sequence[str]) -> Ints:
    whole = table.whole()
    rows = np.stack([*whole.values()], 1)
    return rows[np.lexsort([whole[name] for name in reversed(order)])] if order else rows
