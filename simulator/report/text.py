"""Tables as text: one writer for every table that hosim prints, and the table of a run.

What is wider than the line is cut between two columns and goes on below, with the row names repeated. On a terminal
rich draws it; in a pipe it is plain text of a fixed width, so that the same run prints the same bytes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

from simulator.metrics import figure_of
from simulator.report.rows import ABSENT, Row, bound_name, causes, is_ok, recomputed_ns, shown
from simulator.trace import CAUSES

if TYPE_CHECKING:
    from rich.console import RenderableType

PIPE_WIDTH = 100
"""Characters of a line in a pipe."""
_GAP = "  "


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table.

    Attributes
    ----------
    head
        Its heading.
    cells
        One text per row.
    left
        Whether it is aligned to the left (text) rather than to the right (numbers).
    """

    head: str
    cells: tuple[str, ...]
    left: bool = False

    @classmethod
    def texts(cls, head: str, cells: Iterable[object]) -> Column:
        """A column of texts."""
        return cls(head, tuple(map(str, cells)), left=True)

    @classmethod
    def figure(cls, summaries: Iterable[Mapping[str, Any]], column: str, head: str = "") -> Column:
        """A figure of some rows as the registry has it, under its own heading unless another one is given."""
        figure = figure_of(column)
        cells = tuple(shown(column, summary.get(column)) for summary in summaries)
        return cls(head or figure.head, cells, left=figure.unit == "text")

    @property
    def width(self) -> int:
        """Characters it takes."""
        return max(map(len, (self.head, *self.cells)))

    def line(self, text: str) -> str:
        """Pad a text to the width of the column."""
        return text.ljust(self.width) if self.left else text.rjust(self.width)


def aligned(parts: Iterable[Sequence[Column]], indent: int = 0) -> str:
    """Write tables as aligned text, one after another with an empty line between them.

    Parameters
    ----------
    parts
        Tables; without any heading a table has no line of them.
    indent
        Blanks before each line.
    """
    written = []
    for part in parts:
        heads = [tuple(column.head for column in part)] if any(column.head for column in part) else []
        lines = [*heads, *zip(*(column.cells for column in part), strict=True)]
        padded = (_GAP.join(c.line(cell) for c, cell in zip(part, line, strict=True)).rstrip() for line in lines)
        written.append("\n".join(" " * indent + line if line else "" for line in padded))
    return "\n\n".join(written)


def aligned_lines(lines: Iterable[Sequence[object]], indent: int = 0) -> str:
    """Align texts into columns without headings; empty columns vanish.

    Parameters
    ----------
    lines
        Lines of equally many texts.
    indent
        Blanks before each line.
    """
    columns = [Column.texts("", cells) for cells in zip(*lines, strict=True)]
    return aligned([[column for column in columns if column.width]], indent)


def markdown(columns: Sequence[Column]) -> str:
    """Write a table in Markdown."""
    lines = [[column.head for column in columns], ["---" if column.left else "---:" for column in columns]]
    lines += map(list, zip(*([in_markdown(cell) for cell in column.cells] for column in columns), strict=True))
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def in_markdown(text: str) -> str:
    """A text that Markdown shows as it is."""
    return re.sub(r"([\\`*_{}\[\]|#])", r"\\\1", escape(text, quote=False))


_TIMES = ("status", "step_ns", "slowdown_vs_fastest", "slowdown_vs_compute", "gap_fraction")


def time_columns(rows: Sequence[Row]) -> list[Column]:
    """Return the columns about time: how long a step takes, against what, and how long it waits.

    Parameters
    ----------
    rows
        The rows, in the order of the scenario.
    """
    again = ["recompute_ns"] if any(map(recomputed_ns, rows)) else []
    return [
        *_figures(rows, _TIMES),
        Column.texts("bound", map(bound_name, rows)),
        *_figures(rows, ["hidden_fraction", *again, "stall_ns"]),
    ]


def cause_columns(rows: Sequence[Row]) -> list[Column]:
    """Return the columns about what the steps wait for: one for each cause that occurs.

    Parameters
    ----------
    rows
        The rows, in the order of the scenario.
    """
    occurring = {cause for row in rows for cause, _ in causes(row)}
    return _figures(rows, [f"wait_{cause}_ns" for cause in CAUSES if cause in occurring])


def memory_columns(rows: Sequence[Row]) -> list[Column]:
    """Return the columns about memory: peaks of tiers, bytes moved over links, both in use, and what crowds a bus.

    Parameters
    ----------
    rows
        The rows, in the order of the scenario.
    """
    machine = rows[0].hardware
    used = [f"peak_{name}_bytes" for name in machine.tiers] + [f"moved_{name}_bytes" for name in machine.links]
    reserved = (f"peak_reserved_{machine.compute_tier}_bytes", "compactions")
    more = [name for name in reserved if any(row.summary.get("compactions") is not None for row in rows)]
    more += [name for bus in machine.buses if _most(rows, name := f"demand_{bus}") > 1]
    return _figures(rows, [*(name for name in used if _most(rows, name)), *more])


def _most(rows: Sequence[Row], column: str) -> float:
    return max(float(row.summary.get(column) or 0) for row in rows)


def figures(summaries: Sequence[Mapping[str, Any]], columns: Iterable[str]) -> list[Column]:
    """Return the columns of some figures, under their own headings."""
    return [Column.figure(summaries, column) for column in columns]


def _figures(rows: Sequence[Row], columns: Iterable[str]) -> list[Column]:
    return figures([row.summary for row in rows], columns)


def rank_columns(ranks: Sequence[Row]) -> list[Column]:
    """Return a table of ranks: what each runs, how long its step takes, what it waits for, and what it holds.

    Parameters
    ----------
    ranks
        Ranks of one row.
    """
    shares = ("collective_ns", "masked_fraction", "bubble_fraction", "utilisation")
    found = [
        Column("rank", tuple(str(rank.rank) for rank in ranks)),
        Column.texts("runs", (rank.program for rank in ranks)),
        Column("stands for", tuple(f"{rank.stands_for:,}" if rank.stands_for > 1 else "" for rank in ranks)),
        *_figures(ranks, ("step_ns", "compute_ns")),
        *cause_columns(ranks),
        *_figures(ranks, (*shares, f"peak_{ranks[0].hardware.compute_tier}_bytes")),
    ]
    return [column for column in found if set(column.cells) - {"", ABSENT}]


def folded(rows: Sequence[Row], width: int, gap: int = len(_GAP)) -> list[list[Column]]:
    """Cut the table into parts that fit the width, each with the row names.

    Parameters
    ----------
    rows
        The rows.
    width
        Characters of a line.
    gap
        Characters between two columns.

    Returns
    -------
    list of list of Column
        Time, causes and memory stay whole and share a part where they fit.
    """
    name = Column.texts("policy", (row.label for row in rows))
    parts: list[list[Column]] = [[name]]

    def fits(more: Sequence[Column]) -> bool:
        return sum(column.width + gap for column in (*parts[-1], *more)) <= width + gap

    for columns in (time_columns(rows), cause_columns(rows), memory_columns(rows)):
        section = [column for column in columns if column.cells.count(ABSENT) < len(rows)]
        if len(parts[-1]) > 1 and not fits(section):
            parts.append([name])
        for column in section:
            if len(parts[-1]) > 1 and not fits([column]):
                parts.append([name])
            parts[-1].append(column)
    return parts


def plain(rows: Sequence[Row], width: int = PIPE_WIDTH) -> str:
    """Write the table as aligned text without colour or lines.

    Parameters
    ----------
    rows
        The rows.
    width
        Characters of a line.
    """
    return aligned(folded(rows, width))


def rich_tables(rows: Sequence[Row], width: int) -> list[RenderableType]:
    """Draw the table for a terminal, as one or more tables of at most `width` characters.

    Parameters
    ----------
    rows
        The rows; the fastest one is drawn bold, those without a result are dim.
    width
        Characters of a line.
    """
    from rich import box  # noqa: PLC0415 - a pipe needs none of it
    from rich.table import Table  # noqa: PLC0415

    tables: list[RenderableType] = []
    for part in folded(rows, width - 2, gap=3):
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
        for column in part:
            table.add_column(column.head, justify="left" if column.left else "right", no_wrap=True)
        for i, row in enumerate(rows):
            best = row.summary.get("slowdown_vs_fastest") == 1
            style = "bold" if best else "" if is_ok(row) else "dim"
            table.add_row(*(column.cells[i] for column in part), style=style)
        tables.append(table)
    return tables
