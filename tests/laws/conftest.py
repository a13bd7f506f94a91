"""The same random cases in every run: a law that fails here fails everywhere.

By default each tries a third of its cases, and one of its name among the slow tests all of them.
``HYPOTHESIS_PROFILE=more`` tries four times as many; ``thorough`` looks further, with new cases each time.
"""

import pytest
from examples import PROFILE, examples, pytest_generate_tests, pytest_runtest_call  # noqa: F401
from hypothesis import HealthCheck, settings

slow = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
for name in ("laws", "more"):
    settings.register_profile(
        name, max_examples=examples(60), deadline=None, derandomize=True, database=None, suppress_health_check=slow
    )
settings.register_profile("thorough", max_examples=1000, deadline=None, database=None, suppress_health_check=slow)
settings.load_profile(PROFILE)


@pytest.fixture
def no_improvement(monkeypatch):
    """`static` without its local search."""
    monkeypatch.setattr("simulator.policies.static.improve.REPLAYS", 0)
