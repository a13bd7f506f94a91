"""Steps of PyTorch such as people have, small; and what PyTorch's memory tracker says of each."""

import warnings
from contextlib import ExitStack
from functools import cache
from importlib import import_module
from pathlib import Path

import torch
import transformers as hf
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import simulator as hosim
from simulator.importers import torch_run
from simulator.importers.torch_run import tensors


def classes(out):
    """Cross entropy to the class 0."""
    return functional.cross_entropy(out, torch.zeros(len(out), dtype=torch.long))


def graph_of(*given, **more):
    return hosim.torch.capture(*given, **more).graph


def small():
    return nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 1))


def mean(out):
    return out.mean()


def line_of(text, file):
    """Number of the line of a file that has this text."""
    lines = Path(file).read_text(encoding="utf-8").split("\n")
    return next(number for number, line in enumerate(lines, 1) if line.endswith(text))


def perceptron():
    layers = nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 1024), nn.GELU(), nn.Linear(1024, 10)
    return nn.Sequential(*layers), torch.randn(512, 256), {"loss": classes}


def llama(layers=1, hidden=256, tokens=512, vocabulary=1024, **more):
    config = hf.LlamaConfig(
        vocab_size=vocabulary, hidden_size=hidden, intermediate_size=hidden * 7 // 2, num_hidden_layers=layers,
        num_attention_heads=hidden // 32, num_key_value_heads=hidden // 128, max_position_embeddings=tokens, **more,
    )  # fmt: skip
    ids = torch.randint(0, vocabulary, (1, tokens))
    return hf.LlamaForCausalLM(config).to(torch.bfloat16), {"input_ids": ids, "labels": ids, "use_cache": False}


def llama_8b():
    """Make Llama 3.1 8B and 16,384 tokens under fake tensors: module, and inputs and options by name."""
    with hosim.torch.fake():
        config = hf.LlamaConfig(
            vocab_size=128256, hidden_size=4096, intermediate_size=14336, num_hidden_layers=32, num_attention_heads=32,
            num_key_value_heads=8, max_position_embeddings=131072,
        )  # fmt: skip
        model, ids = hf.LlamaForCausalLM(config).to(torch.bfloat16), torch.randint(0, 128256, (1, 16384))
    return model, {"input_ids": ids, "labels": ids, "use_cache": False, "optimizer": torch.optim.AdamW}


def encoder_decoder():
    sizes = {"d_model": 128, "d_kv": 32, "d_ff": 512, "num_layers": 1, "num_heads": 4}
    model = hf.T5ForConditionalGeneration(hf.T5Config(vocab_size=1024, decoder_start_token_id=0, **sizes))
    ids, labels = torch.randint(0, 1024, (4, 128)), torch.randint(0, 1024, (4, 64))
    return model, {"input_ids": ids, "labels": labels}


class Residual(nn.Module):
    def __init__(self, taken, made, stride):
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(taken, made, 3, stride, 1, bias=False), nn.BatchNorm2d(made)
        self.conv2, self.norm2 = nn.Conv2d(made, made, 3, 1, 1, bias=False), nn.BatchNorm2d(made)
        self.short = nn.Conv2d(taken, made, 1, stride, bias=False)

    def forward(self, x):
        made = functional.relu(self.norm1(self.conv1(x)), inplace=True)
        made = self.norm2(self.conv2(made))
        made += self.short(x)
        return functional.relu(made, inplace=True)


def convolutions():
    stem = nn.Conv2d(3, 32, 7, 2, 3, bias=False), nn.BatchNorm2d(32), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)
    blocks = Residual(32, 32, 1), Residual(32, 64, 2), Residual(64, 128, 2)
    model = nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 100))
    momentum = {"loss": classes, "optimizer": lambda found: torch.optim.SGD(found, 0.1, momentum=0.9)}
    return model, torch.randn(16, 3, 128, 128), momentum


class Checkpointed(nn.Module):
    def __init__(self, *, reentrant=False):
        super().__init__()
        layer = {"dim_feedforward": 512, "dropout": 0.0, "batch_first": True}
        self.into, self.reentrant = nn.Linear(16, 128), reentrant
        self.blocks = nn.ModuleList(nn.TransformerEncoderLayer(128, 4, **layer) for _ in range(2))

    def forward(self, x):
        x = self.into(x)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=self.reentrant)
        return x.pow(2).mean()


def checkpointed():
    return Checkpointed(), torch.randn(8, 256, 16)


def checkpointed_reentrant():
    return Checkpointed(reentrant=True), torch.randn(8, 256, 16)


class Mixed(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, *_ = perceptron()

    def forward(self, x):
        with torch.autocast("cpu", torch.bfloat16):
            return classes(self.inner(x))


def mixed_precision():
    return Mixed(), torch.randn(16384, 256)


class Partly(nn.Module):
    """A module of which a batch uses a part, as of text alone through a model with a tower for pictures."""

    def __init__(self):
        super().__init__()
        self.used, self.tower = nn.Linear(256, 256), nn.Linear(256, 1024)
        self.register_buffer("table", torch.zeros(512, 64))

    def forward(self, x, picture=None):
        return self.used(x).pow(2).mean() + (0 if picture is None else self.tower(picture).mean())


def partly():
    return Partly(), torch.randn(16, 256)


def transformer():
    mask = nn.Transformer.generate_square_subsequent_mask(64)  # no op reads it
    given = {"tgt_mask": mask, "tgt_is_causal": True, "loss": lambda out: out.pow(2).mean()}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "enable_nested_tensor")  # without a batch first
        return nn.Transformer(64, 4, 1, 1, 128), torch.randn(10, 8, 64), torch.randn(64, 8, 64), given


STEPS = {
    made.__name__: made
    for made in (
        perceptron,
        llama,
        encoder_decoder,
        convolutions,
        checkpointed,
        checkpointed_reentrant,
        mixed_precision,
        partly,
        transformer,
    )
}
"""Name -> a function that makes a model and its inputs, as ``hosim import torch`` takes it."""


def made(name, **more):
    """Make a step under fake tensors: module, inputs, inputs by name, and options of `capture`."""
    with hosim.torch.fake():
        parts = list(STEPS[name](**more))
    named = parts.pop() if isinstance(parts[-1], dict) else {}
    options = {key: named.pop(key) for key in ("loss", "optimizer") if key in named}
    return parts[0], parts[1:], named, {"optimizer": torch.optim.AdamW, **options}


@cache
def captured(name, **more):
    """Capture a step, once for all tests of a process."""
    module, inputs, named, options = made(name, **more)
    return hosim.torch.capture(module, *inputs, **named, **options)


def memory_tracker():
    """PyTorch's own; importing it takes seconds, as it imports PyTorch's compiler."""
    return import_module("torch.distributed._tools.mem_tracker").MemTracker()


def tracked_bytes(made_parts):
    """The peak of the same step by PyTorch's memory tracker, with all states of the optimizer there [B]."""
    module, inputs, named, options = made_parts
    with ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())
        warnings.filterwarnings("ignore", "Module is None")  # of a loss that is made in forward
        stack.enter_context(hosim.torch.fake())
        module, optimizer = torch_run.copied(module, options["optimizer"])
        step = torch_run.step_of(module, optimizer, options.get("loss"))
        step(*inputs, **named)
        tracker = memory_tracker()
        tracker.track_external(module, optimizer, *tensors((inputs, named)))
        with tracker:
            step(*inputs, **named)
    return sum(found["Total"] for found in tracker.get_tracker_snapshot("peak").values())
