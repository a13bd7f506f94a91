"""Shows statistics of draws: quantiles of steps with their intervals, and how often, or where, a policy is faster."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial

from simulator.metrics.figures import Figure
from simulator.metrics.statistics import CONFIDENCE, ESTIMATED, Summed, by
from simulator.report.tables import Column, figures
from simulator.report.views import Panel, Row, Rows, Section, Varied, point, point_columns
from simulator.report.words import ABSENT, quantity
from simulator.units import listed

_SHOWN = dict(zip(ESTIMATED, ("5 %", "median", "95 %"), strict=True))
"""Quantiles with their headings."""


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
    steps = figures(rows, (Figure("draws", "count", "draws"),))
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
        f"Brackets hold {100 * CONFIDENCE:.0f} % confidence intervals, as if draws were independent: of quantiles by "
        "order statistics, of shares of draws by Wilson's score. Too few draws leave an end out."
        " A draw that does not run counts as the slowest."
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
