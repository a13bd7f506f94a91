"""Layers that keep a state of fixed size per sequence, from the normed input to the input of ``attn.o``.

A sequence keeps, whatever its length, the matrices of all heads (``L03/state``) and the last inputs of a convolution
(``L03/window``). Both are there from the start in decode, are made by the first chunk of a prompt, and are read and
written in place by each chunk and each token::

    attn.q attn.k attn.v   attn.rates   attn.conv   attn.core   attn.gate   attn.gated

Let a head have keys of K elements and values of V, and a matrix S of K * V. P are the pairs of tokens of the same block
of a prompt, each with itself: a block of `block` tokens goes through products of its own, so that only its end reaches
the matrix. A token alone is a block of one.

====================  ===============================  =============  =============  ======================
kind                  source                           of K * V, a    of a pair      again in backward
                                                       token, a head
====================  ===============================  =============  =============  ======================
``linear``            arXiv 2501.08313, section 2.2    4              2 * K + 2 * V  2; 2 * K
``delta``             arXiv 2412.06464, section 3.3    6              6 * K + 4 * V  4; 4 * K + 2 * V
``mamba2``            arXiv 2405.21060, section 6      4              2 * K + 2 * V  2; 2 * K
``mamba``             arXiv 2312.00752, section 3.3    6                             6
====================  ===============================  =============  =============  ======================

- Each product reads S, or adds to it (2 * K * V). The delta rule also takes what S has for a key from its value; its
  pairs score keys with keys and with queries (2 * K each), and make new keys (2 * K) and values (2 * V) from that; the
  inverse that this takes (about block^2 / 3 FLOP a token) and decays are not counted.
- ``mamba2`` scores the pairs of each group of heads once; the 2 * K are of a group.
- ``mamba`` makes the decay and the input of each element (1 multiplication each), updates it and reads it (2 FLOP
  each): in the vector unit, as no matrix products are in it. Exponentials are not counted.
- Elementwise ops only move bytes, the convolution among them.

*In training* each product has two in backward, beside what is made again, as in the kernels: Lightning Attention-2
(arXiv 2401.04658, algorithm 2), ``fla/ops/gated_delta_rule/chunk.py`` of fla-org/flash-linear-attention, and
``ssd_combined.py`` and ``selective_scan_interface.py`` of state-spaces/mamba. All save their inputs. The delta rule
saves the inverse of each block as well (heads * block elements a token) and a sum of decays (fp32), the state spaces
their output; ``mamba2`` a sum of decays. The convolution and the gated norm save their inputs alone.

*Workspace*, where there is more than one token of a sequence: ``delta`` and ``mamba2`` lay out the matrix at the start
of each block (in the type of arithmetic, and in fp32), in backward with its gradient.
"""

from __future__ import annotations

from typing import NamedTuple

from simulator.builders.cache import Cache, own_bytes
from simulator.builders.tape import FP32_BYTES, Tape
from simulator.reach import Reach, TokenSpan
from simulator.workload import State

_PRODUCTS = {
    "linear": ((2, 1), (1, 1), (1, 0)),
    "delta": ((3, 2), (3, 2), (2, 1)),
    "mamba2": ((2, 1), (1, 1), (1, 0)),
    "mamba": ((3, 3), (0, 0), (0, 0)),
    "convolution": ((0, 0), (0, 0), (0, 0)),
}
"""Kind -> products with the matrix, with keys and with values of a pair: in forward, and of these again in backward."""


class Kernel(NamedTuple):
    """An op whose weights, state and output have a part for each head.

    Attributes
    ----------
    name
        Its name.
    own, shared
        Inputs with a part for each head, and those that every rank has as a whole.
    weights
        Names of its weights.
    width
        Elements of an output row, for the heads of this rank.
    flops
        Work in forward and in backward [FLOP].
    kept
        Last part of the name of what it keeps of a sequence, and the size of that on this rank [B].
    saved
        What it saves for backward beside its inputs: name, elements of a row on this rank, size of one [B].
    workspace_bytes
        Its workspace [B].
    """

    name: str
    own: list[str]
    shared: list[str]
    weights: tuple[str, ...]
    width: int
    flops: tuple[int, int] = (0, 0)
    kept: tuple[str, int] = ("", 0)
    saved: tuple[tuple[str, int, int], ...] = ()
    workspace_bytes: int = 0


def state_inputs(t: Tape, part: State, x: str) -> list[str]:
    """Make the inputs of the matrix from those of the layer; first those that go through the convolution."""
    if part.kind == "linear":
        return [t.vector(f"attn.{name}.silu", [t.linear(f"attn.{name}", x)]) for name in "qkv"]
    made = [_projected(t, name, x) for name in ("q", "k", "v", "rates", "forget") if _has(t, name)]
    if part.kind == "convolution":
        return [t.vector("attn.product", made[1:]), made[0]]
    return [*made, *([] if _has(t, "norm") else [_projected(t, "gate", x)])]


def gated_state(t: Tape, part: State, out: str, x: str) -> str:
    """Return the output of the heads, normalised and gated if that is an op of its own."""
    if part.kind == "linear":
        return t.vector("attn.gated", [t.norm("attn.norm", out), t.linear("attn.gate", x)])
    if not _has(t, "norm"):
        return out
    return _run(t, Kernel("attn.gated", [out, _projected(t, "gate", x)], [], ("attn.norm",), t.attention.width), None)


def _has(t: Tape, name: str) -> bool:
    return f"attn.{name}" in t.weights[t.block] or f"attn.{name}.a" in t.weights[t.block]


def _projected(t: Tape, name: str, x: str) -> str:
    """Multiply by a weight, or by the two of a low rank."""
    name = f"attn.{name}"
    if f"{name}.a" in t.weights[t.block]:
        return t.linear(f"{name}.b", t.to(t.linear(f"{name}.a", x), t.cut()))
    return t.linear(name, x)


def go_through(t: Tape, part: State, taken: list[str], cache: Cache | None = None) -> str:
    """Take tokens through the convolution and the matrix of a layer: of cached sequences, or of whole ones.

    Parameters
    ----------
    t, part
        Tape, and the layer's part with the heads of this rank.
    taken
        Output of `state_inputs`, perhaps for more tokens.
    cache
        The states that the tokens find; default: the tokens are those of whole sequences.
    """
    sizes = part.kept_bytes(t.element_bytes, t.workload.dtypes.state_bytes)
    shared = list[str]()
    if "window" in sizes:
        conv = tuple(name for name in t.weights[t.block] if name.startswith("attn.conv."))
        through = len(conv)
        kernel = Kernel("attn.conv", taken[:through], [], conv, part.convolved, kept=("window", sizes["window"]))
        taken = [_run(t, kernel, cache), *taken[through:]]
    if part.kind == "mamba":
        rates = t.to(t.linear("attn.rates_in", taken[0]), t.cut())
        rates = t.norm("attn.rates_norm", rates) if "attn.rates_norm" in t.weights[t.block] else rates
        taken, shared = [*taken, t.linear("attn.rates_out", rates)], [rates]
    return _run(t, _core(t, part, taken, shared, cache), cache)


def _core(t: Tape, part: State, taken: list[str], shared: list[str], cache: Cache | None) -> Kernel:
    """Return the op that adds tokens to the matrix of each head, and reads it."""
    if cache is None:
        tokens, length = t.own_tokens, t.workload.sequence
        pairs = tokens // length * Reach.of(part).pairs(TokenSpan(0, length))
    else:
        tokens, pairs = cache.tokens, cache.pairs
    heads, (key_heads, key), e = part.heads, part.key, t.element_bytes
    scored = key_heads if part.kind == "mamba2" else heads

    def flops(*, is_backward: bool) -> int:
        counts = (2 * n + again if is_backward else n for n, again in _PRODUCTS[part.kind])
        matrix, keys, values = counts
        return 2 * tokens * matrix * part.matrix + 2 * pairs * (keys * scored * key + values * part.width)

    block_bytes = {"delta": e, "mamba2": FP32_BYTES}.get(part.kind, 0) * part.matrix
    blocks = -(-tokens // part.together) if pairs > tokens else 0
    saved = {"delta": [("inverse", heads * part.together, e)]}.get(part.kind, [])
    saved += [("decays", heads, FP32_BYTES)] if part.kind in ("delta", "mamba2") else []
    weights = ("attn.decay",) if _has(t, "decay") else ()
    work = (flops(is_backward=False), flops(is_backward=True))
    state = part.matrix * t.workload.dtypes.state_bytes
    return Kernel(
        "attn.core", taken, shared, weights, part.width, work, ("state", state), tuple(saved), blocks * block_bytes
    )


def _run(t: Tape, kernel: Kernel, cache: Cache | None) -> str:
    """Add the op, with its gradients in training; with a cache it reads and writes what is kept of sequences."""
    features = t.weights[t.block]["attn.v"].layout.tensor_map[-1]
    layout, ranks = t.cut(features), t.mesh.size(features)
    weights = [t.weight(name) for name in kernel.weights]
    own, shared = [t.to(x, layout) for x in kernel.own], [t.to(x, t.cut()) for x in kernel.shared]
    reads = [*own, *shared, *(t.held[weight.name] for weight in weights)]
    name, (forward, backward), workspace = kernel.name, kernel.flops, kernel.workspace_bytes
    op_class = {} if not forward else {"op_class": "vector" if t.layer.attention.kind == "mamba" else "attention"}
    if cache is not None:
        return _run_with_states(t, kernel, cache, reads, op_class)
    out = t.tensor(f"{name}.out", kernel.width * ranks, layout)
    saved = [
        t.tensor(f"{name}.{end}", width * ranks, layout, size) for end, width, size in kernel.saved if t.is_forward
    ]
    t.op(name, reads, [out, *saved], flops=forward, workspace_bytes=workspace, **op_class)
    keeps = [out] if t.layer.attention.kind in ("mamba", "mamba2") and kernel.name == "attn.core" else []

    def back(dy: str) -> None:
        wanted = [x for x in (*kernel.own, *kernel.shared) if t.wants(x)]
        dy, *kept = (t.to(x, layout) for x in (dy, *kernel.own))
        kept += [t.to(x, t.cut()) for x in kernel.shared]
        layouts = dict.fromkeys(kernel.own, layout) | {x: t.cut(partial=features) for x in kernel.shared}
        grads = [t.add(f"{x}.grad", t.spread[x], layouts[x]) for x in wanted]
        old, new = list[str](), list[str]()
        for weight in weights:
            summed = tuple(axis for axis in layout.cut if axis not in weight.layout.cut)
            before, after = t.weight_gradients(summed, weight)
            old, new = [*old, *before], [*new, *after]
        held = [t.held[weight.name] for weight in weights]
        t.op(name, [*kept, *saved, *keeps, dy, *held, *old], [*grads, *new], flops=backward,
             workspace_bytes=2 * workspace, **op_class)  # fmt: skip
        whole = [t.to(grad, t.spread[x].layout.whole) for grad, x in zip(grads, wanted, strict=True)]
        for x, grad in zip(wanted, whole, strict=True):
            t.add_gradients([x], [grad], f"{name}.{x.rpartition('.')[0].rpartition('/')[2]}")

    return t.record(out, back)


def _run_with_states(t: Tape, kernel: Kernel, cache: Cache, reads: list[str], op_class: dict[str, str]) -> str:
    """Add the op on some tokens of cached sequences."""
    is_last, (end, kept) = kernel.name == "attn.core", kernel.kept
    out = (is_last and cache.out) or t.of_heads(f"{kernel.name}.out", kernel.width, rows=(cache.tokens,))
    kept_bytes, state, after = cache.sequences * kept, list[str](), cache.after if is_last else []
    if kept:
        state = [cache.states or f"{t.block}/{end}"]
        if not cache.goes_on:
            t.graph.tensor(state[0], kept_bytes, "kv_cache")
        elif t.phase == "decode":
            t.declare(state[0], kept_bytes, "kv_cache")
    weights_bytes = sum(t.weights[t.block][name].size_bytes for name in kernel.weights)
    t.op(
        kernel.name, [*reads, *(state if cache.goes_on else []), *after], [out, *state], flops=kernel.flops[0],
        read_bytes=own_bytes(t, cache, *kernel.own, *kernel.shared) + weights_bytes + cache.seen * kept,
        write_bytes=own_bytes(t, cache, out) + kept_bytes, workspace_bytes=kernel.workspace_bytes, **op_class,
    )  # fmt: skip
    return out
