"""Expectations as JUnit XML, which GitHub, GitLab and Jenkins show as tests: one case an expectation."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

from simulator.report.expectations import Verdict


@dataclass(frozen=True, slots=True)
class Case:
    """A test for those who read JUnit.

    Attributes
    ----------
    name
        What it is called, in every run alike.
    failure, details
        Why it fails, in one line and in full; empty if it does not.
    skipped
        Why it was not looked at; empty if it was.
    """

    name: str
    failure: str = ""
    details: str = ""
    skipped: str = ""


def case(verdict: Verdict) -> Case:
    """Make a case of a verdict.

    Parameters
    ----------
    verdict
        Of an expectation.
    """
    if not verdict.is_broken:
        return Case(verdict.asks, skipped="" if verdict.holds else f"known to be missed, {verdict}: {verdict.missed}")
    printed = f"{verdict.printed} ({verdict.source})" if verdict.source else verdict.printed
    lines = {"must be": verdict.must, "found": verdict.found, "why": verdict.why, "printed": printed}
    return Case(verdict.asks, str(verdict), "\n".join(f"{what}: {said}" for what, said in lines.items() if said))


def document(suites: Mapping[str, Sequence[Case]]) -> bytes:
    """Write cases as JUnit XML; times are 0, as what is told is no time of this machine.

    Parameters
    ----------
    suites
        By name of the scenario.
    """
    every = [one for cases in suites.values() for one in cases]
    root = ElementTree.Element("testsuites", {"name": "hosim", **_counts(every)})
    for name, cases in suites.items():
        skipped = str(sum(bool(one.skipped) for one in cases))
        suite = ElementTree.SubElement(root, "testsuite", {"name": name, **_counts(cases), "skipped": skipped})
        for one in cases:
            _add(suite, name, one)
    ElementTree.indent(root)
    written: bytes = ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)
    return written + b"\n"


def write(suites: Mapping[str, Sequence[Case]], file: Path) -> None:
    """Write cases into a file, whose folders are made.

    Parameters
    ----------
    suites
        As for `document`.
    file
        An earlier one is replaced.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(document(suites))


def _counts(cases: Sequence[Case]) -> dict[str, str]:
    failures = sum(bool(one.failure) for one in cases)
    return {"tests": str(len(cases)), "failures": str(failures), "errors": "0", "time": "0"}


def _add(suite: ElementTree.Element, classname: str, one: Case) -> None:
    about = {"classname": classname, "name": _printable(one.name), "time": "0"}
    element = ElementTree.SubElement(suite, "testcase", about)
    if one.failure:
        failure = {"message": _printable(one.failure), "type": "expectation"}
        ElementTree.SubElement(element, "failure", failure).text = _printable(one.details)
    if one.skipped:
        ElementTree.SubElement(element, "skipped", {"message": _printable(one.skipped)})


def _printable(text: str) -> str:
    """The text without the characters that XML 1.0 has no way to write."""
    return re.sub("[^\\t\\n\\r\\x20-\\ud7ff\\ue000-\\ufffd\\U00010000-\\U0010ffff]", "\ufffd", text)
