"""Experts that are chosen unequally often: the busiest rank takes in more rows, and fewer different ones are read."""

from __future__ import annotations

from math import ceil, fsum

import pytest

from simulator import builders
from simulator.workload import Workload

ROUTED, TOP, RANKS, TOKENS, HIDDEN, WIDTH = 16, 2, 4, 64, 32, 48


def work(skew: float, **more: object) -> Workload:
    """A toy with experts that trains on four replicas, which share the experts; with changes."""
    feed_forward = {"kind": "experts", "routed": ROUTED, "top_k": TOP, "width": WIDTH, "skew": skew}
    attention = {"kind": "gqa", "heads": 2, "kv_heads": 2, "head_size": 16}
    model = {"family": "decoder", "layers": 2, "hidden": HIDDEN, "vocabulary": 64, "attention": attention}
    parallel = {"ranks": "all", "data": RANKS, "expert": RANKS}
    fields = {"name": "toy", "model": model | {"feed_forward": feed_forward | more.pop("part", {})}}
    return Workload.model_validate({**fields, "sequence": TOKENS, "parallel": parallel, **more})


def busiest(skew: float) -> float:
    """The rows of a rank with each fourth expert by popularity, the first one included, over the mean."""
    weights = [rank**-skew for rank in range(1, ROUTED + 1)]
    return fsum(weights[::RANKS]) / fsum(weights) * RANKS


@pytest.mark.parametrize("skew", [0.0, 0.2, 0.5])
def test_the_busiest_rank_computes_and_receives_as_much_more(skew):
    ops = builders.build_job(work(skew)).graphs[0].ops
    rows = ceil(round(TOKENS * TOP // RANKS * busiest(skew), 6)) * RANKS
    up = [op for op in ops if op.name == "L00/fwd/ffn.up"]
    assert [op.flops for op in up] == [2 * rows * HIDDEN * WIDTH]
    sent = [op.collective.size_bytes for op in ops if op.collective and op.collective.kind == "all_to_all"]
    assert sent
    assert {*sent} == {rows * HIDDEN * 2}
    router = [op.flops for op in ops if op.name == "L00/fwd/ffn.router"]
    assert router == [2 * TOKENS * HIDDEN * ROUTED], "all tokens, whatever they choose"


@pytest.mark.parametrize(("skew", "tokens"), [(0.2, 3), (0.5, 3), (0.5, 1000)])
def test_few_tokens_read_fewer_different_experts_of_a_skew(skew, tokens):
    alone = {"phase": "decode", "batch": tokens, "parallel": {}, "sequence": 8}
    reads = {
        of: next(
            op.read_bytes
            for op in builders.build_job(work(of, **alone)).graphs[0].ops
            if op.name == "L00/decode/ffn.up"
        )
        for of in (0.0, skew)
    }
    weights = [rank**-skew for rank in range(1, ROUTED + 1)]
    chosen = ceil(fsum(1 - (1 - TOP * weight / fsum(weights)) ** tokens for weight in weights))
    alike = ROUTED - ROUTED * (ROUTED - TOP) ** tokens // ROUTED**tokens
    assert reads[0.0] - reads[skew] == (alike - chosen) * HIDDEN * WIDTH * 2


def test_a_rank_of_several_takes_in_more_rows():
    """Of inference, whose graph is that of one of so many ranks."""
    alone = {"phase": "decode", "batch": TOKENS, "parallel": {}, "sequence": 8}
    graphs = [builders.build_job(work(skew, **alone, part={"ranks": RANKS})).graphs[0] for skew in (0.0, 0.5)]
    flops = [next(op.flops for op in graph.ops if op.name == "L00/decode/ffn.up") for graph in graphs]
    assert flops[0] == 2 * TOKENS * TOP * HIDDEN * WIDTH
    assert flops[1] == 2 * ceil(TOKENS * TOP * busiest(0.5)) * HIDDEN * WIDTH


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"part": {"skew": 2.0}}, "a token chooses no expert more than once, found the first one 1.2"),
        ({"part": {"ranks": 3, "copies": 2}}, "copies are for experts that are alike, found a skew of 0.5"),
        ({"phase": "decode", "parallel": {}, "experts": "each"}, "draws of the scenario say how skewed experts are"),
    ],
)
def test_what_no_skew_can_be(more, said):
    with pytest.raises(ValueError, match=said):
        work(0.5, **more)
