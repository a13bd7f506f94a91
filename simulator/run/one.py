"""One row, from what its policy decides to what came of it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from simulator.errors import CapacityError, ConfigError, ScopeError, Shortfall
from simulator.plan import Plan
from simulator.policies.problem import Problem
from simulator.run.advice import advised
from simulator.run.case import Case, Policy
from simulator.run.results import Result
from simulator.run.row import replayed

Progress = Callable[[str, int, int], None]
"""Called now and then with the row at work, the computes that are done, and those that there are in all."""


def silent(label: str, done: int, total: int) -> None:
    """Show no progress."""


def row_of(case: Case, label: str, decide: Policy, progress: Progress) -> Result:
    """Run one row; at once told, if no plan of its kind can fit.

    Parameters
    ----------
    case, label, decide
        What runs, what the row is called, and what decides.
    progress
        Called now and then.
    """
    case = case.of(label)
    unfit = case.unfit(may_repeat=case.may_repeat(label))
    return (
        _replay(case, label, decide, progress) if unfit is None else _infeasible(case, label, decide, unfit, progress)
    )


def _replay(case: Case, label: str, decide: Policy, progress: Progress) -> Result:
    """Decide, and replay what was decided; what does not fit, or is not for this policy, is a row, too."""
    progress(label, 0, 0)
    try:
        return replayed(case, label, plans_of(case, label, decide, progress), partial(progress, label))
    except CapacityError as error:
        return _infeasible(case, label, decide, error.report, progress)
    except ScopeError as error:
        return Result.of(case, label, {"policy": label, "status": "refused", "notes": error.reason})


def plans_of(case: Case, label: str, decide: Policy, progress: Progress) -> list[Plan]:
    """Decide for each graph of the job.

    Parameters
    ----------
    case, label, decide, progress
        As for `row_of`.

    Raises
    ------
    CapacityError
        If a policy has no plan that fits; what lacks most room speaks for all that do not.
    ScopeError
        If this is not for the policy.
    """
    plans, short = [], []
    for task in case.tasks:
        try:
            with task.trier.tries.told(partial(tried, progress, label)):
                plans.append(_decided(label, decide, task.problem))
        except CapacityError as error:
            short.append(error)
    if short:
        raise max(short, key=lambda error: error.report.gap_bytes)
    return plans


def tried(progress: Progress, label: str, number: int) -> None:
    """Tell which plan a row tries."""
    progress(f"{label}, plan {number:,} is tried", 0, 0)


def _decided(label: str, decide: Policy, problem: Problem) -> Plan:
    plan = decide(problem)
    if not isinstance(plan, Plan):
        raise ConfigError(
            f"policy {label!r}", "a policy returns a Plan", repr(plan), "return what `Writer` or you made"
        )
    return plan


def _infeasible(case: Case, label: str, decide: Policy, report: Shortfall, progress: Progress) -> Result:
    summary = {"policy": label, "status": "infeasible", "short_bytes": report.gap_bytes, "short_at": report.at}
    return Result.of(case, label, summary, shortfall=enough(case, label, decide, report, progress))


def enough(case: Case, label: str, decide: Policy, report: Shortfall, progress: Progress) -> Shortfall:
    """Say how much room would be enough.

    Parameters
    ----------
    case, label, decide, progress
        As for `row_of`.
    report
        What does not fit.
    """
    return advised(case, label, decide, report, partial(progress, f"{label}, how much room is enough"))
