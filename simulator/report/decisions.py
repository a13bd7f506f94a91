"""A compiled plan for readers: what moved and why, where each cache operator is, and how busy the links are.

Everything is in three tables, which are written as files. The text sums them up by patterns: names that differ in their
numbers alone (layers) share a line, so that a large model stays readable; one tensor can be told in full.
"""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import NDArray

from simulator.errors import ConfigError
from simulator.lifetime import live_bytes
from simulator.plan import NOWHERE
from simulator.policies.static.analyse import TERMS
from simulator.policies.static.augmented import Role
from simulator.policies.static.explanation import Decision, Explanation
from simulator.report.drawing import FAINT, LIMIT, Picture, label, styled, units
from simulator.report.rows import grouped, listed, percent
from simulator.report.tables import Column, aligned
from simulator.units import counted, human

if TYPE_CHECKING:
    import pandas as pd

MOST_LINES = 12
"""Lines of a table; what is left over is counted."""
_ROLE_COLOUR = {Role.STORE: "#ee7733", Role.PREFETCH: "#0077bb", Role.DETACH: "#bbbbbb"}
_BUSY, _WANTED = "#bbccdd", "#4477aa"
_CUT = 200
"""Per cent of what a link can serve at which what is wanted of it is cut."""


def decisions(explanation: Explanation) -> pd.DataFrame:
    """Make a table of the decisions, one line a gap, with every term of its score."""
    problem, ops = explanation.problem, explanation.problem.graph.ops
    rows = []
    for choice in explanation.choices:
        gap, about = choice.gap, problem.graph.tensors[choice.gap.tensor]
        row: dict[str, Any] = {"tensor": about.name, "kind": str(about.kind), "size_bytes": about.size_bytes}
        row |= {"after": ops[gap.after].name, "before": ops[gap.before].name if gap.before < len(ops) else ""}
        row |= {"wraps": int(gap.wraps), "idle_ns": gap.lead_ns + gap.trail_ns, "out_ns": gap.out_ns}
        row |= {"in_ns": gap.in_ns, "remake_ns": choice.remake_ns, "decision": str(choice.decision)}
        row |= {"tier": "" if choice.decision is Decision.RECOMPUTE else problem.tiers[gap.away]}
        row |= {"score": choice.score.total, **dict(zip((f"term_{t}" for t in TERMS), choice.score.terms, strict=True))}
        rows.append(row | {"reason": choice.reason, "made_by": ops[choice.remade.by].name if choice.remade else ""})
    return _frame(rows).astype({"remake_ns": "Int64"} if rows else {})


def cache_ops(explanation: Explanation) -> pd.DataFrame:
    """Make a table of the cache operators in the order of issue, with their windows and costs."""
    augmented = explanation.candidate.augmented
    rows = []
    for one in augmented.cache_ops:
        row: dict[str, Any] = {
            "role": str(one.role),
            "trip": one.trip,
            "tensor": augmented.graph.tensors[one.tensor].name,
        }
        row |= {"source": augmented.tiers[one.source]}
        row |= {"target": "" if one.target == NOWHERE else augmented.tiers[one.target], "size_bytes": one.size_bytes}
        row |= {"alone_ns": one.alone_ns, "first_point": one.first, "position": one.position, "last_point": one.last}
        row |= {"issued": augmented.point(one.position), "stall_ns": one.stall_ns, "residency_ns": one.residency_ns}
        rows.append(row | {"waited_ns": explanation.waited_ns(one) if one.role is Role.PREFETCH else 0})
    return _frame(rows)


def slots(explanation: Explanation) -> pd.DataFrame:
    """Make a table of the links by slot of the step, with what is wanted of each and what it does."""
    return _frame([slot._asdict() | {"oversubscribed": int(slot.is_oversubscribed)} for slot in explanation.slots])


def _frame(rows: list[dict[str, Any]]) -> pd.DataFrame:
    import pandas as pd  # noqa: PLC0415 - slow to import

    return pd.DataFrame(rows)


def write(explanation: Explanation, folder: Path) -> None:
    """Write ``decisions.csv``, ``cache_ops.csv``, ``ledger.csv`` and ``plan.png``.

    Parameters
    ----------
    explanation
        The plan.
    folder
        An existing folder.
    """
    for name, table in (("decisions", decisions), ("cache_ops", cache_ops), ("ledger", slots)):
        table(explanation).to_csv(folder / f"{name}.csv", index=False, lineterminator="\n", float_format="%.6g")
    (folder / "plan.png").write_bytes(picture(explanation).png())


def told(explanation: Explanation) -> str:
    """Tell the whole plan: its decisions, its cache operators, and the links, each as a table."""
    decided, moved, links = decisions(explanation), cache_ops(explanation), slots(explanation)
    parts = [_decided(part) for name, part in decided.groupby("decision", sort=False)] if len(decided) else []
    if len(moved):
        groups = _grouped(moved[moved["role"] != "detach"], ["role"])
        costs = [_sum(groups, f"{name}_ns", head) for name, head in _COSTS.items()]
        head = "cache operators, the cost terms of Algorithm 1 at their positions, and what the replay waited"
        parts.append(_table(head, [_key(groups, 0, "operator"), *_names(groups), *costs]))
    if len(links):
        served = (links["end_ns"] - links["start_ns"]) * links["servers"]
        sums = links.assign(served_ns=served).groupby("link", sort=False).sum(numeric_only=True)
        shares = {name: (sums[f"{name}_ns"] / sums["served_ns"]).map(percent) for name in ("wanted", "busy")}
        columns = [Column.texts("link", sums.index)] + [Column.texts(*item, left=False) for item in shares.items()]
        columns.append(Column.texts("slots oversubscribed", sums["oversubscribed"], left=False))
        parts.append(_table(f"links, in {counted(len(links) // len(sums), 'slot')} of the step", columns))
    return "\n\n".join(parts)


_COSTS = {"alone": "alone", "stall": "stall", "residency": "residency", "waited": "waited"}


def _grouped(table: pd.DataFrame, keys: list[str]) -> list[tuple[Any, pd.DataFrame]]:
    """Put rows together whose tensors differ in their numbers alone, and that agree in some columns; largest first."""
    pattern = table["tensor"].str.replace(r"\d+", "*", regex=True)
    groups = table.assign(pattern=pattern).groupby([*keys, "pattern"], sort=False)
    return sorted(groups, key=lambda group: -int(group[1]["size_bytes"].sum()))


def _key(groups: list[tuple[Any, pd.DataFrame]], number: int, head: str) -> Column:
    return Column.texts(head, (key[number] for key, _ in groups))


def _names(groups: list[tuple[Any, pd.DataFrame]]) -> list[Column]:
    sizes = (human(int(own["size_bytes"].sum()), "B") for _, own in groups)
    counts = Column.texts("count", (len(own) for _, own in groups), left=False)
    return [_key(groups, -1, "tensors"), counts, Column.texts("size", sizes, left=False)]


def _sum(groups: list[tuple[Any, pd.DataFrame]], column: str, head: str) -> Column:
    return Column.texts(head, (human(int(own[column].sum()), "ns") for _, own in groups), left=False)


def _decided(table: pd.DataFrame) -> str:
    """The gaps of one decision."""
    groups = _grouped(table, ["kind", "reason"])
    copies = [(key, own.assign(copies_ns=own["out_ns"] + own["in_ns"])) for key, own in groups]
    scores = (f"{own['score'].mean():.1f}" for _, own in groups)
    columns = [_key(groups, 0, "kind"), *_names(groups)]
    columns += [Column.texts("to", (listed(sorted(set(own["tier"]))) for _, own in groups))]
    columns += [_sum(groups, "idle_ns", "idle"), _sum(copies, "copies_ns", "copies")]
    columns += [_sum(groups, "remake_ns", "made again in")] if table["remake_ns"].any() else []
    columns += [Column.texts("score", scores, left=False), _key(groups, 1, "why")]
    size = human(int(table["size_bytes"].sum()), "B")
    return _table(f"{table['decision'].iloc[0]}: {counted(len(table), 'idle gap')}, {size}", columns)


def _table(head: str, columns: list[Column]) -> str:
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
        near = get_close_matches(name, tensors, 1)
        do = f"did you mean {near[0]!r}?" if near else f"the first tensor is {next(iter(tensors))!r}"
        raise ConfigError("--tensor", "the graph has the tensor", repr(name), do)
    lines = [f"{name}: {tensors[name].kind}, {human(tensors[name].size_bytes, 'B')}"]
    for gap in _records(decisions(explanation), name):
        until, idle = gap["before"] or "the end of the step", human(gap["idle_ns"], "ns")
        terms = (f"{term} {gap[f'term_{term}']:+.2f}" for term in TERMS if gap[f"term_{term}"])
        lines.append(f"  gap from {gap['after']} to {until}: idle for {idle}; {gap['decision']}: {gap['reason']}")
        lines.append(f"    score {gap['score']:.2f} = {', '.join(terms)}")
        if gap["remake_ns"] is not None:
            by, copies = f" by {gap['made_by']}" * bool(gap["made_by"]), human(gap["out_ns"] + gap["in_ns"], "ns")
            lines.append(f"    making it again{by} takes {human(gap['remake_ns'], 'ns')}, its copies {copies}")
    point = explanation.candidate.augmented.point
    for one in _records(cache_ops(explanation), name):
        lines.append(
            f"  {one['role']} {one['issued']}; window {point(one['first_point'])} ... {point(one['last_point'])}"
        )
        costs = ", ".join(f"{head} {human(one[f'{cost}_ns'], 'ns')}" for cost, head in _COSTS.items())
        lines += [f"    {one['source']} to {one['target']}: {costs}"] if one["target"] else []
    return "\n".join(lines)


def _records(table: pd.DataFrame, name: str) -> list[dict[Any, Any]]:
    """The lines of a table that are about a tensor."""
    own = table[table["tensor"] == name].astype(object)
    return own.where(own.notna(), None).to_dict("records")


@styled()
def picture(explanation: Explanation) -> Picture:
    """Draw what is live against the budget and each trip, over compute time; below, each link over time, with stalls.

    Parameters
    ----------
    explanation
        The plan.
    """
    links, graph = grouped(explanation.slots, lambda slot: slot.link), explanation.problem.graph
    heights = [1.8, 2.4, *[1.1] * len(links)]
    drawn = Picture(sum(heights))
    live, trips, *below = drawn.subplots(len(heights), height_ratios=heights)
    trips.sharex(live)
    marks = _draw_live(live, explanation) | _draw_trips(trips, explanation)
    for ax, (link, own) in zip(below, links.items(), strict=True):
        unit, ns = units(own[-1].end_ns)
        edges = np.array([own[0].start_ns, *(slot.end_ns for slot in own)]) / ns
        served = np.array([(slot.end_ns - slot.start_ns) * slot.servers for slot in own])
        busy, wanted = (
            100 * np.array([getattr(slot, name) for slot in own]) / served for name in ("busy_ns", "wanted_ns")
        )
        ax.stairs(busy, edges, fill=True, color=_BUSY)
        ax.stairs(wanted.clip(max=_CUT), edges, baseline=None, color=_WANTED)
        ax.axhline(100, color=FAINT, linewidth=0.8)
        label(ax, y=f"{link} [%]", x=f"time of a step, with its stalls [{unit}]" if ax is below[-1] else "")
    of_links: dict[str, Any] = {"link is busy": _BUSY, f"wanted (cut at {_CUT} %)": {"color": _WANTED}}
    title = f"what the plan of {explanation.plan.policy!r} decides ({graph.name})"
    drawn.head(title, marks | (of_links if links else {}))
    return drawn


def _clock(explanation: Explanation) -> tuple[str, NDArray[np.float64]]:
    """When each op begins if nothing stalls, and the end, in a unit of time."""
    unit, ns = units(int(explanation.problem.clock[-1]))
    return unit, np.array(explanation.problem.clock) / ns


def _draw_live(ax: Axes, explanation: Explanation) -> dict[str, Any]:
    problem, (_, clock) = explanation.problem, _clock(explanation)
    resident, chosen = live_bytes(problem.graph, problem.lifetimes), explanation.candidate.selection.live_bytes
    unit, size = units(int(resident.max(initial=1)), "B")
    looks: dict[str, dict[str, Any]] = {
        "live, if nothing moves": {"color": "#bbbbbb"},
        "live, as selected": {"color": "#009988"},
    }
    for look, amount in zip(list(looks.values()), (resident, chosen), strict=True):
        ax.step(clock[:-1], amount / size, where="post", **look)
    if np.isfinite(problem.budget_bytes):
        ax.axhline(problem.budget_bytes / size, **LIMIT)
        looks["room"] = LIMIT
    ax.set_ylim(bottom=0)
    label(ax, y=f"live [{unit}]")
    return looks


def _draw_trips(ax: Axes, explanation: Explanation) -> dict[str, Any]:
    """One line a trip: from the store to the detach, away, and from the prefetch to the use."""
    augmented, (unit, clock) = explanation.candidate.augmented, _clock(explanation)
    away = [(trip, gap.after + 1, gap.before) for trip, gap in enumerate(augmented.gaps) if not gap.wraps]
    comes = [(one.trip, one.position, one.before) for one in augmented.cache_ops if one.role is Role.PREFETCH]
    stores = [(one.trip, one.position) for one in augmented.cache_ops if one.role is Role.STORE]
    looks: dict[str, dict[str, Any]] = {
        "away": {"color": "#cccccc", "linewidth": 0.7},
        "prefetch issued ... use": {"color": _ROLE_COLOUR[Role.PREFETCH], "linewidth": 1.5},
        "store issued": {"color": _ROLE_COLOUR[Role.STORE], "linestyle": "", "marker": ">", "markersize": 3},
    }
    for trips, look in zip((away, comes), looks.values(), strict=False):
        number, start, end = np.array(trips, int).reshape(-1, 3).T
        ax.hlines(number, clock[start], clock[end], **look)
    number, at = np.array(stores, int).reshape(-1, 2).T
    ax.plot(clock[at], number, **looks["store issued"])
    label(ax, x=f"compute time, without stalls [{unit}]", y="trips")
    return {name: look for (name, look), shown in zip(looks.items(), (away, comes, stores), strict=True) if shown}
