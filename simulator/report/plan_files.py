"""Files about a compiled plan: tables of decisions, cache operators and channel slots, a drawing and a picture."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from simulator.lifetime import live_bytes
from simulator.plan import NOWHERE
from simulator.policies.static.analyse import TERMS
from simulator.policies.static.augmented import Augmented, Role
from simulator.policies.static.explanation import Decision, Explanation
from simulator.policies.static.ledger import Slot
from simulator.report.drawing import Picture, byte_unit, stacked, styled, units
from simulator.report.rows import grouped

_ROLE_COLOUR = {Role.STORE: "#ee7733", Role.PREFETCH: "#0077bb", Role.DETACH: "#bbbbbb"}
_WANTED, _TOO_MUCH, _BUSY = "#4477aa", "#cc3311", "#bbccdd"
_AWAY = "#cccccc"
_STORE_MARK: dict[str, Any] = {"marker": ">", "markersize": 3}
_PREFETCH_MARK: dict[str, Any] = {"marker": "|", "markersize": 4, "markevery": [0]}
_MOST_TRIPS = 400
_CUT = 200
"""Per cent of what a link can serve at which a bar is cut."""


def write(explanation: Explanation, folder: Path) -> None:
    """Write ``decisions.csv``, ``cache_ops.csv``, ``ledger.csv``, ``graph.dot`` and ``plan.png``.

    Parameters
    ----------
    explanation
        The plan.
    folder
        An existing folder.
    """
    _table(folder / "decisions.csv", _decisions(explanation))
    _table(folder / "cache_ops.csv", _cache_ops(explanation))
    _table(folder / "ledger.csv", _slots(explanation.slots))
    (folder / "graph.dot").write_text("\n".join(dot(explanation.candidate.augmented)) + "\n", encoding="utf-8")
    (folder / "plan.png").write_bytes(picture(explanation).png())


def _table(path: Path, rows: Iterable[Sequence[object]]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows(rows)


def _decisions(explanation: Explanation) -> Iterator[Sequence[object]]:
    problem, ops = explanation.problem, explanation.problem.graph.ops
    head = ("tensor", "kind", "size_bytes", "after", "before", "wraps", "idle_ns", "out_ns", "in_ns", "remake_ns")
    yield (*head, "tier", "decision", "score", *(f"term_{term}" for term in TERMS), "reason", "made_by")
    for choice in explanation.choices:
        gap, about = choice.gap, problem.graph.tensors[choice.gap.tensor]
        before = ops[gap.before].name if gap.before < len(ops) else ""
        ends = (ops[gap.after].name, before, int(gap.wraps), gap.lead_ns + gap.trail_ns, gap.out_ns, gap.in_ns)
        terms = (f"{value:.6g}" for value in (choice.score.total, *choice.score.terms))
        tier = problem.tiers[gap.away] if choice.decision is not Decision.RECOMPUTE else ""
        what = (about.name, about.kind, about.size_bytes, *ends, choice.remake_ns, tier, choice.decision)
        yield (*what, *terms, choice.reason, ops[choice.remade.by].name if choice.remade else "")


def _cache_ops(explanation: Explanation) -> Iterator[Sequence[object]]:
    augmented = explanation.candidate.augmented
    names, tiers = [t.name for t in augmented.graph.tensors], augmented.tiers
    head = ("role", "trip", "tensor", "source", "target", "size_bytes", "alone_ns", "first_point", "position")
    yield (*head, "last_point", "issued", "stall_ns", "residency_ns", "waited_ns")
    for one in augmented.cache_ops:
        target = "" if one.target == NOWHERE else tiers[one.target]
        where = (one.first, one.position, one.last, augmented.point(one.position))
        what = (one.role, one.trip, names[one.tensor], tiers[one.source], target, one.size_bytes, one.alone_ns)
        waited_ns = explanation.waited_ns(one) if one.role is Role.PREFETCH else 0
        yield (*what, *where, one.stall_ns, one.residency_ns, waited_ns)


def _slots(slots: Iterable[Slot]) -> Iterator[Sequence[object]]:
    yield (*Slot._fields, "oversubscribed")
    for slot in slots:
        yield (*slot, int(slot.is_oversubscribed))


def dot(augmented: Augmented) -> Iterator[str]:
    """Draw the augmented graph as Graphviz text: ops as boxes in program order, cache operators by colour.

    Parameters
    ----------
    augmented
        The graph with its cache operators.
    """
    yield "digraph augmented {"
    yield "  rankdir=TB; node [shape=box, fontname=Helvetica];"
    ops = augmented.graph.ops
    for one, other in pairwise(ops):
        yield f"  {json.dumps(one.name)} -> {json.dumps(other.name)} [style=bold];"
    for node in augmented.cache_ops:
        name, points = augmented.name(node), f"points {node.first} to {node.last}"
        label = json.dumps(f"{name}\n{augmented.point(node.position)}; {points}")
        look = f'shape=ellipse, style=filled, fillcolor="{_ROLE_COLOUR[node.role]}"'
        yield f"  {json.dumps(name)} [label={label}, {look}];"
    for edge in augmented.edges():
        style = ' [style=dashed, label="next step"]' if edge.wraps else ""
        yield f"  {json.dumps(edge.source)} -> {json.dumps(edge.target)}{style};"
    yield "}"


@styled()
def picture(explanation: Explanation) -> Picture:
    """Draw what is live against the budget and each trip, over compute time; below, each link over time, with stalls.

    Parameters
    ----------
    explanation
        The plan.
    """
    links = grouped(explanation.slots, lambda slot: slot.link)
    drawing, axes = stacked([1.8, 2.4, *([0.9] * len(links))], apart=2)
    clock = np.array(explanation.problem.clock)
    unit, ns = units(max(int(clock[-1]), 1))
    _draw_live(axes[0], explanation, clock / ns)
    _draw_trips(axes[1], explanation, clock / ns)
    axes[0].set_xlim(0, 1.02 * max(int(clock[-1]), 1) / ns)
    axes[1].set_xlabel(f"compute time, without stalls [{unit}]", fontsize=9)
    if links:
        unit, ns = units(explanation.slots[-1].end_ns)
        axes[-1].set_xlabel(f"time of a step, with its stalls [{unit}]", fontsize=9)
    for ax, slots in zip(axes[2:], links.values(), strict=True):
        _draw_slots(ax, slots, ns)
    for ax in axes:
        ax.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), fontsize=8, frameon=False)
    drawing.title(f"{explanation.problem.graph.name}: what the plan of {explanation.plan.policy!r} decides")
    return drawing


def _draw_live(ax: Axes, explanation: Explanation, clock: np.ndarray) -> None:
    problem = explanation.problem
    resident, chosen = live_bytes(problem.graph, problem.lifetimes), explanation.candidate.selection.live_bytes
    unit, size = byte_unit(int(resident.max(initial=1)))
    still = "nothing moves, some ops run again" if explanation.decided(Decision.RECOMPUTE) else "nothing moves"
    ax.step(clock[:-1], resident / size, where="post", color="#bbbbbb", label=still)
    ax.step(clock[:-1], chosen / size, where="post", color="#009988", label="as selected")
    if np.isfinite(problem.budget_bytes):
        ax.axhline(problem.budget_bytes / size, color=_TOO_MUCH, linestyle="--", linewidth=1, label="budget")
    ax.set_ylim(bottom=0)
    ax.set_ylabel(f"live [{unit}]", fontsize=9)


def _draw_trips(ax: Axes, explanation: Explanation, clock: np.ndarray) -> None:
    """One line a trip: from the store to the detach, away, and from the prefetch to the use."""
    augmented = explanation.candidate.augmented
    every = -(-len(augmented.gaps) // _MOST_TRIPS) or 1
    shown = range(0, len(augmented.gaps), every)
    for y, trip in enumerate(shown):
        gap, chain = augmented.gaps[trip], augmented.chains[trip]
        leaves, comes = chain.get(Role.STORE), chain.get(Role.PREFETCH)
        if leaves:
            ax.plot([clock[leaves.position]], [y], color=_ROLE_COLOUR[Role.STORE], **_STORE_MARK)
        if comes:
            ends = [clock[comes.position], clock[comes.before]]
            ax.plot(ends, [y, y], color=_ROLE_COLOUR[Role.PREFETCH], linewidth=1.5, **_PREFETCH_MARK)
        if not gap.wraps:
            back = clock[comes.position] if comes else clock[gap.before]
            ax.plot([clock[gap.after + 1], back], [y, y], color=_AWAY, linewidth=0.7, zorder=0)
    ax.set_ylabel("trips" if every == 1 else f"trips, one in {every}", fontsize=9)
    ax.plot([], [], color=_ROLE_COLOUR[Role.STORE], linestyle="", label="store issued", **_STORE_MARK)
    ax.plot([], [], color=_ROLE_COLOUR[Role.PREFETCH], label="prefetch issued ... use", **_PREFETCH_MARK)
    ax.plot([], [], color=_AWAY, label="away")


def _draw_slots(ax: Axes, slots: Sequence[Slot], ns: int) -> None:
    """How busy a link is in each slot of the step, in per cent, and how busy copies just in time would want it."""

    def draw(height_ns: Sequence[tuple[Slot, int]], **style: Any) -> None:
        shares = [min(100 * time / ((slot.end_ns - slot.start_ns) * slot.servers), _CUT) for slot, time in height_ns]
        widths = [(slot.end_ns - slot.start_ns) / ns for slot, _ in height_ns]
        ax.bar([slot.start_ns / ns for slot, _ in height_ns], shares, widths, align="edge", **style)

    draw([(slot, slot.busy_ns) for slot in slots if slot.busy_ns], color=_BUSY)
    for colour, too_much in ((_WANTED, False), (_TOO_MUCH, True)):
        chosen = [slot for slot in slots if slot.wanted_ns and slot.is_oversubscribed == too_much]
        draw([(slot, slot.wanted_ns) for slot in chosen], fill=False, edgecolor=colour)
    ax.add_patch(Rectangle((0, 0), 0, 0, color=_BUSY, label="busy"))
    for label, colour in (("wanted, as planned", _WANTED), ("over 100 % (cut)", _TOO_MUCH)):
        ax.add_patch(Rectangle((0, 0), 0, 0, fill=False, edgecolor=colour, label=label))
    ax.axhline(100, color="#222222", linewidth=0.6)
    ax.set_xlim(0, 1.02 * slots[-1].end_ns / ns)
    ax.set_ylim(0, 1.05 * _CUT)
    ax.set_yticks(range(0, _CUT + 1, 100))
    ax.set_ylabel(f"{slots[0].link} [%]", fontsize=9)
