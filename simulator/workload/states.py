"""Layers that keep a state of fixed size per sequence in place of keys and values: their options and their weights."""

from __future__ import annotations

from math import prod
from typing import ClassVar, Literal, NamedTuple, Self

from pydantic import StrictBool

from simulator.document import Count, Few, Part
from simulator.units import require


class Absent(Part):
    """The half that a layer does not have: its attention, or its feed-forward.

    Attributes
    ----------
    kind
        Names this half.
    """

    kind: Literal["none"]

    heads: ClassVar[int] = 0
    width: ClassVar[int] = 0
    window: ClassVar[None] = None
    sparse: ClassVar[None] = None
    sinks: ClassVar[int] = 0
    kv_elements: ClassVar[int] = 0
    views: ClassVar[int] = 1
    groups: ClassVar[int] = 1
    gate: ClassVar[bool] = False
    state: ClassVar[None] = None
    beside: ClassVar[None] = None

    def of_one(self, ranks: int) -> Self:
        """Return what one of several ranks has."""
        return self


class Rule(NamedTuple):
    """What layers of one kind have.

    Attributes
    ----------
    convolved
        Inputs that go through the convolution.
    taps, block
        Tokens that it sees, and those that attend to one another pairwise, if a document says nothing else.
    options
        Keys that a document may state.
    """

    convolved: str
    taps: int
    block: int
    options: str


_RULES = {
    "linear": Rule("", 0, 256, "head_size block"),
    "delta": Rule("qkv", 4, 64, "head_size key_heads key_size taps block rank"),
    "mamba": Rule("v", 4, 1, "key_size taps rank norms biases"),
    "mamba2": Rule("qkv", 4, 256, "head_size key_heads key_size taps block norms biases"),
    "convolution": Rule("v", 3, 1, "taps biases"),
}


class StateWeight(NamedTuple):
    """Shape of a weight: inputs (0: a vector) and outputs; how ranks cut it; heads of keys, if it is of these."""

    inputs: int
    outputs: int
    cut: Literal["column", "row", "whole"] = "column"
    key_heads: int = 0


class State(Part):
    """A layer that keeps a state of fixed size per sequence in place of keys and values.

    Each head of values has a matrix that adds up keys and values; queries read it.

    Attributes
    ----------
    kind
        ``linear``: lightning attention (MiniMax-01, arXiv 2501.08313), whose output is normalised over all heads and
        multiplied by a gate. ``delta``: the gated delta rule (arXiv 2412.06464). ``mamba``: a selective scan (arXiv
        2312.00752), each of whose channels is a head. ``mamba2``: a state space with a decay for each head (arXiv
        2405.21060). ``convolution``: a short convolution between two gates (LFM2), without a matrix; a channel is a
        head.
    heads
        Heads of values (``linear_num_value_heads`` or ``mamba_n_heads`` of the model's ``config.json``).
    head_size
        Width of a value.
    key_heads
        Heads of queries and keys, each for several of values (``linear_num_key_heads``, ``mamba_n_groups``); default:
        one for each.
    key_size
        Width of a query and of a key (``linear_key_head_dim``, ``mamba_d_state``); default: that of a value.
    taps
        Tokens that an output of the convolution before the matrix sees, its own included; as many are kept. Default: 4,
        of ``convolution`` 3.
    block
        Tokens of a prompt that attend to one another pairwise before they are added to the matrix; default: 256, of
        ``delta`` 64.
    rank
        Width through which decays are made: of ``mamba`` the time steps (``mamba_dt_rank``); of ``delta`` a decay for
        each element of a key, and the gate (Kimi Linear, arXiv 2510.26692); default: a decay for each head.
    norms
        Of ``mamba2``, whether the output is normalised; of ``mamba``, whether time steps, keys and queries are (Jamba).
    biases
        Which have biases: the projections ``in`` and ``out`` of the layer, and the convolution (``conv``).
    """

    kind: Literal["linear", "delta", "mamba", "mamba2", "convolution"]
    heads: Count
    head_size: Count = 1
    key_heads: Count | None = None
    key_size: Count | None = None
    taps: Few | None = None
    block: Count | None = None
    rank: Count | None = None
    norms: StrictBool = True
    biases: tuple[Literal["in", "conv", "out"], ...] = ()

    window: ClassVar[None] = None
    sparse: ClassVar[None] = None
    sinks: ClassVar[int] = 0
    kv_elements: ClassVar[int] = 0
    views: ClassVar[int] = 1
    groups: ClassVar[int] = 1
    gate: ClassVar[None] = None
    beside: ClassVar[None] = None

    @property
    def state(self) -> Self:
        """The part with a state: itself."""
        return self

    @property
    def width(self) -> int:
        """Elements per token that all heads together output."""
        return self.heads * self.head_size

    @property
    def key(self) -> tuple[int, int]:
        """Heads of queries and keys, and the width of one."""
        shared = 1 if self.kind == "mamba" else self.heads
        return self.key_heads or shared, self.key_size or self.head_size

    @property
    def convolved(self) -> int:
        """Elements of a token that go through the convolution."""
        inputs = _RULES[self.kind].convolved
        return (self.width if "v" in inputs else 0) + (2 * prod(self.key) if "k" in inputs else 0)

    @property
    def seen_taps(self) -> int:
        """Tokens that an output of the convolution sees."""
        return self.taps or _RULES[self.kind].taps

    @property
    def together(self) -> int:
        """Tokens of a prompt that attend to one another pairwise."""
        return self.block or _RULES[self.kind].block

    @property
    def matrix(self) -> int:
        """Elements of the matrices that a sequence keeps per layer, whatever its length."""
        return 0 if self.kind == "convolution" else self.width * self.key[1]

    def kept_bytes(self, element_bytes: int, state_bytes: int) -> dict[str, int]:
        """Return what a sequence keeps by the last part of its name [B], given the sizes of elements."""
        sizes = {"window": self.convolved * self.seen_taps * element_bytes, "state": self.matrix * state_bytes}
        return {name: size_bytes for name, size_bytes in sizes.items() if size_bytes}

    def of_one(self, ranks: int) -> Self:
        """Return the layer of one of `ranks` ranks, which share the heads; each has one head of keys at least."""
        return self.model_copy(update={"heads": self.heads // ranks, "key_heads": max(1, self.key[0] // ranks)})

    def weights(self, hidden: int) -> dict[str, StateWeight]:
        """Return the weights but biases, in the order of their use, for a residual of so many elements."""
        (key_heads, key), width, heads, rank = self.key, self.width, self.heads, self.rank or 0
        queries = keys = StateWeight(hidden, key_heads * key, key_heads=key_heads)
        values = gate = StateWeight(hidden, width)
        low, both = StateWeight(hidden, rank, "whole"), rank + 2 * key
        made = {"q": queries, "k": keys, "v": values}
        of_head, norm = {"norm": StateWeight(0, self.head_size, "whole")}, {"norm": StateWeight(0, width)}
        by_key = {"rates": StateWeight(hidden, heads), "forget.a": low, "forget.b": StateWeight(rank, heads * key)}
        by_key |= {"gate.a": low, "gate.b": StateWeight(rank, width), "decay": StateWeight(0, heads * (1 + key))}
        by_head = {"rates": StateWeight(hidden, 2 * heads), "gate": gate, "decay": StateWeight(0, 2 * heads)}
        steps = {"rates_in": StateWeight(width, both, "row"), "rates_norm": StateWeight(0, both, "whole")}
        of_steps = {"rates_out": StateWeight(rank, width), "decay": StateWeight(0, width * (1 + key))}
        found = {
            "linear": {**made, "gate": gate, **norm},
            "delta": {**made, **(by_key if self.rank else by_head), **of_head},
            "mamba": {"v": values, "gate": gate, **steps, **of_steps},
            "mamba2": {**made, "rates": by_key["rates"], "gate": gate, "decay": StateWeight(0, 3 * heads), **norm},
            "convolution": made,
        }[self.kind]
        taps = self.seen_taps + ("conv" in self.biases)
        for name in _RULES[self.kind].convolved:
            found[f"conv.{name}"] = found[name]._replace(inputs=0, outputs=taps * found[name].outputs)
        kept = {name: weight for name, weight in found.items() if self.norms or not name.endswith("norm")}
        return kept | {"o": StateWeight(width, hidden, "row")}

    def _check(self) -> None:
        options = {"kind", "heads", *_RULES[self.kind].options.split()}
        odd = sorted(self.model_fields_set - options)
        must = f"a layer of kind {self.kind} has the keys {', '.join(sorted(options))}"
        require(not odd, must, " and ".join(odd), *odd[:1], do="remove it")
        sizes = {"head_size"} | ({"key_size", "rank"} if self.kind == "mamba" else set())
        missing = sorted(sizes & options - self.model_fields_set)
        require(not missing, f"a layer of kind {self.kind} states {', '.join(missing)}", "none", do="add it")
        if self.key_heads:
            self._divides("key_heads", "heads")
