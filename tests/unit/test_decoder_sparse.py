"""Sparse attention, windows and caches in blocks against closed forms that know nothing of the builder."""

from math import prod
from typing import Any

import pytest
from building import build
from hypothesis import given, settings
from hypothesis import strategies as st
from parameters import count
from pydantic import ValidationError

from simulator.graph import Graph, Op
from simulator.lifetime import Lifetimes
from simulator.workload import Workload

SPARSE = {"compress": {"block": 4, "stride": 2}, "select": {"block": 4, "top": 4}, "window": 6}
GQA = {"kind": "gqa", "heads": 4, "kv_heads": 2, "head_size": 6}
MLA = {"kind": "mla", "heads": 3, "q_lora_rank": 10, "kv_lora_rank": 12, "qk_nope": 5, "qk_rope": 4, "v_head": 7}
H, V, LAYERS, BATCH = 16, 40, 3, 2


def workload(attention: dict[str, Any], **more: Any) -> Workload:
    model = {
        "family": "decoder",
        "layers": LAYERS,
        "hidden": H,
        "vocabulary": V,
        "attention": attention,
        "feed_forward": {"kind": "dense", "width": 24},
    }
    return Workload.model_validate({"name": "w", "model": model, "batch": BATCH, "sequence": 40, **more})


def graph(attention: dict[str, Any], **more: Any) -> Graph:
    return build(workload(attention, **more))


def op(found: Graph, name: str) -> Op:
    return next(op for op in found.ops if op.name == name)


def names(found: Graph, ids: tuple[int, ...]) -> list[str]:
    return [found.tensors[t].name for t in ids]


def cached(found: Graph, ids: tuple[int, ...], layer: str = "L01") -> list[str]:
    """The blocks of the cache among some tensors, without what all names begin with."""
    start = f"{layer}/kv/"
    return [name.removeprefix(start) for name in names(found, ids) if name.startswith(start)]


def sizes(found: Graph, start: str) -> dict[str, int]:
    return {t.name: t.size_bytes for t in found.tensors if t.name.startswith(start)}


@pytest.mark.parametrize("attention", [GQA, MLA], ids=["gqa", "mla"])
@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_the_weights_of_a_graph_are_the_parameters_that_are_counted(attention, phase) -> None:
    found = workload(attention | {"sparse": SPARSE}, phase=phase)
    made = sum(t.size_bytes for t in build(found).tensors if t.kind == "weight")
    dense = count(workload(attention, phase=phase).model).total
    width, parts = (16, 1) if attention is MLA else (6, 2)
    more = H * 3 * attention["heads"] + parts * (4 * width * width + width * width + 4 * width)
    assert count(found.model).total == dense + LAYERS * more
    assert made == 2 * count(found.model).total


def test_the_views_of_a_decoded_token() -> None:
    """Token 41: 19 compressed ones of 4, 2 apart; 3 whole blocks of 4 and the first of its own; 6 near ones."""
    found = graph(GQA | {"sparse": SPARSE}, phase="decode")
    pair, q, kv, token = 4 * 24, 24 * 2, 24 * 2, 2 * 2 * 6 * 2
    view = {name: op(found, f"L01/decode/attn.{name}") for name in ("select", "compressed", "window", "selected")}
    assert view["select"].flops == BATCH * 19 * 2 * 24
    assert view["select"].read_bytes == BATCH * (q + 19 * kv // 2)
    assert view["compressed"].flops == BATCH * 19 * pair
    assert view["compressed"].read_bytes == BATCH * (q + 19 * token)
    assert view["window"].flops == BATCH * 6 * pair
    assert view["window"].read_bytes == BATCH * (q + 6 * token)
    assert view["selected"].flops == BATCH * 13 * pair
    assert view["selected"].read_bytes == BATCH * (q + 13 * token)
    assert all(found.write_bytes == BATCH * q for name, found in view.items() if name != "select")
    assert view["select"].write_bytes == BATCH * 2 * 4 * 4, "two groups, four blocks each"
    assert op(found, "L01/decode/attn.gate").flops == 2 * BATCH * H * 3 * 4
    order = [found.name for found in found.ops if found.name.startswith("L01/decode/attn.")]
    assert [name.removeprefix("L01/decode/attn.") for name in order] == [
        *("q", "k", "v", "gate", "cache", "select", "compressed", "window", "selected", "mix", "o")
    ]


def test_a_block_is_compressed_when_it_is_complete() -> None:
    """With 42 tokens: the 20th block of four, the last ones."""
    found = graph(MLA | {"sparse": SPARSE}, phase="decode", new_tokens=2)
    compress = [op for op in found.ops if op.name.endswith("attn.compress")]
    assert [op.name for op in compress] == [f"t1/L0{n}/decode/attn.compress" for n in range(LAYERS)]
    weights = 16 * 16 * 5 + 4 * 16
    assert {op.flops for op in compress} == {BATCH * 2 * 16 * 16 * 5}
    assert {op.read_bytes for op in compress} == {2 * (BATCH * 4 * 16 + weights)}
    assert {op.write_bytes for op in compress} == {2 * BATCH * 16}
    assert sizes(found, "L01/kv") == {
        "L01/kv": BATCH * 40 * 16 * 2,
        "L01/kv.tail": BATCH * 2 * 16 * 2,
        "L01/kv.compressed": BATCH * 19 * 16 * 2,
        "L01/kv.tail.compressed": BATCH * 16 * 2,
    }
    assert op(found, "t1/L01/decode/attn.compressed").flops == BATCH * 20 * 2 * 3 * (2 * 12 + 4)


@pytest.mark.parametrize("attention", [GQA, MLA], ids=["gqa", "mla"])
@pytest.mark.parametrize("chunk", [4, 12, 40])
def test_chunks_do_the_work_of_the_whole(attention, chunk: int) -> None:
    """Attention and compression are the same, however a prompt is cut; blocks are scored once there are too many."""

    def work(found: Graph, *which: str) -> int:
        return sum(op.flops for op in found.ops if op.name.endswith(which))

    cut = graph(attention | {"sparse": SPARSE}, phase="prefill", chunk=chunk)
    pair = 4 * 24 if attention is GQA else 2 * 3 * (2 * 12 + 4)
    pairs = {"compressed": 0, "window": 0, "selected": 0}
    for t in range(1, 41):
        pairs["compressed"] += max(0, (t - 4) // 2 + 1)
        pairs["window"] += min(t, 6)
        pairs["selected"] += sum([min(4, t - start) for start in range(0, t, 4)][-4:])
    assert {name: work(cut, f"attn.{name}") for name in pairs} == {
        name: LAYERS * BATCH * found * pair for name, found in pairs.items()
    }
    width, parts = (16, 1) if attention is MLA else (6, 4)
    assert work(cut, "attn.compress") == LAYERS * BATCH * 19 * parts * 2 * width * width * 5
    whole = graph(attention | {"sparse": SPARSE}, phase="prefill")
    assert {name for name in names(cut, cut.outputs) if "compressed" in name}
    kept = [sum(g.tensors[t].size_bytes for t in g.outputs) for g in (cut, whole)]
    assert kept[0] == kept[1]


def test_selected_blocks_are_late_reads() -> None:
    """Token 41 is alone in block 10; blocks 0, 9 and 10 are read for certain, one of 1 to 7 for each of two groups.

    The window begins in block 8.
    """
    found = graph(GQA | {"sparse": SPARSE}, phase="decode", kv={"block": 4})
    ops = [op(found, f"L01/decode/attn.selected.s{s}") for s in range(BATCH)]
    for s, selected in enumerate(ops):
        assert selected.dynamic is not None
        assert cached(found, selected.dynamic.candidates) == [f"s{s}/b{b:04}" for b in range(1, 8)]
        assert (selected.dynamic.samples, selected.dynamic.each) == (2, 1)
        assert found.ops[selected.dynamic.revealed_by].name == "L01/decode/attn.select"
        certain = set(cached(found, selected.reads)) - set(cached(found, selected.dynamic.candidates))
        assert certain == {f"s{s}/b{b:04}" for b in (0, 9, 10)}
        assert selected.flops == 13 * 4 * 24
        assert selected.read_bytes == 24 * 2 + 9 * 48, "two whole blocks and one token; what is chosen is added"
    assert sum(op.dynamic is not None for op in found.ops) == LAYERS * BATCH
    assert sum(op.flops for op in found.ops) == sum(
        op.flops for op in graph(GQA | {"sparse": SPARSE}, phase="decode").ops
    )


def test_where_the_window_leaves_too_few_blocks_all_are_read() -> None:
    """Token 21: block 0, 4 and 5 are fixed, and the window of 17 sees the others."""
    about = SPARSE | {"window": 17}
    found = graph(GQA | {"sparse": about}, phase="decode", sequence=20, kv={"block": 4})
    assert not found.dynamic_reads
    assert len(cached(found, op(found, "L01/decode/attn.selected").reads)) == 6 * BATCH


def test_what_all_select_is_read_for_certain() -> None:
    """With 16 tokens there are four blocks, and all of them are selected."""
    found = graph(GQA | {"sparse": SPARSE}, phase="decode", sequence=15, kv={"block": 4})
    assert not found.dynamic_reads
    assert not [op for op in found.ops if op.name.endswith("attn.select")]
    assert len(cached(found, op(found, "L01/decode/attn.selected").reads)) == 4 * BATCH


def test_a_dense_cache_in_blocks() -> None:
    """42 tokens: three blocks of 16, the last one partly filled and written in place; the traffic stays."""
    found = graph(GQA, phase="decode", new_tokens=2, kv={"block": 16})
    assert set(sizes(found, "L01/kv").values()) == {16 * 48}
    assert len(sizes(found, "L01/kv")) == BATCH * 3
    assert all(found.tensors[t].persistent for t, x in enumerate(found.tensors) if x.kind == "kv_cache")
    core = op(found, "t1/L01/decode/attn.core")
    assert cached(found, core.reads) == [f"s{s}/b000{b}" for b in range(3) for s in range(BATCH)]
    assert cached(found, core.writes) == ["s0/b0002", "s1/b0002"]
    whole = graph(GQA, phase="decode", new_tokens=2)
    for made, other in zip(found.ops, whole.ops, strict=True):
        assert (made.name, made.flops, made.read_bytes, made.write_bytes) == (
            *(other.name, other.flops, other.read_bytes, other.write_bytes),
        )


@settings(deadline=None, max_examples=40)
@given(
    st.integers(1, 30),
    st.integers(1, 40),
    st.integers(0, 5),
    st.sampled_from([None, 1, 7, 16]),
    st.booleans(),
    st.data(),
)
def test_cutting_changes_no_work_and_no_traffic(block, sequence, sinks, window, is_prefill, data) -> None:
    """Whatever tensors hold the tokens: they are declared, and an op reads those that it sees, and no others."""
    about = GQA | ({"window": window, "sinks": sinks} if window and window + sinks <= sequence else {})
    chunk = data.draw(st.integers(1, sequence)) // block * block
    more: dict[str, Any] = {"phase": "decode", "new_tokens": 3}
    if is_prefill:
        more = {"phase": "prefill"} | ({"chunk": chunk} if chunk else {})
    whole = graph(about, sequence=sequence, **more)
    new = data.draw(st.sampled_from(["reserved", "as_needed"]))
    cut = graph(about, sequence=sequence, kv={"block": min(block, sequence), "new": new}, **more)
    assert [(op.name, op.flops, op.read_bytes, op.write_bytes) for op in cut.ops] == [
        (op.name, op.flops, op.read_bytes, op.write_bytes) for op in whole.ops
    ]
    size = min(block, sequence)
    for start, found in tokens_of(cut, sequence, more):
        read = {int(name[-4:]) for name in cached(cut, found.reads)}
        seen = [t for t in range(start) if "window" not in about or t < about["sinks"] or t > start - about["window"]]
        assert read == {t // size for t in seen}


def tokens_of(found: Graph, sequence: int, more: dict[str, Any]) -> list[tuple[int, Op]]:
    """The cores of the second layer, each with how many tokens are cached before it."""
    cores = [
        op for op in found.ops if op.name.endswith("L01/prefill/attn.core") or op.name.endswith("L01/decode/attn.core")
    ]
    start, step = (sequence, 1) if more["phase"] == "decode" else (0, more.get("chunk", sequence))
    return [(start + number * step, core) for number, core in enumerate(cores)]


def test_a_new_block_is_only_written() -> None:
    found = graph(GQA, phase="decode", new_tokens=2, sequence=48, kv={"block": 16, "sequences": "all"})
    assert sizes(found, "L01/kv") == {f"L01/kv/s0/b{b:04}": BATCH * 16 * 48 for b in range(4)}
    first, second = (op(found, f"t{n}/L01/decode/attn.core") for n in range(2))
    assert cached(found, first.reads) == [f"s0/b000{b}" for b in range(3)]
    assert cached(found, second.reads) == [f"s0/b000{b}" for b in range(4)]
    assert cached(found, first.writes) == cached(found, second.writes) == ["s0/b0003"]


def test_the_cache_grows_block_by_block() -> None:
    """41 to 50 tokens in blocks of 4: block 10 is there for the first one, 11 and 12 come with tokens 44 and 48."""
    found = graph(GQA, phase="decode", new_tokens=10, kv={"block": 4, "new": "as_needed"})
    lives = {t.name: (t.persistent, uses) for t, uses in zip(found.tensors, Lifetimes(found).uses, strict=True)}
    cores = [i for i, op in enumerate(found.ops) if op.name.endswith("L01/decode/attn.core")]
    assert [lives[f"L01/kv/s0/b{b:04}"][0] for b in range(9, 13)] == [True, True, False, False]
    assert lives["L01/kv/s0/b0011"][1] == (*cores[4:],)
    assert lives["L01/kv/s0/b0012"][1] == (*cores[8:],)


def test_blocks_that_come_as_needed_are_put_out_unless_they_are_left() -> None:
    """40 tokens cached and 30 decoded, in blocks of 4; the window of 9 ends with tokens 63 to 70, in blocks 15 on."""
    found = graph(GQA | {"window": 9}, phase="decode", new_tokens=30, kv={"block": 4, "new": "as_needed"})
    put_out = {found.tensors[t].name for t in found.outputs if found.tensors[t].kind == "kv_cache"}
    names = {f"L{i:02}/kv/s{s}/b{b:04}" for i in range(LAYERS) for s in range(BATCH) for b in range(15, 18)}
    assert put_out == names
    assert not any(one.persistent for one in found.tensors if one.name in names)


def test_several_sequences_in_a_tensor() -> None:
    found = graph(GQA, phase="decode", batch=5, kv={"block": 16, "sequences": 2})
    assert sizes(found, "L01/kv/s0") == {f"L01/kv/s0/b{b:04}": 2 * 16 * 48 for b in range(3)}
    assert sizes(found, "L01/kv/s2") == {f"L01/kv/s2/b{b:04}": 1 * 16 * 48 for b in range(3)}
    total = sum(t.size_bytes for t in found.tensors if t.kind == "kv_cache")
    assert total == LAYERS * 5 * 48 * 48


def test_a_window_reads_its_tokens_and_its_sinks() -> None:
    """Token 41 sees tokens 1 to 3 and 32 to 41 (from 1); without blocks, only these are cached."""
    about = GQA | {"window": 10, "sinks": 3}
    core = op(graph(about, phase="decode"), "L01/decode/attn.core")
    assert core.flops == BATCH * 13 * 4 * 24
    assert core.read_bytes == BATCH * 2 * (24 + 24) + BATCH * 12 * 48
    assert sizes(graph(about, phase="decode"), "L01/kv") == {"L01/kv": BATCH * 12 * 48, "L01/kv.tail": BATCH * 48}
    found = graph(about, phase="decode", kv={"block": 8})
    blocks = [f"s{s}/b000{b}" for b in (0, 3, 4) for s in range(BATCH)]
    assert cached(found, op(found, "L01/decode/attn.core").reads) == blocks
    assert sorted(sizes(found, "L01/kv")) == sorted(f"L01/kv/{name}" for name in [*blocks, "s0/b0005", "s1/b0005"])


def test_a_window_in_prefill() -> None:
    about = GQA | {"window": 10, "sinks": 3}
    found = graph(about, phase="prefill", chunk=8, kv={"block": 8})
    seen = sum(min(t, 13) for t in range(1, 41))
    assert sum(op.flops for op in found.ops if op.op_class == "attention") == LAYERS * BATCH * seen * 4 * 24
    last = op(found, "c4/L01/prefill/attn.core")
    assert cached(found, last.reads) == [f"s{s}/b000{b}" for b in (0, 2, 3) for s in range(BATCH)]
    assert cached(found, last.writes) == ["s0/b0004", "s1/b0004"]
    kept = cached(found, found.outputs)
    assert kept == [f"s{s}/b000{b}" for b in (0, 3, 4) for s in range(BATCH)]
    assert last.read_bytes == BATCH * 8 * 2 * (24 + 24) + BATCH * 12 * 48


def test_latents_in_blocks_are_expanded_again() -> None:
    found, whole = (graph(MLA, phase="prefill", chunk=20, **more) for more in ({"kv": {"block": 10}}, {}))
    assert [op.flops for op in found.ops] == [op.flops for op in whole.ops]
    assert len(cached(found, op(found, "c1/L01/prefill/attn.k_b").reads)) == 2 * BATCH


def refusal(attention: dict[str, Any], **more: Any) -> str:
    with pytest.raises(ValidationError) as caught:
        workload(attention, **{"phase": "decode"} | more)
    return str(caught.value.errors()[0]["ctx"]["error"])


def changed(**parts: dict[str, int]) -> dict[str, Any]:
    return GQA | {
        "sparse": {
            key: value | parts.get(key, {}) if isinstance(value, dict) else value for key, value in SPARSE.items()
        }
    }


@pytest.mark.parametrize("more", [{"phase": "train"}, {"phase": "prefill", "chunk": 8}, {"phase": "decode"}])
def test_a_window_that_no_token_leaves_is_none(more: dict[str, Any]) -> None:
    for window in ({"window": 41}, {"window": 38, "sinks": 4}):
        assert graph(GQA | window, **more) == graph(GQA, **more)


def test_blocks_that_no_sequence_fills_are_not_there() -> None:
    """Of ten blocks a token selects all, and none is chosen; with blocks of 44 tokens none is compressed."""
    found = graph(changed(select={"top": 11}), phase="decode")
    assert not [op.name for op in found.ops if "select." in op.name or op.name.endswith("attn.select")]
    assert op(found, "L01/decode/attn.selected").flops == BATCH * 41 * 4 * 24
    found = graph(changed(compress={"block": 44, "stride": 4}), phase="decode")
    assert not [op.name for op in found.ops if op.name.endswith("attn.compressed")]
    assert build(workload(changed(compress={"block": 44, "stride": 4}))).ops


def test_what_does_not_go_together_is_refused() -> None:
    assert refusal(GQA | {"sinks": 4}).startswith("sinks stand beside a window")
    assert refusal(GQA | {"sparse": SPARSE, "window": 4}).startswith("sparse attention has no window")
    assert refusal(changed(select={"top": 3})).startswith("some of the top blocks are chosen by score, found 3 with 3")
    assert refusal(changed(compress={"block": 5})).startswith("stride divides block, found 2 and 5")
    assert refusal(changed(compress={"block": 6, "stride": 3})).startswith("compress.stride divides select.block")
    assert refusal(GQA, kv={"block": 8, "sequences": 99}).startswith("no more sequences have a block in a tensor than")
    assert refusal(GQA, kv={"block": 16}, phase="prefill", chunk=20).startswith("a chunk fills whole blocks")
    assert refusal(changed(), kv={"block": 8}).startswith("a block that is selected is a block of the cache, found 4")
    assert refusal(changed(), kv={"block": 4, "sequences": 2}).startswith("each sequence selects blocks of its own")
    assert refusal(GQA, kv={"block": 1}, sequence=10**6, batch=9).startswith("a KV cache has at most 500,000 blocks")
    many = refusal(GQA, kv={"block": 1}, sequence=10**4, new_tokens=10**3)
    assert many.startswith("the tokens of a step read at most 10,000,000 blocks, found 66,000 blocks, 1,000 times")
    llama = {"layers": 2, "hidden": 8, "heads": 4, "kv_heads": 2, "ffn": 16, "vocabulary": 32}
    with pytest.raises(ValidationError, match="kv is for phase prefill, decode, found it with phase train"):
        Workload.model_validate({"name": "w", "model": llama, "kv": {"block": 4}})


def test_a_block_may_be_larger_than_a_sequence() -> None:
    """It takes the room of a block, as the last block of any sequence does: 41 tokens are in one of 64."""
    found = sizes(graph(GQA, phase="decode", kv={"block": 64}), "L01/kv/")
    just = sizes(graph(GQA, phase="decode", kv={"block": 41}), "L01/kv/")
    assert list(found) == list(just) == ["L01/kv/s0/b0000", "L01/kv/s1/b0000"]
    assert [size * 41 for size in found.values()] == [size * 64 for size in just.values()]


def test_a_published_model_in_blocks_has_the_cache_of_its_closed_form() -> None:
    """DeepSeek-V3: 576 elements a token and layer."""
    found = graph(MLA | {"kv_lora_rank": 512, "qk_rope": 64}, phase="decode", sequence=64, kv={"block": 16})
    total = sum(t.size_bytes for t in found.tensors if t.kind == "kv_cache")
    assert total == prod((LAYERS, BATCH, 80, 576, 2)), "blocks are whole: 65 tokens take five"


def test_a_window_leaves_blocks_behind_as_tokens_are_added() -> None:
    """Twelve tokens after 40, a window of 10: the last one, 52, sees 43 to 52; what is behind is not read any more."""
    found = graph(GQA | {"window": 10}, phase="decode", new_tokens=12, kv={"block": 4})
    read = [cached(found, op(found, f"t{n:02}/L01/decode/attn.core").reads) for n in (0, 11)]
    assert read[0] == [f"s{s}/b{b:04}" for b in (7, 8, 9) for s in range(BATCH)], "the window begins in block 7"
    assert read[1] == [f"s{s}/b{b:04}" for b in (10, 11, 12) for s in range(BATCH)]
    written = {name for n in range(12) for name in cached(found, op(found, f"t{n:02}/L01/decode/attn.core").writes)}
    assert written == {f"s{s}/b{b:04}" for b in (10, 11, 12) for s in range(BATCH)}
    assert len(sizes(found, "L01/kv")) == 6 * BATCH


def lasting(found: Graph, is_lasting: bool = True) -> list[str]:
    """Blocks of the first sequence, in the second layer, that are there when a step begins; or those that are not."""
    start = "L01/kv/s0/b00"
    return [
        t.name.removeprefix(start) for t in found.tensors if t.name.startswith(start) and t.persistent == is_lasting
    ]


def test_what_leaves_the_window_while_tokens_are_added_dies() -> None:
    """Thirty tokens after 40, a window of 10 and 3 sinks, in blocks of 4: 61 to 70 are in the window of the next one.

    Block 0 has the sinks; 7 to 9 are seen at first, 10 to 17 begun in the step, of which 10 to 14 leave in it.
    """
    found = graph(GQA | {"window": 10, "sinks": 3}, phase="decode", new_tokens=30, kv={"block": 4})
    assert lasting(found) == ["00", "07", "08", "09", "15", "16", "17"]
    assert lasting(found, is_lasting=False) == ["10", "11", "12", "13", "14"]
    assert cached(found, found.outputs) == []


def test_what_leaves_the_window_while_a_prompt_is_read_dies() -> None:
    """Forty tokens in blocks of 8: the next one sees the sinks in block 0, and blocks 3 and 4."""
    found = graph(GQA | {"window": 10, "sinks": 3}, phase="prefill", chunk=8, kv={"block": 8})
    assert lasting(found) == []
    assert cached(found, found.outputs) == [f"s{s}/b000{b}" for b in (0, 3, 4) for s in range(BATCH)]
