"""What moved between two results, row by row; as text, and as Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, NamedTuple

from simulator.metrics import figure_of
from simulator.report.rows import ABSENT, percent, shown, signed
from simulator.report.summaries import spent
from simulator.report.text import Column, aligned, in_markdown, markdown
from simulator.units import counted, in_yaml

Said = Mapping[str, Any]
"""What a ``summary.json`` says."""


@dataclass(frozen=True, slots=True)
class Change:
    """A figure of a row, before and after.

    Attributes
    ----------
    column, on
        Which column of the summary; of a wait the tier, link or rank, as far as it is known.
    old, new
        The two values; None where there is none.
    of
        What the change is a share of: the value before; of what a step is spent on, the step before.
    """

    column: str
    on: str
    old: int | None
    new: int | None
    of: int | None

    @property
    def difference(self) -> int | None:
        """By how much it is more; None if one of the two is none."""
        return None if self.old is None or self.new is None else self.new - self.old

    @property
    def share(self) -> float | None:
        """The difference as a share; None if there is none."""
        return None if self.difference is None or not self.of else self.difference / self.of

    def moved(self, tolerance: float) -> bool:
        """Whether it is another one, by more than this share."""
        if self.difference is None or self.share is None:
            return self.old != self.new
        return abs(self.difference) > tolerance * abs(self.of or 0)

    @property
    def name(self) -> str:
        """What it is called: ``wait capacity at hbm``, ``peak ddr``."""
        head = figure_of(self.column).head
        head = f"wait {head}" if self.column.startswith("wait_") else head
        return f"{head} at {self.on}" if self.on else head

    @property
    def written(self) -> str:
        """The difference for people, with its sign."""
        size = self.difference
        return ABSENT if size is None else f"{'-' * (size < 0) or '+' * (size > 0)}{shown(self.column, abs(size))}"

    @property
    def written_share(self) -> str:
        """The share for people, with its sign; empty if nothing changed."""
        if self.share is None or not self.difference:
            return ""
        share = signed(self.share)
        return share if share != "0 %" else "<0.1 %"


@dataclass(frozen=True, slots=True)
class RowChange:
    """A row before and after.

    Attributes
    ----------
    label
        Its name.
    status
        Before and after; None where there is no such row.
    why
        Where it does not run to its end any more, or in another way: where room is short, or what is in its way.
    ranks
        Which rank the times are of, before and after.
    step
        The step.
    figures
        Peaks, bytes that were moved, and what else is compared, in the order of the summary.
    terms
        What the step is spent on, the largest change first: the differences sum to that of the step. Only of a row that
        ran to its end before and after.
    """

    label: str
    status: tuple[str | None, str | None]
    why: str
    ranks: tuple[int, int]
    step: Change
    figures: tuple[Change, ...]
    terms: tuple[Change, ...]

    def moved(self, tolerance: float) -> bool:
        """Whether anything of it is another one, by more than this share."""
        changes = (self.step, *self.figures, *self.terms)
        return self.status[0] != self.status[1] or any(change.moved(tolerance) for change in changes)

    def worse(self, tolerance: float) -> bool:
        """Whether it no longer runs to its end, is gone, takes longer, or peaks higher, by more than this share."""
        if self.status[0] == "ok" != self.status[1] or self.status[1] is None:
            return True
        grown = (change for change in (self.step, *self.figures) if figure_of(change.column).worse == "more")
        return any((change.difference or 0) > 0 and change.moved(tolerance) for change in grown)


class Turned(NamedTuple):
    """An expectation of which it changed whether it holds: what is expected, and whether it did and does."""

    asks: str
    held: bool
    holds: bool


@dataclass(frozen=True, slots=True)
class Changes:
    """What moved between two results.

    Attributes
    ----------
    rows
        In the order of the new result; those that only the old one has come last.
    inputs
        What differs in what was run: what it is, before and after.
    verdicts
        Expectations of which it changed whether they hold.
    """

    rows: tuple[RowChange, ...]
    inputs: tuple[tuple[str, str, str], ...]
    verdicts: tuple[Turned, ...]

    def moved(self, tolerance: float) -> list[RowChange]:
        """Rows of which something moved by more than this share."""
        return [row for row in self.rows if row.moved(tolerance)]

    def worse(self, tolerance: float) -> list[RowChange]:
        """Rows that are worse by more than this share."""
        return [row for row in self.rows if row.worse(tolerance)]

    def conclusion(self, tolerance: float) -> str:
        """Say in a sentence how much moved by more than this share."""
        moved, worse, of = self.moved(tolerance), self.worse(tolerance), counted(len(self.rows), "row")
        exact = f"within {percent(tolerance)}" if tolerance else "to the nanosecond and the byte"
        turned = counted(len(self.verdicts), "expectation")
        whose = "its" if len(self.verdicts) == 1 else "their"
        verdicts = f"; {turned} changed {whose} verdict" if self.verdicts else ""
        if not moved:
            return f"nothing moved in {of}, {exact}{verdicts}."
        rest = f"; the others are the same {exact}" if len(moved) < len(self.rows) else ""
        return f"{len(moved)} of {of} moved, {len(worse) or 'none'} with something worse{rest}{verdicts}."


def changes(old: Said, new: Said) -> Changes:
    """Compare two results.

    Parameters
    ----------
    old, new
        What they say, as `simulator.report.summaries.read` reads it.
    """
    before, after = ({row["policy"]: row for row in said["rows"]} for said in (old, new))
    labels = [*after, *(label for label in before if label not in after)]
    rows = [_row(label, (before.get(label), after.get(label)), (old, new)) for label in labels]
    held, holds = ({_asked(one): one["holds"] or bool(one.get("missed")) for one in said["expectations"]}
                   for said in (old, new))  # fmt: skip
    turned = [Turned(asks, held[asks], holds[asks]) for asks in holds if held.get(asks, holds[asks]) != holds[asks]]
    inputs = tuple(_inputs(old["provenance"], new["provenance"]))
    return Changes(tuple(rows), inputs, tuple(turned))


def _row(label: str, rows: tuple[Said | None, Said | None], said: tuple[Said, Said]) -> RowChange:
    old, new = (row or {} for row in rows)
    status, step = (old.get("status"), new.get("status")), old.get("step_ns")
    compared = [column for column in dict.fromkeys((*new, *old)) if figure_of(column).is_compared]
    return RowChange(
        label,
        status,
        "" if status[0] == status[1] or status[1] == "ok" else new.get("short_at") or new.get("notes") or "",
        (old.get("slowest_rank") or 0, new.get("slowest_rank") or 0),
        Change("step_ns", "", step, new.get("step_ns"), step),
        tuple(Change(column, "", old.get(column), new.get(column), old.get(column)) for column in compared),
        tuple(_terms(label, (old, new), said)) if status == ("ok", "ok") else (),
    )


def _terms(label: str, rows: tuple[Said, Said], said: tuple[Said, Said]) -> list[Change]:
    """What the steps of a row are spent on, the largest change first; waits by place if both results tell places."""
    placed = all(label in one.get("stalls", {}) for one in said)
    old, new = (
        {(column, ""): ns for column, ns in spent(row) if not (placed and column.startswith("wait_"))}
        | {
            (f"wait_{stall['cause']}_ns", stall["on"]): stall["ns"]
            for stall in (one["stalls"][label] if placed else ())
        }
        for row, one in zip(rows, said, strict=True)
    )
    keys, step = dict.fromkeys((*old, *new)), rows[0]["step_ns"]
    found = [Change(column, on, old.get((column, on), 0), new.get((column, on), 0), step) for column, on in keys]
    return sorted(found, key=lambda term: (-abs(term.difference or 0), term.column, term.on))


def _inputs(before: Said, after: Said) -> list[tuple[str, str, str]]:
    """What differs in what was run."""
    found = [("hosim", _value(before, "hosim"), _value(after, "hosim"))]
    files = [{entry["kind"]: entry for entry in one.get("inputs", ())} for one in (before, after)]
    for kind in dict.fromkeys((*files[0], *files[1])):
        found.append((kind, *_files(files[0].get(kind), files[1].get(kind))))
    for table in ("set", "switches", "draws"):
        was, now = before.get(table, {}), after.get(table, {})
        keys = dict.fromkeys((*was, *now))
        found += [(f"{table} {key}", _value(was, key, "not set"), _value(now, key, "not set")) for key in keys]
    found.append(("seed", _value(before, "seed"), _value(after, "seed")))
    return [change for change in found if change[1] != change[2]]


def _files(old: Said | None, new: Said | None) -> tuple[str, str]:
    """The names of a file; with the begin of its digest if only what it says differs."""
    names = (old["name"] if old else "none", new["name"] if new else "none")
    if old and new and names[0] == names[1]:
        says_the_same = any(old.get(key) == new.get(key) is not None for key in ("sha256", "content"))
        return names if says_the_same else (f"{names[0]} {old['sha256'][:8]}", f"{names[1]} {new['sha256'][:8]}")
    return names


def _value(values: Said, key: str, absent: str = "none") -> str:
    value = values.get(key)
    return value if isinstance(value, str) else absent if value is None else in_yaml(value)


def _asked(verdict: Said) -> str:
    """What is expected; of older results, which do not say it, with what it was held against."""
    return str(verdict.get("asks") or f"{verdict['row']}: {verdict['column']} is {verdict['must']}")


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
    parts = [_about_inputs(found), aligned([_table(found.rows, tolerance)]) if moved else ""]
    parts += [f"{_headline(row)}\n{aligned([_details(row, tolerance)], 2)}" for row in moved if _has_details(row)]
    return "\n\n".join(filter(None, (*parts, _about_verdicts(found), found.conclusion(tolerance))))


def in_comment(found: Changes, tolerance: float) -> str:
    """Write what moved as Markdown, for a comment on a pull request: the table, and each ledger to unfold.

    Parameters
    ----------
    found, tolerance
        As for `plain`.
    """
    moved = found.moved(tolerance)
    parts = [f"### hosim: {found.conclusion(tolerance)}"]
    parts += [markdown(_table(found.rows, tolerance))] if moved else []
    for row in filter(_has_details, moved):
        details = f"<summary>{escape(_headline(row), quote=False)}</summary>\n\n{markdown(_details(row, tolerance))}"
        parts.append(f"<details>{details}\n\n</details>")
    for lines in (_about_verdicts(found), _about_inputs(found)):
        parts.append("\n".join(f"- {in_markdown(line)}" for line in lines.splitlines()))
    return "\n\n".join(filter(None, parts)) + "\n"


def _about_inputs(found: Changes) -> str:
    return "\n".join(f"{what}: {old} -> {new}" for what, old, new in found.inputs)


def _about_verdicts(found: Changes) -> str:
    turned = (f"{'holds again' if one.holds else 'fails now'}: {one.asks}" for one in found.verdicts)
    return "\n".join(f"expectation {text}" for text in turned)


def _table(rows: Sequence[RowChange], tolerance: float) -> list[Column]:
    return [
        Column.texts("policy", (row.label for row in rows)),
        Column.texts("status", (_status(row) for row in rows)),
        *_sides([row.step for row in rows], "step"),
        Column("", tuple(row.step.written_share for row in rows)),
        Column.texts("most of it", (_cause(row, tolerance) for row in rows)),
    ]


def _sides(changed: Sequence[Change], what: str = "") -> list[Column]:
    """Both values of figures, and their differences."""
    columns = [
        Column(f"{side} {what}".rstrip(), tuple(shown(one.column, getattr(one, side)) for one in changed))
        for side in ("old", "new")
    ]
    return [*columns, Column("change", tuple(one.written for one in changed))]


def _status(row: RowChange) -> str:
    old, new = row.status
    if old is None:
        return f"{new}, new row"
    if new is None:
        return "row is gone"
    return old if old == new else f"{old} -> {new}"


def _cause(row: RowChange, tolerance: float) -> str:
    """What moved most: of what the step is spent on, else of the figures; or why it does not run to its end."""
    if row.status[0] != row.status[1]:
        short = next((one.new for one in row.figures if one.column == "short_bytes" and one.new), None)
        return f"short by {shown('short_bytes', short)} at {row.why}" if short else row.why
    if not row.moved(tolerance):
        return "same" if not row.moved(0) else f"within {percent(tolerance)}"
    return next((f"{one.name} {one.written}" for one in (*row.terms, *row.figures) if one.difference), ABSENT)


def _has_details(row: RowChange) -> bool:
    return row.status[0] == row.status[1]


def _headline(row: RowChange) -> str:
    ranks = "" if row.ranks[0] == row.ranks[1] else f" (times of rank {row.ranks[1]}, before of rank {row.ranks[0]})"
    return f"{row.label}{ranks}"


def _details(row: RowChange, tolerance: float) -> list[Column]:
    """The step, all of what it is spent on that moved, and the figures that moved."""
    changed = [row.step, *(one for one in (*row.terms, *row.figures) if one.old != one.new)]
    marks = Column.texts("", ("" if one.moved(tolerance) else "accepted" for one in changed))
    return [
        Column.texts("", (one.name for one in changed)),
        *_sides(changed),
        Column("share", tuple(one.written_share for one in changed)),
        *([marks] if tolerance else []),
    ]
