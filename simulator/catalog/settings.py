"""Changes to a document from outside: ``links.*.bandwidth: 40 GB/s`` to a machine, ``parallel.data: 16`` to a model."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from fnmatch import fnmatchcase
from typing import Any, TypeVar

from pydantic import ValidationError

from simulator.catalog.faults import Path, of_validation, to_error, told_at
from simulator.catalog.text import scalar
from simulator.document import Document
from simulator.errors import ConfigError
from simulator.units import FieldError, exact, nearest, parse, unit_of

Changed = TypeVar("Changed", bound=Document)
_FIXED = ("schema", "name", "title", "sources", "assumed", "fitted")


def setting(text: str) -> tuple[str, Any]:
    """Read one ``KEY=VALUE`` of the command line.

    Parameters
    ----------
    text
        Such as ``links.d2h.bandwidth=40 GB/s``.

    Raises
    ------
    ConfigError
        If there is no key or no value.
    """
    key, _, value = text.partition("=")
    if not key.strip() or not value.strip():
        where, do = "set", "write it as 'links.d2h.bandwidth=40 GB/s'"
        raise ConfigError(where, "a change is a key, '=' and a value", repr(text), do)
    return key.strip(), scalar(value.strip())


def factor(text: str) -> tuple[str, float]:
    """Read one ``KEY=FACTOR`` of the command line.

    Parameters
    ----------
    text
        Such as ``links.*.bandwidth=0.5``.

    Raises
    ------
    ConfigError
        If there is no key, or what a figure is multiplied by is no number from 0 on.
    """
    key, _, value = text.partition("=")
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if not key.strip() or not 0 <= number < math.inf:
        must = "figures are multiplied by a number from 0 on"
        raise ConfigError("scale", must, repr(text), "write it as 'links.*.bandwidth=0.5'")
    return key.strip(), number


@dataclass(frozen=True, slots=True)
class Change:
    """A field that gets another value.

    Attributes
    ----------
    value
        The value, as a document would state it.
    where
        Where it was asked for.
    table, entry
        The origin of the new value: ``sources``, ``assumed`` or ``fitted``, and what stands there.
    """

    value: Any
    where: str
    table: str
    entry: Any


def apply(document: Changed, changes: Mapping[str, Change]) -> Changed:
    """Change a machine or a workload, and read it again as a whole.

    Parameters
    ----------
    document
        The machine, or the workload.
    changes
        Dotted path, of which each part may be a pattern (``links.h*.bandwidth``) -> the change; later ones win.

    Raises
    ------
    ConfigError
        If a path names no field, or the document is not valid with the new value.
    """
    if not changes:
        return document
    complete = _without_fixed(document.model_dump(mode="json", by_alias=True))
    stated = document.model_dump(mode="json", by_alias=True, exclude_unset=True)
    places: dict[Path, str] = {}
    for key, change in changes.items():
        with told_at(change.where):
            paths = _expand(key, complete, _kind(type(document)))
        for path in paths:
            _put(stated, path, change.value)
            _note(stated, ".".join(path), change)
            places[path] = change.where
    return _read(type(document), stated, places)


def stated(document: Document, key: str) -> list[tuple[tuple[str, ...], Any]]:
    """Read fields of a machine or a workload as its document states them.

    Parameters
    ----------
    document
        The machine, or the workload.
    key
        Dotted path, of which each part may be a pattern (``links.h*.bandwidth``).

    Returns
    -------
    list
        Path and value of each.

    Raises
    ------
    FieldError
        If it names no field.
    """
    complete = _without_fixed(document.model_dump(mode="json", by_alias=True))
    return [(path, _at(complete, path)) for path in _expand(key, complete, _kind(type(document)))]


def multiplied(document: Document, factors: Mapping[str, float]) -> dict[str, Any]:
    """Multiply figures of a machine, and write them as `set` does.

    Parameters
    ----------
    document
        The machine.
    factors
        Dotted path, of which each part may be a pattern (``links.h*.bandwidth``) -> what the figure is multiplied by.

    Returns
    -------
    dict
        Path of each figure -> its new value.

    Raises
    ------
    ConfigError
        If a path names no number.
    """
    complete = _without_fixed(document.model_dump(mode="json", by_alias=True))
    found: dict[str, Any] = {}
    for key, factor in factors.items():
        with told_at(f"scale, {key}"):
            for path in _expand(key, complete, _kind(type(document))):
                found[".".join(path)] = _times(_at(complete, path), Decimal(repr(factor)))
    return found


def _times(value: Any, factor: Decimal) -> Any:
    """A number, or a quantity as text, times a factor, of a quantity to the next whole one; ``inf`` stays."""
    if value == "inf":
        return value
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(Decimal(repr(value)) * factor)
    if (unit := unit_of(value)) is None:
        raise FieldError("a figure that is multiplied is a number", repr(value), "name a figure below it")
    return exact(int((Decimal(parse(value, unit)) * factor).to_integral_value()), unit)


def _at(data: Any, path: tuple[str, ...]) -> Any:
    for part in path:
        data = _entries(data)[part]
    return data


def _kind(model: type[Document]) -> str:
    return model.__name__.lower()


def _read(model: type[Changed], data: dict[str, Any], places: Mapping[Path, str]) -> Changed:
    def place(path: Path) -> str:
        asked = [where for known, where in places.items() if path[: len(known)] == known or known[: len(path)] == path]
        return asked[-1] if asked else f"{_kind(model)}, {'.'.join(map(str, path))}"

    try:
        return model.model_validate(data)
    except ValidationError as error:
        raise to_error(of_validation(error, data, model), "set", place) from None


def _without_fixed(data: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in data.items() if key not in _FIXED}


def _expand(key: str, data: Any, kind: str) -> list[tuple[str, ...]]:
    """All paths that `key` names."""
    found: list[tuple[tuple[str, ...], Any]] = [((), data)]
    for part in key.split("."):
        entries = [(path, _entries(node)) for path, node in found]
        found = [((*path, k), v) for path, node in entries for k, v in node.items() if matches(part, k)]
        if not found:
            path, node = entries[0]
            must = f"a change names a field of the {kind}"
            after = f"after {'.'.join(path)!r} " if path else ""
            raise FieldError(must, repr(key), f"{after}{nearest(part, tuple(node))}" if node else _too_deep(path))
    return [path for path, _ in found]


def matches(part: str, key: str) -> bool:
    """Whether a part of a path names a key: as it stands, or as a shell pattern."""
    return part == key or fnmatchcase(key, part)


def _too_deep(path: tuple[str, ...]) -> str:
    return f"stop at {'.'.join(path)!r}, which is a value"


def _entries(node: Any) -> dict[str, Any]:
    if isinstance(node, list):
        return {str(index): entry for index, entry in enumerate(node)}
    return node if isinstance(node, dict) else {}


def _put(data: Any, path: tuple[str, ...], value: Any) -> None:
    for part in path[:-1]:
        data = data[int(part)] if isinstance(data, list) else data.setdefault(part, {})
    if isinstance(data, list):
        data[int(path[-1])] = value
    else:
        data[path[-1]] = value


def _note(data: dict[str, Any], path: str, change: Change) -> None:
    """Give the changed field its new origin, in place of what was said of it and of all below it."""
    for table in ("sources", "assumed", "fitted"):
        entries = data.get(table, {}).items()
        data[table] = {known: entry for known, entry in entries if not f"{known}.".startswith(f"{path}.")}
    data[change.table][path] = change.entry
