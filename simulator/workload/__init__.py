"""The workload: a model's dimensions and what is done with it, or a graph from a file."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from simulator.document import Count, Document, Ranks
from simulator.units import FieldError
from simulator.workload.attention import Compress, Gqa, Mla, Select, Sparse, check_attention
from simulator.workload.layout import AXES, Dtypes, KvBlocks, Parallel, Pools
from simulator.workload.models import (
    DecoderModel,
    Experts,
    LlamaModel,
    Model,
)
from simulator.workload.requests import Arrivals, Arriving, Lengths, Prefixes, Request, Requests

__all__ = [
    "AXES",
    "Arrivals",
    "Arriving",
    "Compress",
    "DecoderModel",
    "Dtypes",
    "Experts",
    "Gqa",
    "KvBlocks",
    "Lengths",
    "LlamaModel",
    "Mla",
    "Model",
    "Parallel",
    "Pools",
    "Prefixes",
    "Request",
    "Requests",
    "Select",
    "Sparse",
    "Workload",
]


_ABOUT_A_MODEL = (
    "phase",
    "batch",
    "sequence",
    "chunk",
    "new_tokens",
    "dtypes",
    "kv",
    "experts",
    "parallel",
    "pools",
    "requests",
)
_INFERENCE = ("prefill", "decode")


class Workload(Document):
    """What runs: a training step of a model, its inference on one rank or from two pools, or a graph from a file.

    Attributes
    ----------
    model, phase, batch, sequence, dtypes, parallel
        The model and how it is run; ``batch`` is per replica and micro-batch.
    chunk
        With phase ``prefill``: how many tokens of each prompt of ``sequence`` tokens run at a time; default: all.
    new_tokens
        With phase ``decode``: how many tokens a step adds to each of ``batch`` sequences that have ``sequence`` tokens
        cached, one after another. Every step begins at the same length.
    kv
        With phases ``prefill`` and ``decode``: how the KV cache is cut into tensors; default: one for each layer, and
        one for what a step or a chunk adds.
    experts
        With phases ``prefill`` and ``decode``, of a model with experts: whether those of a layer are ``together``, a
        tensor for each matrix of all of them, or ``each`` is a tensor, read late: only if the router chooses it.
    requests
        With phase ``requests``: sequences that arrive and leave on one rank, for `hosim serve`.
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
    phase: Literal["train", "serve", "prefill", "decode", "requests"] = "train"
    batch: Count = 1
    sequence: Count = 2048
    chunk: Count | None = None
    new_tokens: Count = 1
    dtypes: Dtypes = Dtypes()
    kv: KvBlocks | None = None
    experts: Literal["together", "each"] = "together"
    parallel: Parallel = Parallel()
    pools: Pools | None = None
    requests: Requests | None = None
    graph: str | None = None
    views: Literal["reads", "writes"] = "reads"
    outputs: Literal["kept", "freed"] = "kept"
    steps: Count = 2
    replicas: Ranks = 1

    @property
    def tokens(self) -> int | None:
        """Tokens that all ranks train on, read or add in a step; None of pools, and of a graph from a file."""
        if self.model is None or self.phase in ("serve", "requests"):
            return None
        if self.phase in _INFERENCE:
            return self.replicas * self.batch * (self.sequence if self.phase == "prefill" else self.new_tokens)
        replicas = self.parallel.data if self.parallel.ranks == "all" else 1
        return self.replicas * replicas * self.parallel.micro_batches * self.batch * self.sequence

    def _check(self) -> None:
        if self.model is None and self.graph is None:
            raise FieldError("a workload has a model or a graph", "neither", "add the key model or graph")
        extra = sorted(self.model_fields_set & {"model", *_ABOUT_A_MODEL})
        if self.graph is not None and extra:
            must = "a workload from a graph states nothing of a model"
            raise FieldError(must, ", ".join(extra), f"remove {extra[0]}, or graph", (extra[0],))
        if self.replicas > 1 and (self.pools is not None or self.parallel.ranks == "all"):
            must, found = "a replica is one rank that meets no other", "pools" if self.pools else "ranks: all"
            raise FieldError(must, found, f"remove replicas, or {found}", ("replicas",))
        for key, phase in (("chunk", "prefill"), ("new_tokens", "decode")):
            if key in self.model_fields_set and self.phase != phase:
                must, found = f"{key} is for phase {phase}", f"it with phase {self.phase}"
                raise FieldError(must, found, f"remove {key}, or set 'phase: {phase}'", (key,))
        if self.chunk is not None and self.chunk > self.sequence:
            must, found = "a chunk is a part of the prompt", f"{self.chunk} of {self.sequence} tokens"
            raise FieldError(must, found, f"lower chunk to {self.sequence}, or raise sequence", ("chunk",))
        if self.kv is not None and self.phase not in _INFERENCE:
            must, found = "kv is for phases prefill and decode", f"it with phase {self.phase}"
            raise FieldError(must, found, "remove kv", ("kv",))
        self._check_inference(self.model.decoder if self.model is not None and self.phase in _INFERENCE else None)
        self._check_family()
        self._check_serving()

    def _check_inference(self, model: DecoderModel | None) -> None:
        """Refuse attention, blocks and experts that do not suit; `model` is the one of prefill or decode."""
        if model is not None:
            check_attention(model.attention, self.sequence)
        if model is not None and self.kv is not None:
            tokens = self.sequence + (self.new_tokens if self.phase == "decode" else 0)
            self.kv.check(model.attention, self.chunk)
            times = self.new_tokens * -(-self.sequence // (self.chunk or self.sequence))
            self.kv.check_count(model.layers, self.batch, tokens, times)
        part = model and model.feed_forward
        is_spread = not isinstance(part, Experts) or part.ranks > 1
        if self.experts == "each" and self.model is not None and is_spread:
            must = "experts are read each for itself at prefill and decode, of a model that has all of them on its rank"
            found = f"phase {self.phase}" if self.phase not in _INFERENCE else "none of its own"
            raise FieldError(must, found, "write 'experts: together', or change the model", ("experts",))

    def _check_family(self) -> None:
        if self.phase in _INFERENCE and "parallel" in self.model_fields_set:
            must = f"phase {self.phase} runs the whole model on one rank"
            raise FieldError(must, "the key parallel", "remove it, or use replicas", ("parallel",))
        if self.phase not in ("train", "serve"):
            return
        if isinstance(self.model, DecoderModel):
            must = "a model of the family decoder has phase prefill, decode or requests"
            raise FieldError(must, self.phase, "set phase, or use the family llama", ("phase",))
        for key in ("weights", "kv_cache"):
            if getattr(self.dtypes, key) is not None:
                must, found = f"dtypes.{key} is for phases prefill and decode", f"it with phase {self.phase}"
                raise FieldError(must, found, "remove it", ("dtypes", key))

    def _check_serving(self) -> None:
        if (self.requests is not None) != (self.phase == "requests"):
            must = "with phase requests a workload has requests, and else none"
            found = f"phase {self.phase} {'with' if self.requests else 'without'} requests"
            raise FieldError(must, found, "set 'phase: requests', and say when they come", ("phase",))
        if self.requests is not None and self.model is not None:
            self.requests.check(self.model)
            extra = sorted(self.model_fields_set & {"batch", "sequence", "parallel", "replicas"})
            if extra:
                must = "requests say how many sequences there are and how long, on one rank"
                raise FieldError(must, f"the key {extra[0]}", "remove it", (extra[0],))
        if (self.pools is not None) != (self.phase == "serve"):
            must = "pools serve, and training has none"
            found = f"phase {self.phase} {'with' if self.pools else 'without'} pools"
            do = "set 'phase: serve', and say how many ranks each of the pools has"
            raise FieldError(must, found, do, ("phase",))
        if self.pools is not None and "parallel" in self.model_fields_set:
            must = "each rank of a pool holds the whole model"
            raise FieldError(must, "the key parallel", "remove it, or set 'phase: train'", ("parallel",))
