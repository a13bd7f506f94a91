"""JSON lines: what the line formats have in common.

A file is a header and then one object a line, in UTF-8, with or without a byte order mark; empty lines are skipped.
What gzip compressed is unpacked; a file that is written is compressed if its name ends in ``.gz``. The header's
``schema`` names the format and its version. Whole numbers are from 0 to 2**62. Keys that a format does not know, or
that come twice, are refused, so that nothing is silently lost.
"""

from __future__ import annotations

import gzip
import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, BinaryIO, NamedTuple

import orjson
from pydantic import AfterValidator, ConfigDict, Field, TypeAdapter, ValidationError, with_config
from typing_extensions import TypedDict

from simulator import inputs
from simulator.document import faults
from simulator.errors import ConfigError
from simulator.graph import LARGEST
from simulator.units import FieldError


@with_config(ConfigDict(strict=True, extra="forbid"))
class Record(TypedDict):
    """The object in a line: each value has its type, and each key is known."""


Whole = Annotated[int, Field(ge=0, le=LARGEST)]
"""A whole number."""


def _once(names: list[str]) -> list[str]:
    if len(set(names)) < len(names):
        name, times = Counter(names).most_common(1)[0]
        raise FieldError("each name stands here once", f"{name!r} {times} times", "name it once")
    return names


Names = Annotated[list[str], AfterValidator(_once)]
"""Names, each once."""


class Line(NamedTuple):
    """One line of a file.

    Attributes
    ----------
    path, number
        Where it stands.
    kind
        The key that says what it is; of a header ``schema``.
    record
        The object in it.
    """

    path: Path
    number: int
    kind: str
    record: dict[str, Any]

    def error(self, fault: FieldError) -> ConfigError:
        """Make the error that says what is wrong with this line."""
        return ConfigError(f"{self.path}:{self.number}", fault.must, fault.found, fault.do)


def read(path: Path, schema: str, header: type, kinds: Mapping[str, type]) -> Iterator[Line]:
    """Read a file line by line; the first line that comes is its header.

    Parameters
    ----------
    path
        The file.
    schema
        Format and version that its header must name.
    header
        Type of the header.
    kinds
        Key by which a line is known -> type of the line.

    Raises
    ------
    ConfigError
        If the file cannot be read, a line is no JSON object of one of the types, or the header is another one.
    """
    known_keys = {"schema": header, **kinds}
    types: dict[str, TypeAdapter[dict[str, Any]]] = {"schema": TypeAdapter(header)}
    for number, record in objects(path):
        if "schema" in types:
            kind, must = "schema", f'the first line is a header with "schema": "{schema}"'
            known = record.get("schema") == schema
        else:
            kind, must = next(filter(record.__contains__, types), ""), f"a line has one of the keys {', '.join(types)}"
            known = bool(kind)
        if not known:
            keys = ", ".join(record) or "none"
            found = repr(record["schema"]) if "schema" in record else f"the keys {keys}"
            raise ConfigError(f"{path}:{number}", must, found, "correct the line, or choose another file")
        try:
            yield Line(path, number, kind, types[kind].validate_python(record))
        except ValidationError as error:
            fault = faults(error, record, tuple(known_keys[kind].__annotations__))[0]
            raise ConfigError(f"{path}:{number}, {'.'.join(fault.path)}", fault.must, fault.found, fault.do) from None
        if kind == "schema":
            types = {key: TypeAdapter(type_) for key, type_ in kinds.items()}
    if "schema" in types:
        raise ConfigError(f"{path}:1", f"the first line is a header of {schema}", "an empty file", "write the header")


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
            raise header.error(FieldError(must, str(seen), "write the file again, or correct the header"))


def objects(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """The objects of a file, with the numbers of their lines."""
    number = 0
    for block in inputs.blocks(path):
        for text in block:
            number += 1
            if text.isspace():
                continue
            try:
                record = orjson.loads(text)
                if type(record) is not dict:
                    raise FieldError("each line is a JSON object", f"{record!r:.60}", "write an object in braces")
                if text.count(b":") > len(record):  # a key may have come twice, of which the parser keeps the last
                    json.loads(text, object_pairs_hook=distinct)
            except orjson.JSONDecodeError as error:
                is_ended, do = text.endswith(b"\n"), "correct the line"
                broken = f"{error.msg} (column {error.colno})" if is_ended else "a last line that breaks off"
                raise ConfigError(f"{path}:{number}", "each line is a JSON object", broken, do) from None
            except FieldError as error:
                raise ConfigError(f"{path}:{number}", error.must, error.found, error.do) from None
            yield number, record


def distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The object with these keys and values.

    Raises
    ------
    FieldError
        If a key comes twice, of which parsers keep the last.
    """
    keys = Counter(key for key, _ in pairs)
    if len(keys) < len(pairs):
        raise FieldError("each key comes once", f"{keys.most_common(1)[0][0]!r} again", "remove one of them")
    return dict(pairs)


def first(path: Path) -> dict[str, Any]:
    """Read the object in the first line of a file; empty if that is none.

    A file whose name ends in ``.json`` is one object, on however many lines.

    Raises
    ------
    ConfigError
        If the file cannot be read, or a ``.json`` is none.
    """
    is_whole = path.suffix == ".json"
    text = inputs.unmarked(inputs.whole(path), path) if is_whole else next(inputs.blocks(path), [b""])[0]
    try:
        record = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        if not is_whole:
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
