"""The cells of a grid, and the points of a scaling curve, as they are shown: a table, sentences, curves or maps."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from itertools import pairwise, product
from textwrap import fill
from typing import Any

from simulator.hardware import Hardware
from simulator.metrics import columns as columns_of
from simulator.metrics import figure_of
from simulator.report.rows import listed, percent, present, quantity, ratio, shown
from simulator.report.sentences import WAITED_FOR
from simulator.report.tables import WAITS, Column, figures, occurring
from simulator.report.uncertain import Summed, comparisons, distributions, quantile_tables
from simulator.report.views import ALL, Map, Panel, Section, SweepView, Varied, by, did_not_run, point
from simulator.trace import CAUSES

Row = Mapping[str, Any]
Rows = Sequence[Row]
LINES = 64
"""A longer table is not printed; the folder of results has all of it."""


def needs(axes: Sequence[Varied], hardware: Hardware) -> list[str]:
    """Name the columns of rows that a view needs."""
    shown = ("policy", "status", "step_ns", "slowdown_vs_fastest", "stall_ns", f"peak_{hardware.compute_tier}_bytes")
    return [*(axis.name for axis in axes), *shown, *columns_of(hardware, ("cost",)), *WAITS, "notes"]


def grid_view(
    rows: Rows,
    axes: Sequence[Varied],
    hardware: Hardware,
    title: str,
    budget_bytes: int | None = None,
    cells: Sequence[Summed] = (),
) -> SweepView:
    """Show the cells of a grid.

    Parameters
    ----------
    rows
        One per cell and policy, see `simulator.run.grid.sweep`.
    axes
        What varies.
    hardware
        The machine.
    title
        What was swept.
    budget_bytes
        What the scenario allows of the compute tier [B], if it says so.
    cells
        What draws tell, if some axes are drawn.
    """
    fixed, peak = [axis for axis in axes if not axis.is_drawn], f"peak_{hardware.compute_tier}_bytes"
    if len(fixed) < len(axes):
        lines = [line for cell in cells for line in cell.quantiles]
        tables, sentences = quantile_tables(cells, fixed), [*comparisons(cells, fixed)]
        drawn, band = {"one step": "median_step_ns"}, tuple(f"{end}_step_ns" for end in ("p05", "p95"))
    else:
        lines = [{"policy": ALL, **row} for row in rows]
        ran = [row for row in rows if row["status"] == "ok"]
        steps = ("status", "step_ns", "slowdown_vs_fastest", "stall_ns")
        held = occurring(rows, (peak, *columns_of(hardware, ("cost",))))
        tables = [Section(columns=[*_point_columns(lines, axes), *figures(lines, (*steps, *held))])]
        sentences = [*_extremes(ran, axes), *_flat(ran, axes, hardware, budget_bytes)]
        drawn, band = {"one step": "step_ns", "stall": "stall_ns", f"peak {hardware.compute_tier}": peak}, ()
    sentences += did_not_run(rows, fixed)
    if len(lines) > LINES:
        tables = []
        sentences.append(
            f"{len(lines):,} rows are too many to print: --out DIR has them in points.csv, --out FILE.csv alone."
        )
    if not fixed:
        return SweepView(title, tables, sentences, [distributions(rows)])
    if len(fixed) > 1:
        return SweepView(title, tables, sentences, maps=list(_maps(lines, fixed, drawn["one step"])))
    places, name = fixed[0].scaled
    placed = [{**line, name: places[line[fixed[0].name]]} for line in lines]
    panels = [Panel(head, name, figure_of(y).unit, placed, name, y, band=band) for head, y in drawn.items()]
    return SweepView(title, tables, sentences, panels)


def scaling_view(rows: Rows, fields: Sequence[str], hardware: Hardware, budget_bytes: float, title: str) -> SweepView:
    """Show the points of a scaling curve.

    Parameters
    ----------
    rows
        See `simulator.run.studies`.
    fields
        The columns of the fields that points set.
    hardware, budget_bytes
        The machine, and what may be used of its compute tier [B].
    title
        What was swept.
    """
    over_ranks = len({row.get("ranks", 1) for row in rows}) > 1
    is_known = all(present(row.get("ranks")) for row in rows)
    axes = [Varied("ranks")] if over_ranks and is_known else [Varied(field) for field in fields]
    usable = {name: tier.usable_bytes for name, tier in hardware.tiers.items()} | {hardware.compute_tier: budget_bytes}
    limits: dict[str, float] = {f"peak_{name}_bytes": limit for name, limit in usable.items()}
    limits |= {f"moved_{name}_bytes": math.inf for name in hardware.links}
    used = occurring(rows, limits)
    of_ranks = ("collective_ns", "masked_fraction") if over_ranks else ("gap_fraction", "bound_kind")
    shares = ("status", "step_ns", "compute_ns", "stall_ns", *occurring(rows, WAITS), *of_ranks, "tokens_per_s")
    columns, x = [*_point_columns(rows, axes), *figures(rows, shares)], axes[0].name
    panels = [Panel("one step", x, "ns", rows, x, "step_ns")]
    if over_ranks:
        efficiency = (percent(row.get("efficiency")) for row in rows)
        columns.append(Column.texts("efficiency", efficiency, left=False))
        panels.append(Panel("efficiency against the first point", x, "%", rows, x, "efficiency"))
    else:
        panels.append(Panel("tokens per second", x, "", rows, x, "tokens_per_s"))
    tables, ran = [Section(columns=columns)], [row for row in rows if row["status"] == "ok"]
    if ran and used:
        tables.append(Section(columns=[*_point_columns(ran, axes), *figures(ran, used)]))
    for column in used:
        room = f", room {quantity(limits[column], 'B')}" if limits[column] < math.inf else ""
        panels.append(Panel(f"{figure_of(column).head}{room}", x, "B", rows, x, column, limit=limits[column]))
    return SweepView(title, tables, [*did_not_run(rows, axes), *_throughput(ran, axes)], panels)


def _throughput(ran: Rows, axes: Sequence[Varied]) -> Iterator[str]:
    """Say for each policy its throughput and its stalls at the first and the last point."""
    for (policy,), own in by((row for row in ran if present(row.get("tokens_per_s"))), "policy").items():
        ends = own if len(own) == 1 else (own[0], own[-1])
        much = [f"{shown('tokens_per_s', row['tokens_per_s'])} tokens/s at {point(row, axes)}" for row in ends]
        waits = [percent(row["stall_ns"] / row["step_ns"]) for row in ends]
        cause = _waits_most(ends[-1:])
        most = f", there most for {cause}" if cause else ""
        yield f"{policy} makes {listed(much)}; it waits for {listed(waits)} of a step{most}."


def _point_columns(rows: Rows, axes: Sequence[Varied]) -> list[Column]:
    return [*figures(rows, ("policy",)), *(axis.column(rows) for axis in axes)]


def _waits_most(rows: Rows) -> str:
    """Name what computes wait for most; empty if they never wait."""
    most_ns, cause = max((sum(row.get(f"wait_{cause}_ns") or 0 for row in rows), cause) for cause in CAUSES)
    return WAITED_FOR[cause] if most_ns else ""


def _extremes(ran: Rows, axes: Sequence[Varied]) -> Iterator[str]:
    """Say for each policy where its step is shortest and longest, and in how many cells it never stalls."""
    for (policy,), own in by(ran, "policy").items():
        first, last = (pick(own, key=lambda row: row["step_ns"]) for pick in (min, max))
        at = [point(row, axes) for row in (first, last)]
        if first["step_ns"] == last["step_ns"]:
            yield f"{policy} takes {quantity(first['step_ns'], 'ns')} in each cell in which it runs."
            continue
        times = ratio(last["step_ns"] / first["step_ns"])
        steps = [quantity(row["step_ns"], "ns") for row in (first, last)]
        yield f"{policy} takes {steps[0]} at {at[0]}, and {times} as long, {steps[1]}, at {at[1]}."
        free = [row for row in own if row["stall_ns"] == 0]
        if 0 < len(free) < len(own):
            yield f"{policy} never stalls in {len(free):,} of {len(own):,} cells, the first at {point(free[0], axes)}."


def _flat(ran: Rows, axes: Sequence[Varied], hardware: Hardware, budget_bytes: int | None) -> Iterator[str]:
    """Say over which range an axis changes no step of a policy, and what limits the step instead."""
    for axis in axes:
        numbers = sorted(value for value in axis.values if isinstance(value, int | float))
        others = [one.name for one in axes if one is not axis]
        has_caps = not any(one.startswith(("buses.", "scenario.")) for one in others)
        said: dict[tuple[str, str], list[str]] = {}
        for (policy,), own in by(ran, "policy").items():
            steps: dict[Any, dict[Any, int]] = {}
            for row in own:
                steps.setdefault(row[axis.name], {})[tuple(row[name] for name in others)] = row["step_ns"]
            for low, high in _flat_ranges(numbers, steps):
                inside = [row for row in own if row[axis.name] in numbers and low <= row[axis.name] <= high]
                caps = _narrower(axis.name, low, hardware, budget_bytes) if has_caps else []
                ends = (axis.written({axis.name: end}) for end in (low, high))
                said.setdefault((" to ".join(ends), _what_limits(caps, inside)), []).append(str(policy))
        for (where, why), policies in said.items():
            yield f"{axis.name} changes no step of {listed(policies)} from {where}: {why}."


def _flat_ranges(numbers: Sequence[Any], steps: Mapping[Any, Any]) -> list[tuple[Any, Any]]:
    """Find ranges of neighbouring values with the same steps in all cells of the other axes."""
    ranges: list[list[Any]] = []
    for before, value in pairwise([None, *numbers]):
        if value in steps and steps[value] == steps.get(before):
            ranges[-1].append(value)
        else:
            ranges.append([value])
    return [(found[0], found[-1]) for found in ranges if len(found) > 1]


def _narrower(name: str, low: float, hardware: Hardware, budget_bytes: int | None) -> list[str]:
    """Name the buses, links or budgets that are no wider than an axis at the low end of a range."""
    links = [link for link in hardware.links if fnmatchcase(f"links.{link}.bandwidth", name)]
    rates = {
        f"the bus {bus}": cap.bandwidth_bytes_per_s for bus, cap in hardware.buses.items() if {*links} & {*cap.links}
    }
    stages = {stage: link for link in links for stage in hardware.links[link].via if stage not in links}
    rates |= {f"the link {stage}": hardware.links[stage].bandwidth_bytes_per_s for stage in stages}
    found = [f"{cap} ({quantity(rate, 'B/s')})" for cap, rate in rates.items() if rate <= low]
    if name == f"tiers.{hardware.compute_tier}.capacity" and budget_bytes is not None and budget_bytes <= low:
        found.append(f"the scenario's budget ({quantity(budget_bytes, 'B')})")
    return found


def _what_limits(caps: Sequence[str], inside: Rows) -> str:
    """Say what limits steps in a range: what caps the axis, or what computes wait for there."""
    if caps:
        return f"{listed(caps)} {'is' if len(caps) == 1 else 'are'} no wider"
    cause = _waits_most(inside)
    return f"computes wait most for {cause} there" if cause else "no compute waits there"


def _maps(lines: Rows, axes: Sequence[Varied], height: str) -> Iterator[Map]:
    """Make a map over the two longest axes for each policy and each cell of the other axes."""
    ran = [line for line in lines if present(line.get(height))]
    best = min((line[height] for line in ran), default=1)
    left, up = sorted(sorted(axes, key=lambda axis: -len(axis.values))[:2], key=axes.index)
    outer = [axis for axis in axes if axis not in (left, up)]
    known = {(line["policy"], *(line[axis.name] for axis in (*outer, left, up))): line[height] for line in ran}
    ticks = [[axis.written({axis.name: value}) for value in axis.values] for axis in (left, up)]
    for policy, *fixed in product(dict.fromkeys(line["policy"] for line in ran), *(axis.values for axis in outer)):
        where = point(dict(zip((axis.name for axis in outer), fixed, strict=True)), outer)
        heights = [[known.get((policy, *fixed, x, y)) for x in left.values] for y in up.values]
        yield Map(
            fill(": ".join(filter(None, (policy, where))), 50),
            (left.name, up.name),
            (ticks[0], ticks[1]),
            heights,
            best,
        )
