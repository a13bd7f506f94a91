"""The story of `hosim diff`: two results are read and compared; nothing runs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from simulator.errors import ConfigError
from simulator.report.changes import Change, Changes, RowChange, changes, in_comment, plain, read
from simulator.report.files import dumped

SCHEMA = "hosim-diff/1"
"""The schema of what is written as JSON."""


@dataclass(frozen=True, slots=True)
class Diff:
    """What moved between two results.

    Attributes
    ----------
    old, new
        The folders.
    found
        What moved.
    tolerance
        Share up to which a change is accepted.
    """

    old: Path
    new: Path
    found: Changes
    tolerance: float

    @property
    def moved(self) -> bool:
        """Whether anything moved by more than the tolerance, or an expectation changed its verdict."""
        return bool(self.found.moved(self.tolerance) or self.found.verdicts)

    @property
    def worse(self) -> bool:
        """Whether a row is worse by more than the tolerance, or an expectation that held fails."""
        fails = any(verdict.held and not verdict.holds for verdict in self.found.verdicts)
        return fails or bool(self.found.worse(self.tolerance))

    def __str__(self) -> str:
        return plain(self.found, self.tolerance)

    def markdown(self) -> str:
        """Write it as Markdown, for a comment on a pull request."""
        return in_comment(self.found, self.tolerance)

    def json(self) -> bytes:
        """Write it as JSON: every row with every number, also those that did not move."""
        return dumped(
            {
                "schema": SCHEMA,
                "old": str(self.old),
                "new": str(self.new),
                "tolerance": self.tolerance,
                "moved": self.moved,
                "worse": self.worse,
                "inputs": [{"what": what, "old": old, "new": new} for what, old, new in self.found.inputs],
                "rows": [self._row(row) for row in self.found.rows],
                "expectations": [verdict._asdict() for verdict in self.found.verdicts],
            }
        )

    def _row(self, row: RowChange) -> dict[str, Any]:
        sides = dict(zip(("old_status", "new_status"), row.status, strict=True))
        flags = {"moved": row.moved(self.tolerance), "worse": row.worse(self.tolerance)}
        lists = {"spent": [_written(term) for term in row.terms], "figures": [_written(one) for one in row.figures]}
        return {"policy": row.label, **sides, **flags, "step": _written(row.step), **lists}


def _written(change: Change) -> dict[str, Any]:
    values = {"old": change.old, "new": change.new, "difference": change.difference, "share": change.share}
    return {"column": change.column, **({"on": change.on} if change.on else {}), **values}


def diff(old: str | Path, new: str | Path, *, tolerance: float = 0.0) -> Diff:
    """Compare two results.

    Parameters
    ----------
    old, new
        Folders that ``hosim run --out`` wrote, or the ``summary.json`` in them.
    tolerance
        Share up to which a change is accepted: of a peak, or of bytes moved, of its value before; of a step, and of
        what it is spent on, of the step before.

    Raises
    ------
    ConfigError
        If a folder is none of ours, was not written to its end, or has another version of the schema.
    """
    if not 0 <= tolerance < 1:
        raise ConfigError("tolerance", "a tolerance is a share from 0 to below 1", f"{tolerance}", "write such as 0.01")
    old, new = Path(old), Path(new)
    return Diff(old, new, changes(read(old), read(new)), tolerance)
