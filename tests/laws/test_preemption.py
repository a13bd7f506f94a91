"""Laws of preemption, over random requests in little room; and two stories with exact timelines."""

from __future__ import annotations

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st
from serving_cases import DRAWN, GROUPS, LOADS, MODELS, told, toy, write

import simulator as hosim
from simulator.errors import ConfigError
from simulator.scenario import KvTier
from simulator.workload import Request

WAYS = st.sampled_from(["recompute", "swap"])
ROOM = 18
"""Blocks of 4 tokens that the longest request takes, of 40 and 30 tokens."""
ROOMS = st.tuples(st.integers(ROOM, ROOM + 6), st.integers(1, 40))


@st.composite
def crowds(draw):
    """Requests with long answers, in the order in which they come; they may share prefixes, also of answers."""
    found, now = [], 0
    for _ in range(draw(st.integers(1, 9))):
        now += draw(st.sampled_from([0, 0, 50, 900]))
        prompt = draw(st.integers(1, 40))
        output = draw(st.integers(1, 30))
        tokens = draw(st.integers(0, prompt + output))
        found.append(Request(now, prompt, output, draw(st.integers(0, 2)), tokens))
    return found


def _check(story, replays, requests, rooms):
    """Every request ends with its tokens; each is computed or found once, but for what is computed again."""
    assert story.status == "ok"
    assert [one.made for one in story.served] == [one.output for one in requests]
    computed = sum(work.reading + work.decoding for work in replays.works)
    once = sum(one.prompt + one.output - 1 for one in requests)
    again = sum(one.recomputed for one in story.served)
    assert computed == once + again - sum(sum(one.hit) for one in story.served)
    loaded = sum(sum(tokens) for work in replays.works for _, tokens in work.loads)
    loaded += sum(sum(tokens) for work in replays.works for way, tokens in work.stores if way[1] == "hbm")
    assert loaded >= sum(sum(one.hit[1:]) + one.reloaded for one in story.served)
    for one in story.served:
        assert one.request.arrival_ns <= one.admitted_ns < one.first_ns <= one.end_ns
        assert min(one.recomputed, one.reloaded, one.preempted_ns) >= 0
        assert sum(one.hit) < one.request.prompt
        assert one.preemptions or not (one.recomputed or one.reloaded or one.preempted_ns)
    for ran in story.iterations:
        for name, room in zip(("hbm", "ddr"), rooms, strict=True):
            assert ran[f"used_{name}_blocks"] <= room


@given(crowds(), ROOMS, st.booleans(), st.integers(1, 6), WAYS, LOADS)
def test_a_preempted_request_ends_with_the_same_tokens(requests, rooms, keeps, sequences, way, loads):
    more = {"keeps": keeps, "max_sequences": sequences, "max_tokens": 16, "loads": loads, "preemption": way}
    story, replays = told(requests, rooms, **more)
    _check(story, replays, requests, rooms)


@given(crowds(), ROOMS, GROUPS, WAYS, st.sampled_from([KvTier(), KvTier(content="exclusive"), KvTier(write="through")]))
def test_so_it_does_with_windows_and_however_the_tier_below_keeps_blocks(requests, rooms, groups, way, kept):
    rooms = (rooms[0] * len(groups) + 12, rooms[1])
    story, replays = told(requests, rooms, max_tokens=16, groups=groups, kept=(kept,), preemption=way)
    _check(story, replays, requests, rooms)


@given(crowds(), WAYS)
def test_with_room_for_everything_nobody_is_preempted_and_nothing_changes(requests, way):
    plain, _ = told(requests, (inf, inf), max_tokens=16)
    story, _ = told(requests, (inf, inf), max_tokens=16, preemption=way)
    assert story.requests == plain.requests


@given(crowds(), st.integers(ROOM, ROOM + 6), st.booleans())
def test_swapped_to_room_without_end_only_incomplete_blocks_are_computed_again(requests, room, keeps):
    story, _ = told(requests, (room, inf), keeps=keeps, max_tokens=16, preemption="swap")
    for one in story.served:
        assert one.recomputed <= 3 * one.preemptions


TWO = [Request(0, 8, 8), Request(0, 8, 8)]
"""Two that have two blocks each after 160 ns, and need four; there is room for five."""


def test_the_last_admitted_gives_way_and_computes_again_what_was_dropped():
    """At 160 the first gets the fifth block. Its fourth, at 560, drives out the second one of the other, in LRU order.

    At 860 the other finds its first block, reads 4 tokens of its prompt and its first token again, and goes on.
    """
    story, replays = told(TWO, (5,), preemption="recompute")
    first, other = story.served
    assert (first.preemptions, first.end_ns) == (0, 160 + 7 * 100)
    assert (other.admitted_ns, other.first_ns, other.preemptions, other.preempted_ns) == (0, 160, 1, 700)
    assert (other.recomputed, other.reloaded, other.hit) == (4, 0, [0])
    assert other.end_ns == 860 + 5 * 10 + 6 * 100
    assert [(work.decoding, work.reading) for work in replays.works if work.reading] == [(0, 16), (0, 5)]


def test_swapped_it_is_copied_out_at_once_and_in_again():
    """8 tokens go out beside the first iteration without it, and in beside the token that follows.

    Two blocks that the first leaves go out as well, one for the block that token takes, one for its next block.
    """
    story, replays = told(TWO, (5, inf), preemption="swap")
    first, other = story.served
    assert first.end_ns == 160 + 7 * 100 + 8
    assert (other.recomputed, other.reloaded, other.preempted_ns) == (0, 8, 708)
    assert other.end_ns == 868 + 10 + 8 + 4 + 6 * 100 + 4
    moved = [(dict(work.stores), dict(work.loads)) for work in replays.works if work.stores or work.loads]
    down = ("hbm", "ddr")
    assert moved == [({down: (8,)}, {}), ({down: (4,)}, {"ddr": (8,)}), ({down: (4,)}, {})]


def test_unless_asked_a_request_waits_until_its_whole_length_fits():
    story, _ = told(TWO, (5,))
    assert [(one.admitted_ns, one.preemptions) for one in story.served] == [(0, 0), (780, 0)]


def test_nobody_is_admitted_before_who_was_preempted():
    """Room for six blocks: at 160 + 400 the first needs its fourth. A third, of one token, would fit beside it then.

    It waits behind the one that was interrupted, for which there is room when the first has ended.
    """
    story, _ = told([*TWO, Request(0, 1, 1)], (6,), max_sequences=2, preemption="recompute")
    first, other, third = story.served
    assert (other.preemptions, other.preempted_ns) == (1, first.end_ns - (160 + 4 * 200))
    assert third.admitted_ns == first.end_ns


def test_the_summary_has_what_preemption_took(tmp_path):
    """Room for 7 blocks of 8 tokens: at first several prompts of about 16 fit, and not all their answers."""
    some = DRAWN.replace("output: {mean: 4, spread: 0.5}", "output: {mean: 30}").replace(
        "mean: 40, spread: 0.5", "mean: 24"
    )
    tiers = "hbm: 14 KiB, ddr: 64 KiB"
    for way in ("recompute", "swap"):
        served = hosim.serve(write(tmp_path, f"{some}  preemption: {way}\n", tiers), policies=["static"])
        (row,) = served.rows
        assert row["preemptions"] == served.requests["preemptions"].sum() > 0
        for column in ("preempted_ns", "recomputed_tokens", "reloaded_tokens"):
            assert row[column] == served.requests[column].sum()
        assert row["reloaded_tokens" if way == "swap" else "recomputed_tokens"] > 0
        assert "preemptions" in str(served)
    assert "preemptions" not in str(hosim.serve(write(tmp_path, some, tiers), policies=["static"]))


@pytest.mark.parametrize(
    ("name", "tiers", "said"),
    [
        ("all tokens", "hbm: 32 KiB", "go to a tier below that keeps KV blocks, found none; name one in kv_tiers"),
        (
            "linear",
            "hbm: 32 KiB, ddr: 64 KiB",
            "only KV blocks are swapped, found layers with a state, which has none; say re",
        ),
    ],
)
def test_swapping_without_a_tier_below_and_of_states_is_refused(tmp_path, name, tiers, said):
    path = write(tmp_path, f"{DRAWN}  preemption: swap\n", tiers, workload=toy(MODELS[name]))
    with pytest.raises(ConfigError, match=rf"requests\.preemption: .*{said}"):
        hosim.serve(path)


def test_requests_are_no_longer_than_the_table_of_positions(tmp_path):
    text = toy(f"{MODELS['all tokens']}\n  positions: POSITIONS")
    hosim.serve(write(tmp_path, workload=text.replace("POSITIONS", "4096")), policies=["static"])
    with pytest.raises(ConfigError, match=r"a request is no longer than the table of positions, found .* tokens of 20"):
        hosim.serve(write(tmp_path, workload=text.replace("POSITIONS", "20")), policies=["static"])
