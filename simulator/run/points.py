"""The file of a sweep to which rows are appended as they come: complete lines alone, in the order of points."""

from __future__ import annotations

import csv
import fcntl
import io
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from simulator.errors import ConfigError, insist, said_by_system
from simulator.interrupts import complete
from simulator.metrics import figure_of

PARQUET = ".parquet"
SUFFIXES = (".csv", PARQUET)
"""How the name of such a file ends."""
_TYPES = {"ns": "int64", "B": "int64", "share": "float64", "times": "float64", "per s": "float64", "text": "string"}
"""Unit of a figure -> type in a Parquet file; the others are numbers of any kind."""


class Points:
    """A file of rows, which one process at a time writes.

    A row is written at once, by one call of the system; what of it does not fit on a full disk is cut off again. So
    whatever ends the process, the file holds the rows of all points up to some one, each whole.

    Parameters
    ----------
    path
        The file; an earlier one is replaced.
    columns
        What rows have, in order; what a row lacks is an empty cell.
    """

    def __init__(self, path: Path, columns: Sequence[str]) -> None:
        self.path, self._columns = path, columns
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT, 0o666)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._file)
            raise
        os.ftruncate(self._file, 0)
        self._size = 0

    def add(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Append rows, or, if there is no room, none of them."""
        text = io.StringIO(newline="")
        writer = csv.DictWriter(text, self._columns, lineterminator="\n")
        writer.writerows(rows)
        data = text.getvalue().encode()
        try:
            written = os.write(self._file, data)
            if written < len(data):  # an error says why
                written += os.write(self._file, data[written:])
        except OSError:
            os.ftruncate(self._file, self._size)
            raise
        self._size += len(data)

    def close(self) -> None:
        """Leave the file to others."""
        os.close(self._file)


@contextmanager
def appended(path: Path, columns: Sequence[str]) -> Iterator[Points]:
    """Give a file to append rows to; one that ends in ``.parquet`` is made of it in the end.

    Parameters
    ----------
    path, columns
        As for `Points`; the rows of a Parquet file stand in ``<path>.csv`` until all are there.

    Raises
    ------
    ConfigError
        If the file cannot be written, another process writes it, or pyarrow is not installed.
    """
    rows = path.with_name(path.name + ".csv") if path.suffix == PARQUET else path
    said, do = f"all rows so far, in {rows},", "make room, or name another file; what was measured is kept"
    if path.suffix == PARQUET:
        _arrow(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        points = Points(rows, columns)
        try:
            points.add([dict(zip(columns, columns, strict=True))])
            complete.append(said)
            yield points
        finally:
            points.close()
        if rows != path:
            _to_parquet(rows, path, columns)
            rows.unlink()
        complete.remove(said)
    except BlockingIOError:
        insist(False, str(rows), "one process at a time writes a study", "another one that does", "wait for it")
    except OSError as error:
        raise ConfigError(str(rows), "rows can be written", said_by_system(error), do) from None


def _arrow(path: Path) -> Any:
    try:
        from pyarrow import csv as arrow_csv  # noqa: PLC0415 - an extra
        from pyarrow import parquet  # noqa: PLC0415
    except ImportError:
        do = "pip install 'hosim[parquet]', or name a .csv"
        raise ConfigError(str(path), "a Parquet file is written by pyarrow", "none", do) from None
    return arrow_csv, parquet


def _to_parquet(rows: Path, path: Path, columns: Sequence[str]) -> None:
    """Write a table as Parquet, block by block."""
    arrow_csv, parquet = _arrow(path)
    types = {column: _TYPES[unit] for column in columns if (unit := figure_of(column).unit) in _TYPES}
    types |= dict.fromkeys(("policy", "notes", "remarks", "short_at"), "string")
    options = arrow_csv.ConvertOptions(column_types=types, strings_can_be_null=True)
    partial = path.with_name(path.name + ".partial")
    with (
        arrow_csv.open_csv(rows, convert_options=options) as reader,
        parquet.ParquetWriter(partial, reader.schema) as to,
    ):
        for batch in reader:
            to.write_batch(batch)
    partial.replace(path)
