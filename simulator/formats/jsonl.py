"""JSON lines: what the line formats have in common.

A file is a header and then one object a line, in UTF-8, with or without a byte order mark; empty lines are skipped; a
name that ends in ``.gz`` is compressed. The header's ``schema`` names the format and its version. Whole numbers are
from 0 to 2**62. Keys that a format does not know, or that come twice, are refused, so that nothing is silently lost.
"""

from __future__ import annotations

import gzip
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

import orjson

from simulator import inputs
from simulator.errors import ConfigError
from simulator.graph import LARGEST
from simulator.units import suggestion

_IN_WORDS: dict[type, str] = {
    int: "a whole number from 0 to 2**62",
    str: "text",
    bool: "true or false",
    list: "a list of texts",
    dict: "an object",
}


@dataclass(frozen=True, slots=True)
class Shape:
    """Which keys an object has.

    Attributes
    ----------
    types
        Key -> type of its value: ``int``, ``str``, ``bool``, ``list`` or ``dict``.
    required
        Keys that must be there.
    words
        Key -> what its value is, where that is not clear from its type.
    """

    types: Mapping[str, type]
    required: tuple[str, ...]
    words: Mapping[str, str] = field(default_factory=dict)


class Line:
    """One line of a file, and the errors that are about it.

    Attributes
    ----------
    path, number
        Where it stands.
    record
        The object in it.
    """

    __slots__ = ("number", "path", "record")

    def __init__(self, path: Path, number: int, record: dict[str, Any]) -> None:
        self.path, self.number, self.record = path, number, record

    def error(self, must: str, found: str, do: str) -> ConfigError:
        """Make the error that says what is wrong with this line."""
        return ConfigError(f"{self.path}:{self.number}", must, found, do)

    def check(self, shape: Shape) -> None:
        """Check that the keys are known and there, and that each value has its type.

        Raises
        ------
        ConfigError
            If a key is unknown or missing, or a value has another type.
        """
        record, types = self.record, shape.types
        for key, value in record.items():
            if type(value) is not types.get(key):
                raise self._misfit(key, value, shape)
        for key in shape.required:
            if key not in record:
                found = f"only {', '.join(record)}" if record else "nothing"
                raise self.error(f"the line has {key!r}", found, f"add {key!r}")

    def check_values(self, shape: Shape) -> None:
        """Check that whole numbers are in range and lists hold texts; the keys are checked already.

        Raises
        ------
        ConfigError
            If a value breaks its rule.
        """
        for key, value in self.record.items():
            if type(value) is int and not 0 <= value <= LARGEST:
                raise self._misfit(key, value, shape)
            if type(value) is list and not all(type(item) is str for item in value):
                raise self._misfit(key, value, shape)

    def kind(self, shapes: Mapping[str, Shape]) -> str:
        """Say which of `shapes` the line has by the key that names it, and check it."""
        for key, shape in shapes.items():
            if key in self.record:
                self.check(shape)
                return key
        must = f"a line has one of the keys {', '.join(shapes)}"
        found = f"only {', '.join(map(repr, self.record))}" if self.record else "no key"
        raise self.error(must, found, "correct or remove the line")

    def _misfit(self, key: str, value: object, shape: Shape) -> ConfigError:
        if key not in shape.types:
            must = f"the keys of this line are {', '.join(shape.types)}"
            return self.error(must, repr(key), f"correct or remove it{suggestion(key, shape.types)}")
        words = shape.words.get(key) or _IN_WORDS[shape.types[key]]
        return self.error(f"{key} is {words}", _brief(value), "correct it")


def _brief(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def read(path: Path, schema: str, header: Shape) -> Iterator[Line]:
    """Read a file line by line; the first line that comes is its checked header.

    Parameters
    ----------
    path
        The file.
    schema
        Format and version that its header must name.
    header
        Shape of the header.

    Raises
    ------
    ConfigError
        If the file cannot be read, a line is no JSON object, or the header is another one.
    """
    lines = _lines(path)
    first = next(lines, None)
    if first is None:
        found = "an empty file"
        raise ConfigError(f"{path}:1", f"the first line is a header of {schema}", found, "write the header")
    if first.record.get("schema") != schema:
        found = repr(first.record["schema"]) if "schema" in first.record else "no schema"
        must = f'the first line is a header with "schema": "{schema}"'
        raise first.error(must, found, "correct the header, or choose another file")
    first.check(header)
    first.check_values(header)
    yield first
    yield from lines


def count(header: Line, read_counts: Mapping[str, int]) -> None:
    """Check the counts that a header may give, so that a file that lost lines does not pass.

    Raises
    ------
    ConfigError
        If a count in the header differs from `read_counts`.
    """
    for key, seen in read_counts.items():
        expected = header.record.get(key, seen)
        if seen != expected:
            must = f"the file has the {expected} {key} that its header counts"
            raise header.error(must, str(seen), "write the file again, or correct the header")


def _lines(path: Path) -> Iterator[Line]:
    number = 0
    for block in inputs.blocks(path):
        before, keys = number, 0
        for text in block:
            number += 1
            if text.isspace():
                continue
            try:
                record = orjson.loads(text)
            except orjson.JSONDecodeError as error:
                raise _bad_json(path, number, text, error) from None
            if type(record) is not dict:
                must, found = "each line is a JSON object", _brief(record)
                raise ConfigError(f"{path}:{number}", must, found, "write an object in braces")
            keys += len(record)
            yield Line(path, number, record)
        if _may_have_more_keys(b"".join(block), keys):
            _check_keys(path, before, block)


_BLANKS = (b" ", b"\t", b"\r")
_STRING = re.compile(rb'("[^"\\]*(?:\\.[^"\\]*)*")\s*(:?)')
"""A string of JSON, and the colon after it if it is a key."""


def _may_have_more_keys(text: bytes, number: int) -> bool:
    """Whether objects may have more keys than those that the parser kept.

    There are at least as many colons as keys, and, where no blank parts them, as quotes with a colon behind.
    """
    if text.count(b":") == number:
        return False
    return text.count(b'":') != number or any(blank in text and b'"' + blank in text for blank in _BLANKS)


def _check_keys(path: Path, before: int, block: Sequence[bytes]) -> None:
    """Refuse a key that comes twice in a line, of which the parser keeps the last."""
    for number, text in enumerate(block, before + 1):
        keys = [orjson.loads(string) for string, colon in _STRING.findall(text) if colon]
        if len(set(keys)) < len(keys):
            twice = next(key for at, key in enumerate(keys) if key in keys[:at])
            raise ConfigError(f"{path}:{number}", "each key comes once", f"{twice!r} again", "remove one of them")


def whole(path: Path) -> bytes:
    """Read a file that is not made of lines, without its byte order mark.

    Raises
    ------
    ConfigError
        If it cannot be read, or is too large.
    """
    return inputs.unmarked(inputs.whole(path), path)


def _bad_json(path: Path, number: int, text: bytes, error: orjson.JSONDecodeError) -> ConfigError:
    if not text.endswith(b"\n"):
        found, do = "a last line that breaks off", "write the file again"
    else:
        found, do = f"{error.msg} (column {error.colno})", "correct the line"
    return ConfigError(f"{path}:{number}", "each line is a JSON object", found, do)


def first(path: Path) -> dict[str, Any]:
    """Read the object in the first line of a file; empty if that is none.

    A file whose name ends in ``.json`` is one object, on however many lines.

    Raises
    ------
    ConfigError
        If the file cannot be read, or a ``.json`` is none.
    """
    text = whole(path) if path.suffix == ".json" else next(inputs.blocks(path), [b""])[0]
    try:
        record = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        if path.suffix != ".json":
            return {}
        found = f"{error.msg} (column {error.colno})"
        raise ConfigError(f"{path}:{error.lineno}", "the file is a JSON object", found, "correct the file") from None
    return record if isinstance(record, dict) else {}


def write(path: Path, records: Iterable[Mapping[str, object]]) -> None:
    """Write a file as a whole or not at all: beside its place first, then renamed.

    Parameters
    ----------
    path
        The file.
    records
        Its objects, the header first.

    Raises
    ------
    ConfigError
        If it cannot be written.
    """
    try:
        with _beside(path) as file:
            rest = iter(records)
            while chunk := list(islice(rest, 10_000)):
                file.write(b"".join(orjson.dumps(r, option=orjson.OPT_APPEND_NEWLINE) for r in chunk))
    except OSError as error:
        found = error.strerror or str(error)
        raise ConfigError(str(path), "the file can be written", found, "choose another place") from None


@contextmanager
def _beside(path: Path) -> Iterator[BinaryIO]:
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with part.open("wb") as file:
            if path.suffix == ".gz":
                with gzip.GzipFile("", "wb", 6, file, mtime=0) as packed:
                    yield packed  # type: ignore[misc]
            else:
                yield file
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
