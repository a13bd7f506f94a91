"""Finds and reads documents, in a checkout or in an installed wheel; the only room that reads YAML.

A scenario is read with all documents that it names, and these are checked against each other.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from glob import escape
from pathlib import Path
from typing import Any, TypeVar

from simulator import inputs
from simulator.catalog.loaded import Axis, BudgetError, Loaded, at, check_budget, check_tiers, driven, sourced, unfixed
from simulator.catalog.settings import DOCUMENTS, apply, by_document, factor, places, record, setting, unsourced
from simulator.catalog.shelf import (
    KINDS,
    Entry,
    dump,
    load,
    measured_ratios,
    names,
    path_of,
    read_hardware,
    read_scenario,
    read_workload,
    schema,
)
from simulator.catalog.text import MistypedError, errors_at, scalar, validated
from simulator.document import Document
from simulator.errors import insist
from simulator.scenario import Frontier, Layouts, Question, Scenario
from simulator.scenario.question import COMPUTE, FASTEST
from simulator.scenario.study import StudyDocument
from simulator.units import exact, named_in, nearest, parse, require, unit_of
from simulator.workload.job import JobDocument

__all__ = [
    "DOCUMENTS", "KINDS", "Axis", "BudgetError", "Loaded", "MistypedError", "Named", "at", "dump", "factor", "load",
    "measured_ratios", "names", "path_of", "place_asking", "question", "read_hardware",
    "read_scenario", "read_workload", "resolve", "scenario_of", "schema", "setting", "studied", "unfixed",
]  # fmt: skip


Asked = TypeVar("Asked", bound=Question | Layouts)
Named = str | Path | Scenario | Loaded
"""A scenario: a name in the catalogue, a path that ends in ``.yaml``, the document, or the `Loaded` read from it."""


def resolve(scenario: Named, changes: Mapping[str, Any] | None = None) -> Loaded:
    """Read a scenario with its machine and its workload, and apply its ``set`` keys.

    Parameters
    ----------
    scenario
        A name in the catalogue, a path that ends in ``.yaml``, or the document itself. A `Loaded` is returned as it is,
        and has no `changes`.
    changes
        Further ``set`` keys, which win: dotted path -> value, as text or typed. They need no origin. A path changes the
        machine; one that begins with ``software.``, ``workload.`` or ``scenario.`` that document; ``software``,
        ``homes.weight`` and ``budget`` are of the scenario, too.

    Raises
    ------
    ConfigError
        If a document, a change, a home or the budget is wrong.
    """
    if isinstance(scenario, Loaded):
        insist(not changes, "set", "a loaded document does not change", repr(changes), "set it when it is read")
        return scenario
    do = "write {'links.*.bandwidth': '50 GB/s'}"
    insist(isinstance(changes or {}, Mapping), "set", "changes are fields with their values", repr(changes), do)
    entries: dict[str, Entry] = {} if isinstance(scenario, Scenario) else {"scenario": load(scenario, "scenario")}
    story: Scenario = scenario if isinstance(scenario, Scenario) else entries["scenario"].document
    base = entries["scenario"].path.parent if entries else Path()
    asked, stated = by_document(unsourced(changes or {})), entries.get("scenario")
    story = apply(story, asked["scenario"])
    for kind in ("hardware", "workload"):
        with errors_at(stated.tree.place(kind) if stated else f"scenario {story.name!r}, {kind}"):
            path = path_of(getattr(story, kind), kind, base)
        entries[kind] = load(path, kind)
    machine, workload = entries["hardware"].document, apply(entries["workload"].document, asked["workload"])
    inside = {f"workload {program}": entry for program, entry in entries["workload"].inside.items()}
    read = {**entries, **inside}
    paths, digests = ({role: getattr(entry, key) for role, entry in read.items()} for key in ("path", "sha256"))
    folders, of_machine = (base, paths["workload"].parent), asked["hardware"]
    loaded = Loaded(story, machine, workload, *folders, paths, digests, entries=entries, asked=places(asked))
    kept = {key: value for key, value in story.set_.items() if key not in of_machine}
    of_story = {key: sourced(loaded, key, value, "set", key) for key, value in kept.items()}
    loaded = replace(loaded, scenario=record(story, of_machine))
    loaded = driven(loaded, apply(machine, {**of_story, **of_machine}), asked["software"])
    check_tiers(loaded)
    check_budget(loaded, loaded.place("budget"))
    _add_files(loaded)
    if not changes:  # with changes, figures are no longer fitted, and expectations are not checked
        _check_figures(loaded)
    return loaded


def studied(
    asked: str | Path | Scenario | StudyDocument, changes: Mapping[str, Any] | None = None
) -> tuple[StudyDocument | None, Loaded]:
    """Read a study with its scenario, or a scenario alone.

    Parameters
    ----------
    asked
        The name of a study or a scenario in the catalogue, a path that ends in ``.yaml``, or the document itself.
    changes
        As for `resolve`; they win over those of the study.

    Raises
    ------
    ConfigError
        As for `resolve`.
    """
    base = Path()
    if isinstance(asked, str | Path):
        is_path = isinstance(asked, Path) or asked.endswith((".yaml", ".yml"))
        kind = None if is_path else "study" if asked in names("study") else "scenario"
        entry = load(asked, kind)
        base, asked = entry.path.parent, entry.document if isinstance(entry.document, StudyDocument) else entry.path
    if not isinstance(asked, StudyDocument):
        return None, resolve(asked, changes)
    named = path_of(asked.scenario, "scenario", base)
    return asked, resolve(named, {**asked.set_, **(changes or {})})


_ROWS = ("resident", "reactive", "static")
"""Default policies where no scenario is written: nothing moves, a runtime, and a compiler."""


def scenario_of(hardware: str | Path, workload: str | Path, policies: Iterable[str] = ()) -> Scenario:
    """Make a scenario of a workload on a machine, without a document.

    Parameters
    ----------
    hardware, workload
        Names in the catalogue, or paths that end in ``.yaml``, relative to the working directory.
    policies
        Its rows, each with its default options; default: ``resident``, ``reactive`` and ``static``, behind the plan
        that was ``recorded``, if the workload names one.

    Raises
    ------
    ConfigError
        If there is no such document.
    """
    stems = [path_of(ref, kind).stem for ref, kind in ((workload, "workload"), (hardware, "hardware"))]
    name = re.sub(r"[^A-Za-z0-9_.-]", "-", "_on_".join(stems)).lstrip("_.-")
    path = path_of(workload, "workload")
    plan = getattr(load(path, "workload").document, "plan", None)
    named = {"recorded": {"policy": str(path.parent / plan), "label": "recorded"}} if plan else {}
    rows = [named.get(policy, {"policy": policy}) for policy in [*policies] or (*named, *_ROWS)]
    document: dict[str, Any] = {"name": name, "title": " on ".join(stems), "hardware": str(hardware)}
    document |= {"workload": str(workload), "policies": rows}
    return validated(Scenario, document, "scenario", lambda *keys: ".".join(("scenario", *keys)))


def _add_files(loaded: Loaded) -> None:
    """Record the plans, the graph and the tables that the documents name, with their digests."""
    story, work = loaded.scenario, loaded.workload
    for index, choice in enumerate(story.policies):
        if choice.is_file:
            _add_file(loaded, f"plan {choice.row}", choice.policy, "scenario", "policies", str(index))
    _add_file(loaded, "draws", story.draws.file, "scenario", "draws", "file")
    _add_file(loaded, "graph", work.graph, "workload", "graph")
    for name, program in work.programs.items() if isinstance(work, JobDocument) else ():
        graph = program.work.graph if program.work else None
        _add_file(loaded, f"graph {name}", graph, "workload", "programs", name, "workload", "graph")
    if work.requests:
        _add_file(loaded, "requests", work.requests.file, "workload", "requests", "file")


def _add_file(loaded: Loaded, role: str, name: str | None, document: str, *keys: str) -> None:
    """Record a file that a document names, or all files that match its pattern."""
    if name is None:
        return
    path = (loaded.scenario_dir if document == "scenario" else loaded.workload_dir) / name
    above = next(parent for parent in path.parents if "*" not in str(parent))
    pattern = "*".join(map(escape, str(path.relative_to(above)).split("*")))
    for file in sorted(above.glob(pattern)) or [path]:
        label = role if file == path else f"{role} {file.relative_to(above)}"
        with errors_at(loaded.place(*keys, of=document)):
            loaded.sha256[label] = inputs.digest(file)
        loaded.paths[label] = file
    loaded.paths[role] = path


def _check_figures(loaded: Loaded) -> None:
    """Refuse expectations that predict a figure that something was fitted to, and those of a fit that nobody made."""
    documents: tuple[Document, ...] = (loaded.stated, loaded.hardware, *loaded.workload.documents, loaded.scenario)
    fits = {fit.figure: f"{path} of {document.name}" for document in documents for path, fit in document.fitted.items()}
    for index, expectation in enumerate(loaded.scenario.expect):
        where = loaded.place("expect", str(index), "figure")
        kind, figure = expectation.kind, expectation.figure or ""
        rule = "no scenario predicts a printed figure that something in it was fitted to"
        found, do = f"{figure!r}, which {fits.get(figure)} was fitted to", "set kind: fitted, or name another figure"
        insist(kind != "predicted" or figure not in fits, where, rule, found, do)
        rule = "a fitted figure is named in the table fitted of the scenario, its machine or its workload"
        do = nearest(figure, tuple(fits)) if fits else "add the fitted field, or drop kind"
        insist(kind != "fitted" or figure in fits, where, rule, repr(expectation.figure), do)


def question(loaded: Loaded, kind: type[Asked], given: Mapping[str, Any]) -> Asked:
    """Complete a question about a scenario from its document and from options.

    Parameters
    ----------
    loaded
        The scenario, which may ask this question itself.
    kind
        The class of the question.
    given
        Fields that win over those of the scenario's question, unless they are None; if something else is searched,
        none of those counts.

    Raises
    ------
    ConfigError
        If nothing states what is searched, or how far.
    """
    stated, where = getattr(loaded.scenario, kind.key, None), partial(place_asking, loaded, kind.key, given)
    new = {key: scalar(value) if isinstance(value, str) else value for key, value in given.items() if value is not None}
    is_of_it = stated is not None and new.get("of") in (None, getattr(stated, "of", None))
    asked = {**(stated.model_dump(exclude_unset=True) if stated and is_of_it else {}), **new}
    if issubclass(kind, Question):
        must, do = "a question names the field to search", "write for example --of peak.hbm"
        insist(asked.get("of"), where("of"), must, "nothing", do)
        asked["of"] = "scenario.budget" if asked["of"] == "budget" else asked["of"]
        with errors_at(where("of")):
            field = str(asked["of"])
            asked["start"] = _documented_value(loaded, field)
            units = {unit_of(value) for path in Frontier.paths_of(field) for _, value in loaded.fields(path)}
            takes_room = field.rsplit(".", maxsplit=1)[-1] in {"reserved", "lost", "taken"}
            asked["is_burden"] = units == {"ns"} or takes_room
        start, unit = asked["start"], unit_of(asked["start"])
        if not (start if unit is None else parse(start, unit)):  # no factor leads from zero
            asked["start"] = asked.get("at_least") or start
        if asked["of"] == "scenario.budget":  # no budget is larger than what can be used
            asked.setdefault("at_most", exact(loaded.hardware.tiers[loaded.hardware.compute_tier].usable_bytes, "B"))
        if asked["start"] == "1x" and unit_of(asked.get("at_most")) is not None:  # the same for all
            asked["start"] = asked["at_most"]
        asked.setdefault("over", COMPUTE if asked.get("slowdown") else FASTEST)
    return validated(kind, asked, kind.key, where)


def _documented_value(loaded: Loaded, field: str) -> Any:
    """Return a field's value in the documents: ``1x`` if its paths have different values, a start for ``inf``."""
    tiers = loaded.hardware.tiers
    if field.startswith("peak."):
        named_in(field, [f"peak.{name}" for name in tiers], "a peak is that of a tier")
    tier, paths = tiers[loaded.hardware.compute_tier], Frontier.paths_of(field)
    if field == f"peak.{loaded.hardware.compute_tier}" and loaded.scenario.budget_bytes is not None:
        return exact(tier.capacity_for(loaded.scenario.budget_bytes), "B")
    values = [value for path in paths for _, value in loaded.fields(path)]
    if len(set(map(repr, values))) > 1:
        return "1x"
    value = values[0]
    if value is None and paths == ("scenario.budget",):
        value = exact(tier.usable_bytes, "B")
    rule = "the field searched is a quantity or a number"
    is_amount = isinstance(value, int | float) and not isinstance(value, bool)
    require(is_amount or unit_of(value) is not None, rule, repr(value), do="name a field below it, or another one")
    return value if value != "inf" else "1 TB" if paths[-1].endswith("capacity") else "1 TB/s"


def place_asking(loaded: Loaded, question: str, given: Mapping[str, Any], *keys: str) -> str:
    """Return where a part of a question is stated: an option, or a place in the scenario.

    Parameters
    ----------
    loaded, question, given
        The scenario, the key of the question in it, and the fields that win over the scenario's.
    keys
        Keys that lead to the part.
    """
    option = "".join(keys[:1]).replace("_", "-")
    is_given = bool(keys) and given.get(keys[0]) is not None
    is_asked = is_given or getattr(loaded.scenario, question, None) is None
    return f"--{option}" if is_asked and option else loaded.place(question, *keys)
