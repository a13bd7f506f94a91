"""Adapters, frozen weights, checkpoints and optimizers against closed forms that know nothing of the builder."""

from functools import cache
from itertools import product
from math import ceil
from typing import Any

import pytest
from building import build
from examples import examples, some
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from trained import (
    ALONE,
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
    workload,
)

from simulator import catalog
from simulator.builders import build_job, check
from simulator.errors import ConfigError
from simulator.graph import CollectiveKind, Graph
from simulator.lifetime import live_bytes
from simulator.referee import check_job
from simulator.workload import Workload

Q, KV, F = 4 * 6, 2 * 6, 24
LINEARS = {"attn.q": (H, Q), "attn.k": (H, KV), "attn.v": (H, KV), "attn.o": (Q, H)}
LINEARS |= {"ffn.gate": (H, F), "ffn.up": (H, F), "ffn.down": (F, H)}
"""Of a layer of the dense model: inputs and outputs."""
PARAMETERS = LAYERS * (sum(i * o for i, o in LINEARS.values()) + 2 * H) + 2 * H * V + H


def held(graph: Graph, *kinds: str) -> int:
    return sum(sizes(graph, *kinds).values())


# optimizers

STATES = [
    ({"kind": "adamw"}, 12.0), ({"kind": "adamw", "master": False}, 8.0), ({"states": "bf16"}, 8.0),
    ({"kind": "lion"}, 8.0), ({"kind": "momentum"}, 8.0), ({"kind": "sgd"}, 4.0),
    ({"kind": "lion", "states": "bf16"}, 6.0),
]  # fmt: skip


@pytest.mark.parametrize(("optimizer", "each"), STATES)
@pytest.mark.parametrize("shards", [1, 8])
def test_states_of_every_parameter(optimizer: dict[str, Any], each: float, shards: int) -> None:
    parallel = {"data": shards, "zero_stage": 1}
    graph = build(workload(optimizer=optimizer, parallel=parallel))
    weights = sizes(graph, "weight")
    assert held(graph, "optimizer_state") == sum(each * ceil(size / 2 / shards) for size in weights.values())
    assert sum(weights.values()) == 2 * PARAMETERS


def test_the_usual_optimizer_is_adamw_with_a_master_weight() -> None:
    assert build(workload()) == build(workload(optimizer={}))
    assert build(workload(optimizer="muon")) == build(workload(optimizer={"kind": "muon"})) != build(workload())
    small = {"optimizer_bytes_per_parameter": 8}
    assert build(workload(dtypes=small)) == build(workload(optimizer={"master": False}))
    graph = build(workload(optimizer={"kind": "sgd", "master": False}))
    assert held(graph, "optimizer_state") == 0
    update = next(op for op in graph.ops if op.name == "L00/update/attn.q")
    assert (update.read_bytes, update.write_bytes) == (2 * 2 * H * Q, 2 * H * Q)


def test_fp32_weights_are_their_own_master() -> None:
    graph = build(workload(optimizer={"kind": "adamw"}, dtypes={"compute": "fp32"}))
    assert held(graph, "optimizer_state") == 8 * PARAMETERS


def test_8_bit_states_have_a_scale_for_each_block_of_256() -> None:
    """bitsandbytes: two moments of a byte, two fp32 scales a block; weights of less than 4,096 have fp32 moments."""
    graph = build(workload(GQA | {"head_size": 48}, optimizer={"states": "int8", "master": False}))
    found = sizes(graph, "optimizer_state")
    assert found["L00/attn.k.weight.state"] == 8 * H * 96, "1,536 parameters"
    wide = build(workload(GQA | {"head_size": 65}, optimizer={"states": "int8"}))
    many = H * 4 * 65
    expected = 2 * (many + 4 * ceil(many / 256)) + 4 * many
    assert many == 4160
    assert sizes(wide, "optimizer_state")["L00/attn.q.weight.state"] == expected


@pytest.mark.parametrize("feed_forward", [DENSE, EXPERTS])
def test_adafactor_keeps_a_number_for_each_row_and_column(feed_forward: dict[str, Any]) -> None:
    found = sizes(
        build(workload(GQA, feed_forward, optimizer={"kind": "adafactor", "master": False})), "optimizer_state"
    )
    assert found["L00/ffn.gate.weight.state"] == 4 * (H + F)
    assert found["L00/norm1.weight.state"] == 4 * H
    assert found["embed/tokens.weight.state"] == 4 * (H + V)
    if "routed" in feed_forward:
        assert found["L01/ffn.down.weight.state"] == 4 * 8 * (10 + H), "of each of eight experts"


def test_muon_has_one_moment_and_makes_it_orthogonal() -> None:
    """Five steps of A = X X^T, A A and B X, with the shorter side first (arXiv 2502.16982, section 2.1)."""
    graph = build(workload(MLA, EXPERTS, optimizer={"kind": "muon"}))
    states, updates = sizes(graph, "optimizer_state"), {op.name: op for op in graph.ops if op.phase == "update"}
    assert states["L01/ffn.gate.weight.state"] == 8 * 8 * H * 10
    assert states["L01/norm1.weight.state"] == 12 * H
    assert states["embed/tokens.weight.state"] == 12 * H * V
    assert updates["L01/update/attn.o"].flops == 5 * 2 * (2 * H * H * 28 + H**3), "16 rows, 28 columns"
    assert updates["L01/update/ffn.gate"].flops == 8 * 5 * 2 * (2 * 10 * 10 * H + 10**3)
    assert (updates["L01/update/attn.o"].dtype, updates["L01/update/attn.o"].op_class) == ("bf16", "matmul")
    assert updates["L01/update/norm1"].flops == updates["head/update/lm"].flops == 0


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_muon_gathers_its_momentum_from_shards(stage: int) -> None:
    parallel = {"ranks": "all", "data": 4, "zero_stage": stage}
    graph = build_job(workload(optimizer={"kind": "muon"}, parallel=parallel)).graphs[0]
    ops = {op.name: op for op in graph.ops if op.phase == "update"}
    about = ops["L00/update/attn.q.momentum.gather"].collective
    assert about is not None
    assert (about.kind, about.size_bytes) == (CollectiveKind.ALL_GATHER, 2 * H * Q)
    assert "L00/update/norm1.momentum" not in ops
    assert sizes(graph, "optimizer_state")["L00/attn.q.weight.state"] == 8 * H * Q // 4
    check_lives(graph)


@pytest.mark.parametrize("stage", [0, 2])
def test_gradients_of_weights_in_fp32(stage: int) -> None:
    parallel = {"ranks": "all", "data": 2, "zero_stage": stage, "micro_batches": 2}
    alike, wide = (
        build_job(workload(parallel=parallel, dtypes=dtypes)).graphs[0] for dtypes in ({}, {"gradients": "fp32"})
    )
    assert held(wide, "gradient") == 2 * held(alike, "gradient") > 0
    assert held(wide, "activation") == held(alike, "activation")
    sums = [
        sum(op.collective.size_bytes for op in graph.ops if op.collective and "grads" in op.name)
        for graph in (alike, wide)
    ]
    assert sums[1] == 2 * sums[0] > 0


# adapters and frozen weights

RANK = 3


def adapted(*targets: str) -> int:
    """Parameters of the adapters of a layer."""
    return sum(RANK * sum(LINEARS[name]) for name in targets)


WHOLE = {key: size for key, size in MLA.items() if key != "q_lora_rank"}
LINEAR = {"kind": "linear", "heads": 4, "head_size": 4}


@pytest.mark.parametrize(
    ("attention", "expected"),
    [(GQA, {"q", "v"}), (LINEAR, {"q", "v"}), (MLA, {"q_b", "kv_a"}), (WHOLE, {"q", "kv_a"})],
)
def test_which_linears_have_adapters_depends_on_the_attention(attention: dict[str, Any], expected: set[str]) -> None:
    graph = build(workload(attention, lora={"rank": RANK}))
    found = {name.split("/")[1].split(".")[1] for name in sizes(graph, "gradient")}
    assert found == expected


@pytest.mark.parametrize("targets", [("attn.q", "attn.v"), ("attn.*",), ("attn.*", "ffn.*")])
def test_adapters_alone_are_trained(targets: tuple[str, ...]) -> None:
    graph = build(workload(lora={"rank": RANK, "targets": targets}))
    names = [name for name in LINEARS if name in targets or f"{name[:-1].partition('.')[0]}.*" in targets]
    each, every = adapted(*names), sum(i * o for i, o in LINEARS.values())
    assert held(graph, "weight") == 2 * (PARAMETERS + LAYERS * each)
    assert held(graph, "gradient") == 2 * LAYERS * each
    assert held(graph, "optimizer_state") == 12 * LAYERS * each
    assert {op.name.rpartition(".")[2] for op in graph.ops if op.phase == "update"} == {"lora_a", "lora_b"}
    assert flops(graph, "forward", "matmul") == 2 * T * (LAYERS * (every + each) + H * V)
    # backward: through every matrix but those that take the first layer's input, and the gradients of adapters
    first = sum(LINEARS[name][0] * LINEARS[name][1] for name in ("attn.q", "attn.k", "attn.v"))
    first += sum(RANK * H for name in names if name in ("attn.q", "attn.k", "attn.v"))
    assert flops(graph, "backward", "matmul") == 2 * T * (LAYERS * (every + 2 * each) + H * V - first)
    check_lives(graph)


def test_llama3_8b_has_41_9_million_parameters_in_adapters_of_rank_16() -> None:
    """8,072,204,288 parameters in all and 41,943,040 that are trained is what users of PEFT print."""
    graph = build(catalog.read_workload("llama3_8b_lora"))
    assert held(graph, "gradient") == 2 * 41_943_040
    assert held(graph, "weight") == 2 * 8_072_204_288


def test_llama3_70b_has_828_million_parameters_in_adapters_of_rank_64() -> None:
    graph = build(catalog.read_workload("llama3_70b_qlora"))
    assert held(graph, "gradient") == 2 * 828_375_040
    linears = 80 * 8192 * (2 * 8192 + 2 * 1024 + 3 * 28672)
    kept = held(graph, "weight") - 2 * (828_375_040 + 2 * 128256 * 8192 + 161 * 8192)
    assert kept == linears * (4 + 8 / 64) / 8


def test_what_is_saved_beside_adapters_of_queries_and_values() -> None:
    """Inputs of norms, of adapters, of the gate's functions, and what attention needs; not the inputs of others."""
    graph = build(workload(lora={"rank": RANK}))
    elements = 3 * H + 2 * RANK + 2 * Q + 2 * KV + 3 * F
    for layer in range(LAYERS):
        assert saved_bytes(graph, f"L{layer:02d}/") == T * (2 * elements + 4 * 4)
    trained = build(workload())
    assert saved_bytes(trained, "L01/") == T * (2 * (4 * H + 2 * Q + 2 * KV + 4 * F) + 4 * 4)


def test_other_weights_can_be_trained_beside_adapters() -> None:
    graph = build(workload(lora={"rank": RANK}, frozen=["L*/*"]))
    assert held(graph, "gradient") == 2 * (LAYERS * adapted("attn.q", "attn.v") + 2 * H * V + H)
    full = build(workload(lora={"rank": RANK}, frozen=[]))
    assert held(full, "gradient") == held(full, "weight")


def test_what_comes_before_the_first_trained_weight_has_no_backward() -> None:
    graph = build(workload(MLA, EXPERTS, frozen=["embed/*", "L00/*", "L01/attn.*", "L01/norm1*"]))
    backward = {op.name.partition("/")[0] for op in graph.ops if op.phase == "backward"}
    assert backward == {"L01", "L02", "head"}
    assert not any("attn" in op.name for op in graph.ops if op.name.startswith("L01/bwd"))
    assert saved_bytes(graph, "embed/") == saved_bytes(graph, "L00/") == 0
    whole = build(workload(MLA, EXPERTS))
    assert saved_bytes(graph, "L02/") == saved_bytes(whole, "L02/")
    check_lives(graph)


def test_a_frozen_end_still_hands_gradients_back() -> None:
    graph, whole = build(workload(frozen=["L02/*", "head/*"])), build(workload())
    every = sum(i * o for i, o in LINEARS.values())
    for phase, products in (("forward", 0), ("backward", every + H * V)):
        assert flops(whole, phase, "matmul") - flops(graph, phase, "matmul") == 2 * T * products
    trained = (LAYERS - 1) * (every + 2 * H) + H * V
    assert held(graph, "gradient") == 2 * trained
    assert held(graph, "optimizer_state") == 12 * trained
    assert saved_bytes(graph, "L02/") == T * (2 * (2 * H + 2 * Q + 2 * KV + 3 * F) + 4 * 4)


NF4 = {"dtypes": {"weights": "nf4"}, "lora": {"rank": RANK, "targets": ["attn.*", "ffn.*"]}}


def test_frozen_matrices_in_four_bits_are_made_ready_before_each_use() -> None:
    """QLoRA, arXiv 2305.14314: 4 bits and an 8-bit scale for 64 inputs; adapters, norms and tables stay in bf16."""
    alike, graph = build(workload(lora=NF4["lora"])), build(workload(**NF4))
    kept = sum(ceil((i * o * 4 + ceil(i / 64) * o * 8) / 8) for i, o in LINEARS.values())
    wide = 2 * sum(i * o for i, o in LINEARS.values())
    assert held(alike, "weight") - held(graph, "weight") == LAYERS * (wide - kept)
    for phase in ("forward", "backward"):
        assert products(graph, phase) == products(alike, phase)
    for block, times in (("L00", 2 * 7 - 3), ("L01", 2 * 7)):  # the first layer's input has no gradient
        assert sum(op.name.endswith(".ready") for op in graph.ops if op.name.startswith(block)) == times
    for kind in ("gradient", "optimizer_state"):
        assert sizes(graph, kind) == sizes(alike, kind)
    assert saved_bytes(graph, "L01/") == saved_bytes(alike, "L01/")
    again = build(workload(**NF4, checkpoint={}))
    check_lives(again)
    assert sum(op.name.startswith("L01/again") and op.name.endswith(".ready") for op in again.ops) == 6


def test_frozen_matrices_in_four_bits_lie_in_shards_and_are_gathered_as_they_are_stored() -> None:
    """FSDP with QLoRA: shards and gathers of 4 bits, adapters' gradients alone reduced, two layers there at once."""
    ranks, micro_batches = 4, 2
    parallel = {"ranks": "all", "data": ranks, "zero_stage": 3, "micro_batches": micro_batches}
    alone, graph = build(workload(**NF4)), build_job(workload(**NF4, parallel=parallel)).graphs[0]
    packed = {name: ceil((i * o * 4 + ceil(i / 64) * o * 8) / 8) for name, (i, o) in LINEARS.items()}
    adapters = {name: 2 * RANK * (i + o) for name, (i, o) in LINEARS.items()}
    layer, table = sum(packed.values()) + sum(adapters.values()) + 2 * 2 * H, 2 * V * H
    assert held(alone, "weight") == LAYERS * layer + 2 * table + 2 * H
    stored = {t.name: t.size_bytes for t in graph.tensors if t.kind == "weight" and t.persistent}
    assert stored == {name: ceil(size / ranks) for name, size in sizes(alone, "weight").items()}
    assert held(graph, "optimizer_state") == 12 * LAYERS * sum(adapters.values()) // 2 // ranks
    met: dict[str, list[int]] = {}
    for about in (op.collective for op in graph.ops if op.collective is not None):
        met.setdefault(about.kind, []).append(about.size_bytes)
    assert sorted(met["all_gather"]) == sorted(([table, table + 2 * H] + [layer] * 2 * LAYERS) * micro_batches)
    assert met["reduce_scatter"] == [sum(adapters.values())] * LAYERS * micro_batches
    assert met.keys() == {"all_gather", "reduce_scatter"}
    whole = [t for t, tensor in enumerate(graph.tensors) if ".gathered" in tensor.name or ".ready" in tensor.name]
    peaks, left = list[int](), layer - 2 * H
    for name, (i, o) in LINEARS.items():  # forward: of this layer what is still needed, and the next one
        left -= 2 * H * (name == "ffn.gate")
        peaks.append(left + layer + 2 * i * o)
        left -= packed[name] + adapters[name]
    left = layer
    for name, (i, o) in reversed(LINEARS.items()):  # backward: adapters go back first
        left -= 2 * H * (name == "attn.o") + adapters[name]
        peaks.append(left + layer + 2 * i * o)
        left -= packed[name]
    assert max(live_bytes(graph, whole) - [op.workspace_bytes for op in graph.ops]) == max(peaks)
    check_lives(graph)


# checkpoints


def products(graph: Graph, phase: str) -> int:
    return flops(graph, phase, "matmul")


CASES = list(product([GQA, GQA | {"qk_norms": True, "window": 4}, MLA], [DENSE, EXPERTS]))


@pytest.mark.parametrize(("attention", "feed_forward"), CASES)
def test_of_a_checkpointed_layer_what_it_takes_is_saved(
    attention: dict[str, Any], feed_forward: dict[str, Any]
) -> None:
    """Its forward runs once more, but for the last matrices: nobody reads what they made."""
    alike, graph = build(workload(attention, feed_forward)), build(workload(attention, feed_forward, checkpoint={}))
    for layer in range(LAYERS):
        assert saved_bytes(graph, f"L{layer:02d}/") == 2 * T * H
    last = LAYERS * H * F  # the down projection of every layer
    if "routed" in feed_forward:  # that of the first, dense one, and of the shared expert
        last = H * F + (LAYERS - 1) * H * 10
    head = 2 * T * H * V
    assert products(graph, "forward") == products(alike, "forward")
    again = products(alike, "forward") - head - 2 * T * last
    assert products(graph, "backward") == products(alike, "backward") + again
    scores = [flops(graph, phase, "attention") for phase in ("forward", "backward")]
    assert scores[1] == flops(alike, "backward", "attention") + scores[0]
    assert sum(op.name.startswith("L01/again/") for op in graph.ops) > 5
    check_lives(graph)


def test_a_part_of_some_layers_is_checkpointed() -> None:
    """Attention from its norm to what the output projection takes; or the feed-forward with its norm."""
    alike = build(workload())
    attention = build(workload(checkpoint={"part": "attention", "layers": [1]}))
    saved = saved_bytes(alike, "L01/") - saved_bytes(attention, "L01/")
    assert saved == T * (2 * (H + Q + 2 * KV) + 4 * 4)
    assert products(attention, "backward") - products(alike, "backward") == 2 * T * H * (Q + 2 * KV)
    fed = build(workload(checkpoint={"part": "feed_forward", "layers": [0, 1]}))
    assert saved_bytes(alike, "L01/") - saved_bytes(fed, "L01/") == 2 * T * (H + 4 * F)
    assert products(fed, "backward") - products(alike, "backward") == 2 * 2 * T * 2 * H * F
    for graph in (attention, fed):
        assert saved_bytes(graph, "L02/") == saved_bytes(alike, "L02/")
        check_lives(graph)


def test_gradients_and_updates_are_those_without_checkpoints() -> None:
    for parts in CASES:
        alike, graph = build(workload(*parts)), build(workload(*parts, checkpoint={}))
        for kind in ("weight", "expert", "gradient", "optimizer_state"):
            assert sizes(alike, kind) == sizes(graph, kind)
        named = [[op.name for op in g.ops if op.phase == "update"] for g in (alike, graph)]
        assert named[0] == named[1]


def test_the_arithmetic_of_the_model_is_that_without_checkpoints_and_updates() -> None:
    alike, graph = (build(workload(**one)) for one in ({}, {"checkpoint": {}, "optimizer": {"kind": "muon"}}))
    assert graph.arithmetic == alike.arithmetic


def test_checkpoints_beside_adapters_save_the_same() -> None:
    graph = build(workload(MLA, EXPERTS, lora={"rank": RANK, "targets": ["attn.*", "ffn.*"]}, checkpoint={}))
    assert [saved_bytes(graph, f"L{layer:02d}/") for layer in range(LAYERS)] == [2 * T * H] * LAYERS
    check_lives(graph)


# kernels that save more


def test_norms_of_several_ops_save_fp32_copies() -> None:
    """Each norm saves 4 + 2 bytes for each of its elements in place of 2, which its input otherwise takes."""
    fused, eager = (build(workload(kernels=kernels)) for kernels in ("fused", "eager"))
    assert saved_bytes(eager, "L01/") - saved_bytes(fused, "L01/") == T * H * 2 * (4 + 2 - 2)
    frozen = build(workload(kernels="eager", lora={"rank": RANK}))
    known = T * (2 * (H + 2 * RANK + 2 * Q + 2 * KV + 3 * F) + 4 * 4 + 2 * 4 * H)
    assert saved_bytes(frozen, "L01/") == known, "of a frozen norm the copy alone"
    single = build(workload(kernels="eager", dtypes={"compute": "fp32"}))
    assert saved_bytes(single, "L01/") == T * 4 * (6 * H + 2 * Q + 2 * KV + 4 * F + 4), "nothing to copy"


def test_latent_attention_of_several_ops_saves_whole_keys() -> None:
    fused, eager = (build(workload(MLA, kernels=kernels)) for kernels in ("fused", "eager"))
    heads, norms = 4, 2 * H + 10 + (11 + 4)
    more = heads * (5 + 4) + heads * 7 - (11 + 4)  # keys, the copy; not the latent, which only its linears take ...
    more += 11 + 4  # ... and that is saved for these
    assert saved_bytes(eager, "L01/") - saved_bytes(fused, "L01/") == 2 * T * (more + 2 * norms)
    assert flops(fused, "backward", "attention") == flops(eager, "backward", "attention")


def test_a_router_in_fp32_saves_a_copy_of_what_it_takes() -> None:
    graphs = [build(workload(GQA, EXPERTS, dtypes=dtypes)) for dtypes in ({}, {"router": "fp32"})]
    found = [saved_bytes(graph, "L01/") for graph in graphs]
    assert found[1] - found[0] == 4 * T * H
    check_lives(graphs[1])


# losses in chunks


@pytest.mark.parametrize(("chunks", "rows"), [(1, T), (4, T // 4), (5, ceil(T / 5))])
@pytest.mark.parametrize("frozen", [(), ("head/lm*",), ("embed/*", "L*", "head/norm*")])
def test_a_loss_in_chunks_never_has_whole_logits(chunks: int, rows: int, frozen: tuple[str, ...]) -> None:
    """Three products, or those that are needed; logits of a chunk alone; each chunk reads the weight once a product."""
    more: dict[str, Any] = {"frozen": list(frozen)} if frozen else {}
    whole = build(workload(**more, dtypes={"logits_copies_fp32": 0}))
    graph = build(workload(**more, loss_chunks=chunks))
    (op,) = (op for op in graph.ops if op.name.endswith("/loss"))
    trains, passes = "head/lm*" not in frozen, "L*" not in frozen
    assert op.flops == (1 + trains + passes) * 2 * T * H * V
    assert op.workspace_bytes == rows * V * 2
    times = ceil(T / rows)
    read = T * H * 2 * (1 + trains) + times * V * H * 2 * (1 + passes) + (1 + trains + passes) * T * V * 2 + 4 * T
    assert op.read_bytes == read + (times - 1) * V * H * 2 * trains
    assert op.write_bytes == 2 * T * V * 2 + T * H * 2 * passes + times * V * H * 2 * trains + 4
    assert graph.arithmetic == whole.arithmetic
    assert not any("lm.out" in tensor.name for tensor in graph.tensors)
    for kind in ("weight", "optimizer_state", "gradient"):
        assert sizes(graph, kind) == sizes(whole, kind)
    check_lives(graph)


@pytest.mark.parametrize("stage", [0, 2, 3])
def test_a_loss_in_chunks_adds_up_over_micro_batches_and_ranks(stage: int) -> None:
    parallel = {"ranks": "all", "data": 2, "pipeline": 2, "micro_batches": 3, "zero_stage": stage}
    whole, job = build_job(workload(parallel=parallel)), build_job(workload(parallel=parallel, loss_chunks=2))
    check_job(job, catalog.read_hardware("cloudmatrix384"))
    for graph, other in zip(job.graphs, whole.graphs, strict=True):
        check_lives(graph)
        assert graph.arithmetic == other.arithmetic
        met = [[op.collective for op in found.ops if op.collective] for found in (graph, other)]
        assert met[0] == met[1]


def test_tied_tables_are_the_weight_of_a_loss_in_chunks() -> None:
    model = {"family": "llama", "layers": 2, "hidden": H, "heads": 4, "kv_heads": 2, "ffn": F, "vocabulary": V}
    tied = Workload.model_validate({"name": "w", "model": model | {"tied_embeddings": True}, "loss_chunks": 2})
    graph = build(tied)
    check_lives(graph)
    assert "embed/tokens.weight" in {graph.tensors[t].name for op in graph.ops if "loss" in op.name for t in op.reads}
    assert graph.arithmetic == build(tied.model_copy(update={"loss_chunks": None})).arithmetic


# over ranks

OPTIONS: list[dict[str, Any]] = [
    {"checkpoint": {}},
    {"checkpoint": {"part": "attention"}, "lora": {"rank": RANK, "targets": ["attn.q_b", "attn.o", "ffn.*"]}},
    {"frozen": ["embed/*", "L00/*", "L01/*"]},
    {"frozen": ["L02/*", "head/*"], "optimizer": {"kind": "muon"}, "checkpoint": {"layers": [1]}},
    NF4 | {"checkpoint": {"part": "feed_forward"}},
    {"kernels": "eager", "dtypes": {"router": "fp32", "gradients": "fp32"}},
]


PAIRS = [(i, j, 3 * ((i + j) % 2)) for i in range(len(LAYOUTS)) for j in range(len(OPTIONS))]
"""A layout, options and a stage of ZeRO: each two of these together. `test_any_options_together` draws all three."""


@cache
def on_one_rank(number: int) -> Graph:
    return build(workload(MLA, EXPERTS, **OPTIONS[number]))


@pytest.mark.parametrize(("i", "j", "stage"), some(PAIRS, 4))
def test_all_ranks_do_the_work_of_one(i: int, j: int, stage: int) -> None:
    """But for what each tensor rank does alike: narrow matrices of adapters among it, where tokens are not cut."""
    layout, options, alone = LAYOUTS[i], OPTIONS[j], on_one_rank(j)
    found = build_job(workload(MLA, EXPERTS, parallel={"ranks": "all", "zero_stage": stage, **layout}, **options))
    check_job(found, catalog.read_hardware("cloudmatrix384"))
    graphs = [found.graph(rank) for rank in range(found.ranks)]
    times, tensor = layout["data"] * layout["micro_batches"], layout["tensor"]
    for phase in ("forward", "backward"):
        total, once = by_op(graphs, phase), by_op([alone], phase)
        assert total.keys() == once.keys()
        for name, number in once.items():
            if "lora" in name:  # those of dense layers and of experts, which are cut another way, have one name
                assert times * number <= total[name] <= times * number * tensor, name
            else:
                assert total[name] in {times * number, times * number * (tensor if name in ALONE else 1)}, name
    for graph in graphs:
        check_lives(graph)


def ends(graph: Graph) -> tuple[int, int]:
    """How often a stage sends and receives."""
    met = [op.collective.kind for op in graph.ops if op.collective is not None]
    return met.count(CollectiveKind.SEND), met.count(CollectiveKind.RECV)


def test_stages_before_the_first_trained_weight_neither_send_nor_receive_gradients() -> None:
    parallel = {"ranks": "all", "pipeline": 3, "micro_batches": 2}
    first, second, third = build_job(workload(parallel=parallel, frozen=["embed/*", "L00/*", "L01/norm1*"])).graphs
    assert not any(op.phase == "backward" for op in first.ops)
    assert [ends(graph) for graph in (first, second, third)] == [(2, 0), (2, 4), (2, 2)]


@st.composite
def workloads(draw: st.DrawFn) -> Workload:
    """Any kinds of layers, with any of the options, on one rank or on eight."""
    attention = draw(st.sampled_from([GQA, GQA | {"qk_norms": "all", "biases": ["q", "o"], "sink_logits": True}, MLA]))
    feed_forward = draw(st.sampled_from([DENSE | {"biases": True}, EXPERTS, EXPERTS | {"biases": True}]))
    other = draw(
        st.none() | st.fixed_dictionaries({"start": st.integers(0, 2), "attention": st.sampled_from([GQA, MLA])})
    )
    model = {"attention": attention, **fed_by(feed_forward), "norms": draw(st.sampled_from(["before", "both"]))}
    model |= {"family": "decoder", "layers": LAYERS, "hidden": H, "vocabulary": V, "others": [other] if other else []}
    patterns = st.sampled_from(["embed/*", "L00/*", "L0[01]/*", "*/attn.*", "*norm*", "head/*"])
    data = {"name": "w", "model": model, "batch": BATCH, "sequence": SEQUENCE}
    data["frozen"] = draw(st.none() | st.lists(patterns, max_size=3))
    targets = st.lists(st.sampled_from(["attn.*", "ffn.*", "attn.o"]), min_size=1)
    data["lora"] = draw(st.none() | st.fixed_dictionaries({"rank": st.integers(1, 3), "targets": targets}))
    parts = st.sampled_from(["layer", "attention", "feed_forward"])
    data["checkpoint"] = draw(st.none() | st.fixed_dictionaries({"part": parts, "layers": st.none() | st.just([0, 2])}))
    data["optimizer"] = {"kind": draw(st.sampled_from(["adamw", "muon", "adafactor", "sgd"]))}
    data["loss_chunks"] = draw(st.none() | st.integers(1, 5))
    data["kernels"] = draw(st.sampled_from(["fused", "eager"]))
    dtypes = {"gradients": draw(st.sampled_from([None, "fp32"])), "router": draw(st.sampled_from([None, "fp32"]))}
    spread = {"ranks": "all", "data": 2, "tensor": 2, "pipeline": 2, "expert": 1}
    if "routed" in feed_forward:
        spread["expert"] = draw(st.sampled_from([1, 2, 4]))
    spread |= {"sequence": draw(st.booleans()), "micro_batches": 2, "zero_stage": draw(st.integers(0, 3))}
    data["parallel"] = draw(st.sampled_from([{}, spread]))
    if data["parallel"]:
        data["loss_chunks"] = None  # the vocabulary is cut
    if data["lora"] and draw(st.booleans()):
        dtypes["weights"] = "nf4"
    return Workload.model_validate(data | {"dtypes": dtypes})


@settings(max_examples=examples(60), deadline=None)
@given(workloads())
def test_any_options_together(found: Workload) -> None:
    """Ranks meet, all dies, what is trained is updated once; checkpoints change neither that nor what must be saved."""
    job = build_job(found)
    check_job(job, catalog.read_hardware("cloudmatrix384"))
    alike = build_job(found.model_copy(update={"checkpoint": None}))
    for graph, other in zip(job.graphs, alike.graphs, strict=True):
        check_lives(graph)
        for kind in ("weight", "expert", "gradient", "optimizer_state"):
            assert sizes(graph, kind) == sizes(other, kind)
        assert saved_bytes(graph, "") <= saved_bytes(other, "")
        updates = [op for op in graph.ops if op.phase == "update" and not op.collective]
        graded = {name.partition(".weight.grad")[0] for name in sizes(graph, "gradient") if not name.endswith(".part")}
        graded = {name.partition("/")[2] if name.startswith("mb") else name for name in graded}
        assert {op.name.replace("/update", "") for op in updates if not op.name.endswith(".momentum")} == graded


# what is refused


def refusal(**more: Any) -> str:
    with pytest.raises(ValidationError) as caught:
        workload(**more)
    return str(caught.value.errors()[0]["ctx"]["error"])


def test_what_contradicts_itself_is_refused() -> None:
    said = refusal(optimizer={"kind": "lion"}, dtypes={"optimizer_bytes_per_parameter": 12})
    assert said.startswith("the states of a weight are stated once, found optimizer and dtypes.optimizer_bytes")
    must = "a loss in chunks has all of the vocabulary, and no fp32 copies, found"
    assert f"{must} ranks that share" in refusal(loss_chunks=2, parallel={"ranks": "all", "tensor": 2})
    for key in ("logits_copies_fp32", "gradient_copies_fp32"):
        assert f"{must} dtypes.{key}" in refusal(loss_chunks=2, dtypes={key: 1})
    gpipe = {"ranks": "all", "data": 2, "zero_stage": 2, "micro_batches": 2, "schedule": "gpipe"}
    assert "found gpipe with sharded gradients" in refusal(loss_chunks=2, parallel=gpipe)
    assert refusal(checkpoint={"layers": [3]}).startswith("layers are numbered from 0 to 2, found 3")
    assert refusal(optimizer={"kind": "sgd", "states": "bf16"}).startswith("sgd has no states in other data types")
    for key, value in {
        "optimizer": {},
        "lora": {"rank": 2},
        "frozen": [],
        "checkpoint": {},
        "kernels": "eager",
        "loss_chunks": 2,
    }.items():
        assert refusal(phase="decode", **{key: value}).startswith(f"{key} is for phase train, found it with phase")


def test_patterns_fit_something() -> None:
    with pytest.raises(ConfigError, match=r"frozen: a pattern is for weights that the model has, found 'L07/\*'"):
        check(workload(frozen=["L07/*"]))
    with pytest.raises(ConfigError, match=r"lora.targets: a pattern is for weights .* found 'attn.qq'; .*attn.q"):
        check(workload(lora={"rank": 2, "targets": ["attn.qq"]}))
    with pytest.raises(ConfigError, match="something is trained, found all weights frozen"):
        check(workload(frozen=["*"]))
    check(workload(frozen=["L02/*"], checkpoint={"layers": [2]}))


def test_formats_are_for_frozen_weights() -> None:
    must = "a format of weights is for inference, or for frozen ones, found another"
    assert refusal(dtypes={"weights": "nf4"}).startswith(must)
