"""Laws of dynamic reads over several ranks: each has its own draws, and ranks that choose the same may be folded."""

from __future__ import annotations

from typing import Any

import pytest
from dynamic_cases import chosen_flags, moe, on_demand, plan_of
from dynamic_strategies import graphs_of
from hypothesis import given
from hypothesis import strategies as st
from policy_problems import machine

from simulator import engine
from simulator.cost import durations_ns
from simulator.draws import Draws, Origin, Routing, drawn
from simulator.errors import ConfigError, PlanError
from simulator.graph import Graph, Job
from simulator.hardware import Hardware
from simulator.referee import RankPlan, check_trace
from simulator.scenario import DrawsOrigin
from simulator.trace import Trace

RANKS = 3
TABLES = ("spans", "waits", "residencies")
graphs = graphs_of(2, 2, (1, 30))
origins = st.builds(DrawsOrigin, distribution=st.sampled_from(["uniform", "zipf"]))


def team(bus: str = "") -> Hardware:
    """Machines with a link each way for each rank, and a bus over those of all that come in."""
    document = machine().model_dump(by_alias=True)
    document["topology"] = {"devices_per_node": RANKS, "nodes": 1}
    document["buses"] = {"pool": {"links": ["h2d"], "bandwidth": bus, "scope": "node"}} if bus else {}
    return Hardware.model_validate(document)


def programs_of(graph: Graph, hardware: Hardware, draws: list[Draws], keep: int) -> list[engine.Program]:
    """A runtime on each rank; ranks with the same draws share a program."""
    plan, times = plan_of(graph, on_demand(graph, keep), hardware), durations_ns(graph, hardware)
    known = {id(one): engine.Program(graph, plan, times, draws=one) for one in draws}
    return [known[id(one)] for one in draws]


def judged(graph: Graph, hardware: Hardware, programs: list[engine.Program], **more: Any) -> Trace:
    """What happens, held by the referee against what each rank draws."""
    trace = engine.run(programs, hardware, **more)
    ran = [RankPlan(program.plan, program.draws) for program in programs]
    check_trace(Job("moe", (graph,), (0,) * len(programs), ("moe",)), hardware, ran, trace)
    return trace


def rows(table: Any, rank: int) -> list[tuple[int, ...]]:
    """Rows of a rank, without who it is."""
    whole = table.whole()
    columns = [whole[name].tolist() for name in whole if name != "rank"]
    return sorted(row for row, of in zip(zip(*columns, strict=True), whole["rank"].tolist(), strict=True) if of == rank)


@given(graphs, origins, st.integers(0, 9), st.integers(0, 3))
def test_where_nothing_is_shared_each_rank_does_what_it_does_alone(
    graph: Graph, origin: DrawsOrigin, seed: int, keep: int
) -> None:
    hardware = team()
    draws = [drawn(graph, hardware, origin, seed, rank=rank) for rank in range(RANKS)]
    programs = programs_of(graph, hardware, draws, keep)
    whole = judged(graph, hardware, programs, fold="auto")
    assert whole.stands_in == (0, 1, 2)
    for rank, program in enumerate(programs):
        alone = engine.run([program], hardware)
        for name in TABLES:
            assert rows(getattr(whole, name), rank) == rows(getattr(alone, name), 0), (rank, name)


@given(graphs, origins, st.integers(0, 9), st.integers(0, 3), st.sampled_from(["700 MB/s", "2 GB/s", "9 GB/s"]))
def test_ranks_that_choose_the_same_do_folded_what_they_do_unfolded(
    graph: Graph, origin: DrawsOrigin, seed: int, keep: int, bus: str
) -> None:
    hardware = team(bus)
    programs = programs_of(graph, hardware, [drawn(graph, hardware, origin, seed)] * RANKS, keep)
    whole, folded = (judged(graph, hardware, programs, fold=fold) for fold in ("never", "always"))
    assert (whole.stands_in, folded.stands_in) == ((0, 1, 2), (0, 0, 0))
    for rank in range(RANKS):
        for name in TABLES:
            assert rows(getattr(whole, name), rank) == rows(getattr(folded, name), 0), (rank, name)


@given(graphs, origins, st.integers(0, 9), st.sampled_from(["700 MB/s", "2 GB/s"]))
def test_ranks_that_draw_apart_are_held_against_their_own_draws(
    graph: Graph, origin: DrawsOrigin, seed: int, bus: str
) -> None:
    """On a bus that they share, too; what comes in is what each of them chose."""
    hardware = team(bus)
    draws = [drawn(graph, hardware, origin, seed, rank=rank) for rank in range(RANKS)]
    trace = judged(graph, hardware, programs_of(graph, hardware, draws, 0))
    whole = trace.spans.whole()
    for rank, own in enumerate(draws):
        mine = (whole["rank"] == rank) & (whole["kind"] == 1)
        chosen = [own.chosen(op, step) for step in range(graph.steps) for op in own.chosen_flags]
        assert sorted(whole["item"][mine].tolist()) == sorted(t for found in chosen for t in found)


def test_ranks_that_draw_apart_are_not_folded() -> None:
    graph, hardware = moe(1, 5), team()
    origins: list[Origin] = [DrawsOrigin(), Routing({(s, "L0/experts"): (1,) for s in (0, 1)}, "r.csv")]
    for origin in origins:
        draws = [drawn(graph, hardware, origin, rank=rank) for rank in range(RANKS)]
        programs = programs_of(graph, hardware, draws, 0)
        with pytest.raises(
            ConfigError, match="ranks 0 and 1 run the same, but each draws the choices of its dynamic reads"
        ):
            engine.run(programs, hardware, fold="always")
        assert engine.run(programs, hardware, fold="auto").stands_in == (0, 1, 2)


def test_the_referee_notices_that_a_rank_read_what_another_one_drew() -> None:
    graph, hardware = moe(1, 3), team()
    choices = [[[0], [1]], [[2], [2]], [[1], [0]]]
    draws = [Draws(graph, hardware, 0, chosen_flags(graph, {"L0/experts": one})) for one in choices]
    programs = programs_of(graph, hardware, draws, 0)
    trace = judged(graph, hardware, programs)
    ran = [RankPlan(programs[0].plan, draws[rank]) for rank in (0, 2, 1)]
    with pytest.raises(
        PlanError, match=r"a tensor that an action reads is valid \(hbm\), found 'L0/expert.1' absent in hbm"
    ):
        check_trace(Job("moe", (graph,), (0,) * RANKS, ("moe",)), hardware, ran, trace)
