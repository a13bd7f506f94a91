"""Views of the cells of a grid, and of the points of a curve: a table, sentences, curves or maps."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from itertools import pairwise, product
from operator import itemgetter
from textwrap import fill
from typing import Any

from simulator.hardware import Hardware
from simulator.metrics import columns as columns_of
from simulator.metrics import figure_of
from simulator.metrics.figures import present
from simulator.metrics.rows import pace
from simulator.metrics.statistics import Summed, by
from simulator.report import views
from simulator.report.sentences import WAITED_FOR
from simulator.report.tables import WAITS, Column, figures, occurring
from simulator.report.uncertain import comparisons, distributions, quantile_tables
from simulator.report.views import ALL, Map, Panel, Rows, Section, SweepView, Varied, did_not_run, point
from simulator.report.words import percent, quantity, ratio, shown
from simulator.trace import CAUSES
from simulator.units import listed

_LINES = 64
"""Most lines of a printed table, about a screen; the output folder has all."""


def needs(axes: Sequence[Varied], hardware: Hardware) -> list[str]:
    """Name the columns of rows that `grid_view` needs."""
    always = ["policy", "status", "step_ns", "slowdown_vs_fastest", "stall_ns", f"peak_{hardware.compute_tier}_bytes"]
    always += ["tokens_per_s", "samples_per_s"]
    return [*(axis.name for axis in axes), *always, *columns_of(hardware, ("cost",)), *WAITS, "notes"]


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
        The fields that vary.
    hardware
        The machine.
    title
        The title.
    budget_bytes
        The budget of the scenario in the compute tier [B], if it has one.
    cells
        Sums over draws, if some axes are drawn.
    """
    fixed, peak = [axis for axis in axes if not axis.is_drawn], f"peak_{hardware.compute_tier}_bytes"
    if len(fixed) < len(axes):
        lines = [line for cell in cells for line in cell.quantiles]
        tables, sentences = quantile_tables(cells, fixed), [*comparisons(cells, fixed)]
        drawn, band = {"one step": "median_step_ns"}, tuple(f"{end}_step_ns" for end in ("p05", "p95"))
    else:
        lines = [{"policy": ALL, **row} for row in rows]
        ran = [row for row in rows if row["status"] == "ok"]
        by_rate = (each for each in (_pace(ran, axes),) if each not in ("", "step_ns"))
        steps = ("status", "step_ns", *by_rate, "slowdown_vs_fastest", "stall_ns")
        held = occurring(rows, (peak, *columns_of(hardware, ("cost",))))
        tables = [
            Section(columns=[*views.point_columns(lines, axes), *figures(lines, (*steps, *map(figure_of, held)))])
        ]
        sentences = [*_extremes(ran, axes), *_flat(ran, axes, hardware, budget_bytes)]
        drawn, band = {"one step": "step_ns", "stall": "stall_ns", f"peak {hardware.compute_tier}": peak}, ()
    sentences += did_not_run(rows, fixed)
    if len(lines) > _LINES:
        files, tables = "--out DIR writes them to DIR/points.csv, --out FILE.csv to that file alone", []
        sentences.append(f"{len(lines):,} rows are too many to print: {files}.")
    if not fixed:
        return SweepView(title, tables, sentences, [distributions(rows)])
    if len(fixed) > 1:
        return SweepView(title, tables, sentences, maps=list(_maps(lines, fixed, drawn["one step"])))
    name, unit = fixed[0].name, fixed[0].unit or ""
    panels = [Panel(head, name, figure_of(y).unit, lines, name, y, unit, band=band) for head, y in drawn.items()]
    return SweepView(title, tables, sentences, panels)


def curve_view(
    rows: Rows, axes: Sequence[Varied], hardware: Hardware, title: str, budget_bytes: int | None = None
) -> SweepView:
    """Show the points of a curve over other work, policy by policy.

    Parameters
    ----------
    rows
        One per point and policy, with ``efficiency``: see `simulator.run.grid.sweep`.
    axes, hardware, title, budget_bytes
        As for `grid_view`.
    """
    over_ranks = len({row.get("ranks", 1) for row in rows}) > 1
    is_known = all(present(row.get("ranks")) for row in rows)
    axes = [Varied("ranks")] if over_ranks and is_known else axes
    limits: dict[str, float] = {f"peak_{name}_bytes": tier.usable_bytes for name, tier in hardware.tiers.items()}
    limits |= {} if budget_bytes is None else {f"peak_{hardware.compute_tier}_bytes": budget_bytes}
    limits |= {f"moved_{name}_bytes": math.inf for name in hardware.links}
    used = occurring(rows, limits)
    of_ranks = ("collective_ns", "masked_fraction") if over_ranks else ("gap_fraction", "bounded_by")
    shares = ("status", "step_ns", "compute_ns", "stall_ns", *occurring(rows, WAITS), *of_ranks, "tokens_per_s")
    columns, x = [*views.point_columns(rows, axes), *figures(rows, shares)], axes[0].name
    panels = [Panel("one step", x, "ns", rows, x, "step_ns")]
    if over_ranks:
        efficiency = (percent(row.get("efficiency")) for row in rows)
        columns.append(Column("efficiency", efficiency, left=False))
        panels.append(Panel("efficiency against the first point", x, "%", rows, x, "efficiency"))
    else:
        panels.append(Panel("tokens per second", x, "", rows, x, "tokens_per_s"))
    tables, ran = [Section(columns=columns)], [row for row in rows if row["status"] == "ok"]
    if ran and used:
        tables.append(Section(columns=[*views.point_columns(ran, axes), *figures(ran, map(figure_of, used))]))
    for column in used:
        room = f", room {quantity(limits[column], 'B')}" if limits[column] < math.inf else ""
        panels.append(Panel(f"{figure_of(column).head}{room}", x, "B", rows, x, column, limit=limits[column]))
    return SweepView(title, tables, [*did_not_run(rows, axes), *_throughput(ran, axes)], panels)


def _throughput(ran: Rows, axes: Sequence[Varied]) -> Iterator[str]:
    """Say for each policy its throughput and its stalls at the first and the last point."""
    for (policy,), group in by((row for row in ran if present(row.get("tokens_per_s"))), "policy").items():
        ends = group if len(group) == 1 else (group[0], group[-1])
        much = [f"{shown('tokens_per_s', row['tokens_per_s'])} tokens/s at {point(row, axes)}" for row in ends]
        waits = [percent(row["stall_ns"] / row["step_ns"]) for row in ends]
        cause = _waits_most(ends[-1:])
        most = f", mostly for {cause} at the last point" if cause else ""
        yield f"{policy} makes {listed(much)}; it stalls for {listed(waits)} of a step{most}."


def _waits_most(rows: Rows) -> str:
    """Name what computes wait for most; empty if they never wait."""
    most_ns, cause = max((sum(row.get(f"wait_{cause}_ns") or 0 for row in rows), cause) for cause in CAUSES)
    return WAITED_FOR[cause] if most_ns else ""


def _pace(ran: Rows, axes: Sequence[Varied]) -> str:
    """Name the figure by which cells are compared: see `simulator.metrics.rows.pace`."""
    return pace(ran, is_same_work=not any(axis.is_of_work for axis in axes))


def _extremes(ran: Rows, axes: Sequence[Varied]) -> Iterator[str]:
    """Say for each policy where it is fastest and slowest, by step or rate, and in how many cells it never stalls."""
    for (policy,), group in by(ran, "policy").items():
        if figure := _pace(group, axes):
            does, much, of = (
                ("takes", "long", "") if figure == "step_ns" else ("makes", "many", f" {figure_of(figure).head}")
            )
            first, last = (
                pick(group, key=itemgetter(figure)) for pick in (min, max)[:: 1 if figure == "step_ns" else -1]
            )
            most, least = (f"{shown(figure, row[figure])}{of}" for row in (first, last))
            if first[figure] == last[figure]:
                yield f"{policy} {does} {most} in each cell where it runs."
                continue
            times = f"{ratio(last[figure] / first[figure])} as {much}"
            yield f"{policy} {does} {most} at {point(first, axes)}, and {times}, {least}, at {point(last, axes)}."
        free = [row for row in group if row["stall_ns"] == 0]
        if 0 < len(free) < len(group):
            count = f"{len(free):,} of {len(group):,} cells"
            yield f"{policy} has no stall in {count}, the first at {point(free[0], axes)}."


def _flat(ran: Rows, axes: Sequence[Varied], hardware: Hardware, budget_bytes: int | None) -> Iterator[str]:
    """Say over which range an axis changes no step of a policy, and what limits the step instead."""
    for axis in axes:
        numbers = sorted(value for value in axis.values if isinstance(value, int | float))
        others = [other.name for other in axes if other is not axis]
        has_caps = not any(name.startswith(("buses.", "scenario.")) for name in others)
        by_range: dict[tuple[str, str], list[str]] = {}
        for (policy,), group in by(ran, "policy").items():
            steps: dict[Any, dict[Any, int]] = {}
            for row in group:
                steps.setdefault(row[axis.name], {})[tuple(row[name] for name in others)] = row["step_ns"]
            for low, high in _flat_ranges(numbers, steps):
                inside = [row for row in group if row[axis.name] in numbers and low <= row[axis.name] <= high]
                caps = _narrower(axis.name, low, hardware, budget_bytes) if has_caps else []
                ends = (axis.written({axis.name: end}) for end in (low, high))
                by_range.setdefault((" to ".join(ends), _what_limits(caps, inside)), []).append(str(policy))
        for (where, why), policies in by_range.items():
            yield f"From {where}, {axis.name} changes no step of {listed(policies)}: {why}."


def _flat_ranges(numbers: Sequence[Any], steps: Mapping[Any, Any]) -> list[tuple[Any, Any]]:
    """Find ranges of neighbouring values with the same steps in all cells of the other axes."""
    ranges: list[list[Any]] = []
    for before, value in pairwise([None, *numbers]):
        if value in steps and steps[value] == steps.get(before):
            ranges[-1].append(value)
        else:
            ranges.append([value])
    return [(values[0], values[-1]) for values in ranges if len(values) > 1]


def _narrower(name: str, low: float, hardware: Hardware, budget_bytes: int | None) -> list[str]:
    """Name the buses, links or budgets that are no wider than an axis at the low end of a range, with their amounts."""
    links = [link for link in hardware.links if fnmatchcase(f"links.{link}.bandwidth", name)]
    buses = {name: bus for name, bus in hardware.caps.items() if {*links} & {*bus.links}}
    rates = {f"the bus {name}": bus.bandwidth_bytes_per_s for name, bus in buses.items()}
    stages = {stage: link for link in links for stage in hardware.links[link].via if stage not in links}
    rates |= {f"the link {stage}": hardware.links[stage].bandwidth_bytes_per_s for stage in stages}
    caps = [f"{cap} ({quantity(rate, 'B/s')})" for cap, rate in rates.items() if rate <= low]
    if name == f"tiers.{hardware.compute_tier}.capacity" and budget_bytes is not None and budget_bytes <= low:
        caps.append(f"the scenario's budget ({quantity(budget_bytes, 'B')})")
    return caps


def _what_limits(caps: Sequence[str], inside: Rows) -> str:
    """Say what limits steps in a range: the caps of the axis, or what computes wait for most."""
    if caps:
        return f"{listed(caps)} {'limits' if len(caps) == 1 else 'limit'} it"
    cause = _waits_most(inside)
    return f"most stalls there are waits for {cause}" if cause else "no compute waits there"


def _maps(lines: Rows, axes: Sequence[Varied], height: str) -> Iterator[Map]:
    """Make a map over the two longest axes for each policy and each cell of the other axes."""
    ran = [line for line in lines if present(line.get(height))]
    figure = _pace(ran, axes)
    per = {"tokens_per_s": "time of a token", "samples_per_s": "time of a sample"}.get(figure, "step")
    ran = [line if per == "step" else {**line, height: 1e9 / line[figure]} for line in ran]
    best = min((line[height] for line in ran), default=1) if figure else 0
    left, up = sorted(sorted(axes, key=lambda axis: -len(axis.values))[:2], key=axes.index)
    outer = [axis for axis in axes if axis not in (left, up)]
    by_cell = {(line["policy"], *(line[axis.name] for axis in (*outer, left, up))): line[height] for line in ran}
    ticks = [[axis.written({axis.name: value}) for value in axis.values] for axis in (left, up)]
    for policy, *fixed in product(dict.fromkeys(line["policy"] for line in ran), *(axis.values for axis in outer)):
        where = point(dict(zip((axis.name for axis in outer), fixed, strict=True)), outer)
        heights = [[by_cell.get((policy, *fixed, x, y)) for x in left.values] for y in up.values]
        title = fill(": ".join(filter(None, (policy, where))), 50)
        yield Map(title, (left.name, up.name), (ticks[0], ticks[1]), heights, best, per)
