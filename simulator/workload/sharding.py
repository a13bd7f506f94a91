"""How a model's data is stored and spread: data types, optimizer states, blocks of the KV cache, ranks."""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase
from math import prod
from typing import Annotated, Literal, NamedTuple

from pydantic import Field, StrictBool

from simulator.document import MOST_RANKS, Count, CountOrNone, FewOrNone, Layers, Part, Ranks
from simulator.units import Bytes, require


class Format(NamedTuple):
    """A number format.

    Attributes
    ----------
    block
        Numbers of inputs and outputs that share a scale.
    block_bits
        Bits of the scale and zero point of such a block.
    """

    bits: int
    block: tuple[int, int] = (1, 1)
    block_bits: int = 0


_SCALES_OF_256 = {2: 160, 3: 112, 4: 128, 5: 128, 6: 144}
"""Bits of the weights of llama.cpp's ``Q2_K`` to ``Q6_K`` -> bits of the scales of a block (ggml-common.h)."""
_OF_FOUR = {"int4": (128, 16 + 4), "int4_of_32": (32, 16), "mxfp4": (32, 8), "nvfp4": (16, 8), "nf4": (64, 8)}
"""Formats of 4 bits -> inputs that share a scale, and its bits."""
FORMATS = {"fp32": Format(32), "bf16": Format(16), "fp16": Format(16), "fp8": Format(8, (128, 128), 32)}
FORMATS |= {name: Format(4, (inputs, 1), scales) for name, (inputs, scales) in _OF_FOUR.items()}
FORMATS |= {f"q{bits}_k": Format(bits, (256, 1), scales) for bits, scales in _SCALES_OF_256.items()}
FORMATS["q8_0"] = Format(8, (32, 1), 16)
"""By name. ``fp8``: an fp32 scale for each block of 128 x 128 (DeepSeek-V3, README_WEIGHTS.md of the model card).
``int4``: an fp16 scale and a 4-bit zero point for 128 inputs of each output (AWQ, arXiv 2306.00978, group size 128).
``int4_of_32``: a bf16 scale for 32 inputs (Kimi-K2-Thinking, quantization_config of the model card). ``mxfp4``: an
8-bit scale for 32 inputs (OCP Microscaling Formats 1.0, section 5.4). ``nvfp4``: an fp8 scale for 16 inputs (NVIDIA,
"Introducing NVFP4", June 2025); its one fp32 scale per matrix is not counted. ``nf4``: an 8-bit scale for 64 weights
(QLoRA, arXiv 2305.14314, section 3); the fp32 scale per 256 of these is not counted. ``q8_0``: an fp16 scale for 32
inputs, and ``q2_k`` to ``q6_k``: 84, 110, 144, 176 and 210 B for 256 inputs (llama.cpp, ggml-common.h)."""

_Packed = Literal["fp8", "int4", "int4_of_32", "mxfp4", "nvfp4", "nf4", "q8_0", "q6_k", "q5_k", "q4_k", "q3_k", "q2_k"]
Kept = Literal["bf16", "fp16", "fp32", _Packed]
"""Formats in which weights may be stored."""


class Dtypes(Part):
    """Data types of weights, gradients, states and caches.

    Attributes
    ----------
    compute
        Weights, activations and gradients.
    gradients
        In training, gradients of weights, which accumulate over micro-batches and ranks; default: as `compute`.
    weights
        The matrices of layers, except routers; default: as `compute`. In training only frozen ones (QLoRA, arXiv
        2305.14314).
    experts
        The matrices of routed experts; default: as `weights`.
    others
        Other matrices, by patterns of names (``*/ffn.shared.*``, ``L00/*``, ``head/lm.weight``); the last match wins.
    dequantize
        Whether kernels read such matrices as they are stored (``fused``; default at inference), or ops of their own
        write each in `compute` ``before`` each use, which kernels then read (default in training); ``saved``: the same,
        but backward reads what forward made, as PyTorch saves the factors of a product; ``inputs``: as ``before``, and
        what such a matrix multiplies is kept until backward, as bitsandbytes before 0.43.2 does.
    arithmetic
        For inference, the data type in which these matrices multiply inputs, which are converted as they are read; a
        machine states its peak. Default: as `compute`.
    kv_cache
        For inference, the KV cache; default: as `compute`. Scales are not counted.
    states
        For inference, matrices that layers with a state keep of a sequence (inputs of convolutions: as `compute`).
    optimizer_bytes_per_parameter
        Master weight and moments together: 12 for an fp32 master and two fp32 moments (Adam). Or use `optimizer`, which
        names the states one by one.
    router
        In training, inputs and outputs of routers; default: as `compute`. With ``fp32``, an fp32 copy of the input is
        saved.
    scores_bytes
        What attention holds of each query and key of each head, masked ones too [B]: at inference while it runs, in
        training until backward, as of PyTorch's op by op, whose passes over scores in `compute` take time, dropout left
        out; default: nothing, as kernels that go through keys in blocks.
    logits_copies_fp32
        Number of fp32 copies of the logits that the loss holds while it runs.
    gradient_copies_fp32
        The same while its backward runs, beside the logits and their gradient; default: one, if the loss has any. A
        loss of PyTorch whose caller keeps fp32 logits has three: these, their logarithm and its gradient.
    """

    compute: Literal["bf16", "fp16", "fp32"] = "bf16"
    gradients: Literal["bf16", "fp16", "fp32"] | None = None
    weights: Kept | None = None
    experts: Kept | None = None
    others: dict[str, Kept] = {}
    dequantize: Literal["before", "fused", "saved", "inputs"] | None = None
    arithmetic: Literal["fp8", "int8", "fp4", "mxfp4", "int4"] | None = None
    kv_cache: Literal["bf16", "fp16", "fp32", "fp8"] | None = None
    states: Literal["bf16", "fp16", "fp32"] = "fp32"
    optimizer_bytes_per_parameter: Count = 12
    router: Literal["fp32"] | None = None
    scores_bytes: CountOrNone = 0
    logits_copies_fp32: CountOrNone = 2
    gradient_copies_fp32: CountOrNone | None = None

    def _check(self) -> None:
        formats = [FORMATS[kept] for kept in (self.weights, self.experts, *self.others.values()) if kept]
        is_stored_apart = any(kept.bits < 8 * self.element_bytes for kept in formats)
        for key in ("dequantize", "arithmetic"):
            must, fits = f"{key} is for weights or experts in a smaller format than compute", is_stored_apart
            require(getattr(self, key) is None or fits, must, "none", key, do="state weights, or remove it")
        must, found = "a matrix that was dequantized multiplies in compute", f"{self.dequantize}, and {self.arithmetic}"
        fits = not self.arithmetic or self.dequantize in (None, "fused")
        require(fits, must, found, "arithmetic", do="remove one of them")

    @property
    def element_bytes(self) -> int:
        """Size of an element of `compute` [B]."""
        return 4 if self.compute == "fp32" else 2

    @property
    def gradient_bytes(self) -> int:
        """Size of an element of a weight's gradient [B]."""
        return FORMATS[self.gradients or self.compute].bits // 8

    @property
    def kv_bytes(self) -> int:
        """Size of an element of the KV cache [B]."""
        return FORMATS[self.kv_cache or self.compute].bits // 8

    @property
    def state_bytes(self) -> int:
        """Size of an element of the matrices of layers with a state [B]."""
        return FORMATS[self.states].bits // 8

    def format_of(self, name: str, kind: str) -> Format:
        """Return the format of a matrix: that of the last pattern that fits it, or of its kind, if that has one."""
        usual = {"expert": self.experts or self.weights, "weight": self.weights}.get(kind) or self.compute
        return FORMATS[[usual, *(kept for like, kept in self.others.items() if fnmatchcase(name, like))][-1]]


_MOMENTS = {"adamw": 2, "muon": 1, "lion": 1, "momentum": 1, "sgd": 0}
"""Moments of each parameter: AdamW (arXiv 1711.05101), Muon (Jordan et al. 2024; arXiv 2502.16982, section 2.1), Lion
(arXiv 2302.06675, algorithm 2), gradient descent with and without momentum."""
_STATE_BYTES = {"fp32": 4, "bf16": 2, "int8": 1}
_BLOCK, _LEAST = 256, 4096
"""For 8-bit states: parameters that share an fp32 scale, and the least parameters of a weight that has such states; as
in bitsandbytes from 0.44 on, after 8-bit Optimizers via Block-wise Quantization (arXiv 2110.02861, section 2)."""
_ORTHOGONAL_STEPS = 5
"""Newton-Schulz steps of Muon (arXiv 2502.16982, section 2.1)."""


class Optimizer(Part):
    """The optimizer, and the data types of its states.

    ``muon`` is for the matrices of layers; all other weights use ``adamw``, as in arXiv 2502.16982. ``adafactor``
    (arXiv 1804.04235, algorithm 4, without momentum) keeps one number for each row and each column of a matrix.

    Attributes
    ----------
    kind
        The optimizer; ``momentum`` is gradient descent with momentum, ``sgd`` without.
    states
        Data type of its moments. ``int8`` has an fp32 scale for each block of 256 parameters; weights of fewer than
        4,096 parameters have fp32 moments instead. ``adafactor`` always has fp32.
    master
        Whether it keeps an fp32 master copy of each weight, or one in ``bf16``; default: if ``dtypes.compute`` has 16.
    """

    kind: Literal["adamw", "muon", "adafactor", "lion", "momentum", "sgd"] = "adamw"
    states: Literal["fp32", "bf16", "int8"] = "fp32"
    master: StrictBool | Literal["bf16"] | None = None

    def _check(self) -> None:
        usual = self.kind not in ("adafactor", "sgd") or self.states == "fp32"
        require(usual, f"{self.kind} has no states in other data types", self.states, "states", do="remove states")

    def master_bytes(self, element_bytes: int) -> int:
        """Return the size of an element of the copy that it keeps of a weight with elements of so many bytes [B]."""
        return {None: 4 * (element_bytes < 4), False: 0, True: 4, "bf16": 2}[self.master]

    def state_bytes(self, shape: tuple[int, ...], shards: int, element_bytes: int, *, is_matrix: bool) -> int:
        """Return the size of one shard of the states of a weight, its master weight included [B].

        Parameters
        ----------
        shape
            The part of the weight that a rank has.
        shards
            Over how many replicas ZeRO spreads its states.
        element_bytes
            Size of an element of the weight [B].
        is_matrix
            Whether the weight is a matrix of a layer, or several stacked.
        """
        parameters = -(-prod(shape) // shards)
        master_bytes = parameters * self.master_bytes(element_bytes)
        if self.kind == "adafactor":
            *several, rows, columns = (1, *shape)
            numbers = prod(several) * (rows + columns) if len(shape) > 1 else columns
            return master_bytes + 4 * -(-numbers // shards)
        moments = _MOMENTS["adamw" if self.kind == "muon" and not is_matrix else self.kind]
        states = "fp32" if self.states == "int8" and parameters < _LEAST else self.states
        scales = -(-parameters // _BLOCK) if states == "int8" else 0
        return master_bytes + moments * (parameters * _STATE_BYTES[states] + 4 * scales)

    def update_flops(self, shape: tuple[int, ...], *, is_matrix: bool) -> int:
        """Return the FLOPs of the matrix products of an update: Muon orthogonalizes its momentum.

        A step of a matrix X with m rows and n >= m columns is A = X X^T, B = A A and B X: 2 * m * m * (2 * n + m) FLOP.
        """
        if self.kind != "muon" or not is_matrix:
            return 0
        *several, m, n = (*shape[:-2], *sorted(shape[-2:]))
        return prod(several) * _ORTHOGONAL_STEPS * 2 * m * m * (2 * n + m)


AXES = ("pipeline", "data", "expert", "tensor")
"""Axes of the device matrix in their default order; if there are several context ranks, before those of `tensor`."""
_MOST_SENDERS = 1000
"""Most prefill ranks per decode rank: each has a graph of its own."""


def changed(part: Part, fields: Iterable[str]) -> list[str]:
    """Return those of some fields of a part that do not have their default values."""
    return [field for field in fields if getattr(part, field) != type(part).model_fields[field].default]


class Parallel(Part):
    """How the model is spread over ranks: data, context, tensor, pipeline and expert parallelism.

    With ``ranks: one`` the graph is the slice of one rank: `data` and `zero_stage` say how much optimizer state it
    holds, and nothing is communicated. With ``ranks: all`` every rank has a graph, with all communication: data *
    context * tensor * pipeline ranks in a device matrix; `layouts` map dimensions of weights to its axes.

    Attributes
    ----------
    ranks
        ``one`` or ``all``.
    data
        Replicas, each with its own samples; with phase ``requests``, ranks, or groups of tensor ranks, with requests
        and a KV cache of their own.
    tensor
        Ranks that share each layer's matrices, heads and vocabulary. Where there are more than KV heads, each KV head
        is held by ``tensor / kv_heads`` ranks.
    pipeline
        Stages, each with some of the layers.
    expert
        Ranks that share the experts of a layer. Either it divides `data`, and tensor ranks have a part of each expert;
        or, above `data` or with `expert_tensor`, each rank has whole experts and sends its part of the tokens.
    expert_tensor
        Ranks that share each expert, if that is 1 (``expert_tensor_parallel_size`` of Megatron).
    context
        In training, ranks that share the tokens of each sequence, and as many pairs of them each: all keys and values
        are gathered before attention, again in backward, and their gradients are added up where they were made
        (Transformer Engine, ``AttnFuncWithCPAndKVAllGather``).
    sequence
        Whether activations that all tensor ranks would hold are cut along the tokens, as in Megatron.
    zero_stage
        Data sharded over the replicas: 0 nothing, 1 the optimizer state, 2 gradients too, 3 weights too.
    gathers_ahead
        With `zero_stage` 3, how many blocks ahead of the current one weights are gathered; 0: each as its turn comes.
    bucket
        For a graph from a file: from which size on a bucket is full; default: 25 MiB, 1 MiB for the first (PyTorch).
    micro_batches
        Number of batches that a step runs one after another, accumulating gradients.
    schedule
        Order of forward and backward: all forward first (``gpipe``), or backward as early as possible (``1f1b``); or so
        with several parts of the layers on each stage (``interleaved``, arXiv 2104.04473, section 2.2).
    chunks
        With `schedule` ``interleaved``: how many virtual stages each stage has; a virtual stage follows on that of the
        stage before it, and the first on the last.
    woven
        Whether two micro-batches are woven, so that one computes while the other waits for a collective: a backward
        with the forward behind it, which then begins before that has ended; in GPipe, two forward or two backward.
    layers
        Layers of each (virtual) stage; default: as even as possible, more in the first stages.
    axis_names
        Axes of the device matrix, the slowest first: ranks along the last axis are neighbours, and the first to share a
        node. ``expert``, if left out, comes after ``data``, and ``context`` before ``tensor``.
    layouts
        Pattern of weight names -> the axis that cuts inputs, and the one that cuts outputs (``tensor`` or ``none``);
        for experts, first the axis that cuts their number. Replaces the default layout; the last match wins.
    """

    ranks: Literal["one", "all"] = "one"
    data: Ranks = 1
    tensor: Ranks = 1
    pipeline: Ranks = 1
    expert: Ranks = 1
    expert_tensor: Literal[1] | None = None
    context: Ranks = 1
    sequence: StrictBool = False
    zero_stage: Literal[0, 1, 2, 3] = 0
    gathers_ahead: FewOrNone = 1
    bucket_bytes: Annotated[Bytes, Field(gt=0)] | None = Field(None, alias="bucket")
    micro_batches: Count = 1
    schedule: Literal["gpipe", "1f1b", "interleaved"] = "1f1b"
    chunks: Count = 1
    woven: StrictBool = False
    layers: tuple[Layers, ...] | None = None
    axis_names: tuple[str, ...] = AXES
    layouts: dict[str, tuple[str, ...]] = {}

    @property
    def device_matrix(self) -> dict[str, int]:
        """Axis -> how many ranks it has, in order; expert ranks are replicas that share experts."""
        names = [*self.axis_names]
        if "expert" not in names:
            names.insert(names.index("data") + 1, "expert")
        if self.context > 1 and "context" not in names:
            names.insert(names.index("tensor"), "context")
        expert = self.expert_replicas
        return {name: getattr(self, name) for name in names} | {"data": self.data // expert, "expert": expert}

    @property
    def expert_replicas(self) -> int:
        """Number of replicas that share the experts of a layer; fewer than `expert` where tensor ranks do, too."""
        return self.expert // self.tensor if self.expert > self.data or self.expert_tensor else self.expert

    def _check(self) -> None:
        optional = {"expert": self.expert > 1, "context": False}
        needed = [axis for axis in (*AXES, "context") if axis in self.axis_names or optional.get(axis, True)]
        named = sorted(self.axis_names) == sorted(needed)
        require(named, f"each axis is named once ({', '.join(needed)})", ", ".join(self.axis_names), "axis_names")
        ranks = self.data * self.context * self.tensor * self.pipeline
        must, do = f"there are at most {MOST_RANKS:,} ranks", "lower data, tensor or pipeline"
        require(self.ranks == "one" or ranks <= MOST_RANKS, must, f"{ranks:,}", "data", do=do)
        odd = changed(self, ("tensor", "pipeline", "expert", "expert_tensor", "context", "sequence", "woven"))
        odd += changed(self, ("layouts", "axis_names")) + ["zero_stage"] * (self.zero_stage > 1)
        must = "one rank's slice knows data, zero_stage 0 or 1, and micro_batches"
        do = "add 'ranks: all' for all ranks and their collectives"
        require(self.ranks == "all" or not odd, must, "".join(odd[:1]), *odd[:1], do=do)
        must, found = "only weights that ZeRO shards are gathered ahead", f"it with zero_stage {self.zero_stage}"
        is_used = self.zero_stage == 3 or "gathers_ahead" not in self.model_fields_set
        require(is_used, must, found, "gathers_ahead", do="remove it, or set zero_stage to 3")
        if is_cut := self.expert_replicas == self.expert:
            self._divides("expert", "data")
        fits = is_cut or not (self.expert % self.tensor or self.data * self.tensor % self.expert)
        must, do = "ranks with whole experts are a multiple of tensor that divides data * tensor", "correct it, or data"
        require(fits, must, f"{self.expert:,} with tensor {self.tensor:,}", "expert", do=do)
        wanted = self.pipeline * self.chunks
        stages, must = wanted if self.layers is None else len(self.layers), "layers says how many each stage has"
        require(stages == wanted, must, f"{stages} for {wanted} stages", "layers")
        is_interleaved = self.schedule == "interleaved"
        must, found = "interleaved stages have several chunks, and others one", f"{self.chunks} with {self.schedule}"
        require(is_interleaved == (self.chunks > 1), must, found, "chunks", do="correct chunks or schedule")
        must, do = "interleaved stages take micro-batches in groups as large as the pipeline", "correct micro_batches"
        found = f"{self.micro_batches} for {self.pipeline} stages"
        groups = self.pipeline > 1 and self.micro_batches % self.pipeline == 0
        require(groups or not is_interleaved, must, found, "micro_batches", do=do)
        is_even = self.micro_batches % 2 == 0 or (self.schedule != "gpipe" and self.micro_batches > 1)
        must, do = "two micro-batches are woven, in GPipe an even number of them", "correct micro_batches"
        require(is_even or not self.woven, must, f"{self.micro_batches}", "micro_batches", do=do)
        must, do = "interleaved stages hold weights and gradients whole", "lower zero_stage"
        require(self.zero_stage < 2 or not is_interleaved, must, f"ZeRO {self.zero_stage}", "zero_stage", do=do)


class Pools(Part):
    """Prefill ranks and decode ranks; each holds the whole model.

    Attributes
    ----------
    prefill
        Ranks that run prompts and send their KV cache on: the first ranks; decode ranks get equal shares, in order.
    decode
        Ranks that receive KV caches and generate tokens.
    new_tokens
        Number of tokens that a decode rank adds to each of its prompts.
    """

    prefill: Ranks
    decode: Ranks
    new_tokens: Count

    def _check(self) -> None:
        self._divides("decode", "prefill")
        must, do = f"a decode rank serves at most {_MOST_SENDERS:,} prefill ranks", "raise decode, or lower prefill"
        fits, senders = self.prefill <= _MOST_SENDERS * self.decode, f"{self.prefill // self.decode:,}"
        require(fits, must, senders, "prefill", do=do)
