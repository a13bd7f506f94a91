"""A small plan and its trace, made by hand, and ways to spoil them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from stories import graph, machine, steps

from simulator.plan import COMPUTE, COPY, NOWHERE, Plan
from simulator.referee import check_trace
from simulator.trace import CAUSES, ISSUED, RESIDENCIES, SPANS, WAITS, Table, Trace, packer

HBM, DDR = 0, 1
D2H, H2D = 0, 1
W, A = 0, 1
F, G = 0, 1
TRANSFER, ORDER = CAUSES.index("transfer"), CAUSES.index("order")

MACHINE = machine()
GRAPH = graph("w 10 persistent, a 4", "f: w -> a, 10 ns, workspace 2", "g: a ->, 5 ns")
TEXT = "copy w ddr hbm; compute f; detach w hbm; compute g; detach a hbm"


def plan_of(text: str, g=GRAPH, home: dict[str, str] | None = None, hardware=MACHINE, **more: Any) -> Plan:
    where = {"w": "ddr"} if home is None else home
    tiers = hardware.tier_names
    homes = tuple(tiers.index(where[t.name]) if t.name in where else NOWHERE for t in g.tensors)
    return Plan("hand", tiers, homes, steps(g, hardware, text), **more)


PLAN = plan_of(TEXT)


@dataclass
class Rows:
    """The rows of a trace that can be spoilt: a copy of w from 0 to 10 ns, f to 20, g to 25."""

    spans: list[list[int]] = field(
        default_factory=lambda: [
            [0, COPY, W, H2D, 0, 0, 0, 0, 10],
            [0, COMPUTE, F, 0, 0, 1, 0, 10, 20],
            [0, COMPUTE, G, 0, 0, 3, 0, 20, 25],
        ]
    )
    waits: list[list[int]] = field(default_factory=lambda: [[0, 0, F, 1, 0, 10, TRANSFER, W, H2D, W]])
    residencies: list[list[int]] = field(
        default_factory=lambda: [
            [0, 0, DDR, W, 10],
            [0, 0, HBM, W, 10],
            [10, 0, HBM, A, 4],
            [10, 0, HBM, -1, 2],
            [20, 0, HBM, -1, -2],
            [20, 0, HBM, W, -10],
            [25, 0, HBM, A, -4],
        ]
    )
    issued: list[list[int]] = field(default_factory=list)

    def trace(self, status: str = "ok", blocked: tuple[str, ...] = ()) -> Trace:
        tables = []
        for columns, rows in ((SPANS, self.spans), (WAITS, self.waits), (RESIDENCIES, self.residencies)):
            table = Table(columns)
            for row in rows:
                table.append(packer(columns)(*row))
            tables.append(table)
        issued = Table(ISSUED)
        issued.append(b"".join(packer(ISSUED)(*row) for row in self.issued))
        return Trace(status, *tables, (issued,), blocked)


def judge(rows: Rows, plan: Plan = PLAN, **more: Any):
    """What the referee says of rows."""
    budget, g = more.pop("budget", 100), more.pop("g", GRAPH)
    return check_trace(g, MACHINE, [plan], rows.trace(**more), budget)


def put(table: str, row: int, **changes: int) -> Callable[[Rows], None]:
    names = {"spans": SPANS, "waits": WAITS, "residencies": RESIDENCIES}[table]

    def spoil(rows: Rows) -> None:
        for name, value in changes.items():
            getattr(rows, table)[row][names.index(name)] = value

    return spoil


def drop(table: str, row: int) -> Callable[[Rows], None]:
    return lambda rows: getattr(rows, table).pop(row)


def add(table: str, row: list[int], at: int = 99) -> Callable[[Rows], None]:
    return lambda rows: getattr(rows, table).insert(at, row)


def both(*spoils: Callable[[Rows], None]) -> Callable[[Rows], None]:
    def spoil(rows: Rows) -> None:
        for one in spoils:
            one(rows)

    return spoil
