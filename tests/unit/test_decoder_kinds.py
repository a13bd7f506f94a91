"""Layers of several kinds, biases, norms behind parts, sinks of heads, and formats of experts, against closed forms."""

from __future__ import annotations

from typing import Any

import pytest
from building import build
from parameters import count
from pydantic import ValidationError

from simulator.graph import Graph
from simulator.workload import DecoderModel, Workload

HIDDEN, HEADS, KV_HEADS, SIZE, WIDTH, WORDS, LAYERS = 48, 6, 2, 10, 20, 64, 6
BATCH, TOKENS = 2, 16
GQA: dict[str, Any] = {"kind": "gqa", "heads": HEADS, "kv_heads": KV_HEADS, "head_size": SIZE}
DENSE: dict[str, Any] = {"kind": "dense", "width": WIDTH}
EXPERTS: dict[str, Any] = {"kind": "experts", "routed": 8, "top_k": 2, "width": 12}
PLAIN = 2 * HIDDEN + HIDDEN * SIZE * (2 * HEADS + 2 * KV_HEADS) + 3 * HIDDEN * WIDTH


def workload(
    phase: str = "decode", attention: Any = GQA, part: Any = DENSE, dtypes: Any = None, **more: Any
) -> Workload:
    model = {"family": "decoder", "layers": LAYERS, "hidden": HIDDEN, "vocabulary": WORDS}
    model |= {"attention": attention, "feed_forward": part, **more}
    data = {"name": "w", "phase": phase, "batch": BATCH, "sequence": TOKENS, "model": model, "dtypes": dtypes or {}}
    return Workload.model_validate(data)


def parameters(**more: Any) -> int:
    """Parameters of all layers."""
    model = workload(**more).model
    assert isinstance(model, DecoderModel)
    return count(model).total - 2 * HIDDEN * WORDS - HIDDEN


def weights(graph: Graph) -> dict[str, int]:
    return {t.name: t.size_bytes for t in graph.tensors if t.kind in ("weight", "expert")}


@pytest.mark.parametrize(
    ("more", "extra"),
    [
        ({}, 0),
        ({"norms": "both"}, 2 * HIDDEN),
        ({"attention": GQA | {"biases": ["q", "k", "v"]}}, SIZE * (HEADS + 2 * KV_HEADS)),
        ({"attention": GQA | {"biases": ["o"]}}, HIDDEN),
        ({"attention": GQA | {"sink_logits": True}}, HEADS),
        ({"attention": GQA | {"qk_norms": True}}, 2 * SIZE),
        ({"attention": GQA | {"qk_norms": "all"}}, SIZE * (HEADS + KV_HEADS)),
        ({"part": DENSE | {"biases": True}}, 2 * WIDTH + HIDDEN),
    ],
)
def test_what_each_key_adds_to_a_layer(more: dict[str, Any], extra: int) -> None:
    assert parameters(**more) == LAYERS * (PLAIN + extra)
    for phase in ("train", "prefill", "decode"):
        held = weights(build(workload(phase, **more)))
        assert sum(held.values()) == 2 * (LAYERS * (PLAIN + extra) + 2 * HIDDEN * WORDS + HIDDEN)


def test_biases_of_experts_are_chosen_with_them_and_kept_in_the_type_of_arithmetic() -> None:
    part = EXPERTS | {"biases": True, "router_bias": True, "shared": 1, "shared_width": 30}
    layer = 8 * (3 * HIDDEN * 12 + 2 * 12 + HIDDEN) + HIDDEN * 8 + 8 + 3 * HIDDEN * 30
    assert parameters(part=part) == LAYERS * (PLAIN - 3 * HIDDEN * WIDTH + layer)
    held = weights(build(workload(part=part, dtypes={"experts": "mxfp4"})))
    assert held["L00/ffn.gate.weight"] == 8 * (HIDDEN * 12 // 2 + 2 * 12)  # 2 blocks of 32 inputs, the last not full
    assert held["L00/ffn.gate.bias.weight"] == 8 * 12 * 2
    assert held["L00/ffn.shared.gate.weight"] == HIDDEN * 30 * 2


@pytest.mark.parametrize("experts", ["grouped", "each"])
def test_grouped_experts_take_their_biases_along(experts: str) -> None:
    plain, biased = (workload(part=EXPERTS | {"biases": flag}) for flag in (False, True))
    graphs = [build(one.model_copy(update={"experts": experts})) for one in (plain, biased)]
    first, second = (sum(weights(graph).values()) for graph in graphs)
    assert second - first == LAYERS * 8 * (2 * 12 + HIDDEN) * 2
    (one, two) = ({op.name: op for op in graph.ops} for graph in graphs)
    assert one["L00/decode/ffn.experts"].flops == two["L00/decode/ffn.experts"].flops


LOCAL = {"every": 3, "attention": GQA | {"window": 4}}


@pytest.mark.parametrize(("start", "stop", "local"), [(0, None, {0, 3}), (1, None, {1, 4}), (2, 5, {2})])
def test_local_layers_see_and_keep_their_window(start: int, stop: int | None, local: set[int]) -> None:
    graph = build(workload(others=[LOCAL | {"start": start, "stop": stop}]))
    kept = {t.name: t.size_bytes for t in graph.tensors if t.kind == "kv_cache" and t.name.endswith("kv")}
    token = 2 * KV_HEADS * SIZE * 2
    assert kept == {f"L{i:02d}/kv": BATCH * (3 if i in local else TOKENS) * token for i in range(LAYERS)}
    found = {op.name[:3]: op.flops for op in graph.ops if op.op_class == "attention"}
    pair = 4 * HEADS * SIZE
    assert found == {f"L{i:02d}": BATCH * pair * (4 if i in local else TOKENS + 1) for i in range(LAYERS)}


def test_local_layers_train_within_their_window() -> None:
    graph = build(workload("train", others=[LOCAL]))
    found = {op.name[:3]: op.flops for op in graph.ops if op.name.endswith("fwd/attn.core")}
    whole, near = TOKENS * TOKENS, 4 * (2 * TOKENS - 4)
    unit = 2 * BATCH * HEADS * SIZE
    assert found == {f"L{i:02d}": unit * (near if i % 3 == 0 else whole) for i in range(LAYERS)}


def test_the_last_entry_that_holds_a_layer_decides_part_by_part() -> None:
    wide, wider = ({"kind": "dense", "width": width} for width in (40, 60))
    others = [LOCAL, {"stop": 4, "feed_forward": wide}, {"start": 3, "feed_forward": wider}]
    model = workload(others=others).model
    assert isinstance(model, DecoderModel)
    found = [(model.layer(i).attention.window, model.layer(i).feed_forward.width) for i in range(LAYERS)]
    assert found == [(4, 40), (None, 40), (None, 40), (4, 60), (None, 60), (None, 60)]
    assert list(model.kinds.values()) == [1, 2, 1, 2]


@pytest.mark.parametrize(
    ("others", "message"),
    [
        ([{"start": 6, "feed_forward": DENSE}], "other layers are some of the model's"),
        ([{"start": 3, "stop": 3, "feed_forward": DENSE}], "other layers are some of the model's"),
        ([{"start": 3}], "other layers have another attention or feed_forward"),
    ],
)
def test_others_that_mean_nothing_are_refused(others: list[dict[str, Any]], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        workload(others=others)


@pytest.mark.parametrize(
    ("kept", "bits"),
    [("mxfp4", 4.25), ("nvfp4", 4.5), ("int4_of_32", 4.5), ("int4", 4.15625), ("q8_0", 8.5), ("q6_k", 6.5625),
     ("q5_k", 5.5), ("q4_k", 4.5), ("q3_k", 3.4375), ("q2_k", 2.625)],
)  # fmt: skip
def test_formats_with_scales(kept: str, bits: float) -> None:
    model = {"hidden": 256, "attention": GQA, "feed_forward": {"kind": "dense", "width": 128}}
    found = workload(dtypes={"weights": kept}, **model | {"part": model.pop("feed_forward")})
    held = weights(build(found))
    assert held["L00/ffn.gate.weight"] * 8 == 256 * 128 * bits
