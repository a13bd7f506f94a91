"""Draw the pictures of the documents, each from a shipped scenario."""

from __future__ import annotations

from pathlib import Path

from matplotlib.figure import Figure

import simulator as hosim


def draw(folder: Path) -> None:
    """Draw all of them.

    Parameters
    ----------
    folder
        Where they go.
    """
    folder.mkdir(exist_ok=True)
    results = hosim.run("llama3_8b_train_910c")
    results.comparison().figure.savefig(folder / "comparison.png", dpi=90)
    results["static"].timeline().figure.savefig(folder / "timeline.png", dpi=90)
    results["static with recompute"].timeline().figure.savefig(folder / "timeline_recompute.png", dpi=90)
    pool = hosim.pareto("long_context_pool", set={"workload.sequence": 131072})
    pool.figure().figure.savefig(folder / "pool.png", dpi=90)
    windows().savefig(folder / "windows.png", dpi=90)


_LANES = ("copies in", "compute", "copies out")
_BLOCKS = (
    ("compute", 0, 1.2, "last", "#4c72b0"),
    ("compute", 1.2, 1.6, "", "#4c72b0"),
    ("compute", 2.8, 1.2, "a", "#dd8452"),
    ("compute", 5.4, 1.0, "", "#4c72b0"),
    ("compute", 6.4, 1.2, "c", "#dd8452"),
    ("compute", 7.6, 1.0, "", "#4c72b0"),
    ("compute", 8.6, 1.2, "last", "#4c72b0"),
    ("copies in", 0, 2.2, "at home elsewhere", "#55a868"),
    ("copies in", 4.0, 2.4, "L bytes that c needs", "#c44e52"),
    ("copies out", 4.0, 2.0, "no room beside c", "#c44e52"),
)
"""Lane, start, length, text and colour of what a step shows."""


def windows() -> Figure:
    """Draw the window of a step, and a window between two of its ops in which copies find no other time."""
    figure = Figure(figsize=(9, 2.6), layout="constrained")
    axes = figure.subplots()
    for lane, start, length, text, colour in _BLOCKS:
        y = _LANES.index(lane)
        axes.barh(y, length, left=start, height=0.6, color=colour, edgecolor="white")
        axes.text(start + length / 2, y, text, ha="center", va="center", color="white", fontsize=9)
    for x, text in ((0, "S of step n-1"), (8.6, "S of step n")):
        axes.axvline(x, color="black", linewidth=1)
        axes.text(x + 0.08, -0.85, text, fontsize=9)
    axes.axvspan(4.0, 6.4, color="#c44e52", alpha=0.12, linewidth=0, zorder=0)
    axes.text(5.2, -0.85, "the window of a and c", ha="center", fontsize=9)
    axes.set(xlim=(-0.2, 10.2), ylim=(2.5, -1.1), yticks=range(len(_LANES)), yticklabels=_LANES, xticks=())
    axes.spines[["top", "right", "bottom"]].set_visible(False)
    axes.set_xlabel("time")
    return figure
