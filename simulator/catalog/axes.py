"""What varies in a sweep: fields of the machine, the workload or the scenario, and the documents at a point."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from simulator.catalog.checks import check_budget
from simulator.catalog.loaded import Loaded, outside, recorded
from simulator.catalog.settings import Change, apply, multiplied
from simulator.errors import ConfigError
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
    try:
        figures = outside(multiplied(machine, dict.fromkeys(axis.fields, value)))
    except ConfigError as error:
        raise ConfigError(axis.place(value), error.must, error.found, error.do) from None
    return {path: replace(change, where=axis.place(value)) for path, change in figures.items()}
