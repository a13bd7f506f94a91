"""The dimensions of models, family by family; a decoder's attention and feed-forward are parts that it names."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Discriminator, StrictBool, Tag

from simulator.document import Count, CountOrNone, Few, FewOrNone, Layers, Part, Ranks
from simulator.units import FieldError, would_divide
from simulator.workload.attention import Attention, Gqa, kind


class Dense(Part):
    """A gated feed-forward for all tokens.

    Attributes
    ----------
    width
        Inner width.
    """

    kind: Literal["dense"]
    width: Count


class Experts(Part):
    """Feed-forwards of which a router chooses some for each token, beside those that all tokens go through.

    Attributes
    ----------
    routed, top_k
        How many the router chooses from, and how many it chooses.
    width
        Inner width of an expert.
    shared
        How many more experts every token goes through (DeepSeekMoE, arXiv 2401.06066).
    router_bias
        Whether the router adds a bias to each expert (DeepSeek-V3, arXiv 2412.19437, section 2.1.2).
    dense_layers, dense_width
        How many of the first layers have a dense feed-forward instead, and its inner width.
    ranks
        Over how many ranks, with as many tokens each, the routed experts are spread. A graph is that of one of them: it
        has its share of the experts, and of the tokens of all; that tokens travel takes no time.
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

    @property
    def held(self) -> int:
        """How many of the routed experts a rank has."""
        return self.routed // self.ranks

    def _check(self) -> None:
        if self.routed % self.ranks:
            must, found = "each rank has as many of the routed experts", f"{self.ranks} ranks for {self.routed} experts"
            raise FieldError(must, found, would_divide("ranks", self.routed, self.ranks), ("ranks",))
        if self.top_k > self.routed:
            found = f"{self.top_k} of {self.routed}"
            raise FieldError(
                "a token goes through at most all experts", found, "lower top_k, or raise routed", ("top_k",)
            )
        if (self.dense_layers > 0) != (self.dense_width is not None):
            must, found = "dense_layers and dense_width come together", "one of them"
            raise FieldError(must, found, "state both, or neither", ("dense_layers",))


def _family(model: object) -> object:
    return model.get("family", "llama") if isinstance(model, dict) else getattr(model, "family", "llama")


FeedForward = Annotated[Annotated[Dense, Tag("dense")] | Annotated[Experts, Tag("experts")], Discriminator(kind)]
"""What a layer does to each token alone."""


class DecoderModel(Part):
    """The dimensions of a decoder, whose attention and feed-forward are parts; for inference.

    Attributes
    ----------
    layers, hidden, vocabulary
        As in the model's ``config.json``.
    attention, feed_forward
        The parts of a layer.
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
        return self.layers * self.attention.kv_elements

    def with_layers(self, layers: int) -> Self:
        """Return the same with so many layers, all of the kind that has most ops."""
        part = self.feed_forward
        if isinstance(part, Experts):
            part = part.model_copy(update={"dense_layers": 0, "dense_width": None})
        return self.model_copy(update={"layers": layers, "feed_forward": part})

    def _check(self) -> None:
        part = self.feed_forward
        if isinstance(part, Experts) and part.dense_layers >= self.layers:
            must, found = "some layers have experts", f"{part.dense_layers} dense ones of {self.layers}"
            raise FieldError(must, found, "lower dense_layers, or name a dense feed_forward", ("feed_forward",))


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
        self._heads_divide()
        self._experts_are_there()

    def _heads_divide(self) -> None:
        for whole, part in (("hidden", "heads"), ("heads", "kv_heads")):
            a, b = getattr(self, whole), getattr(self, part)
            if a % b:
                must, do = f"{whole} is a multiple of {part}", f"change {whole} or {part}"
                raise FieldError(must, f"{a} and {b}", do, (whole,))

    def _experts_are_there(self) -> None:
        if self.top_k > (self.experts or 1):
            must, found = "a token goes through at most all experts", f"{self.top_k} of {self.experts or 'none'}"
            raise FieldError(must, found, "lower top_k, or raise experts", ("top_k",))

    def with_layers(self, layers: int) -> Self:
        """Return the same with so many layers."""
        return self.model_copy(update={"layers": layers})

    @property
    def decoder(self) -> DecoderModel:
        """The same, as a decoder's parts."""
        attention = Gqa(kind="gqa", heads=self.heads, kv_heads=self.kv_heads, head_size=self.hidden // self.heads)
        feed_forward: Dense | Experts = Dense(kind="dense", width=self.ffn)
        if self.experts:
            feed_forward = Experts(kind="experts", routed=self.experts, top_k=self.top_k, width=self.ffn)
        return DecoderModel(
            family="decoder",
            layers=self.layers,
            hidden=self.hidden,
            vocabulary=self.vocabulary,
            attention=attention,
            feed_forward=feed_forward,
            tied_embeddings=self.tied_embeddings,
        )


Model = Annotated[
    Annotated[LlamaModel, Tag("llama")] | Annotated[DecoderModel, Tag("decoder")],
    Discriminator(_family),
]
"""The dimensions of a model of one of the families; the first family where none is named."""
