"""The referee's laws hold for ranks that meet, folded or not."""

from __future__ import annotations

from examples import examples
from hypothesis import given, settings
from rank_stories import job_of
from rank_strategies import jobs

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
