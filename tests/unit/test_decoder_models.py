"""Shipped models of inference against what their publishers print."""

import pytest
from building import build
from examples import some
from parameters import Count, count

from simulator import catalog
from simulator.graph import Graph
from simulator.workload import DecoderModel, Mla, Workload

INFERENCE = [n for n in catalog.names("workload") if n.endswith(("_decode", "_prefill"))]


def shipped(name: str) -> Workload:
    return catalog.read_workload(name)


def model_of(name: str) -> DecoderModel:
    model = shipped(name).model
    assert isinstance(model, DecoderModel)
    return model


TOTAL = {
    # billions, as printed
    "llama31_8b": 8.03,  # model card meta-llama/Llama-3.1-8B
    "llama31_70b": 70.6,  # model card meta-llama/Llama-3.1-70B
    "llama31_405b": 405.9,  # model card meta-llama/Llama-3.1-405B
    "mixtral_8x7b": 46.7,  # mistral.ai/news/mixtral-of-experts
    "qwen3_30b": 30.5,  # model card Qwen/Qwen3-30B-A3B
    "qwen3_235b": 235,  # model card Qwen/Qwen3-235B-A22B
    "deepseek_v3": 671,  # arXiv 2412.19437, abstract
}


@pytest.mark.parametrize("name", TOTAL)
def test_parameters_are_the_published_ones_within_half_a_percent(name: str) -> None:
    assert count(model_of(f"{name}_decode")).total / 1e9 == pytest.approx(TOTAL[name], rel=0.005)


def test_parameters_that_are_known_to_the_last_one() -> None:
    """Elements of the published weights by the headers of their files, without what only predicts further tokens."""
    exact = {
        "llama31_8b": 8_030_261_248,
        "llama31_70b": 70_553_706_496,
        "mixtral_8x7b": 46_702_792_704,
        "qwen3_30b": 30_532_122_624,
        "kimi_k2": 1_026_408_232_448,
        "deepseek_v3": 671_026_419_200,
    }
    assert {name: count(model_of(f"{name}_decode")).total for name in exact} == exact


@pytest.mark.parametrize(
    ("name", "printed", "within", "table"),
    [
        ("mixtral_8x7b", 12.9, 0.005, True),  # mistral.ai/news/mixtral-of-experts
        ("deepseek_v3", 36.6, 0.005, False),  # README_WEIGHTS.md of the model card: with the head, without the table
        ("qwen3_235b", 22, 0.01, True),  # model card, two digits
        ("qwen3_30b", 3.3, 0.02, True),  # model card, two digits, cut off: 3.35
        ("kimi_k2", 32, 0.01, False),  # model card, two digits
    ],
)
def test_active_parameters_are_the_published_ones(name: str, printed: float, within: float, table: bool) -> None:
    found = count(model_of(f"{name}_decode"))
    active = found.active if table else found.active - found.table
    assert active / 1e9 == pytest.approx(printed, rel=within)


def test_kimi_k2_has_fewer_parameters_than_its_paper_prints() -> None:
    """1.04 T (arXiv 2507.20534); config.json gives 1.3 % less, and 1.04 T only with experts in the first layer too."""
    model = model_of("kimi_k2_decode")
    total = count(model).total
    assert round(count(model.model_copy(update={"others": ()})).total / 1e12, 2) == 1.04
    assert total / 1.04e12 == pytest.approx(0.987, abs=0.001)


KV_BYTES = {
    "llama31_8b": 32 * 2 * 8 * 128 * 2,
    "llama31_70b": 80 * 2 * 8 * 128 * 2,
    "llama31_405b": 126 * 2 * 8 * 128 * 2,
    "mixtral_8x7b": 32 * 2 * 8 * 128 * 2,
    "qwen3_30b": 48 * 2 * 4 * 128 * 2,
    "qwen3_235b": 94 * 2 * 4 * 128 * 2,
    "deepseek_v3": 61 * 576 * 2,
    "kimi_k2": 61 * 576 * 2,
}


@pytest.mark.parametrize("name", some([n for n in INFERENCE if n.rpartition("_")[0] in KV_BYTES], 3))
def test_the_cache_takes_what_its_closed_form_says(name: str) -> None:
    workload, token_bytes = shipped(name), KV_BYTES[name.rpartition("_")[0]]
    kept = {t.name: t.size_bytes for t in build(workload).tensors if t.kind == "kv_cache"}
    tokens = workload.sequence + (workload.new_tokens if workload.phase == "decode" else 0)
    assert sum(kept.values()) == workload.batch * tokens * token_bytes


def flops(graph: Graph, op_class: str) -> int:
    """Of a class, also of kernels that convert weights as they go (``matmul_w8``)."""
    return sum(op.flops for op in graph.ops if op.op_class.startswith(op_class))


def idle(model: DecoderModel, found: Count) -> int:
    """Active parameters that no token is multiplied by: norms, biases of routers, and the table."""
    attention = model.attention
    if isinstance(attention, Mla):
        norms = (attention.q_lora_rank or 0) + attention.kv_lora_rank
    else:
        norms = 2 * attention.head_size if attention.qk_norms else 0
    layers = model.layers * (2 * model.hidden + norms)
    feds = [(one.feed_forward, number) for one, number in model.kinds.items()]
    biases = sum(number * one.routed for one, number in feds if getattr(one, "router_bias", False))
    return layers + biases + model.hidden + found.table


@pytest.mark.parametrize("name", KV_BYTES)
def test_a_token_takes_two_flop_for_each_active_parameter_and_its_attention(name: str) -> None:
    workload, model = shipped(f"{name}_decode"), model_of(f"{name}_decode")
    graph, found, attention = build(workload), count(model), model.attention
    assert flops(graph, "matmul") == 2 * workload.batch * (found.active - idle(model, found))
    pair = attention.heads * (2 * (2 * 512 + 64) if isinstance(attention, Mla) else 4 * 128)
    assert flops(graph, "attention") == workload.batch * model.layers * (workload.sequence + 1) * pair


def test_weights_in_eight_and_four_bits_take_their_scales() -> None:
    found = {t.name: t.size_bytes for t in build(shipped("deepseek_v3_decode")).tensors}
    assert found["L03/attn.kv_a.weight"] == 7168 * 576 + 56 * 5 * 4
    assert found["L03/ffn.gate.weight"] == 256 * (7168 * 2048 + 56 * 16 * 4)
    assert found["L03/ffn.router.weight"] == 7168 * 256 * 2
    assert found["head/lm.weight"] == found["embed/tokens.weight"] == 7168 * 129280 * 2
    found = {t.name: t.size_bytes for t in build(shipped("llama31_405b_decode")).tensors}
    assert found["L000/ffn.gate.weight"] == 16384 * 53248 // 2 + 128 * 53248 * 20 // 8


def test_weights_of_kimi_k2_take_as_many_bytes_as_their_files() -> None:
    """1,029,173,256,720 B by the headers of the published files; biases of routers are fp32 there, 46 kB more."""
    graph = build(shipped("kimi_k2_decode"))
    weights = sum(t.size_bytes for t in graph.tensors if t.kind in ("weight", "expert"))
    assert weights == pytest.approx(1_029_173_256_720, rel=1e-7)
    assert flops(graph, "matmul") == 2 * 16 * 31_686_066_176, "parameters of the linears that a token goes through"


def test_sparse_attention_adds_its_gates_and_its_compression() -> None:
    """A gate of each view for each head, and an MLP of 32 latents with their positions: 0.1 % of the parameters."""
    found, dense = (count(model_of(f"{name}_decode")) for name in ("deepseek_v3_nsa", "deepseek_v3"))
    assert found.total - dense.total == 61 * (7168 * 3 * 128 + 576 * 576 * 33 + 32 * 576)
    assert found.total / 1e9 == pytest.approx(671, rel=0.005)


def test_a_rank_of_a_node_holds_its_experts_and_the_cache_in_blocks() -> None:
    """65,537 tokens are 1,025 blocks of 64; 4,095 blocks of 32, 16 apart, are compressed."""
    work = shipped("deepseek_v3_nsa_decode")
    by_kind: dict[str, int] = {}
    for tensor in build(work).tensors:
        by_kind[tensor.kind] = by_kind.get(tensor.kind, 0) + tensor.size_bytes
    assert by_kind["kv_cache"] == 61 * 576 * 2 * (1025 * 64 + 4095)
    assert by_kind["expert"] == 58 * 16 * 3 * (7168 * 2048 + 56 * 16 * 4)
