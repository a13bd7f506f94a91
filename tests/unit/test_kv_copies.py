"""KV heads that are fewer than tensor ranks: each is held by several, as engines do (`tensor` is a multiple of them).

With as many KV heads as ranks a rank does and holds exactly the same, but that nobody adds up gradients with it.
"""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import simulator as hosim
from simulator import catalog
from simulator.builders import build_job
from simulator.builders.weights import parameters
from simulator.errors import ConfigError
from simulator.graph import Graph
from simulator.run.stories import layout
from simulator.workload import Workload

GQA = {"kind": "gqa", "heads": 8, "kv_heads": 2, "head_size": 6}
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "biased": {"biases": ["q", "k", "v"], "qk_norms": True},
    "normed as one": {"qk_norms": "all"},
    "sparse": {"sparse": {"compress": {"block": 4, "stride": 2}, "select": {"block": 4, "top": 4}, "window": 6}},
}
RANKS = 8


def workload(phase: str, kv_heads: int, attention: dict[str, Any], /, **more: Any) -> Workload:
    model = {"family": "decoder", "layers": 2, "hidden": 16, "vocabulary": 40}
    model |= {"attention": GQA | attention | {"kv_heads": kv_heads}, "feed_forward": {"kind": "dense", "width": 24}}
    parallel = {"ranks": "all", "tensor": RANKS} | more.pop("parallel", {})
    data = {"name": "w", "phase": phase, "model": model, "batch": 2, "sequence": 40, "parallel": parallel, **more}
    return Workload.model_validate(data)


def graph(*asked: Any, **more: Any) -> Graph:
    return build_job(workload(*asked, **more)).graphs[0]


def ops(found: Graph) -> list[tuple[Any, ...]]:
    names = [(tensor.name, tensor.size_bytes) for tensor in found.tensors]
    return [
        (op.name, [names[t] for t in op.reads], [names[t] for t in op.writes], op.flops, op.read_bytes, op.write_bytes)
        for op in found.ops
        if op.collective is None or not op.collective.group.startswith("tensor.copies")
    ]


@pytest.mark.parametrize("attention", VARIANTS.values(), ids=VARIANTS)
@pytest.mark.parametrize("phase", ["train", "prefill", "decode"])
@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_a_rank_does_what_it_does_with_a_kv_head_of_its_own(phase, attention, kv_heads) -> None:
    assert ops(graph(phase, kv_heads, attention)) == ops(graph(phase, RANKS, attention))


@pytest.mark.parametrize(("zero_stage", "data"), [(0, 1), (1, 2), (2, 2), (3, 2)])
def test_ranks_with_the_same_kv_head_add_up_its_gradients(zero_stage, data) -> None:
    parallel = {"zero_stage": zero_stage, "data": data}
    found = graph("train", 2, VARIANTS["biased"], parallel=parallel)
    sums = [op for op in found.ops if op.collective and op.collective.group == "tensor.copies4"]
    (group,) = (group for group in found.groups if group.name == "tensor.copies4")
    assert group.members[:2] == ((0, 1, 2, 3), (4, 5, 6, 7))
    assert {str(op.collective.kind) for op in sums if op.collective} == {"all_reduce"}
    each = 2 * (16 * 6 + 6) * 2  # of a rank's key and value head: the matrix and the bias, in bf16
    assert Counter(op.collective.size_bytes for op in sums if op.collective) == {each: 2}
    written = {found.tensors[t].name.partition(".grad")[0] for op in sums for t in op.writes}
    named = {f"L0{layer}/attn.{name}{end}.weight" for layer in "01" for name in "kv" for end in ("", ".bias")}
    assert written == named


def test_adapters_beside_them_are_copied_too() -> None:
    found = graph("train", 2, {}, lora={"rank": 2, "targets": ["attn.k"]})
    sums = [op for op in found.ops if op.collective and op.collective.group == "tensor.copies4"]
    assert [op.collective.size_bytes for op in sums if op.collective] == [2 * 6 * 2] * 2  # of lora_b alone


def test_the_layout_says_who_holds_the_same(tmp_path) -> None:
    path = tmp_path / "w.yaml"
    path.write_text(catalog.dump(workload("decode", 2, {})), encoding="utf-8")
    found = {weight["weight"]: weight for weight in json.loads(layout(path, as_json=True))["weights"]}
    key = found["L00/attn.k.weight"]
    assert (key["shape"], key["rank_bytes"], key["held_by_ranks"]) == ([16, 12], 16 * 6 * 2, 4)
    assert parameters(workload("decode", 2, {})) == parameters(workload("decode", 2, {}, parallel={"tensor": 2}))


@pytest.mark.parametrize(("kv_heads", "tensor"), [(4, 6), (4, 3), (6, 4)])
def test_ranks_that_neither_divide_nor_are_a_multiple_are_refused(kv_heads, tensor) -> None:
    wide = {"heads": 12, "head_size": 6}
    model = {"family": "decoder", "layers": 2, "hidden": 16, "vocabulary": 48}
    model |= {"attention": GQA | wide | {"kv_heads": kv_heads}, "feed_forward": {"kind": "dense", "width": 24}}
    data = {"name": "w", "phase": "decode", "model": model, "batch": 2, "sequence": 40}
    with pytest.raises(ConfigError) as caught:
        build_job(Workload.model_validate(data | {"parallel": {"ranks": "all", "tensor": tensor}}))
    must = "tensor divides kv_heads, or is a multiple of them, so that several ranks hold the same one"
    assert f"{must}, found {tensor}, and {kv_heads} kv_heads; set parallel.tensor to" in str(caught.value)


def test_qwen3_235b_on_eight_ranks() -> None:
    """Its four KV heads, in four layers: 2 x 4 layers x 1 head x 128 x 2 B a token on each rank."""
    folder = Path(__file__).resolve().parents[3] / "shared" / "inputs" / "tensor-over-kv-heads"
    if not folder.exists():
        pytest.skip("the model's config.json is not here")
    made = hosim.read_hf(folder / "config.json", phase="decode", batch=8, sequence=8192, tensor=8)
    found = build_job(made.workload).graphs[0]
    tokens = 8 * (8192 + 1)
    assert sum(tensor.size_bytes for tensor in found.tensors if tensor.kind == "kv_cache") == 2_048 * tokens
    sizes = {tensor.name: tensor.size_bytes for tensor in found.tensors}
    assert sizes["L00/attn.k.weight"] == sizes["L00/attn.v.weight"] == 4096 * 128 * 2
