"""The compiled replay: the rules of the engine in C++, for programs whose actions are known before the run.

It takes programs and the machine as columns of numbers (`programs`, `shared`), and returns the same trace as the other
engine. What it does not cover, and what is blocked or wrong, is left to that one, which knows the sentences.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from simulator.engine.program import Program
from simulator.engine.replay.extension import loaded
from simulator.engine.replay.programs import ReplayedProgram, issued_rows, machine_columns
from simulator.engine.shared import NOTHING, Shared, Stored, memories
from simulator.errors import HosimError
from simulator.hardware import Hardware
from simulator.scenario import Switches
from simulator.trace import ISSUED, TABLES, Table, Trace

_replay = loaded()

_WRITTEN = ("spans", "waits", "residencies", "rates")
"""The tables that the extension writes, in their order."""

Progress = Callable[[int, int], None]


def is_built() -> bool:
    """Return whether the extension is there, made of these sources."""
    return _replay is not None


def why_not(programs: Sequence[Program], hardware: Hardware, switches: Switches) -> str:
    """Return why programs are not covered; empty if they are.

    Parameters
    ----------
    programs, hardware, switches
        See `simulator.engine.run`.
    """
    run = _Run(programs, hardware, switches, tuple(range(len(programs))))
    return run.reason


def replay(
    programs: Sequence[Program],
    hardware: Hardware,
    budget_bytes: int | float | None,
    switches: Switches,
    stands_in: tuple[int, ...],
    progress: Progress | None = None,
) -> Trace | None:
    """Replay one program per rank.

    Parameters
    ----------
    programs, hardware, budget_bytes, switches, progress
        See `simulator.engine.run`.
    stands_in
        For each rank, the rank that is simulated in its place.

    Returns
    -------
    Trace or None
        What happened; None if it is left to the other engine: it is not covered, or blocked, or wrong.
    """
    run = _Run(programs, hardware, switches, stands_in)
    if (columns := run.columns(budget_bytes)) is None:
        return None
    computes = sum(tables.computes for tables in run.of_ranks)
    tell = None if progress is None else lambda ended: progress(ended, computes)
    rows = _replay.run(columns, [tables.columns for tables in run.tables], tell)
    if rows is None:
        return None
    if progress is not None:
        progress(computes, computes)
    return run.trace({name: _table(TABLES[name], part) for name, part in zip(_WRITTEN, rows, strict=True)})


class _Run:
    """Programs and their machine, as tables.

    Parameters
    ----------
    programs, hardware, switches, stands_in
        See `replay`.

    Attributes
    ----------
    tables, of_ranks
        Each program once; that of each simulated rank.
    """

    def __init__(
        self, programs: Sequence[Program], hardware: Hardware, switches: Switches, stands_in: tuple[int, ...]
    ) -> None:
        self._programs, self._hardware, self._stands_in = programs, hardware, stands_in
        self._ranks = [rank for rank, by in enumerate(stands_in) if rank == by]
        distinct = {id(programs[rank]): programs[rank] for rank in self._ranks}
        tables = {key: ReplayedProgram(program, hardware, switches) for key, program in distinct.items()}
        self.tables, self.of_ranks = list(tables.values()), [tables[id(programs[rank])] for rank in self._ranks]
        self._stored: tuple[tuple[int, int, int, int], ...] = ()

    @property
    def reason(self) -> str:
        """Why it is not covered; empty if it is."""
        return next((tables.reason for tables in self.tables if tables.reason), "")

    def columns(self, budget_bytes: int | float | None) -> dict[str, Any] | None:
        """Return the machine in columns, and complete those of programs; None if some part is not covered."""
        if self.reason:
            return None
        try:
            return self._columns(budget_bytes)
        except OverflowError:  # a time or a size that is too large for the numbers there
            return None
        except (HosimError, KeyError):  # a collective that cannot be: the other engine meets it in its place in the run
            return None

    def _columns(self, budget_bytes: int | float | None) -> dict[str, Any] | None:
        of_ranks = [*zip(self._ranks, self.of_ranks, strict=True)]
        contended = memories({rank: tables.device for rank, tables in of_ranks if tables.is_contended})
        shared = Shared.of(self._hardware, budget_bytes, self._stands_in, contended)
        for tables in self.tables:
            paths = shared.link_paths[self.of_ranks.index(tables)]
            tables.add_links(shared, [path != NOTHING for path in paths])
        stored = Stored.of(self._programs, self._hardware, self._stands_in)
        self._stored = stored.once
        return None if self.reason else machine_columns(shared, stored, self.tables, self.of_ranks)

    def trace(self, tables_of_run: dict[str, Any]) -> Trace:
        """Return the trace that has these tables."""
        issued, laps = [Table(ISSUED) for _ in self._stands_in], [0] * len(self._stands_in)
        for rank, tables in zip(self._ranks, self.of_ranks, strict=True):
            plan = self._programs[rank].plan
            if plan.fixed is not None and plan.repeats == self._programs[rank].graph.steps:
                laps[rank] = len(tables.actions)
            else:
                issued[rank] = Table(ISSUED, issued_rows(tables.actions, tables.repeats))
        return Trace(
            "ok",
            **tables_of_run,
            issued=tuple(issued),
            laps=tuple(laps),
            stands_in=self._stands_in,
            stored_once=self._stored,
        )


def _table(names: tuple[str, ...], rows: bytes) -> Table:
    table = Table(names)
    table.append(rows)
    return table
