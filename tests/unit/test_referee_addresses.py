"""The referee's laws of addresses, each seen broken by an engine that was broken for it."""

from __future__ import annotations

import pytest
from stories import graph, machine, steps

from simulator import engine
from simulator.cost import durations_ns
from simulator.engine import compaction
from simulator.engine.fixed import FixedTier
from simulator.engine.holes import Holes
from simulator.engine.link import LinkQueue
from simulator.engine.spaces import BestFit
from simulator.errors import InvariantError
from simulator.hardware import Allocator
from simulator.plan import Plan
from simulator.referee import Drawn, check_trace

TEXT = (
    "compute f; compute g; compute k; detach a hbm; detach c hbm; copy b hbm ddr; copy e hbm ddr; compute m; "
    "compute n; detach b hbm; detach d hbm; detach b ddr; detach e ddr"
)


def told(allocator: str = "best_fit") -> int:
    """Run a story in which d fits in bytes and in no hole, and hold it against the laws."""
    figures = Allocator.model_validate({"page": "10 B", "compaction": {"per_page": "2 ns"}})
    h = machine().model_copy(update={"allocator": figures})
    g = graph("e 5 input, a 30, b 30, c 30, d 50", "f: -> a, 10 ns", "g: -> b, 10 ns", "k: a -> c, 10 ns",
              "m: b -> d, 10 ns", "n: b d ->, 5 ns")  # fmt: skip
    homes = tuple(0 if t.name == "e" else -1 for t in g.tensors)
    plan = Plan(
        "story", h.tier_names, homes, steps(g, h, TEXT.replace("detach e ddr", "detach e hbm; detach e ddr")), 1
    )
    trace = engine.run([engine.Program(g, plan, durations_ns(g, h), allocator=allocator)], h)
    check_trace(g, h, [Drawn(plan, None, allocator)], trace)
    return len(trace.compactions)


def test_the_story_keeps_the_laws():
    assert (told("best_fit"), told("fixed")) == (1, 0)


BROKEN = [
    (Holes, "take", lambda self, size, least_rest=1: (0, size), "no two live places overlap"),
    (Holes, "take", lambda self, size, least_rest=1: (90, size), "each place lies in its tier"),
    (BestFit, "reserved_bytes", property(lambda self: 101), "no more is reserved than there is"),
    (compaction, "pages", lambda tier, figures: 9, "counts the pages in use"),
    (compaction.StoppedLink, "try_start", LinkQueue.try_start, "nothing (starts|runs) that works in a tier"),
]


@pytest.mark.parametrize(("where", "name", "instead", "law"), BROKEN)
def test_an_engine_that_breaks_a_law_is_found(monkeypatch, where, name, instead, law):
    monkeypatch.setattr(where, name, instead)
    with pytest.raises(InvariantError, match=law):
        told()


def test_ranges_that_are_taken_too_early_are_found(monkeypatch):
    monkeypatch.setattr(FixedTier, "_admit_when_free", _at_once)
    with pytest.raises(InvariantError, match="no two live places overlap"):
        told("fixed")


def _at_once(self, head, key, size):
    for item, _ in head.wanted():
        tenancy = self._next(item)
        self._taken[item] += 1
        self._tenancy[item] = tenancy
        self.space.places[item] = (0, self._layout.tenancies[tenancy].size_bytes)
        self.note(item, *self.space.places[item])
    self.used += size
    return True
