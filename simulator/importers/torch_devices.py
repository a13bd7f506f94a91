"""Where tensors are that a user's code makes for an accelerator or its host, although all are fake and on the CPU.

A copy to the host is a storage of its own there. What it is copied back to is itself: it comes in where an op reads it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any
from unittest.mock import patch
from weakref import WeakSet

import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensor, unset_fake_temporarily
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map_only

from simulator.importers.torch_ranks import tensors

_CUDA = re.compile(r"cuda(:\d+)?")
_FEW = 1024  # models compute small constants when they are made, such as a drop rate for each layer
# Functions that autocast runs in fp32 on CUDA.
_IN_FP32 = """
    __pow__ __rdiv__ __rpow__ acos asin binary_cross_entropy_with_logits cdist cosh cosine_embedding_loss
    cosine_similarity cross_entropy cumprod cumsum dist erfinv exp expm1 group_norm hinge_embedding_loss kl_div l1_loss
    layer_norm log log10 log1p log2 log_softmax margin_ranking_loss mse_loss multi_margin_loss multilabel_margin_loss
    nll_loss norm normalize pdist poisson_nll_loss pow prod reciprocal renorm rsqrt sinh smooth_l1_loss
    soft_margin_loss softmax softmin softplus sum tan triplet_margin_loss
"""
_FP32_FUNCTIONS = frozenset(_IN_FP32.split())


def is_cuda(value: Any) -> bool:
    """Tell whether a value names CUDA."""
    return isinstance(value, str | torch.device) and bool(_CUDA.fullmatch(str(value)))


def on_cpu(value: Any) -> Any:
    """Return a value, or "cpu" if it names CUDA."""
    return "cpu" if is_cuda(value) else value


_ON_CUDA, _ON_HOST = WeakSet[torch.UntypedStorage](), WeakSet[torch.UntypedStorage]()
"""Storages that code asked to be on CUDA, or on the host, or that were made of such on CUDA."""

_COPIES = (torch.Tensor.copy_, torch.Tensor.cpu, torch.Tensor.to)


class Accelerated(TorchFunctionMode):  # type: ignore[misc]
    """Runs code that asks for CUDA on the CPU, as it would run there, and notes what it copies to the host.

    Attributes
    ----------
    in_step, in_update, to_host
        Whether a step runs; an optimizer, for which a value that is not known is 1; a copy to the host.
    is_asked
        Whether the code asked for CUDA, or was given what is there.
    """

    in_step = in_update = to_host = is_asked = False

    def __torch_function__(self, func: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch._C._nn._parse_to:  # what a module hands on to its tensors
            return func(*args, **(kwargs or {}))
        if self.in_update and func in (torch.Tensor.item, torch.Tensor.__float__):
            with suppress(DataDependentOutputException):
                return func(*args)
            return 1.0
        given, values = list(tensors((args, kwargs))), (*args, *(kwargs or {}).values())
        is_there = func is torch.Tensor.cuda or any(map(is_cuda, values))
        is_there = is_there or (len(_ON_CUDA) > 0 and any(tensor.untyped_storage() in _ON_CUDA for tensor in given))
        self.is_asked |= is_there
        args, kwargs = tuple(map(on_cpu, args)), {k: on_cpu(v) for k, v in (kwargs or {}).items()}
        if self.in_step and self._leaves(func, given, values):
            return self._to_host(func, args, kwargs)
        is_pinned = bool(kwargs.get("pin_memory")) and kwargs.pop("pin_memory")
        made = self._call(func, args, kwargs, given)
        if is_there or is_pinned:
            memories = [tensor.untyped_storage() for tensor in tensors(made)]
            (_ON_HOST if is_pinned else _ON_CUDA).update(memories)
            _ON_HOST.difference_update(() if is_pinned else memories)
        return made

    def _leaves(self, func: Any, given: list[torch.Tensor], values: tuple[Any, ...]) -> bool:
        """Tell whether a function copies what it is given to the host."""
        if func not in _COPIES:
            return False
        on_host, memory = [tensor.untyped_storage() in _ON_HOST for tensor in given], given[0].untyped_storage()
        if func is torch.Tensor.copy_:
            return on_host[0] and not all(on_host)
        is_named = memory in _ON_CUDA and any(value == "cpu" for value in values if isinstance(value, str))
        return (func is torch.Tensor.cpu or is_named) and not on_host[0]

    def _to_host(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Copy to the host, whose tensors are apart."""
        with patch.object(Accelerated, "to_host", True):
            made = func(*args, **kwargs)
            if func is not torch.Tensor.copy_ and made.untyped_storage() is args[0].untyped_storage():
                made = made.clone()
        _ON_HOST.add(made.untyped_storage())
        return made

    def _call(self, func: Any, args: Any, kwargs: Any, given: list[torch.Tensor]) -> Any:
        if func is torch.Tensor.cuda:
            return args[0]
        are_real = given and not any(isinstance(tensor, FakeTensor) or tensor.requires_grad for tensor in given)
        if func is torch.linspace or (are_real and max(tensor.numel() for tensor in given) <= _FEW):
            with unset_fake_temporarily():
                return func(*args, **kwargs)
        if not self.is_asked:
            return func(*args, **kwargs)
        if func is functional.scaled_dot_product_attention:
            names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
            args, kwargs = (), {**dict(zip(names, args, strict=False)), **kwargs, "dropout_p": 0.0}
        if getattr(func, "__name__", "") in _FP32_FUNCTIONS and torch.is_autocast_enabled("cpu"):
            halves = (torch.bfloat16, torch.float16)
            args, kwargs = tree_map_only(torch.Tensor, lambda x: x.float() if x.dtype in halves else x, (args, kwargs))
        return func(*args, **kwargs)

    @contextmanager
    def hooked(self) -> Iterator[None]:
        """Be entered where hooks save tensors, too, which PyTorch calls in the midst of a function."""
        autograd, graph = torch._C._autograd, torch.autograd.graph
        push = autograd._push_saved_tensors_default_hooks

        def pushed(pack: Callable[[Any], Any], unpack: Callable[[Any], Any]) -> None:
            def packed(tensor: Any) -> Any:
                with self:
                    return pack(tensor)

            push(packed, unpack)

        def on_host(made: Any, *_: Any, **__: Any) -> None:  # PyTorch's own asks first whether there is CUDA
            graph.saved_tensors_hooks.__init__(made, torch.Tensor.cpu, lambda held: held)

        hooks, pin = (autograd, "_push_saved_tensors_default_hooks", pushed), (graph.save_on_cpu, "__init__", on_host)
        with patch.object(*hooks), patch.object(*pin), self:
            yield
