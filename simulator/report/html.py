"""The report as a self-contained HTML file: sentences, table, timelines, stalls, peaks and sources."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from PIL import Image

from simulator.interrupts import no_garbage_search
from simulator.metrics import peak_breakdown
from simulator.metrics.rows import Row, chosen, of_ranks, with_measured
from simulator.report import drawing, perfetto
from simulator.report.drawing import Drawn, emptied, picture
from simulator.report.files import COMPARISON, folder_names
from simulator.report.pictures import by_rank, comparison
from simulator.report.readings import largest, usages
from simulator.report.tables import PIPE_WIDTH, folded, rank_columns
from simulator.report.timeline import Scene, scene, timeline, zoomable
from simulator.report.views import SweepView, rendered
from simulator.report.words import omitted, quantity
from simulator.scenario import Scenario

_MOST_RANKS = 16
"""Most ranks in a table on a page: nobody reads more lines."""
_MOST_BYTES, _BAR_BYTES = 4_500_000, 30
"""A page must stay below 5 MB; bars and changes of memory measured 24.6 to 26.7 bytes each."""


def _section(row: Row, shown: Scene | None, most: int) -> dict[str, Any]:
    """Return the content of a row's section, with what its timeline has if these are at most `most` bars.

    Tables and lists are of the slowest rank of a job.
    """
    ranks, slowest, trace, parts = chosen(row, _MOST_RANKS), row, row.trace, row.spent.items() if row.is_ok else ()
    if trace is not None and row.is_job:
        (slowest,) = of_ranks(row, [trace.stands_in[row.summary.get("slowest_rank") or 0]])
    tiers, alone = [usage.tier for usage in usages(slowest)], slowest.trace
    return {
        "ok": row.is_ok,
        "spoken": ", ".join(f"{name} {quantity(ns, 'ns')}" for name, ns in parts) or str(row.summary["status"]),
        "zoom": zoomable(shown, most) if shown else None,
        "whose": f" (rank {slowest.rank}{', the slowest' if row.is_ok else ''})" if row.is_job else "",
        "ranks": rank_columns(of_ranks(row, ranks)) if row.is_job else [],
        "omitted": omitted(row, ranks),
        "stalls": largest(slowest),
        "peaks": [peak_breakdown(slowest.graph, row.hardware, alone, tier) for tier in tiers] if alone else [],
    }


def _bars(zoom: Mapping[str, Any]) -> int:
    """Count the bars and the changes of memory of a timeline."""
    return sum(len(band["look"]) for band in zoom["bands"]) + sum(len(memory["gap"]) for memory in zoom["memories"])


_TIMELINE, _RANKS, _PERFETTO = "timeline.png", "ranks.png", "trace.perfetto.json.gz"


class Pages:
    """Writes a folder of results, with a folder for each row: timeline picture, Perfetto trace, and more.

    Parameters
    ----------
    folder
        An existing folder.
    labels
        The labels of all rows.
    more
        Writes further files about a row into its folder.
    """

    def __init__(self, folder: Path, labels: Sequence[str], more: Callable[[Any, Path], None]) -> None:
        Image.preinit()  # imports what writes pictures: here, not in each fork
        self.folder, self._more, self._drawn = folder, more, dict[tuple[int, int], Drawn]()
        self._folders = {label: folder / name for label, name in folder_names(labels).items()}

    @no_garbage_search()
    def add(self, row: Row, *_: object) -> dict[str, Any]:
        """Write the folder of a row, unless it has no trace, and return the content of its section."""
        shown = None if row.trace is None else scene(row)
        section = _section(row, shown, _MOST_BYTES // _BAR_BYTES // len(self._folders))
        if shown is None:
            return section
        folder = self._folders[row.label]
        folder.mkdir()
        self._more(row, folder)
        perfetto.write(with_measured([row]), folder / _PERFETTO)
        shape = len(shown.lanes), len(shown.memories)
        given = emptied(self._drawn[shape]) if shape in self._drawn else None
        self._drawn[shape] = timeline(row, given, content=shown)
        (folder / _TIMELINE).write_bytes(picture(self._drawn[shape]).png())
        if row.is_job and row.is_ok:
            (folder / _RANKS).write_bytes(picture(by_rank(row)).png())
        return section

    @no_garbage_search()
    def report(
        self,
        scenario: Scenario,
        summary: Mapping[str, Any],
        sections: Sequence[dict[str, Any]],
        parts: Sequence[tuple[SweepView, bytes | None]] = (),
        command: str = "",
    ) -> None:
        """Write the report of all rows and the comparison picture, once the folder of each row is written.

        Parameters
        ----------
        scenario
            The scenario, for its name, title and claim.
        summary
            The content of ``summary.json`` except the rows: sentences, expectations, stalls and provenance.
        sections
            The section of each row that `add` returned, and its ``row``.
        parts
            Further views on the page, each with its picture.
        command
            The command that reproduces the results; empty if a program made them.
        """
        rows = [section["row"] for section in sections]
        shown = with_measured(rows)
        if shown[len(rows) :]:
            perfetto.write(shown, self.folder / _PERFETTO)
        drawn = picture(comparison(shown, scenario.heading)).png()
        (self.folder / COMPARISON).write_bytes(drawn)
        pictures = sum(len(picture) for row in rows for picture in self._pictures(row))
        most = int(_MOST_BYTES - pictures * 4 / 3) // _BAR_BYTES // len(rows)
        for section in sections:
            if section["zoom"] and _bars(section["zoom"]) > most:
                section["zoom"] = None
        text = rendered(
            "page.html.j2",
            scenario=scenario,
            said=summary,
            parts=parts,
            tables=folded(shown, PIPE_WIDTH),
            comparison=drawn,
            sections=sections,
            command=command,
            pictures=self._pictures,
            colours=drawing,
        )
        (self.folder / "report.html").write_text(text, encoding="utf-8")

    def _pictures(self, row: Row) -> list[bytes]:
        """Read the pictures of a row."""
        files = (self._folders[row.label] / name for name in (_TIMELINE, _RANKS))
        return [file.read_bytes() for file in files if file.exists()]
