"""Feed-forwards without a gate, further norms, parallel parts, tables, encoders and towers, against closed forms.

The forms know nothing of the builder. ``H``, ``F`` and ``V`` are widths of the residual, the feed-forward, the
vocabulary; queries have 24 elements, keys and values 12.
"""

from __future__ import annotations

from collections import Counter
from math import prod
from typing import Any

import pytest
from building import build
from parameters import count
from pydantic import ValidationError
from trained import LAYOUTS, by_op, flops, saved_bytes, sizes

from simulator.builders import build_job
from simulator.builders.specs import specs
from simulator.errors import ConfigError
from simulator.workload import DecoderModel, Workload

H, F, V, LAYERS, BATCH, SEQUENCE = 16, 24, 40, 3, 2, 8
T, ENCODED = BATCH * SEQUENCE, 6
GQA = {"kind": "gqa", "heads": 4, "kv_heads": 2, "head_size": 6}
PLAIN = {"kind": "dense", "width": F, "gate": False}
ATTENTION, PAIR = 24 * H * 2 + 2 * 12 * H, 24
"""Parameters of the four matrices; elements of a key or a value of all heads."""

VARIANTS: dict[str, tuple[dict[str, Any], int, int, int]] = {
    # what the model says; matrices of a layer; other parameters of a layer; and of both ends, beside the tables
    "gpt2": (
        {"norm_weights": "both", "positions": 9, "attention": GQA | {"rotary": False, "biases": ["q", "k", "v", "o"]}}
        | {"feed_forward": PLAIN | {"biases": True}},
        ATTENTION + 2 * H * F, 4 * H + 2 * 24 + H + F + H - 24 + 24, 9 * H + 2 * H,
    ),
    "gptj": (
        {"parallel": True, "norms": "shared", "norm_weights": "both", "feed_forward": PLAIN, "head_biases": ["lm"]},
        ATTENTION + 2 * H * F, 2 * H, 2 * H + V,
    ),
    "neox": ({"parallel": True, "feed_forward": PLAIN}, ATTENTION + 2 * H * F, 2 * H, H),
    "cohere": ({"parallel": True, "norms": "shared"}, ATTENTION + 3 * H * F, H, H),
    "olmo": ({"norm_weights": "none"}, ATTENTION + 3 * H * F, 0, 0),
    "olmo2": ({"norms": "after"}, ATTENTION + 3 * H * F, 2 * H, H),
    "bloom": ({"embedding_norm": True, "norm_weights": "both"}, ATTENTION + 3 * H * F, 4 * H, 4 * H),
    "bert": (
        {"norms": "sum", "norm_weights": "both", "embedding_norm": True, "final_norm": False, "segments": 2}
        | {"head_transform": True, "head_biases": ["transform", "lm"], "positions": 8, "causal": False},
        ATTENTION + 3 * H * F, 4 * H, 2 * H + 10 * H + H * H + H + 2 * H + V,
    ),
    "electra": (
        {"causal": False, "norm_weights": "both", "embedding_norm": True, "embedding_width": 8, "positions": 8}
        | {"head_transform": True, "tied_embeddings": True},
        ATTENTION + 3 * H * F, 4 * H, 2 * H + 8 * 8 + 2 * 8 + 8 * H + H + H * 8 + 2 * 8 - 2 * V * H + V * 8,
    ),
    "opt 350m": (
        {"norm_weights": "both", "embedding_width": 8, "positions": 8, "tied_embeddings": True},
        ATTENTION + 3 * H * F, 4 * H, 2 * H + 8 * H + 2 * 8 * H - 2 * V * H + V * 8,
    ),
    "nemotron": ({"feed_forward": {"kind": "experts", "routed": 4, "top_k": 4, "width": 6, "gate": False}},
                 ATTENTION + 4 * H + 4 * 2 * H * 6, 2 * H, H),
    "bart": ({"encoded": ENCODED, "norms": "sum"}, 2 * ATTENTION + 3 * H * F, 3 * H, H),
}  # fmt: skip
"""In which all parameters of a layer but norms and biases multiply."""


def workload(name: str, phase: str = "train", **more: Any) -> Workload:
    model = {"family": "decoder", "layers": LAYERS, "hidden": H, "vocabulary": V, "attention": GQA}
    model |= {"feed_forward": {"kind": "dense", "width": F}} | (VARIANTS[name][0] if name else {})
    data = {"name": "w", "model": model | more.pop("model", {}), "batch": BATCH, "sequence": SEQUENCE, "phase": phase}
    return Workload.model_validate(data | more)


def model_of(found: Workload) -> DecoderModel:
    assert isinstance(found.model, DecoderModel)
    return found.model


ENCODERS, NARROW = ("bert", "electra"), ("electra", "opt 350m")


def head(name: str) -> int:
    """Work of a token in the head, in parameters."""
    return H * 8 + 8 * V if name in NARROW else H * V + (H * H if name == "bert" else 0)


def ends(name: str) -> int:
    """The same with the embedding."""
    return head(name) + (8 * H if name in NARROW else 0)


def across(name: str, tokens: int) -> int:
    """Work to make keys and values of the encoder's rows in place of those of so many tokens, in parameters."""
    return (ENCODED * BATCH - tokens) * 2 * 12 * H if name == "bart" else 0


@pytest.mark.parametrize("name", VARIANTS)
def test_parameters_by_hand(name: str) -> None:
    _, matrices, more, rest = VARIANTS[name]
    found = workload(name)
    assert count(model_of(found)).total == LAYERS * (matrices + more) + rest + 2 * V * H
    graph = build(found)
    held = sizes(graph, "weight", "expert")
    assert sum(held.values()) == 2 * count(model_of(found)).total
    assert sizes(graph, "gradient") == {f"{weight}.grad": size for weight, size in held.items()}
    assert sizes(graph, "optimizer_state") == {f"{weight}.state": 6 * size for weight, size in held.items()}


@pytest.mark.parametrize("name", VARIANTS)
def test_weights_are_there_whether_an_op_reads_them_or_not(name: str) -> None:
    """As those of an encoder's head, which does not run in prefill."""
    found = workload(name, "prefill")
    assert sum(sizes(build(found), "weight", "expert").values()) == 2 * count(model_of(found)).total


@pytest.mark.parametrize("name", VARIANTS)
def test_work_of_a_training_step(name: str) -> None:
    """Half of the square of all pairs attends; of an encoder, all of it."""
    graph, matrices = build(workload(name)), VARIANTS[name][1]
    linear = 2 * (T * (LAYERS * matrices + ends(name)) + LAYERS * across(name, T))
    pairs = LAYERS * T * (SEQUENCE * (2 if name in ENCODERS else 1) + 2 * ENCODED * (name == "bart"))
    assert flops(graph, "forward", "matmul") == linear
    assert flops(graph, "backward", "matmul") == 2 * linear
    assert flops(graph, "forward", "attention") == 2 * pairs * PAIR
    assert flops(graph, "backward", "attention") == 5 * pairs * PAIR


@pytest.mark.parametrize("name", VARIANTS)
def test_work_of_prefill_and_decode(name: str) -> None:
    matrices = VARIANTS[name][1]
    graph = build(workload(name, "prefill"))
    embed = 8 * H if name in NARROW else 0
    if name in ENCODERS:  # puts the rows of all tokens out, and no logits
        assert flops(graph, "prefill", "matmul") == 2 * T * (LAYERS * matrices + embed)
        assert flops(graph, "prefill", "attention") == 4 * LAYERS * T * SEQUENCE * PAIR
        assert [graph.tensors[t].size_bytes for t in graph.outputs] == [2 * T * H]
        return
    linear = 2 * (T * (LAYERS * matrices + embed) + BATCH * head(name) + LAYERS * across(name, T))
    seen = T * (SEQUENCE + 1) // 2 + T * ENCODED * (name == "bart")
    assert flops(graph, "prefill", "matmul") == linear
    assert flops(graph, "prefill", "attention") == 4 * LAYERS * seen * PAIR
    graph = build(workload(name, "decode", sequence=7, new_tokens=1))
    seen = BATCH * (8 + ENCODED * (name == "bart"))
    made = 2 * 12 * H if name == "bart" else 0  # the cache has the keys and values of the encoder's rows
    assert flops(graph, "decode", "matmul") == 2 * BATCH * (LAYERS * (matrices - made) + ends(name))
    assert flops(graph, "decode", "attention") == 4 * LAYERS * seen * PAIR
    kept = {"kv": BATCH * 7, "kv.tail": BATCH} | ({"kv.across": BATCH * ENCODED} if name == "bart" else {})
    expected = {f"L0{layer}/{end}": 2 * 2 * 12 * n for layer in range(LAYERS) for end, n in kept.items()}
    assert sizes(graph, "kv_cache") == expected


SAVED = {
    # of a token, in elements: what norms take and make; q, k, v and the output; what activations take and make
    "gpt2": 4 * H + 2 * 24 + 2 * 12 + 2 * F,
    "gptj": 2 * H + 2 * 24 + 2 * 12 + 2 * F,
    "neox": 3 * H + 2 * 24 + 2 * 12 + 2 * F,
    "cohere": 2 * H + 2 * 24 + 2 * 12 + 4 * F,
    "olmo": 4 * H + 2 * 24 + 2 * 12 + 4 * F,
    "olmo2": 4 * H + 2 * 24 + 2 * 12 + 4 * F,
    "bert": 4 * H + 2 * 24 + 2 * 12 + 4 * F,
}


@pytest.mark.parametrize("name", SAVED)
def test_what_a_layer_saves_for_backward(name: str) -> None:
    """And a statistic (fp32) of each row and head. The input of the next layer counts there."""
    assert saved_bytes(build(workload(name)), "L01/") == T * (2 * SAVED[name] + 4 * 4)


@pytest.mark.parametrize(
    ("norms", "order"),
    [
        ("before", "norm1 attn.o add1 norm2 ffn.down add2"),
        ("both", "norm1 attn.o norm1.after add1 norm2 ffn.down norm2.after add2"),
        ("after", "attn.o norm1.after add1 ffn.down norm2.after add2"),
        ("sum", "attn.o add1 norm1.sum ffn.down add2 norm2.sum"),
    ],
)
def test_where_norms_stand(norms: str, order: str) -> None:
    graph = build(workload("", "prefill", model={"norms": norms}))
    names = [op.name.split("/")[-1] for op in graph.ops if op.name.startswith("L01/")]
    assert [name for name in names if name in order.split()] == order.split()


@pytest.mark.parametrize("phase", ["train", "prefill", "decode"])
def test_rotary_embeddings_are_where_the_model_has_them(phase: str) -> None:
    for name, has_some in (("gpt2", False), ("gptj", True)):
        ops = build(workload(name, phase, sequence=8 if phase != "decode" else 7)).ops
        assert any("/rope." in op.name for op in ops) == has_some


def test_parallel_parts_take_the_same_rows() -> None:
    for norms, taken in (("shared", "norm1.out"), ("before", "norm2.out")):
        graph = build(workload("", "prefill", model={"norms": norms, "parallel": True}))
        ops = [op for op in graph.ops if op.name.startswith("L00/")]
        reads = {op.name.split("/")[-1]: {graph.tensors[t].name for t in op.reads} for op in ops}
        assert f"L00/{taken}" in reads["ffn.up"]
        assert "L00/norm1.out" in reads["attn.q"]
        assert reads["add1"] == {"L00/attn.o.out", "L00/ffn.down.out"}
        assert reads["add2"] == {"embed/tokens.out", "L00/add1.out"}


@pytest.mark.parametrize(("name", "sums"), [("neox", 1), ("cohere", 1), ("olmo", 2), ("gpt2", 2)])
def test_parallel_parts_are_summed_up_over_ranks_at_once(name: str, sums: int) -> None:
    graph = build_job(workload(name, "prefill", parallel={"ranks": "all", "tensor": 2})).graphs[0]
    assert sum(op.collective is not None for op in graph.ops if op.name.startswith("L01/")) == sums


@pytest.mark.parametrize("layout", [one for one in LAYOUTS if one["expert"] == 1 and one["pipeline"] == 1])
@pytest.mark.parametrize("name", VARIANTS)
def test_all_ranks_do_the_work_of_one(name: str, layout: dict[str, Any]) -> None:
    parallel = {"ranks": "all", **{key: value for key, value in layout.items() if key != "expert"}}
    job, alone = build_job(workload(name, parallel=parallel)), build(workload(name))
    graphs = [job.graphs[index] for index in job.graph_of]
    alike = ("transform", "ffn.router", "in", "out")
    whole = alike if layout["sequence"] else ()  # each rank has a part of the tokens
    for phase in ("forward", "backward"):
        once, found = by_op([alone], phase), by_op(graphs, phase)
        times = layout["data"] * layout["micro_batches"]
        for op, work in once.items():
            copies = layout["tensor"] if op in alike and op not in whole else 1
            assert found[op] == times * copies * work, op


@pytest.mark.parametrize("name", ["gptj", "neox", "bert", "gpt2", "bart"])
@pytest.mark.parametrize("part", ["layer", "attention", "feed_forward"])
def test_what_runs_again_makes_the_same_gradients(name: str, part: str) -> None:
    graph, alone = build(workload(name, checkpoint={"part": part})), build(workload(name))
    again = {op.name.rsplit("/", 1)[0] for op in graph.ops if "/again/" in op.name}
    assert len(again) == LAYERS
    assert sizes(graph, "gradient") == sizes(alone, "gradient")
    assert saved_bytes(graph, "L01/") < saved_bytes(alone, "L01/")
    backward = [Counter(op.name for op in one.ops if "/bwd/" in op.name) for one in (graph, alone)]
    assert backward[0] == backward[1]


@pytest.mark.parametrize("name", ["gpt2", "gptj", "bert", "bart"])
def test_adapters_stand_beside_matrices(name: str) -> None:
    graph = build(workload(name, lora={"rank": 2, "targets": ["ffn.*", "attn.*"]}))
    linears = {"gpt2": 6, "gptj": 6, "bert": 7, "bart": 11}[name]
    assert len(sizes(graph, "gradient")) == 2 * LAYERS * linears


@pytest.mark.parametrize("window", [None, 3, 4, 100])
def test_tokens_of_an_encoder_see_both_sides(window: int | None) -> None:
    part = GQA | ({"window": window} if window else {})
    graph = build(workload("", "prefill", model={"causal": False, "attention": part}))
    near = (window or 2 * SEQUENCE) // 2
    pairs = sum(abs(a - b) <= near for a in range(SEQUENCE) for b in range(SEQUENCE))
    assert flops(graph, "prefill", "attention") == LAYERS * BATCH * pairs * 4 * PAIR


TWO = [{"rows": 4, "width": 4 * H, "activation": "plain"}, {"width": 10}]
"""A merger of two linears and an activation between them."""


def tower(phase: str = "prefill", **more: Any) -> Workload:
    model = {"vocabulary": 0, "head": False, "causal": False, "stem": [{"taken": 30, "width": H}], "positions": 8}
    model |= {"mergers": [TWO, [TWO[0] | {"norm": "scale"}, TWO[1]]], "registers": 4}
    return workload("", phase, model=model | more)


def test_a_tower_by_hand() -> None:
    """Patches become rows, learned ones stand before them, and four become one for the decoder, without the learned."""
    found, patches, merged, wide = tower(registers=0), T, T // 4, 4 * H
    merger = wide * wide + wide + wide * 10 + 10
    rows = 30 * H + H + 8 * H
    assert count(model_of(found)).total == rows + LAYERS * (ATTENTION + 3 * H * F + 2 * H) + H + 2 * merger + wide
    graph = build(found)
    linear = 2 * (patches * 30 * H + T * LAYERS * (ATTENTION + 3 * H * F) + 2 * merged * (wide * wide + wide * 10))
    assert flops(graph, "prefill", "matmul") == linear
    assert [graph.tensors[t].size_bytes for t in graph.outputs] == [2 * merged * 10] * 2
    fewer, gone = flops(build(tower()), "prefill", "matmul"), 4 * BATCH
    assert linear - fewer == 2 * gone * 30 * H + 2 * 2 * gone // 4 * (wide * wide + wide * 10)
    trained = build(tower("train"))
    assert flops(trained, "backward", "matmul") == 2 * fewer - 2 * (T - gone) * 30 * H
    given = {name: size for name, size in sizes(trained, "input").items() if name.endswith(".grad")}
    assert list(given.values()) == [2 * (T - gone) // 4 * 10] * 2


CONVOLVED = [{"taken": 3 * 5, "width": H}, {"rows": 2, "taken": 3 * H, "width": H}]
"""Two rows become one between convolutions that take three each (Whisper)."""


def test_convolutions_of_sound_by_hand() -> None:
    graph = build(tower(mergers=[], registers=0, stem=CONVOLVED))
    assert flops(graph, "prefill", "matmul") == 2 * T * (2 * 15 * H + 3 * H * H + LAYERS * (ATTENTION + 3 * H * F))
    assert sizes(graph, "input") == {"embed/rows": 2 * 2 * T * 15}


@pytest.mark.parametrize("phase", ["prefill", "train"])
def test_convolutions_of_widths_of_their_own_by_hand(phase: str) -> None:
    """Sixteen places become four, and these one (Qwen3-Omni); a merger is narrow within (Llama 4)."""
    narrow = [{"width": 7, "bias": False, "activation": "plain"}, {"width": 10, "bias": False}]
    ends = [{"taken": 9, "width": 6}, {"rows": 4, "taken": 9 * 6, "width": 5}, {"rows": 4, "width": H, "bias": False}]
    found = tower(phase, mergers=[narrow], registers=0, stem=ends)
    linears = 9 * 6 + 9 * 6 * 5 + 4 * 5 * H + H * 7 + 7 * 10
    rows = linears + 6 + 5 + 8 * H
    assert count(model_of(found)).total == rows + LAYERS * (ATTENTION + 3 * H * F + 2 * H) + H
    graph, each = build(found), 16 * 9 * 6 + 4 * 9 * 6 * 5 + 4 * 5 * H + H * 7 + 7 * 10
    products = 2 * T * (each + LAYERS * (ATTENTION + 3 * H * F))
    assert flops(graph, "forward" if phase == "train" else phase, "matmul") == products
    assert sizes(graph, "input")["embed/rows"] == 2 * 16 * T * 9
    if phase == "train":  # of what comes in there is no gradient
        assert flops(graph, "backward", "matmul") == 2 * products - 2 * T * 16 * 9 * 6


LONG: list[dict[str, Any]] = [
    {"norm": "both"},
    {"rows": 2, "taken": 5 * H, "width": 6},
    {"norm": "scale", "activation": "plain"},
    {"pooled": 2, "width": 8, "bias": False, "activation": "gated"},
    {"norm": "none", "width": 10},
]
"""A norm, a convolution that overlaps, a norm and an activation, a gate behind an average, and a norm of no weights."""


@pytest.mark.parametrize("options", [{}, {"tensor": 2}])
@pytest.mark.parametrize("phase", ["prefill", "train"])
def test_a_merger_goes_part_by_part(phase: str, options: dict[str, int]) -> None:
    laid = {"parallel": {"ranks": "all", **options}} if options else {}
    model = {"vocabulary": 0, "head": False, "causal": False, "stem": [{"taken": 30, "width": H}], "mergers": [LONG]}
    found = workload("", phase, model=model, **laid)
    weights = {"0.norm": 2 * H, "1": 5 * H * 6, "1.bias": 6, "2.norm": 6, "3": 6 * 8, "3.gate": 6 * 8, "4": 8 * 10}
    made = {
        name: prod(spec.shape)
        for block, part in specs(model_of(found))
        if block == "head"
        for name, spec in part.items()
    }
    assert made == {"norm": H} | {f"merge0.{name}": size for name, size in (weights | {"4.bias": 10}).items()}
    graph = build(found) if not options else build_job(found).graphs[0]
    each = T // 2 * 5 * H * 6 + T // 4 * (2 * 6 * 8 + 8 * 10)
    of_merger = [
        op for op in graph.ops if "/merge0" in op.name and op.phase in (phase, "forward") and not op.collective
    ]
    assert sum(op.flops for op in of_merger) == 2 * each // options.get("tensor", 1)
    if phase == "train":
        back = sum(op.flops for op in graph.ops if "/merge0" in op.name and op.phase == "backward")
        assert back == 2 * 2 * each // options.get("tensor", 1)
        grads = {t.name.removesuffix(".weight.grad") for t in graph.tensors if t.kind == "gradient"}
        assert {f"head/merge0.{name}" for name in weights} <= grads
    else:
        assert [graph.tensors[t].size_bytes for t in graph.outputs] == [2 * T // 4 * 10]


@pytest.mark.parametrize("chunk", [3, 4, 8])
def test_keys_of_the_encoder_are_made_once(chunk: int) -> None:
    whole, cut = build(workload("bart", "prefill")), build(workload("bart", "prefill", chunk=chunk))
    assert sum(by_op([cut], "prefill").values()) == sum(by_op([whole], "prefill").values())
    for graph in (whole, cut):
        assert sum("attn.across.k" in op.name for op in graph.ops) == LAYERS
        assert {graph.tensors[t].name for t in graph.outputs} >= {f"L0{i}/kv.across" for i in range(LAYERS)}


def test_scores_of_rows_of_the_encoder_are_held_too() -> None:
    graph = build(workload("bart", dtypes={"scores_bytes": 5}))
    held = {tensor.name.partition("/")[2]: tensor.size_bytes for tensor in graph.tensors if ".scores" in tensor.name}
    own, across = held["attn.core.scores"], held["attn.across.scores"]
    assert own * ENCODED == across * SEQUENCE > 0


def test_the_encoder_gets_its_gradient_unless_it_is_frozen() -> None:
    def grads(**more: Any) -> list[str]:
        graph = build(workload("bart", **more))
        return [op.name for op in graph.ops if op.name.endswith(("across.k.dgrad", "across.v.dgrad"))]

    assert len(grads()) == 2 * LAYERS
    assert grads(lora={"rank": 2}) == grads(frozen=["embed/*"]) == []


def test_biases_of_distances_are_those_of_the_first_layer() -> None:
    others = [{"stop": 1, "attention": GQA | {"buckets": 32}}]
    found = workload("", model={"others": others})
    assert count(model_of(found)).total - count(model_of(workload(""))).total == 32 * 4
    graph = build(found)
    table = next(t for t, tensor in enumerate(graph.tensors) if tensor.name == "L00/attn.relative.bias.weight")
    assert next(op.name for op in graph.ops if table in op.reads) == "L00/fwd/attn.core"
    assert sizes(graph, "gradient")["L00/attn.relative.bias.weight.grad"] == 2 * 32 * 4


TOWER: dict[str, Any] = {"vocabulary": 0, "head": False, "causal": False, "stem": [{"taken": 8, "width": H}]}


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"phase": "decode", "model": {"causal": False}}, "an encoder, or a model without a head, adds no tokens"),
        ({"phase": "decode", "model": {"head": False}}, "a model without a head, adds no tokens, found phase decode"),
        ({"phase": "prefill", "model": {"causal": False}, "chunk": 4}, "has no KV cache, found chunk"),
        ({"phase": "prefill", "model": {"causal": False}, "kv": {"block": 4}}, "has no KV cache, found kv"),
        ({"model": {"parallel": True, "norms": "after"}}, "parallel parts have a norm before each, or share one"),
        ({"model": {"norms": "shared"}}, "parallel parts have a norm before each, or share one"),
        ({"model": {"head_biases": ["transform"]}}, "a bias is that of a linear that the head has"),
        ({"model": {"vocabulary": 0}}, "a model has a vocabulary and perhaps a head, or a stem alone"),
        ({"model": {"stem": [{"taken": 8, "width": H}]}}, "a model has a vocabulary and perhaps a head, or a stem alo"),
        ({"model": TOWER | {"stem": [{"width": H}]}}, f"joins no rows; .* found taken None, rows 1, width {H}"),
        ({"model": TOWER | {"stem": [{"taken": 8, "width": 5}]}}, "as the residual, found taken 8, rows 1, width 5"),
        ({"model": TOWER | {"mergers": [[]]}}, "at least 1 item"),
        ({"model": TOWER | {"mergers": [[{"width": 4}]] * 9}}, "each is of a layer of its own, found 9"),
        ({"model": TOWER | {"head_transform": True}}, "a transform is that of a head, found no head"),
        ({"model": TOWER | {"head_biases": ["lm"]}}, "a bias is that of a linear that the head has, found lm"),
        ({"model": TOWER | {"stem_rows": 2}}, "found 'stem_rows'; write it in a part of stem: bias, rows or width"),
        ({"model": TOWER | {"merger": {"rows": 4}}}, "found 'merger'; write mergers:"),
        ({"model": TOWER | {"mergers": [[{"rows": 2, "bias": False}]]}}, "a part does something; taken, bias and"),
        ({"model": TOWER | {"mergers": [[{}]]}}, "a part does something; taken, bias and a gate are"),
        (
            {"model": TOWER | {"mergers": [[{"rows": 5}]]}, "phase": "prefill"},
            "a sequence has rows behind its 0 registers, a multiple of 5, found 8; change it",
        ),
        (
            {"model": TOWER | {"registers": 8}, "phase": "prefill"},
            "a sequence has rows behind its 8 registers, a multiple of 1, found 8; change it",
        ),
        ({"model": {"positions": 7}}, "a sequence is no longer than the table of positions, found 8 of 7"),
        ({"model": {"feed_forward": PLAIN}, "swiglu": "fused"}, "swiglu is of feed-forwards with a gate"),
        ({"model": {"head_biases": ["lm"]}, "loss_chunks": 2}, "a loss in chunks has no bias"),
        ({"model": {"head": False}, "loss_chunks": 2}, "a loss is made of logits"),
        ({"model": {"encoded": 4, "causal": False}}, "what an encoder feeds is causal, found false; remove it"),
        ({"model": {"encoded": 4}, "parallel": {"ranks": "all", "pipeline": 3}},
         "an encoder's output reaches one stage, found 3 stages; set it to 1"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused(more: dict[str, Any], message: str) -> None:
    phase = {"phase": more.get("phase", "train")}
    with pytest.raises((ValidationError, ConfigError), match=message):
        workload("", **more | phase)
