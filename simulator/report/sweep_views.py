"""Sweeps as they are shown: largest values, step times under perturbations, and scaling curves."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from simulator.hardware import Hardware
from simulator.metrics import figure_of
from simulator.report.rows import ABSENT, listed, percent, present, quantity, ratio
from simulator.report.text import Column, figures
from simulator.report.view import Curve, Panel, Row, Rows, Section, View, by, curve, did_not_run, number, point, texts
from simulator.scenario import Largest
from simulator.trace import CAUSES
from simulator.units import counted


def largest_view(rows: Rows, question: Largest, tier: str, title: str) -> View:
    """Show how far each row fits.

    Parameters
    ----------
    rows
        See `simulator.run.largest`.
    question
        What was searched.
    tier
        The compute tier.
    title
        What was swept.
    """

    def value(row: Row) -> str:
        fits = row[question.column]
        if fits is None:
            return "none" if "tried" in row else ABSENT
        return f"{fits:,}" if "next" in row else f"{fits:,} or more"

    columns = [
        texts("policy", rows, lambda row: row["policy"]),
        texts(f"largest {question.field}", rows, value, left=False),
        Column.figure(rows, question.bound, "no plan beyond"),
        *figures(rows, ("step_ns", f"peak_{tier}_bytes", "least_peak_bytes")),
        texts("limited by", rows, lambda row: row.get("limit") or ABSENT),
        texts("at", rows, lambda row: row.get("limit_at") or ABSENT),
    ]
    first, last = question.values[0], question.values[-1]
    size = f"multiples of {question.multiple_of:,}" if question.multiple_of > 1 else "whole numbers"
    tried = f"Tried were {size} from {first:,} to {last:,}, halving the distance between one that fits and one that"
    premise = f"{tried} does not: what fits is taken to fit with less, too."
    return View(title, [Section(columns=columns)], [*(_limit(row, question) for row in rows), premise])


def _limit(row: Row, question: Largest) -> str:
    """Say what is in the way of the next value."""
    policy, value, bound = row["policy"], row[question.column], row.get(question.bound)
    if "tried" not in row:
        return f"{policy} was not searched: {row['notes']}."
    if "next" not in row:
        told = f"{policy} fits with the largest {question.field} that was to be tried, {value:,}"
        return f"{told}; raise at_most to go on."
    lack = f"its plan is {row['limit']}"
    if "limit_at" in row:
        demand, capacity = row["limit_demand_bytes"], row["limit_capacity_bytes"]
        short = quantity(demand - capacity, "B")
        lack = f"{row['limit']} is short by {short} of {quantity(demand, 'B')} at {row['limit_at']}"
    why = f"with {row['next']:,} {lack}"
    if value is None:
        return f"{policy} fits with no {question.field} that was to be tried: even {why}."
    beyond = "" if bound is None else ", no plan further" if bound == value else f", no plan beyond {bound:,}"
    return f"{policy} fits up to {question.field} {value:,}{beyond}: {why}."


QUANTILES = {"p05": 0.05, "median": 0.5, "p95": 0.95, "worst": 1.0}
"""Name -> share of the draws that are at most as slow."""
NOMINAL, INSPECTION, SEQUENCE = "nominal", "inspection", "longer sequence"
_NOUNS = {SEQUENCE: "longer sequences", INSPECTION: "an inspection"}


def quantiles(outcomes: Rows) -> list[dict[str, Any]]:
    """Sum up the draws of each policy under each perturbation.

    Parameters
    ----------
    outcomes
        One per policy, perturbation, level and draw, with ``status``, ``step_ns`` and ``slowdown``.

    Returns
    -------
    list of dict
        ``perturbation``, ``level``, ``policy``, ``draws``, ``ok`` (how many ran), ``failed`` (statuses of the others)
        and for each of `QUANTILES` ``<name>_step_ns`` and ``<name>_slowdown``: a value that some draw had, or None
        where that draw did not run, which counts as slower than anything that did.
    """
    rows = []
    for (perturbation, level, policy), own in by(outcomes, "perturbation", "level", "policy").items():
        slowest_last = sorted(own, key=_step)
        lacking = sorted({row["status"] for row in own if row["step_ns"] is None})
        line = {"perturbation": perturbation, "level": level, "policy": policy, "draws": len(own)}
        line |= {"ok": sum(row["step_ns"] is not None for row in own), "failed": ", ".join(lacking)}
        for name, share in QUANTILES.items():
            row = slowest_last[max(0, math.ceil(share * len(own)) - 1)]
            line |= {f"{name}_step_ns": row["step_ns"], f"{name}_slowdown": row["slowdown"]}
        rows.append(line)
    return rows


def _step(row: Row, key: str = "step_ns") -> float:
    return math.inf if row[key] is None else float(row[key])


def robust_view(rows: Sequence[dict[str, Any]], policies: Sequence[str]) -> View:
    """Show quantiles.

    Parameters
    ----------
    rows
        What `quantiles` gives.
    policies
        The tested policy and the other one.
    """
    pairs = [{row["policy"]: row for row in pair} for pair in by(rows, "perturbation", "level").values()]
    tested, other = policies
    lines = [pair[tested] for pair in pairs]
    columns = [
        texts("perturbation", lines, lambda row: row["perturbation"]),
        texts("level", lines, lambda row: ABSENT if row["perturbation"] == NOMINAL else _level(row), left=False),
    ]
    for policy in policies:
        own = [pair[policy] for pair in pairs]
        columns += [
            texts(policy, own, _median, left=False),
            texts("slowdown", own, lambda row: ratio(row["median_slowdown"]), left=False),
            texts("5 to 95 %", own, _range, left=False),
        ]
    columns.append(texts("faster", pairs, lambda pair: _faster(pair, tested, other)))
    title = f"one plan of {tested!r} under other conditions, beside {other!r}"
    return View(title, [Section(columns=columns)], list(_crossovers(pairs, tested, other)), _panels(rows))


def _level(row: Row) -> str:
    """Write a level: a share, or of an inspection its time."""
    return quantity(round(row["level"]), "ns") if row["perturbation"] == INSPECTION else f"{100 * row['level']:g} %"


def _median(row: Row) -> str:
    step = row["failed"] if row["median_step_ns"] is None else quantity(row["median_step_ns"], "ns")
    return step if row["ok"] in (0, row["draws"]) else f"{step} ({row['ok']} of {row['draws']} ran)"


def _range(row: Row) -> str:
    return ABSENT if row["draws"] == 1 else f"{ratio(row['p05_slowdown'])} {ratio(row['p95_slowdown'])}"


def _faster(pair: Mapping[str, Row], tested: str, other: str) -> str:
    steps = [_step(pair[policy], "median_step_ns") for policy in (tested, other)]
    if steps[0] == steps[1]:
        return "tie" if steps[0] < math.inf else "neither"
    return tested if steps[0] < steps[1] else other


def _crossovers(pairs: Sequence[Mapping[str, Row]], tested: str, other: str) -> Iterator[str]:
    """Say at which levels of each perturbation the other policy's median is below the tested one's."""
    for kind in dict.fromkeys(pair[tested]["perturbation"] for pair in pairs):
        own, noun = [pair for pair in pairs if pair[tested]["perturbation"] == kind], _NOUNS.get(kind, kind)
        lost = [pair for pair in own if _faster(pair, tested, other) == other]
        ran = [pair for pair in own if pair[tested]["median_step_ns"] is not None]
        shown = (lost or ran[-1:] or own)[0]
        level = _level(shown[tested])
        if kind == NOMINAL:
            if lost:
                yield f"{other} is faster than {tested} already under nominal conditions."
            continue
        if lost:
            again = [_level(pair[tested]) for pair in own[own.index(shown) :] if pair not in lost]
            but = f", but not at {', '.join(again)}" if again else ""
            told = f"{other} is faster than {tested} from {level} {noun} on{but}"
        elif ran:
            told = f"{tested} stays ahead of {other} up to {level} {noun}"
        else:
            told = f"neither {tested} nor {other} runs from {level} {noun} on"
        does = (f"{policy} {_does(shown[policy])}" for policy in (tested, other))
        yield f"{told}: {', '.join(does)} at {level}."


def _does(row: Row) -> str:
    return f"takes {_median(row)}" if row["ok"] else f"is {row['failed']}"


def _panels(rows: Sequence[dict[str, Any]]) -> list[Panel]:
    """Step times over the level of each perturbation: the median, and the middle 90 % of the draws."""
    kinds = list(dict.fromkeys(row["perturbation"] for row in rows))
    panels = []
    for kind in kinds[1:] or kinds:
        shown = [row for row in rows if row["perturbation"] in ((kind,) if kind == INSPECTION else (NOMINAL, kind))]
        unit, scale = ("us", 0.001) if kind == INSPECTION else ("%", 100)
        placed = [{**row, "at": round(scale * row["level"], 9)} for row in shown]
        drawn = _curves(placed, "at", "median_step_ns", ends=("p05_step_ns", "p95_step_ns"))
        panels.append(Panel(kind, f"level [{unit}]", "ns", drawn))
    return panels


def _curves(rows: Rows, axis: str, key: str, **more: Any) -> list[Curve]:
    """A curve for each policy."""
    return [curve(policy, own, axis, key, **more) for (policy,), own in by(rows, "policy").items()]


_WAITED_FOR = {
    "collective": "collectives",
    "peer": "peers",
    "transfer": "transfers",
    "capacity": "room",
    "host": "the host",
}
"""Cause of a wait -> what is waited for, in a sentence."""


def scaling_view(rows: Rows, fields: Sequence[str], hardware: Hardware, budget_bytes: float, title: str) -> View:
    """Show a curve.

    Parameters
    ----------
    rows
        See `simulator.run.scaling`.
    fields
        The columns of the fields that points set.
    hardware, budget_bytes
        The machine, and what may be used of its compute tier [B].
    title
        What was swept.
    """
    over_ranks = len({row.get("ranks", 1) for row in rows}) > 1
    told = over_ranks and all(present(row.get("ranks")) for row in rows)
    axes = {"ranks": "ranks"} if told else {field: field for field in fields}
    usable = {name: tier.usable_bytes for name, tier in hardware.tiers.items()} | {hardware.compute_tier: budget_bytes}
    limits: dict[str, float] = {f"peak_{name}_bytes": limit for name, limit in usable.items()}
    limits |= {f"moved_{name}_bytes": math.inf for name in hardware.links}
    used = {column: limit for column, limit in limits.items() if any(row.get(column) for row in rows)}
    waits = [f"wait_{cause}_ns" for cause in (("collective", "peer") if over_ranks else CAUSES)]
    times = [
        *figures(rows, ("status", "step_ns")),
        *([texts("efficiency", rows, lambda row: percent(row.get("efficiency")), left=False)] if over_ranks else []),
        *figures(rows, ("collective_ns", "masked_fraction") if over_ranks else ("compute_ns", "stall_ns")),
        *figures(rows, [column for column in waits if over_ranks or any(row.get(column) for row in rows)]),
        *figures(rows, () if over_ranks else ("gap_fraction", "bound_kind")),
        texts("tokens/s", rows, lambda row: rate(row.get("tokens_per_s")), left=False),
    ]
    sections = [Section(columns=[*_points(rows, axes), *times])]
    ran = [row for row in rows if any(present(row.get(column)) for column in used)]
    if ran and not over_ranks:
        sections.append(Section(columns=[*_points(ran, axes), *figures(ran, used)]))
    axis, rate_of = next(iter(axes.items())), ("efficiency against the first point [%]", "efficiency")
    shown = [("one step", "step_ns", "ns"), (*(rate_of if over_ranks else ("tokens per second", "tokens_per_s")), "")]
    panels = [_panel(axis, rows, *what) for what in shown]
    for column, limit in used.items():
        room = f", room {quantity(limit, 'B')}" if limit < math.inf else ""
        panels.append(_panel(axis, rows, f"{figure_of(column).head}{room}", column, "B", limit))
    sentences = did_not_run(rows, axes)
    for own in by((row for row in rows if present(row.get("efficiency"))), "policy").values():
        if len(own) > 1:
            sentences.append(_kept(own[0], own[-1]) if over_ranks else _best(own, axes))
    return View(title, sections, sentences, panels)


def _panel(axis: tuple[str, str], rows: Rows, title: str, key: str, unit: str, limit: float = math.inf) -> Panel:
    curves = _curves(rows, axis[1], key, scale=100 if key == "efficiency" else 1)
    return Panel(title, axis[0], unit, [one for one in curves if one.points], limit)


def _points(rows: Rows, axes: Mapping[str, str]) -> list[Column]:
    heads = [Column(head, tuple(number(row[key]) for row in rows)) for head, key in axes.items()]
    return [texts("policy", rows, lambda row: row["policy"]), *heads]


def rate(value: float | None) -> str:
    """Write a rate with three significant digits, such as ``1.24 M``."""
    if not present(value) or value is None:
        return ABSENT
    size, letter = next((s for s in ((10**9, " G"), (10**6, " M"), (10**3, " k")) if value >= s[0]), (1, ""))
    return f"{float(f'{value / size:.3g}'):g}{letter}"


def pointer(points: Mapping[str, Sequence[object]]) -> list[str]:
    """Tell who sees one step where the curve is: no sentence if the scenario lists no points.

    Parameters
    ----------
    points
        The ``scaling`` of a scenario.
    """
    if not points:
        return []
    fields, values = listed(list(points)), next(iter(points.values()))
    where = listed([number(value) for value in values]) if len(points) == 1 else f"at {len(values)} points"
    return [f"This is one point of a curve: hosim scaling compares {fields} {where}."]


def _best(rows: Rows, axes: Mapping[str, str]) -> str:
    """Say where most tokens come out, against the first point, and where a step waits least, and for what."""
    best = max(rows, key=lambda row: row["tokens_per_s"] or 0)
    least = min(rows, key=lambda row: row["stall_ns"] / row["step_ns"])
    told = f"{best['policy']} makes {rate(best['tokens_per_s'])} tokens/s at {point(best, axes)}"
    told += f", {rate(rows[0]['tokens_per_s'])} at {point(rows[0], axes)}" if best is not rows[0] else ""
    cause = max(CAUSES, key=lambda cause: least[f"wait_{cause}_ns"])
    why = f", most for {_WAITED_FOR.get(cause, cause)}" if least["stall_ns"] else ""
    waits = percent(least["stall_ns"] / least["step_ns"])
    return f"{told}; it waits least at {point(least, axes)}: {waits} of a step{why}."


def _kept(first: Row, last: Row) -> str:
    few, many = counted(first["ranks"], "rank"), f"{last['ranks']:,}"
    steps = f"{quantity(first['step_ns'], 'ns')} and {quantity(last['step_ns'], 'ns')} a step"
    more = {cause: last[f"wait_{cause}_ns"] - first[f"wait_{cause}_ns"] for cause in CAUSES}
    cause, ns = max(more.items(), key=lambda item: item[1])
    why = f"; waits for {_WAITED_FOR.get(cause, cause)} grow most, by {quantity(ns, 'ns')}" if ns > 0 else ""
    return f"{last['policy']} keeps {percent(last['efficiency'])} of the efficiency of {few} at {many}: {steps}{why}."
