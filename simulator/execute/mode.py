"""Executes a plan on a step of PyTorch: before each op it does what the plan says there.

What can be known is worked out once for each plan, so that a call costs little: which actions come before it, which of
the tensors that it reads may still be under way, how much room it needs, and which views are made of what is away.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

from simulator.errors import insist
from simulator.execute.record import Call
from simulator.execute.storages import Block, ExecutionError, Memory
from simulator.graph import Graph
from simulator.importers.torch_run import tensors
from simulator.plan import COMPUTE, COPY, DETACH, SYNC, Code

Find = Callable[[Any, Any, Any], Any]


@dataclass(slots=True)
class _Turn:
    """What happens at a call of the step.

    Attributes
    ----------
    func, op
        The function that is expected, and its op; None if it is no op.
    actions
        Actions before it.
    awaited
        Tensors that it reads and that may be under way, each with whether it writes them.
    made
        Tensors that it writes first, each with the leaf of the result (from 0) or of the arguments (from -1 down) that
        shows it.
    made_bytes
        Their size [B].
    shown
        Tensors that it makes views of while they are away.
    written
        Tensors that it changes, so that what is below is no more valid.
    """

    func: Any
    op: int | None
    actions: list[Code] = field(default_factory=list)
    awaited: list[tuple[int, bool]] = field(default_factory=list)
    made: list[tuple[int, int]] = field(default_factory=list)
    made_bytes: int = 0
    shown: list[int] = field(default_factory=list)

    @property
    def is_plain(self) -> bool:
        """Whether nothing is to be done."""
        return self.op is None and not (self.shown or self.made)


def turns_of(graph: Graph, calls: Sequence[Call], ids: dict[Any, int], codes: Sequence[Code], tiers: tuple[int, int]) -> list[_Turn]:
    """Work out what happens at each call of a step, and after the last one.

    Parameters
    ----------
    graph, calls
        The step, as it was recorded.
    ids
        Storage of the record -> tensor of the graph.
    codes
        The actions of one step.
    tiers
        The ids of the compute tier and of the lower one.
    """
    compute_tier, _ = tiers
    todo, before = {}, list[Code]()
    for code in codes:
        if code[0] == COMPUTE:
            insist(code[1] == len(todo), "the plan", "it runs each op once, in order", f"op {code[1]} at {len(todo)}", "plan without recompute")
            todo[code[1]], before = before, []
        else:
            before.append(code)
    moved, away, known = set[int](), set[int](), {t for t, tensor in enumerate(graph.tensors) if tensor.persistent}
    turns = list[_Turn]()
    for call in calls:
        turn = _Turn(call.func, call.op)
        if call.op is None:
            turn.shown = [t for s in dict.fromkeys(call.given) if (t := ids.get(s)) is not None and t in moved]
        else:
            op = graph.ops[call.op]
            turn.actions = todo.pop(call.op)
            for kind, tensor, source, _ in turn.actions:
                moved.add(tensor)
            turn.awaited = [(t, t in op.writes) for t in dict.fromkeys((*op.reads, *op.writes)) if t in moved and t in known]
            new = [t for t in op.writes if t not in known]
            leaves = {ids.get(s): i for i, s in reversed([*enumerate(call.made)])}
            leaves |= {ids.get(s): -1 - i for i, s in reversed([*enumerate(call.given)]) if ids.get(s) not in leaves}
            turn.made = [(t, leaves[t]) for t in new]
            turn.made_bytes = sum(graph.tensors[t].size_bytes for t in new)
            known.update(new)
        turns.append(turn)
    turns.append(_Turn(None, None, before))
    return turns


class Planned(TorchDispatchMode):  # type: ignore[misc]
    """Runs one step under a plan; `finish` ends it.

    Parameters
    ----------
    graph, turns
        The step, and what happens at its calls.
    memory
        Its storages.
    compute_tier
        Id of the compute tier.
    held
        Persistent tensor -> its storage.

    Attributes
    ----------
    took_ns
        For each op, the time from the end of the op before it, without waits [ns].
    difference
        Where the step is not the recorded one; empty if nowhere.
    """

    def __init__(self, graph: Graph, turns: list[_Turn], memory: Memory, compute_tier: int, held: dict[int, Any]) -> None:
        super().__init__()
        self._graph, self._turns, self._memory, self._compute_tier = graph, turns, memory, compute_tier
        self._blocks: dict[int, Block] = {t: memory.block(storage, graph.tensors[t].name) for t, storage in held.items()}
        self._at, self.difference, self.took_ns = 0, "", list[int]()
        self._last_s, self._waited_s = perf_counter(), memory.waited_s

    def __torch_dispatch__(self, func: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self.difference:
            return func(*args, **(kwargs or {}))
        turn = self._turns[self._at]
        if turn.func is not func:
            return self._differ(func, args, kwargs or {})
        self._at += 1
        if turn.op is None:
            return self._show(turn, args, kwargs or {}) if turn.shown else func(*args, **(kwargs or {}))
        return self._run(turn, args, kwargs or {})

    def _show(self, turn: _Turn, args: Any, kwargs: Any) -> Any:
        with self._memory.shown([self._blocks[t] for t in turn.shown if t in self._blocks]):
            return turn.func(*args, **kwargs)

    def _run(self, turn: _Turn, args: Any, kwargs: Any) -> Any:
        """Do what comes before an op, wait for what it reads and for room, and run it."""
        memory, blocks = self._memory, self._blocks
        for code in turn.actions:
            self._do(code)
        for tensor, writes in turn.awaited:
            block = blocks[tensor]
            memory.wait(block, writes=writes)
            if block.is_away:
                self._read_away(turn, block)
            if writes:
                memory.forget_below(block)
        if turn.made_bytes:
            memory.take(turn.made_bytes, self._graph.ops[turn.op or 0].name)
        try:
            made = turn.func(*args, **kwargs)
        finally:
            if turn.made_bytes:
                memory.made(turn.made_bytes)
        if turn.made:
            self._follow(turn, made, args, kwargs)
        now_s, waited_s = perf_counter(), memory.waited_s
        self.took_ns.append(round((now_s - self._last_s - waited_s + self._waited_s) * 1e9))
        self._last_s, self._waited_s = now_s, waited_s
        return made

    def _read_away(self, turn: _Turn, block: Block) -> None:
        name = self._graph.ops[turn.op or 0].name
        raise ExecutionError(f"op {name}", "what an op reads is there", f"{block.name} away", "correct the plan: copy it in before")

    def _follow(self, turn: _Turn, made: Any, args: Any, kwargs: Any) -> None:
        """Follow the storages that an op has written first."""
        outs = [made] if hasattr(made, "untyped_storage") else list(tensors(made))
        given = list(tensors((args, kwargs))) if any(leaf < 0 for _, leaf in turn.made) else []
        for tensor, leaf in turn.made:
            storage = (outs[leaf] if leaf >= 0 else given[-1 - leaf]).untyped_storage()
            block = self._memory.block(storage, self._graph.tensors[tensor].name)
            block.name = self._graph.tensors[tensor].name
            self._blocks[tensor] = block
            if block.size_bytes != self._graph.tensors[tensor].size_bytes:
                self._note(f"{block.name} has {block.size_bytes:,} B, not {self._graph.tensors[tensor].size_bytes:,} B")
                return

    def _do(self, code: Code) -> None:
        kind, tensor, source, _ = code
        block = self._blocks.get(tensor)
        if block is None or block.ref() is None:
            return  # PyTorch has freed it
        if kind == COPY and source == self._compute_tier:
            self._memory.copy_out(block)
        elif kind == COPY:
            self._memory.copy_in(block)
        elif kind == DETACH and source == self._compute_tier:
            if block.below is not None:  # else it is a death, which PyTorch sees to
                self._memory.free(block)
        elif kind == DETACH:
            if not block.is_away:  # else it dies: PyTorch frees it
                self._memory.forget_below(block)
        elif kind == SYNC:
            self._memory.wait(block, writes=True)

    def _differ(self, func: Any, args: Any, kwargs: Any) -> Any:
        expected = self._turns[self._at].func
        self._note(f"call {self._at} is {func}, where {expected or 'the step ended'} was recorded")
        return func(*args, **kwargs)

    def _note(self, difference: str) -> None:
        """Bring everything back, and go on without a plan."""
        self.difference = difference
        self._memory.settle()

    def finish(self) -> None:
        """Do what comes after the last op, and bring back what is away."""
        if not self.difference and self._turns[self._at].func is not None:
            self.difference = f"the step ended before call {self._at}, {self._turns[self._at].func}"
        if not self.difference:
            for code in self._turns[self._at].actions:
                self._do(code)
        self._memory.settle()
