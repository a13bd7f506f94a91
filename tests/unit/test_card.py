"""The card of a model and a machine: counted from what is built, held against what model cards print."""

import re

import pytest

from simulator import catalog
from simulator.builders import build_job, layouts
from simulator.builders.weights import parameters
from simulator.graph import Job
from simulator.report.card import (
    amount,
    holdings,
    layout_data,
    layout_text,
    line,
    machine_amounts,
    model_amounts,
    texts,
)
from simulator.units import human
from simulator.workload import Workload


@pytest.mark.parametrize(
    ("name", "every", "active"),
    [
        ("llama31_8b_decode", 8.03e9, 8.03e9),  # model card: 8B; index of its safetensors: 16,060,522,496 B in bf16
        ("llama31_405b_decode", 405.8e9, 405.8e9),  # arXiv 2407.21783, table 3: 405B
        ("mixtral_8x7b_decode", 46.7e9, 12.9e9),  # arXiv 2401.04088, introduction: 47B and 13B
        ("qwen3_30b_decode", 30.5e9, 3.3e9),  # model card: 30.5B in all, 3.3B activated
        ("qwen3_235b_decode", 235e9, 22e9),  # model card: 235B in all, 22B activated
        ("deepseek_v3_decode", 671e9, 37e9),  # arXiv 2412.19437, abstract: 671B and 37B
    ],
)
def test_parameters_are_those_of_the_model_card(name, every, active):
    found = parameters(catalog.read_workload(name))
    assert found == (pytest.approx(every, rel=0.005), pytest.approx(active, rel=0.03))


def card_of(name):
    work = catalog.read_workload(name)
    return texts(model_amounts(work, build_job(work)))


def test_a_dense_model_says_what_a_token_takes():
    card = card_of("llama31_8b_decode")
    assert card["parameters"] == "8.03 billion"
    assert card["weights"] == "16.1 GB"
    assert card["KV cache"] == "131 kB a token"  # 2 * 32 layers * 8 heads * 128 * 2 B
    assert "FLOP a token" in card["arithmetic"]
    assert line(card).startswith("parameters 8.03 billion; weights 16.1 GB; KV cache 131 kB a token; arithmetic ")


@pytest.mark.parametrize(("tensor", "kept"), [(1, 8192), (2, 4096), (4, 2048), (8, 2048)])
def test_a_cache_over_ranks_is_that_of_one(tensor, kept):
    """Of four KV heads each of eight ranks holds one; and each its part of a state."""
    model = {"family": "decoder", "layers": 4, "hidden": 512, "vocabulary": 128, "tied_embeddings": True}
    model["attention"] = {"kind": "gqa", "heads": 8, "kv_heads": 4, "head_size": 128}
    model |= {"feed_forward": {"kind": "dense", "width": 64}}
    work = Workload.model_validate({"name": "w", "model": model, "phase": "decode", "batch": 1, "sequence": 8,
                                    "parallel": {"ranks": "all", "tensor": tensor}})  # fmt: skip
    text, counts = model_amounts(work, build_job(work))["KV cache"]
    assert counts["kv_token_bytes"] == kept
    assert text == f"{human(kept, 'B')} a token{' and rank' * (tensor > 1)}"
    model["attention"] = {"kind": "delta", "heads": 8, "head_size": 16}
    work = Workload.model_validate(work.model_dump(by_alias=True, exclude_unset=True) | {"model": model})
    _, counts = model_amounts(work, None)["KV cache"]
    assert counts["state_bytes"] * tensor == 4 * (8 * 16 * 16 * 4 + 3 * 128 * 4 * 2)


def test_layers_with_a_state_say_what_a_sequence_keeps():
    work = catalog.read_workload("llama31_8b_hits")
    attention = {"kind": "delta", "heads": 4, "head_size": 16}
    model = {"family": "decoder", "layers": 4, "hidden": 64, "vocabulary": 128, "attention": attention}
    model |= {"feed_forward": {"kind": "dense", "width": 64}}
    model["others"] = [{"start": 3, "attention": {"kind": "gqa", "heads": 4, "kv_heads": 2, "head_size": 16}}]
    work = Workload.model_validate(work.model_dump(by_alias=True, exclude_unset=True) | {"model": model})
    card = texts(model_amounts(work, None))
    kept = 3 * (4 * 16 * 16 * 4 + 3 * 64 * 4 * 2)
    told = f"128 B a token, in 3 of 4 layers a state of {human(kept, 'B')} a sequence, so that no prefix is found again"
    assert card["KV cache"] == told


def test_a_job_says_whose_weights_they_are_and_how_many_ranks_there_are():
    card = card_of("llama3_8b_train_2x2x2")
    assert "KV cache" not in card, "training has none"
    assert card["weights"].endswith(" a rank")
    assert card["graph"].endswith(" in 8 ranks")


def test_experts_say_what_is_active():
    assert card_of("qwen3_30b_decode")["parameters"] == "30.5 billion, 3.35 billion active for a token"


def test_of_requests_weights_and_arithmetic_are_told_but_no_graph():
    card = texts(model_amounts(catalog.read_workload("llama31_8b_hits"), None))
    alone = catalog.read_workload("llama31_8b_decode").model_copy(update={"batch": 1, "sequence": 1})
    first = texts(model_amounts(alone, build_job(alone)))
    assert list(card) == ["parameters", "weights", "KV cache", "arithmetic"]
    assert card["weights"] == first["weights"] == "16.1 GB"
    assert card["arithmetic"] == f"{first['arithmetic']}, the first of a sequence"


def test_a_graph_says_what_is_in_it():
    from simulator import formats

    work = catalog.read_workload("residency_acceptance")
    graph = formats.read_graph(catalog.path_of("residency_acceptance", "workload").with_name(work.graph))
    assert list(model_amounts(work, Job.of(graph)))[-1] == "graph"


def test_a_machine_says_its_peaks_and_tiers():
    card = texts(machine_amounts(catalog.read_hardware("h100_sxm")))
    assert card["peak arithmetic"].startswith("bf16 989 TFLOP/s")
    assert card["hbm"] == "80.0 GB, 3.35 TB/s"


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (999, "999"),
        (999_400_000, "999 million"),
        (999_500_000, "1.00 billion"),
        (8_030_261_248, "8.03 billion"),
        (405e9, "405 billion"),
        (1e12, "1.00 trillion"),
    ],
)
def test_amounts_have_three_digits(number, said):
    assert amount(int(number)) == said


MLA = {"kind": "mla", "heads": 4, "kv_lora_rank": 160, "qk_nope": 5, "qk_rope": 4, "v_head": 7}
EXPERTS = {"kind": "experts", "routed": 8, "top_k": 2, "width": 200, "shared": 1, "router_bias": True}


def stored(phase: str, **more: object) -> Workload:
    model = {"family": "decoder", "layers": 3, "hidden": 144, "vocabulary": 160, "attention": MLA}
    model |= {"feed_forward": EXPERTS, "others": [{"stop": 1, "feed_forward": {"kind": "dense", "width": 264}}]}
    return Workload.model_validate({"name": "w", "phase": phase, "model": model, "batch": 2, "sequence": 8} | more)


@pytest.mark.parametrize(
    "workload",
    [
        stored("decode", dtypes={"weights": "fp8"}),
        stored("decode", dtypes={"weights": "fp8", "experts": "int4"}, parallel={"ranks": "all", "tensor": 2}),
        stored("prefill", dtypes={"compute": "fp32", "experts": "mxfp4"}),
        stored("train", dtypes={"weights": "nf4"}, frozen=["*/attn.*"]),
        stored("train", dtypes={"weights": "nf4"}, lora={"rank": 2}),
        stored("train", dtypes={"compute": "fp32"}),
        *map(catalog.read_workload, ("kimi_k2_decode", "deepseek_v3_decode", "llama3_70b_qlora")),
    ],
    ids=lambda workload: f"{workload.name}, {workload.phase}",
)
def test_the_layout_counts_weights_as_they_are_stored(workload):
    """Tensor by tensor as in the graph, and in all what is held; a table has one line for those of one size alone."""
    job = build_job(workload)
    sizes = {tensor.name: tensor.size_bytes for tensor in job.graphs[0].tensors}
    weights = layouts(workload)
    told = {weight["weight"]: weight["rank_bytes"] for weight in layout_data(job, weights)["weights"]}
    assert told == {name: sizes[name] for name in weights}
    (held,) = holdings(job)
    assert sum(told.values()) == held.kept_bytes["weight"] + held.kept_bytes["expert"]
    lines = layout_text(job, workload, weights).partition("how weights are cut")[2].splitlines()
    alike = {(re.sub(r"\d+", "*", name), human(size, "B")) for name, size in told.items()}
    for name, size in alike:
        assert any(f"  {name} " in line and f"  {size} " in line for line in lines), name
