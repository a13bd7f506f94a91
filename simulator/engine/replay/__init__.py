"""The compiled replay: the rules of the engine in C++, for programs whose actions are known before the run.

It takes programs and the machine as columns of numbers (`tables`, `machine`), and returns the same trace as the other
engine. What it does not cover, and what is blocked or wrong, is left to that one, which knows the sentences.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from simulator.engine.program import Program
from simulator.engine.replay.extension import loaded
from simulator.engine.replay.machine import Shared
from simulator.engine.replay.tables import ENDLESS, Tables, machine_columns
from simulator.hardware import Hardware
from simulator.plan import COMPUTE
from simulator.scenario import Switches
from simulator.trace import ISSUED, RATES, RESIDENCIES, SPANS, WAITS, Table, Trace, pick

_replay = loaded()

Progress = Callable[[int, int], None]


def is_built() -> bool:
    """Return whether the extension is there, made of these sources."""
    return _replay is not None


def why_not(programs: Sequence[Program], hardware: Hardware, switches: Switches) -> str:
    """Return why these programs are not replayed; empty if they are."""
    return _Run(programs, hardware, switches, range(len(programs))).reason


def replay(
    programs: Sequence[Program],
    hardware: Hardware,
    budget_bytes: int | float | None,
    switches: Switches,
    stands_in: tuple[int, ...],
    *,
    waits: bool = True,
    progress: Progress | None = None,
    stop_ns: int = ENDLESS,
) -> Trace | None:
    """Replay one program per rank; None if that is left to the other engine."""
    run = _Run(programs, hardware, switches, stands_in)
    if run.reason:
        return None
    shared = Shared(programs, hardware, budget_bytes, stands_in, run.contended)
    for number, tables in enumerate(run.tables):
        first = run.numbers.index(number)
        tables.add_timings([path >= 0 for path in shared.link_paths[first]])
    columns = machine_columns(shared, run.tables, run.numbers) | {"keeps_waits": int(waits), "stop_ns": stop_ns}
    told = None if progress is None else lambda ended: progress(ended, run.computes)
    found = _replay.run(columns, [tables.columns for tables in run.tables], told)
    return None if found is None else run.trace(found, shared)


class _Run:
    def __init__(
        self, programs: Sequence[Program], hardware: Hardware, switches: Switches, stands_in: Sequence[int]
    ) -> None:
        self._programs, self._stands_in = programs, stands_in
        self.ranks = [rank for rank, by in enumerate(stands_in) if rank == by]
        ids: dict[int, int] = {}
        self.numbers = [ids.setdefault(id(programs[rank]), len(ids)) for rank in self.ranks]
        distinct = [programs[self.ranks[self.numbers.index(number)]] for number in range(len(ids))]
        self.reason = next((reason for program in distinct if (reason := self._obstacle(program))), "")
        if self.reason:
            return
        self.tables = [Tables(program, hardware, switches) for program in distinct]
        self.reason = next((tables.reason for tables in self.tables if tables.reason), "")
        if self.reason:
            return
        self.contended = {r for r, n in zip(self.ranks, self.numbers, strict=True) if self.tables[n].is_contended}
        self.computes = sum(self.tables[n].computes for n in self.numbers)

    def _obstacle(self, program: Program) -> str:
        if program.allocator != "ideal":
            return f"places with addresses (allocator {program.allocator})"
        return ""

    def trace(self, found: tuple[bytes, bytes, bytes, bytes], shared: Shared) -> Trace:
        names = ("spans", "waits", "residencies", "rates")
        tables = {name: Table(columns) for name, columns in zip(names, (SPANS, WAITS, RESIDENCIES, RATES), strict=True)}
        for table, rows in zip(tables.values(), found, strict=True):
            table.append(rows)
        issued = [Table(ISSUED) for _ in self._stands_in]
        laps = [0] * len(self._stands_in)
        for rank, number in zip(self.ranks, self.numbers, strict=True):
            program = self._programs[rank]
            plan, actions = program.plan, self.tables[number].actions
            if plan.fixed is not None and plan.repeats == program.graph.steps:
                laps[rank] = len(plan.actions)
            else:
                one = np.stack(
                    [
                        np.asarray(column, np.int64)
                        for column in (actions.kind, actions.a, actions.b, actions.c)
                    ],
                    1,
                )
                issued[rank] = Table(ISSUED, np.tile(one, (self.tables[number].repeats, 1)))
        once = tuple((*place, size) for place, size in shared.stored_once.items())
        begin_together = len({self._programs[rank].starts_ns for rank in self._stands_in}) == 1
        spans = tables["spans"].whole()
        until = None
        if not begin_together:
            computes = pick(spans, spans["kind"] == COMPUTE)
            last = np.full(len(issued), -1)
            np.maximum.at(last, computes["rank"], computes["end_ns"])
            until = int(min(last[last >= 0], default=0))
        return Trace(
            "ok",
            issued=tuple(issued),
            laps=tuple(laps),
            stands_in=tuple(self._stands_in),
            until_ns=until,
            stored_once=once,
            **tables,
        )
