"""Training of attention to chosen tokens, and of linear attention, against closed forms that know no builder."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from building import build
from examples import some
from hypothesis import given, settings
from hypothesis import strategies as st
from parameters import count
from trained import (
    BATCH,
    DENSE,
    EXPERTS,
    GQA,
    LAYERS,
    LAYOUTS,
    MLA,
    SEQUENCE,
    H,
    T,
    V,
    by_op,
    check_lives,
    fed_by,
    flops,
    saved_bytes,
    sizes,
)

from simulator.builders import build_job
from simulator.errors import ConfigError
from simulator.graph import Graph
from simulator.workload import DecoderModel, Workload

HEADS, R, L, NOPE, ROPE, VALUE = 4, 10, 11, 5, 4, 7
INDEX_HEADS, INDEX, TOP = 3, 5, 4
CHOSEN = MLA | {"indexer": {"heads": INDEX_HEADS, "head_size": INDEX, "top": TOP}}
ALL = MLA | {"indexer": {"heads": INDEX_HEADS, "head_size": INDEX, "top": SEQUENCE}}
SIZE, BLOCK = 6, 3
LINEAR = {"kind": "linear", "heads": HEADS, "head_size": SIZE, "block": BLOCK}
BLOCKS = GQA | {"indexer": {"heads": 2, "head_size": 5, "top": 2, "block": 2}}
POOL = {"stride": 2, "overlap": True, "indexer": {"heads": INDEX_HEADS, "head_size": INDEX, "top": 2}}
ROWS = {"kind": "mqa", "heads": HEADS, "head_size": SIZE, "q_lora_rank": R, "qk_rope": 2, "window": 3, "pool": POOL}
ROWS |= {"out_groups": 4, "out_rank": 3, "sink_logits": True}
INDEXER = ("index.q", "index.k", "index.k_norm", "index.weights")
WARM_UP = ["embed/*", "head/*", "L*/norm*", "L*/ffn*", "L*/attn.[!i]*"]


def workload(attention: dict[str, Any], feed_forward: dict[str, Any] = DENSE, **more: Any) -> Workload:
    model = {"family": "decoder", "layers": LAYERS, "hidden": H, "vocabulary": V}
    model |= {"attention": attention, **fed_by(feed_forward)}
    return Workload.model_validate({"name": "w", "model": model, "batch": BATCH, "sequence": SEQUENCE} | more)


def linears(graph: Graph, phase: str, *parts: str) -> int:
    """Work of the matrix products of some linears of a layer in a phase."""
    names = {f"L01/{phase}/attn.{part}{way}" for part in parts for way in ("", ".dgrad", ".wgrad")}
    return sum(op.flops for op in graph.ops if op.name in names)


def core(graph: Graph, name: str) -> int:
    return next(op.flops for op in graph.ops if op.name == f"L01/{name}")


def test_parameters_gradients_and_states_are_those_of_the_weights() -> None:
    for attention in (CHOSEN, ALL, LINEAR, BLOCKS, ROWS):
        found = workload(attention)
        graph, model = build(found), found.model
        assert isinstance(model, DecoderModel)
        weights = sizes(graph, "weight")
        assert sum(weights.values()) == 2 * count(model).total
        assert sizes(graph, "gradient") == {f"{name}.grad": size for name, size in weights.items()}
        check_lives(graph)


def test_the_indexer_learns_from_chosen_tokens_and_saves_what_the_kernels_save() -> None:
    graph = build(workload(CHOSEN))
    seen = T * TOP * (2 * SEQUENCE - TOP) // (2 * SEQUENCE)
    key = L + ROPE
    assert core(graph, "fwd/attn.index") == 2 * INDEX_HEADS * INDEX * T * SEQUENCE // 2, "all pairs are scored"
    assert core(graph, "fwd/attn.core") == 2 * HEADS * (key + L) * seen
    assert core(graph, "bwd/attn.core") == 2 * HEADS * (3 * key + 2 * L) * seen
    assert core(graph, "bwd/attn.index.target") == 2 * HEADS * key * seen
    assert core(graph, "bwd/attn.index") == 3 * 2 * INDEX_HEADS * INDEX * seen
    index = R * INDEX_HEADS * INDEX + H * INDEX + H * INDEX_HEADS
    assert linears(graph, "fwd", *INDEXER) == linears(graph, "bwd", *INDEXER) == 2 * T * index, "the input is detached"
    absorbed = HEADS * L * (NOPE + VALUE)
    assert 2 * linears(graph, "fwd", "k_b", "v_b") == linears(graph, "bwd", "k_b", "v_b") == 4 * T * absorbed
    latents = 2 * R + 2 * key
    of_heads = HEADS * (NOPE + ROPE) + HEADS * key + HEADS * L + HEADS * VALUE
    of_index = INDEX_HEADS * INDEX + INDEX_HEADS + 2 * INDEX
    width = 4 * H + latents + of_heads + of_index + 4 * 24
    assert saved_bytes(graph, "L01/") == T * (2 * width + 4 * HEADS + 2 * 4 * TOP)


def test_where_all_tokens_are_seen_attention_is_dense_and_no_token_is_chosen() -> None:
    graph, plain = build(workload(ALL)), build(workload(MLA))
    for name in ("fwd/attn.core", "bwd/attn.core"):
        assert core(graph, name) == core(plain, name)
    assert saved_bytes(graph, "L01/") - saved_bytes(plain, "L01/") == 2 * T * (INDEX_HEADS * (INDEX + 1) + 2 * INDEX)
    assert core(graph, "bwd/attn.index.target") == 2 * HEADS * (NOPE + ROPE) * T * SEQUENCE // 2
    teaching = next(op for op in graph.ops if op.name == "L01/bwd/attn.index")
    assert (teaching.flops, teaching.workspace_bytes) == (3 * INDEX_HEADS * INDEX * T * SEQUENCE, 4 * T * SEQUENCE)
    assert not any("attn.index.out" in tensor.name for tensor in graph.tensors)


@pytest.mark.parametrize("more", [{}, {"checkpoint": {}}, {"checkpoint": {"part": "attention"}}])
def test_in_the_warm_up_nothing_but_the_indexer_goes_back(more: dict[str, Any]) -> None:
    graph = build(workload(ALL, EXPERTS, frozen=WARM_UP, **more))
    trained = {f"L{layer:02d}/attn.{part}.weight" for layer in range(LAYERS) for part in INDEXER}
    assert set(sizes(graph, "gradient")) == {f"{name}.grad" for name in trained}
    back = {op.name.partition("/bwd/")[2] for op in graph.ops if "/bwd/" in op.name}
    learned = {f"attn.{part}.wgrad" for part in INDEXER if part != "index.k_norm"}
    assert back == learned | {"attn.index", "attn.index.target", "attn.index.k_norm", "rope.index.q", "rope.index.k"}
    assert saved_bytes(graph, "L01/") < saved_bytes(build(workload(ALL, EXPERTS)), "L01/")
    check_lives(graph)


def test_a_frozen_indexer_still_chooses() -> None:
    graph = build(workload(CHOSEN, lora={"rank": 2, "targets": ["attn.q_b"]}))
    names = [op.name for op in graph.ops]
    assert "L01/fwd/attn.index" in names
    assert not any(op.startswith("L01/bwd/attn.index") for op in names)
    assert not any("scores" in tensor.name for tensor in graph.tensors)
    with pytest.raises(ConfigError, match=r"attn\.k_b, which is absorbed by heads; leave it out of lora\.targets"):
        build(workload(CHOSEN, lora={"rank": 2, "targets": ["attn.*_b"]}))


def test_linear_attention_makes_its_states_again() -> None:
    graph = build(workload(LINEAR))
    pairs = BATCH * sum(token % BLOCK + 1 for token in range(SEQUENCE))
    assert core(graph, "fwd/attn.core") == HEADS * (4 * SIZE * SIZE * T + 4 * SIZE * pairs)
    assert core(graph, "bwd/attn.core") == HEADS * (10 * SIZE * SIZE * T + 10 * SIZE * pairs)
    width = HEADS * SIZE
    assert linears(graph, "fwd", "q", "k", "v", "gate", "o") == 2 * T * 5 * H * width
    assert linears(graph, "bwd", "q", "k", "v", "gate", "o") == 4 * T * 5 * H * width
    made = 2 * 3 * width + 4 * width  # before and behind three activations; core, norm, gate, and the two multiplied
    assert saved_bytes(graph, "L01/") == 2 * T * (4 * H + made + 4 * 24)


@settings(max_examples=30, deadline=None)
@given(st.tuples(*[st.integers(1, 5)] * 4), st.integers(1, SEQUENCE), st.booleans())
def test_any_sizes(dims: tuple[int, int, int, int], top: int, eager: bool) -> None:
    heads, size, block, index = dims
    indexer = {"heads": heads, "head_size": index, "top": top}
    for attention in (
        MLA | {"indexer": indexer},
        {"kind": "linear", "heads": heads, "head_size": size, "block": block},
    ):
        graph = build(workload(attention, kernels="eager" if eager else "fused"))
        linear = sum(op.flops for op in graph.ops if op.op_class == "matmul" and op.phase == "forward")
        detached = 2 * T * LAYERS * (R * heads * index + H * (index + heads)) if "indexer" in attention else 0
        assert flops(graph, "backward", "matmul") == 2 * linear - detached
        check_lives(graph)


PAIRS = [
    (layout, 3 * ((i + j) % 2), attention)
    for i, layout in enumerate(LAYOUTS)
    for j, attention in enumerate((CHOSEN, ALL, LINEAR, BLOCKS, ROWS))
]
"""A layout, a stage of ZeRO and an attention: each two of these together."""


@pytest.mark.parametrize(("layout", "zero_stage", "attention"), some(PAIRS, 3))
def test_all_ranks_do_the_work_of_one(layout: dict[str, Any], zero_stage: int, attention: dict[str, Any]) -> None:
    """But for the latents and the indexer, which every tensor rank has as a whole."""
    alone = build(workload(attention, EXPERTS))
    found = build_job(workload(attention, EXPERTS, parallel={"ranks": "all", "zero_stage": zero_stage, **layout}))
    graphs = [found.graph(rank) for rank in range(found.ranks)]
    data, tensor, micros = layout["data"], layout["tensor"], layout["micro_batches"]
    for phase in ("forward", "backward"):
        total, once = by_op(graphs, phase), by_op([alone], phase)
        assert total.keys() == once.keys()
        for name, number in once.items():
            if name in ("ffn.router", "attn.q_a", "attn.kv_a") or name.startswith(("attn.index.", "attn.pool.")):
                continue
            times = tensor if name == "attn.index" else 1
            assert total[name] == data * micros * times * number, name
    for graph in graphs:
        check_lives(graph)


@pytest.mark.parametrize("attention", [CHOSEN, ALL])
def test_tensor_ranks_add_up_what_their_heads_attend_to(attention: dict[str, Any]) -> None:
    graph, plain = (
        build_job(workload(one, parallel={"ranks": "all", "tensor": 2})).graphs[0] for one in (attention, MLA)
    )
    met = Counter(op.name for op in graph.ops if op.collective and "index" in op.name)
    others = ([op.collective for op in one.ops if op.collective and "index" not in op.name] for one in (graph, plain))
    assert len({tuple(found) for found in others}) == 1, "beside that as without an indexer"
    assert met == {f"L{layer:02d}/bwd/attn.index.target.all_reduce": 1 for layer in range(LAYERS)}
    sent = {op.collective.size_bytes for op in graph.ops if op.collective and "index" in op.name}
    assert sent == {4 * T * attention["indexer"]["top"]}


def test_a_warm_up_over_stages_sends_no_gradients() -> None:
    spread = {"ranks": "all", "pipeline": 3, "zero_stage": 0}
    job = build_job(workload(ALL, parallel=spread, frozen=WARM_UP))
    names = [op.name for graph in job.graphs for op in graph.ops if op.collective]
    assert {name.rpartition("/")[2] for name in names} == {"send", "recv"}
    assert not any("/bwd/" in name for name in names)
