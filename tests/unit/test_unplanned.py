"""Rows that no plan steers run beside ours: what PyTorch does by itself, measured in the same way."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import hosim.torch  # noqa: E402 - it needs torch
from torch.nn import functional as F  # noqa: E402, N812

from simulator.errors import ConfigError, HosimError  # noqa: E402
from simulator.execute import comparison  # noqa: E402
from simulator.execute.accelerator import Processor  # noqa: E402
from simulator.execute.storages import StepMemory  # noqa: E402
from simulator.execute.tiers import FileTier  # noqa: E402
from simulator.execute.unplanned import HOOKS, _SavedBelow, run_unplanned  # noqa: E402

PACE = ("2 GB/s", "2 GB/s")
ROWS = ("resident", "saved_tensors_hooks", "checkpointing")


class Exps(torch.nn.Module):
    def forward(self, x):
        return x.exp().exp()


class Tiny(torch.nn.Module):
    """A weight of 4,000 B, and four exps of it in two blocks; each saves its result."""

    def __init__(self):
        super().__init__()
        self.weight, self.blocks = torch.nn.Parameter(torch.full((1000,), -5.0)), torch.nn.Sequential(Exps(), Exps())

    def forward(self):
        return self.blocks(self.weight).sum()


class Block(torch.nn.Module):
    """Attention with dropout, of a decoder: three views of one storage are saved."""

    def __init__(self, width=32):
        super().__init__()
        self.norm, self.qkv, self.out = (
            torch.nn.LayerNorm(width),
            torch.nn.Linear(width, 3 * width),
            torch.nn.Linear(width, width),
        )

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (4, -1)).transpose(1, 2) for t in self.qkv(self.norm(x)).chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + F.dropout(self.out(y.transpose(1, 2).flatten(2)), 0.1, training=True)


def decoder():
    blocks = [Block() for _ in range(4)]
    model = torch.nn.Sequential(torch.nn.Embedding(50, 32), torch.nn.Sequential(*blocks), torch.nn.Linear(32, 50))
    tokens = torch.randint(50, (8, 64))
    return (
        model,
        tokens,
        {"optimizer": torch.optim.AdamW, "loss": lambda made: F.cross_entropy(made.flatten(0, 1), tokens.flatten())},
    )


def convolutions():
    def block():
        return torch.nn.Sequential(
            torch.nn.Conv2d(8, 8, 3, padding=1), torch.nn.BatchNorm2d(8), torch.nn.ReLU(inplace=True)
        )

    model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 1), *(block() for _ in range(5)))
    return model, torch.randn(4, 3, 24, 24), {"optimizer": torch.optim.SGD, "loss": lambda made: made.square().mean()}


def test_peaks_and_bytes_are_those_counted_by_hand():
    """Weight, exps y1 to y4 and gradients take 4,000 B each; the loss and its gradient 4 B each.

    - resident: weight, y1, y2, y3, y4 and the gradient of y3.
    - saved_tensors_hooks: weight, a gradient, the result that was read, and the next gradient.
    - checkpointing: weight, y2, and y3, y4 that were made again, and the gradient of y3.
    """
    for _ in range(2):  # PyTorch's first step in a process leaves garbage, which counts until Python looks for some
        made = hosim.torch.compare(lambda: (Tiny(),), budget="20 kB", policies=ROWS, steps=1, pace=PACE)
    keys = (
        "policy",
        "measured_peak_bytes",
        "measured_out_bytes",
        "measured_in_bytes",
        "is_within",
        "is_equal",
        "step_ns",
    )
    assert [tuple(row[key] for key in keys) for row in made.rows] == [
        ("resident", 24_008, 0, 0, False, True, None),
        ("saved_tensors_hooks", 16_008, 16_000, 16_000, True, True, None),
        ("checkpointing", 20_008, 0, 0, False, True, None),
    ]
    resident, hooks, _ = made.rows
    assert resident["measured_stall_ns"] == 0 < hooks["measured_stall_ns"] < hooks["measured_step_ns"]
    first = str(made).splitlines()[1].split()
    assert (first[0], first.count("-"), "no" in first) == ("resident", 3, True)


@pytest.mark.slow
@pytest.mark.parametrize("make", [convolutions, decoder])
def test_each_row_computes_the_same_and_counts_as_a_plan_does(make):
    planned = {"policy": "resident", "label": "planned"}
    made = hosim.torch.compare(make, budget="1 GB", policies=(*ROWS, planned), steps=1, pace=PACE)
    assert all(row["is_equal"] for row in made.rows)
    resident, hooks, checkpointing, planned = made.rows
    assert resident["measured_peak_bytes"] == planned["measured_peak_bytes"] == planned["peak_bytes"]
    assert hooks["measured_peak_bytes"] < resident["measured_peak_bytes"] > checkpointing["measured_peak_bytes"]
    assert 0 < hooks["measured_out_bytes"] <= hooks["measured_in_bytes"]  # some are read for two ops, apart


@pytest.mark.parametrize(
    ("make", "limit"), [(convolutions, "600 kB"), pytest.param(decoder, None, marks=pytest.mark.slow)]
)
def test_the_plan_of_the_open_source_planner_runs(make, limit):
    """The planner does not know what kernels take beside tensors, so that it must be given less to fit convolutions."""
    (resident,) = hosim.torch.compare(make, budget="1 GB", policies=["resident"], steps=1, pace=PACE).rows
    budget = resident["measured_peak_bytes"] * 8 // 10
    policies = ["resident", {"policy": "upstream_greedy", "options": {"limit": limit} if limit else {}}]
    made = hosim.torch.compare(make, budget=budget, policies=policies, steps=1, pace=PACE)
    assert [row["is_within"] for row in made.rows] == [False, True]
    assert made.rows[1]["is_equal"]
    assert made.rows[1]["measured_out_bytes"] > 0


def test_what_was_saved_takes_no_room_below_after_its_step():
    weight = torch.nn.Parameter(torch.ones(1000))

    def step():
        weight.grad = None
        loss = (weight * weight).exp().sum()
        held.append(tier._used_bytes)
        loss.backward()

    held = []
    with hosim.torch.offload(step, budget="1 kB", pace=PACE) as offloaded:
        tier = offloaded._memory.tier
        for _ in range(5):
            run_unplanned(offloaded, HOOKS)
        assert held == [8_000, *[4_000] * 4]  # only the first step does not know that the weight was there before
        assert tier._used_bytes == 0


def test_what_is_saved_again_after_it_was_changed_is_another():
    memory = StepMemory(1, FileTier(None))
    hooks, x = _SavedBelow(memory), torch.arange(6.0).view(2, 3)
    before, same = hooks._pack(x.t()), hooks._pack(x[1])
    x.add_(1)
    after = hooks._pack(x)
    assert memory.moved_bytes == {"copy out": 48, "copy in": 0}
    assert torch.equal(hooks._unpack(before), torch.tensor([[0.0, 3], [1, 4], [2, 5]]))
    assert hooks._unpack(before).stride() == (1, 3)
    assert torch.equal(hooks._unpack(same), torch.tensor([3.0, 4, 5]))
    assert torch.equal(hooks._unpack(after), x)
    memory.close()


@pytest.mark.skipif(not comparison._CAN_FORGET, reason="this system does not tell how much was resident at most")
def test_what_was_resident_is_known_though_it_is_gone():
    most = []
    for size_bytes in (100 << 20, 10 << 20):
        comparison._forget_most(Processor())
        bytearray(size_bytes)
        most.append((comparison._resident_bytes("VmHWM") - comparison._in_use(Processor())[0]) >> 20)
    assert most == [pytest.approx(100, abs=5), pytest.approx(10, abs=5)]


@pytest.mark.parametrize("step", [lambda x: x.sum(), torch.nn.Linear(3, 3), torch.nn.ModuleList()])
def test_checkpointing_needs_blocks(step):
    with pytest.raises(ConfigError, match="checkpointing: the step is a module with a ModuleList or Sequential"):
        hosim.torch.compare(lambda: (step, torch.ones(3)), budget="1 MB", policies=["checkpointing"], pace=PACE)


@pytest.mark.slow
def test_a_policy_that_cannot_run_is_a_row_with_the_reason():
    """The others stand; if none can run, the first reason is the error."""

    def step():
        torch.manual_seed(0)
        layers = [torch.nn.Linear(32, 32) for _ in range(6)]
        return torch.nn.Sequential(*layers), torch.randn(512, 32), {"loss": lambda made: made.square().mean()}

    never = {"policy": "resident", "label": "never"}
    compared = hosim.torch.compare(step, budget="450 kB", policies=[never, "static"], steps=1, tier="memory")
    assert [(row["policy"], bool(row["why"]), row["is_equal"]) for row in compared.rows] == [
        ("never", True, None),
        ("static", False, True),
    ]
    assert f"never cannot run: {compared.rows[0]['why']}." in str(compared)
    with pytest.raises(HosimError, match="a plan of the step fits the budget"):
        hosim.torch.compare(step, budget="450 kB", policies=[never], steps=1, tier="memory")
