"""Works out, once for each plan, what happens at each call of a step, so that a call costs little.

Which actions come before it, which tensors that it uses may be under way, how much room it needs, and which views show
what is away.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch

from simulator.errors import insist
from simulator.execute.on_demand import RecordedCall, writes
from simulator.graph import Graph
from simulator.importers.recordings import Storage
from simulator.plan import COMPUTE, COPY, DETACH, Code


@dataclass(slots=True)
class Turn:
    """What happens at a call of the step; after the last call, a turn without a function.

    Attributes
    ----------
    func, op
        The function that is expected, and the name of its op; None if it is no op. At the end, an op that uses what the
        step leaves is none that PyTorch runs.
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
    called = sum(call.op is not None for call in calls)
    end = graph.ops[called].name if called < len(graph.ops) else None
    return [*turns, Turn(None, end, [code for codes in before[called:] for code in codes])]


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
            return lambda made, *args, **kwargs: other(*args, **kwargs, **dict(zip(outs, made, strict=True)))
    return None
