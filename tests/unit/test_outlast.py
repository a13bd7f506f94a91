"""When an iteration ends whose stores take longer than its ops, by hand."""

from __future__ import annotations

from collections import Counter
from math import inf

from hypothesis import given
from hypothesis import strategies as st
from serving_cases import Told, told

from simulator.serving.replays import Replayed, Stored
from simulator.serving.scheduler import Tiers
from simulator.workload import Request

DOWN = ("hbm", "ddr")
FOUR = Replayed(
    "ok",
    ns=40,
    drain_ns=25,
    moved_bytes={"d2h": 40, "h2d": 3},
    stores=tuple(Stored(DOWN, 5, start, start + 10, (("d2h", 10),)) for start in (0, 10, 20, 30)),
)
"""Four layers of 5 tokens are stored in turn, 10 ns each; the last op ends after 15 ns."""


class Slow(Told):
    """The same; a store takes 50 ns for a token of a layer, of which there are two, one after another."""

    layers = 2

    def of(self, work):
        done, now, stores = super().of(work), 0, []
        for layer in range(self.layers):
            for way, tokens in work.stored(self.layers, layer).items():
                stores.append(Stored(way, tokens, now, now + 50 * tokens, (("-".join(way), tokens),)))
                now += 50 * tokens
        moved = Counter[str]()
        for one in stores:
            moved.update(dict(one.moved_bytes))
        ns = max(done.ns, now)
        return Replayed("ok", ns, drain_ns=ns - done.ns, moved_bytes=dict(moved), stores=tuple(stores))


def test_what_has_begun_is_waited_for_and_the_rest_is_left() -> None:
    done, left = FOUR.until(15)
    assert (FOUR.ops_ns, done.ns, done.drain_ns, done.ops_ns) == (15, 20, 5, 15)
    assert done.moved_bytes == {"d2h": 20, "h2d": 3}
    assert left == {DOWN: 10}


def test_a_store_that_would_begin_as_the_last_op_ends_has_not_begun() -> None:
    done, left = FOUR.until(20)
    assert (done.ns, left) == (20, {DOWN: 10})
    assert FOUR.until(31) == (FOUR, {})


def test_stores_outlast_iterations_until_they_have_ended() -> None:
    """A request leaves after 130 ns with two full blocks; the other one adds a token each 100 ns.

    Its 8 tokens take 400 ns a layer: the first layer is waited for. Of the 8 of the second 4 go in the next iteration
    (200 ns a layer by then), then 2, and the last 2 in 100 ns.
    """
    story, replays = told([Request(0, 9, 1), Request(0, 4, 7)], (inf, inf), keeps=False, replays=Slow())
    assert [dict(work.left).get(DOWN, 0) for work in replays.works][:6] == [0, 0, 8, 4, 2, 0]
    assert [ran.replayed.ns for ran in story.ran][:6] == [130, 400, 200, 100, 100, 100]


def test_they_do_not_where_their_room_is_needed_or_where_what_they_store_is_read() -> None:
    tiers = Tiers(("hbm", "ddr"), (5, 9), keeps=False)
    tiers.admit([], list(range(3)))  # type: ignore[arg-type]
    assert not tiers.needs({DOWN: 2}, [])
    assert tiers.needs({DOWN: 3}, []), "three are held, and there is room for five"
    assert tiers.needs({DOWN: 2}, ["ddr"])
    assert not tiers.needs({DOWN: 2}, ["pool"])
    assert not tiers.needs({}, ["ddr"])


def test_who_comes_does_not_wait_for_the_stores_of_an_idle_machine() -> None:
    """8 tokens are stored in 400 ns a layer from 90 on; at 300 the first layer is under way, and ends at 490."""
    story, replays = told([Request(0, 9, 1), Request(300, 4, 1)], (inf, inf), keeps=False, replays=Slow())
    assert story.served[1].admitted_ns == 490
    assert dict(replays.works[2].left) == {DOWN: 8}


@given(
    st.lists(st.tuples(st.integers(0, 900), st.integers(1, 40), st.integers(1, 6), st.integers(0, 1)), max_size=9),
    st.tuples(st.integers(12, 30), st.integers(0, 20), st.integers(0, 20)),
    st.booleans(),
)
def test_every_block_is_stored_once_and_nothing_is_left_in_the_end(come, rooms, keeps) -> None:
    requests = [Request(at, prompt, out, which, prompt) for at, prompt, out, which in sorted(come)]
    if not requests:
        return
    story, replays = told(requests, rooms, keeps=keeps, max_tokens=16, replays=Slow())
    wanted, moved = Counter(), Counter()
    for work in replays.works:
        for way, tokens in work.stores:
            wanted["-".join(way)] += 2 * tokens
    for ran in story.ran:
        moved.update(ran.replayed.moved_bytes)
        assert 0 <= ran.replayed.drain_ns <= ran.replayed.ns
    assert story.status == "ok"
    assert not story.left
    assert +moved == wanted
