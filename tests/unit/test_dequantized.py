"""Weights in other formats: what dequantization reads and writes, and the data type of products, in closed form."""

from math import ceil
from typing import Any

import pytest
from building import build
from pydantic import ValidationError
from trained import BATCH, EXPERTS, GQA, LAYERS, MLA, SEQUENCE, VIEWS, H, arithmetic, flops, workload

from simulator.errors import ConfigError
from simulator.graph import Graph

LINEARS = {"attn.q": (H, 24), "attn.k": (H, 12), "attn.v": (H, 12), "attn.o": (24, H)}
LINEARS |= {"ffn.gate": (H, 24), "ffn.up": (H, 24), "ffn.down": (24, H)}


def int4(inputs: int, outputs: int) -> int:
    """Four bits a weight, an fp16 scale and a 4-bit zero for 128 inputs of each output."""
    return ceil((inputs * outputs * 4 + ceil(inputs / 128) * outputs * 20) / 8)


def traffic(graph: Graph) -> int:
    return sum(op.read_bytes + op.write_bytes for op in graph.ops)


@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_dequantized_before_each_use_a_matrix_is_written_and_read_in_bf16(phase: str) -> None:
    """Of p packed bytes and w in bf16: fused p are read; before p + 2 w move, in an op of its own for each matrix."""
    fused = build(workload(phase=phase, dtypes={"weights": "int4"}))
    assert fused == build(workload(phase=phase, dtypes={"weights": "int4", "dequantize": "fused"}))
    before = build(workload(phase=phase, dtypes={"weights": "int4", "dequantize": "before"}))
    wide = LAYERS * sum(2 * i * o for i, o in LINEARS.values())
    assert traffic(before) - traffic(fused) == 2 * wide
    ready = [op for op in before.ops if op.name.endswith(".ready")]
    assert len(ready) == LAYERS * len(LINEARS)
    assert {op.name.split("/")[-1].removesuffix(".ready"): (op.read_bytes, op.write_bytes) for op in ready} == {
        name: (int4(i, o), 2 * i * o) for name, (i, o) in LINEARS.items()
    }
    assert {(op.flops, op.op_class) for op in ready} == {(0, "dequantize")}
    assert arithmetic(before) == arithmetic(fused)


@pytest.mark.parametrize(
    ("dtypes", "kernels"),
    [
        ({}, "matmul"),
        ({"weights": "int4"}, "matmul_w4"),
        ({"weights": "mxfp4"}, "matmul_w4"),
        ({"weights": "fp8"}, "matmul_w8"),
        ({"weights": "fp8", "arithmetic": "fp8"}, "matmul"),  # it is multiplied as it is stored
        ({"weights": "int4", "dequantize": "before"}, "matmul"),
        ({"compute": "fp32", "weights": "bf16"}, "matmul"),
    ],
)
def test_kernels_that_convert_weights_as_they_multiply_are_a_class_of_their_own(dtypes: Any, kernels: str) -> None:
    graph = build(workload(phase="decode", dtypes=dtypes))
    of_matrices = {op.op_class for op in graph.ops if op.flops and op.name.rpartition("/")[2] in LINEARS}
    assert of_matrices == {kernels}


def test_absorbed_matrices_and_experts_are_made_ready_as_they_are_read() -> None:
    more: dict[str, Any] = {"phase": "decode", "batch": 1}
    fused, before = (
        build(workload(MLA, EXPERTS, **more, dtypes={"weights": "int4", "dequantize": way}))
        for way in ("fused", "before")
    )
    ready = {op.name: op for op in before.ops if op.name.endswith(".ready")}
    experts = ready["L01/decode/ffn.gate.ready"]
    assert (experts.read_bytes, experts.write_bytes) == (2 * int4(H, 10), 2 * 2 * H * 10), "two of eight"
    absorbed = ready["L00/decode/attn.k_b.ready"]
    assert (absorbed.read_bytes, absorbed.write_bytes) == (int4(11, 4 * 5), 2 * 11 * 4 * 5)
    assert traffic(before) - traffic(fused) == 2 * sum(op.write_bytes for op in ready.values())


def test_training_with_fused_kernels_reads_packed_weights_and_makes_none_ready() -> None:
    lora = {"rank": 2, "targets": ["attn.*", "ffn.*"]}
    before = build(workload(lora=lora, dtypes={"weights": "nf4"}))
    assert before == build(workload(lora=lora, dtypes={"weights": "nf4", "dequantize": "before"}))
    fused = build(workload(lora=lora, dtypes={"weights": "nf4", "dequantize": "fused"}))
    ready = [op for op in before.ops if op.name.endswith(".ready")]
    assert ready
    assert len(fused.ops) == len(before.ops) - len(ready)
    assert traffic(before) - traffic(fused) == 2 * sum(op.write_bytes for op in ready)
    assert arithmetic(before) == arithmetic(fused)


@pytest.mark.parametrize("more", [{}, {"experts": "grouped"}, {"experts": "each"}, {"on": {"experts": "host"}}])
def test_stored_matrices_multiply_in_the_arithmetic_that_is_stated(more: dict[str, Any]) -> None:
    """Matrices of layers do; routers, tables, attention and norms stay in bf16."""
    alike = build(workload(MLA, EXPERTS, phase="decode", dtypes={"weights": "fp8"}, **more))
    graph = build(workload(MLA, EXPERTS, phase="decode", dtypes={"weights": "fp8", "arithmetic": "int8"}, **more))
    assert [op.name for op in graph.ops] == [op.name for op in alike.ops]
    stored = {t.name for t in graph.tensors if t.kind in ("weight", "expert")}
    stored = {name for name in stored if name.startswith("L") and "norm" not in name and "router" not in name}
    for op, other in zip(graph.ops, alike.ops, strict=True):
        assert other.dtype == "bf16"
        multiplies = op.flops and any(graph.tensors[t].name in stored for t in op.reads)
        assert op.dtype == ("int8" if multiplies else "bf16"), op.name
        assert (op.flops, op.read_bytes) == (other.flops, other.read_bytes)


def test_matrices_that_autograd_saves_are_made_ready_once_and_stay_until_backward() -> None:
    lora = {"rank": 2, "targets": ["attn.*", "ffn.*"]}
    before, saved = (
        build(workload(lora=lora, dtypes={"weights": "nf4", "dequantize": way})) for way in ("before", "saved")
    )
    made = [sum(op.name.endswith(".ready") for op in graph.ops) for graph in (before, saved)]
    assert made == [2 * LAYERS * len(LINEARS) - 3, LAYERS * len(LINEARS)], "nothing before layer 0 has a gradient"
    phases = {
        op.phase for op in saved.ops if any(saved.tensors[t].name.endswith("ffn.up.weight.ready") for t in op.reads)
    }
    assert phases == {"forward", "backward"}
    assert arithmetic(before) == arithmetic(saved)


def test_inputs_of_frozen_matrices_stay_until_backward_where_the_software_saves_them() -> None:
    """One more tensor for each of them, of which the router has none; wide as the matrix that it is multiplied by."""
    lora = {"rank": 2, "targets": ["attn.q"]}
    before, kept = (
        build(workload(lora=lora, dtypes={"weights": "nf4", "dequantize": way})) for way in ("before", "inputs")
    )
    both = [{op.name: op.reads for op in graph.ops if op.name.endswith("ffn.down.dgrad")} for graph in (before, kept)]
    more = [set(both[1][name]) - set(reads) for name, reads in both[0].items()]
    assert [{kept.tensors[t].size_bytes for t in each} for each in more] == LAYERS * [{2 * 24 * BATCH * SEQUENCE}]
    assert arithmetic(before) == arithmetic(kept)


def test_scores_are_held_while_attention_runs_of_all_keys_masked_ones_too() -> None:
    """Of 4 heads, each of 2 x 9 new tokens and all 9 of its sequence; in decode, of the one new token and 10."""
    for phase, pairs in (("prefill", 2 * 9 * 9), ("decode", 2 * 10)):
        more: dict[str, Any] = {"phase": phase, "batch": 2, "sequence": 9, "steps": 1}
        plain, held = (build(workload(**more, dtypes=dtypes)) for dtypes in ({}, {"scores_bytes": 10}))
        cores = [op.workspace_bytes for op in held.ops if op.name.endswith("attn.core")]
        assert cores == LAYERS * [10 * 4 * pairs]
        assert traffic(plain) == traffic(held)


@pytest.mark.parametrize("part", [GQA, GQA | {"window": 4}, MLA])
def test_pairs_that_a_mask_hides_are_skipped_or_computed(part) -> None:
    """Of 8 tokens each sees itself and those before it, perhaps 4 at most; kernels that skip nothing compute 8 x 8."""
    most = part.get("window") or SEQUENCE
    skipped, computed = (build(workload(part, masked=how)) for how in ("skipped", "computed"))
    for phase in ("forward", "backward"):
        few, all_pairs = (flops(graph, phase, "attention") for graph in (skipped, computed))
        assert few * 2 * SEQUENCE**2 == all_pairs * most * (2 * SEQUENCE - most) > 0
    assert {op.op_class for op in computed.ops if op.name.endswith("bwd/attn.core")} == {"attention_backward"}
    more: dict[str, Any] = {"phase": "prefill", "batch": 2, "steps": 1}
    few, *both = (
        flops(build(workload(part, **more, **how)), "prefill", "attention")
        for how in ({}, {"masked": "computed"}, {"dtypes": {"scores_bytes": 10}})
    )
    chunked = {"phase": "prefill", "batch": 2, "steps": 1, "chunk": 4, "masked": "computed"}
    cores = [op.flops for op in build(workload(part, **chunked)).ops if op.name.endswith("attn.core")]
    held = min(4, most - 1)  # of a window, what the next token sees
    assert cores[::LAYERS] == [cores[0], cores[0] * (held + 4) // 4]
    seen = sum(min(token + 1, most) for token in range(SEQUENCE))
    assert both == [few * SEQUENCE**2 // seen] * 2


def test_matrices_are_kept_otherwise_by_their_names() -> None:
    """Those of feed-forwards alone, one of them in a layer, and the last linear; the last pattern that fits counts."""
    others = {"*/ffn.*": "int4", "L01/ffn.up.*": "bf16", "head/lm.weight": "fp8"}
    plain, kept = (build(workload(phase="decode", dtypes={"others": some})) for some in ({}, others))
    sizes, were = ({t.name: t.size_bytes for t in graph.tensors if t.kind == "weight"} for graph in (kept, plain))
    of_layers = {f"L{i:02}/{name}": (name, i) for i in range(LAYERS) for name in LINEARS if name[:3] == "ffn"}
    right = {f"{name}.weight": int4(*LINEARS[module]) for name, (module, _) in of_layers.items()}
    right["L01/ffn.up.weight"] = 2 * LINEARS["ffn.up"][0] * LINEARS["ffn.up"][1]
    right["head/lm.weight"] = were["head/lm.weight"] // 2 + 4
    assert sizes == were | right
    classes = {op.name.replace("/decode/", "/"): op.op_class for op in kept.ops if op.flops}
    assert {classes[name] for name in of_layers if name != "L01/ffn.up"} == {"matmul_w4"}
    assert (classes["L01/ffn.up"], classes["L00/attn.q"], classes["head/lm"]) == ("matmul", "matmul", "matmul_w8")
    assert arithmetic(kept) == arithmetic(plain)


def test_a_pattern_of_no_matrix_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"dtypes.others: a pattern is for weights that the model has, found 'ffn.*'"):
        build(workload(phase="decode", dtypes={"others": {"ffn.*": "int4"}}))


def refusal(*parts: dict[str, Any], **more: Any) -> str:
    with pytest.raises(ValidationError) as caught:
        workload(*parts, **more)
    return str(caught.value.errors()[0]["ctx"]["error"])


def test_what_has_no_effect_is_refused() -> None:
    said = refusal(VIEWS[0], masked="computed")
    assert said == "a mask hides pairs, which kernels that hold no scores may skip, found none that it hides; remove it"
    assert "masked is for phase train, prefill" in refusal(phase="decode", masked="computed")
    must = "is for weights or experts in a smaller format than compute, found none"
    for key, value in {"dequantize": "before", "arithmetic": "fp8"}.items():
        assert must in refusal(phase="decode", dtypes={key: value})
        assert must in refusal(phase="decode", dtypes={key: value, "weights": "bf16"})
    saved = {"weights": "int4", "dequantize": "saved"}
    assert refusal(phase="decode", dtypes=saved) == (
        "matrices and inputs are saved for backward in training, found inference; set it to before"
    )
    said = refusal(VIEWS[0], phase="prefill", dtypes={"scores_bytes": 4})
    assert said.startswith("scores are of attention to all tokens, or to a window, found another")
    both = {"weights": "fp8", "dequantize": "before", "arithmetic": "fp8"}
    assert "multiplies in compute, found before, and fp8" in refusal(phase="decode", dtypes=both)
    assert "dtypes.arithmetic is for phase prefill" in refusal(
        lora={"rank": 2}, dtypes={"weights": "fp8", "arithmetic": "fp8"}
    )
    for more in ({"experts": "each"}, {"experts": "grouped"}, {"on": {"experts": "host"}}):
        said = refusal(GQA, EXPERTS, phase="decode", dtypes={"weights": "int4", "dequantize": "before"}, **more)
        assert said.startswith("kernels of several experts read them as they are stored, found dequantize: before")
