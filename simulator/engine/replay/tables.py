"""Programs and the machine in columns of numbers, as the compiled replay takes them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import fields
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.cost import chosen_op, expected_op, memory_rate_cap, roofline, unit_work, UNITS
from simulator.cost.service import fabric_rate_cap, lead_ns, rate_cap, transfer_ns
from simulator.draws import Draws
from simulator.engine.program import Program
from simulator.engine.replay.written import written_out
from simulator.engine.replay.machine import NOTHING, Shared, Stages
from simulator.graph import Collective, Graph, Op, Roles
from simulator.hardware import Hardware
from simulator.plan import COMPUTE, COPY
from simulator.scenario import Switches
from simulator.trace import ISSUED, Ints

Columns = dict[str, Any]
"""Numbers, and arrays of numbers, by name."""

ENDLESS = 2**63 - 1
"""Stands for a bandwidth, a capacity or a time without a limit."""

_HALF = 32
"""Bits of the lower part of a work, which may be too large for one number."""


def whole(value: int | float) -> int:
    """Return a bandwidth or a capacity as a whole number; `ENDLESS` if it has no limit."""
    return ENDLESS if value == math.inf else int(value)


def _ints(values: Iterable[int]) -> Ints:
    return np.fromiter(values, np.int64)


def _ids(values: Iterable[int]) -> NDArray[np.int32]:
    return np.fromiter(values, np.int32)


EMPTY: Columns = {
    **dict.fromkeys(("draws_of", "chosen", "call_of", "collective_of"), np.empty(0, np.int32)),
    **dict.fromkeys(("chosen_at", "drawn_ns", "drawn_traffic"), np.empty(0, np.int64)),
    **dict.fromkeys(("unit", "unit_share", "unit_work", "traffic"), np.empty(0, np.int64)),
    "read_role": np.empty(0, np.uint8),
}
"""What a program without dynamic reads, kernels that share the device, and collectives says of these."""


NOBODY_MEETS: Columns = {
    **dict.fromkeys(("fabrics", "phases"), np.empty(0, np.int64)),
    **dict.fromkeys(("members", "senders", "sender_paths", "stages_of", "meetings", "port_paths"), np.empty(0, np.int32)),
    "members_at": np.zeros(1, np.int32),
    **dict.fromkeys(("collectives", "stage_lists"), 0),
}
"""What a machine says of meetings where there are none."""


class Tables:
    """A program in columns.

    Parameters
    ----------
    program, hardware, switches
        What a rank runs, the machine, and modelling choices about it.

    Attributes
    ----------
    columns
        The columns.
    is_contended
        Whether its kernels share the device.
    roles
        Its collectives.
    reason
        Why it cannot be replayed; empty if it can.
    """

    def __init__(self, program: Program, hardware: Hardware, switches: Switches) -> None:
        self.program, self._hardware, self.reason = program, hardware, ""
        graph, plan = program.graph, program.plan
        self.roles = _roles(graph)
        written = None if plan.fixed is not None else written_out(program, hardware)
        if plan.fixed is None and written is None:
            self.reason = "a plan that looks at the machine, or breaks a rule"
            return
        self.actions, prices_ns = (plan.fixed, np.array([hardware.host.fixed.step_ns])) if written is None else written
        kind, a, b, c = (
            np.frombuffer(getattr(self.actions, name), np.int8 if name == "kind" else np.int32) for name in ISSUED
        )
        self._actions = kind, a, b, c
        computes, self.repeats = kind == COMPUTE, plan.repeats if written is None else 1
        repeats = self.repeats
        if written is None:
            streams, launches = 1 + int(b[computes].max(initial=0)), True
        else:
            streams, launches = 1 + int(graph.columns.streams.max(initial=0)) + len(graph.groups), bool(plan.static_parts)
        of_ops = np.arange(len(graph.ops)), graph.columns.streams
        self.is_contended = self._contends(*((a[computes], b[computes]) if written is None else of_ops))
        self.columns = {
            **EMPTY,
            **_graph_columns(graph),
            "ops": len(graph.ops), "tensors": len(graph.tensors), "tiers": len(hardware.tiers), "streams": streams,
            "compute_tier": hardware.compute_tier_id, "steps": graph.steps, "repeats": repeats,
            "duration_ns": np.array(program.durations_ns, np.int64), "home": np.array(program.plan.home, np.int32),
            "kind": kind, "a": a, "b": b, "c": c, "price_ns": prices_ns, "is_decided": int(written is not None),
            "starts_ns": program.starts_ns + hardware.host.fixed.launch_ns * launches,
            "copies_wait_for_ends": int(switches.copies_wait_for == "end"),
        }  # fmt: skip
        self.computes = int(computes.sum()) * repeats
        self._add_links()
        if self.is_contended:
            self._add_kernels()
        if program.draws is not None:
            self._add_draws(program.draws)

    def _contends(self, ops: NDArray[np.int32], streams: NDArray[np.int32]) -> bool:
        """Return whether ops whose time is modelled run on several streams."""
        if not streams.any():
            return False
        of = streams[_is_modelled(self.program.graph)[ops]]
        return bool(len(of)) and bool((of != of[0]).any())

    def _add_links(self) -> None:
        """Add the links, with which of them joins which tiers."""
        hardware, tiers = self._hardware, len(self._hardware.tiers)
        route = np.full((tiers, tiers), NOTHING, np.int32)
        for link, (source, target) in reversed([*enumerate(hardware.hops)]):
            route[source, target] = link
        queue_of = {name: queue for queue, names in enumerate(hardware.queues) for name in names}
        kind, a, b, c = self._actions
        copies = kind == COPY
        links = route[b[copies], c[copies]]
        if (links == NOTHING).any():
            self.reason = "a copy without a link"
        self.is_used = np.zeros((len(hardware.links), len(self.program.graph.tensors)), bool)
        self.is_used[links, a[copies]] = True
        self.columns |= {
            "links": len(hardware.links), "queues": len(hardware.queues), "route": route,
            "queue_of": _ids(queue_of[name] for name in hardware.links),
            "source": _ids(source for source, _ in hardware.hops), "target": _ids(target for _, target in hardware.hops),
            "channels": _ids(link.channels for link in hardware.links.values()),
        }  # fmt: skip

    def add_timings(self, is_shared: Sequence[bool]) -> None:
        """Add the times of its copies.

        Parameters
        ----------
        is_shared
            By link, whether other flows can slow it down.
        """
        timing_of = np.full(self.is_used.shape, NOTHING, np.int32)
        rows: list[tuple[int, int]] = []
        sizes = self.columns["size_bytes"]
        for number, (link, shared) in enumerate(zip(self._hardware.links.values(), is_shared, strict=True)):
            tensors = np.flatnonzero(self.is_used[number])
            distinct, position = np.unique(sizes[tensors], return_inverse=True)
            timing_of[number, tensors] = len(rows) + position
            for size in distinct.tolist():
                rows.append((lead_ns(size, link), rate_cap(size, link)) if shared else (transfer_ns(size, link), 0))
        lead, cap = np.array(rows, np.int64).reshape(-1, 2).T
        self.columns |= {"timing_of": timing_of, "lead_ns": lead.copy(), "cap": cap.copy()}


    def _add_kernels(self) -> None:
        """Add what each op does in the device, beside others, but for its launch; nothing if its time is given."""
        sizes, known = self.columns["size_bytes"].tolist(), dict[Any, tuple[int, int, int, int]]()
        rows = list[tuple[int, int, int, int]]()
        for op, is_modelled in zip(self.program.graph.ops, _is_modelled(self.program.graph).tolist(), strict=True):
            kind = (is_modelled, op.dynamic, op.flops, op.dtype, op.op_class, op.read_bytes, op.write_bytes)
            if kind not in known:
                known[kind] = self._kernel(expected_op(op, sizes)) if is_modelled else (NOTHING, 0, 0, 0)
            rows.append(known[kind])
        units, shares, work, traffic = zip(*rows, strict=True)
        self.columns |= {
            "unit": _ints(units), "unit_share": _ints(shares), "unit_work": _halves(work), "traffic": _halves(traffic),
        }  # fmt: skip

    def _kernel(self, op: Op) -> tuple[int, int, int, int]:
        """Return the unit of an op, the share of it that it reaches, and its work there and in the memory."""
        unit, share, work = unit_work(op, self._hardware)
        _, traffic = roofline(op, self._hardware)
        return (UNITS.index(unit), share, work, traffic) if work or traffic else (NOTHING, 0, 0, 0)

    def _add_draws(self, draws: Draws) -> None:
        """Add what dynamic reads choose in each step, and how long their ops take with that."""
        graph, steps, columns = self.program.graph, self.program.graph.steps, self.columns
        draws_of, role = np.full(len(graph.ops), NOTHING, np.int32), np.zeros(len(columns["reads"]), np.uint8)
        is_candidate = np.zeros(len(graph.tensors), bool)
        is_candidate[list(graph.candidates)] = True
        role[is_candidate[columns["reads"]]] = 1
        chosen, counts, takes, traffic = [], [], [], []
        for number, (op, reads) in enumerate(graph.dynamic_reads.items()):
            draws_of[op] = number
            first, last = columns["reads_at"][op : op + 2]
            role[first:last][np.isin(columns["reads"][first:last], reads.candidates)] = 2
            flags = draws.chosen_flags[op]
            chosen.append(np.array(reads.candidates, np.int32)[np.nonzero(flags)[1]])
            counts.append(flags.sum(axis=1))
            takes += draws.durations_ns(op)
            if self.is_contended:
                traffic += [self._kernel(chosen_op(graph.ops[op], size))[3] for size in draws.chosen_bytes(op).tolist()]
        self.columns |= {
            "draws_of": draws_of, "read_role": role, "drawn_ns": np.array(takes, np.int64),
            "chosen_at": np.cumsum([0, *np.concatenate(counts or [[]])], dtype=np.int64),
            "chosen": np.concatenate([np.empty(0, np.int32), *chosen]), "drawn_traffic": _halves(traffic),
        }  # fmt: skip

    def add_collectives(self, ids: dict[Collective, int]) -> None:
        """Add the call of each op that is a collective, and its number; new ones are numbered on."""
        calls, of_call = {call: number for number, call in enumerate(self.roles.ops)}, self.roles.calls
        call_of, collective_of = np.full((2, len(self.program.graph.ops)), NOTHING, np.int32)
        for op, call in of_call.items():
            if (collective := self.program.graph.ops[op].collective) is not None:
                call_of[op], collective_of[op] = calls[call], ids.setdefault(collective, len(ids))
        self.columns |= {"call_of": call_of, "collective_of": collective_of}


def _halves(works: Iterable[int]) -> Ints:
    """Return works, each as its upper and its lower half."""
    return _ints(half for work in works for half in (work >> _HALF, work & (1 << _HALF) - 1))


def _roles(graph: Graph) -> Roles:
    return graph.known.get(Roles) or graph.known.setdefault(Roles, Roles(graph))


def _is_modelled(graph: Graph) -> NDArray[np.bool_]:
    """Return for each op whether its time is modelled: neither measured nor that of a collective."""
    key = (_is_modelled, "columns")
    if key not in graph.known:
        flags = [op.collective is None and op.duration_ns is None for op in graph.ops]
        graph.known[key] = np.array(flags, bool)
    return graph.known[key]


def _graph_columns(graph: Graph) -> Columns:
    columns = graph.columns
    return {
        "reads_at": columns.reads_at, "reads": columns.reads, "writes_at": columns.writes_at, "writes": columns.writes,
        "workspace_bytes": columns.workspace_bytes, "is_collective": columns.is_collective,
        "size_bytes": columns.size_bytes, "is_written": columns.is_written,
        "is_output": columns.is_output & ~columns.is_persistent & 1,
    }  # fmt: skip


def machine_columns(shared: Shared, programs: list[Tables], numbers: Sequence[int]) -> Columns:
    """Return the machine that ranks share in columns.

    Parameters
    ----------
    shared, programs
        The machine, and the programs that run on it.
    numbers
        By simulated rank, which of the programs it runs.
    """
    hardware, ranks = shared.hardware, shared.ranks
    kernel_paths = [shared.kernel_paths(rank) for rank in ranks]
    meetings = _meetings(shared, programs, numbers)
    stored = [sorted(shared.stored[rank]) for rank in ranks]
    return {
        **meetings,
        "ranks": _ids(ranks), "programs": _ids(numbers),
        "tiers": np.array(shared.tiers, np.int32), "capacities": _ints(map(whole, shared.capacities)),
        "link_paths": np.array(shared.link_paths, np.int32), "kernel_paths": np.array(kernel_paths, np.int32),
        "stored_at": np.cumsum([0, *map(len, stored)], dtype=np.int32),
        "stored": _ids(tensor for of_rank in stored for tensor in of_rank),
        "resources": _ints(whole(value) for resource in shared.resources for value in resource),
        "paths": _ints(value for unit, is_even, _ in shared.paths for value in (whole(unit), is_even)),
        "uses": _ints(value for path, (*_, uses) in enumerate(shared.paths) for use in uses for value in (path, *use)),
        "queue_depth": hardware.host.queue_depth, "launch_ns": hardware.compute.launch_ns,
        "memory_cap": memory_rate_cap(hardware),
    }  # fmt: skip


def _meetings(shared: Shared, programs: list[Tables], numbers: Sequence[int]) -> Columns:
    """Return who meets for what, in columns, and tell each program the calls and collectives of its ops."""
    if not any(program.roles.calls for program in programs):
        return NOBODY_MEETS
    hardware, names = shared.hardware, list(shared.hardware.fabrics)
    of_rank = {rank: programs[number].roles for rank, number in zip(shared.ranks, numbers, strict=True)}
    meets, of_call = shared.meetings(of_rank)
    ids: dict[Collective, int] = {}
    wanted: dict[tuple[int, Collective], tuple[int, ...]] = {}
    for program in programs:
        program.add_collectives(ids)
    for rank, roles in of_rank.items():
        for call, ops in roles.ops.items():
            meeting = of_call[rank, call]
            for collective in {roles.graph.ops[op].collective: None for op in ops}:
                if collective is not None:
                    wanted[meeting, collective] = meets[meeting].ranks
    most_calls = max(len(roles.ops) for roles in of_rank.values())
    calls = [[of_call[rank, call] for call in roles.ops] for rank, roles in of_rank.items()]
    lists: dict[Stages, int] = {}
    stages_of = np.full((len(meets), len(ids)), NOTHING, np.int32)
    for (meeting, collective), stages in shared.stages(wanted).items():
        stages_of[meeting, ids[collective]] = lists.setdefault(stages, len(lists))
    phases = list[int]()
    for stages, number in lists.items():
        for stage, parts in enumerate(stages):
            for phase in parts:
                phases += number, stage, names.index(phase.fabric), phase.hops, phase.port_bytes
    fabrics = [
        (fabric.latency_ns, fabric_rate_cap(fabric), whole(fabric.planes * fabric.bandwidth_bytes_per_s))
        for fabric in hardware.fabrics.values()
    ]
    nowhere = [NOTHING] * len(names)
    return {
        "fabrics": np.array(fabrics, np.int64), "collectives": len(ids), "stage_lists": len(lists), "stages_of": stages_of,
        "members_at": np.cumsum([0, *(len(of.members) for of in meets)], dtype=np.int32),
        "members": _ids(member for of in meets for member in of.members), "senders": _ids(of.sender for of in meets),
        "sender_paths": np.array([of.paths or nowhere for of in meets], np.int32),
        "phases": np.array(phases, np.int64),
        "meetings": np.array([row + [NOTHING] * (most_calls - len(row)) for row in calls], np.int32),
        "port_paths": np.array([[shared.ports_path(name, rank, rank) for name in names] for rank in shared.ranks], np.int32),
    }  # fmt: skip
