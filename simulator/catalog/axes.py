"""What varies in a sweep: fields of the machine, the workload or the scenario, and the documents at a point.

What a claim leaves open is such an axis, and so is the field whose largest value is searched.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from pydantic import ValidationError

from simulator.catalog.faults import Path, of_validation, to_error, told_at
from simulator.catalog.loaded import Loaded, check_budget, outside, recorded
from simulator.catalog.settings import Change, apply, matches, multiplied, stated
from simulator.errors import ConfigError
from simulator.scenario import Largest, Unstated
from simulator.scenario.claim import WORKLOAD
from simulator.units import exact

_DOCUMENTS = ("hardware", "workload", "scenario")


@dataclass(frozen=True, slots=True)
class Axis:
    """Fields that have one value at each point of a sweep.

    Attributes
    ----------
    name
        What it is called, for people and as a column.
    fields
        Paths, of which each part may be a pattern: of the machine (``links.*.bandwidth``), of the workload
        (``workload.sequence``) or of the scenario (``scenario.budget``).
    where
        Where it is asked for.
    unit
        Unit of values that are whole numbers of it, such as ``B/s``; ``x``: figures of the machine are multiplied by
        the values, also those that rows set for themselves; None: values are as a document states them.
    """

    name: str
    fields: tuple[str, ...]
    where: str
    unit: str | None = None

    @property
    def is_factor(self) -> bool:
        """Whether figures are multiplied, and not replaced."""
        return self.unit == "x"

    @property
    def keys(self) -> dict[str, list[str]]:
        """Document -> the paths in it."""
        keys: dict[str, list[str]] = {document: [] for document in _DOCUMENTS}
        for field in self.fields:
            document, _, key = field.partition(".")
            keys[document if document in keys else "hardware"].append(key if document in keys else field)
        return keys

    def written(self, value: Any) -> Any:
        """Write a value as a document states it."""
        return value if self.unit in (None, "x") else exact(int(value), self.unit)

    def place(self, value: Any) -> str:
        """Where a value is asked for."""
        shown = f"{value:g}x" if self.is_factor else f"{value:,}" if type(value) is int else value
        return f"{self.where} ({self.name}: {shown if self.unit in (None, 'x') else self.written(value)})"


def at(loaded: Loaded, point: Mapping[Axis, Any]) -> Loaded:
    """Set the documents to a point of a sweep.

    Parameters
    ----------
    loaded
        The scenario, its machine and its workload.
    point
        The value on each axis.

    Raises
    ------
    ConfigError
        If a path names no field, or a document is not valid with a value.
    """
    changes: dict[str, dict[str, Change]] = {document: {} for document in _DOCUMENTS}
    for axis, value in point.items():
        if not axis.is_factor:
            change = Change(axis.written(value), axis.place(value), "assumed", f"a value of {axis.name}")
            for document, keys in axis.keys.items():
                changes[document] |= dict.fromkeys(keys, change)
    machine = apply(loaded.unscaled or loaded.hardware, changes["hardware"])
    scale, figures = dict(loaded.scale), outside(multiplied(machine, loaded.scale))
    for axis, value in point.items():
        if axis.is_factor:
            scale |= dict.fromkeys(axis.fields, value)
            figures |= _factors(machine, axis, value)
    scenario = recorded(apply(loaded.scenario, changes["scenario"]), {**changes["hardware"], **figures})
    found = replace(
        loaded,
        scenario=scenario,
        hardware=apply(machine, figures),
        workload=apply(loaded.workload, changes["workload"]),
        scale=scale,
        unscaled=machine,
    )
    check_budget(found.scenario, found.hardware, next((axis.place(value) for axis, value in point.items()), ""))
    return found


def _factors(machine: Any, axis: Axis, value: float) -> dict[str, Change]:
    """The figures that an axis names, times a value."""
    with told_at(axis.place(value)):
        figures = outside(multiplied(machine, dict.fromkeys(axis.fields, value)))
    return {path: replace(change, where=axis.place(value)) for path, change in figures.items()}


def taken(loaded: Loaded, number: int) -> float:
    """Read what a scenario takes for a parameter that its claim leaves open, as a number of the parameter's unit.

    Parameters
    ----------
    loaded
        The scenario, its machine and its workload.
    number
        Which parameter, in the order of the claim.

    Raises
    ------
    ConfigError
        If a path names no field, the fields have several values, or one outside of the range; or if a row sets one.
    """
    one = unstated(loaded)[number]
    where = loaded.place("claim", "unstated", str(number))
    found: dict[float, str] = {}
    with told_at(where):
        for field in one.fields:
            in_workload = field.startswith(WORKLOAD)
            document = loaded.workload if in_workload else loaded.hardware
            for path, value in stated(document, field.removeprefix(WORKLOAD)):
                found[1.0 if one.is_factor else one.number(value)] = ".".join(path)
                _check_rows(loaded, where, () if in_workload or one.is_factor else path)
    if len(found) > 1:
        values = " and ".join(f"{one.written(value)} ({path})" for value, path in found.items())
        must, do = "the fields of a parameter have one value", "make parameters of their own of them"
        raise ConfigError(where, must, values, do)
    (value,) = found
    if not one.number(one.low) <= value <= one.number(one.high):
        must = "what the scenario takes lies in the range"
        raise ConfigError(where, must, f"{one.written(value)} outside {one.low} to {one.high}", "widen the range")
    return value


def axis(loaded: Loaded, number: int) -> Axis:
    """Return the axis of a parameter that the claim leaves open, by its place in the claim."""
    one = unstated(loaded)[number]
    return Axis(one.parameter, one.fields, loaded.place("claim", "unstated", str(number)), one.unit)


def check_open(loaded: Loaded) -> None:
    """Refuse a parameter that is left open but cannot be varied, before anything runs.

    Parameters
    ----------
    loaded
        The scenario, its machine and its workload.

    Raises
    ------
    ConfigError
        As of `taken`; or if the machine or the workload is not valid at an end of the range.
    """
    for number, one in enumerate(unstated(loaded)):
        taken(loaded, number)
        for end in (one.values[0], one.values[-1]):
            at(loaded, {axis(loaded, number): end})


def unstated(loaded: Loaded) -> tuple[Unstated, ...]:
    """The parameters that the claim of a scenario leaves open; none if it has no claim."""
    return loaded.scenario.claim.unstated if loaded.scenario.claim else ()


def _check_rows(loaded: Loaded, where: str, path: tuple[str, ...]) -> None:
    """Refuse what a row sets for itself: another value would not reach it."""
    for choice in loaded.scenario.policies:
        for key in choice.set_:
            parts = key.split(".")
            if path and all(matches(part, own) for part, own in zip(parts, path, strict=False)):
                must = "what a row sets is stated, and no parameter that is left open"
                do = f"drop it from unstated, or {key!r} from the row; or vary it by a factor, such as 0.5x to 2x"
                raise ConfigError(where, must, f"{'.'.join(path)} set by {choice.row!r}", do)


def question(loaded: Loaded, given: Mapping[str, Any]) -> Largest:
    """What is asked of a scenario: up to which value of a field of its workload rows fit.

    Parameters
    ----------
    loaded
        The scenario, with what it asks already.
    given
        What is asked instead; where that is None, the scenario's word holds.

    Raises
    ------
    ConfigError
        If nothing says what is searched, or how far.
    """
    stated = loaded.scenario.largest.model_dump(exclude_unset=True) if loaded.scenario.largest else {}
    asked = {**stated, **{key: value for key, value in given.items() if value is not None}}
    if not {"field", "at_most"} <= asked.keys():
        must = "a search says which field of the workload it is about, and how far it goes"
        do = "add such as 'largest: {field: sequence, at_most: 131072, multiple_of: 1024}', or --field and --at-most"
        raise ConfigError(loaded.place("largest"), must, " and ".join(sorted(asked)) or "neither", do)

    def place(path: Path) -> str:
        return loaded.place("largest", *map(str, path))

    try:
        return Largest.model_validate(asked)
    except ValidationError as error:
        raise to_error(of_validation(error, asked, Largest), "largest", place) from None
