"""The cells of a grid as they are shown: a table, what there is to say, and curves over one axis or maps over two."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from itertools import pairwise, product
from typing import Any, NamedTuple

from simulator.hardware import Hardware
from simulator.metrics import columns as columns_of
from simulator.report.panels import Map, Panel
from simulator.report.rows import grouped, listed, quantity, ratio, units
from simulator.report.sentences import WAITED_FOR
from simulator.report.tables import WAITS, Column, figures, occurring
from simulator.report.uncertain import Summed, distributions, sections, told
from simulator.report.views import Section, View, by, number, texts
from simulator.trace import CAUSES

Row = Mapping[str, Any]
Rows = Sequence[Row]
ALL = "all policies"
"""In place of a policy, where a cell cannot run at all."""
LINES = 64
"""A longer table is not printed; the folder of results has all of it."""


class Shown(NamedTuple):
    """An axis as it is shown.

    Attributes
    ----------
    name
        Its column.
    unit
        The unit of its values inside; None of plain values.
    values
        In their order.
    is_drawn
        Whether they are draws, or number them.
    """

    name: str
    unit: str | None
    values: Sequence[Any]
    is_drawn: bool = False

    @property
    def scaled(self) -> tuple[dict[Any, Any], str]:
        """Its values as numbers of a handy unit, and its name with that."""
        if self.unit is None:
            return {value: value for value in self.values}, self.name
        unit, size = units(max(self.values), self.unit)
        return {value: value / size for value in self.values}, f"{self.name} [{unit}]"

    def written(self, value: Any) -> str:
        """Write a value for people."""
        return number(value) if self.unit is None else quantity(value, self.unit)


def needs(axes: Sequence[Shown], hardware: Hardware) -> list[str]:
    """Columns of rows that are shown."""
    figures = ("policy", "status", "step_ns", "slowdown_vs_fastest", "stall_ns", f"peak_{hardware.compute_tier}_bytes")
    return [*(one.name for one in axes), *figures, *columns_of(hardware, ("cost",)), *WAITS, "notes"]


def grid_view(
    rows: Rows,
    axes: Sequence[Shown],
    hardware: Hardware,
    title: str,
    budget_bytes: int | None = None,
    cells: Sequence[Summed] = (),
) -> View:
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
    ran, peak = [row for row in rows if row["status"] == "ok"], f"peak_{hardware.compute_tier}_bytes"
    if any(one.is_drawn for one in axes):
        return _drawn_view(rows, [one for one in axes if not one.is_drawn], cells, title)
    unmoved = _unmoved(ran, axes, hardware, budget_bytes)
    sentences = [*_told(rows, axes), *unmoved, *_did_not_run(rows)]
    if len(rows) > LINES:
        sentences.append(f"{len(rows):,} rows are not printed; the folder of --out DIR has them, with a picture.")
    paid = columns_of(hardware, ("cost",))
    tables = [Section(columns=_columns(rows, axes, (peak, *paid)))] if len(rows) <= LINES else []
    best = min((row["step_ns"] for row in ran), default=1)
    if len(axes) == 1:
        places, name = axes[0].scaled
        placed = [{**row, name: places[row[axes[0].name]]} for row in rows]
        drawn = {
            "one step": ("ns", "step_ns"),
            "stall": ("ns", "stall_ns"),
            f"peak {hardware.compute_tier}": ("B", peak),
        }
        return View(
            title, tables, sentences, [Panel(head, name, unit, placed, name, y) for head, (unit, y) in drawn.items()]
        )
    return View(title, tables, sentences, maps=list(_maps(ran, axes, best)))


def _drawn_view(rows: Rows, axes: Sequence[Shown], cells: Sequence[Summed], title: str) -> View:
    """Show draws: their quantiles, and how likely one policy beats another."""
    keys = {one.name: one.written for one in axes}
    lines = [line for cell in cells for line in cell.quantiles]
    tables = sections(cells, keys) if len(lines) <= LINES else []
    sentences = [*told(cells, keys), *_did_not_run(rows)]
    if not axes:
        return View(title, tables, sentences, [distributions(rows)])
    if len(axes) == 1:
        places, name = axes[0].scaled
        placed = [{**line, name: places[line[axes[0].name]]} for line in lines]
        band = ("p05_step_ns", "p95_step_ns")
        return View(
            title, tables, sentences, [Panel("one step", name, "ns", placed, name, "median_step_ns", band=band)]
        )
    medians = [{**line, "step_ns": line["median_step_ns"]} for line in lines if line["median_step_ns"] is not None]
    best = min((line["step_ns"] for line in medians), default=1)
    return View(title, tables, sentences, maps=list(_maps(medians, axes, best)))


def _columns(rows: Rows, axes: Sequence[Shown], more: Sequence[str]) -> list[Column]:
    where = [Column.texts(one.name, (one.written(row[one.name]) for row in rows), left=False) for one in axes]
    return [
        texts("policy", rows, lambda row: row.get("policy", "all")),
        *where,
        *figures(rows, ("status", "step_ns", "slowdown_vs_fastest", "stall_ns", *occurring(rows, more))),
    ]


def _told(rows: Rows, axes: Sequence[Shown]) -> Iterator[str]:
    """Say for each policy where its step is shortest and longest, and from where on it stays the same."""
    for (policy,), own in by((row for row in rows if row["status"] == "ok"), "policy").items():
        first, last = (pick(own, key=lambda row: row["step_ns"]) for pick in (min, max))
        at = [_cell(row, axes) for row in (first, last)]
        if first["step_ns"] == last["step_ns"]:
            yield f"{policy} takes {quantity(first['step_ns'], 'ns')} in each cell in which it runs."
            continue
        times = ratio(last["step_ns"] / first["step_ns"])
        steps = [quantity(row["step_ns"], "ns") for row in (first, last)]
        yield f"{policy} takes {steps[0]} at {at[0]}, and {times} as long, {steps[1]}, at {at[1]}."
        free = [row for row in own if row["stall_ns"] == 0]
        if 0 < len(free) < len(own):
            yield f"{policy} never stalls in {len(free):,} of {len(own):,} cells, the first at {_cell(free[0], axes)}."


def _unmoved(ran: Rows, axes: Sequence[Shown], hardware: Hardware, budget_bytes: int | None) -> Iterator[str]:
    """Say over which range an axis changes no step of a policy, and what binds instead."""
    for axis in axes:
        numbers = sorted(value for value in axis.values if isinstance(value, int | float))
        others = [one.name for one in axes if one is not axis]
        said: dict[tuple[str, str], list[str]] = {}
        for (policy,), own in by(ran, "policy").items():
            steps: dict[Any, dict[Any, int]] = {}
            for row in own:
                steps.setdefault(row[axis.name], {})[tuple(row[name] for name in others)] = row["step_ns"]
            for low, high in _level(numbers, steps):
                inside = [row for row in own if row[axis.name] in numbers and low <= row[axis.name] <= high]
                caps = (
                    []
                    if any(one.startswith(("buses.", "scenario.")) for one in others)
                    else _caps(axis.name, low, hardware, budget_bytes)
                )
                key = f"from {axis.written(low)} to {axis.written(high)}", _why(caps, inside)
                said.setdefault(key, []).append(str(policy))
        for (where, why), policies in said.items():
            yield f"{axis.name} changes no step of {listed(policies)} {where}: {why}."


def _level(numbers: Sequence[Any], steps: Mapping[Any, Any]) -> list[tuple[Any, Any]]:
    """Ends of ranges of values with the same steps, in all cells of what varies besides."""
    ranges: list[list[Any]] = []
    for before, value in pairwise([None, *numbers]):
        if value in steps and steps[value] == steps.get(before):
            ranges[-1].append(value)
        else:
            ranges.append([value])
    return [(found[0], found[-1]) for found in ranges if len(found) > 1]


def _caps(name: str, low: float, hardware: Hardware, budget_bytes: int | None) -> list[str]:
    """What of a machine is no wider than an axis at the low end of a range, and caps it."""
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


def _why(caps: Sequence[str], inside: Rows) -> str:
    """What binds in a range: what caps the axis, or what computes wait for there."""
    if caps:
        return f"{listed(caps)} {'is' if len(caps) == 1 else 'are'} no wider"
    most_ns, cause = max((sum(row.get(f"wait_{cause}_ns") or 0 for row in inside), cause) for cause in CAUSES)
    return f"computes wait most for {WAITED_FOR[cause]} there" if most_ns else "no compute waits there"


def _cell(row: Row, axes: Sequence[Shown]) -> str:
    return ", ".join(f"{axis.name} {axis.written(row[axis.name])}" for axis in axes)


def _did_not_run(rows: Rows) -> Iterator[str]:
    """Say in how many cells which policies do not run, and why."""
    lacking = ({"policy": ALL, **row} for row in rows if row["status"] != "ok")
    for (status, note), own in grouped(lacking, _reason).items():
        counts = Counter(str(row["policy"]) for row in own)
        who = listed([f"{policy} in {number(count)}" for policy, count in counts.items()])
        yield f"Cells that are {status}: {who}{f' ({note})' if note else ''}."


def _reason(row: Row) -> tuple[str, str]:
    is_told = row["status"] in ("failed", "refused") or row["policy"] == ALL
    return row["status"], str(row.get("notes") or "") if is_told else ""


def _maps(ran: Rows, axes: Sequence[Shown], best: float) -> Iterator[Map]:
    """A map for each policy, and for each cell of the axes with the fewest values, beside the two with most."""
    left, up = sorted(sorted(axes, key=lambda axis: -len(axis.values))[:2], key=axes.index)
    outer = [axis for axis in axes if axis not in (left, up)]
    policies = list(dict.fromkeys(row["policy"] for row in ran))
    known = {(row["policy"], *(row[axis.name] for axis in (*outer, left, up))): row["step_ns"] for row in ran}
    for policy, *fixed in product(policies, *(axis.values for axis in outer)):
        told = ", ".join(f"{axis.name} {axis.written(value)}" for axis, value in zip(outer, fixed, strict=True))
        heights = [[known.get((policy, *fixed, x, y)) for x in left.values] for y in up.values]
        ticks = list(map(left.written, left.values)), list(map(up.written, up.values))
        yield Map(": ".join(filter(None, (policy, told))), (left.name, up.name), ticks, heights, best)
