"""Statistics of draws: quantiles of steps with confidence intervals, and how often, or where, a policy is faster."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import permutations, product
from typing import Any, NamedTuple

from simulator.report.rows import ABSENT, grouped, listed, quantity, ratio
from simulator.report.tables import Column, figures
from simulator.report.views import Panel, Row, Rows, Section, SweepView, Varied, by, point, point_columns

CONFIDENCE = 0.95
"""Confidence level of intervals, if draws are independent: the usual one."""
QUANTILES = {"p05": 0.05, "median": 0.5, "p95": 0.95, "worst": 1.0}
"""Name -> share of the draws that are at most as slow."""
_SHOWN = {"p05": "5 %", "median": "median", "p95": "95 %"}
"""Quantiles that are estimates for further draws, with their headings; the worst is that of these draws only."""


def quantiles(outcomes: Rows, keys: Sequence[str] = ("perturbation", "level")) -> list[dict[str, Any]]:
    """Compute quantiles over the draws of each policy, under each perturbation or at each cell.

    Parameters
    ----------
    outcomes
        A row for each policy, perturbation, level and draw, with ``status``, ``step_ns`` and perhaps ``slowdown``.
    keys
        The columns that identify a group of draws.

    Returns
    -------
    list of dict
        The keys, ``policy``, ``draws``, ``ok`` (how many ran), ``failed`` (statuses of the others)
        and for each of `QUANTILES` ``<name>_step_ns`` and ``<name>_slowdown``: those of a draw, or None if that draw
        did not run. Draws that did not run count as slower than all that did.
    """
    rows = []
    for (*common, policy), group in by(outcomes, *keys, "policy").items():
        slowest_last = sorted(group, key=lambda row: math.inf if row["step_ns"] is None else row["step_ns"])
        failed = [row["status"] for row in group if row["step_ns"] is None]
        line = {**dict(zip(keys, common, strict=True)), "policy": policy, "draws": len(group)}
        line |= {"ok": len(group) - len(failed), "failed": ", ".join(sorted(set(failed)))}
        for name, share in QUANTILES.items():
            row = slowest_last[max(0, math.ceil(share * len(group)) - 1)]
            line |= {f"{name}_step_ns": row["step_ns"], f"{name}_slowdown": row.get("slowdown")}
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
    policy, other
        The two policies.
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
    beats
        The comparison of each policy with each other one.
    """

    values: dict[str, Any]
    quantiles: list[dict[str, Any]]
    beats: list[Beats]


def summed(rows: Rows, keys: Sequence[str]) -> list[Summed]:
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
        for line, name in product(lines, _SHOWN):
            low_ns, high_ns = quantile_interval(steps[line["policy"]], QUANTILES[name])
            line.update({f"{name}_low_ns": low_ns, f"{name}_high_ns": high_ns})
        pairs = [beats(steps, *pair) for pair in permutations(steps, 2)]
        cells.append(Summed(dict(zip(keys, values, strict=True)), lines, pairs))
    return cells


def quantile_tables(cells: Sequence[Summed], axes: Sequence[Varied]) -> list[Section]:
    """Make the tables: quantiles, and how often each policy beats each other one.

    Parameters
    ----------
    cells
        Statistics of draws.
    axes
        The axes that are not drawn.
    """
    rows = [line for cell in cells for line in cell.quantiles]
    where = point_columns(rows, axes)
    steps = figures(rows, ("draws",))
    steps += (Column(head, map(partial(_step, name), rows), left=False) for name, head in _SHOWN.items())
    tables, policies = [Section(columns=[*where, *steps])], dict.fromkeys(row["policy"] for row in rows)
    if len(policies) > 1:
        won = [{(pair.policy, pair.other): pair for pair in cell.beats} for cell in cells for _ in cell.quantiles]
        against = list(where)
        for other in policies:
            shares = (pairs.get((row["policy"], other), ABSENT) for row, pairs in zip(rows, won, strict=True))
            against.append(Column(f"faster than {other}", shares, left=False))
        tables.append(Section(columns=against))
    return tables


def _step(name: str, line: Row) -> str:
    """Write a quantile with its interval; an unknown end is `ABSENT`."""
    if line[f"{name}_step_ns"] is None:
        return str(line["failed"])
    step, low, high = (quantity(line[f"{name}_{value}_ns"], "ns") for value in ("step", "low", "high"))
    return f"{step} ({low} to {high})"


def comparisons(cells: Sequence[Summed], axes: Sequence[Varied]) -> Iterator[str]:
    """Say how likely the policy with the least median beats the others; parameters as for `quantile_tables`."""
    for cell in cells:
        fastest = min(cell.quantiles, key=lambda line: line["median_step_ns"] or math.inf)
        policy, median_ns = fastest["policy"], fastest["median_step_ns"]
        if median_ns is None:
            continue
        where = f"At {point(fastest, axes)} " if axes else ""
        others = [f"{pair.other} in {pair}" for pair in cell.beats if pair.policy == policy]
        alike = [line["policy"] for line in cell.quantiles if line["median_step_ns"] == median_ns]
        has, and_ = ("has", ", and") if len(alike) == 1 else ("have", f"; {policy}")
        faster = f"{and_} is faster than {'; than '.join(others)} of {fastest['draws']:,} draws" if others else ""
        yield f"{where}{listed(alike)} {has} the least median, {quantity(median_ns, 'ns')}{faster}."
    yield (
        f"In brackets are {100 * CONFIDENCE:.0f} % confidence intervals, as if draws were independent: of quantiles by "
        "order statistics, of shares of draws by Wilson's score. An end is absent where there are too few draws to say."
        " What does not run counts as slower than all that does."
    )


def distributions(rows: Rows) -> Panel:
    """Make a panel of the cumulative distribution of steps of each policy.

    Parameters
    ----------
    rows
        A row for each policy and draw.
    """
    ran = [row for row in rows if row["status"] == "ok"]
    draws, points = Counter(row["policy"] for row in rows if "policy" in row), list[Row]()
    for (policy,), group in by(ran, "policy").items():
        for position, step_ns in enumerate(sorted(row["step_ns"] for row in group)):
            shares = (count / draws[policy] for count in (position, position + 1))
            points += [{"policy": policy, "step_ns": step_ns, "share": share} for share in shares]
    return Panel("draws with at most such a step", "step", "%", points, "step_ns", "share", "ns", dense="log")


NOMINAL, INSPECTION, SEQUENCE = "nominal", "inspection", "longer sequence"


def robust_view(rows: Rows, policies: Sequence[str]) -> SweepView:
    """Show a fixed plan and a runtime under each perturbation: quantiles of their steps, and who is faster where.

    Parameters
    ----------
    rows
        See `quantiles`.
    policies
        The tested policy, and the one that it is compared with.
    """
    columns = [
        *figures(rows, ("perturbation",)),
        Column("level", map(_level, rows), left=False),
        *figures(rows, ("policy",)),
        Column("median", map(_median, rows), left=False),
        Column("slowdown", (ratio(row["median_slowdown"]) for row in rows), left=False),
        Column("5 to 95 %", map(_range, rows), left=False),
    ]
    panels, sentences = [], []
    kinds = by(rows, "perturbation")
    nominal = kinds.pop((NOMINAL,), [])
    for (kind,), group in (kinds or {(NOMINAL,): nominal}).items():
        unit, band = "ns" if kind == INSPECTION else "%", ("p05_step_ns", "p95_step_ns")
        points = group if kind in (INSPECTION, NOMINAL) else [*nominal, *group]
        panels.append(Panel(kind, "level", "ns", points, "level", "median_step_ns", unit, band=band))
    for (kind,), group in kinds.items():
        faster = grouped(by(group, "level").values(), _faster)
        where = [f"{who} at {listed([_level(lines[0]) for lines in levels])}" for who, levels in faster.items()]
        sentences.append(f"Faster under {kind}: {'; '.join(where)}.")
    title = f"one plan of {policies[0]!r} under other conditions, beside {policies[1]!r}"
    return SweepView(title, [Section(columns=columns)], sentences, panels)


def _level(row: Row) -> str:
    """Write a level: a share, or the time of an inspection."""
    if row["perturbation"] == NOMINAL:
        return ABSENT
    return quantity(round(row["level"]), "ns") if row["perturbation"] == INSPECTION else f"{100 * row['level']:g} %"


def _median(row: Row) -> str:
    step = row["failed"] if row["median_step_ns"] is None else quantity(row["median_step_ns"], "ns")
    return step if row["ok"] in (0, row["draws"]) else f"{step} ({row['ok']} of {row['draws']} ran)"


def _range(row: Row) -> str:
    return ABSENT if row["draws"] == 1 else f"{ratio(row['p05_slowdown'])} {ratio(row['p95_slowdown'])}"


def _faster(lines: Rows) -> str:
    """Name the policy with the least median, or ``tie``, or ``neither`` if none runs."""
    steps = {row["policy"]: row["median_step_ns"] for row in lines if row["median_step_ns"] is not None}
    fastest = [policy for policy, step in steps.items() if step == min(steps.values())]
    return fastest[0] if len(fastest) == 1 else "tie" if fastest else "neither"
