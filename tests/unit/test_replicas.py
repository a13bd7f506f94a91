"""Any graph over replicas: exact timelines, against models that the builders know, and what is refused."""

import re
from collections import Counter
from functools import cache
from math import ceil

import pytest
from building import build
from documents import refusal
from examples import some
from hypothesis import given, settings
from hypothesis import strategies as st
from pages import ROOT
from rank_stories import cluster, perform, spans

import simulator as hosim
from simulator.builders import build_job
from simulator.builders.replicas import spread
from simulator.catalog import load
from simulator.cost import durations_ns
from simulator.cost.collectives import collective_ns
from simulator.errors import ConfigError
from simulator.formats import graph_jsonl
from simulator.graph import Graph
from simulator.graph_builder import GraphBuilder
from simulator.workload import Parallel, Workload

PAIR = cluster(2, hbm="1000 B")
MODEL = {"family": "llama", "layers": 4, "hidden": 1024, "heads": 8, "kv_heads": 8, "ffn": 4096, "vocabulary": 32768}
LAYER_BYTES = 2 * (4 * 1024**2 + 3 * 1024 * 4096 + 2 * 1024)
DTYPES = {"optimizer_bytes_per_parameter": 12, "logits_copies_fp32": 1}


def step(*, bias: bool = False) -> Graph:
    """Two linears: w0 (20 B), w1 (40 B), their gradients and states (40 B, 80 B); bytes take 1 ns to update."""
    b = GraphBuilder("step")
    b.tensor("x", 1, "input", persistent=True)
    for i, size in enumerate((20, 40)):
        b.tensor(f"w{i}", size, "weight", persistent=True)
        b.tensor(f"s{i}", 2 * size, "optimizer_state", persistent=True)
        b.tensor(f"g{i}", size, "gradient")
        b.tensor(f"y{i}", 1)
    b.tensor("dy", 1)
    b.op("0/fwd/mm", ["x", "w0"], ["y0"], duration_ns=10, phase="forward")
    b.op("1/fwd/mm", ["y0", "w1"], ["y1"], duration_ns=10, phase="forward")
    b.op("1/bwd/mm", ["y0", "y1", "w1"], ["g1", "dy"], duration_ns=20, phase="backward")
    also = ["g1"] if bias else []
    b.op("0/bwd/mm", ["x", "dy", "w0", *also], ["g0", *also], duration_ns=30, phase="backward")
    for i, size in enumerate((20, 40)):
        flow = [f"w{i}", f"s{i}", f"g{i}"], [f"w{i}", f"s{i}"]
        b.op(f"{i}/update/adam", *flow, read_bytes=3 * size, write_bytes=2 * size, phase="update")
    return b.build()


def replicas(graph: Graph, ranks: int = 2, **more: object) -> Graph:
    parallel = Parallel.model_validate({"ranks": "all", "data": ranks, **more})
    (of_all,) = spread(graph, parallel, "workload w").graphs
    return of_all


def timeline(graph: Graph) -> list[str]:
    """What the first of two ranks runs when, all of it in HBM; a byte takes 1 ns out and 1 ns in."""
    text = "; ".join(f"compute {op.name} {int(op.collective is not None)}" for op in graph.ops)
    home = ", ".join(f"{t.name} hbm" for t in graph.tensors if t.persistent)
    programs = [(graph, text)] * 2
    return [line[3:] for line in spans(perform(PAIR, programs, home), programs, PAIR) if line.startswith("0")]


def met(graph: Graph) -> list[tuple[str, int]]:
    return [(str(op.collective.kind), op.collective.size_bytes) for op in graph.ops if op.collective]


def test_gradients_are_reduced_beside_backward_and_before_the_update() -> None:
    """40 B are there at 40 ns and summed until 80; 20 B at 70, and follow until 100; the update waits for them."""
    g = replicas(step(), bucket="40 B")
    assert timeline(g) == [
        "0-10 0/fwd/mm", "10-20 1/fwd/mm", "20-40 1/bwd/mm", "40-80 1/bwd/grads.all_reduce.0", "40-70 0/bwd/mm",
        "80-100 0/bwd/grads.all_reduce.1", "100-200 0/update/adam", "200-400 1/update/adam",
    ]  # fmt: skip


def test_a_bucket_waits_for_its_last_gradient_and_a_gradient_for_its_last_writer() -> None:
    assert "70-130 0/bwd/grads.all_reduce.0" in timeline(replicas(step(), bucket="41 B"))
    accumulated = replicas(step(bias=True), bucket="1 B")
    assert timeline(accumulated)[4:6] == ["70-90 0/bwd/grads.all_reduce.0", "90-130 0/bwd/grads.all_reduce.1"]


def test_shards_of_gradients_and_of_the_update_and_weights_gathered_after_it() -> None:
    for stage in (1, 2):
        g = replicas(step(), bucket="40 B", zero_stage=stage)
        assert timeline(g)[3:] == [
            "40-60 1/bwd/grads.reduce_scatter.0", "40-70 0/bwd/mm", "70-80 0/bwd/grads.reduce_scatter.1",
            "80-130 0/update/adam", "130-230 1/update/adam", "230-260 1/update/weights.all_gather.2",
        ]  # fmt: skip
        sizes = {t.name: t.size_bytes for t in g.tensors}
        assert (sizes["w0"], sizes["s0"], sizes["g0"]) == (20, 20, 20)
        assert sizes.get("g0.shard") == (10 if stage == 2 else None)


def test_weights_in_shards_are_gathered_before_forward_and_again_before_backward() -> None:
    """Unit w1 is the last of forward and the first of backward, and stays; w0 is gathered again, behind a sum."""
    g = replicas(step(), bucket="20 B", zero_stage=3)
    assert timeline(g) == [
        "0-10 0/fwd/weights.all_gather.2", "10-30 0/fwd/weights.all_gather.3", "10-20 0/fwd/mm", "30-40 1/fwd/mm",
        "40-60 1/bwd/mm", "60-80 1/bwd/grads.reduce_scatter.0", "80-90 0/bwd/weights.all_gather.4", "90-120 0/bwd/mm",
        "120-130 0/bwd/grads.reduce_scatter.1", "130-180 0/update/adam", "180-280 1/update/adam",
    ]  # fmt: skip
    sizes = {t.name: (t.size_bytes, t.persistent) for t in g.tensors}
    assert sizes["w1"] == (20, True)
    assert sizes["w1.gathered"] == (40, False)
    in_turn = timeline(replicas(step(), bucket="20 B", zero_stage=3, gathers_ahead=0))
    assert in_turn[:4] == [
        "0-10 0/fwd/weights.all_gather.2", "10-20 0/fwd/mm", "20-40 1/fwd/weights.all_gather.3", "40-50 1/fwd/mm",
    ]  # fmt: skip


def test_each_pass_of_several_micro_batches_gathers_anew() -> None:
    b = GraphBuilder("two")
    for name in "wv":
        b.tensor(name, 8, "weight", persistent=True)
        b.tensor(f"g{name}", 8, "gradient")
    b.op("begin", [], ["gw", "gv"])
    for _ in range(2):
        for phase, order in (("forward", "wv"), ("backward", "vw")):
            for name in order:
                b.op(f"{_}/{phase}/{name}", [name, *[f"g{name}"] * (phase == "backward")],
                     [f"g{name}"] * (phase == "backward"), phase=phase)  # fmt: skip
    b.op("up", ["w", "v", "gw", "gv"], ["w", "v"], phase="update")
    g = replicas(b.build(), bucket="8 B", zero_stage=3)
    gathers = [op.name.rpartition(".")[0] for op in g.ops if "all_gather" in op.name]
    assert gathers == [
        "0/forward/weights.all_gather", "0/forward/weights.all_gather", "0/backward/weights.all_gather",
        "1/forward/weights.all_gather", "1/backward/weights.all_gather",
    ]  # fmt: skip


@cache
def one_rank() -> Graph:
    return build(Workload.model_validate({"name": "one", "model": MODEL, "sequence": 2048, "dtypes": DTYPES}))


def test_buckets_are_pytorchs() -> None:
    """A bucket is full once it has reached its size: 1 MiB for the first, 25 MiB for the others."""
    b = GraphBuilder("g")
    sizes = [2**19, 2**19 + 1, 13 * 2**20, 12 * 2**20, 1, 99 * 2**20, 5]
    for i, size in enumerate(sizes):
        b.tensor(f"g{i}", size, "gradient")
        b.op(f"b{i}", [], [f"g{i}"])
    assert [size for _, size in met(replicas(b.build()))] == [2**20 + 1, 25 * 2**20, 1 + 99 * 2**20, 5]
    assert [size for _, size in met(replicas(b.build(), bucket="2 MiB"))] == [14 * 2**20 + 1, *sizes[3:4],
                                                                             sizes[4] + sizes[5], 5]  # fmt: skip


@settings(max_examples=60)
@given(st.lists(st.integers(1, 50), min_size=1, max_size=12), st.integers(1, 120), st.integers(2, 9))
def test_buckets_divide_all_gradients_in_order_and_only_the_last_may_lack_size(sizes, size, ranks) -> None:  # type: ignore[no-untyped-def]
    b = GraphBuilder("g")
    for i, each in enumerate(sizes):
        b.tensor(f"g{i}", each, "gradient")
        b.op(f"b{i}", [], [f"g{i}"])
    g = replicas(b.build(), ranks, bucket=f"{size} B")
    buckets = [op.reads for op in g.ops if op.collective]
    assert [t for bucket in buckets for t in bucket] == list(range(len(sizes)))
    filled = [sum(sizes[t] for t in bucket) for bucket in buckets]
    assert all(full >= size > full - sizes[bucket[-1]] for full, bucket in zip(filled[:-1], buckets, strict=False))
    assert Counter(op.name for op in g.ops).most_common(1)[0][1] == 1


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.integers(1, 30), min_size=1, max_size=4), st.integers(1, 2), st.integers(0, 3), st.integers(1, 50),
    st.integers(0, 2),
)  # fmt: skip
def test_any_step_obeys_all_laws_on_replicas_and_moves_what_is_marked(  # type: ignore[no-untyped-def]
    sizes, micros, stage, bucket, ahead
) -> None:
    """Each gradient is summed once; each updated weight gathered once, or with stage 3 in each pass that uses it."""
    b = GraphBuilder("random")
    b.tensor("x", 1, "input", persistent=True)
    for i, size in enumerate(sizes):
        b.tensor(f"w{i}", size, "weight", persistent=True)
        b.tensor(f"s{i}", 2 * size, "optimizer_state", persistent=True)
        b.tensor(f"g{i}", size, "gradient")
    for micro in range(micros):
        last = "x"
        for i in range(len(sizes)):
            b.tensor(f"{micro}/y{i}", 3)
            b.op(f"{micro}/{i}/fwd", [last, f"w{i}"], [f"{micro}/y{i}"], duration_ns=7, phase="forward")
            last = f"{micro}/y{i}"
        for i in reversed(range(len(sizes))):
            held = [f"g{i}"] if micro else []
            b.tensor(f"{micro}/d{i}", 2)
            made = [f"{micro}/d{i}", f"g{i}"]
            b.op(f"{micro}/{i}/bwd", [last, f"w{i}", *held], made, duration_ns=9, phase="backward")
            last = f"{micro}/d{i}"
    for i in range(len(sizes)):
        b.op(f"{i}/up", [f"w{i}", f"s{i}", f"g{i}"], [f"w{i}", f"s{i}"], phase="update")
    more = {"gathers_ahead": ahead} if stage == 3 else {}
    g = replicas(b.build(), zero_stage=stage, bucket=f"{bucket} B", **more)
    timeline(g)
    of_kind = Counter[str]()
    for kind, size in met(g):
        of_kind[kind] += size
    assert of_kind["reduce_scatter" if stage else "all_reduce"] == sum(sizes)
    units = len([op for op in g.ops if "all_gather" in op.name])
    if stage in (1, 2):
        assert of_kind["all_gather"] == sum(sizes)
    elif stage == 3:  # of n units, a pass gathers n, or n - 1 if one stays
        first = next(i for i, op in enumerate(g.ops) if op.phase == "backward")
        each = sum("all_gather" in op.name for op in g.ops[:first])
        assert units == each + (2 * micros - 1) * (each - 1)


@cache
def rows(stage: int) -> dict[str, dict[str, int]]:
    """Rows of eight replicas: as the builder makes them, and the graph of one rank in buckets of a layer and in one."""
    parallel = {"ranks": "all", "data": 8, "zero_stage": stage}
    machine, found = load("dgx_h100", "hardware").document, {}
    built = build_job(Workload.model_validate(
        {"name": "w", "model": MODEL, "sequence": 2048, "dtypes": DTYPES, "parallel": parallel}))  # fmt: skip
    jobs = {"built": built.graphs[0]}
    jobs |= {name: replicas(one_rank(), 8, zero_stage=stage, bucket=size)
             for name, size in (("layers", f"{LAYER_BYTES} B"), ("once", "1 TB"))}  # fmt: skip
    for name, graph in jobs.items():
        kinds = Counter[str]()
        for kind, size in met(graph):
            kinds[kind] += size
        group = graph.groups[0].members[0]
        times = [collective_ns(op.collective, group, machine) for op in graph.ops if op.collective]
        job = hosim.Job(name, (graph,), (0,) * 8, (name,))
        row = hosim.run(hardware="dgx_h100", workload="tiny_train", job=job, policies=["resident"]).summary.iloc[0]
        figures = ("step_ns", "compute_ns", "peak_hbm_bytes")
        found[name] = {"met": dict(kinds), "took": times, **{key: int(row[key]) for key in figures}}
        alone = durations_ns(graph, machine)
        found[name]["alone"] = [(op, ns) for op, ns in zip(graph.ops, alone, strict=True)]
    return found


@pytest.mark.parametrize("stage", some(range(4), 3))
def test_a_graph_over_replicas_communicates_computes_and_holds_what_the_model_over_replicas_does(stage: int) -> None:
    """To the byte and the ns, all but when which gradient is summed: a bucket of the graph may end within a layer."""
    found = rows(stage)
    for name in ("layers", "once")[: 2 if stage < 3 else 1]:
        assert found[name]["met"] == found["built"]["met"]
        assert found[name]["compute_ns"] == found["built"]["compute_ns"]
        assert found[name]["peak_hbm_bytes"] == found["built"]["peak_hbm_bytes"]


def exposed(alone: list) -> int:
    """How long the update waits for sums that follow one another, each once its gradients are there."""
    now = end = 0
    made = {}
    for op, ns in alone:
        if op.phase == "update":
            break
        if op.collective:
            end = max(end, *(made[t] for t in op.reads)) + ns
        else:
            now += ns
            made.update(dict.fromkeys(op.writes, now))
    return max(0, end - now)


@pytest.mark.parametrize("name", ["built", "layers", "once"])
def test_the_step_is_compute_and_the_sums_that_outlast_backward(name: str) -> None:
    """In both: the update begins with the table, whose gradient is summed last."""
    row = rows(0)[name]
    assert row["step_ns"] == row["compute_ns"] + exposed(row["alone"])
    if name == "once":
        assert row["step_ns"] - row["compute_ns"] == row["took"][0]


@pytest.mark.slow
def test_a_captured_step_of_pytorch_runs_on_eight_ranks(tmp_path) -> None:  # type: ignore[no-untyped-def]
    torch = pytest.importorskip("torch", reason="torch is not installed")
    torch_steps = pytest.importorskip("torch_steps", reason="transformers is not installed")
    model, x, more = torch_steps.perceptron()
    model, x = model.to(torch.bfloat16), x.to(torch.bfloat16)
    hosim.torch.capture(model, x, **more, optimizer=torch.optim.AdamW).write(tmp_path / "mine.yaml")
    given = {"hardware": "dgx_h100", "workload": tmp_path / "mine.yaml", "policies": ["resident", "static"]}
    keys = "compute_ns", "peak_hbm_bytes"
    one = hosim.run(**given).summary.iloc[0]
    parameters = 256 * 1024 + 1024 + 1024**2 + 1024 + 10 * 1024 + 10
    for stage in range(4):
        fields = {"ranks": "all", "data": 8, "zero_stage": stage}
        results = hosim.run(**given, set={f"workload.parallel.{key}": value for key, value in fields.items()})
        row = results.summary.iloc[0]
        assert set(results.summary["status"]) == {"ok"}
        assert row["ranks"] == 8
        assert row["samples_per_s"] == pytest.approx(8 * 512e9 / row["step_ns"])
        kept = 4 * parameters  # two moments of 2 B, of which a rank has an eighth
        if stage in (1, 2):
            assert one["peak_hbm_bytes"] - row["peak_hbm_bytes"] >= kept * 7 // 8
        assert stage or [one[key] for key in keys] == [row[key] for key in keys]


def test_what_cannot_be_cut_is_rounded_up() -> None:
    g = replicas(step(), 3, zero_stage=2, bucket="1 B")
    sizes = {t.name: t.size_bytes for t in g.tensors}
    assert [sizes[name] for name in ("s0", "s1", "g0.shard")] == [ceil(40 / 3), ceil(80 / 3), ceil(20 / 3)]
    update = next(op for op in g.ops if op.phase == "update")
    assert (update.read_bytes, update.write_bytes) == (20, ceil(40 / 3))


def test_a_graph_whose_ranks_meet_already_is_refused() -> None:
    b = GraphBuilder("g")
    b.tensor("g", 8, "gradient")
    b.op("sum", [], ["g"], "collective", duration_ns=5)
    found = refusal(replicas, b.build())
    assert "workload w, parallel: ranks stand in the graph, or in the workload, found both, as in op 'sum'" in found


def changed(**changes: object) -> Graph:
    """The step, with an op or a tensor changed."""
    b, base = GraphBuilder("step"), step()
    for t in base.tensors:
        persistent = t.persistent or t.name in changes.get("lasting", ())  # type: ignore[operator]
        b.tensor(t.name, t.size_bytes, changes.get(t.name, str(t.kind)), persistent=persistent)  # type: ignore[arg-type]
    names = [t.name for t in base.tensors]
    for op in base.ops:
        more = {"phase": op.phase if changes.get("phases", True) else "", "duration_ns": op.duration_ns}
        more |= changes.get("of_update", {}) if op.phase == "update" else {}  # type: ignore[operator]
        b.op(op.name, [names[t] for t in op.reads], [names[t] for t in op.writes], **more)  # type: ignore[arg-type]
    return b.build()


@pytest.mark.parametrize(
    ("graph", "stage", "message"),
    [
        (changed(g0="activation", g1="activation"), 0, 'writes them, found none; give them "kind": "gradient"'),
        (changed(phases=False), 1, "ZeRO cuts the update, found no op of that phase"),
        (changed(lasting=("g0",)), 2, "a gradient in shards is new in each step, found 'g0' of kind gradient"),
        (changed(s1="activation"), 1, "every output of the update is marked, found 's1' of kind activation"),
        (changed(of_update={"duration_ns": 7}), 1, "no measured time and no dynamic reads, found 0/update/adam"),
        (changed(of_update={"op_class": "matmul"}), 3, "ranks share has class vector, no measured time and no dynamic"),
        (changed(w0="optimizer_state"), 1, "the update alone uses states, found 'w0' of kind optimizer_state"),
    ],
)  # fmt: skip
def test_what_is_not_marked_or_cannot_be_cut_is_refused(graph: Graph, stage: int, message: str) -> None:
    assert message in refusal(replicas, graph, zero_stage=stage)
    if stage:
        assert replicas(graph, zero_stage=0)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ("{ranks: all, data: 2, tensor: 2}", "gathers_ahead, bucket), a model no bucket, found tensor; remove it"),
        ("{ranks: all, data: 2, pipeline: 2}", "parallel.pipeline: a graph has replicas"),
        ("{ranks: all, data: 2, micro_batches: 2}", "parallel.micro_batches: a graph has replicas"),
        ("{data: 2}", "parallel.ranks: all replicas of a graph are ranks, found one; set it to all"),
        ("{ranks: all, data: 2}\nreplicas: 2", "replicas: a replica is one rank that meets no other"),
        ("{ranks: all, data: 2, bucket: 0 B}", "parallel.bucket"),
        ("{ranks: all, data: 2, gathers_ahead: 2}", "only weights that ZeRO shards are gathered ahead"),
    ],
)  # fmt: skip
def test_fields_that_a_graph_does_not_have_are_refused(tmp_path, fields: str, message: str) -> None:  # type: ignore[no-untyped-def]
    graph_jsonl.write(step(), tmp_path / "g.jsonl")
    (tmp_path / "w.yaml").write_text(f"schema: hosim/workload/1\nname: w\ngraph: g.jsonl\nparallel: {fields}\n")
    with pytest.raises(ConfigError) as caught:
        hosim.run(hardware="dgx_h100", workload=tmp_path / "w.yaml", policies=["resident"])
    assert message in str(caught.value)


def test_a_model_has_no_buckets() -> None:
    parallel = {"ranks": "all", "data": 2, "bucket": "1 MB"}
    found = refusal(hosim.run, hardware="dgx_h100", workload="tiny_train", policies=["resident"],
                    set={f"workload.parallel.{key}": value for key, value in parallel.items()})  # fmt: skip
    assert "parallel.bucket: a graph has replicas" in found


def test_one_replica_is_the_graph_itself() -> None:
    assert spread(step(), Parallel(ranks="all"), "w").graphs[0] == step()


def test_the_table_of_the_guide_is_what_comes_out(tmp_path) -> None:  # type: ignore[no-untyped-def]
    guide = (ROOT / "docs" / "how-to" / "layouts.md").read_text(encoding="utf-8")
    graph_jsonl.write(build(load("tiny_train", "workload").document), tmp_path / "tiny.jsonl")
    (tmp_path / "tiny.yaml").write_text("schema: hosim/workload/1\nname: tiny\ngraph: tiny.jsonl\n")
    shown = re.findall(r"^\| (\d) \| (.+) \| ([\d.]+) ms \| (\d+) MB \| (\d+) % \|$", guide, re.MULTILINE)
    assert len(shown) == 4
    for stage, _, step_ms, peak_mb, under in shown:
        fields = {"ranks": "all", "data": 8, "zero_stage": int(stage), "bucket": "2 MiB"}
        row = hosim.run(
            hardware="dgx_h100", workload=tmp_path / "tiny.yaml", policies=["resident"],
            set={f"workload.parallel.{key}": value for key, value in fields.items()},
        ).summary.iloc[0]  # fmt: skip
        assert f"{row['step_ns'] / 1e6:.2f}" == step_ms
        assert f"{row['peak_hbm_bytes'] / 1e6:.0f}" == peak_mb
        assert f"{100 * row['masked_fraction']:.0f}" == under
