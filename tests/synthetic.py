"""Small graphs whose results can be worked out by hand: for demonstrations, benchmarks and oracles."""

from __future__ import annotations

from simulator.builders.specs import blocks
from simulator.graph import Graph
from simulator.graph_builder import GraphBuilder


def chain(layers: int, *, weight_bytes: int, duration_ns: int, activation_bytes: int = 0, steps: int = 1) -> Graph:
    """Build a uniform chain: one op a layer that reads its own weight and what the layer before put out.

    Parameters
    ----------
    layers
        Number of ops.
    weight_bytes
        Size of each weight (``L00/weight``, persistent) [B].
    duration_ns
        Time of each op (``L00/fwd``) [ns].
    activation_bytes
        Size of what each layer puts out (``L00/out``) [B]; if 0 there is none, and only the order binds the layers.
    steps
        How many times the chain runs.
    """
    builder = GraphBuilder(f"chain of {layers}")
    out: list[str] = []
    for block in blocks(layers):
        builder.tensor(f"{block}/weight", weight_bytes, "weight", persistent=True)
        reads = [f"{block}/weight", *out]
        if activation_bytes:
            builder.tensor(f"{block}/out", activation_bytes)
            out = [f"{block}/out"]
        builder.op(f"{block}/fwd", reads, out, duration_ns=duration_ns, phase="forward")
    return builder.build(steps=steps)


def decode(
    layers: int,
    *,
    computes: int = 4,
    weight_bytes: int,
    kv_bytes: int,
    duration_ns: int,
    steps: int = 1,
) -> Graph:
    """Build decode layers whose weights and KV cache can be streamed.

    Each layer has `computes` ops that read the layer's weight; the second one is the attention, which also reads the
    layer's KV cache and appends to it. All ops update one small ``hidden`` in place, as decode runtimes do. With both
    copied in, the KV cache copied out and both places detached, four computes make a layer of nine steps.

    Parameters
    ----------
    layers
        Number of layers.
    computes
        Ops in each layer (``L00/decode/0`` ...), at least 1.
    weight_bytes, kv_bytes
        Sizes of each layer's weight (``L00/weight``) and KV cache (``L00/kv``), both persistent [B].
    duration_ns
        Time of each op [ns].
    steps
        How many tokens are decoded, one after another.
    """
    builder = GraphBuilder(f"decode of {layers} layers")
    builder.tensor("hidden", 1, "activation", persistent=True)
    for block in blocks(layers):
        weight, kv = f"{block}/weight", f"{block}/kv"
        builder.tensor(weight, weight_bytes, "weight", persistent=True)
        builder.tensor(kv, kv_bytes, "kv_cache", persistent=True)
        for i in range(computes):
            cache = [kv] if i == min(1, computes - 1) else []
            builder.op(
                f"{block}/decode/{i}",
                ["hidden", weight, *cache],
                ["hidden", *cache],
                duration_ns=duration_ns,
                phase="decode",
            )
    return builder.build(steps=steps)
