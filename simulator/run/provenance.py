"""Sources of every number of a run: documents as they were run, digests, and reasons."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

import simulator
from simulator.catalog import Loaded
from simulator.document import Document, Fit
from simulator.metrics.rows import Row
from simulator.report.files import folder_names
from simulator.scenario import PolicyChoice

_PROSE = {"schema_", "name", "title", "origin", "sources", "assumed", "fitted"}
"""Fields of a document that are prose for people."""
_REFERENCES: dict[str, Any] = {
    "scenario": dict.fromkeys(("hardware", "software", "workload", "policies", "expect", "claim"), True),
    "workload": {
        "graph": True,
        "requests": {"file"},
        "programs": {"__all__": {"workload": {**dict.fromkeys(_PROSE, True), "graph": True}}},
    },
}
_REFERENCES["scenario"]["draws"] = {"file"}
"""Fields that name other files, which are inputs of their own; and a scenario's rows, expectations and claim."""


def provenance(loaded: Loaded, rows: Sequence[str] | None = None, asked: Sequence[str] = ()) -> dict[str, Any]:
    """List where every number of a run comes from.

    Parameters
    ----------
    loaded
        The scenario with its machine and its workload.
    rows
        Labels of the rows that ran; None if all did.
    asked
        The expectations that were checked.

    Returns
    -------
    dict
        ``hosim`` (version), ``scenario``, ``inputs`` (kind, name, sha256, and ``content``, the sha256 of what a
        document means to the run, however and wherever it is written), ``switches``, ``draws``, ``seed``, ``set``, and
        the ``fitted`` and ``assumed`` fields of all documents with their reasons; and by document, how many figures are
        ``mine``: nothing says where they are from.
    """
    documents: dict[str, Document] = {
        "hardware": loaded.stated,
        "workload": loaded.workload,
        "scenario": loaded.scenario,
    }
    documents |= {"software": loaded.software} if loaded.software else {}
    content, inputs = dict[str, dict[str, Any]](), list[dict[str, str]]()
    for role, document in documents.items():
        excluded = dict.fromkeys(_PROSE, True) | _REFERENCES.get(role, {})
        content[role] = document.model_dump(mode="json", exclude=excluded)
    ran = [choice for choice in loaded.scenario.policies if rows is None or choice.row in rows]
    content["scenario"] |= {"asked": list(asked)}
    content["scenario"]["rows"] = [  # a plan from a file is an input of its own
        ({} if choice.is_file else choice.model_dump(mode="json")) | {"label": choice.row} for choice in ran
    ]
    for role, digest in loaded.sha256.items():
        name = documents[role].name if role in documents else loaded.paths[role].name
        inputs.append({"kind": role, "name": name, "sha256": digest})
        if role in content:
            inputs[-1]["content"] = hashlib.sha256(json.dumps(content[role], sort_keys=True).encode()).hexdigest()
    return {
        "hosim": simulator.__version__,
        "scenario": loaded.scenario.name,
        "inputs": inputs,
        "switches": loaded.scenario.switches.model_dump(),
        "draws": loaded.scenario.draws.model_dump(exclude={"file"}),
        "seed": loaded.scenario.seed,
        "set": dict(loaded.scenario.set_),
        **{table: _figures(loaded, table) for table in ("fitted", "assumed")},
        "mine": {document.name: count for document in documents.values() if (count := document.origins()["mine"])},
    }


def _figures(loaded: Loaded, table: str) -> list[dict[str, str]]:
    """List fields with their reasons, once each: what the scenario sets stands in the hardware, too."""
    of_scenario: dict[str, str | Fit] = getattr(loaded.scenario, table)
    of_hardware: dict[str, str | Fit] = getattr(loaded.hardware, table)
    figures: list[tuple[Document, str, str | Fit]] = []
    for path, why in of_hardware.items():
        figures.append((loaded.scenario if why in of_scenario.values() else loaded.hardware, path, why))
    figures += [(work, path, why) for work in loaded.workload.documents for path, why in getattr(work, table).items()]
    figures += [(loaded.scenario, path, why) for path, why in of_scenario.items() if why not in of_hardware.values()]
    return [
        {"document": document.name, "field": path, **(why.model_dump() if isinstance(why, Fit) else {"why": why})}
        for document, path, why in figures
    ]


def files_named(loaded: Loaded) -> dict[str, str]:
    """Return, by role, the names of the files that the documents of `as_run` refer to and that lie beside them.

    Parameters
    ----------
    loaded
        The documents as they were read.
    """
    paths = loaded.paths
    graphs = (role for role in paths if role.partition(" ")[0] == "graph")
    named = {role: f"{role.replace(' ', '-')}.json{paths[role].name.rpartition('.json')[2]}" for role in graphs}
    return named | ({"draws": "draws.csv"} if "draws" in paths else {})


def as_run(loaded: Loaded, rows: Mapping[str, Row], *, is_changed: bool) -> dict[str, str]:
    """Return the three documents as they were run; with the plans beside them they give the same rows again.

    Parameters
    ----------
    loaded, rows
        What was run, and its rows by label.
    is_changed
        Whether the machine was changed, so that the expectations of the scenario do not apply.

    Returns
    -------
    dict
        Texts by the names of files.
    """
    written, folders = {choice.row: choice for choice in loaded.scenario.policies}, folder_names(list(rows))
    choices = []
    for label, row in rows.items():
        choice = written.get(label)
        if (choice is None or choice.is_file) and row.trace is not None:
            name = "plan.jsonl" if len(row.plans) == 1 else "plan-*.jsonl"
            choice = PolicyChoice(policy=f"{folders[label]}/{name}", label=label)
        if choice is not None:
            choices.append(choice)
    changes: dict[str, Any] = {}
    if choices:
        kept = {choice.row for choice in choices}
        expected = () if is_changed else loaded.scenario.expect
        expect = tuple(condition for condition in expected if set(condition.rows.values()) <= kept)
        changes = {"policies": tuple(choices), "expect": expect}
    return loaded.documents(files_named(loaded), **changes)
