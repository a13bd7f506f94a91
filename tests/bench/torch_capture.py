"""How a captured step of PyTorch agrees with PyTorch's memory tracker, and how quick the capture is.

    python tests/bench/torch_capture.py

Steps are those of `tests/torch_steps.py` and models those of `tests/torch_models.py`. `peak` is what is live at most in
the graph, `tracker` the peak that `torch.distributed._tools.mem_tracker` counts of the same step under the same fake
tensors; it counts 4 B of each parameter that the graph leaves out, Adam's count of steps. The last lines are of Llama
3.1 8B on 16,384 tokens. Seconds are of the processor.
"""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
import torch_models
import torch_steps

import simulator as hosim
from simulator.errors import ConfigError
from simulator.lifetime import live_bytes

Parts = tuple[Any, Sequence[Any], dict[str, Any], dict[str, Any]]


ADAM = {"optimizer": torch.optim.AdamW}


def row(name: str, parts: Parts) -> str:
    """Capture a step, and run it under the tracker: a line of the table."""
    module, inputs, named, options = parts
    begun = time.process_time()
    try:
        graph = hosim.torch.capture(module, *inputs, **named, **options).graph
    except ConfigError as error:
        return f"{name:28}refused at {Path(error.where).name}"
    rate = len(graph.ops) / (time.process_time() - begun)
    ours = int(live_bytes(graph).max())
    try:
        theirs = torch_steps.tracked_bytes(parts)
    except RuntimeError as error:
        return f"{name:28}{len(graph.ops):6,}{ours:13,}  the tracker fails: {error}"
    off = f"{100 * (ours / theirs - 1):+.4f} %"
    return f"{name:28}{len(graph.ops):6,}{ours:13,}{theirs:13,}{off:>11}{rate:7,.0f}"


def large() -> str:
    """Capture the large model."""
    begun = time.process_time()
    model, named = torch_steps.llama_8b()
    made = time.process_time()
    graph = hosim.torch.capture(model, **named).graph
    took, held = time.process_time() - made, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9
    said = f"llama_8b on 16,384 tokens: {len(graph.ops):,} ops, peak {live_bytes(graph).max() / 1e9:.0f} GB;\n"
    return f"{said}made in {made - begun:.1f} s and captured in {took:.1f} s by a process of {held:.2f} GB"


def main() -> None:
    """Print the table, and the lines of the large model."""
    print(f"{'step':28}{'ops':>6}{'peak':>13}{'tracker':>13}{'off by':>11}{'ops/s':>7}")
    for name in torch_steps.STEPS:
        print(row(name, torch_steps.made(name)))
    for name, make in torch_models.MODELS.items():
        with hosim.torch.fake():
            model, named = make()
        print(row(name, (model, (), named, ADAM)))
    print(large())


if __name__ == "__main__":
    main()
