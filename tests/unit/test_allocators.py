"""Address spaces by hand: holes, and the rules of the caching allocator."""

from __future__ import annotations

from random import Random

import pytest

from simulator.engine.allocators import BestFit, CachedSegments, Holes
from simulator.hardware import Allocator
from simulator.hardware.device import Caching

KIB, MIB = 1 << 10, 1 << 20


def test_the_smallest_hole_that_suffices_is_given_out_the_lowest_of_equal_ones():
    holes = Holes(100)
    for size in (20, 5, 10, 5, 10, 5):
        holes.take(size)
    for offset, size in ((0, 20), (25, 10), (40, 10)):
        holes.give(offset, size)
    assert holes.take(8) == (25, 8), "10 bytes are enough, and 25 is below 40"
    assert holes.take(10) == (40, 10)
    assert holes.take(3) == (0, 3), "two bytes were left at 33, and more at 0 than at the end"
    assert holes.take(60) is None
    assert holes.largest == 45


def test_holes_that_touch_are_one():
    holes = Holes(30)
    for _ in range(3):
        holes.take(10)
    holes.give(0, 10)
    holes.give(20, 10)
    assert (holes.largest, holes.span) == (10, 20)
    holes.give(10, 10)
    assert (holes.largest, holes.span) == (30, 0)
    assert holes.take(30) == (0, 30)


def test_several_places_are_taken_together_or_not_at_all():
    space = BestFit(30)
    space.take([(0, 10), (1, 10), (2, 10)])
    space.give(0)
    space.give(2)
    assert not space.take([(3, 10), (4, 5), (5, 6)])
    assert space.places == {1: (10, 10)}
    assert space.is_fragmented([(6, 20)])
    assert not space.is_fragmented([(6, 21)])
    space.compact()
    assert space.places == {1: (0, 10)}
    assert space.take([(6, 20)])


@pytest.mark.parametrize(
    ("size", "block", "segment", "least_rest"),
    [
        (1, 512, 2 * MIB, 512),
        (513, 1024, 2 * MIB, 512),
        (MIB, MIB, 2 * MIB, 512),
        (MIB + 1, MIB + 512, 20 * MIB, MIB + 1),
        (10 * MIB - 512, 10 * MIB - 512, 20 * MIB, MIB + 1),
        (10 * MIB, 10 * MIB, 10 * MIB, MIB + 1),
        (11 * MIB - 1, 11 * MIB, 12 * MIB, MIB + 1),
    ],
)
def test_sizes_are_rounded_as_pytorch_documents_it(size, block, segment, least_rest):
    rules = Caching()
    assert rules.block_bytes(size) == block
    assert rules.segment_bytes(block) == segment
    assert rules.least_rest_bytes(block) == least_rest


def test_blocks_are_cut_from_cached_segments_and_join_again():
    pools = CachedSegments(100 * MIB, Allocator())
    pools.take([(0, 100), (1, 600 * KIB)])
    assert pools.reserved_bytes == 2 * MIB, "one segment for both"
    pools.take([(2, 4 * MIB)])
    assert pools.reserved_bytes == 22 * MIB
    pools.take([(3, 15 * MIB)])
    assert (pools.places[3][1], pools.reserved_bytes) == (16 * MIB, 22 * MIB), "all that is left of the segment"
    pools.give(2)
    assert pools.reserved_bytes == 22 * MIB, "what returns is kept"
    assert pools.take([(4, 4 * MIB)])
    assert pools.reserved_bytes == 22 * MIB, "and given out again"


def test_a_cached_block_is_split_only_if_more_than_a_mebibyte_is_left():
    pools = CachedSegments(100 * MIB, Allocator())
    pools.take([(0, 12 * MIB)])
    pools.give(0)
    pools.take([(1, 11 * MIB)])
    assert pools.places[1][1] == 12 * MIB, "1 MiB would be left: not more"
    pools.give(1)
    pools.take([(2, 11 * MIB - 512)])
    assert pools.places[2][1] == 11 * MIB - 512


def test_segments_without_a_place_are_given_back_before_anything_moves():
    pools = CachedSegments(40 * MIB, Allocator())
    pools.take([(0, 30 * MIB)])
    pools.give(0)
    assert not pools.take([(1, 31 * MIB)])
    assert pools.is_fragmented([(1, 31 * MIB)])
    assert pools.release_cached([(1, 31 * MIB)])
    assert pools.take([(1, 31 * MIB)])
    assert pools.reserved_bytes == 32 * MIB


def test_compaction_puts_the_blocks_of_a_pool_into_one_segment():
    pools = CachedSegments(64 * MIB, Allocator.model_validate({"compaction": {"per_page": "1 us"}}))
    pools.take([(0, 30 * MIB)])
    pools.give(0)
    pools.take([(1, 14 * MIB), (2, 14 * MIB)])
    pools.give(1)
    pools.take([(3, 32 * MIB)])
    pools.give(3)
    pools.take([(4, 14 * MIB)])
    before = pools.reserved_bytes
    assert not pools.release_cached([(5, 36 * MIB)])
    assert pools.is_fragmented([(5, 36 * MIB)])
    pools.compact()
    assert pools.reserved_bytes == 28 * MIB < before
    assert pools.take([(5, 36 * MIB)])


@pytest.mark.parametrize(
    ("figures", "helps"),
    [
        ({"compaction": {"per_page": "1 us"}}, True),
        ({"compaction": {"per_page": "1 us"}, "caching": {"remaps": False}}, False),
        ({}, False),
    ],
)
def test_what_is_in_pieces_asks_for_compaction_only_where_the_framework_remaps(figures, helps):
    pools = CachedSegments(30 * MIB, Allocator.model_validate(figures))
    pools.take([(0, 12 * MIB)])
    pools.give(0)
    pools.take([(1, 2 * MIB)])
    assert pools.reserved_bytes == 12 * MIB, "the block is cut from the segment that was cached"
    assert not pools.take([(2, 20 * MIB)])
    assert pools.is_fragmented([(2, 20 * MIB)]) == helps


def test_a_price_is_per_page_or_per_event():
    with pytest.raises(Exception, match="per_page, or per_event"):
        Allocator.model_validate({"compaction": {"per_page": "1 us", "per_event": "1 ms"}})
    with pytest.raises(Exception, match="greater than 0"):
        Allocator.model_validate({"page": "0 B"})


@pytest.mark.parametrize("seed", [1721, 7419, 9767, *range(20)])
def test_what_fits_once_segments_are_given_back_fits(seed):
    """What was tried may leave no segments behind: the first block would take one that another needs."""
    draw, sizes = Random(seed), [size * MIB for size in (1, 2, 3, 5, 9, 11, 12, 15, 19, 22)]
    space = CachedSegments(draw.choice([24, 32, 48, 64]) * MIB, Allocator())
    for item in range(draw.randint(0, 6)):
        space.take([(item, draw.choice(sizes))])
    for item in list(space.places):
        if draw.random() < 0.6:
            space.give(item)
    wanted = [(100 + number, draw.choice(sizes)) for number in range(draw.randint(1, 3))]
    if not space.take(wanted) and space.release_cached(wanted):
        assert space.take(wanted)
