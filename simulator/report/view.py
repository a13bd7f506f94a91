"""A sweep as it is shown: tables, sentences and curves, whatever varied in it."""

from __future__ import annotations

import math
from base64 import b64encode
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import fill
from typing import Any

from simulator.report.rows import grouped, listed, percent, present, quantity
from simulator.report.text import PIPE_WIDTH, Column, aligned

Row = Mapping[str, Any]
Rows = Sequence[Row]


@dataclass(frozen=True, slots=True)
class Section:
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
        lines = [
            fill(text, PIPE_WIDTH, initial_indent=f"  {mark}".ljust(indent),
                 subsequent_indent=" " * (indent + 2 * (not mark)))
            for mark, text in self.notes
        ]  # fmt: skip
        table = [aligned([self.columns])] if self.columns else []
        return "\n".join(filter(None, (self.head, *table, *lines)))


@dataclass(frozen=True, slots=True)
class Curve:
    """A line of a panel.

    Attributes
    ----------
    label
        What it is called; the same label looks the same in all panels.
    points
        Value on the axis -> height.
    band
        Value on the axis -> ends of a band around the line.
    marked
        Values with a large dot.
    """

    label: str
    points: Mapping[Any, float]
    band: Mapping[Any, tuple[float, float]]
    marked: Collection[Any]


def curve(label: str, rows: Rows, axis: str, key: str, scale: float = 1, ends: tuple[str, str] | None = None) -> Curve:
    """Make a curve of a column over another one, without what is absent; rows that hold have a large dot.

    Parameters
    ----------
    label, rows
        What it is called, and what it shows.
    axis, key, scale
        The columns, and what heights are multiplied by.
    ends
        The columns of the ends of a band.
    """
    shown = [row for row in rows if present(row.get(key))]
    banded = [row for row in shown if ends and all(present(row.get(end)) for end in ends)]
    band = {row[axis]: (row[ends[0]], row[ends[1]]) for row in banded} if ends else {}
    marked = [row[axis] for row in shown if row.get("holds")]
    return Curve(label, {row[axis]: scale * row[key] for row in shown}, band, marked)


@dataclass(frozen=True, slots=True)
class Panel:
    """Curves over one axis.

    Attributes
    ----------
    title, axis, unit
        What is drawn, over what, in which unit: ``ns``, ``B``, ``%``, or none.
    curves
        The curves.
    limit
        A height that is drawn if it is near.
    """

    title: str
    axis: str
    unit: str
    curves: Sequence[Curve]
    limit: float = math.inf


@dataclass(frozen=True, slots=True)
class View:
    """All that is shown of a sweep.

    Attributes
    ----------
    title
        What was swept.
    sections, sentences, panels
        Tables and notes, what a person would say, and curves.
    """

    title: str
    sections: Sequence[Section]
    sentences: Sequence[str]
    panels: Sequence[Panel] = ()

    def page(self, picture: bytes | None) -> str:
        """Write it as HTML that needs no network: what there is to say, the picture, the tables and their notes.

        Parameters
        ----------
        picture
            A PNG of the curves, if there is one.
        """
        return rendered("view.html.j2", view=self, picture=picture)

    def __str__(self) -> str:
        return "\n\n".join(filter(None, (*map(str, self.sections), "\n".join(self.sentences))))


def rendered(template: str, **shown: Any) -> str:
    """Write a page from a template of this folder, with what it shows."""
    import jinja2  # noqa: PLC0415 - text needs none of it

    loader = jinja2.FileSystemLoader(Path(__file__).parent)
    environment = jinja2.Environment(loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.filters |= {"percent": percent, "quantity": quantity, "png": lambda png: b64encode(png).decode()}
    return environment.get_template(template).render(shown)


def texts(head: str, rows: Rows, write: Callable[[Row], object], *, left: bool = True) -> Column:
    """Return a column of texts."""
    return Column(head, tuple(str(write(row)) for row in rows), left=left)


def by(rows: Iterable[Row], *keys: str) -> dict[tuple[Any, ...], list[Row]]:
    """Put rows together that agree in some columns, in the order of their first ones."""
    return grouped(rows, lambda row: tuple(row[key] for key in keys))


def number(value: object) -> str:
    """Write a value of an axis."""
    return f"{value:,}" if isinstance(value, int) else str(value)


def point(row: Row, axes: Mapping[str, str]) -> str:
    """Say where a row is: ``batch 8 and sequence 4096``; axes are heads with their columns."""
    return " and ".join(f"{head} {number(row[key])}" for head, key in axes.items())


_DID_NOT = {
    "infeasible": ("fits at no point", "does not fit"),
    "blocked": ("is blocked at every point", "is blocked"),
    "refused": ("is refused at every point", "is refused"),
    "failed": ("fails at every point", "fails"),
    "lost": ("fails at every point", "fails"),
}
"""Status of what did not run -> what is said if that is so everywhere, and else."""


def did_not_run(rows: Rows, axes: Mapping[str, str]) -> list[str]:
    """Say for each policy at which points it does not run, and why a point failed.

    Parameters
    ----------
    rows
        One per policy and point.
    axes
        Heads of what points differ in -> their columns.
    """
    sentences = []
    for (policy,), own in by(rows, "policy").items():
        for (status,), lacking in by(own, "status").items():
            if status not in _DID_NOT:
                continue
            nowhere, elsewhere = _DID_NOT[status]
            points = [point(row, axes) for row in lacking]
            told = nowhere if len(lacking) == len(own) else f"{elsewhere} at {listed(points)}"
            why = dict.fromkeys(row.get("notes") for row in lacking if status in ("failed", "lost"))
            sentences.append(": ".join(filter(None, (f"{policy} {told}", "; ".join(map(str, why))))) + ".")
    return sentences
