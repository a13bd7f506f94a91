"""What each stretch without use takes if its tensor is absent: the stretches of `idle`, ready for the relaxation."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from simulator.bounds.idle import Idle, can_be_made_again, idle_stretches
from simulator.graph import Graph
from simulator.hardware import Hardware
from simulator.plan import FREE, NOWHERE


class Need(NamedTuple):
    """A stretch, and what its being absent takes.

    Attributes
    ----------
    size_bytes
        Size of the tensor [B].
    after, before
        The ops on either side; -1 for the start, the number of ops for the end of the step.
    made
        The op that made the value, if a copy out of it is due; else None.
    is_read
        Whether `before` reads it, so that it must come in.
    always
        Whether it moves in any case: in if it is read, else out.
    """

    size_bytes: int
    after: int
    before: int
    made: int | None
    is_read: bool
    always: bool = False


def needs(
    graph: Graph,
    hardware: Hardware,
    homes: Sequence[int],
    idle: Idle,
    *,
    may_repeat: bool = False,
    staying: frozenset[int] = frozenset(),
) -> Iterable[Need]:
    """Yield the stretches of all tensors that may be absent, but for those that cost nothing.

    Parameters
    ----------
    graph, hardware, homes
        As for `bound`.
    idle
        Of that graph.
    may_repeat
        Whether ops may run again; what can be made again costs nothing then.
    staying
        Tensors of which a copy may be there from the step before, so that they need not come in.
    """
    here, inputs = hardware.tier_names.index(hardware.compute_tier), set(graph.inputs)
    stretches: dict[int, list[tuple[int, Need]]] = {}
    for stretch in idle_stretches(graph, idle.lifetimes, idle.before):
        t = stretch.tensor
        if may_repeat and can_be_made_again(graph, idle.lifetimes.writes[t], stretch.first):
            continue
        version = bisect_left(idle.lifetimes.writes[t], stretch.first) - 1
        need = Need(graph.tensors[t].size_bytes, stretch.after, stretch.before, None, stretch.is_read)
        stretches.setdefault(t, []).append((version, need))
    for t, tensor in enumerate(graph.tensors):
        home = homes[t] if t in inputs else NOWHERE
        if tensor.size_bytes and idle.lifetimes.uses[t] and home != here:
            is_elsewhere = home not in {FREE, NOWHERE} and t not in staying
            yield from _of_tensor(graph, idle, t, stretches.get(t, []), is_elsewhere=is_elsewhere)


def _of_tensor(
    graph: Graph, idle: Idle, t: int, stretches: list[tuple[int, Need]], *, is_elsewhere: bool
) -> Iterable[Need]:
    """The stretches of one tensor; of each version made in the step, the longest takes the copy out."""
    tensor, writes, ops = graph.tensors[t], idle.lifetimes.writes[t], len(graph.ops)
    last_version = len(writes) - 1
    if is_elsewhere and idle.lifetimes.is_read(t, idle.lifetimes.first_use[t]):
        stretches = [(v, need) for v, need in stretches if need.after >= 0]
        yield Need(tensor.size_bytes, -1, idle.lifetimes.first_use[t], None, is_read=True, always=True)
    if is_elsewhere and tensor.persistent and graph.steps == 1 and writes:
        stretches = [(-1 if v == last_version else v, need) for v, need in stretches if need.before < ops]
        yield Need(tensor.size_bytes, idle.lifetimes.last_use[t], ops, writes[-1], is_read=False, always=True)
    longest: dict[int, Need] = {}
    for version, need in stretches:
        known = longest.get(version)
        if version >= 0 and (known is None or need.before - need.after > known.before - known.after):
            longest[version] = need
    for version, need in stretches:
        if longest.get(version) is need:
            yield need._replace(made=writes[version])
        elif need.is_read:
            yield need
