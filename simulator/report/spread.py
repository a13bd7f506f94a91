"""How step times spread under perturbations: quantiles, a table, and from where on one policy beats the other."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from simulator.report.rows import ABSENT, quantity, ratio
from simulator.report.text import Column, aligned

QUANTILES = {"p05": 0.05, "median": 0.5, "p95": 0.95, "worst": 1.0}
"""Name -> share of the draws that are at most as slow."""
NOMINAL, INSPECTION = "nominal", "inspection"

_NEVER = math.inf
"""Stands for the time of what did not run: slower than anything that did."""


def quantiles(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Sum up the draws of each policy under each perturbation.

    Parameters
    ----------
    rows
        One per policy, perturbation, level and draw, with ``status``, ``step_ns`` and ``slowdown``.

    Returns
    -------
    list of dict
        ``perturbation``, ``level``, ``policy``, ``draws``, ``ok`` (how many ran), ``failed`` (statuses of the others)
        and for each of `QUANTILES` ``<name>_step_ns`` and ``<name>_slowdown``: a value that some draw had, or None
        where that draw did not run.
    """
    key = lambda row: (row["perturbation"], row["level"])  # noqa: E731
    found = []
    for (perturbation, level), group in groupby(rows, key):
        draws: dict[str, list[Mapping[str, Any]]] = {}
        for row in group:
            draws.setdefault(row["policy"], []).append(row)
        for policy, own in draws.items():
            ordered = sorted(own, key=lambda row: _NEVER if row["step_ns"] is None else row["step_ns"])
            failed = sorted({row["status"] for row in own if row["step_ns"] is None})
            line = {"perturbation": perturbation, "level": level, "policy": policy, "draws": len(own)}
            line |= {"ok": sum(row["step_ns"] is not None for row in own), "failed": ", ".join(failed)}
            for name, share in QUANTILES.items():
                row = ordered[max(0, math.ceil(share * len(own)) - 1)]
                line |= {f"{name}_step_ns": row["step_ns"], f"{name}_slowdown": row["slowdown"]}
            found.append(line)
    return found


def crossovers(lines: Sequence[Mapping[str, Any]], policy: str, against: str) -> list[str]:
    """Say from which level of each perturbation on the other policy's median is below the tested one's, and both there.

    Parameters
    ----------
    lines
        What `quantiles` gives.
    policy, against
        The tested policy and the other one.
    """
    sentences, levels = [], _pairs(lines, policy, against)
    mine, other = levels.pop(NOMINAL)[0][1:]
    if _median(other) < _median(mine):
        sentences.append(f"{against} is faster than {policy} already under nominal conditions.")
    for perturbation, found in levels.items():
        wins = [at for at, (_, mine, other) in enumerate(found) if _median(other) < _median(mine)]
        runs = [at for at, (_, mine, _) in enumerate(found) if _median(mine) < _NEVER]
        level, mine, other = found[wins[0] if wins else runs[-1] if runs else 0]
        if wins:
            text = f"{against} is faster than {policy} from {said(perturbation, level)} {_noun(perturbation)} on"
            held = [later for at, (later, *_) in enumerate(found) if at > wins[0] and at not in wins]
            text += f", but not at {', '.join(said(perturbation, later) for later in held)}" if held else ""
        elif not runs:
            text = f"neither {policy} nor {against} runs from {said(perturbation, level)} {_noun(perturbation)} on"
        else:
            text = f"{policy} stays ahead of {against} up to {said(perturbation, level)} {_noun(perturbation)}"
        taken = f"{_says(mine, policy)}, {_says(other, against)} at {said(perturbation, level)}"
        sentences.append(f"{text}: {taken}.")
    return sentences


def said(perturbation: str, level: float) -> str:
    """Write a level: a share, or of an inspection its time."""
    return quantity(round(level), "ns") if perturbation == INSPECTION else f"{100 * level:g} %"


def _pairs(
    lines: Sequence[Mapping[str, Any]], policy: str, against: str
) -> dict[str, list[tuple[float, Mapping[str, Any], Mapping[str, Any]]]]:
    """Perturbation -> for each level its lines of both policies."""
    by_key = {(line["perturbation"], line["level"], line["policy"]): line for line in lines}
    found: dict[str, list[tuple[float, Mapping[str, Any], Mapping[str, Any]]]] = {}
    for perturbation, level in dict.fromkeys((line["perturbation"], line["level"]) for line in lines):
        mine, other = (by_key[perturbation, level, name] for name in (policy, against))
        found.setdefault(perturbation, []).append((level, mine, other))
    return found


def _median(line: Mapping[str, Any]) -> float:
    return _NEVER if line["median_step_ns"] is None else float(line["median_step_ns"])


def _noun(perturbation: str) -> str:
    return {"longer sequence": "longer sequences", INSPECTION: "an inspection"}.get(perturbation, perturbation)


def _says(line: Mapping[str, Any], policy: str) -> str:
    if line["median_step_ns"] is None:
        return f"{policy} is {line['failed']}"
    return f"{policy} takes {quantity(line['median_step_ns'], 'ns')}"


def table(lines: Sequence[Mapping[str, Any]], policies: Sequence[str]) -> str:
    """Write the medians as text, one line a level with both policies beside each other, and how far draws spread.

    Parameters
    ----------
    lines
        What `quantiles` gives.
    policies
        The tested policy and the other one.
    """
    pairs = [(what, *found) for what, levels in _pairs(lines, *policies).items() for found in levels]
    columns = [
        Column("perturbation", tuple(what for what, *_ in pairs), left=True),
        Column("level", tuple(ABSENT if what == NOMINAL else said(what, level) for what, level, *_ in pairs)),
    ]
    for number, name in enumerate(policies):
        own = [found[number] for _, _, *found in pairs]
        columns.append(Column(name, tuple(_step(line) for line in own)))
        columns.append(Column("slowdown", tuple(ratio(line["median_slowdown"]) for line in own)))
        columns.append(Column("5 to 95 %", tuple(_range(line) for line in own)))
    faster = tuple(_faster(mine, other, policies) for _, _, mine, other in pairs)
    return aligned([[*columns, Column("faster", faster, left=True)]])


def _step(line: Mapping[str, Any]) -> str:
    found = line["failed"] if line["median_step_ns"] is None else quantity(line["median_step_ns"], "ns")
    return found if line["ok"] in (0, line["draws"]) else f"{found} ({line['ok']} of {line['draws']} ran)"


def _range(line: Mapping[str, Any]) -> str:
    if line["draws"] == 1:
        return ABSENT
    return f"{ratio(line['p05_slowdown'])} {ratio(line['p95_slowdown'])}"


def _faster(mine: Mapping[str, Any], other: Mapping[str, Any], policies: Sequence[str]) -> str:
    if _median(mine) == _median(other):
        return "tie" if _median(mine) < _NEVER else "neither"
    return policies[0] if _median(mine) < _median(other) else policies[1]
