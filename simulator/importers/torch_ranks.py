"""Ranks of a captured step: the first runs alone, in a group of processes that are not there, and names whom it meets.

All others do what it does. What several share (DTensor, FSDP's ``fully_shard``, DistributedDataParallel) runs as on the
first of them: each tensor is its part. PyTorch's fake process group ends each collective at once.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from importlib import import_module
from pkgutil import resolve_name
from types import FrameType
from typing import Any
from unittest.mock import patch

import torch
from torch import distributed
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily
from torch.utils._python_dispatch import is_traceable_wrapper_subclass
from torch.utils._pytree import tree_leaves

from simulator.document import MOST_RANKS
from simulator.errors import insist
from simulator.graph import CollectiveKind
from simulator.importers.recordings import collective_kind


def tensors(values: Iterable[Any]) -> Iterator[torch.Tensor]:
    """Iterate over the tensors in nested containers: this rank's, the parts of sparse ones."""
    for value in tree_leaves(values):
        if is_traceable_wrapper_subclass(value):
            yield from tensors([getattr(value, part) for part in value.__tensor_flatten__()[0]])
        elif isinstance(value, torch.Tensor):
            yield from (value._indices(), value._values()) if value.is_sparse else (value,)


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


def _reduce(_, bucket):  # type: ignore[no-untyped-def]
    distributed.all_reduce(bucket.buffer(), op=distributed.ReduceOp.AVG)
    done = torch.futures.Future[torch.Tensor]()
    done.set_result(bucket.buffer())
    return done


def _forward(run: Any, self: Any, *inputs: Any, **named: Any) -> Any:
    """Let DistributedDataParallel reduce its buckets by a hook: by itself it asks for their values."""
    if not self._comm_hooks:
        self.register_comm_hook(None, _reduce)
    return run(self, *inputs, **named)


def _part(make: Any, self: Any, *given: Any, **named: Any) -> None:
    """Make FSDP's part of a weight; refuse one that lies on the host, as there is none here."""
    make(self, *given, **named)
    do = "leave it out, and let a plan move weights: hosim run --home weight=ddr"
    insist(not self.offload_to_cpu, "fully_shard", "what FSDP shares lies on the device", "CPUOffloadPolicy", do)


def _around(instead: Callable[..., Any], run: Any) -> Callable[..., Any]:
    return lambda *given, **named: instead(run, *given, **named)


# Name of a function or method of PyTorch -> what runs instead, which is given that.
_INSTEAD: dict[str, Callable[..., Any]] = {
    "torch.distributed.init_process_group": lambda *_, **__: None,
    "torch.distributed._compute_bucket_assignment_by_size": _buckets,
    "torch.distributed.Reducer._rebuild_buckets": lambda *_: False,  # it would make them of real memory
    "torch.distributed.device_mesh.DeviceMesh.__init__": _mesh,
    "torch.distributed.fsdp._fully_shard._fsdp_param.FSDPParam.__init__": _part,
    "torch.nn.parallel.distributed.DistributedDataParallel._pre_forward": _forward,
    "torch.nn.parallel.distributed._BucketCapacityConfig.compute_bucket_size_limits": _limits,
    "torch.nn.parallel.distributed._verify_param_shape_across_processes": lambda *_: None,
}


@contextmanager
def alone(ranks: int | None) -> Iterator[None]:
    """Let code for several ranks run as the first of so many; None: of those that there are."""
    if ranks is not None:
        _start(ranks)
    with ExitStack() as stack:
        for name, instead in _INSTEAD.items() if number() > 1 else ():
            with suppress(AttributeError):  # not all versions have all
                stack.enter_context(patch(name, _around(instead, resolve_name(name))))
        if number() > 1:
            stack.enter_context(patch.dict(os.environ, RANK="0", LOCAL_RANK="0", WORLD_SIZE=str(number())))
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
