"""Executes a plan on a step of PyTorch: before each op it does what the plan says there.

An op that runs again runs on the tensors that it was given, into those that it made: to the last bit, in no other room.
So only functions do that write where they are told (`into`); of others the planner knows that they run once. Their
storages live on until the plan makes nothing of them any more.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, cast

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from simulator.execute.calls import Turn, into
from simulator.execute.held import ExecutionError, HeldStorage
from simulator.execute.planning import Planning
from simulator.execute.storages import StepMemory
from simulator.importers.torch_machine import tensors
from simulator.plan import COMPUTE, COPY, DETACH, Code


@dataclass(slots=True)
class Again:
    """An op that runs again: its id, how often it still will, and what runs it."""

    op: int
    left: int
    run: Callable[[], Any]


class PlannedStep(TorchDispatchMode):  # type: ignore[misc]
    """Runs one step under a plan.

    Parameters
    ----------
    planning
        The step, and its plan.
    memory
        Its storages.
    inputs
        The tensors that it is given.

    Attributes
    ----------
    ended
        For each run of an op, when it ended, as a moment of the device, and how often the step had waited then; first
        when the step began.
    lasting, blocks
        Tensor -> what is followed of it: of those that were there when the step began, and of all.
    stopped
        Why the step went on without its plan; None if it did not.
    """

    def __init__(self, planning: Planning, memory: StepMemory, inputs: Sequence[torch.Tensor]) -> None:
        super().__init__()
        self.planning, self.memory = planning, memory
        self._graph, self._turns, self._tier = planning.result.graph, planning.turns, planning.compute_tier
        self.lasting = {t: memory.block(storage) for t, storage in planning.lasting(inputs).items()}
        self.blocks = self.lasting.copy()
        for tensor, block in self.blocks.items():  # what was there before the first plan has no name yet
            block.name = self._graph.tensors[tensor].name
        self._at, self.ended = 0, list[tuple[Any, int]]()
        self._again = dict[int, Again]()  # by the tensors that it makes
        self.stopped: ExecutionError | None = None

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Let PyTorch not switch its compiler off anew at each call, which takes 2 us: compiled parts run op by op."""
        return False

    def __enter__(self) -> PlannedStep:
        self.ended.append((self.memory.device.ended(), 0))
        super().__enter__()
        return self

    def __exit__(self, *raised: Any) -> None:
        super().__exit__(*raised)
        turn = self._turns[-1]
        if raised[0] is None and self.stopped is None and self._turns[self._at] is not turn:
            self._stop(self._difference("the end of the step"))
        if raised[0] is not None or self.stopped is not None:
            return
        for code in turn.actions:
            self._do(code)
        if turn.op is not None:
            for block in filter(None, map(self.blocks.get, self._graph.ops[-1].reads)):
                self.memory.wait(block)
            self._note_end()

    @property
    def took_ns(self) -> list[int]:
        """For each op, the time of its first run from the end of the run before it, without waits [ns].

        The step has ended.
        """
        waited_s = self.memory.waited_s()
        ends = [(self.memory.device.seconds(moment), waited_s[count]) for moment, count in self.ended]
        spent = ((end - begun) - (waited - before) for (begun, before), (end, waited) in pairwise(ends))
        ops = [op for kind, op, *_ in self.planning.codes if kind == COMPUTE]
        first = dict(zip(reversed(ops), reversed([*spent]), strict=True))
        return [max(0, round(first[op] * 1e9)) for op in range(len(first))]

    def __torch_dispatch__(self, func: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self.stopped is not None:
            return func(*args, **kwargs)
        turn, memory = self._turns[self._at], self.memory
        try:
            self._prepare(turn, func, args, kwargs)
        except ExecutionError as error:
            self._stop(error)
            return func(*args, **kwargs)
        self._at += 1
        if turn.op is None:
            away = [b for b in map(self.blocks.get, turn.seen) if b is not None and (b.is_away or b.jobs)]
            return look_at(func, args, kwargs, memory) if away else func(*args, **kwargs)
        try:
            made = func(*args, **kwargs)
            if turn.made:
                self._follow(turn, made, args, kwargs)
            if turn.again:
                self._keep(turn, made, args, kwargs)
        finally:  # only now, so that no copy takes the room before what was made counts
            if turn.made_bytes:
                memory.made()
        self.ended.append((memory.device.ended(), len(memory.waits)))
        return made

    def _prepare(self, turn: Turn, func: Any, args: Any, kwargs: Any) -> None:
        """Do what comes before a call, and wait for what it uses and for room."""
        if turn.func is not func:
            raise self._difference(f"{func}")
        for code in turn.actions:
            self._do(code)
        if turn.given:
            self._insist_recorded(turn, args, kwargs)
        for tensor, is_written in turn.moved:
            block = self.blocks.get(tensor)
            if block is None:
                raise self._difference(f"another storage in place of {self._graph.tensors[tensor].name}")
            self._await(block, turn.op or func, writes=is_written)
            if is_written:
                self.memory.forget_below(block)
        if turn.made_bytes:
            self.memory.take(turn.made_bytes, f"{turn.op}")

    def _await(self, block: HeldStorage, op: Any, *, writes: bool = False) -> None:
        """Wait until a block is there."""
        self.memory.wait(block, writes=writes)
        if block.is_away:
            do = "correct the plan: copy it in before"
            raise ExecutionError(f"op {op}", "a tensor that an op uses is in memory", f"{block.name} away", do)

    def _insist_recorded(self, turn: Turn, args: Any, kwargs: Any) -> None:
        """Refuse a tensor that the plan has moved in a call that was recorded with another one."""
        moved, given = self.memory.moved, turn.given
        for leaf, value in enumerate(_leaves((*args, *kwargs.values()))):
            block = moved.get(id(value.untyped_storage()))
            if block is not None and self.blocks.get(given[leaf] if leaf < len(given) else -1) is not block:
                where, found = f"op {turn.op or turn.func}", f"{block.name}, which the plan has moved"
                rule, do = "a call uses the tensors that it was recorded with", "run steps that differ without a plan"
                raise ExecutionError(where, rule, found, do)

    def _difference(self, found: str) -> ExecutionError:
        turn = self._turns[self._at]
        op = next((later.op for later in self._turns[self._at :] if later.op is not None), None)
        where = f"call {self._at + 1}" + (f", before op {op}" if op else "")
        must = f"a step makes the calls that were recorded, here {turn.func or 'none'}"
        return ExecutionError(where, must, found, "give steps that differ different shapes, or run them without a plan")

    def _stop(self, why: ExecutionError) -> None:
        """Bring everything back, and go on without the plan."""
        self.stopped = why
        self.memory.settle()

    def _follow(self, turn: Turn, made: Any, args: Any, kwargs: Any) -> None:
        """Follow the storages that an op has written first."""
        outs = _leaves((made,))
        for tensor, leaf in turn.made:
            expected = self._graph.tensors[tensor]
            shown = outs[leaf] if leaf >= 0 else _leaves((*args, *kwargs.values()))[-1 - leaf]
            block = self.blocks[tensor] = self.memory.block(shown.untyped_storage(), expected.name)
            if block.size_bytes != expected.size_bytes:
                self._at -= 1
                sizes = f"{block.size_bytes:,} B, not {expected.size_bytes:,} B"
                self._stop(self._difference(f"{expected.name} of {sizes}"))
                return

    def _keep(self, turn: Turn, made: Any, args: Any, kwargs: Any) -> None:
        """Keep what an op needs to run again: storages, by tensors of our own, whom no count of PyTorch's knows."""
        op, run = turn.again[0], cast(Callable[..., Any], into(turn.func))
        outs, args, kwargs = tree_map_only(torch.Tensor, lambda t: t.data, (_leaves((made,)), args, kwargs))
        again = Again(op, len(turn.again), partial(run, outs, *args, **kwargs))
        self._again |= dict.fromkeys(self._graph.ops[op].writes, again)

    def _run_again(self, again: Again, *, is_planned: bool) -> None:
        """Run an op again: where the plan says so, or, once it has ended early, with what it reads brought back."""
        op, memory = self._graph.ops[again.op], self.memory
        for block in filter(None, map(self.blocks.get, op.reads)):
            self._await(block, op.name) if is_planned else memory.bring(block)
        made = [self.blocks[tensor] for tensor in op.writes]
        for block in made:
            memory.wait(block, writes=True)
            memory.forget_below(block)
        empty = [block for block in made if not block.held_bytes]
        if is_planned:
            memory.take(sum(block.size_bytes for block in empty), f"{op.name}, which runs again")
        for block in empty:
            memory.resize(block, block.size_bytes)
        memory.made()
        again.run()
        for block in made:
            block.is_away, block.remake = False, None
        self._note_end()

    def _do(self, code: Code) -> None:
        """Do an action; one on a tensor that PyTorch has freed does nothing, as does one that ends a tensor's life."""
        kind, tensor, source, _ = code
        if kind == COMPUTE:
            written = self._graph.ops[tensor].writes
            self._run_again(call := self._again[written[0]], is_planned=True)
            call.left -= 1
            for made in () if call.left else written:
                del self._again[made]
            return
        memory, block, again = self.memory, self.blocks.get(tensor), self._again.get(tensor)
        if block is None or block.ref() is None:
            return
        if kind == COPY:
            (memory.copy_out if source == self._tier else memory.copy_in)(block)
        elif kind == DETACH and source != self._tier:
            if not block.is_away:
                memory.forget_below(block)
        elif kind == DETACH:
            if again and not block.is_kept:
                block.remake = partial(self._run_again, again, is_planned=False)
            if again or block.is_kept:
                memory.free(block)
        else:
            memory.wait(block, writes=True)

    def alive(self, ids: Container[int]) -> set[HeldStorage]:
        """Return what is followed of some tensors, if PyTorch has not freed it."""
        return {block for t, block in self.blocks.items() if t in ids and block.ref() is not None}

    def _note_end(self) -> None:
        self.ended.append((self.memory.device.ended(), len(self.memory.waits)))


_UNSAFE = frozenset((torch.ops.aten.unsafe_split, torch.ops.aten.unsafe_split_with_sizes))
"""Functions that make views and do not say so."""


def look_at(func: Any, args: Any, kwargs: Any, memory: StepMemory) -> Any:
    """Call a function that reads no bytes of what it is given, such as one that makes a view, though that is away.

    PyTorch refuses a view of more bytes than its storage has. So the view is made of a tensor without bytes first, and
    then on the storage: of nothing, at its offset, which may be anywhere; and of that, in its shape, which nobody
    checks.
    """
    if func._overloadpacket not in _UNSAFE and not any(returned.alias_info for returned in func._schema.returns):
        return func(*args, **kwargs)
    base, shown = _leaves(args)[0], func(*tree_map_only(torch.Tensor, partial(_on_meta, memory), args), **kwargs)
    return tree_map_only(torch.Tensor, partial(_alias, base), shown)


def _on_meta(memory: StepMemory, tensor: torch.Tensor) -> torch.Tensor:
    storage = tensor.untyped_storage()
    block = memory.find(storage)
    meta = torch.UntypedStorage(storage.nbytes() if block is None else block.size_bytes, device="meta")
    shown = torch.empty(0, dtype=tensor.dtype, device="meta")
    return _like(tensor, shown.set_(meta, tensor.storage_offset(), tensor.shape, tensor.stride()))


def _alias(base: torch.Tensor, shown: torch.Tensor) -> torch.Tensor:
    nothing = _like(base, base).as_strided((0,), (1,), 0)  # as its bytes are
    nothing = nothing.view(shown.dtype).as_strided((0,), (1,), shown.storage_offset())
    return _like(shown, torch.ops.aten._reshape_alias.default(nothing, shown.shape, shown.stride()))


def _like(model: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    """Turn around whether a tensor shows its bytes conjugated, or negated, where a model does so."""
    tensor = torch.ops.aten._conj.default(tensor) if model.is_conj() else tensor
    return cast(torch.Tensor, torch.ops.aten._neg_view.default(tensor) if model.is_neg() else tensor)


def _leaves(values: Iterable[Any]) -> list[torch.Tensor]:
    """Return the tensors in lists and tuples, as `tensors` does, in a fraction of its time: each call has it."""
    leaves: list[torch.Tensor] = []  # ``list[torch.Tensor]()`` takes as long as all of this
    for value in values:
        if isinstance(value, torch.Tensor):
            leaves += (value,) if value.layout is torch.strided else tensors([value])
        elif isinstance(value, (list, tuple)):  # in two thirds of the time of a union
            leaves += _leaves(value)
    return leaves
