"""Layers that keep a state of fixed size per sequence, from the normed input to the input of ``attn.o``.

A sequence keeps, whatever its length, the matrices of all heads (``L03/state``) and the last inputs of a convolution
(``L03/window``). Both are there from the start in decode, are made by the first chunk of a prompt, and are read and
written in place by each chunk and each token::

    attn.shift   attn.q attn.k attn.v   attn.rates   attn.conv   attn.core   attn.gate   attn.gated

Let a head have keys of K elements and values of V, and a matrix S of K * V. P are the pairs of tokens of the same block
of a prompt, each with itself: a block of `block` tokens goes through products of its own, so that only its end reaches
the matrix. A token alone is a block of one.

==============  =================================  ================  =============  =====================
kind            kernel                             K * V, of a       of a pair      again in backward
                                                   token and a head
==============  =================================  ================  =============  =====================
``linear``      ``lightning_attn2.py``             4                 2 * K + 2 * V  2; 2 * K
``delta``       ``fla/ops/gated_delta_rule``       6                 6 * K + 4 * V  4; 4 * K + 2 * V
by element      ``fla/ops/kda``                    6                 6 * K + 4 * V  4; 2 * K + 2 * V
``mamba2``      ``ssd_combined.py``                4                 2 * K + 2 * V  2; 2 * K
``mamba``       ``selective_scan_interface.py``    6                                6
``lru``         as that of Griffin                 4                                4
``rwkv``        ``wkv_cuda.cu``                    4                                4
==============  =================================  ================  =============  =====================

- Each product reads S, or adds to it (2 * K * V). The delta rule also takes what S has for a key from its value; its
  pairs score keys with keys and with queries (2 * K each), and make new keys (2 * K) and values (2 * V) from that; the
  inverse that this takes (about block^2 / 3 FLOP a token) and decays are not counted.
- ``mamba2`` scores the pairs of each group of heads once; the 2 * K are of a group.
- ``mamba`` makes the decay and the input of each element (1 multiplication each), updates it and reads it (2 FLOP
  each): in the vector unit, as no matrix products are in it. Exponentials are not counted.
- ``lru`` multiplies the input of a channel by its gate and a root, and updates its number (2 FLOP), likewise.
- ``rwkv`` has a sum of values, one of weights, and the largest exponent so far of a channel (K = 3). A token joins both
  sums twice, for its own output and for those behind it: 3 multiplications each, with an addition.
- *Token shift* (``attn.shift``, ``ffn.shift``): one op adds each row and the one before it up, as often as projections
  take such sums. The last row of a sequence is kept (``L03/window``, ``L03/ffn.window``). Tensor ranks each do so with
  whole rows; the gate of a feed-forward's output (``ffn.receptance``) is whole on each, too.
- Elementwise ops only move bytes, the convolution among them.

*In training* each product has two in backward, beside what is made again, as in the kernels: those of the authors of
Lightning Attention-2 (arXiv 2401.04658, algorithm 2), ``chunk.py`` of fla-org/flash-linear-attention, and two of
``mamba_ssm/ops`` of state-spaces/mamba. All save their inputs. The delta rule saves the inverse of each block as well
(heads * block elements a token), with decays of elements also its scores; ``delta`` and ``mamba2`` a sum of the decays
of each head (fp32); the state spaces their output. The convolution and the gated norm save their inputs alone.

*Workspace*, where there is more than one token of a sequence: ``delta`` and ``mamba2`` lay out the matrix at the start
of each block (in the type of arithmetic, and in fp32), in backward with its gradient.
"""

from __future__ import annotations

from itertools import chain
from typing import NamedTuple, cast

from simulator.builders.cache import Cache, own_bytes
from simulator.builders.specs import FP32_BYTES
from simulator.builders.tape import Tape
from simulator.graph_builder import OpFields
from simulator.layout import Axes, Weight
from simulator.reach import Reach, TokenSpan
from simulator.workload import Recurrent


class Recurrence(NamedTuple):
    """What the core of a layer takes.

    Attributes
    ----------
    matrix, keys, values
        Products with the matrix, and of a pair with keys and with values: in forward, and of these again in backward.
    pairs, decays, output
        What is saved beside inputs: numbers of each pair of a block; of each head (fp32); and the output.
    """

    matrix: tuple[int, int]
    keys: tuple[int, int]
    values: tuple[int, int]
    pairs: int = 0
    decays: int = 0
    output: bool = False


_RECURRENCES = {
    "linear": Recurrence((2, 1), (1, 1), (1, 0)),
    "delta": Recurrence((3, 2), (3, 2), (2, 1), pairs=1, decays=1),
    "delta by element": Recurrence((3, 2), (3, 1), (2, 1), pairs=2),
    "mamba2": Recurrence((2, 1), (1, 1), (1, 0), decays=1, output=True),
    "mamba": Recurrence((3, 3), (0, 0), (0, 0), output=True),
    "convolution": Recurrence((0, 0), (0, 0), (0, 0)),
    **dict.fromkeys(("lru", "rwkv"), Recurrence((2, 2), (0, 0), (0, 0), output=True)),
}


def _recurrence(part: Recurrent) -> Recurrence:
    return _RECURRENCES["delta by element" if part.decays == "elements" else part.kind]


_GATE = "gate"
"""Last part of the name of the shifted rows that a gate is made of."""


class Kernel(NamedTuple):
    """An op whose weights, state and output have a part for each head.

    Attributes
    ----------
    own, shared
        Inputs with a part for each head, and those that every rank has as a whole.
    width
        Elements of an output row, for the heads of this rank.
    kept
        Last part of the name of what it keeps of a sequence.
    """

    name: str
    weights: tuple[str, ...]
    own: list[str]
    width: int
    shared: tuple[str, ...] = ()
    kept: str = ""


def shifted_rows(t: Tape, x: str, cache: Cache | None = None) -> str:
    """Mix rows with those before them (token shift), as often as there are weights; a sequence keeps its last one."""
    name, x, h = f"{t.mixer}.shift", t.to(x, t.cut()), t.model.hidden
    weight, row_bytes = t.weight(name), h * t.element_bytes
    if cache is None:
        return t.joined(name, [x], weight.parameters, [weight])
    states = kept_states(t, cache, "window" if t.mixer == "attn" else f"{t.mixer}.window", row_bytes)
    out = t.tensor(f"{name}.out", weight.parameters)
    read_bytes = t.made_bytes(x) + weight.size_bytes + cache.seen * row_bytes
    write_bytes = t.made_bytes(out) + cache.sequences * row_bytes
    reads = [x, t.held[weight.name], *(states * cache.goes_on)]
    t.op(name, reads, [out, *states], read_bytes=read_bytes, write_bytes=write_bytes)
    return out


def state_inputs(t: Tape, part: Recurrent, x: str, cache: Cache | None = None) -> list[str]:
    """Make what goes into the convolution and the matrix from the layer's input, that of the convolution first."""
    if part.shifted:
        taken = t.divided("attn.shift.parts", shifted_rows(t, x, cache), ("k", "v", _GATE), t.model.hidden)
        return [t.linear(f"attn.{name}", row) for name, row in zip("kv", taken, strict=False)]
    if part.kind == "linear":
        return [t.vector(f"{t.mixer}.{name}.silu", [t.linear(f"{t.mixer}.{name}", x)]) for name in "qkv"]
    made = [_projected(t, name, x) for name in ("q", "k", "v", "rates", "forget") if _has(t, name)]
    if part.kind == "convolution":
        return [t.vector(f"{t.mixer}.product", made[1:]), made[0]]
    return [*made, *([] if _has(t, "norm") else [_projected(t, "gate", x)])]


def gated_state(t: Tape, part: Recurrent, out: str, x: str) -> str:
    """Return the output of the heads, normalised and gated if that is an op of its own."""
    if part.kind == "linear":
        return t.vector(f"{t.mixer}.gated", [t.norm(f"{t.mixer}.norm", out), t.linear(f"{t.mixer}.gate", x)])
    if part.shifted:
        return t.vector("attn.gated", [out, t.linear("attn.gate", f"{t.name('attn.shift.out')}.{_GATE}")])
    if not _has(t, "norm"):
        return out
    taken, width = [out, _projected(t, "gate", x)], _of_heads(t)[1].width
    return _run(t, Kernel(f"{t.mixer}.gated", (f"{t.mixer}.norm",), taken, width))


def _has(t: Tape, name: str) -> bool:
    """Tell whether the layer has a weight, or the two of a low rank."""
    return not t.weights[t.block].keys().isdisjoint({f"{t.mixer}.{name}", f"{t.mixer}.{name}.a"})


def _projected(t: Tape, name: str, x: str) -> str:
    """Multiply by a weight, or by the two of a low rank."""
    if f"{t.mixer}.{name}" in t.weights[t.block]:
        return t.linear(f"{t.mixer}.{name}", x)
    return t.linear(f"{t.mixer}.{name}.b", t.to(t.linear(f"{t.mixer}.{name}.a", x), t.cut()))


def go_through(t: Tape, taken: list[str], cache: Cache | None = None) -> str:
    """Take tokens through the convolution and the matrix of a layer.

    Parameters
    ----------
    t
        Tape whose current layer has a state.
    taken
        Output of `state_inputs`, perhaps for more tokens.
    cache
        The states that the tokens find; default: they are the tokens of whole sequences.
    """
    (_, part), shared = _of_heads(t), tuple[str, ...]()
    conv = tuple([name for name in t.weights[t.block] if name.startswith(f"{t.mixer}.conv.")])
    if conv:
        convolved = Kernel(f"{t.mixer}.conv", conv, taken[: len(conv)], part.convolved, kept="window")
        taken = [_run(t, convolved, cache), *taken[len(conv) :]]
    if part.kind == "mamba":
        rates = t.to(t.linear(f"{t.mixer}.rates_in", taken[0]), t.cut())
        shared = (t.norm(f"{t.mixer}.rates_norm", rates) if _has(t, "rates_norm") else rates,)
        taken = [*taken, t.linear(f"{t.mixer}.rates_out", *shared)]
    if part.kind == "lru":
        taken = [*taken, t.linear(f"{t.mixer}.gates", taken[0], heads=2 * t.whole_attention.width)]
    weights = (f"{t.mixer}.decay",) if _has(t, "decay") else ()
    return _run(t, Kernel(f"{t.mixer}.core", weights, taken, part.width, shared, "state"), cache)


def _of_heads(t: Tape) -> tuple[Axes, Recurrent]:
    """Return the axes that cut the heads of the current layer, and the layer with those of this rank."""
    features = t.weights[t.block][f"{t.mixer}.v"].layout.tensor_map[-1]
    return features, cast(Recurrent, t.whole_attention).of_one(t.mesh.size(features))


def _run(t: Tape, kernel: Kernel, cache: Cache | None = None) -> str:
    """Add an op: on some tokens of cached sequences, or on those of whole ones, with its gradients in training."""
    weights, (_, part) = [t.weight(name) for name in kernel.weights], _of_heads(t)
    forward, backward = OpFields(), OpFields()
    if kernel.name.endswith(".core") and part.matrix:
        forward, backward = _work(t, part, cache)
    if cache is None:
        return _run_whole(t, kernel, weights, forward, backward)
    is_last = kernel.name.endswith(".core")
    out = (is_last and cache.out) or t.of_heads(f"{kernel.name}.out", kernel.width, rows=(cache.tokens,))
    size_bytes = part.kept_bytes(t.element_bytes, t.workload.dtypes.state_bytes).get(kernel.kept, 0)
    states, all_bytes = kept_states(t, cache, kernel.kept, size_bytes), cache.sequences * size_bytes
    reads = [*kernel.own, *kernel.shared, *(t.held[weight.name] for weight in weights), *(states * cache.goes_on)]
    forward["read_bytes"] = own_bytes(t, cache, *kernel.own, *kernel.shared) + cache.seen * size_bytes
    forward["read_bytes"] += sum(weight.size_bytes for weight in weights)
    forward["write_bytes"] = own_bytes(t, cache, out) + all_bytes
    t.op(kernel.name, [*reads, *(cache.after if is_last else ())], [out, *states], **forward)
    return out


def kept_states(t: Tape, cache: Cache, name: str, size_bytes: int) -> list[str]:
    """Return the tensor with so much of each sequence [B], if that is more than 0; the first chunk makes it."""
    states = [cache.states or f"{t.block}/{name}"] * bool(size_bytes)
    for state in states if not cache.states else ():
        if not cache.goes_on:
            t.graph.tensor(state, cache.sequences * size_bytes, "kv_cache")
        elif t.phase == "decode":
            t.declare(state, cache.sequences * size_bytes, "kv_cache")
    return states


def _work(t: Tape, part: Recurrent, cache: Cache | None) -> tuple[OpFields, OpFields]:
    """Return what the matrices take in forward and in backward, for the heads of this rank."""
    length = t.workload.sequence
    tokens = t.own_tokens if cache is None else cache.tokens
    pairs = tokens // length * Reach.of(part).pairs(TokenSpan(0, length)) if cache is None else cache.pairs
    (key_heads, key), element_bytes = part.key, {"delta": t.element_bytes, "mamba2": FP32_BYTES}.get(part.kind, 0)
    scored = key * (key_heads if part.kind == "mamba2" else part.heads)
    workspace_bytes = -(-tokens // part.together) * part.matrix * element_bytes if pairs > tokens else 0
    made = OpFields(op_class="attention" if part.kv_heads else "vector")

    def of_phase(times: int, again: int) -> OpFields:
        matrix, keys, values = (times * n + again * more for n, more in _recurrence(part)[:3])
        flops = 2 * tokens * matrix * part.matrix + 2 * pairs * (keys * scored + values * part.width)
        return OpFields(flops=flops, workspace_bytes=times * workspace_bytes, **made)

    return of_phase(1, 0), of_phase(2, 1)


def _run_whole(t: Tape, kernel: Kernel, weights: list[Weight], forward: OpFields, backward: OpFields) -> str:
    """Add an op on whole sequences; it saves its inputs, and in training perhaps more."""
    (features, part), name, held = _of_heads(t), kernel.name, [t.held[weight.name] for weight in weights]
    layout, ranks, whole = t.cut(features), t.mesh.size(features), t.cut()
    reads = [*(t.to(x, layout) for x in kernel.own), *(t.to(x, whole) for x in kernel.shared)]
    out, saved = t.tensor(f"{name}.out", kernel.width * ranks, layout), list[str]()
    takes = _recurrence(part) if name.endswith(".core") else _RECURRENCES["convolution"]
    sizes = {"pairs": (takes.pairs * part.together, t.element_bytes), "decays": (takes.decays, FP32_BYTES)}
    for end, (width, size) in sizes.items() if t.is_forward else ():
        saved += [t.tensor(f"{name}.{end}", width * part.heads * ranks, layout, size)] if width else []
    t.op(name, [*reads, *held], [out, *saved], **forward)
    saved += [out] if takes.output else []

    def back(dy: str) -> None:
        taken = [*(t.to(x, layout) for x in kernel.own), *(t.to(x, whole) for x in kernel.shared)]
        layouts = dict.fromkeys(kernel.own, layout) | dict.fromkeys(kernel.shared, t.cut(partial=features))
        wanted = [x for x in layouts if t.wants(x)]
        dy, grads = t.to(dy, layout), [t.add(f"{x}.grad", t.spread[x], layouts[x]) for x in wanted]
        summed = ([axis for axis in layout.cut if axis not in weight.layout.cut] for weight in weights)
        both = [t.weight_gradients(tuple(axes), weight) for axes, weight in zip(summed, weights, strict=True)]
        old, new = (list(chain.from_iterable(part)) for part in zip(*both, strict=True)) if both else ([], [])
        held = [t.held[weight.name] for weight in weights]  # ranks that shard them gather them again
        t.op(name, [*taken, *saved, dy, *held, *old], [*grads, *new], **backward)
        brought = [t.to(grad, t.spread[x].layout.whole) for grad, x in zip(grads, wanted, strict=True)]
        for x, grad in zip(wanted, brought, strict=True):
            t.add_gradients([x], [grad], f"{name}.{x.rpartition('/')[2].removesuffix('.out')}")

    return t.record(out, back)
