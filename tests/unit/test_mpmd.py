"""Orders by list scheduling, and woven micro-batches, on jobs of several ranks that run to their end."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from examples import some
from pydantic import ValidationError
from small_job import SCENARIO, WORKLOAD, written

import simulator as hosim
from simulator.builders import build_job
from simulator.errors import ConfigError, HosimError
from simulator.graph import Graph
from simulator.units import FieldError
from simulator.workload import DecoderModel, Parallel, Workload

ROWS = "[{policy: resident, label: plain}, {policy: resident, label: mpmd, order: mpmd}]"
ORDERED = SCENARIO[: SCENARIO.index("expect:")].replace("[resident, reactive, static]", ROWS)
Ran = Callable[[str], hosim.Results]
MODEL = "{family: llama, layers: 2, hidden: 64, heads: 4, kv_heads: 2, ffn: 128, vocabulary: 256}"
EXPERTS = (
    "{family: decoder, layers: 4, hidden: 1024, vocabulary: 512, "
    "attention: {kind: gqa, heads: 8, kv_heads: 2, head_size: 128}, "
    "feed_forward: {kind: experts, routed: 16, top_k: 2, width: 512}}"
)


def rows(folder: Path, parallel: str, *, model: str = EXPERTS, **changes: object) -> hosim.Results:
    path = written(folder, parallel, ORDERED)
    text = WORKLOAD.replace("PARALLEL", parallel).replace(MODEL, model).replace("sequence: 64", "sequence: 512")
    (folder / "workload.yaml").write_text(text)
    return hosim.run(path, set=changes or None)


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """The rows of a shape, which runs once."""
    return cache(lambda parallel: rows(tmp_path_factory.mktemp("job"), parallel))


SHAPES = {
    "experts": "data: 4, expert: 4, micro_batches: 4",
    "tensor": "tensor: 4, micro_batches: 3",
    "stages": "pipeline: 2, data: 2, expert: 2, micro_batches: 4",
    "interleaved": "pipeline: 2, data: 2, expert: 2, micro_batches: 4, schedule: interleaved, chunks: 2",
    "sharded weights": "data: 4, zero_stage: 3, micro_batches: 2",
}


@pytest.mark.parametrize("shape", some([*SHAPES], 5))
def test_what_list_scheduling_orders_is_no_longer_and_above_its_bound(shape: str, ran: Ran) -> None:
    results = ran(SHAPES[shape])
    plain, mpmd = (results[name].summary for name in ("plain", "mpmd"))
    assert (plain["status"], mpmd["status"]) == ("ok", "ok"), "the referee finds the values of program order"
    assert mpmd["order_bound_ns"] <= mpmd["step_ns"] <= plain["step_ns"]
    assert mpmd["masked_fraction"] >= plain["masked_fraction"]
    assert "order_bound_ns" not in plain
    names = [sorted(op.name for op in graph.ops) for graph in results["mpmd"].case.job.graphs]
    assert names == [sorted(op.name for op in graph.ops) for graph in results["plain"].case.job.graphs]


def test_an_exchange_is_masked_by_another_micro_batch_in_no_more_room_than_there_is(ran: Ran, tmp_path: Path) -> None:
    plain, roomy = (row.summary for row in ran(SHAPES["experts"]).values())
    peak = plain["peak_hbm_bytes"]
    assert roomy["step_ns"] < plain["step_ns"]
    assert roomy["masked_fraction"] > plain["masked_fraction"] + 0.2
    _, tight = (row.summary for row in rows(tmp_path, SHAPES["experts"], budget=f"{peak} B").values())
    assert tight["status"] == "ok"
    assert tight["peak_hbm_bytes"] <= peak < roomy["peak_hbm_bytes"]
    assert roomy["step_ns"] <= tight["step_ns"] <= plain["step_ns"]


@pytest.mark.parametrize("shape", some(["experts", "stages", "interleaved"], 3))
def test_woven_micro_batches_mask_one_another(shape: str, ran: Ran) -> None:
    plain = ran(SHAPES[shape])["plain"].summary
    woven = ran(f"{SHAPES[shape]}, woven: true")["plain"].summary
    assert woven["status"] == "ok"
    assert woven["masked_fraction"] > plain["masked_fraction"] + 0.1
    assert woven["step_ns"] < plain["step_ns"]


def graphs(**parallel: object) -> tuple[Graph, ...]:
    layout = Parallel(ranks="all", **parallel)  # type: ignore[arg-type]
    model = DecoderModel.model_validate(
        {"family": "decoder", "layers": 4, "hidden": 16, "vocabulary": 16}
        | {"attention": {"kind": "gqa", "heads": 2, "kv_heads": 2, "head_size": 8}}
        | {"feed_forward": {"kind": "experts", "routed": 4, "top_k": 2, "width": 8}}
    )
    return build_job(Workload(name="w", model=model, batch=1, sequence=8, parallel=layout)).graphs


def turns(graph: Graph) -> list[str]:
    """The turn of each op: ``F0``, ``B1`` ..., and the letter once in a row."""
    found = list[str]()
    for op in graph.ops:
        if (micro := re.match(r"mb(\d+)/", op.name)) and op.phase in {"forward", "backward"}:
            turn = f"{op.phase[0].upper()}{micro[1]}"
            found += [turn] * (found[-1:] != [turn])
    return found


def test_a_backward_is_woven_with_the_forward_behind_it_and_gpipe_weaves_likes() -> None:
    shape = {"data": 2, "expert": 2, "micro_batches": 4}
    (graph,) = graphs(**shape, woven=True)
    found = turns(graph)
    assert (found[0], found[-1]) == ("F0", "B3")
    assert [{*found[1:-1]} >= {f"B{i}", f"F{i + 1}"} for i in range(3)] == [True] * 3
    assert len(found) > 8 + 6, "turns alternate"
    (graph,) = graphs(**shape, schedule="gpipe", woven=True)
    pairs = [("F0", "F1"), ("F2", "F3"), ("B3", "B2"), ("B1", "B0")]
    ends = [max(i for i, turn in enumerate(turns(graph)) if turn in pair) for pair in pairs]
    assert ends == sorted(ends)


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe", "interleaved"])
def test_woven_stages_send_in_the_order_in_which_others_receive(schedule: str) -> None:
    chunks = 2 if schedule == "interleaved" else 1
    shape = {"pipeline": 2, "data": 2, "expert": 2, "micro_batches": 6, "schedule": schedule, "chunks": chunks}
    messages: dict[str, list[list[str]]] = {"send": [], "recv": []}
    for graph in graphs(**shape, woven=True):
        for group in sorted(group.name for group in graph.groups):
            for kind, found in messages.items():
                about = [op for op in graph.ops if op.collective and op.collective.group == group]
                found.append([f"{group} {op.name[:4]}" for op in about if op.collective.kind == kind])
    sent, received = (sorted(filter(None, found)) for found in messages.values())
    assert sent == received
    assert sum(map(len, sent)) == 2 * 6 * (2 * chunks - 1)


BAD = {
    "one micro-batch": ({"data": 2, "woven": True}, "two micro-batches are woven, in GPipe an even number of them"),
    "an odd number": (
        {"data": 2, "schedule": "gpipe", "micro_batches": 3, "woven": True},
        "two micro-batches are woven, in GPipe an even number of them, found 3",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_what_cannot_be_woven_is_refused(name: str) -> None:
    parallel, message = BAD[name]
    with pytest.raises((ConfigError, ValidationError, FieldError)) as caught:
        graphs(**parallel)
    assert message in str(caught.value)


def test_a_slice_and_a_plan_from_a_file_have_no_order(tmp_path: Path) -> None:
    path = written(tmp_path, "micro_batches: 2, woven: true", ORDERED)
    text = (tmp_path / "workload.yaml").read_text().replace("ranks: all", "ranks: one")
    (tmp_path / "workload.yaml").write_text(text)
    with pytest.raises(HosimError, match="one rank's slice knows data"):
        hosim.run(path)
    path = written(tmp_path, "data: 2", ORDERED.replace("resident, label: mpmd", "plan.jsonl, label: mpmd"))
    with pytest.raises(HosimError, match="a plan from a file is for the program's own order"):
        hosim.run(path)


@pytest.mark.slow
def test_no_bound_of_orders_is_told_where_some_ranks_are_faster(ran: Ran, tmp_path: Path) -> None:
    faster = rows(tmp_path, SHAPES["experts"], **{"ranks.0-3": {"compute": 4.0, "memory": 4.0}})["mpmd"].summary
    usual = ran(SHAPES["experts"])["mpmd"].summary
    assert faster["step_ns"] < usual["order_bound_ns"]
    assert "order_bound_ns" not in faster
