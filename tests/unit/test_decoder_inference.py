"""Prefill and decode on one rank against closed forms that know nothing of the builder."""

import math
from typing import Any

import pytest
from building import build
from parameters import count
from pydantic import ValidationError

from simulator.builders.inference import chunks
from simulator.builders.weights import parameters
from simulator.catalog import load
from simulator.graph import DynamicReads, Graph, Op, chosen_number
from simulator.workload import Workload

GQA = {"kind": "gqa", "heads": 4, "kv_heads": 2, "head_size": 6, "qk_norms": True}
MLA = {"kind": "mla", "heads": 3, "q_lora_rank": 10, "kv_lora_rank": 12, "qk_nope": 5, "qk_rope": 4, "v_head": 7}
DENSE = {"kind": "dense", "width": 24}
EXPERTS = {"kind": "experts", "routed": 8, "top_k": 2, "width": 9, "shared": 1}
H, V, LAYERS = 16, 40, 3


def workload(attention: dict[str, Any] = GQA, feed_forward: dict[str, Any] = DENSE, **more: Any) -> Workload:
    sizes = {"layers": LAYERS, "hidden": H, "vocabulary": V}
    model = {"family": "decoder", **sizes, "attention": attention, "feed_forward": feed_forward}
    if "routed" in feed_forward:
        model["others"] = [{"stop": 1, "feed_forward": {"kind": "dense", "width": 20}}]
    return Workload.model_validate({"name": "w", "model": model, "batch": 2, "sequence": 12, **more})


def graph(attention: dict[str, Any] = GQA, feed_forward: dict[str, Any] = DENSE, **more: Any) -> Graph:
    return build(workload(attention, feed_forward, **more))


def flops(found: Graph, *classes: str) -> int:
    return sum(op.flops for op in found.ops if not classes or op.op_class in classes)


def op(found: Graph, name: str) -> Op:
    return next(op for op in found.ops if op.name == name)


def sizes(found: Graph, kind: str) -> dict[str, int]:
    return {t.name: t.size_bytes for t in found.tensors if t.kind == kind}


@pytest.mark.parametrize("attention", [GQA, MLA])
@pytest.mark.parametrize("feed_forward", [DENSE, EXPERTS])
@pytest.mark.parametrize("tied", [False, True])
def test_the_weights_of_a_graph_are_the_parameters_that_are_counted(attention, feed_forward, tied) -> None:
    found = workload(attention, feed_forward, phase="decode")
    model = found.model.model_copy(update={"tied_embeddings": tied})
    made = build(found.model_copy(update={"model": model}))
    weights = sum(t.size_bytes for t in made.tensors if t.kind in ("weight", "expert"))
    assert weights == 2 * count(model).total


def test_parameters_by_hand() -> None:
    q, kv = 4 * 6, 2 * 6
    gqa = H * q + 2 * H * kv + q * H + 2 * 6 + 2 * H
    mla = H * 10 + 10 + 10 * 3 * 9 + H * 16 + 12 + 12 * 3 * 5 + 12 * 3 * 7 + 3 * 7 * H + 2 * H
    ends = 2 * H * V + H
    assert count(workload(GQA, DENSE, phase="decode").model).total == LAYERS * (gqa + 3 * H * 24) + ends
    layer = mla + H * 8 + 9 * 3 * H * 9
    found = count(workload(MLA, EXPERTS, phase="decode").model)
    assert found.total == mla + 3 * H * 20 + 2 * layer + ends
    assert found.total - found.active == 2 * 6 * 3 * H * 9
    plain = {key: value for key, value in MLA.items() if key != "q_lora_rank"}
    without = count(workload(plain, DENSE, phase="decode").model).total
    assert without == LAYERS * (mla - H * 10 - 10 - 10 * 27 + H * 27 + 3 * H * 24) + ends


@pytest.mark.parametrize("chunk", [1, 4, 5, 12])
def test_chunks_do_the_work_of_the_whole(chunk: int) -> None:
    """Only latents of earlier chunks are expanded again."""
    assert flops(graph(phase="prefill", chunk=chunk)) == flops(graph(phase="prefill"))
    cut, whole = graph(MLA, phase="prefill", chunk=chunk), graph(MLA, phase="prefill")
    assert flops(cut, "attention") == flops(whole, "attention") == 2 * LAYERS * 78 * 2 * 3 * (5 + 4 + 7)
    again = sum(span.cached for span in chunks(12, chunk))
    assert flops(cut, "matmul") - flops(whole, "matmul") == 2 * LAYERS * 2 * again * 12 * 3 * (5 + 7)
    kept = sizes(cut, "kv_cache")
    assert sum(kept.values()) == sum(sizes(whole, "kv_cache").values()) == LAYERS * 2 * 12 * 16 * 2
    assert {cut.tensors[t].name for t in cut.outputs} == {*kept, "head/token" if chunk == 12 else cut.tensors[-1].name}


def test_a_chunk_reads_what_is_cached() -> None:
    found = graph(phase="prefill", chunk=4, dtypes={"kv_cache": "fp8"})
    core = op(found, "c2/L01/prefill/attn.core")
    q, kv = 2 * 4 * 24, 2 * 4 * 24
    assert core.read_bytes == 2 * (q + kv) + 2 * 8 * 24
    assert core.write_bytes == 2 * q + kv
    assert {found.tensors[t].name for t in core.reads} >= {"c0/L01/kv", "c1/L01/kv"}
    assert core.flops == 4 * 2 * (4 * 8 + 10) * 24


def test_decode_reads_more_with_each_token() -> None:
    found = graph(phase="decode", new_tokens=3)
    for number in range(3):
        core = op(found, f"t{number}/L01/decode/attn.core")
        assert core.flops == 4 * 2 * (13 + number) * 24
        assert core.read_bytes == 2 * 2 * (24 + 24) + 2 * (12 + number) * 24 * 2
    assert sizes(found, "kv_cache") == {
        name: size
        for b in range(3)
        for name, size in ((f"L0{b}/kv", 2 * 12 * 24 * 2), (f"L0{b}/kv.tail", 2 * 3 * 24 * 2))
    }


def test_latent_attention_is_absorbed_in_decode() -> None:
    """It never makes keys and values of single heads, and reads 16 elements of each cached token."""
    found = graph(MLA, phase="decode")
    core = op(found, "L01/decode/attn.core")
    assert core.flops == 2 * 2 * 13 * 3 * (2 * 12 + 4)
    assert core.read_bytes == 2 * (2 * 3 * (12 + 4) + 2 * 16 + 2 * 12 * 16)
    assert op(found, "L01/decode/attn.k_b").flops == 2 * 2 * 12 * 3 * 5
    assert op(found, "L01/decode/attn.v_b").flops == 2 * 2 * 12 * 3 * 7
    assert max(op.flops for op in found.ops if op.name.endswith("_b")) < 2 * 2 * 12 * 12 * 3 * 5


def test_a_layer_reads_the_experts_that_are_chosen() -> None:
    found = graph(MLA, EXPERTS, phase="decode")
    names = [op.name for op in found.ops]
    assert "L00/decode/ffn.router" not in names
    gate = op(found, "L01/decode/ffn.gate")
    assert gate.flops == 2 * 2 * 2 * H * 9
    assert gate.read_bytes == 2 * (2 * 2 * H + 4 * H * 9), "8 - 8 * 0.75^2 = 3.5 experts, rounded up"
    assert sizes(found, "expert")["L01/ffn.gate.weight"] == 2 * 8 * H * 9


@pytest.mark.parametrize(("tokens", "expected"), [(1, 8), (16, 83), (64, 126), (4096, 128)])
def test_how_many_experts_are_chosen(tokens: int, expected: int) -> None:
    assert chosen_number(128, tokens, 8) == expected == math.ceil(round(128 * (1 - (1 - 8 / 128) ** tokens), 9))


def test_a_rank_has_its_share_of_the_experts() -> None:
    """Four ranks with two experts each, chosen by the tokens of all: 8 * (1 - 0.75^8) / 4 = 1.8, rounded up."""
    whole, found = (graph(MLA, EXPERTS | {"ranks": ranks}, phase="decode") for ranks in (1, 4))
    assert sizes(found, "expert")["L01/ffn.gate.weight"] == 2 * 2 * H * 9
    gate = op(found, "L01/decode/ffn.gate")
    assert gate.flops == op(whole, "L01/decode/ffn.gate").flops, "as many rows come as go"
    assert gate.read_bytes == 2 * (2 * 2 * H + 2 * H * 9)
    assert op(found, "L01/decode/ffn.router").flops == op(whole, "L01/decode/ffn.router").flops
    models = [workload(MLA, EXPERTS | {"ranks": ranks}, phase="decode").model for ranks in (1, 4)]
    assert count(models[0]) == count(models[1])


def test_a_rank_holds_copies_of_experts_beside_its_share() -> None:
    """Four more places on four ranks: three experts each, and each copy is read as well; the model stays as large."""
    parts = [EXPERTS | {"ranks": 4} | more for more in ({}, {"copies": 4})]
    whole, found = (graph(MLA, part, phase="prefill") for part in parts)
    assert sizes(found, "expert")["L01/ffn.gate.weight"] * 2 == sizes(whole, "expert")["L01/ffn.gate.weight"] * 3
    one, other = (op(own, "L01/prefill/ffn.gate") for own in (whole, found))
    assert other.flops == one.flops, "as many rows come as go"
    assert other.read_bytes - one.read_bytes == 2 * H * 9
    made = [parameters(workload(MLA, part, phase="prefill")) for part in parts]
    assert made[0] == made[1] == parameters(workload(MLA, EXPERTS, phase="prefill"))


def refusal(**data: Any) -> str:
    with pytest.raises(ValidationError) as caught:
        workload(**data)
    return str(caught.value.errors()[0]["ctx"]["error"])


def test_what_does_not_go_together_is_refused() -> None:
    assert refusal(phase="decode", chunk=4).startswith("chunk is for phase prefill, found it with phase decode")
    assert refusal(phase="prefill", new_tokens=4).startswith("new_tokens is for phase decode")
    assert refusal(phase="prefill", chunk=13).startswith("a chunk is a part of the prompt, found 13 of 12 tokens")
    pools = {"prefill": 1, "decode": 1, "new_tokens": 1}
    assert refusal(phase="serve", pools=pools).startswith("phase serve is built for models of family llama, found")
    spread = {"ranks": "all", "data": 2}
    assert refusal(phase="decode", parallel=spread).startswith(
        "inference is spread over tensor ranks alone, found data"
    )
    assert refusal(attention=GQA | {"kv_heads": 3}, phase="decode").startswith("kv_heads divides heads")
    assert refusal(feed_forward=EXPERTS | {"top_k": 9}, phase="decode").startswith("top_k is at most routed")
    assert refusal(feed_forward=EXPERTS | {"ranks": 3}, phase="decode").startswith("ranks divides routed")
    assert refusal(feed_forward=EXPERTS | {"ranks": 4, "copies": 2}, phase="decode").startswith("ranks divides places")
    assert refusal(feed_forward=EXPERTS | {"copies": 8}, phase="decode").startswith(
        "copies are for experts that lie on"
    )
    with pytest.raises(ValidationError, match=r"is for phase prefill, decode|is for inference"):
        Workload.model_validate(
            {
                "name": "w",
                "model": {"layers": 2, "hidden": 8, "heads": 4, "kv_heads": 2, "ffn": 16, "vocabulary": 32},
                "dtypes": {"weights": "fp8"},
            }
        )


def test_a_llama_decodes_as_well() -> None:
    llama = {"layers": 2, "hidden": 16, "heads": 4, "kv_heads": 2, "ffn": 24, "vocabulary": 40}
    parts = {
        "family": "decoder",
        "layers": 2,
        "hidden": 16,
        "vocabulary": 40,
        "attention": {"kind": "gqa", "heads": 4, "kv_heads": 2, "head_size": 4},
        "feed_forward": {"kind": "dense", "width": 24},
    }
    runs = [Workload.model_validate({"name": "w", "model": model, "phase": "decode"}) for model in (llama, parts)]
    assert build(runs[0]) == build(runs[1])


@pytest.mark.parametrize("weights", [None, "fp8", "int4"])
def test_each_expert_may_be_a_tensor_that_is_read_late(weights) -> None:
    dtypes = {"weights": weights} if weights else {}
    together, each = (
        graph(MLA, EXPERTS, phase="decode", dtypes=dtypes, experts=how, new_tokens=2) for how in ("together", "each")
    )
    experts = sizes(each, "expert")
    assert len(experts) == 2 * 8
    rounded_up = sum(experts.values()) - sum(sizes(together, "expert").values())
    assert 0 <= rounded_up < 3 * 16
    assert weights == "int4" or not rounded_up
    assert len(set(experts.values())) == 1
    grouped = op(each, "t0/L01/decode/ffn.experts")
    route = each.ops.index(op(each, "t0/L01/decode/ffn.route"))
    assert grouped.dynamic == DynamicReads(route, grouped.reads[1:], samples=2, each=2)
    assert op(each, "t1/L01/decode/ffn.experts").reads[1:] == grouped.reads[1:], "all tokens choose among the same"
    assert grouped.flops == sum(op(together, f"t0/L01/decode/ffn.{name}").flops for name in ("gate", "up", "down"))
    within = 3 * 2 * 2 * 9 * 2
    assert grouped.workspace_bytes == within
    assert grouped.read_bytes == within + 2 * 2 * H * 2
    assert grouped.write_bytes == within + 2 * 2 * H * 2
    order = [one.name.rpartition(".")[2] for one in each.ops if one.name.startswith("t0/L01/decode/ffn")]
    assert order[:2] == ["router", "route"]
    assert order[-2:] == ["experts", "combine"], "the shared expert runs while what is chosen comes in"


@pytest.mark.parametrize("name", ["qwen3_30b_decode", "deepseek_v3_decode", "mixtral_8x7b_decode"])
def test_of_shipped_models_as_many_bytes_of_experts_are_expected(name: str) -> None:
    found = load(name, "workload").document
    together, each = (build(found.model_copy(update={"experts": how})) for how in ("together", "each"))
    dynamic = [one.dynamic for one in each.ops if one.dynamic]
    chosen = sum(one.expected * each.tensors[one.candidates[0]].size_bytes for one in dynamic)
    kinds = [[t for t in one.tensors if t.kind == "expert"] for one in (together, each)]
    assert sum(t.size_bytes for t in kinds[0]) == sum(t.size_bytes for t in kinds[1])
    stacks = {i for i, t in enumerate(together.tensors) if t.kind == "expert"}
    through = [one for one in together.ops if stacks.intersection(one.reads)]
    made = sum(together.tensors[t].size_bytes for one in through for t in one.reads if t not in stacks)
    assert sum(one.read_bytes for one in through) - made == chosen


def test_only_inference_with_experts_reads_them_each_for_itself() -> None:
    assert refusal(feed_forward=EXPERTS, experts="each").startswith("experts is for phase prefill, decode")
    assert "found each of a model without experts" in refusal(phase="decode", experts="each")
