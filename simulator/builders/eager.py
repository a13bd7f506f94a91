"""What goes through memory where PyTorch runs a norm, or a part of attention, op by op: each reads and writes it all.

Counted from `LlamaRMSNorm` and `apply_rotary_pos_emb` of Hugging Face transformers, and what autograd runs of them; a
test counts again.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from simulator.builders.specs import FP32_BYTES
from simulator.graph_builder import OpFields

# Forward: squares, their mean, division by its root, times the weight. Backward: times the weight; gradients of the
# division, the root, the mean and the square; both ways added up. Casts turn elements narrower than fp32 into it, and
# back. A trained weight has a gradient, which is summed over rows.
_NORM = {"forward": (1, 3, 1, 2), "backward": (1, 10, 1, 7)}
_OF_CASTS, _OF_WEIGHT = (1, 1, 1, 1), (3, 0, 1, 0)
"""For each element: elements of its type and of fp32 that are read, and that are written."""
ROTARY = {"forward": (11, 9), "backward": (15, 13)}
"""Halves of a tensor that are read and written: times cosine, half negated, joined, times sine, added; and back."""
# In backward the softmax reads what it made as well, and two products what comes out.
SCORES = {False: {"forward": (1, 2), "backward": (4, 2)}, True: {"forward": (3, 4), "backward": (6, 4)}}
"""Scores that are read and written but for the product with values; True: where scale and mask are ops of their own."""


def norm_traffic(elements: int, element_bytes: int, *, trains: bool) -> dict[str, OpFields]:
    """Return what all ops of a norm with a weight read and write, forward and backward.

    Parameters
    ----------
    elements, element_bytes
        How many elements are normalised, and the size of one [B].
    trains
        Whether the weight is trained.
    """
    casts, moved = np.multiply(_OF_CASTS, element_bytes < FP32_BYTES), dict[str, tuple[int, int]]()
    for phase, counts in _NORM.items():
        each = counts + casts + np.multiply(_OF_WEIGHT, trains and phase == "backward")
        read, written = (each.reshape(2, 2) @ [element_bytes, FP32_BYTES]).tolist()
        moved[phase] = read, written
    return traffic(moved, elements)


def traffic(counts: Mapping[str, tuple[int, int]], size_bytes: int) -> dict[str, OpFields]:
    """Return what ops move that read and write a tensor of so many bytes so often, forward and backward."""
    return {phase: OpFields(read_bytes=r * size_bytes, write_bytes=w * size_bytes) for phase, (r, w) in counts.items()}
