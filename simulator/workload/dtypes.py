"""Data types of what is kept, and how many bytes a matrix takes in them."""

from __future__ import annotations

from math import prod
from typing import Literal, NamedTuple

from simulator.document import Count, CountOrNone, Part


class Format(NamedTuple):
    """How a number is kept.

    Attributes
    ----------
    bits
        Of each number.
    block
        Inputs and outputs that share a scale.
    block_bits
        Of what such a block keeps beside its numbers.
    """

    bits: int
    block: tuple[int, int] = (1, 1)
    block_bits: int = 0


FORMATS = {
    "fp32": Format(32),
    "bf16": Format(16),
    "fp16": Format(16),
    "fp8": Format(8, (128, 128), 32),
    "int4": Format(4, (128, 1), 16 + 4),
}
"""By name. ``fp8``: an fp32 scale for each block of 128 x 128 (DeepSeek-V3, README_WEIGHTS.md of the model card).
``int4``: an fp16 scale and a 4-bit zero point for 128 inputs of each output (AWQ, arXiv 2306.00978, group size 128)."""


class Dtypes(Part):
    """Data types of what is kept.

    Attributes
    ----------
    compute
        Weights, activations and gradients.
    weights
        For inference, the matrices of layers but for routers; default: as `compute`. Arithmetic stays in `compute`.
    kv_cache
        For inference, what is cached of each token; default: as `compute`. Scales are not counted.
    optimizer_bytes_per_parameter
        Master weight and moments together: 12 for fp32 master and two fp32 moments (Adam).
    logits_copies_fp32
        fp32 copies of the logits that the loss holds while it runs.
    """

    compute: Literal["bf16", "fp16", "fp32"] = "bf16"
    weights: Literal["bf16", "fp16", "fp32", "fp8", "int4"] | None = None
    kv_cache: Literal["bf16", "fp16", "fp32", "fp8"] | None = None
    optimizer_bytes_per_parameter: Count = 12
    logits_copies_fp32: CountOrNone = 2

    @property
    def element_bytes(self) -> int:
        """Size of an element of `compute` [B]."""
        return 4 if self.compute == "fp32" else 2

    @property
    def kv_bytes(self) -> int:
        """Size of an element of the KV cache [B]."""
        return FORMATS[self.kv_cache or self.compute].bits // 8

    def matrix_bytes(self, shape: tuple[int, ...]) -> int:
        """Size of the matrices of a layer, of inputs and outputs each, with their scales [B]."""
        kept = FORMATS[self.weights or self.compute]
        *several, inputs, outputs = shape
        blocks = prod(several) * -(-inputs // kept.block[0]) * -(-outputs // kept.block[1])
        return -(-(prod(shape) * kept.bits + blocks * kept.block_bits) // 8)
