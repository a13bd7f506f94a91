"""Executes a plan on a step of PyTorch: before each op it does what the plan says there.

What can be known is worked out once for each plan, so that a call costs little: which actions come before it, which of
the tensors that it uses may still be under way, how much room it needs, and which views are made of what is away.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise, zip_longest
from time import perf_counter
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from simulator.errors import insist
from simulator.execute.record import RecordedCall
from simulator.execute.storages import ExecutionError, StepMemory, insist_step
from simulator.graph import Graph
from simulator.importers.recordings import Storage
from simulator.importers.torch_run import tensors
from simulator.plan import COMPUTE, COPY, DETACH, Code


@dataclass(slots=True)
class Turn:
    """What happens at a call of the step; after the last call, a turn without a function.

    Attributes
    ----------
    func, op
        The function that is expected, and its op; None if it is no op.
    actions
        Actions before it.
    given
        Tensor of each leaf of its arguments, None if no op uses it; empty until something moves in a step.
    moved
        Tensors that it uses and that were moved in this step, each with whether it writes them; for a call that is no
        op, tensors that it makes views of.
    made
        Tensors that it writes first, each with the leaf of the result (from 0 on) or of the arguments (from -1 down)
        that shows it.
    made_bytes
        Their size [B].
    """

    func: Any
    op: int | None
    actions: Sequence[Code] = ()
    given: tuple[int | None, ...] = ()
    moved: list[tuple[int, bool]] = field(default_factory=list)
    made: list[tuple[int, int]] = field(default_factory=list)
    made_bytes: int = 0


def turns_of(
    graph: Graph, calls: Sequence[RecordedCall], ids: Mapping[Storage, int], codes: Sequence[Code]
) -> list[Turn]:
    """Work out what happens at each call of a step, and after the last one.

    Parameters
    ----------
    graph, calls
        The step, as it was recorded.
    ids
        Storage of the record -> tensor of the graph.
    codes
        The actions of one step.

    Raises
    ------
    ConfigError
        If the plan does not run each op once, in order.
    """
    before = _by_op(graph, codes)
    written = {t for t, tensor in enumerate(graph.tensors) if tensor.persistent}
    turns, moved = list[Turn](), set[int]()
    for call in calls:
        turn = Turn(call.func, call.op)
        if call.op is None:
            turn.moved = [(t, False) for t in dict.fromkeys(map(ids.get, call.given)) if t in moved]
        else:
            op, turn.actions = graph.ops[call.op], before[call.op]
            moved.update(tensor for _, tensor, *_ in turn.actions)
            used = dict.fromkeys((*op.reads, *op.writes))
            turn.moved = [(t, t in op.writes) for t in used if t in moved and t in written]
            leaves = {ids.get(s): -1 - i for i, s in reversed([*enumerate(call.given)])}
            leaves |= {ids.get(s): i for i, s in reversed([*enumerate(call.made)])}
            turn.made = [(t, leaves[t]) for t in op.writes if t not in written]
            turn.made_bytes = sum(graph.tensors[t].size_bytes for t, _ in turn.made)
            written.update(op.writes)
        turn.given = tuple(map(ids.get, call.given)) if moved else ()
        turns.append(turn)
    return [*turns, Turn(None, None, before[-1])]


def _by_op(graph: Graph, codes: Sequence[Code]) -> list[list[Code]]:
    """Return the actions before each op, and those after the last one."""
    before: list[list[Code]] = [[]]
    for code in codes:
        if code[0] != COMPUTE:
            before[-1].append(code)
            continue
        must, do = "an executed plan runs each op of a step once, in order", "plan without recompute"
        insist(code[1] == len(before) - 1, "the plan", must, f"op {code[1]} after {len(before) - 1} ops", do)
        before.append([])
    insist(len(before) == len(graph.ops) + 1, "the plan", "it is of this graph", f"{len(before) - 1} ops", "plan anew")
    return before


class PlannedStep(TorchDispatchMode):  # type: ignore[misc]
    """Runs one step under a plan; `finish` ends it.

    Parameters
    ----------
    graph, turns
        The step, and what happens at its calls.
    memory
        Its storages.
    compute_tier
        Id of the compute tier.
    lasting
        Persistent tensor -> its storage.

    Attributes
    ----------
    ended
        For each op, when it had ended, and how long the step had waited until then [s]; first when the step began.
    lasting, blocks
        Tensor -> what is followed of it: of those that were there when the step began, and of all.
    stopped
        Why the step went on without its plan; None if it did not.
    """

    def __init__(
        self, graph: Graph, turns: Sequence[Turn], memory: StepMemory, compute_tier: int, lasting: Mapping[int, Any]
    ) -> None:
        super().__init__()
        self._graph, self._turns, self._memory, self.compute_tier = graph, turns, memory, compute_tier
        self.lasting = {t: memory.block(storage) for t, storage in lasting.items()}
        self.blocks = self.lasting.copy()
        for tensor, block in self.blocks.items():  # what was there before the first plan has no name yet
            block.name = graph.tensors[tensor].name
        self._at, self.ended = 0, [(perf_counter(), 0.0)]
        self.stopped: ExecutionError | None = None

    def __torch_dispatch__(self, func: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self.stopped is not None:
            return func(*args, **(kwargs or {}))
        turn = self._turns[self._at]
        if turn.func is not func:
            self._stop(self._difference(f"{func}"))
            return func(*args, **(kwargs or {}))
        self._at += 1
        if turn.op is not None:
            return self._run(turn, args, kwargs or {})
        if turn.given and (moved := self._moved_elsewhere(turn, args, kwargs or {})):
            self._stop(self._difference(f"{func} of {moved}, which the plan has moved"))
        if not turn.moved or self.stopped is not None:
            return func(*args, **(kwargs or {}))
        with self._memory.shown(self.blocks[tensor] for tensor, _ in turn.moved):
            return func(*args, **(kwargs or {}))

    def _difference(self, found: str) -> ExecutionError:
        turn = self._turns[self._at]
        ops = [later.op for later in self._turns[self._at :] if later.op is not None]
        where = f"call {self._at + 1}, before op {self._graph.ops[ops[0]].name}" if ops else f"call {self._at + 1}"
        must = f"a step makes the calls that were recorded, here {turn.func or 'none'}"
        return ExecutionError(where, must, found, "give steps that differ different shapes, or run them without a plan")

    def _stop(self, why: ExecutionError) -> None:
        """Bring everything back, and go on without the plan."""
        self.stopped = why
        self._memory.settle()

    def _run(self, turn: Turn, args: Any, kwargs: Any) -> Any:
        """Do what comes before an op, wait for what it uses and for room, and run it."""
        memory = self._memory
        try:
            self._prepare(turn, args, kwargs)
        except ExecutionError as error:
            self._stop(error)
            return turn.func(*args, **kwargs)
        try:
            made = turn.func(*args, **kwargs)
            self._follow(turn, made, args, kwargs)
        finally:  # only now, so that no copy takes the room before what was made counts
            if turn.made_bytes:
                memory.made(turn.made_bytes)
        self.ended.append((perf_counter(), memory.waited_s))
        return made

    @property
    def took_ns(self) -> list[int]:
        """For each op, the time from the end of the op before it, without waits [ns]."""
        spent = ((end - begun) - (waited - before) for (begun, before), (end, waited) in pairwise(self.ended))
        return [max(0, round(ran_s * 1e9)) for ran_s in spent]

    def _follow(self, turn: Turn, made: Any, args: Any, kwargs: Any) -> None:
        """Follow the storages that an op has written first."""
        if not turn.made:
            return
        outs = [made] if hasattr(made, "untyped_storage") else list(tensors(made))
        given = list(tensors((args, kwargs))) if any(leaf < 0 for _, leaf in turn.made) else outs
        for tensor, leaf in turn.made:
            expected, shown = self._graph.tensors[tensor], outs[leaf] if leaf >= 0 else given[-1 - leaf]
            block = self.blocks[tensor] = self._memory.block(shown.untyped_storage(), expected.name)
            if block.size_bytes != expected.size_bytes:
                self._at -= 1
                sizes = f"{block.size_bytes:,} B, not {expected.size_bytes:,} B"
                self._stop(self._difference(f"{expected.name} of {sizes}"))
                return

    def _moved_elsewhere(self, turn: Turn, args: Any, kwargs: Any) -> str:
        """Name a tensor that a call is given, that the plan has moved, and that is another than the recorded one."""
        values = [*_leaves((*args, *kwargs.values()))]
        for tensor, value in zip_longest(turn.given, values):
            block = None if value is None else self._memory.find(value.untyped_storage())
            recorded = None if tensor is None else self.blocks.get(tensor)
            if block is not None and block.is_moved and recorded is not block:
                return block.name
        return ""

    def _prepare(self, turn: Turn, args: Any, kwargs: Any) -> None:
        memory, name = self._memory, self._graph.ops[turn.op or 0].name
        for code in turn.actions:
            self._do(code)
        moved = self._moved_elsewhere(turn, args, kwargs) if turn.given else ""
        rule, do = "an op uses the tensors that it was recorded with", "run steps that differ without a plan"
        insist_step(not moved, f"op {name}", rule, f"{moved}, which the plan has moved", do)
        for tensor, writes in turn.moved:
            block = self.blocks[tensor]
            memory.wait(block, writes=writes)
            do = "correct the plan: copy it in before"
            insist_step(not block.is_away, f"op {name}", "what an op uses is there", f"{block.name} away", do)
            if writes:
                memory.forget_below(block)
        if turn.made_bytes:
            memory.take(turn.made_bytes, name)

    def _do(self, code: Code) -> None:
        """Do an action; one on a tensor that PyTorch has freed does nothing, as does one that ends a tensor's life."""
        kind, tensor, source, _ = code
        memory, block = self._memory, self.blocks.get(tensor)
        if block is None or block.ref() is None:
            return
        if kind == COPY:
            (memory.copy_out if source == self.compute_tier else memory.copy_in)(block)
        elif kind == DETACH and source != self.compute_tier:
            if not block.is_away:
                memory.forget_below(block)
        elif kind == DETACH:
            if block.below is not None:
                memory.free(block)
        else:
            memory.wait(block, writes=True)

    def codes(self) -> list[Code]:
        """Return the actions of the step in order, computes among them."""
        runs = (((COMPUTE, turn.op, 0, 0),) if turn.op is not None else () for turn in self._turns)
        return [code for turn, run in zip(self._turns, runs, strict=True) for code in (*turn.actions, *run)]

    def finish(self) -> None:
        """Do what comes after the last op."""
        if self.stopped is None and self._turns[self._at].func is not None:
            self._stop(self._difference("the end of the step"))
        for code in self._turns[-1].actions if self.stopped is None else ():
            self._do(code)


def _leaves(values: Iterable[Any]) -> Iterator[torch.Tensor]:
    """Iterate over tensors in lists and tuples, as `tensors` does, in a fraction of its time: each call has it."""
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from _leaves(value)
