"""Files that people name, opened for every reader: regular files, and of these no more than a run can use.

A file may be small and what is in it without an end, so all limits hold for what comes out of a packed file.
"""

from __future__ import annotations

import codecs
import gzip
import hashlib
import re
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader, BytesIO
from os.path import isfile
from pathlib import Path
from typing import BinaryIO, cast

from simulator.errors import ConfigError, insist

MOST_BYTES = 2_000_000_000
"""Most bytes of a file that is read line by line: several times those of the largest graph that a run computes."""
MOST_LINES = 50_000_000
"""Most lines of such a file, also empty ones."""
LONGEST_LINE_BYTES = 64_000_000
"""Most bytes of a line, and of a file that is read as a whole: an op that reads a million tensors has about half."""
_BLOCK_BYTES = 1 << 18
# The start of a file that may run code when it is opened; a message of protocol buffers goes on otherwise.
_PROGRAM = re.compile(rb"PK\x03\x04|\x80[\x02-\x05][^\n\x12]")


def shown(path: Path) -> str:
    """Write a path for people: relative to the working directory if it lies below that."""
    try:
        return path.absolute().relative_to(Path.cwd()).as_posix()
    except (ValueError, FileNotFoundError):  # also where that directory is gone
        return str(path)


def no_file(path: Path) -> str:
    """Say what a path leads to that is no file."""
    try:
        return "a folder" if path.is_dir() else "no such file" if not path.exists() else "a device or a pipe"
    except OSError as error:
        return error.strerror or str(error)


@contextmanager
def opened(path: Path, *, is_raw: bool = False) -> Iterator[BinaryIO]:
    """Open a file, and unpack it if gzip compressed it; what fails until it is closed is one kind of error.

    Parameters
    ----------
    path
        The file.
    is_raw
        Whether a packed file is read as it is.

    Raises
    ------
    ConfigError
        If it is no file, cannot be read, or breaks off.
    """
    try:
        do = "correct the path; hosim downloads nothing"
        insist(isfile(path), shown(path), "an input is a file", no_file(path), do)
        with path.open("rb") as file:
            is_packed = not is_raw and file.read(2) == b"\x1f\x8b"
        with cast(BinaryIO, gzip.open(path)) if is_packed else path.open("rb") as file:
            yield file
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        must = "a file that gzip compressed is whole"
        raise ConfigError(shown(path), must, str(error), "write the file again") from None
    except OSError as error:
        found = error.strerror or str(error)
        raise ConfigError(shown(path), "an input can be read", found, "correct the path or its permissions") from None


def whole(path: Path, most: int | None = None) -> bytes:
    """Read a file that is not made of lines.

    Parameters
    ----------
    path
        The file.
    most
        Most bytes that it may have; default: as many as a line.

    Raises
    ------
    ConfigError
        See `opened`; or if there are more.
    """
    most = most or LONGEST_LINE_BYTES
    with opened(path) as file:
        data = file.read(most + 1)
    _check_size(len(data), most, "bytes", shown(path))
    return data


def digest(path: Path) -> str:
    """Return the SHA-256 of a file as it is, packed or not; errors as of `opened`."""
    with opened(path, is_raw=True) as file:
        return hashlib.file_digest(cast(BufferedReader, file), "sha256").hexdigest()


def blocks(path: Path) -> Iterator[list[bytes]]:
    """Read the lines of a file, each with its end, many at a time; a file may be larger than the memory.

    Parameters
    ----------
    path
        The file.

    Raises
    ------
    ConfigError
        See `opened`; or if there are too many bytes or lines, or too many bytes in a line.
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
    """Refuse a file that runs code when it is opened, by its first bytes.

    Raises
    ------
    ConfigError
        If it is a pickle, or an archive that may hold one.
    """
    if _PROGRAM.match(start):
        must, do = "an input is data, not a program", "export it as JSON; of a model see `hosim import torch --help`"
        raise ConfigError(shown(path), must, "a pickle, or an archive that may hold one; hosim opens neither", do)


def unmarked(text: bytes, path: Path) -> bytes:
    """Return the start of a text without its byte order mark.

    Raises
    ------
    ConfigError
        If the mark is that of UTF-16, or it is no text but a program (see `data_only`).
    """
    data_only(text, path)
    if text.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise ConfigError(f"{shown(path)}:1", "a file is text in UTF-8", "UTF-16", "save it as UTF-8")
    return text.removeprefix(codecs.BOM_UTF8)


def _check_size(size: int, most: int, units: str, where: str, has: str = "has") -> None:
    must, do = f"an input {has} at most {most:,} {units}, unpacked", "check that it is the right file"
    insist(size <= most, where, must, f"more than {most:,} {units}", do)
