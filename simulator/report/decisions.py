"""Explains a compiled plan: the decisions with their reasons, the cache operators, and the use of links.

Three tables, written as files, have every line. The text sums them up by patterns: names that differ only in numbers
(of layers) share a line, so that a large model stays readable. A single tensor can be explained in full.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any

from simulator.errors import ConfigError
from simulator.metrics.figures import local
from simulator.metrics.statistics import grouped
from simulator.plan import NOWHERE
from simulator.policies.static.analyse import TERMS
from simulator.policies.static.cache_ops import Role
from simulator.policies.static.explanation import Decision, Explanation
from simulator.report.files import write_csv
from simulator.report.tables import aligned, figures
from simulator.units import counted, did_you_mean, human

Line = dict[str, Any]
"""A line of a table, by column."""
MOST_LINES = 12
"""Most lines of a table, so that it stays readable; the others are only counted."""


def decisions(explanation: Explanation) -> list[Line]:
    """Return a row for each idle interval of a tensor: the decision, and every term of its score."""
    problem, ops = explanation.augmented.problem, explanation.augmented.problem.graph.ops
    lines = []
    for choice in explanation.choices:
        idle, about = choice.interval, problem.graph.tensors[choice.interval.tensor]
        is_made_again = choice.decision is Decision.RECOMPUTE
        line: Line = {"tensor": about.name, "kind": str(about.kind), "size_bytes": about.size_bytes}
        line |= {"after": ops[idle.after].name, "before": ops[idle.before].name if idle.before < len(ops) else ""}
        line |= {"wraps": int(idle.wraps), "idle_ns": idle.lead_ns + idle.trail_ns, "out_ns": idle.out_ns}
        line |= {"in_ns": idle.in_ns, "remake_ns": choice.remake_ns, "decision": str(choice.decision)}
        line |= {"tier": "" if is_made_again else problem.tiers[idle.away]}
        line |= {"score": choice.score.total}
        line |= {f"term_{term}": value for term, value in zip(TERMS, choice.score.terms, strict=True)}
        line |= {"reason": choice.reason, "made_by": ops[idle.before].name if is_made_again else ""}
        lines.append(line)
    return lines


def cache_ops(explanation: Explanation) -> list[Line]:
    """Return a row for each cache operator in issue order, with its window and its costs."""
    augmented, problem, lines = explanation.augmented, explanation.augmented.problem, []
    for op in augmented.cache_ops:
        line: Line = {"role": str(op.role), "trip": op.trip, "tensor": problem.graph.tensors[op.tensor].name}
        line |= {"source": problem.tiers[op.source]}
        line |= {"target": "" if op.target == NOWHERE else problem.tiers[op.target], "size_bytes": op.size_bytes}
        line |= {"alone_ns": op.alone_ns, "first_point": op.first, "position": op.position, "last_point": op.last}
        line |= {"issued": augmented.point(op.position), "stall_ns": op.stall_ns, "residency_ns": op.residency_ns}
        line["waited_ns"] = explanation.waited_ns[op.before, op.tensor] if op.role is Role.PREFETCH else 0
        lines.append(line)
    return lines


def slots(explanation: Explanation) -> list[Line]:
    """Return a row for each link and slot of the step: how long copies want the link, and how long it is busy."""
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


_COSTS = ("alone_ns", "stall_ns", "residency_ns", "waited_ns")
"""Columns of the costs of a cache operator."""
_FIGURES = local(
    text=("kind", "role", "tensors", "link", "to", "reason"), count=("count", "score", "slots oversubscribed"),
    B=("size",), ns=("idle", "copies", "remake", "alone", "stall", "residency", "waited"), share=("wanted", "busy"),
)  # fmt: skip
"""The columns of the tables."""


def plan_text(explanation: Explanation) -> str:
    """Write the whole plan as tables: decisions, cache operators and links."""
    parts = []
    for decision, lines in grouped(decisions(explanation), itemgetter("decision")).items():
        intervals = [idle | {"copies_ns": idle["out_ns"] + idle["in_ns"], "to": idle["tier"]} for idle in lines]
        rows = _alike(intervals, ("kind", "to", "reason"), ("idle_ns", "copies_ns", "remake_ns", "score"))
        for row in rows:
            row["score"] = round(row["score"] / row["count"], 1)
        remake = ["remake_ns"] if any(row["remake_ns"] for row in rows) else []
        columns = ("kind", "tensors", "count", "size_bytes", "to", "idle_ns", "copies_ns", *remake, "score", "reason")
        size = human(sum(row["size_bytes"] for row in rows), "B")
        parts.append(_cut(f"{decision}: {counted(len(intervals), 'idle interval')}, {size}", rows, columns))
    if moved := [line for line in cache_ops(explanation) if line["role"] != "detach"]:
        head = "cache operators, the cost terms of Algorithm 1 at their positions, and the waits of the replay"
        columns = ("role", "tensors", "count", "size_bytes", *_COSTS)
        parts.append(_cut(head, _alike(moved, ("role",), _COSTS), columns))
    by_link, used = grouped(slots(explanation), itemgetter("link")), list[Line]()
    for link, lines in by_link.items():
        served_ns = sum((slot["end_ns"] - slot["start_ns"]) * slot["servers"] for slot in lines)
        shares = {f"{use}_fraction": sum(slot[f"{use}_ns"] for slot in lines) / served_ns for use in ("wanted", "busy")}
        used.append({"link": link, **shares, "slots_oversubscribed": sum(slot["oversubscribed"] for slot in lines)})
    if used:
        count = counted(len(next(iter(by_link.values()))), "slot")
        parts.append(_cut(f"links, in {count} of the step", used, tuple(used[0])))
    return "\n\n".join(parts)


def _alike(lines: Sequence[Line], same: Sequence[str], summed: Sequence[str]) -> list[Line]:
    """Sum up rows that agree in some columns, and in the tensor's name except for numbers; the largest come first."""
    alike = grouped(lines, lambda line: (re.sub(r"\d+", "*", line["tensor"]), *(line[column] for column in same)))
    rows = []
    for (pattern, *values), group in alike.items():
        row: Line = {"tensors": pattern, "count": len(group), **dict(zip(same, values, strict=True))}
        rows.append(row | {column: sum(line[column] or 0 for line in group) for column in ("size_bytes", *summed)})
    return sorted(rows, key=itemgetter("size_bytes"), reverse=True)


def _cut(head: str, rows: Sequence[Line], columns: Sequence[str]) -> str:
    more = f"\n  and {len(rows) - MOST_LINES} more patterns" if len(rows) > MOST_LINES else ""
    return f"{head}\n{aligned(figures(rows[:MOST_LINES], columns, _FIGURES), 2)}{more}"


def tensor_text(explanation: Explanation, name: str) -> str:
    """Explain one tensor: each idle interval with the terms of its score, each cache operator with its costs.

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
    tensors = {tensor.name: tensor for tensor in explanation.augmented.problem.graph.tensors}
    if name not in tensors:
        do = did_you_mean(name, tensors, f"the first tensor is {next(iter(tensors))!r}")
        raise ConfigError("--tensor", "the graph has the tensor", repr(name), do)
    texts = [f"{name}: {tensors[name].kind}, {human(tensors[name].size_bytes, 'B')}"]
    for idle in (line for line in decisions(explanation) if line["tensor"] == name):
        until, lasts = idle["before"] or "the end of the step", human(idle["idle_ns"], "ns")
        terms = (f"{term} {idle[f'term_{term}']:+.2f}" for term in TERMS if idle[f"term_{term}"])
        texts.append(f"  idle from {idle['after']} to {until}, for {lasts}; {idle['decision']}: {idle['reason']}")
        texts.append(f"    score {idle['score']:.2f} = {', '.join(terms)}")
        if idle["remake_ns"] is not None:
            by, copies = f" by {idle['made_by']}" * bool(idle["made_by"]), human(idle["out_ns"] + idle["in_ns"], "ns")
            texts.append(f"    remaking it{by} takes {human(idle['remake_ns'], 'ns')}, its copies {copies}")
    point = explanation.augmented.point
    for op in (line for line in cache_ops(explanation) if line["tensor"] == name):
        window = f"{point(op['first_point'])} ... {point(op['last_point'])}"
        costs = ", ".join(f"{_FIGURES[cost].head} {human(op[cost], 'ns')}" for cost in _COSTS)
        texts.append(f"  {op['role']} {op['issued']}; window {window}")
        texts += [f"    {op['source']} to {op['target']}: {costs}"] if op["target"] else []
    return "\n".join(texts)
