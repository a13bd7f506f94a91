"""What a dispatched call of PyTorch costs more under a plan, and planning: python tests/bench/executing.py

Steps of two thousand additions of 100 numbers, each with a view, beside 1.6 MB that stay, or leave and come back.
Medians of runs with and without a plan in turn, of processor time in all threads: what else the machine does is left
out, and so are waits. It ends with 1 if a call costs more than its bar, or a call that also plans takes longer.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import hosim.torch
import torch
from torch.utils._python_dispatch import TorchDispatchMode

sys.path.insert(0, str(Path(__file__).parent))

import bars

MOST = {"us_a_call": 25.0, "us_a_call_as_some_leaves": 25.0, "s_to_plan": 10.0}
OPS = 2000


class EmptyMode(TorchDispatchMode):
    """What PyTorch itself takes for any mode."""

    def __torch_dispatch__(self, func: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


def step(x: torch.Tensor) -> torch.Tensor:
    """A step of small ops; while they run, 1.6 MB lie there, and as much again for a moment in the middle."""
    with torch.no_grad():
        beside, y = x.repeat(4000), x
        for n in range(OPS):
            if n == OPS // 2:
                y = y + x.repeat(4000).sum()
            y = y + 1
            y.view(-1)
        return y.sum() + beside.sum()


def in_mode(x: torch.Tensor, mode: Callable[[], AbstractContextManager[Any]] = nullcontext) -> torch.Tensor:
    """The step, in a mode."""
    with mode():
        return step(x)


def more_us(*runs: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> list[float]:
    """How much more a call takes in each of some runs of the step than without [us]."""
    times: list[list[float]] = [[] for _ in range(1 + len(runs))]
    for _ in range(9):
        for run, took in zip((step, *runs), times, strict=True):
            begun = time.process_time()
            run(x)
            took.append(time.process_time() - begun)
    plain, *others = map(statistics.median, times)
    return [(other - plain) * 1e6 / (2 * OPS) for other in others]


def planned_s(planned: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> float:
    """Run a step until its last plan is made; the longest call of these [s]."""
    took = []
    for _ in range(4):
        begun = time.perf_counter()
        planned(x)
        took.append(time.perf_counter() - begun)
    return max(took)


if __name__ == "__main__":
    torch.set_num_threads(1)
    x, offload = torch.randn(100), partial(hosim.torch.offload, step, pace=("2 GB/s", "2 GB/s"), strict=True)
    with offload(budget="10 MB") as stays, offload(budget="2.5 MB") as leaves:
        plan_s = max(planned_s(stays, x), planned_s(leaves, x))
        floor, still, moving = more_us(partial(in_mode, mode=EmptyMode), stays, leaves, x=x)
        moved = leaves.steps[-1].out_bytes
    misses = bars.missed({"us_a_call": still, "us_a_call_as_some_leaves": moving, "s_to_plan": plan_s}, most=MOST)
    print(f"a call under a plan: {still:.1f} us more, {moving:.1f} in a step that writes {moved:,} B below")
    print(f"of it in any mode of PyTorch: {floor:.1f} us")
    print(f"a call that also plans {OPS:,} ops: {plan_s:.1f} s\n{bars.told(misses)}")
    sys.exit(bool(misses))
