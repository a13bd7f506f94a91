"""Programs and the machine in columns of numbers, as the compiled replay takes them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from simulator.cost import UNITS, chosen_op, expected_op, issue_ns, memory_rate_cap, roofline, unit_work
from simulator.cost.service import fabric_rate_cap
from simulator.draws import Draws
from simulator.engine.program import LONGEST_NS, Program, runtime_streams
from simulator.engine.replay.written import in_range, written_out
from simulator.engine.shared import NOTHING, Columns, Shared, Stages, Stored, ids, ints, whole
from simulator.graph import Collective, Graph, Op, Roles
from simulator.hardware import Hardware, Host
from simulator.plan import COMPUTE, COPY, Actions
from simulator.scenario import Switches
from simulator.trace import ISSUED, Bools, Ints

T = TypeVar("T")

_MOST_STREAMS = 1 << 16
_TOO_LONG = "a time is beyond 2^61 ns"

_HALF = 32
"""Bits of the lower part of a work, which may be too large for one number."""


def _not_covered(program: Program, hardware: Hardware) -> str:
    """Return what of a program, or of how the machine copies, no replay covers; empty if nothing."""
    graph = program.graph
    reasons = {
        "the host computes": bool(graph.on_host),
        "ops may read in place": bool(graph.in_place),
        "ops update their choices": program.draws is not None and bool(graph.updated),
        "places have addresses": program.allocator != "ideal",
        "the host waits for copies": any(link.blocking for link in hardware.links.values()),
    }
    return next((reason for reason, holds in reasons.items() if holds), "")


class ReplayedProgram:
    """A program in columns.

    Parameters
    ----------
    program, hardware, switches
        What a rank runs, the machine, and modelling choices about it.

    Attributes
    ----------
    columns
        The columns.
    reason
        Why it is not covered; empty if it is.
    actions, repeats, computes
        What is issued, how often, and the number of computes in all.
    is_lap
        Whether the actions are those of a step, issued in each.
    device, is_contended
        The machine with the rates of its device; whether its kernels share that.
    in_place, roles
        Tensors that ops may read in place; its collectives.
    """

    def __init__(self, program: Program, hardware: Hardware, switches: Switches) -> None:
        self._program, self.device, self.is_contended, self.reason = program, program.device or hardware, False, ""
        graph, plan, host = program.graph, program.plan, hardware.host
        self.roles, self.in_place = _kept(graph, Roles), graph.in_place
        self.reason = _not_covered(program, hardware)
        if self.reason:
            return
        written = None if plan.fixed is not None else written_out(program, hardware)
        if plan.fixed is not None:
            self.actions, prices_ns = plan.fixed, _fixed_prices_ns(plan.fixed, graph, host)
        elif written is not None:
            self.actions, prices_ns = written
        else:
            self.reason = "a plan looks at the machine, or breaks a rule"
            return
        self.repeats = plan.repeats if written is None else 1
        self.is_lap = written is None and plan.repeats == graph.steps
        kind, a, b, c = codes = _columns_of(self.actions)
        home, tiers = np.array(plan.home, np.int32), len(hardware.tiers)
        is_home = len(home) == len(graph.tensors) and bool(((home >= NOTHING) & (home < tiers)).all())
        if not (is_home and in_range(codes, graph, tiers, _MOST_STREAMS)):
            self.reason = "a plan names unknown things"
            return
        if max(*program.durations_ns, int(prices_ns.max(initial=0)), 0) > LONGEST_NS:
            self.reason = _TOO_LONG
            return
        is_compute = kind == COMPUTE
        self.computes = int(np.count_nonzero(is_compute)) * self.repeats
        streams = 1 + int(b[is_compute].max(initial=0)) if written is None else runtime_streams(graph)
        self.columns = {
            **_kept(graph, _graph_columns), "kind": kind, "a": a, "b": b, "c": c, "price_ns": prices_ns,
            "tiers": tiers, "compute_tier": hardware.compute_tier_id, "streams": streams,
            "steps": graph.steps, "repeats": self.repeats, "is_decided": int(written is not None),
            "duration_ns": np.array(program.durations_ns, np.int64), "home": home,
            "starts_ns": program.starts_ns + (host.fixed.launch_ns if written is None or plan.static_parts else 0),
            "copies_wait_for_ends": int(switches.copies_wait_for == "end"),
        }  # fmt: skip
        drawn_ns = map(program.draws.durations_ns, graph.dynamic_reads) if program.draws else ()
        if max(chain.from_iterable(drawn_ns), default=0) > LONGEST_NS:
            self.reason = _TOO_LONG
            return
        self.is_contended = hardware.shares_memory
        if streams > 1 and not self.is_contended:
            self.is_contended = _contends(graph, a[is_compute], b[is_compute], is_fixed=written is None)
        if self.is_contended:
            self._add_kernels()
        if program.draws is not None:
            self._add_draws(program.draws)

    def add_links(self, shared: Shared, paths: Sequence[int]) -> None:
        """Add the links, and the times of copies.

        Parameters
        ----------
        shared
            The machine.
        paths
            By link, the path of copies; `NOTHING` where no other flow slows them down.
        """
        links, columns = shared.columns, self.columns
        columns |= {
            name: links[name] for name in ("links", "queues", "queue_of", "source", "target", "channels", "route")
        }
        is_copy = columns["kind"] == COPY
        over = links["route"][columns["b"][is_copy], columns["c"][is_copy]]
        if (over == NOTHING).any():
            self.reason = "a copy has no link"
        sizes, is_used = columns["sizes"], np.zeros((len(paths), columns["size_classes"]), bool)
        is_used[over, columns["size_class"][columns["a"][is_copy]]] = True
        lead, cap = np.zeros((2, *is_used.shape), np.int64)
        for link, size in zip(*(column.tolist() for column in np.nonzero(is_used)), strict=True):
            lead[link, size], cap[link, size] = shared.timing(link, sizes[size], is_shared=paths[link] != NOTHING)
        columns |= {"lead_ns": lead, "cap": cap}
        if lead.max(initial=0) > LONGEST_NS:
            self.reason = _TOO_LONG

    def _add_kernels(self) -> None:
        """Add what each op does in the device, beside others, but for its launch; nothing if its time is given."""
        sizes, of_kind = self.columns["size_bytes"].tolist(), dict[Any, tuple[int, int, int, int, int]]()
        rows = list[tuple[int, int, int, int, int]]()
        is_modelled = _kept(self._program.graph, _is_modelled).tolist()
        for op, modelled in zip(self._program.graph.ops, is_modelled, strict=True):
            kind = (modelled, op.dynamic, op.flops, op.dtype, op.op_class, op.read_bytes, op.write_bytes)
            if kind not in of_kind:
                of_kind[kind] = self._kernel(expected_op(op, sizes)) if modelled else (NOTHING, 0, 0, 0, 0)
            rows.append(of_kind[kind])
        units, shares, work, traffic, traffic_shares = zip(*rows, strict=True)
        self.columns |= {
            "unit": ints(units), "unit_share": ints(shares), "unit_work": _halves(work), "traffic": _halves(traffic),
            "traffic_share": ints(traffic_shares),
        }  # fmt: skip

    def _kernel(self, op: Op) -> tuple[int, int, int, int, int]:
        """Return the unit of an op, the share of it that it reaches, its work there and in the memory; its share."""
        unit, share, work = unit_work(op, self.device)
        _, traffic = roofline(op, self.device)
        if not (work or traffic):
            return NOTHING, 0, 0, 0, 0
        return UNITS.index(unit), share, work, traffic, memory_rate_cap(op, self.device)

    def _add_draws(self, draws: Draws) -> None:
        """Add what dynamic reads choose in each step, and how long their ops take with that."""
        graph, columns = self._program.graph, self.columns
        draws_of, role = np.full(len(graph.ops), NOTHING, np.int32), np.zeros(len(columns["reads"]), np.uint8)
        is_candidate = np.zeros(len(graph.tensors), bool)
        is_candidate[list(graph.candidates)] = True
        role[is_candidate[columns["reads"]]] = 1
        chosen, counts = list[NDArray[np.int32]](), list[Ints]()
        takes, traffic = list[int](), list[int]()
        for op, reads in graph.dynamic_reads.items():
            draws_of[op] = len(chosen)
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
            "chosen_at": np.cumsum([0, *np.concatenate([np.empty(0, np.int64), *counts])], dtype=np.int64),
            "chosen": np.concatenate([np.empty(0, np.int32), *chosen]), "drawn_traffic": _halves(traffic),
        }  # fmt: skip

    def add_collectives(self, kinds: dict[Collective, int]) -> None:
        """Add the call of each op that is a collective, and its number; new ones are numbered on."""
        calls, of_call = {call: position for position, call in enumerate(self.roles.ops)}, self.roles.calls
        call_of, collective_of = np.full((2, len(self._program.graph.ops)), NOTHING, np.int32)
        for op, call in of_call.items():
            if (collective := self._program.graph.ops[op].collective) is not None:
                call_of[op], collective_of[op] = calls[call], kinds.setdefault(collective, len(kinds))
        self.columns |= {"call_of": call_of, "collective_of": collective_of}


def _halves(works: Iterable[int]) -> Ints:
    """Return works, each as its upper and its lower half."""
    return ints(half for work in works for half in (work >> _HALF, work & (1 << _HALF) - 1))


def _kept(graph: Graph, make: Callable[[Graph], T]) -> T:
    """Return what follows from a graph alone, which is made once."""
    if make not in graph.known:
        graph.known[make] = make(graph)
    return cast(T, graph.known[make])


def _columns_of(actions: Actions) -> list[NDArray[Any]]:
    """Return the columns of actions, without a copy."""
    return [np.frombuffer(getattr(actions, name), np.int8 if name == "kind" else np.int32) for name in ISSUED]


def issued_rows(actions: Actions, repeats: int) -> Ints:
    """Return rows of the codes of actions that are issued so often.

    Parameters
    ----------
    actions, repeats
        The actions, and how often.
    """
    return np.tile(np.stack([column.astype(np.int64) for column in _columns_of(actions)], 1), (repeats, 1))


def _contends(graph: Graph, ops: NDArray[np.int32], streams: NDArray[np.int32], *, is_fixed: bool) -> bool:
    """Return whether ops whose time is modelled run on several streams: those of a fixed plan, or of the graph."""
    is_modelled = _kept(graph, _is_modelled)
    of = streams[is_modelled[ops]] if is_fixed else graph.columns.streams[is_modelled]
    return bool(len(of)) and bool((of != of[0]).any())


def _is_modelled(graph: Graph) -> Bools:
    """Return for each op whether its time is modelled: neither measured nor that of a collective."""
    return np.array([op.collective is None and op.duration_ns is None for op in graph.ops], bool)


def _fixed_prices_ns(actions: Actions, graph: Graph, host: Host) -> Ints:
    """Return what the host pays for each action of a fixed plan, or one price for all [ns]."""
    more_ns, each = np.array(issue_ns(graph, host), np.int64), np.array(host.fixed.prices_ns, np.int64)
    if not more_ns.any() and len({*host.fixed.prices_ns}) == 1:
        return each[:1]
    kind, a = (np.array(column, np.int64) for column in (actions.kind, actions.a))
    return np.where(kind == COMPUTE, np.append(more_ns, 0)[np.clip(a, 0, len(more_ns))], 0) + each[kind]


def _graph_columns(graph: Graph) -> Columns:
    """Return what follows from the graph alone; sizes are numbered, and times are kept for each of them."""
    columns = graph.columns
    sizes, size_class = np.unique(columns.size_bytes, return_inverse=True)
    names = ("reads_at", "reads", "writes_at", "writes", "workspace_bytes", "is_collective", "size_bytes", "is_written")
    return {
        **{name: getattr(columns, name) for name in names},
        "ops": len(graph.ops), "tensors": len(graph.tensors), "sizes": sizes.tolist(), "size_classes": len(sizes),
        "size_class": size_class.astype(np.int32), "is_output": columns.is_output & ~columns.is_persistent & 1,
    }  # fmt: skip


def machine_columns(shared: Shared, stored: Stored, of_ranks: Mapping[int, ReplayedProgram]) -> Columns:
    """Return the machine that ranks share in columns, and complete those of the programs.

    Parameters
    ----------
    shared, stored
        What ranks share, and which tensors are stored once for several.
    of_ranks
        The program of each simulated rank.
    """
    programs = list(of_ranks.values())
    position = {program: index for index, program in enumerate(dict.fromkeys(programs))}
    for program in position:
        program.add_links(shared, shared.link_paths[programs.index(program)])
    meets = any(program.roles.calls for program in position)
    meetings = _meetings(shared, of_ranks, position) if meets else {}  # which adds to the network
    return {
        **shared.columns, **meetings, **shared.network_columns(),
        "programs": ids(position[program] for program in programs),
        "stored_at": np.cumsum([0, *map(len, stored.elsewhere)], dtype=np.int32),
        "stored": ids(tensor for of_rank in stored.elsewhere for tensor in of_rank),
    }  # fmt: skip


def _meetings(shared: Shared, of_ranks: Mapping[int, ReplayedProgram], programs: Iterable[ReplayedProgram]) -> Columns:
    """Return who meets for what, in columns, and tell each program the calls and collectives of its ops."""
    hardware, names = shared.hardware, list(shared.hardware.fabrics)
    of_rank = {rank: program.roles for rank, program in of_ranks.items()}
    meets, of_call = shared.meetings(of_ranks)
    kinds: dict[Collective, int] = {}
    wanted: dict[tuple[int, Collective], tuple[int, ...]] = {}
    for program in programs:
        program.add_collectives(kinds)
    for rank, roles in of_rank.items():
        for call, ops in roles.ops.items():
            meeting = of_call[rank, call]
            for collective in {roles.graph.ops[op].collective: None for op in ops}:
                if collective is not None:
                    wanted[meeting, collective] = meets[meeting].ranks
    most_calls = max(len(roles.ops) for roles in of_rank.values())
    calls = [[of_call[rank, call] for call in roles.ops] for rank, roles in of_rank.items()]
    lists: dict[Stages, int] = {}
    stages_of = np.full((len(meets), len(kinds)), NOTHING, np.int32)
    for (meeting, collective), stages in shared.stages(wanted).items():
        stages_of[meeting, kinds[collective]] = lists.setdefault(stages, len(lists))
    rows = [
        (position, stage, names.index(phase.fabric), phase.hops, phase.port_bytes)
        for stages, position in lists.items()
        for stage, parts in enumerate(stages)
        for phase in parts
    ]
    fabrics = [
        (fabric.latency_ns, fabric_rate_cap(fabric), whole(fabric.planes * fabric.bandwidth_bytes_per_s))
        for fabric in hardware.fabrics.values()
    ]
    ports = [[shared.ports_path(name, rank, rank) for name in names] for rank in shared.ranks]
    nowhere = [NOTHING] * len(names)
    return {
        "fabrics": np.array(fabrics, np.int64), "stages_of": stages_of,
        "members_at": np.cumsum([0, *(len(of.members) for of in meets)], dtype=np.int32),
        "members": ids(member for of in meets for member in of.members), "senders": ids(of.sender for of in meets),
        "sender_paths": np.array([of.paths or nowhere for of in meets], np.int32),
        "phases": np.array(rows, np.int64),
        "meetings": np.array([row + [NOTHING] * (most_calls - len(row)) for row in calls], np.int32),
        "port_paths": np.array(ports, np.int32),
    }  # fmt: skip
