"""A step that is captured under fake tensors has the ops and storages that it has when it runs."""

from itertools import product

import pytest
from examples import some

torch = pytest.importorskip("torch", reason='torch is not installed (pip install "hosim[torch]")')

import hosim.torch  # noqa: E402 - it needs torch
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402, N812
from torch.utils.checkpoint import checkpoint  # noqa: E402

from simulator.errors import ConfigError  # noqa: E402
from simulator.importers.torch import imported  # noqa: E402

ATTENTION = "_scaled_dot_product_flash_attention_for_cpu"


class Loss(nn.Sequential):
    """Layers in a row, and a loss."""

    def forward(self, x):
        made = super().forward(x)
        return (made[0] if isinstance(made, tuple) else made).float().square().mean()


class Turned(nn.Module):
    def forward(self, x):
        return x.transpose(1, 2)


class Constant(nn.Module):
    def forward(self, x):
        return x * torch.tensor([2.0] * 16)


class Attention(nn.Module):
    def __init__(self, dropout=0.0, reentrant=None, device="cpu"):
        super().__init__()
        self.qkv, self.out, self.norm = nn.Linear(32, 96), nn.Linear(32, 32), nn.LayerNorm(32)
        self.dropout, self.reentrant, self.device = dropout, reentrant, device

    def attend(self, x):
        q, k, v = (t.unflatten(-1, (4, -1)).transpose(1, 2) for t in self.qkv(x.to(self.device)).chunk(3, -1))
        dropout = self.dropout if self.training else 0.0
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=True)
        return self.norm(x + self.out(y.transpose(1, 2).flatten(2))).softmax(-1)

    def forward(self, x):
        if self.reentrant is None:
            return self.attend(x)
        return checkpoint(self.attend, x, use_reentrant=self.reentrant)


class Cast(nn.Module):
    """A layer under autocast of a device."""

    def __init__(self, layer, device="cpu"):
        super().__init__()
        self.first, self.layer, self.device = nn.Linear(32, 32), layer, device

    def forward(self, x):
        with torch.autocast(self.device, torch.bfloat16):
            return self.layer(self.first(x))


class Apart(nn.Module):
    """A loss of its own that is of one type, or of two."""

    def __init__(self, loss, dtype=torch.float32):
        super().__init__()
        self.layer, self.loss, self.dtype = nn.Linear(32, 32), loss, dtype

    def forward(self, x):
        return self.loss(self.layer(x).to(self.dtype), x.detach())


def recurrent(**more):
    return Loss(nn.Conv1d(32, 32, 3, padding=1), nn.ReLU(), nn.LSTM(16, 8, batch_first=True, **more))


LAYERS = {
    "convolution and LSTM": recurrent,
    "in bf16": lambda: recurrent(num_layers=2, bidirectional=True, dropout=0.1).to(torch.bfloat16),
    "GRU": lambda: Loss(nn.GRU(16, 8)),
    "norms": lambda: Loss(nn.BatchNorm1d(32), nn.Dropout(0.1), nn.GroupNorm(4, 32), nn.LayerNorm(16)),
    "attention": lambda: Loss(Turned(), Attention()),
    "attention with dropout": lambda: Loss(Turned(), Attention(0.1)),
    "attention with dropout in bf16": lambda: Loss(Turned(), Attention(0.1)).to(torch.bfloat16),
    "checkpointed": lambda: Loss(Turned(), Attention(0.1, reentrant=False)),
    "checkpointed, reentrant": lambda: Loss(nn.Conv1d(32, 32, 1), Turned(), Attention(0.1, reentrant=True)),
    "autocast": lambda: Loss(Turned(), Cast(Attention(0.1))),
    "autocast and checkpointed": lambda: Loss(Turned(), Cast(Attention(0.1, reentrant=False))),
    "autocast, norms": lambda: Loss(Turned(), Cast(nn.Sequential(Turned(), nn.BatchNorm1d(32), nn.GroupNorm(4, 32)))),
    "autocast, LSTM": lambda: Loss(Turned(), Cast(nn.LSTM(32, 8))),
    "constant": lambda: Loss(nn.Linear(16, 16), Constant()),
    "encoder": lambda: Loss(Turned(), nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)),
    "mse": lambda: nn.Sequential(Turned(), Apart(F.mse_loss)),
    "mse of two types": lambda: nn.Sequential(Turned(), Apart(F.mse_loss, torch.bfloat16)),
    "smooth l1": lambda: nn.Sequential(Turned(), Apart(F.smooth_l1_loss, torch.bfloat16)),
}  # fmt: skip


UNLIKE = ("in bf16", "norms", "attention with dropout", "encoder")
"""Those whose layers do something else when they do not train; and those with the larger update."""
ONCE = {("norms", True), ("attention with dropout", False), ("encoder", False)}
ONCE |= {(name, True) for name in ("convolution and LSTM", "autocast and checkpointed")}
"""Each kind of layer once; the others are slow."""


def recorded(model, x, optimizer):
    """The graph of a step that ran."""
    step = hosim.torch.offload(model, optimizer=optimizer, budget="1 GB", pace=("2 GB/s", "2 GB/s"))
    with step:
        step(x), step(x)
        (record,) = step._records.values()
        return imported("step", record, free_early=False, how="").graph


@pytest.mark.parametrize(
    ("name", "training"),
    [pytest.param(name, training, id=f"{name}-{'train' if training else 'eval'}",
                  marks=[pytest.mark.slow] * ((name, training) not in ONCE))
     for name, training in product(LAYERS, (True, False))],
)  # fmt: skip
def test_a_captured_step_is_the_one_that_runs(name, training):
    torch.manual_seed(1)
    optimizer = torch.optim.AdamW if name in UNLIKE else torch.optim.SGD
    model = LAYERS[name]().train(training)
    x = torch.randn(4, 32, 16, dtype=next(model.parameters()).dtype)
    captured, real = hosim.torch.capture(model, x, optimizer=optimizer).graph, recorded(model, x, optimizer)
    assert [op.name for op in captured.ops] == [op.name for op in real.ops]
    assert captured.tensors == real.tensors
    assert captured.ops == real.ops


def test_the_kernels_that_are_chosen_for_inference_are_captured():
    with hosim.torch.fake():
        model, x = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True).eval(), torch.randn(2, 16, 32)
    ops = hosim.torch.capture(torch.no_grad()(model), x).graph.ops
    assert ["_transformer_encoder_layer_fwd" in op.name for op in ops] == [True]


@pytest.mark.parametrize("reentrant", some([None, False, True], 3))
def test_code_that_asks_for_cuda_has_attention_and_autocast_of_cuda_where_it_runs_again_too(reentrant):
    with hosim.torch.fake():
        block = Cast(Attention(0.1, reentrant, "cuda"), "cuda")
        model, x = Loss(block).cuda(), torch.randn(4, 16, 32, device="cuda")
    ops = [(op.name.partition("@")[0].rpartition("/")[2], op.dtype) for op in hosim.torch.capture(model, x).graph.ops]
    times = 1 if reentrant is None else 2
    assert [dtype for name, dtype in ops if name == ATTENTION] == ["bf16"] * times
    assert [dtype for name, dtype in ops if name == "_softmax"] == ["fp32"] * times
    assert not any("dropout" in name or "bernoulli" in name for name, _ in ops)


def test_a_model_for_the_cpu_is_captured_so_beside_one_for_cuda():
    for device, kernels in (("cpu", 0), ("cuda", 1), ("cpu", 0)):
        with hosim.torch.fake():
            model, x = Loss(Attention(0.1)).to(device), torch.randn(4, 16, 32)
        names = [op.name for op in hosim.torch.capture(model, x).graph.ops]
        assert sum(f"{ATTENTION}@" in name for name in names) == kernels


@torch.library.custom_op("hosim_tests::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def test_a_kernel_without_a_form_under_fake_tensors_is_named():
    with pytest.raises(ConfigError, match=r"test_torch_as_real\.py:\d+: each kernel runs under fake.*twice.*for real"):
        hosim.torch.capture(lambda x: twice(x).sum(), torch.randn(3))


def test_updates_in_place_of_views_are_told():
    with hosim.torch.fake():
        layer, x = nn.Linear(8, 8), torch.randn(4, 8)

    def step(x):
        made = layer(x).clone()
        made[:, ::2] += 1
        made.sum().backward()

    told = " ".join(hosim.torch.capture(step, x).derived)
    assert "Updates in place of views: 7 ops of backward, more or fewer in a real step." in told


class Rows(nn.Module):
    """Attention of some rows to some."""

    def __init__(self, queries, keys, is_causal):
        super().__init__()
        self.q, self.queries, self.keys, self.is_causal = nn.Linear(8, 8, bias=False), queries, keys, is_causal

    def forward(self, x):
        q = self.q(x)
        seen = q[..., : self.keys, :]
        return F.scaled_dot_product_attention(q[..., : self.queries, :], seen, seen, is_causal=self.is_causal)


@pytest.mark.parametrize(("queries", "keys"), [(16, 16), (8, 16), (16, 8)])
def test_causal_attention_takes_the_pairs_that_see_each_other(queries, keys):
    def flops(is_causal):
        step = Rows(queries, keys, is_causal)
        made = hosim.torch.capture(step, torch.zeros(2, 4, 16, 8), loss=lambda y: y.square().sum())
        return [op.flops for op in made.files[".jsonl"].ops if ATTENTION in op.name]

    pairs = 2 * sum(min(query + 1, keys) for query in range(queries))
    halves = pairs - min(queries, keys)  # the diagonal counts half, as where hosim builds a model
    assert len(flops(True)) == 2
    assert flops(True) == [whole * halves // (2 * queries * keys) for whole in flops(False)]
