"""What pydantic has to say about a document, as one error in hosim's words.

Each problem gets its file, line and field path, the rule that must hold, what was found and what to do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from pydantic import BaseModel, ValidationError

from simulator.errors import ConfigError, quotable
from simulator.units import FieldError, closest, nearest

Path = tuple[str | int, ...]
_LONGEST = 750
"""Of several faults so many characters are told."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One problem of a document.

    Attributes
    ----------
    path
        Keys and indices that lead to the field.
    must, found, do
        As in :class:`~simulator.errors.HosimError`.
    """

    path: Path
    must: str
    found: str
    do: str


@contextmanager
def told_at(where: str) -> Iterator[None]:
    """Say of what is found to be wrong inside that it is wrong there."""
    try:
        yield
    except (FieldError, ConfigError) as error:
        raise ConfigError(where, error.must, error.found, error.do) from None


def to_error(faults: Iterable[Fault], file: str, place: Callable[[Path], str]) -> ConfigError:
    """Make one error of all faults.

    Parameters
    ----------
    faults
        At least one.
    file
        Name of the document.
    place
        Says where a field stands: file, line and path.
    """
    errors = [ConfigError(place(fault.path), fault.must, fault.found, fault.do) for fault in faults]
    told = {str(error): error for error in errors}
    if len(told) == 1:
        return errors[0]
    lines = [f"\n  {text}" for text in told]
    fit = [line for line, end in zip(lines, accumulate(map(len, lines)), strict=True) if end <= _LONGEST]
    left = len(lines) - max(len(fit), 1)
    more = f"\n  and {left} more" if left else ""
    do = "correct each:" + "".join(fit or [quotable(lines[0], _LONGEST)]) + more
    return ConfigError(file, "a document keeps its rules", f"{len(told)} faults", do)


def of_validation(error: ValidationError, data: Any, model: type[BaseModel]) -> list[Fault]:
    """Translate what pydantic found.

    Parameters
    ----------
    error
        What it raised.
    data
        What it was given.
    model
        The type it was asked for.
    """
    schema = model.model_json_schema()
    items = error.errors()
    misspelt = {_path(item["loc"], data) for item in items if item["type"] == "extra_forbidden"}
    faults: dict[Path, Fault] = {}
    for item in items:
        if (item["type"] == "missing" and _is_misspelt(item, misspelt, data)) or _is_counted_wrong(item):
            continue
        fault = _fault(item, data, schema)
        known = faults.get(fault.path)
        if known and known.must != fault.must:  # the branches of a union
            fault = Fault(fault.path, f"{known.must}, or {fault.must}", known.found, known.do)
        faults[fault.path] = fault
    return list(faults.values())


def of_fields(errors: Iterable[FieldError]) -> list[Fault]:
    """Take over what a document says about itself.

    Parameters
    ----------
    errors
        With paths from the top of the document.
    """
    return [Fault(e.at, e.must, e.found, e.do) for e in errors]


def _fault(item: Mapping[str, Any], data: Any, schema: dict[str, Any]) -> Fault:
    kind, context = item["type"], item.get("ctx", {})
    path = _path(item["loc"], data)
    if kind == "missing":
        return Fault(path, f"the key {item['loc'][-1]!r} is needed here", "none", "add it")
    if kind == "extra_forbidden":
        key, keys = str(path[-1]), _keys(schema, item["loc"][:-1])
        return Fault(path, "only known keys stand here", repr(key), nearest(key, keys))
    said = context.get("error")
    if kind == "union_tag_not_found" and isinstance(item["input"], dict):
        key = context["discriminator"].strip("_()")
        return Fault(path, f"the key {key!r} is needed here", "none", "add it")
    if kind == "union_tag_invalid":
        known = tuple(str(context["expected_tags"]).replace("'", "").split(", "))
        return Fault(
            (*path, str(context["discriminator"]).strip("_()")),
            f"one of {', '.join(known)} is needed",
            repr(context["tag"]),
            nearest(context["tag"], known),
        )
    if isinstance(said, FieldError):
        return Fault((*path, *said.at), said.must, said.found, said.do)
    must, do = _rule(kind, context, item)
    return Fault(path, must, _shown(item["input"]), do)


_RULES: dict[str, tuple[str, str]] = {
    "bool_type": ("true or false is needed", "write true or false"),
    "dict_type": ("a mapping of keys to values is needed", "write 'key: value' lines below it"),
    "finite_number": ("a finite number is needed", "write a number"),
    "float_type": ("a number is needed", "write a number without a unit or quotes"),
    "greater_than": ("a number above {gt} is needed", "correct the number"),
    "greater_than_equal": ("a number of at least {ge} is needed", "correct the number"),
    "int_from_float": ("a whole number is needed", "write a whole number"),
    "int_type": ("a whole number is needed", "write a whole number without a unit or quotes"),
    "less_than": ("a number below {lt} is needed", "correct the number"),
    "less_than_equal": ("a number of at most {le:,} is needed", "lower it"),
    "literal_error": ("{expected} is needed", "write one of them"),
    "model_type": ("a mapping of keys to values is needed", "write 'key: value' lines below it"),
    "string_pattern_mismatch": ("a name of letters, digits, '_' and '-' is needed", "correct the name"),
    "string_too_long": ("a text of at most {max_length} characters is needed", "shorten it"),
    "string_too_short": ("a text is needed", "write it"),
    "string_type": ("a text is needed", "put it in quotes"),
    "too_short": ("at least {min_length} entry is needed", "add one"),
    "tuple_type": ("a list is needed", "write '- entry' lines below it"),
}


def _is_misspelt(item: Mapping[str, Any], extra: set[Path], data: Any) -> bool:
    """Whether a missing key is there under another spelling, which is told already."""
    parent = _path(item["loc"], data)
    others = [str(path[-1]) for path in extra if path[:-1] == parent]
    return closest(str(item["loc"][-1]), others) is not None


def _is_counted_wrong(item: Mapping[str, Any]) -> bool:
    """Whether a list is called too short only because entries in it are wrong, which is told already."""
    return item["type"] == "too_short" and bool(len(item["input"]) >= item["ctx"]["min_length"])


def _rule(kind: str, context: Mapping[str, Any], item: Mapping[str, Any]) -> tuple[str, str]:
    must, do = _RULES.get(kind, (str(item["msg"])[:1].lower() + str(item["msg"])[1:], "correct it"))
    if kind == "literal_error":
        expected = str(context["expected"]).replace("'", "").replace(" or ", ", ").split(", ")
        said = ", ".join(expected)
        is_name = isinstance(item["input"], str) and not expected[0].isdigit()
        return f"one of {said} is needed", nearest(item["input"], tuple(expected)) if is_name else f"use one of {said}"
    if kind == "string_pattern_mismatch" and "." in context["pattern"]:
        return "a name of letters, digits, '_', '.' and '-' is needed", do
    return must.format_map(dict(context)), do


def _path(loc: Sequence[str | int], data: Any) -> Path:
    """The part of pydantic's location that the document has: no tags of unions, no ``[key]``."""
    path: list[str | int] = []
    for part in loc:
        known = range(len(data)) if isinstance(data, list) else data if isinstance(data, dict) else ()
        if part in known:
            data = data[part]
            path.append(part)
    return tuple(path)


def _keys(schema: dict[str, Any], loc: Sequence[str | int]) -> tuple[str, ...]:
    """The keys that may stand at pydantic's location, whose tags choose the branches of unions."""
    node = _resolve(schema, schema)
    for part in loc:
        branches = [_resolve(branch, schema) for branch in node.get("oneOf", ())]
        tagged = (b for b in branches if any(field.get("const") == part for field in b["properties"].values()))
        others = [*node.get("patternProperties", {}).values(), node.get("additionalProperties"), node.get("items")]
        inner = (n for n in (node.get("properties", {}).get(part), *tagged, *others) if isinstance(n, dict))
        node = _resolve(next(inner, {}), schema)
    return tuple(node.get("properties", {}))


def _resolve(node: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    """Follow references, and of alternatives take the one with keys or with branches."""
    if "$ref" in node:
        return _resolve(schema["$defs"][node["$ref"].rpartition("/")[2]], schema)
    for branch in node.get("anyOf", ()):
        found = _resolve(branch, schema)
        if "properties" in found or "oneOf" in found:
            return found
    return node


def _shown(value: object) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, dict | list):
        return f"{'a' if value else 'an empty'} {'mapping' if isinstance(value, dict) else 'list'}"
    text = str(value).lower() if isinstance(value, bool) else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
