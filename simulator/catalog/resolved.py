"""Reads a scenario and what it names, and applies what it sets."""

from __future__ import annotations

from collections.abc import Mapping
from glob import escape, glob
from pathlib import Path
from typing import Any, cast

from simulator import inputs
from simulator.catalog.axes import check_open
from simulator.catalog.loaded import (
    Loaded,
    check_budget,
    check_figures,
    check_tiers,
    outside,
    own_change,
    place,
    recorded,
)
from simulator.catalog.settings import apply
from simulator.catalog.shelf import Entry, load, path_of
from simulator.errors import ConfigError
from simulator.hardware import Hardware
from simulator.scenario import Scenario
from simulator.workload import Workload


def resolve(
    scenario: str | Path | Scenario,
    changes: Mapping[str, Any] | None = None,
    *,
    hardware: Hardware | None = None,
    workload: Workload | None = None,
) -> Loaded:
    """Read a scenario and what it names, and apply what it sets.

    Parameters
    ----------
    scenario
        A name in the catalogue, a path that ends in ``.yaml``, or the document itself.
    changes
        Further ``set`` keys, which win: dotted path -> value, as text or typed. They need no origin.
    hardware, workload
        Instead of the ones that the scenario names.

    Raises
    ------
    ConfigError
        If a document, a change, a home or the budget is wrong.
    """
    inputs: dict[str, Entry[Any]] = {}
    if not isinstance(scenario, Scenario):
        inputs["scenario"] = load(scenario, "scenario")
        scenario = cast(Scenario, inputs["scenario"].document)
    entry = inputs.get("scenario")
    base = entry.path.parent if entry else Path()
    for kind, ref, given in (("hardware", scenario.hardware, hardware), ("workload", scenario.workload, workload)):
        if given is None:
            inputs[kind] = _named(kind, ref, base, entry)
    changes = changes or {}
    scenario, machine = _changed(scenario, hardware or inputs["hardware"].document, changes, entry)
    subject = workload or inputs["workload"].document
    workload_dir = inputs["workload"].path.parent if "workload" in inputs else base
    paths = {role: found.path for role, found in inputs.items()}
    digests = {role: found.sha256 for role, found in inputs.items()}
    loaded = Loaded(scenario, machine, subject, base, workload_dir, paths, digests, entries=inputs)
    check_tiers(loaded)
    check_budget(scenario, machine, loaded.place("budget"))
    if not changes:  # what was changed is no longer fitted, and nothing is expected of it
        check_figures(loaded)
    _add_files(loaded, inputs)
    if not changes and hardware is None and workload is None:
        check_open(loaded)
    return loaded


def _named(kind: str, ref: str, base: Path, entry: Entry[Scenario] | None) -> Entry[Any]:
    """Read what the scenario names; if it isn't there, the error points at the line that names it."""
    try:
        path_of(ref, kind, base)
    except ConfigError as error:
        if entry is None:
            raise
        found = error.found if repr(ref) == error.found else f"{error.found}: {ref!r}"
        raise ConfigError(entry.place(kind), error.must, found, error.do) from None
    return load(ref, kind, base)


def _changed(
    scenario: Scenario, hardware: Hardware, changes: Mapping[str, Any], entry: Entry[Scenario] | None
) -> tuple[Scenario, Hardware]:
    """Apply what the scenario sets, then what is set from outside; record the latter in the scenario."""
    if not isinstance(changes, Mapping):
        do = "write {'links.*.bandwidth': '50 GB/s'}"
        raise ConfigError("set", "changes are fields with their values", repr(changes), do)
    asked = outside(changes)
    own = {
        key: own_change(scenario, key, value, place(scenario, entry, "set", key))
        for key, value in scenario.set_.items()
        if key not in asked
    }
    return recorded(scenario, asked), apply(hardware, {**own, **asked})


def _add_files(loaded: Loaded, inputs: Mapping[str, Entry[Any]]) -> None:
    """Note the plans and the graph that the documents name."""
    for index, choice in enumerate(loaded.scenario.policies):
        if choice.is_file:
            path, keys = loaded.scenario_dir / choice.policy, ("policies", str(index))
            for one in _matching(path):
                more = f" {one.relative_to(_above(path))}" if one != path else ""
                _add_file(loaded, f"plan {choice.row}{more}", one, inputs.get("scenario"), keys)
            loaded.paths[f"plan {choice.row}"] = path
    work, of_work = loaded.workload, inputs.get("workload")
    files: tuple[tuple[str | None, Path, Entry[Any] | None, tuple[str, ...]], ...] = (
        (loaded.scenario.draws.file, loaded.scenario_dir, inputs.get("scenario"), ("draws", "file")),
        (work.graph, loaded.workload_dir, of_work, ("graph",)),
        (work.requests.file if work.requests else None, loaded.workload_dir, of_work, ("requests", "file")),
    )
    for file, folder, entry, field in files:
        if file is not None:
            _add_file(loaded, field[0], folder / file, entry, field)


def _matching(path: Path) -> list[Path]:
    """Files of a name in which ``*`` stands for any; the name itself if there is none, so that it is missed."""
    found = glob("*".join(map(escape, str(path).split("*")))) if "*" in str(path) else []
    return [Path(one) for one in sorted(found)] or [path]


def _above(path: Path) -> Path:
    """The folder below which the names of files differ."""
    return next(folder for folder in path.parents if "*" not in str(folder))


def _add_file(loaded: Loaded, role: str, path: Path, entry: Entry[Any] | None, keys: tuple[str, ...]) -> None:
    try:
        digest = inputs.digest(path)
    except ConfigError as error:
        if entry is None:
            raise
        found = f"{error.found}: {error.where!r}"
        raise ConfigError(entry.place(*keys), error.must, found, error.do) from None
    loaded.paths[role], loaded.sha256[role] = path, digest
