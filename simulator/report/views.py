"""What is shown of a sweep: sections of tables and notes, sentences, curves and maps; as text and as a page."""

from __future__ import annotations

import math
from base64 import b64encode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from textwrap import fill
from typing import Any, Literal, NamedTuple

import orjson

from simulator.report.rows import grouped, listed, percent, quantity, units, written
from simulator.report.tables import PIPE_WIDTH, Column, aligned
from simulator.units import counted

Row = Mapping[str, Any]
Rows = Sequence[Row]
ALL = "every policy"
"""In place of a policy, where a point cannot run at all."""
_STATUS = {"infeasible": "does not fit", "blocked": "is blocked", "refused": "is refused"}
"""Status of what did not run, but did not fail -> what is said."""
_LISTED = 8
"""So many points are named; of more it is said how many they are."""


class Panel(NamedTuple):
    """Curves over one axis.

    Attributes
    ----------
    title, axis, unit
        What is drawn, over what, in which unit: ``ns``, ``B``, ``%`` (of shares), or none.
    rows, x, y, of
        The points, and their columns: value on the axis, height, and the name of the curve. Points without a height are
        left out; those that hold (``holds``) have a large dot.
    band
        Columns of the ends of a band around each curve, which thin lines show.
    limit
        A height that is drawn if it is near.
    dense
        Of many points, which have no marks: the scale of the axis, ``log`` if they are far apart on it, or ``linear``.
    """

    title: str
    axis: str
    unit: str
    rows: Sequence[Row]
    x: str
    y: str
    of: str = "policy"
    band: tuple[str, ...] = ()
    limit: float = math.inf
    dense: Literal["", "linear", "log"] = ""


class Map(NamedTuple):
    """Heights over two axes.

    Attributes
    ----------
    title
        What is drawn.
    axes
        What varies from left to right, and from bottom to top.
    ticks
        Their values, as they are written.
    heights
        From bottom to top a line of heights from left to right; None where nothing ran.
    best
        What heights are held against: contours show how many times as high they are.
    """

    title: str
    axes: tuple[str, str]
    ticks: tuple[Sequence[str], Sequence[str]]
    heights: Sequence[Sequence[float | None]]
    best: float


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


class SweepView(NamedTuple):
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
        """Render it as a self-contained HTML page: sentences, picture, tables and notes.

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
    """Render a template of this folder."""
    import jinja2  # noqa: PLC0415 - text needs none of it

    loader = jinja2.FileSystemLoader(Path(__file__).parent)
    environment = jinja2.Environment(loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.filters |= {"percent": percent, "quantity": quantity, "png": lambda png: b64encode(png).decode()}
    environment.filters["json"] = lambda told: orjson.dumps(told).decode().replace("<", "\\u003c")
    return environment.get_template(template).render(shown)


def by(rows: Iterable[Row], *keys: str) -> dict[tuple[Any, ...], list[Row]]:
    """Group rows by the values of some columns, in the order in which they first come."""
    return grouped(rows, lambda row: tuple(row[key] for key in keys))


class Varied(NamedTuple):
    """What varies in a sweep.

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
    unit: str | None = None
    values: Sequence[Any] = ()
    is_drawn: bool = False

    @property
    def scaled(self) -> tuple[dict[Any, Any], str]:
        """Its values in a readable unit, and its name with that unit."""
        if self.unit is None:
            return {value: value for value in self.values}, self.name
        unit, size = units(max(self.values), self.unit)
        return {value: value / size for value in self.values}, f"{self.name} [{unit}]"

    def written(self, row: Row) -> str:
        """Write the value of a row for people."""
        value = row[self.name]
        return written(value, "count") if self.unit is None else quantity(value, self.unit)

    def column(self, rows: Iterable[Row]) -> Column:
        """Make a column of its values in some rows."""
        return Column.texts(self.name, map(self.written, rows), left=False)


def point(row: Row, axes: Iterable[Varied]) -> str:
    """Write the point of a row: ``batch 8, sequence 4,096``."""
    return ", ".join(f"{axis.name} {axis.written(row)}" for axis in axes)


def did_not_run(rows: Iterable[Row], axes: Sequence[Varied]) -> Iterator[str]:
    """Say for each policy at which points it does not run, and why a point failed or was refused."""
    lacking = [{"policy": ALL, **row} for row in rows if row["status"] != "ok"]
    for (policy, status), own in by(lacking, "policy", "status").items():
        places = dict.fromkeys(point(row, axes) for row in own)  # draws of one place cannot be told apart
        is_listed = axes and len(own) == len(places) <= _LISTED
        where = f"at {listed([*places]) if is_listed else counted(len(own), 'point')}"
        is_plain = status in _STATUS and status != "refused" and policy != ALL
        why = "" if is_plain else "; ".join(dict.fromkeys(str(row["notes"]) for row in own if row.get("notes")))
        says = "nothing runs" if policy == ALL else f"{policy} {_STATUS.get(status, 'fails')}"
        yield f"{says} {where}: {why}." if why else f"{says} {where}."
