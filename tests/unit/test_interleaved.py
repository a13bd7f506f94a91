"""Interleaved stages against Megatron's closed forms, and what they refuse."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest
from examples import some
from pydantic import ValidationError
from small_job import SCENARIO, written

import simulator as hosim
from simulator.builders import build_job
from simulator.builders.turns import turns
from simulator.errors import ConfigError
from simulator.graph import Graph, Job
from simulator.units import FieldError
from simulator.workload import LlamaModel, Parallel, Workload

LAYERS, FORWARD_NS, BACKWARD_NS = 8, 1_000, 2_000
SMALL = LlamaModel(layers=LAYERS, hidden=16, heads=4, kv_heads=2, ffn=8, vocabulary=12)
BOX = """\
schema: hosim/hardware/1
name: box
compute_tier: hbm
compute: {peak: {bf16: 1 TFLOP/s, fp32: 1 TFLOP/s}}
tiers:
  hbm: {capacity: inf, bandwidth: 1 TB/s}
  ddr: {capacity: inf}
links:
  d2h: {source: hbm, target: ddr, bandwidth: 1 GB/s}
  h2d: {source: ddr, target: hbm, bandwidth: 1 GB/s}
topology: {devices_per_node: 8, nodes: 1}
fabrics: {net: {scope: node, bandwidth: 1000 TB/s}}
assumed: {compute: a story, tiers: a story, links: a story, topology: a story, fabrics: a story}
"""


def job(**parallel: object) -> Job:
    layout = Parallel(ranks="all", **parallel)  # type: ignore[arg-type]
    return build_job(Workload(name="w", model=SMALL, batch=1, sequence=2, parallel=layout, steps=1))


def timed(graph: Graph) -> Graph:
    """Let a layer take so long forward, and twice as long backward, and all else no time."""
    ns = {"fwd/attn.core": FORWARD_NS, "bwd/attn.core": BACKWARD_NS}
    ops = [
        replace(op, duration_ns=None if op.collective else ns.get("/".join(op.name.split("/")[-2:]), 0))
        for op in graph.ops
    ]
    return replace(graph, ops=tuple(ops))


def step_ns(found: Job, tmp_path: Path) -> int:
    found = replace(found, graphs=tuple(map(timed, found.graphs)))
    (tmp_path / "box.yaml").write_text(BOX)
    path = written(
        tmp_path, "micro_batches: 1", SCENARIO.replace("dgx_h100", "box.yaml").replace("equals: 4", "equals: 8")
    )
    row = hosim.run(path, job=found, policies=["resident"])["resident"]
    assert row.status == "ok", row.summary
    return int(row.summary["step_ns"])


@pytest.mark.parametrize(("stages", "chunks", "micros"), some([(2, 4, 2), (2, 2, 4), (4, 2, 4)], 3))
def test_the_bubble_is_that_of_the_closed_form(stages: int, chunks: int, micros: int, tmp_path: Path) -> None:
    """(p - 1) / (v m) of the ideal time (arXiv 2104.04473, section 2.2.2), but for what messages take: 1 ns each."""
    ideal = LAYERS // stages * micros * (FORWARD_NS + BACKWARD_NS)
    shape = {"pipeline": stages, "micro_batches": micros}
    plain = step_ns(job(**shape), tmp_path)
    woven = step_ns(job(**shape, schedule="interleaved", chunks=chunks), tmp_path)
    for found, parts in ((plain, 1), (woven, chunks)):
        bubble = Fraction(stages - 1, parts * micros) * ideal
        messages = found - ideal - bubble
        assert 0 <= messages <= 4 * stages * chunks, f"{parts} chunks: {found} ns, ideal {ideal}, bubble {bubble}"


def test_turns_are_those_of_megatron() -> None:
    """Twice the stages behind, and a group for each further chunk, go ahead: as in Megatron, and in HyperParallel's
    ``warmup_ops`` (hyper_parallel/core/pipeline_parallel/scheduler.py at fdd0a808)."""
    layout = Parallel(ranks="all", pipeline=4, micro_batches=8, schedule="interleaved", chunks=2)
    for stage in range(4):
        order = [*turns(layout, stage)]
        ahead = next(i for i, turn in enumerate(order) if turn[0] == "backward") - 1
        assert ahead == 2 * (4 - stage - 1) + 4
        assert Counter(order) == Counter((p, m, c) for p in ("forward", "backward") for m in range(8) for c in range(2))
        forward = [f"{micro}.{chunk}" for phase, micro, chunk in order if phase == "forward"]
        assert " ".join(forward[:10]) == "0.0 1.0 2.0 3.0 0.1 1.1 2.1 3.1 4.0 5.0"
        assert [turn[2] for turn in order if turn[0] == "backward"][:5] == [1, 1, 1, 1, 0]


@pytest.mark.parametrize("zero_stage", [0, 1])
def test_chunks_do_the_work_of_the_model_and_add_gradients_up_once(zero_stage: int) -> None:
    shape = {"pipeline": 2, "data": 2, "tensor": 2, "micro_batches": 4, "zero_stage": zero_stage}
    plain, interleaved = job(**shape), job(**shape, schedule="interleaved", chunks=2)

    def work(found: Job) -> tuple[Counter[str], Counter[str], Counter[object]]:
        ops = [op for graph in found.graphs for op in graph.ops]
        names = Counter(re.sub(r"^mb\d/", "", op.name) for op in ops if op.collective is None)
        flops = Counter({op.name: op.flops for op in ops})
        met = Counter((op.name, op.collective.kind) for op in ops if op.collective and op.collective.group == "data")
        return names, flops, met

    assert work(interleaved) == work(plain)
    held = [{t.name for t in graph.tensors if t.persistent and t.kind == "weight"} for graph in interleaved.graphs]
    layers = [sorted({name[:3] for name in names if name[0] == "L"}) for names in held]
    assert layers == [["L00", "L01", "L04", "L05"], ["L02", "L03", "L06", "L07"]]


BAD = {
    "chunks without their schedule": (
        {"pipeline": 2, "micro_batches": 2, "chunks": 2},
        "interleaved stages have several chunks, and others one, found 2 with 1f1b",
    ),
    "the schedule without chunks": (
        {"pipeline": 2, "micro_batches": 2, "schedule": "interleaved"},
        "interleaved stages have several chunks, and others one, found 1 with interleaved",
    ),
    "too few micro-batches": (
        {"pipeline": 4, "micro_batches": 2, "schedule": "interleaved", "chunks": 2},
        "take micro-batches in groups as large as the pipeline, found 2 for 4 stages",
    ),
    "one stage": (
        {"micro_batches": 2, "schedule": "interleaved", "chunks": 2},
        "take micro-batches in groups as large as the pipeline, found 2 for 1 stages",
    ),
    "sharded gradients": (
        {"pipeline": 2, "micro_batches": 2, "schedule": "interleaved", "chunks": 2, "data": 2, "zero_stage": 2},
        "interleaved stages hold weights and gradients whole, found ZeRO 2",
    ),
    "layers of stages alone": (
        {"pipeline": 2, "micro_batches": 2, "schedule": "interleaved", "chunks": 2, "layers": (4, 4)},
        "layers says how many each stage has, found 2 for 4 stages",
    ),
    "layers that do not divide": (
        {"pipeline": 2, "micro_batches": 2, "schedule": "interleaved", "chunks": 3},
        "the virtual stages have equally many of the model's 8 layers, found 6 stages",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_what_cannot_be_interleaved_is_refused(name: str) -> None:
    parallel, message = BAD[name]
    with pytest.raises((ConfigError, ValidationError, FieldError)) as caught:
        job(**parallel)
    assert message in str(caught.value)
