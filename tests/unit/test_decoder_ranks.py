"""Inference over tensor ranks, views with caches of their own, and rows on their way, against closed forms."""

import re
from collections import Counter
from typing import Any

import pytest
from parameters import count

from simulator.builders import build_job
from simulator.errors import ConfigError
from simulator.graph import Graph
from simulator.lifetime import live_bytes
from simulator.workload import Workload

GQA = {"kind": "gqa", "heads": 4, "kv_heads": 2, "head_size": 6}
MLA = {"kind": "mla", "heads": 4, "q_lora_rank": 10, "kv_lora_rank": 12, "qk_nope": 5, "qk_rope": 4, "v_head": 7}
SPARSE = {"compress": {"block": 4, "stride": 2}, "select": {"block": 4, "top": 4}, "window": 6}
DENSE = {"kind": "dense", "width": 24}
EXPERTS = {"kind": "experts", "routed": 8, "top_k": 2, "width": 10, "shared": 1}
BY_NUMBER = {"L*/ffn.[gud]*.weight": ["expert", "none", "none"]}
H, V, LAYERS, BATCH, TOKENS = 16, 40, 2, 2, 40
ALIKE = ("attn.q_a", "attn.kv_a", "attn.compress", "ffn.router", "norm", "position")


def graph(attention: dict[str, Any], feed_forward: dict[str, Any] = DENSE, tensor: int = 1, **more: Any) -> Graph:
    model = {"family": "decoder", "layers": LAYERS, "hidden": H, "vocabulary": V, "attention": attention}
    spread = {"ranks": "all", "tensor": tensor} if tensor > 1 else {}
    data = {"name": "w", "model": model | {"feed_forward": feed_forward}, "batch": BATCH, "sequence": TOKENS, **more}
    return build_job(Workload.model_validate({"phase": "prefill", "parallel": spread} | data)).graphs[0]


def weights(found: Graph) -> dict[str, int]:
    return {t.name: t.size_bytes for t in found.tensors if t.kind in ("weight", "expert")}


def flops(found: Graph) -> Counter[str]:
    total: Counter[str] = Counter()
    for op in found.ops:
        total[re.sub(r"^L\d+/", "", op.name)] += op.flops
    return total


@pytest.mark.parametrize("attention", [GQA, MLA, GQA | {"sparse": SPARSE}, MLA | {"sparse": SPARSE}])
@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_what_heads_share_is_whole_and_all_else_is_cut(attention, phase) -> None:
    whole, half = (graph(attention, tensor=ranks, phase=phase) for ranks in (1, 2))
    for name, size in weights(whole).items():
        assert weights(half)[name] == (size if any(part in name for part in ALIKE) else size // 2), name
    for name, number in flops(whole).items():
        alike = any(part in name for part in ("q_a", "kv_a", "compress")) and "compressed" not in name
        alike = alike and not (name.endswith("compress") and attention["kind"] == "gqa")
        assert flops(half)[name] == (number if alike else number // 2), name


@pytest.mark.parametrize(("attention", "share"), [(GQA, 2), (MLA, 1)])
def test_the_cache_is_cut_by_heads_and_latents_are_whole(attention, share) -> None:
    whole, half = (graph(attention, tensor=ranks, phase="decode") for ranks in (1, 2))
    size, own = (sum(t.size_bytes for t in found.tensors if t.kind == "kv_cache") for found in (whole, half))
    assert own == size // share


def test_each_layer_adds_up_twice_and_the_embedding_once() -> None:
    found = graph(GQA, tensor=2)
    kinds = Counter(str(op.collective.kind) for op in found.ops if op.collective)
    assert kinds["all_reduce"] == 2 * LAYERS + 1
    rows = BATCH * TOKENS * H * 2
    assert {op.collective.size_bytes for op in found.ops if op.collective and op.name.startswith("L")} == {rows}


def test_tokens_between_are_cut_with_sequence() -> None:
    spread = {"ranks": "all", "tensor": 2, "layouts": BY_NUMBER, "sequence": True}
    found = graph(MLA, EXPERTS, parallel=spread)
    sizes = {t.name: t.size_bytes for t in found.tensors}
    assert sizes["L01/add1.out"] == BATCH * TOKENS * H * 2 // 2
    assert sizes["L01/ffn.route.out"] == BATCH * TOKENS * 2 * H * 2 // 2
    assert sizes["L01/attn.kv_a.out.gathered"] == BATCH * TOKENS * 16 * 2
    assert sizes["L01/attn.q_a_norm.out.gathered"] == BATCH * TOKENS * 10 * 2


def test_experts_cut_in_width_take_all_tokens_and_experts_by_number_are_whole() -> None:
    wide = graph(MLA, EXPERTS, tensor=2)
    spread = {"ranks": "all", "tensor": 2, "layouts": BY_NUMBER}
    number = graph(MLA, EXPERTS | {"ranks": 2}, parallel=spread)
    name = "L01/ffn.gate.weight"
    assert weights(wide)[name] == weights(number)[name] == 8 * H * 10 * 2 // 2
    partial = {op.name for op in wide.ops if op.collective and "ffn" in op.name}
    assert partial == {f"L{n:02d}/prefill/ffn.combine.out.all_reduce" for n in range(LAYERS)}
    assert any("ffn.shared.down.out.all_reduce" in op.name for op in number.ops)


@pytest.mark.parametrize("attention", [GQA, MLA])
def test_views_with_caches_of_their_own_cache_three_times_and_compress_once(attention) -> None:
    shared, own = (graph(attention | {"sparse": SPARSE | {"caches": how}}) for how in ("shared", "own"))
    for found, views in ((shared, 1), (own, 3)):
        sizes = {t.name: t.size_bytes for t in found.tensors if t.kind == "kv_cache"}
        elements = 24 if attention is GQA else 16
        assert sizes["L01/kv"] == views * BATCH * TOKENS * elements * 2
        assert sizes["L01/kv.compressed"] == BATCH * 19 * elements * 2
    more = H * 2 * 2 * 12 if attention is GQA else H * 2 * 16
    assert sum(weights(own).values()) - sum(weights(shared).values()) == 2 * LAYERS * more


def test_rows_travel_through_buffers_at_both_ends() -> None:
    fused, apart = (graph(MLA, EXPERTS | {"buffers": how}) for how in ("fused", "apart"))
    assert [op.name for op in apart.ops if op.name.endswith(("ffn.dispatch", "ffn.return"))] == [
        f"L{n:02d}/prefill/ffn.{what}" for n in range(LAYERS) for what in ("dispatch", "return")
    ]
    assert len(apart.ops) == len(fused.ops) + 2 * LAYERS
    rows = BATCH * TOKENS * 2 * H * 2
    at = next(i for i, op in enumerate(apart.ops) if op.name == "L01/prefill/ffn.dispatch")
    assert live_bytes(apart)[at] >= 2 * rows + sum(weights(apart).values())


def test_a_grouped_kernel_does_the_same_work_and_holds_what_is_between() -> None:
    three, one = (graph(MLA, EXPERTS, experts=how) for how in ("together", "grouped"))
    assert sum(op.flops for op in three.ops) == sum(op.flops for op in one.ops)
    (grouped,) = [op for op in one.ops if op.name == "L01/prefill/ffn.experts"]
    assert grouped.workspace_bytes == 3 * BATCH * TOKENS * 2 * 10 * 2
    assert weights(three) == weights(one)


def test_parameters_are_those_of_the_whole_model_whatever_is_cut() -> None:
    model = {"family": "decoder", "layers": LAYERS, "hidden": H, "vocabulary": V, "attention": MLA}
    found = Workload.model_validate({"name": "w", "phase": "decode", "model": model | {"feed_forward": EXPERTS}})
    assert count(found.model).total * 2 == sum(weights(graph(MLA, EXPERTS)).values())


@pytest.mark.parametrize(
    ("spread", "message"),
    [
        (
            {"tensor": 3, "layouts": {"L*/ffn.down.weight": ["none", "none"]}},
            "tensor divides heads, found 3, and 4 heads",
        ),
        (
            {"tensor": 2, "layouts": {"L*/attn.o.weight": ["none", "none"]}},
            "at inference each tensor rank has its part",
        ),
    ],
)
def test_heads_are_always_cut_at_inference(spread, message) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        graph(MLA, parallel={"ranks": "all", **spread})
