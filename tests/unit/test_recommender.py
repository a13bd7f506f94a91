"""Rows that a batch touches, against brute force; and the step of a recommender, against closed forms."""

import dataclasses
import math
import random
import re
from collections import OrderedDict

import pytest
from pydantic import ValidationError

import simulator as hosim
from simulator import catalog
from simulator.builders import build_job
from simulator.builders.popularity import Use, touched, use, zipf
from simulator.builders.weights import parameters as of_decoders
from simulator.errors import ConfigError
from simulator.graph import Graph, Job, chosen_number
from simulator.workload import DlrmModel, EmbeddingTable, Parallel, RowCache, Workload

TABLES = (EmbeddingTable(rows=3000, lookups=2, count=5), EmbeddingTable(rows=700, lookups=1.5))
MODEL = DlrmModel(family="dlrm", dim=8, bottom=(13, 32, 8), top=(16, 1), tables=TABLES, skew=1.05)
CACHED = MODEL.model_copy(update={"cache": RowCache(share=0.2)})
BATCH, RANKS = 48, 4
ROW_BYTES = 8 * 4 + 4
DENSE = 14 * 32 + 33 * 8 + (21 + 8 + 1) * 16 + 17 * 1
"""Parameters of its layers: seven vectors make 21 pairs, which come together with the embedding of the dense ones."""


def workload(model: DlrmModel = CACHED, *, parts: int = 1, ranks: int = RANKS) -> Workload:
    parallel = Parallel(ranks="all", data=ranks, micro_batches=parts)
    return Workload(name="w", model=model, batch=BATCH // parts, parallel=parallel)


def job(model: DlrmModel = CACHED, **more: int) -> Job:
    return build_job(workload(model, **more))


def shares(rows: int, skew: float) -> list[float]:
    whole = math.fsum(r**-skew for r in range(1, rows + 1))
    return [r**-skew / whole for r in range(1, rows + 1)]


def in_blocks(rows: int, skew: float, block: int) -> list[float]:
    each = shares(rows, skew)
    return [math.fsum(each[i : i + block]) for i in range(0, rows, block)]


@pytest.mark.parametrize("skew", [0.0, 0.7, 1.0, 1.3])
@pytest.mark.parametrize(("rows", "block"), [(1, 1), (1000, 1), (1024, 4), (20_000, 1), (20_001, 8)])
@pytest.mark.parametrize("lookups", [1, 77, 5000])
def test_rows_that_lookups_touch_are_those_of_brute_force(skew, rows, block, lookups):
    law, each = zipf(rows, skew, block), in_blocks(rows, skew, block)
    assert sum(count for count, _ in law) == len(each)
    expected = math.fsum(1 - (1 - share) ** lookups for share in each)
    assert touched(law, lookups) == pytest.approx(expected, rel=1e-12 if rows <= 1024 else 5e-4)
    behind = math.fsum(1 - (1 - share) ** lookups for share in each[len(each) // 3 :])
    assert touched(law, lookups, len(each) - len(each) // 3) == pytest.approx(behind, rel=1e-3)


@pytest.mark.parametrize("hottest", [1, 100, 1024, 3000, 20_000])
def test_the_hottest_rows_have_the_mass_of_brute_force(hottest):
    each, law = shares(20_000, 1.1), zipf(20_000, 1.1)
    left, mass = hottest, 0.0
    for count, share in law:
        mass, left = mass + min(count, left) * share, left - min(count, left)
    assert mass == pytest.approx(math.fsum(each[:hottest]), rel=1e-5)
    assert math.fsum(count * share for count, share in law) == pytest.approx(1, rel=1e-12)


@pytest.mark.parametrize("lookups", [1, 50, 400])
def test_where_all_rows_are_alike_they_are_those_of_dynamic_reads(lookups):
    found = use(300, 0.0, lookups, None)
    assert found.touched in (chosen_number(300, lookups, 1), chosen_number(300, lookups, 1) - 1)  # which rounds up


def test_the_exponent_of_the_shipped_recommender_is_that_of_the_traces():
    """Of 1,405,163,864 lookups in 788 tables 110,259,238 are of different rows (Meta's traces of 2022)."""
    model = catalog.read_workload("dlrm_1t2_train").model
    (table,) = model.tables
    lookups = round(131_072 * table.lookups)
    assert table.count * lookups == pytest.approx(1_405_163_864, rel=1e-3)
    assert table.count * use(table.rows, model.skew, lookups, None).touched == pytest.approx(110_259_238, rel=2e-3)


@pytest.mark.parametrize("by", ["static", "lfu", "lru"])
@pytest.mark.parametrize("block", [1, 16, 1000])
@pytest.mark.parametrize("share", [0.3, 0.9, 0.999])
def test_rows_are_in_the_cache_or_come_in_or_rest(by, block, share):
    kept = RowCache(share=share, by=by, block=block)
    for lookups in (1, 300, 100_000):
        found = use(5000, 1.0, lookups, kept)
        assert found.cached + found.missed + found.rest == 5000
        assert min(found.missed, found.rest) >= 0
        assert found.touched <= min(lookups, 5000)
        room = int(share * 5000) // block * block
        assert found.cached + (found.missed if by == "lru" else 0) <= room or found.missed == 5000 - found.cached


@pytest.mark.parametrize("by", ["static", "lru"])
@pytest.mark.parametrize("skew", [0.0, 1.0, 4.0])
@pytest.mark.parametrize("rows", [2, 10**9])
def test_the_evenest_and_the_most_unlike_rows_of_the_largest_tables_are_counted(rows, skew, by):
    found = use(rows, skew, 10**6, RowCache(share=0.99, by=by))
    assert found.cached + found.missed + found.rest == rows
    assert 0 <= found.missed <= min(rows, 10**6)
    assert skew < 4 or found.missed <= 1


def test_a_cache_of_the_hottest_rows_lacks_the_others():
    found = use(1000, 1.0, 500, RowCache(share=0.25))
    cold = math.fsum(1 - (1 - share) ** 500 for share in shares(1000, 1.0)[250:])
    assert (found.cached, found.missed) == (250, round(cold))
    assert found == use(1000, 1.0, 500, RowCache(share=0.25, by="lfu"))


@pytest.mark.parametrize(("skew", "room", "lookups"), [(0.8, 600, 300), (1.0, 400, 300), (1.2, 900, 2000)])
def test_a_cache_of_the_rows_used_last_is_close_to_a_simulated_one(skew, room, lookups):
    """Che's approximation is within 2 % of what batches bring into a simulated LRU cache, drawn with a fixed seed."""
    draw, each, cache = random.Random(7), shares(2000, skew), OrderedDict()
    came, batches, warm = 0, 400, 50
    for batch in range(batches):
        wanted = draw.choices(range(2000), each, k=lookups)
        came += len({*wanted} - cache.keys()) if batch >= warm else 0
        for row in wanted:
            cache[row] = None
            cache.move_to_end(row)
        while len(cache) > room:
            cache.popitem(last=False)
    expected = use(2000, skew, lookups, RowCache(share=room / 2000, by="lru")).missed
    assert came / (batches - warm) == pytest.approx(expected, rel=0.02)


def rows_of(graph: Graph) -> dict[str, int]:
    return {t.name: t.size_bytes // ROW_BYTES for t in graph.tensors if "/" in t.name and t.persistent}


@pytest.mark.parametrize("model", [MODEL, CACHED], ids=["whole", "cached"])
@pytest.mark.parametrize("ranks", [1, 2, 4, 6])
def test_ranks_hold_all_rows_once_and_the_layers_each(model, ranks):
    built = job(model, ranks=ranks)
    held = [sum(rows_of(built.graph(rank)).values()) for rank in range(ranks)]
    assert sum(held) == 5 * 3000 + 700
    assert MODEL.parameters == DENSE + 8 * (5 * 3000 + 700)
    graph = built.graph(0)
    assert sum(t.size_bytes for t in graph.tensors if t.name.endswith(".weight")) == 2 * DENSE
    assert sum(t.size_bytes for t in graph.tensors if t.kind == "optimizer_state") == 12 * DENSE


def test_tables_are_dealt_out_in_turn_and_each_share_has_a_graph():
    built = job()
    assert built.labels == ("2 of t0, 0 of t1", "1 of t0, 1 of t1", "1 of t0, 0 of t1")
    assert built.graph_of == (0, 1, 2, 2)


def test_ranks_that_divide_rows_are_alike_and_hold_as_much():
    built = job(CACHED.model_copy(update={"sharding": "rows"}))
    assert len(built.graphs) == 1
    held = sum(rows_of(built.graph(0)).values())
    assert 5 * 3000 + 700 <= RANKS * held < 5 * 3000 + 700 + RANKS * 3 * 6


def op_of(graph: Graph, name: str):
    return next(op for op in graph.ops if op.name == name)


def test_each_lookup_reads_a_row_and_each_row_that_is_touched_is_written_once():
    graph, found = job().graph(0), use(3000, 1.05, 2 * BATCH * RANKS, CACHED.cache)
    look, update = op_of(graph, "mb0/fwd/t0.0"), op_of(graph, "update/t0.0")
    assert found.lookups == 384
    assert (look.read_bytes, look.write_bytes, look.flops) == (384 * (8 * 4 + 8), BATCH * RANKS * 8 * 2, 384 * 8)
    assert update.write_bytes == found.touched * ROW_BYTES
    assert update.read_bytes == 384 * (8 * 2 + 8) + found.touched * ROW_BYTES
    names = [graph.tensors[t].name for t in update.writes]
    assert names == ["t0.0/cached", "t0.0/missed"]
    assert rows_of(graph)["t0.0/missed"] == found.missed
    assert not any("rest" in graph.tensors[t].name for op in graph.ops for t in op.reads)


def test_a_batch_in_parts_is_the_same_batch():
    whole, parts = job().graph(0), job(parts=2).graph(0)
    assert rows_of(whole) == rows_of(parts)
    for phase in ("forward", "backward", "update"):
        of_each = [sum(op.flops for op in graph.ops if op.phase == phase) for graph in (whole, parts)]
        assert of_each[0] == of_each[1]
    sent = [sum(op.collective.size_bytes for op in graph.ops if op.collective) for graph in (whole, parts)]
    assert sent[0] == sent[1]


def test_layers_multiply_as_their_widths_say_and_pairs_all_by_all():
    graph = job().graph(0)
    widths = {"bottom.0": (13, 32), "bottom.1": (32, 8), "top.0": (29, 16), "top.1": (16, 1)}
    for name, (inputs, outputs) in widths.items():
        assert op_of(graph, f"mb0/fwd/{name}").flops == 2 * BATCH * inputs * outputs
        assert op_of(graph, f"mb0/bwd/{name}").flops == (2 if name == "bottom.0" else 4) * BATCH * inputs * outputs
    assert op_of(graph, "mb0/fwd/interaction").flops == 2 * BATCH * 7 * 7 * 8


@pytest.mark.parametrize("sharding", ["tables", "rows"])
def test_ranks_exchange_sums_of_rows_and_add_up_the_gradients_of_layers(sharding):
    graph = job(CACHED.model_copy(update={"sharding": sharding})).graph(0)
    met = {op.name: (str(op.collective.kind), op.collective.size_bytes) for op in graph.ops if op.collective}
    there, back = ("all_to_all",) * 2 if sharding == "tables" else ("reduce_scatter", "all_gather")
    sums = BATCH * RANKS * 8 * 2 * (2 if sharding == "tables" else 6)  # 2 is the most tables of a rank
    assert met == {
        "mb0/fwd/ids": ("all_to_all", BATCH * (5 * 2 + 1.5) * 8),
        "mb0/fwd/embeddings": (there, sums),
        "mb0/bwd/embeddings": (back, sums),
        "bwd/grads": ("all_reduce", 2 * DENSE),
    }


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"parallel": Parallel(ranks="all", data=8)}, "each rank has a table, found 6 tables for 8 ranks"),
        ({"model": CACHED.model_copy(update={"cache": RowCache(share=0.01, by="lru")})}, "-[0-9]+ beside; raise"),
        ({"model": CACHED.model_copy(update={"cache": RowCache(share=0.5, block=3000)})}, "and 0 beside"),
    ],
)  # fmt: skip
def test_what_cannot_be_spread_or_cached_is_refused(changes, message):
    with pytest.raises(ConfigError, match=message):
        build_job(workload().model_copy(update=changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sequence": 4}, "no tokens, layers and experts.* found sequence; remove it"),
        ({"phase": "decode"}, "a recommender is trained, found phase decode"),
        ({"frozen": ("*",)}, "found frozen"),
        ({"dtypes": {"weights": "fp8"}}, "found dtypes.weights"),
        ({"on": {"optimizer": "host"}}, "found on.optimizer"),
        ({"model": CACHED.model_dump(), "on": {"tables": "host"}}, "tables of the host have no cache, found one"),
        ({"parallel": {"ranks": "all", "data": 2, "tensor": 2}}, "found parallel.tensor"),
        ({"parallel": {"data": 2}}, "data 2 with ranks: one"),
        ({"model": {**MODEL.model_dump(), "bottom": (13, 4)}}, "ends in an embedding, found 4 and 8"),
        ({"model": {**MODEL.model_dump(), "cache": {"share": 1.5}}}, "less than 1"),
    ],
)
def test_what_a_recommender_has_not_is_refused(changes, message):
    with pytest.raises(ValidationError, match=message):
        Workload.model_validate({"name": "w", "model": MODEL.model_dump(), **changes})


def test_the_host_does_all_that_is_done_to_tables_and_nothing_else():
    """What is done is the same; the host's ops are those that name a table, and all of a table has its home there."""
    model = {"name": "w", "model": MODEL.model_dump(), "parallel": {"ranks": "all", "data": RANKS}, "batch": BATCH}
    here, there = (Workload.model_validate(model | {"on": {"tables": side}}) for side in ("accelerator", "host"))
    for on_device, on_host in zip(build_job(here).graphs, build_job(there).graphs, strict=True):
        done = [tuple(dataclasses.replace(op, device="", stream=0) for op in g.ops) for g in (on_device, on_host)]
        assert done[0] == done[1]
        assert {op.name for op in on_host.ops if op.device == "host"} == {
            op.name for op in on_device.ops if re.search(r"/t\d\.\d$", op.name)
        }
        only = {on_host.tensors[t].name.partition("/")[0] for t in on_host.of_host if on_host.tensors[t].persistent}
        assert only == {name.partition("/")[0] for tensor in on_host.tensors if "/rest" in (name := tensor.name)}
    with pytest.raises(ValidationError, match=r"a recommender has tables of rows, found on\.tables"):
        Workload.model_validate({"name": "w", "model": catalog.read_workload("tiny_train").model, "batch": 1,
                                 "sequence": 8, "on": {"tables": "host"}})  # fmt: skip


def test_a_recommender_counts_samples_and_no_tokens():
    asked = workload(parts=2)
    assert (asked.samples, asked.tokens, asked.decoder, of_decoders(asked)) == (BATCH * RANKS, None, None, None)
    assert Use(5, 4, 9, 7, 1).part(4) == Use(2, 1, 3, 2, 1)


SCENARIO = """
schema: hosim/scenario/1
name: small
hardware: cloudmatrix384
workload: small.yaml
homes: {"*/missed": pool, "*/rest": pool}
policies: [{policy: reactive, label: on demand, options: {look_ahead: 0, synchronous: true}}, static]
"""
WORKLOAD = """
schema: hosim/workload/1
name: small
model:
  family: dlrm
  dim: 128
  bottom: [13, 128]
  top: [64, 1]
  tables: [{rows: 1000000, lookups: 20, count: 8}]
  skew: 0.8
  cache: {share: 0.3}
batch: 4096
parallel: {ranks: all, data: 2}
"""


@pytest.fixture
def small(tmp_path):
    (tmp_path / "small.yaml").write_text(WORKLOAD)
    (tmp_path / "scenario.yaml").write_text(SCENARIO)
    return tmp_path / "scenario.yaml"


def test_rows_that_are_missed_come_and_go_and_a_plan_hides_what_waits_on_demand(small, quick_plans):
    demanded, planned = (row.summary for row in hosim.run(small).values())
    missed = use(1_000_000, 0.8, 2 * 4096 * 20, RowCache(share=0.3)).missed
    for row in (demanded, planned):
        assert row["moved_p2d_bytes"] == row["moved_d2p_bytes"] == 8 * missed * (128 * 4 + 4)
    assert planned["step_ns"] < 0.9 * demanded["step_ns"]
    assert planned["in_use_hbm_fraction"] < planned["peak_in_use_hbm_fraction"] < 0.1


def test_parts_of_a_batch_mask_one_anothers_exchanges(small):
    alike, parts = {"workload.model.skew": 1.2}, {"workload.parallel.micro_batches": 2, "workload.batch": 2048}
    (whole,) = hosim.run(small, policies=["static"], set=alike).values()
    (woven,) = hosim.run(small, policies=["static"], set=alike | parts).values()
    assert woven.summary["communication_fraction"] < whole.summary["communication_fraction"]
    assert woven.summary["step_ns"] < whole.summary["step_ns"]


def test_a_cache_that_its_tier_has_no_room_for_is_one_line(small):
    rows = hosim.run(small, set={"tiers.hbm.capacity": "500 MB"}).values()
    assert [row.status for row in rows] == ["infeasible", "infeasible"]
    for row in rows:
        assert row.shortfall is not None
        assert (row.shortfall.tier, row.shortfall.largest[0][0]) == ("hbm", "t0.0/cached")
