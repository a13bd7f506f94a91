"""The picture of serving: who has the first token after how long, what a further one takes, and how many wait."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from simulator.report import colours
from simulator.report.drawing import INK, Picture, plain, styled, units, widths

_HEIGHT_IN = 4.4
_PANELS = ((0.05, 0.13, 0.27, 0.66), (0.375, 0.13, 0.27, 0.66), (0.70, 0.13, 0.27, 0.66))
Rows = Sequence[Mapping[str, Any]]


@styled()
def serving_picture(about: Mapping[str, tuple[Rows, Rows]], title: str) -> Picture:
    """Draw three panels: shares of requests by time to first token and by time per further token, and the queue.

    Parameters
    ----------
    about
        Policy -> its requests and its iterations; see `simulator.run.serving.counts`.
    title
        What is drawn.
    """
    picture = Picture(_HEIGHT_IN)
    first, after, queue = (picture.add_axes(place) for place in _PANELS)
    named = {
        policy: {"color": colours.GROUPS[number % len(colours.GROUPS)], "linewidth": width}
        for number, (policy, width) in enumerate(zip(about, widths(len(about)), strict=True))
    }
    for ax, column, label in ((first, "ttft_ns", "first token after"), (after, "tpot_ns", "a further token takes")):
        times = {
            policy: [row[column] for row in rows if row[column] is not None] for policy, (rows, _) in about.items()
        }
        _draw_shares(ax, times, named, label)
    ran = {policy: rows for policy, (_, rows) in about.items()}
    _draw_queue(queue, ran, named)
    picture.text(0.01, 0.97, title, va="top", fontsize=11, color=INK, parse_math=False)
    marks, texts = first.get_legend_handles_labels()
    picture.legend(marks, texts, loc="upper left", bbox_to_anchor=(0.04, 0.93), ncols=6, fontsize=8, frameon=False)
    return picture


def _draw_shares(ax: Axes, times: Mapping[str, Sequence[int]], named: Mapping[str, dict[str, Any]], label: str) -> None:
    """For each time, the share of requests that are no later."""
    unit, size = units(max((max(values, default=0) for values in times.values()), default=0))
    for policy, values in times.items():
        ordered = [0, *sorted(values)]
        shares = [100 * number / max(1, len(values)) for number in range(len(ordered))]
        ax.step([ns / size for ns in ordered], shares, where="post", label=policy, **named[policy])
    ax.set_xlabel(f"{label} [{unit}]", fontsize=9)
    ax.set_ylabel("share of requests [%]", fontsize=9)
    ax.set_xlim(left=0)
    ax.set_ylim(0, 103)
    plain(ax)


def _draw_queue(ax: Axes, ran: Mapping[str, Rows], named: Mapping[str, dict[str, Any]]) -> None:
    unit, size = units(max((row["start_ns"] + row["took_ns"] for rows in ran.values() for row in rows), default=0))
    for policy, rows in ran.items():
        at, waiting, decoding = _lasting(rows)
        times = [ns / size for ns in at]
        ax.step(times, waiting, where="post", **named[policy])
        ax.step(times, decoding, where="post", linestyle=":", **(named[policy] | {"linewidth": 1}))
    ax.set_xlabel(f"time [{unit}]", fontsize=9)
    ax.set_ylabel("requests that wait (line), that decode (dotted)", fontsize=9)
    ax.set_ylim(bottom=0)
    ax.yaxis.set_major_locator(MaxNLocator(integer=True))
    plain(ax)


def _lasting(rows: Rows) -> tuple[list[int], list[int], list[int]]:
    """From when on how many requests wait and decode [ns]; where no iteration follows at once, none from its end on."""
    found = []
    for row, following in zip(rows, [*rows[1:], None], strict=False):
        end = row["start_ns"] + row["took_ns"]
        found.append((row["start_ns"], row["waiting"], row["decoding"]))
        if following is None or following["start_ns"] > end:
            found.append((end, 0, 0))
    at, waiting, decoding = (list(column) for column in zip(*found, strict=True)) if found else ([], [], [])
    return at, waiting, decoding
