"""Lightning attention (MiniMax-01, arXiv 2501.08313) beside full attention, against closed forms."""

from __future__ import annotations

from typing import Any

import pytest
from building import build
from parameters import count
from pydantic import ValidationError

from simulator.builders import build_job
from simulator.graph import Graph
from simulator.workload import DecoderModel, Workload

HIDDEN, HEADS, SIZE, BLOCK = 24, 4, 6, 5
BATCH, TOKENS, LAYERS, BYTES, STATE = 2, 12, 4, 2, 4 * 6 * 6 * 4
FULL = {"kind": "gqa", "heads": HEADS, "kv_heads": 2, "head_size": SIZE}
LINEAR = {"kind": "linear", "heads": HEADS, "head_size": SIZE, "block": BLOCK}


def workload(phase: str = "decode", **more: Any) -> Workload:
    model = {"family": "decoder", "layers": LAYERS, "hidden": HIDDEN, "vocabulary": 64, "attention": LINEAR}
    model |= {"feed_forward": {"kind": "dense", "width": 16}, "others": [{"every": 2, "attention": FULL}]}
    data = {"name": "w", "phase": phase, "batch": BATCH, "sequence": TOKENS, "model": model}
    return Workload.model_validate(data | more)


def cores(graph: Graph) -> list[Any]:
    return [op for op in graph.ops if op.name.endswith("/attn.core") and op.name.split("/")[-3] in ("L01", "L03")]


def test_a_layer_has_a_gate_and_a_norm_beside_four_matrices() -> None:
    model = workload().model
    assert isinstance(model, DecoderModel)
    width = HEADS * SIZE
    alike = 2 * HIDDEN + 3 * HIDDEN * 16
    full, linear = HIDDEN * SIZE * (2 * HEADS + 2 * 2), 5 * HIDDEN * width + width
    assert count(model).total == 2 * (full + linear) + LAYERS * alike + 2 * HIDDEN * 64 + HIDDEN
    assert model.kv_elements == 2 * 2 * 2 * SIZE


def test_a_token_adds_to_the_state_and_reads_it() -> None:
    graph = build(workload(new_tokens=3))
    kept = {t.name: (t.size_bytes, t.persistent) for t in graph.tensors if t.kind == "kv_cache"}
    assert {name for name in kept if name.startswith(("L01", "L03"))} == {"L01/state", "L03/state"}
    assert kept["L01/state"] == (BATCH * STATE, True)
    assert len(cores(graph)) == 2 * 3
    row = BATCH * HEADS * SIZE * BYTES
    for op in cores(graph):
        assert op.flops == BATCH * HEADS * (4 * SIZE * SIZE + 4 * SIZE)
        assert (op.read_bytes, op.write_bytes) == (3 * row + BATCH * STATE, row + BATCH * STATE)


@pytest.mark.parametrize("chunk", [None, 5, 7])
def test_prompts_attend_in_blocks(chunk: int | None) -> None:
    graph = build(workload("prefill", **({"chunk": chunk} if chunk else {})))
    sizes = [min(chunk or TOKENS, TOKENS - start) for start in range(0, TOKENS, chunk or TOKENS)]
    pairs = sum(t % BLOCK + 1 for size in sizes for t in range(size))
    assert sum(op.flops for op in cores(graph)) == 2 * 4 * BATCH * HEADS * SIZE * (TOKENS * SIZE + pairs)
    assert sum(op.read_bytes for op in cores(graph)) == 2 * BATCH * (
        3 * TOKENS * HEADS * SIZE * BYTES + (len(sizes) - 1) * STATE
    )
    assert {graph.tensors[i].name for i in graph.outputs} >= {"L01/state", "L03/state"}


def test_blocks_of_the_cache_are_those_of_the_other_layers() -> None:
    graph = build(workload(sequence=16, new_tokens=6, kv={"block": 4, "new": "as_needed"}))
    blocks = {t.name[:3] for t in graph.tensors if "/kv/" in t.name}
    assert blocks == {"L00", "L02"}


def test_tensor_ranks_share_the_heads() -> None:
    one, two = (build_job(workload(parallel={"ranks": "all", "tensor": n})).graphs[0] for n in (1, 2))
    assert [op.flops for op in cores(one)] == [2 * op.flops for op in cores(two)]
    sizes = [{t.name: t.size_bytes for t in graph.tensors} for graph in (one, two)]
    assert sizes[0]["L01/state"] == 2 * sizes[1]["L01/state"]


def test_phases_that_are_not_built_are_refused() -> None:
    with pytest.raises(ValidationError, match=r"requests are served by|batch is for phase"):
        workload("requests", requests={"file": "x.csv"})


@pytest.mark.parametrize("key", [{"steps": 3}, {"outputs": "freed"}])
def test_what_requests_never_read_is_refused(key: dict[str, object]) -> None:
    of_requests = {"phase": "requests", "requests": {"file": "x.csv"}, "name": "x", "model": workload().model}
    Workload.model_validate(of_requests)
    with pytest.raises(ValidationError, match=f"{next(iter(key))} is for phase train, serve, prefill, decode"):
        Workload.model_validate(of_requests | key)


def test_linear_attention_has_no_window() -> None:
    model = {"family": "decoder", "layers": 1, "hidden": 8, "vocabulary": 8, "attention": LINEAR | {"window": 4}}
    model["feed_forward"] = {"kind": "dense", "width": 16}
    with pytest.raises(ValidationError, match="only known keys stand here, found 'window'"):
        Workload.model_validate({"name": "w", "phase": "decode", "model": model})
