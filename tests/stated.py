"""What shipped scenarios state, read once for all tests of a process: reading all of them takes a second."""

from __future__ import annotations

import re
from functools import cache

from simulator import catalog
from simulator.catalog.shelf import path_of

SCENARIOS = {name: catalog.read_scenario(name) for name in catalog.names("scenario")}
CLAIMS = [name for name, scenario in SCENARIOS.items() if scenario.claim and scenario.expect]
"""Those that test a claim."""


@cache
def is_served(name: str) -> bool:
    """Whether a shipped scenario is of requests, by the text of its workload: reading all of them takes a second."""
    text = path_of(SCENARIOS[name].workload, "workload").read_text(encoding="utf-8")
    return re.search("^requests:", text, re.MULTILINE) is not None
