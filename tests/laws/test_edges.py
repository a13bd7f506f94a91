"""Weights between layouts: every receiver ends with its slice, and each byte comes once, from a rank that holds it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from simulator.builders import build_job, layouts
from simulator.builders.slices import HeldSlice, messages
from simulator.errors import ConfigError
from simulator.graph import Job
from simulator.layout import Weight
from simulator.workload import Workload
from simulator.workload.job import JobDocument

MODEL = {"layers": 2, "hidden": 48, "heads": 8, "kv_heads": 2, "ffn": 48, "vocabulary": 96, "tied_embeddings": False}


def trainer(tensor: int, data: int, zero_stage: int, axes: tuple[str, ...], pipeline: int = 1) -> dict[str, Any]:
    """A training layout of the small model."""
    spread = {"ranks": "all", "tensor": tensor, "data": data, "zero_stage": zero_stage, "pipeline": pipeline}
    return {"name": "t", "model": MODEL, "batch": 2, "sequence": 8, "parallel": spread | {"axis_names": axes}}


def answering(tensor: int, replicas: int) -> dict[str, Any]:
    """A decode layout of it: so many tensor ranks, or so many replicas of one."""
    spread = {"parallel": {"ranks": "all", "tensor": tensor}} if tensor > 1 else {"replicas": replicas}
    return {"name": "d", "model": MODEL, "phase": "decode", "sequence": 8, **spread}


AXES = st.permutations(("pipeline", "data", "expert", "tensor")).map(tuple)
TRAINERS = st.builds(
    trainer, st.sampled_from((1, 2, 4, 8)), st.integers(1, 5), st.sampled_from((0, 1, 2, 3)), AXES, st.integers(1, 2)
)
RECEIVERS = st.builds(answering, st.sampled_from((1, 2, 4, 8)), st.integers(1, 4))


def elements(weight: Weight, rank: int, zero_stage: int) -> NDArray[np.int64]:
    """The elements that a rank holds, as indices into the weight without copies, found apart from `HeldSlice`."""
    whole = np.arange(np.prod(weight.whole_shape)).reshape(weight.whole_shape)
    if weight.copies > 1:  # heads are repeated for each rank that has them
        parts = np.split(
            whole, weight.shape[-1] // weight.copies // (weight.shape[-1] // weight.layout.divisors[-1]), -1
        )
        whole = np.concatenate([part for part in parts for _ in range(weight.copies)], -1)
    mesh = weight.layout.mesh
    place = dict(zip(mesh.axis_names, np.unravel_index(rank, mesh.device_matrix), strict=True))
    for dimension, axes in enumerate(weight.layout.tensor_map):
        for axis in axes:
            whole = np.split(whole, mesh.sizes[axis], dimension)[place[axis]]
    mine = whole.ravel()
    if zero_stage < 3 or not weight.replicas:
        return mine
    index = 0
    for axis in weight.replicas:
        index = index * mesh.sizes[axis] + int(place[axis])
    shard = -(-len(mine) // mesh.size(weight.replicas))
    return mine[index * shard : (index + 1) * shard]


@given(TRAINERS, RECEIVERS)
def test_every_receiver_gets_its_slice_and_every_byte_once(source: dict[str, Any], target: dict[str, Any]):
    source_work, target_work = Workload.model_validate(source), Workload.model_validate(target)
    of_source, of_target = layouts(source_work), layouts(target_work)
    stage = source_work.parallel.zero_stage
    for name in ("L00/attn.k.weight", "L00/ffn.down.weight", "embed/tokens.weight", "L00/norm1.weight"):
        weight, other = of_source[name], of_target[name]
        ranks, count = weight.layout.mesh.ranks, other.layout.mesh.ranks
        holds = {rank: HeldSlice.of(weight, rank, stage) for rank in range(ranks)}
        wants = {1000 + rank: HeldSlice.of(other, rank) for rank in range(count)}
        sent = messages(holds, wants)
        for rank in range(count):
            wanted = np.sort(elements(other, rank, 0))
            senders = [s for s, t in sent if t == 1000 + rank]
            came = [np.intersect1d(elements(weight, s, stage), wanted) for s in senders]
            assert [len(c) for c in came] == [sent[s, 1000 + rank] for s in senders]
            assert np.array_equal(np.sort(np.concatenate(came)), wanted), "all of it, and nothing twice"


@given(TRAINERS, RECEIVERS, st.booleans(), st.integers(1, 2))
def test_a_job_sends_what_its_receivers_lack(
    source: dict[str, Any], target: dict[str, Any], together: bool, times: int
):
    ranks = Workload.model_validate(source).ranks
    needed = Workload.model_validate(target).ranks
    if together and ranks % needed:
        return
    programs = {"train": {"workload": source, "ranks": ranks}, "act": {"workload": target}}
    programs["act"]["ranks"] = "train" if together else needed * times
    edges = [{"from": "train", "to": "act", "weights": True}]
    document = JobDocument.model_validate({"name": "j", "programs": programs, "edges": edges})
    try:
        job = build_job(document)
    except ConfigError:  # a premise: layouts that are not too unlike
        with pytest.raises(ConfigError, match="the messages of an edge fit into 24 groups"):
            build_job(document)
        return
    receivers = range(ranks) if together else range(ranks, job.ranks)
    lacking = sum(unshared(job, rank) for rank in receivers)
    moved = {"send": 0, "recv": 0, "copy": 0}
    for rank in range(job.ranks):
        for op in job.graph(rank).ops:
            if op.name.startswith("train.to.act/"):
                role, times = op.name.rpartition("/")[2].partition(".")[0], 1
                if role == "send" and op.collective:  # a broadcast leaves its rank once
                    group = next(g for g in job.graph(rank).groups if g.name == op.collective.group)
                    times = len(next(m for m in group.members if m[0] == rank)) - 1
                    assert (op.collective.kind == "broadcast") == (times > 1)
                moved[role] += times * max(op.read_bytes, op.write_bytes)
    assert moved["send"] == moved["recv"]
    assert moved["recv"] + moved["copy"] == lacking


def unshared(job: Job, rank: int) -> int:
    """The bytes of the weights of `act` on a rank that are no tensors of `train`."""
    kinds = ("weight", "expert")
    return sum(t.size_bytes for t in job.graph(rank).tensors if t.kind in kinds and t.name.startswith("act."))


def test_what_several_ranks_lack_of_one_leaves_it_once():
    """A rank that has it all hands three ranks the same, and two ranks that cut a matrix other parts of it."""
    alone = {"name": "t", "model": MODEL, "batch": 2, "sequence": 8, "parallel": {"ranks": "all"}}
    edges = [{"from": "train", "to": "act", "weights": True}]
    for target, ranks, members in ((answering(1, 1), 3, ((0, 1, 2, 3),)), (answering(2, 1), 2, ((0, 1),))):
        programs = {"train": {"workload": alone, "ranks": 1}, "act": {"workload": target, "ranks": ranks}}
        job = build_job(JobDocument.model_validate({"name": "j", "programs": programs, "edges": edges}))
        met = [op.collective for op in job.graph(0).ops if op.collective]
        assert {each.kind for each in met} == {"broadcast" if len(members[0]) > 2 else "send"}
        assert next(group for group in job.graph(0).groups if group.name == met[0].group).members == members
        sizes = sum(t.size_bytes for t in job.graph(1).tensors if t.kind == "weight")
        assert sum(each.size_bytes for each in met) == sizes * (1 if len(members[0]) > 2 else 2)
