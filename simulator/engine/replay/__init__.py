"""The compiled replay: the rules of the engine in C++, for programs whose actions are known before the run.

It takes programs and the machine as columns of numbers (`programs`, `shared`), and returns the same trace as the other
engine. What it does not cover, and what is blocked or wrong, is left to that one, which knows the sentences.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from simulator.engine.program import Program
from simulator.engine.replay.extension import loaded
from simulator.engine.replay.programs import ReplayedProgram, issued_rows, machine_columns
from simulator.engine.shared import Budget, Shared, Stored
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
    return next((reason for program in programs if (reason := ReplayedProgram(program, hardware, switches).reason)), "")


def replay(
    programs: Sequence[Program],
    hardware: Hardware,
    budget_bytes: Budget,
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
    simulated = {rank: programs[rank] for rank, by in enumerate(stands_in) if rank == by}
    compiled = {of: ReplayedProgram(of, hardware, switches) for of in dict.fromkeys(simulated.values())}
    of_ranks = {rank: compiled[program] for rank, program in simulated.items()}
    if any(of.reason for of in compiled.values()):
        return None
    try:
        shared = Shared.of(hardware, budget_bytes, stands_in, of_ranks)
        stored = Stored.of(programs, hardware, stands_in)
        columns = machine_columns(shared, stored, of_ranks)
    except (OverflowError, HosimError, KeyError):  # too large for the numbers there; or a collective that cannot be,
        return None  # which the other engine meets in its place in the run
    if any(of.reason for of in compiled.values()):
        return None
    computes = sum(of.computes for of in of_ranks.values())
    tell = None if progress is None else lambda ended: progress(ended, computes)
    rows = _replay.run(columns, [of.columns for of in compiled.values()], tell)
    if rows is None:
        return None
    if progress is not None:
        progress(computes, computes)
    tables = dict[str, Any]()
    for name, block in zip(_WRITTEN, rows, strict=True):
        tables[name] = Table(TABLES[name], np.frombuffer(block, np.int64).reshape(-1, len(TABLES[name])))
    issued, laps = [Table(ISSUED) for _ in stands_in], [0] * len(stands_in)
    for rank, of in of_ranks.items():
        if of.is_lap:
            laps[rank] = len(of.actions)
        else:
            issued[rank] = Table(ISSUED, issued_rows(of.actions, of.repeats))
    return Trace("ok", **tables, issued=tuple(issued), laps=tuple(laps), stands_in=stands_in, stored_once=stored.once)
