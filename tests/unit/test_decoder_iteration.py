"""One iteration of serving counts what prefill and decode count, and copies what it must before it attends."""

from __future__ import annotations

import pytest
from building import build
from serving_cases import write

from simulator import catalog
from simulator.builders import Iteration, Iterations, iteration, limited_reaches
from simulator.cost import durations_ns
from simulator.graph_builder import GraphBuilder
from simulator.serving.replays import Replays
from simulator.serving.scheduler import Served, Work
from simulator.workload import LlamaModel, Parallel, Request, Workload

DENSE = {"kind": "dense", "width": 128}
EXPERTS = {"kind": "experts", "routed": 8, "top_k": 2, "width": 32}
GQA = {"kind": "gqa", "heads": 4, "kv_heads": 2, "head_size": 16, "qk_norms": True}
MLA = {"kind": "mla", "heads": 4, "q_lora_rank": 32, "kv_lora_rank": 24, "qk_nope": 16, "qk_rope": 8, "v_head": 16}
CHOSEN = {**MLA, "indexer": {"heads": 2, "head_size": 8, "top": 16}}
LINEAR = {"kind": "linear", "heads": 4, "head_size": 16, "block": 8}
WINDOW = {**GQA, "window": 10, "sinks": 2}
SPARSE = {"compress": {"block": 8, "stride": 4}, "select": {"block": 8, "top": 4}, "window": 8}
VIEWS, APART = {**GQA, "sparse": SPARSE}, {**MLA, "sparse": {**SPARSE, "caches": "own"}}
ATTENTIONS = {"all": GQA, "window": WINDOW, "latent": MLA, "chosen": CHOSEN, "linear": LINEAR}
ATTENTIONS |= {"three views": VIEWS, "views apart": APART}
MAMBA2 = {"kind": "mamba2", "heads": 8, "head_size": 16, "key_heads": 2, "key_size": 8, "block": 8, "norms": False}
ATTENTIONS |= {"delta": {"kind": "delta", "heads": 4, "head_size": 16, "key_heads": 2, "key_size": 8, "block": 8}}
ATTENTIONS |= {"mamba": {"kind": "mamba", "heads": 128, "key_size": 4, "rank": 4}}
ATTENTIONS |= {
    "convolution": {"kind": "convolution", "heads": 64},
    "lru": {"kind": "lru", "heads": 4, "head_size": 16},
    "mamba2": MAMBA2,
    "blocks": {**GQA, "indexer": {"heads": GQA["kv_heads"], "head_size": 8, "top": 3, "block": 4}},
    "one row": {"kind": "mqa", "heads": 4, "head_size": 16, "q_lora_rank": 24, "qk_rope": 4, "window": 8}
    | {"out_groups": 2, "out_rank": 12, "sink_logits": True},
    "beside": {**GQA, "beside": MAMBA2},
}
POOL = {"stride": 4, "overlap": True, "indexer": {"heads": 2, "head_size": 8, "top": 6}}
ATTENTIONS |= {"pooled": ATTENTIONS["one row"] | {"pool": {"stride": 8}}}
ATTENTIONS |= {"pooled and chosen": ATTENTIONS["one row"] | {"pool": POOL}}
CASES = {
    f"{name}-{kind}": (part, ATTENTIONS[kind])
    for kind in ATTENTIONS
    for name, part in {"dense": DENSE, "experts": EXPERTS}.items()
}
CASES |= {"rwkv": (DENSE | {"gate": False, "shifted": True}, {"kind": "rwkv", "heads": 96, "shifted": 64})}
"""A feed-forward and an attention."""


def workload(phase, part, attention=GQA, others=(), **more):
    model = {"family": "decoder", "layers": 2, "hidden": 64, "vocabulary": 128, "others": others}
    model |= {"attention": attention, "feed_forward": part}
    about = {"schema": "hosim/workload/1", "name": "toy", "model": model, "phase": phase}
    about |= {} if phase == "requests" else {"steps": 1}
    why = {"assumed": dict.fromkeys((*about, *more), "a test")}
    return Workload.model_validate(about | more | why)


def served(part, *attention):
    lengths = {"count": 1, "arrivals": {"interval": "1 s"}, "prompt": {"mean": 1}, "output": {"mean": 1}}
    return workload("requests", part, *attention, requests=lengths)


def works(workload, decoding=(), reading=()):
    """Sequences that add a token to so many, and parts of prompts (cached and new tokens), as a scheduler has them."""
    adding = [Served(0, Request(0, cached, 2), cached=cached) for cached in decoding]
    parts = [(Served(0, Request(0, cached + new, 2), cached=cached), new) for cached, new in reading]
    return Work(adding, parts).iteration(8, reaches=limited_reaches(workload.model.decoder))


def counted(graph):
    """Op without phase -> what it does; the two attentions of an iteration have the name of the one of a phase."""
    found = {}
    for op in graph.ops:
        name = op.name.replace("prefill/", "").replace("decode/", "")
        found[name] = (op.flops, op.read_bytes, op.write_bytes, op.op_class)
    return found


@pytest.mark.parametrize(("part", "attention"), CASES.values(), ids=CASES)
def test_a_prompt_is_counted_as_in_prefill(part, attention):
    whole, model = build(workload("prefill", part, attention, batch=1, sequence=48)), served(part, attention)
    assert counted(iteration(model, works(model, reading=[(0, 48)]), 256_000)) == counted(whole)


@pytest.mark.parametrize(("part", "attention"), CASES.values(), ids=CASES)
def test_sequences_that_add_a_token_are_counted_as_in_decode(part, attention):
    whole, model = build(workload("decode", part, attention, batch=3, sequence=40)), served(part, attention)
    assert counted(iteration(model, works(model, decoding=[40] * 3), 256_000)) == counted(whole)


@pytest.mark.parametrize(
    "dtypes", [{"dequantize": "before"}, {"arithmetic": "int8"}, {"others": {"L01/*": "fp8", "*/attn.k_b.*": "bf16"}}]
)
@pytest.mark.parametrize("part", [DENSE, EXPERTS], ids=["dense", "experts"])
def test_stored_weights_are_made_ready_or_multiplied_as_in_both_phases(part, dtypes):
    """Each once in an iteration; but attention, which is apart, makes its own matrices ready in both parts."""
    dtypes = {"weights": "int4", **dtypes}
    model = served(part, MLA).model_dump(by_alias=True, exclude_unset=True)
    model = Workload.model_validate(model | {"dtypes": dtypes})
    prompt = iteration(model, works(model, reading=[(0, 48)]), 256_000)
    whole = build(workload("prefill", part, MLA, batch=1, sequence=48, dtypes=dtypes))
    assert counted(prompt) == counted(whole)
    assert [op.dtype for op in prompt.ops] == [op.dtype for op in whole.ops]
    both = iteration(model, works(model, decoding=[40], reading=[(0, 48)]), 256_000)
    ready = [op.name for op in both.ops if op.name.endswith(".ready")]
    assert sum("attn.k_b" in name for name in ready) == (4 if "dequantize" in dtypes else 0)
    again = Iterations(model)
    for cached in (40, 90):
        of_shape = works(model, decoding=[cached], reading=[(0, 48)])
        assert again.graph(of_shape, 256_000) == iteration(model, of_shape, 256_000)


@pytest.mark.parametrize(("part", "attention"), [case for case in CASES.values() if case[0] != EXPERTS])
def test_the_second_half_of_a_prompt_is_counted_as_a_chunk(part, attention):
    chunks, model = (
        build(workload("prefill", part, attention, batch=1, sequence=64, chunk=32)),
        served(part, attention),
    )
    whole = {name[3:]: about for name, about in counted(chunks).items() if name.startswith(("c1/L", "c1/e"))}
    half = counted(iteration(model, works(model, reading=[(32, 32)]), 256_000))
    assert len(whole) > 2 * 10
    assert {name: half[name] for name in whole} == whole


def test_a_flat_llama_is_served_as_the_same_in_parts():
    """As the family llama has it, and as a decoder."""
    flat = LlamaModel(layers=2, hidden=64, heads=4, kv_heads=2, ffn=128, vocabulary=128)
    both = [served(DENSE).model_copy(update={"model": model}) for model in (flat, flat.decoder)]
    made = [iteration(one, works(one, decoding=[40, 5], reading=[(24, 8)]), 256_000) for one in both]
    assert made[0] == made[1]
    assert Workload.model_validate(both[0].model_dump(by_alias=True, exclude_unset=True)).model == flat


def test_latents_become_keys_and_values_a_piece_at_a_time():
    """Of 100,000 cached latents no more than max_tokens are expanded at once, though all are read."""
    model = served(DENSE, MLA)
    graph = iteration(model, works(model, reading=[(100_000, 8)]), 256_000)
    ops, sizes = {op.name: op for op in graph.ops}, {one.name: one.size_bytes for one in graph.tensors}
    rows = model.requests.max_tokens + 8
    assert sizes["prefill/L00/attn.k_b.out"] == rows * 4 * 16 * 2
    assert ops["prefill/L00/prefill/attn.k_b"].flops == 2 * 100_008 * 24 * 4 * 16
    assert ops["prefill/L00/prefill/attn.k_b"].write_bytes == 100_008 * 4 * 16 * 2


def test_layers_with_a_window_copy_in_and_read_no_more_than_it():
    model = served(DENSE, GQA, [{"start": 1, "attention": WINDOW}])
    work = works(model, decoding=[40, 5], reading=[(24, 8)])._replace(loads=(("ddr", (24, 16)),))
    assert work.near == ((11 + 5, 11, 8 * 12),)
    graph = iteration(model, work, 256_000)
    ops, sizes = {op.name: op for op in graph.ops}, {one.name: one.size_bytes for one in graph.tensors}
    assert [sizes[f"L0{layer}/kv.from.ddr"] for layer in (0, 1)] == [24 * 128, 16 * 128]
    assert [sizes[f"L0{layer}/kv"] for layer in (0, 1)] == [(256_000 - 40 * 128) // 2] * 2
    assert [ops[f"decode/L0{layer}/decode/attn.core"].flops for layer in (0, 1)] == [256 * 47, 256 * (16 + 2)]


def test_both_together_share_all_but_attention():
    graph = iteration(served(DENSE), Iteration(decoding=3, context=120, reading=48, pairs=1176, answers=4), 256_000)
    ops = {op.name: op for op in graph.ops}
    assert ops["L00/prefill/attn.q"].flops == 2 * 51 * 64 * 64
    assert ops["decode/L00/decode/attn.core"].flops == 4 * 64 * (120 + 3)
    assert ops["prefill/L00/prefill/attn.core"].flops == 4 * 64 * 1176
    assert ops["head/prefill/lm"].flops == 2 * 4 * 64 * 128


def test_a_graph_is_built_once_for_a_shape_and_then_the_first_layer_of_each_kind(monkeypatch):
    built, add = [], GraphBuilder.op
    monkeypatch.setattr(GraphBuilder, "op", lambda self, *op, **more: built.append(op[0]) or add(self, *op, **more))
    model = served(DENSE, GQA, [{"start": 1, "attention": WINDOW}])
    model = model.model_copy(update={"model": model.model.model_copy(update={"layers": 12})})
    graphs, layers = Iterations(model), {f"L{layer:02}" for layer in range(12)}

    def layers_built(**sequences):
        built.clear()
        graph = graphs.graph(works(model, **sequences), 256_000)
        assert layers == {part for op in graph.ops for part in op.name.split("/")} & layers
        return {part for name in built for part in name.split("/")} & layers

    assert layers_built(decoding=[40]) == layers
    assert layers_built(decoding=[90, 7]) == {"L00", "L01"}
    assert layers_built(decoding=[40], reading=[(0, 9)]) == layers
    assert layers_built(decoding=[9, 9, 9], reading=[(30, 20)]) == {"L00", "L01"}


def test_the_copy_of_a_layer_ends_before_its_prompts_attend(tmp_path):
    """Two copies of 40 tokens at 1 MB/s take 5.12 ms each, longer than all ops; what needs the second comes after."""
    path = write(tmp_path)
    loaded = catalog.resolve(path, {"links.h2d.bandwidth": "1 MB/s"})
    work = Iteration(decoding=2, context=60, reading=8, cached=40, pairs=356, answers=3, loads=(("ddr", (40,)),))
    graph = iteration(loaded.workload, work, 256_000)
    times = durations_ns(graph, loaded.hardware)
    last = next(number for number, op in enumerate(graph.ops) if op.name == "prefill/L01/prefill/attn.core")
    assert sum(times) < 5_120_000
    done = Replays(loaded, "static", 256_000, exact=True).of(work)
    assert done["took_ns"] == 2 * 5_120_000 + sum(times[last:])
    assert done["moved_h2d_bytes"] == 2 * 40 * 128


def spread(model, **axes):
    """The same workload over ranks."""
    about = model.model_dump(by_alias=True, exclude_unset=True)
    return Workload.model_validate(about | {"parallel": {"ranks": "all", **axes}})


@pytest.mark.parametrize(("part", "attention"), CASES.values(), ids=CASES)
def test_a_data_rank_has_the_whole_model_and_its_own_tokens(part, attention):
    """What it runs is what one rank alone runs, whatever others there are."""
    model = served(part, attention)
    work = works(model, decoding=[40, 7], reading=[(24, 8), (0, 5)])
    of_four = model.model_copy(update={"parallel": Parallel(ranks="all", data=4)})  # which no document states
    alone, one_of_four = (iteration(of, work, 256_000) for of in (model, of_four))
    assert counted(one_of_four) == counted(alone)
    assert not any(op.collective for op in one_of_four.ops)
    assert [(t.name, t.size_bytes) for t in one_of_four.tensors] == [(t.name, t.size_bytes) for t in alone.tensors]


def test_expert_ranks_have_whole_experts_and_send_the_rows_of_their_tokens():
    """15 tokens of each of 4 ranks choose 2 of 8 experts: 30 rows, 8 to each rank, with what fills up the last.

    A rank has 2 experts. 60 tokens leave none of all 8 unread, and 4 of them 8 * (3 / 4)^4, which is 2.5.
    """
    model = served(EXPERTS)
    sizes = {t.name: t.size_bytes for t in iteration(model, works(model, [40]), 256_000).tensors}
    of_ranks = spread(model, data=4, expert=4)
    work = works(model, decoding=[40, 7], reading=[(24, 8), (0, 5)])
    alone, graph = counted(iteration(model, work, 256_000)), iteration(of_ranks, work, 256_000)
    met = [(op.name, op.collective.kind, op.collective.size_bytes) for op in graph.ops if op.collective]
    assert met[:2] == [
        ("L00/prefill/ffn.route.out.all_to_all", "all_to_all", 4 * 8 * 64 * 2),
        ("L00/prefill/ffn.down.out.all_to_all", "all_to_all", 4 * 8 * 64 * 2),
    ]
    assert len(met) == 4
    ops = counted(graph)
    for name in ("L00/attn.core", "L00/attn.q", "L00/ffn.router", "L01/attn.o", "head/lm"):
        assert ops[name] == alone[name]
    assert ops["L00/ffn.gate"][0] == 2 * (4 * 8) * 64 * 32
    weights = {t.name: t.size_bytes for t in graph.tensors}
    assert weights["L00/ffn.gate.weight"] * 4 == sizes["L00/ffn.gate.weight"]
    assert weights["L00/attn.q.weight"] == sizes["L00/attn.q.weight"]
    one_expert = 64 * 32 * 2
    rows = 4 * 8 * 64 * 2
    assert ops["L00/ffn.gate"][1] == rows + 2 * one_expert
    few = {op.name: op for op in iteration(of_ranks, works(model, [40]), 256_000).ops}
    assert few["L00/decode/ffn.gate"].read_bytes == 4 * 1 * 64 * 2 + -(-(8 - int(8 * (3 / 4) ** 4)) // 4) * one_expert


def test_expert_ranks_that_are_tensor_ranks_send_a_part_of_the_tokens_each():
    """Three tokens are filled up to four: each of two ranks routes two, of 2 choices each, and has half the experts."""
    model = spread(served(EXPERTS), tensor=2, expert=2)
    graph = iteration(model, works(model, [40, 8, 3]), 256_000)
    met = [(op.name.rpartition("/")[2], op.collective.size_bytes) for op in graph.ops if op.collective]
    row = 64 * 2
    assert met[1:5] == [
        ("attn.o.out.all_reduce", 4 * row),
        ("ffn.route.out.all_to_all", 2 * 2 * row),
        ("ffn.down.out.all_to_all", 2 * 2 * row),
        ("ffn.combine.out.all_gather", 4 * row),
    ]
    sizes = {t.name: t.size_bytes for t in graph.tensors}
    assert sizes["L00/ffn.gate.weight"] == 4 * 64 * 32 * 2
    assert sizes["head/token"] == 4 * 4
