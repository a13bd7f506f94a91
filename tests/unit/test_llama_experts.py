"""Experts over ranks against closed forms that know nothing of the builder."""

from collections import Counter
from itertools import product

import pytest
from building import build
from examples import some

from simulator.builders import build_job
from simulator.errors import ConfigError
from simulator.graph import Graph, Job
from simulator.lifetime import Lifetimes
from simulator.workload import DecoderModel, Dense, Experts, Gqa, Parallel, Workload

LAYERS, HIDDEN, FFN, EXPERTS, TOP_K = 2, 16, 8, 4, 2
PART = Experts(kind="experts", routed=EXPERTS, top_k=TOP_K, width=FFN)
MODEL = DecoderModel(
    family="decoder",
    layers=LAYERS,
    hidden=HIDDEN,
    vocabulary=12,
    attention=Gqa(kind="gqa", heads=4, kv_heads=2, head_size=4),
    feed_forward=PART,
)
DENSE = MODEL.model_copy(update={"feed_forward": Dense(kind="dense", width=FFN)})
TOKENS = 2 * 6


def job(model: DecoderModel = MODEL, **parallel: object) -> Job:
    layout = Parallel(ranks="all", **parallel)  # type: ignore[arg-type]
    return build_job(Workload(name="w", model=model, batch=2, sequence=6, parallel=layout))


def alone(model: DecoderModel = MODEL) -> Graph:
    return build(Workload(name="w", model=model, batch=2, sequence=6))


def flops(graph: Graph, part: str) -> int:
    return sum(op.flops for op in graph.ops if part in op.name)


def test_a_token_goes_through_top_k_of_the_experts() -> None:
    dense = alone(DENSE)
    for part in ("fwd/ffn", "bwd/ffn"):
        router = flops(alone(), f"{part}.router")
        assert flops(alone(), part) - router == TOP_K * flops(dense, part)
    assert flops(alone(), "fwd/ffn.router") == LAYERS * 2 * TOKENS * HIDDEN * EXPERTS
    size = {t.name: t.size_bytes for t in alone().tensors if t.kind == "expert"}
    assert len(size) == 3 * LAYERS
    assert sum(size.values()) == LAYERS * EXPERTS * 3 * HIDDEN * FFN * 2


@pytest.mark.parametrize(
    ("expert", "tensor", "sequence", "micro_batches"), some([*product((1, 2, 4), (1, 2), (False, True), (1, 3))], 5)
)
def test_all_ranks_do_the_work_of_one_and_hold_each_expert_as_often(
    expert: int, tensor: int, sequence: bool, micro_batches: int
) -> None:
    data = 4
    found = job(data=data, expert=expert, tensor=tensor, sequence=sequence, micro_batches=micro_batches)
    (graph,) = found.graphs
    ranks, replicas = data * tensor, data // expert
    for part in ("fwd/ffn", "bwd/ffn"):
        router = flops(alone(), f"{part}.router")  # on every tensor rank
        expected = data * micro_batches * (flops(alone(), part) + (tensor - 1) * router)
        assert ranks * flops(graph, part) == expected
    held = sum(t.size_bytes for t in graph.tensors if t.kind == "expert")
    assert ranks * held == replicas * sum(t.size_bytes for t in alone().tensors if t.kind == "expert")
    dead = Counter(t for ts in Lifetimes(graph).dead_after for t in ts)
    assert all(dead[t] == (not tensor.persistent) for t, tensor in enumerate(graph.tensors))


@pytest.mark.parametrize("micro_batches", [1, 3])
def test_rows_travel_to_their_experts_and_back(micro_batches: int) -> None:
    """Four times a layer and micro-batch, and every row of a rank's tokens top_k times."""
    (graph,) = job(data=4, expert=2, micro_batches=micro_batches).graphs
    met = Counter(op.collective for op in graph.ops if op.collective and op.collective.kind == "all_to_all")
    ((about, times),) = met.items()
    assert (about.group, about.size_bytes) == ("expert", TOKENS * TOP_K * HIDDEN * 2)
    assert times == 4 * LAYERS * micro_batches
    members = {group.name: group.members for group in graph.groups}
    assert members["expert"] == ((0, 1), (2, 3))
    assert members["data"] == ((0, 2), (1, 3))
    assert members["data.expert"] == ((0, 1, 2, 3),)


@pytest.mark.parametrize("zero_stage", [0, 1, 2, 3])
def test_an_expert_adds_up_over_its_own_replicas(zero_stage: int) -> None:
    (graph,) = job(data=4, expert=2, zero_stage=zero_stage).graphs
    moved: Counter[tuple[str, str]] = Counter()
    for op in graph.ops:
        if op.collective and op.phase == "backward" and "reduce" in op.collective.kind:
            moved[op.collective.group, str(op.collective.kind)] += op.collective.size_bytes
    experts = LAYERS * EXPERTS // 2 * 3 * HIDDEN * FFN * 2
    others = sum(t.size_bytes for t in alone().tensors if t.kind == "weight")
    kind = "reduce_scatter" if zero_stage else "all_reduce"
    assert moved == {("data", kind): experts, ("data.expert", kind): others}
    state = sum(t.size_bytes for t in graph.tensors if t.kind == "optimizer_state")
    assert state == 6 * (experts // (2 if zero_stage else 1) + others // (4 if zero_stage else 1))


def test_experts_without_replicas_keep_their_gradient() -> None:
    (graph,) = job(data=2, expert=2, zero_stage=3, micro_batches=2).graphs
    groups = Counter(op.collective.group for op in graph.ops if op.collective)
    assert set(groups) == {"expert"}
    (graph,) = job(data=4, expert=4, zero_stage=2, micro_batches=2).graphs
    grad = next(i for i, t in enumerate(graph.tensors) if t.name == "L00/ffn.up.weight.grad")
    assert [op.name for op in graph.ops if grad in op.writes] == [
        "mb0/L00/bwd/ffn.up.wgrad",
        "mb1/L00/bwd/ffn.up.wgrad",
    ]


def test_fewer_experts_than_ranks_are_refused() -> None:
    with pytest.raises(ConfigError) as caught:
        job(data=8, expert=8)
    message = "expert divides experts, choices of a rank's tokens, found 8, and 4 experts; set parallel.expert to 4"
    assert str(caught.value) == f"workload w, parallel.expert: {message}"
    with pytest.raises(ConfigError, match=r"found 2, and 1 experts; set parallel\.expert to 1"):
        job(DENSE, data=2, expert=2)


def test_expert_cuts_the_number_of_experts_alone() -> None:
    halves = {"*/ffn.down.weight": ("expert", "none", "tensor")}
    (graph,) = job(data=2, expert=2, tensor=2, layouts=halves).graphs
    assert any(op.name == "L00/fwd/ffn.mul.out.all_gather" for op in graph.ops)
    for cut in (("none", "tensor", "none"), ("tensor", "expert", "none")):
        with pytest.raises(ConfigError, match=r"L00/ffn\.down\.weight: .*only the number of experts is cut by expert"):
            job(data=2, expert=2, layouts={"*/ffn.down.weight": cut})


def test_routing_that_is_uneven_over_expert_ranks_is_refused() -> None:
    odd = MODEL.model_copy(update={"feed_forward": PART.model_copy(update={"routed": 5})})
    assert flops(job(odd).graphs[0], "fwd/ffn.up") == LAYERS * TOP_K * 2 * TOKENS * HIDDEN * FFN
    with pytest.raises(ConfigError, match="expert divides experts, choices of a rank's tokens, found 5, and 24"):
        job(odd, data=5, expert=5)
