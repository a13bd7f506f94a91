"""`hosim export --to sac`: the policy is run by PyTorch, and what it saved is read back."""

from __future__ import annotations

import sys
from collections import Counter
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import hosim
import pytest

from simulator import catalog
from simulator.errors import ConfigError
from simulator.exporters import to_sac as sac
from simulator.graph import Job
from simulator.plan import Actions, Plan
from simulator.run.case import prepare

torch = pytest.importorskip("torch", reason="torch is not installed")
dispatch = pytest.importorskip("torch.utils._python_dispatch")
checkpointing = pytest.importorskip("torch.utils.checkpoint")


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = torch.nn.Linear(16, 32), torch.nn.Linear(32, 16)

    def forward(self, x):
        return x + self.down(torch.tanh(self.up(x)).sin())


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers, self.contexts = torch.nn.ModuleList([Block(), Block()]), None

    def forward(self, x):
        for index, layer in enumerate(self.layers):
            if self.contexts is None:
                x = layer(x)
            else:
                x = checkpointing.checkpoint(layer, x, use_reentrant=False, context_fn=self.contexts(f"layers.{index}"))
        return x.square().mean()


class Calls(dispatch.TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.count = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count[func._overloadpacket.__name__] += 1
        return func(*args, **(kwargs or {}))


def planned(again: str = "", away: str = "", extra: str = ""):
    """The case of the model, and a plan in which forward ops run again in backward, and results go away."""
    graph = hosim.torch.capture(Model(), torch.randn(8, 16)).graph
    case = prepare(catalog.resolve(catalog.scenario_of("h100_sxm", "tiny_train")), Job.of(graph))
    first = next(i for i, op in enumerate(graph.ops) if op.phase == "backward")
    actions = Actions()
    for i in range(len(graph.ops)):
        if i == first:
            for j, other in enumerate(graph.ops[:first]):
                if again and again in other.name:
                    actions.compute(j)
                if away and away in other.name:
                    actions.copy(other.writes[0], 0, 1)
                    actions.copy(other.writes[0], 1, 0)
        actions.compute(i)
    for t, tensor in enumerate(graph.tensors):
        if extra and tensor.name == extra:
            actions.copy(t, 0, 1)
    home = tuple(0 if t in graph.inputs else -1 for t in range(len(graph.tensors)))
    return case, Plan("mine", case.hardware.tier_names, home, actions)


def written(path: Path, **about: str) -> dict:
    """Write a policy, and import it as its users do."""
    case, plan = planned(**about)
    sac.write(case, case.tasks[0], plan, path)
    spec = spec_from_file_location(path.stem, path)
    sys.modules[path.stem] = module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return vars(module)


def step(model, x):
    model.zero_grad()
    loss = model(x)
    with Calls() as calls:
        loss.backward()
    return loss.detach(), [p.grad.clone() for p in model.parameters()], calls.count


def test_the_policy_saves_and_recomputes_what_the_plan_says(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, x = Model(), torch.randn(8, 16, requires_grad=True)
    loss, grads, plain = step(model, x)
    assert plain["tanh"] == plain["sin"] == 0
    model.contexts = written(tmp_path / "written_policy.py", again="layers.1/fwd/sin")["context_fn"]
    other, others, calls = step(model, x)
    assert torch.equal(loss, other)
    assert all(map(torch.equal, grads, others))
    assert calls["sin"] == 1  # of layers.1; that of layers.0 is saved
    assert calls["tanh"] == 0
    model.contexts = written(tmp_path / "written_policy.py", again="/fwd/tanh")["context_fn"]
    _, others, calls = step(model, x)
    assert all(map(torch.equal, grads, others))
    assert (calls["tanh"], calls["sin"]) == (2, 0)


@pytest.mark.slow
def test_the_policy_is_kept_by_a_compiled_model(tmp_path: Path) -> None:
    from functorch.compile import make_boxed_func, min_cut_rematerialization_partition
    from torch._dynamo.backends.common import aot_autograd

    graphs = {}

    def keep(name):
        def compiler(module, example_inputs):
            nodes = (node.target for node in module.graph.nodes if node.op == "call_function")
            graphs[name] = Counter(getattr(t, "_overloadpacket", t).__name__ for t in nodes)
            return make_boxed_func(module)

        return compiler

    backend = aot_autograd(
        fw_compiler=keep("forward"), bw_compiler=keep("backward"), partition_fn=min_cut_rematerialization_partition
    )
    for again, expected in (("/fwd/sin", {"sin": 2, "tanh": 0}), ("/fwd/tanh", {"sin": 0, "tanh": 2})):
        torch._dynamo.reset()
        model = Model()
        model.contexts = written(tmp_path / "written_policy.py", again=again)["context_fn"]
        torch.compile(model, backend=backend)(torch.randn(8, 16, requires_grad=True)).backward()
        assert {op: graphs["backward"][op] for op in expected} == expected


def test_what_goes_away_is_offloaded(tmp_path: Path) -> None:
    made = written(tmp_path / "written_policy.py", away="layers.0/fwd/tanh")
    decisions = {(module, op): decision for module, op, decision in made["CALLS"]}
    assert decisions["layers.0", "tanh"] == checkpointing.CheckpointPolicy.MUST_CPU_OFFLOAD
    assert decisions["layers.1", "tanh"] == checkpointing.CheckpointPolicy.MUST_SAVE


def test_another_step_is_told(tmp_path: Path) -> None:
    made = written(tmp_path / "written_policy.py")
    with pytest.raises(ValueError, match=r"no op of module 'layers\.7'"):
        made["context_fn"]("layers.7")()
    with pytest.raises(RuntimeError, match=r"the plan knows 1 calls of tanh in layers\.0"):
        checkpointing.checkpoint(
            lambda x: x.tanh().tanh(), torch.ones(2, requires_grad=True), use_reentrant=False,
            context_fn=made["context_fn"]("layers.0"),
        )  # fmt: skip


@pytest.mark.parametrize(
    ("about", "must"),
    [
        ({"extra": "layers.0.up.weight"}, "only outputs of forward ops leave the device"),
        ({"extra": "layers.0.up.weight.grad"}, "only outputs of forward ops leave the device"),
    ],
)
def test_what_a_policy_cannot_say_is_refused(tmp_path: Path, about: dict[str, str], must: str) -> None:
    case, plan = planned(**about)
    with pytest.raises(ConfigError, match=must):
        sac.write(case, case.tasks[0], plan, tmp_path / "written_policy.py")
    assert not (tmp_path / "written_policy.py").exists()
    case = prepare(catalog.resolve("tiny_train_910c"))
    with pytest.raises(ConfigError, match="captured from PyTorch"):
        sac.write(case, case.tasks[0], plan, tmp_path / "written_policy.py")
