"""Statistics of draws: quantiles of steps with confidence intervals, and how often a policy is faster than another."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from itertools import permutations, product
from typing import Any, NamedTuple, TypeVar

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)
Figures = Mapping[str, Any]
"""Figures by column."""
CONFIDENCE = 0.95
"""Confidence level of intervals, if draws are independent: the usual one."""
_QUANTILES = {"p05": 0.05, "median": 0.5, "p95": 0.95, "worst": 1.0}
"""Name -> share of the draws that are at most as slow."""
ESTIMATED = ("p05", "median", "p95")
"""Those that are estimates for further draws; the worst is that of these draws only."""


def quantiles(outcomes: Iterable[Figures], keys: Sequence[str]) -> list[dict[str, Any]]:
    """Compute quantiles over the draws of each policy at each cell.

    Parameters
    ----------
    outcomes
        A row for each policy, cell and draw, with ``status`` and ``step_ns``.
    keys
        The columns that identify a cell.

    Returns
    -------
    list of dict
        The keys, ``policy``, ``draws``, ``ok`` (how many ran), ``failed`` (statuses of the others)
        and for each of `_QUANTILES` ``<name>_step_ns``: that of a draw, or None if that draw did not run. Draws that
        did not run count as slower than all that did.
    """
    rows = []
    for (*common, policy), group in by(outcomes, *keys, "policy").items():
        slowest_last = sorted(group, key=lambda row: math.inf if row["step_ns"] is None else row["step_ns"])
        failed = [row["status"] for row in group if row["step_ns"] is None]
        line = {**dict(zip(keys, common, strict=True)), "policy": policy, "draws": len(group)}
        line |= {"ok": len(group) - len(failed), "failed": ", ".join(sorted(set(failed)))}
        for name, share in _QUANTILES.items():
            row = slowest_last[max(0, math.ceil(share * len(group)) - 1)]
            line[f"{name}_step_ns"] = row["step_ns"]
        rows.append(line)
    return rows


def quantile_interval(steps: Sequence[float], share: float) -> tuple[float | None, ...]:
    """Compute the confidence interval of a quantile from order statistics, for any distribution of steps.

    Parameters
    ----------
    steps
        The step of each draw, ``inf`` if it did not run.
    share
        The quantile; 0.5 is the median.

    Returns
    -------
    tuple
        Both ends; an end is None if there are too few draws, or its draw did not run. By ``scipy.stats.quantile_test``,
        after W. J. Conover, Practical Nonparametric Statistics, 3rd ed. 1999, chapter 3.2.
    """
    from scipy import stats  # noqa: PLC0415 - an extra, and slow to import

    interval: Any = stats.quantile_test(steps, q=0, p=share).confidence_interval(CONFIDENCE)
    return tuple(float(end) if math.isfinite(end) else None for end in (interval.low, interval.high))


class Beats(NamedTuple):
    """The share of draws in which a policy is faster than another one.

    Attributes
    ----------
    times, draws
        The number of draws in which `policy` is faster, and of all; not to run is slower than to run, a tie is no win.
    low, high
        Confidence interval of the probability: Wilson's score interval (E. B. Wilson, Probable Inference, JASA 22,
        1927), as ``scipy.stats.binomtest`` computes it.
    """

    policy: str
    other: str
    times: int
    draws: int
    low: float
    high: float

    def __str__(self) -> str:
        return f"{100 * self.times / self.draws:.0f} % ({100 * self.low:.0f} to {100 * self.high:.0f} %)"


def beats(steps: Mapping[str, Sequence[float]], policy: str, other: str) -> Beats:
    """Compare two policies draw by draw.

    Parameters
    ----------
    steps
        The steps of each policy by draw, ``inf`` where it did not run.
    policy, other
        The two policies.
    """
    from scipy import stats  # noqa: PLC0415 - an extra, and slow to import

    draws = list(zip(steps[policy], steps[other], strict=True))
    times = sum(step < other_step for step, other_step in draws)
    low, high = stats.binomtest(times, len(draws)).proportion_ci(CONFIDENCE, "wilson")
    return Beats(policy, other, times, len(draws), float(low), float(high))


class Summed(NamedTuple):
    """Statistics of the draws at one cell of the axes that are not drawn.

    Attributes
    ----------
    values
        The values of these axes.
    quantiles
        A row for each policy, see `quantiles`; each quantile except the worst also has the ends of its interval,
        ``<name>_low_ns`` and ``<name>_high_ns``: see `quantile_interval`.
    """

    values: dict[str, Any]
    quantiles: list[dict[str, Any]]
    beats: list[Beats]


def summed(rows: Iterable[Figures], keys: Sequence[str]) -> list[Summed]:
    """Compute quantiles, their intervals and pairwise comparisons of policies at each cell.

    Parameters
    ----------
    rows
        A row for each policy and draw, in the same order of draws.
    keys
        Columns of the axes that are not drawn.
    """
    cells = []
    outcomes = [row if row["status"] == "ok" else {**row, "step_ns": None} for row in rows if "policy" in row]
    for values, group in by(outcomes, *keys).items():
        steps: dict[str, list[float]] = {}
        for row in group:
            steps.setdefault(row["policy"], []).append(math.inf if row["step_ns"] is None else row["step_ns"])
        lines = quantiles(group, keys)
        for line, name in product(lines, ESTIMATED):
            low_ns, high_ns = quantile_interval(steps[line["policy"]], _QUANTILES[name])
            line.update({f"{name}_low_ns": low_ns, f"{name}_high_ns": high_ns})
        pairs = [beats(steps, *pair) for pair in permutations(steps, 2)]
        cells.append(Summed(dict(zip(keys, values, strict=True)), lines, pairs))
    return cells


def grouped(items: Iterable[T], key: Callable[[T], K]) -> dict[K, list[T]]:
    """Group items by a key, in the order of first appearance."""
    groups: dict[K, list[T]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


def by(rows: Iterable[Figures], *keys: str) -> dict[tuple[Any, ...], list[Figures]]:
    """Group rows by the values of some columns, in the order of first appearance."""
    return grouped(rows, lambda row: tuple(row[key] for key in keys))
