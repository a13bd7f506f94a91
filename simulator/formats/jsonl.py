"""JSON lines: what the formats of one object per line share.

A file is a header followed by one object per line, in UTF-8, with or without a byte order mark; empty lines are
skipped. Files compressed with gzip are unpacked; a file is written compressed if its name ends in ``.gz``. The header's
``schema`` names the format and its version. Whole numbers range from 0 to 2**62. Unknown and duplicate keys are
refused, so that nothing is lost silently.
"""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import nullcontext
from functools import cache
from itertools import chain, islice
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import orjson
from pydantic import AfterValidator, ConfigDict, Field, TypeAdapter, ValidationError, with_config
from typing_extensions import TypedDict

from simulator import inputs
from simulator.errors import ConfigError, insist
from simulator.faults import faults
from simulator.graph import LARGEST
from simulator.outputs import written
from simulator.units import FieldError

_CHUNK = 500
"""Lines written at once: each takes 1 KiB while it is made, and memory that is used again costs less than fresh memory,
seven times in all for a plan of 9,000 lines at once."""


@with_config(ConfigDict(strict=True, extra="forbid"))
class Record(TypedDict):
    """The object in a line; keys and types are checked strictly."""


Whole = Annotated[int, Field(ge=0, le=LARGEST)]
"""Whole number."""


def _once(names: list[str]) -> list[str]:
    if len(set(names)) < len(names):
        name, times = Counter(names).most_common(1)[0]
        raise FieldError("each name stands here once", f"{name!r} {times} times", "name it once")
    return names


Names = Annotated[list[str], AfterValidator(_once), Field(json_schema_extra={"uniqueItems": True})]
"""Names, each once."""


_adapter: Callable[[type], TypeAdapter[dict[str, Any]]] = cache(TypeAdapter)
"""Type -> what checks its lines: to make it takes longer than to check a short file."""


class Line(NamedTuple):
    """One line of a file.

    Attributes
    ----------
    kind
        Key that identifies its type; ``schema`` for a header.
    """

    path: Path
    number: int
    kind: str
    record: dict[str, Any]

    @property
    def where(self) -> str:
        """File and line, for messages."""
        return f"{self.path}:{self.number}"


def read(path: Path, schema: str, header: type, kinds: Mapping[str, type]) -> Iterator[Line]:
    """Read a file line by line, its header first.

    Parameters
    ----------
    path
        The file.
    schema
        Format and version that the header must name.
    header
        Type of the header.
    kinds
        Key that identifies a line's type -> that type.

    Raises
    ------
    ConfigError
        If the file cannot be read, a line is no JSON object of one of the types, or the header names another schema.
    """
    types = {"schema": header, **kinds}
    expected, must = ["schema"], f'the first line is a header with "schema": "{schema}"'
    for line_number, record in objects(path):
        kind = next(filter(record.__contains__, expected), "")
        if not kind or (kind == "schema" and record["schema"] != schema):
            found = repr(record["schema"]) if "schema" in record else f"the keys {', '.join(record) or 'none'}"
            raise ConfigError(f"{path}:{line_number}", must, found, "correct the line, or choose another file")
        try:
            yield Line(path, line_number, kind, _adapter(types[kind]).validate_python(record))
        except ValidationError as error:
            fault = faults(error, record, tuple(types[kind].__annotations__))[0]
            raise fault.at(f"{path}:{line_number}, {'.'.join(fault.path)}") from None
        if kind == "schema":
            expected, must = [*kinds], f"a line has one of the keys {', '.join(kinds)}"
    must = f"the first line is a header of {schema}"
    insist("schema" not in expected, f"{path}:1", must, "an empty file", "write the header")


def count(header: Line, read_counts: Mapping[str, int]) -> None:
    """Check the counts that a header may state, so that a truncated file is refused.

    Raises
    ------
    ConfigError
        If a count in the header differs from `read_counts`.
    """
    for key, seen in read_counts.items():
        expected, do = header.record.get(key, seen), "write the file again, or correct the header"
        must = f"the file has the {expected} {key} that its header counts"
        insist(seen == expected, header.where, must, str(seen), do)


def objects(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the objects of a file, each with its line number."""
    must = "each line is a JSON object"
    for line_number, text in enumerate(chain.from_iterable(inputs.blocks(path)), 1):
        if text.isspace():
            continue
        try:
            record = orjson.loads(text)
            if type(record) is not dict:
                raise FieldError(must, f"{record!r:.60}", "write an object in braces")
            if text.count(b":") > len(record):  # a key may occur twice: the parser keeps the last
                json.loads(text, object_pairs_hook=distinct)
        except orjson.JSONDecodeError as error:
            found = f"{error.msg} (column {error.colno})" if text.endswith(b"\n") else "a last line that breaks off"
            raise ConfigError(f"{path}:{line_number}", must, found, "correct the line") from None
        except FieldError as error:
            raise error.at(f"{path}:{line_number}") from None
        yield line_number, record


def distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Make an object from its pairs of key and value.

    Raises
    ------
    FieldError
        If a key occurs twice (parsers keep the last).
    """
    keys = Counter(key for key, _ in pairs)
    if len(keys) < len(pairs):
        raise FieldError("each key comes once", f"{keys.most_common(1)[0][0]!r} again", "remove one of them")
    return dict(pairs)


def first(path: Path) -> dict[str, Any]:
    """Return the object in the first line of a file; an empty one if the line is no object.

    A file whose name ends in ``.json`` is one object, on however many lines.

    Raises
    ------
    ConfigError
        If the file cannot be read, or a ``.json`` is not JSON.
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
    """Write a file completely or not at all: under a temporary name first, then renamed.

    Parameters
    ----------
    path
        The file; compressed if its name ends in ``.gz``.
    records
        Its objects, the header first.

    Raises
    ------
    ConfigError
        If the file cannot be written.
    """
    rest = iter(records)
    with written(path) as (part,), part.open("wb") as file:
        packed = gzip.GzipFile("", "wb", 6, file, mtime=0) if path.suffix == ".gz" else nullcontext(file)
        with packed as target:
            while chunk := list(islice(rest, _CHUNK)):
                target.write(b"".join(orjson.dumps(r, option=orjson.OPT_APPEND_NEWLINE) for r in chunk))
