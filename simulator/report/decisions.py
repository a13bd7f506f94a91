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
from simulator.plan import COMPUTE
from simulator.policies.static.augmented import CacheOp, Role
from simulator.policies.static.explanation import Explanation
from simulator.policies.static.ledger import Slot
from simulator.policies.static.score import TERMS
from simulator.policies.static.select import Choice, Decision
from simulator.report.rows import percent
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
    parts = [
        _decisions(explanation, Decision.MOVE),
        _decisions(explanation, Decision.KEEP),
        _repeated(explanation),
        _positions(explanation),
        _ledger(explanation.slots),
    ]
    return "\n\n".join(part for part in parts if part)


def _decisions(explanation: Explanation, decision: Decision) -> str:
    chosen = explanation.decided(decision)
    if not chosen:
        return ""
    tensors, tiers = explanation.problem.graph.tensors, explanation.problem.tiers
    groups: dict[tuple[str, ...], list[Choice]] = {}
    for choice in chosen:
        about = tensors[choice.gap.tensor]
        groups.setdefault((str(about.kind), pattern(about.name), choice.reason), []).append(choice)
    ordered = sorted(groups.items(), key=lambda item: -sum(c.gap.size_bytes for c in item[1]))
    lines = [("kind", "tensors", "gaps", "size", "to", "idle", "copies", "score", "why")]
    for (kind, name, why), group in ordered[:MOST_LINES]:
        gaps = [choice.gap for choice in group]
        to = ", ".join(sorted({tiers[gap.away] for gap in gaps})) if decision is Decision.MOVE else ""
        idle = human(median(gap.lead_ns + gap.trail_ns for gap in gaps), "ns")
        copies = human(median(gap.out_ns + gap.in_ns for gap in gaps), "ns")
        size = human(sum(gap.size_bytes for gap in gaps), "B")
        lines.append((kind, name, str(len(gaps)), size, to, idle, copies, _range(c.score.total for c in group), why))
    total = human(sum(choice.gap.size_bytes for choice in chosen), "B")
    head = f"{'spent away' if decision is Decision.MOVE else 'kept'}: {len(chosen):,} idle gaps, {total}"
    return _table(head, lines, len(ordered))


def _repeated(explanation: Explanation) -> str:
    """Ops that run again instead of what they made being kept or moved."""
    steps, problem = explanation.plan.fixed, explanation.problem
    groups: dict[str, list[int]] = {}
    seen: set[int] = set()
    runs = (a for kind, a, _, _ in steps.codes() if kind == COMPUTE) if steps is not None else ()
    for run, op in enumerate(runs):
        if op in seen:
            groups.setdefault(pattern(problem.graph.ops[run].name), []).append(run)
        seen.add(op)
    if not groups:
        return ""
    lines = [("ops", "runs", "time", "makes again")]
    ordered = sorted(groups.items(), key=lambda item: -_made_bytes(explanation, item[1]))
    for name, group in ordered[:MOST_LINES]:
        time_ns = sum(problem.durations_ns[run] for run in group)
        lines.append((name, str(len(group)), human(time_ns, "ns"), human(_made_bytes(explanation, group), "B")))
    every = [run for group in groups.values() for run in group]
    time_ns = sum(problem.durations_ns[run] for run in every)
    head = f"run again: {counted(len(every), 'op')}, {human(time_ns, 'ns')}"
    return _table(head, lines, len(ordered))


def _made_bytes(explanation: Explanation, runs: Iterable[int]) -> int:
    graph = explanation.problem.graph
    return sum(graph.tensors[t].size_bytes for run in runs for t in graph.ops[run].writes)


def _positions(explanation: Explanation) -> str:
    augmented = explanation.candidate.augmented
    groups: dict[tuple[Role, str], list[CacheOp]] = {}
    for one in augmented.cache_ops:
        if one.role is not Role.DETACH:
            groups.setdefault((one.role, pattern(augmented.graph.tensors[one.tensor].name)), []).append(one)
    if not groups:
        return ""
    ordered = sorted(groups.items(), key=lambda item: (item[0][0], -sum(one.size_bytes for one in item[1])))
    lines = [("operator", "tensors", "count", "position, ops", "window, ops", "alone", "stall", "residency")]
    for (role, name), group in ordered[: 2 * MOST_LINES]:
        comes = role is Role.PREFETCH
        away = [one.before - one.position if comes else one.position - _last_use(explanation, one) for one in group]
        where = f"{_range(away)} {'before its use' if comes else 'after the last use'}"
        costs = [human(sum(getattr(one, key) for one in group), "ns") for key in ("stall_ns", "residency_ns")]
        window = _range(one.last - one.first + 1 for one in group)
        alone = human(median(one.alone_ns for one in group), "ns")
        lines.append((role, name, str(len(group)), where, window, alone, *(costs if comes else ("", ""))))
    return _table("positions, and the cost terms of Algorithm 1 there", lines, len(ordered))


def _last_use(explanation: Explanation, one: CacheOp) -> int:
    return explanation.candidate.augmented.gaps[one.trip].after + 1


def _ledger(slots: Sequence[Slot]) -> str:
    if not slots:
        return ""
    links: dict[str, list[Slot]] = {}
    for slot in slots:
        links.setdefault(slot.link, []).append(slot)
    width_ns = slots[0].end_ns - slots[0].start_ns
    lines = [
        f"channels, {len(next(iter(links.values())))} slots of {human(width_ns, 'ns')} (! more is wanted than fits)"
    ]
    for link, mine in links.items():
        over = sum(slot.is_oversubscribed for slot in mine)
        wanted = "".join("!" if s.is_oversubscribed else _level(s.wanted_ns, s) for s in mine)
        busy = "".join(_level(s.busy_ns, s) for s in mine)
        share = sum(s.busy_ns for s in mine) / sum((s.end_ns - s.start_ns) * s.servers for s in mine)
        lines.append(f"  {link:<8} wanted  |{wanted}| {over} of {len(mine)} slots oversubscribed")
        lines.append(f"  {'':<8} busy    |{busy}| {percent(share)} of the step")
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
    return "\n".join([*lines, *_made_again(explanation, name)])


def _made_again(explanation: Explanation, name: str) -> list[str]:
    """Where a tensor that was given up is made again; from there on it is a tensor of its own."""
    problem = explanation.problem
    found = []
    for tensor, about in enumerate(problem.graph.tensors):
        if re.fullmatch(rf"{re.escape(name)}#\d+", about.name) and problem.lifetimes.writes[tensor]:
            op = problem.lifetimes.writes[tensor][0]
            when, took = (human(ns, "ns") for ns in (problem.clock[op], problem.durations_ns[op]))
            found.append(f"  given up, and made again at {when} of compute by {problem.graph.ops[op].name} in {took}")
            found.append(f"    from there on it is told as {about.name}")
    return found


def _gap_told(explanation: Explanation, choice: Choice) -> list[str]:
    problem, gap, augmented = explanation.problem, choice.gap, explanation.candidate.augmented
    ops = problem.graph.ops
    until = ops[gap.before].name if gap.before < len(ops) else "the end of the step"
    idle = human(gap.lead_ns + gap.trail_ns, "ns")
    around = ", over the step boundary" if gap.wraps else ""
    lines = [
        f"  gap from {ops[gap.after].name} to {until}{around}: idle for {idle}; {choice.decision}: {choice.reason}"
    ]
    terms = [f"{term} {value:+.2f}" for term, value in zip(TERMS, choice.score.terms, strict=True) if value]
    lines.append(f"    score {choice.score.total:.2f} = {', '.join(terms)}")
    for one in augmented.cache_ops:
        own = augmented.gaps[one.trip]
        if (own.tensor, own.after, own.before, own.wraps) == (gap.tensor, gap.after, gap.before, gap.wraps):
            window = f"{augmented.point(one.first)} ... {augmented.point(one.last)}"
            lines.append(f"    {one.role} {augmented.point(one.position)}; window {window}")
            if one.role is not Role.DETACH:
                way = f"{problem.tiers[one.source]} to {problem.tiers[one.target]}"
                lines.append(f"      {way}, {human(one.alone_ns, 'ns')} alone{_costs(one)}")
    return lines


def _costs(one: CacheOp) -> str:
    if one.role is not Role.PREFETCH:
        return ""
    return f"; stall {human(one.stall_ns, 'ns')} + residency {human(one.residency_ns, 'ns')}"
