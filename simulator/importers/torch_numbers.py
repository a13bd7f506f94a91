"""What an op of PyTorch computes and makes, and how many bytes it reads and writes."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from functools import cache
from itertools import zip_longest
from math import prod
from typing import Any, NamedTuple

import torch
from torch._subclasses.fake_tensor import FakeTensor, run_fallback_kernel
from torch.utils._pytree import tree_flatten, tree_unflatten
from torch.utils.flop_counter import flop_registry

from simulator.graph import chosen_number
from simulator.graph_builder import OpFields
from simulator.importers.imported import FACTS
from simulator.importers.torch_machine import tensors

_aten = torch.ops.aten
# Data type -> key of a machine's peaks.
_DTYPES = {getattr(torch, name): key for name, key in FACTS["torch"]["dtypes"].items()}
# Ops that read at most as many bytes of their first argument as they write.
_PICKS = frozenset((_aten.embedding, _aten.index_select, _aten.index, _aten.gather))
# Ops that change, of their first argument, entries at indices; entries at an index along a dimension; elements.
_PUTS, _PLACES = frozenset((_aten.index_put_, _aten._index_put_impl_)), frozenset((_aten.scatter_, _aten.scatter_add_))
_ALONG = frozenset((_aten.index_copy_, _aten.index_add_, _aten.index_fill_, _aten.index_reduce_))
_ENTRIES, _OF_ROWS = {_aten.index, *_PUTS}, {_aten.add_, _aten.sparse_mask}
# Matmuls of groups of rows, each with a matrix of its own -> the argument that tells where groups end.
_GROUPS = {_aten._grouped_mm: 2, _aten._scaled_grouped_mm: 4}


def _recurrent_flops(first: torch.Tensor, into: torch.Tensor, within: torch.Tensor, *_: Any, **__: Any) -> int:
    """Count the FLOPs of a recurrent layer: each token meets both of its matrices."""
    return 2 * int(first.shape[0] * first.shape[1] * (into.numel() + within.numel()))


def _encoder_flops(x: torch.Tensor, *args: Any, **_: Any) -> int:
    """Count the FLOPs of a layer of an encoder, or its attention, in one op: each token meets all matrices, tokens."""
    weights = sum(w.numel() for w in tensors(args) if w.dim() == 2 and w.is_floating_point())
    return int(2 * prod(x.shape[:2]) * (weights + 2 * x.shape[1] * x.shape[2]))


# A recurrent layer in one op, whose workspace, most of what it saves, has no size under fake tensors.
_RECURRENT, _RECURRENT_BACK = _aten.mkldnn_rnn_layer, _aten.mkldnn_rnn_layer_backward
# Op -> PyTorch's counter of its FLOPs; attention takes the same arguments on CPU and GPU.
# Groups of rows, or columns, together are all rows, or columns.
_COUNTED = {**flop_registry, _RECURRENT: _recurrent_flops}
_COUNTED |= dict.fromkeys(_GROUPS, lambda x, y, *_, **__: 2 * prod(x.shape[-2:]) * y.shape[-1])
_COUNTED[_RECURRENT_BACK] = lambda *given, **more: 2 * _recurrent_flops(*given, **more)
_ATTENTION = "_scaled_dot_product_"
_COUNTED |= dict.fromkeys((_aten._transformer_encoder_layer_fwd, _aten._native_multi_head_attention), _encoder_flops)
_FLASH = f"{_ATTENTION}flash_attention"
for _back in ("", "_backward"):
    _COUNTED[getattr(_aten, f"{_FLASH}_for_cpu{_back}")] = flop_registry[getattr(_aten, f"{_FLASH}{_back}")]


UPDATES = frozenset((_aten.native_batch_norm, _aten.cudnn_batch_norm, _aten.miopen_batch_norm))
"""Ops that update the running statistics that they are given, if what follows those (to train, or a momentum) is not
zero; their schema does not say so."""
# FSDP's copy of shards into what is gathered, which it does not say that it writes.
_COPY_IN = "fsdp.all_gather_copy_in.default"
# Ops that make a sparse tensor with the entries of another one, of which there are none under fake tensors.
_OF_ENTRIES = frozenset((_aten.clone, _aten._coalesce, _aten.sparse_mask))
# Op -> the argument whose type some of its results have, and which (from one up to another); of arguments of several
# types they have another one under fake tensors.
_TYPES = {getattr(_aten, name): (of, slice(*ends)) for name, (of, *ends) in FACTS["torch"]["types"].items()}


def run_as_real(func: Any, args: Any, kwargs: Any, given: list[torch.Tensor]) -> Any:
    """Run a function of PyTorch, given these tensors; what it makes has types and storages as of real ones."""
    packet = func._overloadpacket
    if packet in (_RECURRENT, _RECURRENT_BACK) and isinstance(given[0], FakeTensor):
        return run_fallback_kernel(given[0].fake_mode, func, *tree_flatten((args, kwargs)), RuntimeError())
    kept = next((arg for arg in reversed(args) if isinstance(arg, FakeTensor) and arg.is_sparse), None)
    if kept is not None and packet in _OF_ENTRIES:
        parts = (torch.empty_like(part) for part in tensors([kept]))
        return torch.sparse_coo_tensor(*parts, kept.shape, check_invariants=False)
    made = func(*args, **kwargs)
    position, which = _TYPES.get(packet, (0, slice(0)))
    if position and args[position] is not None:
        leaves, spec = tree_flatten(made)
        leaves[which] = [tensor if tensor is None else tensor.to(args[position].dtype) for tensor in leaves[which]]
        made = tree_unflatten(leaves, spec)
    if packet is _aten.native_batch_norm:
        form = torch._prims_common.suggest_memory_format(args[0])
        made = (made[0].contiguous(memory_format=form), *made[1:])
    if packet is _aten.native_batch_norm_backward:
        made = tuple(grad if is_asked else None for grad, is_asked in zip(made, args[-1], strict=True))
    if packet in (_aten.mse_loss, _aten.smooth_l1_loss) and not made.dim():  # in the storage of what it reduces
        numel = torch.broadcast_shapes(args[0].shape, args[1].shape).numel()
        made.untyped_storage().resize_(numel * made.element_size())
    return made


@cache
def _written_by(func: Any) -> tuple[tuple[int, str], ...]:
    """Return position and name of the arguments that an op writes; collectives do not say so."""
    if func.namespace == "c10d":
        return ((0, ""),)
    arguments = enumerate(func._schema.arguments)
    return tuple((i, a.name) for i, a in arguments if a.alias_info is not None and a.alias_info.is_write)


def changed_by(func: Any, args: Any, kwargs: Any, made: Any) -> list[torch.Tensor]:
    """Return the tensors that a call of PyTorch, which made something, changed."""
    changed = [args[i] if i < len(args) else kwargs.get(name) for i, name in _written_by(func)]
    changed += args[3:5] if func._overloadpacket in UPDATES and args[5] else ()
    changed += made[:1] if str(func) == _COPY_IN else ()
    return list(tensors(changed))


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
    return int(min(tensor.numel() * tensor.element_size(), tensor.untyped_storage().nbytes()))


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
    entries = args[1][0] if ran.packet in _ENTRIES and args[0].dim() == 3 else None
    if ran.packet in _GROUPS and {args[0].dim(), args[1].dim()} == {2, 3}:
        experts, rows = sorted(args[:2], key=torch.Tensor.dim, reverse=True)
        uses, tells = rows.shape[0 if rows is args[0] else 1], ran.kwargs.get("offs", args[_GROUPS[ran.packet]])
    elif entries is not None and (entries.numel(), len(args[0])) in each:
        experts, tells, uses = args[0], entries, entries.numel()
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


def _attended(ran: DispatchedOp) -> Fraction:
    """Return the share of all pairs of a query and a key that an op of attention takes: causal ones skip the rest."""
    given = dict(zip((argument.name for argument in ran.func._schema.arguments), ran.args, strict=False)) | ran.kwargs
    queries, keys = given["query"].shape[-2], given["key"].shape[-2]
    most = min(queries, keys)
    if not (given.get("is_causal") and most):
        return Fraction(1)
    return Fraction(most * (2 * queries - most), 2 * queries * keys)


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
    kinds = ("attention_backward", "attention")
    fields["op_class"] = next((kind for kind in kinds if kind in name), "matmul") if flops else "vector"
    if name.startswith(_ATTENTION):
        fields["flops"] = int(fields["flops"] * _attended(ran))
    fields["repeatable"] = torch.Tag.nondeterministic_seeded not in ran.func.tags
    return fields
