"""How tiers keep blocks, when loads end, who sends requests, and what the engine's host costs: stories by hand.

A token that is decoded takes 100 ns, one that is read 10, one that is copied in or stored 1; blocks have 4 tokens.
"""

from __future__ import annotations

from math import inf

import pytest
from serving_cases import BOX, told, write

import simulator as hosim
from simulator import catalog
from simulator.builders import CachedLayers, Iteration, Iterations
from simulator.hardware import ServingHost
from simulator.reach import Reach
from simulator.scenario import KvTier
from simulator.serving import drawn
from simulator.serving.blocks import Block, Rooms, Tiers
from simulator.serving.replays import Replays
from simulator.workload import Clients, Lengths, Prefixes, Request, Requests

BACK, THROUGH, TWICE = KvTier(), KvTier(write="through"), KvTier(write="through", uses=2)
EXCLUSIVE = KvTier(content="exclusive")
H2D = "{source: ddr, target: hbm"
DOWN, FURTHER, UP = ("hbm", "ddr"), ("ddr", "pool"), ("ddr", "hbm")


def _alone(*prefixes, output=1):
    """Requests of two full blocks and a begun one, one after another."""
    return [Request(1000 * i, 9, output, prefix, 8) for i, prefix in enumerate(prefixes)]


def _moved(replays):
    """Stores, and tokens copied in, of each iteration that has any."""
    works = ((dict(work.stores), dict(work.loads)) for work in replays.works)
    return [copied for copied in works if any(copied)]


def test_written_back_and_inclusive_a_block_is_stored_when_it_leaves_and_once():
    """Room for one sequence: 0 leaves for 1, 1 for 0, which stays in DDR, so that nothing is stored for the last.

    Two blocks that leave have no room beside two that come, so that they leave before.
    """
    _, replays = told(_alone(0, 1, 0, 1), (3, inf))
    down, up = {DOWN: (8,)}, {"ddr": (8,)}
    assert _moved(replays) == [(down, {}), (down, {}), ({}, up), ({}, up)]


def test_written_through_a_block_is_stored_by_the_next_iteration_and_nothing_when_it_leaves():
    """Each of the first two is stored after the iteration that computes it, while nothing else runs."""
    story, replays = told(_alone(0, 1, 0, 1), (3, inf), kept=(THROUGH,))
    down, up = ({DOWN: (8,)}, {}), ({}, {"ddr": (8,)})
    assert _moved(replays) == [down, down, up, up]
    stored = [ran for ran in story.iterations if ran["moved_d2h_bytes"]]
    assert [(ran["start_ns"], ran["used_hbm_blocks"], ran["used_ddr_blocks"]) for ran in stored] == [
        (90, 2, 2),
        (1090, 2, 4),
    ]


def test_written_through_blocks_of_an_answer_are_stored_as_they_fill():
    """9 + 5 tokens: the third block is full when its fourth token is cached, in the third of four iterations."""
    _, replays = told(_alone(0, output=5), (inf, inf), kept=(THROUGH,))
    assert [(work.decoding, dict(work.stores)) for work in replays.works] == [
        (0, {}),
        (1, {DOWN: (8,)}),
        (1, {}),
        (1, {}),
        (1, {DOWN: (4,)}),
    ]


def test_written_through_a_block_that_two_compute_at_once_is_stored_once():
    _, replays = told([Request(0, 9, 1, 0, 8)] * 2, (inf, inf), kept=(THROUGH,))
    assert _moved(replays) == [({DOWN: (8,)}, {})]


def test_of_what_is_written_through_the_beginning_of_a_sequence_is_dropped_last():
    """Blocks are stored first to last; once their sequence has left, the last of them goes for another."""
    tiers = Tiers(Rooms(("hbm", "ddr"), (inf, 12.0), True, (CachedLayers(Reach(), 1),), (THROUGH,)), 4)
    blocks = [Block(True, 0, place) for place in range(3)]
    tiers.admit((), [4])
    for block in blocks:
        tiers.share_computed(block)
        tiers.use(block)
    for block in reversed(blocks):
        tiers.release(block, is_kept=True)
    tiers.use(Block(False, 1, 0))
    assert [*tiers._cached[1]] == [blocks[1], blocks[0], Block(False, 1, 0)]


def test_of_two_tiers_written_through_both_get_a_block_at_once_and_of_one_written_back_who_leaves():
    _, both = told(_alone(0, 1), (inf, inf, inf), kept=(THROUGH, THROUGH))
    assert _moved(both) == [({DOWN: (8,), FURTHER: (8,)}, {})] * 2
    _, ahead = told(_alone(0, 1, 2), (3, inf, inf), kept=(BACK, THROUGH))
    assert _moved(ahead) == [({DOWN: (8,), FURTHER: (8,)}, {})] * 2
    _, behind = told(_alone(0, 1), (inf, 2, inf), kept=(THROUGH, BACK))
    assert _moved(behind) == [({DOWN: (8,)}, {}), ({DOWN: (8,), FURTHER: (8,)}, {})]


def test_on_its_second_use_a_block_is_stored_and_what_left_before_is_lost():
    story, replays = told(_alone(0, 0, 1, 0, 1), (3, inf), kept=(TWICE,))
    assert [one.hit for one in story.served] == [[0, 0], [8, 0], [0, 0], [0, 8], [0, 0]]
    down = {DOWN: (8,)}
    assert _moved(replays) == [(down, {}), ({}, {"ddr": (8,)}), (down, {})]


def test_what_a_tier_written_through_has_dropped_is_not_stored_when_it_leaves():
    """In DDR the two blocks of 1 drive out those of 0, which leave the compute tier for 2, and are lost."""
    story, replays = told(_alone(0, 1, 2, 0), (5, 2), kept=(THROUGH,))
    assert story.served[3].hit == [0, 0]
    assert _moved(replays) == [({DOWN: (8,)}, {})] * 4
    assert told(_alone(0, 1, 2, 0), (5, 2))[0].served[3].hit == [0, 8]


def test_what_a_tier_written_through_has_dropped_is_stored_again_when_it_is_found():
    story, replays = told(_alone(0, 1, 0), (5, 2), kept=(THROUGH,))
    assert story.served[2].hit == [8, 0]
    assert _moved(replays) == [({DOWN: (8,)}, {})] * 3


def test_from_an_exclusive_tier_a_block_moves_and_is_stored_again():
    story, replays = told(_alone(0, 1, 0, 1), (3, inf), kept=(EXCLUSIVE,))
    down, up = ({DOWN: (8,)}, {}), ({}, {"ddr": (8,)})
    assert _moved(replays) == [down, down, up, down, up]
    assert [ran["used_ddr_blocks"] for ran in story.iterations] == [0, 2, 2, 2, 2, 2]
    inclusive, _ = told(_alone(0, 1, 0, 1), (3, inf))
    assert [ran["used_ddr_blocks"] for ran in inclusive.iterations] == [0, 2, 4, 4, 4]


def test_what_is_computed_again_leaves_an_exclusive_tier():
    """Prompts of two blocks find their first one alone; the second, in DDR as well, is computed again and so moves."""
    come = [one._replace(prompt=8) for one in _alone(0, 1, 0, 2)]
    exclusive, moves = told(come, (3, inf), kept=(EXCLUSIVE,))
    inclusive, stays = told(come, (3, inf))
    assert exclusive.served[2].hit == inclusive.served[2].hit == [0, 4]
    assert exclusive.iterations[-1]["used_ddr_blocks"] == inclusive.iterations[-1]["used_ddr_blocks"] == 4
    assert [stores for stores, _ in _moved(moves)] == [{DOWN: (8,)}, {DOWN: (8,)}, {DOWN: (8,)}]
    assert [stores for stores, _ in _moved(stays)] == [{DOWN: (8,)}, {DOWN: (8,)}]


# loads


def test_a_request_waits_for_its_blocks_and_others_go_on():
    """The third request finds 8 tokens in DDR at 2,000, when the second decodes; the load takes 8 ns, of itself."""
    come = [Request(0, 9, 1, 0, 8), Request(1500, 3, 9), Request(2000, 9, 2, 0, 8)]
    story, replays = told(come, (inf, inf), keeps=False, loads="before_admission")
    third = story.served[2]
    begin = next(ran["start_ns"] for ran in story.iterations if ran["start_ns"] >= 2000)
    assert (third.hit, third.admitted_ns) == ([0, 8], begin + 8)
    assert third.first_ns == begin + 100 + 100 + 10  # beside one iteration of the other, and in the next
    assert not any(work.loads for work in replays.works)
    assert [took["moved_d2h_bytes"] for took in story.loads] == [8]


def test_loads_before_admission_take_turns_and_who_needs_the_same_waits():
    """Both of prefix 0 need the first load, 8 ns; that of prefix 1 is behind it; who finds nothing does not wait."""
    known = [Request(0, 9, 1, 0, 8), Request(0, 9, 1, 1, 8)]
    later = [Request(1000, 9, 1, 0, 8), Request(1000, 9, 1, 1, 8), Request(1000, 9, 1, 0, 8), Request(1000, 9, 1)]
    story, replays = told([*known, *later], (inf, inf), keeps=False, loads="before_admission")
    assert [one.admitted_ns for one in story.served[2:]] == [1008, 1016, 1008, 1000]
    assert [one.first_ns for one in story.served[2:]] == [1090 + 30 + 8] * 3 + [1090]  # the last leaves two blocks
    assert [work.reading for work in replays.works if work.reading] == [18, 9, 3]


def test_what_was_loaded_and_stayed_is_not_waited_for():
    story, _ = told(_alone(0, 1, 0, 0), (3, inf), loads="before_admission")
    assert [one.hit for one in story.served[2:]] == [[0, 8], [8, 0]]
    assert [one.admitted_ns for one in story.served] == [0, 1000, 2008, 3000]


def test_a_load_before_an_admission_takes_its_room_from_the_cache_and_as_long_as_its_links(tmp_path):
    """4,000 tokens of 256 B at 1 B/ns, up from DDR, while the cache has all but 0.1 MB of the 4 MB."""
    took = Replays(catalog.resolve(write(tmp_path)), "static", 3_900_000).of(Iteration(stores=((UP, (4000,)),)))
    assert (took["status"], took["took_ns"], took["moved_h2d_bytes"]) == ("ok", 4000 * 256, 4000 * 256)


LOADED = Iteration(reading=8, cached=48, pairs=8 * 48 + 36, answers=1, loads=(("ddr", (48,)),))
"""The second of two prompts of 56 tokens, of which it finds 48 in DDR."""
LAYER_NS = 48 * 2 * 2 * 16 * 2
"""What they take in a layer: keys and values of two heads of 16 elements of 2 B, at 1 B/ns."""


@pytest.mark.parametrize("rate", [1, 8, 64])
def test_by_layer_both_pipelines_overlap_and_before_admission_they_add(rate, tmp_path):
    """A layer's attention waits for its tokens, which come one layer after another: a maximum at each layer."""
    (tmp_path / "some.csv").write_text("arrival,prompt,output,prefix,prefix_tokens\n0,56,1,0,48\n1,56,1,0,48\n")
    box = BOX.replace("h2d: {source: ddr, target: hbm, bandwidth: 1 GB/s}", f"h2d: {H2D}, bandwidth: {rate} GB/s}}")
    filed = "  file: some.csv\n  block: 8\n  max_sequences: 4\n  max_tokens: 64\n"
    asked = {"kv_tiers": "ddr: null", "box": box}
    layered = hosim.serve(write(tmp_path, filed, **asked), policies=["static"], exact=True)
    graph = Iterations(layered.loaded[0].workload).graph(LOADED, 1)
    computed_ns = there_ns = alone_ns = 0
    for op in graph.ops:
        took_ns = max(-(-op.flops // 1000), -(-(op.read_bytes + op.write_bytes) // 10))
        if op.name.endswith("attn.core"):
            there_ns += LAYER_NS // rate
            computed_ns = max(computed_ns, there_ns)
        computed_ns, alone_ns = computed_ns + took_ns, alone_ns + took_ns
    assert layered.requests["ttft_ns"][1] == computed_ns
    before = hosim.serve(
        write(tmp_path, f"{filed}  loads: before_admission\n", **asked), policies=["static"], exact=True
    )
    assert before.requests["ttft_ns"][1] == 2 * LAYER_NS // rate + alone_ns
    assert before.requests["hit_ddr_tokens"][1] == layered.requests["hit_ddr_tokens"][1] == 48
    assert before.rows[0]["moved_h2d_bytes"] == layered.rows[0]["moved_h2d_bytes"] == 2 * LAYER_NS


# clients


def _conversations(clients, prompts, outputs):
    asked = Requests.model_construct(clients=clients, prompt=Lengths(mean=1), output=Lengths(mean=1))
    rounds = drawn(asked, 0)
    whole = {}
    for index, (request, new, output) in enumerate(zip(rounds, prompts, outputs, strict=True)):
        before = whole.get(index - clients.number)
        prompt = new + (before.prompt + before.output if before else 0)
        whole[index] = request._replace(prompt=prompt, output=output, prefix_tokens=prompt + output)
    return [*whole.values()]


def test_a_client_sends_its_next_request_once_it_has_thought_about_the_answer():
    """Two rounds of 7 and then 4 new tokens; answers of 3, of whose first round 9 tokens are cached: two blocks."""
    clients = Clients(number=1, rounds=2, think="50 ns")
    story, replays = told(_conversations(clients, [7, 4], [3, 3]), (inf,), clients=clients)
    first, second = story.served
    assert (first.request.arrival_ns, first.end_ns) == (0, 70 + 2 * 100)
    assert (second.request.arrival_ns, second.request.prompt, second.hit) == (270 + 50, 7 + 3 + 4, [8])
    assert second.first_ns == 320 + (14 - 8) * 10
    assert [work.reading for work in replays.works] == [7, 0, 0, 6, 0, 0]


def test_fewer_requests_in_flight_than_clients_are_sent_in_turn_as_answers_come():
    """One at a time: client 0 asks again at 10 + 100, behind clients 1 and 2, who have waited since 0."""
    clients = Clients(number=3, rounds=2, think="100 ns", in_flight=1)
    story, _ = told(_conversations(clients, [1] * 6, [1] * 6), (inf,), clients=clients)
    sent = [one.request.arrival_ns for one in story.served]
    assert sent == [0, 10, 20, 110, 140, 170]  # then 3 tokens each: what was said before fills no block
    assert [one.end_ns for one in story.served] == [10, 20, 30, 140, 170, 200]


def test_behind_a_barrier_nobody_goes_on_before_all_have_their_answers():
    """One at a time: all three have their answers of the first round at 30, and think for 100."""
    clients = Clients(number=3, rounds=2, think="100 ns", in_flight=1, barrier=True)
    story, _ = told(_conversations(clients, [1] * 6, [1] * 6), (inf,), clients=clients)
    assert [one.request.arrival_ns for one in story.served] == [0, 10, 20, 130, 160, 190]


def test_in_a_random_order_any_that_waits_is_sent_next_and_a_seed_says_which():
    """What was found depends on it: with room for one of 12 conversations, only who is sent twice in a row finds it."""
    clients = Clients(number=12, rounds=3, in_flight=1, order="random")
    talk = _conversations(clients, [5] * 36, [1] * 36)
    one, again = (told(talk, (inf,), clients=clients)[0] for _ in range(2))
    turns = sorted(one.served, key=lambda served: served.end_ns)
    sent = [served.number for served in turns]
    assert sent != sorted(sent)
    assert sent == [served.number for served in sorted(again.served, key=lambda served: served.end_ns)]
    assert any(number >= 12 for number in sent[:12]), "some second round comes before some first one"
    clients = Clients(number=12, rounds=3, in_flight=1, order="random", barrier=True)
    behind = told(_conversations(clients, [5] * 36, [1] * 36), (inf,), clients=clients)[0]
    sent = [served.number for served in sorted(behind.served, key=lambda served: served.end_ns)]
    assert [number // 12 for number in sent] == [0] * 12 + [1] * 12 + [2] * 12
    assert sent != sorted(sent)


def test_who_waits_at_a_client_does_not_turn_time_back_while_the_one_in_flight_loads():
    """One in flight, two clients, rounds of 5 + 1 tokens, of which full blocks are found in DDR.

    From 256 to 260 nothing runs: client 1 waits since 252, client 0 for the second of its two blocks.
    """
    clients = Clients(number=2, rounds=3, in_flight=1)
    talk, more = _conversations(clients, [5] * 6, [1] * 6), {"keeps": False, "loads": "before_admission"}
    story, _ = told(talk, (inf, inf), clients=clients, **more)
    times = [(one.request.arrival_ns, one.admitted_ns, one.first_ns) for one in story.served]
    assert times == [(0, 0, 50), (50, 50, 104), (104, 108, 178), (178, 182, 252), (252, 260, 350), (350, 358, 448)]


def test_a_place_that_is_free_is_taken_when_the_client_has_thought():
    """Two places, two clients with short and long answers: who finishes first goes on while the other decodes."""
    clients = Clients(number=2, rounds=2, think="30 ns", in_flight=2)
    story, _ = told(_conversations(clients, [1, 1, 1, 1], [1, 5, 1, 1]), (inf,), clients=clients)
    assert [one.request.arrival_ns for one in story.served[:3]] == [0, 0, 20 + 30]
    assert story.served[2].admitted_ns == 20 + 100


def test_a_conversation_begins_with_the_prefix_of_its_client():
    clients = Clients(number=2, rounds=2)
    asked = Requests.model_construct(
        clients=clients, prompt=Lengths(mean=9), output=Lengths(mean=2), prefixes=Prefixes(number=1, tokens=6)
    )
    requests = drawn(asked, 0)
    assert [(one.prompt, one.prefix, one.prefix_tokens, one.above) for one in requests] == [
        (9, 1, 11, ((0, 6),)),
        (9, 2, 11, ((0, 6),)),
        (20, 1, 22, ((0, 6),)),
        (20, 2, 22, ((0, 6),)),
    ]


# the engine's host


def test_each_iteration_waits_for_the_engine_and_the_first_of_a_request_longer():
    story, _ = told(
        [Request(0, 10, 3), Request(50, 10, 1)], (inf,), engine=ServingHost(iteration="30 ns", request="7 ns")
    )
    assert [(ran["start_ns"], ran["took_ns"], ran["wait_host_ns"], ran["stall_ns"]) for ran in story.iterations] == [
        (0, 37 + 100, 37, 37),
        (137, 37 + 200, 37, 37),
        (374, 30 + 100, 30, 30),
    ]


def test_an_engine_ahead_hides_its_work_behind_the_iteration_before_and_no_more():
    """130 ns an iteration: the first waits for all of it, and after a pause again; one behind 100 ns waits for 30."""
    costs = ServingHost(iteration="130 ns", ahead=True)
    story, _ = told([Request(0, 20, 3), Request(2000, 1, 1)], (inf,), engine=costs)
    assert [(ran["start_ns"], ran["wait_host_ns"]) for ran in story.iterations] == [
        (0, 130),
        (330, 0),
        (430, 30),
        (2000, 130),
    ]


def test_stores_alone_cost_the_engine_nothing():
    story, _ = told(_alone(0), (inf, inf), kept=(THROUGH,), engine=ServingHost(iteration="30 ns"))
    assert [ran["wait_host_ns"] for ran in story.iterations] == [30, 0]
