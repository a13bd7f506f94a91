"""Opens the files that users name: regular files only, and no more of each than a run can use.

A small packed file may unpack without an end, so all limits are on the unpacked bytes.
"""

from __future__ import annotations

import atexit
import codecs
import gzip
import hashlib
import re
import sys
import tarfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from io import BufferedReader, BytesIO
from itertools import chain, product
from math import prod
from os.path import isfile
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import BinaryIO, cast

from simulator.errors import ConfigError, insist

MOST_BYTES = 2_000_000_000
"""Most bytes of a file that is read line by line: several times the largest graph that a run can handle."""
MOST_LINES = 50_000_000
"""Most lines of such a file, empty ones included."""
LONGEST_LINE_BYTES = 64_000_000
"""Most bytes of a line, or of a file that is read at once; the line of an op with a million reads has about half."""
_BLOCK_BYTES, _MOST_WAYS = 1 << 18, 256  # ways of a pattern to fit
# The start of a file that may run code when it is opened (zip or pickle); protocol buffers never start like this.
_PROGRAM = re.compile(rb"PK\x03\x04|\x80[\x02-\x05][^\n\x12]")


STDIN, _PIPE = Path("-"), "a device or a pipe"
"""The path that stands for standard input."""


@cache
def from_stdin() -> Path:
    """Copy standard input, which can be read once only, into a file that lasts as long as the process."""
    copy = NamedTemporaryFile()  # noqa: SIM115 - closed, and so removed, at exit
    atexit.register(copy.close)
    while copy.tell() <= MOST_BYTES and (block := sys.stdin.buffer.read(_BLOCK_BYTES)):
        copy.write(block)
    copy.flush()
    return Path(copy.name)


def shown(path: Path) -> str:
    """Write a path for people, relative to the working directory if it lies below it."""
    if path == STDIN:
        return "standard input"
    try:
        return path.absolute().relative_to(Path.cwd()).as_posix()
    except (ValueError, FileNotFoundError):  # also if the working directory is gone
        return str(path)


def no_file(path: Path) -> str:
    """Say what is at a path that is not a file."""
    try:
        return "a folder" if path.is_dir() else "no such file" if not path.exists() else _PIPE
    except OSError as error:
        return error.strerror or str(error)


@contextmanager
def opened(path: Path, *, is_raw: bool = False) -> Iterator[BinaryIO]:
    """Open a file, unpacking gzip; every failure until it is closed becomes a `ConfigError`.

    Parameters
    ----------
    path
        The file.
    is_raw
        Whether to read a packed file without unpacking it.

    Raises
    ------
    ConfigError
        If it is not a file, cannot be read, or is truncated.
    """
    try:
        if path != STDIN and not isfile(path):
            kind, do = no_file(path), f"save it in a file, or import it as {STDIN}, standard input"
            do = do if kind == _PIPE else "correct the path; hosim downloads nothing"
            raise ConfigError(shown(path), "an input is a file", kind, do)
        place = from_stdin() if path == STDIN else path
        with place.open("rb") as file:
            is_packed = not is_raw and file.read(2) == b"\x1f\x8b"
        with cast(BinaryIO, gzip.open(place)) if is_packed else place.open("rb") as file:
            yield file
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        must = "a file that gzip compressed is whole"
        raise ConfigError(shown(path), must, str(error), "write the file again") from None
    except OSError as error:
        found = error.strerror or str(error)
        raise ConfigError(shown(path), "an input can be read", found, "correct the path or its permissions") from None


def whole(path: Path, most: int | None = None) -> bytes:
    """Read a whole file at once.

    Parameters
    ----------
    path
        The file.
    most
        Most bytes that it may have; default: `LONGEST_LINE_BYTES`.

    Raises
    ------
    ConfigError
        As for `opened`, or if there are more bytes.
    """
    most = most or LONGEST_LINE_BYTES
    with opened(path) as file:
        data = file.read(most + 1)
    _check_size(len(data), most, "bytes", shown(path))
    return data


def unpacked(path: Path, most: int) -> bytes:
    """Read a file of at most so many bytes; of an archive (``.tar``, ``.tar.gz``, ``.tgz``), the first not hidden one.

    Raises
    ------
    ConfigError
        If it cannot be read, is too large or empty, or is a pickle.
    """
    where, data = shown(path), whole(path, most)
    if path.name.endswith((".tar", ".tar.gz", ".tgz")) or (path == STDIN and data[257:262] == b"ustar"):
        data = _first_file(data, where)
    data_only(data, path)
    insist(data and not data.isspace(), where, "a file holds something", "an empty one", "write it again")
    return data


def _first_file(data: bytes, where: str) -> bytes:
    try:
        with tarfile.open(fileobj=BytesIO(data), mode="r:") as archive:
            for member in archive:
                is_hidden = member.name.rpartition("/")[2].startswith(".")
                if member.isreg() and not member.issparse() and not is_hidden and member.size <= len(data):
                    file = archive.extractfile(member)
                    return file.read() if file else b""
    except (tarfile.TarError, ValueError, OverflowError, EOFError) as error:
        found = str(error) or "another file"
        raise ConfigError(where, "a file of this name is a tar archive", found, "correct its name") from None
    raise ConfigError(where, "the archive holds a file", "none", "pack the recording into it")


def digest(path: Path) -> str:
    """Return the SHA-256 of a file without unpacking it; errors as for `opened`."""
    with opened(path, is_raw=True) as file:
        return hashlib.file_digest(cast(BufferedReader, file), "sha256").hexdigest()


def blocks(path: Path) -> Iterator[list[bytes]]:
    """Read the lines of a file in batches, each line with its end; the file may be larger than memory.

    Parameters
    ----------
    path
        The file.

    Raises
    ------
    ConfigError
        As for `opened`, or if there are too many bytes or lines, or a line is too long.
    """
    rest: list[bytes] = []
    line_count = size = 0
    with opened(path) as file:
        while block := file.read(_BLOCK_BYTES):
            rest.append(block if size else unmarked(block, path))
            size += len(block)
            if b"\n" in block:
                lines = BytesIO(b"".join(rest)).readlines()
                rest = [] if block.endswith(b"\n") else [lines.pop()]
                line_count += len(lines)
                yield lines
            _check_size(size, MOST_BYTES, "bytes", shown(path))
            _check_size(line_count, MOST_LINES, "lines", shown(path))
            line_bytes, where = sum(map(len, rest)), f"{shown(path)}:{line_count + 1}"
            _check_size(line_bytes, LONGEST_LINE_BYTES, "bytes", where, has="has in a line")
    if rest:
        yield [b"".join(rest)]


def data_only(start: bytes, path: Path) -> None:
    """Refuse a file whose first bytes show that opening it may run code.

    Raises
    ------
    ConfigError
        If it is a pickle, or an archive that may hold one.
    """
    if _PROGRAM.match(start):
        must, do = "an input is data, not a program", "export it as JSON; of a model see `hosim import torch --help`"
        raise ConfigError(shown(path), must, "a pickle, or an archive that may hold one; hosim opens neither", do)


def unmarked(text: bytes, path: Path) -> bytes:
    """Strip the byte order mark from the start of a text.

    Raises
    ------
    ConfigError
        If the mark is that of UTF-16, or the file may run code (see `data_only`).
    """
    data_only(text, path)
    if text.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise ConfigError(f"{shown(path)}:1", "a file is text in UTF-8", "UTF-16", "save it as UTF-8")
    return text.removeprefix(codecs.BOM_UTF8)


def _check_size(size: int, most: int, units: str, where: str, has: str = "has") -> None:
    must, do = f"an input {has} at most {most:,} {units}, unpacked", "check that it is the right file"
    insist(size <= most, where, must, f"more than {most:,} {units}", do)


def globs_of(pattern: str) -> list[str]:
    """Return what a regular expression is in words and gaps, a glob for each of its ways; none for one that says more.

    It fits from the start of a text on. A file may hold any; one that is run could take for ever.
    """
    parts = [part.split("|") for part in re.split(r"\((?:\?:)?([^()]*)\)", pattern.removeprefix("^"))]
    plain = re.compile(r"([\w-]|\.\*|\\\.|(\\d|\[[0-9-]+\])\+?|\.(?![+?{])|\$$)*").fullmatch
    if {*map(len, parts[::2])} != {1} or prod(map(len, parts)) > _MOST_WAYS or not all(map(plain, chain(*parts))):
        return []
    for text, glob in {".*": "*", "\\d": "[0-9]", "]+": "]*", "\\.": "."}.items():
        parts = [[way.replace(text, glob) for way in part] for part in parts]
    return [(way + "*").removesuffix("$*") for way in map("".join, product(*parts))]
