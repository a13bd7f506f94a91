"""What goes through memory where PyTorch runs a norm, or a rotary embedding, op by op: each op reads and writes it all.

Counted from `LlamaRMSNorm` and `apply_rotary_pos_emb` of Hugging Face transformers, and what autograd runs of them; a
test counts again.
"""

from __future__ import annotations

import numpy as np

from simulator.builders.specs import FP32_BYTES
from simulator.graph_builder import OpFields

_NORM = {  # by when ops run: always, where elements are narrower than fp32, where the weight is trained
    # squares, their mean, division by its root, times the weight; turned into fp32 and back
    "forward": (("", 1, 3, 1, 2), ("casts", 1, 1, 1, 1)),
    # times the weight, gradients of the division, of the root, of the mean, of the square, both ways added up; turned
    # into fp32 and back; the weight's own gradient, and its sum over rows
    "backward": (("", 1, 10, 1, 7), ("casts", 1, 1, 1, 1), ("trains", 3, 0, 1, 0)),
}
"""For each element, elements of its type and of fp32 that these ops read, and that they write."""
_ROTARY = {"forward": (11, 9), "backward": (15, 13)}
"""Halves of a tensor that are read and written: times cosine, half negated, joined, times sine, added; and back."""


def norm_traffic(elements: int, element_bytes: int, *, trains: bool) -> dict[str, OpFields]:
    """Return what all ops of a norm with a weight read and write, forward and backward.

    Parameters
    ----------
    elements, element_bytes
        How many elements are normalised, and the size of one [B].
    trains
        Whether the weight is trained.
    """
    runs = {"": True, "casts": element_bytes < FP32_BYTES, "trains": trains}
    moved = dict[str, OpFields]()
    for phase, ops in _NORM.items():
        counts = np.sum([counts for where, *counts in ops if runs[where]], 0).reshape(2, 2)
        read, written = (elements * counts @ [element_bytes, FP32_BYTES]).tolist()
        moved[phase] = OpFields(read_bytes=read, write_bytes=written)
    return moved


def rotary_traffic(turned_bytes: int) -> dict[str, OpFields]:
    """Return what all ops of a rotary embedding of so many bytes read and write, forward and backward."""
    sides = {phase: [turned_bytes * halves // 2 for halves in of_phase] for phase, of_phase in _ROTARY.items()}
    return {phase: OpFields(read_bytes=read, write_bytes=written) for phase, (read, written) in sides.items()}
