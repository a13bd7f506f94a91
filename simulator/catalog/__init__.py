"""Finds and reads documents, in a checkout or in an installed wheel; the only room that knows YAML."""

from simulator.catalog.loaded import Axis, Loaded, at
from simulator.catalog.resolved import left_open, question, resolve
from simulator.catalog.settings import factor, setting
from simulator.catalog.shelf import (
    KINDS,
    dump,
    load,
    names,
    path_of,
    read_hardware,
    read_scenario,
    read_workload,
    schema,
)

__all__ = [
    "KINDS",
    "Axis",
    "Loaded",
    "at",
    "dump",
    "factor",
    "left_open",
    "load",
    "names",
    "path_of",
    "question",
    "read_hardware",
    "read_scenario",
    "read_workload",
    "resolve",
    "schema",
    "setting",
]
