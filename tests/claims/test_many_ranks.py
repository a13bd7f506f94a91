"""What the scenarios of many ranks say in the PAGES: the baseline of eight ranks, and a pool that 384 ranks read."""

import pytest
from bench import on_chip

import simulator as hosim
from simulator.catalog.shelf import path_of
from simulator.formats.graph_jsonl import read

SUPPLY_BYTES_PER_S = 30.72e12
PORT_BYTES_PER_S = 392e9
RANKS = 384


@pytest.fixture(scope="module")
def baseline():
    """Eight ranks, 2/2/2."""
    return hosim.run("llama3_8b_2x2x2")


@pytest.mark.slow
def test_the_step_of_the_baseline_is_predicted_within_the_printed_error(baseline):
    assert baseline.summary.loc["resident", "step_ns"] / 5.2e9 - 1 == pytest.approx(-0.009, abs=0.0015)


@pytest.mark.slow
def test_the_baseline_waits_for_the_other_stage_and_for_sums_as_the_readme_says(baseline):
    row = baseline.summary.loc["resident"]
    step, compute = row["step_ns"], row["step_ns"] - row["stall_ns"]
    assert compute / 1e9 == pytest.approx(4.45, abs=0.005)
    assert row["wait_peer_ns"] / 1e9 == pytest.approx(0.512, abs=0.0005)
    assert row["wait_collective_ns"] / 1e9 == pytest.approx(0.192, abs=0.0005)
    assert compute + row["wait_peer_ns"] + row["wait_collective_ns"] == step
    assert max(baseline["resident"].ranks["wait_peer_ns"]) / 1e9 == pytest.approx(1.05, abs=0.005)


@pytest.mark.slow
@pytest.mark.parametrize(("rate", "error"), [("25 GB/s", 0.260), ("100 GB/s", 0.026), ("150 GB/s", 0.001)])
def test_the_step_depends_on_the_fabric_as_the_readme_says(rate, error):
    reached = {"fabrics.ub.bandwidth": rate, "fabrics.ub.planes": 1, "fabrics.ub.achieved_bandwidth": 1.0}
    step_ns = hosim.run("llama3_8b_2x2x2", set=reached).summary.loc["resident", "step_ns"]
    assert step_ns / 5.2e9 - 1 == pytest.approx(error, abs=0.0006)


@pytest.fixture(scope="module")
def replicas():
    """Sixteen trainings that share the memory of a node."""
    return hosim.run("llama3_8b_16_replicas")


@pytest.mark.slow
def test_replicas_that_take_turns_hide_what_they_would_wait_for_together(replicas):
    steps = replicas.summary["step_ns"] / 1e9
    assert steps["as if alone"] == pytest.approx(5.225, abs=0.005)
    assert steps["static"] == pytest.approx(4.60, abs=0.005)
    assert steps["in turns"] == pytest.approx(4.08, abs=0.005)
    assert replicas.summary["peak_ddr_bytes"]["in turns"] < 0.65 * replicas.summary["peak_ddr_bytes"]["static"]


@pytest.fixture(scope="module")
def pool():
    """384 ranks that read one pool, with and without the cap of its supply."""
    uncapped = {"buses.pool_out.bandwidth": "inf"}
    return hosim.run("cloudmatrix384_pool"), hosim.run("cloudmatrix384_pool", set=uncapped)


def rate(row):
    """The most that all ranks took from the pool while the copy of any of them was under way [B/s]."""
    spans = row.spans[row.spans["track"] == "p2d"]
    return RANKS * (spans["size_bytes"] / (spans["end_ns"] - spans["start_ns"])).max() * 1e9


@pytest.mark.slow
def test_the_ranks_never_take_more_than_the_pool_supplies(pool):
    capped, _ = pool
    assert list(capped) == ["reactive synchronous", "static"]
    for row in capped.values():
        assert 0.99 * SUPPLY_BYTES_PER_S < rate(row) <= SUPPLY_BYTES_PER_S


@pytest.mark.slow
def test_without_the_cap_the_pool_is_up_to_4_9_times_too_fast(pool):
    capped, uncapped = pool
    assert rate(uncapped["static"]) / SUPPLY_BYTES_PER_S == pytest.approx(4.9, rel=0.001)
    assert rate(uncapped["static"]) <= RANKS * PORT_BYTES_PER_S
    times = capped.summary["step_ns"] / uncapped.summary["step_ns"]
    assert times["static"] == pytest.approx(4.86, abs=0.01)


def test_the_graph_that_streams_weights_is_what_its_workload_says():
    hidden, keys, feed_forward, vocabulary, answers, tokens = 4096, 1024, 14336, 128256, 64, 8192
    layer = 2 * hidden**2 + 2 * hidden * keys + 3 * hidden * feed_forward + 2 * hidden
    cache_bytes = 2 * keys * 2 * answers * tokens
    graph = read(path_of("llama3_8b_decode_streamed", "workload").with_suffix(".jsonl"))
    sizes = {tensor.name: tensor.size_bytes for tensor in graph.tensors}
    assert [sizes[f"L{i:02}/weight"] for i in range(32)] == [2 * layer] * 32
    assert [sizes[f"L{i:02}/kv"] for i in range(32)] == [cache_bytes] * 32
    assert sizes["head/weight"] == 2 * (hidden * vocabulary + hidden)
    assert [op.flops for op in graph.ops[:32]] == [2 * layer * answers + 4 * hidden * answers * tokens] * 32
    assert graph.groups[0].members == (tuple(range(RANKS)),)


def test_the_graph_that_is_prefetched_is_what_the_bench_measures_and_its_workload_says():
    hidden, keys, feed_forward, answers, tokens, ranks = 4096, 1024, 14336, 16, 4096, 8
    graph = read(path_of("llama3_8b_decode_8_ranks", "workload").with_suffix(".jsonl"))
    assert graph == on_chip.graph("LLaMA3-8B", answers, tokens)
    sizes = {tensor.name: tensor.size_bytes for tensor in graph.tensors}
    weights = hidden * (hidden + 2 * keys) + hidden**2 + 3 * hidden * feed_forward
    assert sum(sizes[f"L0/{name}"] for name in ("qkv", "o", "ffn", "down")) == 2 * weights // ranks
    assert sizes["L0/kv"] == answers * tokens * 2 * keys * 2 // ranks
    assert [op.collective.size_bytes for op in graph.ops if op.collective] == [2 * answers * hidden] * 64
