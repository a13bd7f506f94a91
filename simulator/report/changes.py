"""What moved between two results, row by row; as text, and as Markdown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import orjson
from pydantic import TypeAdapter, ValidationError
from typing_extensions import TypedDict

from simulator.document import Line
from simulator.errors import ConfigError
from simulator.inputs import whole
from simulator.metrics import figure_of
from simulator.report.files import SUMMARY
from simulator.report.rows import ABSENT, percent, shown, signed
from simulator.report.tables import Column, aligned, in_markdown, markdown
from simulator.units import counted, in_yaml

Said = Mapping[str, Any]
"""What a ``summary.json`` says."""
_NAME = "summary.json"
_OURS = "a result is a folder that `hosim run --out` wrote, or its summary.json"
_AGAIN = "run again with this version of hosim"


class _Verdict(TypedDict):
    asks: Line
    holds: bool


class _Stall(TypedDict):
    cause: Line
    on: Line
    ns: int


class _Input(TypedDict):
    kind: Line
    name: Line
    sha256: Line


class _Provenance(TypedDict, total=False):
    hosim: Line
    seed: int
    inputs: list[_Input]
    set: dict[Line, Any]
    switches: dict[Line, Any]
    draws: dict[Line, Any]


class _Said(TypedDict):
    """Of what is read, these keys have these types; there may be others."""

    rows: list[dict[Line, int | float | Line | None]]
    expectations: list[_Verdict]
    stalls: dict[Line, list[_Stall]]
    provenance: _Provenance


def read(result: Path) -> dict[str, Any]:
    """Read what a run said of itself.

    Parameters
    ----------
    result
        A folder that ``hosim run --out`` wrote, or the ``summary.json`` in it, which alone will do.

    Raises
    ------
    ConfigError
        If it is no such thing, was not written to its end, has another version of the schema, or was changed.
    """
    path = result / _NAME if result.is_dir() else result
    if result.is_dir() and not path.exists():
        raise ConfigError(str(result), _OURS, f"a folder without {_NAME}, which is written last", _AGAIN)
    try:
        said = orjson.loads(whole(path))
        if not isinstance(said, dict) or said.get("schema") != SUMMARY:
            found = repr(said["schema"]) if isinstance(said, dict) and "schema" in said else "none"
            raise ConfigError(str(path), f"the schema is {SUMMARY}", found, _AGAIN)
        TypeAdapter(_Said).validate_python(said, strict=True)
    except orjson.JSONDecodeError as error:
        raise ConfigError(f"{path}:{error.lineno}", "a summary is JSON to its end", error.msg, _AGAIN) from None
    except ValidationError as error:
        first = error.errors()[0]
        where = f"{path}, {', '.join(map(str, first['loc']))}"
        raise ConfigError(where, f"a summary of a run is as {SUMMARY} says", first["msg"].lower(), _AGAIN) from None
    labels = Counter(row.get("policy") for row in said["rows"])
    for row in said["rows"]:
        spent, label = sum(ns for _, ns in _spent(row, said)), row.get("policy")
        is_named = isinstance(label, str) and isinstance(row.get("status"), str) and labels[label] == 1
        if not is_named or (row["status"] == "ok" and row.get("step_ns") != spent):
            must = "a row has a label of its own, and compute, recompute and waits fill its step"
            raise ConfigError(f"{path}, row {label!r}", must, f"{spent:,} of {row.get('step_ns')} ns", _AGAIN)
    return dict(said)


class Change(NamedTuple):
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


class RowChange(NamedTuple):
    """A row before and after.

    Attributes
    ----------
    label
        Its name.
    status
        Before and after; None where there is no such row.
    why
        Where its status is another one: where room is short, or what is in its way.
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


class Changes(NamedTuple):
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
        moved, worse, rows = len(self.moved(tolerance)), len(self.worse(tolerance)), counted(len(self.rows), "row")
        text = f"{moved} of {rows} moved by more than {percent(tolerance)}, {worse} with something worse"
        turned = f"; {counted(len(self.verdicts), 'expectation')} turned" if self.verdicts else ""
        return f"{text}{turned}."


def changes(old: Said, new: Said) -> Changes:
    """Compare two results.

    Parameters
    ----------
    old, new
        What they say, as `read` reads it.
    """
    before, after = ({row["policy"]: row for row in said["rows"]} for said in (old, new))
    labels = dict.fromkeys((*after, *before))
    rows = tuple(_row(label, (before.get(label), after.get(label)), (old, new)) for label in labels)
    held, holds = ({one["asks"]: one["holds"] or bool(one.get("missed")) for one in said["expectations"]}
                   for said in (old, new))  # fmt: skip
    turned = [Turned(asks, held[asks], holds[asks]) for asks in holds if held.get(asks, holds[asks]) != holds[asks]]
    return Changes(rows, tuple(_inputs(old["provenance"], new["provenance"])), tuple(turned))


def _row(label: str, rows: tuple[Said | None, Said | None], said: tuple[Said, Said]) -> RowChange:
    old, new = (row or {} for row in rows)
    status, step = (old.get("status"), new.get("status")), old.get("step_ns")
    compared = [column for column in dict.fromkeys((*new, *old)) if figure_of(column).is_compared]
    was, now = (dict(_spent(row, one)) for row, one in zip((old, new), said, strict=True))
    terms = [Change(*key, was.get(key, 0), now.get(key, 0), step) for key in dict.fromkeys((*was, *now))]
    return RowChange(
        label,
        status,
        "" if status[0] == status[1] or status[1] == "ok" else new.get("short_at") or new.get("notes") or "",
        Change("step_ns", "", step, new.get("step_ns"), step),
        tuple(Change(column, "", old.get(column), new.get(column), old.get(column)) for column in compared),
        tuple(sorted(terms, key=lambda one: -abs(one.difference or 0))) if status == ("ok", "ok") else (),
    )


def _spent(row: Said, said: Said) -> Iterator[tuple[tuple[str, str], int]]:
    """On what the step of a row was spent [ns], by column and place: they sum to the step."""
    for column in ("compute_ns", "recompute_ns", "drain_ns"):
        yield (column, ""), ns if isinstance(ns := row.get(column), int) else 0
    for stall in said["stalls"].get(row.get("policy"), ()):
        yield (f"wait_{stall['cause']}_ns", stall["on"]), stall["ns"]


def _inputs(old: Said, new: Said) -> Iterator[tuple[str, str, str]]:
    """What differs in what was run: what it is, before and after."""
    was, now = ({one["kind"]: one for one in said.get("inputs", ())} for said in (old, new))
    for kind in dict.fromkeys((*was, *now)):
        before, after = (files.get(kind, {"name": "none", "sha256": ""}) for files in (was, now))
        if not any(before.get(key) == after.get(key) is not None for key in ("sha256", "content")):
            yield kind, *(f"{one['name']} {one['sha256'][:8]}".rstrip() for one in (before, after))
    for table in ("set", "switches", "draws", "hosim", "seed"):
        values = (said.get(table, {}) for said in (old, new))
        before, after = (dict(value) if isinstance(value, Mapping) else {"": value} for value in values)
        for key in dict.fromkeys((*before, *after)):
            if before.get(key) != after.get(key):
                yield f"{table} {key}".rstrip(), _value(before, key), _value(after, key)


def _value(values: Said, key: str) -> str:
    value = values.get(key, "not set")
    text = value if isinstance(value, str) else in_yaml(value)
    return text if text.isprintable() else repr(text)


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
    tables = [aligned(_table(found.rows, tolerance))] if moved else []
    tables += [f"{row.label}\n{aligned(_details(row, tolerance), 2)}" for row in moved if row.terms]
    return "\n\n".join([*_about(found), *tables, found.conclusion(tolerance)])


def in_comment(found: Changes, tolerance: float) -> str:
    """Write what moved as Markdown, for a comment on a pull request: the table, and each ledger to unfold.

    Parameters
    ----------
    found, tolerance
        As for `plain`.
    """
    moved = found.moved(tolerance)
    parts = [f"### hosim: {found.conclusion(tolerance)}", *map(in_markdown, _about(found))]
    parts += [markdown(_table(found.rows, tolerance))] if moved else []
    for row in (row for row in moved if row.terms):
        details = f"<summary>{escape(row.label, quote=False)}</summary>\n\n{markdown(_details(row, tolerance))}"
        parts.append(f"<details>{details}\n\n</details>")
    return "\n\n".join(parts) + "\n"


def _about(found: Changes) -> list[str]:
    """What differs in what was run, and which expectations turned."""
    inputs = [f"{what}: {old} -> {new}" for what, old, new in found.inputs]
    return inputs + [f"expectation {'holds again' if one.holds else 'fails now'}: {one.asks}" for one in found.verdicts]


def _table(rows: Sequence[RowChange], tolerance: float) -> list[Column]:
    return [
        Column.texts("policy", (row.label for row in rows)),
        Column.texts("status", (_status(row) for row in rows)),
        *_sides([row.step for row in rows], "step"),
        Column.texts("most of it", (_cause(row, tolerance) for row in rows)),
    ]


def _sides(changed: Sequence[Change], what: str = "") -> list[Column]:
    """Both values of figures, and their differences."""
    columns = [
        Column(f"{side} {what}".rstrip(), tuple(shown(one.column, getattr(one, side)) for one in changed))
        for side in ("old", "new")
    ]
    shares = tuple(signed(one.share) if one.difference else "" for one in changed)
    return [*columns, Column("change", tuple(one.written for one in changed)), Column("share", shares)]


def _status(row: RowChange) -> str:
    old, new = row.status
    if old is None or new is None:
        return f"{new}, new row" if old is None else "row is gone"
    return old if old == new else f"{old} -> {new}"


def _cause(row: RowChange, tolerance: float) -> str:
    """What moved most: of what the step is spent on, else of the figures; or why it does not run to its end."""
    if row.status[0] != row.status[1]:
        short = next((one.new for one in row.figures if one.column == "short_bytes" and one.new), None)
        return f"short by {shown('short_bytes', short)} at {row.why}" if short else row.why
    moved = next((one for one in chain(row.terms, row.figures) if one.moved(tolerance)), None)
    return f"{moved.name} {moved.written}" if moved else "same"


def _details(row: RowChange, tolerance: float) -> list[Column]:
    """The step, all of what it is spent on that moved, and the figures that moved."""
    changed = [row.step, *(one for one in (*row.terms, *row.figures) if one.old != one.new)]
    marks = ("" if one.moved(tolerance) else "accepted" for one in changed)
    return [Column.texts("", (one.name for one in changed)), *_sides(changed), Column.texts("", marks)]
