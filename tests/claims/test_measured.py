"""The measurements of `tests/bench/measured.py` whose scenarios have points: the README states these errors."""

from __future__ import annotations

import importlib.util
import statistics
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[1] / "bench" / "measured.py"


@pytest.fixture(scope="module")
def bench():
    spec = importlib.util.spec_from_file_location("measured", BENCH)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_what_counts_is_stated(bench):
    rows = list(bench.rows())
    assert sum(row.counts for row in rows) == 45
    assert {row.measurement for row in rows} == set(bench.SOURCES)


def test_prompts_are_read_a_little_too_fast(bench):
    errors = [row.error() for row in bench.rows() if row.measurement == bench.READ]
    assert statistics.median(errors) == pytest.approx(-0.066, abs=0.005)
    assert max(map(abs, errors)) < 0.085


def test_caches_are_loaded_a_little_too_fast_and_short_ones_much(bench):
    first, *rest = [row.error() for row in bench.rows() if row.measurement == bench.LOAD]
    assert first == pytest.approx(-0.366, abs=0.005)
    assert max(map(abs, rest)) < 0.16
    assert statistics.median(rest) == pytest.approx(-0.07, abs=0.01)


@pytest.mark.slow
def test_the_queue_of_copies_explains_what_many_hits_cost(bench):
    errors = [row.error() for row in bench.rows() if row.measurement == bench.SHORT]
    assert statistics.median(map(abs, errors)) == pytest.approx(0.076, abs=0.005)
    assert errors[9] == pytest.approx(-0.011, abs=0.005)
    assert max(map(abs, errors)) < 0.16
