"""A plan file that is refused by itself is refused with its graph and machine as well, for whatever reason."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
from strategies import cases

from simulator import formats
from simulator.errors import ConfigError, PlanError
from simulator.formats import plan_jsonl
from simulator.plan import Actions
from simulator.referee import check_plan


def refused_alone(path) -> bool:
    try:
        formats.check(path)
    except ConfigError:
        return True
    return False


def refused_with_its_graph(case, plan) -> bool:
    try:
        check_plan(case.graph, case.hardware, plan)
    except PlanError:
        return True
    return False


def spoilt(draw, codes: list[tuple[int, int, int, int]]) -> list[tuple[int, int, int, int]]:
    """The steps with one of them left out, doubled, put elsewhere, or given another tensor or tier."""
    at = draw(st.integers(0, len(codes) - 1))
    kind, a, b, c = code = codes[at]
    rest, to = codes[:at] + codes[at + 1 :], draw(st.integers(0, len(codes) - 1))
    return draw(
        st.sampled_from(
            [
                rest,
                [*codes[:at], code, *codes[at:]],
                [*rest[:to], code, *rest[to:]],
                [*codes[:at], (kind, codes[to][1] if codes[to][0] and kind else a, b, c), *codes[at + 1 :]],
                [*codes[:at], (kind, a, min(b, c), min(b, c)), *codes[at + 1 :]],
            ]
        )
    )


@given(case=cases(max_ops=4), data=st.data())
def test_what_is_refused_alone_is_refused_with_its_graph(case, data, tmp_path_factory):
    path = tmp_path_factory.mktemp("plan") / "p.jsonl"
    plan_jsonl.write(case.plan, case.graph, path)
    assert not refused_alone(path)
    codes = spoilt(data.draw, list(case.plan.fixed.codes()))
    plan = replace(case.plan, actions=Actions.from_columns(*(zip(*codes, strict=True) if codes else ((),) * 4)))
    plan_jsonl.write(plan, case.graph, path)
    if refused_alone(path):
        assert refused_with_its_graph(case, plan)
