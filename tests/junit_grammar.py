"""What readers of JUnit XML agree on: elements, attributes and children, within Jenkins' junit-10.xsd."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

_COUNTS = {"tests", "failures", "errors"}
_REQUIRED = {
    "testsuites": set(),
    "testsuite": {"name", *_COUNTS},
    "testcase": {"name"},
    "failure": set(),
    "skipped": set(),
}
_ALLOWED = {
    "testsuites": {"name", "time", *_COUNTS},
    "testsuite": {"name", "time", "skipped", "timestamp", "hostname", *_COUNTS},
    "testcase": {"name", "classname", "time"},
    "failure": {"message", "type"},
    "skipped": {"message", "type"},
}
_CHILDREN = {"testsuites": {"testsuite"}, "testsuite": {"testcase"}, "testcase": {"failure", "skipped"}}


def read(file: Path) -> ElementTree.Element:
    """Read a file, and assert that it is right and counts what it holds."""
    root = ElementTree.fromstring(file.read_bytes())
    assert root.tag == "testsuites"
    for element in root.iter():
        assert _REQUIRED[element.tag] <= set(element.attrib) <= _ALLOWED[element.tag], element.tag
        assert {child.tag for child in element} <= _CHILDREN.get(element.tag, set()), element.tag
        assert re.fullmatch(r"[0-9]*(\.[0-9]*)?", element.get("time", ""))
        for name, tag in {"tests": "testcase", "failures": "failure", "skipped": "skipped"}.items():
            if name in element.attrib:
                assert int(element.attrib[name]) == len(list(element.iter(tag)))
    return root


def outcomes(file: Path) -> dict[str, str]:
    """Name of each case -> ``passed``, ``failed`` or ``skipped``."""
    words = {"failure": "failed", "skipped": "skipped"}
    return {
        case.get("name", ""): next((words[child.tag] for child in case), "passed")
        for case in read(file).iter("testcase")
    }
