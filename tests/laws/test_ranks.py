"""The referee's laws hold for ranks that meet, folded or not."""

from __future__ import annotations

import pytest
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from rank_stories import job_of
from rank_strategies import RANKS, contended, jobs

from simulator import engine, referee
from simulator.errors import InvariantError
from simulator.hardware import DevicePace


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


@settings(max_examples=examples(60), deadline=None)
@given(jobs(), st.integers(0, RANKS - 1))
def test_the_referee_refuses_a_slow_rank_that_ran_like_the_others(case, rank):
    programs, hardware = case
    hardware = hardware.model_copy(update={"ranks": {str(rank): DevicePace(compute=0.5)}})
    trace = engine.run(programs, hardware)
    took = [op.duration_ns for op in programs[rank].graph.ops if not op.collective]
    if any(took) and trace.status == "ok":
        job, plans = job_of([program.graph for program in programs]), [program.plan for program in programs]
        with pytest.raises(InvariantError, match="a compute takes its own time"):
            referee.check_trace(job, hardware, plans, trace)
