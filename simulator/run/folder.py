"""The output folder of a story around many runs: pictures and tables of its own, documents, and a summary."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from simulator.catalog import Loaded
from simulator.report import files
from simulator.run.origins import provenance


@contextmanager
def filled(
    out: str | Path, loaded: Loaded, rows: Sequence[Mapping[str, Any]], more: Mapping[str, Any]
) -> Iterator[Path]:
    """Give a folder to fill, and write beside what it is filled with the documents and the summary.

    Parameters
    ----------
    out
        The folder; filled beside its place and renamed. An earlier run's is replaced.
    loaded, rows
        The documents that were resolved, and the rows of the summary.
    more
        Further entries of ``summary.json``; where everything comes from is added.
    """
    with files.replaced(Path(out)) as folder:
        yield folder
        files.write_texts(folder, loaded.documents())
        files.write_summary(folder, rows, {**more, "provenance": provenance(loaded)})
