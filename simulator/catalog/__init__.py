"""Finds and reads documents, in a checkout or in an installed wheel; the only room that knows YAML."""

from simulator.catalog.largest import at, question
from simulator.catalog.loaded import Loaded, points, resolve, varied
from simulator.catalog.settings import factor, multiplied, setting
from simulator.catalog.shelf import (
    KINDS,
    Entry,
    dump,
    load,
    names,
    path_of,
    read_hardware,
    read_scenario,
    read_workload,
    schema,
)
from simulator.catalog.unstated import taken
from simulator.inputs import shown

__all__ = [
    "KINDS",
    "Entry",
    "Loaded",
    "at",
    "dump",
    "factor",
    "load",
    "multiplied",
    "names",
    "path_of",
    "points",
    "question",
    "read_hardware",
    "read_scenario",
    "read_workload",
    "resolve",
    "schema",
    "setting",
    "shown",
    "taken",
    "varied",
]
