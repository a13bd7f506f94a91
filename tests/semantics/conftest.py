"""Of each test of random cases some by default."""

from examples import pytest_generate_tests, pytest_pyfunc_call, pytest_runtest_call  # noqa: F401
