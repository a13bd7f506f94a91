"""Layers that keep a state of fixed size per sequence in place of keys and values: their options and their weights."""

from __future__ import annotations

from math import prod
from typing import ClassVar, Literal, NamedTuple, Self

from pydantic import StrictBool

from simulator.document import Count, Few, Part
from simulator.units import require


class _WithoutTokens(Part):
    """What caches no token of a sequence: what attention has, and this has not."""

    window: ClassVar[None] = None
    sparse: ClassVar[None] = None
    gate: ClassVar[None] = None
    beside: ClassVar[None] = None
    sinks: ClassVar[int] = 0
    compress: ClassVar[None] = None
    compressed_elements: ClassVar[int] = 0
    kv_elements: ClassVar[int] = 0
    views: ClassVar[int] = 1


class Absent(_WithoutTokens):
    """The half that a layer does not have: its attention, or its feed-forward.

    Attributes
    ----------
    kind
        Names this half.
    """

    kind: Literal["none"]

    heads: ClassVar[int] = 0
    width: ClassVar[int] = 0
    state: ClassVar[None] = None

    def of_one(self, ranks: int) -> Self:
        """Return what one of several ranks has."""
        return self

    def kept_bytes(self, element_bytes: int, state_bytes: int) -> dict[str, int]:
        """Return what a sequence keeps: nothing."""
        return {}


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
    numbers
        Numbers that it keeps of each channel, if no key states them.
    """

    convolved: str
    taps: int
    block: int
    options: str
    numbers: int = 0


_RULES = {
    "linear": Rule("", 0, 256, "head_size block"),
    "delta": Rule("qkv", 4, 64, "head_size key_heads key_size taps block decays rank whole_gate"),
    "mamba": Rule("v", 4, 1, "key_size taps rank norms biases"),
    "mamba2": Rule("qkv", 4, 256, "head_size key_heads key_size taps block norms biases"),
    "convolution": Rule("v", 3, 1, "taps biases"),
    "lru": Rule("v", 4, 1, "head_size taps biases", 1),
    "rwkv": Rule("", 0, 1, "shifted", 3),
}


class Recurrent(_WithoutTokens):
    """A layer that keeps a state of fixed size per sequence in place of keys and values.

    Each head of values has a matrix that adds up keys and values; queries read it.

    Attributes
    ----------
    kind
        ``linear``: lightning attention (MiniMax-01, arXiv 2501.08313), whose output is normalised over all heads and
        multiplied by a gate. ``delta``: the gated delta rule (arXiv 2412.06464). ``mamba``: a selective scan (arXiv
        2312.00752), each of whose channels is a head. ``mamba2``: a state space with a decay for each head (arXiv
        2405.21060). ``convolution``: a short convolution between two gates (LFM2), without a matrix; a channel is a
        head. ``lru``: one number of each channel, decays and gates of whose inputs each head makes of its own behind a
        convolution (RG-LRU of Griffin, arXiv 2402.19427). ``rwkv``: a weighted mean of the values of each channel, a
        head, in three numbers, and times a gate (RWKV-4, arXiv 2305.13048).
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
    decays
        Of ``delta``, whether ``heads`` have a decay each, or the ``elements`` of their keys (Kimi Linear, arXiv
        2510.26692).
    rank
        Width through which ``mamba`` makes time steps (``mamba_dt_rank``), and ``delta`` the decays of elements and the
        gate; default: they are made by one matrix each.
    whole_gate
        Of ``delta``, whether the gate is made by one matrix though there is a rank (Kimi K3).
    norms
        Of ``mamba2``, whether the output is normalised; of ``mamba``, whether time steps, keys and queries are (Jamba).
    biases
        Which have biases: the projections ``in`` and ``out`` of the layer, and the convolution (``conv``).
    shifted
        Of ``rwkv``, width of the rows that are mixed with those before them (token shift), ahead of projections: the
        residual's. A sequence keeps the last one of them, and the last one that its feed-forward takes.
    """

    kind: Literal["linear", "delta", "mamba", "mamba2", "convolution", "lru", "rwkv"]
    heads: Count
    head_size: Count = 1
    key_heads: Count | None = None
    key_size: Count | None = None
    taps: Few | None = None
    block: Count | None = None
    decays: Literal["heads", "elements"] = "heads"
    rank: Count | None = None
    whole_gate: StrictBool = False
    norms: StrictBool = True
    biases: tuple[Literal["in", "conv", "out"], ...] = ()
    shifted: Count | None = None

    @property
    def state(self) -> Self:
        """The part with a state: itself."""
        return self

    @property
    def rule(self) -> Rule:
        """What layers of its kind have."""
        return _RULES[self.kind]

    @property
    def width(self) -> int:
        """Elements per token that all heads together output."""
        return self.heads * self.head_size

    @property
    def kv_heads(self) -> int:
        """Heads of queries and keys, if these are made for each head or for several."""
        return 0 if self.kind in ("mamba", "lru", "rwkv") else self.key_heads or self.heads

    @property
    def key(self) -> tuple[int, int]:
        """Heads of queries and keys, and the width of one."""
        return self.kv_heads or 1, self.rule.numbers or self.key_size or self.head_size

    @property
    def convolved(self) -> int:
        """Elements of a token that go through the convolution."""
        inputs = self.rule.convolved
        return (self.width if "v" in inputs else 0) + (2 * prod(self.key) if "k" in inputs else 0)

    @property
    def seen_taps(self) -> int:
        """Tokens that an output of the convolution sees."""
        return self.taps or self.rule.taps

    @property
    def together(self) -> int:
        """Tokens of a prompt that attend to one another pairwise."""
        return self.block or self.rule.block

    @property
    def matrix(self) -> int:
        """Elements of the matrices that a sequence keeps per layer, whatever its length."""
        return 0 if self.kind == "convolution" else self.width * self.key[1]

    def kept_bytes(self, element_bytes: int, state_bytes: int) -> dict[str, int]:
        """Return what a sequence keeps by the last part of its name [B], given the sizes of elements."""
        rows = dict.fromkeys(("window", "ffn.window"), (self.shifted or 0) * element_bytes)
        rows["window"] += self.convolved * self.seen_taps * element_bytes
        sizes = rows | {"state": self.matrix * state_bytes}
        return {name: size_bytes for name, size_bytes in sizes.items() if size_bytes}

    def of_one(self, ranks: int) -> Self:
        """Return the layer of one of `ranks` ranks, which share the heads; each has one head of keys at least."""
        return self.model_copy(update={"heads": self.heads // ranks, "key_heads": max(1, self.key[0] // ranks)})

    def _check(self) -> None:
        options = {"kind", "heads", *self.rule.options.split()}
        odd = sorted(self.model_fields_set - options)
        must = f"a layer of kind {self.kind} has the keys {', '.join(sorted(options))}"
        require(not odd, must, " and ".join(odd), *odd[:1], do="remove it")
        sizes = {"head_size", "shifted"} | ({"key_size", "rank"} if self.kind == "mamba" else set())
        missing = sorted(sizes & options - self.model_fields_set)
        require(not missing, f"a layer of kind {self.kind} states {', '.join(missing)}", "none", do="add it")
        if self.key_heads:
            self._divides("key_heads", "heads")
