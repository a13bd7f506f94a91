"""Plans for what an allocator can give out: with how much a row is planned whose plan would block itself."""

from __future__ import annotations

from dataclasses import replace

import pytest
from policy_problems import problem, train

from simulator.errors import CapacityError, Shortfall
from simulator.policies import POLICIES
from simulator.policies.decide import unblocked

WHOLE = 25_600
PART = WHOLE // 256


def played(runs_with, fits_from=0):
    """With how much is planned, and what comes of it, where plans run that are made with at most `runs_with` bytes."""
    asked, made = [], {}
    given = problem(train(), WHOLE)
    plain = POLICIES["resident"].plan(given, {})

    def decide(one):
        asked.append(one.budget_bytes)
        if one.budget_bytes < fits_from:
            raise CapacityError(Shortfall("hbm", fits_from, int(one.budget_bytes), "f0"))
        plan = replace(plain, notes=(f"plan of {one.budget_bytes}",))
        made[plan.notes] = one.budget_bytes
        return plan

    def tried(of, plan):
        done = given.replay(replace(plan, notes=()))
        return replace(done, status="ok" if made[plan.notes[:1]] <= runs_with else "blocked")

    return unblocked(replace(given, trial=tried), decide), asked


def test_a_plan_that_runs_is_left_alone():
    plan, asked = played(WHOLE)
    assert asked == [WHOLE]
    assert plan.notes == (f"plan of {WHOLE}",)


@pytest.mark.parametrize("parts", [1, 2, 3, 7, 64, 127, 128])
def test_what_blocks_itself_is_planned_with_the_largest_part_that_runs(parts):
    plan, asked = played(WHOLE - parts * PART)
    assert plan.notes[0] == f"plan of {WHOLE - parts * PART}"
    assert plan.notes[1].startswith("planned with ")
    assert "of 25.6 kB, as a plan with all of it blocks itself" in plan.notes[1]
    assert len(asked) <= 16, "halving"


def test_no_amount_is_named_where_none_runs_or_none_fits():
    assert played(0)[0].notes == (f"plan of {WHOLE}",)
    assert played(WHOLE - 9 * PART, fits_from=WHOLE - 8 * PART)[0].notes == (f"plan of {WHOLE}",)
