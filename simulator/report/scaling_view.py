"""A scaling curve as it is shown: steps, tokens per second and efficiency; what is held and moved."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from simulator.hardware import Hardware
from simulator.report.rows import ABSENT, listed, percent, present, quantity
from simulator.report.text import Column
from simulator.report.view import Panel, Row, Rows, Section, View, by, curve, did_not_run, number, quantities, texts
from simulator.trace import CAUSES
from simulator.units import counted

_WAITED_FOR = {
    "collective": "collectives",
    "peer": "peers",
    "transfer": "transfers",
    "capacity": "room",
    "host": "the host",
}
"""Cause of a wait -> what is waited for, in a sentence."""


def scaling_view(rows: Rows, fields: Sequence[str], hardware: Hardware, budget_bytes: float, title: str) -> View:
    """Show a curve.

    Parameters
    ----------
    rows
        See `simulator.run.scaling`.
    fields
        The columns of the fields that points set.
    hardware, budget_bytes
        The machine, and what may be used of its compute tier [B].
    title
        What was swept.
    """
    over_ranks = len({row.get("ranks", 1) for row in rows}) > 1
    told = over_ranks and all(present(row.get("ranks")) for row in rows)
    axes = {"ranks": "ranks"} if told else {field: field for field in fields}
    limits = {name: tier.usable_bytes for name, tier in hardware.tiers.items()} | {hardware.compute_tier: budget_bytes}
    amounts: dict[tuple[str, str], float] = {(f"peak {name}", f"peak_{name}_bytes"): limits[name] for name in limits}
    amounts |= {(f"moved {name}", f"moved_{name}_bytes"): math.inf for name in hardware.links}
    used = {pair: limit for pair, limit in amounts.items() if any(row.get(pair[1]) for row in rows)}
    points = [texts("policy", rows, lambda row: row["policy"])]
    points += [Column(head, tuple(number(row[key]) for row in rows)) for head, key in axes.items()]
    times = [
        texts("status", rows, lambda row: row["status"]),
        quantities("step", rows, "step_ns"),
        *(_of_ranks(rows) if over_ranks else _of_one(rows)),
        texts("tokens/s", rows, lambda row: rate(row.get("tokens_per_s")), left=False),
    ]
    sections = [Section(columns=[*points, *times])]
    ran = [row for row in rows if any(present(row.get(key)) for _, key in used)]
    if ran and not over_ranks:
        held = [quantities(head, ran, key, "B") for head, key in used]
        picked = [Column(one.head, tuple(c for c, row in zip(one.cells, rows, strict=True) if row in ran), one.left)
                  for one in points]  # fmt: skip
        sections.append(Section(columns=[*picked, *held]))
    axis = next(iter(axes.items()))
    panels = [
        _panel("one step", axis, rows, "step_ns", "ns"),
        _panel("efficiency against the first point [%]", axis, rows, "efficiency", "")
        if over_ranks
        else _panel("tokens per second", axis, rows, "tokens_per_s", ""),
        *(
            _panel(f"{head}, room {quantity(limit, 'B')}" if limit < math.inf else head, axis, rows, key, "B", limit)
            for (head, key), limit in used.items()
        ),
    ]
    sentences = did_not_run(rows, axes)
    for own in by((row for row in rows if present(row.get("efficiency"))), "policy").values():
        if len(own) > 1:
            sentences.append(_kept(own[0], own[-1]) if over_ranks else _best(own, axes))
    return View(title, sections, sentences, panels)


def _panel(title: str, axis: tuple[str, str], rows: Rows, key: str, unit: str, limit: float = math.inf) -> Panel:
    scale = 100 if key == "efficiency" else 1
    curves = [curve(policy, own, axis[1], key, scale) for (policy,), own in by(rows, "policy").items()]
    return Panel(title, axis[0], unit, [one for one in curves if one.points], limit)


def _of_ranks(rows: Rows) -> list[Column]:
    return [
        texts("efficiency", rows, lambda row: percent(row.get("efficiency")), left=False),
        quantities("collectives", rows, "collective_ns"),
        texts("masked", rows, lambda row: percent(row.get("masked_fraction")), left=False),
        quantities("collective", rows, "wait_collective_ns"),
        quantities("peer", rows, "wait_peer_ns"),
    ]


def _of_one(rows: Rows) -> list[Column]:
    causes = [cause for cause in CAUSES if any(row.get(f"wait_{cause}_ns") for row in rows)]
    return [
        quantities("compute", rows, "compute_ns"),
        quantities("stall", rows, "stall_ns"),
        *(quantities(cause, rows, f"wait_{cause}_ns") for cause in causes),
        texts("gap", rows, lambda row: percent(row.get("gap_fraction")), left=False),
        texts("bounded by", rows, lambda row: row.get("bound_kind") or ABSENT),
    ]


def rate(value: float | None) -> str:
    """Write a rate with three significant digits, such as ``1.24 M``."""
    if not present(value) or value is None:
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
    where = listed([number(value) for value in values]) if len(points) == 1 else f"at {len(values)} points"
    return [f"This is one point of a curve: hosim scaling compares {fields} {where}."]


def _best(rows: Rows, axes: Mapping[str, str]) -> str:
    """Say where most tokens come out, against the first point, and where a step waits least, and for what."""

    def point(row: Row) -> str:
        return " and ".join(f"{head} {number(row[key])}" for head, key in axes.items())

    best = max(rows, key=lambda row: row["tokens_per_s"] or 0)
    least = min(rows, key=lambda row: row["stall_ns"] / row["step_ns"])
    told = f"{best['policy']} makes {rate(best['tokens_per_s'])} tokens/s at {point(best)}"
    told += f", {rate(rows[0]['tokens_per_s'])} at {point(rows[0])}" if best is not rows[0] else ""
    cause = max(CAUSES, key=lambda cause: least[f"wait_{cause}_ns"])
    why = f", most for {_WAITED_FOR.get(cause, cause)}" if least["stall_ns"] else ""
    return f"{told}; it waits least at {point(least)}: {percent(least['stall_ns'] / least['step_ns'])} of a step{why}."


def _kept(first: Row, last: Row) -> str:
    few, many = counted(first["ranks"], "rank"), f"{last['ranks']:,}"
    steps = f"{quantity(first['step_ns'], 'ns')} and {quantity(last['step_ns'], 'ns')} a step"
    more = {cause: last[f"wait_{cause}_ns"] - first[f"wait_{cause}_ns"] for cause in CAUSES}
    cause, ns = max(more.items(), key=lambda item: item[1])
    why = f"; waits for {_WAITED_FOR.get(cause, cause)} grow most, by {quantity(ns, 'ns')}" if ns > 0 else ""
    return f"{last['policy']} keeps {percent(last['efficiency'])} of the efficiency of {few} at {many}: {steps}{why}."
