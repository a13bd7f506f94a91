"""The table of a run as text: one row per policy, three significant digits and a unit in every cell.

What is wider than the line is cut between two columns and goes on below, with the row names repeated. On a terminal
rich draws it; in a pipe it is plain text of a fixed width, so that the same run prints the same bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from simulator.report.ranks import OfRank
from simulator.report.rows import ABSENT, Row, bound_name, causes, is_ok, percent, quantity, ratio, recomputed_ns
from simulator.trace import CAUSES

if TYPE_CHECKING:
    from rich.console import RenderableType

PIPE_WIDTH = 100
"""Characters of a line in a pipe."""
_GAP = "  "


@dataclass(frozen=True, slots=True)
class Column:
    """One column of the table.

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

    @property
    def width(self) -> int:
        """Characters it takes."""
        return max(map(len, (self.head, *self.cells)))

    def line(self, text: str) -> str:
        """Pad a text to the width of the column."""
        return text.ljust(self.width) if self.left else text.rjust(self.width)


def names(rows: Sequence[Row]) -> Column:
    """Return the column of row names."""
    return Column("policy", tuple(row.label for row in rows), left=True)


def time_columns(rows: Sequence[Row]) -> list[Column]:
    """Return the columns about time: how long a step takes, against what, and how long it waits.

    Parameters
    ----------
    rows
        The rows, in the order of the scenario.
    """
    return [
        Column("status", tuple(str(row.summary["status"]) for row in rows), left=True),
        _numbers("step", rows, "step_ns", "ns"),
        Column("vs fastest", tuple(ratio(row.summary.get("slowdown_vs_fastest")) for row in rows)),
        Column("vs compute", tuple(ratio(row.summary.get("slowdown_vs_compute")) for row in rows)),
        Column("gap", tuple(percent(row.summary.get("gap_fraction")) for row in rows)),
        Column("bound", tuple(bound_name(row) for row in rows), left=True),
        Column("hidden", tuple(percent(row.summary.get("hidden_fraction")) for row in rows)),
        *([_numbers("recompute", rows, "recompute_ns", "ns")] if any(recomputed_ns(row) for row in rows) else []),
        _numbers("stall", rows, "stall_ns", "ns"),
    ]


def cause_columns(rows: Sequence[Row]) -> list[Column]:
    """Return the columns about what the steps wait for: one for each cause that occurs.

    Parameters
    ----------
    rows
        The rows, in the order of the scenario.
    """
    occurring = {cause for row in rows for cause, _ in causes(row)}
    return [_numbers(cause, rows, f"wait_{cause}_ns", "ns") for cause in CAUSES if cause in occurring]


def memory_columns(rows: Sequence[Row]) -> list[Column]:
    """Return the columns about memory: peaks of tiers, bytes moved over links, both in use, and what crowds a bus.

    Parameters
    ----------
    rows
        The rows, in the order of the scenario.
    """
    machine = rows[0].hardware
    amounts = [("peak", name) for name in machine.tiers] + [("moved", name) for name in machine.links]
    found = []
    for what, name in amounts:
        key = f"{what}_{name}_bytes"
        if any(row.summary.get(key) for row in rows):
            found.append(_numbers(f"{what} {name}", rows, key, "B"))
    return [*found, *_addressed(rows), *_asked(rows)]


def _addressed(rows: Sequence[Row]) -> list[Column]:
    """What is reserved of the compute tier, and how often it is compacted, if places of some row have addresses."""
    tier = rows[0].hardware.compute_tier
    counts = [row.summary.get("compactions") for row in rows]
    if all(count is None for count in counts):
        return []
    told = tuple(ABSENT if count is None else f"{count:,}" for count in counts)
    return [_numbers(f"reserved {tier}", rows, f"peak_reserved_{tier}_bytes", "B"), Column("compactions", told)]


def _asked(rows: Sequence[Row]) -> list[Column]:
    """For buses of which ranks ask more than they carry in some row, how much more."""
    found = []
    for name in rows[0].hardware.buses:
        asked = [row.summary.get(f"demand_{name}") for row in rows]
        if max((float(one) for one in asked if one is not None), default=0) > 1:
            found.append(Column(f"asked of {name}", tuple(ABSENT if one is None else f"{one:.2f}x" for one in asked)))
    return found


def rank_columns(ranks: Sequence[OfRank]) -> list[Column]:
    """Return a table of ranks: what each runs, how long its step takes, what it waits for, and what it holds.

    Parameters
    ----------
    ranks
        Ranks of one row.
    """
    tier = ranks[0].hardware.compute_tier
    found = [
        Column("rank", tuple(str(rank.rank) for rank in ranks)),
        Column("runs", tuple(rank.program for rank in ranks), left=True),
        Column("stands for", tuple(f"{rank.stands_for:,}" if rank.stands_for > 1 else "" for rank in ranks)),
        _numbers("step", ranks, "step_ns", "ns"),
        _numbers("compute", ranks, "compute_ns", "ns"),
        *cause_columns(ranks),
        _numbers("collectives", ranks, "collective_ns", "ns"),
        Column("masked", tuple(percent(rank.summary.get("masked_fraction")) for rank in ranks)),
        Column("bubble", tuple(percent(rank.summary.get("bubble_fraction")) for rank in ranks)),
        Column("utilisation", tuple(percent(rank.summary.get("utilisation")) for rank in ranks)),
        _numbers(f"peak {tier}", ranks, f"peak_{tier}_bytes", "B"),
    ]
    return [column for column in found if set(column.cells) - {"", ABSENT}]


def _numbers(head: str, rows: Sequence[Row], key: str, unit: str) -> Column:
    return Column(head, tuple(quantity(row.summary.get(key), unit) for row in rows))


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
    name = names(rows)
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


def aligned(parts: Iterable[Sequence[Column]]) -> str:
    """Write tables as aligned text, one after another with an empty line between them."""
    written = []
    for part in parts:
        lines = [_GAP.join(column.line(column.head) for column in part)]
        for cells in zip(*(column.cells for column in part), strict=True):
            lines.append(_GAP.join(column.line(cell) for column, cell in zip(part, cells, strict=True)))
        written.append("\n".join(line.rstrip() for line in lines))
    return "\n\n".join(written)


def aligned_lines(lines: Sequence[Sequence[str]], indent: int = 0) -> str:
    """Align texts into columns without headings; empty columns vanish.

    Parameters
    ----------
    lines
        Lines of equally many texts.
    indent
        Blanks before each line.
    """
    widths = [max(map(len, column), default=0) for column in zip(*lines, strict=True)]
    written = [
        " " * indent + _GAP.join(text.ljust(width) for text, width in zip(line, widths, strict=True) if width)
        for line in lines
    ]
    return "\n".join(line.rstrip() for line in written)


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
