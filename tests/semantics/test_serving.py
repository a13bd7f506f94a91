"""Serving, step by step: the scheduler's rules with times that can be told by hand."""

from __future__ import annotations

from math import inf

import pytest
from serving_cases import told

from simulator.builders import CachedLayers, Iteration
from simulator.formats import read_requests
from simulator.reach import Reach
from simulator.workload import Request


def test_two_requests_by_hand():
    """A prompt of 10 and then one of 6 while the first decodes; a token decoded takes 100 ns, one that is read 10.

    0 to 100: 10 tokens of request 0. 100 to 200: it decodes; request 1 came at 150 and waits for the next iteration.
    200 to 360: request 0 decodes (100) while 6 tokens of request 1 are read (60). 360 to 560: both decode; both leave.
    """
    story, replays = told([Request(0, 10, 4), Request(150, 6, 2)], (inf,))
    first, second = story.served
    assert (first.admitted_ns, first.first_ns, first.end_ns) == (0, 100, 560)
    assert (second.admitted_ns, second.first_ns, second.end_ns) == (200, 360, 560)
    assert replays.works == [
        Iteration(reading=10, pairs=55, answers=1),
        Iteration(decoding=1, context=10, answers=1),
        Iteration(decoding=1, context=11, reading=6, pairs=21, answers=2),
        Iteration(decoding=2, context=12 + 6, answers=2),
    ]
    assert story.end_ns == 560


def test_a_long_prompt_is_read_in_parts_beside_those_who_decode():
    story, replays = told([Request(0, 4, 3), Request(1, 100, 1)], (inf,), max_sequences=2, max_tokens=40)
    parts = [(work.decoding, work.reading, work.cached, work.answers) for work in replays.works]
    assert parts == [(0, 4, 0, 1), (1, 39, 0, 1), (1, 39, 39, 1), (0, 22, 78, 1)]
    assert replays.works[2].pairs == 39 * 39 + 39 * 40 // 2
    assert story.served[1].first_ns == story.served[1].end_ns == 40 + 490 + 490 + 220


def test_a_request_waits_until_the_blocks_of_its_whole_length_are_free():
    """Room for 5 blocks of 4 tokens; 7 + 5 tokens need 3, so that the second waits until the first has left."""
    story, _ = told([Request(0, 7, 5), Request(0, 7, 5)], (5,))
    first, second = story.served
    assert first.end_ns == 70 + 4 * 100
    assert second.admitted_ns == first.end_ns


def test_who_came_first_is_admitted_first_even_if_a_later_one_would_fit():
    story, _ = told([Request(0, 8, 8), Request(1, 8, 8), Request(2, 1, 1)], (6,))
    assert story.served[1].admitted_ns == story.served[0].end_ns
    assert story.served[2].admitted_ns >= story.served[1].admitted_ns


def test_what_is_in_the_compute_tier_costs_nothing():
    story, replays = told([Request(0, 10, 1, 0, 8), Request(200, 10, 1, 0, 8)], (inf,))
    assert [one.hit for one in story.served] == [[0], [8]]
    assert replays.works == [
        Iteration(reading=10, pairs=55, answers=1),
        Iteration(reading=2, cached=8, pairs=2 * 8 + 3, answers=1),
    ]


def test_the_last_token_of_a_prompt_is_always_computed():
    story, replays = told([Request(0, 8, 1, 0, 8), Request(200, 8, 1, 0, 8)], (inf,))
    assert story.served[1].hit == [4]
    assert replays.works[1].reading == 4


def test_what_is_below_is_copied_in_and_what_leaves_is_stored_once():
    """The compute tier keeps nothing: two full blocks of each are stored; the prefix, found below, not again."""
    story, replays = told([Request(0, 9, 1, 0, 8), Request(500, 9, 1, 0, 8)], (inf, inf), keeps=False)
    assert [one.hit for one in story.served] == [[0, 0], [0, 8]]
    assert replays.works == [
        Iteration(reading=9, pairs=45, answers=1),
        Iteration(stores=((("hbm", "ddr"), (8,)),)),
        Iteration(reading=1, cached=8, pairs=9, answers=1, loads=(("ddr", (8,)),)),
    ]


def test_what_leaves_goes_before_if_there_is_no_room_for_it_beside_what_comes():
    """Room for 4 blocks: three of the second request leave when three of the third are copied in."""
    come = [Request(0, 13, 1, 1, 12), Request(900, 13, 1, 0, 12), Request(901, 13, 1, 1, 12)]
    story, replays = told(come, (4, inf), keeps=False)
    leaving = ((("hbm", "ddr"), (12,)),)
    assert [(work.reading, work.loads, work.stores) for work in replays.works] == [
        (13, (), ()),
        (0, (), leaving),
        (13, (), ()),
        (0, (), leaving),
        (1, (("ddr", (12,)),), ()),
    ]
    assert story.served[2].hit == [0, 12]


def test_the_least_recently_used_block_goes_down_tier_by_tier_and_out():
    """One request after another, of two full blocks and a begun one, in rooms for 3, 2 and 1 blocks.

    The end of a sequence goes first, so that of the third request's prefix the pool has the first block in the end.
    """
    come = [Request(1000 * i, 9, 1, i, 8) for i in range(4)]
    story, replays = told([*come, Request(5000, 9, 1, 0, 8), Request(6000, 9, 1, 2, 8)], (3, 2, 1))
    down, further = ("hbm", "ddr"), ("ddr", "pool")
    every = {down: (8,), further: (8,)}
    assert [dict(work.stores) for work in replays.works] == [{}, {down: (8,)}, every, every, every, every]
    assert [one.hit for one in story.served[4:]] == [[0, 0, 0], [0, 0, 4]]


def test_a_prefix_that_is_being_computed_is_not_found_yet():
    story, _ = told([Request(0, 9, 2, 0, 8), Request(0, 9, 2, 0, 8), Request(1, 9, 2, 0, 8)], (inf,))
    assert [one.hit for one in story.served] == [[0], [0], [8]]


def test_requests_that_come_faster_than_they_are_served_end_the_run():
    story, _ = told([Request(100 * i, 60, 2) for i in range(60)], (inf,), max_sequences=1)
    assert story.status == "overloaded"
    assert story.waiting_at_last == 60 - 9
    assert 5900 <= story.end_ns < 7000


def test_a_crowd_that_comes_at_once_is_served():
    story, _ = told([Request(0, 60, 2) for _ in range(60)], (inf,), max_sequences=1)
    assert story.status == "ok"
    assert all(one.end_ns is not None for one in story.served)


def test_a_few_who_come_together_at_the_end_are_no_overload():
    """More wait than may run together, and fewer than were admitted so far."""
    story, _ = told(
        [*(Request(1000 * i, 60, 2) for i in range(10)), *[Request(9500, 60, 2)] * 3], (inf,), max_sequences=1
    )
    assert (story.status, story.waiting_at_last) == ("ok", 3)


def test_a_block_that_leaves_again_is_the_last_used_where_it_lies():
    """DDR has room for two. A (prefix 0) runs from 1,000 to 1,314 once more; C leaves before it, so D drives out C."""
    come = [Request(0, 5, 1, 0, 4), Request(1000, 5, 3, 0, 4), Request(1001, 5, 1, 1, 4)]
    story, _ = told([*come, Request(2000, 5, 1, 2, 4), Request(3000, 5, 1, 0, 4)], (inf, 2), keeps=False)
    assert story.served[2].end_ns < story.served[1].end_ns
    assert [one.hit for one in story.served] == [[0, 0], [0, 4], [0, 0], [0, 0], [0, 4]]


NEAR = Reach(8)
"""A window of two blocks."""
ALL, WINDOW, STATE = CachedLayers(Reach(), 1), CachedLayers(NEAR, 1), CachedLayers(Reach(block=4), 5)


def test_a_sequence_leaves_the_blocks_that_its_window_has_passed():
    """Of 20 + 12 tokens it reads 20 at once, and holds all 8 blocks; then 3, as 8 tokens may lie in so many.

    With 20 cached the next token sees from token 13 on, in block 3; with 23 from token 16 on, in block 4.
    """
    story, replays = told([Request(0, 20, 12)], (inf,), groups=(WINDOW,))
    held = [ran["held_blocks"] for ran in story.iterations]
    assert held == [8] + [3] * 11
    assert [work.near for work in replays.works[:2]] == [((0, 0, 36 + 12 * 8),), ((7, 0, 0),)]


def test_what_a_window_leaves_makes_room_for_others():
    """Room for 11 blocks: a request of 8 has room beside one that decodes, unless that keeps all tokens."""
    come = [Request(0, 20, 12), Request(210, 20, 12)]
    for groups, admitted in ((WINDOW,), 300), ((ALL,), 200 + 11 * 100):
        story, _ = told(come, (11,), groups=groups)
        assert story.served[1].admitted_ns == admitted


def test_of_layers_with_a_window_the_last_blocks_of_a_prefix_are_found_and_copied():
    """The compute tier keeps nothing; 5 blocks of a prefix are found below, of layers with a window 2 are copied in."""
    come = [Request(0, 21, 1, 0, 20), Request(900, 21, 1, 0, 20)]
    story, replays = told(come, (inf, inf), keeps=False, groups=(ALL, WINDOW))
    assert [one.hit for one in story.served] == [[0, 0], [0, 20]]
    assert [(work.reading, work.loads, work.stores) for work in replays.works] == [
        (21, (), ()),
        (0, (), ((("hbm", "ddr"), (20, 20)),)),
        (1, (("ddr", (20, 8)),), ()),
    ]


@pytest.mark.parametrize(("window", "found"), [(8, 0), (4, 12)])
def test_a_prefix_is_found_where_all_that_the_next_token_sees_is_there(window, found):
    """The first request leaves what its window has passed, then its other blocks, the end first; two are driven out.

    Of a window of 8 tokens block 0 leaves, and then block 2 of the layer that keeps all, so that it has two: but behind
    them a token sees block 0. Of a window of 4 tokens blocks 0 and 1 leave, and behind all three a token sees block 2.
    """
    come = [Request(0, 13, 1, 0, 12), Request(900, 13, 1, 1, 4), Request(2000, 13, 1, 0, 12)]
    plain, _ = told(come, (6,))
    both, _ = told(come, (12,), groups=(ALL, CachedLayers(Reach(window), 1)))
    assert (plain.served[2].hit, both.served[2].hit) == ([8], [found])


def test_nothing_is_found_or_stored_where_a_layer_has_a_state():
    come = [Request(0, 13, 3, 0, 12), Request(900, 13, 3, 0, 12)]
    story, replays = told(come, (inf, inf), keeps=False, groups=(ALL, STATE))
    assert [one.hit for one in story.served] == [[0, 0], [0, 0]]
    assert not any(work.loads or work.stores for work in replays.works)
    assert [work.near for work in replays.works[:2]] == [((1, 0, 3 * 10 + 1),), ((0, 0, 0),)]
    assert [ran["held_blocks"] for ran in story.iterations] == [4 + 1] * 6


def test_a_state_takes_as_much_room_however_long_its_sequence_is():
    """Three sequences of 5 bytes each have no room for a fourth, and those of 1,000 tokens have as much as of 2."""
    for prompt in (1, 999):
        story, _ = told([Request(0, prompt, 2) for _ in range(4)], (4,), groups=(STATE,), max_tokens=4000)
        assert [one.admitted_ns == 0 for one in story.served] == [True] * 3 + [False]


def test_prompts_share_what_their_chains_of_prefixes_have_in_common():
    """Blocks of 4; a system prompt of 8 tokens, then either of two manuals, of which the third request adds a turn.

    Block 3 holds 2 tokens of the manual and 2 of the turn, so that it is the turn's.
    """
    system, manual, other, turn = range(4)
    come = [
        Request(0, 15, 1, manual, 14, ((system, 8),)),
        Request(500, 15, 1, other, 14, ((system, 8),)),
        Request(1000, 24, 1, turn, 20, ((system, 8), (manual, 14))),
        Request(1500, 30, 1, turn, 20, ((system, 8), (manual, 14))),
    ]
    story, _ = told(come, (inf,))
    assert [one.hit for one in story.served] == [[0], [8], [12], [20]]


def test_a_later_turn_finds_the_answer_of_an_earlier_one(tmp_path):
    """Prompts of 9 and 18 tokens; the second begins with the first and its answer of 6, of which 14 are cached.

    So it finds three blocks, of which one is full only with the answer. Who shares the prompt alone finds two.
    """
    path = tmp_path / "turns.csv"
    path.write_text(
        "arrival,prompt,output,prefix,prefix_tokens\n0,9,6,one,15\n1e-6,18,1,one two,15 3\n2e-6,18,1,one,9\n"
    )
    story, replays = told(read_requests(path).requests, (inf,))
    assert [one.hit for one in story.served] == [[0], [12], [8]]
    assert [work.reading for work in replays.works if work.reading] == [9, 6, 10]
    assert [row["hit_fraction"] for row in story.requests] == [0, 12 / 18, 8 / 18]


def test_a_block_of_an_answer_is_found_once_it_is_full_and_not_before():
    """The answer fills the third block with its fourth token, in the third of five iterations, at 90 + 300 ns."""
    first = Request(0, 9, 6, 0, 15)
    for arrival_ns, admitted_ns, found in ((350, 390, 12), (390, 390, 12), (250, 290, 8)):
        late = Request(arrival_ns, 18, 1, 1, 18, above=((0, 15),))
        story, _ = told([first, late], (inf,))
        assert (story.served[1].admitted_ns, story.served[1].hit) == (admitted_ns, [found])
