"""Steps of PyTorch that run within a budget, of kinds that a plan could get wrong; and the same without one."""

import threading
from contextlib import contextmanager
from functools import cache

import hosim.torch
import torch
from torch.nn import functional as F  # noqa: N812
from torch.utils.checkpoint import checkpoint

from simulator.importers.torch_run import step_of

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


class Normalised(torch.nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.conv, self.norm = torch.nn.Conv1d(width, width, 3, padding=1), torch.nn.BatchNorm1d(width)

    def forward(self, x):
        return F.dropout(F.silu(self.norm(self.conv(x.transpose(1, 2)))), 0.2, training=True).transpose(1, 2)


class Nested(torch.autograd.Function):
    """Its backward runs another one, so deep that PyTorch goes on with a thread of its own, as for an accelerator."""

    @staticmethod
    def forward(ctx, x, layers, depth):
        ctx.save_for_backward(x)
        ctx.layers, ctx.depth = layers, depth
        return x.view_as(x) if depth else layers(x)

    @staticmethod
    def backward(ctx, grad):
        (x,), layers, depth = ctx.saved_tensors, ctx.layers, ctx.depth
        with torch.enable_grad():
            given = x.detach().requires_grad_()
            made = layers(given) if depth == 61 else Nested.apply(given, layers, depth + 1)
        THREADS.add(threading.get_ident())
        torch.autograd.backward(made, grad)
        return given.grad, None, None


THREADS = set()
"""Those that ran backward of `Deep`."""


class Deep(torch.nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.first, self.up, self.down = (torch.nn.Linear(width, width) for _ in range(3))

    def forward(self, x):
        return x + Nested.apply(self.first(x), lambda y: self.down(F.gelu(self.up(y))), 0)


KINDS = (Attention, InPlace, Checkpointed, Tied, Experts, Autocast, Recurrent, Normalised)


def made(kind, count=3):
    """A model of some layers of a kind, its optimizer, and an input."""
    torch.manual_seed(1)
    model = Layers(*(kind() for _ in range(count)))
    return model, torch.optim.AdamW(model.parameters(), lr=1e-2), torch.randn(8, 64, 32)


def state(model, optimizer):
    """Everything that a step changes."""
    parameters = [*model.parameters()]
    states = [value for one in optimizer.state.values() for value in one.values()]
    return [
        value.detach().clone() for value in (*parameters, *(p.grad for p in parameters if p.grad is not None), *states)
    ]


def run(step, x, times=5):
    torch.manual_seed(2)
    return [step(x).detach().clone() for _ in range(times)]


@cache
def needed(kind):
    """The most bytes that a step holds, and those that last."""
    model, optimizer, x = made(kind)
    options = {"budget": "1 GB", "policy": "resident", "device": "cpu", "pace": PACE}
    with hosim.torch.offload(model, optimizer=optimizer, **options) as step:
        run(step, x)
        last, predicted = step.steps[-1], step.predicted.summary["peak_ram_bytes"]
        assert (last.peak_bytes, last.out_bytes) == (predicted + step.beside_bytes, 0)
        return last.peak_bytes, sum(value.nbytes for value in state(model, optimizer))


def budget_of(kind, tenths=8):
    """Four fifths of what a step makes, or another share, beside what lasts."""
    peak, lasting = needed(kind)
    return lasting + (peak - lasting) * tenths // 10


@contextmanager
def offloaded(kind=Attention, policy="static", **more):
    """A step of a kind within its budget, with an input."""
    model, optimizer, x = made(kind)
    options = {"budget": budget_of(kind), "pace": PACE, "strict": True, **more}
    with hosim.torch.offload(model, optimizer=optimizer, policy=policy, **options) as step:
        yield step, x, lambda: state(model, optimizer)


@cache
def plain(kind, times=5):
    """Losses, and the state after them, of a step without a plan."""
    model, optimizer, x = made(kind)
    return run(step_of(model, optimizer, None), x, times), state(model, optimizer)


def same(some, others):
    return all(map(torch.equal, some, others))
