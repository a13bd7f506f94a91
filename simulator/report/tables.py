"""Tables as text: one writer for every table that hosim prints, the table of a run, and the progress bar.

A table that is wider than the line is split between columns and continued below, with the row names repeated. The same
run prints the same bytes, in a pipe as on a terminal of the same width.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from html import escape
from time import monotonic
from typing import Any

from simulator.metrics import columns as columns_of
from simulator.metrics.figures import PLAIN, Figure, local
from simulator.metrics.rows import Row
from simulator.report.words import ABSENT, named, written
from simulator.trace import CAUSES

PIPE_WIDTH = 100
"""Width of a line in a pipe [characters]."""
_GAP = "  "
_SPEED = ("tokens_per_s", "samples_per_s", "tflops", "mfu")
"""Columns of work per second."""
WAITS = tuple(f"wait_{cause}_ns" for cause in CAUSES)
"""Columns of waits by cause."""
_OWN = local(text=("kind of bound", "real step", "runs"), count=("rank", "stands for"))
"""What tables say of rows besides their figures."""
SELDOM_S = 30
"""Time between two lines of progress without a terminal [s]; a shorter run prints none."""
_OFTEN_S = 0.1
"""Time between two updates of the bar on a terminal [s]; no thread updates it, as rows are written in forks."""


class Column:
    """One column of a table.

    Parameters
    ----------
    head
        Its heading.
    cells
        A value for each row, which is converted to text.
    left
        Whether it is aligned to the left (text) rather than to the right (numbers).
    """

    def __init__(self, head: str, cells: Iterable[object], *, left: bool = True) -> None:
        self.head, self.cells, self.left = head, tuple(map(str, cells)), left

    @property
    def width(self) -> int:
        """Length of its longest text [characters]."""
        return max(map(len, (self.head, *self.cells)))

    def padded(self, text: str) -> str:
        """Pad a text to the width of the column."""
        return text.ljust(self.width) if self.left else text.rjust(self.width)


def aligned(columns: Sequence[Column], indent: int = 0) -> str:
    """Write a table as aligned text, without empty columns, and without a heading line if no column has one.

    Parameters
    ----------
    columns
        The table.
    indent
        Spaces before each line.
    """
    columns = [column for column in columns if column.width]
    heads = [[column.head for column in columns]] if any(column.head for column in columns) else []
    lines = [*heads, *zip(*(column.cells for column in columns), strict=True)]
    padded = (_GAP.join(map(Column.padded, columns, line)).rstrip() for line in lines)
    return "\n".join(" " * indent + line if line else "" for line in padded)


def markdown(columns: Sequence[Column]) -> str:
    """Write a table in Markdown."""
    lines = [[column.head for column in columns], ["---" if column.left else "---:" for column in columns]]
    lines += map(list, zip(*([in_markdown(cell) for cell in column.cells] for column in columns), strict=True))
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def in_markdown(text: str) -> str:
    """Escape text for Markdown."""
    return re.sub(r"([\\`*_{}\[\]|#])", r"\\\1", escape(text, quote=False))


def figures(
    rows: Sequence[Mapping[str, Any]], columns: Iterable[str | Figure], on: Mapping[str, Figure] = PLAIN
) -> list[Column]:
    """Make columns of figures: the table's own, and by name registered ones, which are those `on` a machine or any."""
    made = []
    for column in columns:
        figure = column if isinstance(column, Figure) else on.get(column) or PLAIN[column]
        values = [row.get(figure.column) for row in rows]
        is_text = figure.unit == "text" or any(isinstance(value, str) for value in values)
        made.append(Column(figure.head, (written(value, figure.unit) for value in values), left=is_text))
    return made


def filled(columns: Iterable[Column]) -> list[Column]:
    """Leave out columns without any number or text."""
    return [column for column in columns if set(column.cells) - {"", ABSENT}]


def occurring(summaries: Sequence[Mapping[str, Any]], columns: Iterable[str]) -> list[str]:
    """Return the columns in which some row has a number other than 0."""
    return [column for column in columns if any(summary.get(column) for summary in summaries)]


def sections(rows: Sequence[Row]) -> list[list[Column]]:
    """Make the table of a run in sections: the step and throughput; real steps; waits; peaks and traffic; costs.

    Parameters
    ----------
    rows
        The rows, in the order of the scenario. Columns without any number are left out.
    """
    summaries, machine = [row.summary | named(row) for row in rows], rows[0].hardware
    on = columns_of(machine) | _OWN
    step = ("status", "step_ns", "slowdown_vs_fastest", "gap_fraction", *_SPEED, "slowdown_vs_compute", "kind_of_bound")
    more = occurring(summaries, ["recompute_ns", "delay_ns", "host_compute_ns"])
    times = figures(summaries, (*step, "hidden_fraction", *more, "stall_ns"), on)
    columns = [f"{of}_{name}_bytes" for of in ("peak", "process") for name in machine.tiers]
    columns += [f"moved_{name}_bytes" for name in machine.links]
    held = occurring(summaries, columns)
    if any(summary.get("compactions") is not None for summary in summaries):
        held += [f"peak_reserved_{machine.compute_tier}_bytes", "compactions"]
    held += occurring(summaries, ["chosen_hit_fraction"])
    demands = (f"demand_{bus}" for bus in machine.caps)
    held += [column for column in demands if any((summary.get(column) or 0) > 1 for summary in summaries)]
    paid = occurring(summaries, columns_of(machine, ("cost",)))
    real = figures(summaries, ("paced_by", "real_step"), on)
    parts = (times, real, *(figures(summaries, columns, on) for columns in (occurring(summaries, WAITS), held, paid)))
    return list(filter(None, map(filled, parts)))


def folded(rows: Sequence[Row], width: int) -> list[list[Column]]:
    """Split the table of a run into parts that fit the width, each with the row names.

    Parameters
    ----------
    rows
        The rows.
    width
        Width of a line [characters]. Sections stay whole and share a part where they fit.
    """
    parts = [[Column("policy", (row.label for row in rows))]]

    def begin_unless_fits(more: Sequence[Column]) -> None:
        if sum(column.width + len(_GAP) for column in (*parts[-1], *more)) > width + len(_GAP) and parts[-1][1:]:
            parts.append(parts[0][:1])

    for section in sections(rows):
        begin_unless_fits(section)
        for column in section:
            begin_unless_fits([column])
            parts[-1].append(column)
    return parts


def plain(rows: Sequence[Row], width: int = PIPE_WIDTH) -> str:
    """Write the table of a run as aligned text.

    Parameters
    ----------
    rows
        The rows.
    width
        Width of a line [characters].
    """
    return "\n\n".join(map(aligned, folded(rows, width)))


def rank_columns(ranks: Sequence[Row]) -> list[Column]:
    """Make a table of ranks: program, step, waits, shares and peak.

    Parameters
    ----------
    ranks
        Ranks of one row.
    """
    on, peak = columns_of(ranks[0].hardware) | _OWN, f"peak_{ranks[0].hardware.compute_tier}_bytes"
    folded = [row.stands_for if row.stands_for > 1 else None for row in ranks]
    names = [{"rank": row.rank, "runs": row.program, "stands_for": n} for row, n in zip(ranks, folded, strict=True)]
    rows = [name | row.summary for name, row in zip(names, ranks, strict=True)]
    shares = ("collective_ns", "masked_fraction", "bubble_fraction", "utilisation")
    spent = occurring(rows, ("delay_ns", *WAITS))
    return filled(figures(rows, (*names[0], "step_ns", "compute_ns", *spent, *shares, peak), on))


class ProgressBar:
    """Shows progress on stderr.

    It yields a function of a label, the amount done, and the total (0: unknown; below 0: print the label as a line).
    After what took long it says so if another engine would have been quicker.
    """

    def __init__(self) -> None:
        self._bar: Any = None
        self._begun_s = self._shown_s = monotonic()

    def __enter__(self) -> Callable[[str, int, int], None]:
        if sys.stderr.isatty():
            from rich.console import Console  # noqa: PLC0415 - a pipe needs none of it
            from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn  # noqa: PLC0415

            columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
            self._bar = Progress(*columns, console=Console(stderr=True), transient=True, auto_refresh=False)
            self._task = self._bar.add_task("reading", total=None)
            self._bar.start()
            self._shown_s = 0.0  # the first label at once
        return self._show

    def _show(self, label: str, done: int, total: int) -> None:
        now_s = monotonic()
        if total < 0:
            style = {"markup": False, "highlight": False, "soft_wrap": True}
            show = partial(print, file=sys.stderr) if self._bar is None else partial(self._bar.console.print, **style)
            show(f"hosim: {label}")
            return
        if now_s < self._shown_s + (SELDOM_S if self._bar is None else _OFTEN_S):
            return
        self._shown_s = now_s
        if self._bar is not None:
            self._bar.update(self._task, description=label, completed=done, total=total or None, refresh=True)
            return
        much = f", {done:,} of {total:,}" if total else ""
        sys.stderr.write(f"hosim: after {now_s - self._begun_s:,.0f} s: {label}{much}\n")
        sys.stderr.flush()

    def __exit__(self, *error: object) -> None:
        if self._bar is not None:
            self._bar.stop()
        if monotonic() > self._begun_s + SELDOM_S:
            from simulator.engine import hint  # noqa: PLC0415 - what is soon done may need no engine

            sys.stderr.write(f"hosim: {line}\n" if (line := hint()) else "")
