"""The view of a sweep: tables, notes, sentences, curves and maps; as text and as a page."""

from __future__ import annotations

import math
from base64 import b64encode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from textwrap import fill
from typing import Any, Literal, NamedTuple

import orjson

from simulator.metrics.statistics import by
from simulator.report.tables import PIPE_WIDTH, Column, aligned, figures
from simulator.report.words import ENDS, percent, quantity, written
from simulator.units import counted, listed

Row = Mapping[str, Any]
Rows = Sequence[Row]
ALL = "every policy"
"""Stands for the policy where a point cannot run at all."""
_LISTED = 3
"""Most points that a sentence names: of more it has the count and the first, as the table has all."""


class Panel(NamedTuple):
    """Curves over one axis.

    Attributes
    ----------
    title, axis, unit
        The title, the name of the axis, and the unit of heights: ``ns``, ``B``, ``%`` (for shares), another one, or
        none.
    rows, x, y, of
        The points, and their columns: value on the axis, height, and name of the curve. Points without a height are
        left out; points whose figure ``holds`` have a large dot.
    axis_unit
        The unit of values on the axis, like that of heights. Pictures choose a multiple of it.
    band
        Columns of the ends of a band around each curve, drawn as thin lines.
    limit
        A height that is drawn if it is near.
    dense
        For many points, which then have no markers: the scale of the axis, ``log`` (if they are far apart) or
        ``linear``.
    loose
        Names of curves whose points are not joined.
    """

    title: str
    axis: str
    unit: str
    rows: Sequence[Row]
    x: str
    y: str
    axis_unit: str = ""
    of: str = "policy"
    band: tuple[str, ...] = ()
    limit: float = math.inf
    dense: Literal["", "linear", "log"] = ""
    loose: tuple[str, ...] = ()


class Map(NamedTuple):
    """Heights over two axes.

    Attributes
    ----------
    axes
        The names of the axes, from left to right and from bottom to top.
    ticks
        The values on each axis, as text.
    heights
        Lines from bottom to top, each with heights from left to right; None where nothing ran.
    best
        The least height: contours show its multiples; 0: heights are not compared.
    per
        What a height is the time of: ``step``, or what is handled in it.
    """

    title: str
    axes: tuple[str, str]
    ticks: tuple[Sequence[str], Sequence[str]]
    heights: Sequence[Sequence[float | None]]
    best: float
    per: str = "step"


class Section(NamedTuple):
    """A table, or a list of notes, with a heading.

    Attributes
    ----------
    head
        The heading; may be empty.
    columns
        The table, if there is one.
    notes
        Notes, each a mark by which a table refers to it (may be empty), and its text.
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


class SweepView(NamedTuple):
    """The view of a sweep.

    Attributes
    ----------
    sections, sentences, panels
        Tables and notes, sentences, and curves.
    maps
        Maps, in place of curves if more than one axis varies.
    """

    title: str
    sections: Sequence[Section]
    sentences: Sequence[str]
    panels: Sequence[Panel] = ()
    maps: Sequence[Map] = ()

    def page(self, picture: bytes | None, **more: Any) -> str:
        """Render it as a self-contained HTML page: sentences, picture, tables and notes.

        Parameters
        ----------
        picture
            A PNG of the curves, if there is one.
        **more
            Further parts of the page: ``card`` (see `simulator.report.card`), ``origins``, the provenance of each
            scenario, and ``command``, which reproduces it.
        """
        return rendered("view.html.j2", view=self, picture=picture, **more)

    def _repr_html_(self) -> str:
        return rendered("cells.html.j2", view=self)

    def __str__(self) -> str:
        return "\n\n".join(filter(None, (*map(str, self.sections), "\n".join(self.sentences))))


def rendered(template: str, **variables: Any) -> str:
    """Render a template of this folder."""
    text: str = _environment().get_template(template).render(variables)
    return text


@cache
def _environment() -> Any:
    """Return the templates of this folder, each compiled once."""
    import jinja2  # noqa: PLC0415 - text needs none of it

    loader = jinja2.FileSystemLoader(Path(__file__).parent)
    environment = jinja2.Environment(loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.filters |= {"percent": percent, "quantity": quantity, "png": lambda png: b64encode(png).decode()}
    environment.filters["json"] = lambda data: orjson.dumps(data).decode().replace("<", "\\u003c")
    return environment


class Varied(NamedTuple):
    """A field that varies in a sweep.

    Attributes
    ----------
    unit
        The unit of its values inside; None for plain values.
    is_drawn
        Whether the values are drawn, or number the draws.
    is_of_work
        Whether they change the workload.
    """

    name: str
    unit: str | None = None
    values: Sequence[Any] = ()
    is_drawn: bool = False
    is_of_work: bool = False

    def written(self, row: Row) -> str:
        """Write the value of a row for people."""
        value = row[self.name]
        if self.unit == "x":
            return f"{value:g}x"
        return written(value, "count") if self.unit is None else quantity(value, self.unit)


def point_columns(rows: Rows, axes: Iterable[Varied]) -> list[Column]:
    """Make the columns that identify a row: its policy, and its value on each axis."""
    return [*figures(rows, ("policy",)), *(Column(axis.name, map(axis.written, rows), left=False) for axis in axes)]


def point(row: Row, axes: Iterable[Varied]) -> str:
    """Write the point of a row: ``batch 8, sequence 4,096``."""
    return ", ".join(f"{axis.name} {axis.written(row)}" for axis in axes)


def did_not_run(rows: Iterable[Row], axes: Sequence[Varied]) -> Iterator[str]:
    """Say for each policy where it does not run, and why it fails or is refused there; of many points, the first."""
    lacking = [{"policy": ALL, **row} for row in rows if row["status"] != "ok"]
    for (policy, status), group in by(lacking, "policy", "status").items():
        points = [*dict.fromkeys(point(row, axes) for row in group)]  # draws at one point cannot be told apart
        where = listed(points)
        if not axes or len(group) > len(points) or points[_LISTED:]:
            where = counted(len(group), "point") + f", the first at {points[0]}" * bool(points[1:])
        is_plain = status == "infeasible" and policy != ALL
        whys = [] if is_plain else [*dict.fromkeys(str(row["notes"]) for row in group if row.get("notes"))]
        more = f" ({counted(len(whys) - 1, 'other reason')} under notes)" if whys[1:] else ""
        outcome = f"{'nothing runs' if policy == ALL else f'{policy} {ENDS[status]}'} at {where}"
        yield f"{outcome}: {whys[0]}{more}." if whys else f"{outcome}."
