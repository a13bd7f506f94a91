"""Training of layers with a state, against closed forms that know nothing of the builder."""

from __future__ import annotations

from itertools import product
from typing import Any, NamedTuple

import pytest
from building import build
from examples import some
from pydantic import ValidationError
from trained import DENSE, EXPERTS, GQA, LAYOUTS, SEQUENCE, H, T, by_op, check_lives, flops, saved_bytes, workload

from simulator.builders import build_job
from simulator.graph import Graph
from simulator.lifetime import Lifetimes

BLOCK = 3
PAIRS = T // SEQUENCE * sum(token % BLOCK + 1 for token in range(SEQUENCE))
MAMBA2 = {"kind": "mamba2", "heads": 4, "head_size": 6, "key_heads": 2, "key_size": 5, "block": BLOCK}


class Kind(NamedTuple):
    """A layer: its document; by hand the work of its core in both phases, and the bytes that attention saves.

    Saved is what is written in forward and read in backward: behind the norm, elements of a token of 2 bytes each.
    """

    part: dict[str, Any]
    forward: int
    backward: int
    saved: int


KINDS = {
    # inputs of the convolution and its output; rates; core and gate; what goes into o. The inverse, and decays in fp32.
    "delta": Kind(
        {"kind": "delta", "heads": 4, "head_size": 6, "key_heads": 2, "key_size": 8, "block": BLOCK},
        4 * (6 * 48 * T + (6 * 8 + 4 * 6) * PAIRS),
        4 * (16 * 48 * T + (16 * 8 + 10 * 6) * PAIRS),
        2 * (2 * 56 + 8 + 3 * 24 + 4 * BLOCK) + 4 * 4,
    ),
    # besides, what is between the two matrices of decays and of the gate; scores, and no decays
    "delta by element": Kind(
        {"kind": "delta", "heads": 4, "head_size": 6, "decays": "elements", "rank": 2, "block": BLOCK},
        4 * (6 * 36 * T + (6 * 6 + 4 * 6) * PAIRS),
        4 * (16 * 36 * T + (14 * 6 + 10 * 6) * PAIRS),
        2 * (2 * 72 + 4 + 2 + 24 + 2 + 3 * 24 + 2 * 4 * BLOCK),
    ),
    "mamba2": Kind(
        MAMBA2,
        2 * 2 * 24 * 5 * T + 2 * (2 * 5 + 24) * PAIRS,
        2 * 5 * 24 * 5 * T + 2 * (3 * 2 * 5 + 2 * 24) * PAIRS,
        2 * (2 * 44 + 4 + 3 * 24) + 4 * 4,
    ),
    "mamba2 without a norm": Kind(
        MAMBA2 | {"norms": False, "biases": ["in", "conv", "out"]},
        2 * 2 * 24 * 5 * T + 2 * (2 * 5 + 24) * PAIRS,
        2 * 5 * 24 * 5 * T + 2 * (3 * 2 * 5 + 2 * 24) * PAIRS,
        2 * (2 * 44 + 4 + 2 * 24) + 4 * 4,
    ),
    # inputs and output of the convolution, the gate; rates before and behind their norm; steps; the output
    "mamba": Kind(
        {"kind": "mamba", "heads": 32, "key_size": 4, "rank": 3, "biases": ["conv"]},
        6 * 32 * 4 * T,
        18 * 32 * 4 * T,
        2 * (3 * 32 + 2 * (3 + 8) + 32 + 32),
    ),
    # three inputs, the product of two, the output of the convolution, and that of the layer
    "convolution": Kind({"kind": "convolution", "heads": H}, 0, 0, 2 * 6 * H),
    # input and output of the convolution, the gate; two gates of each channel; the output
    "lru": Kind({"kind": "lru", "heads": 4, "head_size": 8}, 4 * 32 * T, 12 * 32 * T, 2 * 6 * 32),
}


def core(graph: Graph, phase: str) -> int:
    return next(op.flops for op in graph.ops if op.name == f"L01/{phase}/attn.core")


@pytest.mark.parametrize("kind", KINDS)
def test_work_and_what_is_saved(kind: str) -> None:
    one = KINDS[kind]
    graph = build(workload(one.part))
    assert (core(graph, "fwd"), core(graph, "bwd")) == (one.forward, one.backward)
    beside = 2 * T * (4 * H + 4 * 24)  # inputs of both norms and what they make; gate, up, activation and product
    assert saved_bytes(graph, "L01/") == T * one.saved + beside
    assert flops(graph, "backward", "matmul") == 2 * flops(graph, "forward", "matmul")
    check_lives(graph)


@pytest.mark.parametrize("more", [{"checkpoint": {}}, {"checkpoint": {"part": "attention"}}, {"lora": {"rank": 2}}])
@pytest.mark.parametrize("kind", KINDS)
def test_states_go_with_checkpoints_and_adapters(kind: str, more: dict[str, Any]) -> None:
    graph = build(workload(KINDS[kind].part, **more))
    check_lives(graph)
    if "checkpoint" in more:
        assert sum(op.flops for op in graph.ops if op.name == "L01/again/attn.core") == KINDS[kind].forward


WHOLE = ("attn.forget.a", "attn.gate.a")
"""Weights that every tensor rank has, and applies to all tokens that it has."""


PAIRS = [(kind, layout, 3 * ((i + j) % 2)) for i, kind in enumerate(KINDS) for j, layout in enumerate(LAYOUTS)]
"""A kind, a layout and a stage of ZeRO: each two of these together."""


@pytest.mark.parametrize(("kind", "layout", "zero_stage"), some(PAIRS, 5))
def test_all_ranks_do_the_work_of_one(kind: str, layout: dict[str, Any], zero_stage: int) -> None:
    part = KINDS[kind].part
    alone = build(workload(part, EXPERTS))
    found = build_job(workload(part, EXPERTS, parallel={"ranks": "all", "zero_stage": zero_stage, **layout}))
    graphs = [found.graph(rank) for rank in range(found.ranks)]
    for phase in ("forward", "backward"):
        total, once = by_op(graphs, phase), by_op([alone], phase)
        assert total.keys() == once.keys()
        for name, number in once.items():
            if name == "ffn.router":
                continue
            times = layout["tensor"] if name in WHOLE and not layout["sequence"] else 1
            assert total[name] == layout["data"] * layout["micro_batches"] * times * number, name
    for graph in graphs:
        check_lives(graph)


@pytest.mark.parametrize("kind", KINDS)
def test_weights_are_gathered_again_in_backward(kind: str) -> None:
    """With ZeRO 3 no copy of a weight that forward gathered is there until backward, but of the last layer."""
    job = build_job(workload(KINDS[kind].part, parallel={"ranks": "all", "data": 2, "zero_stage": 3}))
    graph = job.graphs[0]
    lives = Lifetimes(graph)
    turn = next(index for index, op in enumerate(graph.ops) if op.phase == "backward")
    gathered = [
        t for t, tensor in enumerate(graph.tensors) if tensor.name.startswith("L00/attn.") and "gathered" in tensor.name
    ]
    first = [t for t in gathered if lives.born[t] < turn]
    assert first
    assert all(lives.dies[t] < turn for t in first)


LATENT = EXPERTS | {"latent": 6}


@pytest.mark.parametrize(("layout", "zero_stage"), some([*product(LAYOUTS, (0, 3))], 3))
def test_experts_take_rows_of_their_own_width(layout: dict[str, Any], zero_stage: int) -> None:
    """Two linears, which every tensor rank has, make them and take them back."""
    alone, plain = build(workload(GQA, LATENT)), build(workload(GQA, EXPERTS))
    once, before = by_op([alone], "forward"), by_op([plain], "forward")
    layers = sum(op.name.endswith("fwd/ffn.latent_in") for op in alone.ops)
    assert once["ffn.latent_in"] == once["ffn.latent_out"] == layers * 2 * T * H * 6
    assert once["ffn.down"] - 2 * T * 24 * H == (before["ffn.down"] - 2 * T * 24 * H) * 6 // H, "behind a dense layer"
    assert once["ffn.shared.up"] == before["ffn.shared.up"]
    assert flops(alone, "backward", "matmul") == 2 * flops(alone, "forward", "matmul")
    found = build_job(workload(GQA, LATENT, parallel={"ranks": "all", "zero_stage": zero_stage, **layout}))
    graphs = [found.graph(rank) for rank in range(found.ranks)]
    for phase in ("forward", "backward"):
        total, once = by_op(graphs, phase), by_op([alone], phase)
        assert total.keys() == once.keys()
        for name in ("ffn.up", "ffn.down", "ffn.shared.down", "attn.q"):
            assert total[name] == layout["data"] * layout["micro_batches"] * once[name], name
    for graph in graphs:
        check_lives(graph)


@pytest.mark.parametrize("experts", ["together", "grouped", "each"])
@pytest.mark.parametrize("phase", ["decode", "prefill"])
def test_experts_of_their_own_width_infer(phase: str, experts: str) -> None:
    graphs = [build(workload(GQA, part, phase=phase, experts=experts)) for part in (LATENT, EXPERTS)]
    narrow, wide = ({op.name.rpartition("/")[2]: op.flops for op in graph.ops if "L01" in op.name} for graph in graphs)
    name = "ffn.up" if experts == "together" else "ffn.experts"
    assert narrow[name] * H == wide[name] * 6
    rows = T // SEQUENCE if phase == "decode" else T
    assert narrow["ffn.latent_in"] == narrow["ffn.latent_out"] == 2 * rows * H * 6
    with pytest.raises(ValidationError, match="the host runs experts that take rows of the residual"):
        workload(GQA, LATENT, phase=phase, on={"experts": "host"})


HALVES = [{"start": 1, "stop": 2, "feed_forward": {"kind": "none"}}, {"start": 2, "attention": {"kind": "none"}}]


@pytest.mark.parametrize("more", [{}, {"checkpoint": {}}, {"parallel": {"ranks": "all", "tensor": 2, "zero_stage": 0}}])
def test_layers_have_one_half_alone(more: dict[str, Any]) -> None:
    found = workload(GQA, DENSE, **more)
    model = {**found.model.model_dump(exclude_unset=True), "others": HALVES}
    graph = build_job(found.model_validate({**found.model_dump(exclude_unset=True), "model": model})).graphs[0]
    ops = [op.name for op in graph.ops]
    assert not any(name.startswith(("L01/fwd/ffn", "L01/fwd/norm2", "L02/fwd/attn", "L02/fwd/norm1")) for name in ops)
    assert {"L01/fwd/add1", "L02/fwd/add2"} <= {*ops}
    check_lives(graph)


@pytest.mark.parametrize("more", [{}, {"checkpoint": {}}, {"parallel": {"ranks": "all", "tensor": 2}}])
def test_a_state_stands_beside_attention(more: dict[str, Any]) -> None:
    graph = build_job(workload(GQA | {"beside": MAMBA2}, **more)).graphs[0]
    ranks = more.get("parallel", {}).get("tensor", 1)
    alone = build(workload(MAMBA2))
    work = {op.name: op.flops for op in graph.ops}
    for phase in ("fwd", "bwd"):
        assert work[f"L01/{phase}/state.core"] * ranks == core(alone, phase)
    assert sum(name.endswith("fwd/norm1") for name in work) == 3, "both take the same input"
    check_lives(graph)
