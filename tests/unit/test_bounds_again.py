"""Bounds of plans that run ops again, worked out by hand: a byte takes a nanosecond."""

from __future__ import annotations

from dataclasses import replace

import pytest
from bounding import bound
from stories import graph, machine

from simulator.bounds import Bound
from simulator.cost import durations_ns
from simulator.graph import Graph
from simulator.plan import NOWHERE

KIND = "room or recompute at h"
COMPUTE = 50 + 700 + 10 + 20


def saved(workspace: int) -> Graph:
    """Of a and b, so many bytes have no room beside h in 800 B; to make a again takes 50 ns, b 700 ns."""
    h = f"h: ->, 10 ns, workspace {workspace}"
    return graph("a 400, b 400", "f: -> a, 50 ns", "g: -> b, 700 ns", h, "m: a b ->, 20 ns")


def again(g: Graph, **links: dict[str, str]) -> Bound:
    hardware = machine(**links)
    return bound(g, hardware, durations_ns(g, hardware), [NOWHERE] * len(g.tensors), 800, may_repeat=True)


def rounded_down(ns: float) -> int:
    return int(ns * (1 - 1e-9)) - 2


def test_what_is_cheap_to_make_again_is_not_copied():
    """Of a, all but 44 B is made again while these come in: t = 400 - 400 t / 50."""
    assert again(saved(400)).terms[KIND] == rounded_down(COMPUTE + 400 / 9)


@pytest.mark.parametrize("workspace", [600, 800])
def test_what_is_dear_to_make_again_is_copied_in_part(workspace: int):
    """All of a is made again, and of b what takes as long to make as the rest to come: t = x - 400 - (t - 50) 4 / 7."""
    ns = (workspace - 400 + 50 * 4 / 7) * 7 / 11
    assert again(saved(workspace)).terms[KIND] == rounded_down(COMPUTE + ns)


def test_what_leaves_slowly_is_made_again_for_longer():
    """b's byte takes 1.75 ns to make and 9 ns to leave; at least 750 ns are there for leaving: of 200 B, 83 leave."""
    g, slow = saved(600), {"bandwidth": "0.1111111111 GB/s"}
    kept = 750 * 0.1111111111
    assert again(g, d2h=slow).terms[KIND] == rounded_down(COMPUTE + 50 + (200 - kept) * 7 / 4)


def test_what_may_not_run_again_is_copied():
    """a is copied, or b made again: t = 400 - 4 t / 7."""
    g = saved(400)
    once = replace(g, ops=(replace(g.ops[0], repeatable=False), *g.ops[1:]))
    assert again(once).terms[KIND] == rounded_down(COMPUTE + 400 * 7 / 11)


def test_what_takes_no_time_is_made_again_for_nothing():
    g = saved(400)
    assert again(replace(g, ops=(replace(g.ops[0], duration_ns=0), *g.ops[1:]))).kind == "compute"


def test_where_links_are_quick_nothing_runs_again():
    quick = {"bandwidth": "inf"}
    assert again(saved(800), h2d=quick, d2h=quick).kind == "compute"
