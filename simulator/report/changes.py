"""What moved between two results: of each row its status, its figures, and what its step is spent on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from simulator.report.summaries import spent
from simulator.units import in_yaml

Said = Mapping[str, Any]
"""What a ``summary.json`` says."""


@dataclass(frozen=True, slots=True)
class Change:
    """A number of a row, before and after.

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
        Peaks, bytes that were moved, and what else is counted, in the order of the summary.
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
        return self.status[0] != self.status[1] or any(
            change.moved(tolerance) for change in (self.step, *self.figures, *self.terms)
        )

    def worse(self, tolerance: float) -> bool:
        """Whether it no longer runs to its end, is gone, takes longer, or peaks higher, by more than this share."""
        if self.status[0] == "ok" != self.status[1] or self.status[1] is None:
            return True
        peaks = (change for change in self.figures if change.column.startswith("peak_"))
        grown = (change for change in (self.step, *peaks) if (change.difference or 0) > 0)
        return any(change.moved(tolerance) for change in grown)


@dataclass(frozen=True, slots=True)
class Turned:
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
    return Changes(tuple(rows), tuple(_inputs(old, new)), tuple(_verdicts(old, new)))


def _row(label: str, rows: tuple[Said | None, Said | None], said: tuple[Said, Said]) -> RowChange:
    old, new = (row or {} for row in rows)
    status = (old.get("status"), new.get("status"))
    columns = [column for column in dict.fromkeys((*new, *old)) if column.startswith(_COUNTED)]
    figures = [Change(column, "", old.get(column), new.get(column), old.get(column)) for column in columns]
    step = old.get("step_ns")
    both = status == ("ok", "ok")
    return RowChange(
        label,
        status,
        "" if status[0] == status[1] or status[1] == "ok" else new.get("short_at") or new.get("notes") or "",
        (old.get("slowest_rank") or 0, new.get("slowest_rank") or 0),
        Change("step_ns", "", step, new.get("step_ns"), step),
        tuple(figures),
        tuple(_terms(label, (old, new), said)) if both else (),
    )


_COUNTED = ("peak_", "moved_", "compactions", "short_bytes", "largest_")
"""How columns begin that are compared besides the step and what it is spent on."""


def _terms(label: str, rows: tuple[Said, Said], said: tuple[Said, Said]) -> list[Change]:
    """What the steps of a row are spent on, the largest change first; waits by place if both results tell places."""
    placed = all(label in one.get("stalls", {}) for one in said)
    old, new = (
        _placed(row, one["stalls"][label]) if placed else {(column, ""): ns for column, ns in spent(row)}
        for row, one in zip(rows, said, strict=True)
    )
    found = [Change(*key, old.get(key, 0), new.get(key, 0), rows[0]["step_ns"]) for key in dict.fromkeys((*old, *new))]
    return sorted(found, key=lambda term: (-abs(term.difference or 0), term.column, term.on))


def _placed(row: Said, stalls: Sequence[Said]) -> dict[tuple[str, str], int]:
    """What a step is spent on [ns], by column and place."""
    others = {(column, ""): ns for column, ns in spent(row) if not column.startswith("wait_")}
    return others | {(f"wait_{stall['cause']}_ns", stall["on"]): stall["ns"] for stall in stalls}


def _inputs(old: Said, new: Said) -> list[tuple[str, str, str]]:
    """What differs in what was run."""
    before, after = old["provenance"], new["provenance"]
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
    if old and new and names[0] == names[1] and not _says_the_same(old, new):
        return f"{names[0]} {old['sha256'][:8]}", f"{names[1]} {new['sha256'][:8]}"
    return names


def _says_the_same(old: Said, new: Said) -> bool:
    """Whether two files are the same to the letter, or are documents that say the same to a run."""
    return any(old.get(key) == new.get(key) is not None for key in ("sha256", "content"))


def _value(values: Said, key: str, absent: str = "none") -> str:
    value = values.get(key)
    return value if isinstance(value, str) else absent if value is None else in_yaml(value)


def _verdicts(old: Said, new: Said) -> list[Turned]:
    before, after = ({_asked(one): one["holds"] or bool(one.get("missed")) for one in said["expectations"]}
                     for said in (old, new))  # fmt: skip
    return [Turned(asks, before[asks], after[asks]) for asks in after if before.get(asks, after[asks]) != after[asks]]


def _asked(verdict: Said) -> str:
    """What is expected; of older results, which do not say it, with what it was held against."""
    return str(verdict.get("asks") or f"{verdict['row']}: {verdict['column']} is {verdict['must']}")
