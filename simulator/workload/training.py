"""What training adds to a model: adapters, checkpoints, and what the optimizer keeps of each weight."""

from __future__ import annotations

from math import prod
from typing import Literal

from pydantic import StrictBool

from simulator.document import Count, FewOrNone, Part
from simulator.units import require

_MOMENTS = {"adamw": 2, "muon": 1, "lion": 1, "momentum": 1, "sgd": 0}
"""Moments of each parameter: AdamW (arXiv 1711.05101), Muon (Jordan et al. 2024; arXiv 2502.16982, section 2.1), Lion
(arXiv 2302.06675, algorithm 2), gradient descent with momentum and without."""
_STATE_BYTES = {"fp32": 4, "bf16": 2, "int8": 1}
_BLOCK, _LEAST = 256, 4096
"""Of 8-bit states: parameters that share an fp32 scale, and the least parameters of a weight that has such states; as
bitsandbytes has them from 0.44 on, after 8-bit Optimizers via Block-wise Quantization (arXiv 2110.02861, section 2)."""
_ORTHOGONAL_STEPS = 5
"""Newton-Schulz steps of Muon (arXiv 2502.16982, section 2.1)."""


class Optimizer(Part):
    """Which optimizer trains, and in which data types it keeps its states.

    ``muon`` is for the matrices of layers; all other weights have ``adamw``, as in arXiv 2502.16982. ``adafactor``
    (arXiv 1804.04235, algorithm 4, without momentum) keeps of a matrix one number for each row and for each column.

    Attributes
    ----------
    kind
        The optimizer; ``momentum`` is gradient descent with it, ``sgd`` without.
    states
        Data type of its moments; ``int8`` has an fp32 scale for each block of 256 parameters, and weights of less than
        4,096 have fp32. Those of ``adafactor`` are fp32.
    master
        Whether it keeps each weight once more, in fp32; default: if ``dtypes.compute`` has 16 bits.
    """

    kind: Literal["adamw", "muon", "adafactor", "lion", "momentum", "sgd"] = "adamw"
    states: Literal["fp32", "bf16", "int8"] = "fp32"
    master: StrictBool | None = None

    def _check(self) -> None:
        usual = self.kind not in ("adafactor", "sgd") or self.states == "fp32"
        require(usual, f"{self.kind} has no states in other data types", self.states, "states", do="remove states")

    def state_bytes(self, shape: tuple[int, ...], shards: int, element_bytes: int, *, is_matrix: bool) -> int:
        """Size of the states of a weight with its master weight, or of one of so many shards of it [B].

        Parameters
        ----------
        shape
            What a rank has of the weight.
        shards
            Over how many replicas ZeRO spreads it.
        element_bytes
            Of the weight itself.
        is_matrix
            Whether the weight is a matrix of a layer, or several in one.
        """
        parameters = -(-prod(shape) // shards)
        has_master = element_bytes < 4 if self.master is None else self.master
        master_bytes = 4 * parameters if has_master else 0
        if self.kind == "adafactor":
            *several, rows, columns = (1, *shape)
            numbers = prod(several) * (rows + columns) if len(shape) > 1 else columns
            return master_bytes + 4 * -(-numbers // shards)
        moments = _MOMENTS["adamw" if self.kind == "muon" and not is_matrix else self.kind]
        states = "fp32" if self.states == "int8" and parameters < _LEAST else self.states
        scales = -(-parameters // _BLOCK) if states == "int8" else 0
        return master_bytes + moments * (parameters * _STATE_BYTES[states] + 4 * scales)

    def update_flops(self, shape: tuple[int, ...], *, is_matrix: bool) -> int:
        """Work of the matrix products of an update [FLOP]: Muon makes its momentum orthogonal.

        A step of a matrix X with m rows and n >= m columns is A = X X^T, B = A A and B X: 2 * m * m * (2 * n + m) FLOP.
        """
        if self.kind != "muon" or not is_matrix:
            return 0
        *several, m, n = (*shape[:-2], *sorted(shape[-2:]))
        return prod(several) * _ORTHOGONAL_STEPS * 2 * m * m * (2 * n + m)


class Lora(Part):
    """Low-rank adapters beside some linears, in place of training these (LoRA, arXiv 2106.09685, section 4.1).

    Attributes
    ----------
    rank
        Width between the two matrices of an adapter.
    targets
        Patterns of linears of a layer (``attn.q``, ``ffn.*``) that have one; default: the queries and values of LoRA's
        own experiments (section 4.2) and of PEFT's defaults. Latent attention has no such, and PEFT names none for it;
        there, by choice, what makes queries of heads (``attn.q_b``, or ``attn.q``), and the latent (``attn.kv_a``).
    """

    rank: Count
    targets: tuple[str, ...] = ("attn.q", "attn.v", "attn.q_b", "attn.kv_a")


class Checkpoint(Part):
    """What backward runs again rather than keep (activation checkpointing, Chen et al., arXiv 1604.06174).

    Attributes
    ----------
    part
        All of a layer (``layer``), so that what it takes is saved alone; or its ``attention``, from the norm to what
        the output projection takes; or its ``feed_forward`` with its norm.
    layers
        Numbers of the layers, from 0; default: all.
    """

    part: Literal["layer", "attention", "feed_forward"] = "layer"
    layers: tuple[FewOrNone, ...] | None = None

    def takes(self, part: str, layer: int) -> bool:
        """Whether this part of a layer runs again."""
        return part == self.part and (self.layers is None or layer in self.layers)
