"""A scaling curve for people: the table, and what became of the efficiency."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import takewhile
from typing import Any

from simulator.hardware import Hardware
from simulator.report.rows import ABSENT, above_bound, bounded_plans, listed, percent, present, quantity
from simulator.report.text import Column, aligned
from simulator.trace import CAUSES
from simulator.units import counted

POINT = "set "
"""What the columns of the fields that a point sets begin with."""
Rows = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Amount:
    """Bytes that every row has a number of: a peak, or what was moved.

    Attributes
    ----------
    head, key
        What it is called, and the column of the rows.
    limit_bytes
        What there is room for [B]; inf if there is no limit.
    is_moved
        Whether it is moved over a link, not held in a memory.
    """

    head: str
    key: str
    limit_bytes: int | float = math.inf
    is_moved: bool = False


def amounts(rows: Rows, hardware: Hardware, budget_bytes: int | float) -> list[Amount]:
    """Peaks of all memories that any row uses, and bytes over all links that any row uses.

    Parameters
    ----------
    rows
        See `simulator.run.scaling.Scaling`.
    hardware, budget_bytes
        The machine, and what may be used of its compute tier [B].
    """
    limits = {name: tier.usable_bytes for name, tier in hardware.tiers.items()} | {hardware.compute_tier: budget_bytes}
    found = [Amount(f"peak {name}", f"peak_{name}_bytes", limit) for name, limit in limits.items()]
    found += [Amount(f"moved {name}", f"moved_{name}_bytes", is_moved=True) for name in hardware.links]
    return [amount for amount in found if any(row.get(amount.key) for row in rows)]


def table(rows: Rows, held: Sequence[Amount] = ()) -> str:
    """Write a line per policy and point; of one rank also what it holds and moves.

    Parameters
    ----------
    rows
        See `simulator.run.scaling.Scaling`.
    held
        The amounts to write.
    """
    columns = [
        *_points(rows),
        Column("status", tuple(str(row["status"]) for row in rows), left=True),
        _quantities("step", rows, "step_ns"),
        *(_of_ranks(rows) if is_over_ranks(rows) else _of_one(rows)),
        Column("tokens/s", tuple(rate(row["tokens_per_s"]) for row in rows)),
    ]
    if is_over_ranks(rows) or not held:
        return aligned([columns])
    return aligned([columns, _of_bytes([row for row in rows if any(present(row.get(a.key)) for a in held)], held)])


def _points(rows: Rows) -> list[Column]:
    return [
        Column("policy", tuple(str(row["policy"]) for row in rows), left=True),
        *(Column(head, tuple(_shown(row[key]) for row in rows)) for head, key in axes(rows)),
    ]


def _of_bytes(rows: Rows, held: Sequence[Amount]) -> list[Column]:
    return [*_points(rows), *(_quantities(amount.head, rows, amount.key, "B") for amount in held)]


def is_over_ranks(rows: Rows) -> bool:
    """Whether points differ in ranks; else they differ in the fields that they set, and nothing more."""
    return len({row["ranks"] for row in rows}) > 1 or not any(key.startswith(POINT) for key in rows[0])


def axes(rows: Rows) -> list[tuple[str, str]]:
    """What points differ in: a head, and the column of the rows."""
    if is_over_ranks(rows):
        return [("ranks", "ranks")]
    return [(key.removeprefix(POINT), key) for key in rows[0] if key.startswith(POINT)]


def _shown(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)


def _of_ranks(rows: Rows) -> list[Column]:
    return [
        Column("efficiency", tuple(percent(row["efficiency"]) for row in rows)),
        _quantities("collectives", rows, "collective_ns"),
        Column("masked", tuple(percent(row.get("masked_fraction")) for row in rows)),
        _quantities("collective", rows, "wait_collective_ns"),
        _quantities("peer", rows, "wait_peer_ns"),
    ]


def _of_one(rows: Rows) -> list[Column]:
    return [
        _quantities("compute", rows, "compute_ns"),
        _quantities("stall", rows, "stall_ns"),
        *(_quantities(cause, rows, f"wait_{cause}_ns") for cause in CAUSES if _is_waited_for(rows, cause)),
        Column("gap", tuple(percent(row.get("gap_fraction")) for row in rows)),
        Column("bounded by", tuple(str(row.get("bound_kind") or ABSENT) for row in rows), left=True),
    ]


def _is_waited_for(rows: Rows, cause: str) -> bool:
    return any(row.get(f"wait_{cause}_ns") for row in rows)


def _quantities(head: str, rows: Rows, key: str, unit: str = "ns") -> Column:
    return Column(head, tuple(quantity(row.get(key), unit) for row in rows))


def rate(value: float | None) -> str:
    """Write a rate with three significant digits, such as ``1.24 M``."""
    if value is None:
        return ABSENT
    size, letter = next((s for s in ((10**9, " G"), (10**6, " M"), (10**3, " k")) if value >= s[0]), (1, ""))
    return f"{float(f'{value / size:.3g}'):g}{letter}"


def pointer(points: Mapping[str, Sequence[object]]) -> list[str]:
    """Tell who sees one step where the curve is: no sentence if the scenario lists no points.

    Parameters
    ----------
    points
        The ``scaling`` of a scenario.
    """
    if not points:
        return []
    fields, values = listed(list(points)), next(iter(points.values()))
    where = listed([_shown(value) for value in values]) if len(points) == 1 else f"at {len(values)} points"
    return [f"This is one point of a curve: hosim scaling compares {fields} {where}."]


def sentences(rows: Rows, *, homes_are_given: bool = False) -> list[str]:
    """Say for each policy where it does not run, what is left at its last point, and which waits took the rest.

    Parameters
    ----------
    rows, homes_are_given
        See `simulator.run.scaling.Scaling`.
    """
    found = what_did_not_run(rows)
    for policy in dict.fromkeys(row["policy"] for row in rows):
        own = [row for row in rows if row["policy"] == policy]
        ran = [row for row in own if present(row["efficiency"])]
        if len(ran) > 1:
            said = _kept(ran[0], ran[-1]) if is_over_ranks(rows) else _best(own, axes(rows), homes_are_given)
            found.append(said)
    return found


def what_did_not_run(rows: Rows) -> list[str]:
    """Say for each policy at which points it does not run, and why, if there are any.

    Parameters
    ----------
    rows
        See `simulator.run.scaling.Scaling`.
    """
    found = []
    for policy in dict.fromkeys(row["policy"] for row in rows):
        own = [row for row in rows if row["policy"] == policy]
        for status, (nowhere, not_there) in _DID_NOT.items():
            which = [number for number, row in enumerate(own) if row["status"] == status]
            if len(which) == len(own):
                found.append(f"{policy} {nowhere}.")
            elif which:
                found.append(f"{policy} {not_there} {_among(own, which, axes(rows))}.")
    return found


_DID_NOT = {
    "infeasible": ("fits at no point", "does not fit"),
    "blocked": ("is blocked at every point", "is blocked"),
    "refused": ("is refused at every point", "is refused"),
}
"""Status of what did not run -> what is said if that is so everywhere, and else."""


def _among(rows: Rows, which: Sequence[int], over: Sequence[tuple[str, str]]) -> str:
    """Where some of the points are."""
    if len(which) > 1 and which[-1] - which[0] == len(which) - 1:
        if which[-1] == len(rows) - 1:
            return f"from {_at(rows[which[0]], over)} on"
        if which[0] == 0:
            return f"up to {_at(rows[which[-1]], over)}"
    if len(over) == 1:
        head, key = over[0]
        return f"at {head} {listed([_shown(rows[number][key]) for number in which])}"
    return listed([f"at {_at(rows[number], over)}" for number in which])


def _at(row: Mapping[str, Any], over: Sequence[tuple[str, str]]) -> str:
    return " and ".join(f"{head} {_shown(row[key])}" for head, key in over)


def _best(rows: Rows, over: Sequence[tuple[str, str]], homes_are_given: bool) -> str:
    """Say where most tokens come out, against the first point, and where waits are hidden, or why they are not."""
    at = partial(_at, over=over)

    def share(row: Mapping[str, Any]) -> float:
        return float(row["stall_ns"] / row["step_ns"])

    everywhere = "everywhere" if all(present(row["efficiency"]) for row in rows) else "wherever it runs"
    rows = [row for row in rows if present(row["efficiency"])]
    best = max(rows, key=lambda row: row["tokens_per_s"] or 0)
    said = f"{best['policy']} makes {rate(best['tokens_per_s'])} tokens/s at {at(best)}"
    said += f", {rate(rows[0]['tokens_per_s'])} at {at(rows[0])}" if best is not rows[0] else ""
    first, last = (list(takewhile(lambda row: share(row) < _HIDDEN, some)) for some in (rows, reversed(rows)))
    if first or last:
        where = f"from {at(last[-1])} on" if last else f"up to {at(first[-1])}"
        where = everywhere if len(first) == len(rows) else where
        return f"{said}; {where} it waits for less than 1 % of a step."
    least = min(rows, key=share)
    cause = max(CAUSES, key=lambda cause: least[f"wait_{cause}_ns"])
    why = f"{percent(share(least))} of a step, most for {_NAMES.get(cause, cause)}"
    said += f"; even at {at(least)} it waits for {why}: {quantity(least['step_ns'], 'ns')} a step"
    if not present(least["gap_fraction"]):
        return f"{said}."
    kind = str(least["bound_kind"])
    return f"{said}{above_bound(least['gap_fraction'], kind, bounded_plans(kind, homes_are_given=homes_are_given))}."


_HIDDEN = 0.01
"""A step that waits for a smaller share hides its copies."""


def _kept(first: Mapping[str, Any], last: Mapping[str, Any]) -> str:
    few, many = counted(first["ranks"], "rank"), f"{last['ranks']:,}"
    steps = f"{quantity(first['step_ns'], 'ns')} and {quantity(last['step_ns'], 'ns')} a step"
    more = {cause: last[f"wait_{cause}_ns"] - first[f"wait_{cause}_ns"] for cause in CAUSES}
    cause, ns = max(more.items(), key=lambda item: item[1])
    why = f"; waits for {_NAMES.get(cause, cause)} grow most, by {quantity(ns, 'ns')}" if ns > 0 else ""
    return f"{last['policy']} keeps {percent(last['efficiency'])} of the efficiency of {few} at {many}: {steps}{why}."


_NAMES = {"collective": "collectives", "peer": "peers", "transfer": "transfers", "capacity": "room", "host": "the host"}
