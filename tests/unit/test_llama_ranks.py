"""LLaMA training over ranks against closed forms that know nothing of the builder."""

import re
from collections import Counter
from fractions import Fraction
from functools import cache
from itertools import product

import pytest
from building import build
from examples import some
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.builders import build_job
from simulator.errors import ConfigError
from simulator.graph import Collective, CollectiveKind, Graph, Job, OpKind
from simulator.lifetime import Lifetimes
from simulator.workload import LlamaModel, Parallel, Workload

LLAMA3_8B = LlamaModel(layers=32, hidden=4096, heads=32, kv_heads=8, ffn=14336, vocabulary=128256)
SMALL = LlamaModel(layers=5, hidden=16, heads=4, kv_heads=2, ffn=8, vocabulary=12)
BATCH, SEQUENCE = 2, 6
UNIT = BATCH * SEQUENCE * 16 * 2
"""Bytes of the residual of a micro-batch of SMALL."""


def workload(model: LlamaModel = SMALL, tokens: tuple[int, int] = (BATCH, SEQUENCE), /, **parallel: object) -> Workload:
    layout = Parallel(ranks="all", **parallel)  # type: ignore[arg-type]
    return Workload(name="w", model=model, batch=tokens[0], sequence=tokens[1], parallel=layout)


def job(**parallel: object) -> Job:
    return build_job(workload(**parallel))  # type: ignore[arg-type]


def flops(graph: Graph, phase: str) -> int:
    return sum(op.flops for op in graph.ops if op.phase == phase)


def bytes_of(graph: Graph, kind: str) -> int:
    return sum(t.size_bytes for t in graph.tensors if t.kind == kind)


def met(graph: Graph, **wanted: str) -> Counter[tuple[str, str, int]]:
    """How often a graph meets: (group, kind, size)."""
    found: Counter[tuple[str, str, int]] = Counter()
    for op in graph.ops:
        if op.collective is not None and all(getattr(op, key) == value for key, value in wanted.items()):
            found[op.collective.group, str(op.collective.kind), op.collective.size_bytes] += 1
    return found


@cache
def baseline() -> Job:
    """Baseline No.2 of the paper: 2/2/2, eight micro-batches."""
    parallel = {"data": 2, "tensor": 2, "pipeline": 2, "micro_batches": 8, "zero_stage": 1}
    return build_job(workload(LLAMA3_8B, (1, 8192), **parallel))


def test_ranks_of_the_baseline() -> None:
    assert baseline().graph_of == (0, 0, 0, 0, 1, 1, 1, 1)
    assert baseline().labels == ("stage 0", "stage 1")
    members = {group.name: group.members for group in baseline().graphs[0].groups}
    assert members == {
        "tensor": ((0, 1), (2, 3), (4, 5), (6, 7)),
        "data": ((0, 2), (1, 3), (4, 6), (5, 7)),
        "pipeline.next": ((0, 4), (1, 5), (2, 6), (3, 7)),
        "pipeline.previous": ((4, 0), (5, 1), (6, 2), (7, 3)),
    }


def test_what_the_baseline_communicates() -> None:
    """512 sums of 67 MB in the layers, and one more a micro-batch for the embedding and for the logits."""
    first, last = (met(graph) for graph in baseline().graphs)
    unit = 8192 * 4096 * 2
    layer = (2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14336) // 2 * 2 + 2 * 4096 * 2
    table = 128256 * 4096 // 2 * 2
    common = {("data", "reduce_scatter", layer): 16, ("data", "all_gather", layer): 16}
    assert first == common | {
        ("tensor", "all_reduce", unit): 512 + 8,
        ("data", "reduce_scatter", table): 1,
        ("data", "all_gather", table): 1,
        ("pipeline.next", "send", unit): 8,
        ("pipeline.previous", "recv", unit): 8,
    }
    assert last == common | {
        ("tensor", "all_reduce", unit): 512 + 8,
        ("tensor", "all_reduce", 3 * 8192 * 4): 8,
        ("data", "reduce_scatter", table + 8192): 1,
        ("data", "all_gather", table + 8192): 1,
        ("pipeline.next", "recv", unit): 8,
        ("pipeline.previous", "send", unit): 8,
    }
    assert unit == 67_108_864


def test_work_and_weights_of_the_baseline_are_those_of_one_device() -> None:
    """All ranks together do the work of 16 samples, and hold each weight twice, norms four times."""
    alone = build(Workload(name="w", model=LLAMA3_8B, batch=1, sequence=8192))
    found = [baseline().graph(rank) for rank in range(8)]
    for phase in ("forward", "backward"):
        assert sum(flops(graph, phase) for graph in found) == 16 * flops(alone, phase)
    norms = (2 * 32 + 1) * 4096 * 2
    held = sum(bytes_of(graph, "weight") for graph in found)
    assert held == 2 * bytes_of(alone, "weight") + 2 * norms
    assert sum(bytes_of(graph, "optimizer_state") for graph in found) == 12 * (8_030_261_248 + norms // 2)


SHAPES = [
    {"tensor": t, "data": d, "pipeline": p, "micro_batches": m, "sequence": bool(s)}
    for t, d, p, m, s in [(1, 1, 2, 3, 0), (1, 3, 1, 1, 0), (2, 1, 1, 4, 1), (2, 3, 2, 1, 1), (2, 3, 5, 4, 0)]
]


@pytest.mark.parametrize(("zero_stage", "schedule"), some([*product(range(4), ("gpipe", "1f1b"))], 3))
def test_every_layout_does_the_same_work_on_the_same_weights(zero_stage: int, schedule: str) -> None:
    alone = build(Workload(name="w", model=SMALL, batch=BATCH, sequence=SEQUENCE))
    weights = {t.name: t.size_bytes for t in alone.tensors if t.kind == "weight"}
    for shape in SHAPES:
        found = job(**shape, zero_stage=zero_stage, schedule=schedule)
        data, tensor, micro_batches = shape["data"], shape["tensor"], shape["micro_batches"]
        for phase in ("forward", "backward"):
            total = sum(flops(found.graph(rank), phase) for rank in range(found.ranks))
            assert total == data * micro_batches * flops(alone, phase)
        held: Counter[str] = Counter()
        for rank in range(found.ranks):
            held.update(
                {t.name: t.size_bytes for t in found.graph(rank).tensors if t.persistent and t.kind == "weight"}
            )
        for name, size_bytes in weights.items():
            copies = tensor if "norm" in name else 1
            if zero_stage < 3 or data == 1:
                assert held[name] == data * copies * size_bytes
            else:
                shard = -(-size_bytes // 2 * copies // tensor // data)
                assert held[name] == data * tensor * shard * 2
        for graph in found.graphs:
            check_gradients(graph)


def check_gradients(graph: Graph) -> None:
    """Every gradient is used up by updates; what comes before only adds to it; nothing outlives the step."""
    life = Lifetimes(graph)
    dead = Counter(t for ts in life.dead_after for t in ts)
    for t, tensor in enumerate(graph.tensors):
        assert dead[t] == (not tensor.persistent)
        if tensor.kind == "gradient" and not re.search(r"^mb\d/|\.part$", tensor.name):
            last = graph.ops[life.last_use[t]]
            assert last.phase in {"update", "backward"}
    updated = {op.name for op in graph.ops if op.phase == "update" and op.collective is None}
    assert len(updated) == sum(t.kind == "weight" and t.persistent for t in graph.tensors)


@pytest.mark.parametrize("sequence", [False, True])
def test_communication_of_a_step_along_tensor(sequence: bool) -> None:
    """Four sums a layer; cut along the tokens each is a reduce-scatter and a gather, and two gathers come again."""
    layers, micro_batches = 5, 3
    (graph,) = job(tensor=2, micro_batches=micro_batches, sequence=sequence).graphs
    found = met(graph)
    del found["tensor", "all_reduce", 3 * BATCH * SEQUENCE * 4]
    if not sequence:
        assert found == {("tensor", "all_reduce", UNIT): micro_batches * (4 * layers + 2)}
        return
    norms = found.pop(("tensor", "all_reduce", 2 * 16 * 2)), found.pop(("tensor", "all_reduce", 16 * 2))
    assert norms == (layers, 1)
    gathers = 6 * layers + 3  # two in forward; in backward two gradients and two again; logits twice, embedding
    assert found == {
        ("tensor", "all_gather", UNIT): micro_batches * gathers,
        ("tensor", "reduce_scatter", UNIT): micro_batches * (4 * layers + 2),
    }


@pytest.mark.parametrize(("zero_stage", "micro_batches"), list(product((0, 1, 2, 3), (1, 4))))
def test_communication_of_a_step_along_data(zero_stage: int, micro_batches: int) -> None:
    """In units of the model's bytes: 2 (an all-reduce is two), 2, 1 a micro-batch and 1, up to 3 a micro-batch."""
    (graph,) = job(data=3, micro_batches=micro_batches, zero_stage=zero_stage).graphs
    model_bytes = bytes_of(build(Workload(name="w", model=SMALL)), "weight")
    moved: Counter[str] = Counter()
    for (group, kind, size_bytes), times in met(graph).items():
        assert group == "data"
        moved[kind] += times * size_bytes
    tables = 2 * 16 * 12 * 2 + 16 * 2  # embedding and head stay from forward to backward
    expected = {
        0: {"all_reduce": model_bytes},
        1: {"reduce_scatter": model_bytes, "all_gather": model_bytes},
        2: {"reduce_scatter": micro_batches * model_bytes, "all_gather": model_bytes},
        3: {
            "reduce_scatter": micro_batches * model_bytes,
            "all_gather": micro_batches * (2 * model_bytes - tables),
        },
    }
    assert moved == expected[zero_stage]


def test_zero_shards_what_its_stage_says() -> None:
    shard = [job(data=4, zero_stage=stage).graphs[0] for stage in (0, 1, 2, 3)]
    whole = bytes_of(build(Workload(name="w", model=SMALL)), "weight")
    assert [bytes_of(graph, "optimizer_state") for graph in shard] == [6 * whole, *[6 * whole // 4] * 3]
    held = [sum(t.size_bytes for t in graph.tensors if t.persistent and t.kind == "weight") for graph in shard]
    assert held == [whole, whole, whole, whole // 4]
    kept = [sum(t.size_bytes for t in g.tensors if t.kind == "gradient" and t.name.endswith(".shard")) for g in shard]
    assert kept == [0, 0, whole // 4, whole // 4]


@pytest.mark.parametrize("ahead", [0, 1, 2, 3])
def test_weights_are_gathered_as_many_blocks_ahead_as_is_said(ahead: int) -> None:
    """So many layers and the current one are there at once, of as many gathers; one ahead is usual."""
    (usual,), (graph,) = (job(data=2, zero_stage=3, **more).graphs for more in ({}, {"gathers_ahead": ahead}))
    assert met(graph) == met(usual)
    assert (graph == usual) == (ahead == 1)
    whole = [t for t, tensor in enumerate(graph.tensors) if re.match(r"L\d+/.*gathered$", tensor.name)]
    layer = sum(graph.tensors[t].size_bytes for t in whole) // SMALL.layers
    lives, live = Lifetimes(graph), list[int]()
    for op in range(len(graph.ops)):
        live.append(sum(graph.tensors[t].size_bytes for t in whole if lives.born[t] <= op <= lives.dies[t]))
    assert max(live) == (ahead + 1) * layer
    with pytest.raises(ValueError, match="only weights that ZeRO shards are gathered ahead, found it with zero_s"):
        job(data=2, zero_stage=2, gathers_ahead=ahead)


def runs(graph: Graph) -> list[str]:
    """Micro-batches in the order of their first op forward and backward: ``F0``, ``B0``."""
    found = []
    for op in graph.ops:
        micro = re.match(r"mb(\d+)/", op.name)
        if micro and op.kind is OpKind.COMPUTE and op.phase in {"forward", "backward"}:
            turn = f"{op.phase[0].upper()}{micro[1]}"
            if not found or found[-1] != turn:
                found.append(turn)
    return found


def test_order_of_1f1b_and_gpipe() -> None:
    stages = [runs(graph) for graph in job(pipeline=3, micro_batches=4).graphs]
    assert [" ".join(stage) for stage in stages] == [
        "F0 F1 F2 B0 F3 B1 B2 B3",
        "F0 F1 B0 F2 B1 F3 B2 B3",
        "F0 B0 F1 B1 F2 B2 F3 B3",
    ]
    assert runs(job(pipeline=2, micro_batches=2, schedule="gpipe").graphs[0]) == ["F0", "F1", "B1", "B0"]


@st.composite
def shapes(draw: st.DrawFn) -> dict[str, object]:
    return {
        "pipeline": draw(st.integers(1, 5)),
        "data": draw(st.integers(1, 2)),
        "tensor": draw(st.integers(1, 2)),
        "micro_batches": draw(st.integers(1, 6)),
        "schedule": draw(st.sampled_from(["gpipe", "1f1b"])),
        "sequence": draw(st.booleans()),
        "zero_stage": draw(st.integers(0, 3)),
    }


@settings(max_examples=25, deadline=None)
@given(shapes())
def test_ranks_meet_in_program_order(shape: dict[str, object]) -> None:
    """Run all programs op by op, one collective of a rank at a time: nobody waits for ever, all agree."""
    found = job(**shape)
    at = [0] * found.ranks
    while True:
        moved = False
        for rank in range(found.ranks):
            moved |= advance(found, at, rank)
        if not moved:
            break
    assert at == [len(found.graph(rank).ops) for rank in range(found.ranks)]


def advance(found: Job, at: list[int], rank: int) -> bool:
    """Run a rank up to its next collective, and that if all who meet are there."""
    graph, start = found.graph(rank), at[rank]
    while at[rank] < len(graph.ops) and graph.ops[at[rank]].collective is None:
        at[rank] += 1
    mine = waiting(found, at, rank)
    if mine is None or any(not meets(rank, mine, other, waiting(found, at, other)) for other in mine[0]):
        return at[rank] > start
    for other in mine[0]:
        at[other] += 1
    return True


def waiting(found: Job, at: list[int], rank: int) -> tuple[tuple[int, ...], Collective] | None:
    """Who meets in the collective that a rank stands at, and what it is."""
    graph = found.graph(rank)
    about = graph.ops[at[rank]].collective if at[rank] < len(graph.ops) else None
    if about is None:
        return None
    members = next(group for group in graph.groups if group.name == about.group).by_rank(about.kind).get(rank)
    assert members is not None
    return members, about


def meets(
    rank: int,
    mine: tuple[tuple[int, ...], Collective],
    other: int,
    theirs: tuple[tuple[int, ...], Collective] | None,
) -> bool:
    if theirs is None or theirs[0] != mine[0]:
        return False
    kinds = (mine[1].kind, theirs[1].kind)
    paired = {CollectiveKind.SEND, CollectiveKind.RECV}
    agree = rank == other or (set(kinds) == paired if mine[1].kind in paired else kinds[0] == kinds[1])
    assert agree, "those who meet do different things"
    assert theirs[1].size_bytes == mine[1].size_bytes
    return True


def test_a_layout_may_be_changed_by_pattern() -> None:
    """With the table whole on every tensor rank nothing is summed up after the embedding."""
    (graph,) = job(tensor=2, layouts={"embed/tokens.weight": ("none", "none")}).graphs
    usual = job(tensor=2).graphs[0]
    assert met(usual)["tensor", "all_reduce", UNIT] - met(graph)["tensor", "all_reduce", UNIT] == 1
    size = {t.name: t.size_bytes for t in graph.tensors}
    assert size["embed/tokens.weight"] == 12 * 16 * 2
    (graph,) = job(tensor=2, layouts={"*/attn.q.weight": ("none", "none")}).graphs
    assert {op.name for op in graph.ops if op.name.endswith(".slice")} >= {"L00/fwd/rope.q.out.slice"}


BAD = {
    "heads": (
        {"tensor": 3},
        "parallel.tensor: tensor divides heads, ffn, vocabulary, found 3, and 4 heads",
    ),
    "what would do": ({"tensor": 3}, "set parallel.tensor to 2"),
    "stages": (
        {"pipeline": 6},
        "each stage has some of the model's 5 layers, found 6 stages; set pipeline to at most 5",
    ),
    "layers": (
        {"pipeline": 2, "layers": (2, 2)},
        "the stages have the 5 layers of the model, and one at least, found 2, 2",
    ),
    "a pattern": ({"layouts": {"L*/attn.w.weight": ("none", "none")}}, "a pattern is for weights that the model has"),
    "an axis": (
        {"layouts": {"*/attn.q.weight": ("data", "none")}},
        "of 2 dimensions of a weight tensor, at most once, or none, found data, none",
    ),
    "dimensions": (
        {"layouts": {"*/norm1.weight": ("none", "none")}},
        "of 1 dimension of a weight tensor, at most once, or none, found none, none",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_what_does_not_divide_is_refused(name: str) -> None:
    parallel, message = BAD[name]
    with pytest.raises(ConfigError) as caught:
        job(**parallel)
    assert message in str(caught.value)


def test_tied_embeddings_have_one_stage() -> None:
    tied = SMALL.model_copy(update={"tied_embeddings": True})
    with pytest.raises(ConfigError, match="a model with tied embeddings has one stage"):
        build_job(workload(tied, pipeline=2))
    assert build_job(workload(tied, tensor=2, zero_stage=3, data=2)).ranks == 4


def test_micro_batches_add_up_gradients_on_one_rank() -> None:
    once = build(Workload(name="w", model=SMALL, batch=BATCH, sequence=SEQUENCE))
    layout = Parallel(micro_batches=3)
    thrice = build(Workload(name="w", model=SMALL, batch=BATCH, sequence=SEQUENCE, parallel=layout))
    assert bytes_of(thrice, "gradient") == bytes_of(once, "gradient")
    assert flops(thrice, "backward") == 3 * flops(once, "backward")
    grad = next(i for i, t in enumerate(thrice.tensors) if t.name == "L00/attn.q.weight.grad")
    writers = [op for op in thrice.ops if grad in op.writes]
    assert [grad in op.reads for op in writers] == [False, True, True]


def test_share_of_a_slice() -> None:
    """One rank's slice and the rank of a job hold and compute the same; only the job communicates."""
    slice_ = build(Workload(name="w", model=SMALL, parallel=Parallel(data=4, zero_stage=1)))
    (graph,) = build_job(Workload(name="w", model=SMALL, parallel=Parallel(ranks="all", data=4, zero_stage=1))).graphs
    assert slice_.tensors == graph.tensors
    assert slice_.ops == tuple(op for op in graph.ops if op.collective is None)
    assert Fraction(len(graph.ops) - len(slice_.ops), 2) == 5 + 2
