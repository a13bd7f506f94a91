"""How a model is spread over ranks, or served by pools of them."""

from __future__ import annotations

from typing import Literal

from pydantic import StrictBool

from simulator.document import MOST_RANKS, Count, Layers, Part, Ranks
from simulator.units import FieldError, would_divide

AXES = ("pipeline", "data", "expert", "tensor")
"""Axes of the device matrix, as they stand unless a workload says otherwise."""


MOST_SENDERS = 1000
"""Most prefill ranks of a decode rank: each has a graph of its own."""


class Parallel(Part):
    """How the model is spread over ranks.

    With ``ranks: one`` the graph is one rank's slice: `data` and `zero_stage` say how much optimizer state it holds,
    and nothing is communicated. With ``ranks: all`` there is a graph for every rank, with all that they communicate:
    data * tensor * pipeline ranks. They stand in a device matrix with an axis for each, and `layouts` map dimensions
    of weights to these.

    Attributes
    ----------
    ranks
        ``one`` or ``all``.
    data
        Replicas, each with its own samples.
    tensor
        Ranks that share each layer's matrices, heads and vocabulary.
    pipeline
        Stages, each with some of the layers.
    expert
        Ranks that share the experts of a layer; divides `data`.
    sequence
        Whether what the tensor ranks would all hold is cut among them along the tokens, as in Megatron.
    zero_stage
        What is sharded over the replicas: 0 nothing, 1 the optimizer state, 2 gradients too, 3 weights too.
    micro_batches
        How many batches a step runs one after another, adding up gradients.
    schedule
        Order of forward and backward: all forward first (``gpipe``), or backward as early as possible (``1f1b``).
    layers
        Layers of each stage; default: as even as possible, more in the first stages.
    axis_names
        Axes of the device matrix, the slowest first: ranks that differ along the last one only have consecutive
        numbers, and are the first to share a node. ``expert``, if left out, stands behind ``data``.
    layouts
        Pattern of weight names -> for inputs and outputs the axis that cuts them (``tensor`` or ``none``), of
        experts the axis that cuts their number before; instead of the usual ones, and the last match wins.
    """

    ranks: Literal["one", "all"] = "one"
    data: Ranks = 1
    tensor: Ranks = 1
    pipeline: Ranks = 1
    expert: Ranks = 1
    sequence: StrictBool = False
    zero_stage: Literal[0, 1, 2, 3] = 0
    micro_batches: Count = 1
    schedule: Literal["gpipe", "1f1b"] = "1f1b"
    layers: tuple[Layers, ...] | None = None
    axis_names: tuple[str, ...] = AXES
    layouts: dict[str, tuple[str, ...]] = {}

    @property
    def device_matrix(self) -> dict[str, int]:
        """Axis -> how many ranks stand along it, in order; expert ranks are replicas that share experts."""
        names = list(self.axis_names)
        if "expert" not in names:
            names.insert(names.index("data") + 1, "expert")
        sizes = {"pipeline": self.pipeline, "data": self.data // self.expert, "expert": self.expert}
        return {name: {**sizes, "tensor": self.tensor}[name] for name in names}

    def _check(self) -> None:
        needed = [axis for axis in AXES if axis != "expert" or "expert" in self.axis_names or self.expert > 1]
        if sorted(self.axis_names) != sorted(needed):
            found = ", ".join(self.axis_names) or "none"
            raise FieldError(f"each axis is named once ({', '.join(needed)})", found, "correct it", ("axis_names",))
        ranks = self.data * self.tensor * self.pipeline
        if self.ranks == "all" and ranks > MOST_RANKS:
            largest = max(("data", "tensor", "pipeline"), key=lambda axis: getattr(self, axis))
            raise FieldError(f"there are at most {MOST_RANKS:,} ranks", f"{ranks:,}", f"lower {largest}", (largest,))
        alone: dict[str, object] = {"tensor": 1, "pipeline": 1, "expert": 1, "sequence": False}
        alone |= {"zero_stage": min(self.zero_stage, 1), "layouts": {}, "axis_names": AXES}
        several = [key for key, value in alone.items() if getattr(self, key) != value]
        if self.ranks == "one" and several:
            must = "one rank's slice knows data, zero_stage 0 or 1, and micro_batches"
            do = "add 'ranks: all' for all ranks and their collectives"
            raise FieldError(must, several[0], do, (several[0],))
        if self.data % self.expert:
            must = "expert divides data: expert ranks are replicas that share experts"
            do = would_divide("expert", self.data, self.expert)
            raise FieldError(must, f"{self.expert} and {self.data}", do, ("expert",))
        if self.layers is not None and len(self.layers) != self.pipeline:
            found = f"{len(self.layers)} for {self.pipeline} stages"
            raise FieldError("layers says how many each stage has", found, "name one number a stage", ("layers",))


class Pools(Part):
    """Ranks that read prompts and ranks that write answers; each holds the whole model.

    Attributes
    ----------
    prefill
        Ranks that run the prompts and send their KV cache on; a multiple of `decode`, to which they are dealt out in
        order. They are the first ranks.
    decode
        Ranks that receive KV caches and make tokens.
    new_tokens
        How many tokens a decode rank adds to each of its prompts.
    """

    prefill: Ranks
    decode: Ranks
    new_tokens: Count

    def _check(self) -> None:
        if self.prefill % self.decode:
            must, found = "prefill is a multiple of decode", f"{self.prefill} and {self.decode}"
            raise FieldError(must, found, would_divide("decode", self.prefill, self.decode), ("decode",))
        if self.prefill > MOST_SENDERS * self.decode:
            must = f"a decode rank serves at most {MOST_SENDERS:,} prefill ranks"
            raise FieldError(must, f"{self.prefill // self.decode:,}", "raise decode, or lower prefill", ("prefill",))
