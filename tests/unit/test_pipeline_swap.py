"""`offload_saved` by passes: what leaves is told by the schedule of a pipeline, not by time."""

from __future__ import annotations

import pytest
from policy_problems import machine, problem, replay, tell

from simulator import Graph, catalog
from simulator.errors import ConfigError
from simulator.graph import Collective, CollectiveKind
from simulator.graph_builder import GraphBuilder
from simulator.policies import POLICIES

PASSES = ["F0", "F1", "F2", "F3", "B0", "F4", "B1", "F5", "B2", "B3", "B4", "B5"]
"""1F1B on the first of four stages."""


def stage(*, sends: bool = False) -> Graph:
    """Two layers of six micro-batches; messages of other micro-batches, which are no passes, may lie between passes."""
    builder = GraphBuilder("stage")
    builder.tensor("w", 5, "weight", persistent=True)
    builder.group("next", [(0, 1)])
    for index, (way, micro) in enumerate(PASSES):
        if sends:
            met = Collective(CollectiveKind.RECV, "next", 1)
            builder.op(f"mb{9 - index % 2}/recv{index}", kind="collective", collective=met, phase="forward")
        a, b = (f"mb{micro}/{name}" for name in ("a0", "a1"))
        if way == "F":
            for made, reads in ((a, ["w"]), (b, ["w", a])):
                builder.tensor(made, 10)
                builder.op(f"{made}/fwd", reads, [made], phase="forward", duration_ns=10)
        else:
            builder.op(f"{b}/bwd", ["w", b], [], phase="backward", duration_ns=10)
            builder.op(f"{a}/bwd", ["w", a], [], phase="backward", duration_ns=10)
    return builder.build()


@pytest.mark.parametrize("gap", [2, 4, 5, 6, 7])
def test_what_leaves_comes_back_with_the_pass_before_its_own(gap):
    given = problem(stage(sends=True), hardware=catalog.read_hardware("cloudmatrix384_node"))
    told = tell(given, POLICIES["offload_saved"].plan(given, {"gap": gap}))
    first = {each: f"mb{each[1]}/a{'0' if each[0] == 'F' else '1'}/{'fwd' if each[0] == 'F' else 'bwd'}"
             for each in PASSES}  # fmt: skip
    for micro in range(6):
        forward, backward = PASSES.index(f"F{micro}"), PASSES.index(f"B{micro}")
        for name in (f"mb{micro}/a0", f"mb{micro}/a1"):
            leaves, comes = f"{name} hbm>ddr" in told, f"{name} ddr>hbm" in told
            assert leaves == comes == (backward - forward >= gap), f"{name} with a gap of {gap}"
            if leaves:
                out, back = told.index(f"{name} hbm>ddr"), told.index(f"{name} ddr>hbm")
                starts = {each: told.index(first[each]) for each in PASSES}
                assert starts[PASSES[forward]] < out < starts[PASSES[forward + 1]]
                assert starts[PASSES[backward - 2]] < back < starts[PASSES[backward - 1]]


def test_the_gap_knows_no_link():
    """Copies that take longer than what lies between are waited for; the rule by time leaves them alone."""
    given = problem(stage(), hardware=machine(d2h={"bandwidth": "0.1 GB/s"}, h2d={"bandwidth": "0.1 GB/s"}))
    by_gap, by_time = (
        replay(given, POLICIES["offload_saved"].plan(given, options))
        for options in ({"gap": 4}, {"barrier_before_backward": False})
    )
    assert by_time.step_ns == 240
    assert by_gap.step_ns > 1000


def test_a_gap_has_no_distance_in_ops():
    with pytest.raises(ConfigError, match="copies in by passes have no distance in ops"):
        POLICIES["offload_saved"].plan(problem(stage()), {"gap": 4, "ahead": 3})
