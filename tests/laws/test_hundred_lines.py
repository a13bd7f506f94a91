"""The engine in a hundred lines of SimPy, as the page of the engines shows it, finds steps of fixed plans exactly."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from stated import SCENARIOS, is_served

from simulator.catalog import resolve
from simulator.run.case import Case, prepare
from simulator.run.row import rows_of

PAGE = Path(__file__).parents[2] / "docs" / "explanation" / "engine.md"


@pytest.fixture(scope="module")
def engine() -> Any:
    """The class that the page shows."""
    code = PAGE.read_text(encoding="utf-8").partition("```python\n")[2].partition("```")[0]
    assert 100 <= code.count("\n") <= 110
    shown: dict[str, Any] = {}
    exec(compile(code, str(PAGE), "exec"), shown)
    return SimpleNamespace(**shown).Engine


@pytest.mark.parametrize("name", [pytest.param("tiny_train_910c", marks=pytest.mark.slow), "tiny_train_t4"])
def test_it_finds_every_step_of_fixed_plans(name: str, engine: Any) -> None:
    assert _compared(name, engine) >= 3


@pytest.mark.slow
def test_it_finds_every_step_of_all_shipped_scenarios_that_it_covers(engine: Any) -> None:
    names = [name for name in SCENARIOS if not is_served(name)]
    assert sum(_compared(name, engine) for name in names) >= 40


def _compared(name: str, engine: Any) -> int:
    """Compare all rows that it covers, and count them."""
    case, compared = prepare(resolve(name)), 0
    choices = case.loaded.scenario.policies
    labels = [choice.row for choice in choices if choice.allocator == "ideal" and not choice.set_]
    if not labels or not _is_plain(case):
        return 0
    for row in rows_of(case, labels, advice=False):
        plan, problem = row.plans[0] if row.plans else None, case.problem
        if not row.is_ok or plan is None or plan.fixed is None:
            continue
        step_ns = engine(case.graph, case.hardware, plan, problem.durations_ns, problem.budget_bytes).run()
        assert step_ns == row.summary["step_ns"], f"{name}, {row.label}"
        compared += 1
    return compared


def _is_plain(case: Case) -> bool:
    """Whether a case is one rank with one stream, links that share nothing, and copies that wait for starts."""
    links, queues = case.hardware.links.values(), case.hardware.queues
    is_beyond = any(link.via or (link.channels > 1 and link.sharing != "servers") for link in links)
    is_beyond |= any(len(queue) > 1 for queue in queues)
    one_stream = not any(op.stream or op.collective for op in case.graph.ops)
    is_beyond |= case.problem.switches.copies_wait_for == "end"
    return case.job.ranks == 1 and one_stream and not (is_beyond or case.hardware.caps or case.graph.dynamic_reads)
