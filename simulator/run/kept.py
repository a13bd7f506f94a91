"""Rows on disk: those kept from earlier sweeps, and the file to which a sweep appends its rows as they come.

*Kept* rows are stored in one SQLite file, addressed by content: a study that is repeated, resumed or extended runs only
what is new. Many processes may use the file at the same time, and a killed process leaves it intact. A row's key covers
all that the row depends on: the documents that ran, the cell, and hosim's own code.

The file of *points* holds only complete lines, in the order of points.
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

from simulator.errors import ConfigError, import_extra, insist
from simulator.interrupts import complete
from simulator.metrics import figure_of
from simulator.outputs import check_file, written

_FILE, _FORM = "rows.sqlite", 1
_WAIT_S = 30
"""Time to wait for another process that writes [s]: a write takes milliseconds."""


def _default_folder() -> Path:
    """Return the default folder of kept rows: in ``XDG_CACHE_HOME``, or ``~/.cache``; refuse if there is none."""
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hosim"
    except RuntimeError as error:  # a user whom the system does not know
        raise ConfigError("cache", _KEEPS, str(error), f"set XDG_CACHE_HOME, {_ELSE}") from None


def code_key() -> str:
    """Return a digest of hosim's own code, in C++ too where that is there, which changes with any of its files."""
    digest, root = sha256(), Path(__file__).parents[1]
    for path in sorted((*root.rglob("*.py"), *root.rglob("*.[ch]pp"))):
        digest.update(f"{path.relative_to(root)} {sha256(path.read_bytes()).hexdigest()}".encode())
    return digest.hexdigest()


def key_of(*parts: Any) -> bytes:
    """Return a digest of everything that a row depends on; each part can be written as JSON."""
    return sha256(orjson.dumps(parts, option=orjson.OPT_SORT_KEYS)).digest()


class KeptRows:
    """Rows that are kept in a folder.

    Parameters
    ----------
    folder
        The folder, which is created if it does not exist; None: the default one.
    say
        Called with a line, once, if the folder cannot be used, or no longer be written, and nothing is kept from there
        on; without, that is an error.

    Raises
    ------
    ConfigError
        If it cannot be created, read or written, or another version of hosim keeps rows there in another form.
    """

    def __init__(self, folder: Path | None, say: Callable[[str], None] | None = None) -> None:
        self._path, self._say, self._is_kept = Path(), say, True
        self._base: sqlite3.Connection | None = None
        with self._forgiving():
            folder = folder or _default_folder()
            self._path = folder / _FILE
            folder.mkdir(parents=True, exist_ok=True)
            base = sqlite3.connect(self._path, timeout=_WAIT_S, isolation_level=None)
            (form,) = base.execute("PRAGMA user_version").fetchone()
            rule = f"rows are kept in form {_FORM}"
            insist(form in (0, _FORM), str(self._path), rule, f"form {form}", _REMOVE)
            base.execute("PRAGMA journal_mode = WAL")
            base.execute("PRAGMA synchronous = NORMAL")  # a killed process loses nothing, a lost host the last
            base.execute("CREATE TABLE IF NOT EXISTS rows (key BLOB PRIMARY KEY, rows BLOB NOT NULL)")
            base.execute(f"PRAGMA user_version = {_FORM}")
            self._base = base

    def get(self, key: bytes) -> list[dict[str, Any]] | None:
        """Return the rows of a key; None if none are kept."""
        if self._base is None:
            return None
        with self._refusing():
            record = self._base.execute("SELECT rows FROM rows WHERE key = ?", (key,)).fetchone()
            return orjson.loads(record[0]) if record else None

    def put(self, key: bytes, rows: list[dict[str, Any]]) -> None:
        """Keep rows; they are on disk when this returns."""
        if self._base is None or not self._is_kept:
            return
        with self._forgiving():
            self._base.execute("INSERT OR REPLACE INTO rows VALUES (?, ?)", (key, orjson.dumps(rows)))
            if (phrase := f"all rows so far, in {self._path},") not in complete:
                complete.append(phrase)

    def close(self) -> None:
        """Close the file."""
        if self._base is not None:
            self._base.close()

    @contextmanager
    def _forgiving(self) -> Iterator[None]:
        """Say what cannot be used, and keep nothing from there on, if that is allowed."""
        try:
            with self._refusing():
                yield
        except ConfigError as error:
            if self._say is None:
                raise
            self._is_kept = False
            self._say(f"{error.where}: rows are not kept from here on ({error.found}); {_ELSE}")

    @contextmanager
    def _refusing(self) -> Iterator[None]:
        """Turn errors of the file into a `ConfigError`."""
        try:
            yield
        except (sqlite3.OperationalError, OSError) as error:
            raise ConfigError(str(self._path), _KEEPS, str(error), f"see whether there is room, {_ELSE}") from None
        except (sqlite3.Error, orjson.JSONDecodeError) as error:
            raise ConfigError(str(self._path), _KEEPS, str(error), _REMOVE) from None


_KEEPS = "rows that were measured can be kept and read again"
_ELSE = "name another folder with --cache, or keep nothing with --no-cache"
_REMOVE = f"remove that file, {_ELSE}"


_PARQUET = ".parquet"
SUFFIXES = (".csv", _PARQUET)
"""Suffixes of a file of rows."""
_TYPES = {"ns": "int64", "B": "int64", "share": "float64", "times": "float64", "per s": "float64", "text": "string"}
"""Unit of a figure -> its type in a Parquet file; for other units the type is inferred."""


@contextmanager
def appending(path: Path, columns: Sequence[str]) -> Iterator[Callable[[Iterable[Mapping[str, Any]]], None]]:
    """Provide a function that appends rows to a file, which only one process at a time may write.

    Parameters
    ----------
    path
        The file; an existing one is replaced once there are rows. A ``.parquet`` file is written at the end: until then
        the rows are in ``<path>.csv``.
    columns
        Columns of the rows, in order; a column that a row lacks is left empty.

    Raises
    ------
    ConfigError
        If the file cannot be written, another process writes it, or pyarrow is not installed.
    """
    rows = path
    if path.suffix == _PARQUET:
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
        check_file("", rows)
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
        found, do = str(error.strerror or error), "make room, or name another file; rows in the cache stay measured"
        raise ConfigError(str(error.filename or rows), "rows can be written", found, do) from None


def _append(file: io.FileIO, columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> None:
    """Append rows with one system call; if the disk is full, remove what was written of them.

    So whatever ends the process, the file holds complete rows, of all points up to some point.
    """
    text, end = io.StringIO(newline=""), file.seek(0, os.SEEK_END)
    csv.DictWriter(text, columns, lineterminator="\n").writerows(rows)
    data = text.getvalue().encode()
    try:
        written = os.write(file.fileno(), data)
        if written < len(data):  # the error of a second write says why
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
    options = arrow_csv.ConvertOptions(column_types=types, strings_can_be_null=True)
    with (
        written(path) as (part,),
        arrow_csv.open_csv(rows, convert_options=options) as reader,
        parquet.ParquetWriter(part, reader.schema) as to,
    ):
        for batch in reader:
            to.write_batch(batch)
