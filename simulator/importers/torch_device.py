"""Lets code that is written for an accelerator run on fake tensors of the CPU, and do what it does there.

What asks for CUDA gets the CPU. Where PyTorch does something else on a CPU, it does what it does on CUDA: attention
drops out inside its kernel, and autocast runs in fp32 what it runs so on CUDA (documentation of PyTorch, *Automatic
Mixed Precision*, "CUDA Ops that can autocast to float32").
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily
from torch.nn import functional, init
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map_only

_CUDA = re.compile(r"cuda(:\d+)?")
_FEW = 1024
_SHORT = (torch.bfloat16, torch.float16)
_IN_FP32 = frozenset(
    re.findall(
        r"\w+",
        """__pow__ __rdiv__ __rpow__ acos asin binary_cross_entropy_with_logits cdist cosh
        cosine_embedding_loss cosine_similarity cross_entropy cumprod cumsum dist erfinv exp expm1
        group_norm hinge_embedding_loss kl_div l1_loss layer_norm log log10 log1p log2 log_softmax
        margin_ranking_loss mse_loss multi_margin_loss multilabel_margin_loss nll_loss norm normalize pdist
        poisson_nll_loss pow prod reciprocal renorm rsqrt sinh smooth_l1_loss soft_margin_loss softmax
        softmin softplus sum tan triplet_margin_loss""",
    )
)
"""Functions that autocast runs in fp32 on CUDA."""


def _on_cpu(value: Any) -> Any:
    """The CPU where a value names CUDA."""
    is_cuda = isinstance(value, str | torch.device) and _CUDA.fullmatch(str(value))
    return "cpu" if is_cuda else value


def _is_known(tensor: torch.Tensor) -> bool:
    """Whether a tensor has values, and few of them."""
    return not isinstance(tensor, FakeTensor) and tensor.numel() <= _FEW and not tensor.requires_grad


def _long(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.float() if tensor.dtype in _SHORT else tensor


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
        if getattr(func, "__name__", "") in _IN_FP32 and torch.is_autocast_enabled("cpu"):
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

    patches = [
        (torch.autocast, "__init__", autocast),
        (init, "_no_grad_trunc_normal_", lambda tensor, *_, **__: tensor),  # it draws until values are in bounds
    ]
    with ExitStack() as stack:
        for place, name, instead in patches:
            stack.callback(setattr, place, name, getattr(place, name))
            setattr(place, name, instead)
        stack.callback(torch._C._set_mkldnn_enabled, torch._C._get_mkldnn_enabled())
        torch._C._set_mkldnn_enabled(False)  # recurrent layers are one op there, whose FLOPs are not counted
        if "torch._dynamo" in sys.modules:
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        stack.enter_context(_Accelerated())
        yield
