"""The LLaMA training step against closed forms that know nothing of the builder."""

import json
from collections import Counter
from pathlib import Path

import pytest
from building import build
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.errors import ConfigError
from simulator.graph import Graph, TensorKind
from simulator.graph_builder import GraphBuilder
from simulator.lifetime import Lifetimes, live_bytes
from simulator.workload import Dtypes, LlamaModel, Parallel, Workload

LLAMA3_8B = LlamaModel(layers=32, hidden=4096, heads=32, kv_heads=8, ffn=14336, vocabulary=128256)
TINY = LlamaModel(layers=2, hidden=12, heads=3, kv_heads=1, ffn=7, vocabulary=11)
CONFIGS = Path(__file__).parents[3] / "shared/data/hf_configs"


def train(model: LlamaModel, **more: object) -> Workload:
    fields = {"name": "w", "batch": 1, "sequence": 5, **more}
    return Workload(model=model, **fields)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def paper() -> Graph:
    """The setting of the paper's training rows: sequence 8192, batch 2, optimizer state over 8 devices."""
    return build(train(LLAMA3_8B, batch=2, sequence=8192, parallel=Parallel(data=8, zero_stage=1)))


def size_bytes(graph: Graph, kind: str) -> int:
    return sum(t.size_bytes for t in graph.tensors if t.kind == kind)


def flops(graph: Graph, *phases: str) -> int:
    return sum(op.flops for op in graph.ops if op.phase in phases)


def saved_bytes(graph: Graph, block: str) -> int:
    """Sizes of what a forward op of `block` writes and an op of another phase reads, by walking the ops."""
    written, read = set(), set()
    for op in graph.ops:
        if op.phase == "forward" and op.name.startswith(block):
            written.update(op.writes)
        if op.phase != "forward":
            read.update(op.reads)
    return sum(graph.tensors[t].size_bytes for t in written & read)


def parameters(m: LlamaModel) -> int:
    kv = m.hidden // m.heads * m.kv_heads
    attention = m.hidden * (m.hidden + kv + kv + m.hidden)
    layer = attention + 3 * m.hidden * m.ffn + 2 * m.hidden
    tables = 1 if m.tied_embeddings else 2
    return tables * m.vocabulary * m.hidden + m.layers * layer + m.hidden


def forward_flops(m: LlamaModel, batch: int, sequence: int) -> tuple[int, int]:
    """Linears and attention: two FLOP per weight and token; half of the square of the sequence, twice."""
    norms_and_tables = m.hidden * (2 * m.layers + 1) + m.vocabulary * m.hidden * (not m.tied_embeddings)
    linear = 2 * batch * sequence * (parameters(m) - norms_and_tables)
    head_width = m.hidden // m.heads
    attention = m.layers * batch * m.heads * 2 * (2 * sequence * sequence * head_width) // 2
    return linear, attention


def test_parameters_and_weight_bytes(paper: Graph) -> None:
    assert size_bytes(paper, "weight") == 2 * 8_030_261_248
    assert parameters(LLAMA3_8B) == 8_030_261_248


def test_work_of_the_step(paper: Graph) -> None:
    linear, attention = forward_flops(LLAMA3_8B, 2, 8192)
    assert flops(paper, "forward") == linear + attention
    assert 2 * flops(paper, "backward") == 4 * linear + 5 * attention
    assert flops(paper, "update") == 0
    assert flops(paper, "forward") / 1e15 == pytest.approx(0.281, abs=5e-4)
    assert flops(paper, "forward", "backward") / 1e15 == pytest.approx(0.861, abs=5e-4)


def test_saved_for_backward_is_20_and_a_half_units_a_layer(paper: Graph) -> None:
    unit_bytes, statistics_bytes = 2 * 8192 * 4096 * 2, 2 * 8192 * 32 * 4
    # a block's walk sees its output (saved as the input of the next block) instead of its input: one unit as well
    assert saved_bytes(paper, "L07/") == 41 * unit_bytes // 2 + statistics_bytes
    assert 32 * (41 * unit_bytes // 2) == 88_046_829_568
    assert sum(saved_bytes(paper, f"L{i:02d}/") for i in range(32)) == 88_046_829_568 + 32 * statistics_bytes


def test_fused_swiglu_saves_17_units_a_layer_and_runs_as_much_arithmetic(paper: Graph) -> None:
    shape = {"batch": 2, "sequence": 8192, "parallel": Parallel(data=8, zero_stage=1)}
    fused = build(train(LLAMA3_8B, **shape, swiglu="fused"))
    unit_bytes, statistics_bytes = 2 * 8192 * 4096 * 2, 2 * 8192 * 32 * 4
    assert saved_bytes(fused, "L07/") == 17 * unit_bytes + statistics_bytes
    assert flops(fused, "forward", "backward") == flops(paper, "forward", "backward")
    forward, backward = (next(op for op in fused.ops if op.name == f"L07/{way}/ffn.swiglu") for way in ("fwd", "bwd"))
    gate, up, made = ("L07/ffn.gate.out", "L07/ffn.up.out", "L07/ffn.swiglu.out")
    names = [{fused.tensors[t].name for t in some} for op in (forward, backward) for some in (op.reads, op.writes)]
    assert names == [{gate, up}, {made}, {gate, up, "L07/ffn.down.in.grad"}, {f"{gate}.grad", f"{up}.grad"}]
    assert len(paper.ops) - len(fused.ops) == 32 * 2, "one op less a layer, forward and backward"


def test_gradients_equal_weights_and_the_optimizer_is_sharded(paper: Graph) -> None:
    assert size_bytes(paper, "gradient") == size_bytes(paper, "weight")
    assert size_bytes(paper, "optimizer_state") == 12 * 8_030_261_248 // 8
    assert size_bytes(paper, "optimizer_state") / 1e9 == pytest.approx(12.05, abs=0.005)


def test_the_peak_is_at_the_loss(paper: Graph) -> None:
    live = live_bytes(paper)
    tokens, statistics = 2 * 8192, 32 * 2 * 8192 * 32 * 4
    held = size_bytes(paper, "weight") + size_bytes(paper, "optimizer_state") + size_bytes(paper, "input")
    final_norm, logits = 2 * tokens * 4096 * 2, tokens * 128256 * 2
    peak = held + 88_046_829_568 + statistics + final_norm + logits + 2 * (2 * logits) + 4
    assert paper.ops[int(live.argmax())].name == "head/fwd/loss"
    assert live.max() == peak
    assert peak == 137_501_816_836


def test_gradients_are_all_there_at_the_end_of_backward(paper: Graph) -> None:
    first = next(i for i, op in enumerate(paper.ops) if op.phase == "update")
    held = sum(size_bytes(paper, kind) for kind in ("weight", "optimizer_state", "gradient", "input"))
    assert live_bytes(paper)[first] == held
    assert held / 1e9 == pytest.approx(44.2, abs=0.05)


def test_ops_per_layer(paper: Graph) -> None:
    count = Counter("/".join(op.name.split("/")[:2]) for op in paper.ops)
    for layer in range(32):
        assert count[f"L{layer:02d}/fwd"] == 16
        assert count[f"L{layer:02d}/bwd"] == 26
        assert count[f"L{layer:02d}/update"] == 9
    assert len(paper.ops) == 32 * 51 + 9 + 3


def test_every_op_is_classified(paper: Graph) -> None:
    assert {op.op_class for op in paper.ops} == {"matmul", "attention", "attention_backward", "vector"}
    assert {op.dtype for op in paper.ops if op.phase != "update"} == {"bf16"}
    assert {op.dtype for op in paper.ops if op.phase == "update"} == {"fp32"}
    assert [op.phase for op in paper.ops] == sorted((op.phase for op in paper.ops), key=phase_order)
    assert all((op.flops > 0) == (op.op_class != "vector") for op in paper.ops)
    assert not any(op.barrier for op in paper.ops)


def phase_order(phase: str) -> int:
    return ("forward", "backward", "update").index(phase)


def test_traffic_of_one_op_of_each_kind(paper: Graph) -> None:
    unit, ops = 2 * 8192 * 4096 * 2, {op.name: op for op in paper.ops}
    weight = 4096 * 14336 * 2
    traffic = {
        "L05/fwd/ffn.up": (unit + weight, 7 * unit // 2),
        "L05/bwd/ffn.up.dgrad": (7 * unit // 2 + weight, unit),
        "L05/bwd/ffn.up.wgrad": (7 * unit // 2 + unit, weight),
        "L05/fwd/attn.core": (3 * unit // 2, unit + 2 * 8192 * 32 * 4),
        "L05/bwd/ffn.mul": (3 * 7 * unit // 2, 7 * unit),
        "L05/bwd/attn.v.acc": (2 * unit, unit),
        "L05/update/ffn.up": (weight // 2 // 8 * (12 + 2 + 2), weight // 2 // 8 * (12 + 2)),
        "embed/fwd/tokens": (unit + 2 * 8192 * 4, unit),
    }
    assert {name: (ops[name].read_bytes, ops[name].write_bytes) for name in traffic} == traffic


def test_short_lived_activations_die_at_once(paper: Graph) -> None:
    found, index = Lifetimes(paper), {op.name: i for i, op in enumerate(paper.ops)}
    last = {t.name: paper.ops[found.last_use[i]].name for i, t in enumerate(paper.tensors)}
    assert last["L03/attn.q.out"] == "L03/fwd/rope.q"
    assert last["L03/ffn.down.out"] == "L03/fwd/add2"
    assert last["L03/ffn.mul.out"] == "L03/bwd/ffn.down.wgrad"
    assert last["L03/attn.core.lse"] == "L03/bwd/attn.core"
    assert last["L03/add2.out"] == "L04/bwd/norm1"
    assert last["L03/attn.q.weight.grad"] == "L03/update/attn.q"
    assert index["L03/bwd/attn.q.wgrad"] < index["L03/update/attn.q"]


def test_dimensions_are_those_of_the_published_configuration() -> None:
    path = CONFIGS / "meta-llama--Meta-Llama-3.1-8B.json"
    if not path.exists():
        pytest.skip("the published config.json is not at hand")
    config = json.loads(path.read_text())
    assert (
        LlamaModel(
            layers=config["num_hidden_layers"],
            hidden=config["hidden_size"],
            heads=config["num_attention_heads"],
            kv_heads=config["num_key_value_heads"],
            ffn=config["intermediate_size"],
            vocabulary=config["vocab_size"],
            tied_embeddings=config["tie_word_embeddings"],
        )
        == LLAMA3_8B
    )


def brute_force_live_bytes(graph: Graph) -> list[int]:
    """Per op: what persists, what was written before and is read later, and what the op itself touches."""
    live = []
    for i, op in enumerate(graph.ops):
        before = {t for o in graph.ops[:i] for t in o.writes}
        later = {t for o in graph.ops[i + 1 :] for t in (*o.reads, *o.writes)}
        there = (before & later) | {*op.reads, *op.writes}
        there |= {t for t, tensor in enumerate(graph.tensors) if tensor.persistent}
        live.append(op.workspace_bytes + sum(graph.tensors[t].size_bytes for t in there))
    return live


@pytest.mark.parametrize("tied", [False, True])
def test_live_bytes_of_a_tiny_model_equal_those_of_the_oracle(tied: bool) -> None:
    graph = build(train(TINY.model_copy(update={"tied_embeddings": tied})))
    assert live_bytes(graph).tolist() == brute_force_live_bytes(graph)


def test_tied_embeddings_share_one_gradient_and_one_update() -> None:
    graph = build(train(TINY.model_copy(update={"tied_embeddings": True})))
    found, names = Lifetimes(graph), [t.name for t in graph.tensors]
    grad = names.index("embed/tokens.weight.grad")
    assert [graph.ops[i].name for i in found.uses[grad]] == [
        "head/bwd/lm.wgrad",
        "embed/bwd/tokens",
        "embed/update/tokens",
    ]
    assert "head/lm.weight" not in names


def test_shards_are_rounded_up_to_whole_parameters() -> None:
    graph = build(train(TINY, parallel=Parallel(data=8, zero_stage=1)))
    sizes = {t.name: t.size_bytes for t in graph.tensors}
    assert sizes["embed/tokens.weight.state"] == 12 * 17  # 11 * 12 / 8 = 16.5
    unsharded = build(train(TINY, parallel=Parallel(data=8, zero_stage=0)))
    assert size_bytes(unsharded, "optimizer_state") == 12 * parameters(TINY)


@pytest.mark.parametrize("copies", [0, 1, 3])
def test_the_loss_holds_the_copies_it_is_told_to(copies: int) -> None:
    graph = build(train(TINY, dtypes=Dtypes(logits_copies_fp32=copies)))
    ops = {op.name: op for op in graph.ops}
    assert ops["head/fwd/loss"].workspace_bytes == copies * 5 * 11 * 4
    assert ops["head/bwd/loss"].workspace_bytes == min(copies, 1) * 5 * 11 * 4
    more = build(train(TINY, dtypes=Dtypes(logits_copies_fp32=copies, gradient_copies_fp32=2)))
    held = {op.name: op.workspace_bytes for op in more.ops if op.name.endswith("/loss")}
    assert held == {"head/fwd/loss": copies * 5 * 11 * 4, "head/bwd/loss": 2 * 5 * 11 * 4}


def test_names_of_more_than_a_hundred_layers_sort() -> None:
    model = LlamaModel(layers=101, hidden=2, heads=1, kv_heads=1, ffn=1, vocabulary=1)
    blocks = [op.name.split("/")[0] for op in build(train(model)).ops if op.name.endswith("fwd/norm1")]
    assert blocks == sorted(blocks)


@st.composite
def workloads(draw: st.DrawFn) -> Workload:
    kv_heads, group, head = draw(st.integers(1, 3)), draw(st.integers(1, 3)), draw(st.integers(1, 4))
    model = LlamaModel(
        layers=draw(st.integers(1, 3)),
        hidden=kv_heads * group * head,
        heads=kv_heads * group,
        kv_heads=kv_heads,
        ffn=draw(st.integers(1, 9)),
        vocabulary=draw(st.integers(1, 30)),
        tied_embeddings=draw(st.booleans()),
    )
    return train(
        model,
        batch=draw(st.integers(1, 3)),
        sequence=draw(st.integers(1, 7)),
        dtypes=Dtypes(compute=draw(st.sampled_from(["bf16", "fp32"])), logits_copies_fp32=draw(st.integers(0, 3))),
        parallel=Parallel(data=draw(st.integers(1, 5)), zero_stage=draw(st.sampled_from([0, 1]))),
    )


@settings(max_examples=examples(80), deadline=None)
@given(workloads())
def test_any_dimensions(w: Workload) -> None:
    m, graph = w.model, build(w)
    assert m is not None
    linear, attention = forward_flops(m, w.batch, w.sequence)
    element = 4 if w.dtypes.compute == "fp32" else 2
    found = Lifetimes(graph)
    dead = Counter(t for ts in found.dead_after for t in ts)
    assert size_bytes(graph, "weight") == element * parameters(m) == size_bytes(graph, "gradient")
    assert flops(graph, "forward") == linear + attention
    assert 2 * flops(graph, "backward") == 4 * linear + 5 * attention
    assert all(dead[t] == (not tensor.persistent) for t, tensor in enumerate(graph.tensors))
    assert live_bytes(graph).tolist() == brute_force_live_bytes(graph)
    for t, tensor in enumerate(graph.tensors):
        if tensor.kind == TensorKind.GRADIENT:
            assert graph.ops[found.last_use[t]].phase == "update"
            assert all(graph.ops[i].phase == "backward" for i in found.uses[t][:-1])


def file_workload(**more: object) -> Workload:
    return Workload(name="w", graph="g.jsonl", **more)  # type: ignore[arg-type]


def read_graph(path: Path, _views: str) -> Graph:
    builder = GraphBuilder(str(path))
    builder.tensor("x", 1, "input", persistent=path.parent == Path("persistent"))
    builder.op("f", ["x"])
    return builder.build()


def test_a_graph_file_is_found_beside_its_document() -> None:
    graph = build(file_workload(), Path("some/folder"), read_graph)
    assert graph.name == "some/folder/g.jsonl"
    assert graph.steps == 1


def test_the_workload_says_how_often_a_graph_file_runs() -> None:
    assert build(file_workload(steps=7), Path("persistent"), read_graph).steps == 7
    with pytest.raises(
        ConfigError, match="workload w: a tensor that exists before the first op of a graph of several steps"
    ):
        build(file_workload(steps=2), Path("other"), read_graph)


def test_a_graph_file_needs_a_reader() -> None:
    with pytest.raises(ConfigError, match="workload w: a graph comes from a model or a file"):
        build(file_workload())
