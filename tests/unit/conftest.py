"""Of each test of random cases some by default."""

import pytest
from examples import pytest_generate_tests, pytest_pyfunc_call, pytest_runtest_call  # noqa: F401


@pytest.fixture(scope="module", autouse=True)
def plans_are_quick(quickly):
    """Most tests do the same with any plan. Modules that are about the search of `static` override this."""
    with quickly():
        yield
