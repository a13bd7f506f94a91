"""What a person would say about a run, in a sentence or two."""

from __future__ import annotations

from collections.abc import Sequence

from simulator.report.ranks import of_ranks
from simulator.report.rows import (
    OF_FIXED,
    UNBOUNDED,
    Row,
    by_step,
    causes,
    grouped,
    held_to,
    is_ok,
    listed,
    percent,
    present,
    quantity,
    ratio,
    recomputed_ns,
)
from simulator.report.stalls import cleared_by, places, waits_for_peers
from simulator.units import counted

_TIE = 1.005
"""Step times within half a per cent of each other are called a tie."""

_BLOCKED = 3
"""So many waits of what blocks are told, or those of so many blocked ranks."""

_WAYS_OUT = 2
"""So many ways to make something fit are told in a sentence; the report has all."""

_NO_GAP = 0.0005
"""A smaller gap is not shown."""

_WIDE = 0.1
"""A gap from which on it is said what the bound leaves out."""

_FULL = 0.95
"""A tier is called full from this share of its room on."""

_BECAUSE = {
    "capacity": "waiting for room in {on}",
    "transfer": "waiting for transfers{over}",
    "host": "waiting for the host to issue",
    "compaction": "waiting for the compaction of {on}",
    "peer": "waiting for its peers",
    "collective": "waiting for collectives",
    "order": "waiting for its own program order",
}


def sentences(rows: Sequence[Row]) -> list[str]:
    """Say what a person would say about the rows.

    Parameters
    ----------
    rows
        The rows of one table.

    Returns
    -------
    list of str
        At most one sentence on what does not fit or blocks, one on the fastest row, one on rows without a bound, one on
        why nothing moved, one on its ranks, one on each row whose ranks have not settled, two on what ranks crowd, one
        on what the others lose.
    """
    said = [_not_running(rows), _fastest(rows), _unbounded(rows), _needless(rows), _of_ranks(rows)]
    said += map(_unsettled, rows)
    said += [*crowded(rows), _losing(rows)]
    return [f"{text}." for text in said if text]


def _not_running(rows: Sequence[Row]) -> str:
    parts, unfit = [], [(row, row.shortfall) for row in rows if row.shortfall is not None]
    groups = grouped(unfit, lambda own: (own[1].tier, own[1].gap_bytes, own[1].at, own[1].full, own[1].staged))
    for (tier, gap, at, full, staged), alike in groups.items():
        labels = [row.label for row, _ in alike]
        text = "nothing fits" if len(labels) == len(rows) > 1 else f"{_do(labels, 'does', 'do')} not fit"
        place = at if " " in at else f"op {at!r}"
        since = f", and full {full}" * bool(full) + f", {staged}" * bool(staged)
        parts.append(f"{text} in {tier}: short by {quantity(gap, 'B')} at {place}{since}")
    if len(unfit) == len(rows):
        row, least = min(unfit, key=lambda item: (item[1].gap_bytes, item[0].policy != "static"))
        whose = f"for {row.label}, " if len(groups) > 1 else ""
        parts += [whose + ", or ".join(least.levers[:_WAYS_OUT])] if least.levers else []
    parts += [f"{row.label} is refused: {row.summary['notes']}" for row in rows if row.summary["status"] == "refused"]
    parts += [f"{row.label} blocks itself: {_blocked(row)}" for row in rows if row.blocked]
    return "; ".join(parts)


def _do(names: Sequence[str], one: str, many: str) -> str:
    """Names, and the verb that goes with so many of them."""
    return f"{listed(names)} {one if len(names) == 1 else many}"


def _blocked(row: Row) -> str:
    """The first waits that block a row; of several ranks one each of some, what they lack themselves first."""
    if row.job.ranks == 1:
        return "; ".join(row.blocked[:_BLOCKED])
    first: dict[str, str] = {}
    for sentence in row.blocked:
        first.setdefault(sentence.split(":")[0], sentence)
    others = len(first) - _BLOCKED
    more = [f"and {counted(others, 'other rank')} as well"] if others > 0 else []
    return "; ".join([*list(first.values())[:_BLOCKED], *more])


def _fastest(rows: Sequence[Row]) -> str:
    running = by_step(rows)
    if not running:
        return ""
    row, best = running[0], running[0].summary["step_ns"]
    leaders = [row.label for row in rows if is_ok(row) and row.summary["step_ns"] <= best * _TIE]
    if len(leaders) > 1:
        text = f"{listed(leaders)} tie at {quantity(best, 'ns')} a step"
    else:
        text = f"{row.label} {'takes' if len(running) == 1 else 'is fastest:'} {quantity(best, 'ns')} a step"
    text += _above_bound(rows, row)
    return f"{text}; {'it' if len(leaders) == 1 else row.label} {_overlaps(row)}"


def _above_bound(rows: Sequence[Row], row: Row) -> str:
    """How far above its bound a row is, and which full tiers the bound, which gives each rank all of them, misses."""
    gap, kind, bound = (
        row.summary.get("gap_fraction"),
        str(row.summary.get("bound_kind") or "compute"),
        held_to(rows, row),
    )
    if gap is None or not present(gap):
        return ""
    kind = str(row.summary.get("bound_kind") or "compute")
    far = f"{percent(gap)} above" if gap >= _NO_GAP else "at"
    text = f", {far} the {bound} ({kind})"
    if kind.endswith(OF_FIXED):
        kind = kind.removesuffix(OF_FIXED)
        text = f"; over the run {far} the {bound} of plans that are fixed before it ({kind})"
    shared = ((name, tier) for name, tier in row.hardware.tiers.items() if tier.scope != "device")
    if gap < _WIDE or not row.summary.get("ranks"):
        return text
    full = [name for name, tier in shared if row.summary[f"peak_{name}_bytes"] >= _FULL * tier.usable_bytes]
    missed = f"; the bound does not know that {_do(full, 'is', 'are')} full, as it gives each rank all room there"
    return text + missed * bool(full)


def _unbounded(rows: Sequence[Row]) -> str:
    """Rows of which no bound is known, because their plans reorder ops."""
    found = [row.label for row in rows if row.summary.get("bound_kind") == UNBOUNDED]
    if not found:
        return ""
    whose = "its plan runs" if len(found) == 1 else "their plans run"
    return f"no bound is known of {listed(found)}: {whose} ops in another order, or on other streams, than the program"


_NEVER_COPY = {"resident", "recompute"}
"""Policies that copy nothing, whether it fits or not."""


def _needless(rows: Sequence[Row]) -> str:
    """Why policies that could have moved data moved none: because all of it fits."""
    able = [row for row in rows if row.policy not in _NEVER_COPY and is_ok(row) and not recomputed_ns(row)]
    found = [row for row in able if not any(row.summary.get(f"moved_{name}_bytes") for name in row.hardware.links)]
    if not found:
        return ""
    tier, budget = found[0].hardware.compute_tier, found[0].budget_bytes
    peak = max(row.summary[f"peak_{tier}_bytes"] for row in found)
    who = _do([row.label for row in found], "moves", "move")
    room = f"all that a step holds at once, {quantity(peak, 'B')}, fits in the {quantity(budget, 'B')} of {tier}"
    return f"{who} nothing, for nothing has to: {room}"


def _of_ranks(rows: Sequence[Row]) -> str:
    """How the ranks of the fastest row fare, if there are several."""
    row = next(iter(by_step(rows)), None)
    if row is None or not row.summary.get("ranks"):
        return ""
    found = row.summary
    text = f"under {row.label} the {found['ranks']} ranks compute for {percent(found['utilisation'])} of the time"
    if found["bubble_fraction"]:
        text += f" and wait for one another for {percent(found['bubble_fraction'])}"
    if found["slowest_rank"]:
        text += f" (rank {found['slowest_rank']} is the slowest)"
    if present(found["masked_fraction"]):
        text += f"; {percent(found['masked_fraction'])} of their communication lies under compute"
    return text + _longest_wait(row)


def _unsettled(row: Row) -> str:
    """That ranks which meet differ in their steps, so that shares of all ranks are not those of a long run."""
    least = row.summary.get("least_step_ns")
    if not is_ok(row) or not present(least) or row.summary["step_ns"] <= int(least or 0) * _TIE:
        return ""
    steps = row.job.graph(row.summary["slowest_rank"]).steps
    if steps == 1:
        return ""
    times = f"from {quantity(least, 'ns')} to {quantity(row.summary['step_ns'], 'ns')}"
    text = f"warning: {row.label} has not settled, as ranks that meet take {times} for the step that is counted"
    return f"{text}, so that what is said of its ranks does not last; set steps of the workload to more than {steps}"


def _longest_wait(row: Row) -> str:
    """Which rank loses most of its step waiting for which other one."""
    worst = (0, "")
    for view in of_ranks(row):
        for on, ns in waits_for_peers(view).items():
            runs = row.job.labels[row.job.graph_of[on]] if len(row.job.graphs) > 1 else ""
            whom = f"rank {on}" + f", {runs}" * (runs not in ("", view.program))
            worst = max(worst, (ns, f"rank {view.rank}{f', {view.program}' * bool(view.program)} for {whom}"))
    return f"; the longest wait is of {worst[1]}: {quantity(worst[0], 'ns')} a step" if worst[0] else ""


def _overlaps(row: Row) -> str:
    """How much of the copying costs nothing, and what waiting remains."""
    overlapped, found = row.summary.get("hidden_fraction"), causes(row)
    said = []
    if recomputed_ns(row):
        said.append(f"spends {_recomputing(row)}")
    if present(overlapped):
        much = "all" if overlapped == 1 else percent(overlapped)
        said.append(f"overlaps {much} of its copying with compute")
    if found:
        said.append(f"loses {_waiting(row, *found[0])}")
    elif not said:
        said.append("never waits")
    if overlapped == 1 and found:
        return f"{listed(said[:-1])} but {said[-1]}"
    return listed(said)


_COMPARED = ("static", "reactive")
"""Policies of which the fastest row is told where it is not the fastest of all: what hosim is there to compare."""


def _losing(rows: Sequence[Row]) -> str:
    """What slower rows lose: the fastest of the policies that are compared, or else the next one; and the slowest."""
    running = by_step(rows)
    slower = [row for row in running if row.summary["step_ns"] > running[0].summary["step_ns"] * _TIE]
    compared = [next((row for row in slower if row.policy == policy), None) for policy in _COMPARED]
    told = {row.label for row in compared if row is not None} or {row.label for row in slower[:1]}
    losses = [_loss(row) for row in slower if row.label in told or row is slower[-1]]
    return "; ".join(f"{row} takes {times} as long{f' as {running[0].label}' * (not number)}{why}"
                     for number, (row, times, why) in enumerate(losses))  # fmt: skip


def _loss(row: Row) -> tuple[str, str, str]:
    """Who is slower, how many times as long it takes, and what it loses."""
    found = causes(row)
    spent = [f"spends {_recomputing(row)}"] if recomputed_ns(row) else []
    spent += [f"loses {_waiting(row, *found[0])}"] if found else []
    why = f": it {' and '.join(spent)}" if spent else " without a stall: it computes longer"
    return row.label, ratio(row.summary.get("slowdown_vs_fastest")), why


def _recomputing(row: Row) -> str:
    share = percent(recomputed_ns(row) / row.summary["compute_ns"]) if row.summary["compute_ns"] else "all"
    return f"{quantity(recomputed_ns(row), 'ns')} on recompute ({share} of compute)"


def _waiting(row: Row, cause: str, ns: int) -> str:
    found = places(row, cause)
    on = listed(found or [""])
    text = f"{quantity(ns, 'ns')} {_BECAUSE[cause].format(on=on or 'memory', over=f' over {on}' if on else '')}"
    names = row.hardware.tier_names
    clearing = cleared_by(row, names.index(found[0])) if cause == "capacity" and len(found) == 1 else ""
    return f"{text} with {clearing}" if clearing else text


_CROWDED = 1.05
"""Transfers that take so many times as long as alone are told of."""


def crowded(rows: Sequence[Row]) -> list[str]:
    """Say what ranks crowd: how much longer transfers take than alone, how many pull at once, and who takes turns.

    Parameters
    ----------
    rows
        The rows.

    Returns
    -------
    list of str
        Parts of sentences; none if no transfers take much longer than alone.
    """
    running = [row for row in rows if is_ok(row)]
    worst = _largest(running, "crowding_")
    if worst is None or worst[0] <= _CROWDED:
        return _turns(running)
    link = worst[1]
    slow = [(row, float(row.summary.get(f"crowding_{link}") or 0)) for row in running]
    times = [f"{ratio(factor)} as long as alone under {row.label}" for row, factor in slow if factor > _CROWDED]
    said = [f"ranks crowd what they share: transfers over {link} take {listed(times)}"]
    machine = rows[0].hardware
    buses = [name for name, bus in machine.buses.items() if link in machine.passing(bus.links)]
    asked = _largest(running, *(f"demand_{bus}" for bus in buses))
    return [*said, *([] if asked is None else [_pulling(running, asked[1])]), *_turns(running)]


def _turns(rows: Sequence[Row]) -> list[str]:
    """Under which rows ranks begin one after another."""
    late = [(row.label, row.plan.starts_ns) for row in rows if row.plan is not None and any(row.plan.starts_ns)]
    parts = [f"{len(starts)} turns under {label}, up to {quantity(max(starts), 'ns')} late" for label, starts in late]
    return [f"ranks begin in {listed(parts)}, once"] if parts else []


def _largest(rows: Sequence[Row], *starts: str) -> tuple[float, str] | None:
    """The largest figure in columns with such a name, and the rest of the name after the first underscore."""
    found = [
        (float(value), column.partition("_")[2])
        for row in rows
        for column, value in row.summary.items()
        if starts and column.startswith(starts) and present(value)
    ]
    return max(found, default=None)


def _pulling(rows: Sequence[Row], bus: str) -> str:
    """How many transfers pull on a bus at once, and how much more than it carries they ask for, row by row."""
    asking = (row for row in rows if present(row.summary.get(f"demand_{bus}")))
    groups = grouped(asking, lambda row: (row.summary[f"pulling_{bus}"], row.summary[f"demand_{bus}"]))
    parts = [
        f"{count:,} transfers that ask for {demand:.2f} times what it carries under {listed([r.label for r in own])}"
        for (count, demand), own in groups.items()
    ]
    return f"at once, {bus} has up to {listed(parts)}"
