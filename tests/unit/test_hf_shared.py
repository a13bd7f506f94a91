"""Layers that reuse keys and values, and take rows beside their input (Gemma 3n and 4), against closed forms."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
from building import build
from examples import some
from hf_small import DEEPSEEK_V4, GEMMA3N, GEMMA4, HY_V4, graph_of, read
from parameters import count
from trained import check_lives, sizes

import simulator as hosim
from simulator.builders import build_job, cached_layers, iteration
from simulator.builders.inference import Iteration
from simulator.graph import Graph
from simulator.workload import DecoderModel, Dtypes

H, HEADS, KV, SIZE, FAR_SIZE, F, V, WINDOW, ROWS, WIDTH = 32, 4, 2, 8, 16, 48, 64, 8, 40, 12
NEAR, FAR = "sliding_attention", "full_attention"
TYPES = [NEAR, FAR, NEAR, FAR, NEAR, FAR]
FIRST = 4
"""The first of the layers that reuse: 4 those of 2, and 5 those of 3."""
RESIDUALS, RANK, WIDTHS = 3, 5, GEMMA3N["intermediate_size"]


graph = partial(graph_of, GEMMA4)


def size(layer: int) -> int:
    return FAR_SIZE if TYPES[layer] == FAR else SIZE


def linears(layer: int) -> int:
    """Elements of all matrices that a token goes through in a layer."""
    wide, reuses = size(layer), layer >= FIRST
    return H * wide * (2 * HEADS + 2 * KV * (not reuses)) + 3 * H * F * (1 + reuses) + 2 * H * WIDTH


def pairs(layer: int, tokens: range) -> int:
    return sum(token if TYPES[layer] == FAR else min(token, WINDOW) for token in tokens)


def work(layer: int, tokens: range) -> int:
    return 2 * len(tokens) * linears(layer) + 4 * HEADS * size(layer) * pairs(layer, tokens)


def of_layer(found: Graph, layer: int) -> int:
    return sum(op.flops for op in found.ops if f"L{layer:02d}/" in op.name)


@pytest.mark.parametrize("layer", some(range(6), 2))
def test_work_is_that_of_matrices_and_pairs(layer: int, tmp_path: Path) -> None:
    for options in ({}, {"chunk": 7}, {"block": 7, "chunk": 7}):
        found = graph(tmp_path, phase="prefill", sequence=21, **options)
        assert of_layer(found, layer) == work(layer, range(1, 22))
    for options in ({}, {"block": 8}):
        found = graph(tmp_path, phase="decode", sequence=22, new_tokens=3, **options)
        assert of_layer(found, layer) == work(layer, range(23, 26))
    found = graph(tmp_path, phase="train", sequence=21)
    seen = 21 * 21 if TYPES[layer] == FAR else WINDOW * (2 * 21 - WINDOW)  # half of it, as in training
    assert of_layer(found, layer) == 6 * 21 * linears(layer) + 14 * HEADS * size(layer) * seen // 2


def test_what_layers_take_beside_is_made_once_of_the_embedding(tmp_path: Path) -> None:
    found = graph(tmp_path, phase="prefill", sequence=21)
    ops = {op.name.rpartition("/")[2]: op for op in found.ops if op.name.startswith("embed/")}
    assert ops["layers.in"].flops == 2 * 21 * H * 6 * WIDTH
    assert ops["layers.tokens"].read_bytes == 21 * 4 + 2 * 21 * 6 * WIDTH
    made = next(tensor for tensor in found.tensors if tensor.name == "embed/layers.add.out")
    assert made.size_bytes == 2 * 21 * 6 * WIDTH
    mul = next(op for op in found.ops if op.name == "L03/prefill/input.mul")
    assert mul.read_bytes == 2 * 2 * 21 * WIDTH  # its own part alone


def test_a_cache_has_layers_that_make_keys_alone(tmp_path: Path) -> None:
    found = graph(tmp_path, phase="decode", sequence=22)
    kept = {tensor.name: tensor.size_bytes for tensor in found.tensors if tensor.kind == "kv_cache"}
    tokens = {FAR: 22, NEAR: WINDOW - 1}
    held = {f"L{i:02d}/kv": 2 * tokens[TYPES[i]] * 2 * KV * size(i) for i in range(FIRST)}
    assert kept == held | {f"L{i:02d}/kv.tail": 2 * 2 * KV * size(i) for i in range(FIRST)}
    ops = {op.name: op for op in found.ops}
    names = {tensor.name for index in ops["L05/decode/attn.core"].reads for tensor in [found.tensors[index]]}
    assert {"L03/kv", "L03/kv.tail"} <= names
    assert ops["L05/decode/attn.core"].read_bytes == ops["L03/decode/attn.core"].read_bytes
    model = read(GEMMA4, tmp_path, sequence=22).workload.model
    assert isinstance(model, DecoderModel)
    assert sum(group.token_bytes for group in cached_layers(model, Dtypes())) == 2 * model.kv_elements
    assert model.kv_elements == sum(2 * KV * size(layer) for layer in range(FIRST))


def test_requests_attend_to_what_earlier_layers_cached(tmp_path: Path) -> None:
    workload = read(GEMMA4, tmp_path, phase="requests").workload
    near = (3 * (WINDOW - 1), 7, pairs(0, range(8, 13)))
    run = Iteration(decoding=3, context=60, reading=5, cached=7, pairs=sum(range(8, 13)), answers=3, near=(near,))
    found = iteration(workload, run, 1 << 20)
    for layer in range(6):
        seen = 60 + 3 + sum(range(8, 13)) if TYPES[layer] == FAR else 3 * WINDOW + near[2]
        assert of_layer(found, layer) == 2 * 8 * linears(layer) + 4 * HEADS * size(layer) * seen
    kept = [tensor.name for tensor in found.tensors if tensor.kind == "kv_cache"]
    assert kept == [f"L{layer:02d}/kv" for layer in range(FIRST)]


def test_gradients_of_keys_come_from_all_layers_that_use_them(tmp_path: Path) -> None:
    found = graph(tmp_path, phase="train", sequence=21)
    names = [op.name for op in found.ops]
    assert names.index("L04/bwd/attn.core") < names.index("L02/bwd/attn.core.k.acc") < names.index("L02/bwd/rope.k")
    parts = next(op for op in found.ops if op.name == "embed/bwd/layers.parts")
    assert len(parts.reads) == 6


@pytest.mark.parametrize("layer", range(6))
def test_residuals_are_predicted_and_corrected(layer: int, tmp_path: Path) -> None:
    """Gemma 3n: beside attention, a feed-forward of its own width and what it takes beside its input."""
    attention = H * SIZE * (2 * HEADS + 2 * KV * (layer < FIRST))
    residuals = 2 * H * RESIDUALS + RESIDUALS**3 + RESIDUALS**2
    products = attention + 3 * H * WIDTHS[layer] + 2 * H * WIDTH + 2 * H * RANK + residuals
    workload = read(GEMMA3N, tmp_path, phase="prefill", sequence=21).workload
    right = 2 * 21 * products + 4 * HEADS * SIZE * pairs(layer, range(1, 22))
    found: Graph = build(workload)
    assert of_layer(found, layer) == right
    ends = [op for op in found.ops if op.name in ("embed/prefill/residuals", "head/prefill/residuals")]
    assert [op.flops for op in ends] == [2 * tokens * H * H * (RESIDUALS - 1) for tokens in (21, 1)]
    trained: Graph = build(read(GEMMA3N, tmp_path, phase="train", sequence=21).workload)
    seen = 21 * 21 if TYPES[layer] == FAR else WINDOW * (2 * 21 - WINDOW)
    assert of_layer(trained, layer) == 6 * 21 * products + 14 * HEADS * SIZE * seen // 2
    sizes = {tensor.name: tensor.size_bytes for tensor in trained.tensors}
    assert sizes[f"L{layer:02d}/residuals.correct.out"] == 2 * 21 * H * RESIDUALS
    decoded: Graph = build(read(GEMMA3N, tmp_path, phase="decode", sequence=22).workload)
    assert of_layer(decoded, layer) == 2 * products + 4 * HEADS * SIZE * pairs(layer, range(23, 24))


@pytest.mark.parametrize("config", [GEMMA4, GEMMA3N, DEEPSEEK_V4, HY_V4], ids=lambda config: config["model_type"])
@pytest.mark.parametrize("tensor", [1, 2])
def test_every_weight_has_a_gradient_and_nothing_outlives_the_step(
    config: dict[str, Any], tensor: int, tmp_path: Path
) -> None:
    workload = read(config, tmp_path, phase="train", sequence=16, tensor=tensor).workload
    found = build_job(workload).graphs[0]
    weights = sizes(found, "weight", "expert").keys() - {
        name for name in sizes(found, "weight") if "router_bias" in name
    }
    assert sizes(found, "gradient").keys() == {f"{name}.grad" for name in weights}
    check_lives(found)


def test_what_cannot_be_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(hosim.ConfigError, match="num_kv_shared_layers: some of the layers make keys"):
        read({**GEMMA4, "num_kv_shared_layers": 6}, tmp_path)
    with pytest.raises(hosim.ConfigError, match="reuses keys and values of an earlier one alike"):
        read({**GEMMA4, "layer_types": [NEAR] * 4 + [FAR] * 2}, tmp_path)
    with pytest.raises(hosim.ConfigError, match="are on one stage, and made once"):
        read(GEMMA4, tmp_path, phase="train", sequence=21, pipeline=2)


@pytest.mark.slow
@pytest.mark.parametrize("shared", [0, 2])
@pytest.mark.parametrize("tiny", [GEMMA4, GEMMA3N], ids=["gemma4", "gemma3n"])
def test_parameters_are_those_of_the_module_of_transformers(tiny: dict[str, Any], shared: int, tmp_path: Path) -> None:
    transformers, torch = pytest.importorskip("transformers"), pytest.importorskip("torch")
    keys = {key: value for key, value in tiny.items() if key != "model_type"} | {"num_kv_shared_layers": shared}
    config = transformers.CONFIG_MAPPING[tiny["model_type"]](**keys)
    with torch.device("meta"):
        module = transformers.AutoModelForCausalLM.from_config(config)
    module.tie_weights()
    model = read({**tiny, "num_kv_shared_layers": shared}, tmp_path, sequence=21).workload.model
    assert isinstance(model, DecoderModel)
    assert count(model).total == sum({id(one): one.numel() for one in module.parameters()}.values())
    config.save_pretrained(tmp_path)
    assert hosim.read_hf(tmp_path, sequence=21).workload.model == model
