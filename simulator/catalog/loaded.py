"""A scenario with all that it names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from glob import escape, glob
from pathlib import Path
from typing import Any, cast

from simulator import inputs
from simulator.catalog.checks import check_budget, check_figures, check_tiers, place
from simulator.catalog.settings import Change, apply, multiplied
from simulator.catalog.shelf import Entry, dump, load, path_of
from simulator.catalog.text import scalar
from simulator.catalog.unstated import changed, check_open, open_of
from simulator.document import Fit
from simulator.errors import ConfigError
from simulator.hardware import Hardware
from simulator.scenario import DrawsOrigin, PolicyChoice, Scenario
from simulator.scenario.unstated import WORKLOAD
from simulator.workload import Workload

_OUTSIDE = "changed for this run"


@dataclass(frozen=True, slots=True)
class Loaded:
    """A scenario, its machine and its workload, ready to run.

    Attributes
    ----------
    scenario
        With the changes from outside among its ``set`` keys.
    hardware
        With all ``set`` keys applied.
    workload
        As its document says.
    scenario_dir, workload_dir
        What the paths in them are relative to.
    paths, sha256
        Role (``scenario``, ``hardware``, ``workload``, ``graph``, ``draws``, ``requests``, ``plan <row>``) -> file and
        digest of each input. The path of a row's plan may have a ``*`` for the name of a graph; each file then has a
        role and a digest as well.
    scale
        What figures of the machine are multiplied by, after all other changes.
    """

    scenario: Scenario
    hardware: Hardware
    workload: Workload
    scenario_dir: Path
    workload_dir: Path
    paths: dict[str, Path] = field(default_factory=dict)
    sha256: dict[str, str] = field(default_factory=dict)
    scale: Mapping[str, float] = field(default_factory=dict)
    _unscaled: Hardware | None = field(default=None, repr=False)
    _entries: dict[str, Entry[Any]] = field(default_factory=dict, repr=False)

    def place(self, *keys: str) -> str:
        """Where a field of the scenario stands: file, line and path; its name and the path if it was read from no file.

        Parameters
        ----------
        keys
            What leads to the field.
        """
        return place(self.scenario, self._entries.get("scenario"), *keys)

    def for_row(self, choice: PolicyChoice) -> Loaded:
        """The same on the machine that a row of the scenario sets for itself.

        Parameters
        ----------
        choice
            The row.

        Raises
        ------
        ConfigError
            If a path names no field, or the machine is not valid with a value.
        """
        if not choice.set_:
            return self
        row = str(self.scenario.policies.index(choice))
        own = {
            key: _own_change(self.scenario, key, value, self.place("policies", row, "set", key))
            for key, value in choice.set_.items()
        }
        machine = apply(self._unscaled or self.hardware, own)
        machine = apply(machine, _outside(multiplied(machine, self.scale)))
        scenario = self.scenario.model_copy(update={"set_": {**self.scenario.set_, **choice.set_}})
        found = replace(self, scenario=scenario, hardware=machine)
        check_budget(scenario, machine, self.place("budget"))
        return found

    def documents(self) -> dict[str, str]:
        """File name -> YAML of the three documents as they were run; in one folder they read back equal."""
        policies = tuple(
            choice.model_copy(update={"policy": str(self.paths[f"plan {choice.row}"].absolute())})
            if choice.is_file
            else choice
            for choice in self.scenario.policies
        )
        refs: dict[str, Any] = {"hardware": "hardware.yaml", "workload": "workload.yaml", "policies": policies}
        if "draws" in self.paths:
            refs["draws"] = DrawsOrigin(file=str(self.paths["draws"].absolute()))
        workload = self.workload
        if "graph" in self.paths:
            workload = workload.model_copy(update={"graph": str(self.paths["graph"].absolute())})
        if "requests" in self.paths:
            file = {"file": str(self.paths["requests"].absolute())}
            requests = workload.requests and workload.requests.model_copy(update=file)
            workload = workload.model_copy(update={"requests": requests})
        return {
            "scenario.yaml": dump(self.scenario.model_copy(update=refs)),
            "hardware.yaml": dump(self.hardware),
            "workload.yaml": dump(workload),
        }


def resolve(
    scenario: str | Path | Scenario,
    changes: Mapping[str, Any] | None = None,
    *,
    hardware: Hardware | None = None,
    workload: Workload | None = None,
    scale: Mapping[str, float] | None = None,
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
    scale
        Dotted path -> what the figure there is multiplied by, after all other changes.

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
    nominal, changes, scale = hardware or inputs["hardware"].document, changes or {}, scale or {}
    _, unscaled = _changed(scenario, nominal, changes, entry)
    scenario, machine = _changed(scenario, nominal, {**changes, **multiplied(unscaled, scale)}, entry)
    check_tiers(scenario, machine, entry)
    check_budget(scenario, machine, place(scenario, entry, "budget"))
    subject = workload or inputs["workload"].document
    if not changes and not scale:  # what was changed is no longer fitted, and nothing is expected of it
        check_figures(scenario, (machine, subject, scenario), entry)
    workload_dir = inputs["workload"].path.parent if "workload" in inputs else base
    paths = {role: found.path for role, found in inputs.items()}
    digests = {role: found.sha256 for role, found in inputs.items()}
    loaded = Loaded(scenario, machine, subject, base, workload_dir, paths, digests, scale, unscaled, inputs)
    _add_files(loaded, inputs)
    if not changes and not scale and hardware is None and workload is None:
        check_open(loaded)
    return loaded


def varied(scenario: str | Path, number: int, value: float) -> Loaded:
    """Resolve a scenario with another value of a parameter that its claim leaves open.

    Parameters
    ----------
    scenario
        A name in the catalogue, or a path that ends in ``.yaml``.
    number, value
        Which parameter, in the order of the claim; and its value, as a number of its unit.

    Raises
    ------
    ConfigError
        If the machine or the workload is not valid with the value.
    """
    nominal = resolve(scenario)
    one = open_of(nominal)[number]
    if one.is_factor:  # so that it reaches what rows set for themselves, too
        return resolve(scenario, scale=dict.fromkeys(one.fields, value))
    written = {field: one.written(value) for field in one.fields if not field.startswith(WORKLOAD)}
    return replace(resolve(scenario, written), workload=changed(nominal, number, value)[1])


def points(loaded: Loaded) -> list[Loaded]:
    """Set the workload to each point of the scenario's ``scaling``.

    Parameters
    ----------
    loaded
        The scenario, its machine and its workload.

    Raises
    ------
    ConfigError
        If there is no point, a key names no field, or the workload is not valid at a point.
    """
    scaling = loaded.scenario.scaling
    if not scaling:
        must, do = "a scenario that is scaled lists points", "add such as 'scaling: {parallel.data: [8, 16, 32]}'"
        raise ConfigError(loaded.place("scaling"), must, "none", do)
    return [_point(loaded, number) for number in range(len(next(iter(scaling.values()))))]


def _point(loaded: Loaded, number: int) -> Loaded:
    changes = {
        key: Change(values[number], loaded.place("scaling", key, str(number)), "assumed", "a point of the scaling")
        for key, values in loaded.scenario.scaling.items()
    }
    return with_workload(loaded, apply(loaded.workload, changes))


def with_workload(loaded: Loaded, workload: Workload) -> Loaded:
    """Run another workload, of which nothing is expected, and no largest value is searched."""
    silent = loaded.scenario.model_copy(update={"largest": None, "expect": ()})
    return replace(loaded, workload=workload, scenario=silent)


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
    outside = _outside(changes)
    own = {
        key: _own_change(scenario, key, value, place(scenario, entry, "set", key))
        for key, value in scenario.set_.items()
        if key not in outside
    }
    changed = apply(hardware, {**own, **outside})
    if not outside:
        return scenario, changed
    tables = {
        "set_": {key: change.value for key, change in (own | outside).items()},
        "sources": {key: cited for key, cited in scenario.sources.items() if key not in outside},
        "fitted": {key: why for key, why in scenario.fitted.items() if key not in outside},
        "assumed": {**scenario.assumed, **dict.fromkeys(outside, _OUTSIDE)},
    }
    return scenario.model_copy(update=tables), changed


def _outside(changes: Mapping[str, Any]) -> dict[str, Change]:
    return {
        key: Change(scalar(value) if isinstance(value, str) else value, f"set, {key}", "assumed", _OUTSIDE)
        for key, value in changes.items()
    }


def _own_change(scenario: Scenario, key: str, value: Any, where: str) -> Change:
    table, origin = scenario.entry_of(key) or ("assumed", "set by the scenario")
    if isinstance(origin, tuple):
        return Change(value, where, table, [c.model_dump(exclude_unset=True) for c in origin])
    return Change(value, where, table, origin.model_dump() if isinstance(origin, Fit) else origin)


def _add_files(loaded: Loaded, inputs: Mapping[str, Entry[Any]]) -> None:
    """Note the plans and the graph that the documents name."""
    for index, choice in enumerate(loaded.scenario.policies):
        if choice.is_file:
            path, keys = loaded.scenario_dir / choice.policy, ("policies", str(index))
            for one in _matching(path):
                more = f" {one.relative_to(_above(path))}" if one != path else ""
                _add_file(loaded, f"plan {choice.row}{more}", one, inputs.get("scenario"), keys)
            loaded.paths[f"plan {choice.row}"] = path
    if loaded.scenario.draws.file is not None:
        path = loaded.scenario_dir / loaded.scenario.draws.file
        _add_file(loaded, "draws", path, inputs.get("scenario"), ("draws", "file"))
    if loaded.workload.graph is not None:
        path = loaded.workload_dir / loaded.workload.graph
        _add_file(loaded, "graph", path, inputs.get("workload"), ("graph",))
    if loaded.workload.requests is not None and loaded.workload.requests.file is not None:
        path = loaded.workload_dir / loaded.workload.requests.file
        _add_file(loaded, "requests", path, inputs.get("workload"), ("requests", "file"))


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
