"""Both engines tell the same: all tables of a trace row by row, and what is said of it as a whole.

What the compiled one leaves to the reference is counted, so that a law which compares nothing fails.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import digest_cases
import pytest
from both_engines import BothEngines
from digest_cases import CASES, GROUP, KINDS
from digests import SMALL
from examples import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from oracle_cases import Run, choosing, ranks_that_meet, staged, with_holes
from stated import SCENARIOS, is_served
from stories import graph, machine, steps
from strategies import Case, cases

import simulator as hosim
from simulator import GraphBuilder, Hardware, engine
from simulator.cost import durations_ns
from simulator.engine import Program, replay
from simulator.errors import ConfigError
from simulator.plan import COMPUTE, COPY, DETACH, NOWHERE, SYNC, Actions, Plan
from simulator.scenario import Switches

pytestmark = pytest.mark.skipif(not replay.is_built(), reason="the compiled engine is not built")

ADDRESSES = "places have addresses"
LOOKS = "a plan looks at the machine, or breaks a rule"
ALONE = {"the host computes", "the host waits for copies", "ops may read in place"}


def _of_case(drawn: tuple[Case, str]) -> tuple[Run, Switches]:
    case, waits_for = drawn
    program = engine.Program(case.graph, case.plan, durations_ns(case.graph, case.hardware))
    return Run([program], case.hardware, case.budget_bytes), Switches(copies_wait_for=waits_for)


any_case = st.integers(1, 3).flatmap(lambda streams: cases(max_ops=8, streams=streams))
runs = {"ranks": ranks_that_meet(), "staged": staged(), "dynamic": choosing(), "best_fit": with_holes()}
kinds: dict[str, st.SearchStrategy[tuple[Run, Switches]]] = {
    "one": st.tuples(any_case, st.sampled_from(["start", "end"])).map(_of_case),
    **{name: drawn.map(lambda run: (run, Switches())) for name, drawn in runs.items()},
}
"""The kinds of `test_oracle`."""

LEFT_OUT = {"ranks": (ADDRESSES,), "dynamic": (LOOKS,), "best_fit": (ADDRESSES,)}
COVERED = {"one": 0.98, "staged": 0.98, "ranks": 0.5, "dynamic": 0.4, "best_fit": 0}
"""At least such a share of the cases of a kind is covered, and ends well."""


def _compare(kind: str, most: int) -> None:
    """Compare so many cases of a kind."""
    both = BothEngines()

    @settings(max_examples=most, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(kinds[kind])
    def compare(drawn: tuple[Run, Switches]) -> None:
        run, switches = drawn
        with suppress(hosim.HosimError):
            both(run.programs, run.hardware, budget_bytes=run.budget_bytes, switches=switches)

    compare()
    assert both.counts["compared"] >= COVERED[kind] * most, both.counts
    assert not both.counts["not refused"]
    assert both.left_out == set(LEFT_OUT.get(kind, ())), both.counts


@pytest.mark.parametrize("kind", kinds)
def test_they_tell_the_same(kind: str) -> None:
    _compare(kind, 80 if kind == "dynamic" else 40)  # of the first 40 that choose, only 10 are covered


@pytest.mark.slow
@pytest.mark.parametrize("kind", kinds)
def test_they_tell_the_same_of_many(kind: str) -> None:
    _compare(kind, examples(4000))


@pytest.mark.slow
@pytest.mark.parametrize("group", range(CASES // GROUP))
def test_they_tell_the_same_of_what_policies_try(group: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    both = BothEngines()
    monkeypatch.setattr(engine, "run", both)
    for scenario in range(group * KINDS, (group + 1) * KINDS):
        digest_cases.run(scenario, tmp_path)
    assert both.left_out <= {ADDRESSES, LOOKS}, both.counts
    assert not both.counts["not refused"]
    assert both.counts["compared"] >= 50, both.counts


MOVING = ("tiny_train_910c",)
"""Those of the small ones whose plans are searched for."""
SHIPPED = [
    pytest.param(name, marks=[pytest.mark.slow] * (name not in SMALL or name in MOVING))
    for name in SCENARIOS
    if not is_served(name)
]


@pytest.mark.parametrize("name", SHIPPED)
def test_they_tell_the_same_of_shipped_rows(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    both = BothEngines()
    monkeypatch.setattr(engine, "run", both)
    if name in SMALL:  # what a search tries is compared above
        monkeypatch.setattr("simulator.policies.static.improve.REPLAYS", 10)
    hosim.run(name)
    assert both.left_out <= {ADDRESSES, LOOKS, *ALONE}, both.counts
    assert not both.counts["not refused"]
    assert both.counts["compared"] > 0 or both.left_out <= {ADDRESSES, *ALONE}, both.counts


def test_a_long_replay_tells_how_far_it_is_and_can_be_stopped() -> None:
    builder, steps = GraphBuilder("long"), Actions()
    builder.tensor("x", 1, persistent=True)
    steps.compute(builder.op("f", ["x"], ["x"]))
    document = {"name": "machine", "compute_tier": "hbm", "tiers": {"hbm": {"capacity": "inf", "bandwidth": "inf"}}}
    machine = Hardware.model_validate({"schema": "hosim/hardware/1", "compute": {"peak": {"bf16": "inf"}}, **document})
    plan = Plan("long", machine.tier_names, (0,), steps, 40_000)
    case = [engine.Program(builder.build(steps=40_000), plan, [5])], machine, None, Switches(), (0,)
    ended: list[tuple[int, int]] = []
    assert replay.replay(*case, progress=lambda computes, every: ended.append((computes, every))) is not None
    assert len(ended) > 2
    assert ended == sorted(ended)
    assert ended[-1] == (40_000, 40_000)

    def stop(computes: int, every: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        replay.replay(*case, progress=stop)


WRONG = {
    "an op": (COMPUTE, 10**6, 0, 0), "an op below": (COMPUTE, -1, 0, 0), "a stream below": (COMPUTE, 0, -7, 0),
    "streams without end": (COMPUTE, 0, 2**31 - 1, 0), "a tier below": (DETACH, 0, -9, 0), "a tier": (COPY, 0, 0, 9),
    "a tensor": (SYNC, 10**8, 0, 0),
}  # fmt: skip


@pytest.mark.parametrize("code", WRONG.values(), ids=WRONG)
def test_a_plan_that_names_what_is_not_there_is_left_to_the_other_engine(code: tuple[int, int, int, int]) -> None:
    """A policy may try any plan (`problem.replay`), and nobody has checked that one."""
    assert _why_not(Actions.from_columns(*zip(code, strict=True)), (NOWHERE,)) == "a plan names unknown things"


@pytest.mark.parametrize("home", [(), (99,), (-2,)])
def test_so_is_one_whose_homes_are_none(home: tuple[int, ...]) -> None:
    assert _why_not(Actions.from_columns([COMPUTE], [0], [0], [0]), home) == "a plan names unknown things"


def _why_not(actions: Actions, home: tuple[int, ...]) -> str:
    h, g = machine("100 B"), graph("a 40", "f: -> a, 5 ns")
    program = Program(g, Plan("wrong", h.tier_names, home, actions), [5])
    assert replay.replay([program], h, None, Switches(), (0,)) is None
    return replay.why_not([program], h, Switches())


@pytest.mark.parametrize("bandwidth", ["2 B/s", "1 B/s"])
@pytest.mark.parametrize("name", ["simpy", "auto"])
def test_a_run_of_centuries_is_one_sentence_by_either_engine(name: str, bandwidth: str) -> None:
    """At 2 B/s each copy is short enough, at 1 B/s none; and no time wraps."""
    h, g = machine(h2d={"bandwidth": bandwidth}), graph("w 4000000000 persistent", "f: w ->, 5 ns")
    plan = Plan("slow", h.tier_names, (1,), steps(g, h, "copy w ddr hbm; compute f; detach w hbm"), 2)
    with engine.using(name), pytest.raises(ConfigError, match="a run ends within 73 years"):
        engine.run([Program(g.over(2), plan, [5])], h, budget_bytes=10**10)
