"""Formats: files that other tools, or other people, write and read.

One module each; every format is versioned and documented in its module.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from simulator.errors import ConfigError
from simulator.formats import graph_jsonl, jsonl, plan_jsonl

FORMATS: dict[str, Callable[[Path], str]] = {
    graph_jsonl.SCHEMA: graph_jsonl.describe,
    plan_jsonl.SCHEMA: plan_jsonl.describe,
}
"""Schema -> a function that reads and checks a whole file and says in one line what is in it."""


def sniff(path: Path) -> str | None:
    """Name the schema in a file's first line, known or not; None if its first line is no JSON object with one.

    Raises
    ------
    ConfigError
        If the file cannot be read.
    """
    return jsonl.schema(path)


def check(path: Path) -> str:
    """Read and check a file of one of the `FORMATS`, and say in one line what is in it.

    Raises
    ------
    ConfigError
        If the file has none of these formats, or is wrong.
    """
    found = sniff(path)
    if found not in FORMATS:
        must = f"the first line names one of the schemas {', '.join(FORMATS)}"
        do = "correct the header, or choose another file"
        raise ConfigError(f"{path}:1", must, repr(found) if found else "none", do)
    return FORMATS[found](path)
