"""The output folder: filled beside its place and renamed when complete, so that none is ever half written."""

from __future__ import annotations

import csv
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import get_all_start_methods
from pathlib import Path
from threading import active_count
from typing import Any

import orjson

from simulator.errors import ConfigError
from simulator.processes import working
from simulator.report import figures, html, perfetto, ranks_figure
from simulator.report.names import folder_names
from simulator.report.ranks import is_job
from simulator.report.rows import Row, is_ok

SUMMARY = "hosim-summary/1"
"""The schema of ``summary.json``."""


def check_target(out: Path) -> None:
    """Refuse an output folder that holds anything but an earlier run.

    Parameters
    ----------
    out
        Where the results shall be.

    Raises
    ------
    ConfigError
        If it is a file, the working directory or one above it, or holds what hosim did not write.
    """
    where, must = f"--out {out}", "the results get a folder of their own"
    if out.is_symlink() and not out.exists():
        raise ConfigError(where, must, "a link that leads nowhere", "remove it, or choose another folder")
    if not out.exists():
        above = next(p for p in out.absolute().parents if p.exists())
        if not above.is_dir():
            raise ConfigError(where, must, f"that {above} is a file", "choose another folder")
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


def _contents(folder: Path) -> set[str]:
    return {p.relative_to(folder).as_posix() for p in folder.rglob("*") if not p.is_dir() or p.is_symlink()}


def _written_by_hosim(folder: Path) -> set[str]:
    try:
        summary = orjson.loads((folder / "summary.json").read_bytes())
    except (OSError, orjson.JSONDecodeError):
        return set()
    if not isinstance(summary, dict) or summary.get("schema") != SUMMARY:
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
    partial, old = (out.with_name(f".{out.name}.{what}-{os.getpid()}") for what in ("partial", "old"))
    made = [p for p in (out.parent, *out.parent.parents) if not p.exists()]
    try:
        partial.mkdir(parents=True)
        yield partial
        if out.exists():
            out.rename(old)
        partial.rename(out)
    except OSError as error:
        found = f"{error.strerror}: {error.filename}"
        raise ConfigError(f"--out {out}", "the results can be written", found, "choose another folder") from error
    finally:
        if old.exists() and not out.exists():
            old.rename(out)
        shutil.rmtree(partial, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)
        for parent in made:
            with suppress(OSError):
                parent.rmdir()


RowWriter = Callable[[Any, Path], None]
"""Writes more about a row into its folder."""


def write_rows(folder: Path, rows: Sequence[Row], story: html.Story, more: RowWriter) -> None:
    """Write what concerns each row (timeline picture, Perfetto trace, and more), and the report of all.

    Parameters
    ----------
    folder
        An existing folder.
    rows
        The rows of the table.
    story
        What the report says besides them.
    more
        Called for each row that ran, with its folder.
    """
    names = folder_names([row.label for row in rows])
    pages = [(row, folder / names[row.label], more) for row in rows if row.trace is not None]
    pictures = dict(zip((row.label for row, *_ in pages), _written(pages), strict=True))
    (folder / "report.html").write_text(html.page(story, rows, pictures), encoding="utf-8")


_Page = tuple[Row, Path, RowWriter]
_inherited: list[_Page] = []
"""What forked workers write: they inherit the rows, which are too large to send."""


def _written(pages: list[_Page]) -> list[list[bytes]]:
    """Write each row's files and return their pictures, on all cores where the process can be forked safely."""
    workers = min(len(pages), os.cpu_count() or 1)
    if workers < 2 or "fork" not in get_all_start_methods() or active_count() > 1:
        return [_write_row(*page) for page in pages]
    _inherited[:] = pages
    try:
        with working("fork", workers, _write_inherited, range(len(pages))) as futures:
            return [future.result() for future in futures]
    finally:
        _inherited.clear()


def _write_inherited(number: int) -> list[bytes]:
    return _write_row(*_inherited[number])


def _write_row(row: Row, folder: Path, more: RowWriter) -> list[bytes]:
    folder.mkdir()
    more(row, folder)
    perfetto.write(row, folder / "trace.perfetto.json.gz")
    pictures = {"timeline.png": figures.timeline(row).png()}
    if is_job(row) and is_ok(row):
        pictures["ranks.png"] = ranks_figure.spent(row).png()
    for name, picture in pictures.items():
        (folder / name).write_bytes(picture)
    return list(pictures.values())


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
    filled = [{column: row.get(column) for column in columns} for row in rows]
    content = {"schema": SUMMARY, "rows": filled, **more, "files": files}
    (folder / "summary.json").write_bytes(orjson.dumps(content, option=orjson.OPT_INDENT_2) + b"\n")
