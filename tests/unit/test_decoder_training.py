"""Training of decoders with latent attention and experts against closed forms that know nothing of the builder."""

from collections import Counter
from itertools import product
from typing import Any

import pytest
from building import build
from examples import examples, some
from hypothesis import given, settings
from hypothesis import strategies as st
from parameters import count
from pydantic import ValidationError
from trained import (
    ALONE,
    BATCH,
    DENSE,
    EXPERTS,
    GQA,
    LAYERS,
    LAYOUTS,
    MLA,
    SEQUENCE,
    SPARSE,
    VIEWS,
    H,
    T,
    V,
    by_op,
    check_lives,
    fed_by,
    flops,
    saved_bytes,
    sizes,
)

from simulator import catalog
from simulator.builders import build_job, check
from simulator.errors import ConfigError
from simulator.graph import Graph, Job
from simulator.workload import Attention, DecoderModel, LlamaModel, Workload


def workload(attention: dict[str, Any] = MLA, feed_forward: dict[str, Any] = EXPERTS, /, **parallel: Any) -> Workload:
    model = {"family": "decoder", "layers": LAYERS, "hidden": H, "vocabulary": V}
    model |= {"attention": attention, **fed_by(feed_forward)}
    spread = {"ranks": "all", **parallel} if parallel else {}
    data = {"name": "w", "model": model, "batch": BATCH, "sequence": SEQUENCE, "parallel": spread}
    return Workload.model_validate(data)


def job(*parts: dict[str, Any], **parallel: Any) -> Job:
    return build_job(workload(*parts, **parallel))


def model_of(found: Workload) -> DecoderModel:
    assert found.model is not None
    return found.model.decoder


def compressed(part: Attention, sequence: int) -> tuple[int, int]:
    """How many of a sequence's keys and values are compressed, of all heads or latents; and elements of each."""
    blocks = len(range(0, sequence - part.sparse.compress.block + 1, part.sparse.compress.stride))
    return (2 * part.kv_heads * blocks, part.head_size) if part.kind == "gqa" else (blocks, part.kv_elements)


def seen(part: Attention, sequence: int) -> list[float]:
    """Twice the pairs of tokens of a sequence that attend in each view; half of the square is not the diagonal's."""
    if not part.sparse:
        left = max(0, sequence - part.window - part.sinks) if part.window else 0
        return [sequence**2 - left**2]
    about, views = part.sparse, [0, 0, 0]
    for t in range(1, sequence + 1):
        blocks = [min(about.select.block, t - start) for start in range(0, t, about.select.block)]
        views[0] += len(range(0, t - about.compress.block + 1, about.compress.stride))
        views[1] += min(t, about.window)
        views[2] += sum(blocks[-about.select.top :])
    return [2 * number for number in views]


def expected_saved(model: DecoderModel, layer: int, sequences: int, sequence: int) -> int:
    """What a layer saves for backward [B], bf16, by the sums of the papers' dimensions."""
    part, fed, tokens = model.attention, model.layer(layer).feed_forward, sequences * sequence
    sparse, fp32, blocks = part.sparse, part.heads, 0
    if part.kind == "mla" and sparse:  # absorbed: queries as wide as latents, what comes out of views, of their mixture
        norms = 2 * (part.q_lora_rank or 0) + 2 * part.views * (part.kv_lora_rank + part.qk_rope)
        wide = part.heads * (part.qk_nope + part.qk_rope + part.kv_lora_rank + part.qk_rope)
        attention = norms + wide + 4 * part.heads * part.kv_lora_rank + part.heads * part.v_head
    elif part.kind == "mla":
        norms, heads = 2 * (part.q_lora_rank or 0) + 2 * (part.kv_lora_rank + part.qk_rope), part.heads
        attention = norms + heads * (part.qk_nope + part.qk_rope) + heads * (part.qk_nope + 2 * part.v_head)
    else:  # q, k, v and what comes out; q and k before their norms as well
        q, kv = part.heads * part.head_size, part.views * part.kv_heads * part.head_size
        attention = 2 * q + 2 * kv + (q + kv if part.qk_norms else 0) + 3 * q * bool(sparse)
    if sparse:  # gates; statistics of three views, and which blocks; and blocks of tokens on their way into one
        attention, fp32 = attention + 3 * part.heads, 3 * part.heads + getattr(part, "kv_heads", 1) * sparse.select.top
        number, width = compressed(part, sequence)
        blocks = sequences * number * width * (sparse.compress.block + 3)
    if fed.kind == "dense":
        wide = 4 * fed.width
    else:
        wide, fp32 = 2 * fed.top_k * model.hidden + 4 * fed.width * (fed.top_k + fed.shared), fp32 + fed.top_k
    return tokens * (2 * (4 * model.hidden + attention + wide) + 4 * fp32) + 2 * blocks


def linear_parameters(model: DecoderModel) -> int:
    """Parameters of the linears that a token goes through: all that are active but norms, router biases, the table.

    Nor those that compress tokens, of keys and of values or of latents.
    """
    found, part = count(model), model.attention
    norms = (part.q_lora_rank or 0) + part.kv_lora_rank if part.kind == "mla" else 2 * part.head_size * part.qk_norms
    if part.sparse:
        width, block = compressed(part, SEQUENCE)[1], part.sparse.compress.block
        norms += (2 if part.kind == "gqa" else 1) * (block * width * width + width * width + block * width)
    feds = [(one.feed_forward, layers) for one, layers in model.kinds.items()]
    biases = sum(layers * one.routed for one, layers in feds if getattr(one, "router_bias", False))
    norms = model.layers * (norms + 2 * model.hidden) + model.hidden
    return found.active - norms - biases - (0 if model.tied_embeddings else found.table)


def check_one(found: Workload) -> Graph:
    """Parameters, gradients, work and saved bytes of a graph of one rank."""
    graph, model = build(found), model_of(found)
    weights, tokens = sizes(graph, "weight", "expert"), found.batch * found.sequence
    assert sum(weights.values()) == 2 * count(model).total
    trained = {name: size for name, size in weights.items() if "router_bias" not in name}
    assert sizes(graph, "gradient") == {f"{name}.grad": size for name, size in trained.items()}
    assert sizes(graph, "optimizer_state") == {f"{name}.state": 6 * size for name, size in trained.items()}
    part, linear = model.attention, 2 * tokens * linear_parameters(model)
    key, value = (part.qk_nope + part.qk_rope, part.v_head) if part.kind == "mla" else (part.head_size,) * 2
    if part.kind == "mla" and part.sparse:
        key, value = part.kv_lora_rank + part.qk_rope, part.kv_lora_rank
    scores = 0
    if part.sparse:
        number, width = compressed(part, found.sequence)
        linear += model.layers * found.batch * number * 2 * width * width * (part.sparse.compress.block + 1)
        scores = model.layers * found.batch * part.heads * seen(part, found.sequence)[0] * key
    pairs = model.layers * found.batch * part.heads * sum(seen(part, found.sequence))
    assert flops(graph, "forward", "matmul") == linear
    assert flops(graph, "backward", "matmul") == 2 * linear
    assert flops(graph, "forward", "attention") == pairs * (key + value) + scores
    assert flops(graph, "backward", "attention") == pairs * (3 * key + 2 * value)
    for layer in range(model.layers):
        assert saved_bytes(graph, f"L{layer:02d}/") == expected_saved(model, layer, found.batch, found.sequence)
    check_lives(graph)
    return graph


KINDS = [GQA, GQA | {"qk_norms": True}, GQA | {"window": 4, "sinks": 2}, MLA, MLA | {"window": 5}, MLA | {"window": 9}]
KINDS += [{key: value for key, value in MLA.items() if key != "q_lora_rank"}, *VIEWS]


@pytest.mark.parametrize("attention", KINDS)
@pytest.mark.parametrize("feed_forward", [DENSE, EXPERTS, EXPERTS | {"shared": 0, "router_bias": False}])
def test_small_sizes(attention: dict[str, Any], feed_forward: dict[str, Any]) -> None:
    check_one(workload(attention, feed_forward))


def published(name: str, **changes: Any) -> Workload:
    model = catalog.read_workload(name).model
    assert isinstance(model, DecoderModel)
    return Workload(name="w", model=model.model_copy(update=changes), sequence=4096)


@pytest.mark.parametrize("name", ["deepseek_v3_decode", "qwen3_30b_decode"])
def test_published_sizes(name: str) -> None:
    check_one(published(name))


def test_experts_whose_number_does_not_divide_the_tokens() -> None:
    check_one(workload(MLA, EXPERTS | {"routed": 5, "top_k": 3}))


def test_deepseek_v3_has_671_billion_parameters_and_a_token_goes_through_37() -> None:
    """arXiv 2412.19437, abstract; 36.6 without the table by README_WEIGHTS.md of the model card."""
    graph = build(published("deepseek_v3_decode"))
    assert sum(sizes(graph, "weight", "expert").values()) / 2e9 == pytest.approx(671, rel=0.005)
    assert flops(graph, "forward", "matmul") / (2 * 4096 * 1e9) == pytest.approx(36.6, rel=0.005)


def test_a_layer_of_deepseek_v3_in_the_order_of_its_ops() -> None:
    graph = build(published("deepseek_v3_decode", layers=4))
    found = {way: [op.name[8:] for op in graph.ops if op.name.startswith(f"L03/{way}/")] for way in ("fwd", "bwd")}
    core = "norm1 attn.q_a attn.q_a_norm attn.q_b attn.kv_a attn.kv_a_norm rope.q rope.k attn.k_b attn.v_b attn.core"
    gated = "ffn{0}.gate ffn{0}.up ffn{0}.silu ffn{0}.mul ffn{0}.down"
    fed = f"norm2 ffn.router ffn.route {gated.format('')} {gated.format('.shared')} ffn.combine add2"
    assert found["fwd"] == f"{core} attn.o add1 {fed}".split()
    assert saved_bytes(graph, "L03/") == 4096 * (2 * 295_040 + 4 * (128 + 8)), "2.4 GB for 4,096 tokens"
    shared = found["bwd"].index("ffn.shared.down.dgrad")
    assert shared < found["bwd"].index("ffn.down.dgrad") < found["bwd"].index("ffn.route.acc")


def test_a_flat_llama_is_trained_as_the_same_in_parts() -> None:
    flat = LlamaModel(layers=2, hidden=24, heads=4, kv_heads=2, ffn=9, vocabulary=V)
    both = [build(Workload(name="w", model=one, batch=2, sequence=6)) for one in (flat, flat.decoder)]
    assert both[0] == both[1]


@st.composite
def models(draw: st.DrawFn) -> Workload:
    heads, small = draw(st.integers(1, 4)), st.integers(1, 6)
    attention = {"kind": "gqa", "heads": heads, "kv_heads": heads, "head_size": draw(small)}
    attention |= {"qk_norms": draw(st.booleans())}
    if draw(st.booleans()):
        widths = {key: draw(small) for key in ("kv_lora_rank", "qk_nope", "qk_rope", "v_head")}
        attention = {"kind": "mla", "heads": heads, **widths}
        attention |= {"q_lora_rank": draw(small)} if draw(st.booleans()) else {}
    if draw(st.booleans()):
        attention |= {"sparse": SPARSE | {"caches": draw(st.sampled_from(["shared", "own"])), "window": draw(small)}}
    fed = {"kind": "dense", "width": draw(small)}
    if draw(st.booleans()):
        fed = {"kind": "experts", "routed": 4, "top_k": draw(st.integers(1, 4)), "width": draw(small)}
        fed |= {"shared": draw(st.integers(0, 2)), "router_bias": draw(st.booleans())}
    return workload(attention, fed)


@settings(max_examples=examples(80), deadline=None)
@given(models())
def test_any_dimensions(found: Workload) -> None:
    check_one(found)


# over ranks


def check_ranks(attention: dict[str, Any], layout: dict[str, Any], zero_stage: int) -> None:
    """All ranks do the work of one; but for what each tensor rank does alike.

    That is what is whole on each, unless the tokens between are cut or it has experts of its own. Latents are
    compressed by all, keys and values of heads by those who have them.
    """
    alone, found = build(workload(attention)), job(attention, **layout, zero_stage=zero_stage)
    graphs = [found.graph(rank) for rank in range(found.ranks)]
    data, tensor, expert = layout["data"], layout["tensor"], layout["expert"]
    has_whole = expert > data or "expert_tensor" in layout
    for phase in ("forward", "backward"):
        total, once = by_op(graphs, phase), by_op([alone], phase)
        assert total.keys() == once.keys()
        for name, number in once.items():
            own = has_whole if name == "ffn.router" else layout["sequence"]
            times = 1 if own or name not in ALONE else tensor
            times = tensor if attention["kind"] == "mla" and name == "attn.compress" else times
            assert total[name] == data * layout["micro_batches"] * times * number, name
    held: Counter[str] = Counter()
    for graph in graphs:
        held.update({t.name: t.size_bytes for t in graph.tensors if t.persistent and t.kind in ("weight", "expert")})
        check_lives(graph)
    for name, size in sizes(alone, "weight", "expert").items():
        is_whole = "norm" in name or any(part in name for part in (*ALONE, "compress"))
        copies = data * (tensor if is_whole else 1)
        if sizes(alone, "expert").get(name):
            copies = data * tensor // (expert if has_whole else expert * tensor)
        if zero_stage < 3:
            assert held[name] == copies * size, name


@pytest.mark.parametrize(("layout", "zero_stage"), some([*product(LAYOUTS, (0, 1, 2, 3))], 3))
def test_all_ranks_do_the_work_of_one_on_the_same_weights(layout: dict[str, Any], zero_stage: int) -> None:
    check_ranks(MLA, layout, zero_stage)


@pytest.mark.parametrize(("layout", "attention"), list(product(LAYOUTS[2:5], VIEWS)))
def test_all_ranks_do_the_work_of_one_in_three_views(layout: dict[str, Any], attention: dict[str, Any]) -> None:
    check_ranks(attention, layout, 1)


def test_gradients_of_what_compresses_add_up_over_the_ranks_that_have_heads() -> None:
    """Of keys and values as gradients of weights; of compressed latents, and of those near and selected, before."""
    of_heads, of_latents = (meetings(job(one, DENSE, tensor=2).graphs[0]) for one in (VIEWS[0], VIEWS[2]))
    width, blocks = 6, SPARSE["compress"]["block"]
    assert of_heads["tensor", "all_reduce", 2 * 2 * (blocks * width**2 + width**2 + blocks * width)] == LAYERS
    assert of_latents["tensor", "all_reduce", BATCH * 3 * 15 * 2] == LAYERS, "three compressed latents a sequence"


def meetings(graph: Graph) -> Counter[tuple[str, str, int]]:
    met = (op.collective for op in graph.ops if op.collective)
    return Counter((about.group, str(about.kind), about.size_bytes) for about in met)


def test_tensor_ranks_that_are_expert_ranks_send_their_part_of_the_tokens() -> None:
    """One all-to-all over all of them each way, of half of the rows that two tensor ranks would send alike."""
    graph = job(data=2, tensor=2, expert=4).graphs[0]
    members = {group.name: group.members for group in graph.groups}
    assert members["expert.tensor"] == ((0, 1, 2, 3),)
    assert meetings(graph)["expert.tensor", "all_to_all", T // 2 * 2 * H * 2] == 4 * (LAYERS - 1)
    assert sizes(graph, "expert")["L01/ffn.gate.weight"] == 2 * H * 10 * 2, "two whole experts of eight"
    some = job(data=4, tensor=2, expert=4, expert_tensor=1, zero_stage=1).graphs[0]
    assert {group.name: group.members for group in some.groups}["expert.tensor"] == ((0, 1, 2, 3), (4, 5, 6, 7))
    assert sizes(some, "expert") == sizes(graph, "expert"), "two of eight, as of four ranks in all"
    states, of_four = (sizes(each, "optimizer_state") for each in (some, graph))
    of_experts = [name for name in states if "/ffn.gate" in name and "L01" in name]
    assert [states[name] * 2 for name in of_experts] == [of_four[name] for name in of_experts], "two replicas of each"
    usual = job(data=2, tensor=2, expert=2).graphs[0]
    assert meetings(usual)["expert", "all_to_all", T * 2 * H * 2] == 4 * (LAYERS - 1)
    assert sizes(usual, "expert")["L01/ffn.gate.weight"] == 4 * H * 5 * 2, "half of each of four"


def test_gradients_of_latents_and_of_norms_of_heads_add_up_over_tensor_ranks() -> None:
    found = meetings(job(tensor=2).graphs[0])
    for width in (10, 11 + 4):
        assert found["tensor", "all_reduce", T * width * 2] == LAYERS, "the latents' gradients, in a layer"
    graph = job(GQA | {"qk_norms": True}, DENSE, tensor=2).graphs[0]
    assert meetings(graph)["tensor", "all_reduce", 2 * 6 * 2] == LAYERS, "the norms of q and k, together"


def refusal(*parts: dict[str, Any]) -> str:
    with pytest.raises(ValidationError) as caught:
        workload(*parts)
    return str(caught.value.errors()[0]["ctx"]["error"])


def test_what_is_not_built_is_refused() -> None:
    must = "training has no options of inference"
    assert refusal(MLA, EXPERTS | {"ranks": 2}).startswith(f"{must}, found ranks; remove it; parallel.expert says how")
    assert refusal(MLA, EXPERTS | {"buffers": "apart"}).startswith(f"{must}, found buffers")


def test_what_does_not_divide_is_refused_before_it_is_built() -> None:
    with pytest.raises(ConfigError, match=r"tensor divides heads, ffn, vocabulary, found 3, and 4 heads"):
        check(workload(tensor=3))
    with pytest.raises(ConfigError, match="expert divides experts, choices of a rank's tokens, found 3, and 16"):
        check(workload(MLA, EXPERTS | {"routed": 9, "top_k": 1}, data=3, expert=3))
    with pytest.raises(
        ValidationError, match=r"a multiple of tensor that divides data \* tensor, found 8 with tensor 2"
    ):
        workload(data=2, tensor=2, expert=8)
    with pytest.raises(ConfigError, match="found 16, and 8 experts"):
        check(workload(data=16, expert=16))
