"""File formats that other tools and people read and write.

Each format has a module, which documents it, and a version.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from simulator.errors import ConfigError
from simulator.formats import graph_jsonl, jsonl, plan_jsonl, residency_json
from simulator.formats.tables_csv import read_requests as read_requests
from simulator.formats.tables_csv import read_routing as read_routing
from simulator.formats.tables_csv import requests_csv as requests_csv
from simulator.graph import Graph
from simulator.plan import Plan

_MODULES = (graph_jsonl, plan_jsonl, residency_json)
FORMATS: dict[str, Callable[[Path], str]] = {module.SCHEMA: module.describe for module in _MODULES}
"""Schema -> a function that reads and checks a whole file and describes it in one line."""

SUFFIXES = (".jsonl", ".jsonl.gz", ".json")
"""Suffixes of files in these formats."""


def sniff(path: Path) -> str | None:
    """Return the schema that the first line of a file names (in a ``.json``, its object), known or not; None if none.

    Raises
    ------
    ConfigError
        If the file cannot be read.
    """
    schema = jsonl.first(path).get("schema")
    return schema if isinstance(schema, str) else None


def check(path: Path) -> str:
    """Read and check a file of one of the `FORMATS`, and describe it in one line.

    Raises
    ------
    ConfigError
        If the file has none of these formats, or is wrong.
    """
    schema = sniff(path)
    if schema not in FORMATS:
        raise _unknown(path, f"the first line names one of the schemas {', '.join(FORMATS)}")
    return FORMATS[schema](path)


def _is_trace(path: Path) -> bool:
    """Tell whether a file is a residency trace, not JSON lines; refuse any other ``.json``."""
    is_trace = sniff(path) == residency_json.SCHEMA
    if path.suffix == ".json" and not is_trace:
        raise _unknown(path, f"a .json names the schema {residency_json.SCHEMA}, and graphs and plans are .jsonl")
    return is_trace


def _unknown(path: Path, must: str) -> ConfigError:
    record, do = jsonl.first(path), "correct the header, or choose another file"
    if record.keys() >= {"hidden_size", "num_hidden_layers"}:  # a ``config.json`` of Hugging Face
        do = f"these are dimensions of a model: run `hosim import hf {path} -o mine.yaml`"
    keys = f"none, but the keys {', '.join(record)}" if record else "none"
    return ConfigError(f"{path}:1", must, repr(record["schema"]) if "schema" in record else keys, do)


def read_graph(path: Path, views: residency_json.Views = "reads") -> Graph:
    """Read a graph of any format that holds one.

    Parameters
    ----------
    path
        The file.
    views
        Whether ops that only make a view read it or write it, in formats that record views (see `residency_json`).

    Raises
    ------
    ConfigError
        If the file is wrong.
    """
    return residency_json.read(path, views) if _is_trace(path) else graph_jsonl.read(path)


def read_plan(path: Path, graph: Graph, tiers: tuple[str, ...], roles: plan_jsonl.Ids | None = None) -> Plan:
    """Read a plan of any format that holds one.

    Parameters
    ----------
    path
        The file.
    graph
        The graph that the plan is for.
    tiers, roles
        Tiers of the machine, by id; see `Hardware.roles`.

    Raises
    ------
    ConfigError
        If the file is wrong, or for another graph or machine.
    """
    if _is_trace(path):
        return residency_json.read_plan(path, graph, tiers)
    return plan_jsonl.read(path, graph, tiers, roles)
