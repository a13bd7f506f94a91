"""A step of PyTorch that runs within a budget under a plan: the same numbers to the last bit, and the predicted peak."""

from __future__ import annotations

import gc
import threading
import warnings

import pytest

torch = pytest.importorskip("torch")

import hosim.torch  # noqa: E402 - it needs torch
from simulator.importers.torch_run import step_of  # noqa: E402
from simulator.errors import ConfigError  # noqa: E402
from torch.nn import functional as F  # noqa: E402, N812
from torch.utils.checkpoint import checkpoint  # noqa: E402

PACE = ("2 GB/s", "2 GB/s")


class Layers(torch.nn.Module):
    """Layers of some kind in a row, and a loss."""

    def __init__(self, *layers):
        super().__init__()
        self.layers = torch.nn.ModuleList(layers)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x.float().square().mean()


class Attention(torch.nn.Module):
    def __init__(self, width=32, dropout=0.1):
        super().__init__()
        self.qkv, self.out, self.dropout = torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, width), dropout

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (4, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + F.dropout(self.out(y.transpose(1, 2).flatten(2)), self.dropout, training=True)


class InPlace(torch.nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.up, self.down = torch.nn.Linear(width, 4 * width), torch.nn.Linear(2 * width, width)

    def forward(self, x):
        gate, value = self.up(x).split(2 * x.shape[-1], -1)
        held = value.clone()
        held[:, ::2] += 1
        held.mul_(0.5)
        return x + self.down(gate.relu() * held)


class Checkpointed(Attention):
    def forward(self, x):
        return checkpoint(super().forward, x, use_reentrant=False)


class Tied(torch.nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.first, self.second = torch.nn.Linear(width, width), torch.nn.Linear(width, width)
        self.second.weight = self.first.weight

    def forward(self, x):
        return self.second(torch.tanh(self.first(x)))


class Experts(torch.nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.route = torch.nn.Linear(width, 4)
        self.experts = torch.nn.Parameter(torch.randn(4, width, width) / width)

    def forward(self, x):
        weight, chosen = self.route(x).softmax(-1).max(-1)
        return x + weight[..., None] * torch.einsum("bnd,bnde->bne", x, self.experts[chosen])


class Autocast(torch.nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.up, self.down = torch.nn.Linear(width, 4 * width), torch.nn.Linear(4 * width, width)

    def forward(self, x):
        with torch.autocast("cpu", torch.bfloat16):
            return x + self.down(F.gelu(self.up(x)))


class Recurrent(torch.nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.conv = torch.nn.Conv1d(width, width, 3, padding=1)
        self.lstm = torch.nn.LSTM(width, width, batch_first=True)

    def forward(self, x):
        return x + self.lstm(F.relu(self.conv(x.transpose(1, 2))).transpose(1, 2))[0]


KINDS = (Attention, InPlace, Checkpointed, Tied, Experts, Autocast, Recurrent)


def made(kind, count=6):
    """A model of some layers of a kind, its optimizer, and an input."""
    torch.manual_seed(1)
    model = Layers(*(kind() for _ in range(count)))
    return model, torch.optim.AdamW(model.parameters(), lr=1e-2), torch.randn(8, 64, 32)


def state(model, optimizer):
    """Everything that a step changes."""
    parameters = [*model.parameters()]
    states = [value for one in optimizer.state.values() for value in one.values()]
    return [value.detach().clone() for value in (*parameters, *(p.grad for p in parameters), *states)]


def run(step, x, times=5):
    torch.manual_seed(2)
    return [step(x).detach().clone() for _ in range(times)]


def needed(kind):
    """The most bytes that a step holds, and those that last."""
    model, optimizer, x = made(kind)
    with hosim.torch.offload(model, optimizer=optimizer, budget="1 GB", policy="resident", pace=PACE) as step:
        run(step, x)
        lasting = sum(t.nbytes for t in state(model, optimizer))
        return step.steps[-1].peak_bytes, lasting


@pytest.mark.parametrize("kind", KINDS)
def test_a_step_under_a_plan_gives_the_same_numbers_in_less_memory(kind):
    model, optimizer, x = made(kind)
    plain = run(step_of(model, optimizer, None), x)
    peak, lasting = needed(kind)
    budget = lasting + (peak - lasting) * 6 // 10
    other, its, x = made(kind)
    with hosim.torch.offload(other, optimizer=its, budget=budget, pace=PACE, strict=True) as step:
        losses = run(step, x)
        assert [one.plan for one in step.steps][-2:] == ["static", "static"]
        assert all(one.peak_bytes <= budget for one in step.steps)
        assert step.steps[-1].out_bytes > 0
    assert all(map(torch.equal, plain, losses))
    assert all(map(torch.equal, state(model, optimizer), state(other, its)))
