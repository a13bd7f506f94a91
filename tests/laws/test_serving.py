"""Laws of serving, over random requests and rooms; and of iterations, on a toy machine."""

from __future__ import annotations

from math import inf
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st
from serving_cases import BOX, DRAWN, GROUPS, LOADS, crowds, told, write

import simulator as hosim
from simulator import catalog
from simulator.builders import CachedLayers, Iteration
from simulator.hardware import ServingHost
from simulator.reach import Reach
from simulator.scenario import KvTier
from simulator.serving import drawn, story
from simulator.serving.blocks import Block, Rooms, Tiers, blocks_to_hold
from simulator.serving.replays import Replays
from simulator.workload import Clients, Lengths, Request, Requests

ROOMS = st.tuples(st.integers(12, 30), st.integers(0, 20), st.integers(0, 20))
HOW = st.sampled_from([KvTier(), KvTier(content="exclusive"), KvTier(write="through"), KvTier(write="through", uses=2)])
"""How a tier keeps blocks."""


@given(crowds(), ROOMS, st.booleans(), st.integers(1, 4))
def test_every_token_is_computed_or_found_once_and_times_ascend(requests, rooms, keeps, sequences):
    story, replays = told(requests, rooms, keeps=keeps, max_sequences=sequences, max_tokens=16)
    ended = [one for one in story.served if one.end_ns is not None]
    if story.status == "ok":
        assert len(ended) == len(requests)
        read = sum(work.reading for work in replays.works)
        assert read + sum(sum(one.hit) for one in story.served) == sum(one.prompt for one in requests)
        added = sum(work.decoding for work in replays.works)
        assert added == sum(one.output - 1 for one in requests)
    for one in ended:
        assert one.request.arrival_ns <= one.admitted_ns < one.first_ns <= one.end_ns
        assert sum(one.hit) < one.request.prompt
        assert sum(one.hit) <= one.request.prefix_tokens
    admitted = [one.admitted_ns for one in story.served if one.admitted_ns is not None]
    assert admitted == sorted(admitted)
    loaded = sum(sum(tokens) for work in replays.works for _, tokens in work.loads)
    assert loaded == sum(sum(one.hit[1:]) for one in story.served)


@given(crowds(), ROOMS, st.booleans(), GROUPS)
def test_with_windows_every_token_is_computed_or_found_once_and_rooms_hold(requests, rooms, keeps, groups):
    rooms = tuple(room * len(groups) for room in rooms)
    story, replays = told(requests, rooms, keeps=keeps, max_tokens=16, groups=groups)
    for ran in story.iterations:
        for name, room in zip(("hbm", "ddr", "pool"), rooms, strict=True):
            assert ran[f"used_{name}_blocks"] <= room
    if story.status == "ok":
        read = sum(work.reading for work in replays.works)
        assert read + sum(sum(one.hit) for one in story.served) == sum(one.prompt for one in requests)
    for one in story.served:
        assert sum(one.hit) <= min(one.request.prefix_tokens, one.request.prompt - 1)


@given(crowds(), GROUPS)
def test_with_room_for_everything_windows_find_as_much(requests, groups):
    plain, _ = told(requests, (inf,), max_tokens=16)
    story, _ = told(requests, (inf,), max_tokens=16, groups=groups)
    assert story.requests == plain.requests


@given(st.integers(1, 24), st.integers(0, 9), st.integers(1, 60), st.integers(1, 30), st.integers(2, 20))
def test_what_a_sequence_holds_never_grows_and_has_all_that_it_sees_and_adds(window, sinks, prompt, output, most):
    asked, reach = Requests(file="x.csv", block=4, max_sequences=1, max_tokens=most), Reach(window, sinks)
    request, before, cached = Request(0, prompt, output), inf, 0
    while cached < prompt + output:
        held = blocks_to_hold(reach, cached, request, asked)
        new = min(most, prompt - cached) if cached < prompt else 1
        seen = [*range(min(sinks, cached)), *range(max(0, cached + 1 - window), cached + new)]
        assert {token // 4 for token in seen} <= {*held}
        assert len(held) <= before
        before, cached = len(held), cached + new


@given(crowds(), ROOMS, st.booleans())
def test_no_tier_holds_more_blocks_than_fit_and_nothing_is_held_in_the_end(requests, rooms, keeps):
    story, _ = told(requests, rooms, keeps=keeps, max_tokens=16)
    for ran in story.iterations:
        for name, room in zip(("hbm", "ddr", "pool"), rooms, strict=True):
            assert ran[f"used_{name}_blocks"] <= room
        assert keeps or ran["used_hbm_blocks"] == ran["held_blocks"]
    if story.status == "ok" and story.iterations:
        last = story.iterations[-1]
        assert last["decoding"] or last["prompt_tokens"] or last["held_blocks"] == 0


@given(
    st.lists(
        st.tuples(st.integers(0, 1), st.integers(1, 9), st.sampled_from((True, True, False))), min_size=4, max_size=20
    ),
    st.lists(st.integers(9, 14), min_size=1, max_size=3),
    st.booleans(),
    st.tuples(HOW, HOW),
)
def test_a_run_of_private_blocks_stays_and_leaves_as_its_blocks_one_by_one(released, rooms, keeps, kept):
    groups = tuple(CachedLayers(Reach(window), size) for window, size in ((None, 2), (8, 1)))
    kept = kept[: len(rooms) - 1]
    found = Rooms(("hbm", "ddr", "pool")[: len(rooms)], tuple(2.0 * room for room in rooms), keeps, groups, kept)
    in_run, one_by_one = tiers = [Tiers(found, 1) for _ in range(2)]
    for request, (group, count, is_kept) in enumerate(released):
        first = Block(False, request, 10, group)
        for one in tiers:
            one.admit((), [count * (number == group) for number in range(2)])
        in_run.release(first, count, is_kept=is_kept)
        for number in range(10, 10 - count, -1):
            one_by_one.release(first._replace(number=number), is_kept=is_kept)
        places = [[one.used(tier) for tier in range(len(rooms))] for one in tiers]
        assert places[0] == places[1]
        assert (in_run.stores, in_run.held_bytes) == (one_by_one.stores, one_by_one.held_bytes)
        for runs, single in zip(in_run._cached, one_by_one._cached, strict=True):
            assert [run._replace(number=run.number - i) for run, n in runs.items() for i in range(n)] == [*single]


@given(crowds(), ROOMS, st.booleans())
def test_without_shared_prefixes_nothing_is_found(requests, rooms, keeps):
    alone = [one._replace(prefix_tokens=0) for one in requests]
    story, replays = told(alone, rooms, keeps=keeps, max_tokens=16)
    assert not any(sum(one.hit) for one in story.served)
    assert not any(work.loads for work in replays.works)


@given(crowds(), ROOMS)
def test_more_room_below_never_finds_less_of_the_first_hit(requests, rooms):
    """With room for everything, all that was computed before a request came is found."""
    story, _ = told(requests, (rooms[0], inf), max_tokens=16)
    known = {}
    for one in sorted((one for one in story.served if one.end_ns is not None), key=lambda one: one.admitted_ns):
        before = [tokens for end, tokens in known.get(one.request.prefix, []) if end <= one.admitted_ns]
        whole = max([0, *before])
        shared = min(one.request.prefix_tokens, one.request.prompt - 1, whole) // 4 * 4
        assert sum(one.hit) >= shared
        known.setdefault(one.request.prefix, []).append((one.end_ns, one.request.prefix_tokens))


def _replays(folder, **more):
    return Replays(catalog.resolve(write(folder, **more)), "static", 256_000, exact=True)


MIX = Iteration(decoding=3, context=90, reading=20, cached=40, pairs=1010, answers=4)


def test_with_an_infinite_link_what_is_found_below_costs_as_much_as_what_is_there(tmp_path):
    endless = BOX.replace("bandwidth: 1 GB/s", "bandwidth: inf")
    replays = _replays(tmp_path, box=endless)
    there, below = replays.of(MIX), replays.of(MIX._replace(loads=(("ddr", (40,)),)))
    assert below["took_ns"] == there["took_ns"]
    assert below["moved_h2d_bytes"] == 2 * 40 * 2 * 2 * 16 * 2


def test_stores_without_end_cost_nothing_and_slow_ones_hold_the_iteration_up(tmp_path):
    stores = ((("hbm", "ddr"), (400,)), (("ddr", "pool"), (400,)))
    endless = _replays(tmp_path, box=BOX.replace("bandwidth: 1 GB/s", "bandwidth: inf"))
    assert endless.of(MIX._replace(stores=stores))["took_ns"] == endless.of(MIX)["took_ns"]
    slow = _replays(tmp_path)
    alone, held = slow.of(MIX), slow.of(MIX._replace(stores=stores))
    size = 400 * 2 * 2 * 16 * 2
    moved = {"d2h": 2 * size, "h2d": 0, "h2p": 2 * size, "p2h": 0}
    assert {link: held[f"moved_{link}_bytes"] for link in moved} == moved
    assert held["took_ns"] >= 2 * size > alone["took_ns"]


@pytest.mark.slow
@pytest.mark.parametrize("rate", [1, 2, 8])
def test_a_slower_pool_never_lowers_what_finds_nothing(tmp_path, rate):
    """Prompts share nothing: with links `rate` times as slow no request has its first token sooner."""
    alone = DRAWN.replace("  prefixes: {number: 2, tokens: 24, skew: 1.0}\n", "")
    path = write(tmp_path, requests=alone)
    fast, slow = (
        hosim.serve(path, set={"links.*.bandwidth": f"{speed} MB/s"}, exact=True).requests
        for speed in (1000, 1000 // rate)
    )
    assert (slow["ttft_ns"] >= fast["ttft_ns"]).all()
    assert (slow["hit_ddr_tokens"] == 0).all()


FOUND = MIX._replace(loads=(("ddr", (24,)), ("pool", (16,))))
"""Three blocks and two, in each of two layers; a token of a layer is copied in within 128 ns."""


@pytest.mark.parametrize(
    ("queued", "before_ns"),
    [(0, 40 * 256), (1, 32 * 256), (2, 32 * 256), (3, 20 * 256), (4, 12 * 256), (5, 0), (9, 0)],
)
def test_what_cannot_be_queued_is_waited_for_before_the_first_op(tmp_path, queued, before_ns):
    """Else loads hide; 24 tokens from DDR and 16 from the pool come in turn, layer by layer, each as a whole."""
    free, held = (_replays(tmp_path, requests=text) for text in (DRAWN, f"{DRAWN}  queued_blocks: {queued}\n"))
    at_once, waits = free.of(FOUND), held.of(FOUND)
    assert at_once["stall_ns"] == 0
    assert waits["stall_ns"] == before_ns
    assert waits["took_ns"] == at_once["took_ns"] + before_ns
    assert all(waits[column] == at_once[column] for column in waits if column.startswith("moved_"))
    assert held.of(MIX) == free.of(MIX)


def test_a_runtime_waits_for_what_cannot_be_queued_too(tmp_path):
    free, held = (
        Replays(catalog.resolve(write(tmp_path, requests=text)), "on demand", 256_000, exact=True).of(FOUND)
        for text in (DRAWN, f"{DRAWN}  queued_blocks: 1\n")
    )
    assert all(held[column] == free[column] for column in held if column.startswith("moved_"))
    assert held["wait_transfer_ns"] >= 32 * 256


@given(crowds(), ROOMS, st.booleans(), st.lists(st.integers(1, 39), max_size=3, unique=True))
def test_a_prefix_in_parts_is_shared_as_a_whole_one(requests, rooms, keeps, ends):
    """Each prefix is cut at the same places into a chain: nothing changes."""

    def cut(one):
        parts = [end for end in sorted(ends) if end < one.prefix_tokens]
        name = one.prefix * 8
        return one._replace(prefix=name + len(parts), above=tuple((name + at, end) for at, end in enumerate(parts)))

    whole, _ = told(requests, rooms, keeps=keeps, max_tokens=16)
    parts, _ = told([cut(one) for one in requests], rooms, keeps=keeps, max_tokens=16)
    assert parts.requests == whole.requests
    assert parts.iterations == whole.iterations


class _Watched(Tiers):
    """Tiers that tell what they have before each admission and after each release."""

    seen: list

    def contents(self):
        """The blocks of each tier; of the compute tier those that others may find."""
        runs = (
            [run._replace(number=run.number - i) for run, n in tier.items() for i in range(n)] for tier in self._cached
        )
        first, *below = map(set, runs)
        return [first | self._held.keys(), *below]

    def admit(self, hit, new):
        self.seen.append((self.contents(), hit))
        super().admit(hit, new)

    def release(self, block, count=1, **how):
        super().release(block, count, **how)
        self.seen.append((self.contents(), ()))


def _watched(requests, rooms, **more):
    _Watched.seen = seen = []
    with patch.object(story, "Tiers", _Watched):
        return *told(requests, rooms, max_tokens=16, **more), seen


@given(crowds(), ROOMS, st.booleans(), st.tuples(HOW, HOW), LOADS, GROUPS)
def test_however_tiers_keep_blocks_tokens_and_rooms_are_kept(requests, rooms, keeps, kept, loads, groups):
    """Every token is computed or found once; what is copied in is what was found below; nobody holds too much."""
    rooms = tuple(room * len(groups) for room in rooms)
    row, replays, seen = _watched(requests, rooms, keeps=keeps, kept=kept, loads=loads, groups=groups)
    for ran in row.iterations:
        for name, room in zip(("hbm", "ddr", "pool"), rooms, strict=True):
            assert ran[f"used_{name}_blocks"] <= room
    if row.status != "ok":
        return
    read = sum(work.reading for work in replays.works)
    assert read + sum(sum(one.hit) for one in row.served) == sum(one.prompt for one in requests)
    assert sum(work.decoding for work in replays.works) == sum(one.output - 1 for one in requests)
    below = 0
    for contents, hit in seen:
        assert all(any(block in tier for tier in contents) for block in hit)
        below += 4 * sum(block not in contents[0] for block in hit)
    ways = [*((tier, tokens) for work in replays.works for tier, tokens in work.loads)]
    ways += [(way[0], tokens) for work in replays.works for way, tokens in work.stores if way[1] == "hbm"]
    assert sum(sum(tokens) for _, tokens in ways) == below
    assert not (loads == "before_admission" and any(work.loads for work in replays.works))


@given(crowds(), ROOMS, st.booleans(), st.tuples(HOW, HOW))
def test_no_block_of_an_exclusive_tier_is_in_a_tier_above(requests, rooms, keeps, kept):
    for contents, _ in _watched(requests, rooms, keeps=keeps, kept=kept)[2]:
        for tier, how in enumerate(kept, 1):
            if how.content == "exclusive":
                assert all(contents[tier].isdisjoint(above) for above in contents[:tier])


@given(crowds(), st.integers(12, 30), st.booleans(), GROUPS, LOADS)
def test_a_tier_written_through_with_room_for_all_has_whatever_is_above(requests, room, keeps, groups, loads):
    """Of two such tiers the second has whatever is in the first; each block is stored once in each."""
    rooms, kept = (room * len(groups), inf, inf), (KvTier(write="through"),) * 2
    row, replays, seen = _watched(requests, rooms, keeps=keeps, kept=kept, groups=groups, loads=loads)
    for (first, second, third), _ in seen:
        assert first <= second <= third
    stored = {}
    for work in replays.works:
        for way, tokens in work.stores:
            stored[way] = stored.get(way, 0) + sum(tokens)
    if row.status == "ok" and seen:
        assert stored.get(("hbm", "ddr"), 0) == stored.get(("ddr", "pool"), 0) == 4 * len(seen[-1][0][1])


@given(crowds(), ROOMS, st.booleans(), st.tuples(HOW, HOW))
def test_requests_that_come_one_at_a_time_find_the_same_whenever_loads_end(requests, rooms, keeps, kept):
    """Once it is admitted, one that was loaded before takes no longer than one that is loaded by layer."""
    apart = [one._replace(arrival_ns=100_000 * i) for i, one in enumerate(requests)]
    by_layer, _ = told(apart, rooms, keeps=keeps, kept=kept, max_tokens=16)
    before, _ = told(apart, rooms, keeps=keeps, kept=kept, max_tokens=16, loads="before_admission")
    assert [one.hit for one in before.served] == [one.hit for one in by_layer.served]
    for one, other in zip(before.served, by_layer.served, strict=True):
        if one.end_ns is not None and other.end_ns is not None:
            assert one.first_ns - one.admitted_ns <= other.first_ns - other.admitted_ns


@st.composite
def talks(draw):
    """Clients, and the requests that they send."""
    number, rounds = draw(st.integers(1, 5)), draw(st.integers(1, 4))
    more = {"think_ns": draw(st.sampled_from([0, 7, 500])), "barrier": draw(st.booleans())} if rounds > 1 else {}
    more |= {"order": draw(st.sampled_from(["first", "random"]))}
    clients = Clients.model_construct(
        number=number, rounds=rounds, in_flight=draw(st.none() | st.integers(1, number)), **more
    )
    lengths = {
        name: Lengths(mean=draw(st.integers(1, most)), spread=0.8) for name, most in (("prompt", 12), ("output", 5))
    }
    return clients, drawn(Requests.model_construct(clients=clients, **lengths), draw(st.integers(0, 9)))


@given(talks(), st.booleans(), LOADS, st.tuples(HOW, HOW))
def test_clients_send_in_turn_and_with_room_find_all_that_was_said(talk, keeps, loads, kept):
    clients, requests = talk
    row, _ = told(requests, (inf, inf, inf), keeps=keeps, loads=loads, kept=kept, clients=clients, max_tokens=16)
    served, most = row.served, clients.in_flight or clients.number
    assert row.status == "ok"
    assert all(one.made == one.request.output for one in served)
    for one in served:
        at_once = [other for other in served if other.request.arrival_ns <= one.request.arrival_ns < other.end_ns]
        assert len(at_once) <= most
        if one.number >= clients.number:
            before = served[one.number - clients.number]
            first = one.number // clients.number * clients.number
            awaited = served[first - clients.number : first] if clients.barrier else [before]
            thought_ns = max(other.end_ns for other in awaited) + clients.think_ns
            assert one.request.arrival_ns >= thought_ns
            until = [other for other in served if other.request.arrival_ns < one.request.arrival_ns <= other.end_ns]
            assert one.request.arrival_ns == thought_ns or len(until) == most
            assert one.request.prompt > before.request.prompt + before.request.output
            said = (before.request.prompt + before.request.output - 1) // 4 * 4
            if keeps or kept[0].uses == 1:
                assert sum(one.hit) == said
    assert max(one.request.arrival_ns for one in served) <= row.end_ns


@given(crowds(), st.integers(0, 40), st.integers(0, 40))
def test_an_engine_ahead_is_never_behind_one_that_waits_and_costs_add_up(requests, iteration, request):
    """With one sequence at a time the same iterations run: a host that waits adds its costs, one ahead no more."""
    costs = {"iteration_ns": iteration, "request_ns": request}
    free, waits, ahead = (
        told(requests, (inf,), max_tokens=16, max_sequences=1, engine=ServingHost.model_construct(**each))[0]
        for each in ({}, costs, {**costs, "ahead": True})
    )
    if "overloaded" in (free.status, waits.status, ahead.status):
        return
    assert sum(ran["wait_host_ns"] for ran in waits.iterations) == iteration * len(waits.iterations) + request * len(
        requests
    )
    for one, later, sooner in zip(free.served, waits.served, ahead.served, strict=True):
        assert one.end_ns <= sooner.end_ns <= later.end_ns
