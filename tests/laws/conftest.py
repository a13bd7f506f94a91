"""Of each law some cases by default, and `static` without its search where a law asks for that."""

import pytest
from examples import pytest_generate_tests, pytest_pyfunc_call, pytest_runtest_call  # noqa: F401


@pytest.fixture
def no_improvement(monkeypatch):
    """`static` without its local search."""
    monkeypatch.setattr("simulator.policies.static.improve.REPLAYS", 0)
