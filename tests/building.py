"""The one graph of a workload of one rank."""

from __future__ import annotations

from typing import Any

from simulator.builders import build_job
from simulator.graph import Graph
from simulator.workload import Workload


def build(workload: Workload, *where: Any) -> Graph:
    """What the only rank runs; `where` is as for `build_job`."""
    job = build_job(workload, *where)
    assert job.ranks == 1
    return job.graphs[0]
