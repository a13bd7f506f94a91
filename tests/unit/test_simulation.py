"""What a run does to the process that it runs in."""

from __future__ import annotations

import gc

import pytest
from stories import graph, machine, play

from simulator.errors import PlanError
from simulator.plan import COMPUTE, COPY, DETACH


def run(laps: int) -> None:
    def decide(view):
        for _ in range(laps):
            yield (COPY, 0, 1, 0)
            yield (COMPUTE, 0, 0, 0)
            yield (DETACH, 0, 0, 0)

    play(machine(), graph("w 10 persistent", "f: w ->, 5 ns"), decide, "w ddr")


def test_the_collector_is_as_it_was_after_a_run_and_after_an_error():
    def wrong(view):
        yield (DETACH, 0, 0, 0)

    assert gc.isenabled()
    run(3)
    assert gc.isenabled()
    with pytest.raises(PlanError):
        play(machine(), graph("w 10 persistent", "f: w ->, 5 ns"), wrong, "w ddr")
    assert gc.isenabled()
    gc.disable()
    try:
        run(3)
        assert not gc.isenabled()
    finally:
        gc.enable()


@pytest.mark.slow
def test_a_longer_run_leaves_no_more_cycles():
    """That is why the collector may pause: nothing that it would find is made step by step."""
    found = []
    for laps in (1, 10, 1000):
        gc.collect()
        gc.disable()
        try:
            run(laps)
            found.append(gc.collect())
        finally:
            gc.enable()
    assert found[1] == found[2]
