"""The report as one HTML file that needs no network: sentences, table, timelines, stalls, peaks and sources."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from simulator.metrics import peak_breakdown
from simulator.processes import Aside
from simulator.report import drawing, perfetto
from simulator.report.files import COMPARISON, folder_names
from simulator.report.pictures import by_rank, comparison
from simulator.report.readings import by_place, largest, usages
from simulator.report.rows import Row, chosen, of_ranks, omitted, quantity
from simulator.report.tables import PIPE_WIDTH, folded, rank_columns
from simulator.report.timeline import timeline
from simulator.report.views import rendered

_MOST_RANKS = 16
"""So many lines of a table are still read."""


@dataclass(frozen=True, slots=True)
class Story:
    """What a report says besides its rows.

    Attributes
    ----------
    name, title
        Of the scenario.
    sentences
        What a person would say about the run.
    provenance
        Where every number comes from, as in ``summary.json``.
    expectations
        The fields of `simulator.report.expectations.Verdict` for each expectation.
    claim
        The fields of `simulator.scenario.Claim`, if the scenario puts a published sentence to the test.
    """

    name: str
    title: str
    sentences: tuple[str, ...]
    provenance: Mapping[str, Any]
    expectations: tuple[Mapping[str, Any], ...] = ()
    claim: Mapping[str, Any] | None = None


def page(story: Story, rows: Sequence[Row], comparison: bytes, pictures: Callable[[Row], Sequence[bytes]]) -> str:
    """Write the page.

    Parameters
    ----------
    story
        What the report says besides its rows.
    rows
        The rows of the table.
    comparison
        The PNG of the table.
    pictures
        The PNGs of a row: its timeline, and of several ranks what they spend their time on; rows without a trace have
        none. Asked for last, when all else is known.
    """
    return rendered(
        "page.html.j2",
        story=story,
        tables=folded(rows, PIPE_WIDTH),
        statuses=[str(row.summary["status"]) for row in rows],
        comparison=comparison,
        spoken=[(row.label, _spoken(row)) for row in rows],
        recomputes=any(row.recompute_ns for row in rows),
        sections=[_section(row) for row in rows],
        pictures=pictures,
        colours=drawing,
    )


def _spoken(row: Row) -> str:
    """What one who cannot see the picture of the table is told of a row."""
    parts = row.spent.items() if row.is_ok else ()
    return ", ".join(f"{what} {quantity(ns, 'ns')}" for what, ns in parts) or str(row.summary["status"])


def _section(row: Row) -> dict[str, Any]:
    """What the page shows of one row; of several ranks the stalls and peaks of the slowest."""
    told, ranks = row, chosen(row, _MOST_RANKS)
    if row.trace is not None and row.is_job:
        told = of_ranks(row, [row.trace.stands_in[row.summary.get("slowest_rank") or 0]])[0]
    return {
        "row": row,
        "ok": row.is_ok,
        "whose": f" (rank {told.rank}{', the slowest' if row.is_ok else ''})" if row.is_job else "",
        "ranks": rank_columns(of_ranks(row, ranks)) if row.is_job else [],
        "omitted": omitted(row, ranks),
        "causes": by_place(row),
        "step_ns": row.summary.get("step_ns") or 1,
        "stalls": largest(told),
        "peaks": [
            peak_breakdown(told.graph, told.hardware, told.trace, use.tier) for use in usages(told) if told.trace
        ],
    }


RowWriter = Callable[[Any, Path], None]
"""Writes more about a row into its folder."""
_TIMELINE, _RANKS = "timeline.png", "ranks.png"


class Pages:
    """The folders of rows that ran, each written aside: timeline picture, Perfetto trace, and more.

    Parameters
    ----------
    folder
        An existing folder.
    calls
        Runs what writes them.
    more
        Called for each row, with its folder.
    """

    def __init__(self, folder: Path, calls: Aside, more: RowWriter) -> None:
        self._folder, self._calls, self._more = folder, calls, more
        self._labels: list[str] = []

    def add(self, row: Row) -> None:
        """Begin to write the next row; nothing if it did not run."""
        self._labels.append(row.label)
        if row.trace is not None:
            self._calls.call(partial(_write_row, row, self._of(row), self._more))

    def report(self, story: Story, rows: Sequence[Row]) -> None:
        """Write the report of all rows and the picture of their table, and with it wait until all are written.

        Parameters
        ----------
        story
            What it says besides them.
        rows
            The rows of the table.
        """
        drawn = comparison(rows, story.title or story.name).png()
        (self._folder / COMPARISON).write_bytes(drawn)
        (self._folder / "report.html").write_text(page(story, rows, drawn, self._pictures), encoding="utf-8")

    def _pictures(self, row: Row) -> list[bytes]:
        """The pictures of a row, once all rows are written."""
        self._calls.finish()
        files = (self._of(row) / name for name in (_TIMELINE, _RANKS))
        return [file.read_bytes() for file in files if file.exists()]

    def _of(self, row: Row) -> Path:
        return self._folder / folder_names(self._labels)[row.label]


def _write_row(row: Row, folder: Path, more: RowWriter) -> None:
    folder.mkdir()
    more(row, folder)
    perfetto.write(row, folder / "trace.perfetto.json.gz")
    (folder / _TIMELINE).write_bytes(timeline(row).png())
    if row.is_job and row.is_ok:
        (folder / _RANKS).write_bytes(by_rank(row).png())
