"""Verdicts as test cases, in a file that CI reads."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from simulator.outputs import written
from simulator.report.expectations import Verdict
from simulator.report.views import rendered


class Check(NamedTuple):
    """A JUnit test case.

    Attributes
    ----------
    name, seconds
        Its name, the same in every run; how long it took.
    failure, details
        The reason for a failure, in one line and in full; empty if it passes.
    skipped
        The reason why it was not checked; empty if it was.
    """

    name: str
    failure: str = ""
    details: str = ""
    skipped: str = ""
    seconds: float = 0.0


def check(verdict: Verdict) -> Check:
    """Make a test case of the verdict on an expectation."""
    if not verdict.is_broken:
        return Check(verdict.asks, skipped="" if verdict.holds else f"known to be missed, {verdict}: {verdict.missed}")
    printed = f"{verdict.printed} ({verdict.source})" if verdict.printed and verdict.source else verdict.printed
    lines = {"must be": verdict.must, "found": verdict.found, "why": verdict.why, "printed": printed}
    return Check(verdict.asks, str(verdict), "\n".join(f"{name}: {text}" for name, text in lines.items() if text))


def write_junit(suites: Mapping[str, Sequence[Check]], file: Path) -> None:
    """Write test cases as JUnit XML, which GitHub, GitLab and Jenkins read.

    Parameters
    ----------
    suites
        Name of a scenario -> its test cases.
    file
        The file to write or replace; missing folders are made. Characters that XML 1.0 lacks are replaced in the text.
    """
    text = rendered("junit.xml.j2", suites=suites)
    with written(file, option="--junit") as (part,):
        part.write_bytes(re.sub(_UNWRITABLE, "\ufffd", text).encode())


_UNWRITABLE = "[^\\t\\n\\r\\x20-\\ud7ff\\ue000-\\ufffd\\U00010000-\\U0010ffff]"
