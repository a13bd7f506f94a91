"""Copies that take other times than the machine says, each by its issue number."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from replays import run, same, transfers
from strategies import Case, cases, with_links

from simulator.cost import FULL_RATE, transfer_ns
from simulator.errors import InvariantError
from simulator.referee import check_trace
from simulator.run.perturb import JitteryCopies
from simulator.scenario import Switches

any_cases = cases(streams=2)
levels = st.sampled_from([0.01, 0.2, 1.0])


def jittery(level: float, seed: int = 3) -> JitteryCopies:
    return JitteryCopies(Switches(), seed, 0, level)


@dataclass(frozen=True)
class Even:
    """Every copy takes the same number of times what the machine says."""

    times: int
    copies_wait_for: str = "start"
    hbm_contention: bool = False

    def stretch(self, issue: int) -> int:
        return self.times * FULL_RATE


@given(any_cases)
def test_copies_that_take_their_own_time_change_nothing(case: Case):
    assert same(run(case), run(case, switches=Even(1)))


@given(any_cases)
def test_copies_that_all_take_twice_as_long_are_those_of_links_half_as_fast(case: Case):
    case = replace(case, hardware=case.hardware.model_copy(update={"buses": {}}))
    links = {
        name: link.model_copy(update={"bandwidth_bytes_per_s": link.bandwidth_bytes_per_s * 2})
        for name, link in case.hardware.links.items()
    }
    twice = case.hardware.model_copy(update={"links": links})
    no_latency = with_links(case.hardware, latency_ns=0), with_links(twice, latency_ns=0)
    assert same(run(case, no_latency[0]), run(case, no_latency[1], switches=Even(2)))


@given(any_cases, levels)
def test_the_referee_agrees_and_refuses_the_trace_for_longer_copies(case: Case, level: float):
    switches = jittery(level)
    trace = run(case, switches=switches)
    check_trace(case.graph, case.hardware, [case.plan], trace, case.budget_bytes, switches)
    alone = [case.graph.tensors[s["item"]].size_bytes for s in transfers(trace)]
    if any(alone):
        with pytest.raises(InvariantError):
            check_trace(case.graph, case.hardware, [case.plan], trace, case.budget_bytes, Even(10**6))


@given(cases(sharing=("servers",), buses=False), levels)
def test_the_time_of_a_copy_depends_on_its_issue_number_alone(case: Case, level: float):
    """Where nobody shares a link, whatever else happens: here all ops take longer."""
    switches, links = jittery(level), list(case.hardware.links.values())
    slower = tuple(replace(op, duration_ns=(op.duration_ns or 0) + 7) for op in case.graph.ops)
    for graph in (case.graph, replace(case.graph, ops=slower)):
        for span in transfers(run(replace(case, graph=graph), switches=switches)):
            size = graph.tensors[span["item"]].size_bytes
            took = transfer_ns(size, links[span["track"]], switches.stretch(span["issue"]))
            assert span["end_ns"] - span["start_ns"] == took
