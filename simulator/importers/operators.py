"""Operators of PyTorch by name and shape: which do work, what they change, and how much arithmetic they are."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from simulator.formats.residency_json import VIEW
from simulator.importers.recordings import whole

Shape = list[int]

MAKES = re.compile(r"(new_)?empty(_.*)?|resize_|_resize_.*")
"""ATen ops that only make room for a tensor, or change it."""
_IDLE = re.compile(
    "result_type|lift_fresh|set_|(detach|squeeze|unsqueeze|t|as_strided|transpose)_|is_.*|size|stride|numel|to"
    "|contiguous|type_as|resolve_(conj|neg)|record_stream|pin_memory|can_cast|_has_.*|_version|requires_grad_|retain_grad"
)
"""ATen ops that do no work on the device, beside views."""
STRETCHES = re.compile("expand(_as)?|broadcast_to|as_strided")
"""Views with more elements than there is memory."""

_DTYPES = {"half": "fp16", "bfloat16": "bf16", "float8": "fp8", "float": "", "double": "fp64", "char": "int8"}
"""How types of tensors begin, lower case and without ``c10::`` -> data types of hosim; of float the caller chooses."""


def plain(name: str) -> str:
    """The name of an ATen op without namespace and overload."""
    return name.rpartition("::")[2].partition(".")[0]


def works(name: str) -> bool:
    """Whether an op of this name does work on the device, beyond views and making room."""
    base = plain(name)
    return not (VIEW.fullmatch(base) or MAKES.fullmatch(base) or _IDLE.fullmatch(base))


def changed(schema: str) -> frozenset[int]:
    """Positions of the arguments that an op's schema marks as changed (``Tensor(a!) self``)."""
    inner = schema[:10_000].partition("(")[2].partition(") ->")[0]
    named = re.sub(r"\[[^\]]*\]", "", re.sub(r"\([^()!]*(!?)[^()]*\)", r"\1", inner)).split(",")
    return frozenset(at for at, one in enumerate(one for one in named if one.strip() != "*") if "!" in one)


class View(NamedTuple):
    """A tensor as a trace names it.

    Attributes
    ----------
    tensor, storage
        Ids.
    until_bytes, size_bytes
        Where it ends in its storage, and what it has [B].
    device
        Such as ``cuda:0``.
    """

    tensor: int
    storage: int
    until_bytes: int
    size_bytes: int
    device: str


def views(value: object) -> Iterator[View]:
    """Find the tensors in a value of a trace, however deep they lie in lists."""
    left = [value]
    while left:
        one = left.pop()
        if not isinstance(one, list):
            continue
        if len(one) == 6 and isinstance(one[5], str) and all(type(number) is int for number in one[:5]):
            tensor, storage, offset, elements, each = map(whole, one[:5])
            yield View(tensor, storage, whole((offset + elements) * each), whole(elements * each), one[5])
        else:
            left.extend(reversed(one))


def _sizes(shapes: object, at: int) -> Shape:
    """The shape of an argument; empty if it is none."""
    shape: Any = shapes[at] if isinstance(shapes, list) and at < len(shapes) else None
    is_list = isinstance(shape, list) and len(shape) <= 20
    return shape if is_list and all(type(size) is int and 0 <= size < 1 << 40 for size in shape) else []


_LAST, _FIRST, _INNER, _KEYS = slice(-1, None), slice(1), slice(1, None), slice(-2, -1)
_FLOPS: dict[str, tuple[str, int, int, int, slice]] = {
    **dict.fromkeys(("mm", "bmm", "matmul", "_scaled_mm", "_int_mm"), ("matmul", 2, 0, 1, _LAST)),
    **dict.fromkeys(("addmm", "addmm_", "baddbmm", "baddbmm_", "addbmm", "_addmm_activation"),
                    ("matmul", 2, 1, 2, _LAST)),
    **dict.fromkeys(("linear", "mkldnn_linear", "_mkl_linear"), ("matmul", 2, 0, 1, _FIRST)),
    **dict.fromkeys(
        ("convolution", "_convolution", "conv1d", "conv2d", "conv3d", "cudnn_convolution", "mkldnn_convolution",
         "miopen_convolution", "cudnn_convolution_relu", "_slow_conv2d_forward", "thnn_conv2d"),
        ("matmul", 2, -1, 1, _INNER),
    ),
    "convolution_backward": ("matmul", 4, 0, 2, _INNER),
    **{
        f"_scaled_dot_product_{kind}_attention{back}": ("attention", times, first, first + 1, _KEYS)
        for kind in ("flash", "efficient", "cudnn", "fused")
        for back, times, first in (("", 4, 0), ("_backward", 10, 1))
    },
}  # fmt: skip
"""Op -> its class, and its FLOPs: so many times the elements of an argument (-1: of the result) and these sizes of
another one; of attention without a mask. Backward of a convolution is two such products; of attention five of forward's
two."""


def arithmetic(name: str, shapes_in: object, shapes_out: object) -> tuple[str, int]:
    """Class of an op, and its FLOPs; none of what only moves or maps elements.

    Parameters
    ----------
    name
        With namespace, and perhaps overload.
    shapes_in, shapes_out
        Lists of sizes, argument for argument.
    """
    if plain(name) not in _FLOPS:
        return "vector", 0
    kind, times, first, second, part = _FLOPS[plain(name)]
    rows, others = _sizes(shapes_out, 0) if first < 0 else _sizes(shapes_in, first), _sizes(shapes_in, second)
    return kind, whole(times * math.prod(rows) * math.prod(others[part])) if rows and others else 0


def dtype_of(types: object, of_float: str) -> str:
    """The data type of the first tensor in a list of types such as ``["Tensor(float)"]``; if unknown, `of_float`."""
    for type_ in types if isinstance(types, list) else ():
        found = re.search(r"Tensor\((?:c10::)?(\w+)", str(type_)[:200])
        match = found and next((one for one in _DTYPES if found[1].lower().startswith(one)), None)
        if match:
            return _DTYPES[match] or of_float
    return of_float


def is_number(type_: object) -> bool:
    """Whether a type such as ``Tensor(float)`` is that of whole numbers."""
    return re.search(r"Tensor\((?:c10::)?(long|int|bool|unsigned|char|short)", str(type_)[:200]) is not None
