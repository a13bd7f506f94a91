"""Changes of fields of documents: ``links.*.bandwidth: 40 GB/s`` of a machine, ``parallel.data: 16`` of a workload."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from fnmatch import fnmatchcase
from typing import Any, TypeVar

from simulator import retired
from simulator.catalog.text import Keys, compose, errors_at, scalar, validated
from simulator.document import ABOUT_ITSELF, Document, Fit, amount
from simulator.errors import insist
from simulator.graph import OP_CLASSES
from simulator.hardware import Hardware
from simulator.scenario import Scenario
from simulator.units import FieldError, exact, nearest, parse, unit_of
from simulator.workload import Workload

Changed = TypeVar("Changed", bound=Document)
_OUTSIDE = "changed for this run"


def setting(text: str, such: str = "links.d2h.bandwidth=40 GB/s") -> tuple[str, Any]:
    """Read a ``KEY=VALUE`` of the command line.

    Parameters
    ----------
    text
        Such as ``links.d2h.bandwidth=40 GB/s``, or ``workload.lora.targets=[attn.*, ffn.down]``.
    such
        An example for who writes none.

    Raises
    ------
    ConfigError
        If there is no key or no value, or it is a broken list.
    """
    key, _, value = text.partition("=")
    do = f"write it as {such!r}"
    key, value = key.strip(), value.strip()
    insist(key and value, "set", "a change is a key, '=' and a value", repr(text), do)
    is_list = value.startswith(("[", "{"))
    return key, compose(f"value: {value}", f"set, {key}").data["value"] if is_list else scalar(value)


def factor(text: str) -> tuple[str, float]:
    """Read a ``KEY=FACTOR`` of the command line.

    Parameters
    ----------
    text
        Such as ``links.*.bandwidth=0.5``.

    Raises
    ------
    ConfigError
        If there is no key, or the factor is not a finite number of at least 0.
    """
    key, value = setting(text)
    is_factor = not isinstance(value, bool | str | None) and 0 <= value < math.inf
    do = "write it as 'links.*.bandwidth=0.5'"
    insist(is_factor, "scale", "figures are multiplied by a number from 0 on", repr(text), do)
    return key, float(value)


@dataclass(frozen=True, slots=True)
class FieldChange:
    """A new value for a field.

    Attributes
    ----------
    value
        The value, as a document would state it.
    where
        The place that asks for it, for errors.
    table, entry
        The origin of the new value: ``sources``, ``assumed`` or ``fitted``, and the entry there.
    """

    value: Any
    where: str
    table: str
    entry: Any

    @classmethod
    def stated(cls, document: Document, path: str, value: Any, where: str, why: str) -> FieldChange:
        """Make a change that a document says at `path`, with the origin that it gives there, or else assumed: `why`."""
        table, entry = document.entry_of(path) or ("assumed", why)
        origin: Any = entry.model_dump() if isinstance(entry, Fit) else entry
        if isinstance(entry, tuple):
            origin = [citation.model_dump(by_alias=True, exclude_unset=True) for citation in entry]
        return cls(value, where, table, origin)


def apply(document: Changed, changes: Mapping[str, FieldChange]) -> Changed:
    """Change fields of a document, and validate it again as a whole.

    Parameters
    ----------
    document
        A machine, a workload or a scenario.
    changes
        Dotted path, whose parts may be patterns (``links.h*.bandwidth``) -> the change; later ones win.

    Raises
    ------
    ConfigError
        If a path names no field, or the document is not valid with the new value.
    """
    if not changes:
        return document
    model, data = type(document), document.model_dump(mode="json", by_alias=True, exclude_unset=True)
    places: list[tuple[Keys, str]] = []
    for key, change in changes.items():
        with errors_at(change.where):
            paths = [path for path, _ in fields(document, key)]
        for path in paths:
            _put(data, path, change)
            places.append((path, change.where))

    def place(*path: str) -> str:
        near = [".".join((where, *path[len(of) :])) for of, where in places if path[: len(of)] == of[: len(path)]]
        return near[-1] if near else f"{model.__name__.lower().removesuffix('document')}, {'.'.join(path)}"

    return validated(model, data, "set", place)


def fields(document: Document, key: str) -> list[tuple[Keys, Any]]:
    """Find fields of a document, and their values as a document would state them.

    Parameters
    ----------
    document
        A machine, a workload or a scenario.
    key
        Dotted path, whose parts may be patterns (``links.h*.bandwidth``).

    Returns
    -------
    list
        Keys and value of each field.

    Raises
    ------
    FieldError
        If the path names no field.
    """
    data = document.model_dump(mode="json", by_alias=True, exclude=_FIXED)
    section, _, name = key.partition(".")
    if name and section in _NAMED and isinstance(data.get(section), dict):
        return [((section, name), data[section].get(name))]
    if section == "ranks" in data and not _PATTERN.intersection(name):  # whose keys need not be there, either
        data[section].setdefault(name.partition(".")[0], None)
    matches: list[tuple[Keys, Any]] = [((), data)]
    for part in key.split("."):
        path, node = matches[0]
        below = [((*above, name), value) for above, parent in matches for name, value in _entries(parent).items()]
        matches = [(field, value) for field, value in below if part == field[-1] or fnmatchcase(field[-1], part)]
        is_left_out = node is None or (part in OP_CLASSES and path[-1] in _BY_CLASS)
        if not matches and _PATTERN.isdisjoint(key) and is_left_out:
            matches = [((*path, part), None)]
        if not matches:
            names, after = tuple(_entries(node)), f"after {'.'.join(path)!r} " if path else ""
            rule = f"a change names a field of the {type(document).__name__.lower().removesuffix('document')}"
            gone = retired.KEYS.get(type(document).__name__, {}).get(part)
            do = gone or after + (nearest(part, names) if names else "there is no field")
            is_of_work = isinstance(document, Hardware) and part in Workload.model_fields.keys() - Document.model_fields
            raise FieldError(rule, repr(key), f"write workload.{key}" if is_of_work else do)
    return matches


def amounts(document: Document) -> dict[str, Any]:
    """Return the quantities and shares that a document states, by field path, except counts, zeros and ``inf``."""
    stated = {}
    for path in document.figures():
        ((_, value),) = fields(document, path)
        unit, held = amount(value)
        if (unit or isinstance(value, float)) and isinstance(held, int | float) and 0 < held < math.inf:
            stated[path] = value
    return stated


def scaled(document: Document, factors: Mapping[str, float]) -> dict[str, Any]:
    """Multiply figures of a machine.

    Parameters
    ----------
    document
        The machine.
    factors
        Dotted path, whose parts may be patterns (``links.h*.bandwidth``) -> the factor.

    Returns
    -------
    dict
        Dotted path of each figure -> its new value, as ``set`` would state it.

    Raises
    ------
    FieldError
        If a path names no number.
    """
    return {
        ".".join(path): _times(value, Decimal(repr(factor)))
        for key, factor in factors.items()
        for path, value in fields(document, key)
    }


def _times(value: Any, factor: Decimal) -> Any:
    """Multiply a number, or a quantity as text, whose result is rounded to a whole number; ``inf`` stays."""
    if value == "inf":
        return value
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(Decimal(repr(value)) * factor)
    if (unit := unit_of(value)) is None:
        raise FieldError("a figure that is multiplied is a number", repr(value), "name a figure below it")
    return exact(int((Decimal(parse(value, unit)) * factor).to_integral_value()), unit)


def unsourced(changes: Mapping[str, Any], where: str = "") -> dict[str, FieldChange]:
    """Make changes from outside, which need no origin, of values by dotted path, as text or typed."""
    texts = {key: scalar(value) if isinstance(value, str) else value for key, value in changes.items()}
    return {key: FieldChange(value, where or f"set, {key}", "assumed", _OUTSIDE) for key, value in texts.items()}


def record(scenario: Scenario, changes: Mapping[str, FieldChange]) -> Scenario:
    """Record changes of the machine in a scenario's ``set``; their figures are no longer cited or fitted."""
    if not changes:
        return scenario
    tables = {
        "set_": {**scenario.set_, **{key: change.value for key, change in changes.items()}},
        "sources": {key: cited for key, cited in scenario.sources.items() if key not in changes},
        "fitted": {key: why for key, why in scenario.fitted.items() if key not in changes},
        "assumed": {**scenario.assumed, **dict.fromkeys(changes, _OUTSIDE)},
    }
    return scenario.model_copy(update=tables)


DOCUMENTS = ("hardware", "software", "workload", "scenario")
"""The kinds of documents that a field path may lead into."""
_OF_SCENARIO = ("homes", "budget", "software")
"""Fields of the scenario that are named without it."""


def split(path: str) -> tuple[str, str]:
    """Split a field path into its document (by default the machine) and the path there."""
    document, _, key = path.partition(".")
    if key and document in DOCUMENTS:
        return document, key
    return "scenario" if document in _OF_SCENARIO else "hardware", path


def by_document(changes: Mapping[str, FieldChange]) -> dict[str, dict[str, FieldChange]]:
    """Sort changes by the document that each path leads into; keys are then paths there."""
    sorted_: dict[str, dict[str, FieldChange]] = {document: {} for document in DOCUMENTS}
    for path, change in changes.items():
        document, key = split(path)
        sorted_[document][key] = change
    return sorted_


def places(changes: Mapping[str, Mapping[str, FieldChange]]) -> dict[tuple[str, str], str]:
    """Return document and path of each change, with the place that asks for it."""
    return {(document, key): change.where for document, paths in changes.items() for key, change in paths.items()}


_PATTERN = frozenset("*?[")
_NAMED = ("homes", "kv_tiers")
"""Sections of a scenario whose keys are names of tensors or tiers, and need not be there before."""
_BY_CLASS = ("achieved_fraction", "class_bandwidth", "each_class", "arithmetic", "class")
"""Fields with a figure for each class of ops, all of which need not be there before, either."""
_FIXED = {*ABOUT_ITSELF, "hardware", "workload", "set_", "expect", "claim"}
"""Fields that no change from outside reaches: they name or describe what runs, or judge it as it stands."""


def _entries(node: Any) -> dict[str, Any]:
    if isinstance(node, list):
        return {str(index): entry for index, entry in enumerate(node)}
    return node if isinstance(node, dict) else {}


def _put(data: dict[str, Any], path: Keys, change: FieldChange) -> None:
    """Set a field's value and origin, replacing origins of it and below it; the value None removes the field."""
    node: Any = data
    for part in path[:-1]:
        if isinstance(node, dict):
            node[part] = node.get(part) or {}
        node = node[int(part)] if isinstance(node, list) else node[part]
    key, is_left_out = ".".join(path), change.value is None and isinstance(node, dict)
    if is_left_out or path[0] == "homes":  # of which the last one wins
        node.pop(path[-1], None)
    if not is_left_out:
        node[int(path[-1]) if isinstance(node, list) else path[-1]] = change.value
    for table in ("sources", "assumed", "fitted"):
        entries = data.get(table, {}).items()
        data[table] = {path: entry for path, entry in entries if not f"{path}.".startswith(f"{key}.")}
    if not is_left_out:
        data[change.table][key] = change.entry
