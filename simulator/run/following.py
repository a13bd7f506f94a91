"""Follows a run whose trace is not kept: the referee and the counts take what happens as it happens."""

from __future__ import annotations

from typing import TYPE_CHECKING

from simulator import metrics, referee
from simulator.errors import ConfigError
from simulator.graph import Job
from simulator.plan import Plan
from simulator.scenario import Scenario
from simulator.trace import Happened, Trace

if TYPE_CHECKING:
    from simulator.run.case import Case


class Follower:
    """Holds one rank's run against the laws, and counts it.

    Parameters
    ----------
    case, label, plan
        What runs, what the row is called, and what was decided.
    """

    def __init__(self, case: Case, label: str, plan: Plan) -> None:
        task, switches = case.tasks[0], case.loaded.scenario.switches
        drawn = referee.Drawn(plan, task.draws(0), case.choice(label).allocator, task.pinned)
        self._watch = referee.Watch(task.graph, case.hardware, drawn, case.problem.budget_bytes, switches)
        self._following = metrics.Following.plan(task.graph, case.hardware, plan)

    def take(self, happened: Happened) -> None:
        """Take what happened since the last time."""
        self._watch.take(happened)
        self._following.take(happened)

    def finish(self, trace: Trace) -> tuple[referee.Findings, metrics.Ran]:
        """What the referee noticed, and what the row is counted from.

        Parameters
        ----------
        trace
            How the run ended.
        """
        return self._watch.finish(trace), self._following.ran(trace)


def check_keeps(scenario: Scenario, job: Job, where: str) -> None:
    """Check that the run of a scenario that keeps no trace can be followed.

    Parameters
    ----------
    scenario, job
        What is asked for, and what runs.
    where
        What messages call the key.

    Raises
    ------
    ConfigError
        If not.
    """
    if scenario.trace == "kept":
        return
    if job.ranks > 1 or job.graphs[0].meets:
        found = f"{job.ranks:,} ranks" if job.ranks > 1 else "collectives"
    else:
        found = next((f"allocator: {one.allocator}" for one in scenario.policies if one.allocator != "ideal"), "")
    if found:
        must = "a run keeps its trace if ranks may meet, or if places have addresses"
        raise ConfigError(where, must, found, "write trace: kept")
