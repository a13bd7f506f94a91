"""The tornado of a claim: how far its figures move with each parameter that its source leaves open."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

from matplotlib.axes import Axes

from simulator.report import colours
from simulator.report.drawing import FAINT, INK, TEXT, Picture, plain, styled
from simulator.report.sensitivity import Dependence, by_figure, headline

_BAR_IN, _TOP_IN, _HEAD_IN, _FOOT_IN = 0.42, 0.45, 0.42, 0.6
_LEFT, _RIGHT = 0.22, 0.96
_DARK, _PALE = colours.KIND["weight"], "#cfe0f2"
_THICK = 0.55
_WIDE = 0.10
"""Share of the axis that is left free on both sides for the values at the ends of a bar."""


@styled()
def tornado(found: Sequence[Dependence], title: str) -> Picture:
    """Draw a panel for each figure of a scenario: a bar for each parameter, what moves the figure most on top.

    Parameters
    ----------
    found
        What the figures depend on.
    title
        What is drawn.
    """
    groups = by_figure(found)
    heights = [_BAR_IN * len(group) + _HEAD_IN + _FOOT_IN for group in groups]
    height = _TOP_IN + sum(heights)
    picture = Picture(height)
    picture.text(0.01, 1 - 0.12 / height, title, va="top", fontsize=11, color=INK, parse_math=False)
    top = height - _TOP_IN
    for group, inches in zip(groups, heights, strict=True):
        place = (_LEFT, (top - inches + _FOOT_IN) / height, _RIGHT - _LEFT, (inches - _HEAD_IN - _FOOT_IN) / height)
        _panel(picture.add_axes(place), group)
        top -= inches
    return picture


def _panel(ax: Axes, group: Sequence[Dependence]) -> None:
    nominal = group[0].nominal
    errors = [100 * error for one in group for error in one.errors] or [0.0]
    within = _accepted(group[0])
    low, high = min(*errors, -within, 0.0), max(*errors, within, 0.0)
    room = _WIDE * max(high - low, 1.0)
    ax.set_xlim(low - room, high + room)
    ax.set_ylim(len(group) - 0.4, -0.6)
    if within:
        ax.axvspan(-within, within, color=colours.KIND["activation"], alpha=0.25, linewidth=0)
    ax.axvline(0, color=FAINT, linewidth=0.8, linestyle=":")
    for place, one in enumerate(group):
        _bar(ax, place, one)
    if nominal.error is not None:
        ax.axvline(100 * nominal.error, color=INK, linewidth=1)
    ax.set_yticks(range(len(group)), [one.parameter.parameter for one in group], fontsize=9)
    said = "green and dark: near" if group[0].is_shown else "green: accepted; dark: holds"
    ax.set_xlabel(f"difference from what is printed [%]; line: as taken; {said}; points: goes up and down", fontsize=9)
    ax.set_title(headline(group[0]), loc="left", **TEXT)
    plain(ax)


def _accepted(one: Dependence) -> float:
    """The tolerance around the printed figure [%]; 0 if it is another one."""
    text = one.nominal.tolerance
    return float(text.removesuffix(" %")) if text.endswith(" %") and text.count(" ") == 1 else 0.0


def _bar(ax: Axes, place: int, one: Dependence) -> None:
    """The range of a figure over the values of a parameter, dark where it holds; points, if it goes up and down."""
    shown = {value: 100 * verdict.error for value, verdict in one.verdicts.items() if verdict.error is not None}
    if not shown:
        return
    least, most = min(shown.values()), max(shown.values())
    ax.barh(place, most - least, _THICK, least, color=_PALE, linewidth=0)
    for first, last in pairwise(sorted(shown)):
        if one.verdicts[first].holds and one.verdicts[last].holds:
            left, width = min(shown[first], shown[last]), abs(shown[last] - shown[first])
            ax.barh(place, width, _THICK, left, color=_DARK, linewidth=0)
    if not one.is_monotone:
        ax.plot([*shown.values()], [place] * len(shown), marker="|", linestyle="", color=INK, markersize=5)
    _label(ax, place, one, shown)


def _label(ax: Axes, place: int, one: Dependence, shown: Mapping[float, float]) -> None:
    """Write the values at the ends of a bar: those with which the figure is least and largest."""
    at_end = {value: value in one.ends for value in shown}
    least = min(shown, key=lambda value: (round(shown[value], 2), not at_end[value]))
    most = max(shown, key=lambda value: (round(shown[value], 2), at_end[value]))
    if shown[most] - shown[least] < 0.05:
        text = f" {one.shown(min(shown))} to {one.shown(max(shown))}: no change"
        ax.text(shown[most], place, text, ha="left", va="center", **{**TEXT, "fontsize": 8})
        return
    ax.text(shown[least], place, f"{one.shown(least)} ", ha="right", va="center", **{**TEXT, "fontsize": 8})
    ax.text(shown[most], place, f" {one.shown(most)}", ha="left", va="center", **{**TEXT, "fontsize": 8})
