"""Steps of several ranks, captured as that of the first: peaks are those of PyTorch's tracker and of closed forms."""

import warnings
from collections import Counter
from functools import cache

import pytest
from examples import some

torch = pytest.importorskip("torch", reason='torch is not installed (pip install "hosim[torch]")')

import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard  # noqa: E402
from torch.distributed.tensor import Shard  # noqa: E402
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module  # noqa: E402
from torch_steps import memory_tracker  # noqa: E402

import simulator as hosim  # noqa: E402
from simulator.errors import ConfigError  # noqa: E402
from simulator.importers import torch_run  # noqa: E402
from simulator.lifetime import live_bytes  # noqa: E402

RANKS, LAYERS, WIDTH, ROWS = 8, 4, 256, 64
LAYER_BYTES = 2 * 2 * 4 * WIDTH * WIDTH  # two matrices in bf16
ALL = tuple(range(RANKS))


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH, bias=False), nn.Linear(4 * WIDTH, WIDTH, bias=False)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(x)))


def mean(made):
    return made.float().pow(2).mean()


def layers():
    return nn.Sequential(*(Layer() for _ in range(LAYERS))).to(torch.bfloat16)


def sharded(model=None, mesh=None, **more):
    model = model or layers()
    for layer in model:
        fully_shard(layer, mesh=mesh, **more)
    return fully_shard(model, mesh=mesh, **more)


def tensor_parallel(mesh=None, layout=None):
    model, mesh = layers(), mesh or init_device_mesh("cuda", (RANKS,))
    for layer in model:
        up, down = ColwiseParallel(input_layouts=layout), RowwiseParallel(output_layouts=layout)
        parallelize_module(layer, mesh, {"up": up, "down": down})
    return model


def replicated():
    dist.init_process_group("nccl")  # as a program for a cluster does
    return nn.parallel.DistributedDataParallel(layers(), bucket_cap_mb=1)


class Partly(nn.Module):
    """Layers of which a step uses all but the second."""

    def __init__(self):
        super().__init__()
        self.parts = layers()

    def forward(self, x):
        return self.parts[3](self.parts[2](self.parts[0](x)))


def partly(**more):
    dist.init_process_group("nccl")
    return nn.parallel.DistributedDataParallel(Partly(), bucket_cap_mb=2, **more)


def finding():
    return partly(find_unused_parameters=True)


def both():
    mesh = init_device_mesh("cuda", (2, RANKS // 2), mesh_dim_names=("data", "tensor"))
    return sharded(tensor_parallel(mesh["tensor"]), mesh["data"])


def captured(make, rows=ROWS):
    with hosim.torch.fake(ranks=RANKS):
        model, x = make(), torch.randn(rows, WIDTH, dtype=torch.bfloat16)
    return hosim.torch.capture(model, x, loss=mean, optimizer=torch.optim.AdamW), model, x


@cache
def found_of(make, rows=ROWS):
    """What was captured of a step, once for all tests that look at its graph alone."""
    return captured(make, rows)[0]


@pytest.fixture(autouse=True)
def alone():
    """Leave no process group to other tests."""
    yield
    if dist.is_initialized():
        dist.destroy_process_group()


def met(graph):
    """Kind and group of collectives -> their sizes."""
    found = {}
    for op in graph.ops:
        if op.collective:
            group = next(group for group in graph.groups if group.name == op.collective.group)
            found.setdefault((str(op.collective.kind), group.members[0]), []).append(op.collective.size_bytes)
    return found


def held(graph):
    """Kind -> bytes of what is there from the start."""
    found = Counter()
    for tensor in graph.tensors:
        found[str(tensor.kind)] += tensor.size_bytes if tensor.persistent else 0
    return found


@pytest.mark.parametrize(
    "make",
    [
        finding,
        *(
            pytest.param(make, marks=pytest.mark.slow)
            for make in (
                sharded,
                replicated,
                lambda: sharded(mesh=init_device_mesh("cuda", (2, RANKS // 2), mesh_dim_names=("a", "b"))),
            )
        ),
    ],
)
def test_the_peak_of_a_rank_is_that_of_pytorchs_memory_tracker(make):
    found, model, x = captured(make)
    with hosim.torch.fake(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        optimizer = torch.optim.AdamW(model.parameters())
        step = torch_run.step_of(model, optimizer, mean)
        step(x)
        tracker = memory_tracker()
        tracker.track_external(model, optimizer, x)
        with tracker:
            step(x)
    theirs = sum(each["Total"] for each in tracker.get_tracker_snapshot("peak").values())
    counts, notes = 4 * 2 * (LAYERS - (make is finding)), 4 * 2 * LAYERS * (make is finding)  # of steps; of the host
    assert int(live_bytes(found.graph).max()) == theirs - counts - notes


def test_fsdp_shares_states_and_holds_what_it_gathered():
    graph = found_of(sharded, rows=1).graph
    states = held(graph)
    assert (states["weight"], states["optimizer_state"]) == (
        LAYERS * LAYER_BYTES // RANKS, 2 * LAYERS * LAYER_BYTES // RANKS,
    )  # fmt: skip
    gradients = sum(tensor.size_bytes for tensor in graph.tensors if tensor.kind == "gradient")
    assert gradients == LAYERS * (LAYER_BYTES + LAYER_BYTES // RANKS)  # whole ones, and the parts that are kept
    assert {op.phase for op in graph.ops if "_reduce_scatter_" in op.name} == {"backward"}  # also of the first layer
    peak = int(live_bytes(graph).max())
    shards = 3 * LAYERS * LAYER_BYTES // RANKS + (LAYERS - 2) * LAYER_BYTES // RANKS  # and gradients, before the last
    of_one_row = 3 * LAYERS * 4 * 2 * 4 * WIDTH  # activations at most
    # In backward of a layer: its weights and gradients, the layer before it, gathered ahead, and the gradients of that
    # behind it, which PyTorch keeps until they are scattered.
    assert shards + 4 * LAYER_BYTES <= peak <= shards + 4 * LAYER_BYTES + of_one_row


@pytest.mark.slow
def test_fsdp_meets_as_zero_3_of_hosim_does():
    found = found_of(sharded)
    sizes = met(found.graph)
    # FSDP gathers the last layer for backward again, which the builder keeps: torchtitan tells FSDP to.
    assert sizes == {
        ("all_gather", ALL): [LAYER_BYTES] * 2 * LAYERS,
        ("reduce_scatter", ALL): [LAYER_BYTES] * LAYERS,
    }
    with hosim.torch.fake(ranks=1):
        model, x = layers(), torch.randn(ROWS, WIDTH, dtype=torch.bfloat16)
    one = hosim.torch.capture(model, x, loss=mean, optimizer=torch.optim.AdamW)
    assert not one.graph.groups
    from simulator.builders.replicas import spread
    from simulator.workload import Parallel

    parallel = Parallel(ranks="all", data=RANKS, zero_stage=3, bucket=f"{LAYER_BYTES} B")
    (ours,) = spread(one.graph, parallel, "test").graphs
    theirs = Counter({kind: sum(parts) for (kind, _), parts in met(ours).items()})
    assert theirs["reduce_scatter"] == sum(sizes["reduce_scatter", ALL])
    assert theirs["all_gather"] == sum(sizes["all_gather", ALL]) - LAYER_BYTES
    assert held(ours) == held(found.graph)
    assert ours.arithmetic == found.graph.arithmetic


@pytest.mark.parametrize("policy", some([MixedPrecisionPolicy(param_dtype=torch.bfloat16), None], 2))
def test_fsdp_gathers_a_layer_while_the_one_before_it_computes(policy):
    def make():
        return sharded(layers().float(), **({"mp_policy": policy} if policy else {}))

    graph = found_of(make).graph
    names = [op.name.partition("@")[0] for op in graph.ops if op.phase == "forward" and not op.name.startswith("step")]
    gather = ["_foreach_copy_", "all_gather_copy_in", "_allgather_base_"][policy is None :]
    for layer in range(LAYERS - 1):
        place = names.index(f"{layer}/fwd/split_with_sizes_copy")
        ahead = [f"{layer + 1}/fwd/{part}" for part in gather]
        assert names[place + 1 : place + 1 + len(ahead)] == ahead
    assert names.index("1/fwd/all_gather_copy_in") < names.index("0.up/fwd/mm")


def test_tensor_parallel_layers_add_up_what_they_make():
    graph = found_of(tensor_parallel).graph
    assert met(graph) == {("all_reduce", ALL): [2 * ROWS * WIDTH] * (2 * LAYERS - 1)}  # no gradient of the input
    assert held(graph)["weight"] == LAYERS * LAYER_BYTES // RANKS
    products = 2 * ROWS * 4 * WIDTH * WIDTH
    assert sum(graph.arithmetic.values()) == (6 * LAYERS - 1) * products // RANKS


@pytest.mark.slow
def test_sequence_parallel_layers_gather_and_scatter():
    graph = found_of(lambda: tensor_parallel(layout=Shard(0)), rows=ROWS // RANKS).graph
    sizes = met(graph)
    assert {kind for kind, _ in sizes} == {"all_gather", "reduce_scatter"}
    assert {size for parts in sizes.values() for size in parts} == {2 * ROWS * WIDTH}


def test_replicas_reduce_their_gradients_in_buckets():
    graph = found_of(replicated).graph
    (sizes,) = met(graph).values()
    assert sum(sizes) == LAYERS * LAYER_BYTES
    assert sizes == [LAYER_BYTES // 2 * 2] * LAYERS  # of 1 MiB each
    assert held(graph)["gradient"] == LAYERS * LAYER_BYTES  # the buckets
    places = [index for index, op in enumerate(graph.ops) if op.collective]
    assert any(op.flops for op in graph.ops[places[0] :] if op.phase == "backward")  # beside the rest of backward


@pytest.mark.slow
def test_replicas_that_find_unused_parameters_keep_their_first_buckets_and_say_which_are_used():
    """Buckets of 2 MiB, and a number for each parameter, as two processes of gloo meet by PyTorch's profiler."""
    graph = found_of(finding).graph
    (sizes,) = met(graph).values()
    assert sizes == [2 * LAYER_BYTES] * 2 + [4 * 2 * LAYERS]
    names = [tensor.name for tensor in graph.tensors if tensor.kind in ("optimizer_state", "gradient")]
    assert any("parts.0" in name for name in names)
    assert not any("parts.1" in name for name in names)


@pytest.mark.slow
def test_a_static_graph_is_shared_as_any_other():
    def static():
        dist.init_process_group("nccl")
        return nn.parallel.DistributedDataParallel(layers(), bucket_cap_mb=1, static_graph=True)

    found, plain = (found_of(make).graph for make in (static, replicated))
    assert met(found) == met(plain)
    assert held(found) == held(plain)


def test_gradients_that_are_never_reduced_are_refused():
    with pytest.raises(ConfigError, match=r"DistributedDataParallel: each parameter has a gradient .* say find_unused"):
        captured(partly)


@pytest.mark.slow
def test_gradients_that_are_added_up_before_they_are_reduced_wait_for_no_others():
    with hosim.torch.fake(ranks=RANKS):
        model, x = replicated(), torch.randn(ROWS, WIDTH, dtype=torch.bfloat16)
        optimizer = torch.optim.SGD(model.parameters())

    def step():
        optimizer.zero_grad()
        with model.no_sync():
            mean(model(x)).backward()
        mean(model(x)).backward()
        optimizer.step()

    (sizes,) = met(hosim.torch.capture(step).graph).values()
    assert sizes == [LAYER_BYTES] * LAYERS


@pytest.mark.slow
def test_two_axes_meet_apart():
    graph = found_of(both).graph
    pairs, fours = (0, 4), (0, 1, 2, 3)
    sizes = met(graph)
    assert sizes["reduce_scatter", pairs] == [LAYER_BYTES // 4] * LAYERS
    assert sizes["all_gather", pairs] == [LAYER_BYTES // 4] * 2 * LAYERS
    assert set(sizes["all_reduce", fours]) == {2 * ROWS * WIDTH}
    members = {group.members for group in graph.groups}
    assert ((0, 4), (1, 5), (2, 6), (3, 7)) in members
    assert ((0, 1, 2, 3), (4, 5, 6, 7)) in members


@pytest.mark.parametrize(("make", "shares"), some([(sharded, 8), (tensor_parallel, 1), (replicated, 8), (both, 2)], 2))
def test_what_was_captured_runs_on_as_many_ranks(make, shares, tmp_path):
    made = found_of(make)
    made.write(tmp_path / "mine.yaml")
    assert made.workload.batch == ROWS * shares
    told = f"; {shares} share gradients." if shares > 1 else "."
    assert f"All 8 ranks do what the first does{told}" in made.derived
    found = hosim.run(hardware="dgx_h100", workload=tmp_path / "mine.yaml", policies=["resident", "static"])
    rows = found.summary
    assert set(rows["status"]) == {"ok"}
    assert (rows["wait_collective_ns"] > 0).all()


def test_what_is_not_alike_on_all_ranks_is_refused_by_name():
    def step(x):
        model(x).sum().backward()
        dist.send(x, 1)

    with hosim.torch.fake(ranks=2):
        model, x = nn.Linear(8, 8), torch.randn(4, 8)
    with pytest.raises(ConfigError, match=r"test_torch_ranks\.py:\d+: all ranks .* do the same, found send, of one"):
        hosim.torch.capture(step, x)


def test_weights_that_lie_on_the_host_are_refused():
    with pytest.raises(ConfigError, match="parameters of FSDP lie on the device, found CPUOffloadPolicy"):
        captured(lambda: sharded(offload_policy=CPUOffloadPolicy(pin_memory=False)))


def test_ranks_that_are_there_are_not_called(tmp_path, monkeypatch):
    def step(x):
        dist.all_reduce(x)

    with pytest.raises(ConfigError, match="from 1 to"):
        hosim.torch.fake(ranks=0).__enter__()
    store = dist.FileStore(str(tmp_path / "store"), 1)
    dist.init_process_group("gloo", rank=0, world_size=1, store=store)
    with hosim.torch.fake():
        x = torch.randn(4)
    found = hosim.torch.capture(step, x).graph  # of one rank
    assert not found.groups
    with pytest.raises(ConfigError, match="a captured rank runs alone, found a process group"):
        hosim.torch.fake(ranks=2).__enter__()
    monkeypatch.setattr(dist, "get_process_group_ranks", lambda _: [0, 1])
    with pytest.raises(ConfigError, match="a captured rank runs alone, found allreduce_ with others"):
        hosim.torch.capture(step, x)
