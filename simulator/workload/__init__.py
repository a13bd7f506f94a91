"""The workload: the dimensions of a model and what runs of it, or a graph from a file."""

from __future__ import annotations

from collections.abc import Iterable
from math import inf, prod
from typing import Literal, Self

from pydantic import Field

from simulator.document import Count, Document, Ranks
from simulator.units import require
from simulator.workload.attention_kinds import Attention, Gqa, Mixer, Mla, Mqa, attends_whole
from simulator.workload.chosen_tokens import Compress, Indexer, Pool, Select, Sparse, seen_in_blocks
from simulator.workload.dlrm import AnyModel, DlrmModel, EmbeddingTable, RowCache
from simulator.workload.feed_forwards import Dense, EndPart, Experts, SharedBlocks
from simulator.workload.kv_blocks import KvBlocks
from simulator.workload.models import Checkpoint, DecoderModel, Layer, LlamaModel, Lora, Model, Other
from simulator.workload.phases import INFERENCE, OF_A_LENGTH, OF_RECOMMENDER, PHASES_OF
from simulator.workload.recurrent import Absent, Recurrent
from simulator.workload.requests import Answers, Arrivals, Arriving, Clients, Lengths, Prefixes, Request, Requests
from simulator.workload.sharding import AXES, Dtypes, Optimizer, Parallel, Pools, changed
from simulator.workload.sides import ADAM_FLOPS, Sides

__all__ = [
    "ADAM_FLOPS", "AXES", "Absent", "Answers", "Arrivals", "Arriving", "Attention", "Checkpoint", "Clients",
    "Compress", "DecoderModel", "Dense", "DlrmModel", "Dtypes", "EmbeddingTable", "EndPart", "Experts", "Gqa",
    "Indexer", "KvBlocks", "Layer", "Lengths", "LlamaModel", "Lora", "Mixer", "Mla", "Model", "Mqa", "Optimizer",
    "Other", "Parallel", "Pool", "Pools", "Prefixes", "Recurrent", "Request", "Requests", "RowCache", "Select",
    "SharedBlocks", "Sides", "Sparse", "Workload", "attends_whole", "seen_in_blocks",
]  # fmt: skip


_OF_GRAPH = {"ranks", "data", "zero_stage", "gathers_ahead", "bucket_bytes"}
"""Keys of `parallel` for a graph."""
_WITH_MASTER = 12
"""Bytes of a parameter's states from which on a master weight is among them: two moments have 8."""


class Workload(Document):
    """A training step of a model, its inference on one rank or on two pools of ranks, or a graph from a file.

    Attributes
    ----------
    model
        The model that runs.
    phase
        What runs: a training step (``train``); ``prefill`` of prompts or ``decode`` of new tokens on one rank;
        ``serve``: prefill and decode on two pools of ranks; or ``requests`` that arrive and leave.
    batch
        Sequences (samples, of a recommender) that run together, for each replica and micro-batch; for a graph from a
        file, those of its step.
    sequence
        Tokens of each sequence. For a graph from a file `sequence` and `batch` serve only to compute tokens and samples
        per second.
    dtypes
        Data types of weights, gradients, states and caches.
    kernels
        In training: ``fused`` norms and latent attention are kernels that save their inputs; ``eager`` ones run op by
        op, as in transformers: a norm of scale alone saves its input in fp32 and the normalised one, each of its ops,
        and of a rotary embedding, goes through memory; heads of latent attention have full keys, and copy outputs.
    masked
        Pairs of tokens that a mask hides, in training and of prompts: ``skipped`` by kernels of attention block by
        block, as by FlashAttention; or ``computed``, as by its Triton kernel of 2022. Where scores are held, all are.
    parallel
        Degrees of parallelism of the model, or the number of replicas that run the graph, and their sharding.
    chunk
        With phase ``prefill``: how many tokens of each prompt of ``sequence`` tokens run at a time; default: all.
    new_tokens
        With phase ``decode``: how many tokens a step adds to each of ``batch`` sequences that have ``sequence`` tokens
        cached, one after another. Every step begins at the same length.
    answers
        With phase ``decode``: how many tokens each sequence adds until it ends, at most `new_tokens`; later tokens are
        added to those that are left. Default: all of them end together.
    kv
        With phases ``prefill`` and ``decode``: how the KV cache is cut into tensors; default: one for each layer, and
        one for the tokens that a step or a chunk adds.
    experts
        With phases ``prefill`` and ``decode``, for a model with experts. ``together``: the experts of a layer share one
        tensor and one kernel for each matrix; ``grouped``: the same tensors in one kernel, which keeps intermediate
        results to itself; ``each``: each expert is a tensor, read dynamically, only if the router chooses it.
    swiglu
        ``apart``: a gated feed-forward activates and multiplies the gate in two ops; ``fused``: in one op, which does
        not save the activated gate, so that backward computes it again.
    optimizer
        In training, the state that updates each weight; default: ``dtypes.optimizer_bytes_per_parameter``.
    lora
        In training, low-rank adapters; all other weights are then frozen, unless `frozen` says which.
    frozen
        In training, patterns of weights (``embed/*``, ``L0[0-7]/*``) without gradient, optimizer state and update;
        never adapters. Ops before the first trained weight have no backward.
    checkpoint
        In training, the ops that backward reruns instead of saving their outputs. It is part of the program under any
        policy; the policy `recompute` reruns more.
    loss_chunks
        In training, in how many chunks of a rank's tokens one op makes the logits, the loss, and the gradients of both
        sides of the product, so that logits are never whole (Liger-Kernel,
        ops/fused_linear_cross_entropy.py); default: logits are made, saved and read as a whole.
    on
        What the host runs of a step.
    in_place
        Kinds of tensors, or patterns of their names, that kernels may read where they lie, in a tier that they can load
        from, without a copy: only persistent tensors that no op writes. Each row decides whether they do.
    requests
        With phase ``requests``: sequences that arrive and leave, for `hosim serve`.
    pools
        With phase ``serve``: how many ranks prefill (``batch`` prompts of ``sequence`` tokens each), how many decode.
    graph
        Instead of a model: a ``hosim-graph/1`` file, or a recorded ``residency-trace/1``, relative to this document.
    plan
        A recorded plan of the graph, relative to this document: a ``hosim-plan/1`` file. A run without a scenario has a
        row ``recorded`` of it.
    remote
        Patterns of tensors of the graph whose home is the tier below the compute tier, unless a scenario names another.
    views
        In a recorded trace, whether an op that only makes a view of a tensor ``reads`` it, or ``writes`` it, too.
    outputs
        Whether the outputs of the graph are ``kept`` until the step ends (in any tier), or ``freed`` after their last
        use, as if nobody needed them.
    steps
        Number of runs of the step, one after another.
    replicas
        Number of ranks that run it independently: they share the shared parts of the machine, but never meet.
    """

    schema_: Literal["hosim/workload/1"] = Field("hosim/workload/1", alias="schema")
    model: AnyModel | None = None
    phase: Literal["train", "serve", "prefill", "decode", "requests"] = "train"
    batch: Count = 1
    sequence: Count = 2048
    chunk: Count | None = None
    new_tokens: Count = 1
    answers: Answers | None = None
    dtypes: Dtypes = Dtypes()
    kv: KvBlocks | None = None
    experts: Literal["together", "grouped", "each"] = "together"
    swiglu: Literal["apart", "fused"] = "apart"
    kernels: Literal["fused", "eager"] = "fused"
    masked: Literal["skipped", "computed"] = "skipped"
    parallel: Parallel = Parallel()
    pools: Pools | None = None
    optimizer: Optimizer | None = None
    lora: Lora | None = None
    frozen: tuple[str, ...] | None = None
    checkpoint: Checkpoint | None = None
    loss_chunks: Count | None = None
    on: Sides = Sides()
    in_place: tuple[str, ...] = ()
    requests: Requests | None = None
    graph: str | None = None
    plan: str | None = None
    remote: tuple[str, ...] = ()
    views: Literal["reads", "writes"] = "reads"
    outputs: Literal["kept", "freed"] = "kept"
    steps: Count = 2
    replicas: Ranks = 1

    @property
    def decoder(self) -> Model | None:
        """Its model, if that is a decoder."""
        return None if isinstance(self.model, DlrmModel) else self.model

    @property
    def tokens(self) -> int | None:
        """Tokens that all ranks train on, read or add in a step; None for pools, and where there are none."""
        if self.phase == "decode":
            return self.replicas * (sum(self.lengths) or self.batch * self.new_tokens)
        stated = self.decoder is not None or "sequence" in self.model_fields_set
        return self.sequences * self.sequence if stated and self.phase not in ("serve", "requests") else None

    @property
    def lengths(self) -> tuple[int, ...]:
        """Tokens that each sequence of a batch adds, the longest first; none where all end together."""
        of_all = self.answers.drawn(self.batch, (self.answers.seed,)) if self.answers else []
        return tuple(sorted((min(tokens, self.new_tokens) for tokens in of_all), reverse=True))

    @property
    def ranks(self) -> int:
        """Ranks that a model is spread over, replicas included; of a graph, its replicas."""
        if self.pools is not None:
            return self.pools.prefill + self.pools.decode
        return prod(self.parallel.device_matrix.values()) if self.parallel.ranks == "all" else self.replicas

    @property
    def meets(self) -> bool:
        """Whether its ranks are said to meet."""
        return self.parallel.ranks == "all" or self.phase == "serve"

    @property
    def dequantizes_before(self) -> bool:
        """Whether matrices in another format are made ready by ops of their own before each use."""
        return (self.dtypes.dequantize or ("before" if self.phase == "train" else "fused")) != "fused"

    @property
    def settled(self) -> tuple[Self, ...]:
        """The workloads in which each part has one side, where this one leaves that to a policy; else itself alone."""
        ways = self.on.settled
        return (self,) if len(ways) == 1 else tuple(self.model_copy(update={"on": on}) for on in ways)

    @property
    def samples(self) -> int | None:
        """Sequences that all ranks train on or read in a step; None in other phases, and if a graph states none."""
        stated = self.model is not None or "batch" in self.model_fields_set
        return self.sequences if stated and self.phase in ("train", "prefill") else None

    @property
    def sequences(self) -> int:
        """Sequences that run in a step, on all ranks."""
        parallel = self.parallel
        replicas = parallel.data * parallel.micro_batches if parallel.ranks == "all" else parallel.micro_batches
        return self.replicas * replicas * self.batch

    @property
    def _dotted(self) -> set[str]:
        """Keys that the document states; those of its parts with the part before a dot."""
        parts = {part: getattr(self, part).model_fields_set for part in ("dtypes", "on", "parallel")}
        return self.model_fields_set.union(f"{part}.{key}" for part, keys in parts.items() for key in keys)

    def _refuse(self, keys: Iterable[str], must: str, found: str = "", do: str = "remove it") -> None:
        """Refuse keys that the document states; texts may name the key as ``{}``."""
        for key in sorted(self._dotted.intersection(keys)):
            require(False, must.format(key), found or key, *key.split("."), do=do.format(key))

    def _check(self) -> None:
        do = "add the key model or graph"
        require(self.model or self.graph, "a workload has a model or a graph", "neither", do=do)
        of_model = {"model", "dtypes", "phase", *PHASES_OF} - {*OF_A_LENGTH, "in_place", "parallel"}
        if self.graph is None:
            self._refuse(("plan", "remote", "views"), "{} is of a graph from a file", "a model", "remove {}")
        else:
            self._refuse(of_model, "a workload from a graph states nothing of a model", do="remove {}")
        for key in filter(self._dotted.__contains__, PHASES_OF):
            must, found = f"{key} is for phase {', '.join(PHASES_OF[key])}", f"it with phase {self.phase}"
            require(self.phase in PHASES_OF[key], must, found, *key.split("."), do="remove it")
        for key in ("pools", "requests"):
            is_there = getattr(self, key) is not None or self.phase not in PHASES_OF[key]
            require(is_there, f"phase {self.phase} has {key}", "none", key, do=f"add {key}, or set another phase")
        alone = self.replicas == 1 or (self.pools is None and self.parallel.ranks == "one")
        require(alone, "a replica is one rank that meets no other", "pools or ranks: all", "replicas", do="remove it")
        must = "answers end by the last of new_tokens, and no ranks cut the rows of those that are left"
        fits, do = "new_tokens" in self.model_fields_set, "state new_tokens, and remove parallel.sequence"
        require(self.answers is None or (fits and not self.parallel.sequence), must, "another", "answers", do=do)
        found = f"{self.chunk} of {self.sequence} tokens"
        require((self.chunk or 0) <= self.sequence, "a chunk is a part of the prompt", found, "chunk", do="lower it")
        stated = self.parallel.model_fields_set
        odd = sorted(stated - _OF_GRAPH) if self.graph else ["bucket"] * ("bucket_bytes" in stated)
        must, do = "a graph has replicas (data, zero_stage, gathers_ahead, bucket), a model no bucket", "remove it"
        require(not odd, must, ", ".join(odd), "parallel", *odd[:1], do=do)
        fits = bool(self.model or self.parallel.ranks == "all" or not stated)
        require(fits, "all replicas of a graph are ranks", "one", "parallel", "ranks", do="set it to all")
        if isinstance(self.model, DlrmModel):
            self._check_recommender(self.model)
        elif self.model is not None:
            self._refuse(["on.tables"], "a recommender has tables of rows")
            self._check_model(self.model)

    def _check_recommender(self, model: DlrmModel) -> None:
        """Refuse what only decoders have, and ranks that have a part of the model and do not meet."""
        require(self.phase == "train", "a recommender is trained", f"phase {self.phase}", "phase", do="set it to train")
        of_phases = {key.partition(".")[0] for key in PHASES_OF}
        odd = {key for key in self._dotted if key.partition(".")[0] in of_phases} - OF_RECOMMENDER
        self._refuse(odd, "a recommender has no tokens, layers and experts, and its model says how tables are spread")
        is_cached = bool(model.cache and self.on.share("tables"))
        require(not is_cached, "tables of the host have no cache", "one", "model", "cache", do="remove it")
        must, do = "data ranks have tables for one another", "add 'ranks: all', or remove data"
        fits = self.parallel.ranks == "all" or self.parallel.data == 1
        require(fits, must, f"data {self.parallel.data} with ranks: one", "parallel", "data", do=do)

    def _check_model(self, model: Model) -> None:
        """Refuse a model family that the phase does not support, and settings that do not suit its attention."""
        must, do = "phase serve is built for models of family llama", "set phase, or change the family"
        require(self.phase != "serve" or isinstance(model, LlamaModel), must, model.family, "phase", do=do)
        decoder = model.decoder
        if not (decoder.causal and decoder.head):
            self._check_encoder(decoder)
        if decoder.encoded:
            self._check_encoded()
        rows, most = decoder.positions, self.sequence + (self.new_tokens if self.phase == "decode" else 0)
        fits = not rows or self.phase == "requests" or most <= rows
        must, found = "a sequence is no longer than the table of positions", f"{most:,} of {rows:,}"
        require(fits, must, found, "sequence", do="lower it")
        fits = any(part.gate for _, part in decoder.kinds) or "swiglu" not in self.model_fields_set
        require(fits, "swiglu is of feed-forwards with a gate", "none", "swiglu", do="remove it")
        self._check_scores(decoder)
        if self.phase == "train":
            self._check_training(decoder)
        if self.phase in (*INFERENCE, "requests"):
            self._check_ranks(decoder)
        if self.phase not in INFERENCE:
            return
        spread = {part.ranks for _, part in decoder.kinds if isinstance(part, Experts)}
        must, has = "experts says how a model's experts are read", self.experts == "together" or spread
        require(has, must, f"{self.experts} of a model without experts", "experts", do="remove it")
        must, do = "a rank that reads experts each for itself has all of them", "say together or grouped"
        require(self.experts != "each" or spread == {1}, must, "some on other ranks", "experts", do=do)
        is_even = not any(isinstance(part, Experts) and part.skew for _, part in decoder.kinds)
        must, do = "draws of the scenario say how skewed experts are that are tensors of their own", "remove skew there"
        require(is_even or (self.experts != "each" and not self.on.share("experts")), must, "a skew", "model", do=do)
        stated = self.experts if "experts" in self.model_fields_set else None
        self.on.check_layers(decoder, self.parallel.tensor, stated)
        must, do = "kernels of several experts read them as they are stored", "remove it, or say experts: together"
        fits = not (self.dequantizes_before and spread and (self.experts != "together" or self.on.share("experts")))
        require(fits, must, f"dequantize: {self.dtypes.dequantize}", "dtypes", "dequantize", do=do)
        if self.kv is not None:
            for attention, _ in decoder.kinds:
                self.kv.check(attention, self.chunk)
            times = self.new_tokens * -(-self.sequence // (self.chunk or self.sequence))
            self.kv.check_count(decoder.layers, self.batch, most, times)

    def _check_scores(self, model: DecoderModel) -> None:
        """Refuse scores that no layer holds, and pairs that no mask hides."""
        whole = [part for part, _ in model.kinds if attends_whole(part)]
        must, scores = "a mask hides pairs, which kernels that hold no scores may skip", self.dtypes.scores_bytes
        hides = any(model.causal or (part.window or inf) < 2 * self.sequence - 1 for part in whole)
        fits = (hides and not scores) or "masked" not in self.model_fields_set
        require(fits, must, "held scores" if scores else "none that it hides", "masked", do="remove it")
        must = "scores are of attention to all tokens, or to a window"
        require(bool(whole or not scores), must, "another", "dtypes", "scores_bytes", do="remove it")
        must, do = "matrices and inputs are saved for backward in training", "set it to before"
        fits = self.phase == "train" or self.dtypes.dequantize not in ("saved", "inputs")
        require(fits, must, "inference", "dtypes", "dequantize", do=do)

    def _check_ranks(self, model: DecoderModel) -> None:
        """Refuse ways to spread inference over ranks that are not built, and what only training has."""
        must, do, keys = "inference is spread over tensor ranks alone", "remove it; see replicas", ["data", "expert"]
        if self.phase == "requests":
            data, must = self.parallel.data, "data ranks that are served together share experts"
            found, do = f"{data} engines of their own", "add expert, or serve one with its requests alone"
            require(self.parallel.expert > 1 or data == 1, must, found, "parallel", "data", do=do)
            must, do, keys = "requests are served on tensor, data and expert ranks", "remove it", ["sequence"]
        odd = changed(self.parallel, (*keys, "pipeline", "context", "zero_stage", "micro_batches"))
        require(not odd, must, "".join(odd[:1]), "parallel", *odd[:1], do=do)
        must, do = "how experts lie on ranks is said once", "remove it, or ranks of the feed-forward"
        once = self.parallel.expert == 1 or all(getattr(part, "ranks", 1) == 1 for _, part in model.kinds)
        require(once, must, "twice", "parallel", "expert", do=do)

    def _check_encoder(self, model: DecoderModel) -> None:
        """Refuse what needs tokens that come one after another, of an encoder or of layers without a head."""
        fits, must = self.phase in ("train", "prefill"), "an encoder, or a model without a head, adds no tokens"
        require(fits, must, f"phase {self.phase}", "phase", do="set phase to prefill or train")
        self._refuse(("chunk", "kv", "dtypes.kv_cache"), "an encoder, or a model without a head, has no KV cache")
        is_plain = (isinstance(part, Gqa) and not (part.sparse or part.sinks) for part, _ in model.kinds)
        must, do = "an encoder has grouped-query attention to all tokens, or to a window", "change it"
        require(model.causal or all(is_plain), must, "another", "model", "attention", do=do)
        patches = self.sequence - model.registers
        for joined in (1, *(prod(part.rows * part.pooled for part in parts) for parts in model.mergers)):
            must = f"a sequence has rows behind its {model.registers:,} registers, a multiple of {joined:,}"
            require(patches > 0 == patches % joined, must, f"{self.sequence:,}", "sequence", do="change it")

    def _check_encoded(self) -> None:
        """Refuse what an encoder's output does not reach."""
        must, stages = "an encoder's output reaches one stage", self.parallel.pipeline
        require(stages == 1, must, f"{stages} stages", "parallel", "pipeline", do="set it to 1")
        must, do = "a decoder behind an encoder is not served", "set phase to train, prefill or decode"
        require(self.phase != "requests", must, "phase requests", "phase", do=do)

    def _check_training(self, model: DecoderModel) -> None:
        """Refuse settings of inference, an optimizer that is stated twice, and layers that the model lacks."""
        for attention, part in model.kinds:
            least = attention.pool.stride if isinstance(attention, Mqa) and attention.pool else 1
            must = f"a sequence has at least {least:,} tokens, of which one is compressed"
            require(self.sequence >= least, must, f"{self.sequence:,}", "sequence", do="raise it")
            is_whole = isinstance(attention, Absent) or (isinstance(attention, Gqa) and not attention.chooses)
            must = "context ranks gather the keys and values of grouped-query attention"
            is_gathered = is_whole or self.parallel.context == 1
            require(is_gathered, must, "another", "parallel", "context", do="set parallel.context to 1")
            odd = changed(part, ("ranks", "copies", "buffers")) if isinstance(part, Experts) else []
            must, do = "training has no options of inference", "remove it; parallel.expert says how experts lie"
            require(not odd, must, "".join(odd[:1]), "model", "feed_forward", *odd[:1], do=do)
        must, do = "layers that others take rows, keys or values from are on one stage, and made once", "remove them"
        is_near = self.parallel.pipeline == 1 and self.checkpoint is None
        require(is_near or not model.hands_on, must, "a pipeline, or a checkpoint", "model", do=do)
        is_alone = not model.shared or (self.parallel.zero_stage < 3 and not self.lora)
        require(is_alone, "weights that layers share are whole", "zero_stage: 3, or lora", "model", "shared", do=do)
        must, found = "the states of a weight are stated once", "optimizer and dtypes.optimizer_bytes_per_parameter"
        once = self.optimizer is None or "optimizer_bytes_per_parameter" not in self.dtypes.model_fields_set
        require(once, must, found, "optimizer", do="remove one of them")
        fits = self.lora or self.frozen or not (self.dtypes.weights or self.dtypes.experts or self.dtypes.others)
        must = "a format of weights is for inference, or for frozen ones"
        require(fits, must, "another", "dtypes", "others" if self.dtypes.others else "weights", do="remove it")
        by_size, optimizer = self.dtypes.optimizer_bytes_per_parameter >= _WITH_MASTER, self.optimizer
        has_master = optimizer.master_bytes(self.dtypes.element_bytes) > 0 if optimizer else by_size
        self.on.check_optimizer(self.optimizer or Optimizer(), has_master=has_master)
        if self.loss_chunks:
            require(model.head, "a loss is made of logits", "no head", "loss_chunks", do="remove it")
            rule, do = "a loss in chunks has all of the vocabulary, and no fp32 copies", "remove it, or loss_chunks"
            require("lm" not in model.head_biases, "a loss in chunks has no bias", "lm", "loss_chunks", do="remove it")
            require(self.parallel.tensor == 1, rule, "ranks that share the vocabulary", "loss_chunks", do=do)
            self._refuse(("dtypes.logits_copies_fp32", "dtypes.gradient_copies_fp32"), rule, do=do)
            must, found = "backward follows the forward that made its gradients", "gpipe with sharded gradients"
            fits = self.parallel.schedule == "1f1b" or self.parallel.zero_stage < 2
            require(fits, must, found, "loss_chunks", do="set schedule to 1f1b, or zero_stage below 2")
        last = max((self.checkpoint and self.checkpoint.layers) or (0,))
        must = f"layers are numbered from 0 to {model.layers - 1}"
        require(last < model.layers, must, str(last), "checkpoint", "layers", do="correct it")
