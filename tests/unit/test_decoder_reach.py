"""Which tokens are seen: closed forms against counting one by one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.builders.cache import Store
from simulator.reach import Reach, TokenSpan
from simulator.workload import Compress, Select

SPANS = st.builds(TokenSpan, st.integers(0, 200), st.integers(1, 60))


def ends(span: TokenSpan) -> range:
    return range(span.cached + 1, span.length + 1)


@given(SPANS, st.none() | st.integers(1, 90))
def test_pairs_within_reach(span: TokenSpan, most: int | None) -> None:
    assert Reach(most).pairs(span) == sum(min(t, most or t) for t in ends(span))


@given(SPANS, st.integers(1, 8), st.integers(1, 6))
def test_pairs_with_compressed_tokens(span: TokenSpan, stride: int, times: int) -> None:
    about = Compress(block=stride * times, stride=stride)
    complete = [sum(i * stride + about.block <= t for i in range(t)) for t in ends(span)]
    assert span.sum(about.seen) == sum(complete)
    assert about.number(span.length) == complete[-1]


@given(SPANS, st.integers(1, 16), st.integers(4, 9))
def test_pairs_with_selected_blocks(span: TokenSpan, block: int, top: int) -> None:
    """The last of the blocks is the token's own, up to the token; any others are whole."""
    about = Select(block=block, top=top)

    def seen(t: int) -> int:
        blocks = [min(block, t - start) for start in range(0, t, block)]
        return sum(blocks[-top:])

    assert span.sum(about.seen) == sum(map(seen, ends(span)))


@pytest.mark.parametrize(("context", "printed"), [(8192, 2048), (16384, 2560), (32768, 3584), (65536, 5632)])
def test_a_decoded_token_reads_as_much_as_the_paper_prints(context: int, printed: int) -> None:
    """NSA, arXiv 2502.11089, table 4: compressed, selected and near tokens; 2 fewer are complete."""
    span = TokenSpan(context - 1, 1)
    read = Compress(block=32, stride=16).number(context) + span.sum(Select(block=64, top=16).seen)
    assert read + Reach(512).pairs(span) == pytest.approx(printed, rel=0.001)


def test_a_store_finds_the_tensors_of_a_range() -> None:
    store = Store()
    for stop, names in ((4, ["a0", "a1"]), (8, []), (12, ["c0", "c1"])):
        store.add(stop, names)
    assert store.of(0, 12) == ["a0", "a1", "c0", "c1"]
    assert store.of(3, 9, 1) == ["a1", "c1"]
    assert store.of(4, 8) == store.of(9, 9) == []
    assert store.of(8, 9) == ["c0", "c1"]
