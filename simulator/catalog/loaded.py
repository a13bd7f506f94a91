"""A scenario with all that it names, and what its documents must hold beside one another."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from simulator.catalog.settings import Change, apply, multiplied
from simulator.catalog.shelf import Entry, dump
from simulator.catalog.text import scalar
from simulator.document import Document, Fit
from simulator.errors import ConfigError
from simulator.hardware import Hardware
from simulator.scenario import DrawsOrigin, PolicyChoice, Scenario
from simulator.units import human, nearest
from simulator.workload import Workload


def place(scenario: Scenario, entry: Entry[Scenario] | None, *keys: str) -> str:
    """Say where a field of a scenario stands; its name and the path if it was read from no file."""
    return entry.place(*keys) if entry else f"scenario {scenario.name!r}, {'.'.join(keys)}"


def check_tiers(loaded: Loaded) -> None:
    """Refuse homes, and tiers for KV blocks, that the machine does not have."""
    scenario, tiers = loaded.scenario, tuple(loaded.hardware.tiers)
    named = [("homes", pattern, tier, (*tiers, "free")) for pattern, tier in scenario.homes.items()]
    for table, key, tier, known in [*named, *(("kv_tiers", tier, tier, tiers) for tier in scenario.kv_tiers)]:
        if tier not in known:
            must = "a home is a tier, or free" if table == "homes" else "a tier of the machine keeps KV blocks"
            raise ConfigError(loaded.place(table, key), must, repr(tier), nearest(tier, known))


def check_budget(scenario: Scenario, hardware: Hardware, where: str) -> None:
    """Refuse a budget above what the compute tier has; `where` is what an error points at."""
    usable = hardware.tiers[hardware.compute_tier].usable_bytes
    if scenario.budget_bytes is not None and scenario.budget_bytes > usable:
        must = f"a budget is at most what {hardware.compute_tier} has ({human(usable, 'B')})"
        do = f"lower it, or set tiers.{hardware.compute_tier}.capacity"
        raise ConfigError(where, must, human(scenario.budget_bytes, "B"), do)


def check_figures(loaded: Loaded) -> None:
    """Refuse to predict what something was fitted to, and to hold a fit that nobody made."""
    documents: tuple[Document, ...] = (loaded.hardware, loaded.workload, loaded.scenario)
    fits = {fit.figure: (path, document) for document in documents for path, fit in document.fitted.items()}
    for number, one in enumerate(loaded.scenario.expect):
        where = loaded.place("expect", str(number), "figure")
        if one.kind == "predicted" and one.figure in fits:
            path, document = fits[one.figure]
            must = "no scenario predicts a printed figure that something in it was fitted to"
            found = f"{one.figure!r}, which {path} of {document.name} was fitted to"
            raise ConfigError(where, must, found, "set kind: fitted, or name another figure")
        if one.kind == "fitted" and one.figure not in fits:
            must = "a fitted figure is named in the table fitted of the scenario, its machine or its workload"
            do = nearest(one.figure or "", tuple(fits)) if fits else "add what was fitted to it, or drop kind"
            raise ConfigError(where, must, repr(one.figure), do)


OUTSIDE = "changed for this run"


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
    scale, unscaled
        What figures of the machine are multiplied by, after all other changes; and the machine before, if it is
        another one.
    entries
        The documents that were read from files.
    """

    scenario: Scenario
    hardware: Hardware
    workload: Workload
    scenario_dir: Path
    workload_dir: Path
    paths: dict[str, Path] = field(default_factory=dict)
    sha256: dict[str, str] = field(default_factory=dict)
    scale: Mapping[str, float] = field(default_factory=dict)
    unscaled: Hardware | None = field(default=None, repr=False)
    entries: dict[str, Entry[Any]] = field(default_factory=dict, repr=False)

    def place(self, *keys: str) -> str:
        """Where a field of the scenario stands: file, line and path; its name and the path if it was read from no file.

        Parameters
        ----------
        keys
            What leads to the field.
        """
        return place(self.scenario, self.entries.get("scenario"), *keys)

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
            key: own_change(self.scenario, key, value, self.place("policies", row, "set", key))
            for key, value in choice.set_.items()
        }
        unscaled = apply(self.unscaled or self.hardware, own)
        machine = apply(unscaled, outside(multiplied(unscaled, self.scale)))
        scenario = self.scenario.model_copy(update={"set_": {**self.scenario.set_, **choice.set_}})
        found = replace(self, scenario=scenario, hardware=machine, unscaled=unscaled)
        check_budget(scenario, machine, self.place("budget"))
        return found

    def asking_nothing(self) -> Loaded:
        """The same, of which nothing is expected and no largest value is searched."""
        return replace(self, scenario=self.scenario.model_copy(update={"largest": None, "expect": ()}))

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


def outside(changes: Mapping[str, Any]) -> dict[str, Change]:
    """Changes that are asked for from outside, which need no origin: dotted path -> value, as text or typed."""
    return {
        key: Change(scalar(value) if isinstance(value, str) else value, f"set, {key}", "assumed", OUTSIDE)
        for key, value in changes.items()
    }


def recorded(scenario: Scenario, changes: Mapping[str, Change]) -> Scenario:
    """The scenario with changes of the machine among its ``set`` keys; what was cited or fitted there no longer is."""
    if not changes:
        return scenario
    tables = {
        "set_": {**scenario.set_, **{key: change.value for key, change in changes.items()}},
        "sources": {key: cited for key, cited in scenario.sources.items() if key not in changes},
        "fitted": {key: why for key, why in scenario.fitted.items() if key not in changes},
        "assumed": {**scenario.assumed, **dict.fromkeys(changes, OUTSIDE)},
    }
    return scenario.model_copy(update=tables)


def own_change(scenario: Scenario, key: str, value: Any, where: str) -> Change:
    """A change that the scenario, or a row of it, asks for, with the origin that the scenario gives."""
    table, origin = scenario.entry_of(key) or ("assumed", "set by the scenario")
    if isinstance(origin, tuple):
        return Change(value, where, table, [c.model_dump(exclude_unset=True) for c in origin])
    return Change(value, where, table, origin.model_dump() if isinstance(origin, Fit) else origin)
