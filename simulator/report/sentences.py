"""What a person would say about a run: what does not fit, who is fastest and why, who takes longer and why."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from simulator.report.readings import by_place
from simulator.report.rows import (
    UNBOUNDED,
    Row,
    by_step,
    grouped,
    held_to,
    listed,
    percent,
    present,
    quantity,
    ratio,
    written,
)

_TIE = 1.005
"""Step times within half a per cent of each other are called a tie."""
_SOME = 3
"""So many waits of what blocks are told."""
_WAYS_OUT = 2
"""So many ways to make something fit are told in a sentence; the report has all."""
_NO_GAP = 0.0005
"""A smaller gap is not shown."""
_CROWDED = 1.05
"""Transfers that take so many times as long as alone are told of."""
_TOLD = 0.1
"""Places behind a smaller share of the waits with a cause are not told."""
_COMPARED = ("static", "reactive")
"""Policies of which the fastest row is told where it is not the fastest of all: what hosim is there to compare."""
WAITED_FOR = {
    "capacity": "room",
    "transfer": "transfers",
    "host": "the host",
    "compaction": "compaction",
    "peer": "peers",
    "order": "ops that come first",
    "collective": "collectives",
}
"""Cause of a wait -> what is waited for."""
_AT = {"capacity": " in ", "transfer": " over "}


def sentences(rows: Sequence[Row]) -> list[str]:
    """Say what matters about the rows of a run.

    Parameters
    ----------
    rows
        The rows of one table.

    Returns
    -------
    list of str
        One sentence on what does not run, one on the fastest row, one on rows without a bound, one on why nothing
        moved, one on its ranks, one on each row whose ranks have not settled, one on what ranks crowd, one on slower
        rows.
    """
    running = by_step(rows)
    said = [_not_running(rows)]
    said += [_fastest(rows, running), _unbounded(rows), _needless(running), _of_ranks(running[0])] if running else []
    said += [*map(_unsettled, running), *crowded(rows), _slower(running)]
    return [f"{text}." for text in said if text]


def _not_running(rows: Sequence[Row]) -> str:
    parts, unfit = list[str](), [row for row in rows if row.shortfall is not None]
    for why, own in grouped(unfit, _shortfall).items():
        parts.append(f"{listed([row.label for row in own])} {'do' if own[1:] else 'does'} {why}")
    if unfit and len(unfit) == len(rows):
        least = min((row.shortfall for row in unfit if row.shortfall), key=lambda short: short.short_bytes)
        parts += [", or ".join(least.levers[:_WAYS_OUT])] if least.levers else []
    parts += [f"{row.label} is refused: {row.summary['notes']}" for row in rows if row.summary["status"] == "refused"]
    parts += [f"{row.label} blocks itself: {'; '.join(row.blocked[:_SOME])}" for row in rows if row.blocked]
    return "; ".join(parts)


def _shortfall(row: Row) -> str:
    """Say why a row does not fit."""
    short = row.shortfall
    if short is None:
        return ""
    place = short.at if " " in short.at else f"op {short.at!r}"
    full = f", and full {short.full}" if short.full else ""
    return f"not fit in {short.tier}: short by {quantity(short.short_bytes, 'B')} at {place}{full}"


def _fastest(rows: Sequence[Row], running: Sequence[Row]) -> str:
    row, step = running[0], int(running[0].summary["step_ns"])
    leaders = [one.label for one in running if one.summary["step_ns"] <= step * _TIE]
    leads = "tie at" if leaders[1:] else "is fastest:" if running[1:] else "takes"
    text, gap = f"{listed(leaders)} {leads} {quantity(step, 'ns')} a step", row.summary.get("gap_fraction")
    if gap is not None and present(gap):
        far = f"{percent(gap)} above" if gap >= _NO_GAP else "at"
        text += f", {far} the {held_to(rows, row)} ({row.summary.get('bound_kind') or 'compute'})"
    return f"{text}; {row.label if leaders[1:] else 'it'} {_spends(row, is_whole=True) or 'never waits'}"


def _slower(running: Sequence[Row]) -> str:
    """Say what slower rows lose: the fastest of each compared policy, and the slowest of all."""
    slower = [row for row in running if row.summary["step_ns"] > running[0].summary["step_ns"] * _TIE]
    firsts = [next((row for row in slower if row.policy == policy), None) for policy in _COMPARED]
    told, behind = [row for row in slower if row in firsts or row is slower[-1]], list[str]()
    for row in told:
        than = f" as {running[0].label}" if row is told[0] else ""
        times = ratio(row.summary.get("slowdown_vs_fastest"))
        behind.append(f"{row.label} takes {times} as long{than}: it {_spends(row) or 'computes longer'}")
    return "; ".join(behind)


def _spends(row: Row, *, is_whole: bool = False) -> str:
    """Say how long a row recomputes, what it waits for most and where; if it is whole, how much copying it overlaps."""
    parts = [f"spends {quantity(row.recompute_ns, 'ns')} on recompute"] if row.recompute_ns else []
    overlapped = row.summary.get("hidden_fraction")
    if is_whole and present(overlapped):
        parts.append(f"overlaps {'all' if overlapped == 1 else percent(overlapped)} of its copying with compute")
    if row.causes:
        cause, ns = next(iter(row.causes.items()))
        places = [str(one["on"]) for one in by_place(row) if one["cause"] == cause and int(one["ns"]) >= _TOLD * ns]
        at = f"{_AT.get(cause, ' at ')}{listed(places)}" if any(places) else ""
        parts.append(f"loses {quantity(ns, 'ns')} waiting for {WAITED_FOR[cause]}{at}")
    return listed(parts)


def _unbounded(rows: Sequence[Row]) -> str:
    """Name rows without a known bound, because their plans reorder ops."""
    found = [row.label for row in rows if row.summary.get("bound_kind") == UNBOUNDED]
    whose = "their plans run" if found[1:] else "its plan runs"
    text = f"no bound is known of {listed(found)}: {whose} ops in another order, or on other streams, than the program"
    return text if found else ""


_NEVER_COPY = {"resident", "recompute"}
"""Policies that copy nothing, whether it fits or not."""


def _needless(running: Sequence[Row]) -> str:
    """Say that policies which could move data moved none, because all of it fits."""
    able = [row for row in running if row.policy not in _NEVER_COPY and not row.recompute_ns]
    found = [row for row in able if not any(row.summary.get(f"moved_{name}_bytes") for name in row.hardware.links)]
    if not found:
        return ""
    tier, budget = found[0].hardware.compute_tier, quantity(found[0].budget_bytes, "B")
    peak = quantity(max(row.summary[f"peak_{tier}_bytes"] for row in found), "B")
    who = listed([row.label for row in found])
    return f"nothing has to move under {who}: what a step holds at once, {peak}, fits in the {budget} of {tier}"


def _of_ranks(row: Row) -> str:
    """Say how busy the ranks of a job are."""
    found = row.summary
    if not found.get("ranks"):
        return ""
    masked = found["masked_fraction"]
    text = f"under {row.label} the {found['ranks']} ranks compute for {percent(found['utilisation'])} of the time and "
    text += f"wait for one another for {percent(found['bubble_fraction'])}; rank {found['slowest_rank']} is the slowest"
    return text + (f"; {percent(masked)} of their communication lies under compute" if present(masked) else "")


def _unsettled(row: Row) -> str:
    """Warn that ranks which meet still differ in their steps, so that their shares are not those of a long run."""
    least, step = row.summary.get("least_step_ns") or math.inf, row.summary["step_ns"]
    steps = row.job.graph(row.summary["slowest_rank"]).steps if math.isfinite(least) else 1
    if step <= least * _TIE or steps == 1:
        return ""
    times = f"from {quantity(least, 'ns')} to {quantity(step, 'ns')}"
    text = f"warning: {row.label} has not settled, as ranks that meet take {times} for the step that is counted"
    return f"{text}; set steps of the workload to more than {steps}"


def crowded(rows: Sequence[Row]) -> list[str]:
    """Say under which rows transfers are slowed by sharing, on the link where that is worst.

    Parameters
    ----------
    rows
        The rows.
    """
    crowd = [
        (float(value), column.removeprefix("crowding_"), row.label)
        for row in rows
        if row.is_ok
        for column, value in row.summary.items()
        if column.startswith("crowding_") and present(value) and value > _CROWDED
    ]
    link = max(crowd)[1] if crowd else ""
    times = [f"{ratio(factor)} as long as alone under {label}" for factor, name, label in crowd if name == link]
    return [f"ranks crowd what they share: transfers over {link} take {listed(times)}"] if crowd else []


def pointer(points: Mapping[str, Sequence[object]]) -> list[str]:
    """Point to `hosim scaling` if the scenario lists points of a curve.

    Parameters
    ----------
    points
        The ``scaling`` of a scenario.
    """
    if not points:
        return []
    first = next(iter(points.values()))
    where = listed([written(value, "count") for value in first]) if len(points) == 1 else f"at {len(first)} points"
    return [f"This is one point of a curve: hosim scaling compares {listed(list(points))} {where}."]
