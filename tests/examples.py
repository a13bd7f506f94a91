"""The same random cases in every run, and how many: a law that fails here fails everywhere.

By default each tries an eighth of its cases, and one of its name among the slow tests all of them.
``HYPOTHESIS_PROFILE=more`` tries four times as many; ``thorough`` looks further, with new cases each time.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import wraps
from typing import Any

import pytest
from hypothesis import HealthCheck, given, is_hypothesis_test, settings
from hypothesis import strategies as st

PROFILE = os.environ.get("HYPOTHESIS_PROFILE", "laws")
SHARE = 8
"""One of so many cases of a law is tried by default; a slow test tries all."""
FEWEST = 8
"""Unless so few have fewer."""


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


DRAWN: dict[tuple[Callable[..., None], int], list[dict[str, Any]]] = {}
"""Law, and how many cases it tries -> those of the first of its policies: for each other, the same would be drawn."""


def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Try a law of many policies with the cases of the first one: to draw them anew takes as long as to try them."""
    law, params = pyfuncitem.obj, pyfuncitem.callspec.params if hasattr(pyfuncitem, "callspec") else {}
    if not is_hypothesis_test(law) or not params.keys() - {"one_in"} or PROFILE == "thorough":
        return None
    handle, known = law.hypothesis, {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    tried = handle.inner_test
    key = tried, law._hypothesis_internal_use_settings.max_examples
    if key not in DRAWN:
        handle.inner_test = noting(tried, known, DRAWN.setdefault(key, []))
        try:
            law(**known)
        finally:
            handle.inner_test = tried
        return True
    if not (cases := DRAWN[key]):
        return None

    @settings(max_examples=len(cases))
    @given(st.integers(0, len(cases) - 1))
    def again(number: int) -> None:
        tried(**known, **cases[number])

    try:
        again()
    except Exception:
        law(**known)  # makes what fails smaller
        raise
    return True


def noting(tried: Callable[..., None], known: Mapping[str, Any], cases: list[dict[str, Any]]) -> Callable[..., None]:
    """A law that notes what is drawn beside what is known, unless it draws more itself."""

    @wraps(tried)
    def noted(**given_all: Any) -> None:
        drawn = {name: case for name, case in given_all.items() if name not in known}
        if not any(isinstance(case, st.DataObject) for case in drawn.values()):
            cases.append(drawn)
        tried(**given_all)

    return noted
