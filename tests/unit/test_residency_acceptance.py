"""The acceptance graph: what its description prints of it."""

from dataclasses import replace

import pytest
from acceptance_graph import graph
from building import build

from simulator import catalog
from simulator.cost import durations_ns
from simulator.formats import read_graph
from simulator.lifetime import idle_intervals, live_bytes


def accesses(graph):
    return sum(len(op.reads) + len(op.writes) for op in graph.ops)


def shipped(**update):
    path = catalog.path_of("residency_acceptance", "workload")
    return build(catalog.read_workload(path).model_copy(update=update), path.parent, read_graph)


@pytest.mark.parametrize(
    ("layers", "printed"),
    [(8, (195, 542, 219, 152)), (32, (771, 2150, 867, 608)), (128, (3075, 8582, 3459, 2432))],
)
def test_counts_of_ops_accesses_storages_and_intervals(layers, printed):
    found = graph(layers)
    assert (len(found.ops), accesses(found), len(found.tensors), sum(1 for _ in idle_intervals(found))) == printed


def test_the_shipped_file_has_32_layers():
    assert shipped() == graph(32)


def test_time_and_peak_of_the_shipped_trace():
    loaded = catalog.resolve("residency_acceptance")
    assert sum(durations_ns(shipped(), loaded.hardware)) == pytest.approx(616.8e6, abs=0.05e6)
    assert int(live_bytes(shipped()).max()) == 17_500_733_440  # 16.299 GiB
    assert loaded.scenario.budget_bytes == 17_500_733_440 // 2


def test_gradients_are_kept_or_freed():
    kept = shipped()
    assert [kept.tensors[t].kind for t in kept.outputs] == ["gradient"] * 128
    assert shipped(outputs="freed") == replace(kept, outputs=())


def test_time_of_a_linear_counts_its_weight_and_that_of_a_weight_gradient_does_not():
    ops = {op.name: op for op in graph(1).ops}
    h = 4096 * 4096 * 2
    forward, dgrad, wgrad = (ops[f"L00/{name}"] for name in ("fwd/proj", "bwd/proj.dgrad", "bwd/proj.wgrad"))
    assert (forward.read_bytes, dgrad.read_bytes, wgrad.read_bytes) == (2 * h, 2 * h, 2 * h)
    assert [op.read_bytes for op in (ops["L00/fwd/fc1"], ops["L00/bwd/fc1.wgrad"])] == [5 * h, 5 * h]
    assert ops["L00/bwd/attn"].flops == 5 * ops["L00/fwd/attn"].flops // 2
