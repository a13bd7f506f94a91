"""The kinds of feed-forwards of a layer, which treat each token by itself."""

from __future__ import annotations

from fractions import Fraction
from math import fsum
from typing import Annotated, Literal

from pydantic import Field, StrictBool

from simulator.document import Count, CountOrNone, Few, FewOrNone, Part, Ranks
from simulator.units import require
from simulator.workload.recurrent import Absent


class _FeedForward(Part):
    """Fields that all kinds share.

    Attributes
    ----------
    gate
        Whether a third matrix makes a gate for the output of the first (GLU, arXiv 2002.05202).
    biases
        Whether its matrices, of each expert, have biases.
    """

    gate: StrictBool = True
    biases: StrictBool = False

    @property
    def inner(self) -> int:
        """Inner rows of a token: gate, up and their product; or what the first matrix makes, and its activation."""
        return 3 if self.gate else 2


class Dense(_FeedForward):
    """A feed-forward that all tokens go through.

    Attributes
    ----------
    kind
        Names this feed-forward.
    width
        Inner width.
    shifted
        Whether its rows are mixed with those before them (token shift), once for itself and once for a gate of its
        output: in a layer whose attention does so, too (RWKV).
    """

    kind: Literal["dense"]
    width: Count
    shifted: StrictBool = False


class Experts(_FeedForward):
    """A mixture of experts: a router chooses some for each token; all tokens go through the shared ones.

    Attributes
    ----------
    kind
        Names this feed-forward.
    routed
        Number of experts among which the router chooses.
    top_k
        Number of experts that it chooses for each token, those without weights among them.
    zero
        Number of further experts among which it chooses that leave a token as it is, without weights (LongCat-Flash,
        arXiv 2509.01322). All are alike, so that their part of the choices goes nowhere.
    width
        Inner width of an expert.
    shared
        Number of further experts that serve every token (DeepSeekMoE, arXiv 2401.06066).
    shared_width
        Inner width of each of these; default: that of an expert.
    shared_gate
        Whether a gate of one output scales their output for a token (Qwen1.5-MoE).
    latent
        Width to which a linear takes a token before its routed experts; another one takes their sum back (Nemotron 3).
    router_bias
        Whether the router adds a bias to each expert (DeepSeek-V3, arXiv 2412.19437, section 2.1.2).
    ranks
        Over how many ranks, with equally many tokens each, the routed experts are spread. The graph is that of one such
        rank: it has its share of the experts and of all tokens; sending tokens between ranks takes no time.
    copies
        Number of copies of experts that the ranks hold in addition, and that take some of their tokens (redundant
        experts of DeepSeek-V3, arXiv 2412.19437, section 3.4.1).
    buffers
        ``fused``: tokens are written straight to where their experts read them, and back; ``apart``: they are copied
        there from a buffer at the sender, and back into one.
    skew
        The r-th most popular expert is chosen in proportion to r to the power of minus this; 0: all are alike. Ranks
        have experts in turn by popularity, and each is built as the busiest, for which all others wait.
    """

    kind: Literal["experts"]
    routed: Few
    top_k: Few
    zero: FewOrNone = 0
    width: Count
    shared: FewOrNone = 0
    shared_width: Count | None = None
    shared_gate: StrictBool = False
    latent: Count | None = None
    router_bias: StrictBool = False
    ranks: Ranks = 1
    copies: FewOrNone = 0
    buffers: Literal["fused", "apart"] = "fused"
    skew: Annotated[float, Field(ge=0, le=4)] = 0.0

    @property
    def candidates(self) -> int:
        """Number of experts that the router chooses from."""
        return self.routed + self.zero

    @property
    def chosen(self) -> Fraction:
        """Number of experts with weights that a token goes through, on average."""
        return Fraction(self.top_k * self.routed, self.candidates)

    @property
    def likely(self) -> list[float]:
        """How likely a token chooses each expert, the most popular first."""
        weights = [rank**-self.skew for rank in range(1, self.routed + 1)]
        each = self.top_k / fsum(weights)
        return [each * weight for weight in weights]

    def busiest(self, ranks: int) -> Fraction:
        """Return the rows that the busiest of so many ranks takes in, over those of all on average."""
        return Fraction(fsum(self.likely[::ranks]) * ranks / self.top_k if self.skew else 1).limit_denominator(10**6)

    @property
    def places(self) -> int:
        """Number of routed experts that all ranks hold, copies included."""
        return self.routed + self.copies

    @property
    def held(self) -> int:
        """Number of routed experts that a rank holds."""
        return self.places // self.ranks

    def _check(self) -> None:
        self._divides("ranks", "places" if self.copies else "routed")
        must, do = "copies are for experts that lie on several ranks", "raise ranks, or remove copies"
        require(not self.copies or self.ranks > 1, must, f"{self.copies:,} on one", "copies", do=do)
        found = f"{self.top_k:,} and {self.routed:,}"
        require(self.top_k <= self.routed, "top_k is at most routed", found, "top_k", do="lower it")
        must, do = "experts beside such without weights are alike", "remove skew"
        require(not (self.zero and self.skew), must, f"a skew of {self.skew:g}", "skew", do=do)
        must, found = "a token chooses no expert more than once", f"the first one {self.likely[0]:.2f} times on average"
        require(self.likely[0] <= 1 + 1e-9, must, found, "skew", do="lower it")
        must, do = "copies are for experts that are alike", "remove one of the two"
        require(not (self.copies and self.skew), must, f"a skew of {self.skew:g}", "skew", do=do)
        must = "shared experts beside latent ones have no gate"
        require(not (self.latent and self.shared_gate), must, "one", "shared_gate", do="remove it")


FeedForward = Annotated[Dense | Experts | Absent, Field(discriminator="kind")]
"""The feed-forward of a layer, which treats each token by itself."""


class LayerInputs(Part):
    """Rows that each layer takes of each token beside its input (Gemma 3n and 4).

    A table has some of each token for all layers, a linear makes as much of the embedding, and the layer adds what it
    makes of its part, through a gate, to its output.

    Attributes
    ----------
    rows
        Rows of the table.
    width
        Width of a layer's part of a row.
    """

    rows: Count
    width: Count


class EndPart(Part):
    """A part of what stands before the layers of a tower, or behind them: joins rows, then norm, linear, activation.

    Attributes
    ----------
    rows
        Neighbouring rows that become one, side by side.
    pooled
        Neighbouring rows of which the average is taken, before rows are joined.
    norm
        What a norm of these has, if there is one: a ``scale``, a scale and a bias (``both``), or ``none`` of them.
    width
        Outputs of a linear; default: there is none.
    taken
        Inputs of the linear, if they are not the elements of a row: of the first part of a stem, or of a convolution.
    bias
        Whether it has a bias.
    activation
        Whether one follows (``plain``), perhaps of a product with a second linear (``gated``).
    """

    rows: Few = 1
    pooled: Few = 1
    norm: Literal["scale", "both", "none"] | None = None
    width: Count | None = None
    taken: Count | None = None
    bias: StrictBool = True
    activation: Literal["plain", "gated"] | None = None

    def _check(self) -> None:
        of_linear = self.model_fields_set & {"taken", "bias"} or self.activation == "gated"
        fits = not of_linear and (self.rows * self.pooled > 1 or self.norm or self.activation)
        must, do = "a part does something; taken, bias and a gate are of a linear", "add width, or remove it"
        require(self.width or fits, must, "no linear", "width", do=do)


class SharedBlocks(Part):
    """Layers with attention and feed-forward that share weights (Zamba, arXiv 2405.16712; Zamba2, arXiv 2411.15242).

    Such a layer normalises the rows of the residual and of the embedding together, attends, goes through the
    feed-forward without a residual between, and through a linear of its own, whose output joins the residual.

    Attributes
    ----------
    sets
        Sets of weights, which these layers have in turn.
    adapter
        Width of what each of them adds to the feed-forward's first linears by two linears of its own; 0: nothing.
    adapts_attention
        Whether queries, keys and values have such linears, too.
    """

    sets: Few = 1
    adapter: CountOrNone = 0
    adapts_attention: StrictBool = False

    def _check(self) -> None:
        must, do = "what adapts attention is as wide as what adapts a feed-forward", "add adapter"
        require(self.adapter or not self.adapts_attention, must, "none", "adapts_attention", do=do)
