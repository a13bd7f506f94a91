"""Rows that were measured before, kept by content: a study that is repeated, goes on or grows runs only what is new.

One SQLite file, which many processes may read and write at a time, and which a killed process leaves whole. A row's key
stands for all that it hangs on: the documents as they were run, the cell, and hosim's own code.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

import orjson

from simulator.errors import ConfigError
from simulator.interrupts import complete

_FILE, _FORM = "rows.sqlite", 1
_WAIT_S = 30
"""So long one waits for another that writes."""


def usual_folder() -> Path:
    """Where rows are kept if nobody says where: below ``XDG_CACHE_HOME``, or ``~/.cache``."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hosim"


def code_key() -> str:
    """A text that is another one once any module of hosim is: the digest of all of them."""
    found, root = sha256(), Path(__file__).parents[1]
    for path in sorted(root.rglob("*.py")):
        found.update(f"{path.relative_to(root)} {sha256(path.read_bytes()).hexdigest()}".encode())
    return found.hexdigest()


def key_of(*parts: Any) -> bytes:
    """Digest of all that a row hangs on, each part something that JSON can say."""
    return sha256(orjson.dumps(parts, option=orjson.OPT_SORT_KEYS)).digest()


class Kept:
    """The rows of a folder.

    Parameters
    ----------
    folder
        Where they are; made if it is not there.

    Raises
    ------
    ConfigError
        If it cannot be made, read or written, or another hosim keeps its rows there in another form.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / _FILE
        with self._told():
            folder.mkdir(parents=True, exist_ok=True)
            self._base = sqlite3.connect(self._path, timeout=_WAIT_S, isolation_level=None)
            (form,) = self._base.execute("PRAGMA user_version").fetchone()
            if form not in (0, _FORM):
                raise ConfigError(str(self._path), f"rows are kept in form {_FORM}", f"form {form}", _REMOVE)
            self._base.execute("PRAGMA journal_mode = WAL")
            self._base.execute("PRAGMA synchronous = NORMAL")  # a killed process loses nothing, a lost host the last
            self._base.execute("CREATE TABLE IF NOT EXISTS rows (key BLOB PRIMARY KEY, rows BLOB NOT NULL)")
            self._base.execute(f"PRAGMA user_version = {_FORM}")

    def get(self, key: bytes) -> list[dict[str, Any]] | None:
        """The rows of a key; None if there are none."""
        with self._told():
            found = self._base.execute("SELECT rows FROM rows WHERE key = ?", (key,)).fetchone()
            return orjson.loads(found[0]) if found else None

    def put(self, key: bytes, rows: list[dict[str, Any]]) -> None:
        """Keep rows for good, at once."""
        with self._told():
            self._base.execute("INSERT OR REPLACE INTO rows VALUES (?, ?)", (key, orjson.dumps(rows)))
        if (said := f"what was measured so far, in {self._path},") not in complete:
            complete.append(said)

    def close(self) -> None:
        """Leave the folder to others."""
        self._base.close()

    @contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.OperationalError, OSError) as error:
            raise ConfigError(str(self._path), _KEEPS, str(error), f"see whether there is room, {_ELSE}") from None
        except (sqlite3.Error, orjson.JSONDecodeError) as error:
            raise ConfigError(str(self._path), _KEEPS, str(error), _REMOVE) from None


_KEEPS = "rows that were measured can be kept and read again"
_ELSE = "name another folder with --cache, or keep nothing with --no-cache"
_REMOVE = f"remove that file, {_ELSE}"
