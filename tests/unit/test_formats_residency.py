"""Residency traces: a hand-made one, what is wrong with broken ones, and the recorded ones where they lie beside."""

# ruff: noqa: E501 - messages stand here as they are printed

import copy
import json
from pathlib import Path

import pytest
from building import build
from policy_problems import machine

from simulator import formats
from simulator.errors import ConfigError, PlanError
from simulator.formats import residency_json
from simulator.lifetime import Lifetimes
from simulator.plan import FREE
from simulator.policies.baselines import choose
from simulator.policies.problem import Problem
from simulator.referee import check_plan
from simulator.workload import Workload

RECORDED = sorted((Path(__file__).parents[2].parent / "shared" / "data" / "hyper_offload").glob("*.json"))


def access(storage, size=100):
    return {"storage": storage, "bytes": size}


def trace():
    """Makes 7, views it, makes 9, reads 7 again, adds to 7 in place, makes output 11 of it."""
    return {
        "schema": "residency-trace/1",
        "source": {"kind": "by hand", "more": [1, None]},
        "memory_limit_bytes": 120,
        "storages": [
            {"id": 7, "bytes": 100, "first_op": 0},
            {"id": 8, "bytes": 4},
            {"id": 9, "bytes": 50},
            {"id": 11, "bytes": 10, "retained": True, "kind": "wgrad"},
        ],
        "ops": [
            {"id": 0, "name": "mm.default", "duration_ms": 0.5, "reads": [], "writes": [access(7)]},
            {"id": 1, "name": "view.default", "duration_ms": 0.0000015, "reads": [access(7)], "writes": [access(7)]},
            {"id": 2, "name": "mm.default", "duration_ms": 1, "reads": [], "writes": [access(9, 50)]},
            {"id": 3, "name": "add_.Tensor", "duration_ms": 1, "reads": [access(7)], "writes": [access(7)]},
            {"id": 4, "name": "mm.default", "duration_ms": 1, "reads": [], "writes": [access(9, 50)]},
            {"id": 5, "name": "sum.default", "duration_ms": 1, "reads": [access(7)], "writes": [access(11, 10)]},
        ],
    }


def out(op):
    return [[op, "COPY_D2H", 7], [op, "RELEASE_DEVICE", 7]]


def back(op):
    return [op, "COPY_H2D", 7]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "by_hand.json"


def write(path, record, indent=None):
    path.write_text(json.dumps(record, indent=indent))
    return path


def refused(path, record, call=formats.check):
    with pytest.raises(ConfigError) as caught:
        call(write(path, record))
    return str(caught.value).removeprefix(str(path))


@pytest.mark.parametrize("indent", [None, 2])
def test_it_becomes_a_graph(path, indent):
    graph = formats.read_graph(write(path, trace(), indent))
    assert [(t.name, t.size_bytes, str(t.kind)) for t in graph.tensors] == [
        ("s07", 100, "activation"),
        ("s09", 50, "activation"),
        ("s11", 10, "gradient"),
    ]
    assert [op.name for op in graph.ops[:2]] == ["0/mm.default", "1/view.default"]
    assert [op.duration_ns for op in graph.ops[:3]] == [500_000, 2, 1_000_000]
    assert (graph.name, graph.outputs, graph.steps) == ("by hand", (2,), 1)


def test_views_read_unless_their_writes_are_asked_for(path):
    write(path, trace())
    for views, writes in (("reads", (0, 3)), ("writes", (0, 1, 3))):
        workload = Workload(name="w", graph=str(path), views=views, steps=1)
        graph = build(workload, None, formats.read_graph)
        assert Lifetimes(graph).writes[0] == writes


def test_what_is_in_it_is_told(path):
    record = trace() | {"schedule": {"pre": [back(3)], "post": out(1)}}
    assert formats.check(write(path, record)) == ("trace 'by hand': 6 ops, 3 tensors, 1 output; schedule of 2 copies")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda r: r["ops"][3]["reads"].append(access(5)),
            (
                ": op 3 (add_.Tensor): an op's accesses have the sizes of their storages, found 100 B of 5; add the storage, or "
                "correct the op"
            ),
        ),
        (
            lambda r: r["ops"][3]["reads"].append(access(9, 51)),
            (
                ": op 3 (add_.Tensor): an op's accesses have the sizes of their storages, found 51 B of 9; add the storage, or "
                "correct the op"
            ),
        ),
        (
            lambda r: r["ops"][3].update(duration_ms=-1),
            (
                ": ops.3.duration_ms: the file is a residency-trace/1: input should be greater than or equal to 0, found "
                "-1; correct it"
            ),
        ),
        (
            lambda r: r["ops"][3].pop("id"),
            ": ops.3.id: the file is a residency-trace/1: the key 'id' is needed here, found none; add it",
        ),
        (
            lambda r: r["ops"][3].update(id=2),
            ": ops: each op has its own id, found one twice; number them anew",
        ),
        (
            lambda r: r["ops"][0]["reads"].append(access(9, 50)),
            (
                ": op '0/mm.default': a tensor that an op reads is written by an earlier op, persistent, or of kind input, found 's09'; put the "
                "ops in program order, add the op that writes it, or mark the tensor persistent"
            ),
        ),
        (
            lambda r: r.update(schedule={"post": [[1, "COPY", 7]]}),
            (
                ": schedule.post.0.1: the file is a residency-trace/1: input should be 'COPY_D2H', 'RELEASE_DEVICE', 'COPY_H2D' or "
                "'RELEASE_HOST', found 'COPY'; use one of COPY_D2H, RELEASE_DEVICE, COPY_H2D, RELEASE_HOST (did you mean "
                "'COPY_H2D'?)"
            ),
        ),
    ],
)
def test_what_is_wrong_is_said(path, change, message):
    record = copy.deepcopy(trace())
    change(record)
    assert refused(path, record) == message


@pytest.mark.parametrize("pre", [[], [back(3)]])
def test_what_is_released_and_not_copied_out_is_what_the_referee_refuses(path, pre):
    record = trace() | {"schedule": {"pre": pre, "post": [[1, "RELEASE_DEVICE", 7]]}}
    graph = formats.read_graph(write(path, record))
    with pytest.raises(PlanError, match="s07"):
        check_plan(graph, machine(), formats.read_plan(path, graph, ("hbm", "ddr")))


def test_an_old_copy_on_the_host_is_what_the_referee_refuses(path):
    """Evicted, copied in, written in place, evicted again: the runtime does not copy out a second time."""
    schedule = {"pre": [back(3), back(5)], "post": [*out(1), *out(3)]}
    graph = formats.read_graph(write(path, trace() | {"schedule": schedule}))
    plan = formats.read_plan(path, graph, ("hbm", "ddr"))
    with pytest.raises(PlanError) as caught:
        check_plan(graph, machine(), plan)
    assert "detaches the only valid copy of 's07'" in str(caught.value)
    fresh = {"pre": [back(3), back(5)], "post": [*out(1), [3, "RELEASE_HOST", 7], *out(3)]}
    plan = formats.read_plan(write(path, trace() | {"schedule": fresh}), graph, ("hbm", "ddr"))
    check_plan(graph, machine(), plan)


def test_a_schedule_is_for_two_tiers(path):
    graph = formats.read_graph(write(path, trace()))
    with pytest.raises(ConfigError, match="for a machine of two tiers"):
        formats.read_plan(path, graph, ("hbm", "ddr", "ssd"))


@pytest.mark.skipif(not RECORDED, reason="no recorded traces beside the project")
@pytest.mark.parametrize("recorded", RECORDED, ids=lambda p: p.stem)
def test_recorded_schedules_are_what_upstream_greedy_decides(recorded):
    record = json.loads(recorded.read_text())
    graph, hardware = formats.read_graph(recorded, "writes"), machine()
    check_plan(graph, hardware, formats.read_plan(recorded, graph, ("hbm", "ddr")))
    homes, times = (FREE,) * len(graph.tensors), [op.duration_ns for op in graph.ops]
    problem = Problem(graph, hardware, homes, float("inf"), times, lambda of, plan: None)
    intervals, peak_bytes = choose(problem, record["memory_limit_bytes"])
    width = len(graph.tensors[0].name) - 1
    came_in = [[idle.before, graph.tensors[idle.tensor].name] for idle in intervals]
    assert sorted(came_in, key=lambda c: c[0]) == [[op, f"s{s:0{width}d}"] for op, _, s in record["schedule"]["pre"]]
    assert peak_bytes == record["planner"]["predicted_peak_bytes"]
    assert residency_json.describe(recorded).startswith("trace ")
