"""Laws of serving on ranks that share each layer: what a rank holds, copies and waits for, on a toy machine."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st
from serving_cases import BOX, DRAWN, EXPERTS, MODELS, TOY, crowds, told, toy, write

import simulator as hosim
from simulator import catalog
from simulator.builders import Iteration, cached_layers, iteration, least_iteration, limited_reaches
from simulator.cost import durations_ns
from simulator.errors import ConfigError
from simulator.hardware import ServingHost
from simulator.serving.blocks import rooms
from simulator.serving.data_ranks import together
from simulator.serving.replays import PARTS, Replays
from simulator.workload import Clients, Request

FOUR = """\
topology: {devices_per_node: 4}
fabrics: {net: {scope: node, bandwidth: 20 GB/s, latency: 2 us}}
assumed: {topology: a toy, fabrics: a toy, """
ON_FOUR = BOX.replace("assumed: {", FOUR)
FREE = ON_FOUR.replace("bandwidth: 20 GB/s, latency: 2 us", "bandwidth: inf")
"""Four such devices in a node, joined by a fabric; and by one on which nothing takes time."""
SHARED = ON_FOUR.replace("ddr: {", "ddr: {scope: node, ").replace("pool: {", "pool: {scope: node, ")


def spread(tensor, text=TOY):
    """The workload over so many ranks that share each layer."""
    return text.replace("phase: requests", f"phase: requests\nparallel: {{ranks: all, tensor: {tensor}}}")


FOUR_HEADS = TOY.replace("kv_heads: 2", "kv_heads: 4")
MIX = Iteration(decoding=3, context=90, reading=20, cached=40, pairs=1010, answers=4)
LOADING = MIX._replace(loads=(("ddr", (40,)),))


def kept_by_rank(workload):
    """What a rank keeps of a token in each group of layers [B]."""
    groups = cached_layers(workload.model.decoder, workload.dtypes, workload.parallel.tensor)
    return [group.token_bytes for group in groups]


def loaded(folder, tensor=0, text=FOUR_HEADS, box=FREE, requests=DRAWN, **more):
    text = spread(tensor, text) if tensor else text
    return catalog.resolve(write(folder, workload=text, box=box, requests=requests, **more))


def test_one_rank_of_all_is_one_rank(tmp_path):
    alone, all_ranks = (hosim.serve(loaded(tmp_path, tensor, TOY, ON_FOUR), policies=["static"]) for tensor in (0, 1))
    assert alone.requests.equals(all_ranks.requests)
    assert alone.iterations.equals(all_ranks.iterations)
    assert alone.rows == all_ranks.rows


@pytest.mark.parametrize("tensor", [2, 4])
@pytest.mark.parametrize("name", ["all tokens", "window", "local and global"])
def test_a_rank_has_its_part_of_all_work_weights_and_tokens(tmp_path, tensor, name):
    """Heads, widths and the vocabulary are cut evenly: norms, and what adds up, are of whole rows on each rank."""
    text = toy(MODELS[name]).replace("kv_heads: 2", "kv_heads: 4")
    works = [loaded(tmp_path, ranks, text).workload for ranks in (1, tensor)]
    work = MIX._replace(near=((90, 40, 1000),) * len(limited_reaches(works[0].model.decoder)))
    of_all, of_one = (iteration(workload, work, 0) for workload in works)
    ops = {op.name: op for op in of_one.ops}
    for op in of_all.ops:
        assert ops[op.name].flops * tensor == op.flops
        if "attn.core" in op.name:
            assert ops[op.name].read_bytes * tensor == op.read_bytes
            assert ops[op.name].write_bytes * tensor == op.write_bytes
    sizes = {tensor.name: tensor.size_bytes for tensor in of_one.tensors}
    for weight in of_all.tensors:
        if weight.persistent and weight.kind == "weight" and "norm" not in weight.name:
            assert sizes[weight.name] * tensor == weight.size_bytes
    of_all, of_rank = map(kept_by_rank, works)
    assert of_all == [tensor * size for size in of_rank]


def test_where_there_are_fewer_kv_heads_than_ranks_each_is_on_several(tmp_path):
    """Two KV heads on four ranks: a rank keeps one of 16 elements in each of two layers, as does a rank of two."""
    kept = [kept_by_rank(loaded(tmp_path, tensor, TOY).workload)[0] for tensor in (1, 2, 4)]
    assert kept == [2 * 2 * 2 * 16 * 2, 2 * 2 * 16 * 2, 2 * 2 * 16 * 2]
    took = [_replays(tmp_path, tensor, TOY).of(LOADING) for tensor in (2, 4)]
    assert [ran["moved_h2d_bytes"] for ran in took] == [2 * 40 * kept[1], 4 * 40 * kept[2]]


def _replays(folder, tensor, *text, **more):
    return Replays(loaded(folder, tensor, *text, **more), "static", 256_000 // (tensor or 1), exact=True)


@pytest.mark.parametrize("row", ["static", "on demand"])
@pytest.mark.parametrize("tensor", [2, 4])
def test_an_iteration_takes_the_ops_of_a_rank_and_the_collectives_of_its_fabric(tmp_path, tensor, row):
    """Nothing is copied, so that ops and collectives follow one another on each rank; the fabric changes these alone.

    The runtime of `on demand` decides for nothing here.
    """
    for box in (ON_FOUR, FREE):
        scenario = loaded(tmp_path, tensor, box=box)
        graph = iteration(scenario.workload, MIX, 256_000)
        took = Replays(scenario, row, 256_000, exact=True).of(MIX)
        times_ns = durations_ns(graph, scenario.hardware)
        met_ns = sum(ns for ns, op in zip(times_ns, graph.ops, strict=True) if op.collective)
        assert (took["took_ns"], took["wait_collective_ns"]) == (sum(times_ns), met_ns)
        assert (met_ns > 0) == (box is ON_FOUR)


@pytest.mark.parametrize("tensor", [1, 2, 4])
def test_each_rank_copies_its_part_over_its_own_link(tmp_path, tensor):
    """40 tokens of 512 B in two layers, at 1 B/ns: a rank's part takes a tensor-th of it; all ranks move all of it.

    A bus that all four links share, as fast as one of them, carries the parts in the time of the whole.
    """
    stores = MIX._replace(decoding=0, context=0, reading=0, cached=0, pairs=0, answers=0)
    stores = stores._replace(stores=((("ddr", "hbm"), (40,)),))
    whole = 40 * 512
    took = _replays(tmp_path, tensor).of(stores)
    assert (took["took_ns"], took["moved_h2d_bytes"]) == (whole // tensor, whole)
    bus = FREE.replace(
        "assumed: {", "buses: {root: {links: [h2d], bandwidth: 1 GB/s, scope: node}}\nassumed: {buses: a toy, "
    )
    assert _replays(tmp_path, tensor, box=bus).of(stores)["took_ns"] == whole


@pytest.mark.parametrize(("box", "most"), [(FREE, (64, 128, 128)), (SHARED, (64, 32, 32))], ids=["own", "shared"])
def test_a_room_is_of_a_rank_or_of_all_that_share_the_tier(tmp_path, box, most):
    """A block of 8 tokens takes 4 KiB, 1 KiB of it on each of four ranks: 64 of them fit in HBM, in each rank's part.

    Of 128 KiB in a tier of their own ranks have four times the blocks that fit in one that they share.
    """
    tiers = "hbm: 64 KiB, ddr: 128 KiB, pool: 128 KiB"
    scenario = loaded(tmp_path, 4, box=box, kv_tiers=tiers)
    room = rooms(scenario, [Request(0, 9, 1)])
    assert [size // 1024 for size in room.room_bytes] == list(most)
    one = rooms(loaded(tmp_path, 1, box=box, kv_tiers=tiers), [Request(0, 9, 1)])
    blocks = [[int(size) // of.sizes(8)[0] for size in of.room_bytes] for of in (one, room)]
    assert blocks == [[16, 32, 32], [64, *(size // 1 for size in most[1:])]]


def test_without_a_room_ranks_share_what_their_weights_leave(tmp_path):
    """DDR has a GB: of one rank, or of four, of which each has a quarter."""
    room = [rooms(loaded(tmp_path, 4, box=box, kv_tiers="ddr: null"), [Request(0, 9, 1)]) for box in (FREE, SHARED)]
    assert [of.room_bytes[1] for of in room] == [10**9, 10**9 // 4]


def test_a_room_above_what_all_have_together_is_refused(tmp_path):
    with pytest.raises(
        ConfigError,
        match=r"kv_tiers\.ddr: KV blocks fit beside weights and iterations in ddr \(1\.00 GB\), found 1\.10 GB",
    ):
        rooms(loaded(tmp_path, 4, box=SHARED, kv_tiers="ddr: 1.1 GB"), [Request(0, 9, 1)])
    assert rooms(loaded(tmp_path, 4, box=SHARED, kv_tiers="ddr: 1 GB"), [Request(0, 9, 1)]).room_bytes[1] == 10**9 / 4


@pytest.mark.parametrize("part", ["", EXPERTS], ids=["dense", "experts"])
def test_one_stands_for_all_of_its_class_on_several_ranks_too(tmp_path, part):
    """With nothing copied, an iteration takes as long as replayed itself, to a ns of rounding for each op.

    A ring is faster than a tree from 4 kB on, 31 tokens: each size takes the time of its own algorithm.
    """
    text = toy(MODELS["all tokens"], *([part] if part else []))
    library = "latency: 1 us, algorithms: {all_reduce: [ring, tree]}"
    scenario = loaded(tmp_path, 4, text, ON_FOUR.replace("latency: 2 us", library).replace("20 GB/s", "1 GB/s"))
    alike, exact = Replays(scenario, "static", 256_000), Replays(scenario, "static", 256_000, exact=True)
    for tokens in range(2, 62, 4):
        work = Iteration(decoding=3, context=90 + tokens, reading=tokens, pairs=tokens * (tokens + 1) // 2, answers=4)
        assert abs(alike.of(work)["took_ns"] - exact.of(work)["took_ns"]) <= 40
    assert part or len(alike) < len(exact)


def test_collectives_alone_are_no_wait_that_makes_classes_finer(tmp_path):
    scenario = loaded(tmp_path, 2, box=ON_FOUR)
    replays = Replays(scenario, "static", 256_000)
    took = replays.of(MIX)
    assert took["wait_collective_ns"] > took["took_ns"] / 10
    assert len(replays) == 1 < len(PARTS)


@pytest.mark.parametrize(
    ("key", "value"),
    [("pipeline", 2), ("context", 2), ("sequence", "true"), ("zero_stage", 1), ("micro_batches", 2)],
)
def test_what_is_not_built_for_requests_is_refused_by_name(tmp_path, key, value):
    text = spread(2).replace("tensor: 2", f"tensor: 2, {key}: {value}")
    with pytest.raises(ConfigError, match=rf"parallel\.{key}: .*, found {key}; remove it"):
        loaded(tmp_path, 0, text)


def test_experts_that_lie_on_ranks_by_two_keys_are_refused(tmp_path):
    text = spread_data(EXPERT_RANKS.replace("width: 128}", "width: 128, ranks: 2}"), data=2, expert=2)
    with pytest.raises(ConfigError, match=r"parallel\.expert: how experts lie on ranks is said once, found twice"):
        loaded(tmp_path, 0, text, ON_FOUR)


def test_ranks_that_do_not_divide_the_heads_are_refused_before_anything_runs(tmp_path):
    with pytest.raises(
        ConfigError, match=r"parallel\.tensor: tensor divides heads, ffn, vocabulary, found 3, and 4 heads"
    ):
        hosim.serve(loaded(tmp_path, 3))


@pytest.mark.slow
def test_weights_of_the_card_are_those_of_a_rank(tmp_path):
    card = hosim.serve(loaded(tmp_path, 4), policies=["static"]).card["model"]
    graph = iteration(loaded(tmp_path, 4).workload, least_iteration(loaded(tmp_path, 4).workload), 0)
    size = sum(weight.size_bytes for weight in graph.tensors if weight.persistent and weight.kind == "weight")
    assert card["weights"] == f"{size / 1000:.3g} kB a rank"
    alone = hosim.serve(loaded(tmp_path, 1, box=ROOMY, kv_tiers="ddr: null"), policies=["static"])
    assert card["arithmetic"] == alone.card["model"]["arithmetic"]


def test_the_scheduler_counts_whole_tokens_whatever_ranks_there_are():
    """What a rank holds of a block scales with its room, so that the same requests are admitted at the same times."""
    from simulator.builders import CachedLayers
    from simulator.reach import Reach

    requests = [Request(50 * n, 9 + n, 3, n % 2, 8) for n in range(8)]
    stories = [
        told(requests, tuple(room * size for room in (9, 12)), groups=(CachedLayers(Reach(), size),))[0]
        for size in (4, 1)
    ]
    assert stories[0].requests == stories[1].requests


# data ranks


def spread_data(text=TOY, **axes):
    """The workload over these ranks."""
    axes = ", ".join(f"{axis}: {size}" for axis, size in axes.items())
    return text.replace("phase: requests", f"phase: requests\nparallel: {{ranks: all, {axes}}}")


CROWD = [Request(40 * n, 5 + 3 * n, 1 + n % 4, n % 2, 5) for n in range(9)]


@given(st.integers(1, 4), st.sampled_from(["never", "recompute", "swap"]))
def test_data_ranks_that_get_the_same_requests_run_as_one_rank_with_them(data, preemption):
    """Request n of each rank comes with that of all others, in turn: all do the same, as does what stands for them."""
    more = {"max_tokens": 16, "preemption": preemption}
    alone, replays = told(CROWD, (12, 9), **more)
    times = [request for request in CROWD for _ in range(data)]
    spread, of_all = told(times, (12, 9), data=data, **more)
    for rank in range(data):
        for one, same in zip(alone.served, spread.served[rank::data], strict=True):
            assert (same.first_ns, same.end_ns, same.hit) == (one.first_ns, one.end_ns, one.hit)
    assert len(of_all.works) == data * len(replays.works)
    assert [ran["took_ns"] for ran in spread.iterations] == [ran["took_ns"] for ran in alone.iterations]
    assert [ran["held_blocks"] for ran in spread.iterations] == [data * ran["held_blocks"] for ran in alone.iterations]


@given(crowds(), st.integers(1, 4), st.sampled_from(["by_layer", "before_admission"]))
def test_on_data_ranks_every_token_is_computed_or_found_once_on_its_own(requests, data, loads):
    rooms = (12, 9)
    story, replays = told(requests, rooms, data=data, max_tokens=16, loads=loads)
    assert story.status in ("ok", "overloaded")
    for ran in story.iterations:
        for name, room in zip(("hbm", "ddr"), rooms, strict=True):
            assert ran[f"used_{name}_blocks"] <= data * room
    if story.status == "ok":
        read = sum(work.reading for work in replays.works)
        assert read + sum(sum(one.hit) for one in story.served) == sum(one.prompt for one in requests)
        assert sum(work.decoding for work in replays.works) == sum(one.output - 1 for one in requests)
    for one in story.served:
        before = [other.request.prefix for other in story.served[one.number % data : one.number : data]]
        assert one.request.prefix in before or not sum(one.hit)


def test_data_ranks_wait_for_the_host_with_most_to_do():
    """The second rank admits one request beside two on the first: 30 ns, and 7 for each of two."""
    come = [Request(0, 9, 1), Request(0, 9, 1), Request(0, 9, 1)]
    story, _ = told(come, (inf,), data=2, engine=ServingHost(iteration="30 ns", request="7 ns"))
    assert [ran["wait_host_ns"] for ran in story.iterations] == [30 + 2 * 7]


def test_clients_go_to_one_rank_with_all_rounds():
    """Three clients on two ranks: the first and the third share a rank, and each finds what it said before."""
    clients = Clients(number=3, rounds=2)
    rounds = [Request(0, 9, 4, 1 + n % 3, 13) for n in range(3)]
    rounds += [Request(0, 18, 1, 1 + n % 3, 19) for n in range(3)]
    story, _ = told(rounds, (inf,), data=2, clients=clients)
    assert [one.hit for one in story.served] == [[0], [0], [0], [12], [12], [12]]


def test_one_iteration_stands_for_those_of_all_data_ranks():
    """As many tokens as the fullest, as many decoding as on any; of the rest, the most of any."""
    one = Iteration(5, 90, 0, 0, 0, 5, ((40, 0, 0),), (), ((("hbm", "ddr"), (8, 0)),))
    other = Iteration(2, 60, 4, 16, 74, 3, ((20, 16, 60),), (("ddr", (16, 8)),), ((("hbm", "ddr"), (4, 4)),))
    stands = Iteration(5, 90, 1, 16, 74, 5, ((40, 16, 60),), (("ddr", (16, 8)),), ((("hbm", "ddr"), (8, 4)),))
    assert together([one, other]) == stands
    assert together([one, other._replace(reading=9)]).reading == 11 - 5
    assert together([one]) is one


ROOMY = ON_FOUR.replace("capacity: 4 MB", "capacity: 16 MB")
AXES = [{"data": 4}, {"data": 4, "expert": 4}, {"data": 2, "tensor": 2, "expert": 4}, {"tensor": 4, "expert": 4}]
EXPERT_RANKS = toy(MODELS["all tokens"], EXPERTS)


@pytest.mark.parametrize("axes", AXES)
def test_an_iteration_of_data_ranks_takes_the_ops_of_the_one_that_stands_for_all(tmp_path, axes):
    """What is moved is the sum of what each rank moves. A class knows nothing of the rows that expert ranks fill up."""
    each = [LOADING, MIX, MIX._replace(reading=0, cached=0, pairs=0, answers=3), Iteration()][: axes.get("data", 1)]
    for exact in (True, False)[: 1 if "expert" in axes else 2]:
        scenario = loaded(tmp_path, 0, spread_data(EXPERT_RANKS, **{"expert": axes.get("data")} | axes), ROOMY)
        alone = scenario.workload.parallel.model_copy(update={"expert": axes.get("expert", 1)})  # of each its own
        scenario = replace(scenario, workload=scenario.workload.model_copy(update={"parallel": alone}))
        took = Replays(scenario, "static", 256_000, exact=exact).of(*each)
        graph = iteration(scenario.workload, together(each), 256_000)
        least_ns = sum(durations_ns(graph, scenario.hardware))
        assert abs(took["took_ns"] - took["wait_transfer_ns"] - least_ns) <= (0 if exact else 40)
        kept = kept_by_rank(scenario.workload)[0]
        assert took["moved_h2d_bytes"] == 40 * kept * axes.get("tensor", 1)


def test_requests_are_served_on_data_and_expert_ranks(tmp_path):
    """All are answered, each on one rank; ranks meet in each layer."""
    text = spread_data(EXPERT_RANKS, data=4, expert=4)
    served = hosim.serve(loaded(tmp_path, 0, text, ROOMY), policies=["static"])
    (row,) = served.rows
    assert (row["status"], row["finished"]) == ("ok", 12)
    assert row["wait_collective_ns"] > 0
    alone = hosim.serve(loaded(tmp_path, 0, EXPERT_RANKS, ROOMY), policies=["static"])
    assert served.card["model"]["arithmetic"] == alone.card["model"]["arithmetic"]
    assert served.iterations["decoding"].sum() == (served.requests["output_tokens"] - 1).sum()
    assert served.card["model"]["weights"].endswith("a rank")


@pytest.mark.parametrize(
    ("axes", "said"),
    [
        ({"data": 4, "expert": 3}, "expert"),
        ({"data": 2, "expert": 2}, "expert divides experts"),
        ({"data": 2}, r"parallel.data: data ranks .*share experts, found 2 engines of their own; add expert"),
    ],
)
def test_expert_ranks_that_do_not_fit_are_refused(tmp_path, axes, said):
    with pytest.raises(ConfigError, match=said):
        hosim.serve(loaded(tmp_path, 0, spread_data(TOY, **axes), ON_FOUR))
