"""What perturbations do to a case, how draws are summed up, and workers that die."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from simulator import catalog
from simulator.errors import ConfigError
from simulator.metrics.statistics import quantiles
from simulator.run import prepare
from simulator.run.case import execute
from simulator.run.conditions import drawn, jittered, uncertain
from simulator.run.grid import sweep


@pytest.fixture(scope="module")
def case():
    return prepare(catalog.resolve("tiny_train_910c"))


def factors(case, other):
    pairs = zip(case.problem.durations_ns, other.problem.durations_ns, strict=True)
    return np.array([b / a for a, b in pairs if a])


def test_jitter_gives_each_op_and_each_link_a_factor_of_mean_1_and_the_level_as_its_spread(case):
    draws = [jittered(case, 0.2, draw, 7) for draw in range(60)]
    ops = np.concatenate([factors(case, other) for other in draws])
    assert ops.mean() == pytest.approx(1, abs=0.01)
    assert ops.std() == pytest.approx(0.2, abs=0.01)
    assert np.log(ops).std() == pytest.approx(math.sqrt(math.log1p(0.2**2)), abs=0.01)
    for name, link in case.hardware.links.items():
        times = [link.bandwidth_bytes_per_s / other.hardware.links[name].bandwidth_bytes_per_s for other in draws]
        assert np.mean(times) == pytest.approx(1, abs=0.1)
        assert 0.1 < np.std(times) < 0.3
    assert all(type(ns) is int and ns > 0 for ns in draws[0].problem.durations_ns)


def test_what_a_search_has_replayed_is_not_told_of_another_machine():
    """The nominal replay of the plan is known to the case that it was made for; a machine with jitter runs it anew."""
    case = prepare(catalog.resolve("tiny_train_t4"))
    plan = case.rows(["static"])["static"](case.problem)
    other = jittered(case, 0.9, 0, 0)
    ends = [execute(one, [plan]).spans.whole()["end_ns"].max() for one in (other, case)]
    assert ends[0] != ends[1]


def test_a_draw_is_the_same_again_and_moves_in_step_with_the_level(case):
    one = jittered(case, 0.1, 3, 7)
    assert one.problem.durations_ns == jittered(case, 0.1, 3, 7).problem.durations_ns
    assert one.problem.durations_ns != jittered(case, 0.1, 4, 7).problem.durations_ns
    assert one.problem.durations_ns != jittered(case, 0.1, 3, 8).problem.durations_ns
    weaker = factors(case, jittered(case, 0.05, 3, 7))
    assert np.corrcoef(np.log(factors(case, one)), np.log(weaker))[0, 1] > 0.99


def test_no_time_stays_no_time_and_the_least_time_is_a_nanosecond():
    case = prepare(catalog.resolve("tiny_train_910c"))
    ops = tuple(replace(op, duration_ns=i % 2) for i, op in enumerate(case.graph.ops))
    times = [i % 2 for i in range(len(ops))]
    problem = replace(case.problem, graph=replace(case.graph, ops=ops), durations_ns=times)
    still = replace(case, tasks=(replace(case.tasks[0], problem=problem),))
    found = jittered(still, 1.0, 0, 0).problem.durations_ns
    assert [ns > 0 for ns in found] == [ns > 0 for ns in times]


@pytest.mark.slow
def test_what_is_uncertain_is_what_sources_print_a_range_of_and_what_was_assumed():
    loaded = catalog.resolve("tiny_train_t4", {"links.h2d.latency": "4 us"})
    machine = loaded.hardware
    path = next(path for path in machine.sources if path.endswith("h2d.bandwidth"))
    figure = machine.links["h2d"].bandwidth_bytes_per_s
    ranged = machine.sources[path][0].model_copy(update={"range": (f"{figure - 8} B/s", f"{figure + 8} B/s")})
    machine = machine.model_copy(update={"sources": {**machine.sources, path: (ranged,)}})
    sample = uncertain(replace(loaded, hardware=machine), 64)
    assert path in sample.of
    assert not any(key.startswith(("topology", "on_chip")) or key.endswith(("capacity", "price")) for key in sample.of)
    axes, points = drawn(sample, "here")
    values = {axis.name: [point[index] for point in points] for index, axis in enumerate(axes)}
    assert figure - 8 <= min(values[path]) < max(values[path]) <= figure + 8
    assert sum(2_000 < ns < 8_000 for ns in values["links.h2d.latency"]) in range(40, 62)  # four of five, of 64
    for key, shares in values.items():
        if key.startswith("compute.achieved"):
            assert max(shares) <= 1


def test_a_machine_of_which_nothing_is_uncertain_is_not_drawn():
    loaded = catalog.resolve("tiny_train_t4")
    certain = loaded.hardware.model_copy(update={"sources": {}, "assumed": {}, "fitted": {}})
    with pytest.raises(ConfigError, match=r"has figures that are assumed, or cited with a range, found neither"):
        uncertain(replace(loaded, hardware=certain), 4)


@pytest.mark.parametrize("draws", [-3, 10**9])
def test_draws_have_a_number(draws):
    with pytest.raises(ConfigError, match=r"uncertainty: there are 1 to 100,000 draws, found"):
        sweep("tiny_train_t4", uncertainty=draws, cache=False)


def test_what_is_uncertain_of_software_is_drawn_too():
    loaded = catalog.resolve("tiny_train_t4", {"software": "eager_pytorch"})
    cited = loaded.software.sources["copies.in.rate"][0].model_copy(update={"range": ("8 GB/s", "10 GB/s")})
    software = loaded.software.model_copy(update={"sources": {**loaded.software.sources, "copies.in.rate": (cited,)}})
    sample = uncertain(replace(loaded, software=software), 4)
    assert sample.of["software.copies.in.rate"].loc == "8 GB/s"


def test_a_study_that_draws_is_not_drawn_again():
    with pytest.raises(ConfigError, match=r"a study that draws names its own uncertain figures"):
        sweep("tiny_train_uncertain", uncertainty=2, cache=False)


def row(policy, step):
    return {"policy": policy, "jitter": 0.1, "status": "ok" if step else "blocked", "step_ns": step}


def test_quantiles_are_values_of_draws_and_what_does_not_run_is_slowest():
    (line,) = quantiles([row("p", step) for step in (140, None, 100, 120, 110)], ["jitter"])
    assert (line["draws"], line["ok"], line["failed"]) == (5, 4, "blocked")
    assert (line["p05_step_ns"], line["median_step_ns"], line["p95_step_ns"]) == (100, 120, None)
    (line,) = quantiles([row("p", step) for step in (None, 100, None)], ["jitter"])
    assert line["median_step_ns"] is None
