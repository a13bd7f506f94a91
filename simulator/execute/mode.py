"""Executes a plan on a step of PyTorch: before each op it does what the plan says there.

An op that runs again runs on the tensors that it was given, into those that it made: to the last bit, in no other room.
So only functions do that write where they are told (`into`); of others the planner knows that they run once. Their
storages live on until the plan makes nothing of them any more.

What can be known is worked out once for each plan, so that a call costs little: which actions come before it, which
tensors that it uses may be under way, how much room it needs, and which views show what is away.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import count, pairwise
from time import perf_counter
from typing import Any, cast

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from simulator.errors import insist
from simulator.execute.held import ExecutionError, HeldStorage
from simulator.execute.on_demand import RecordedCall, writes
from simulator.execute.storages import StepMemory
from simulator.graph import Graph
from simulator.importers.recordings import Storage
from simulator.plan import COMPUTE, COPY, DETACH, Code


@dataclass(slots=True)
class Turn:
    """What happens at a call of the step; after the last call, a turn without a function.

    Attributes
    ----------
    func, op
        The function that is expected, and the name of its op; None if it is no op.
    actions
        Actions before it on tensors that are moved in a step.
    given
        Tensor of each leaf of its arguments, -1 if no op uses it; empty until something moves in a step.
    moved, seen
        Tensors that it uses and that were moved in this step, each with whether it writes them; if it reads and writes
        no bytes, as what makes a view, those that it is given.
    made
        Tensors that it writes first, each with the leaf of the result (from 0 on) or of the arguments (from -1 down)
        that shows it.
    again
        Id of its op, as often as the op runs again.
    """

    func: Any
    op: str | None
    actions: Sequence[Code] = ()
    given: tuple[int, ...] = ()
    moved: list[tuple[int, bool]] = field(default_factory=list)
    seen: list[int] = field(default_factory=list)
    made: list[tuple[int, int]] = field(default_factory=list)
    made_bytes: int = 0
    again: tuple[int, ...] = ()


@dataclass(slots=True)
class Again:
    """An op that runs again: its id, how often it still will, and what runs it."""

    op: int
    left: int
    run: Callable[[], Any]


def turns_of(
    graph: Graph,
    calls: Sequence[RecordedCall],
    ids: Mapping[Storage, int],
    codes: Sequence[Code],
    below: Iterable[int] = (),
) -> list[Turn]:
    """Work out what happens at each call of a step, and after the last one.

    Parameters
    ----------
    graph, calls
        The step, as it was recorded.
    ids
        Storage of the record -> tensor of the graph.
    codes, below
        The actions of one step; the tensors that live below between steps.

    Raises
    ------
    ConfigError
        If the plan does not run each op, for the first time, in order.
    """
    before, runs = _by_op(graph, codes)
    written = {t for t, tensor in enumerate(graph.tensors) if tensor.persistent}
    turns, moved = list[Turn](), {*below}
    for call in calls:
        turn = Turn(call.func, None if call.op is None else graph.ops[call.op].name)
        if call.op is None:
            seen = [t for t in dict.fromkeys(map(ids.get, call.given)) if t in moved]
            turn.moved, turn.seen = ([(t, True) for t in seen], []) if writes(call.func) else ([], seen)
        else:
            op, turn.actions = graph.ops[call.op], before[call.op]
            turn.again = (call.op,) * (runs[call.op] - 1)
            moved.update(tensor for kind, tensor, *_ in turn.actions if kind != COMPUTE)
            used = dict.fromkeys((*op.reads, *op.writes))
            turn.moved = [(t, t in op.writes) for t in used if t in moved and t in written]
            leaves = {ids.get(s): -1 - i for i, s in reversed([*enumerate(call.given)])}
            leaves |= {ids.get(s): i for i, s in reversed([*enumerate(call.made)])}
            turn.made = [(t, leaves[t]) for t in op.writes if t not in written]
            turn.made_bytes = sum(graph.tensors[t].size_bytes for t, _ in turn.made)
            written.update(op.writes)
        turn.given = tuple(ids.get(storage, -1) for storage in call.given) if moved else ()
        turns.append(turn)
    return [*turns, Turn(None, None, before[-1])]


def _by_op(graph: Graph, codes: Sequence[Code]) -> tuple[list[list[Code]], Counter[int]]:
    """Return the actions before each op, and those after the last one; and how often each op runs.

    What ends a life is left to PyTorch, but of what is copied, or made again.
    """
    before: list[list[Code]] = [[]]
    runs = Counter(op for kind, op, *_ in codes if kind == COMPUTE)
    moved = {tensor for kind, tensor, *_ in codes if kind == COPY}
    moved |= {tensor for op, times in runs.items() if times > 1 for tensor in graph.ops[op].writes}
    for code in _freed_soon(graph, codes):
        if code[0] == COMPUTE and code[1] == len(before) - 1:
            before.append([])
        elif code[0] == COMPUTE or code[1] in moved:
            must, found = "the first runs of its ops are in order", f"op {code[1]} after {len(before) - 1} ops"
            insist(code[0] != COMPUTE or code[1] < len(before), "the plan", must, found, "plan anew")
            before[-1].append(code)
    insist(len(before) == len(graph.ops) + 1, "the plan", "it is of this graph", f"{len(before) - 1} ops", "plan anew")
    return before, runs


def _freed_soon(graph: Graph, codes: Sequence[Code]) -> list[Code]:
    """Put each detach behind the last action on its tensor: a host that runs ahead of its device has it act there."""
    last, places = dict[int, int](), list[int]()
    for place, (kind, item, *_) in enumerate(codes):
        places.append(last.get(item, place) if kind == DETACH else place)
        named = (*graph.ops[item].reads, *graph.ops[item].writes) if kind == COMPUTE else (item,)
        last.update(dict.fromkeys(named, places[-1]))
    return [codes[n] for n in sorted(range(len(codes)), key=places.__getitem__)]


_ATEN = torch.ops.aten  # what computes the same bits as a function without an overload that writes where it is told
_SAME: dict[Any, Callable[..., Any]] = {
    func: lambda outs, given, **_: outs[0].copy_(given) for func in (_ATEN.clone.default, _ATEN._to_copy.default)
}
_SAME[_ATEN.relu.default] = lambda outs, given: torch.clamp_min(given, 0, out=outs[0])


@cache
def into(func: Any) -> Callable[..., Any] | None:
    """Return what runs a function again into its results, which it takes before the arguments; None if nothing does.

    An ``out=`` that PyTorch has generated does not: it makes the results elsewhere, and copies them.
    """
    if func in _SAME:
        return _SAME[func]
    schema, packet = func._schema, func._overloadpacket
    if schema.returns and all(returned.alias_info for returned in schema.returns):
        return lambda _, *args, **kwargs: func(*args, **kwargs)
    for other in (getattr(packet, name) for name in packet.overloads()):
        given = [(argument.name, str(argument.type)) for argument in other._schema.arguments if not argument.is_out]
        outs = [argument.name for argument in other._schema.arguments if argument.is_out]
        is_alike = given == [(argument.name, str(argument.type)) for argument in schema.arguments]
        if outs and is_alike and torch.Tag.generated not in other.tags:
            return partial(_run_into, other, outs)
    return None


def _run_into(func: Any, names: Sequence[str], outs: Sequence[Any], *args: Any, **kwargs: Any) -> None:
    func(*args, **kwargs, **dict(zip(names, outs, strict=True)))


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
        For each run of an op, when it had ended, and how long the step had waited then [s]; first when the step began.
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
        self._at, self.ended = 0, list[tuple[float, float]]()
        self._again = dict[int, Again]()  # by the tensors that it makes
        self.stopped: ExecutionError | None = None

    def __enter__(self) -> PlannedStep:
        self.ended.append((perf_counter(), 0.0))
        super().__enter__()
        return self

    @property
    def took_ns(self) -> list[int]:
        """For each op, the time of its first run from the end of the run before it, without waits [ns]."""
        spent = ((end - begun) - (waited - before) for (begun, before), (end, waited) in pairwise(self.ended))
        ops = [op for kind, op, *_ in self.codes() if kind == COMPUTE]
        first = dict(zip(reversed(ops), reversed([*spent]), strict=True))
        return [max(0, round(first[op] * 1e9)) for op in range(len(first))]

    def __torch_dispatch__(self, func: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self.stopped is not None:
            return func(*args, **kwargs)
        turn, memory = self._turns[self._at], self._memory
        try:
            self._prepare(turn, func, args, kwargs)
        except ExecutionError as error:
            self._stop(error)
            return func(*args, **kwargs)
        self._at += 1
        if turn.op is None:
            away = [b for b in map(self.blocks.get, turn.seen) if b is not None and (b.is_away or b.jobs)]
            if not away:
                return func(*args, **kwargs)
            with memory.shown(away):
                return func(*args, **kwargs)
        try:
            made = func(*args, **kwargs)
            if turn.made:
                self._follow(turn, made, args, kwargs)
            if turn.again:
                self._keep(turn, made, args, kwargs)
        finally:  # only now, so that no copy takes the room before what was made counts
            if turn.made_bytes:
                memory.made()
        self.ended.append((perf_counter(), memory.waited_s))
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
                self._memory.forget_below(block)
        if turn.made_bytes:
            self._memory.take(turn.made_bytes, f"{turn.op}")

    def _await(self, block: HeldStorage, op: Any, *, writes: bool = False) -> None:
        """Wait until a block is there."""
        self._memory.wait(block, writes=writes)
        if block.is_away:
            do = "correct the plan: copy it in before"
            raise ExecutionError(f"op {op}", "a tensor that an op uses is in memory", f"{block.name} away", do)

    def _insist_recorded(self, turn: Turn, args: Any, kwargs: Any) -> None:
        """Refuse a tensor that the plan has moved in a call that was recorded with another one."""
        moved, given = self._memory.moved, turn.given
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
        self._memory.settle()

    def _follow(self, turn: Turn, made: Any, args: Any, kwargs: Any) -> None:
        """Follow the storages that an op has written first."""
        outs = _leaves((made,))
        for tensor, leaf in turn.made:
            expected = self._graph.tensors[tensor]
            shown = outs[leaf] if leaf >= 0 else _leaves((*args, *kwargs.values()))[-1 - leaf]
            block = self.blocks[tensor] = self._memory.block(shown.untyped_storage(), expected.name)
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
        op, memory = self._graph.ops[again.op], self._memory
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
        self.ended.append((perf_counter(), self._memory.waited_s))

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
        memory, block, again = self._memory, self.blocks.get(tensor), self._again.get(tensor)
        if block is None or block.ref() is None:
            return
        if kind == COPY:
            (memory.copy_out if source == self.compute_tier else memory.copy_in)(block)
        elif kind == DETACH and source != self.compute_tier:
            if not block.is_away:
                memory.forget_below(block)
        elif kind == DETACH:
            if again and not block.is_kept:
                block.remake = partial(self._run_again, again, is_planned=False)
            if again or block.is_kept:
                memory.free(block)
        else:
            memory.wait(block, writes=True)

    def codes(self) -> list[Code]:
        """Return the actions of the step in order, computes among them."""
        ops = count()
        runs = (((COMPUTE, next(ops), 0, 0),) if turn.op is not None else () for turn in self._turns)
        return [code for turn, run in zip(self._turns, runs, strict=True) for code in (*turn.actions, *run)]

    def finish(self) -> None:
        """Do what comes after the last op."""
        if self.stopped is None and self._turns[self._at].func is not None:
            self._stop(self._difference("the end of the step"))
        for code in self._turns[-1].actions if self.stopped is None else ():
            self._do(code)


def _leaves(values: Iterable[Any]) -> list[torch.Tensor]:
    """Return the tensors in lists and tuples, as `tensors` does, in a fraction of its time: each call has it."""
    leaves = []
    for value in values:
        if isinstance(value, torch.Tensor):
            leaves.append(value)
        elif isinstance(value, (list, tuple)):  # in two thirds of the time of a union
            leaves += _leaves(value)
    return leaves
