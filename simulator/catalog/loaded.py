"""A scenario with its machine and its workload, and the same at a point of a sweep.

A sweep varies fields of the machine, the workload or the scenario along axes. A parameter that a claim leaves open is
such an axis, too, and so is the field that a question searches.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, cast

from simulator.catalog.driven import drive, refuse_classes
from simulator.catalog.settings import FieldChange, apply, by_document, fields, places, record, scaled, split, unsourced
from simulator.catalog.shelf import Entry, dump, load, path_of
from simulator.catalog.text import Keys, errors_at
from simulator.errors import ConfigError, insist
from simulator.graph import OP_CLASSES
from simulator.hardware import Hardware
from simulator.scenario import DrawsOrigin, PolicyChoice, Question, Scenario
from simulator.software import Software
from simulator.units import exact, human, in_yaml, nearest
from simulator.workload import Workload
from simulator.workload.job import JobDocument


@dataclass(frozen=True, slots=True)
class Loaded:
    """A scenario, its machine and its workload, ready to run.

    Attributes
    ----------
    scenario
        The scenario, with changes from outside among its ``set`` keys.
    hardware
        The machine that runs: with all ``set`` keys applied, and as the software drives it.
    workload
        The workload, with changes applied.
    scenario_dir, workload_dir
        Folders to which the paths in these documents are relative.
    paths, sha256
        Role (``scenario``, ``hardware``, ``software``, ``workload``, ``graph``, ``draws``, ``requests``, ``plan
        <row>``) -> file and digest of each input. The path of a row's plan may have a ``*`` for the name of a graph;
        each file that matches then has a role and a digest, too.
    scale, unscaled
        Field path -> factor of figures of the machine, applied after all other changes; and the machine before that,
        None if there are no factors.
    software, undriven
        What drives the machine, and the machine before that; None if the scenario names no software.
    entries
        The documents that were read from files.
    asked
        Document and dotted path of each field that was changed from outside -> the place that asks for it.
    is_job_given
        Whether the caller gives the job, so that only the workload's name counts.
    """

    scenario: Scenario
    hardware: Hardware
    workload: Workload | JobDocument
    scenario_dir: Path
    workload_dir: Path
    paths: dict[str, Path] = field(default_factory=dict)
    sha256: dict[str, str] = field(default_factory=dict)
    scale: Mapping[str, float] = field(default_factory=dict)
    unscaled: Hardware | None = field(default=None, repr=False)
    software: Software | None = None
    undriven: Hardware | None = field(default=None, repr=False)
    entries: dict[str, Entry] = field(default_factory=dict, repr=False)
    asked: Mapping[tuple[str, str], str] = field(default_factory=dict, repr=False)
    is_job_given: bool = False

    @property
    def stated(self) -> Hardware:
        """The machine as the documents state it, before the software drives it."""
        return self.undriven or self.hardware

    @property
    def work(self) -> Workload:
        """The workload of what is of one program.

        Raises
        ------
        ConfigError
            If it is a job of several.
        """
        must, do = "this is of one program", "name a workload of one"
        insist(isinstance(self.workload, Workload), self.place("workload"), must, "a job of several", do)
        return cast(Workload, self.workload)

    @property
    def copies_pinned(self) -> bool | None:
        """Whether the software copies into the compute tier from pinned memory; None if no software is named."""
        copies = self.software.copies if self.software else None
        return None if copies is None else (copies.into or copies.default).mode == "pinned"

    @property
    def handled(self) -> dict[str, int | None]:
        """Tokens and samples that all ranks handle in a step; None where unknown."""
        workload = None if self.is_job_given else self.workload
        return {key: getattr(workload, key, None) for key in ("tokens", "samples")}

    def fields(self, path: str) -> list[tuple[Keys, Any]]:
        """Find the fields of a path, and their values as documents would state them.

        Parameters
        ----------
        path
            A path into the machine (``links.*.bandwidth``), the workload (``workload.batch``) or the scenario; each
            part may be a pattern.

        Returns
        -------
        list
            Document and keys of each, and its value.
        """
        document, key = split(path)
        stated = self.stated if document == "hardware" else getattr(self, document)
        return [((document, *keys), value) for keys, value in fields(stated, key)]

    def place(self, *keys: str, of: str = "scenario") -> str:
        """Return the place of a field: who asks for it; or file, line and path; or document, name and path.

        Parameters
        ----------
        keys
            Keys that lead to the field.
        of
            The document: ``scenario``, ``hardware``, ``software`` or ``workload``.
        """
        if where := self.asked.get((of, ".".join(keys))):
            return where
        entry = self.entries.get(of)
        return entry.tree.place(*keys) if entry else f"{of} {getattr(self, of).name!r}, {'.'.join(keys)}"

    def for_row(self, choice: PolicyChoice) -> Loaded:
        """Return the same on the machine that a row of the scenario sets for itself.

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
        changes = {key: sourced(self, key, value, "policies", row, "set", key) for key, value in choice.set_.items()}
        unscaled = apply(self.unscaled or self.stated, changes)
        machine = apply(unscaled, unsourced(scaled(unscaled, self.scale)))
        scenario = self.scenario.model_copy(update={"set_": {**self.scenario.set_, **choice.set_}})
        changed = driven(replace(self, scenario=scenario, unscaled=unscaled), machine)
        check_budget(changed, self.place("budget"))
        return changed

    def asking(self, paths: Iterable[str]) -> Loaded:
        """Return the same as if these fields had been changed from outside, too."""
        return replace(self, asked={**dict.fromkeys(map(split, paths), "an axis"), **self.asked})

    def without_questions(self) -> Loaded:
        """Return the same without expectations and questions."""
        return replace(self, scenario=self.scenario.model_copy(update={"frontier": None, "expect": ()}))

    def documents(self, named: Mapping[str, str] | None = None, **changes: Any) -> dict[str, str]:
        """Write the documents as they were run, by file name; put in one folder, they read back equal.

        Parameters
        ----------
        named
            Role -> path by which the documents name a file; default: the path from which it was read.
        **changes
            Fields of the scenario with other values.
        """
        named = {role: str(path.absolute()) for role, path in self.paths.items()} | dict(named or {})
        policies = tuple(
            choice.model_copy(update={"policy": named[f"plan {choice.row}"]}) if choice.is_file else choice
            for choice in self.scenario.policies
        )
        refs: dict[str, Any] = {"hardware": "hardware.yaml", "workload": "workload.yaml", "policies": policies}
        refs |= {"software": "software.yaml"} if self.software else {}
        if "draws" in named:
            refs["draws"] = DrawsOrigin(file=named["draws"])
        work: dict[str, Any] = {"graph": named["graph"], "plan": None} if "graph" in named else {}
        if isinstance(self.workload, JobDocument):
            work["programs"] = {
                name: program.model_copy(update={"workload": program.work.model_copy(update={"graph": graph})})
                if program.work and (graph := named.get(f"graph {name}"))
                else program
                for name, program in self.workload.programs.items()
            }
        elif "requests" in named and self.workload.requests:
            work["requests"] = self.workload.requests.model_copy(update={"file": named["requests"]})
        documents = {
            "scenario.yaml": dump(self.scenario.model_copy(update=refs | changes)),
            "hardware.yaml": dump(self.stated),
            "workload.yaml": dump(self.workload.model_copy(update=work)),
        }
        return documents | ({"software.yaml": dump(self.software)} if self.software else {})


def driven(loaded: Loaded, machine: Hardware, changes: Mapping[str, FieldChange] | None = None) -> Loaded:
    """Return the same on a machine that documents state, as the software that the scenario names drives it.

    Parameters
    ----------
    loaded
        The documents.
    machine, changes
        The machine, with all changes; and changes of the software, by path.
    """
    work, shares, traffic = loaded.workload, machine.compute.achieved_fraction, machine.compute.class_bandwidth
    odd = {*shares, *traffic, *machine.host.each_class_ns} - {*OP_CLASSES, "default"}
    if odd and isinstance(work, Workload) and work.graph is None:
        refuse_classes(machine, partial(loaded.place, of="hardware"))
    if (named := loaded.scenario.software) is None:
        rule, where = "only a scenario that names software can change it", loaded.place("software")
        insist(not changes, where, rule, "none", "name it")
        return replace(loaded, hardware=machine, software=None, undriven=None)
    if loaded.software is None:  # a path is relative to the scenario, or to who changed it
        with errors_at(loaded.place("software")):
            base = None if ("scenario", "software") in loaded.asked else loaded.scenario_dir
            path = path_of(named, "software", base)
        entry = load(path, "software")
        paths, entries = {**loaded.paths, "software": path}, {**loaded.entries, "software": entry}
        digests = {**loaded.sha256, "software": entry.sha256}
        loaded = replace(loaded, software=entry.document, paths=paths, sha256=digests, entries=entries)
    software = apply(cast(Software, loaded.software), changes or {})
    hardware = drive(machine, software, loaded.workload, partial(loaded.place, of="software"))
    return replace(loaded, hardware=hardware, software=software, undriven=machine)


class BudgetError(ConfigError):
    """A budget above what the compute tier has; at a point of a sweep this is an outcome, not a failure."""


def check_budget(loaded: Loaded, where: str) -> None:
    """Refuse a budget above what the compute tier has; the error names the place `where`."""
    tier, budget_bytes = loaded.hardware.compute_tier, loaded.scenario.budget_bytes
    usable = loaded.hardware.tiers[tier].usable_bytes
    if budget_bytes is not None and budget_bytes > usable:
        rule = f"a budget is at most the capacity of {tier} ({human(usable, 'B')})"
        raise BudgetError(where, rule, human(budget_bytes, "B"), f"lower it, or set tiers.{tier}.capacity")


def check_tiers(loaded: Loaded) -> None:
    """Refuse homes, and tiers for KV blocks, that the machine does not have."""
    tiers = tuple(loaded.hardware.tiers)
    homes = {("homes", pattern): tier for pattern, tier in loaded.scenario.homes.items()}
    for keys, tier in (homes | {("kv_tiers", tier): tier for tier in loaded.scenario.kv_tiers}).items():
        names = (*tiers, "free") if keys in homes else tiers
        if tier not in names:
            rule = f"{keys[0]} names tiers of the machine"
            raise ConfigError(loaded.place(*keys), rule, repr(tier), nearest(tier, names))


def sourced(loaded: Loaded, key: str, value: Any, *place: str) -> FieldChange:
    """Make a change that the scenario or one of its rows sets, with the origin that the scenario states."""
    return FieldChange.stated(loaded.scenario, key, value, loaded.place(*place), "set by the scenario")


@dataclass(frozen=True, slots=True)
class Axis:
    """An axis of a sweep: fields that have the same value at each point.

    Attributes
    ----------
    fields
        Paths, whose parts may be patterns, into the machine (``links.*.bandwidth``), the workload
        (``workload.sequence``) or the scenario (``scenario.budget``).
    where
        The place that asks for it, for errors.
    unit
        ``x``: values are factors of figures of the machine, those that rows set for themselves included. A unit such as
        ``B/s``: values are whole numbers of it. None: values are as a document states them.
    values
        Name -> value as a document states it, for an axis with named values.
    """

    name: str
    fields: tuple[str, ...]
    where: str
    unit: str | None = None
    values: Mapping[str, Any] = field(default_factory=dict, compare=False)

    @classmethod
    def listing(cls, name: str, fields: tuple[str, ...], where: str, listed: Sequence[Any]) -> tuple[Axis, list[Any]]:
        """Make an axis of values as a document states them; if one is a list or a mapping, all are named as written.

        Returns
        -------
        tuple
            The axis, and its values, or their names, in the given order.
        """
        if not any(isinstance(value, list | tuple | Mapping) for value in listed):
            return cls(name, fields, where), list(listed)
        names = [in_yaml(value) for value in listed]
        return cls(name, fields, where, values=dict(zip(names, listed, strict=True))), names

    @property
    def is_factor(self) -> bool:
        """Whether figures are multiplied rather than replaced."""
        return self.unit == "x"

    @property
    def is_of_work(self) -> bool:
        """Whether it changes the workload."""
        return any(document == "workload" for document, _ in map(split, self.fields))

    def written(self, value: Any) -> Any:
        """Write a value as a document states it."""
        if self.values:
            return self.values[value]
        return value if self.unit in (None, "x") else exact(int(value), self.unit)

    def place(self, value: Any) -> str:
        """Return the place that asks for a value, with the value, for errors."""
        shown = f"{value:g}x" if self.is_factor else f"{value:,}" if type(value) is int else value
        return f"{self.where} ({self.name}: {shown if self.unit in (None, 'x') else self.written(value)})"


def at(loaded: Loaded, point: Mapping[Axis, Any]) -> Loaded:
    """Set the documents to a point of a sweep.

    Parameters
    ----------
    loaded
        The scenario, its machine and its workload.
    point
        Axis -> its value.

    Raises
    ------
    ConfigError
        If a path names no field, or a document is not valid with a value.
    """
    paths = dict[str, FieldChange]()
    for axis, value in point.items():
        labels = {"batch", "sequence"}.intersection(key for _, key in map(split, axis.fields))
        found = f"{min(labels, default='')}, which only describes a graph from a file"
        do = "make a graph for each, or vary a field of the machine"
        insist(not (labels and loaded.workload.graph), axis.where, "a field that varies changes the run", found, do)
        change = FieldChange(axis.written(value), axis.place(value), "assumed", f"a value of {axis.name}")
        paths |= dict.fromkeys(() if axis.is_factor else axis.fields, change)
    changes = by_document(paths)
    unscaled = apply(loaded.unscaled or loaded.stated, changes["hardware"])
    scale, figures = dict(loaded.scale), unsourced(scaled(unscaled, loaded.scale))
    for axis, value in point.items():
        if axis.is_factor:
            factors = dict.fromkeys(axis.fields, value)
            scale |= factors
            with errors_at(axis.place(value)):
                figures |= unsourced(scaled(unscaled, factors), axis.place(value))
    scenario = record(apply(loaded.scenario, changes["scenario"]), {**changes["hardware"], **figures})
    hardware, workload = apply(unscaled, figures), apply(loaded.workload, changes["workload"])
    varied = replace(loaded, scenario=scenario, workload=workload, scale=scale, unscaled=unscaled)
    varied = replace(varied, asked={**loaded.asked, **places(changes)})
    is_same = scenario.software == loaded.scenario.software
    varied = driven(varied if is_same else replace(varied, software=None), hardware, changes["software"])
    check_tiers(varied)
    room = ("budget", "scenario.budget", f"tiers.{hardware.compute_tier}.capacity")
    asking = {axis.place(value): _overlap(room, axis.fields) for axis, value in point.items()}
    check_budget(varied, max(asking, key=asking.__getitem__, default=""))
    return varied


def unfixed(loaded: Loaded, question: Question) -> Loaded:
    """Return the documents without what would fix the field that is searched: what rows set of it, and a budget.

    Parameters
    ----------
    loaded, question
        The documents, and the question that searches the field.
    """
    paths, scenario = question.paths, loaded.scenario
    rows = [
        row.model_copy(update={"set_": {key: row.set_[key] for key in row.set_ if not _overlap(paths, [key])}})
        for row in scenario.policies
    ]
    tier = loaded.hardware.compute_tier
    is_of_room = question.unit != "x" and _overlap(paths, [f"tiers.{tier}.capacity"])
    must, do = f"the room in {tier} is searched where all devices have the same", "sweep ranks.*.capacity, or drop it"
    can_be = loaded.hardware.has_like_memories or not is_of_room
    insist(can_be, "--of", must, "ranks with a capacity of their own", do)
    changes = {"policies": tuple(rows), "budget_bytes": None if is_of_room else scenario.budget_bytes}
    return replace(loaded, scenario=scenario.model_copy(update=changes))


def _overlap(paths: Sequence[str], others: Sequence[str]) -> bool:
    """Tell whether a path, whose parts may be patterns, names what one of the others does."""
    return any(fnmatchcase(path, other) or fnmatchcase(other, path) for path, other in product(paths, others))
