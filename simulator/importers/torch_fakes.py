"""Fake tensors of PyTorch in place of real ones, and what a user's code does with them."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from typing import Any

import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
)
from torch.utils._pytree import tree_leaves, tree_map_only

from simulator.errors import ConfigError, insist
from simulator.importers.torch_device import accelerated
from simulator.importers.torch_watch import is_of_scaler, line_of_error


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
        stack.callback(setattr, torch.utils, "swap_tensors", swap)
        stack.callback(log.setLevel, log.level)
        torch.utils.swap_tensors = swap_unheld
        log.setLevel(logging.CRITICAL)
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
