"""One iteration of serving counts what prefill and decode count, and copies what it must before it attends."""

from __future__ import annotations

import pytest
from building import build
from serving_cases import write

from simulator import catalog
from simulator.builders import Iteration, iteration
from simulator.cost import durations_ns
from simulator.serving.replays import Replays
from simulator.workload import Workload

DENSE = {"kind": "dense", "width": 128}
EXPERTS = {"kind": "experts", "routed": 8, "top_k": 2, "width": 32}


def workload(phase, part, **more):
    attention = {"kind": "gqa", "heads": 4, "kv_heads": 2, "head_size": 16, "qk_norms": True}
    model = {"family": "decoder", "layers": 2, "hidden": 64, "vocabulary": 128}
    model |= {"attention": attention, "feed_forward": part}
    about = {"schema": "hosim/workload/1", "name": "toy", "model": model, "phase": phase, "steps": 1}
    why = {"assumed": dict.fromkeys(("model", "steps", *more), "a test")}
    return Workload.model_validate(about | more | why)


def served(part):
    lengths = {"count": 1, "arrivals": {"interval": "1 s"}, "prompt": {"mean": 1}, "output": {"mean": 1}}
    return workload("requests", part, requests=lengths)


def counted(graph):
    """Op without phase -> what it does; the two attentions of an iteration have the name of the one of a phase."""
    found = {}
    for op in graph.ops:
        name = op.name.replace("prefill/", "").replace("decode/", "")
        for own in ("attn.prefill", "attn.decode"):
            name = name.replace(own, "attn.core")
        found[name] = (op.flops, op.read_bytes, op.write_bytes, op.op_class)
    return found


@pytest.mark.parametrize("part", [DENSE, EXPERTS], ids=["dense", "experts"])
def test_a_prompt_is_counted_as_in_prefill(part):
    whole = build(workload("prefill", part, batch=1, sequence=48))
    work = Iteration(reading=48, pairs=48 * 49 // 2, answers=1)
    assert counted(iteration(served(part), work, 1000)) == counted(whole)


@pytest.mark.parametrize("part", [DENSE, EXPERTS], ids=["dense", "experts"])
def test_sequences_that_add_a_token_are_counted_as_in_decode(part):
    whole = build(workload("decode", part, batch=3, sequence=40, new_tokens=1))
    work = Iteration(decoding=3, context=3 * 40, answers=3)
    assert counted(iteration(served(part), work, 1000)) == counted(whole)


def test_both_together_share_all_but_attention():
    graph = iteration(served(DENSE), Iteration(decoding=3, context=120, reading=48, pairs=1176, answers=4), 1000)
    ops = {op.name: op for op in graph.ops}
    assert ops["L00/prefill/attn.q"].flops == 2 * 51 * 64 * 64
    assert ops["L00/prefill/attn.decode"].flops == 4 * 64 * (120 + 3)
    assert ops["L00/prefill/attn.prefill"].flops == 4 * 64 * 1176
    assert ops["head/prefill/lm"].flops == 2 * 4 * 64 * 128


def test_the_copy_of_a_layer_ends_before_its_prompts_attend(tmp_path):
    """Two copies of 40 tokens at 1 MB/s take 5.12 ms each, longer than all ops; what needs the second comes after."""
    path = write(tmp_path)
    loaded = catalog.resolve(path, {"links.h2d.bandwidth": "1 MB/s"})
    work = Iteration(decoding=2, context=60, reading=8, cached=40, pairs=356, answers=3, loads=(("ddr", 40),))
    graph = iteration(loaded.workload, work, 1000)
    times = durations_ns(graph, loaded.hardware)
    last = next(number for number, op in enumerate(graph.ops) if op.name == "L01/prefill/attn.prefill")
    assert sum(times) < 5_120_000
    done = Replays(loaded, "static", 1000, exact=True).of(work)
    assert done["took_ns"] == 2 * 5_120_000 + sum(times[last:])
    assert done["moved_h2d_bytes"] == 2 * 40 * 128
