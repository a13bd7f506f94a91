"""No run of several ranks is faster than the bound of their job, and where nothing is shared it is met."""

from __future__ import annotations

from collections.abc import Sequence

from examples import examples
from hypothesis import event, given, settings
from oracle_cases import Run, hosts_that_meet
from rank_stories import job_of
from rank_strategies import jobs, paces, unlike

from simulator import engine, metrics
from simulator.bounds import Limits, Team
from simulator.cost import durations_ns
from simulator.plan import COMPUTE


def streams_of(program: engine.Program) -> tuple[int, ...]:
    """On which stream the plan runs each op."""
    found = {op: stream for kind, op, stream, _ in program.plan.fixed.codes() if kind == COMPUTE}
    return tuple(found[op] for op in range(len(program.graph.ops)))


def bounds_of(programs: Sequence[engine.Program], hardware, budget_bytes: int) -> list:
    """The bound of each graph of the job."""
    job = job_of([program.graph for program in programs])
    lowest = [job.graph_of.index(number) for number in range(len(job.graphs))]
    first = [programs[rank] for rank in lowest]
    devices = hardware.devices(len(programs))
    times = tuple(durations_ns(graph, devices[rank], rank) for graph, rank in zip(job.graphs, lowest, strict=True))
    team = Team(job, hardware, times, tuple(streams_of(program) for program in first))
    return [
        Limits(order, hardware, first[number].plan.home, sharers=team.sharers(number)).step(budget_bytes)
        for number, order in enumerate(team.timings())
    ]


@given(jobs(max_steps=3))
def test_no_run_of_many_ranks_is_faster_than_the_bound(drawn):
    programs, hardware = drawn
    trace = engine.run(programs, hardware)
    if trace.status != "ok":
        return
    row = metrics.summarise(job_of([program.graph for program in programs]), hardware, trace)
    found = max(bounds_of(programs, hardware, row["peak_hbm_bytes"]), key=lambda bound: bound.ns)
    event(f"{'met' if found.ns == row['step_ns'] else 'not met'}, {found.kind.split()[0]}")
    assert found.ns <= row["step_ns"]


@given(jobs(max_steps=3), paces())
def test_nor_is_one_whose_ranks_are_unlike(case, ranks):
    programs, hardware = unlike(*case, ranks)
    trace = engine.run(programs, hardware)
    if trace.status == "ok":
        row = metrics.summarise(job_of([program.graph for program in programs]), hardware, trace)
        found = max(bounds_of(programs, hardware, row["peak_hbm_bytes"]), key=lambda bound: bound.ns)
        event(f"{'met' if found.ns == row['step_ns'] else 'not met'}, {found.kind.split()[0]}")
        assert found.ns <= row["step_ns"]


@settings(max_examples=examples(400))
@given(hosts_that_meet())
def test_nor_is_one_whose_ranks_share_the_cores_of_a_host(run: Run):
    trace = engine.run(run.programs, run.hardware, budget_bytes=run.budget_bytes)
    graphs = [program.graph for program in run.programs]
    if trace.status != "ok":
        return
    row = metrics.summarise(job_of(graphs), run.hardware, trace)
    found = max(bounds_of(run.programs, run.hardware, row["peak_hbm_bytes"]), key=lambda bound: bound.ns)
    event(f"{'met' if found.ns == row['step_ns'] else 'not met'}, {found.kind}, {graphs[0].steps} steps")
    assert found.ns <= row["step_ns"]
