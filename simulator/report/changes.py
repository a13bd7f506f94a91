"""The differences between two results, row by row; as text, and as Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from simulator.errors import insist
from simulator.metrics.figures import Figure
from simulator.metrics.rows import pace
from simulator.report.files import Summary, dumped, read_summary, spent, stated_figures
from simulator.report.tables import Column, in_markdown, markdown
from simulator.report.views import Section, SweepView
from simulator.report.words import ABSENT, percent, signed, written
from simulator.units import counted, in_yaml

SCHEMA = "hosim-diff/1"
"""The schema of the JSON output."""


class FigureChange(NamedTuple):
    """A figure of a row in the old and in the new result.

    Attributes
    ----------
    figure, on
        The figure; for a wait, the tier, link or rank, if known.
    old, new
        The two values; None where there is none.
    of
        The base of the share: the old value; for a part of a step, the old step; None: the two are not compared.
    tolerance
        Share up to which a change is accepted.
    """

    figure: Figure
    on: str
    old: float | None
    new: float | None
    of: float | None
    tolerance: float

    @property
    def difference(self) -> float | None:
        """The new value less the old one; None if either is missing, or they are not compared."""
        return None if self.old is None or self.new is None or self.of is None else self.new - self.old

    @property
    def share(self) -> float | None:
        """The difference relative to `of`; None if there is none."""
        return None if self.difference is None or not self.of else self.difference / self.of

    @property
    def moved(self) -> bool:
        """Whether it changed by more than the tolerance."""
        if self.difference is None or self.share is None:
            return self.old != self.new
        return abs(self.difference) > self.tolerance * abs(self.of or 0)

    @property
    def worse(self) -> bool:
        """Whether it moved the way that is worse."""
        way = {"more": 1, "less": -1}.get(self.figure.worse, 0)
        return way * (self.difference or 0) > 0 and self.moved

    @property
    def name(self) -> str:
        """Its name for people: ``wait capacity at hbm``, ``peak ddr``."""
        head = f"wait {self.figure.head}" if self.figure.over == "cause" else self.figure.head
        return f"{head} at {self.on}" if self.on else head

    @property
    def written(self) -> str:
        """The difference for people, with its sign."""
        size, unit = self.difference, self.figure.unit
        return ABSENT if size is None else f"{'-' * (size < 0) or '+' * (size > 0)}{written(size and abs(size), unit)}"

    @property
    def plain(self) -> dict[str, Any]:
        """The change as JSON."""
        values = {"old": self.old, "new": self.new, "difference": self.difference, "share": self.share}
        return {"column": self.figure.column} | ({"on": self.on} if self.on else {}) | values


class RowChange(NamedTuple):
    """A row in the old and in the new result.

    Attributes
    ----------
    status
        The old and the new status; None where there is no such row.
    why
        If its status changed and it does not run: the place where room is short, or the obstacle.
    step
        The step; of other work the tokens, or the samples, of a second, or else the step, which is then not compared.
    figures
        Peaks, bytes moved, and other compared figures, in the order of the summary.
    terms
        The parts of the step, the largest change first: their differences sum to that of the step. Empty unless the row
        ran to its end in both results, and did the same work.
    is_same_work
        Whether both do the same work in a step.
    """

    label: str
    status: tuple[str | None, str | None]
    why: str
    step: FigureChange
    figures: tuple[FigureChange, ...]
    terms: tuple[FigureChange, ...]
    is_same_work: bool = True

    @property
    def moved(self) -> bool:
        """Whether its status, or any figure by more than the tolerance, changed."""
        changes = (self.step, *self.figures, *self.terms)
        return self.status[0] != self.status[1] or any(change.moved for change in changes)

    @property
    def worse(self) -> bool:
        """Whether it no longer runs or is gone, or takes longer or peaks higher by more than the tolerance.

        Of other work only the rate counts.
        """
        if self.status[0] == "ok" != self.status[1] or self.status[1] is None:
            return True
        return any(change.worse for change in (self.step, *(self.figures if self.is_same_work else ())))

    @property
    def plain(self) -> dict[str, Any]:
        """The row as JSON, with every number, unchanged ones included."""
        row: dict[str, Any] = {"policy": self.label, "old_status": self.status[0], "new_status": self.status[1]}
        row |= {"moved": self.moved, "worse": self.worse, "step": self.step.plain}
        return row | {"spent": [term.plain for term in self.terms], "figures": [each.plain for each in self.figures]}


class Turned(NamedTuple):
    """An expectation whose verdict changed: its text, whether it held, and whether it holds now."""

    asks: str
    held: bool
    holds: bool


@dataclass(frozen=True, slots=True)
class Diff:
    """The differences between two results.

    Attributes
    ----------
    old, new
        The folders.
    tolerance
        Share up to which a change is accepted.
    rows
        The rows, in the order of the new result; those that only the old one has come last.
    inputs
        Inputs and settings that differ: the name, the old and the new value.
    verdicts
        Expectations whose verdicts changed.
    """

    old: Path
    new: Path
    tolerance: float
    rows: tuple[RowChange, ...]
    inputs: tuple[tuple[str, str, str], ...]
    verdicts: tuple[Turned, ...]

    @property
    def moved(self) -> bool:
        """Whether anything moved by more than the tolerance, or an expectation changed its verdict."""
        return bool(self.verdicts) or any(row.moved for row in self.rows)

    @property
    def worse(self) -> bool:
        """Whether a row is worse by more than the tolerance, or an expectation that held fails."""
        return any(turned.held for turned in self.verdicts) or any(row.worse for row in self.rows)

    @property
    def conclusion(self) -> str:
        """A sentence on how many rows moved."""
        moved, worse = sum(row.moved for row in self.rows), sum(row.worse for row in self.rows)
        text = f"{moved} of {counted(len(self.rows), 'row')} moved by more than {percent(self.tolerance)}"
        turned = f"; {counted(len(self.verdicts), 'expectation')} turned" if self.verdicts else ""
        return f"{text}, {worse} with a worse figure{turned}."

    def __str__(self) -> str:
        return str(self.view)

    @property
    def view(self) -> SweepView:
        """The table of all rows, a table of each row that changed, and the differences of inputs and verdicts."""
        moved = [row for row in self.rows if row.moved]
        sections = [Section(columns=_table(self.rows))] if moved else []
        for row in (row for row in moved if row.terms or not row.is_same_work):
            changed = [row.step, *(change for change in (*row.terms, *row.figures) if change.old != change.new)]
            names, marks = zip(*((change.name, "" if change.moved else "accepted") for change in changed), strict=True)
            sections.append(Section(row.label, [Column("", names), *_sides(changed), Column("", marks)]))
        inputs = [f"{name}: {old} -> {new}" for name, old, new in self.inputs]
        turned = [f"expectation {'holds again' if turn.holds else 'fails now'}: {turn.asks}" for turn in self.verdicts]
        return SweepView(f"{self.old} and {self.new}", sections, [self.conclusion, *inputs, *turned])

    def _repr_html_(self) -> str:
        return self.view._repr_html_()

    def markdown(self) -> str:
        """Write the differences as Markdown, for a comment on a pull request; sections with a heading are folded."""
        _, sections, sentences, *_ = self.view
        parts = [f"### hosim: {sentences[0]}", *map(in_markdown, sentences[1:])]
        for head, columns, _ in sections:
            table = markdown(columns)
            folded = f"<details><summary>{escape(head, quote=False)}</summary>\n\n{table}\n\n</details>"
            parts.append(folded if head else table)
        return "\n\n".join(parts) + "\n"

    def json(self) -> bytes:
        """Write the differences as JSON: every row with every number, unchanged ones included."""
        content = {"schema": SCHEMA, "old": str(self.old), "new": str(self.new), "tolerance": self.tolerance}
        content |= {"moved": self.moved, "worse": self.worse}
        content |= {"inputs": [{"what": name, "old": old, "new": new} for name, old, new in self.inputs]}
        content |= {"rows": [row.plain for row in self.rows]}
        return dumped(content | {"expectations": [turned._asdict() for turned in self.verdicts]})


def diff(old: str | Path, new: str | Path, *, tolerance: float = 0.0) -> Diff:
    """Compare two results.

    Parameters
    ----------
    old, new
        Folders that ``hosim run --out`` wrote, or the ``summary.json`` in them.
    tolerance
        Share up to which a change is accepted: of the old value for a peak or bytes moved, of the old step for a step
        and its parts.

    Raises
    ------
    ConfigError
        If a folder was not written by hosim, is incomplete, or has another version of the schema.
    """
    rule = "a tolerance is a share from 0 to below 1"
    insist(0 <= tolerance < 1, "tolerance", rule, f"{tolerance}", "write for example 0.01")
    paths = Path(old), Path(new)
    was, now = map(read_summary, paths)
    inputs = tuple(_inputs(was["provenance"], now["provenance"]))
    held, holds = (
        {verdict["asks"]: verdict["holds"] or bool(verdict.get("missed")) for verdict in summary["expectations"]}
        for summary in (was, now)
    )  # an expectation holds, or is known to be missed
    turned = [
        Turned(asks, held[asks], is_held) for asks, is_held in holds.items() if held.get(asks, is_held) != is_held
    ]
    return Diff(*paths, tolerance, changes(was, now, tolerance), inputs, tuple(turned))


def changes(old: Summary, new: Summary, tolerance: float) -> tuple[RowChange, ...]:
    """Compare the rows of two results.

    Parameters
    ----------
    old, new
        The summaries of the results, see `simulator.report.files.read_summary`.
    tolerance
        Share up to which a change is accepted.
    """
    before, after = ({row["policy"]: row for row in summary["rows"]} for summary in (old, new))
    labels = dict.fromkeys((*after, *before))
    pairs = ((label, (before.get(label, {}), old), (after.get(label, {}), new)) for label in labels)
    figures, is_same_work = stated_figures(old, new), _work(old) == _work(new)
    return tuple(_row(*pair, figures, tolerance, is_same_work=is_same_work) for pair in pairs)


def _work(summary: Summary) -> dict[str, str]:
    """Return the digests of the workload as it was run, and of the graph, if a result says them."""
    inputs = {entry["kind"]: entry for entry in summary.get("provenance", {}).get("inputs", ())}
    return {
        kind: inputs[kind].get("content") or inputs[kind]["sha256"] for kind in ("workload", "graph") if kind in inputs
    }


def _row(
    label: str,
    before: tuple[Summary, Summary],
    after: tuple[Summary, Summary],
    figures: Mapping[str, Figure],
    tolerance: float,
    *,
    is_same_work: bool,
) -> RowChange:
    """Compare a row of two results, each given with its summary; a missing row is empty."""
    (old, _), (new, _) = before, after

    def change(column: str) -> FigureChange:
        return FigureChange(figures[column], "", old.get(column), new.get(column), old.get(column), tolerance)

    status = old.get("status"), new.get("status")
    by = pace([old, new], is_same_work=is_same_work) if status == ("ok", "ok") else "step_ns"
    step, is_same = change(by) if by else change("step_ns")._replace(of=None), by == "step_ns"
    is_gone = status[1] not in (status[0], "ok")
    was, now = dict(spent(*before)), dict(spent(*after))
    places = dict.fromkeys((*was, *now)) if status == ("ok", "ok") and is_same else ()
    pairs = [(figures[column], on, was.get((column, on), 0), now.get((column, on), 0)) for column, on in places]
    terms = [FigureChange(*pair, step.old, tolerance) for pair in pairs]
    terms.sort(key=lambda term: -abs(term.difference or 0))
    compared = [column for column in dict.fromkeys((*new, *old)) if column in figures and figures[column].is_compared]
    why = (new.get("short_at") or new.get("notes") or "") if is_gone else ""
    return RowChange(label, status, why, step, tuple(map(change, compared)), tuple(terms), is_same)


def _inputs(old: Summary, new: Summary) -> Iterator[tuple[str, str, str]]:
    """Iterate over inputs and settings that differ between two runs: the name, and both values."""
    was, now = ({entry["kind"]: entry for entry in run.get("inputs", ())} for run in (old, new))
    for kind in dict.fromkeys((*was, *now)):
        before, after = (files.get(kind, {"name": "none", "sha256": ""}) for files in (was, now))
        if not any(before.get(key) == after.get(key) is not None for key in ("sha256", "content")):
            yield kind, *(f"{file['name']} {file['sha256'][:8]}".rstrip() for file in (before, after))
    for table in ("set", "switches", "draws", "hosim", "seed"):
        values = (run.get(table, {}) for run in (old, new))
        before, after = (dict(value) if isinstance(value, Mapping) else {"": value} for value in values)
        for key in dict.fromkeys((*before, *after)):
            if before.get(key) != after.get(key):
                yield f"{table} {key}".rstrip(), _value(before, key), _value(after, key)


def _value(values: Summary, key: str) -> str:
    value = values.get(key, "not set")
    text = value if isinstance(value, str) else in_yaml(value)
    return text if text.isprintable() else repr(text)


def _table(rows: Sequence[RowChange]) -> list[Column]:
    return [
        Column("policy", (row.label for row in rows)),
        Column("status", (_status(row) for row in rows)),
        *_sides([row.step for row in rows], "step"),
        Column("most of it", (_cause(row) for row in rows)),
    ]


def _sides(changed: Sequence[FigureChange], name: str = "") -> list[Column]:
    """Make columns of old and new values and their differences."""
    heads = (f"old {name}".rstrip(), f"new {name}".rstrip(), "change", "share")
    shares = [signed(change.share) if change.difference else "" for change in changed]
    sides = ([_cell(change.figure, getattr(change, side)) for change in changed] for side in ("old", "new"))
    cells = (*sides, [change.written for change in changed], shares)
    return [Column(head, texts, left=False) for head, texts in zip(heads, cells, strict=True)]


def _cell(figure: Figure, value: object) -> str:
    return written(value, figure.unit) + f" {figure.head}" * (figure.unit == "per s")


def _status(row: RowChange) -> str:
    old, new = row.status
    if old is None or new is None:
        return f"{new}, new row" if old is None else "row is gone"
    return old if old == new else f"{old} -> {new}"


def _cause(row: RowChange) -> str:
    """Name the largest change in the parts of the step, or in the figures; or say why the row does not run."""
    if row.status[0] != row.status[1]:
        short = [change for change in row.figures if change.figure.column == "short_bytes" and change.new]
        return f"{_cell(short[0].figure, short[0].new)} short at {row.why}" if short else row.why
    if not row.is_same_work:
        return "other work" + ("" if row.step.of is None else f", by {row.step.figure.head}")
    moved = next((change for change in chain(row.terms, row.figures) if change.moved), None)
    return f"{moved.name} {moved.written}" if moved else "same"
