"""Ranks of a captured step: the first runs alone, in a group of processes that are not there, and names whom it meets.

All others do what it does. What several share (DTensor, FSDP's ``fully_shard``, DistributedDataParallel) runs as on the
first of them: each tensor is its part. PyTorch's fake process group ends each collective at once.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial, partialmethod
from importlib import import_module
from types import FrameType
from typing import Any
from unittest.mock import patch

import torch
from torch import distributed
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.parallel import distributed as replicas
from torch.utils._python_dispatch import _disable_current_modes, is_traceable_wrapper_subclass
from torch.utils._pytree import tree_leaves

from simulator.document import MOST_RANKS
from simulator.errors import insist
from simulator.graph import CollectiveKind
from simulator.importers.recordings import collective_kind

_make_group = distributed.init_process_group


def tensors(values: Iterable[Any]) -> Iterator[torch.Tensor]:
    """Iterate over the tensors in nested containers; of one that several ranks share, over what this rank holds."""
    for value in tree_leaves(values):
        if is_traceable_wrapper_subclass(value):
            yield from tensors([getattr(value, part) for part in value.__tensor_flatten__()[0]])
        elif isinstance(value, torch.Tensor):
            yield value


def runs_backward(frame: FrameType | None) -> bool:
    """Tell whether autograd called; at the end of backward it does so without a node."""
    while frame is not None and frame.f_code.co_name != "_engine_run_backward":
        frame = frame.f_back
    return frame is not None


def number() -> int:
    """Return how many ranks there are, of which the first runs."""
    return distributed.get_world_size() if _backend() == "fake" else 1


def _backend() -> str:
    return str(distributed.get_backend()) if distributed.is_initialized() else ""


def _start(ranks: int) -> None:
    """Make the process group, if there is none of so many ranks."""
    insist(1 <= ranks <= MOST_RANKS, "ranks", f"a step has from 1 to {MOST_RANKS:,} ranks", repr(ranks), "correct it")
    must, do = "a captured rank runs alone", "capture it in a program without a process group"
    insist(_backend() in ("", "fake") or ranks == 1, "ranks", must, f"one of {_backend()}", do)
    if number() not in (1, ranks):
        distributed.destroy_process_group()
    if number() < ranks:
        store = import_module("torch.testing._internal.distributed.fake_pg").FakeStore()  # the module registers it
        _make_group("fake", rank=0, world_size=ranks, store=store)


def _join(*_: Any, world_size: int = -1, **__: Any) -> None:
    """Join the ranks that there are, where code makes a process group."""
    ranks, do = world_size if world_size > 0 else number(), "say how many: --ranks 8, or hosim.torch.fake(ranks=8)"
    insist(ranks > 1, "init_process_group", "a captured step knows how many ranks there are", "no number", do)
    _start(ranks)


def _make_mesh(self: Any, make: Any, device_type: str, *mesh: Any, **more: Any) -> None:
    """Make a mesh whose ranks have values, on the CPU."""
    with unset_fake_temporarily():
        if isinstance(more.get("_rank_map"), FakeTensor):  # that of init_device_mesh, which counts
            more["_rank_map"] = torch.arange(len(more["_rank_map"]), dtype=torch.int)
        make(self, "cpu" if device_type == "cuda" else device_type, *mesh, **more)


def _bucket_limits(self: Any, limits: Any, **_: Any) -> Any:
    """Return the limits of buckets that all steps but the first have."""
    return limits(self, static_graph=False, find_unused_parameters=True)


def _buckets(assign: Any, parameters: Any, *more: Any) -> Any:
    """Fill buckets from the last parameter on, as all steps but the first do by the order of gradients."""
    last, (buckets, sizes) = len(parameters) - 1, assign(parameters[::-1], *more)
    return [[last - index for index in bucket] for bucket in reversed(buckets)], sizes[::-1]


def _before_forward(self: Any, run: Any, *inputs: Any, **named: Any) -> Any:
    """Let DistributedDataParallel reduce its buckets by a hook: by itself it asks for their values."""

    def reduce(_, bucket):  # type: ignore[no-untyped-def]
        distributed.all_reduce(bucket.buffer(), op=distributed.ReduceOp.AVG)
        done = torch.futures.Future[torch.Tensor]()
        done.set_result(bucket.buffer())
        return done

    if not self._comm_hooks:
        self.register_comm_hook(None, reduce)
    return run(self, *inputs, **named)


def _without_modes(self: Any, run: Any, *given: Any) -> Any:
    """Find what an op makes of whole tensors, of which each rank has a part: that is no op of the step."""
    with _disable_current_modes():
        return run(self, *given)


_ASSIGN = "_compute_bucket_assignment_by_size"
_REPLACED: list[tuple[Any, str, Any]] = [
    (distributed, "init_process_group", _join),
    (distributed, _ASSIGN, partial(_buckets, getattr(distributed, _ASSIGN, None))),
    (getattr(distributed, "Reducer", None), "_rebuild_buckets", lambda _: False),  # it would make them of real memory
    (replicas, "_verify_param_shape_across_processes", lambda *_: None),
]
_AROUND: list[tuple[Any, str, Any]] = [
    (DeviceMesh, "__init__", _make_mesh),
    (getattr(replicas, "_BucketCapacityConfig", None), "compute_bucket_size_limits", _bucket_limits),
    (replicas.DistributedDataParallel, "_pre_forward", _before_forward),
]


@contextmanager
def alone(ranks: int | None) -> Iterator[None]:
    """Let code for several ranks run as the first of so many; None: of those that there are."""
    if ranks is not None:
        _start(ranks)
    sharding = getattr(sys.modules.get("torch.distributed.tensor._sharding_prop"), "ShardingPropagator", None)
    around = [*_AROUND, (sharding, "_propagate_tensor_meta_non_cached", _without_modes)]
    methods = [(owner, name, partialmethod(method, getattr(owner, name, None))) for owner, name, method in around]
    with ExitStack() as stack:
        for owner, name, instead in (*_REPLACED, *methods):
            if hasattr(owner, name):  # not all versions of PyTorch have all
                stack.enter_context(patch.object(owner, name, instead))
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
    do = "make model and step in hosim.torch.fake(ranks=8), or with --ranks 8"
    insist(_backend() == "fake", where, "a captured rank runs alone", f"{name} over {_backend()}", do)
    kind = collective_kind(name.removeprefix("shard_dim_"))
    do = "capture what has none, such as one stage of a pipeline"
    insist(kind is not None, where, "all ranks of a captured step do the same", f"{name}, of one rank", do)
    by_name = distributed.distributed_c10d._resolve_process_group
    group = by_name(group) if isinstance(group, str) else distributed.ProcessGroup.unbox(group)
    ranks = distributed.get_process_group_ranks(group)
    return (kind, f"{group.group_desc} {group.group_name}", ranks) if kind and len(ranks) > 1 else None
