"""Step times under perturbations as they are shown: quantiles, and from where on one policy beats the other."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from simulator.report.rows import ABSENT, quantity, ratio
from simulator.report.view import Panel, Row, Rows, Section, View, by, curve, texts

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
    return View(title, [Section(columns=columns)], _crossovers(pairs, tested, other), _panels(rows))


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


def _crossovers(pairs: Sequence[Mapping[str, Row]], tested: str, other: str) -> list[str]:
    """Say at which levels of each perturbation the other policy's median is below the tested one's."""
    sentences = []
    for (kind,), rows in by((pair[tested] for pair in pairs), "perturbation").items():
        own = [pair for pair in pairs if any(pair[tested] is row for row in rows)]
        winners = [_faster(pair, tested, other) for pair in own]
        if kind == NOMINAL:
            if winners == [other]:
                sentences.append(f"{other} is faster than {tested} already under nominal conditions.")
            continue
        noun, lost = (
            _NOUNS.get(kind, kind),
            [pair for pair, winner in zip(own, winners, strict=True) if winner == other],
        )
        ran = [pair for pair in own if pair[tested]["median_step_ns"] is not None]
        shown = (lost or ran[-1:] or own)[0]
        if lost:
            again = [_level(pair[tested]) for pair in own[own.index(shown) :] if pair not in lost]
            but = f", but not at {', '.join(again)}" if again else ""
            told = f"{other} is faster than {tested} from {_level(shown[tested])} {noun} on{but}"
        elif ran:
            told = f"{tested} stays ahead of {other} up to {_level(shown[tested])} {noun}"
        else:
            told = f"neither {tested} nor {other} runs from {_level(shown[tested])} {noun} on"
        does = ", ".join(
            f"{policy} takes {_median(shown[policy])}"
            if shown[policy]["ok"]
            else f"{policy} is {shown[policy]['failed']}"
            for policy in (tested, other)
        )
        sentences.append(f"{told}: {does} at {_level(shown[tested])}.")
    return sentences


def _panels(rows: Sequence[dict[str, Any]]) -> list[Panel]:
    """Step times over the level of each perturbation: the median, and the middle 90 % of the draws."""
    kinds = list(dict.fromkeys(row["perturbation"] for row in rows))
    panels = []
    for kind in kinds[1:] or kinds:
        shown = [row for row in rows if row["perturbation"] in ((kind,) if kind == INSPECTION else (NOMINAL, kind))]
        unit, scale = ("us", 0.001) if kind == INSPECTION else ("%", 100)
        placed = [{**row, "at": round(scale * row["level"], 9)} for row in shown]
        curves = [
            curve(policy, own, "at", "median_step_ns", ends=("p05_step_ns", "p95_step_ns"))
            for (policy,), own in by(placed, "policy").items()
        ]
        panels.append(Panel(kind, f"level [{unit}]", "ns", curves))
    return panels
