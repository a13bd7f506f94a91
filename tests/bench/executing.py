"""What a dispatched call of PyTorch costs more under a plan: python tests/bench/executing.py

Medians of steps of a thousand additions of 100 numbers, each with a view, beside 1.6 MB that lie there: nothing moves.
It ends with 1 if a call costs more than its bar.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import hosim.torch
import torch

sys.path.insert(0, str(Path(__file__).parent))

import bars

MOST = {"us_a_call": 25.0}
CALLS = 2000


def step(x: torch.Tensor) -> torch.Tensor:
    """A step of small ops."""
    with torch.no_grad():
        beside, y = x.repeat(4000), x
        for _ in range(CALLS // 2):
            y = y + 1
            y.view(-1)
        return y.sum() + beside.sum()


def took_us(run: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> float:
    """The median of a few steps [us]."""
    times = []
    for _ in range(9):
        begun = time.perf_counter()
        run(x)
        times.append(time.perf_counter() - begun)
    return statistics.median(times) * 1e6


if __name__ == "__main__":
    torch.set_num_threads(1)
    x = torch.randn(100)
    with hosim.torch.offload(step, budget="10 MB", pace=("2 GB/s", "2 GB/s")) as planned:
        for _ in range(4):
            planned(x)
        more = (took_us(planned, x) - took_us(step, x)) / CALLS
    misses = bars.missed({"us_a_call": more}, most=MOST)
    print(f"a call under a plan: {more:.0f} us more\n{bars.told(misses)}")
    sys.exit(bool(misses))
