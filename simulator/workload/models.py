"""The dimensions of models, by family, and what training adds to them: adapters and checkpoints."""

from __future__ import annotations

from collections import Counter
from functools import lru_cache
from typing import Annotated, Literal, NamedTuple, Self

from pydantic import Field, StrictBool

from simulator.document import Count, CountOrNone, Few, FewOrNone, Layers, Part
from simulator.units import require
from simulator.workload.attention_kinds import Attention, Gqa
from simulator.workload.feed_forwards import Dense, EndPart, FeedForward, LayerInputs, SharedBlocks


def family(model: object) -> object:
    """Return the family that a model names, or what it does not: ``llama``."""
    return model.get("family", "llama") if isinstance(model, dict) else getattr(model, "family", "llama")


class Layer(NamedTuple):
    """The parts of one layer."""

    attention: Attention
    feed_forward: FeedForward


class Other(Part):
    """Layers that differ from the rest: `start`, `start` + `every` ... up to but not including `stop`, from 0 on.

    Attributes
    ----------
    start
        The first of these layers.
    stop
        The layer before which they end; default: the end of the model.
    every
        Distance from one of them to the next.
    attention
        Their attention; default: that of the model.
    feed_forward
        Their feed-forward; default: that of the model.
    """

    start: CountOrNone = 0
    stop: Layers | None = None
    every: Layers = 1
    attention: Attention | None = None
    feed_forward: FeedForward | None = None

    def holds(self, layer: int) -> bool:
        """Tell whether a layer is one of these."""
        return layer in range(self.start, self.stop or layer + 1, self.every)

    def _check(self) -> None:
        does, must = self.attention or self.feed_forward, "other layers have another attention or feed_forward"
        require(does is not None, must, "neither", do="add one, or remove the entry")


MOST_OTHERS = 100
"""Most entries in `others`: each is tried on every layer."""


class DecoderModel(Part):
    """The dimensions of a decoder that is composed of an attention and a feed-forward.

    Attributes
    ----------
    family
        Names this family of models.
    layers
        Layers of the decoder (``num_hidden_layers`` of the model's ``config.json``).
    hidden
        Width of the residual (``hidden_size``).
    vocabulary
        Size of the vocabulary (``vocab_size``); 0, where rows of numbers come in (`stem`).
    attention
        The attention of a layer.
    feed_forward
        The feed-forward of a layer.
    others
        Layers with another attention or feed-forward, such as dense ones; the last entry that covers a layer decides.
    norms
        Whether attention and feed-forward each have a norm ``before`` them, or another one after them as well
        (``both``; Gemma 2, arXiv 2408.00118, section 2), or that alone (``after``; OLMo 2, arXiv 2501.00656, section
        3.2); whether each sum with the residual has one (``sum``; arXiv 1706.03762); or whether one before them is for
        both, which are parallel then (``shared``; GPT-J).
    norm_weights
        What each norm has: a ``scale``, a scale and a bias (``both``; LayerNorm), or ``none`` (OLMo, arXiv 2402.00838).
    parallel
        Whether the feed-forward takes the input of the layer, as attention does, and not its output.
    positions
        Rows of a learned table of positions, of which each token adds one.
    segments
        Rows of a table of parts that a token may be of (BERT, arXiv 1810.04805, section 3).
    embedding_width
        Width of the embedding, if a linear takes it to `hidden`, and another one back (OPT-350m, arXiv 2205.01068);
        with `head_transform` that is this one, and tables and norm are as narrow (ELECTRA, arXiv 2003.10555).
    embedding_rows
        Rows of the embedding, if it has others than the output projection; each rank has all of them.
    embedding_norm
        Whether the embedding is normalised (BLOOM, arXiv 2211.05100, section 3.2.3).
    final_norm
        Whether the output of the last layer is normalised.
    head_transform
        Whether the head has a linear, an activation and a norm before the output projection (BERT).
    head_biases
        Which of the output projection (``lm``) and that linear (``transform``) have a bias.
    stem
        In place of an embedding, part by part what makes rows of numbers: of patches, or of what convolutions take.
    registers
        Learned rows before those of a sequence, which counts them (the class token of ViT, arXiv 2010.11929).
    encoded
        Rows of an encoder's output, as wide as the residual, that layers attend to between their halves (see `across`).
    head
        Whether logits are made of the output.
    mergers
        What makes each output of a tower, without a head, part by part: rows for a decoder, without registers; those
        behind the first take the output of earlier layers (DeepStack, arXiv 2406.04334).
    residuals
        Residuals of a token; before each part and behind the last one a sum of them, whose weights are made of all, is
        what goes in, and what comes out joins each (hyper-connections, arXiv 2409.19606; DeepSeek-V4).
    mixed
        Whether each residual also becomes a sum of all behind each part (not in Hunyuan 4).
    predicted
        Whether layers run on the first residual; the others are predicted before each and corrected behind it, and
        linears make them of the embedding, and one row of them (AltUp, arXiv 2301.13310; Gemma 3n).
    laurel
        Rank of two linears beside attention, whose normalised output joins the residual (LAuReL, arXiv 2411.07501).
    layer_inputs
        What each layer takes of a token beside its input; default: nothing.
    shared
        How layers with both attention and feed-forward share weights; default: each has its own.
    causal
        Whether a token sees those before it alone; if not, each token sees all of its sequence: an encoder.
    tied_embeddings
        Whether the output projection is the embedding matrix.
    """

    family: Literal["decoder"]
    layers: Layers
    hidden: Count
    vocabulary: CountOrNone
    attention: Attention
    feed_forward: FeedForward
    others: Annotated[tuple[Other, ...], Field(max_length=MOST_OTHERS)] = ()
    norms: Literal["before", "both", "after", "sum", "shared"] = "before"
    norm_weights: Literal["scale", "both", "none"] = "scale"
    parallel: StrictBool = False
    positions: CountOrNone = 0
    segments: CountOrNone = 0
    embedding_width: Count | None = None
    embedding_rows: Count | None = None
    embedding_norm: StrictBool = False
    final_norm: StrictBool = True
    head_transform: StrictBool = False
    head_biases: tuple[Literal["lm", "transform"], ...] = ()
    stem: tuple[EndPart, ...] = Field((), max_length=16)
    registers: FewOrNone = 0
    encoded: CountOrNone = 0
    head: StrictBool = True
    mergers: tuple[Annotated[tuple[EndPart, ...], Field(min_length=1)], ...] = Field((), max_length=100)
    residuals: Few = 1
    mixed: StrictBool = True
    predicted: StrictBool = False
    laurel: CountOrNone = 0
    layer_inputs: LayerInputs | None = None
    shared: SharedBlocks | None = None
    causal: StrictBool = True
    tied_embeddings: StrictBool = False

    @property
    def decoder(self) -> DecoderModel:
        """The model in this form."""
        return self

    def layer(self, index: int) -> Layer:
        """Return the parts of a layer."""
        attention, part = self.attention, self.feed_forward
        for other in (other for other in self.others if other.holds(index)):
            attention, part = other.attention or attention, other.feed_forward or part
        return Layer(attention, part)

    @property
    def kinds(self) -> dict[Layer, int]:
        """Kind of layer -> how many there are, in the order of first appearance."""
        return Counter(map(self.layer, range(self.layers)))

    @property
    def kv_elements(self) -> int:
        """Elements that the KV cache holds per token in all layers."""
        return sum(count * part.views * part.kv_elements for (part, _), count in self.kinds.items())

    def across(self, kind: Layer) -> str:
        """How a layer of a kind attends to an encoder's output, if there is one."""
        return kind.attention.across if self.encoded and isinstance(kind.attention, Gqa) else "never"

    @property
    def layer_norms(self) -> tuple[str, ...]:
        """Names of the norms of a layer beside those of its attention."""
        ends = {"before": ("",), "both": ("", ".after"), "after": (".after",), "sum": (".sum",)}.get(self.norms)
        names = ("norm1", "norm3", "norm2") if self.encoded else ("norm1", "norm2")
        return tuple(f"{name}{end}" for name in names for end in ends) if ends else ("norm1",)

    def of_kind(self, kind: Layer, layers: int) -> Self:
        """Return the model with `layers` layers, all of one kind."""
        part, beside = kind.attention, 0 if self.across(kind) == "never" else self.encoded
        usual = {"reuses": False} | ({} if beside else {"across": "too"})
        kind = kind._replace(attention=part.model_copy(update=usual) if isinstance(part, Gqa) else part)
        return self.model_copy(update={"layers": layers, "others": (), "encoded": beside, **kind._asdict()})

    def is_shared(self, kind: Layer) -> bool:
        """Tell whether a layer of a kind has weights that others have, too."""
        return self.shared is not None and isinstance(kind.attention, Gqa) and isinstance(kind.feed_forward, Dense)

    @property
    def hands_on(self) -> bool:
        """Whether layers take more than the residual from what is before them."""
        return bool(self.layer_inputs or self.shared) or any(getattr(part, "reuses", False) for part, _ in self.kinds)

    def _check(self) -> None:
        must, do = "parallel parts have a norm before each, or share one", "set norms to before or shared, or parallel"
        fits = self.norms in (("before", "shared") if self.parallel else ("before", "both", "after", "sum"))
        require(fits, must, self.norms, "norms", do=do)
        self._check_ends()
        alone = self.norms == ("both" if self.predicted else "before") and not self.parallel and not self.encoded
        alone &= self.head and all(part.beside is None for part, _ in self.kinds)
        must, do = "parts of a layer with residuals have a norm before them, one behind the other", "set residuals to 1"
        require(self.residuals == 1 or alone, must, "another layer", "residuals", do=do)
        require(self.mixed or self.residuals > 1, "several residuals are mixed, or not", "one", "mixed", do="remove it")
        must = "predicted residuals are several, and their layers whole, with inputs of their own"
        fits = self.residuals > 1 and all(part.kind != "none" for kind in self.kinds for part in kind)
        fits = (fits and self.layer_inputs is not None) or not (self.predicted or self.laurel)
        require(fits, must, "others", "predicted", do="remove predicted or laurel")
        must, do = "layers that share weights have norms before each part, and a gate", "change it, or remove shared"
        fits = (self.norms, self.parallel, self.residuals, self.encoded, self.laurel) == ("before", False, 1, 0, 0)
        fits &= all(part.gate and not part.biases for _, part in filter(self.is_shared, self.kinds))
        require(fits or self.shared is None, must, "another layer", "shared", do=do)
        self._check_encoded()
        must, do = "rows as wide as the residual are shifted in both parts of a layer, or in none", "correct shifted"
        for part, fed in self.kinds:
            width, wanted = getattr(part, "shifted", None), self.hidden if getattr(fed, "shifted", False) else None
            fits = width == wanted and not (part.beside and part.beside.shifted)
            require(fits, must, "others", "attention", "shifted", do=do)
        made, may_hand_on = set[object](), self.causal or not self.hands_on
        for attention in (self.layer(index).attention for index in range(self.layers)):
            fits = not isinstance(attention, Gqa) or not attention.reuses or attention.alike in made
            made |= {attention.alike} if isinstance(attention, Gqa) else set()
            must, do = "a layer reuses keys and values of an earlier one alike", "remove reuses"
            require(fits and may_hand_on, must, "none", "others", do=do)
        must, do = "a layer has an attention or a feed_forward, and both if they are parallel", "set one of them"
        for absent in ([part.kind for part in kind].count("none") for kind in self.kinds):
            require(absent + self.parallel < 2, must, "none", do=do)
        for index, other in enumerate(self.others):
            must, found = "other layers are some of the model's", f"none from {other.start} on"
            do = f"correct start and stop; there are {self.layers} layers"
            require(any(map(other.holds, range(self.layers))), must, found, "others", str(index), do=do)

    def _check_ends(self) -> None:
        must, do = "a model has a vocabulary and perhaps a head, or a stem alone", "state one of them"
        fits = bool(self.vocabulary) != bool(self.stem) and not (self.head and (self.stem or self.mergers))
        require(fits, must, "neither, or both", "vocabulary", do=do)
        if self.stem:
            first, last = self.stem[0], self.stem[-1]
            must = "a stem's first part says what it takes, and joins no rows; its last is as wide as the residual"
            is_made = bool(first.taken) and first.rows * first.pooled == 1 and last.width == self.hidden
            require(is_made, must, f"taken {first.taken}, rows {first.rows}, width {last.width}", "stem")
        require(len(self.mergers) <= self.layers, "each is of a layer of its own", f"{len(self.mergers)}", "mergers")
        linears, found = {"lm": self.head, "transform": self.head_transform}, ", ".join(self.head_biases)
        must, do = "a bias is that of a linear that the head has", "remove it, or add head_transform"
        require(all(map(linears.get, self.head_biases)), must, found, "head_biases", do=do)
        require(self.head or not self.head_transform, "a transform is that of a head", "no head", "head_transform")
        must, do = "a tied embedding has the rows of the vocabulary", "set it to false"
        found = f"{self.embedding_rows or 0:,} rows for {self.vocabulary:,}"
        require(not (self.embedding_rows and self.tied_embeddings), must, found, "tied_embeddings", do=do)

    def _check_encoded(self) -> None:
        must, do = "layers that attend to an encoder have grouped-query attention", "change it, or remove encoded"
        fits = all(isinstance(part, Gqa) and not part.chooses for part, _ in self.kinds) and not self.parallel
        require(not self.encoded or fits, must, "another", "encoded", do=do)
        require(self.causal or not self.encoded, "what an encoder feeds is causal", "false", "causal", do="remove it")
        ways, do = {getattr(part, "across", "too") for part, _ in self.kinds}, "correct encoded, or across"
        must, found = "some layer attends to an encoder's output, and none says how (across) without", ", ".join(ways)
        require(ways != {"never"} if self.encoded else ways == {"too"}, must, found, "encoded", do=do)


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
        Size of the vocabulary (``vocab_size``).
    tied_embeddings
        Whether the output projection is the embedding matrix.
    """

    family: Literal["llama"] = "llama"
    layers: Layers
    hidden: Count
    heads: Count
    kv_heads: Count
    ffn: Count
    vocabulary: Count
    tied_embeddings: StrictBool = False

    def _check(self) -> None:
        self._divides("heads", "hidden")
        self._divides("kv_heads", "heads")

    @property
    def decoder(self) -> DecoderModel:
        """The model as a `DecoderModel`."""
        return _as_decoder(self)


@lru_cache
def _as_decoder(model: LlamaModel) -> DecoderModel:
    """Return what a search of layouts asks six times a layout."""
    attention = Gqa(kind="gqa", heads=model.heads, kv_heads=model.kv_heads, head_size=model.hidden // model.heads)
    alike = {key: getattr(model, key) for key in ("layers", "hidden", "vocabulary", "tied_embeddings")}
    fed = Dense(kind="dense", width=model.ffn)
    return DecoderModel(family="decoder", attention=attention, feed_forward=fed, **alike)


Model = LlamaModel | DecoderModel
"""The dimensions of a model that is a decoder."""


class Lora(Part):
    """Low-rank adapters that are trained in place of the linears beside them (LoRA, arXiv 2106.09685, section 4.1).

    Attributes
    ----------
    rank
        Width between the two matrices of an adapter.
    targets
        Patterns of the linears of a layer (``attn.q``, ``ffn.*``) that have one; default: queries and values, as
        there (section 4.2) and in PEFT; with latent attention those of queries and of latents (``attn.kv_a``).
    dropout
        Whether elements of each input are dropped at random; the copy and its mask stay until backward.
    inputs
        Data type of that copy before it is turned into `Dtypes.compute`: fp32 beside adapters in fp32 under autocast,
        whose own size is as `Dtypes.compute` here.
    """

    rank: Count
    targets: tuple[str, ...] = ("attn.q", "attn.v", "attn.q_b", "attn.kv_a")
    dropout: StrictBool = False
    inputs: Literal["fp32"] | None = None


class Checkpoint(Part):
    """Activation checkpointing: parts that backward runs again instead of saving (Chen et al., arXiv 1604.06174).

    Attributes
    ----------
    part
        The whole ``layer``, so that only its input is saved; its ``attention``, from the norm to the input of the
        output projection; or its ``feed_forward`` with its norm.
    layers
        Indices of the layers, from 0; default: all.
    """

    part: Literal["layer", "attention", "feed_forward"] = "layer"
    layers: tuple[FewOrNone, ...] | None = None

    def takes(self, layer: int) -> bool:
        """Tell whether backward runs its part of a layer again."""
        return self.layers is None or layer in self.layers
