"""The dimensions of models, family by family; a decoder's attention and feed-forward are parts that it names."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Discriminator, Field, StrictBool, Tag

from simulator.document import Count, CountOrNone, Few, FewOrNone, Layers, Part, Ranks
from simulator.units import require
from simulator.workload.attention_kinds import Attention, Gqa


class Dense(Part):
    """A gated feed-forward for all tokens.

    Attributes
    ----------
    kind
        Names this feed-forward.
    width
        Inner width.
    """

    kind: Literal["dense"]
    width: Count


class Experts(Part):
    """Feed-forwards of which a router chooses some for each token, beside those that all tokens go through.

    Attributes
    ----------
    kind
        Names this feed-forward.
    routed
        How many experts the router chooses from.
    top_k
        How many experts it chooses for each token.
    width
        Inner width of an expert.
    shared
        How many more experts every token goes through (DeepSeekMoE, arXiv 2401.06066).
    router_bias
        Whether the router adds a bias to each expert (DeepSeek-V3, arXiv 2412.19437, section 2.1.2).
    dense_layers
        How many of the first layers have a dense feed-forward instead.
    dense_width
        Inner width of these.
    ranks
        Over how many ranks, with as many tokens each, the routed experts are spread. A graph is that of one of them: it
        has its share of the experts, and of the tokens of all; that tokens travel takes no time.
    buffers
        Whether tokens are written straight to where their experts read them, and back (``fused``), or are copied there
        from a buffer at the sender and back into one (``apart``).
    """

    kind: Literal["experts"]
    routed: Few
    top_k: Few
    width: Count
    shared: FewOrNone = 0
    router_bias: StrictBool = False
    dense_layers: CountOrNone = 0
    dense_width: Count | None = None
    ranks: Ranks = 1
    buffers: Literal["fused", "apart"] = "fused"

    @property
    def held(self) -> int:
        """How many of the routed experts a rank has."""
        return self.routed // self.ranks

    def _check(self) -> None:
        self._divides("ranks", "routed")
        found = f"{self.top_k:,} and {self.routed:,}"
        require(self.top_k <= self.routed, "top_k is at most routed", found, "top_k", do="lower it")
        both = (self.dense_layers > 0) == (self.dense_width is not None)
        require(both, "dense_layers and dense_width come together", "one of them", "dense_layers")


def _family(model: object) -> object:
    return model.get("family", "llama") if isinstance(model, dict) else getattr(model, "family", "llama")


FeedForward = Annotated[Dense | Experts, Field(discriminator="kind")]
"""What a layer does to each token alone."""


class DecoderModel(Part):
    """The dimensions of a decoder, whose attention and feed-forward are parts.

    Attributes
    ----------
    family
        Names this family of models.
    layers
        Layers of the decoder (``num_hidden_layers`` of the model's ``config.json``).
    hidden
        Width of the residual (``hidden_size``).
    vocabulary
        Tokens that it knows (``vocab_size``).
    attention
        The attention of a layer.
    feed_forward
        The feed-forward of a layer.
    tied_embeddings
        Whether the output projection is the embedding matrix.
    """

    family: Literal["decoder"]
    layers: Layers
    hidden: Count
    vocabulary: Count
    attention: Attention
    feed_forward: FeedForward
    tied_embeddings: StrictBool = False

    @property
    def decoder(self) -> DecoderModel:
        """The same, as a decoder's parts."""
        return self

    @property
    def kv_elements(self) -> int:
        """What the KV cache holds of a token in all layers."""
        return self.layers * self.attention.views * self.attention.kv_elements

    def with_layers(self, layers: int) -> Self:
        """Return the same with so many layers, all of the kind that has most ops."""
        part = self.feed_forward
        if isinstance(part, Experts):
            part = part.model_copy(update={"dense_layers": 0, "dense_width": None})
        return self.model_copy(update={"layers": layers, "feed_forward": part})

    def _check(self) -> None:
        part = self.feed_forward
        dense = part.dense_layers if isinstance(part, Experts) else 0
        require(dense < self.layers, "some layers have experts", f"{dense} dense ones of {self.layers}", "feed_forward")


class LlamaModel(Part):
    """The dimensions of a decoder with grouped-query attention and a gated feed-forward (LLaMA family).

    Attributes
    ----------
    family
        Names this family of models.
    layers
        Layers of the decoder (``num_hidden_layers`` of the model's ``config.json``).
    hidden
        Width of the residual (``hidden_size``).
    heads
        Heads of queries (``num_attention_heads``).
    kv_heads
        Heads of keys and values (``num_key_value_heads``).
    ffn
        Inner width of the feed-forward (``intermediate_size``).
    vocabulary
        Tokens that it knows (``vocab_size``).
    tied_embeddings
        Whether the output projection is the embedding matrix.
    experts
        Feed-forwards of each layer, each of width `ffn`, of which a token goes through `top_k`; default: one for all.
    top_k
        How many of `experts` a token goes through.
    """

    family: Literal["llama"] = "llama"
    layers: Layers
    hidden: Count
    heads: Count
    kv_heads: Count
    ffn: Count
    vocabulary: Count
    tied_embeddings: StrictBool = False
    experts: Few | None = None
    top_k: Few = 1

    def _check(self) -> None:
        self._divides("heads", "hidden")
        self._divides("kv_heads", "heads")
        must, found = "a token goes through at most all experts", f"{self.top_k} of {self.experts or 'none'}"
        require(self.top_k <= (self.experts or 1), must, found, "top_k", do="lower top_k, or raise experts")

    @property
    def decoder(self) -> DecoderModel:
        """The same, as a decoder's parts."""
        attention = Gqa(kind="gqa", heads=self.heads, kv_heads=self.kv_heads, head_size=self.hidden // self.heads)
        feed_forward: Dense | Experts = Dense(kind="dense", width=self.ffn)
        if self.experts:
            feed_forward = Experts(kind="experts", routed=self.experts, top_k=self.top_k, width=self.ffn)
        alike = {key: getattr(self, key) for key in ("layers", "hidden", "vocabulary", "tied_embeddings")}
        return DecoderModel(family="decoder", attention=attention, feed_forward=feed_forward, **alike)


Model = Annotated[
    Annotated[LlamaModel, Tag("llama")] | Annotated[DecoderModel, Tag("decoder")],
    Discriminator(_family),
]
"""The dimensions of a model of one of the families; the first family where none is named."""
