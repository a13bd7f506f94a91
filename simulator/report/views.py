"""A sweep as it is shown, as text, as a page and as curves: other conditions, and scaling."""

from __future__ import annotations

import math
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from textwrap import fill
from typing import Any, NamedTuple

import orjson

from simulator.hardware import Hardware
from simulator.metrics import figure_of
from simulator.report.panels import Map, Panel
from simulator.report.rows import ABSENT, grouped, listed, percent, present, quantity, ratio
from simulator.report.sentences import WAITED_FOR
from simulator.report.tables import PIPE_WIDTH, WAITS, Column, aligned, figures, occurring
from simulator.trace import CAUSES

Row = Mapping[str, Any]
Rows = Sequence[Row]
NOMINAL, INSPECTION, SEQUENCE = "nominal", "inspection", "longer sequence"
_STATUS = {"infeasible": "does not fit", "blocked": "is blocked", "refused": "is refused"}
"""Status of what did not run, but did not fail -> what is said."""


class Section(NamedTuple):
    """A table, or a list of notes, with a heading.

    Attributes
    ----------
    head
        The heading; may be empty.
    columns
        The table, if there is one.
    notes
        Texts, each with the mark by which a table refers to it, if one does.
    """

    head: str = ""
    columns: Sequence[Column] = ()
    notes: Sequence[tuple[str, str]] = ()

    def __str__(self) -> str:
        indent = 2 + max((len(mark) + 2 for mark, _ in self.notes if mark), default=0)
        behind = " " * (indent if indent > 2 else 4)
        marked = ((f"  {mark}".ljust(indent), text) for mark, text in self.notes)
        notes = (fill(text, PIPE_WIDTH, initial_indent=mark, subsequent_indent=behind) for mark, text in marked)
        return "\n".join(filter(None, (self.head, aligned(self.columns) if self.columns else "", *notes)))


class View(NamedTuple):
    """All that is shown of a sweep.

    Attributes
    ----------
    title
        What was swept.
    sections, sentences, panels
        Tables and notes, what a person would say, and curves.
    maps
        Of what varies along two axes, or three, in place of curves.
    """

    title: str
    sections: Sequence[Section]
    sentences: Sequence[str]
    panels: Sequence[Panel] = ()
    maps: Sequence[Map] = ()

    def page(self, picture: bytes | None, **more: Any) -> str:
        """Write it as HTML that needs no network: what there is to say, the picture, the tables and their notes.

        Parameters
        ----------
        picture
            A PNG of the curves, if there is one.
        **more
            What stands around it: ``card`` (see `simulator.report.card`), ``origins``, the provenance of each scenario,
            and ``command``, which gives the same again.
        """
        return rendered("view.html.j2", view=self, picture=picture, **more)

    def _repr_html_(self) -> str:
        return rendered("cells.html.j2", view=self)

    def __str__(self) -> str:
        return "\n\n".join(filter(None, (*map(str, self.sections), "\n".join(self.sentences))))


def rendered(template: str, **shown: Any) -> str:
    """Write a page from a template of this folder, with what it shows."""
    import jinja2  # noqa: PLC0415 - text needs none of it

    loader = jinja2.FileSystemLoader(Path(__file__).parent)
    environment = jinja2.Environment(loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.filters |= {"percent": percent, "quantity": quantity, "png": lambda png: b64encode(png).decode()}
    environment.filters["json"] = lambda told: orjson.dumps(told).decode().replace("<", "\\u003c")
    return environment.get_template(template).render(shown)


def texts(head: str, rows: Rows, write: Callable[[Row], object], *, left: bool = True) -> Column:
    """Return a column of texts."""
    return Column.texts(head, map(write, rows), left=left)


def by(rows: Iterable[Row], *keys: str) -> dict[tuple[Any, ...], list[Row]]:
    """Put rows together that agree in some columns, in the order of their first ones."""
    return grouped(rows, lambda row: tuple(row[key] for key in keys))


def number(value: object) -> str:
    """Write a value of an axis."""
    return f"{value:.4g}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)


def _step(row: Row, key: str = "step_ns") -> float:
    return math.inf if row[key] is None else float(row[key])


def robust_view(rows: Rows, policies: Sequence[str]) -> View:
    """Show quantiles.

    Parameters
    ----------
    rows
        What `quantiles` gives.
    policies
        The tested policy and the other one.
    """
    pairs = [{str(row["policy"]): row for row in pair} for pair in by(rows, "perturbation", "level").values()]
    columns = [
        texts("perturbation", pairs, lambda pair: pair[policies[0]]["perturbation"]),
        texts("level", pairs, lambda pair: _level(pair[policies[0]]), left=False),
    ]
    for policy in policies:
        own = [pair[policy] for pair in pairs]
        columns += [
            texts(policy, own, _median, left=False),
            texts("slowdown", own, lambda row: ratio(row["median_slowdown"]), left=False),
            texts("5 to 95 %", own, _range, left=False),
        ]
    columns.append(texts("faster", pairs, lambda pair: _faster(pair, policies)))
    panels = []
    kinds = dict.fromkeys(row["perturbation"] for row in rows)
    for kind in [kind for kind in kinds if kind != NOMINAL] or kinds:
        unit, scale = ("us", 0.001) if kind == INSPECTION else ("%", 100)
        shown = [row for row in rows if row["perturbation"] in ({kind} if kind == INSPECTION else {NOMINAL, kind})]
        placed = [{**row, "at": round(scale * row["level"], 9)} for row in shown]
        band = ("p05_step_ns", "p95_step_ns")
        panels.append(Panel(kind, f"level [{unit}]", "ns", placed, "at", "median_step_ns", band=band))
    title = f"one plan of {policies[0]!r} under other conditions, beside {policies[1]!r}"
    return View(title, [Section(columns=columns)], list(_crossovers(pairs, policies)), panels)


def _level(row: Row) -> str:
    """Write a level: a share, or of an inspection its time."""
    if row["perturbation"] == NOMINAL:
        return ABSENT
    return quantity(round(row["level"]), "ns") if row["perturbation"] == INSPECTION else f"{100 * row['level']:g} %"


def _median(row: Row) -> str:
    step = row["failed"] if row["median_step_ns"] is None else quantity(row["median_step_ns"], "ns")
    return step if row["ok"] in (0, row["draws"]) else f"{step} ({row['ok']} of {row['draws']} ran)"


def _range(row: Row) -> str:
    return ABSENT if row["draws"] == 1 else f"{ratio(row['p05_slowdown'])} {ratio(row['p95_slowdown'])}"


def _faster(pair: Mapping[str, Row], policies: Sequence[str]) -> str:
    steps = [_step(pair[policy], "median_step_ns") for policy in policies]
    if steps[0] == steps[1]:
        return "tie" if steps[0] < math.inf else "neither"
    return policies[0] if steps[0] < steps[1] else policies[1]


def _crossovers(pairs: Sequence[Mapping[str, Row]], policies: Sequence[str]) -> Iterator[str]:
    """Say for each perturbation at which levels which policy's median is lower."""
    shaken = [pair for pair in pairs if pair[policies[0]]["perturbation"] != NOMINAL]
    for kind, own in grouped(shaken, lambda pair: str(pair[policies[0]]["perturbation"])).items():
        faster = grouped(own, lambda pair: _faster(pair, policies))
        told = [f"{who} at {listed([_level(pair[policies[0]]) for pair in at])}" for who, at in faster.items()]
        yield f"Faster under {kind}: {'; '.join(told)}."


def scaling_view(rows: Rows, fields: Sequence[str], hardware: Hardware, budget_bytes: float, title: str) -> View:
    """Show a curve.

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
    axes = ["ranks"] if over_ranks and all(present(row.get("ranks")) for row in rows) else list(fields)
    usable = {name: tier.usable_bytes for name, tier in hardware.tiers.items()} | {hardware.compute_tier: budget_bytes}
    limits: dict[str, float] = {f"peak_{name}_bytes": limit for name, limit in usable.items()}
    limits |= {f"moved_{name}_bytes": math.inf for name in hardware.links}
    used = {column: limits[column] for column in occurring(rows, limits)}
    of_ranks = ("collective_ns", "masked_fraction") if over_ranks else ("gap_fraction", "bound_kind")
    times = figures(rows, ("status", "step_ns", "compute_ns", "stall_ns", *occurring(rows, WAITS), *of_ranks))
    times.append(texts("tokens/s", rows, lambda row: rate(row.get("tokens_per_s")), left=False))
    if over_ranks:
        times.append(texts("efficiency", rows, lambda row: percent(row.get("efficiency")), left=False))
    sections, ran = [Section(columns=[*_points(rows, axes), *times])], [row for row in rows if row["status"] == "ok"]
    if ran and used:
        sections.append(Section(columns=[*_points(ran, axes), *figures(ran, used)]))
    panels = [Panel("one step", axes[0], "ns", rows, axes[0], "step_ns")]
    if over_ranks:
        efficiency = "efficiency against the first point [%]"
        panels.append(Panel(efficiency, axes[0], "", rows, axes[0], "efficiency", scale=100))
    else:
        panels.append(Panel("tokens per second", axes[0], "", rows, axes[0], "tokens_per_s"))
    for column, limit in used.items():
        room = f", room {quantity(limit, 'B')}" if limit < math.inf else ""
        panels.append(Panel(f"{figure_of(column).head}{room}", axes[0], "B", rows, axes[0], column, limit=limit))
    return View(title, sections, [*did_not_run(rows, axes), *_gained(rows, axes)], panels)


def _points(rows: Rows, axes: Sequence[str]) -> list[Column]:
    values = [Column.texts(axis, (number(row[axis]) for row in rows), left=False) for axis in axes]
    return [texts("policy", rows, lambda row: row["policy"]), *values]


def did_not_run(rows: Rows, axes: Sequence[str]) -> list[str]:
    """Say for each policy at which points it does not run, and why a point failed.

    Parameters
    ----------
    rows
        One per policy and point.
    axes
        Columns of what points differ in.
    """
    found = []
    for (policy, status), own in by(rows, "policy", "status").items():
        if status != "ok":
            why = dict.fromkeys(str(row["notes"]) for row in own if status not in _STATUS)
            text = f"{policy} {_STATUS.get(status, 'fails')} at {listed([_point(row, axes) for row in own])}"
            found.append(": ".join(filter(None, (text, "; ".join(why)))) + ".")
    return found


def _point(row: Row, axes: Sequence[str]) -> str:
    """Say where a row is: ``batch 8, sequence 4,096``."""
    return ", ".join(f"{axis} {number(row[axis])}" for axis in axes)


def rate(value: float | None) -> str:
    """Write a rate with three significant digits, such as ``1.24 M``."""
    if not present(value) or value is None:
        return ABSENT
    size, letter = next((s for s in ((10**9, " G"), (10**6, " M"), (10**3, " k")) if value >= s[0]), (1, ""))
    return f"{float(f'{value / size:.3g}'):g}{letter}"


def _gained(rows: Rows, axes: Sequence[str]) -> Iterator[str]:
    """Say for each policy what comes out at its first and its last point, and what it waits for there."""
    for (policy,), own in by((row for row in rows if present(row.get("tokens_per_s"))), "policy").items():
        ends = own if len(own) == 1 else (own[0], own[-1])
        much = [f"{rate(row['tokens_per_s'])} tokens/s at {_point(row, axes)}" for row in ends]
        waits = [percent(row["stall_ns"] / row["step_ns"]) for row in ends]
        most_ns, cause = max((ends[-1].get(f"wait_{cause}_ns") or 0, WAITED_FOR[cause]) for cause in CAUSES)
        cause = f", there most for {cause}" if most_ns else ""
        yield f"{policy} makes {listed(much)}; it waits for {listed(waits)} of a step{cause}."


def pointer(points: Mapping[str, Sequence[object]]) -> list[str]:
    """Tell who sees one step where the curve is: no sentence if the scenario lists no points.

    Parameters
    ----------
    points
        The ``scaling`` of a scenario.
    """
    if not points:
        return []
    where = [number(value) for value in next(iter(points.values()))] if len(points) == 1 else []
    told = listed(where) or f"at {len(next(iter(points.values())))} points"
    return [f"This is one point of a curve: hosim scaling compares {listed(list(points))} {told}."]
