"""The same random cases in every run, and how many: a law that fails here fails everywhere.

By default each tries a third of its cases, and one of its name among the slow tests all of them.
``HYPOTHESIS_PROFILE=more`` tries four times as many; ``thorough`` looks further, with new cases each time.
"""

import os
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, is_hypothesis_test, settings

PROFILE = os.environ.get("HYPOTHESIS_PROFILE", "laws")
SHARE = 3
"""One of so many cases of a law is tried by default; a slow test tries all."""
FEWEST = 15


def some(every: Sequence[Any], nth: int) -> list[Any]:
    """Each ``nth`` of these cases by default, from the first on; the others are slow."""
    values = [case if isinstance(case, tuple) else (case,) for case in every]
    return [pytest.param(*case, marks=[pytest.mark.slow] * (n % nth > 0)) for n, case in enumerate(values)]


def examples(most: int) -> int:
    """So many where one looks further, a quarter of them by default."""
    return most // 4 if PROFILE == "laws" else most


slow = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
for name in ("laws", "more"):
    settings.register_profile(
        name, max_examples=examples(60), deadline=None, derandomize=True, database=None, suppress_health_check=slow
    )
settings.register_profile("thorough", max_examples=1000, deadline=None, database=None, suppress_health_check=slow)
settings.load_profile(PROFILE)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Make two tests of each law: of some of its cases, and a slow one, which has its name in the shards, of all."""
    law = metafunc.function
    if is_hypothesis_test(law) and not any(metafunc.definition.iter_markers("slow")):
        every = pytest.param(1, id=law.__name__.removeprefix("test_"), marks=pytest.mark.slow)
        metafunc.fixturenames.append("one_in")
        metafunc.parametrize("one_in", [pytest.param(SHARE, id="some"), every])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Function) -> Iterator[None]:
    one_in = item.callspec.params.get("one_in", 1) if hasattr(item, "callspec") else 1
    if one_in == 1:
        return (yield)
    every = item.obj._hypothesis_internal_use_settings
    few = max(min(every.max_examples, FEWEST), every.max_examples // one_in)
    item.obj._hypothesis_internal_use_settings = settings(every, max_examples=few)
    try:
        return (yield)
    finally:
        item.obj._hypothesis_internal_use_settings = every
