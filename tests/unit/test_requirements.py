"""The lowest versions that hosim accepts can be installed together: none is below what another one wants."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
WANTED = {
    "distributed 2024.8": {"click": "8.0", "jinja2": "2.10.3", "pyyaml": "5.3.1"},
    "matplotlib 3.8": {"numpy": "1.21"},
    "ortools 9.11": {"numpy": "1.13.3", "pandas": "2.0"},
    "pandas 2.2": {"numpy": "1.23.2"},
    "pyarrow 16": {"numpy": "1.16.6"},
    "pydantic 2.11": {"typing-extensions": "4.12.2"},
    "scipy 1.12": {"numpy": "1.22.4"},
}
"""Library in the lowest version -> what its metadata wants of others that hosim names itself."""
FIRST = {"scipy": "1.12"}
"""Library -> the first version with what hosim calls: `scipy.stats.quantile_test`."""


def lowest(requirements: list[str]) -> dict[str, str]:
    return dict(re.match(r"([A-Za-z0-9_-]+)>=([0-9.]+)", requirement).groups() for requirement in requirements)


def version(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(".")))


EXTRAS = PROJECT["optional-dependencies"]
LOWEST = lowest(PROJECT["dependencies"]) | {
    k: v for name in EXTRAS if name != "dev" for k, v in lowest(EXTRAS[name]).items()
}


@pytest.mark.parametrize("library", WANTED)
def test_no_lowest_version_contradicts_another(library):
    name, _, at = library.partition(" ")
    assert LOWEST[name] == at, "look up what this version wants, and write it here"
    for other, wanted in WANTED[library].items():
        assert version(LOWEST[other]) >= version(wanted)


def test_what_is_called_is_in_the_lowest_version():
    for name, first in FIRST.items():
        assert version(LOWEST[name]) >= version(first)


def test_the_tests_are_run_with_versions_that_users_may_have():
    dev = lowest(EXTRAS["dev"])
    assert {name: at for name, at in dev.items() if name in LOWEST} == {
        name: at for name, at in LOWEST.items() if name in dev
    }
