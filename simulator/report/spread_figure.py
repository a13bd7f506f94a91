"""The picture of `spread`: step times over the level of each perturbation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes

from simulator.report import colours
from simulator.report.drawing import Picture, plain, styled, units
from simulator.report.spread import INSPECTION, NOMINAL

_HEIGHT_IN = 4.2
_MEDIAN, _BAND, _WORST, _FAILED = _MARKS = (", median", ", 5 to 95 %", ", worst", ": does not always run")
"""What the legend says behind a policy's name."""
Lines = Sequence[Mapping[str, Any]]


@styled()
def spread_picture(lines: Lines, policies: Sequence[str]) -> Picture:
    """Draw one panel for each perturbation: median (line), middle 90 % (band) and worst draw (dots) of both policies.

    Parameters
    ----------
    lines
        What `simulator.report.spread.quantiles` gives.
    policies
        The tested policy and the other one.
    """
    kinds = list(dict.fromkeys(line["perturbation"] for line in lines if line["perturbation"] != NOMINAL)) or [NOMINAL]
    most = max((line["worst_step_ns"] or 0 for line in lines), default=0) or 1
    picture, (unit, size) = Picture(_HEIGHT_IN), units(int(most))
    width, left = 0.95 / len(kinds), 0.055
    for number, kind in enumerate(kinds):
        ax = picture.add_axes((left + number * width, 0.15, width - 0.035, 0.64))
        for policy, colour in zip(policies, colours.PAIR, strict=True):
            kinds_shown = (kind,) if kind == INSPECTION else (NOMINAL, kind)
            own = [line for line in lines if line["policy"] == policy and line["perturbation"] in kinds_shown]
            _draw(ax, own, policy, colour, size)
        ax.set_title(kind, fontsize=10, loc="left")
        ax.set_xlabel("level [us]" if kind == INSPECTION else "level [%]", fontsize=9)
        ax.set_ylim(0, 1.12 * most / size)
        if number == 0:
            ax.set_ylabel(f"one step [{unit}]", fontsize=9)
        plain(ax)
    title = f"one plan of {policies[0]!r} under other conditions, beside {policies[1]!r}"
    picture.text(0.01, 0.97, title, va="top", fontsize=11)
    found = {text: mark for ax in picture.axes for mark, text in zip(*ax.get_legend_handles_labels(), strict=True)}
    texts = [text for what in _MARKS for policy in policies if (text := policy + what) in found]
    marks, columns = [found[text] for text in texts], -(-len(texts) // 2)
    picture.legend(marks, texts, loc="upper right", ncols=columns, fontsize=8, frameon=False)
    return picture


def _draw(ax: Axes, own: Lines, policy: str, colour: str, size: int) -> None:
    ran = [line for line in own if line["median_step_ns"] is not None]
    at = [_at(line) for line in ran]
    ax.plot(at, [line["median_step_ns"] / size for line in ran], color=colour, marker=".", label=policy + _MEDIAN)
    band = [line for line in ran if line["p95_step_ns"] is not None and line["draws"] > 1]
    band = [line for line in own if line["perturbation"] == NOMINAL and line in ran] + band if band else []
    if band:
        low, high = ([line[f"{name}_step_ns"] / size for line in band] for name in ("p05", "p95"))
        ax.fill_between([_at(line) for line in band], low, high, color=colour, alpha=0.25, linewidth=0,
                        label=policy + _BAND)  # fmt: skip
        worst = [line for line in band if line["worst_step_ns"] is not None]
        ax.plot([_at(line) for line in worst], [line["worst_step_ns"] / size for line in worst],
                color=colour, linestyle="", marker="_", markersize=9, label=policy + _WORST)  # fmt: skip
    failed = [_at(line) for line in own if line["ok"] < line["draws"]]
    if failed:
        top = [0.97] * len(failed)
        ax.plot(failed, top, color=colour, linestyle="", marker="x", transform=ax.get_xaxis_transform(),
                label=policy + _FAILED)  # fmt: skip


def _at(line: Mapping[str, Any]) -> float:
    """Where a level is drawn: in per cent, an inspection in microseconds."""
    level: float = line["level"]
    return level / 1000 if line["perturbation"] == INSPECTION else 100 * level
