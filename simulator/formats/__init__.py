"""Formats: files that other tools, or other people, write and read.

One module each; every format is versioned and documented in its module.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from simulator.errors import ConfigError
from simulator.formats import graph_jsonl, jsonl, plan_jsonl, residency_json
from simulator.formats.residency_json import Views
from simulator.formats.tables_csv import read_requests, read_routing, requests_csv
from simulator.graph import Graph
from simulator.plan import Plan

__all__ = [
    "FORMATS",
    "SUFFIXES",
    "check",
    "read_graph",
    "read_plan",
    "read_requests",
    "read_routing",
    "requests_csv",
    "sniff",
]

FORMATS: dict[str, Callable[[Path], str]] = {
    graph_jsonl.SCHEMA: graph_jsonl.describe,
    plan_jsonl.SCHEMA: plan_jsonl.describe,
    residency_json.SCHEMA: residency_json.describe,
}
"""Schema -> a function that reads and checks a whole file and says in one line what is in it."""


# Keys of a model's ``config.json`` on Hugging Face.
_MODEL_KEYS = frozenset(("hidden_size", "num_hidden_layers"))

SUFFIXES = (".jsonl", ".jsonl.gz", ".json")
"""How the names of such files end."""


def sniff(path: Path) -> str | None:
    """Name the schema in a file's first line (of a ``.json`` file: in the whole), known or not; None if there is none.

    Raises
    ------
    ConfigError
        If the file cannot be read.
    """
    named = jsonl.first(path).get("schema")
    return named if isinstance(named, str) else None


def check(path: Path) -> str:
    """Read and check a file of one of the `FORMATS`, and say in one line what is in it.

    Raises
    ------
    ConfigError
        If the file has none of these formats, or is wrong.
    """
    found = sniff(path)
    if found not in FORMATS:
        raise _unknown(path, f"the first line names one of the schemas {', '.join(FORMATS)}")
    return FORMATS[found](path)


def _is_trace(path: Path) -> bool:
    """Whether a file is a residency trace; a file whose name ends in ``.json`` is no other one."""
    found = sniff(path)
    if path.suffix == ".json" and found != residency_json.SCHEMA:
        raise _unknown(path, f"a .json names the schema {residency_json.SCHEMA}, and graphs and plans are .jsonl")
    return found == residency_json.SCHEMA


def _unknown(path: Path, must: str) -> ConfigError:
    record, do = jsonl.first(path), "correct the header, or choose another file"
    if record.keys() >= _MODEL_KEYS:
        do = f"these are dimensions of a model: run `hosim import hf {path} -o mine.yaml`"
    keys = f"none, but the keys {', '.join(record)}" if record else "none"
    return ConfigError(f"{path}:1", must, repr(record["schema"]) if "schema" in record else keys, do)


def read_graph(path: Path, views: Views = "reads") -> Graph:
    """Read a graph of any format that holds one.

    Parameters
    ----------
    path
        The file.
    views
        How ops that only make a view count, in formats that record them (see `residency_json`).

    Raises
    ------
    ConfigError
        If the file is wrong.
    """
    return residency_json.read(path, views) if _is_trace(path) else graph_jsonl.read(path)


def read_plan(path: Path, graph: Graph, tiers: tuple[str, ...]) -> Plan:
    """Read a plan of any format that holds one.

    Parameters
    ----------
    path
        The file.
    graph
        What it is for.
    tiers
        The tiers of the machine, by id.

    Raises
    ------
    ConfigError
        If the file is wrong, or for another graph or machine.
    """
    reader = residency_json.read_plan if _is_trace(path) else plan_jsonl.read
    return reader(path, graph, tiers)
