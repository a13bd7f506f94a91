"""The workload: a model's dimensions and what is done with it, or a graph from a file."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from simulator.document import Document, Part

Count = Annotated[int, Field(ge=1)]
"""A whole number, at least 1."""


class LlamaModel(Part):
    """The dimensions of a decoder with grouped-query attention and a gated feed-forward (LLaMA family).

    Attributes
    ----------
    layers, hidden, heads, kv_heads, ffn, vocabulary
        As in the model's ``config.json``.
    tied_embeddings
        Whether the output projection is the embedding matrix.
    """

    family: Literal["llama"] = "llama"
    layers: Count
    hidden: Count
    heads: Count
    kv_heads: Count
    ffn: Count
    vocabulary: Count
    tied_embeddings: bool = False

    @model_validator(mode="after")
    def _heads_divide(self) -> Self:
        if self.hidden % self.heads:
            raise ValueError(f"hidden is a multiple of heads, found {self.hidden} and {self.heads}")
        if self.heads % self.kv_heads:
            raise ValueError(f"heads is a multiple of kv_heads, found {self.heads} and {self.kv_heads}")
        return self


class Parallel(Part):
    """How the model is spread over devices; the one-device slice reads the data axis and the ZeRO stage only.

    Attributes
    ----------
    data
        Data-parallel replicas; with `zero_stage` 1 the optimizer state is sharded over them.
    zero_stage
        0 (nothing sharded) or 1 (optimizer state).
    """

    data: Count = 1
    zero_stage: Literal[0, 1] = 0


class Dtypes(Part):
    """Data types of what is kept.

    Attributes
    ----------
    compute
        Weights, activations and gradients.
    optimizer_bytes_per_parameter
        Master weight and moments together: 12 for fp32 master and two fp32 moments (Adam).
    logits_copies_fp32
        fp32 copies of the logits that the loss holds while it runs.
    """

    compute: Literal["bf16", "fp16", "fp32"] = "bf16"
    optimizer_bytes_per_parameter: Count = 12
    logits_copies_fp32: Annotated[int, Field(ge=0)] = 2


class Workload(Document):
    """What runs: a training step of a model, or a graph from a file.

    Attributes
    ----------
    model, phase, batch, sequence, dtypes, parallel
        The model and how it is run; ``batch`` is per device.
    graph
        Instead of a model: a ``hosim-graph/1`` file, relative to this document.
    steps
        How many times the step runs, one after another.
    """

    schema_: Literal["hosim/workload/1"] = Field("hosim/workload/1", alias="schema")
    model: LlamaModel | None = None
    phase: Literal["train"] = "train"
    batch: Count = 1
    sequence: Count = 2048
    dtypes: Dtypes = Dtypes()
    parallel: Parallel = Parallel()
    graph: str | None = None
    steps: Count = 2

    @model_validator(mode="after")
    def _one_origin(self) -> Self:
        if (self.model is None) == (self.graph is None):
            found = "neither" if self.model is None else "both"
            raise ValueError(f"a workload has either a model or a graph, found {found}")
        return self
