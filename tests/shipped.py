"""What comes of each shipped scenario: run once, for all tests and all workers of a session."""

from __future__ import annotations

import fcntl
import pickle
import re
from typing import Any, NamedTuple

import digests
import pytest
from pages import PAGES, printed
from stated import is_served

import simulator as hosim
from simulator.run.results import Results

SHOWN = {
    name: (out, shown)
    for name, out, shown in re.findall(
        r"<!-- output of: hosim run (\w+)(?: --out (\S+))? -->\n```text\n(.*?)```", PAGES, re.DOTALL
    )
}
"""By scenario, the folder that it writes, and what pages show that it prints."""


class Happened(NamedTuple):
    """What tests look at.

    Attributes
    ----------
    digests
        Of each row.
    broken
        What the scenario expects and does not hold; of requests `hosim validate` tells that.
    printed
        What `hosim run` prints, of those that a page shows.
    summaries
        Of each row.
    """

    digests: dict[str, list[Any]]
    broken: list[str]
    printed: str | None
    summaries: dict[str, dict[str, Any]]


def happened(name: str, base: pytest.TempPathFactory) -> Happened:
    """Run a shipped scenario, or read what came of it when an earlier test ran it, in whichever process."""
    folder = base.getbasetemp()
    folder = (folder.parent if folder.name.startswith("popen-") else folder) / "shipped"
    folder.mkdir(exist_ok=True)
    file = folder / f"{name}.pickle"
    with (folder / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not file.exists():
            file.write_bytes(pickle.dumps(_run(name)))
    return Happened(*pickle.loads(file.read_bytes()))


def _run(name: str) -> tuple[Any, ...]:
    if is_served(name):
        served = hosim.serve(name)
        return digests.of_rows(served), [], None, {str(row["policy"]): row for row in served.rows}
    results: Results = hosim.run(name)
    broken = [str(verdict) for verdict in results.expectations if verdict.is_broken]
    shown = printed(results, SHOWN[name][0]) if name in SHOWN else None
    return digests.of_rows(results), broken, shown, {**results.summaries}
