"""A compiled plan as text: what moved and why, where each cache operator is, and how busy the links are.

Names that differ in their numbers alone (layers) share a line, so that a large model stays readable; one tensor can
be told in full.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from statistics import median

from simulator.errors import ConfigError
from simulator.policies.static.analyse import TERMS
from simulator.policies.static.augmented import CacheOp, Role
from simulator.policies.static.explanation import IN_PASSING, Choice, Decision, Explanation
from simulator.policies.static.ledger import Slot
from simulator.report.rows import grouped, percent
from simulator.report.text import aligned_lines
from simulator.units import counted, human

MOST_LINES = 12
"""Lines of a table; what is left over is counted."""

_LEVELS = " .:-=+*#%@"


def pattern(name: str) -> str:
    """Replace the numbers of a name: ``L03/attn`` and ``L12/attn`` are one pattern."""
    return re.sub(r"\d+", "*", name)


def told(explanation: Explanation) -> str:
    """Tell the whole plan."""
    decided = (_decisions(explanation, decision) for decision in (Decision.MOVE, Decision.KEEP, Decision.RECOMPUTE))
    return "\n\n".join(filter(None, (*decided, _positions(explanation), _ledger(explanation.slots))))


def _decisions(explanation: Explanation, decision: Decision) -> str:
    chosen = explanation.decided(decision)
    if not chosen:
        return ""
    tensors = explanation.problem.graph.tensors

    def alike(choice: Choice) -> tuple[str, str, str]:
        about = tensors[choice.gap.tensor]
        return str(about.kind), pattern(about.name), choice.reason

    groups = grouped(chosen, alike)
    ordered = sorted(groups.items(), key=lambda item: -sum(c.gap.size_bytes for c in item[1]))
    lines = [
        (
            "kind",
            "tensors",
            "gaps",
            "size",
            "again" if decision is Decision.RECOMPUTE else "to",
            "idle",
            "copies",
            "score",
            "why",
        )
    ]
    for (kind, name, why), group in ordered[:MOST_LINES]:
        gaps = [choice.gap for choice in group]
        idle = human(median(gap.lead_ns + gap.trail_ns for gap in gaps), "ns")
        copies = human(median(gap.out_ns + gap.in_ns for gap in gaps), "ns")
        size, extra = human(sum(gap.size_bytes for gap in gaps), "B"), _extra(explanation, decision, group)
        lines.append((kind, name, str(len(gaps)), size, extra, idle, copies, _range(c.score.total for c in group), why))
    return _table(_head(explanation, decision, chosen), lines, len(ordered))


def _head(explanation: Explanation, decision: Decision, chosen: Sequence[Choice]) -> str:
    total = human(sum(choice.gap.size_bytes for choice in chosen if choice.reason != IN_PASSING), "B")
    gaps = counted(len(chosen), "idle gap")
    if decision is Decision.MOVE:
        return f"{counted(len(chosen), 'offload')}, {total}"
    if decision is Decision.KEEP:
        return f"kept: {gaps}, {total}"
    runs = {choice.remade.by: choice.remade.time_ns for choice in chosen if choice.remade}
    took = human(sum(runs.values()), "ns")
    return f"recompute: {gaps}, {total}, by {counted(len(runs), 'run')} of ops that take {took}"


def _extra(explanation: Explanation, decision: Decision, group: Sequence[Choice]) -> str:
    """Where to, or how long it takes to make one again."""
    if decision is Decision.MOVE:
        return ", ".join(sorted({explanation.problem.tiers[choice.gap.away] for choice in group}))
    return human(median(choice.remake_ns or 0 for choice in group), "ns") if decision is Decision.RECOMPUTE else ""


def _positions(explanation: Explanation) -> str:
    augmented = explanation.candidate.augmented
    moving = (one for one in augmented.cache_ops if one.role is not Role.DETACH)
    groups = grouped(moving, lambda one: (one.role, pattern(augmented.graph.tensors[one.tensor].name)))
    if not groups:
        return ""
    ordered = sorted(groups.items(), key=lambda item: (item[0][0], -sum(one.size_bytes for one in item[1])))
    lines = [("operator", "tensors", "count", "position, ops", "window, ops", "alone", "stall", "residency", "waited")]
    for (role, name), group in ordered[: 2 * MOST_LINES]:
        comes = role is Role.PREFETCH
        away = [one.before - one.position if comes else one.position - _last_use(explanation, one) for one in group]
        where = f"{_range(away)} before its use" if comes else _after_last_use(min(away), max(away))
        terms = ([one.stall_ns for one in group], [one.residency_ns for one in group])
        costs = [human(sum(term), "ns") for term in (*terms, [explanation.waited_ns(one) for one in group])]
        window = _range(one.last - one.first + 1 for one in group)
        alone = human(median(one.alone_ns for one in group), "ns")
        lines.append((role, name, str(len(group)), where, window, alone, *(costs if comes else ("", "", ""))))
    return _table("positions, the cost terms of Algorithm 1 there, and what the replay waited", lines, len(ordered))


def _after_last_use(low: int, high: int) -> str:
    """How many ops after its last use a tensor is stored; a store may be issued before that, once nobody writes it."""
    if low >= 0:
        return f"{_range((low, high))} after the last use"
    if high >= 0:
        return f"{-low} before to {high} after the last use"
    return f"{_range((-high, -low))} before the last use"


def _last_use(explanation: Explanation, one: CacheOp) -> int:
    return explanation.candidate.augmented.gaps[one.trip].after + 1


def _ledger(slots: Sequence[Slot]) -> str:
    if not slots:
        return ""
    links, width_ns = grouped(slots, lambda slot: slot.link), slots[0].end_ns - slots[0].start_ns
    many = len(next(iter(links.values())))
    lines = [f"channels, {many} slots of {human(width_ns, 'ns')} (! more is wanted than fits)"]
    width = max(8, *map(len, links))
    for link, mine in links.items():
        over = sum(slot.is_oversubscribed for slot in mine)
        wanted = "".join("!" if s.is_oversubscribed else _level(s.wanted_ns, s) for s in mine)
        busy = "".join(_level(s.busy_ns, s) for s in mine)
        share = sum(s.busy_ns for s in mine) / sum((s.end_ns - s.start_ns) * s.servers for s in mine)
        lines.append(f"  {link:<{width}} wanted  |{wanted}| {over} of {len(mine)} slots oversubscribed")
        lines.append(f"  {'':<{width}} busy    |{busy}| {percent(share)} of the step")
    return "\n".join(lines)


def _level(busy_ns: int, slot: Slot) -> str:
    share = busy_ns / ((slot.end_ns - slot.start_ns) * slot.servers)
    return _LEVELS[min(len(_LEVELS) - 1, int(share * (len(_LEVELS) - 1) + 0.999))]


def _range(values: Iterable[float]) -> str:
    found = sorted(values)
    low, high = (f"{value:.1f}" if isinstance(value, float) else str(value) for value in (found[0], found[-1]))
    return low if low == high else f"{low} to {high}"


def _table(head: str, lines: Sequence[Sequence[str]], groups: int) -> str:
    more = groups - (len(lines) - 1)
    rest = f"\n  and {more} more patterns" if more > 0 else ""
    return f"{head}\n{aligned_lines(lines, indent=2)}{rest}"


def tensor_told(explanation: Explanation, name: str) -> str:
    """Tell one tensor in full: its uses, each gap with the terms of its score, each cache operator with its costs.

    Parameters
    ----------
    explanation
        The plan.
    name
        Name of the tensor.

    Raises
    ------
    ConfigError
        If the graph has no such tensor.
    """
    problem = explanation.problem
    names = [tensor.name for tensor in problem.graph.tensors]
    if name not in names:
        near = get_close_matches(name, names, 1)
        do = f"did you mean {near[0]!r}?" if near else f"the first tensor is {names[0]!r}"
        raise ConfigError("--tensor", "the graph has the tensor", repr(name), do)
    tensor = names.index(name)
    about, uses = problem.graph.tensors[tensor], problem.lifetimes.uses[tensor]
    lines = [f"{name}: {about.kind}, {human(about.size_bytes, 'B')}, used by {len(uses)} ops"]
    ops = problem.graph.ops
    for use in uses:
        does = "writes" if use in problem.lifetimes.writes[tensor] else "reads"
        lines.append(f"  {does} it at {human(problem.clock[use], 'ns')} of compute: {ops[use].name}")
    if problem.pinned(tensor):
        lines.append("  its home is in the compute tier: it never leaves")
    mine = (choice for choice in explanation.choices if choice.gap.tensor == tensor)
    for choice in sorted(mine, key=lambda choice: choice.gap.after):
        lines += _gap_told(explanation, choice)
    return "\n".join(lines)


def _gap_told(explanation: Explanation, choice: Choice) -> list[str]:
    problem, gap, augmented = explanation.problem, choice.gap, explanation.candidate.augmented
    ops = problem.graph.ops
    until = ops[gap.before].name if gap.before < len(ops) else "the end of the step"
    idle = human(gap.lead_ns + gap.trail_ns, "ns")
    around = ", over the step boundary" if gap.wraps else ""
    why = f"idle for {idle}; {choice.decision}: {choice.reason}"
    terms = [f"{term} {value:+.2f}" for term, value in zip(TERMS, choice.score.terms, strict=True) if value]
    score = f"    score {choice.score.total:.2f} = {', '.join(terms)}"
    lines = [f"  gap from {ops[gap.after].name} to {until}{around}: {why}", score, *_remade_told(explanation, choice)]
    for one in augmented.cache_ops:
        own = augmented.gaps[one.trip]
        if (own.tensor, own.after, own.before, own.wraps) == (gap.tensor, gap.after, gap.before, gap.wraps):
            window = f"{augmented.point(one.first)} ... {augmented.point(one.last)}"
            wall = augmented.graph.ops[one.first - 1] if one.first else None
            behind = f", behind barrier {wall.name}" if wall and wall.barrier else ""
            lines.append(f"    {one.role} {augmented.point(one.position)}; window {window}{behind}")
            if one.role is not Role.DETACH:
                way = " to ".join(problem.tiers[tier] for tier in problem.path(one.source, one.target))
                lines.append(f"      {way}, {human(one.alone_ns, 'ns')} alone{_costs(explanation, one)}")
    return lines


def _remade_told(explanation: Explanation, choice: Choice) -> list[str]:
    """What making the tensor again takes, or would take, against its copies."""
    problem, made = explanation.problem, choice.remade
    copies = f"{human(choice.gap.out_ns + choice.gap.in_ns, 'ns')} of copies"
    if made is None:
        again = choice.remake_ns
        return [] if again is None else [f"    making it again would take {human(again, 'ns')}, against {copies}"]
    op, new = problem.graph.ops[made.by].name, problem.graph.tensors[made.tensor].name
    when, took, saved = human(problem.clock[made.by], "ns"), human(made.time_ns, "ns"), choice.gap.size_bytes
    room = "it was dead" if choice.reason == IN_PASSING else f"{human(saved, 'B')} are free meanwhile"
    return [
        f"    given up, and made again at {when} of compute by {op} in {took}, against {copies}; {room}",
        f"    from there on it is told as {new}",
    ]


def _costs(explanation: Explanation, one: CacheOp) -> str:
    if one.role is not Role.PREFETCH:
        return ""
    terms = f"; stall {human(one.stall_ns, 'ns')} + residency {human(one.residency_ns, 'ns')}"
    return f"{terms}; waited for {human(explanation.waited_ns(one), 'ns')} in the replay"
