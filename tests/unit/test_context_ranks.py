"""Ranks that share the tokens of each sequence, against closed forms and against one rank."""

from collections import Counter
from typing import Any

import pytest
from building import build
from pydantic import ValidationError
from trained import BATCH, EXPERTS, GQA, LAYERS, MLA, SEQUENCE, H, T, by_op, check_lives, flops, sizes, workload

from simulator import catalog
from simulator.builders import build_job, check
from simulator.errors import ConfigError
from simulator.graph import Graph, Job
from simulator.referee import check_job

CONTEXT = 4
KV = 2 * 6


def job(**parallel: Any) -> Job:
    found = build_job(workload(GQA, parallel={"ranks": "all", "context": CONTEXT, **parallel}))
    check_job(found, catalog.read_hardware("cloudmatrix384"))
    return found


def met(graph: Graph) -> Counter[tuple[str, str, int]]:
    about = (op.collective for op in graph.ops if op.collective)
    return Counter((c.group, str(c.kind), c.size_bytes) for c in about)


def test_keys_and_values_are_gathered_in_both_directions_and_their_gradients_added_up() -> None:
    """Of each layer: k and v of all tokens in forward and again in backward; reduce-scatters of their gradients."""
    alone, (graph,) = build(workload(GQA)), job().graphs
    found, gathered = met(graph), T * KV * 2
    weights = Counter(sizes(alone, "weight").values())
    grads = {key: times for key, times in found.items() if key[1] == "all_reduce"}
    assert {key: times for key, times in found.items() if key[1] != "all_reduce"} == {
        ("context", "all_gather", gathered): 4 * LAYERS,
        ("context", "reduce_scatter", gathered): 2 * LAYERS,
    }
    assert sum(size * times for (_, _, size), times in grads.items()) == sum(s * n for s, n in weights.items())
    assert {group for group, *_ in found} == {"context"}
    for phase, op_class in (("forward", "matmul"), ("backward", "matmul"), ("forward", "attention")):
        assert CONTEXT * flops(graph, phase, op_class) == flops(alone, phase, op_class)
    assert flops(graph, "forward", "attention") == LAYERS * 4 * 6 * 2 * BATCH * SEQUENCE**2 // CONTEXT
    saved = {t.name: t.size_bytes for t in graph.tensors if t.name.endswith("norm1.out")}
    assert saved == {f"L0{layer}/norm1.out": T * H * 2 // CONTEXT for layer in range(LAYERS)}
    assert sizes(graph, "weight") == sizes(alone, "weight")
    check_lives(graph)


@pytest.mark.parametrize(
    "parallel",
    [
        {"data": 2, "zero_stage": 3}, {"tensor": 2, "sequence": True}, {"pipeline": 3, "micro_batches": 2},
        {"data": 2, "tensor": 2, "zero_stage": 2, "micro_batches": 2}, {"zero_stage": 1},
    ],
)  # fmt: skip
@pytest.mark.parametrize("feed_forward", [None, EXPERTS])
def test_all_ranks_do_the_work_of_one(parallel: dict[str, Any], feed_forward: dict[str, Any] | None) -> None:
    parts = (GQA, feed_forward) if feed_forward else (GQA,)
    parallel = {"ranks": "all", "context": 2, **parallel}
    alone, found = build(workload(*parts)), build_job(workload(*parts, parallel=parallel))
    check_job(found, catalog.read_hardware("cloudmatrix384"))
    graphs = [found.graph(rank) for rank in range(found.ranks)]
    times, tensor = parallel.get("data", 1) * parallel.get("micro_batches", 1), parallel.get("tensor", 1)
    assert found.ranks == 2 * parallel.get("data", 1) * tensor * parallel.get("pipeline", 1)
    for phase in ("forward", "backward"):
        total, once = by_op(graphs, phase), by_op([alone], phase)
        assert total.keys() == once.keys()
        for name, number in once.items():
            assert total[name] == times * number * (tensor if "router" in name else 1), name
    for graph in graphs:
        check_lives(graph)


def test_zero_shards_over_context_ranks_as_well() -> None:
    graph = job(data=2, zero_stage=3).graphs[0]
    stored = sum(t.size_bytes for t in graph.tensors if t.kind == "weight" and t.persistent)
    assert stored == sum(sizes(build(workload(GQA)), "weight").values()) // (2 * CONTEXT)
    assert {group for group, *_ in met(graph)} == {"context", "data.context"}


def test_neighbours_share_a_sequence_unless_axes_say_another() -> None:
    members = {group.name: group.members for group in job(data=2, tensor=2).graphs[0].groups}
    assert members["context"][0] == (0, 2, 4, 6)
    names = ["pipeline", "context", "data", "tensor"]
    members = {group.name: group.members for group in job(data=2, tensor=2, axis_names=names).graphs[0].groups}
    assert members["context"][0] == (0, 4, 8, 12)


def test_what_cannot_be_shared_is_refused() -> None:
    with pytest.raises(ValidationError, match=r"context ranks gather the keys and values .* found another"):
        workload(MLA, parallel={"ranks": "all", "context": 2})
    with pytest.raises(ValidationError, match="inference is spread over tensor ranks alone, found context"):
        workload(phase="decode", parallel={"ranks": "all", "context": 2})
    with pytest.raises(ValidationError, match=r"found context; add 'ranks: all'"):
        workload(parallel={"context": 2})
    with pytest.raises(ConfigError, match=r"context divides tokens, found 3, and 8 tokens; .*2 or 4"):
        check(workload(parallel={"ranks": "all", "context": 3}))
