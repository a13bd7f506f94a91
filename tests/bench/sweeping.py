"""What a cell of a sweep takes beyond its own simulation, and how memory grows with cells.

    python tests/bench/sweeping.py

Cells are of the tests' hand-written chain under one policy, in this process, with rows kept and appended to a file.
``overhead`` is the processor time of a cell outside of preparing and running its rows, as a share of that within; so a
busy machine does not spoil it. ``again`` is the time of the same sweep from what is kept, as a share of the first one.
``memory`` is the largest resident memory with 10 times the cells, over that before.
"""

from __future__ import annotations

import json
import resource
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from time import process_time
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
import chain

import simulator as hosim
from simulator.run import grid

CELLS = 500


def measured(folder: Path, cells: int) -> dict[str, float]:
    """Run a sweep twice."""
    scenario, inside = chain.write(folder), [0.0]

    def within(do: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*arguments: Any, **more: Any) -> Any:
            begun = process_time()
            try:
                return do(*arguments, **more)
            finally:
                inside[0] += process_time() - begun

        return timed

    asked, own = {"links.*.bandwidth": f"1..4 GB/s:{cells}"}, (grid.prepare, grid.rows_of)
    grid.prepare, grid.rows_of = map(within, own)  # type: ignore[assignment]
    times = []
    for _ in "ab":
        begun = process_time()
        hosim.sweep(
            scenario, asked, policies=["resident"], workers=1, cache=folder / "cache", out=folder / "points.csv"
        )
        times.append(process_time() - begun)
    grid.prepare, grid.rows_of = own
    share = {"overhead": times[0] / inside[0] - 1, "again": times[1] / times[0]}
    return {"ms a cell": 1e3 * times[0] / cells, "ms beyond": 1e3 * (times[0] - inside[0]) / cells, **share}


def main() -> None:
    """Print what is measured as JSON."""
    found: dict[str, Any] = {}
    sizes = []
    for cells in (CELLS, 10 * CELLS):
        with tempfile.TemporaryDirectory() as folder:
            found[f"{cells:,} cells"] = measured(Path(folder), cells)
        sizes.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
    print(json.dumps(found | {"memory": sizes[1] / sizes[0]}, indent=2))


if __name__ == "__main__":
    main()
