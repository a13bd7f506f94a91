"""Runs a step within a budget before there is a plan, and records it: its graph, and which call is which op.

What a call is given comes in, and what was not used for longest leaves, as a runtime on demand does it. Of what a call
will make the size is asked of PyTorch first, under fake tensors.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_map_only

from simulator.execute.held import HeldStorage, insist_step
from simulator.execute.storages import StepMemory
from simulator.importers.recordings import Storage
from simulator.importers.torch_machine import tensors
from simulator.importers.torch_numbers import UPDATES
from simulator.importers.torch_recorder import OpRecorder
from simulator.importers.torch_run import ModuleWatch
from simulator.units import human


class RecordedCall(NamedTuple):
    """A call of PyTorch in a step.

    Attributes
    ----------
    op
        Its op in the graph; None if it is none, such as a view.
    given, made
        Storages of the tensors that it was given, and made, in the order of their leaves.
    """

    func: Any
    op: int | None
    given: tuple[Storage, ...]
    made: tuple[Storage, ...]


class OnDemand(OpRecorder):
    """Runs a step within a budget, and records it.

    Parameters
    ----------
    watch, inputs
        As for `OpRecorder`.
    memory
        Its storages; what cannot be resized stays.
    before
        An earlier run of the step, which tells how much its calls make; None if there is none.

    Attributes
    ----------
    lasting
        Persistent storages, and where they are.
    """

    def __init__(self, watch: ModuleWatch, inputs: Any, memory: StepMemory, before: OnDemand | None = None) -> None:
        self._before = before.sequence if before else []
        self.sequence: list[RecordedCall] = []
        self._memory, self._ran, self._ops = memory, list[tuple[int, Any, Any]](), 0
        self.lasting: dict[Storage, weakref.ref[Any]] = {}
        self._fake = FakeTensorMode(allow_non_fake_inputs=True)
        super().__init__(watch, inputs)
        self._given = {self._storage(tensor): n for n, tensor in enumerate(tensors(inputs))}
        self._inputs = (), {}  # the caller may let go of them

    def _storage(self, tensor: torch.Tensor, name: str = "", kind: str = "", *, persistent: bool = False) -> Storage:
        memory = tensor.untyped_storage()
        is_new = id(memory) not in self._by_id
        storage = super()._storage(tensor, name, kind, persistent=persistent)
        if is_new and persistent:
            self.lasting[storage] = weakref.ref(memory)
        return storage

    def present(self, inputs: Sequence[torch.Tensor]) -> dict[Storage, Any]:
        """Return persistent storages as they are now: those of other inputs, and those that are still there."""
        memories = {storage: ref() for storage, ref in self.lasting.items()}
        memories |= {storage: inputs[position].untyped_storage() for storage, position in self._given.items()}
        return {storage: memory for storage, memory in memories.items() if memory is not None}

    def size_of(self, memory: Any) -> int:
        """Return the size of a storage, which may be away [B]."""
        block = self._memory.find(memory)
        return super().size_of(memory) if block is None else block.size_bytes

    def call(self, func: Any, args: Any, kwargs: Any, given: list[torch.Tensor]) -> Any:
        """Run a function once what it is given is there, and room for what it makes."""
        blocks = [self._memory.block(tensor.untyped_storage()) for tensor in given]
        for block in blocks:
            block.used_at = len(self.sequence) + 1
        needed = sum({id(b): b.size_bytes for b in blocks if b.is_away}.values()) + self._made_bytes(func, args, kwargs)
        self._make_room(needed, func)
        for block in blocks:
            self._memory.bring(block)
        begun = self._memory.device.now()
        made = func(*args, **kwargs)
        self._ran.append((self._ops, begun, self._memory.device.ended()))
        if writes(func):
            for block in blocks:
                self._memory.forget_below(block)
        for tensor in tensors(made):
            self._memory.block(tensor.untyped_storage()).used_at = len(self.sequence) + 1
        return made

    @property
    def took_ns(self) -> list[int]:
        """For each op, the time of its calls and of those before it that are no op [ns]; the step has ended."""
        took_s, seconds = [0.0] * (self._ops + 1), self._memory.device.seconds
        for op, begun, ended in self._ran:
            took_s[op] += seconds(ended) - seconds(begun)
        return [round(1e9 * time_s) for time_s in took_s[: self._ops]]

    def _made_bytes(self, func: Any, args: Any, kwargs: Any) -> int:
        """Return how large the new storages are that a call will make [B].

        Of the first run fake tensors tell, but not what depends on values, nor the workspace that some kernels return.
        """
        earlier = self._before[len(self.sequence)] if len(self.sequence) < len(self._before) else None
        if earlier is not None and earlier.func is func:
            return sum(storage.size_bytes for storage in {*earlier.made}.difference(earlier.given))
        if all(returned.alias_info for returned in func._schema.returns):
            return 0
        try:
            with self._fake:
                args, kwargs = tree_map_only(torch.Tensor, _fake, (args, kwargs))
                made = func(*args, **kwargs)
        except Exception:
            return 0
        given = {id(tensor.untyped_storage()) for tensor in tensors((args, kwargs))}
        outs = (tensor.untyped_storage() for tensor in tensors(made) if str(tensor.device) == self._memory.device.name)
        new = {id(storage): storage.nbytes() for storage in outs if id(storage) not in given}
        return sum(new.values())

    def _make_room(self, size_bytes: int, func: Any) -> None:
        """Free what was not used for longest until so many bytes fit."""
        memory, now = self._memory, len(self.sequence) + 1
        if memory.used_bytes + size_bytes <= memory.budget_bytes:
            return
        others = [block for block in memory.blocks() if block.used_at != now and may_leave(block)]
        for block in sorted(others, key=lambda block: block.used_at):
            if memory.used_bytes + size_bytes <= memory.budget_bytes:
                return
            memory.send([block])
            memory.wait(block, writes=True)
        rule = f"each op's tensors fit the budget of {human(memory.budget_bytes, 'B')}"
        needed_bytes = memory.used_bytes + size_bytes
        fits, do = needed_bytes <= memory.budget_bytes, "give it a larger budget"
        insist_step(fits, f"a step within a budget, {func}", rule, human(needed_bytes, "B"), do)

    def functions(self) -> list[tuple[Any, int | None]]:
        """Return the functions that were called, and their ops: what steps that are alike have in common."""
        return [(call.func, call.op) for call in self.sequence]

    def called(self, func: Any, given: list[torch.Tensor], outs: list[torch.Tensor], *, is_op: bool) -> None:
        """Note a call."""
        storages = (tuple(map(self._storage, given)), tuple(map(self._storage, outs)))
        self.sequence.append(RecordedCall(func, self._ops if is_op else None, *storages))
        self._ops += is_op


def writes(func: Any) -> bool:
    """Tell whether a function of PyTorch writes what it is given."""
    arguments = func._schema.arguments
    return func._overloadpacket in UPDATES or any(arg.alias_info and arg.alias_info.is_write for arg in arguments)


def _fake(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device)


def may_leave(block: HeldStorage) -> bool:
    """Tell whether a block is there, and may be resized."""
    storage = block.ref()
    if storage is None or block.is_away or not block.size_bytes:
        return False
    is_of_others = storage.device.type == "cpu" and storage.is_shared()  # on an accelerator all are called shared
    return not is_of_others and bool(storage.resizable())
