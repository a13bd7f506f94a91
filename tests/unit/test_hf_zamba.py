"""Layers that share weights, and take the embedding beside the residual (Zamba), against closed forms."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from building import build
from hf_small import read
from trained import check_lives, sizes

import simulator as hosim
from simulator.builders import Iterations, build_job, iteration
from simulator.builders.inference import Iteration
from simulator.builders.weights import parameters
from simulator.graph import Graph

H, HEADS, F, V, RANK, SETS = 32, 4, 48, 64, 6, 2
SIZE = 2 * H // HEADS
ZAMBA2: dict[str, Any] = {
    "model_type": "zamba2", "hidden_size": H, "num_attention_heads": HEADS, "vocab_size": V, "intermediate_size": F,
    "layers_block_type": ["mamba", "hybrid"] * 4, "num_hidden_layers": 8, "mamba_d_state": 8, "n_mamba_heads": 4,
    "mamba_ngroups": 1, "chunk_size": 8, "adapter_rank": RANK, "num_mem_blocks": SETS, "num_key_value_heads": HEADS,
    "use_shared_attention_adapter": True, "use_mem_rope": True, "torch_dtype": "bfloat16",
}  # fmt: skip
_OF_ZAMBA2 = ["adapter_rank", "chunk_size", "mamba_ngroups", "n_mamba_heads", "num_mem_blocks", "use_mem_rope"]
_OF_ZAMBA2 += ["use_shared_attention_adapter"]
SHARED = (1, 4, 7, 10)
"""Layers with attention: the first two have the weights of the others."""


def graph(folder: Path, **options: Any) -> Graph:
    """Build the graph of a rank."""
    made: Graph = build_job(read(ZAMBA2, folder, **options).workload).graphs[0]
    return made


def linears() -> int:
    """Elements of all matrices that a token goes through in a layer with attention."""
    attention = 3 * (2 * H) ** 2 + 3 * 2 * 2 * H * RANK + 2 * H * H
    return attention + 3 * H * F + H * RANK + 2 * RANK * F + H * H


def of_layer(found: Graph, layer: int, phase: str = "") -> int:
    return sum(op.flops for op in found.ops if f"L{layer:02d}/" in op.name and (not phase or op.phase == phase))


@pytest.mark.parametrize("layer", SHARED)
def test_work_is_that_of_matrices_and_pairs(layer: int, tmp_path: Path) -> None:
    for options in ({}, {"chunk": 7}, {"tensor": 2}):
        found = graph(tmp_path, phase="prefill", sequence=21, **options)
        narrow = 2 * 21 * (3 * 2 * H * RANK + H * RANK + H * H) // 2 * ("tensor" in options)  # uncut on each rank
        right = 2 * 21 * linears() + 4 * HEADS * SIZE * sum(range(22))
        assert of_layer(found, layer) == (right // 2 + narrow if "tensor" in options else right)
    found = graph(tmp_path, phase="decode", sequence=22, new_tokens=3)
    assert of_layer(found, layer) == 2 * 3 * linears() + 4 * HEADS * SIZE * sum(range(23, 26))
    found = graph(tmp_path, phase="train", sequence=21)
    core = sum(op.flops for op in found.ops if f"L{layer:02d}/" in op.name and "attn.core" in op.name)
    assert of_layer(found, layer) - core == 3 * 2 * 21 * linears()


@pytest.mark.parametrize("options", [{}, {"data": 2}, {"data": 2, "zero_stage": 2}])
def test_shared_weights_are_there_once_and_learn_from_each_layer(options: dict[str, Any], tmp_path: Path) -> None:
    found = graph(tmp_path, phase="train", sequence=8, batch=2, **options)
    names = [tensor.name for tensor in found.tensors]
    assert not [
        name for name in names if name.startswith(("L07/attn.q.weight", "L10/ffn.down.weight", "L07/norm1.weight"))
    ]
    assert {"L07/attn.q.lora_a.weight", "L10/ffn.up.adapter.weight", "L10/block.weight"} <= {*names}
    shared = names.index("L01/attn.q.weight"), names.index("L01/attn.q.weight.grad")
    readers = [op.name for op in found.ops if shared[0] in op.reads and op.phase == "forward"]
    assert readers == ["L01/fwd/attn.q", "L07/fwd/attn.q"]
    learning = [op.name for op in found.ops if shared[1] in op.writes and not op.collective]
    assert learning == ["L07/bwd/attn.q.wgrad", "L01/bwd/attn.q.wgrad"]
    met = [op.name for op in found.ops if op.collective and shared[1] in op.reads]
    assert len(met) == bool(options)
    assert all("L01/" in name for name in met)
    assert [op.name for op in found.ops if shared[0] in op.writes and not op.collective] == ["L01/update/attn.q"]
    check_lives(found)


def test_the_embedding_learns_from_each_layer_that_takes_it(tmp_path: Path) -> None:
    found = graph(tmp_path, phase="train", sequence=8)
    grads = [op.name for op in found.ops if op.name.endswith("joined.1.acc")]
    assert grads == [f"L{layer:02d}/bwd/joined.1.acc" for layer in (7, 4, 1)]


def test_iterations_count_as_prefill_and_decode(tmp_path: Path) -> None:
    work = read(ZAMBA2, tmp_path, phase="requests").workload
    run = Iteration(decoding=2, context=44, reading=5, pairs=15, answers=3, near=((1, 0, 15),))
    found = iteration(work, run, 1 << 20)
    for layer in SHARED:
        assert of_layer(found, layer) == 2 * 7 * linears() + 4 * HEADS * SIZE * (44 + 2 + 15)
    again = Iterations(work)
    for context in (44, 90):
        other = run._replace(context=context)
        assert again.graph(other, 1 << 20) == iteration(work, other, 1 << 20)


def test_what_cannot_be_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(hosim.ConfigError, match="layers_block_type: this says which layers have shared weights"):
        read({**ZAMBA2, "layers_block_type": None}, tmp_path)
    with pytest.raises(hosim.ConfigError, match="weights that layers share are whole, found zero_stage"):
        read(ZAMBA2, tmp_path, phase="train", sequence=8, data=2, zero_stage=3)
    with pytest.raises(hosim.ConfigError, match="are on one stage, and made once"):
        read(ZAMBA2, tmp_path, phase="train", sequence=8, pipeline=2)
    with pytest.raises(hosim.ConfigError, match="add_bias_linear"):
        read({**ZAMBA2, "add_bias_linear": True}, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["zamba", "zamba2"])
def test_parameters_gradients_and_what_is_kept_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    transformers, torch = pytest.importorskip("transformers"), pytest.importorskip("torch")
    keys = {key: value for key, value in ZAMBA2.items() if key not in ("model_type", "torch_dtype")}
    for key in _OF_ZAMBA2 if name == "zamba" else ():
        keys.pop(key)
    keys |= {"layers_block_type": ["mamba", *["hybrid"] * 3], "num_hidden_layers": 4}
    config = transformers.CONFIG_MAPPING[name](**keys)
    with hosim.torch.fake():
        module, ids = transformers.AutoModelForCausalLM.from_config(config).bfloat16(), torch.zeros(2, 4).long()
        cache = transformers.DynamicCache(config=config)
        with torch.no_grad():
            module(ids, cache=cache)
    decode = hosim.torch.capture(module, input_ids=ids[:, :1], cache=cache, phase="decode").graph
    step = hosim.torch.capture(module, input_ids=ids, labels=ids, optimizer="adamw").graph
    (tmp_path / "config.json").write_text(json.dumps(config.to_dict() | {"torch_dtype": "bfloat16"}))
    found = hosim.read_hf(tmp_path, phase="decode", batch=2, sequence=5).workload
    right = sum(parameter.numel() for parameter in module.parameters())
    assert parameters(found) == (right, right)
    built = build(found), build(hosim.read_hf(tmp_path, phase="train", batch=2, sequence=4).workload)
    for mine, theirs, kind in ((built[0], decode, "kv_cache"), (built[1], step, "gradient")):
        assert sum(sizes(mine, kind).values()) == sum(sizes(theirs, kind).values())
