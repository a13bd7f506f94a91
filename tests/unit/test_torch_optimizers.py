"""Optimizers that ask for values, and sparse gradients: a captured step has the bytes of one that runs."""

import pytest

torch = pytest.importorskip("torch", reason='torch is not installed (pip install "hosim[torch]")')

from torch import nn  # noqa: E402

import simulator as hosim  # noqa: E402
from simulator.errors import ConfigError  # noqa: E402
from simulator.importers.torch import imported  # noqa: E402
from simulator.importers.torch_recorder import OpRecorder  # noqa: E402
from simulator.importers.torch_run import ModuleWatch  # noqa: E402

ROWS, WIDTH, TAKEN = 1000, 16, 32


def factored(**options):
    model = nn.Linear(64, 128)
    return model, torch.optim.Adafactor(model.parameters(), **options), torch.randn(8, 64)


def sparse(optimizer, kind=nn.Embedding, **options):
    model = kind(ROWS, WIDTH, sparse=True)
    return model, optimizer(model.parameters(), **options), torch.arange(TAKEN).reshape(8, 4)  # all different


STEPS = {
    "Adafactor": factored,
    "Adafactor, of all at once": lambda: factored(foreach=True, weight_decay=0.1),
    "SGD": lambda: sparse(torch.optim.SGD, lr=0.1),
    "Adam": lambda: sparse(torch.optim.SparseAdam),
    "Adagrad": lambda: sparse(torch.optim.Adagrad),
    "bags": lambda: sparse(torch.optim.SparseAdam, nn.EmbeddingBag),
}


def step_of(model, optimizer):
    def step(x):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

    return step


def recorded(model, optimizer, x):
    """The graph of a step that ran."""
    step = step_of(model, optimizer)
    with ModuleWatch(has_memory=True) as watch:
        step(x)
        with OpRecorder(watch, ((x,), {})) as record:
            step(x)
    return imported("step", record, free_early=False, how="").graph


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")
@pytest.mark.parametrize("name", STEPS)
def test_an_update_has_the_bytes_of_one_that_runs(name):
    with hosim.torch.fake():
        model, optimizer, x = STEPS[name]()
    captured, real = hosim.torch.capture(step_of(model, optimizer), x).graph, recorded(*STEPS[name]())
    asked = [op for op in real.ops if "_local_scalar_dense" in op.name]  # the values, of which it needs none
    assert bool(asked) == name.startswith("Adafactor")
    ran = [op for op in real.ops if op not in asked]
    names = [[op.name.partition("@")[0].partition("#")[0] for op in ops] for ops in (captured.ops, ran)]
    assert names[0] == names[1]
    for one, other in zip(captured.ops, ran, strict=True):
        assert (one.name, one.read_bytes, one.write_bytes) == (one.name, other.read_bytes, other.write_bytes)
    sizes = [sorted((str(t.kind), t.size_bytes) for t in graph.tensors) for graph in (captured, real)]
    if name != "bags":  # whose kernel makes 8 bytes more for real
        assert sizes[0] == sizes[1]


def test_a_sparse_gradient_has_the_rows_that_were_taken_and_no_others_are_updated():
    with hosim.torch.fake():
        model, optimizer, x = STEPS["Adam"]()
    graph = hosim.torch.capture(step_of(model, optimizer), x).graph
    rows = TAKEN * WIDTH * 4
    gradients = [tensor.size_bytes for tensor in graph.tensors if tensor.kind == "gradient"]
    assert sorted(gradients) == [8 * TAKEN, rows, rows]  # what backward made, and a copy with indices of its own
    large = [op for op in graph.ops if any(graph.tensors[t].size_bytes == ROWS * WIDTH * 4 for t in op.writes)]
    assert [op.write_bytes for op in large] == [rows] * 3  # two moments, and the table
    assert {op.read_bytes for op in large} == {2 * rows + 8 * TAKEN}


def test_a_value_that_is_known_is_what_it_is():
    class Counting(torch.optim.SGD):
        def step(self, closure=None):
            (parameter,) = self.param_groups[0]["params"]
            self.state[parameter].setdefault("step", torch.tensor(0.0)).add_(1)
            counted.append((self.state[parameter]["step"].item(), parameter.sum().item()))

    counted = []
    with hosim.torch.fake():
        model, x = nn.Linear(8, 8, bias=False), torch.randn(2, 8)
        optimizer = Counting(model.parameters(), 0.1)
    hosim.torch.capture(step_of(model, optimizer), x)
    assert counted == [(1.0, 1.0), (2.0, 1.0)]


def test_conditions_on_values_in_an_optimizer_are_refused():
    class Wary(torch.optim.SGD):
        def step(self, closure=None):
            if self.param_groups[0]["params"][0].grad.isnan().any():
                return
            super().step(closure)

    with hosim.torch.fake():
        model, x = nn.Linear(8, 8), torch.randn(2, 8)
        optimizer = Wary(model.parameters(), 0.1)
    with pytest.raises(ConfigError, match=r"test_torch_optimizers\.py:\d+: nothing in a step depends on the values"):
        hosim.torch.capture(step_of(model, optimizer), x)
