"""Capture of PyTorch: what is written for CUDA, and what is refused with the line."""

import logging

import pytest

torch = pytest.importorskip("torch", reason='torch is not installed (pip install "hosim[torch]")')
pytest.importorskip("transformers", reason="transformers, whose models are captured, is not installed")

from torch import nn  # noqa: E402
from torch_steps import graph_of, line_of, mean, small  # noqa: E402

import simulator as hosim  # noqa: E402
from simulator.errors import ConfigError  # noqa: E402


class Written(nn.Module):
    """Written for CUDA, with what models of images do when they are made."""

    def __init__(self, device="cuda", **more):
        super().__init__()
        self.rates = [float(rate) for rate in torch.linspace(0, 0.1, 3)]
        self.norm, self.layer = nn.LayerNorm(32), nn.Linear(32, 32, device=device)
        nn.init.trunc_normal_(self.layer.weight, std=0.02)
        self.autocast = {"device_type": device, **more}

    def forward(self, x):
        with torch.autocast(**self.autocast):
            made = self.norm(self.layer(x.to("cuda:0")))
            return made.softmax(-1).pow(2).mean()


@pytest.mark.parametrize(
    ("device", "more", "dtype"),
    [("cuda", {}, "fp16"), ("cuda", {"dtype": torch.bfloat16}, "bf16"), ("cpu", {}, "bf16")],
)
def test_what_is_written_for_cuda_casts_as_it_does_there(device, more, dtype):
    with hosim.torch.fake():
        model, x = Written(device, **more).cuda(), torch.randn(4, 32, device="cuda").cuda()
    ops = [op for op in graph_of(model, x).ops if op.phase == "forward"]
    assert {op.dtype for op in ops if op.flops} == {dtype}
    after = [op.name.partition("@")[0].rpartition("/")[2] for op in ops if not op.flops and op.dtype == "fp32"]
    assert {"native_layer_norm", "_softmax", "pow", "mean"} <= set(after)


def test_what_was_patched_is_as_before():
    before = torch.autocast.__init__, nn.init._no_grad_trunc_normal_, torch.utils.swap_tensors
    with pytest.raises(ConfigError), hosim.torch.fake():
        hosim.torch.capture(3)
    assert (torch.autocast.__init__, nn.init._no_grad_trunc_normal_, torch.utils.swap_tensors) == before
    assert type(torch.zeros(1)) is torch.Tensor
    assert torch.backends.mkldnn.enabled


@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize("keywords", [False, True])
def test_attention_on_cuda_drops_out_in_its_kernel(dropout, keywords):
    def step(x):
        more = {"dropout_p": dropout, "is_causal": True} if keywords else {}
        given = () if keywords else (None, dropout, True)
        nn.functional.scaled_dot_product_attention(x, x, x, *given, **more).sum().backward()

    with hosim.torch.fake():
        x = torch.randn(1, 4, 16, 8, device="cuda", requires_grad=True)
    classes = [op.op_class for op in graph_of(step, x).ops]
    assert classes.count("attention") == 2


def test_attention_without_a_kernel_is_told():
    def step(x):
        nn.functional.scaled_dot_product_attention(x, x, x[..., :4]).sum().backward()

    with hosim.torch.fake():
        x = torch.randn(1, 4, 16, 8, requires_grad=True)
    assert "no fused CPU kernel: 1." in " ".join(hosim.torch.capture(step, x).derived)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_experts_in_groups_count_the_rows_of_all(dtype):
    """In any type, as they run for real; under fake tensors PyTorch itself takes bf16 alone."""

    def step(x, ends):
        torch._grouped_mm(x, weights, offs=ends).relu().sum().backward()

    with hosim.torch.fake():
        x = torch.randn(64, 32, dtype=dtype, requires_grad=True)
        weights = torch.randn(4, 32, 16, dtype=dtype, requires_grad=True)
        ends = torch.tensor([16, 32, 48, 64], dtype=torch.int32)
    ops = [op for op in graph_of(step, x, ends).ops if op.op_class == "matmul"]
    assert [op.flops for op in ops] == [2 * 64 * 32 * 16] * 3
    assert ops[0].write_bytes == 64 * 16 * dtype.itemsize
    assert {op.dtype for op in ops} == {"bf16" if dtype is torch.bfloat16 else "fp32"}


def test_an_optimizer_may_compare_what_it_keeps():
    """Adafactor of transformers takes the larger of a bound and the size of a weight."""

    class Bounded(torch.optim.Optimizer):
        def __init__(self, parameters):
            super().__init__(parameters, {})

        @torch.no_grad()
        def step(self):
            for parameter in self.param_groups[0]["params"]:
                parameter.add_(parameter.grad, alpha=-float(max(1e-3, parameter.norm())))

    with hosim.torch.fake():
        model, x = torch.nn.Linear(8, 8), torch.randn(4, 8)
    graph = hosim.torch.capture(model, x, loss=torch.sum, optimizer=Bounded).files[".jsonl"]
    assert sum("/update/add_" in op.name for op in graph.ops) == 2


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # its own
def test_a_compiled_module_runs_uncompiled():
    model, x = small(), torch.randn(16, 32)
    assert graph_of(torch.compile(model), x, loss=mean) == graph_of(model, x, loss=mean)


class Branches(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(32, 1)

    def forward(self, x):
        made = self.layer(x)
        if made.sum() > 0:  # HERE: branch
            made = -made
        return made.mean()


class Masks(Branches):
    def forward(self, x):
        made = self.layer(x)
        return made[made > 0].mean()  # HERE: mask


class Lists(Branches):
    def forward(self, x):
        return self.layer(x).mean() * sum(x[0].tolist())  # HERE: list


class Arrays(Branches):
    def forward(self, x):
        return self.layer(x).mean() * float(x.numpy().sum())  # HERE: array


class Wrong(Branches):
    def forward(self, x):
        return self.layer(x.t()).mean()  # HERE: wrong


@pytest.mark.parametrize(
    ("module", "mark", "must"),
    [
        (Branches, "branch", "nothing in a step depends on the values of tensors"),
        (Masks, "mask", "nothing in a step depends on the values of tensors"),
        (Lists, "list", "nothing in a step depends on the values of tensors"),
        (Arrays, "array", "the step runs under fake tensors, found RuntimeError"),
        (Wrong, "wrong", "the step runs under fake tensors, found RuntimeError"),
    ],
)
def test_what_cannot_be_traced_is_refused_with_the_line(module, mark, must, monkeypatch):
    told = []
    monkeypatch.setattr(logging.Logger, "handle", lambda _, record: told.append(record))
    with pytest.raises(ConfigError) as raised:
        hosim.torch.capture(module(), torch.randn(16, 32))
    assert raised.value.where == f"{__file__}:{line_of(f'# HERE: {mark}', __file__)}"
    assert str(raised.value).partition(": ")[2].startswith(must)
    assert not told


def test_a_step_that_prints_its_loss_is_refused_there():
    def step(x):
        loss = model(x).mean()
        loss.backward()
        return loss.item()

    with hosim.torch.fake():
        model = small()
    with pytest.raises(
        ConfigError, match=r"test_torch_refused\.py:\d+: .*_local_scalar_dense.*leave it out of the step"
    ):
        hosim.torch.capture(step, torch.randn(16, 32))


def test_a_step_over_weights_with_memory_is_refused_and_leaves_them():
    def step(x):
        model(x).mean().backward()

    model = small()
    with pytest.raises(ConfigError, match=r"Sequential\.0\.weight: tensors of a step were made in .*fake"):
        hosim.torch.capture(step, torch.randn(16, 32))
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize(
    ("given", "options", "match"),
    [
        (lambda: (small(), torch.randn(16, 32)), {}, "the loss is a tensor of one element, found .*; pass loss="),
        (lambda: (small(), torch.randn(16, 32)), {"loss": lambda out: 1.0}, "one element, found float"),
        (lambda: (mean, torch.randn(16, 32)), {"loss": mean}, "a function runs its own loss and optimizer"),
        (lambda: (3,), {}, "int: .*not callable"),
        (lambda: (lambda: None,), {}, "a step runs some op, found none"),
    ],
)
def test_what_is_no_step_is_refused(given, options, match):
    with pytest.raises(ConfigError, match=match):
        hosim.torch.capture(*given(), **options)


@pytest.mark.parametrize("enabled", [True, False])
def test_a_scaler_asks_for_values_unless_it_is_switched_off(enabled):
    def step(x):
        scaler.scale(model(x).mean()).backward()
        scaler.step(optimizer)
        scaler.update()

    with hosim.torch.fake():
        model, x = small(), torch.randn(4, 32)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
    scaler = torch.amp.GradScaler("cpu", enabled=enabled)
    if enabled:
        with pytest.raises(ConfigError) as refused:
            hosim.torch.capture(step, x)
        assert f"test_torch_refused.py:{line_of('scaler.step(optimizer)', __file__)}: nothing in a step" in str(
            refused.value
        )
        assert "make the GradScaler with enabled=False: it asks whether gradients are finite" in str(refused.value)
    else:
        assert sum(op.phase == "update" for op in graph_of(step, x).ops) == 4
