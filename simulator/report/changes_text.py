"""What moved between two results, for people: a table and the ledgers, as text and as Markdown."""

from __future__ import annotations

from collections.abc import Sequence

from simulator.report.changes import Change, Changes, RowChange
from simulator.report.rows import ABSENT, percent, quantity
from simulator.report.text import Column, aligned
from simulator.units import counted

_SIDES = ("old", "new")


def plain(found: Changes, tolerance: float) -> str:
    """Write what moved as aligned text.

    Parameters
    ----------
    found
        What moved.
    tolerance
        Share up to which a change is accepted.
    """
    moved = found.moved(tolerance)
    parts = [_inputs(found), aligned([_table(found.rows, tolerance)]) if moved else ""]
    parts += [
        f"{_headline(row)}\n{_indented(aligned([_details(row, tolerance)]))}" for row in moved if _has_details(row)
    ]
    return "\n\n".join(filter(None, (*parts, _verdicts(found), conclusion(found, tolerance))))


def markdown(found: Changes, tolerance: float) -> str:
    """Write what moved as Markdown, for a comment on a pull request: the table, and each ledger to unfold.

    Parameters
    ----------
    found, tolerance
        As for `plain`.
    """
    moved = found.moved(tolerance)
    parts = [f"### hosim: {conclusion(found, tolerance)}"]
    if moved:
        parts.append(_grid(_table(found.rows, tolerance)))
    for row in moved:
        if _has_details(row):
            parts.append(_unfolded(_headline(row), _grid(_details(row, tolerance))))
    parts += [
        "\n".join(f"- {_plain_cell(line)}" for line in lines.splitlines())
        for lines in (_verdicts(found), _inputs(found))
    ]
    return "\n\n".join(filter(None, parts)) + "\n"


def conclusion(found: Changes, tolerance: float) -> str:
    """Say in a sentence how much moved.

    Parameters
    ----------
    found, tolerance
        As for `plain`.
    """
    moved, worse, of = found.moved(tolerance), found.worse(tolerance), counted(len(found.rows), "row")
    exact = f"within {percent(tolerance)}" if tolerance else "to the nanosecond and the byte"
    changed = counted(len(found.verdicts), "expectation")
    verdicts = f"; {changed} changed {'its' if len(found.verdicts) == 1 else 'their'} verdict" if found.verdicts else ""
    if not moved:
        return f"nothing moved in {of}, {exact}{verdicts}."
    rest = f"; the others are the same {exact}" if len(moved) < len(found.rows) else ""
    return f"{len(moved)} of {of} moved, {len(worse) or 'none'} with something worse{rest}{verdicts}."


def _inputs(found: Changes) -> str:
    return "\n".join(f"{what}: {old} -> {new}" for what, old, new in found.inputs)


def _verdicts(found: Changes) -> str:
    return "\n".join(
        f"expectation {'holds again' if verdict.holds else 'fails now'}: {verdict.asks}" for verdict in found.verdicts
    )


def _table(rows: Sequence[RowChange], tolerance: float) -> list[Column]:
    return [
        Column("policy", tuple(row.label for row in rows), left=True),
        Column("status", tuple(_status(row) for row in rows), left=True),
        *(Column(f"{side} step", tuple(_value(row.step, side) for row in rows)) for side in _SIDES),
        Column("change", tuple(_difference(row.step) for row in rows)),
        Column("", tuple(_share(row.step) for row in rows)),
        Column("most of it", tuple(_cause(row, tolerance) for row in rows), left=True),
    ]


def _status(row: RowChange) -> str:
    old, new = row.status
    if old is None:
        return f"{new}, new row"
    if new is None:
        return "row is gone"
    return old if old == new else f"{old} -> {new}"


def _cause(row: RowChange, tolerance: float) -> str:
    """What moved most: of what the step is spent on, else of the figures."""
    if row.status[0] != row.status[1]:
        return _why(row)
    if not row.moved(tolerance):
        return "same" if not row.moved(0) else f"within {percent(tolerance)}"
    term = next((term for term in row.terms if term.difference), None)
    if term is not None:
        return f"{named(term)} {_difference(term)}"
    return next((f"{named(one)} {_difference(one)}" for one in row.figures if one.difference), ABSENT)


def _why(row: RowChange) -> str:
    """Why it does not run to its end."""
    short = next((one for one in row.figures if one.column == "short_bytes" and one.new), None)
    return f"short by {_value(short, 'new')} at {row.why}" if short else row.why


def _has_details(row: RowChange) -> bool:
    return row.status[0] == row.status[1]


def _headline(row: RowChange) -> str:
    ranks = "" if row.ranks[0] == row.ranks[1] else f" (times of rank {row.ranks[1]}, before of rank {row.ranks[0]})"
    return f"{row.label}{ranks}"


def _details(row: RowChange, tolerance: float) -> list[Column]:
    """The step, all of what it is spent on that moved, and the figures that moved."""
    changed = [row.step, *(one for one in (*row.terms, *row.figures) if one.old != one.new)]
    marks = ["" if one.moved(tolerance) else "accepted" for one in changed]
    return [
        Column("", tuple(named(one) for one in changed), left=True),
        *(Column(side, tuple(_value(one, side) for one in changed)) for side in _SIDES),
        Column("change", tuple(_difference(one) for one in changed)),
        Column("share", tuple(_share(one) for one in changed)),
        *([Column("", tuple(marks), left=True)] if tolerance else []),
    ]


def named(change: Change) -> str:
    """Name a figure for people: ``wait capacity at hbm``, ``peak ddr``.

    Parameters
    ----------
    change
        The figure.
    """
    words = change.column.removesuffix("_ns").removesuffix("_bytes").replace("_", " ", 1)
    return f"{words} at {change.on}" if change.on else words


def _unit(change: Change) -> str:
    return "ns" if change.column.endswith("_ns") else "B" if change.column.endswith("_bytes") else ""


def _value(change: Change, side: str) -> str:
    value, unit = getattr(change, side), _unit(change)
    return quantity(value, unit) if unit else ABSENT if value is None else f"{value:,}"


def _difference(change: Change) -> str:
    if change.difference is None:
        return ABSENT
    size, unit = abs(change.difference), _unit(change)
    written = quantity(size, unit) if unit else f"{size:,}"
    return f"{'-' if change.difference < 0 else '+' if size else ''}{written}"


def _share(change: Change) -> str:
    if change.share is None or not change.difference:
        return ""
    share = percent(abs(change.share))
    return f"{'-' if change.share < 0 else '+'}{share}" if share != "0 %" else "<0.1 %"


def _indented(text: str) -> str:
    return "\n".join(f"  {line}".rstrip() for line in text.splitlines())


def _grid(columns: Sequence[Column]) -> str:
    """A table in Markdown."""
    lines = [[column.head for column in columns], ["---" if c.left else "---:" for c in columns]]
    lines += map(list, zip(*([_plain_cell(cell) for cell in column.cells] for column in columns), strict=True))
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _unfolded(head: str, body: str) -> str:
    return f"<details><summary>{_escaped(head)}</summary>\n\n{body}\n\n</details>"


def _plain_cell(text: str) -> str:
    """A text that Markdown shows as it is."""
    return "".join(f"\\{letter}" if letter in "\\`*_{}[]|#" else letter for letter in _escaped(text))


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
