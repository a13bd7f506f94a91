"""What came of a sweep: its rows, how they are shown, and the folder that holds both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simulator.catalog import Loaded
from simulator.report.summaries import dumped
from simulator.report.view import View
from simulator.run.provenance import provenance

if TYPE_CHECKING:
    import pandas as pd

    from simulator.report.drawing import Picture


@dataclass(frozen=True, eq=False)
class Sweep:
    """What came of a sweep.

    Attributes
    ----------
    name
        The command: ``scaling``, ``largest``, ``robust``, ``sensitivity`` or ``validate``.
    loaded
        The scenarios, each with its machine and its workload.
    rows
        What there is to say, a row each.
    view
        How they are shown.
    outcomes
        All that was measured, if the rows sum it up.
    more
        Further entries of ``summary.json``.
    """

    name: str
    loaded: Sequence[Loaded] = field(repr=False)
    rows: Sequence[dict[str, Any]] = field(repr=False)
    view: View = field(repr=False)
    outcomes: Sequence[dict[str, Any]] = field(default=(), repr=False)
    more: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @cached_property
    def table(self) -> pd.DataFrame:
        """All that was measured, tidy; times [ns] and sizes [B] are whole numbers even where a row has none."""
        import pandas as pd  # noqa: PLC0415 - slow to import, and the text needs none

        frame = pd.DataFrame(list(self.outcomes or self.rows))
        ends = ("_ns", "_bytes")
        whole = [column for column in map(str, frame) if column.endswith(ends) or column.startswith("largest_")]
        return frame.astype(dict.fromkeys(whole, "Int64"))

    @property
    def sentences(self) -> list[str]:
        """What a person would say."""
        return list(self.view.sentences)

    def figure(self) -> Picture:
        """Draw a curve for each policy, or for each figure, over what varied."""
        from simulator.report.curves import curves  # noqa: PLC0415 - drawing takes time to import

        return curves(self.view.title, self.view.panels)

    def json(self) -> bytes:
        """Write the rows and the sentences as JSON."""
        return dumped({"schema": f"hosim-{self.name}/1", **self.more, "rows": self.rows, "sentences": self.sentences})

    def __str__(self) -> str:
        return str(self.view)

    def write(self, out: str | Path) -> None:
        """Write the rows, all that was measured, a page, the picture and the documents into a folder.

        Parameters
        ----------
        out
            The folder; filled beside its place and renamed. An earlier run's is replaced.
        """
        from simulator.report import files  # noqa: PLC0415 - drawing takes time to import

        with files.replaced(Path(out)) as folder:
            picture = self.figure() if self.view.panels else None
            if picture is not None:
                for kind in ("png", "svg"):
                    picture.write(str(folder / f"{self.name}.{kind}"), kind)
            (folder / "report.html").write_text(self.view.page(picture.png() if picture else None), encoding="utf-8")
            if self.outcomes:
                self.table.to_csv(folder / "points.csv", index=False, lineterminator="\n")
            if len(self.loaded) == 1:
                files.write_texts(folder, self.loaded[0].documents())
            origins = {one.scenario.name: provenance(one) for one in self.loaded}
            origin = next(iter(origins.values())) if len(origins) == 1 else origins
            files.write_summary(folder, self.rows, {**self.more, "sentences": self.sentences, "provenance": origin})
