"""The workload: a model's dimensions and what is done with it, or a graph from a file."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Discriminator, Field, StrictBool, Tag, model_validator

from simulator.document import Document, Part
from simulator.units import FieldError, would_divide

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
    experts
        Feed-forwards of each layer, each of width `ffn`, of which a token goes through `top_k`; default: one for all.
    top_k
        See `experts`.
    """

    family: Literal["llama"] = "llama"
    layers: Count
    hidden: Count
    heads: Count
    kv_heads: Count
    ffn: Count
    vocabulary: Count
    tied_embeddings: StrictBool = False
    experts: Count | None = None
    top_k: Count = 1

    @model_validator(mode="after")
    def _heads_divide(self) -> Self:
        for whole, part in (("hidden", "heads"), ("heads", "kv_heads")):
            a, b = getattr(self, whole), getattr(self, part)
            if a % b:
                must, do = f"{whole} is a multiple of {part}", f"change {whole} or {part}"
                raise FieldError(must, f"{a} and {b}", do, (whole,))
        return self

    @model_validator(mode="after")
    def _experts_are_there(self) -> Self:
        if self.top_k > (self.experts or 1):
            must, found = "a token goes through at most all experts", f"{self.top_k} of {self.experts or 'none'}"
            raise FieldError(must, found, "lower top_k, or raise experts", ("top_k",))
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
    """How the model is spread over ranks.

    With ``ranks: one`` the graph is one rank's slice: `data` and `zero_stage` say how much optimizer state it holds,
    and nothing is communicated. With ``ranks: all`` there is a graph for every rank, with all that they communicate:
    data * tensor * pipeline ranks, neighbours along tensor, then along data, then along pipeline.

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
    layouts
        Pattern of weight names -> for inputs and outputs the axis that cuts them (``tensor`` or ``none``), of
        experts the axis that cuts their number before; instead of the usual ones, and the last match wins.
    """

    ranks: Literal["one", "all"] = "one"
    data: Count = 1
    tensor: Count = 1
    pipeline: Count = 1
    expert: Count = 1
    sequence: StrictBool = False
    zero_stage: Literal[0, 1, 2, 3] = 0
    micro_batches: Count = 1
    schedule: Literal["gpipe", "1f1b"] = "1f1b"
    layers: tuple[Count, ...] | None = None
    layouts: dict[str, tuple[str, ...]] = {}

    @model_validator(mode="after")
    def _one_rank_is_alone(self) -> Self:
        if self.ranks == "one":
            several = [key for key in ("tensor", "pipeline", "expert") if getattr(self, key) > 1]
            several += ["sequence"] if self.sequence else []
            several += ["zero_stage"] if self.zero_stage > 1 else []
            several += ["layouts"] if self.layouts else []
            if several:
                must = "one rank's slice knows data, zero_stage 0 or 1, and micro_batches"
                raise FieldError(
                    must, several[0], "add 'ranks: all' for all ranks and their collectives", (several[0],)
                )
        return self

    @model_validator(mode="after")
    def _experts_divide(self) -> Self:
        if self.data % self.expert:
            must, found = (
                "expert divides data: expert ranks are replicas that share experts",
                (f"{self.expert} and {self.data}"),
            )
            raise FieldError(must, found, would_divide("expert", self.data, self.expert), ("expert",))
        return self

    @model_validator(mode="after")
    def _stages_have_layers(self) -> Self:
        if self.layers is not None and len(self.layers) != self.pipeline:
            found = f"{len(self.layers)} for {self.pipeline} stages"
            raise FieldError("layers says how many each stage has", found, "name one number a stage", ("layers",))
        return self


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

    prefill: Count
    decode: Count
    new_tokens: Count

    @model_validator(mode="after")
    def _prompts_are_dealt_out(self) -> Self:
        if self.prefill % self.decode:
            must, found = "prefill is a multiple of decode", f"{self.prefill} and {self.decode}"
            raise FieldError(must, found, would_divide("decode", self.prefill, self.decode), ("decode",))
        return self


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


_ABOUT_A_MODEL = ("phase", "batch", "sequence", "dtypes", "parallel", "pools")


class Workload(Document):
    """What runs: a training step of a model, serving it from two pools of ranks, or a graph from a file.

    Attributes
    ----------
    model, phase, batch, sequence, dtypes, parallel
        The model and how it is run; ``batch`` is per replica and micro-batch.
    pools
        With phase ``serve``: who reads prompts of ``sequence`` tokens, ``batch`` on each rank, and who answers.
    graph
        Instead of a model: a ``hosim-graph/1`` file, or a recorded ``residency-trace/1``, relative to this document.
    views
        Whether in a recorded trace an op that only makes a view of a tensor ``reads`` it, or ``writes`` it too.
    outputs
        Whether what the graph puts out is ``kept`` until the step ends (in any tier), or ``freed`` after its last use,
        as if nobody needed it.
    steps
        How many times the step runs, one after another.
    replicas
        How many ranks run it, each for itself: they share what the machine lets them share, and never meet.
    """

    schema_: Literal["hosim/workload/1"] = Field("hosim/workload/1", alias="schema")
    model: Model | None = None
    phase: Literal["train", "serve"] = "train"
    batch: Count = 1
    sequence: Count = 2048
    dtypes: Dtypes = Dtypes()
    parallel: Parallel = Parallel()
    pools: Pools | None = None
    graph: str | None = None
    views: Literal["reads", "writes"] = "reads"
    outputs: Literal["kept", "freed"] = "kept"
    steps: Count = 2
    replicas: Count = 1

    @property
    def tokens(self) -> int | None:
        """Tokens that all ranks train on in a step; None if they do not train a model."""
        if self.model is None or self.phase != "train":
            return None
        replicas = self.parallel.data if self.parallel.ranks == "all" else 1
        return self.replicas * replicas * self.parallel.micro_batches * self.batch * self.sequence

    @model_validator(mode="after")
    def _one_subject(self) -> Self:
        if self.model is None and self.graph is None:
            raise FieldError("a workload has a model or a graph", "neither", "add the key model or graph")
        if self.graph is not None:
            extra = sorted(self.model_fields_set & {"model", *_ABOUT_A_MODEL})
            if extra:
                must = "a workload from a graph states nothing of a model"
                raise FieldError(must, ", ".join(extra), f"remove {extra[0]}, or graph", (extra[0],))
        return self

    @model_validator(mode="after")
    def _replicas_are_of_one_rank(self) -> Self:
        if self.replicas > 1 and (self.pools is not None or self.parallel.ranks == "all"):
            must, found = "a replica is one rank that meets no other", "pools" if self.pools else "ranks: all"
            raise FieldError(must, found, f"remove replicas, or {found}", ("replicas",))
        return self

    @model_validator(mode="after")
    def _pools_serve(self) -> Self:
        if (self.pools is not None) != (self.phase == "serve"):
            must, found = (
                "pools serve, and training has none",
                f"phase {self.phase} {'with' if self.pools else 'without'} pools",
            )
            raise FieldError(
                must, found, "set 'phase: serve', and say how many ranks each of the pools has", ("phase",)
            )
        if self.pools is not None and "parallel" in self.model_fields_set:
            must = "each rank of a pool holds the whole model"
            raise FieldError(must, "the key parallel", "remove it, or set 'phase: train'", ("parallel",))
        return self
