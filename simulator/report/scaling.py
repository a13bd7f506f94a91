"""A scaling curve for people: the table, and what became of the efficiency."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from simulator.report.rows import ABSENT, percent, present, quantity
from simulator.report.text import Column, aligned
from simulator.trace import CAUSES
from simulator.units import counted

POINT = "set "
"""What the columns of the fields that a point sets begin with."""
Rows = Sequence[Mapping[str, Any]]


def table(rows: Rows) -> str:
    """Write a line per policy and point.

    Parameters
    ----------
    rows
        See `simulator.run.scaling.Scaling`.
    """
    columns = [
        Column("policy", tuple(str(row["policy"]) for row in rows), left=True),
        Column("ranks", tuple(f"{row['ranks']:,}" for row in rows)),
        Column("status", tuple(str(row["status"]) for row in rows), left=True),
        _quantities("step", rows, "step_ns"),
        Column("efficiency", tuple(percent(row["efficiency"]) for row in rows)),
        _quantities("collectives", rows, "collective_ns"),
        Column("masked", tuple(percent(row.get("masked_fraction")) for row in rows)),
        _quantities("collective", rows, "wait_collective_ns"),
        _quantities("peer", rows, "wait_peer_ns"),
        Column("tokens/s", tuple(_count(row["tokens_per_s"]) for row in rows)),
    ]
    return aligned([columns])


def _quantities(head: str, rows: Rows, key: str) -> Column:
    return Column(head, tuple(quantity(row.get(key), "ns") for row in rows))


def _count(value: float | None) -> str:
    """A rate with three significant digits, such as ``1.24 M``."""
    if value is None:
        return ABSENT
    size, letter = next((s for s in ((10**9, " G"), (10**6, " M"), (10**3, " k")) if value >= s[0]), (1, ""))
    return f"{float(f'{value / size:.3g}'):g}{letter}"


def sentences(rows: Rows) -> list[str]:
    """Say for each policy what is left at its last point, and which waits took the rest.

    Parameters
    ----------
    rows
        See `simulator.run.scaling.Scaling`.
    """
    found = []
    for policy in dict.fromkeys(row["policy"] for row in rows):
        ran = [row for row in rows if row["policy"] == policy and present(row["efficiency"])]
        if len(ran) > 1:
            found.append(_kept(ran[0], ran[-1]))
    return found


def _kept(first: Mapping[str, Any], last: Mapping[str, Any]) -> str:
    few, many = counted(first["ranks"], "rank"), f"{last['ranks']:,}"
    steps = f"{quantity(first['step_ns'], 'ns')} and {quantity(last['step_ns'], 'ns')} a step"
    more = {cause: last[f"wait_{cause}_ns"] - first[f"wait_{cause}_ns"] for cause in CAUSES}
    cause, ns = max(more.items(), key=lambda item: item[1])
    why = f"; waits for {_NAMES.get(cause, cause)} grow most, by {quantity(ns, 'ns')}" if ns > 0 else ""
    return f"{last['policy']} keeps {percent(last['efficiency'])} of the efficiency of {few} at {many}: {steps}{why}."


_NAMES = {"collective": "collectives", "peer": "peers", "transfer": "transfers", "capacity": "room", "host": "the host"}
