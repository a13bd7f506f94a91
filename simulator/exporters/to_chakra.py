"""``chakra``: a run of a plan as an execution trace of Chakra, whose memory nodes are the plan's copies.

Nodes have ids in issue order, and depend on *all* that they wait for: a compute on the one before it and on all that
makes or frees what it uses, a copy on the copy before it in its queue and on what the compute before it waits for (they
start together), and each on what frees its room. The latter is taken from the order, not from the times, of a replay:
what is freed first is what is waited for. So the trace is right at another bandwidth, too, as long as room is given
back in the same order there.

Computes, loads and stores each run one after another, so what a node waits for is a *clock*: the last node of each of
these queues. As ASTRA-sim counts whole microseconds and whole GB/s, 1 ns is written as 1 us, and sizes fit that.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import orjson

from simulator.cost.service import transfer_ns
from simulator.errors import insist
from simulator.formats import graph_jsonl, plan_jsonl
from simulator.hardware import Link, asked_bytes_per_s
from simulator.outputs import written
from simulator.plan import COMPUTE, COPY, DETACH, NOWHERE, Actions, Plan
from simulator.run.case import Case, execute
from simulator.run.task import Task
from simulator.trace import Trace, tuples

_LOAD, _STORE, _COMPUTE = 2, 3, 4  # types of nodes
_SIGNED, _WHOLE, _FLAG, _TEXT = 9, 13, 27, 29  # fields of an attribute for its value
_WINDOW = 2**20  # of as many nodes or more, ASTRA-sim forgets those under way when it reads on

Clock = tuple[int, int, int]
"""The last node of each queue (computes, loads, stores) that must have ended; -1 for none."""
_NOTHING: Clock = (-1, -1, -1)
Links = dict[tuple[int, int], Link]
"""The links that a plan uses, by source and target."""


def _join(*clocks: Clock) -> Clock:
    return tuple(map(max, _NOTHING, _NOTHING, *clocks))


@dataclass(slots=True)
class _Timed:
    """A compute or a copy, its time alone, the action of the plan, what it waits for, and the compute before a copy."""

    type: int
    item: int
    alone_ns: int
    action: int
    after: Clock
    behind: int = -1


def write(case: Case, task: Task, plan: Plan, path: Path) -> list[str]:
    """Write the trace of all steps; see `simulator.exporters`.

    Parameters
    ----------
    case, task, plan
        What runs, and the plan of its one graph.
    path
        The file.
    """
    links = _links(case, plan)
    rate = max([1, *(round(link.bandwidth_bytes_per_s / 1e9) for link in links.values())])
    latency_ns = min((link.latency_ns for link in links.values()), default=0)
    trace = execute(case, [plan])
    blocked = "; ".join(trace.blocked)
    insist(trace.status == "ok", f"plan {plan.name!r}", "the plan runs", f"{trace.status}: {blocked}", "mend it")
    nodes = _Walk(task, plan, links).room(trace)
    start_ns = case.hardware.host.fixed.launch_ns + plan.starts_ns[0]
    end_ns = int(trace.spans.whole()["end_ns"].max(initial=0))
    count, where = len(nodes) + (start_ns > 0), f"export of plan {plan.name!r} to chakra"
    insist(count < _WINDOW, where, f"ASTRA-sim runs fewer than {_WINDOW:,} nodes", f"{count:,}", "export fewer steps")
    with written(path, option="-o") as (part,), part.open("wb") as file:
        for message in _messages(task, plan, nodes, start_ns, (rate, latency_ns)):
            file.write(_varint(len(message)) + message)
    kind, latency = '"memory-type": "PER_NPU_MEMORY_EXPANSION"', f'"remote-mem-latency": {1000 * latency_ns}'
    return [
        f"{count:,} nodes; 1 us there is 1 ns here, so ASTRA-sim ends after {1000 * end_ns} cycles, as hosim does.",
        f'Its memory: {{{kind}, {latency}, "remote-mem-bw": {rate}}}',
    ]


def _links(case: Case, plan: Plan) -> Links:
    """Return the links that a plan uses; refuse what nodes cannot say."""
    hardware, graph, actions = case.hardware, case.graph, plan.fixed or Actions()
    hops = {(b, c) for kind, _, b, c in actions if kind == COPY}
    streams = {b for kind, _, b, _ in actions if kind == COMPUTE}
    names = {hop: hardware.link_names[hardware.hops.index(hop)] for hop in sorted(hops)}
    links = {hop: hardware.links[name] for hop, name in names.items()}
    used = set(names.values())
    shared = [bus for bus in hardware.caps.values() if asked_bytes_per_s(hardware, bus) > bus.bandwidth_bytes_per_s]
    is_load = {target == hardware.compute_tier_id for _, target in hops}
    is_between = all(hardware.compute_tier_id in hop for hop in hops) and len(hops) == len(is_load)
    cannot = {
        "one rank, whose collectives would need a network": case.job.ranks > 1,
        "reads that are known beforehand": bool(graph.dynamic_reads),
        "one stream of computes": len(streams) > 1,
        "a host that pays nothing for an action": not hardware.host.issues_freely,
        "copies between the compute tier and one other": not is_between,
        "one copy at a time on a link": any(link.channels > 1 or link.via for link in links.values()),
        "copies that take no bandwidth from kernels": hardware.shares_memory,
        "links that share no bandwidth": any(len(used & {*bus.links}) for bus in shared),
    }
    for must, is_so in cannot.items():
        where, do = f"export of plan {plan.name!r} to chakra", "export another plan, or for another machine"
        insist(not is_so, where, f"nodes can say {must}, no more", "more in this plan or on this machine", do)
    return links


class _Walk:
    """Walks a plan in issue order, and notes what each node waits for, and who takes and frees places."""

    def __init__(self, task: Task, plan: Plan, links: Links) -> None:
        problem, self._task = task.problem, task
        self._graph, self._compute_tier, self._links = task.graph, problem.compute_tier, links
        self._nodes, self._last = list[_Timed](), [-1, -1, -1]
        names = [name for hop in links for name in problem.hardware.links if problem.hardware.links[name] is links[hop]]
        self._is_one_queue = any({*names} <= {*queue} for queue in problem.hardware.queues)
        self._ends = problem.switches.copies_wait_for == "end"
        self._fence, self._users = defaultdict[int, Clock](lambda: _NOTHING), defaultdict[int, Clock](lambda: _NOTHING)
        self._takers, self._freers = defaultdict[object, deque[int]](deque), defaultdict[object, deque[Clock]](deque)
        self._synced, self._outputs = _NOTHING, {t for t in task.graph.outputs if not task.graph.tensors[t].persistent}
        self._made = {(t, home): _NOTHING for t, home in enumerate(plan.home) if home != NOWHERE}
        self._held = {*self._made}
        for tensor, tier in self._made:
            self._takers[tier, tensor].append(-1)
        for _ in range(plan.repeats):
            for action, (kind, a, b, c) in enumerate(plan.fixed or ()):
                if kind == COMPUTE:
                    self._compute(action, a)
                elif kind == COPY:
                    self._copy(action, a, b, c)
                elif kind == DETACH:
                    self._detach(a, b)
                else:
                    self._synced = _join(self._synced, self._fence[a], self._users[a])

    def _add(self, node: _Timed, queue: int) -> Clock:
        """Add a node behind the last one of its queue, and return the clock of its end."""
        before, index = self._clock(queue), len(self._nodes)
        node.after, self._last[queue] = _join(node.after, self._synced, before), index
        self._nodes.append(node)
        return self._clock(queue)

    def _clock(self, queue: int) -> Clock:
        computes, loads, stores = (last if i == queue else -1 for i, last in enumerate(self._last))
        return computes, loads, stores

    def _take(self, tensor: int, tier: int) -> None:
        if (tensor, tier) not in self._held:
            self._held.add((tensor, tier))
            self._takers[tier, tensor].append(len(self._nodes) - 1)

    def _compute(self, action: int, op_id: int) -> None:
        op, tier = self._graph.ops[op_id], self._compute_tier
        after = [self._fence[t] for t in (*op.reads, *op.writes)] + [self._users[t] for t in op.writes]
        after += [self._made.get((t, tier), _NOTHING) for t in op.reads]
        end = self._add(_Timed(_COMPUTE, op_id, self._task.times_ns[op_id], action, _join(*after)), 0)
        self._users.update({t: _join(self._users[t], end) for t in op.reads})
        for t in op.writes:
            self._fence[t], self._users[t] = end, _NOTHING
            for other in range(len(self._task.problem.tiers)):
                self._made.pop((t, other), None)
            self._made[t, tier] = end
            self._take(t, tier)
        self._takers[tier, -1 - op_id].append(len(self._nodes) - 1)
        self._freers[tier, -1 - op_id].append(end)

    def _copy(self, action: int, tensor: int, source: int, target: int) -> None:
        is_load, computes = target == self._compute_tier, self._clock(0)
        alone_ns = transfer_ns(self._graph.tensors[tensor].size_bytes, self._links[source, target])
        made = self._made.get((tensor, source), _NOTHING)
        after = _join(self._fence[tensor], made, computes if self._ends else _NOTHING)
        node = _Timed(_LOAD if is_load else _STORE, tensor, alone_ns, action, after, self._last[0])
        end = self._add(node, 1 if is_load or self._is_one_queue else 2)
        self._users[tensor], self._made[tensor, target] = _join(self._users[tensor], end), end
        self._take(tensor, target)

    def _detach(self, tensor: int, tier: int) -> None:
        others = (other for other in range(len(self._task.problem.tiers)) if other != tier)
        is_given_up = tensor in self._outputs and not any((tensor, other) in self._made for other in others)
        ends = self._clock(0) if is_given_up else _NOTHING
        self._fence[tensor] = _join(self._fence[tensor], self._users[tensor], ends)
        self._users[tensor] = _NOTHING
        self._freers[tier, tensor].append(self._fence[tensor])
        self._made.pop((tensor, tier), None)
        self._held.discard((tensor, tier))

    def room(self, trace: Trace) -> list[_Timed]:
        """Add what frees the room of each node, in the order in which a replay frees it, and return the nodes."""
        problem, taken = self._task.problem, defaultdict[int, int](int)
        tiers = problem.hardware.tiers.values()
        most = [problem.budget_bytes if i == self._compute_tier else t.usable_bytes for i, t in enumerate(tiers)]
        freed, clocks = [[0] for _ in most], [[_NOTHING] for _ in most]
        for tier, item, change in tuples(trace.residencies.whole(), "tier", "tensor", "delta_bytes"):
            if change < 0:
                freed[tier].append(freed[tier][-1] - change)
                clocks[tier].append(_join(clocks[tier][-1], self._freers[tier, item].popleft()))
                continue
            taken[tier], taker = taken[tier] + change, self._takers[tier, item].popleft()
            if taker >= 0:
                node, lacking = self._nodes[taker], taken[tier] - most[tier]
                node.after = _join(node.after, clocks[tier][bisect_left(freed[tier], lacking)])
        for node in self._nodes:
            if node.behind >= 0:
                node.after = _join(node.after, self._nodes[node.behind].after)
        return self._nodes


def _messages(task: Task, plan: Plan, nodes: list[_Timed], start_ns: int, memory: tuple[int, int]) -> Iterator[bytes]:
    """Yield header and nodes; nodes of the first step carry the lines of hosim's forms that they are."""
    graph, (rate, latency_ns), actions = task.graph, memory, len(plan.fixed or ())
    ops, lines = [*graph_jsonl.records(graph)], [*plan_jsonl.records(plan, plan.fixed or Actions(), graph)]
    first, homes = len(ops) - len(graph.ops), len(lines) - actions
    starts = [index for index, (kind, *_) in enumerate(plan.fixed or ()) if kind in (COMPUTE, COPY)]
    ends = dict(zip(starts, [*starts[1:], actions], strict=False))
    texts = {"hosim_graph": ops[:first], "hosim_plan": lines[: homes + (starts or [actions])[0]]}
    yield _field(1, b"0.0.4") + b"".join(_field(2, _attribute(key, _TEXT, _text(of))) for key, of in texts.items())
    gap = int(start_ns > 0)
    if gap:
        yield _node(0, b"launch", (_COMPUTE, start_ns), (), {"is_cpu_op": (_FLAG, 1), "tensor_size": (_WHOLE, 0)})
    seen = set[int]()
    for index, node in enumerate(nodes):
        is_compute = node.type == _COMPUTE
        item = graph.ops[node.item] if is_compute else graph.tensors[node.item]
        size = item.read_bytes + item.write_bytes if is_compute else item.size_bytes  # type: ignore[union-attr]
        scaled = 1000 * (size if is_compute else rate * (node.alone_ns - latency_ns))
        attributes: dict[str, tuple[int, int | bytes]] = {"is_cpu_op": (_FLAG, int(node.type == _STORE))}
        attributes |= {"tensor_size": (_WHOLE, scaled), "bytes": (_WHOLE, size)}
        if index < len(starts):
            attributes["hosim_plan"] = _TEXT, _text(lines[homes + node.action : homes + ends[node.action]])
        if is_compute:
            attributes["num_ops"] = _SIGNED, 0  # ASTRA-sim reads it unset, and skips what takes no time only by it
        if is_compute and node.item not in seen:
            seen.add(node.item)
            attributes |= {"hosim_op": (_WHOLE, node.item), "hosim_graph": (_TEXT, _text([ops[first + node.item]]))}
        after = [gap + other for other in node.after if other >= 0] or [0] * gap
        yield _node(gap + index, item.name.encode(), (node.type, node.alone_ns if is_compute else 0), after, attributes)


def _node(
    index: int, name: bytes, kind: tuple[int, int], after: Iterable[int], attributes: dict[str, tuple[int, int | bytes]]
) -> bytes:
    type_, duration = kind
    parts = [_field(1, index), _field(2, name), _field(3, type_), *(_field(5, other) for other in sorted({*after}))]
    parts += [_field(7, duration), *(_field(10, _attribute(key, *value)) for key, value in attributes.items())]
    return b"".join(parts)


def _text(records: Iterable[dict[str, object]]) -> bytes:
    return b"".join(orjson.dumps(record, option=orjson.OPT_APPEND_NEWLINE) for record in records)


def _attribute(name: str, field: int, value: int | bytes) -> bytes:
    return _field(1, name.encode()) + _field(field, value)


def _field(field: int, value: int | bytes) -> bytes:
    """Encode a field: a whole number as a varint, text after its length."""
    if isinstance(value, int):
        return _varint(field << 3) + _varint(value)
    return _varint(field << 3 | 2) + _varint(len(value)) + value


def _varint(value: int) -> bytes:
    groups = bytearray()
    while value > 127:
        groups.append(value & 127 | 128)
        value >>= 7
    return bytes([*groups, value])
