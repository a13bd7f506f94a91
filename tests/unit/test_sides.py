"""What the host runs of a workload: what crosses, traffic and arithmetic by side, against closed forms."""

from collections import Counter
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import hosim
import pytest
from building import build
from pydantic import ValidationError
from trained import BATCH, EXPERTS, GQA, LAYERS, MLA, SPARSE, H, T, V, arithmetic, sizes, workload

from simulator import catalog
from simulator.builders import build_job
from simulator.graph import Graph, Op

Q, KV, F, E, K, W = 4 * 6, 2 * 6, 24, 8, 2, 10
"""Widths of queries, of keys, and of the feed-forward; experts, those that a token chooses, and their width."""
SIGNAL = 4
"""Bytes by which a host tells that it has updated all."""
LAYER = H * (2 * Q + 2 * KV + 3 * F) + 2 * H
PARAMETERS = LAYERS * LAYER + 2 * H * V + H


def of_side(graph: Graph, device: str) -> list[Op]:
    return [op for op in graph.ops if op.device == device]


def crossing(graph: Graph) -> Counter[str]:
    """Bytes that go to a side: what it reads of the other one's, once for each value, and what is at home there."""
    at_home = {t: {op.device for op in graph.ops if t in (*op.reads, *op.writes)} for t in graph.inputs}
    valid = {t: {"host"} if devices == {"host"} else {"accelerator"} for t, devices in at_home.items()}
    moved, home = Counter[str](), {t: set(sides) for t, sides in valid.items()}
    for op in graph.ops:
        for t in op.reads:
            if op.device not in valid[t]:
                moved[op.device] += graph.tensors[t].size_bytes
                valid[t].add(op.device)
        valid |= {t: {op.device} for t in op.writes}
    for t, sides in home.items():
        for side in sides - valid[t]:
            moved[side] += graph.tensors[t].size_bytes
    return moved


# updates


def test_adam_on_the_host_moves_28_bytes_a_parameter_there_and_four_between() -> None:
    """ZeRO-Offload: fp32 master and moments read and written, a 16-bit gradient down, a 16-bit weight up."""
    alone, graph = build(workload()), build(workload(on={"optimizer": "host"}))
    assert not of_side(alone, "host")
    *updates, done = of_side(graph, "host")
    assert done.name == "host/update/done"
    assert [op.name for op in updates] == [op.name for op in alone.ops if op.phase == "update"]
    assert sum(op.read_bytes for op in updates) == sum(op.write_bytes for op in updates) == 14 * PARAMETERS
    assert crossing(graph) == {"host": 2 * PARAMETERS, "accelerator": 2 * PARAMETERS + SIGNAL}
    assert {(op.dtype, op.op_class) for op in updates} == {("fp32", "vector")}
    assert sum(op.flops for op in updates) == 15 * PARAMETERS
    assert arithmetic(graph) - 15 * PARAMETERS == arithmetic(alone)
    assert graph.arithmetic == alone.arithmetic
    for kind in ("weight", "optimizer_state", "gradient"):
        assert sizes(graph, kind) == sizes(alone, kind)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.7, 1.0])
def test_a_share_of_the_updates_is_as_close_as_whole_weights_allow(share: float) -> None:
    alone, graph = build(workload()), build(workload(on={"optimizer": {"host": share}}))
    largest, by_host = max(sizes(graph, "weight").values()) / 2, sum(op.flops for op in of_side(graph, "host")) // 15
    assert abs(by_host - share * PARAMETERS) <= largest / 2
    assert crossing(graph) == {"host": 2 * by_host, "accelerator": 2 * by_host + SIGNAL}
    apart = build(workload(on={"optimizer": {"host": share, "waits": False}}))
    assert apart.ops == graph.ops[:-2]
    assert crossing(apart) == {"host": 2 * by_host, "accelerator": 2 * by_host}
    assert {op.name for op in apart.ops} == {op.name for op in alone.ops}
    on_device = {op.name for op in of_side(apart, "accelerator")}
    assert [op for op in graph.ops if op.name in on_device and op.phase == "update"] == [
        op for op in alone.ops if op.name in on_device and op.phase == "update"
    ]


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_replicas_update_their_shards_on_the_host(stage: int) -> None:
    """Only shards cross, in both directions; devices then gather what they gather without a host."""
    ranks = 4
    parallel = {"ranks": "all", "data": ranks, "zero_stage": stage}
    alone, graph = (build_job(workload(parallel=parallel, on=on)).graphs[0] for on in ({}, {"optimizer": "host"}))
    shards = ranks if stage else 1
    each = sum(-(-size // 2 // shards) for size in sizes(build(workload()), "weight").values())
    assert sum(op.flops for op in of_side(graph, "host")) == 15 * each
    assert crossing(graph) == {"host": 2 * each, "accelerator": 2 * each + SIGNAL}
    met = [[op.collective for op in found.ops if op.collective] for found in (alone, graph)]
    assert met[0] == met[1]


def test_the_slice_of_one_rank_updates_its_shard_on_the_host() -> None:
    parallel = {"data": 4, "zero_stage": 1}
    alone, graph = (build(workload(parallel=parallel, on=on)) for on in ({}, {"optimizer": "host"}))
    each = sum(-(-size // 2 // 4) for size in sizes(alone, "weight").values())
    assert crossing(graph) == {"host": 2 * each, "accelerator": 2 * each + SIGNAL}
    assert sum(op.flops for op in of_side(graph, "host")) == 15 * each
    *moved, wait = [op for op in of_side(graph, "accelerator") if op.phase == "update"]
    assert (wait.name, wait.read_bytes, wait.write_bytes) == ("host/update/wait", SIGNAL, 0)
    assert sum(op.read_bytes + op.write_bytes for op in moved) == 2 * 2 * each + 2 * 2 * each, (
        "sliced, and put in place"
    )


# attention


@pytest.mark.parametrize("attention", [GQA, MLA, GQA | {"window": 4}])
@pytest.mark.parametrize("kv", [None, {"block": 4}])
def test_attention_on_the_host_reads_the_cache_where_it_lies(attention: dict[str, Any], kv: dict[str, int]) -> None:
    """FlexGen: a query and a new key and value come down for each sequence, layer and token; an output goes up."""
    data = {"phase": "decode", "new_tokens": 3, "kv": kv}
    alone, graph = (build(workload(attention, **data, on=on)) for on in ({}, {"attention": "host"}))
    down, up = (Q + 2 * KV, Q) if attention["kind"] == "gqa" else (4 * (11 + 5 + 4) + 11 + 4, 4 * 11)
    times = 3 * LAYERS * BATCH * 2
    assert crossing(graph) == {"host": times * down, "accelerator": times * up}
    cores = of_side(graph, "host")
    assert {op.name.split("/")[-1] for op in cores} == {"attn.core"}
    assert len(cores) == 3 * LAYERS
    same = [op for op in alone.ops if op.name.endswith("attn.core")]
    assert [(op.flops, op.read_bytes, op.write_bytes) for op in cores] == [
        (op.flops, op.read_bytes, op.write_bytes) for op in same
    ]
    assert arithmetic(graph) == arithmetic(alone)
    cache = {t for t, tensor in enumerate(graph.tensors) if tensor.kind == "kv_cache"}
    assert cache.isdisjoint(t for op in of_side(graph, "accelerator") for t in (*op.reads, *op.writes))


# experts


def expected(experts: int, tokens: int, each: Fraction) -> int:
    """How many experts are expected to be chosen, rounded up, if each token chooses so many of these."""
    return -int(-(experts - experts * (1 - each / experts) ** tokens) // 1)


@pytest.mark.parametrize("phase", ["prefill", "decode"])
@pytest.mark.parametrize(
    ("side", "cold", "each"),
    [
        ("host", 8, Fraction(2)),
        ({"host": 0.75}, 6, Fraction(3, 2)),
        ({"host": 0.75, "choices": 0.4}, 6, Fraction(4, 5)),
    ],
)
def test_hidden_states_come_down_to_experts_on_the_host(phase: str, side: object, cold: int, each: Fraction) -> None:
    """KTransformers: of each token its hidden state and k choices (an id and a share) down, one row of h up."""
    tokens = T if phase == "prefill" else BATCH
    alone, graph = (build(workload(GQA, EXPERTS, phase=phase, on=on)) for on in ({}, {"experts": side}))
    layers = LAYERS - 1  # the first one is dense
    crosses = {"host": layers * tokens * (2 * H + 8 * K), "accelerator": layers * tokens * 2 * H}
    assert crossing(graph) == crosses
    rows, inside = tokens * each, 3 * tokens * each * W * 2
    read = tokens * 8 * K + rows * H * 2 + inside + expected(cold, tokens, each) * 3 * H * W * 2
    for op in of_side(graph, "host"):
        assert op.name.endswith("ffn.experts.host")
        assert op.flops == round(rows) * 2 * 3 * H * W
        assert abs(op.read_bytes - read) <= H * 2 + 3 * W * 2, "of rows, which are whole"
        assert op.workspace_bytes == round(rows) * 3 * W * 2
    assert len(of_side(graph, "host")) == layers
    assert arithmetic(graph) == arithmetic(alone)
    assert sum(sizes(graph, "expert").values()) == sum(sizes(alone, "expert").values())
    with_host = {t for op in of_side(graph, "host") for t in op.reads if graph.tensors[t].kind == "expert"}
    assert sum(graph.tensors[t].size_bytes for t in with_host) == layers * cold * 3 * H * W * 2


def test_experts_in_four_bits_are_read_as_they_are_stored() -> None:
    graph = build(workload(GQA, EXPERTS, phase="decode", on={"experts": "host"}, dtypes={"experts": "int4_of_32"}))
    wide = build(workload(GQA, EXPERTS, phase="decode", on={"experts": "host"}))
    kept = (2 * W * (16 * 4 + 16) + H * (10 * 4 + 16)) // 8
    chosen = expected(8, BATCH, Fraction(2))
    pairs = zip(of_side(graph, "host"), of_side(wide, "host"), strict=True)
    assert {wide.read_bytes - packed.read_bytes for packed, wide in pairs} == {chosen * (3 * H * W * 2 - kept)}


def of_block(op: Op) -> str:
    return next(part for part in op.name.split("/") if part.startswith("L") or part in ("embed", "head"))


def test_experts_of_the_first_layers_alone_are_on_the_host() -> None:
    """As with --n-cpu-moe of llama.cpp; the first layer counts, though it is dense."""
    on = {"experts": {"host": 1.0, "layers": 2}}
    alone, graph = (build(workload(GQA, EXPERTS, phase="decode", on=on)) for on in ({}, on))
    assert [op.name.rsplit("/", 1)[1] for op in of_side(graph, "host")] == ["ffn.experts.host"]
    assert {of_block(op) for op in of_side(graph, "host")} == {"L01"}
    assert crossing(graph) == {"host": BATCH * (2 * H + 8 * K), "accelerator": BATCH * 2 * H}
    assert arithmetic(graph) == arithmetic(alone)


# layers


@pytest.mark.parametrize("phase", ["prefill", "decode"])
@pytest.mark.parametrize("part", [{}, EXPERTS])
def test_the_first_layers_are_on_the_host_whole(phase: str, part: dict[str, Any]) -> None:
    """As with -ngl of llama.cpp: one row of h of each token comes down, and one goes up; the cache stays there."""
    parts, tokens = (GQA, part) if part else (GQA,), T if phase == "prefill" else BATCH
    alone, graph = (build(workload(*parts, phase=phase, on=on)) for on in ({}, {"layers": 2}))
    assert {op.name for op in of_side(graph, "host")} == {op.name for op in graph.ops if of_block(op) in ("L00", "L01")}
    assert [replace(op, device="accelerator", stream=0) for op in graph.ops] == [*alone.ops]
    assert crossing(graph) == {"host": tokens * 2 * H, "accelerator": tokens * 2 * H}
    with_host = {t for op in of_side(graph, "host") for t in (*op.reads, *op.writes)}
    kept = [t for t, tensor in enumerate(graph.tensors) if tensor.kind == "kv_cache"]
    assert {t in with_host for t in kept if graph.tensors[t].name.startswith("L02")} == {False}
    assert {t in with_host for t in kept if not graph.tensors[t].name.startswith("L02")} == {True}


# what is refused


def refusal(*parts: dict[str, Any], **more: Any) -> str:
    with pytest.raises(ValidationError) as caught:
        workload(*parts, **more)
    error = caught.value.errors()[0]["ctx"]["error"]
    return f"{'.'.join(error.path)}: {error}"


LINEAR = {"kind": "linear", "heads": 4, "head_size": 6}


@pytest.mark.parametrize(
    ("parts", "more", "says"),
    [
        ((), {"on": {"optimizer": "any"}, "optimizer": {"kind": "muon"}}, "the host updates by adamw, found muon"),
        ((), {"on": {"optimizer": "host"}, "optimizer": {"kind": "muon"}}, "the host updates by adamw, found muon"),
        ((), {"on": {"optimizer": "host"}, "optimizer": {"master": False}}, "a master weight of its own"),
        ((), {"on": {"optimizer": "host"}, "dtypes": {"optimizer_bytes_per_parameter": 8}}, "a master weight of its"),
        ((), {"on": {"optimizer": "host"}, "phase": "decode"}, "on.optimizer is for phase train"),
        ((), {"on": {}, "phase": "serve", "pools": {"prefill": 1, "decode": 1, "new_tokens": 1}}, "on is for phase tr"),
        ((), {"on": {"attention": "host"}}, "on.attention is for phase decode, found it with phase train"),
        ((), {"on": {"attention": "host"}, "phase": "prefill"}, "on.attention is for phase decode"),
        ((LINEAR,), {"on": {"attention": "host"}, "phase": "decode"}, "found a state, sparse or chosen attention"),
        ((GQA | {"sparse": SPARSE},), {"on": {"attention": "host"}, "phase": "decode"}, "found a state, sparse or"),
        ((), {"on": {"experts": "host"}, "phase": "decode"}, "on.experts: the host runs a model's experts, found"),
        ((GQA, EXPERTS), {"on": {"experts": "host"}}, "on.experts is for phase prefill, decode"),
        ((GQA, EXPERTS), {"on": {"experts": "host"}, "phase": "decode", "experts": "each"}, "found each"),
        ((GQA, EXPERTS), {"on": {"experts": {"host": 0.05}}, "phase": "decode"}, "0 of 8 on the host, for 0 of 2"),
        ((GQA, EXPERTS), {"on": {"experts": {"host": 0.9, "choices": 0.2}}, "phase": "decode"}, "for 0.4 of 2 choices"),
        ((GQA, EXPERTS | {"ranks": 2}), {"on": {"experts": "host"}, "phase": "decode"}, "found several ranks"),
        ((), {"on": {"layers": 1}}, "on.layers is for phase prefill, decode"),
        ((), {"on": {"layers": LAYERS + 1}, "phase": "decode"}, f"at most {LAYERS} of the model's layers, and"),
        ((GQA, EXPERTS), {"on": {"layers": 1}, "phase": "decode", "experts": "each"}, "found experts: each; run"),
        ((GQA, EXPERTS), {"on": {"experts": {"host": 1.0, "layers": LAYERS + 1}}, "phase": "decode"}, "experts.layers"),
    ],
)  # fmt: skip
def test_what_the_host_cannot_run_is_refused(parts: tuple[Any, ...], more: dict[str, Any], says: str) -> None:
    assert says in refusal(*parts, **more)
    assert "; " in refusal(*parts, **more)


def test_a_share_is_above_0_and_at_most_1() -> None:
    for share in (0, 1.5, -1):
        with pytest.raises(ValidationError):
            workload(on={"optimizer": {"host": share}})


# a side that a policy chooses


def rows(folder: Path, side: str, *names: str, **changes: str) -> dict[str, dict[str, Any]]:
    """Figures of a training step on a machine with cores, by policy."""
    file = folder / f"{side}.yaml"
    file.write_text(catalog.dump(workload(on={"optimizer": side}, name="small")), encoding="utf-8")
    return hosim.run(hardware="gh200", workload=file, set=changes, policies=[*names]).summary.to_dict("index")


@pytest.mark.parametrize(
    ("changes", "fastest"),
    [
        pytest.param({"host_compute.achieved_bandwidth": "0.001"}, "accelerator", marks=pytest.mark.slow),
        ({}, "host"),
    ],
)
def test_a_compiler_takes_the_faster_side_and_is_bounded_by_both(
    changes: dict[str, str], fastest: str, tmp_path: Path
) -> None:
    one, host, chosen = (
        rows(tmp_path, side, "static", "reactive", **changes) for side in ("accelerator", "host", "any")
    )
    best = {"accelerator": one, "host": host}[fastest]["static"]
    assert best["step_ns"] == min(one["static"]["step_ns"], host["static"]["step_ns"])
    assert one["static"]["step_ns"] != host["static"]["step_ns"]
    assert chosen["static"]["step_ns"] == best["step_ns"]
    assert chosen["static"]["bound_ns"] == min(one["static"]["bound_ns"], host["static"]["bound_ns"])
    assert chosen["static"]["notes"].startswith(f"runs optimizer on the {fastest}")
    assert chosen["reactive"]["step_ns"] == one["reactive"]["step_ns"], "it compares no times"


def test_what_does_not_fit_on_one_side_runs_on_the_other(tmp_path: Path) -> None:
    states = 14 * PARAMETERS
    room = {"budget": f"{states} B"}
    one, host, chosen = (
        rows(tmp_path, side, "resident", **room)["resident"] for side in ("accelerator", "host", "any")
    )
    assert (one["status"], host["status"]) == ("infeasible", "ok")
    assert chosen["step_ns"] == host["step_ns"]
    assert chosen["notes"].startswith("runs optimizer on the host")


def test_what_would_free_a_row_is_found_where_it_chooses(tmp_path: Path) -> None:
    """Rows without bounds choose, too."""
    file = tmp_path / "any.yaml"
    file.write_text(catalog.dump(workload(on={"optimizer": "any"}, name="small")), encoding="utf-8")
    room = {"budget": f"{14 * PARAMETERS} B"}
    results = hosim.run(hardware="gh200", workload=file, set=room, policies=["static"], what_if=True)
    assert results["static"].summary["notes"].startswith("runs optimizer on")
    assert not any("workload.on.optimizer" in sentence for sentence in results.sentences)
