"""Runs a step as PyTorch does by itself, without a plan of ours and without a budget: rows to compare with.

What storages take is counted in the first calls alone, as counting takes time; later calls are the step itself.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from simulator.errors import insist
from simulator.execute.held import IN, OUT
from simulator.execute.offloaded import Offloaded
from simulator.execute.storages import StepMemory
from simulator.importers.torch_machine import tensors

HOOKS, CHECKPOINTING = "saved_tensors_hooks", "checkpointing"
ROWS = ("resident", HOOKS, CHECKPOINTING)
"""The step as it is; what is saved for backward goes to the lower tier at once; blocks are checkpointed."""
_COUNTED = 3
"""Calls that are counted: the second is the first that knows of all that lasts."""


def run_unplanned(offloaded: Offloaded, row: str, *args: Any, **kwargs: Any) -> Any:
    """Run a step as one of `ROWS`, note what it took, and return what it returns."""
    memory, steps = offloaded._memory, offloaded.steps
    with ExitStack() as stack:
        if row == HOOKS:
            stack.enter_context(_SavedBelow(memory))
        if len(steps) < _COUNTED:
            stack.enter_context(_Counted(memory))
        made = offloaded.measured(row, nullcontext(), partial(offloaded._step, *args, **kwargs), set)
    steps[-1] = replace(steps[-1], peak_bytes=max(step.peak_bytes for step in steps))
    return made


def checkpoint_blocks(step: Callable[..., Any]) -> None:
    """Checkpoint each child of a module's longest ``ModuleList`` or ``Sequential``, the outermost of several.

    Raises
    ------
    ConfigError
        If it is no module, or has none.
    """
    lists = (torch.nn.ModuleList, torch.nn.Sequential)
    parts = step.modules() if isinstance(step, torch.nn.Module) else ()
    blocks = max((part for part in parts if isinstance(part, lists)), key=len, default=())
    must = "the step is a module with a ModuleList or Sequential, each child of which is checkpointed"
    insist(len(blocks), CHECKPOINTING, must, getattr(step, "__name__", type(step).__name__), "leave it out")
    for block in dict.fromkeys(blocks):
        block.forward = partial(checkpoint, block.forward, use_reentrant=False)


class _Counted(TorchDispatchMode):  # type: ignore[misc]
    """Follows all storages that calls are given and make, and moves none."""

    def __init__(self, memory: StepMemory) -> None:
        super().__init__()
        self._memory = memory

    def __torch_dispatch__(self, func: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        for tensor in tensors((args, kwargs, made)):
            if tensor.layout is torch.strided:
                self._memory.block(tensor.untyped_storage())
        return made


class _Saved:
    """A storage that was saved for backward, and where it lies below; its room there is given back as it dies."""

    def __init__(self, memory: StepMemory, source: Any) -> None:
        self.source, self.back, self.size_bytes = weakref.ref(source), None, source.nbytes()
        self.place = memory.tier.allot(self.size_bytes)
        weakref.finalize(self, memory.tier.release, self.place, self.size_bytes)


class _SavedBelow(saved_tensors_hooks):  # type: ignore[misc]
    """Writes what is saved for backward to the lower tier, and reads it when backward asks; the step waits for both.

    So does ``torch.autograd.graph.save_on_cpu``. What was there before the step (weights, buffers, inputs) stays. A
    storage that several ops save is written once, and read once for all that need it while it is there; it comes back
    as it lay, so that kernels compute the same bits.
    """

    def __init__(self, memory: StepMemory) -> None:
        super().__init__(self._pack, self._unpack)
        self._memory, self._lasting = memory, {*memory.blocks()}
        self._saved = weakref.WeakValueDictionary[tuple[int, int], _Saved]()

    def _pack(self, tensor: torch.Tensor) -> Any:
        storage = tensor.untyped_storage() if tensor.layout is torch.strided else None
        is_moved = storage is not None and storage.nbytes() and self._memory.device.holds(storage)
        if not is_moved or self._memory.find(storage) in self._lasting:
            return tensor
        key = id(storage), tensor._version
        saved = self._saved.get(key)
        if saved is None or saved.source() is not storage:
            saved = self._saved[key] = _Saved(self._memory, storage)
            self._copy(OUT, saved, storage)
        return saved, tensor.dtype, tensor.storage_offset(), tensor.shape, tensor.stride()

    def _unpack(self, packed: Any) -> torch.Tensor:
        if isinstance(packed, torch.Tensor):
            return packed
        saved, dtype, *layout = packed
        storage = saved.back and saved.back()
        if storage is None:
            storage = torch.UntypedStorage(saved.size_bytes, device=self._memory.device.name)
            self._copy(IN, saved, storage)
            saved.back = weakref.ref(storage)
        return torch.empty(0, dtype=dtype, device=storage.device).set_(storage, *layout)

    def _copy(self, way: str, saved: _Saved, storage: Any) -> None:
        memory, begun = self._memory, self._memory.device.now()
        memory.device.move(way, storage, memory.tier, saved.place, begun)
        memory.moved_bytes[way] += saved.size_bytes
        memory.waits.append((begun, memory.device.now()))
