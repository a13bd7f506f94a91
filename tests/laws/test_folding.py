"""Folded ranks do exactly what each of them does unfolded."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import both_engines
import pytest
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from rank_stories import cluster, job_of, team
from rank_strategies import RANKS, contended, jobs, machines, paces, unlike
from stories import steps

from simulator import engine
from simulator.cost import durations_ns
from simulator.engine import program
from simulator.errors import ConfigError
from simulator.plan import NOWHERE, Plan
from simulator.referee import check_trace
from simulator.trace import CAUSES

PEER = CAUSES.index("peer")


def rows(table, rank, stands_in):
    whole = table.whole()
    names = list(whole)
    found = sorted(zip(*(whole[name].tolist() for name in names), strict=True))
    at = names.index("rank")
    mine = [[*row[:at], *row[at + 1 :]] for row in found if row[at] == rank]
    for row in mine:
        if names[-1] == "blocker" and row[names.index("cause") - 1] == PEER:
            row[names.index("on") - 1] = stands_in[row[names.index("on") - 1]]
    return mine


def in_turns(programs, starts):
    """Let every other rank of each program begin later; the same object for ranks that begin together."""
    known = {}
    return [known.setdefault((id(p), r % 2), replace(p, starts_ns=starts[r % 2])) for r, p in enumerate(programs)]


@settings(max_examples=examples(150), deadline=None)
@given(jobs(), st.sampled_from([(0, 0), (0, 7), (3, 40)]))
def test_each_rank_does_folded_what_it_does_unfolded(case, starts):
    programs, hardware = case
    if starts[1]:
        programs = in_turns(programs, starts)
    if program.folding_obstacle(programs, hardware):
        return
    whole = engine.run(programs, hardware)
    folded = engine.run(programs, hardware, fold="always")
    assert folded.stands_in == program.classes(programs) != whole.stands_in == tuple(range(RANKS))
    assert whole.status == folded.status
    for rank, stands_in in enumerate(folded.stands_in):
        for name in ("spans", "waits", "residencies"):
            expected = rows(getattr(whole, name), rank, folded.stands_in)
            assert rows(getattr(folded, name), stands_in, folded.stands_in) == expected, (rank, name)


@settings(max_examples=examples(100), deadline=None)
@given(st.one_of(jobs(), contended()), paces())
def test_unlike_ranks_are_of_classes_of_their_own_and_do_folded_what_they_do_unfolded(case, ranks):
    """By both engines, and the referee judges."""
    programs, hardware = unlike(*case, ranks)
    job, plans = job_of([ran.graph for ran in programs]), [ran.plan for ran in programs]
    whole, folded = (both_engines.run(programs, hardware, fold=fold) for fold in ("never", "auto"))
    for trace in (whole, folded):
        check_trace(job, hardware, plans, trace)
    for rank, stands_in in enumerate(folded.stands_in):
        assert programs[rank].device is programs[stands_in].device
        for name in ("spans", "waits", "residencies"):
            expected = rows(getattr(whole, name), rank, folded.stands_in)
            assert rows(getattr(folded, name), stands_in, folded.stands_in) == expected, (rank, name)


@st.composite
def passing_through(draw):
    """Ranks that store what they make below for a while; the room there may be too small for all of it, or at once."""
    sizes, ahead = draw(st.lists(st.integers(1, 30), min_size=2, max_size=6)), draw(st.integers(0, 2))
    ops, text = list[str](), list[str]()
    for i in range(len(sizes) + ahead):
        if i < len(sizes):
            ops.append(f"f{i}: w -> t{i}, {draw(st.integers(0, 60))} ns")
            text += [f"compute f{i}", f"copy t{i} hbm ddr", f"detach t{i} hbm"]
        if (back := i - ahead) >= 0:
            ops.append(f"g{back}: t{back} -> w, {draw(st.integers(0, 60))} ns")
            text += [f"copy t{back} ddr hbm", f"detach t{back} ddr", f"compute g{back}", f"detach t{back} hbm"]
    g = team(", ".join(["w 5 persistent", *(f"t{i} {size}" for i, size in enumerate(sizes))]), *ops, groups={})
    hardware, least = draw(machines()), max(sizes)
    ranks = draw(st.sampled_from([RANKS, RANKS // 2]))  # with room for so many
    changes = {"capacity_bytes": ranks * draw(st.integers(least, sum(sizes))), "scope": "supernode"}
    ddr = hardware.tiers["ddr"].model_copy(update=changes)
    hardware = hardware.model_copy(update={"tiers": {**hardware.tiers, "ddr": ddr}})
    plan = Plan("story", hardware.tier_names, (0, *(NOWHERE,) * len(sizes)), steps(g, hardware, "; ".join(text)))
    return [engine.Program(g, plan, durations_ns(g, hardware))] * RANKS, hardware


def test_ranks_fold_where_a_shared_tier_has_room_when_it_is_needed():
    """Some do, and others do not, where there is none for all that they ever put there."""
    folded = Counter[bool]()
    settings(max_examples=examples(150), deadline=None)(given(passing_through())(fold_on_trial))(folded)
    assert min(folded[True], folded[False]) > examples(10), folded


def fold_on_trial(folded, case):
    """Run by both engines, let the referee judge, and compare."""
    programs, hardware = case
    whole, tried = (both_engines.run(programs, hardware, fold=fold) for fold in ("never", "auto"))
    if program.folding_obstacle(programs, hardware):
        folded[tried.stands_in == (0,) * RANKS] += 1
    job, plans = job_of([ran.graph for ran in programs]), [ran.plan for ran in programs]
    check_trace(job, hardware, plans, tried)
    assert whole.status == tried.status
    for rank, stands_in in enumerate(tried.stands_in):
        for name in ("spans", "waits", "residencies"):
            expected = rows(getattr(whole, name), rank, tried.stands_in)
            assert rows(getattr(tried, name), stands_in, tried.stands_in) == expected, (rank, name)


def test_ranks_that_something_tells_apart_are_not_folded():
    pool = {"pool": {"links": ["h2d"], "bandwidth": "1 GB/s", "scope": "node"}}
    g = team("a 40", "sum: -> a, all_reduce all 40", groups={"all": ((0, 1), (2,))})
    h = cluster(3, buses=pool)
    plan = Plan("story", h.tier_names, (NOWHERE,), steps(g, h, "compute sum"))
    program = engine.Program(g, plan, durations_ns(g, h))
    with pytest.raises(ConfigError, match=r"ranks 0 and 2 run the same, but meet others in group 'all'"):
        engine.run([program] * 3, h, fold="always")
    assert engine.run([program] * 3, h, fold="auto").stands_in == (0, 1, 2)
