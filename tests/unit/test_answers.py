"""Decode whose sequences end one after another: rows, FLOP and bytes follow from the lengths that were drawn."""

from __future__ import annotations

import numpy as np
import pytest

from simulator import builders
from simulator.lifetime import Lifetimes
from simulator.workload import Answers, Workload
from simulator.workload.job import JobDocument

LAYERS, HIDDEN, SEQUENCE, BATCH, MOST = 2, 64, 32, 8, 12
MODEL = {"layers": LAYERS, "hidden": HIDDEN, "heads": 4, "kv_heads": 2, "ffn": 128, "vocabulary": 256,
         "tied_embeddings": False}  # fmt: skip


def work(**more: object) -> Workload:
    """A toy that decodes, with changes."""
    fields = {"name": "toy", "model": MODEL, "phase": "decode", "sequence": SEQUENCE, "batch": BATCH}
    return Workload.model_validate({**fields, "new_tokens": MOST, "answers": {"mean": 5, "spread": 0.8}, **more})


def graph_of(workload: Workload):
    return builders.build_job(workload).graphs[0]


def test_lengths_are_drawn_as_stated():
    lengths = Answers(mean=400, spread=0.7).drawn(20_000, (3,))
    assert np.mean(lengths) == pytest.approx(400, rel=0.02)
    assert np.std(lengths) == pytest.approx(280, rel=0.05)
    assert work().lengths != work(answers={"mean": 5, "spread": 0.8, "seed": 1}).lengths
    assert max(work(answers={"mean": 50}).lengths) == MOST, "new_tokens are the most"


def test_a_token_takes_what_the_sequences_that_are_left_take():
    workload = work()
    lengths, ops = workload.lengths, {op.name: op for op in graph_of(workload).ops}
    assert len({*lengths}) > 3, "the premise"
    going = [sum(length > i for length in lengths) for i in range(max(lengths))]
    numbers = [f"t{i:0{len(str(len(going) - 1))}d}" for i in range(len(going))]
    attended = [op for name, op in ops.items() if name.endswith("attn.core")]
    assert len(attended) == LAYERS * len(going), "the batch lasts as long as its longest"
    for i, (name, rows) in enumerate(zip(numbers, going, strict=True)):
        core, up = (next(op for n, op in ops.items() if n.startswith(f"{name}/L00/") and n.endswith(end))
                    for end in ("attn.core", "ffn.up"))  # fmt: skip
        assert core.flops == 4 * HIDDEN * rows * (SEQUENCE + i + 1)
        assert up.flops == 2 * HIDDEN * 128 * rows
    assert workload.tokens == sum(lengths) == sum(going)


def test_like_lengths_are_a_plain_decode():
    alike, plain = work(answers={"mean": MOST}), work(answers=None)
    assert graph_of(alike) == graph_of(plain)


@pytest.mark.parametrize("sequences", [1, 3])
def test_what_has_ended_is_read_no_more(sequences):
    workload = work(kv={"block": 4, "sequences": sequences, "new": "as_needed"}, outputs="freed")
    graph, lengths = graph_of(workload), workload.lengths
    ops, lifetimes = graph.ops, Lifetimes.of(graph)
    for t, tensor in enumerate(graph.tensors):
        if tensor.name.startswith("L01/kv/"):
            group = int(tensor.name.split("/")[2][1:])
            longest = lengths[group * sequences]
            last = int(ops[lifetimes.last_use[t]].name.partition("/")[0][1:])
            assert last == longest - 1, tensor.name
            assert int(tensor.name[-4:]) * 4 < SEQUENCE + longest, "no block beyond the end of its sequences"


def test_a_rollout_frees_what_has_ended():
    """Of a job: blocks that come from who read the prompts go as their sequences end."""
    both = {"model": MODEL, "sequence": 250, "batch": BATCH}
    read = both | {"phase": "prefill", "kv": {"block": 64}}
    answers = {"mean": 6, "spread": 1.0}
    act = both | {"phase": "decode", "kv": {"block": 64, "new": "as_needed"}, "new_tokens": 16, "outputs": "freed"}
    edges = [{"from": "read", "to": "act", "weights": True}]
    edges += [{"from": "read", "to": "act", "tensors": {"L*/kv/*": "L*/kv/*"}}]
    programs = {
        "read": {"workload": read, "ranks": 1},
        "act": {"workload": act | {"answers": answers}, "ranks": "read"},
    }
    job = JobDocument.model_validate({"name": "loop", "programs": programs, "edges": edges})
    graph, lengths = builders.build_job(job).graphs[0], job.programs["act"].work.lengths
    assert len({*lengths}) > 3, "the premise"
    lifetimes = Lifetimes.of(graph)
    for group, length in enumerate(lengths):
        t = next(i for i, tensor in enumerate(graph.tensors) if tensor.name.endswith(f"L00/kv/s{group}/b0000"))
        last = graph.ops[lifetimes.last_use[t]].name
        assert not graph.tensors[t].persistent
        assert t not in graph.outputs
        assert last.startswith(f"act.t{length - 1:0{len(str(max(lengths) - 1))}d}/"), last


def test_answers_end_by_the_last_of_new_tokens():
    fields = {"name": "toy", "model": MODEL, "phase": "decode", "answers": {"mean": 5}}
    with pytest.raises(ValueError, match="answers end by the last of new_tokens"):
        Workload.model_validate(fields)
    with pytest.raises(ValueError, match="no ranks cut the rows of those that are left"):
        work(parallel={"ranks": "all", "tensor": 2, "sequence": True})
    with pytest.raises(ValueError, match="answers is for phase decode"):
        Workload.model_validate(fields | {"phase": "prefill"})
