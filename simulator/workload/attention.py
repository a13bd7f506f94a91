"""How tokens attend to one another: the kinds that a decoder can name, and which of the tokens before they see."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Discriminator, StrictBool, Tag

from simulator.document import Count, CountOrNone, Few, FewOrNone, Part
from simulator.units import FieldError


class Compress(Part):
    """Tokens made into one: block i is the tokens from i * `stride` on (NSA, section 3.3.1).

    Attributes
    ----------
    block
        Tokens that become one.
    stride
        Tokens from the start of one block to that of the next; divides `block`.
    """

    block: Count
    stride: Count

    def _check(self) -> None:
        if self.block % self.stride:
            must, found = "stride divides block", f"{self.stride} and {self.block}"
            raise FieldError(must, found, "change compress.block or compress.stride", ("stride",))


class Select(Part):
    """Blocks of tokens of which each token sees those that score best (NSA, section 3.3.2).

    Attributes
    ----------
    block
        Tokens of a block.
    top
        Blocks that a token sees, its own block among them.
    first, last
        How many of these are always the first ones of the sequence, and the last ones.
    """

    block: Count
    top: Few
    first: FewOrNone = 1
    last: Few = 2

    @property
    def chosen(self) -> int:
        """How many blocks are chosen by their scores."""
        return self.top - self.first - self.last

    def _check(self) -> None:
        if self.chosen < 1:
            must, do = "some of the top blocks are chosen by score", "raise top, or lower first or last"
            raise FieldError(must, f"{self.top} with {self.first + self.last} fixed", do, ("top",))


class Sparse(Part):
    """Native sparse attention (NSA, arXiv 2502.11089): three views of the tokens before, weighted by gates and summed.

    Attributes
    ----------
    compress
        All of them, many made into one.
    select
        Those blocks that score best.
    window
        So many tokens before, the token itself among them.
    """

    compress: Compress
    select: Select
    window: Count

    def _check(self) -> None:
        if self.select.block % self.compress.stride:
            must, found = "compress.stride divides select.block", f"{self.compress.stride} and {self.select.block}"
            raise FieldError(must, found, "change one of them", ("select", "block"))


class _Attention(Part):
    """What all kinds share.

    Attributes
    ----------
    window
        Tokens that each token sees: itself and those before; default: all.
    sinks
        How many of the first tokens it sees beside its window (StreamingLLM, arXiv 2309.17453).
    sparse
        Sees compressed, selected and near tokens instead.
    """

    window: Count | None = None
    sinks: CountOrNone = 0
    sparse: Sparse | None = None

    def _check(self) -> None:
        if self.sinks and self.window is None:
            raise FieldError("sinks stand beside a window", f"{self.sinks} without one", "add window", ("sinks",))
        if self.sparse is not None and self.window is not None:
            must = "attention has a window, or is sparse"
            raise FieldError(must, "both", "remove window (sparse has one of its own)", ("window",))


class Gqa(_Attention):
    """Grouped-query attention (Ainslie et al. 2023, arXiv 2305.13245): several heads share a key and a value.

    Attributes
    ----------
    heads, kv_heads, head_size
        As in the model's ``config.json``; ``head_dim`` there, or else hidden size over heads.
    qk_norms
        Whether q and k of each head are normalised (Qwen3, arXiv 2505.09388, section 2).
    """

    kind: Literal["gqa"]
    heads: Count
    kv_heads: Count
    head_size: Count
    qk_norms: StrictBool = False

    @property
    def kv_elements(self) -> int:
        """What the KV cache holds of a token in a layer: a key and a value for each of the key and value heads."""
        return 2 * self.kv_heads * self.head_size

    @property
    def groups(self) -> int:
        """Groups of heads that choose blocks together: those that share a key."""
        return self.kv_heads

    def _check(self) -> None:
        super()._check()
        if self.heads % self.kv_heads:
            must, found = "heads is a multiple of kv_heads", f"{self.heads} and {self.kv_heads}"
            raise FieldError(must, found, "change heads or kv_heads", ("heads",))


class Mla(_Attention):
    """Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1; DeepSeek-V3, arXiv 2412.19437).

    Attributes
    ----------
    heads
        Of queries; each has its own key and value, made from the latent.
    q_lora_rank
        Width of the latent of queries; default: queries are made at once.
    kv_lora_rank
        Width of the latent of keys and values, which is cached.
    qk_nope, qk_rope
        Widths of the part of a key without and with a rotary embedding; all heads share the latter, which is cached.
    v_head
        Width of a value.
    """

    kind: Literal["mla"]
    heads: Count
    q_lora_rank: Count | None = None
    kv_lora_rank: Count
    qk_nope: Count
    qk_rope: Count
    v_head: Count

    @property
    def kv_elements(self) -> int:
        """What the KV cache holds of a token in a layer: the latent and the shared part of the key."""
        return self.kv_lora_rank + self.qk_rope

    @property
    def groups(self) -> int:
        """Groups of heads that choose blocks together: all share the latent."""
        return 1


def kind(part: object) -> object:
    """The kind that a part names, read or not."""
    return part.get("kind") if isinstance(part, dict) else getattr(part, "kind", None)


Attention = Annotated[Annotated[Gqa, Tag("gqa")] | Annotated[Mla, Tag("mla")], Discriminator(kind)]
"""How tokens attend to one another."""


def check_attention(part: Gqa | Mla, sequence: int) -> None:
    """Refuse windows and blocks that sequences of so many tokens never fill.

    Raises
    ------
    FieldError
        If there are such; the message says which.
    """
    about, most = part.sparse, (part.window or 0) + part.sinks
    asked: list[tuple[str, int, tuple[str, ...]]] = [("a window and its sinks are", most, ("window",))]
    if about is not None:
        asked.append(("a window is", about.window, ("sparse", "window")))
        asked.append(("what is made into one is", about.compress.block, ("sparse", "compress", "block")))
    for what, tokens, field in asked:
        if tokens > sequence:
            found, do = f"{tokens:,} of {sequence:,} tokens", f"lower {'.'.join(field[-2:])}, or raise sequence"
            raise FieldError(f"{what} at most the sequence", found, do, ("model", "attention", *field))
    if about is not None and about.select.top > (blocks := -(-sequence // about.select.block)):
        must, do = "a token selects at most the blocks that there are", "lower select.top, or raise sequence"
        found = f"{about.select.top:,} of {blocks:,} with {about.select.block:,} tokens each"
        raise FieldError(must, found, do, ("model", "attention", "sparse", "select", "top"))
