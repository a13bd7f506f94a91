"""The machine that a user's code asks for, although it runs alone, on the CPU: accelerators, their host, and ranks.

A copy to the host is a storage of its own there. What it is copied back to is itself: it comes in where an op reads it.

Of several ranks the first runs alone, in a group of processes that are not there, and names whom it meets. All others
do what it does. What several share (DTensor, FSDP's ``fully_shard``, DistributedDataParallel) runs as on the first of
them: each tensor is its part. PyTorch's fake process group ends each collective at once.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from functools import partial
from importlib import import_module
from pkgutil import resolve_name
from types import FrameType
from typing import Any
from unittest.mock import patch
from weakref import WeakSet

import torch
from torch import distributed
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensor, unset_fake_temporarily
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils import _python_dispatch as dispatch
from torch.utils._pytree import tree_leaves, tree_map_only

from simulator.document import MOST_RANKS
from simulator.errors import insist
from simulator.graph import CollectiveKind
from simulator.importers.imported import FACTS
from simulator.importers.recordings import collective_kind

_CUDA = re.compile(r"cuda(:\d+)?")
_FEW = 1024  # models compute small constants when they are made, such as a drop rate for each layer
_FP32_FUNCTIONS = frozenset(FACTS["autocast"]["fp32"].split())


def tensors(values: Iterable[Any]) -> Iterator[torch.Tensor]:
    """Iterate over the tensors in nested containers: this rank's, the parts of sparse ones."""
    for value in tree_leaves(values):
        if dispatch.is_traceable_wrapper_subclass(value):
            yield from tensors([getattr(value, part) for part in value.__tensor_flatten__()[0]])
        elif isinstance(value, torch.Tensor):
            yield from (value._indices(), value._values()) if value.is_sparse else (value,)


def is_cuda(value: Any) -> bool:
    """Tell whether a value names CUDA."""
    return isinstance(value, str | torch.device) and bool(_CUDA.fullmatch(str(value)))


def on_cpu(value: Any) -> Any:
    """Return a value, or "cpu" if it names CUDA."""
    return "cpu" if is_cuda(value) else value


def _names_host(values: Iterable[Any]) -> bool:
    """Tell whether one of some arguments names the host; a device may be one that stands for CUDA."""
    return any(isinstance(value, str) and value == "cpu" for value in values)


def take_back() -> None:
    """Forget, between two steps, that copies of what is on the host were on CUDA."""
    _ON_CUDA.difference_update(_LENT)


_MODULES = torch.nn.modules.module.__file__
_ON_CUDA, _ON_HOST, _LENT, _COMPARED = (WeakSet[torch.UntypedStorage]() for _ in range(4))
"""Storages that code asked to be on CUDA, or on the host, or that were made of such on CUDA; those of which a step has
a copy on CUDA, and which stay on the host; and what comparing values has made."""

_COPIES = (torch.Tensor.copy_, torch.Tensor.cpu, torch.Tensor.to)


class Accelerated(TorchFunctionMode):  # type: ignore[misc]
    """Runs code that asks for CUDA on the CPU, as it would run there, and notes what it copies to the host.

    Attributes
    ----------
    in_step, in_update, to_host
        Whether a step runs; an optimizer, for which a value that is not known is 1, and the larger one that it is
        compared with; a copy to the host.
    is_asked
        Whether the code asked for CUDA, or was given what is there.
    bring
        Function that is told of each tensor that a step copies to CUDA.
    """

    in_step = in_update = to_host = is_asked = _is_there = False
    bring: Callable[[torch.Tensor], object] = staticmethod(id)

    def __torch_function__(self, func: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch._C._nn._parse_to:  # what a module hands on to its tensors; the host by name
            device, *more = func(*args, **(kwargs or {}))
            return ("cpu" if _names_host((*args, *(kwargs or {}).values())) else device, *more)
        if self.in_update and func in (torch.Tensor.item, torch.Tensor.__float__, torch.Tensor.__bool__):
            with suppress(DataDependentOutputException):
                return func(*args)
            if func != torch.Tensor.__bool__ or args[0].untyped_storage() in _COMPARED:
                return func == torch.Tensor.__bool__ or 1.0
        given, values = list(tensors((args, kwargs))), (*args, *(kwargs or {}).values())
        is_there = func is torch.Tensor.cuda or any(map(is_cuda, values))
        is_there = is_there or (len(_ON_CUDA) > 0 and any(tensor.untyped_storage() in _ON_CUDA for tensor in given))
        self.is_asked |= is_there
        args, kwargs = tuple(map(on_cpu, args)), {k: on_cpu(v) for k, v in (kwargs or {}).items()}
        if self._leaves(func, given, values):
            return self._to_host(func, args, kwargs)
        if self.in_step and is_there and func in (*_COPIES, torch.Tensor.cuda):
            self._note_brought(given[-1:] if func is torch.Tensor.copy_ else given, sys._getframe(1))
        is_pinned = bool(kwargs.get("pin_memory")) and kwargs.pop("pin_memory")
        outer, self._is_there = self._is_there, is_there
        try:
            made = self._call(func, args, kwargs, given)
        finally:
            self._is_there = outer
        memories = [tensor.untyped_storage() for tensor in tensors(made)]
        _COMPARED.update(memories if getattr(func, "__name__", "") in ("gt", "lt", "ge", "le") else ())
        if is_there or is_pinned:
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
        is_named, is_there = func is torch.Tensor.cpu or _names_host(values), memory in _ON_CUDA
        return is_named and (is_there or (self.in_step and func is torch.Tensor.cpu)) and not on_host[0]

    def _note_brought(self, given: list[torch.Tensor], caller: FrameType) -> None:
        """Note tensors that a step copies to CUDA; a module that goes there takes its own with it."""
        for tensor in given:
            if (memory := tensor.untyped_storage()) not in _ON_CUDA:
                self.bring(tensor)
                _LENT.update([memory] if caller.f_code.co_filename != _MODULES else [])

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
                _ON_CUDA.update([tensor.untyped_storage()] if self._is_there else [])  # what is being made there, too
                with self:
                    return pack(tensor)

            push(packed, unpack)

        def on_host(made: Any, *_: Any, **__: Any) -> None:  # PyTorch's own asks first whether there is CUDA
            graph.saved_tensors_hooks.__init__(made, torch.Tensor.cpu, lambda held: held)

        hooks, pin = (autograd, "_push_saved_tensors_default_hooks", pushed), (graph.save_on_cpu, "__init__", on_host)
        with patch.object(*hooks), patch.object(*pin), self:
            yield


def runs_backward(frame: FrameType | None) -> bool:
    """Tell whether autograd called; at the end of backward it does so without a node."""
    while frame is not None and frame.f_code.co_name != "_engine_run_backward":
        frame = frame.f_back
    return frame is not None


def number() -> int:
    """Return how many ranks there are, of which the first runs."""
    is_fake = distributed.is_initialized() and distributed.get_backend() == "fake"
    return distributed.get_world_size() if is_fake else 1


def _start(ranks: int) -> None:
    """Make the process group, if there is none of so many ranks."""
    insist(1 <= ranks <= MOST_RANKS, "ranks", f"a step has from 1 to {MOST_RANKS:,} ranks", repr(ranks), "correct it")
    if ranks == number():
        return
    if number() > 1:
        distributed.destroy_process_group()
    must, do = "a captured rank runs alone", "capture it in a program without one"
    insist(not distributed.is_initialized(), "ranks", must, "a process group", do)
    if ranks > 1:
        store = import_module("torch.testing._internal.distributed.fake_pg").FakeStore()  # the module registers it
        distributed.init_process_group("fake", rank=0, world_size=ranks, store=store)


def _mesh(make: Any, self: Any, device_type: str, *mesh: Any, **more: Any) -> None:
    """Make a mesh whose ranks have values, on the CPU."""
    with unset_fake_temporarily():
        if isinstance(more.get("_rank_map"), FakeTensor):  # that of init_device_mesh, which counts
            more["_rank_map"] = torch.arange(len(more["_rank_map"]), dtype=torch.int)
        make(self, "cpu" if device_type == "cuda" else device_type, *mesh, **more)


def _limits(limits: Any, self: Any, **_: Any) -> Any:
    """Return the limits of buckets that all steps but the first have."""
    return limits(self, static_graph=False, find_unused_parameters=True)


def _buckets(assign: Any, parameters: Any, *more: Any) -> Any:
    """Fill buckets from the last parameter on, as all steps but the first do by the order of gradients."""
    last, (buckets, sizes) = len(parameters) - 1, assign(parameters[::-1], *more)
    return [[last - index for index in bucket] for bucket in reversed(buckets)], sizes[::-1]


class Noted(dispatch.TorchDispatchMode):  # type: ignore[misc]
    """Keeps real what DistributedDataParallel notes of the parameters that a step uses, as it asks for that."""

    is_made, _held = False, WeakSet[torch.UntypedStorage]()

    @classmethod
    def notes(cls, given: list[torch.Tensor]) -> bool:
        """Tell whether these tensors are such notes, and no others."""
        return bool(cls._held and given) and all(tensor.untyped_storage() in cls._held for tensor in given)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(map(dispatch.is_traceable_wrapper_subclass_type, types)):
            return NotImplemented
        kwargs = kwargs or {}
        given = list(tensors((args, kwargs)))
        is_new = self.is_made and not given and kwargs.get("dtype") is torch.int32
        with unset_fake_temporarily() if is_new or self.notes(given) else nullcontext():
            made = func(*args, **kwargs)
        self._held.update(tensor.untyped_storage() for tensor in tensors(made) if is_new)
        return made


def _noting(run: Any, *given: Any, **named: Any) -> Any:
    """Make what notes used parameters, which are all whole numbers that are made here."""
    with patch.object(Noted, "is_made", True):
        return run(*given, **named)


def _share(run: Any, self: Any, parameters: Any, sparse: Any, names: Any, static_graph: Any) -> None:
    """Make the buckets of DistributedDataParallel, which all steps have that look for unused parameters."""
    with ExitStack() as stack:
        for name, instead in _REBUILT.items() if static_graph or not self.find_unused_parameters else ():
            stack.enter_context(patch(name, _around(instead, resolve_name(name))))
        _noting(run, self, parameters, sparse, names, static_graph)


def _reduce(waiting, bucket):  # type: ignore[no-untyped-def]
    distributed.all_reduce(bucket.buffer(), op=distributed.ReduceOp.AVG)
    waiting.difference_update(map(id, bucket.parameters()))
    done = torch.futures.Future[torch.Tensor]()
    done.set_result(bucket.buffer())
    return done


def _forward(run: Any, self: Any, *inputs: Any, **named: Any) -> Any:
    """Let DistributedDataParallel reduce its buckets by a hook: by itself it asks for their values.

    It reduces a bucket once all its parameters have gradients; those that wait for others before a step never are.
    """
    waiting = self.__dict__.setdefault("_waiting_for_others", set())
    if not self._comm_hooks:
        for parameter in (held for held in self.parameters() if held.requires_grad):
            parameter.register_hook(partial(_wait, self, waiting, id(parameter)))
        self.register_comm_hook(waiting, _reduce)
    must, do = "each parameter has a gradient in each step", "say find_unused_parameters=True, as PyTorch asks for, too"
    found = f"{len(waiting):,} gradients that are never reduced, as their buckets lack others"
    insist(not waiting, type(self).__name__, must, found, do)
    return run(self, *inputs, **named)


def _wait(self: Any, waiting: set[int], parameter: int, _: torch.Tensor) -> None:
    waiting.update([parameter] if self.require_backward_grad_sync else [])


def _part(make: Any, self: Any, *given: Any, **named: Any) -> None:
    """Make FSDP's part of a weight; refuse one that lies on the host, as there is none here."""
    make(self, *given, **named)
    do = "leave it out, and let a plan move weights: hosim run --home weight=ddr"
    insist(not self.offload_to_cpu, "fully_shard", "parameters of FSDP lie on the device", "CPUOffloadPolicy", do)


def _of_groups(multiply: Any, a: Any, b: Any, scale_a: Any = None, **named: Any) -> Any:
    """Multiply groups of rows of any type, as PyTorch does but under fake tensors."""
    halves = (a, b) if scale_a is not None else (a.bfloat16(), b.bfloat16())
    made = multiply(*halves, scale_a=scale_a, **named)
    return made if scale_a is not None else made.to(named.get("out_dtype") or a.dtype)


def _around(instead: Callable[..., Any], run: Any) -> Callable[..., Any]:
    return lambda *given, **named: instead(run, *given, **named)


# Name of a function or method of PyTorch -> what runs instead, which is given that; and where buckets are made again.
_REBUILT: dict[str, Callable[..., Any]] = {
    "torch.distributed._compute_bucket_assignment_by_size": _buckets,
    "torch.nn.parallel.distributed._BucketCapacityConfig.compute_bucket_size_limits": _limits,
}
_ALWAYS: dict[str, Callable[..., Any]] = {"torch._meta_registrations._meta_grouped_mm_common": _of_groups}
_INSTEAD: dict[str, Callable[..., Any]] = {
    "torch.distributed.init_process_group": lambda *_, **__: None,
    "torch.distributed.Reducer._set_static_graph": _noting,
    "torch.distributed.Reducer._rebuild_buckets": lambda *_: False,  # it would make them of real memory
    "torch.distributed.device_mesh.DeviceMesh.__init__": _mesh,
    "torch.distributed.fsdp._fully_shard._fsdp_param.FSDPParam.__init__": _part,
    "torch.nn.parallel.distributed.DistributedDataParallel._pre_forward": _forward,
    "torch.nn.parallel.distributed.DistributedDataParallel._ddp_init_helper": _share,
    "torch.nn.parallel.distributed._verify_param_shape_across_processes": lambda *_: None,
}


@contextmanager
def alone(ranks: int | None) -> Iterator[None]:
    """Let code for several ranks run as the first of so many; None: of those that there are."""
    if ranks is not None:
        _start(ranks)
    with ExitStack() as stack:
        for name, instead in (_ALWAYS | (_INSTEAD if number() > 1 else {})).items():
            with suppress(AttributeError):  # not all versions have all
                stack.enter_context(patch(name, _around(instead, resolve_name(name))))
        if number() > 1:
            stack.enter_context(patch.dict(os.environ, RANK="0", LOCAL_RANK="0", WORLD_SIZE=str(number())))
            stack.enter_context(Noted())
        yield


def met(func: Any, args: Any, where: str) -> tuple[CollectiveKind, str, list[int]] | None:
    """Return what a call of PyTorch does with other ranks, the name of their group, and they; None if it meets none.

    Raises
    ------
    ConfigError
        If not all ranks do that, or the others are there.
    """
    named = [argument.name in ("process_group", "group_name") for argument in func._schema.arguments]
    if True not in named:
        return None
    name, group = func._overloadpacket.__name__, args[named.index(True)]
    kind, do = collective_kind(name.removeprefix("shard_dim_")), "leave it out, or capture one stage of a pipeline"
    insist(kind is not None, where, "all ranks of a captured step do the same", f"{name}, of one rank", do)
    by_name = distributed.distributed_c10d._resolve_process_group
    group = by_name(group) if isinstance(group, str) else distributed.ProcessGroup.unbox(group)
    ranks, do = distributed.get_process_group_ranks(group), "say how many there are: --ranks 8, or fake(ranks=8)"
    insist(number() > 1 or len(ranks) == 1, where, "a captured rank runs alone", f"{name} with others", do)
    return (kind, f"{group.group_desc} {group.group_name}", ranks) if kind and len(ranks) > 1 else None
