"""The workload: a model's dimensions and what is done with it, or a graph from a file."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Discriminator, Field, StrictBool, Tag, model_validator

from simulator.document import Document, Part
from simulator.units import FieldError

Count = Annotated[int, Field(ge=1, strict=True)]
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
    tied_embeddings: StrictBool = False

    @model_validator(mode="after")
    def _heads_divide(self) -> Self:
        for whole, part in (("hidden", "heads"), ("heads", "kv_heads")):
            a, b = getattr(self, whole), getattr(self, part)
            if a % b:
                must, do = f"{whole} is a multiple of {part}", f"change {whole} or {part}"
                raise FieldError(must, f"{a} and {b}", do, (whole,))
        return self


class ResidencyAcceptanceModel(Part):
    """The dimensions of the step on which the open-source HyperOffload planner was measured.

    Attributes
    ----------
    layers, hidden, heads, ffn
        Of a plain decoder: as many key and value heads as heads, and two linears without a gate.
    """

    family: Literal["residency_acceptance"]
    layers: Count
    hidden: Count
    heads: Count
    ffn: Count


def _family(model: object) -> object:
    return model.get("family", "llama") if isinstance(model, dict) else getattr(model, "family", "llama")


Model = Annotated[
    Annotated[LlamaModel, Tag("llama")] | Annotated[ResidencyAcceptanceModel, Tag("residency_acceptance")],
    Discriminator(_family),
]
"""The dimensions of a model of one of the families; the first family where none is named."""


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
    logits_copies_fp32: Annotated[int, Field(ge=0, strict=True)] = 2

    @property
    def element_bytes(self) -> int:
        """Size of an element of `compute` [B]."""
        return 4 if self.compute == "fp32" else 2


class Workload(Document):
    """What runs: a training step of a model, or a graph from a file.

    Attributes
    ----------
    model, phase, batch, sequence, dtypes, parallel
        The model and how it is run; ``batch`` is per device.
    graph
        Instead of a model: a ``hosim-graph/1`` file, or a recorded ``residency-trace/1``, relative to this document.
    views
        Whether in a recorded trace an op that only makes a view of a tensor ``reads`` it, or ``writes`` it too.
    outputs
        Whether what the graph puts out is ``kept`` until the step ends (in any tier), or ``freed`` after its last use,
        as if nobody needed it.
    steps
        How many times the step runs, one after another.
    """

    schema_: Literal["hosim/workload/1"] = Field("hosim/workload/1", alias="schema")
    model: Model | None = None
    phase: Literal["train"] = "train"
    batch: Count = 1
    sequence: Count = 2048
    dtypes: Dtypes = Dtypes()
    parallel: Parallel = Parallel()
    graph: str | None = None
    views: Literal["reads", "writes"] = "reads"
    outputs: Literal["kept", "freed"] = "kept"
    steps: Count = 2

    @model_validator(mode="after")
    def _one_subject(self) -> Self:
        if self.model is None and self.graph is None:
            raise FieldError("a workload has a model or a graph", "neither", "add the key model or graph")
        if self.graph is not None:
            extra = sorted(self.model_fields_set & {"model", "phase", "batch", "sequence", "dtypes", "parallel"})
            if extra:
                must = "a workload from a graph states nothing of a model"
                raise FieldError(must, ", ".join(extra), f"remove {extra[0]}, or graph", (extra[0],))
        return self
