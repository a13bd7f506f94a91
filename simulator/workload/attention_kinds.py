"""The kinds of attention of a decoder."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self, TypeGuard

from pydantic import Field, StrictBool

from simulator.document import Count, CountOrNone, FewOrNone, Part
from simulator.units import require
from simulator.workload.chosen_tokens import Compress, Indexer, Pool, Sparse
from simulator.workload.recurrent import Absent, Recurrent


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
    sink_logits
        Whether each head has a learned logit for attending to nothing (GPT-OSS, arXiv 2508.10925).
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
    sink_logits: StrictBool = False
    gate: Literal["elements", "heads"] | None = None
    beside: Recurrent | None = None

    @property
    def state(self) -> Recurrent | None:
        """The part with a state."""
        return self.beside

    @property
    def compress(self) -> Compress | None:
        """How blocks of tokens become one that is cached in addition."""
        return self.sparse.compress if self.sparse else None

    @property
    def compressed_elements(self) -> int:
        """Elements that are cached of a compressed token."""
        return int(getattr(self, "kv_elements", 0)) if self.sparse else 0

    def kept_bytes(self, element_bytes: int, state_bytes: int) -> dict[str, int]:
        """Return what a sequence keeps beside tokens by the last part of its name [B], given the sizes of elements."""
        return self.state.kept_bytes(element_bytes, state_bytes) if self.state else {}

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
            require(not getattr(self, key, None), f"sparse attention has no {key}", "both", key, do="remove one")


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
    buckets
        Distances of which each head has a learned bias of its scores, for all layers (T5, arXiv 1910.10683, section
        2.1).
    v_head
        Width of a value; default: that of a key.
    values
        Whether values are made by a matrix of their ``own``, or are the ``keys``, each normalised for itself (Gemma 4).
    rotary
        Whether queries and keys have rotary embeddings; not with learned positions, nor with ALiBi (arXiv 2108.12409).
    indexer
        Chooses the blocks that each token attends to; default: it attends to all tokens.
    reuses
        Whether it attends to the keys and values of the last layer before that has as many, as wide and in the same
        window, and makes and caches none (Gemma 3n and 4).
    across
        Whether it attends to an encoder's output (`encoded`) as well (``too``), in place of tokens (``alone``; Llama
        3.2 with pictures), or ``never``.
    """

    kind: Literal["gqa"]
    kv_heads: Count
    head_size: Count
    qk_norms: StrictBool | Literal["all"] = False
    biases: tuple[Literal["q", "k", "v", "o"], ...] = ()
    buckets: FewOrNone = 0
    v_head: Count | None = None
    values: Literal["own", "keys"] = "own"
    rotary: StrictBool = True
    indexer: Indexer | None = None
    reuses: StrictBool = False
    across: Literal["too", "alone", "never"] = "too"

    @property
    def kv_elements(self) -> int:
        """Elements that the KV cache holds per token and layer: a key and a value of each KV head."""
        return 0 if self.reuses or self.across == "alone" else self.seen_elements

    @property
    def seen_elements(self) -> int:
        """Elements of a token that are attended to, whichever layer caches them."""
        return self.kv_heads * sum(self.key_and_value) + (self.indexer.cached if self.indexer else 0)

    @property
    def chooses(self) -> bool:
        """Whether tokens attend to some of those in their window alone."""
        return self.sparse is not None or self.indexer is not None

    @property
    def alike(self) -> tuple[object, ...]:
        """What layers share that may reuse keys and values of one another."""
        return self.window, self.sinks, self.kv_heads, self.key_and_value

    def _check(self) -> None:
        super()._check()
        self._divides("kv_heads", "heads")
        must, do = "values that are the keys have their width, and no bias", "remove v_head and the bias, or values"
        fits = self.values == "own" or not (self.v_head or "v" in self.biases)
        require(fits, must, "another one", "values", do=do)
        if self.indexer:
            odd = [key for key in ("window", "sparse", "sink_logits", "buckets", "reuses") if getattr(self, key)]
            odd += ["again"] * self.indexer.again + ["heads"] * (self.indexer.heads != self.kv_heads)
            must = "an indexer stands alone, with a head for each of keys"
            require(not odd, must, f"another {' and '.join(odd)}", "indexer", do="remove it, or correct it")
        must, found = "the views of sparse attention have keys and values alike", "values of their own width, or keys"
        fits = not self.sparse or (self.values == "own" and not self.v_head and not self.reuses)
        require(fits, must, found, "v_head" if self.v_head else "values", do="remove it")


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
        Width of the part of a key with a rotary embedding; all heads share it, and it is cached. It may be 0.
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
    qk_rope: CountOrNone
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
        fits = self.indexer is None or (self.window is None and self.sparse is None)
        require(fits, "an indexer stands alone", "window or sparse", "indexer", do="remove it")


class Mqa(_Attention):
    """Attention of all heads to one row of a token, its key and its value at once (DeepSeek-V4).

    Attributes
    ----------
    kind
        Names this attention.
    head_size
        Width of a head, and of that row, which is normalised and cached (``head_dim``).
    q_lora_rank
        Width of the latent of queries.
    qk_rope
        Width of the part of each row with a rotary embedding, which the output is turned back by.
    out_groups
        Groups of heads, each of which a linear of its own narrows before the output projection (``o_groups``).
    out_rank
        Width to which it does (``o_lora_rank``).
    pool
        Compressed tokens that each token attends to beside its window; default: none.
    """

    kind: Literal["mqa"]
    head_size: Count
    q_lora_rank: Count
    qk_rope: Count
    out_groups: Count
    out_rank: Count
    pool: Pool | None = None

    @property
    def kv_elements(self) -> int:
        """Elements that the KV cache holds per token and layer."""
        return self.head_size

    @property
    def indexer(self) -> Indexer | None:
        """What chooses the compressed tokens that each token attends to."""
        return self.pool.indexer if self.pool else None

    @property
    def compress(self) -> Compress | None:
        """How tokens become one that is cached in addition."""
        return self.pool.compress if self.pool else None

    @property
    def compressed_elements(self) -> int:
        """Elements that are cached of a compressed token: its row, and the indexer's."""
        return self.head_size * (self.pool is not None) + (self.indexer.head_size if self.indexer else 0)

    def kept_bytes(self, element_bytes: int, state_bytes: int) -> dict[str, int]:
        """Return what a sequence keeps of tokens that are to become one: of the block, and of the one before it [B]."""
        pool = self.pool
        rows = 2 * pool.stride * (pool.rows + pool.overlap) if pool else 0
        return {"pool": rows * self.compressed_elements * element_bytes} if pool else {}

    def _check(self) -> None:
        super()._check()
        fits = self.sparse is None and self.beside is None and self.gate is None and not self.sinks
        require(fits, "heads that share a row have a window, or see all tokens", "another", "kind", do="remove it")
        must, do = "compressed tokens stand beside a window", "add window"
        require(self.window or not self.pool, must, "none", "pool", do=do)
        found = f"{self.qk_rope} of {self.head_size}"
        require(self.qk_rope <= self.head_size, "a part of a head turns", found, "qk_rope", do="lower it")
        self._divides("out_groups", "heads")


Mixer = Gqa | Mla | Mqa | Recurrent
"""What mixes tokens in a layer."""
Attention = Annotated[Mixer | Absent, Field(discriminator="kind")]
"""The attention of a layer, if it has one."""


def attends_whole(part: Mixer | Absent) -> TypeGuard[Gqa | Mla]:
    """Tell whether tokens attend to all tokens before, or to all of a window."""
    return isinstance(part, Gqa | Mla) and not (part.sparse or part.indexer)
