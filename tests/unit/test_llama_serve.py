"""Prefill and decode pools against closed forms that know nothing of the builder."""

import pytest
from pydantic import ValidationError

from simulator.builders import build_job
from simulator.graph import CollectiveKind, Graph, Job
from simulator.lifetime import Lifetimes
from simulator.workload import LlamaModel, Parallel, Pools, Workload

MODEL = LlamaModel(layers=3, hidden=16, heads=4, kv_heads=2, ffn=8, vocabulary=12)
KV, BATCH, PROMPT = 8, 2, 6
LINEARS = 16 * (16 + KV + KV + 16) + 3 * 16 * 8
"""Parameters of a layer's linears."""


def served(prefill: int, decode: int, new_tokens: int, model: LlamaModel = MODEL) -> Job:
    pools = Pools(prefill=prefill, decode=decode, new_tokens=new_tokens)
    return build_job(Workload(name="w", model=model, phase="serve", batch=BATCH, sequence=PROMPT, pools=pools))


def kept(graph: Graph, kind: str) -> dict[str, int]:
    return {t.name: t.size_bytes for t in graph.tensors if t.kind == kind}


def messages(graph: Graph, kind: CollectiveKind) -> list[tuple[str, int]]:
    return [(c.group, c.size_bytes) for op in graph.ops if (c := op.collective) is not None and c.kind == kind]


def test_every_prefill_rank_has_its_decode_rank() -> None:
    job = served(4, 2, 1)
    assert job.graph_of == (0, 1, 0, 1, 2, 2)
    assert job.labels == ("prefill for kv.0", "prefill for kv.1", "decode")
    assert {group.name: group.members for group in job.graph(4).groups} == {
        "kv.0": ((0, 4), (2, 5)),
        "kv.1": ((1, 4), (3, 5)),
    }
    assert served(3, 3, 1).graph_of == (0, 0, 0, 1, 1, 1)


@pytest.mark.parametrize("share", [1, 3])
def test_what_is_sent_is_received_in_the_same_order(share: int) -> None:
    *prefill, decode = served(share, 1, 2).graphs
    layer = 2 * BATCH * PROMPT * KV * 2
    received = messages(decode, CollectiveKind.RECV)
    for graph in prefill:
        sent = messages(graph, CollectiveKind.SEND)
        assert [size for _, size in sent] == [layer] * 3 + [4 * BATCH]
        assert [one for one in received if one[0] == sent[0][0]] == sent
    assert len(received) == share * 4


def test_work_of_prefill() -> None:
    """Two FLOP a parameter and token, half of the square of the prompt; logits of the last tokens only."""
    graph = served(1, 1, 1).graphs[0]
    tokens = BATCH * PROMPT
    attention = BATCH * 2 * PROMPT * PROMPT * 16
    assert sum(op.flops for op in graph.ops) == 3 * (2 * tokens * LINEARS + attention) + 2 * BATCH * 16 * 12
    assert {op.phase for op in graph.ops} == {"prefill"}
    cache = kept(graph, "kv_cache")
    assert sum(cache.values()) == 3 * 2 * tokens * KV * 2
    assert not kept(graph, "gradient")


@pytest.mark.parametrize("share", [1, 2])
def test_decode_reads_more_with_each_token(share: int) -> None:
    new_tokens, rows = 4, share * BATCH
    graph = served(share, 1, new_tokens).graphs[-1]
    assert {op.phase for op in graph.ops} == {"decode"}
    attention = [op for op in graph.ops if op.name.endswith("L01/decode/attn.core")]
    assert len(attention) == new_tokens
    for number, op in enumerate(attention):
        length = PROMPT + number + 1
        assert op.flops == 4 * rows * length * 16
        assert op.read_bytes == rows * (16 + 2 * KV * length) * 2
        assert op.write_bytes == rows * (16 + 2 * KV) * 2
    linears = 3 * 2 * rows * LINEARS + 2 * rows * 16 * 12
    assert sum(op.flops for op in graph.ops if op.op_class == "matmul") == new_tokens * linears
    cache = kept(graph, "kv_cache")
    assert sum(size for name, size in cache.items() if name.endswith("tail")) == 3 * 2 * rows * new_tokens * KV * 2
    assert sum(size for name, size in cache.items() if not name.endswith("tail")) == 3 * 2 * rows * PROMPT * KV * 2


def test_what_was_received_is_only_read_and_dies_with_the_last_token() -> None:
    graph = served(2, 1, 3).graphs[-1]
    found = Lifetimes(graph)
    for t, tensor in enumerate(graph.tensors):
        if tensor.kind == "kv_cache":
            writers = {graph.ops[i].collective is not None for i in found.writes[t]}
            assert writers == {not tensor.name.endswith("tail")}
            assert graph.ops[found.last_use[t]].name.startswith("t02/")
            if not tensor.name.endswith("tail"):
                assert len(found.writes[t]) == 1


def test_a_tied_table_makes_the_logits_as_well() -> None:
    graph = served(1, 1, 1, MODEL.model_copy(update={"tied_embeddings": True})).graphs[1]
    assert [op.name for op in graph.ops if any(graph.tensors[t].name == "embed/tokens.weight" for t in op.reads)] == [
        "t00/embed/decode/tokens",
        "t00/head/decode/lm",
    ]


def refusal(**fields: object) -> str:
    with pytest.raises(ValidationError) as caught:
        Workload.model_validate({"name": "w", "model": MODEL, **fields})
    return str(caught.value.errors()[0]["ctx"]["error"])


def test_pools_serve_and_deal_out_evenly() -> None:
    pools = {"prefill": 2, "decode": 2, "new_tokens": 1}
    assert refusal(phase="serve").startswith("phase serve has pools, found none")
    assert refusal(pools=pools).startswith("pools is for phase serve, found it with phase train")
    found = refusal(phase="serve", pools=pools | {"prefill": 3})
    assert found == "decode divides prefill, found 2 and 3; set decode to 1 or 3"
    found = refusal(phase="serve", pools=pools, parallel=Parallel(data=2))
    assert found.startswith("parallel is for phase train, prefill, decode, requests, found it with phase serve")
