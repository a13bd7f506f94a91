"""Reactive plans that are written out before the run: the same actions and prices as when the engine pulls them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise, repeat
from typing import Any

import numpy as np
import pytest
from dynamic_cases import DDR, HBM, moe, on_demand, plan_of
from dynamic_strategies import graphs, machines, origins, seeds
from hypothesis import given
from hypothesis import strategies as st
from policy_problems import problem
from stories import graph, machine

from simulator import engine
from simulator.draws import drawn
from simulator.engine.replay.written import WrittenPlan, written_out
from simulator.graph import Graph
from simulator.hardware import Hardware
from simulator.plan import COMPUTE, COPY, DETACH, NOWHERE, PART, SYNC, Actions, Code, Plan, View
from simulator.policies import FREE, POLICIES
from simulator.scenario import DrawsOrigin
from simulator.trace import Trace

UNIFORM = DrawsOrigin(distribution="uniform")


def patient(hardware: Hardware) -> Hardware:
    """A host whose queue is never full."""
    return hardware.model_copy(update={"host": hardware.host.model_copy(update={"queue_depth": 1 << 20})})


def same(written: WrittenPlan | None, trace: Trace, starts_ns: int = 0) -> None:
    """Hold what was written out against a run: its codes, and its prices by when the host issued what has a span."""
    assert written is not None
    assert trace.status == "ok"
    issued = trace.issued[0].whole()
    assert [*written.actions] == [*zip(*(issued[name].tolist() for name in ("kind", "a", "b", "c")), strict=True)]
    kinds, spans, paid_ns = written.actions.kind, trace.spans.whole(), np.cumsum(written.prices_ns)
    times = sorted(zip(spans["issue"].tolist(), spans["issued_ns"].tolist(), strict=True))
    for (before, from_ns), (issue, issued_ns) in pairwise([(-1, starts_ns), *times]):
        price_ns = paid_ns[issue] - (paid_ns[before] if before >= 0 else 0)
        if SYNC in kinds[before + 1 : issue + 1]:
            assert issued_ns - from_ns >= price_ns
        else:
            assert issued_ns - from_ns == price_ns


@given(graphs, origins, seeds, machines(), st.integers(0, 4))
def test_a_runtime_that_syncs_what_reveals_is_written_as_it_runs(
    g: Graph, origin: DrawsOrigin, seed: int, hardware: Hardware, keep: int
) -> None:
    draws, plan, hardware = (
        drawn(g, hardware, origin, seed),
        plan_of(g, on_demand(g, keep), hardware),
        patient(hardware),
    )
    program = engine.Program(g, plan, [0] * len(g.ops), draws=draws)
    same(written_out(program, hardware), engine.run([program], hardware))


SHIPPED = {
    "lru": ("reactive", {"evict": "lru", "look_ahead": 2}),
    "all candidates": ("reactive", {"evict": "lru", "look_ahead": 0, "dynamic": "all"}),
    "on demand": ("reactive", {"evict": "lfu", "dynamic": "on_demand", "look_ahead": 0}),
    "with static parts": ("hybrid", {"evict": "lru"}),
    "with guesses": ("hybrid", {"evict": "hot", "prefetch": "speculative", "accuracy": 0.5}),
}


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_runtimes_are_written_out(name: str) -> None:
    costs = {"inspect": 1, "compute": 2, "copy": 3, "detach": 5, "sync": 7, "select": 11, "update": 13, "pin": 17}
    host = {"reactive": {cost: f"{ns} ns" for cost, ns in costs.items()}, "fixed": {"launch": "90 ns", "step": "4 ns"}}
    hardware = patient(machine(host=host))
    g = moe(3, 4, size=20, samples=2, each=1, steps=3)
    policy, options = SHIPPED[name]
    homes = {tensor.name: DDR if tensor.kind == "expert" else FREE for tensor in g.tensors if tensor.persistent}
    given_problem = problem(g, 100, homes, hardware)
    plan = POLICIES[policy].plan(given_problem, options)
    assert plan.fixed is None
    draws = drawn(g, hardware, UNIFORM, 3)
    program = engine.Program(g, plan, given_problem.durations_ns, draws=draws)
    starts_ns = hardware.host.fixed.launch_ns if plan.static_parts else 0
    same(written_out(program, hardware), engine.run([program], hardware), starts_ns)


def test_a_copy_out_pays_for_a_new_place_and_for_a_change_at_home() -> None:
    host = {"reactive": {"copy": "1 ns", "detach": "3 ns", "update": "5 ns", "pin": "7 ns"}}
    h = machine("9 MiB", host=host)
    g = graph(f"w {2**20 + 1} persistent, a 10", "f: w -> w a")
    codes = [(COPY, 0, 1, 0), (COMPUTE, 0, 0, 0), (COPY, 1, 0, 1), (DETACH, 1, 1, 0), (COPY, 1, 0, 1), (COPY, 0, 0, 1)]
    more = [(DETACH, 1, 1, 0), (DETACH, 0, 1, 0), (COPY, 0, 0, 1)]
    program = engine.Program(
        g, Plan("story", h.tier_names, (1, NOWHERE), lambda _: iter(codes + more), looks=False), [0]
    )
    written = written_out(program, h)
    assert written is not None
    assert written.prices_ns.tolist() == [1, 0, 8, 3, 8, 6, 3, 3, 1 + 2 * 7 + 5]
    same(written, engine.run([program], h))


def test_static_parts_cost_a_step_and_a_look_is_paid_by_the_next_decision() -> None:
    host = {"reactive": {"copy": "10 ns", "sync": "20 ns", "select": "100 ns", "compute": "50 ns"}}
    h = machine(host={**host, "fixed": {"step": "1 ns"}})
    g = moe(1, 3, steps=1)
    x, experts, routed = 0, [1, 2, 3], next(i for i, t in enumerate(g.tensors) if t.name == "L0/routed")
    first, rest = Actions(), Actions()
    first.compute(0)
    first.sync(routed)
    rest.compute(1)
    rest.compute(2)

    def decide(view: View) -> Iterator[Code]:
        yield PART, 0, 0, 0
        (tensor,) = view.chosen(2)
        yield COPY, tensor, DDR, HBM
        yield PART, 1, 0, 0

    home = tuple(DDR if t in experts else HBM if t == x else NOWHERE for t in range(len(g.tensors)))
    plan = Plan("story", h.tier_names, home, decide, looks=False, static_parts=(first, rest))
    program = engine.Program(g, plan, [5, 3, 9], draws=drawn(g, h, UNIFORM, 0))
    written = written_out(program, h)
    assert written is not None
    assert written.prices_ns.tolist() == [1, 20, 110, 1, 50]
    same(written, engine.run([program], h))


def test_places_as_issued_are_there_to_ask_for() -> None:
    h, g = machine(), graph("w 10 persistent, a 10", "f: w -> a, 5 ns", "g: a -> w, 5 ns")
    seen: list[str] = []

    def decide(view: View) -> Iterator[Code]:
        for code in ((COPY, 0, 1, 0), (COMPUTE, 0, 0, 0), (COMPUTE, 1, 0, 0), (DETACH, 1, 0, 0)):
            yield code
            seen.extend(view.place(tensor, tier) for tensor in (0, 1) for tier in (0, 1))

    program = engine.Program(g, Plan("story", h.tier_names, (1, NOWHERE), decide, looks=False), [5, 5])
    written = written_out(program, h)
    before, seen = seen, []
    same(written, engine.run([program], h))
    assert seen == before


def asks_early(view: View) -> Iterator[Code]:
    yield COMPUTE, 0, 0, 0
    view.chosen(2)


def asks_after_another_sync(view: View) -> Iterator[Code]:
    yield COMPUTE, 0, 0, 0
    yield COMPUTE, 1, 0, 0
    yield SYNC, 1, 0, 0
    view.chosen(2)


def guesses_early(view: View) -> Iterator[Code]:
    yield from ((COPY, expert, DDR, HBM) for expert in (1, 2, 3))
    yield from ((COMPUTE, op, 0, 0) for op in (0, 1, 2))
    view.predicted(2, 0.5)


def goes_on_after_a_look(view: View) -> Iterator[Code]:
    try:
        view.room_bytes(0)
    except Exception:
        yield COMPUTE, 0, 0, 0


NOT_WRITTEN: dict[str, Callable[[View], Iterator[Any]]] = {
    "a look at the time": lambda view: iter([(COMPUTE, view.now_ns, 0, 0)]),
    "a look at what has ended": lambda view: iter([(COMPUTE, int(view.settled(0)), 0, 0)]),
    "a look at room, whose error is passed over": goes_on_after_a_look,
    "a choice that nobody synced": asks_early,
    "a choice after a sync of something else": asks_after_another_sync,
    "a guess after a reveal that nobody synced": guesses_early,
    "a choice of an op that has none": lambda view: iter(view.chosen(0)),
    "reads that are not there": lambda view: iter([(COMPUTE, 0, 0, 0), (COMPUTE, 1, 0, 0), (COMPUTE, 2, 0, 0)]),
    "no op": lambda view: iter([(COMPUTE, 3, 0, 0)]),
    "no tensor": lambda view: iter([(SYNC, 99, 0, 0)]),
    "no tier": lambda view: iter([(COPY, 0, 0, 2)]),
    "no stream": lambda view: iter([(COMPUTE, 0, 1, 0)]),
    "no kind": lambda view: iter([(PART + 1, 0, 0, 0)]),
    "no part": lambda view: iter([(PART, 0, 0, 0)]),
    "half an op": lambda view: iter([(COMPUTE, 0.5, 0, 0)]),
    "no code": lambda view: iter([(COMPUTE, 0)]),
    "no end": lambda view: repeat((COMPUTE, 0, 0, 0)),
}


@pytest.mark.parametrize("name", NOT_WRITTEN)
def test_what_depends_on_the_run_or_breaks_a_rule_is_left_to_an_engine_that_pulls(name: str) -> None:
    g, h = moe(1, 3), machine()
    plan = plan_of(g, NOT_WRITTEN[name], h)
    program = engine.Program(g, plan, [5, 3, 9], draws=drawn(g, h, UNIFORM, 0))
    assert written_out(program, h) is None


def test_what_is_not_synced_may_be_issued_with_all_that_it_may_read() -> None:
    g, h = moe(1, 3, steps=2), machine()

    def decide(view: View) -> Iterator[Code]:
        yield from ((COPY, expert, DDR, HBM) for expert in (1, 2, 3))
        for _ in range(view.steps):
            yield from ((COMPUTE, op, 0, 0) for op in (0, 1, 2))
            yield from ((DETACH, tensor, HBM, 0) for tensor in (4, 5, 6))
        yield from ((DETACH, expert, HBM, 0) for expert in (1, 2, 3))

    program = engine.Program(g, plan_of(g, decide, h), [5, 3, 9], draws=drawn(g, h, UNIFORM, 0))
    same(written_out(program, h), engine.run([program], h))


def test_a_plan_that_looks_and_a_fixed_one_are_not_written() -> None:
    g, h = moe(1, 3), machine()
    for plan in (plan_of(g, on_demand(g), h, looks=True), plan_of(g, Actions(), h)):
        assert written_out(engine.Program(g, plan, [5, 3, 9], draws=drawn(g, h, UNIFORM, 0)), h) is None
