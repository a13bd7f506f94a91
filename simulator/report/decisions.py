"""A compiled plan for readers: what moved and why, where each cache operator is, and how busy the links are.

Everything is in three tables, which are written as files. The text sums them up by patterns: names that differ in their
numbers alone (layers) share a line, so that a large model stays readable; one tensor can be told in full.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from operator import itemgetter
from pathlib import Path
from statistics import fmean
from typing import Any

from simulator.errors import ConfigError
from simulator.plan import NOWHERE
from simulator.policies.static.analyse import TERMS
from simulator.policies.static.augmented import Role
from simulator.policies.static.explanation import Decision, Explanation
from simulator.report.files import write_csv
from simulator.report.rows import grouped, listed
from simulator.report.tables import Column, Heads, aligned, table
from simulator.units import closest, counted, human

Line = dict[str, Any]
"""A line of a table, by column."""
Group = Sequence[Line]
MOST_LINES = 12
"""Lines of a table; what is left over is counted."""


def decisions(explanation: Explanation) -> list[Line]:
    """Make a table of the decisions, one line a gap, with every term of its score."""
    problem, ops = explanation.problem, explanation.problem.graph.ops
    lines = []
    for choice in explanation.choices:
        gap, about = choice.gap, problem.graph.tensors[choice.gap.tensor]
        is_made_again = choice.decision is Decision.RECOMPUTE
        line: Line = {"tensor": about.name, "kind": str(about.kind), "size_bytes": about.size_bytes}
        line |= {"after": ops[gap.after].name, "before": ops[gap.before].name if gap.before < len(ops) else ""}
        line |= {"wraps": int(gap.wraps), "idle_ns": gap.lead_ns + gap.trail_ns, "out_ns": gap.out_ns}
        line |= {"in_ns": gap.in_ns, "remake_ns": choice.remake_ns, "decision": str(choice.decision)}
        line |= {"tier": "" if is_made_again else problem.tiers[gap.away]}
        line |= {"score": choice.score.total}
        line |= {f"term_{term}": value for term, value in zip(TERMS, choice.score.terms, strict=True)}
        line |= {"reason": choice.reason, "made_by": ops[gap.before].name if is_made_again else ""}
        lines.append(line)
    return lines


def cache_ops(explanation: Explanation) -> list[Line]:
    """Make a table of the cache operators in the order of issue, with their windows and costs."""
    augmented, problem, lines = explanation.candidate.augmented, explanation.problem, []
    for one in augmented.cache_ops:
        line: Line = {"role": str(one.role), "trip": one.trip, "tensor": problem.graph.tensors[one.tensor].name}
        line |= {"source": problem.tiers[one.source]}
        line |= {"target": "" if one.target == NOWHERE else problem.tiers[one.target], "size_bytes": one.size_bytes}
        line |= {"alone_ns": one.alone_ns, "first_point": one.first, "position": one.position, "last_point": one.last}
        line |= {"issued": augmented.point(one.position), "stall_ns": one.stall_ns, "residency_ns": one.residency_ns}
        line |= {"waited_ns": explanation.waited_ns(one) if one.role is Role.PREFETCH else 0}
        lines.append(line)
    return lines


def slots(explanation: Explanation) -> list[Line]:
    """Make a table of the links by slot of the step, with what is wanted of each and what it does."""
    return [slot._asdict() | {"oversubscribed": int(slot.is_oversubscribed)} for slot in explanation.slots]


def write(explanation: Explanation, folder: Path) -> None:
    """Write ``decisions.csv``, ``cache_ops.csv`` and ``ledger.csv``.

    Parameters
    ----------
    explanation
        The plan.
    folder
        An existing folder.
    """
    for name, lines in (("decisions", decisions), ("cache_ops", cache_ops), ("ledger", slots)):
        rows = ({c: f"{v:.6g}" if isinstance(v, float) else v for c, v in line.items()} for line in lines(explanation))
        write_csv(folder / f"{name}.csv", list(rows))


def _sum(*columns: str) -> Callable[[Group], int]:
    return lambda own: sum(line[column] or 0 for line in own for column in columns)


def _pattern(own: Group) -> str:
    return re.sub(r"\d+", "*", own[0]["tensor"])


_NAMES: Heads[Group] = {
    "tensors": ("text", _pattern),
    "count": ("count", len),
    "size": ("B", _sum("size_bytes")),
}
_COSTS = {"alone": "alone_ns", "stall": "stall_ns", "residency": "residency_ns", "waited": "waited_ns"}
"""Heading of what a cache operator costs -> its column."""


def told(explanation: Explanation) -> str:
    """Tell the whole plan: its decisions, its cache operators, and the links, each as a table."""
    parts = [_decided(own) for own in grouped(decisions(explanation), itemgetter("decision")).values()]
    if moved := cache_ops(explanation):
        head = "cache operators, the cost terms of Algorithm 1 at their positions, and what the replay waited"
        groups = _alike([line for line in moved if line["role"] != "detach"], "role")
        costs: Heads[Group] = {cost: ("ns", _sum(column)) for cost, column in _COSTS.items()}
        parts.append(_cut(head, table(groups, {"operator": ("text", lambda own: own[0]["role"]), **_NAMES, **costs})))
    if links := list(grouped(slots(explanation), itemgetter("link")).values()):
        columns = table(
            links,
            {
                "link": ("text", lambda own: own[0]["link"]),
                "wanted": ("share", lambda own: _sum("wanted_ns")(own) / _served_ns(own)),
                "busy": ("share", lambda own: _sum("busy_ns")(own) / _served_ns(own)),
                "slots oversubscribed": ("count", _sum("oversubscribed")),
            },
        )
        parts.append(_cut(f"links, in {counted(len(links[0]), 'slot')} of the step", columns))
    return "\n\n".join(parts)


def _served_ns(own: Group) -> int:
    """How long a link can serve in all its slots [ns]."""
    return sum((slot["end_ns"] - slot["start_ns"]) * slot["servers"] for slot in own)


def _alike(lines: Sequence[Line], *columns: str) -> list[Group]:
    """Put lines together whose tensors differ in their numbers alone, and that agree in some columns; largest first."""
    groups = grouped(lines, lambda line: (*(line[column] for column in columns), _pattern([line])))
    return sorted(groups.values(), key=_sum("size_bytes"), reverse=True)


def _decided(lines: Sequence[Line]) -> str:
    """The gaps of one decision."""
    again: Heads[Group] = {"made again in": ("ns", _sum("remake_ns"))} if _sum("remake_ns")(lines) else {}
    columns = table(
        _alike(lines, "kind", "reason"),
        {
            "kind": ("text", lambda own: own[0]["kind"]),
            **_NAMES,
            "to": ("text", lambda own: listed(sorted({line["tier"] for line in own}))),
            "idle": ("ns", _sum("idle_ns")),
            "copies": ("ns", _sum("out_ns", "in_ns")),
            **again,
            "score": ("count", lambda own: f"{fmean(line['score'] for line in own):.1f}"),
            "why": ("text", lambda own: own[0]["reason"]),
        },
    )
    size = human(_sum("size_bytes")(lines), "B")
    return _cut(f"{lines[0]['decision']}: {counted(len(lines), 'idle interval')}, {size}", columns)


def _cut(head: str, columns: Sequence[Column]) -> str:
    more = len(columns[0].cells) - MOST_LINES
    cut = [Column(column.head, column.cells[:MOST_LINES], column.left) for column in columns]
    return f"{head}\n{aligned(cut, 2)}" + (f"\n  and {more} more patterns" if more > 0 else "")


def tensor_told(explanation: Explanation, name: str) -> str:
    """Tell one tensor in full: each gap with the terms of its score, each cache operator with its costs.

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
    tensors = {tensor.name: tensor for tensor in explanation.problem.graph.tensors}
    if name not in tensors:
        near = closest(name, tensors)
        do = f"did you mean {near!r}?" if near else f"the first tensor is {next(iter(tensors))!r}"
        raise ConfigError("--tensor", "the graph has the tensor", repr(name), do)
    said = [f"{name}: {tensors[name].kind}, {human(tensors[name].size_bytes, 'B')}"]
    for gap in (line for line in decisions(explanation) if line["tensor"] == name):
        until, idle = gap["before"] or "the end of the step", human(gap["idle_ns"], "ns")
        terms = (f"{term} {gap[f'term_{term}']:+.2f}" for term in TERMS if gap[f"term_{term}"])
        said.append(f"  idle from {gap['after']} to {until}, for {idle}; {gap['decision']}: {gap['reason']}")
        said.append(f"    score {gap['score']:.2f} = {', '.join(terms)}")
        if gap["remake_ns"] is not None:
            by, copies = f" by {gap['made_by']}" * bool(gap["made_by"]), human(gap["out_ns"] + gap["in_ns"], "ns")
            said.append(f"    making it again{by} takes {human(gap['remake_ns'], 'ns')}, its copies {copies}")
    point = explanation.candidate.augmented.point
    for one in (line for line in cache_ops(explanation) if line["tensor"] == name):
        window = f"{point(one['first_point'])} ... {point(one['last_point'])}"
        costs = ", ".join(f"{cost} {human(one[column], 'ns')}" for cost, column in _COSTS.items())
        said.append(f"  {one['role']} {one['issued']}; window {window}")
        said += [f"    {one['source']} to {one['target']}: {costs}"] if one["target"] else []
    return "\n".join(said)
