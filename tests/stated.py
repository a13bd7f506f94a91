"""What shipped scenarios state, read once for all tests of a process: reading all of them takes a second."""

from __future__ import annotations

from functools import cache

from simulator import catalog

SCENARIOS = {name: catalog.read_scenario(name) for name in catalog.names("scenario")}
CLAIMS = [name for name, scenario in SCENARIOS.items() if scenario.claim and scenario.expect]
"""Those that test a claim."""


@cache
def is_served(name: str) -> bool:
    """Whether a shipped scenario is of requests."""
    return catalog.read_workload(SCENARIOS[name].workload).requests is not None
