"""What pydantic finds wrong with data, as faults of fields: rules in words of YAML, and the paths that lead there."""

from __future__ import annotations

import re
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from simulator.units import FieldError, in_yaml, nearest

_KINDS = {"string": "a text", "integer": "a whole number", "number": "a number", "list": "a list", "tuple": "a list"}
_KINDS |= {"boolean": "true or false", "dictionary": "a mapping of keys to values"}
"""Types by their names in pydantic's messages."""


def faults(error: ValidationError, data: object, keys: tuple[str, ...] = ()) -> list[FieldError]:
    """Translate a pydantic error into faults of fields.

    Parameters
    ----------
    error, data
        The error, and the data that was validated.
    keys
        Keys allowed in the data, where no `Part` refuses others.

    Returns
    -------
    list
        One fault for each field, with the path that leads to it.
    """
    by_path: dict[tuple[str, ...], FieldError] = {}
    for item in error.errors(include_url=False):
        if item["type"] == "too_short" and len(item["input"]) >= item["ctx"]["min_length"]:
            continue  # enough entries, but wrong ones, which have faults of their own
        fault = _fault(item, data, keys)
        first = by_path.setdefault(fault.path, fault)
        if first.must != fault.must:  # the branches of a union
            by_path[fault.path] = FieldError(f"{first.must}, or {fault.must}", first.found, first.do, first.path)
    return list(by_path.values())


def _fault(item: ErrorDetails, data: Any, keys: tuple[str, ...]) -> FieldError:
    context, path = item.get("ctx", {}), list[str]()
    for part in item["loc"]:  # without the tags of unions
        if part in (range(len(data)) if isinstance(data, list) else data if isinstance(data, dict) else ()):
            data = data[part]
            path.append(str(part))
    error, key = context.get("error"), str(context.get("discriminator") or ("", *item["loc"])[-1])
    if isinstance(error, FieldError):
        return FieldError(error.must, error.found, error.do, (*path, *error.path))
    key = key.strip("_()'")
    if item["type"] == "missing" or (item["type"] == "union_tag_not_found" and isinstance(item["input"], dict)):
        return FieldError(f"the key {key!r} is needed here", "none", "add it", (*path, key))
    if item["type"] == "extra_forbidden":
        return FieldError("only known keys stand here", repr(key), nearest(key, keys), tuple(path))
    value, rule = item["input"], item["msg"][:1].lower() + item["msg"][1:].partition(" or instance of")[0]
    kind = rule.removeprefix("input should be a valid ").partition(",")[0]
    rule = f"this is {_KINDS[kind]}" if kind in _KINDS else rule
    if item["type"] == "union_tag_invalid":
        value, rule = context["tag"], f"{key} should be one of {context['expected_tags']}"
        path.append(key)
    choices = re.findall("'([^']*)'", str(context.get("expected", context.get("expected_tags", ""))))
    do = nearest(str(value), tuple(choices)) if choices else "correct it"
    return FieldError(rule, in_yaml(value), do, tuple(path))
