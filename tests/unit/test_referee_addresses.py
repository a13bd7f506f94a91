"""The referee's laws of addresses, each seen broken by an engine that was broken for it."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pytest
from stories import graph, machine, steps

from simulator import engine
from simulator.cost import durations_ns
from simulator.engine.allocators import BestFit, Holes, Ranges
from simulator.engine.reference import compaction
from simulator.engine.reference.rank import Rank
from simulator.engine.reference.rooms import Gate
from simulator.errors import InvariantError
from simulator.hardware import Allocator
from simulator.plan import Plan
from simulator.referee import RankPlan, check_trace
from simulator.trace import Table

TEXT = (
    "compute f; compute g; compute k; detach a hbm; detach c hbm; copy b hbm ddr; copy e hbm ddr; compute m; "
    "compute n; detach b hbm; detach d hbm; detach b ddr; detach e ddr"
)


def told(allocator: str = "best_fit", spoil=lambda trace: trace) -> int:
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
    check_trace(g, h, [RankPlan(plan, None, allocator)], spoil(trace))
    return len(trace.compactions)


def test_the_story_keeps_the_laws():
    assert (told("best_fit"), told("fixed")) == (1, 0)


AWAITED = Rank._awaited_by_copy


def _past_the_gate(self, copy):
    """A link starts a transfer while the tier is compacted."""
    copy.link.gate = Gate()
    return AWAITED(self, copy)


BROKEN = [
    (Holes, "take", lambda self, size, least_rest=1: (0, size), "no two live places overlap"),
    (Holes, "take", lambda self, size, least_rest=1: (90, size), "each place lies in its tier"),
    (BestFit, "reserved_bytes", property(lambda self: 101), "no more is reserved than there is"),
    *((compaction, "pages", lambda *_, n=n: n, "counts the pages in use") for n in (3, 5)),  # of 35 B, at 10 B a page
    (Rank, "_awaited_by_copy", _past_the_gate, "nothing (starts|runs) that works in a tier"),
]


@pytest.mark.parametrize(("where", "name", "instead", "law"), BROKEN)
def test_an_engine_that_breaks_a_law_is_found(monkeypatch, where, name, instead, law):
    monkeypatch.setenv("HOSIM_ENGINE", "simpy")
    monkeypatch.setattr(where, name, instead)
    with pytest.raises(InvariantError, match=law):
        told()


def test_ranges_that_are_taken_too_early_are_found(monkeypatch):
    monkeypatch.setenv("HOSIM_ENGINE", "simpy")
    monkeypatch.setattr(Ranges, "take", _at_once)
    with pytest.raises(InvariantError, match="no two live places overlap"):
        told("fixed")


def _at_once(self, wanted):
    for item, size in wanted:
        self._tenancy[item] = self._layout.of_item[item][0]
        self.places[item] = (0, size)
    return True


def changed(table, row, column, by, kept=slice(None)):
    """A trace in which one number of a table is another one; of its rows only some are kept, in this order."""

    def spoil(trace):
        old = getattr(trace, table)
        rows = np.stack([*old.whole().values()], axis=1)
        rows[row, old.columns.index(column)] += by
        new = Table(old.columns)
        new.append(rows[kept].tobytes())
        return replace(trace, **{table: new})

    return spoil


B, D = 7, 8
"""Rows of the addresses, at the end of the compaction: b is put beside e, which ends at 5 B, and d behind it."""


@pytest.mark.parametrize(
    ("spoil", "law"),
    [
        *((changed("compactions", 0, "start_ns", by), "a compaction takes its price") for by in (-1, 1)),
        (changed("addresses", B, "offset_bytes", -1), "no two live places overlap in addresses"),
        (changed("addresses", B, "offset_bytes", 1, [*range(B), D, B]), "no two live places overlap in addresses"),
        (changed("addresses", D, "offset_bytes", 16), "each place lies in its tier, found 4 at 51 B, 50 B"),
        (changed("compactions", 0, "asked_ns", 1), "a wait for compaction lasts while one is asked for"),
        (changed("addresses", -1, "offset_bytes", 1), "a range is freed where, and as large as, it was taken"),
        (changed("addresses", 1, "time_ns", 1), "each place has one range, as large as it"),
        (changed("compactions", 0, "is_remap", -1), "each place has one range|a compaction takes its price"),
        (changed("addresses", 0, "rank", 0, slice(-1)), "a run ends with the places with which it began"),
    ],
)
def test_a_trace_that_was_tampered_with_is_found(spoil, law):
    with pytest.raises(InvariantError, match=law):
        told(spoil=spoil)


@pytest.mark.parametrize(
    ("gap_ns", "broken"),
    [
        (-1, "compactions come one after another"),
        (0, ""),
        (1, "a wait for compaction lasts while one is asked for"),
    ],
)
def test_a_wait_may_go_on_through_compactions_that_touch(gap_ns, broken):
    def split(trace):
        old = trace.compactions.whole()
        asked, start = int(old["asked_ns"][0]), int(old["start_ns"][0])
        between = asked + 1
        assert between + gap_ns <= start
        first = {"start_ns": between, "end_ns": between, "pages": 0, "is_remap": 0}
        whole = {name: int(values[0]) for name, values in old.items()}
        rows = [[*(whole | first).values()], [*(whole | {"asked_ns": between + gap_ns}).values()]]
        new = Table(trace.compactions.columns)
        new.append(np.array(rows, np.int64).tobytes())
        return replace(trace, compactions=new)

    with pytest.raises(InvariantError, match=broken) if broken else nullcontext():
        told(spoil=split)


def test_offsets_chosen_before_the_run_need_no_compaction():
    def spoil(trace):
        new = Table(trace.compactions.columns)
        new.append(np.array([[0, 0, 1, 1, 1, 0, 0]], np.int64).tobytes())
        return replace(trace, compactions=new)

    with pytest.raises(InvariantError, match="need no compaction"):
        told("fixed", spoil)


def test_ideal_rows_have_no_addresses():
    def spoil(trace):
        new = Table(trace.addresses.columns)
        new.append(np.zeros((1, 6), np.int64).tobytes())
        return replace(trace, addresses=new)

    with pytest.raises(InvariantError, match="only places in an address space have addresses"):
        told("ideal", spoil)
