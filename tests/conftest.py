"""What all tests share: shards, how often Python looks for garbage, compiled files, and threads."""

import gc
import os
import sys
from contextlib import contextmanager

import pytest
from shards import (  # noqa: F401
    pytest_addoption,
    pytest_collection_modifyitems,
    pytest_report_header,
    pytest_runtest_logreport,
    pytest_runtest_protocol,
    pytest_runtest_teardown,
    pytest_sessionfinish,
)

# One process compiles a file, and the others read that: workers, and the commands that tests start.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# Each core has a worker already. More threads of torch would wait for one another, which takes three times as long.
os.environ.setdefault("OMP_NUM_THREADS", "1")


# Nothing that is collected is garbage: to look for some is an eighth of that time.
gc.set_threshold(1_000_000)


def pytest_collection_finish() -> None:
    """More seldom than the command does, and never among what was there before the first test.

    Most of what a test makes is gone with it, so that to look for garbage among it is a fortieth of all time.
    """
    gc.set_threshold(500_000)
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="module", autouse=True)
def _what_is_old_is_no_garbage() -> None:
    """Libraries that a module of tests has imported are looked through no more: PyTorch has millions of objects."""
    gc.freeze()


@pytest.fixture(scope="session")
def quickly():
    """A context in which `static` improves a plan by 4 replays at most, not 500: most of the time of a small run."""

    @contextmanager
    def planned():
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("simulator.policies.static.improve.REPLAYS", 4)
            patch.setattr("simulator.policies.static.improve._MOST_HOMES", 4)
            yield

    return planned


@pytest.fixture
def quick_plans(quickly):
    """Plans of this test are made `quickly`."""
    with quickly():
        yield
