"""Rows on disk: those that were measured before, and the file of a sweep to which rows are appended as they come.

*Kept* rows lie in one SQLite file, by content: a study that is repeated, goes on or grows runs only what is new. Many
processes may read and write the file at a time, and a killed process leaves it whole. A row's key stands for all that
the row depends on: the documents as they were run, the cell, and hosim's own code.

The file of *points* holds complete lines alone, in the order of points.
"""

from __future__ import annotations

import csv
import fcntl
import io
import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

import orjson

from simulator.errors import ConfigError, import_extra, insist, system_message
from simulator.interrupts import complete
from simulator.metrics import figure_of

_FILE, _FORM = "rows.sqlite", 1
_WAIT_S = 30
"""Time to wait for another process that writes [s]: a write takes milliseconds."""


def usual_folder() -> Path:
    """Return where rows are kept by default: below ``XDG_CACHE_HOME``, or ``~/.cache``."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hosim"


def code_key() -> str:
    """Return a digest of all modules of hosim, which changes with any of them."""
    digest, root = sha256(), Path(__file__).parents[1]
    for path in sorted(root.rglob("*.py")):
        digest.update(f"{path.relative_to(root)} {sha256(path.read_bytes()).hexdigest()}".encode())
    return digest.hexdigest()


def key_of(*parts: Any) -> bytes:
    """Return a digest of all that a row depends on, each part something that JSON can hold."""
    return sha256(orjson.dumps(parts, option=orjson.OPT_SORT_KEYS)).digest()


class KeptRows:
    """Rows that are kept in a folder.

    Parameters
    ----------
    folder
        The folder, which is made if it is not there.

    Raises
    ------
    ConfigError
        If it cannot be made, read or written, or another hosim keeps its rows there in another form.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / _FILE
        with self._refusing():
            folder.mkdir(parents=True, exist_ok=True)
            self._base = sqlite3.connect(self._path, timeout=_WAIT_S, isolation_level=None)
            (form,) = self._base.execute("PRAGMA user_version").fetchone()
            rule = f"rows are kept in form {_FORM}"
            insist(form in (0, _FORM), str(self._path), rule, f"form {form}", _REMOVE)
            self._base.execute("PRAGMA journal_mode = WAL")
            self._base.execute("PRAGMA synchronous = NORMAL")  # a killed process loses nothing, a lost host the last
            self._base.execute("CREATE TABLE IF NOT EXISTS rows (key BLOB PRIMARY KEY, rows BLOB NOT NULL)")
            self._base.execute(f"PRAGMA user_version = {_FORM}")

    def get(self, key: bytes) -> list[dict[str, Any]] | None:
        """Return the rows of a key; None if there are none."""
        with self._refusing():
            record = self._base.execute("SELECT rows FROM rows WHERE key = ?", (key,)).fetchone()
            return orjson.loads(record[0]) if record else None

    def put(self, key: bytes, rows: list[dict[str, Any]]) -> None:
        """Keep rows for good, before this returns."""
        with self._refusing():
            self._base.execute("INSERT OR REPLACE INTO rows VALUES (?, ?)", (key, orjson.dumps(rows)))
        if (phrase := f"what was measured so far, in {self._path},") not in complete:
            complete.append(phrase)

    def close(self) -> None:
        """Leave the folder to others."""
        self._base.close()

    @contextmanager
    def _refusing(self) -> Iterator[None]:
        """Turn errors of the file into those of hosim."""
        try:
            yield
        except (sqlite3.OperationalError, OSError) as error:
            raise ConfigError(str(self._path), _KEEPS, str(error), f"see whether there is room, {_ELSE}") from None
        except (sqlite3.Error, orjson.JSONDecodeError) as error:
            raise ConfigError(str(self._path), _KEEPS, str(error), _REMOVE) from None


_KEEPS = "rows that were measured can be kept and read again"
_ELSE = "name another folder with --cache, or keep nothing with --no-cache"
_REMOVE = f"remove that file, {_ELSE}"


PARQUET = ".parquet"
SUFFIXES = (".csv", PARQUET)
"""Ends of the name of such a file."""
_TYPES = {"ns": "int64", "B": "int64", "share": "float64", "times": "float64", "per s": "float64", "text": "string"}
"""Unit of a figure -> type in a Parquet file; the others are numbers of any kind."""


@contextmanager
def appending(path: Path, columns: Sequence[str]) -> Iterator[Callable[[Iterable[Mapping[str, Any]]], None]]:
    """Give a function that appends rows to a file, which one process at a time writes.

    Parameters
    ----------
    path
        The file; an earlier one is replaced once there are rows. One that ends in ``.parquet`` is made in the end:
        until then the rows stand in ``<path>.csv``.
    columns
        Columns of the rows, in order; what a row lacks is an empty cell.

    Raises
    ------
    ConfigError
        If the file cannot be written, another process writes it, or pyarrow is not installed.
    """
    rows = path
    if path.suffix == PARQUET:
        rows = path.with_name(path.name + ".csv")
        _arrow(path)
    phrase = f"all rows so far, in {rows},"
    is_begun = False

    def append(more: Iterable[Mapping[str, Any]]) -> None:
        nonlocal is_begun
        if not is_begun:
            file.truncate(0)
            _append(file, columns, [dict(zip(columns, columns, strict=True))])
            complete.append(phrase)
            is_begun = True
        _append(file, columns, more)

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with rows.open("ab", buffering=0) as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            try:
                yield append
            finally:
                if not os.fstat(file.fileno()).st_size:
                    rows.unlink()
        if rows != path:
            _to_parquet(rows, path, columns)
            rows.unlink()
        if is_begun:
            complete.remove(phrase)
    except BlockingIOError:
        insist(False, str(rows), "one process at a time writes a study", "another one that does", "wait for it")
    except OSError as error:
        do = "make room, or name another file; what the cache has is not measured again"
        raise ConfigError(str(rows), "rows can be written", system_message(error), do) from None


def _append(file: io.FileIO, columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> None:
    """Append rows by one call of the system; if the disk is full, cut off again what was written of them.

    So whatever ends the process, the file holds the rows of all points up to one of them, each whole.
    """
    text, end = io.StringIO(newline=""), file.seek(0, os.SEEK_END)
    csv.DictWriter(text, columns, lineterminator="\n").writerows(rows)
    data = text.getvalue().encode()
    try:
        written = os.write(file.fileno(), data)
        if written < len(data):  # an error says why
            os.write(file.fileno(), data[written:])
    except OSError:
        file.truncate(end)
        raise


def _arrow(path: Path) -> list[Any]:
    """Import pyarrow, or refuse to write Parquet."""
    rule, do = "a Parquet file is written by pyarrow", "pip install 'hosim[parquet]', or name a .csv"
    return import_extra(str(path), rule, do, "pyarrow", "pyarrow.csv", "pyarrow.parquet")


def _to_parquet(rows: Path, path: Path, columns: Sequence[str]) -> None:
    """Write a table as Parquet, block by block."""
    _, arrow_csv, parquet = _arrow(path)
    types = {column: _TYPES[unit] for column in columns if (unit := figure_of(column).unit) in _TYPES}
    types |= dict.fromkeys(("policy", "notes", "remarks", "short_at"), "string")
    options = arrow_csv.ConvertOptions(column_types=types, strings_can_be_null=True)
    beside = path.with_name(path.name + ".partial")
    with (
        arrow_csv.open_csv(rows, convert_options=options) as reader,
        parquet.ParquetWriter(beside, reader.schema) as to,
    ):
        for batch in reader:
            to.write_batch(batch)
    beside.replace(path)
