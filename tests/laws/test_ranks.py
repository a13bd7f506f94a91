"""The referee's laws hold for ranks that meet, folded or not."""

from __future__ import annotations

from examples import examples
from hypothesis import given, settings
from rank_stories import job_of
from rank_strategies import contended, jobs

from simulator import engine, referee


@settings(max_examples=examples(150), deadline=None)
@given(jobs())
def test_ranks_that_meet_obey_all_laws(case):
    programs, hardware = case
    job, plans = job_of([program.graph for program in programs]), [program.plan for program in programs]
    referee.check_job(job, hardware)
    referee.check_order(job, plans)
    for fold in ("never", "auto"):
        trace = engine.run(programs, hardware, fold=fold)
        referee.check_trace(job, hardware, plans, trace)


@settings(max_examples=examples(60), deadline=None)
@given(contended())
def test_ranks_whose_kernels_copies_and_collectives_share_the_memory_obey_all_laws(case):
    programs, hardware = case
    job, plans = job_of([program.graph for program in programs]), [program.plan for program in programs]
    ends = {}
    for fold in ("never", "auto"):
        trace = engine.run(programs, hardware, fold=fold)
        referee.check_trace(job, hardware, plans, trace)
        spans = trace.spans.whole()
        ends[fold] = int(spans["end_ns"].max()) if len(spans["end_ns"]) else 0
    assert ends["never"] == ends["auto"]
