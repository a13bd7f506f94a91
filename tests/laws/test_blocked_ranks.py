"""Ranks that come to their collectives in any order: they meet, or the run is blocked and says who waits for whom."""

from __future__ import annotations

from examples import examples
from hypothesis import event, given, settings
from hypothesis import strategies as st
from rank_stories import cluster, perform, team


@st.composite
def orders(draw):
    """Ranks, the members of each group, and for each rank the groups in which it meets, in some order, maybe twice."""
    ranks = draw(st.integers(2, 4))
    groups = draw(st.lists(st.sets(st.integers(0, ranks - 1), min_size=2), min_size=1, max_size=4))
    members = [tuple(sorted(group)) for group in groups]
    often = draw(st.integers(1, 2))
    return members, [
        draw(st.permutations([g for g, group in enumerate(members) for _ in range(often) if rank in group]))
        for rank in range(ranks)
    ]


def stuck(members, lines):
    """For each rank that never comes to its end, the group at which it stands and the lowest rank that is missing."""
    at = [0] * len(lines)
    following = lambda rank: lines[rank][at[rank]] if at[rank] < len(lines[rank]) else None  # noqa: E731
    while ready := [g for g, group in enumerate(members) if all(following(rank) == g for rank in group)]:
        for rank in members[ready[0]]:
            at[rank] += 1
    waiting = {rank: following(rank) for rank in range(len(lines)) if following(rank) is not None}
    return {rank: (g, min(r for r in members[g] if following(r) != g)) for rank, g in waiting.items()}


@settings(max_examples=examples(150), deadline=None)
@given(orders(), st.data())
def test_ranks_meet_or_the_run_is_blocked_and_names_who_waits_for_whom(case, data):
    """All collectives of a rank add to one tensor, each group on a stream of its own; the referee judges each trace."""
    members, lines = case
    groups = {f"g{g}": (group,) for g, group in enumerate(members)}
    first_stream = data.draw(st.integers(0, 1))
    programs = []
    for line in lines:
        ops, text = ["f: -> x, 7 ns"], ["compute f"]
        for i, g in enumerate(line):
            ops.append(f"c{i}: x -> x, all_reduce g{g} 20")
            ops.append(f"h{i}: {data.draw(st.sampled_from(['x', 'w', 'w x']))} ->, {data.draw(st.integers(0, 9))} ns")
            text += [f"copy w ddr hbm; compute c{i} {g + first_stream}; compute h{i}; detach w hbm"]
        g = team("x 20, w 10 persistent", *ops, groups=groups)
        programs.append((g, "; ".join(text)))
    hardware = cluster(len(lines), buses=data.draw(st.sampled_from(BUSES)))
    trace = perform(hardware, programs, "w ddr")
    expected = stuck(members, lines)
    event("blocked" if expected else "all meet")
    assert trace.status == ("blocked" if expected else "ok"), trace.blocked
    for rank, (group, missing) in expected.items():
        said = f"waits for rank {missing} to come to the collective of group 'g{group}'"
        assert [s for s in trace.blocked if s.startswith(f"rank {rank}: ") and s.endswith(said)], trace.blocked
    assert {int(s[5]) for s in trace.blocked} == set(expected)


BUSES = ({}, {"pool": {"links": ["h2d"], "bandwidth": "1 GB/s", "scope": "node"}})
