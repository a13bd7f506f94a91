"""Tokens, samples and arithmetic in a second: against closed forms, and what does not count."""

from dataclasses import replace

import chain
import pytest
import small_job

import simulator as hosim
from simulator import catalog
from simulator.builders import build_job
from simulator.builders.weights import parameters
from simulator.graph import Graph, Op
from simulator.metrics.summary import flop_rates, per_second
from simulator.report.tables import plain
from simulator.workload import Workload

COLUMNS = ("tokens_per_s", "samples_per_s", "tflops", "mfu")


def counted(workload, times):
    """Arithmetic of a token in training: 6 N + times L H Q T (PaLM, appendix B) [FLOP].

    N are all parameters less the table in which tokens are looked up.
    """
    model = workload.model.decoder
    every, _ = parameters(workload)
    attention = model.layers * model.attention.heads * model.attention.head_size * workload.sequence
    return 6 * (every - model.hidden * model.vocabulary) + times * attention


def test_training_counts_as_palm_does_but_for_the_half_of_attention_that_is_masked():
    """PaLM counts 12, of the whole square; of the half below its diagonal the kernels compute 2 and 5 times."""
    work = catalog.read_workload("llama3_8b_train")
    (graph,) = build_job(work).graphs
    each = sum(graph.arithmetic.values()) / work.tokens
    assert each == pytest.approx(counted(work, 7), rel=0.002)
    assert 0.9 * counted(work, 12) < each < counted(work, 12)
    assert set(graph.arithmetic) == {"bf16"}


def test_a_row_has_what_its_step_says():
    (row,) = hosim.run("tiny_train_910c", policies=["recompute"]).values()
    work, seconds = row.case.loaded.workload, row.summary["step_ns"] / 1e9
    flops = sum(row.job.graphs[0].arithmetic.values())
    assert row.summary["recompute_ns"] > 0, "which is no work of the model"
    assert row.summary["tokens_per_s"] == pytest.approx(work.batch * work.sequence / seconds)
    assert row.summary["samples_per_s"] == pytest.approx(work.batch / seconds)
    assert row.summary["tflops"] == pytest.approx(flops / seconds / 1e12)
    peak = row.hardware.compute.peak_flops["bf16"]
    assert row.summary["mfu"] == pytest.approx(flops / seconds / peak)
    assert 0 < row.summary["mfu"] < 1


def test_ranks_have_the_mean_of_their_arithmetic(tmp_path):
    job = small_job.written(tmp_path, "data: 2, tensor: 2, pipeline: 2, micro_batches: 2")
    (row,) = hosim.run(job, policies=["resident"]).values()
    assert len({row.job.graph(rank) for rank in range(8)}) > 1
    flops = sum(sum(row.job.graph(rank).arithmetic.values()) for rank in range(8))
    assert row.summary["tflops"] == pytest.approx(flops / 8 / row.summary["step_ns"] / 1e3)
    assert row.summary["tokens_per_s"] == row.case.loaded.workload.tokens * 1e9 / row.summary["step_ns"]


@pytest.mark.parametrize(
    ("name", "tokens", "samples"),
    [
        ("llama31_8b_decode", 1, None),  # a token for each sequence
        ("llama31_8b_prefill", "sequence", 1),
        ("llama3_8b_train_2x2x2", "sequence", 1),
        ("llama3_8b_prefill_decode", None, None),  # two pools
        ("llama31_8b_hits", None, None),  # requests
        ("residency_acceptance", None, None),  # a graph that does not say
    ],
)
def test_what_a_step_handles(name, tokens, samples):
    work = catalog.read_workload(name)
    replicas = work.parallel.data * work.parallel.micro_batches * work.batch * work.replicas
    each = getattr(work, tokens) if isinstance(tokens, str) else tokens
    assert (work.tokens, work.samples) == (each and each * replicas, samples and replicas)


def test_a_graph_may_say_what_its_step_handles(tmp_path):
    chain.write(tmp_path)
    path = tmp_path / "workload.yaml"
    path.write_text(path.read_text() + "batch: 4\nsequence: 100\n", encoding="utf-8")
    (row,) = hosim.run(hardware=tmp_path / "machine.yaml", workload=path, policies=["resident"]).values()
    assert row.summary["tokens_per_s"] == 100 * row.summary["samples_per_s"] == 400e9 / row.summary["step_ns"]
    assert (row.summary["tflops"], row.summary["mfu"]) == (None, None)
    assert Workload(name="x", graph="g.jsonl", batch=4).tokens is None


def test_of_a_given_job_nothing_is_known_but_its_arithmetic():
    job = build_job(catalog.read_workload("tiny_train"))
    (row,) = hosim.run("tiny_train_910c", policies=["recompute"], job=job).values()
    assert [row.summary[column] is None for column in COLUMNS] == [True, True, False, False]
    results = hosim.run("tiny_train_910c", policies=["recompute"], job=job)
    assert list(results.card["model"]) == ["weights", "arithmetic", "graph"]


def graph_of(*ops):
    return Graph("g", (), tuple(replace(op, flops=1000) for op in ops))


def test_what_runs_again_and_what_is_elementwise_does_not_count():
    graph = graph_of(
        Op("L0/fwd/up", op_class="matmul"), Op("L0/again/up", op_class="matmul"), Op("L0/fwd/gelu", op_class="vector")
    )
    assert graph.arithmetic == {"bf16": 1000}


def test_each_data_type_has_its_own_peak():
    machine = catalog.read_hardware("h100_sxm")
    ops = [
        Op("a", op_class="matmul", dtype="fp8"),
        Op("b", op_class="matmul", dtype="fp8"),
        Op("c", op_class="attention"),
    ]
    found = flop_rates([(graph_of(*ops).arithmetic, 1)], machine, 10)
    assert found["tflops"] == pytest.approx(0.3)
    peaks = machine.compute.peak_flops
    assert found["mfu"] == pytest.approx((2000 / peaks["fp8"] + 1000 / peaks["bf16"]) / 10e-9)
    odd = flop_rates([(graph_of(replace(ops[0], dtype="int3")).arithmetic, 1)], machine, 10)
    assert (odd["tflops"], odd["mfu"]) == (pytest.approx(0.1), None)


def test_nothing_is_divided_by_no_time():
    assert per_second(0, tokens=3) == per_second(None, tokens=3) == per_second(5, tokens=None) == {"tokens_per_s": None}
    assert flop_rates([(graph_of().arithmetic, 1)], catalog.read_hardware("h100_sxm"), 5) == {
        "tflops": None,
        "mfu": None,
    }


def test_they_stand_first_in_the_table_and_none_has_a_column_that_no_row_fills(tmp_path):
    table = plain(list(hosim.run("tiny_train_910c", policies=["resident", "static"]).values()))
    assert table.split()[5:12] == ["gap", "at", "most", "tokens/s", "samples/s", "TFLOP/s", "MFU"]
    assert "TFLOP/s" not in plain(list(hosim.run(chain.write(tmp_path)).values()))
