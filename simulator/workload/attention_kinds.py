"""The kinds of attention of a decoder, and which earlier tokens each token attends to (*sees*)."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, StrictBool

from simulator.document import Count, CountOrNone, Few, FewOrNone, Part
from simulator.units import require
from simulator.workload.recurrent import Absent, Recurrent


class Compress(Part):
    """Compression of blocks of tokens into one token each; block i starts at i * `stride` (NSA, section 3.3.1).

    Attributes
    ----------
    block
        Tokens that become one.
    stride
        Tokens from the start of one block to the start of the next; divides `block`.
    """

    block: Count
    stride: Count

    def number(self, tokens: int) -> int:
        """Count the compressed tokens of a sequence of `tokens` tokens."""
        return max(0, (tokens - self.block) // self.stride + 1)

    def seen(self, tokens: int) -> int:
        """Sum over the first `tokens` tokens of a sequence how many compressed tokens each sees."""
        whole, left = divmod(max(0, tokens - self.block + 1), self.stride)
        return self.stride * whole * (whole + 1) // 2 + left * (whole + 1)

    def _check(self) -> None:
        self._divides("stride", "block")


class Select(Part):
    """Selection of blocks of tokens: each token sees the blocks that score best (NSA, section 3.3.2).

    Attributes
    ----------
    block
        Tokens of a block.
    top
        Blocks that a token sees, its own block among them.
    first
        Number of these that are always the first blocks of the sequence.
    last
        Number of these that are always the last blocks before the token, its own included.
    """

    block: Count
    top: Few
    first: FewOrNone = 1
    last: Few = 2

    @property
    def chosen(self) -> int:
        """Number of blocks that are chosen by score."""
        return self.top - self.first - self.last

    def seen(self, tokens: int) -> int:
        """Sum over the first `tokens` tokens of a sequence how many tokens of selected blocks each sees."""
        most = self.top * self.block
        full = min(tokens, most)
        whole, left = divmod(tokens - full, self.block)
        own_blocks = whole * (self.block * (self.block + 1) // 2) + left * (left + 1) // 2
        return full * (full + 1) // 2 + (tokens - full) * (most - self.block) + own_blocks

    def _check(self) -> None:
        found = f"{self.top} with {self.first + self.last} fixed"
        require(self.chosen > 0, "some of the top blocks are chosen by score", found, "top", do="raise it")


class Sparse(Part):
    """Native sparse attention (NSA, arXiv 2502.11089): three views of earlier tokens, weighted by gates and summed.

    Attributes
    ----------
    compress
        The view of all earlier tokens, compressed.
    select
        The view of the blocks that score best.
    window
        The view of the last tokens: how many, the token itself included.
    caches
        Whether all views use one key and value of a token (``shared``), or each has its ``own``, from a projection of
        its own, as in section 3.3.3; then all of these are cached.
    """

    compress: Compress
    select: Select
    window: Count
    caches: Literal["shared", "own"] = "shared"

    def _check(self) -> None:
        found = f"{self.compress.stride} and {self.select.block}"
        divides = self.select.block % self.compress.stride == 0
        require(divides, "compress.stride divides select.block", found, "select", "block")


class _Attention(Part):
    """Fields that all kinds share.

    Attributes
    ----------
    heads
        Heads of queries (``num_attention_heads`` of the model's ``config.json``).
    window
        Number of tokens that each token sees: itself and the last ones before it; default: all.
    sinks
        Number of first tokens that it sees beside its window (StreamingLLM, arXiv 2309.17453).
    sparse
        Native sparse attention: each token sees compressed, selected and near tokens instead.
    gate
        Whether the output is multiplied by a gate made from the layer's input: of each element (``elements``;
        Qwen3-Next), or of each head (``heads``).
    beside
        A part with a state that takes the same input; the outputs of both are added (Falcon-H1, arXiv 2507.22448).
    """

    heads: Count
    window: Count | None = None
    sinks: CountOrNone = 0
    sparse: Sparse | None = None
    gate: Literal["elements", "heads"] | None = None
    beside: Recurrent | None = None

    @property
    def state(self) -> Recurrent | None:
        """The part with a state."""
        return self.beside

    @property
    def views(self) -> int:
        """Number of key and value pairs of a token: one, or one for each of the three views of sparse attention."""
        return 3 if self.sparse is not None and self.sparse.caches == "own" else 1

    @property
    def width(self) -> int:
        """Elements per token that all heads together output."""
        return self.heads * self.key_and_value[1]

    @property
    def key_and_value(self) -> tuple[int, int]:
        """Elements of a key and of a value of a head."""
        size = int(getattr(self, "head_size", 0))
        return size, int(getattr(self, "v_head", None) or size)

    def of_one(self, ranks: int) -> Self:
        """Return the attention of one of `ranks` ranks, which share the heads; each has one KV head at least."""
        heads = {key: getattr(self, key, None) for key in ("heads", "kv_heads")}
        less: dict[str, Any] = {key: max(1, count // ranks) for key, count in heads.items() if count}
        return self.model_copy(update=less | ({"beside": self.beside.of_one(ranks)} if self.beside else {}))

    def _check(self) -> None:
        fits = self.window is not None or not self.sinks
        require(fits, "sinks stand beside a window", "none", "sinks", do="add window")
        for key in ("window", "gate", "sink_logits") if self.sparse else ():
            must, do = f"sparse attention has no {key}", "remove one of them"
            require(not getattr(self, key, None), must, "both", key, do=do)


class Gqa(_Attention):
    """Grouped-query attention (Ainslie et al. 2023, arXiv 2305.13245): several heads share a key and a value.

    Attributes
    ----------
    kind
        Names this attention.
    kv_heads
        Heads of keys and values (``num_key_value_heads``).
    head_size
        Width of a head (``head_dim``, or else hidden size over heads).
    qk_norms
        Whether q and k are normalised, head by head (Qwen3, arXiv 2505.09388, section 2), or over ``all`` heads
        together (MiniMax-M2).
    biases
        Which of the four matrices ``q``, ``k``, ``v`` and ``o`` have a bias (Qwen2, arXiv 2407.10671, section 2.2.1).
    sink_logits
        Whether each head has a learned logit for attending to nothing (GPT-OSS, arXiv 2508.10925).
    buckets
        Distances of which each head has a learned bias of its scores, for all layers (T5, arXiv 1910.10683, section
        2.1).
    v_head
        Width of a value; default: that of a key.
    values
        Whether values are made by a matrix of their ``own``, or are the ``keys``, each normalised for itself (Gemma 4).
    rotary
        Whether queries and keys have rotary embeddings; not with learned positions, nor with ALiBi (arXiv 2108.12409).
    """

    kind: Literal["gqa"]
    kv_heads: Count
    head_size: Count
    qk_norms: StrictBool | Literal["all"] = False
    biases: tuple[Literal["q", "k", "v", "o"], ...] = ()
    sink_logits: StrictBool = False
    buckets: FewOrNone = 0
    v_head: Count | None = None
    values: Literal["own", "keys"] = "own"
    rotary: StrictBool = True

    @property
    def kv_elements(self) -> int:
        """Elements that the KV cache holds per token and layer: a key and a value of each KV head."""
        return self.kv_heads * sum(self.key_and_value)

    def _check(self) -> None:
        super()._check()
        self._divides("kv_heads", "heads")
        must, do = "values that are the keys have their width, and no bias", "remove v_head and the bias, or values"
        fits = self.values == "own" or not (self.v_head or "v" in self.biases)
        require(fits, must, "another one", "values", do=do)
        must, found = "the views of sparse attention have keys and values alike", "values of their own width, or keys"
        fits = not self.sparse or (self.values == "own" and not self.v_head)
        require(fits, must, found, "v_head" if self.v_head else "values", do="remove it")


class Indexer(Part):
    """Scores all earlier tokens with few heads; a token attends to the best ones (DeepSeek-V3.2-Exp, section 1).

    Attributes
    ----------
    heads
        Heads that score; the sum of their scores decides (``index_n_heads`` of the model's ``config.json``).
    head_size
        Width of a query, and of the single key per token, which is cached (``index_head_dim``).
    top
        Tokens that each token attends to (``index_topk``).
    again
        Whether a token attends to the choice of an earlier layer: then this layer has no weights and no keys for it
        (GLM-5.2). The indices are read again, but no tensor keeps them between the layers.
    """

    heads: Count
    head_size: Count
    top: Count
    again: StrictBool = False

    @property
    def cached(self) -> int:
        """Elements that it caches of a token."""
        return 0 if self.again else self.head_size


class Mla(_Attention):
    """Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1; DeepSeek-V3, arXiv 2412.19437).

    Each head has a key and a value of its own, made from the latent, which every rank holds.

    Attributes
    ----------
    kind
        Names this attention.
    q_lora_rank
        Width of the latent of queries; default: queries are made without one.
    kv_lora_rank
        Width of the latent of keys and values, which is cached.
    qk_nope
        Width of the part of a key without a rotary embedding.
    qk_rope
        Width of the part of a key with a rotary embedding; all heads share it, and it is cached.
    v_head
        Width of a value.
    indexer
        Chooses the tokens that each token attends to; default: it attends to all.
    rotary
        Whether these parts of queries and keys have a rotary embedding at all (not in Kimi Linear).
    """

    kind: Literal["mla"]
    q_lora_rank: Count | None = None
    kv_lora_rank: Count
    qk_nope: Count
    qk_rope: Count
    v_head: Count
    indexer: Indexer | None = None
    rotary: StrictBool = True

    @property
    def kv_elements(self) -> int:
        """Elements that the KV cache holds per token and layer: latent, shared part of the key, the indexer's key."""
        return self.latent + (self.indexer.cached if self.indexer else 0)

    @property
    def latent(self) -> int:
        """Elements of a token that all heads attend to."""
        return self.kv_lora_rank + self.qk_rope

    @property
    def key_and_value(self) -> tuple[int, int]:
        """Elements of a key and of a value of a head."""
        return self.qk_nope + self.qk_rope, self.v_head

    def _check(self) -> None:
        super()._check()
        plain = self.window is None and self.sparse is None
        must = "an indexer scores with the latent of queries, and stands alone"
        found = "window or sparse" if self.q_lora_rank else "no q_lora_rank"
        require(self.indexer is None or (plain and self.q_lora_rank), must, found, "indexer", do="remove it")


Mixer = Gqa | Mla | Recurrent
"""What mixes tokens in a layer."""
Attention = Annotated[Mixer | Absent, Field(discriminator="kind")]
"""The attention of a layer, if it has one."""
