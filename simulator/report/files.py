"""The output folder: filled beside its place and renamed when complete, so that none is ever half written."""

from __future__ import annotations

import csv
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import orjson

from simulator.errors import ConfigError
from simulator.processes import Aside
from simulator.report import figures, html, perfetto, ranks_figure, summaries
from simulator.report.comparison import comparison
from simulator.report.names import COMPARISON, folder_names
from simulator.report.ranks import is_job
from simulator.report.rows import Row, is_ok
from simulator.report.writable import check_beside


def check_target(out: Path) -> None:
    """Refuse an output folder that holds anything but an earlier run, or cannot be made.

    Parameters
    ----------
    out
        Where the results shall be.

    Raises
    ------
    ConfigError
        If it is a file, the working directory or one above it, holds what hosim did not write, or is where nothing can
        be made: it is filled beside its place.
    """
    where, must = f"--out {out}", "the results get a folder of their own"
    if out.is_symlink() and not out.exists():
        raise ConfigError(where, must, "a link that leads nowhere", "remove it, or choose another folder")
    if not out.exists():
        check_beside(where, out, must, "choose another folder")
        return
    if not out.is_dir():
        raise ConfigError(where, must, "a file", "choose another folder")
    if Path.cwd().is_relative_to(out.resolve()):
        raise ConfigError(where, must, "the working directory", "name a folder inside it")
    strange = sorted(_contents(out) - _written_by_hosim(out))
    if strange:
        more = f" and {len(strange) - 1} more" if len(strange) > 1 else ""
        raise ConfigError(
            where,
            "an existing folder is empty or holds an earlier run of hosim, and nothing else",
            f"{strange[0]!r}{more}",
            "choose another folder, or move that away",
        )
    check_beside(where, out, must, "choose another folder")


def _contents(folder: Path) -> set[str]:
    return {p.relative_to(folder).as_posix() for p in folder.rglob("*") if not p.is_dir() or p.is_symlink()}


def _written_by_hosim(folder: Path) -> set[str]:
    try:
        summary = orjson.loads((folder / "summary.json").read_bytes())
    except (OSError, orjson.JSONDecodeError):
        return set()
    if not isinstance(summary, dict) or summary.get("schema") != summaries.SUMMARY:
        return set()
    return set(map(str, summary.get("files", [])))


@contextmanager
def replaced(out: Path) -> Iterator[Path]:
    """Give a folder to fill; when that is done it takes the place of `out`, and if it fails nothing is left.

    Parameters
    ----------
    out
        Where the results shall be.

    Raises
    ------
    ConfigError
        If `out` must not be replaced, or cannot be written.
    """
    check_target(out)
    out = out.resolve()
    half, old = (out.with_name(f".{out.name}.{what}-{os.getpid()}") for what in ("partial", "old"))
    made = [p for p in (out.parent, *out.parent.parents) if not p.exists()]
    try:
        half.mkdir(parents=True)
        yield half
        if out.exists():
            out.rename(old)
        half.rename(out)
    except OSError as error:
        found = f"{error.strerror}: {error.filename}"
        raise ConfigError(f"--out {out}", "the results can be written", found, "choose another folder") from error
    finally:
        if old.exists() and not out.exists():
            old.rename(out)
        shutil.rmtree(half, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)
        for parent in made:
            with suppress(OSError):
                parent.rmdir()


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

    def report(self, story: html.Story, rows: Sequence[Row]) -> None:
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
        page = html.page(story, rows, drawn, self._pictures)
        (self._folder / "report.html").write_text(page, encoding="utf-8")

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
    (folder / _TIMELINE).write_bytes(figures.timeline(row).png())
    if is_job(row) and is_ok(row):
        (folder / _RANKS).write_bytes(ranks_figure.spent(row).png())


def write_texts(folder: Path, texts: Mapping[str, str]) -> None:
    """Write texts into a folder, by file name."""
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")


def write_summary(folder: Path, rows: Sequence[Mapping[str, Any]], more: Mapping[str, Any]) -> None:
    """Write ``summary.csv`` and, last of all files, ``summary.json`` with the list of what the folder holds.

    Parameters
    ----------
    folder
        The folder with all other files in it.
    rows
        The summaries.
    more
        Further entries of ``summary.json``: provenance, sentences, expectations.
    """
    columns = list(dict.fromkeys(key for row in rows for key in row))
    with (folder / "summary.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    files = sorted({*_contents(folder), "summary.json"})
    said = {**summaries.content(rows, more), "files": files}
    (folder / "summary.json").write_bytes(summaries.dumped(said))
