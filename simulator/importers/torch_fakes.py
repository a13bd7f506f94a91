"""Fake tensors of PyTorch in place of real ones, and a CPU on which code that is written for an accelerator runs.

Code that asks for CUDA gets the CPU, where PyTorch then does what it does on CUDA: attention drops out inside its
kernel, and autocast runs the same functions in fp32 (documentation of PyTorch, *Automatic Mixed Precision*, "CUDA Ops
that can autocast to float32").
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
_FEW = 1024  # the rates that models ask for when they are made are one for each layer
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
    """Return the CPU in place of a value that names CUDA."""
    is_cuda = isinstance(value, str | torch.device) and _CUDA.fullmatch(str(value))
    return "cpu" if is_cuda else value


def _is_small_constant(tensor: torch.Tensor) -> bool:
    """Tell whether a tensor has values, and few of them."""
    return not isinstance(tensor, FakeTensor) and tensor.numel() <= _FEW and not tensor.requires_grad


class _Accelerated(TorchFunctionMode):  # type: ignore[misc]
    def __torch_function__(self, func: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args, kwargs = tuple(map(_on_cpu, args)), {key: _on_cpu(value) for key, value in (kwargs or {}).items()}
        if func is torch.Tensor.cuda:
            return args[0]
        tensors = [value for value in tree_leaves((args, kwargs)) if isinstance(value, torch.Tensor)]
        is_constant = bool(tensors) and all(map(_is_small_constant, tensors))  # rates asked for by a model's __init__
        if func is torch.linspace or is_constant:
            with unset_fake_temporarily():
                return func(*args, **kwargs)
        if func is functional.scaled_dot_product_attention:
            names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
            args, kwargs = (), {**dict(zip(names, args, strict=False)), **kwargs, "dropout_p": 0.0}
        if getattr(func, "__name__", "") in _FP32_FUNCTIONS and torch.is_autocast_enabled("cpu"):
            halves = (torch.bfloat16, torch.float16)
            args, kwargs = tree_map_only(torch.Tensor, lambda x: x.float() if x.dtype in halves else x, (args, kwargs))
        return func(*args, **kwargs)


@cache
def mode() -> FakeTensorMode:
    """Return the one mode of a process, so that fake tensors of different calls go together."""
    return FakeTensorMode(allow_non_fake_inputs=True)


@contextmanager
def fake_mode() -> Iterator[None]:
    """Make all new tensors fake, and run on the CPU, uncompiled, code for an accelerator, as it would run there."""
    swap, make, log = torch.utils.swap_tensors, torch.autocast.__init__, logging.getLogger(FakeTensorMode.__module__)

    def swap_unheld(tensor: Any, other: Any) -> None:
        """Swap as ``module.to(dtype)`` does, which refuses a tensor that the mode's memo refers to."""
        mode().fake_tensor_converter.meta_converter.tensor_memo.clear()
        swap(tensor, other)

    def autocast(self: Any, device_type: str, dtype: Any = None, *more: Any, **options: Any) -> None:
        """Cast on the CPU as on the device that is asked for, to the type that is usual there."""
        make(self, _on_cpu(device_type), dtype or torch.get_autocast_dtype(device_type), *more, **options)

    with ExitStack() as stack:
        stack.enter_context(patch.object(torch.utils, "swap_tensors", swap_unheld))
        stack.callback(log.setLevel, log.level)
        log.setLevel(logging.CRITICAL)  # it prints what is raised, too
        stack.enter_context(warnings.catch_warnings())  # about PyTorch's own look into fake tensors
        warnings.filterwarnings("ignore", "Accessing the data pointer of FakeTensor")
        stack.enter_context(patch.object(torch.autocast, "__init__", autocast))
        # which draws until all values are in bounds
        stack.enter_context(patch.object(init, "_no_grad_trunc_normal_", lambda tensor, *_, **__: tensor))
        stack.callback(torch._C._set_mkldnn_enabled, torch._C._get_mkldnn_enabled())
        torch._C._set_mkldnn_enabled(False)  # recurrent layers are one op there, whose FLOPs are not counted
        if "torch._dynamo" in sys.modules:
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        stack.enter_context(_Accelerated())
        stack.enter_context(mode())
        yield


def faked(values: Any) -> Any:
    """Return the same nested containers with a fake tensor in place of each tensor."""
    return tree_map_only(torch.Tensor, _fake, values)


def _fake(tensor: Any) -> Any:
    """Make a fake tensor like this one, on the CPU."""
    if isinstance(tensor, FakeTensor) and tensor.fake_mode is mode():
        return tensor
    if tensor.device.type == "cpu":
        return mode().from_tensor(tensor, static_shapes=True)
    made = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="cpu")
    return torch.nn.Parameter(made, tensor.requires_grad) if isinstance(tensor, torch.nn.Parameter) else made


def copied(module: Any, optimizer: Any) -> tuple[Any, Any]:
    """Return a module with fake tensors, copied if it has others, and an optimizer over its parameters, or None."""
    held, is_made = [*module.parameters(), *module.buffers()], isinstance(optimizer, torch.optim.Optimizer)
    if is_made:
        held += [leaf for leaf in tree_leaves(list(optimizer.state.values())) if isinstance(leaf, torch.Tensor)]
    fakes = {id(tensor): _fake(tensor) for tensor in held}
    if any(fakes[id(tensor)] is not tensor for tensor in held):
        module, optimizer = copy.deepcopy((module, optimizer), fakes)
    return module, optimizer if is_made or optimizer is None else optimizer(module.parameters())


def step_of(module: Any, optimizer: Any, loss: Callable[[Any], Any] | None) -> Callable[..., Any]:
    """Return the usual step: it frees gradients first, and what the module returns before backward."""

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
def config_errors(name: str) -> Iterator[None]:
    """Turn an error of the user's code, which cannot run under fake tensors, into one with file and line.

    Raises
    ------
    ConfigError
        For whatever the code raises.
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
