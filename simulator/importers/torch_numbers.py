"""What an op of PyTorch computes, and how many bytes it reads and writes."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import zip_longest
from math import prod
from typing import Any, NamedTuple

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils.flop_counter import flop_registry

from simulator.graph import chosen_number
from simulator.graph_builder import OpFields

_aten = torch.ops.aten
# Data type -> key of a machine's peaks.
_DTYPES = {
    torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16", torch.float64: "fp64", torch.int8: "int8",
    torch.float8_e4m3fn: "fp8", torch.float8_e5m2: "fp8",
}  # fmt: skip
# Ops that read at most as many bytes of their first argument as they write.
_PICKS = frozenset((_aten.embedding, _aten.index_select, _aten.index, _aten.gather))
# Ops that change, of their first argument, entries at indices; entries at an index along a dimension; elements.
_PUTS, _PLACES = frozenset((_aten.index_put_, _aten._index_put_impl_)), frozenset((_aten.scatter_, _aten.scatter_add_))
_ALONG = frozenset((_aten.index_copy_, _aten.index_add_, _aten.index_fill_, _aten.index_reduce_))
_ENTRIES, _OF_ROWS = {_aten.index, *_PUTS}, {_aten.add_, _aten.sparse_mask}
# Matmuls of groups of rows, each with a matrix of its own -> the argument that tells where groups end.
_GROUPS = {_aten._grouped_mm: 2, _aten._scaled_grouped_mm: 4}


def _grouped_flops(first: torch.Tensor, second: torch.Tensor, *_: Any, **__: Any) -> int:
    """Count the FLOPs of a grouped matmul: its groups of rows, or columns, together are all rows, or columns."""
    return 2 * int(first.shape[-2] * first.shape[-1] * second.shape[-1])


def _recurrent_flops(first: torch.Tensor, into: torch.Tensor, within: torch.Tensor, *_: Any, **__: Any) -> int:
    """Count the FLOPs of a recurrent layer: each token meets both of its matrices."""
    return 2 * int(first.shape[0] * first.shape[1] * (into.numel() + within.numel()))


RECURRENT, RECURRENT_BACK = _aten.mkldnn_rnn_layer, _aten.mkldnn_rnn_layer_backward
"""A recurrent layer in one op, whose workspace, most of what it saves, has no size under fake tensors."""
# Op -> PyTorch's counter of its FLOPs; attention takes the same arguments on CPU and GPU.
_COUNTED = {**flop_registry, **dict.fromkeys(_GROUPS, _grouped_flops), RECURRENT: _recurrent_flops}
_COUNTED[RECURRENT_BACK] = lambda *given, **more: 2 * _recurrent_flops(*given, **more)
_FLASH = "_scaled_dot_product_flash_attention"
for _back in ("", "_backward"):
    _COUNTED[getattr(_aten, f"{_FLASH}_for_cpu{_back}")] = flop_registry[getattr(_aten, f"{_FLASH}{_back}")]


class DispatchedOp(NamedTuple):
    """A call of PyTorch: function, arguments and result; and the tensors that it was given, changed, and made."""

    func: Any
    args: Any
    kwargs: Any
    made: Any
    given: list[torch.Tensor]
    changed: list[torch.Tensor]
    new: list[torch.Tensor]

    @property
    def packet(self) -> Any:
        """The function, whatever its overload."""
        return self.func._overloadpacket


def touched(tensor: torch.Tensor) -> int:
    """Return how many bytes of its storage a tensor covers [B]."""
    shown: int = tensor.numel() * tensor.element_size()
    return min(shown, int(tensor.untyped_storage().nbytes()))


def _experts(ran: DispatchedOp, each: Mapping[tuple[int, int], int]) -> tuple[torch.Tensor, int] | None:
    """Return the experts of which an op uses some, and how many: as real indices name, or else as are expected.

    Parameters
    ----------
    ran
        The op; None is returned if it is none on experts.
    each
        Number of choices that all tokens make together, and of what they choose from -> of choices that one makes.
    """
    args = (*ran.args, None, None, None)
    if ran.packet in _GROUPS and {args[0].dim(), args[1].dim()} == {2, 3}:
        experts, rows = sorted(args[:2], key=torch.Tensor.dim, reverse=True)
        uses, tells = rows.shape[0 if rows is args[0] else 1], ran.kwargs.get("offs", args[_GROUPS[ran.packet]])
    elif (
        ran.packet in _ENTRIES
        and args[0].dim() == 3
        and args[1][0] is not None
        and (args[1][0].numel(), len(args[0])) in each
    ):
        experts, tells = args[0], args[1][0]
        uses = tells.numel()
    else:
        return None
    if not isinstance(tells, FakeTensor):
        different = {*tells.flatten().tolist()}
        return experts, len(different - {0} if ran.packet in _GROUPS else different)  # groups are told by their ends
    chosen = each.get((uses, len(experts)), 1)
    return experts, chosen_number(len(experts), uses // chosen, chosen)


def _parts(ran: DispatchedOp, each: Mapping[tuple[int, int], int]) -> dict[int, int]:
    """Return how many bytes an op touches of a tensor, by its id, where that is a part; `each` as for `_experts`."""
    packet, args = ran.packet, ran.args
    if taken := _experts(ran, each):
        experts, some = taken
        return {id(experts): touched(experts) // len(experts) * some}
    if packet in _PICKS:
        most = sum(map(touched, ran.new))
    elif packet in _OF_ROWS and getattr(args[1], "is_sparse", False):
        most = touched(args[1]._values())
    elif packet is _aten._embedding_bag:
        most = args[1].numel() * touched(args[0]) // max(len(args[0]), 1)
    elif packet in _PLACES:
        most = args[2].numel() * args[0].element_size()
    elif packet in _ALONG:
        most = args[2].numel() * touched(args[0]) // max(args[0].shape[args[1]], 1)
    elif packet in _PUTS and all(index is None or index.dtype is torch.int64 for index in args[1]):
        whole = (size for size, index in zip_longest(args[0].shape, args[1]) if index is None)
        named = torch.broadcast_shapes(*(index.shape for index in args[1] if index is not None))
        most = named.numel() * prod(whole) * args[0].element_size()
    else:
        return {}
    return {id(args[0]): min(most, touched(args[0]))}


def numbers(ran: DispatchedOp, sources: list[torch.Tensor], each: Mapping[tuple[int, int], int]) -> OpFields:
    """Return traffic, FLOPs, class and data type of an op that reads `sources`; `each` as for `_experts`."""
    flops, name, targets = _COUNTED.get(ran.packet), ran.packet.__name__, [*ran.changed, *ran.new]
    parts = _parts(ran, each)
    write_bytes = sum(parts.get(id(tensor), touched(tensor)) for tensor in targets)
    read = {id(tensor): parts.get(id(tensor), touched(tensor)) for tensor in sources}
    dtype = next((_DTYPES[t.dtype] for t in (*sources, *targets) if t.dtype in _DTYPES), "fp32")
    if flops and dtype == "fp32":
        backend = torch.backends.cudnn if "conv" in name else torch.backends.cuda.matmul
        dtype = "tf32" if backend.allow_tf32 else dtype
    fields: OpFields = {"read_bytes": sum(read.values()), "write_bytes": write_bytes, "dtype": dtype}
    fields["flops"] = int(flops(*ran.args, **ran.kwargs, out_val=ran.made)) if flops else 0
    fields["op_class"] = "vector" if not flops else "attention" if "attention" in name else "matmul"
    fields["repeatable"] = torch.Tag.nondeterministic_seeded not in ran.func.tags
    return fields
