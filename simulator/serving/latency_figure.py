"""The picture of serving: who has the first token after how long, what a further one takes, and how many wait."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from simulator.report import colours
from simulator.report.drawing import Picture, plain, styled, units, widths

_HEIGHT_IN = 4.4
Rows = Sequence[Mapping[str, Any]]


@styled()
def serving_picture(about: Mapping[str, tuple[Rows, Rows]], title: str) -> Picture:
    """Draw three panels: shares of requests by time to first token and by time per further token, and the queue.

    Parameters
    ----------
    about
        Policy -> its requests and its iterations; see `simulator.serving.counts`.
    title
        What is drawn.
    """
    picture = Picture(_HEIGHT_IN)
    first, after, queue = picture.subplots(1, 3)
    named = {
        policy: {"color": colours.GROUPS[number % len(colours.GROUPS)], "linewidth": width}
        for number, (policy, width) in enumerate(zip(about, widths(len(about)), strict=True))
    }
    for ax, column, label in ((first, "ttft_ns", "first token after"), (after, "tpot_ns", "a further token takes")):
        times = {
            policy: [row[column] for row in rows if row[column] is not None] for policy, (rows, _) in about.items()
        }
        _draw_shares(ax, times, named, label)
    _draw_queue(queue, {policy: rows for policy, (_, rows) in about.items()}, named)
    for ax in (first, after, queue):
        plain(ax)
    picture.title(title, first.get_legend_handles_labels()[0], beside=6)
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


def _draw_queue(ax: Axes, ran: Mapping[str, Rows], named: Mapping[str, dict[str, Any]]) -> None:
    unit, size = units(max((row["start_ns"] + row["took_ns"] for rows in ran.values() for row in rows), default=0))
    for policy, rows in ran.items():
        lasting = _lasting(rows)
        times = [ns / size for ns, _, _ in lasting]
        ax.step(times, [waiting for _, waiting, _ in lasting], where="post", **named[policy])
        dotted = named[policy] | {"linewidth": 1, "linestyle": ":"}
        ax.step(times, [decoding for _, _, decoding in lasting], where="post", **dotted)
    ax.set_xlabel(f"time [{unit}]", fontsize=9)
    ax.set_ylabel("requests that wait (line), that decode (dotted)", fontsize=9)
    ax.set_ylim(bottom=0)
    ax.yaxis.set_major_locator(MaxNLocator(integer=True))


def _lasting(rows: Rows) -> list[tuple[int, int, int]]:
    """From when on how many requests wait and decode [ns]; where no iteration follows at once, none from its end on."""
    found = []
    for row, following in zip(rows, [*rows[1:], None], strict=False):
        end = row["start_ns"] + row["took_ns"]
        found.append((row["start_ns"], row["waiting"], row["decoding"]))
        if following is None or following["start_ns"] > end:
            found.append((end, 0, 0))
    return found
