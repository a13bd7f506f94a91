"""Sentences about a run: the rows that do not fit, the fastest row and why, slower rows and why."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from simulator.metrics.figures import present
from simulator.metrics.rows import UNBOUNDED, Row, by_place, by_step
from simulator.metrics.statistics import grouped
from simulator.report.words import ENDS, held_to, named, percent, quantity, ratio, written
from simulator.units import listed

_TIE = 1.005
"""Step times within half a per cent of each other are called a tie."""
_SOME = 3
"""Most rows that a sentence names, and waits of a plan that blocks itself: the first ones show the circle."""
_WAYS_OUT = 2
"""Most levers that a sentence names, so that it is short; the report has all."""
_NO_GAP = 0.0005
"""A smaller gap is not shown: it would be written as 0 %."""
_CROWDED = 1.05
"""Contention above this factor is named: less does not show in a step."""
_MAIN = 0.1
"""Places with a smaller share of the waits of a cause are not named: the others are where a change helps."""
_COMPARED = ("static", "reactive")
"""Policies whose fastest row always has a sentence: to compare them is what hosim is for."""
WAITED_FOR = {
    "capacity": "room",
    "transfer": "transfers",
    "host": "the host",
    "compaction": "compaction",
    "peer": "peers",
    "order": "ops that come first",
    "collective": "collectives",
    "host_compute": "ops of the host",
}
"""Cause of a wait -> the name of what is lacking."""
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
        Sentences on rows that do not run, the fastest row, rows without a bound, why nothing moved, the ranks of the
        fastest row, each row whose ranks have not settled, the link with the most contention, slower rows, and real
        steps.
    """
    running = by_step(rows)
    texts = [*_not_running(rows)]
    texts += [_fastest(rows, running), _unbounded(rows), _needless(running), _of_ranks(running[0])] if running else []
    texts += [*map(_unsettled, running), *crowded(rows), _slower(running)]
    texts += [_real(running)] if running and present(running[0].summary.get("real_low_ns")) else []
    return [f"{text}." for text in texts if text]


def _not_running(rows: Sequence[Row]) -> Iterator[str]:
    unfit = {row.label: row.shortfall for row in rows if row.shortfall is not None}
    whys = {
        label: f"not fit in {short.tier}: {quantity(short.short_bytes, 'B')} short at {short.at}"
        + (f"; {short.tier} fills up {short.full}" if short.full else "")
        for label, short in unfit.items()
    }
    for why, labels in grouped(unfit, whys.__getitem__).items():
        yield f"{listed(labels)} {'do' if labels[1:] else 'does'} {why}"
    least = min(unfit.values(), key=lambda short: short.short_bytes, default=None)
    if least and least.levers and len(unfit) == len(rows):
        yield f"{'Ways' if least.levers[1:] else 'Way'} out: {', or '.join(least.levers[:_WAYS_OUT])}"
    stopped = [row for row in rows if row.summary["status"] in {"refused", "failed"}]
    yield from (f"{row.label} {ENDS[row.summary['status']]}: {row.summary['notes']}" for row in stopped)
    yield from (f"{row.label} blocks itself: {'; '.join(row.blocked[:_SOME])}" for row in rows if row.blocked)


def _fastest(rows: Sequence[Row], running: Sequence[Row]) -> str:
    row, step = running[0], int(running[0].summary["step_ns"])
    leaders = [other.label for other in running if other.summary["step_ns"] <= step * _TIE]
    leads = "tie at" if leaders[1:] else "is fastest:" if running[1:] else "takes"
    text, gap = f"{listed(leaders)} {leads} {quantity(step, 'ns')} a step", row.summary.get("gap_fraction")
    if gap is not None and present(gap):
        far, to = (f"at most {percent(gap)} above", "best plan") if gap >= _NO_GAP else ("at", "lower bound")
        text += f", {far} the {held_to(rows, row, to)} ({row.summary.get('bounded_by') or 'compute'})"
    return f"{text}; {row.label if leaders[1:] else 'it'} {_spends(row, is_whole=True) or 'never waits'}"


def _slower(running: Sequence[Row]) -> str:
    """Say why rows are slower: the fastest of each compared policy, and the slowest of all."""
    texts = list[str]()
    for row in _compared(running):
        than = "" if texts else f" as {running[0].label}"
        times = ratio(row.summary.get("slowdown_vs_fastest"))
        texts.append(f"{row.label} takes {times} as long{than}: it {_spends(row) or 'computes longer'}")
    return "; ".join(texts)


def _compared(running: Sequence[Row]) -> list[Row]:
    """Return the slower rows that have a sentence: the fastest of each compared policy, and the slowest of all."""
    slower = [row for row in running if row.summary["step_ns"] > running[0].summary["step_ns"] * _TIE]
    firsts = [next((row for row in slower if row.policy == policy), None) for policy in _COMPARED]
    return [row for row in slower if row in firsts or row is slower[-1]]


def _real(running: Sequence[Row]) -> str:
    """Say between what times real steps lie, and whether the fastest row stays the fastest at any of them."""
    first, *others = (row for row in running if present(row.summary.get("real_low_ns")))
    others = [row for row in others if row.summary["step_ns"] > first.summary["step_ns"] * _TIE]
    near = [row.label for row in others if row.summary["real_low_ns"] <= first.summary["real_high_ns"]]
    far = [row.label for row in others if row.label not in near]
    text = f"{first.label}: a real step takes {named(first)['real_step']}"
    text += ", as 80 % of published measurements of such steps do"
    text += f"; steps of {_few(far)} take longer" if far else ""
    who = _few(near) if far or not near[2:] else "any other row"
    return text + (f"; {who} may be as fast" if near else "")


def _few(labels: Sequence[str]) -> str:
    """Name rows, or count them if they are many."""
    return f"{len(labels)} other rows" if labels[_SOME:] else listed(labels)


def _spends(row: Row, *, is_whole: bool = False) -> str:
    """Say how long a row recomputes, what it waits for most and where; if `is_whole`, how much copying it overlaps."""
    parts = [f"spends {quantity(row.recompute_ns, 'ns')} on recompute"] if row.recompute_ns else []
    overlapped = row.summary.get("hidden_fraction")
    if is_whole and present(overlapped):
        parts.append(f"overlaps {'all' if overlapped == 1 else percent(overlapped)} of its copying with compute")
    if row.causes:
        cause, ns = next(iter(row.causes.items()))
        waits = [wait for wait in by_place(row) if wait["cause"] == cause and int(wait["ns"]) >= _MAIN * ns]
        places = [str(wait["on"]) for wait in waits]
        where = f"{_AT.get(cause, ' at ')}{listed(places)}" if any(places) else ""
        parts.append(f"loses {quantity(ns, 'ns')} waiting for {WAITED_FOR[cause]}{where}")
    return listed(parts)


def _unbounded(rows: Sequence[Row]) -> str:
    """Name the rows without a known bound, whose plans reorder ops."""
    names = [row.label for row in rows if row.summary.get("bounded_by") == UNBOUNDED]
    has = "have no lower bound: their plans run" if names[1:] else "has no lower bound: its plan runs"
    text = f"{listed(names)} {has} ops in another order, or on other streams, than the program"
    return text if names else ""


_NEVER_COPY = {"resident", "recompute"}
"""Policies that copy nothing, whether it fits or not."""


def _needless(running: Sequence[Row]) -> str:
    """Name the policies that could move data but moved none, because all of it fits."""
    able = [row for row in running if row.policy not in _NEVER_COPY and not row.recompute_ns]
    idle = [row for row in able if not any(row.summary.get(f"moved_{name}_bytes") for name in row.hardware.links)]
    if not idle:
        return ""
    tier, budget = idle[0].hardware.compute_tier, quantity(idle[0].budget_bytes, "B")
    peak = quantity(max(row.summary[f"peak_{tier}_bytes"] for row in idle), "B")
    does = f"{listed([row.label for row in idle])} {'move' if idle[1:] else 'moves'} nothing"
    return f"{does}: the peak of a step, {peak}, fits in the {budget} of {tier}"


def _of_ranks(row: Row) -> str:
    """Say how busy the ranks of a job are, and which is the slowest."""
    figures = row.summary
    if not figures.get("ranks"):
        return ""
    masked, bubble = figures["masked_fraction"], percent(figures["bubble_fraction"])
    text = f"the {figures['ranks']} ranks of {row.label} compute for {percent(figures['utilisation'])} of the time"
    text += f" and wait for peers for {bubble}; rank {figures['slowest_rank']} is the slowest"
    return text + (f"; compute overlaps {percent(masked)} of their communication" if present(masked) else "")


def _unsettled(row: Row) -> str:
    """Warn if ranks that meet still differ in their steps, so that their shares are not those of a long run."""
    least, step = row.summary.get("least_step_ns") or math.inf, row.summary["step_ns"]
    steps = row.job.graph(row.summary["slowest_rank"]).steps if math.isfinite(least) else 1
    if period := row.summary.get("period"):
        took = row.summary["period_ns"]
        if step <= took / period * _TIE and took / period <= step * _TIE:
            return ""
        text = f"warning: steps of {row.label} alternate: {period} of them take {quantity(took, 'ns')} again and again"
        return f"{text}, {quantity(took / period, 'ns')} on average; the measured one takes {quantity(step, 'ns')}"
    if steps > 1 < row.job.lag and steps < (enough := 2 * row.job.lag + 1):  # two periods, after the first step
        text = (
            f"warning: steps of {row.label} overlap, and may alternate: set steps of the workload to {enough} or more"
        )
        return f"{text}, to see their mean"
    if step <= least * _TIE or steps == 1:
        return ""
    text = f"warning: {row.label} has not settled: the measured step takes {quantity(least, 'ns')} on one rank"
    return f"{text} and {quantity(step, 'ns')} on another that it meets; set steps of the workload to more than {steps}"


def crowded(rows: Sequence[Row]) -> list[str]:
    """Say in which rows contention slows transfers, on the link where that is worst.

    Parameters
    ----------
    rows
        The rows.
    """
    crowd = [
        (row.summary[column], column.removeprefix("crowding_"), row.label)
        for row in rows
        for column in row.summary
        if row.is_ok and column.startswith("crowding_") and (row.summary[column] or 0) > _CROWDED
    ]
    link = max(crowd)[1] if crowd else ""
    times = [f"{ratio(factor)} as long as alone under {label}" for factor, name, label in crowd if name == link]
    return [f"transfers of ranks that share {link} take {listed(times)}"] if crowd else []


def pointer(points: Mapping[str, str | Sequence[object]]) -> list[str]:
    """Point to `hosim sweep` if the scenario lists points of a curve.

    Parameters
    ----------
    points
        The ``sweep`` of a scenario.
    """
    if not points:
        return []
    first = next(iter(points.values()))
    values = [first] if isinstance(first, str) else [written(value, "count") for value in first]
    where = listed(values) if len(points) == 1 else f"at {len(first)} points"
    return [f"This is one point of a curve: hosim sweep compares {listed(list(points))} {where}."]
