"""Layers with a state of fixed size per sequence, against closed forms that know nothing of the builder."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
from building import build
from parameters import count
from pydantic import ValidationError

from simulator.builders import build_job
from simulator.errors import ConfigError
from simulator.graph import Graph
from simulator.workload import DecoderModel, Workload

H, BATCH, TOKENS, LAYERS, E = 24, 2, 12, 4, 2
FULL = {"kind": "gqa", "heads": 4, "kv_heads": 2, "head_size": 6, "gate": "elements"}


class Kind(NamedTuple):
    """A layer: its document, and by hand what it has.

    Heads of values and of keys, their widths, elements that go through the convolution, its taps, its block, weights,
    FLOP of a token with the matrices of a layer, and of a pair.
    """

    part: dict[str, Any]
    convolved: int
    taps: int
    block: int
    weights: int
    matrix: int
    token: int
    pair: int


KINDS = {
    "delta": Kind(
        {"kind": "delta", "heads": 4, "head_size": 6, "key_heads": 2, "key_size": 8, "block": 5},
        2 * 16 + 24, 4, 5,
        H * (16 + 16 + 24 + 24 + 8) + 4 * (32 + 24) + 2 * 4 + 6 + 24 * H,
        4 * 8 * 6, 6 * 4 * 8 * 6, 4 * (6 * 8 + 4 * 6),
    ),
    "delta by key": Kind(
        {"kind": "delta", "heads": 4, "head_size": 6, "decays": "elements", "rank": 3, "taps": 3},
        3 * 24, 3, 64,
        H * (3 * 24 + 4 + 2 * 3) + 3 * (24 + 24) + 3 * 3 * 24 + 4 + 24 + 6 + 24 * H,
        4 * 6 * 6, 6 * 4 * 6 * 6, 4 * (6 * 6 + 4 * 6),
    ),
    "delta with a whole gate": Kind(
        {"kind": "delta", "heads": 4, "head_size": 6, "decays": "elements", "rank": 3, "whole_gate": True},
        3 * 24, 4, 64,
        H * (3 * 24 + 4 + 3 + 24) + 3 * 24 + 4 * 3 * 24 + 4 + 24 + 6 + 24 * H,
        4 * 6 * 6, 6 * 4 * 6 * 6, 4 * (6 * 6 + 4 * 6),
    ),
    "mamba": Kind(
        {"kind": "mamba", "heads": 48, "key_size": 4, "rank": 3, "biases": ["conv"]},
        48, 4, 1,
        H * 96 + 5 * 48 + 48 * (3 + 8) + (3 + 8) + 3 * 48 + 48 + 48 * 4 + 48 + 48 * H,
        48 * 4, 6 * 48 * 4, 0,
    ),
    "mamba2": Kind(
        {"kind": "mamba2", "heads": 8, "head_size": 6, "key_heads": 2, "key_size": 5, "biases": ["conv", "in", "out"]},
        48 + 2 * 10, 4, 256,
        (H + 1) * (2 * 48 + 2 * 10 + 8) + 5 * (48 + 20) + 3 * 8 + 48 + (48 + 1) * H,
        8 * 5 * 6, 4 * 8 * 5 * 6, 2 * 2 * 5 + 2 * 48,
    ),
    "convolution": Kind(
        {"kind": "convolution", "heads": H}, H, 3, 1, 3 * H * H + 3 * H + H * H, 0, 0, 0,
    ),
    "lru": Kind(
        {"kind": "lru", "heads": 4, "head_size": 12, "biases": ["conv", "in", "out"]},
        48, 4, 1,
        (H + 1) * 2 * 48 + 5 * 48 + (12 + 1) * 2 * 48 + 48 + (48 + 1) * H,
        48, 4 * 48, 0,
    ),
}  # fmt: skip


def workload(kind: str, phase: str = "decode", **more: Any) -> Workload:
    model = {"family": "decoder", "layers": LAYERS, "hidden": H, "vocabulary": 64, "attention": KINDS[kind].part}
    model |= {"feed_forward": {"kind": "dense", "width": 16}, "others": [{"every": 2, "attention": FULL}]}
    data = {"name": "w", "phase": phase, "batch": BATCH, "sequence": TOKENS, "model": model}
    return Workload.model_validate(data | more)


def ops(graph: Graph, name: str) -> list[Any]:
    return [op for op in graph.ops if op.name.endswith(f"/{name}") and op.name.split("/")[-3] in ("L01", "L03")]


@pytest.mark.parametrize("kind", KINDS)
def test_weights_are_those_of_the_closed_form(kind: str) -> None:
    model = workload(kind).model
    assert isinstance(model, DecoderModel)
    full, alike = 3 * H * 24 + 2 * H * 12, 2 * H + 3 * H * 16
    assert count(model).total == 2 * (full + KINDS[kind].weights) + LAYERS * alike + 2 * H * 64 + H


@pytest.mark.parametrize("kind", KINDS)
def test_states_are_kept_whatever_the_length(kind: str) -> None:
    one, graph = KINDS[kind], build(workload(kind, new_tokens=3))
    kept = {t.name: (t.size_bytes, t.persistent) for t in graph.tensors if t.kind == "kv_cache" and "L01" in t.name}
    sizes = {"L01/window": BATCH * one.convolved * one.taps * E, "L01/state": BATCH * one.matrix * 4}
    assert kept == {name: (size, True) for name, size in sizes.items() if size}
    longer = build(workload(kind, sequence=9 * TOKENS))
    assert [t.size_bytes for t in longer.tensors if t.name in sizes] == [size for size in sizes.values() if size]


@pytest.mark.parametrize("kind", KINDS)
def test_a_token_reads_and_writes_its_states(kind: str) -> None:
    one, graph = KINDS[kind], build(workload(kind, new_tokens=3))
    assert len(ops(graph, "attn.core")) == len(ops(graph, "attn.conv")) == 2 * 3
    for op in ops(graph, "attn.core"):
        assert op.flops == BATCH * (one.token + one.pair)
        out = BATCH * (H if kind == "convolution" or kind.startswith("delta") else 48) * E
        assert op.write_bytes == out + BATCH * one.matrix * 4
        assert op.read_bytes > BATCH * one.matrix * 4
    for op in ops(graph, "attn.conv"):
        taps, window = (one.taps + ("conv" in one.part.get("biases", ()))) * E, BATCH * one.convolved * one.taps * E
        assert op.read_bytes == one.convolved * (BATCH * E + taps) + window
        assert op.write_bytes == BATCH * one.convolved * E + window


@pytest.mark.parametrize("chunk", [None, 5, 7])
@pytest.mark.parametrize("kind", KINDS)
def test_chunks_of_prompts_hand_their_states_on(kind: str, chunk: int | None) -> None:
    one, graph = KINDS[kind], build(workload(kind, "prefill", **({"chunk": chunk} if chunk else {})))
    sizes = [min(chunk or TOKENS, TOKENS - start) for start in range(0, TOKENS, chunk or TOKENS)]
    pairs = sum(t % one.block + 1 for size in sizes for t in range(size))
    assert sum(op.flops for op in ops(graph, "attn.core")) == 2 * BATCH * (one.token * TOKENS + one.pair * pairs)
    written = sum(op.write_bytes for op in ops(graph, "attn.conv"))
    assert written == 2 * BATCH * one.convolved * E * (TOKENS + len(sizes) * one.taps)
    states = {f"{layer}/{end}" for layer in ("L01", "L03") for end in ("window", "state")[: 1 + (one.matrix > 0)]}
    assert {graph.tensors[i].name for i in graph.outputs} >= states


def test_ranks_that_share_no_heads_of_keys_evenly_are_refused() -> None:
    part = {"kind": "delta", "heads": 12, "head_size": 2, "key_heads": 6}
    for attention in (part, FULL | {"heads": 12, "kv_heads": 12, "beside": part}):
        model = {**workload("delta").model.model_dump(exclude_unset=True), "attention": attention, "others": []}
        data = {"name": "w", "phase": "decode", "model": model, "parallel": {"ranks": "all", "tensor": 4}}
        with pytest.raises(ConfigError, match=r"4, and 6 kv_heads; set parallel\.tensor to 2"):
            build_job(Workload.model_validate(data))


@pytest.mark.parametrize(
    ("part", "message"),
    [
        (
            {"kind": "linear", "heads": 4, "head_size": 6, "taps": 2},
            "a layer of kind linear has the keys block, head_size",
        ),
        ({"kind": "mamba", "heads": 4, "key_size": 6}, "a layer of kind mamba states rank"),
        ({"kind": "mamba2", "heads": 4}, "a layer of kind mamba2 states head_size"),
        ({"kind": "delta", "heads": 4, "head_size": 6, "key_heads": 3}, "key_heads divides heads"),
        ({"kind": "convolution", "heads": 4, "key_size": 3}, "a layer of kind convolution has the keys biases, heads"),
        ({"kind": "none"}, None),
    ],
)
def test_what_a_kind_has_not_is_refused(part: dict[str, Any], message: str | None) -> None:
    model = {"family": "decoder", "layers": 2, "hidden": H, "vocabulary": 64, "attention": part}
    model["feed_forward"] = {"kind": "dense", "width": 16}
    if message is None:
        Workload.model_validate({"name": "w", "phase": "decode", "model": model})
        model["feed_forward"], message = {"kind": "none"}, "a layer has an attention or a feed_forward"
    with pytest.raises(ValidationError, match=message):
        Workload.model_validate({"name": "w", "phase": "decode", "model": model})


@pytest.mark.parametrize("kind", KINDS)
def test_blocks_of_a_prompt_are_laid_out(kind: str) -> None:
    """Kernels that go over the blocks of a prompt keep the matrix before each."""
    one, sizes = KINDS[kind], {"mamba2": 4}
    each = sizes.get(kind, E) * one.matrix if kind.startswith("delta") or kind == "mamba2" else 0
    found = {op.workspace_bytes for op in ops(build(workload(kind, "prefill")), "attn.core")}
    assert found == {-(-BATCH * TOKENS // one.block) * each}
    assert {op.workspace_bytes for op in ops(build(workload(kind)), "attn.core")} == {0}


@pytest.mark.parametrize("kind", KINDS)
def test_tensor_ranks_share_the_heads(kind: str) -> None:
    one, two = (build_job(workload(kind, parallel={"ranks": "all", "tensor": n})).graphs[0] for n in (1, 2))
    assert [op.flops for op in ops(one, "attn.core")] == [2 * op.flops for op in ops(two, "attn.core")]
    sizes = [{t.name: t.size_bytes for t in graph.tensors if t.name[4:] in ("state", "window")} for graph in (one, two)]
    assert sizes[0]
    assert sizes[0] == {name: 2 * size for name, size in sizes[1].items()}
