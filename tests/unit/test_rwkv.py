"""Layers of RWKV-4, whose rows are mixed with those before them (token shift) in both parts, against closed forms."""

from __future__ import annotations

import json
from math import ceil
from pathlib import Path
from typing import Any

import pytest
from building import build
from parameters import count
from pydantic import ValidationError
from trained import LAYOUTS, check_lives, flops, saved_bytes
from trained import by_op as by_linear

import simulator as hosim
from simulator.builders import build_job
from simulator.graph import Graph
from simulator.lifetime import Lifetimes
from simulator.workload import DecoderModel, Workload

H, A, F, V, LAYERS, BATCH, TOKENS, E = 16, 24, 40, 48, 3, 2, 8, 2
PART = {"kind": "rwkv", "heads": A, "shifted": H}
SHIFTED = {"kind": "dense", "width": F, "gate": False, "shifted": True}
LINEARS = 4 * H * A + 2 * H * F + H * H


def workload(phase: str = "train", /, **more: Any) -> Workload:
    model = {"family": "decoder", "layers": LAYERS, "hidden": H, "vocabulary": V, "attention": PART}
    model |= {"feed_forward": SHIFTED, "norm_weights": "both", "embedding_norm": True}
    data = {"name": "w", "phase": phase, "model": model, "batch": BATCH, "sequence": TOKENS, **more}
    return Workload.model_validate(data)


def of(graph: Graph, name: str) -> list[Any]:
    return [op for op in graph.ops if op.name.endswith(f"/{name}") and "L01" in op.name]


def test_weights_are_those_of_the_closed_form() -> None:
    model = workload().model
    assert isinstance(model, DecoderModel)
    assert count(model).total == LAYERS * (LINEARS + 5 * H + 2 * A + 4 * H) + 2 * V * H + 4 * H


@pytest.mark.parametrize("new", [1, 3])
def test_a_token_reads_and_writes_what_a_sequence_keeps(new: int) -> None:
    graph = build(workload("decode", new_tokens=new))
    kept = {t.name: (t.size_bytes, t.persistent) for t in graph.tensors if t.kind == "kv_cache" and "L01" in t.name}
    row, state = BATCH * H * E, BATCH * 3 * A * 4
    assert kept == {"L01/window": (row, True), "L01/ffn.window": (row, True), "L01/state": (state, True)}
    assert sum(op.flops for op in graph.ops) == new * BATCH * (LAYERS * (2 * LINEARS + 12 * A) + 2 * H * V)
    moved = {name: {(op.read_bytes, op.write_bytes) for op in of(graph, name)} for name in ("attn.shift", "ffn.shift")}
    assert moved == {
        "attn.shift": {(2 * row + 3 * H * E, 3 * row + row)},
        "ffn.shift": {(2 * row + 2 * H * E, 2 * row + row)},
    }
    inputs = 2 * BATCH * A * E + 2 * A * E
    assert {(op.read_bytes, op.write_bytes, op.op_class) for op in of(graph, "attn.core")} == {
        (inputs + state, BATCH * A * E + state, "vector")
    }


@pytest.mark.parametrize("chunk", [None, 3, 4])
def test_chunks_of_prompts_hand_the_last_row_on(chunk: int | None) -> None:
    graph = build(workload("prefill", **({"chunk": chunk} if chunk else {})))
    parts, row = ceil(TOKENS / (chunk or TOKENS)), BATCH * H * E
    assert len(of(graph, "ffn.shift")) == parts
    for name, times in (("attn.shift", 3), ("ffn.shift", 2)):
        assert sum(op.write_bytes for op in of(graph, name)) == (times * TOKENS + parts) * row
        assert sum(op.read_bytes for op in of(graph, name)) == (TOKENS + parts - 1) * row + parts * times * H * E
    assert {graph.tensors[i].name for i in graph.outputs} >= {"L01/window", "L01/ffn.window", "L01/state"}
    assert sum(op.flops for op in of(graph, "attn.core")) == BATCH * TOKENS * 12 * A


def test_tensor_ranks_share_channels_and_have_whole_rows() -> None:
    alone, graph = (build_job(workload("decode", parallel={"ranks": "all", "tensor": n})).graphs[0] for n in (1, 2))
    sizes = [
        {t.name: t.size_bytes for t in g.tensors if t.kind == "kv_cache" and "L01" in t.name} for g in (alone, graph)
    ]
    assert sizes[0].pop("L01/state") == 2 * sizes[1].pop("L01/state")
    assert sizes[0] == sizes[1]
    for name in ("attn.k", "attn.gate", "attn.core", "ffn.up", "ffn.down"):
        assert [op.flops for op in of(alone, name)] == [2 * op.flops for op in of(graph, name)]
    assert [op.flops for op in of(alone, "ffn.receptance")] == [op.flops for op in of(graph, "ffn.receptance")]


def test_training_saves_what_the_closed_form_says() -> None:
    """Norms and sums, shifted rows, keys, values, gate and both outputs; inner rows, and both factors of the output."""
    graph = build(workload())
    assert saved_bytes(graph, "L01/") == BATCH * TOKENS * E * (4 * H + 3 * H + 5 * A + 2 * H + 2 * F + 2 * H)
    assert flops(graph, "forward", "matmul") == BATCH * TOKENS * (LAYERS * 2 * LINEARS + 2 * H * V)
    assert flops(graph, "backward", "matmul") == 2 * flops(graph, "forward", "matmul")
    assert flops(graph, "forward", "vector") == BATCH * TOKENS * LAYERS * 12 * A
    assert flops(graph, "backward", "vector") == 3 * flops(graph, "forward", "vector")
    check_lives(graph)


@pytest.mark.parametrize("more", [{"checkpoint": {}}, {"checkpoint": {"part": "feed_forward"}}, {"lora": {"rank": 2}}])
def test_shifted_rows_go_with_checkpoints_and_adapters(more: dict[str, Any]) -> None:
    more |= {"lora": {"rank": 2, "targets": ["attn.k", "ffn.*"]}} if "lora" in more else {}
    graph = build(workload(**more))
    check_lives(graph)
    again = [op for op in graph.ops if op.name == "L01/again/ffn.shift"]
    assert len(again) == ("checkpoint" in more)
    if again:
        written = [graph.tensors[i].name for i in again[0].writes]
        assert written == ["L01/ffn.shift.out.again"]
        assert all(Lifetimes(graph).born[i] >= 0 for i in again[0].writes)


@pytest.mark.parametrize("zero_stage", [0, 3])
@pytest.mark.parametrize("layout", [one for one in LAYOUTS if one["expert"] == 1])
def test_all_ranks_do_the_work_of_one(layout: dict[str, Any], zero_stage: int) -> None:
    alone = build(workload())
    found = build_job(workload(parallel={"ranks": "all", "zero_stage": zero_stage, **layout}))
    graphs = [found.graph(rank) for rank in range(found.ranks)]
    for phase in ("forward", "backward"):
        total, once = by_linear(graphs, phase), by_linear([alone], phase)
        assert total.keys() == once.keys()
        for name, number in once.items():
            times = layout["tensor"] if name == "ffn.receptance" else 1
            assert total[name] == layout["data"] * layout["micro_batches"] * times * number, name
    for graph in graphs:
        check_lives(graph)


@pytest.mark.parametrize(
    ("attention", "feed_forward"),
    [
        ({}, {"shifted": False}),
        ({"shifted": H + 1}, {}),
        ({"kind": "linear", "heads": 4, "head_size": 4, "shifted": None}, {}),
        (
            {"kind": "gqa", "heads": 4, "kv_heads": 2, "head_size": 4, "beside": PART, "shifted": None},
            {"shifted": False},
        ),
    ],
)
def test_rows_are_shifted_in_both_parts_or_in_none(attention: dict[str, Any], feed_forward: dict[str, Any]) -> None:
    part = {key: value for key, value in (PART | attention).items() if value is not None}
    model = workload().model.model_dump(exclude_unset=True) | {
        "attention": part,
        "feed_forward": SHIFTED | feed_forward,
    }
    with pytest.raises(ValidationError, match="shifted in both parts of a layer, or in none"):
        Workload.model_validate({"name": "w", "phase": "decode", "model": model})


def test_a_width_of_its_own_is_read(tmp_path: Path) -> None:
    keys = {"hidden_size": H, "attention_hidden_size": A, "intermediate_size": None, "vocab_size": V}
    keys |= {"num_hidden_layers": LAYERS, "context_length": 64, "rescale_every": 6, "layer_norm_epsilon": 1e-5}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "rwkv", **keys}))
    found = hosim.read_hf(tmp_path, phase="decode", sequence=TOKENS, batch=BATCH)
    model = found.workload.model
    assert isinstance(model, DecoderModel)
    assert model.attention.model_dump(exclude_unset=True) == PART
    assert model.feed_forward.model_dump(exclude_unset=True) == SHIFTED | {"width": 4 * H}
    assert not found.dropped


@pytest.mark.slow
def test_its_products_are_those_of_a_step_of_transformers(tmp_path: Path) -> None:
    torch, hf = pytest.importorskip("torch"), pytest.importorskip("transformers")
    keys = {"hidden_size": H, "attention_hidden_size": A, "intermediate_size": F, "vocab_size": V}
    keys |= {"num_hidden_layers": LAYERS, "context_length": 64}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "rwkv", **keys}))
    built = build(hosim.read_hf(tmp_path, phase="train", sequence=TOKENS, batch=BATCH).workload)
    with hosim.torch.fake():
        module, ids = hf.RwkvForCausalLM(hf.RwkvConfig(**keys)), torch.randint(0, V, (BATCH, TOKENS))
    step = hosim.torch.capture(module, input_ids=ids, labels=ids).graph
    assert sum(op.flops for op in step.ops if op.op_class == "matmul") == sum(
        flops(built, phase, "matmul") for phase in ("forward", "backward")
    )


@pytest.mark.slow
def test_what_is_kept_is_what_transformers_keeps(tmp_path: Path) -> None:
    torch, hf = pytest.importorskip("torch"), pytest.importorskip("transformers")
    keys = {"hidden_size": H, "vocab_size": V, "num_hidden_layers": LAYERS, "context_length": 64}
    module = hf.RwkvForCausalLM(hf.RwkvConfig(**keys)).to(torch.bfloat16).eval()
    with torch.no_grad():
        state = module(torch.ones(BATCH, TOKENS, dtype=torch.long), use_cache=True).state
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "rwkv", **keys}))
    graph = build(hosim.read_hf(tmp_path, phase="decode", sequence=TOKENS, batch=BATCH).workload)
    sizes = {t.name.partition("/")[2]: LAYERS * t.size_bytes for t in graph.tensors if t.kind == "kv_cache"}
    feed_forward, attention, *numbers = (part.nbytes for part in state)
    assert sizes == {"ffn.window": feed_forward, "window": attention, "state": sum(numbers)}
