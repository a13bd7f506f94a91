"""What a step of PyTorch copies to the host itself, by hooks or by name, is copied in the graph."""

from itertools import product

import pytest
from examples import some

torch = pytest.importorskip("torch", reason='torch is not installed (pip install "hosim[torch]")')

from torch import nn  # noqa: E402
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks  # noqa: E402

import simulator as hosim  # noqa: E402
from simulator.errors import ConfigError  # noqa: E402

HOOKS = {
    "pinned": lambda: save_on_cpu(pin_memory=True),
    "not pinned": save_on_cpu,
    "own": lambda: saved_tensors_hooks(lambda kept: kept.cpu(), lambda kept: kept),
    "own, by name": lambda: saved_tensors_hooks(lambda kept: kept.to("cpu"), lambda kept: kept.to("cuda")),
    "own, into room that is pinned": lambda: saved_tensors_hooks(pinned, lambda kept: kept),
}


def pinned(kept):
    return torch.empty(kept.size(), dtype=kept.dtype, pin_memory=True).copy_(kept, non_blocking=True)


def step_with(hooks, device):
    """A step that saves under hooks, and its inputs."""
    with hosim.torch.fake():
        model = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)).to(device, torch.bfloat16)
        x = torch.randn(512, 64, device=device, dtype=torch.bfloat16)

    def step(x):
        model.zero_grad()
        with hooks():
            loss = model(x).square().mean()
        loss.backward()

    return step, x


@pytest.mark.parametrize(("name", "device"), some([*product(HOOKS, ["cuda"]), *product([*HOOKS][:3], ["cpu"])], 2))
def test_what_hooks_save_on_the_host_is_copied_there_and_back(name, device, quick_plans, tmp_path):
    found = hosim.torch.capture(*step_with(HOOKS[name], device))
    graph = found.graph
    left = [op for op in graph.ops if op.device == "host"]
    # the input, the weight, and what GELU and the last layer are given, of 2 bytes; and what is squared
    made = [2 * 512 * 64, 2 * 512 * 256, 2 * 512 * 256, 2 * 64 * 256, 2 * 512 * 64]
    sizes = [sum(graph.tensors[t].size_bytes for t in op.writes) for op in left]
    assert sorted(sizes) == sorted(made)
    assert all("/fwd/to_host@test_torch_devices.py:" in op.name for op in left)
    readers = [op for op in graph.ops if graph.made_on_host & {*op.reads}]
    assert {op.phase for op in readers} == {"backward"}
    assert sum("are ops of the host" in told for told in found.derived) == 1
    found.write(tmp_path / "mine.yaml")
    for row in hosim.run(
        hardware="rtx4090_box", workload=tmp_path / "mine.yaml", policies=["resident", "static"]
    ).values():
        moved = row.summary["moved_d2h_bytes"], row.summary["moved_h2d_bytes"]
        assert (row.status, moved) == ("ok", (sum(made), sum(made)))
    with pytest.raises(ConfigError, match="host_compute"):
        hosim.run(hardware="h100_sxm", workload=tmp_path / "mine.yaml", policies=["resident"])


def test_without_hooks_and_by_the_device_of_a_tensor_nothing_is_copied():
    step, x = step_with(lambda: saved_tensors_hooks(lambda kept: kept.to(kept.device), lambda kept: kept), "cpu")
    with hosim.torch.fake():
        model = nn.Linear(8, 8).cpu()
        y = torch.randn(4, 8)
    for given in ((step, x), (lambda y: model(y.to("cpu")).sum().backward(), y)):
        found = hosim.torch.capture(*given)
        assert not found.graph.on_host
        assert not any("are ops of the host" in told for told in found.derived)


def test_copies_by_name_are_made_once_and_come_back_as_they_are():
    def step(x):
        held = layer(x).to("cpu")
        again = held.cpu()
        assert again is held
        back = held.to("cuda")
        (back * 2).sum().backward()

    with hosim.torch.fake():
        layer, x = nn.Linear(8, 8).to("cuda"), torch.randn(4, 8, device="cuda")
    graph = hosim.torch.capture(step, x).graph
    ops = [op.name.partition("@")[0] for op in graph.ops if op.phase == "forward"]
    assert ops[1:3] == ["step/fwd/to_host", "step/fwd/mul"]
    (left,) = graph.on_host
    assert graph.ops[left + 1].reads == graph.ops[left].writes


def test_what_an_op_makes_and_saves_at_once_is_copied_too():
    """ReLU saves its result, which hooks see before it is returned."""
    with hosim.torch.fake():
        x = torch.randn(8, 4, device="cuda", requires_grad=True)

    def step(x):
        with saved_tensors_hooks(lambda kept: kept.to("cpu"), lambda kept: kept.to("cuda")):
            made = torch.relu(x)
        made.sum().backward()

    graph = hosim.torch.capture(step, x).graph
    assert [graph.ops[index].name.partition("@")[0] for index in graph.on_host] == ["step/fwd/to_host"]


def moving(layer):
    """Take a layer to the accelerator for its call alone, as ``Module.to`` does."""
    layer.register_forward_pre_hook(lambda part, _: part.to("cuda") and None)
    layer.register_forward_hook(lambda part, *_: part.to("cpu") and None)


def lending(layer):
    """Give a layer copies of its weights for its call alone, as hooks of accelerate do."""
    held = {name: weight.data for name, weight in layer.named_parameters()}

    def give(part, device, copied):
        for name, weight in held.items():
            setattr(part, name, nn.Parameter(copied(weight, device), requires_grad=False))

    layer.register_forward_pre_hook(lambda part, _: give(part, "cuda", torch.Tensor.to))
    layer.register_forward_hook(lambda part, *_: give(part, "meta", lambda x, to: torch.empty_like(x, device=to)))


@pytest.mark.parametrize(("hook", "returned"), [(moving, 3), (lending, 0)])
def test_weights_that_hooks_bring_are_copied_in_by_each_step(hook, returned, quick_plans, tmp_path):
    with hosim.torch.fake():
        model = nn.Sequential(*(nn.Linear(512, 512, bias=False) for _ in range(3))).to(torch.bfloat16)
        x = torch.randn(64, 512, device="cuda", dtype=torch.bfloat16)
    for layer in model:
        hook(layer)
    found = hosim.torch.capture(model, x, phase="prefill")
    found.write(tmp_path / "mine.yaml")
    assert len(found.graph.on_host) == returned
    assert "Copies from the host, 3 of 1.57 MB: these tensors are at home below." in found.derived
    policies = ["resident", "static"]
    for row in hosim.run(hardware="rtx4090_box", workload=tmp_path / "mine.yaml", policies=policies).values():
        assert (row.status, row.summary["moved_h2d_bytes"]) == ("ok", 3 * 2 * 512 * 512)


def test_a_module_that_goes_there_once_is_copied_once():
    with hosim.torch.fake():
        model, x = nn.Linear(8, 8), torch.randn(4, 8, device="cuda")
    found = hosim.torch.capture(lambda x: model.to("cuda")(x).sum().backward(), x)
    assert not any("Copies from the host" in told for told in found.derived)
    assert found.workload.remote == ()


def test_a_step_is_captured_in_a_context_that_is_fake_as_outside_of_it():
    step, x = step_with(HOOKS["own, by name"], "cuda")
    outside = hosim.torch.capture(step, x).graph
    with hosim.torch.fake():
        assert hosim.torch.capture(step, x).graph == outside
