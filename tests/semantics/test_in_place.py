"""Reads in place: an op loads a tensor over a link, without a copy (rules 3, 5 and 10)."""

from __future__ import annotations

from dataclasses import replace

from stories import graph, machine, play, timeline, waits

LOADS = {"loads": "1 GB/s"}


def marked(g, *names):
    """The graph, which allows to read these in place."""
    return replace(g, in_place=frozenset(i for i, t in enumerate(g.tensors) if t.name in names))


def loads(trace):
    """What was loaded: ``"0-40 op 0 40 B"``."""
    rows = trace.loads.whole()
    return [f"{s}-{e} op {op} {b} B" for op, b, s, e in zip(*(rows[c].tolist() for c in ("op", "size_bytes", "start_ns", "end_ns")), strict=True)]


def test_3_an_op_reads_over_the_link_what_it_may_read_in_place_and_takes_no_room_for_it():
    g, h = marked(graph("w 400 persistent", "f: w ->, 10 ns"), "w"), machine("100 B", h2d=LOADS)
    t = play(h, g, "compute f", "w ddr")
    assert timeline(t, g, h) == ["0-400 f"]
    assert loads(t) == ["0-400 op 0 400 B"]
