"""What draws tell of an answer: quantiles of steps, how sure they are, and who is faster how often, or where."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import permutations, product
from typing import Any, NamedTuple

from simulator.report.rows import ABSENT, grouped, listed, quantity, ratio, units
from simulator.report.tables import Column, figures
from simulator.report.views import Panel, Section, SweepView, Varied, by, point

Row = Mapping[str, Any]
Rows = Sequence[Row]
CONFIDENCE = 0.95
"""Share of studies whose interval holds the true value, if draws are independent."""


QUANTILES = {"p05": 0.05, "median": 0.5, "p95": 0.95, "worst": 1.0}
"""Name -> share of the draws that are at most as slow."""
_TOLD = {"p05": "5 %", "median": "median", "p95": "95 %"}
"""Quantiles of any draws, not of these alone, with their headings."""


def quantiles(outcomes: Rows, keys: Sequence[str] = ("perturbation", "level")) -> list[dict[str, Any]]:
    """Compute quantiles over the draws of each policy, under each perturbation or at each cell.

    Parameters
    ----------
    outcomes
        One per policy, perturbation, level and draw, with ``status``, ``step_ns`` and perhaps ``slowdown``.
    keys
        Columns of what draws have in common.

    Returns
    -------
    list of dict
        The keys, ``policy``, ``draws``, ``ok`` (how many ran), ``failed`` (statuses of the others)
        and for each of `QUANTILES` ``<name>_step_ns`` and ``<name>_slowdown``: a value that some draw had, or None
        where that draw did not run, which counts as slower than anything that did.
    """
    rows = []
    for (*common, policy), own in by(outcomes, *keys, "policy").items():
        slowest_last = sorted(own, key=lambda row: math.inf if row["step_ns"] is None else row["step_ns"])
        lacking = sorted({row["status"] for row in own if row["step_ns"] is None})
        line = {**dict(zip(keys, common, strict=True)), "policy": policy, "draws": len(own)}
        line |= {"ok": sum(row["step_ns"] is not None for row in own), "failed": ", ".join(lacking)}
        for name, share in QUANTILES.items():
            row = slowest_last[max(0, math.ceil(share * len(own)) - 1)]
            line |= {f"{name}_step_ns": row["step_ns"], f"{name}_slowdown": row.get("slowdown")}
        rows.append(line)
    return rows


def quantile_interval(steps: Sequence[float], share: float) -> tuple[float | None, ...]:
    """Compute the confidence interval of a quantile from order statistics, for any distribution of steps.

    Parameters
    ----------
    steps
        One a draw, ``inf`` for one that did not run.
    share
        Which quantile; 0.5 is the median.

    Returns
    -------
    tuple
        Both ends, None where there are too few draws to say. By ``scipy.stats.quantile_test``; its source is W. J.
        Conover, Practical Nonparametric Statistics, 3rd ed. 1999, chapter 3.2.
    """
    from scipy import stats  # noqa: PLC0415 - an extra, and slow to import

    found: Any = stats.quantile_test(steps, q=0, p=share).confidence_interval(CONFIDENCE)
    return tuple(None if math.isnan(end) else float(end) for end in (found.low, found.high))


class Beats(NamedTuple):
    """How often a policy is faster than another one, in the same draws.

    Attributes
    ----------
    policy, other
        The two.
    times, draws
        In how many draws, of how many; one that does not run is slower than one that does, and a tie is no win.
    low, high
        Interval of the probability at `CONFIDENCE`: Wilson's score interval (E. B. Wilson, Probable Inference, JASA 22,
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
        Of each policy, ``inf`` where one did not run.
    policy, other
        The two.
    """
    from scipy import stats  # noqa: PLC0415 - an extra, and slow to import

    own = steps[policy]
    times = sum(one < two for one, two in zip(own, steps[other], strict=True))
    low, high = stats.binomtest(times, len(own)).proportion_ci(CONFIDENCE, "wilson")
    return Beats(policy, other, times, len(own), float(low), float(high))


class Summed(NamedTuple):
    """What draws tell at one cell of what varies beside them.

    Attributes
    ----------
    at
        The values of what varies.
    quantiles
        A row for each policy, see `quantiles`, and of each but the worst with ends of an interval, ``<name>_low_ns``
        and ``<name>_high_ns``: see `quantile_interval`.
    fastest
        The policy with the least median.
    beats
        How often each policy beats each other one.
    """

    at: dict[str, Any]
    quantiles: list[dict[str, Any]]
    fastest: str
    beats: list[Beats]


def summed(rows: Rows, keys: Sequence[str]) -> list[Summed]:
    """Compute quantiles, their intervals and pairwise comparisons of policies at each cell.

    Parameters
    ----------
    rows
        One per policy and draw, in the same order of draws.
    keys
        Columns of what varies beside draws.
    """
    found = []
    whole = [row for row in rows if "policy" in row]
    for at, own in by(whole, *keys).items():
        steps = {
            str(policy): [row["step_ns"] if row["status"] == "ok" else math.inf for row in each]
            for (policy,), each in by(own, "policy").items()
        }
        lines = quantiles([{**row, "step_ns": row["step_ns"] if row["status"] == "ok" else None} for row in own], keys)
        for line, (name, end) in product(lines, product(_TOLD, (0, 1))):
            edge = quantile_interval(steps[line["policy"]], QUANTILES[name])[end]
            line[f"{name}_{('low', 'high')[end]}_ns"] = None if edge == math.inf else edge
        fastest = min(lines, key=lambda line: line["median_step_ns"] or math.inf)["policy"]
        pairs = [beats(steps, *pair) for pair in permutations(steps, 2)]
        found.append(Summed(dict(zip(keys, at, strict=True)), lines, fastest, pairs))
    return found


def quantile_tables(cells: Sequence[Summed], axes: Sequence[Varied]) -> list[Section]:
    """Make the tables: quantiles, and how often each policy beats each other one.

    Parameters
    ----------
    cells
        What draws tell.
    axes
        What varies beside draws.
    """
    rows = [line for cell in cells for line in cell.quantiles]
    where = [*figures(rows, ("policy",)), *(axis.column(rows) for axis in axes)]
    steps = figures(rows, ("draws",))
    steps += (Column.texts(head, map(partial(_step, name), rows), left=False) for name, head in _TOLD.items())
    tables, policies = [Section(columns=[*where, *steps])], dict.fromkeys(row["policy"] for row in rows)
    if len(policies) > 1:
        won = [{(pair.policy, pair.other): pair for pair in cell.beats} for cell in cells for _ in cell.quantiles]
        against = list(where)
        for other in policies:
            shares = (pairs.get((row["policy"], other), ABSENT) for row, pairs in zip(rows, won, strict=True))
            against.append(Column.texts(f"faster than {other}", shares, left=False))
        tables.append(Section(columns=against))
    return tables


def _step(name: str, line: Row) -> str:
    """Write a quantile with its interval; an unknown end is absent."""
    if line[f"{name}_step_ns"] is None:
        return str(line["failed"])
    step, low, high = (quantity(line[f"{name}_{what}_ns"], "ns") for what in ("step", "low", "high"))
    return f"{step} ({low} to {high})"


def comparisons(cells: Sequence[Summed], axes: Sequence[Varied]) -> Iterator[str]:
    """Say how likely the policy with the least median is the faster one; parameters as of `quantile_tables`."""
    for cell in cells:
        line = next(one for one in cell.quantiles if one["policy"] == cell.fastest)
        if line["median_step_ns"] is None:
            continue
        at = f"At {point(line, axes)} " if axes else ""
        others = [f"{found.other} in {found}" for found in cell.beats if found.policy == cell.fastest]
        alike = [one["policy"] for one in cell.quantiles if one["median_step_ns"] == line["median_step_ns"]]
        has, and_ = ("has", ", and") if len(alike) == 1 else ("have", f"; {cell.fastest}")
        faster = f"{and_} is faster than {'; than '.join(others)} of {line['draws']:,} draws" if others else ""
        yield f"{at}{listed(alike)} {has} the least median, {quantity(line['median_step_ns'], 'ns')}{faster}."
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
        One per policy and draw.
    """
    ran = [row for row in rows if row["status"] == "ok"]
    (unit, size), placed = units(max((row["step_ns"] for row in ran), default=1)), list[Row]()
    draws = {policy: len(own) for policy, own in by([row for row in rows if "policy" in row], "policy").items()}
    for key, own in by(ran, "policy").items():
        ordered = sorted(row["step_ns"] / size for row in own)
        for at, step in enumerate(ordered, 1):
            placed += [{"policy": key[0], "step": step, "share": (at - up) / draws[key]} for up in (1, 0)]
    return Panel("draws with at most such a step", f"step [{unit}]", "%", placed, "step", "share", dense="log")


NOMINAL, INSPECTION, SEQUENCE = "nominal", "inspection", "longer sequence"


def robust_view(rows: Rows, policies: Sequence[str]) -> SweepView:
    """Show a fixed plan and a runtime under each perturbation: quantiles of their steps, and who is faster where.

    Parameters
    ----------
    rows
        What `quantiles` gives.
    policies
        The tested policy and the other one.
    """
    columns = [
        *figures(rows, ("perturbation",)),
        Column.texts("level", map(_level, rows), left=False),
        *figures(rows, ("policy",)),
        Column.texts("median", map(_median, rows), left=False),
        Column.texts("slowdown", (ratio(row["median_slowdown"]) for row in rows), left=False),
        Column.texts("5 to 95 %", map(_range, rows), left=False),
    ]
    panels, told = [], []
    kinds = by(rows, "perturbation")
    nominal = kinds.pop((NOMINAL,), [])
    for (kind,), own in (kinds or {(NOMINAL,): nominal}).items():
        unit, scale = ("us", 0.001) if kind == INSPECTION else ("%", 100)
        shown = own if kind in (INSPECTION, NOMINAL) else [*nominal, *own]
        placed = [{**row, "at": round(scale * row["level"], 9)} for row in shown]
        band = ("p05_step_ns", "p95_step_ns")
        panels.append(Panel(kind, f"level [{unit}]", "ns", placed, "at", "median_step_ns", band=band))
    for (kind,), own in kinds.items():
        faster = grouped(by(own, "level").values(), _faster)
        where = [f"{who} at {listed([_level(lines[0]) for lines in levels])}" for who, levels in faster.items()]
        told.append(f"Faster under {kind}: {'; '.join(where)}.")
    title = f"one plan of {policies[0]!r} under other conditions, beside {policies[1]!r}"
    return SweepView(title, [Section(columns=columns)], told, panels)


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
