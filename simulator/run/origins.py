"""Where every number of a run comes from."""

from __future__ import annotations

from typing import Any

import simulator
from simulator.catalog import Loaded
from simulator.document import Document, Fit


def provenance(loaded: Loaded) -> dict[str, Any]:
    """Say where every number of a run comes from.

    Parameters
    ----------
    loaded
        The scenario with its machine and its workload.

    Returns
    -------
    dict
        ``hosim`` (version), ``inputs`` (kind, name, sha256), ``bound``, ``switches``, ``draws``, ``seed``, ``set``, and
        the ``fitted`` and ``assumed`` fields of all documents with their reasons.
    """
    documents = {"hardware": loaded.hardware, "workload": loaded.workload, "scenario": loaded.scenario}
    names = {kind: document.name for kind, document in documents.items()}
    return {
        "hosim": simulator.__version__,
        "scenario": loaded.scenario.name,
        "inputs": [
            {"kind": role, "name": names.get(role, loaded.paths[role].name), "sha256": digest}
            for role, digest in loaded.sha256.items()
        ],
        "bound": loaded.scenario.bound,
        "switches": loaded.scenario.switches.model_dump(),
        "draws": loaded.scenario.draws.model_dump(),
        "seed": loaded.scenario.seed,
        "set": dict(loaded.scenario.set_),
        **{table: _figures(loaded, table) for table in ("fitted", "assumed")},
    }


def _figures(loaded: Loaded, table: str) -> list[dict[str, str]]:
    """Fields with their reasons; what the scenario sets stands in the hardware too, and is listed once."""
    scenario: dict[str, str | Fit] = getattr(loaded.scenario, table)
    hardware: dict[str, str | Fit] = getattr(loaded.hardware, table)
    found = []
    for path, why in hardware.items():
        document = loaded.scenario if why in scenario.values() else loaded.hardware
        found.append(_figure(document, path, why))
    for path, why in getattr(loaded.workload, table).items():
        found.append(_figure(loaded.workload, path, why))
    for path, why in scenario.items():
        if why not in hardware.values():
            found.append(_figure(loaded.scenario, path, why))
    return found


def _figure(document: Document, path: str, why: str | Fit) -> dict[str, str]:
    return {"document": document.name, "field": path, **(why.model_dump() if isinstance(why, Fit) else {"why": why})}
