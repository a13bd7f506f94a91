"""Draw the pictures of the documents, each from a shipped scenario."""

from __future__ import annotations

from pathlib import Path

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
