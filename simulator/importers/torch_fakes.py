"""Fake tensors of PyTorch in place of real ones, and a CPU on which code that is written for an accelerator runs.

What asks for CUDA gets the CPU. Where PyTorch does something else on a CPU, it does what it does on CUDA: attention
drops out inside its kernel, and autocast runs in fp32 what it runs so on CUDA (documentation of PyTorch, *Automatic
Mixed Precision*, "CUDA Ops that can autocast to float32").
"""

from __future__ import annotations

import copy
import logging
import re
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from typing import Any
from unittest.mock import patch

import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
    unset_fake_temporarily,
)
from torch.nn import functional, init
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map_only

from simulator.errors import ConfigError, insist
from simulator.importers.torch_watch import is_of_scaler, line_of_error

_CUDA = re.compile(r"cuda(:\d+)?")
_FEW = 1024
# Functions that autocast runs in fp32 on CUDA.
_IN_FP32 = """
    __pow__ __rdiv__ __rpow__ acos asin binary_cross_entropy_with_logits cdist cosh cosine_embedding_loss
    cosine_similarity cross_entropy cumprod cumsum dist erfinv exp expm1 group_norm hinge_embedding_loss kl_div l1_loss
    layer_norm log log10 log1p log2 log_softmax margin_ranking_loss mse_loss multi_margin_loss multilabel_margin_loss
    nll_loss norm normalize pdist poisson_nll_loss pow prod reciprocal renorm rsqrt sinh smooth_l1_loss
    soft_margin_loss softmax softmin softplus sum tan triplet_margin_loss
"""
_FP32_FUNCTIONS = frozenset(_IN_FP32.split())


def _on_cpu(value: Any) -> Any:
    """The CPU where a value names CUDA."""
    is_cuda = isinstance(value, str | torch.device) and _CUDA.fullmatch(str(value))
    return "cpu" if is_cuda else value


def _is_known(tensor: torch.Tensor) -> bool:
    """Whether a tensor has values, and few of them."""
    return not isinstance(tensor, FakeTensor) and tensor.numel() <= _FEW and not tensor.requires_grad


def _long(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.float() if tensor.dtype in (torch.bfloat16, torch.float16) else tensor


class _Accelerated(TorchFunctionMode):  # type: ignore[misc]
    def __torch_function__(self, func: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args, kwargs = tuple(map(_on_cpu, args)), {key: _on_cpu(value) for key, value in (kwargs or {}).items()}
        if func is torch.Tensor.cuda:
            return args[0]
        held = [value for value in tree_leaves((args, kwargs)) if isinstance(value, torch.Tensor)]
        is_known = bool(held) and all(map(_is_known, held))  # rates that a model asks for when it is made
        if func is torch.linspace or is_known:
            with unset_fake_temporarily():
                return func(*args, **kwargs)
        if func is functional.scaled_dot_product_attention:
            names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
            args, kwargs = (), {**dict(zip(names, args, strict=False)), **kwargs, "dropout_p": 0.0}
        if getattr(func, "__name__", "") in _FP32_FUNCTIONS and torch.is_autocast_enabled("cpu"):
            args, kwargs = tree_map_only(torch.Tensor, _long, (args, kwargs))
        return func(*args, **kwargs)


@contextmanager
def accelerated() -> Iterator[None]:
    """Let what asks for an accelerator run on the CPU, uncompiled, and as it would run there."""
    make = torch.autocast.__init__

    def autocast(self: Any, device_type: str, dtype: Any = None, *more: Any, **options: Any) -> None:
        """Cast on the CPU as on the device that is asked for, to the type that is usual there."""
        dtype = dtype or torch.get_autocast_dtype(device_type)
        make(self, _on_cpu(device_type), dtype, *more, **options)

    with ExitStack() as stack:
        stack.enter_context(patch.object(torch.autocast, "__init__", autocast))
        # which draws until all values are in bounds
        stack.enter_context(patch.object(init, "_no_grad_trunc_normal_", lambda tensor, *_, **__: tensor))
        stack.callback(torch._C._set_mkldnn_enabled, torch._C._get_mkldnn_enabled())
        torch._C._set_mkldnn_enabled(False)  # recurrent layers are one op there, whose FLOPs are not counted
        if "torch._dynamo" in sys.modules:
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        stack.enter_context(_Accelerated())
        yield


@cache
def mode() -> FakeTensorMode:
    """The one mode of a process, so that fake tensors of different calls go together."""
    return FakeTensorMode(allow_non_fake_inputs=True)


@contextmanager
def entered() -> Iterator[None]:
    """Let all tensors that are made be fake ones."""
    swap = torch.utils.swap_tensors

    def swap_unheld(one: Any, other: Any) -> None:
        """Swap as ``module.to(dtype)`` does, which refuses a tensor that the mode's memo refers to."""
        mode().fake_tensor_converter.meta_converter.tensor_memo.clear()
        swap(one, other)

    log = logging.getLogger(FakeTensorMode.__module__)  # it prints what is raised, too
    with ExitStack() as stack:
        stack.enter_context(patch.object(torch.utils, "swap_tensors", swap_unheld))
        stack.callback(log.setLevel, log.level)
        log.setLevel(logging.CRITICAL)
        stack.enter_context(warnings.catch_warnings())  # which tell of PyTorch's own look into fake tensors
        warnings.filterwarnings("ignore", "Accessing the data pointer of FakeTensor")
        stack.enter_context(accelerated())
        stack.enter_context(mode())
        yield


def faked(values: Any) -> Any:
    """The same nested containers with a fake tensor in place of each tensor."""
    return tree_map_only(torch.Tensor, _fake, values)


def _fake(tensor: Any) -> Any:
    """A fake tensor like this one, on the CPU."""
    if isinstance(tensor, FakeTensor) and tensor.fake_mode is mode():
        return tensor
    if tensor.device.type == "cpu":
        return mode().from_tensor(tensor, static_shapes=True)
    made = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="cpu")
    return torch.nn.Parameter(made, tensor.requires_grad) if isinstance(tensor, torch.nn.Parameter) else made


def copied(module: Any, optimizer: Any) -> tuple[Any, Any]:
    """The module with fake tensors, a copy unless it has no others; and an optimizer over its parameters, or None."""
    held, is_made = [*module.parameters(), *module.buffers()], isinstance(optimizer, torch.optim.Optimizer)
    if is_made:
        held += [leaf for leaf in tree_leaves(list(optimizer.state.values())) if isinstance(leaf, torch.Tensor)]
    fakes = {id(tensor): _fake(tensor) for tensor in held}
    if any(fakes[id(tensor)] is not tensor for tensor in held):
        module, optimizer = copy.deepcopy((module, optimizer), fakes)
    return module, optimizer if is_made or optimizer is None else optimizer(module.parameters())


def step_of(module: Any, optimizer: Any, loss: Callable[[Any], Any] | None) -> Callable[..., Any]:
    """The usual step: gradients are freed first, and what the module returns before backward."""

    def step(*args: Any, **kwargs: Any) -> Any:
        module.zero_grad(set_to_none=True)
        made = module(*args, **kwargs)
        value = loss(made) if loss else getattr(made, "loss", made)
        del made
        must, found = "the loss is a tensor of one element", type(value).__name__
        is_loss = isinstance(value, torch.Tensor) and value.numel() == 1
        insist(is_loss, type(module).__name__, must, found, "pass loss=, a function of what the module returns")
        value.backward()
        if optimizer is not None:
            optimizer.step()
        return value.detach()

    return step


_NO_SCALER = "make the GradScaler with enabled=False: it asks whether gradients are finite, and a capture takes them so"


@contextmanager
def refused(name: str) -> Iterator[None]:
    """Say where a user's code cannot run under fake tensors.

    Raises
    ------
    ConfigError
        With file and line, for whatever the code raises.
    """
    try:
        yield
    except ConfigError:
        raise
    except (Exception, SystemExit) as error:
        where, found = line_of_error(error) or name, f"{type(error).__name__}: {error}"
        must, do = "the step runs under fake tensors", "correct it there"
        if isinstance(error, DataDependentOutputException | DynamicOutputShapeException):
            must, found = "nothing in a step depends on the values of tensors", f"{error.func} there"
            do = "leave it out of the step (.item(), a condition on a tensor), or put a fixed value there"
            do = _NO_SCALER if is_of_scaler(error) else do
        raise ConfigError(where, must, found, do) from error
