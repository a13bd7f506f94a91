"""The report as one HTML file that needs no network: sentences, table, timelines, stalls, peaks and sources."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jinja2

from simulator.metrics import Peak, peak_breakdown
from simulator.processes import Aside
from simulator.report import colours, perfetto, ranks_figure
from simulator.report.comparison import comparison
from simulator.report.files import COMPARISON, folder_names
from simulator.report.ranks import chosen, is_job, of_ranks, omitted
from simulator.report.rows import Row, causes, is_ok, percent, quantity, recomputed_ns
from simulator.report.stalls import Stall, by_cause, largest
from simulator.report.text import PIPE_WIDTH, Column, folded, rank_columns
from simulator.report.timeline import timeline
from simulator.report.usage import usages

_TEMPLATES = Path(__file__).parent
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

    @property
    def printed(self) -> list[Mapping[str, Any]]:
        """The expectations that have a printed figure."""
        return [one for one in self.expectations if one["printed"]]


@dataclass(frozen=True, slots=True)
class _Section:
    """What the page shows of one row."""

    row: Row
    ok: bool
    whose: str
    ranks: list[Column]
    omitted: str
    causes: list[tuple[str, str, int, str, str]]
    stalls: list[Stall]
    peaks: list[tuple[Peak, list[tuple[str, str, str]], list[tuple[str, str]]]]


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
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {"bytes": lambda value: quantity(value, "B"), "ns": lambda value: quantity(value, "ns")}
    template = environment.get_template("page.html.j2")
    return template.render(
        story=story,
        tables=folded(rows, PIPE_WIDTH),
        statuses=[str(row.summary["status"]) for row in rows],
        comparison=_text(comparison),
        spoken="; ".join(map(_spoken, rows)),
        recomputes=any(map(recomputed_ns, rows)),
        sections=[_section(row) for row in rows],
        pictures=lambda row: _encoded(row, pictures(row)),
        colours={
            "cause": colours.CAUSE,
            "kind": colours.KIND,
        },
    )


def _encoded(row: Row, pictures: Sequence[bytes]) -> list[tuple[str, str]]:
    """What a picture shows, and the picture as text, for each of a row."""
    alts = (f"Timeline of {row.label}", f"What each rank of {row.label} spends a step on")
    return [(alt, _text(picture)) for alt, picture in zip(alts, pictures, strict=False)]


def _text(picture: bytes) -> str:
    return base64.b64encode(picture).decode()


def _spoken(row: Row) -> str:
    """What one who cannot see the picture of the table is told of a row."""
    if not is_ok(row):
        return f"{row.label}: {row.summary['status']}"
    parts = [("compute", int(row.summary["compute_ns"])), ("recompute", recomputed_ns(row))]
    parts += [(f"stall: {cause}", ns) for cause, ns in causes(row)]
    parts.append(("copies after the last op", int(row.summary.get("drain_ns") or 0)))
    return f"{row.label}: " + ", ".join(f"{name} {quantity(ns, 'ns')}" for name, ns in parts if ns)


def _section(row: Row) -> _Section:
    told, shown = _told(row), chosen(row, _MOST_RANKS) if is_job(row) else []
    return _Section(
        row=row,
        ok=is_ok(row),
        whose=f" (rank {told.rank}{', the slowest' if is_ok(row) else ''})" if told is not row else "",
        ranks=rank_columns(of_ranks(row, shown)) if shown else [],
        omitted=omitted(row, shown) if shown else "",
        causes=by_cause(told),
        stalls=largest(told),
        peaks=_peaks(told),
    )


def _told(row: Row) -> Row:
    """What the stalls and peaks of a section are about: of several ranks the slowest."""
    if not is_job(row) or row.trace is None:
        return row
    return of_ranks(row, [row.trace.stands_in[row.summary.get("slowest_rank") or 0]])[0]


def _peaks(row: Row) -> list[tuple[Peak, list[tuple[str, str, str]], list[tuple[str, str]]]]:
    peaks = []
    for usage, trace in [(usage, row.trace) for usage in usages(row) if row.trace is not None]:
        found = peak_breakdown(row.graph, row.hardware, trace, usage.tier)
        shares = {kind: percent(size / found.used_bytes) for kind, size in found.by_kind.items()}
        kinds = [(kind, quantity(size, "B"), shares[kind]) for kind, size in found.by_kind.items()]
        peaks.append((found, kinds, [(name, quantity(size, "B")) for name, size in found.largest]))
    return peaks


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
    if is_job(row) and is_ok(row):
        (folder / _RANKS).write_bytes(ranks_figure.spent(row).png())
