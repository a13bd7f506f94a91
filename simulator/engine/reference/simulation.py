"""The engine as SimPy processes: builds the machine and its ranks from programs, runs them, and closes the trace."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import chain, repeat

import numpy as np

from simulator.engine.program import Columns, Program
from simulator.engine.reference.actions import Compute
from simulator.engine.reference.addresses import AddressedRoom
from simulator.engine.reference.blocked import Explainer
from simulator.engine.reference.collectives import Kernels
from simulator.engine.reference.compaction import Compactor
from simulator.engine.reference.host import HostThread
from simulator.engine.reference.ledger import Ledger
from simulator.engine.reference.machine import Machine
from simulator.engine.reference.order import Order
from simulator.engine.reference.rank import Rank
from simulator.engine.reference.view import ReactiveView
from simulator.hardware import Hardware
from simulator.interrupts import no_garbage_search
from simulator.plan import COMPUTE, Code
from simulator.scenario import Switches
from simulator.trace import Trace, code_row, pick

Progress = Callable[[int, int], None]
"""Called now and then with the number of computes that have ended, and of all."""


def run(
    programs: Sequence[Program],
    hardware: Hardware,
    budget_bytes: int | float | None,
    switches: Switches,
    stands_in: tuple[int, ...],
    progress: Progress | None = None,
) -> Trace:
    """Run one program per rank; see `simulator.engine.run`.

    Raises
    ------
    PlanError
        If a reactive plan issues an action that cannot act, or a copy has no link.
    CapacityError
        If the homes alone exceed a tier.
    """
    machine = Machine(programs, hardware, budget_bytes, switches, stands_in)
    compiled, ranks = dict[int, Columns](), list[RankRun]()

    def checkpoint() -> None:
        machine.recorder.flush()
        if progress is not None:
            progress(sum(of.rank.computes_ended for of in ranks), sum(of.computes for of in ranks))

    with no_garbage_search():
        for rank, program in enumerate(programs):
            if stands_in[rank] == rank:
                if id(program) not in compiled:
                    compiled[id(program)] = Columns(program, hardware.compute_tier_id)
                ranks.append(RankRun(machine, rank, program, compiled[id(program)], checkpoint))
        machine.clock.run()
        checkpoint()
        sentences = [of.blocked() for of in ranks]
        blocked = chain(*(lacked for lacked, _ in sentences), *(peers for _, peers in sentences))
        trace = machine.recorder.trace(tuple(blocked), stands_in)
    once = tuple((*place, size) for place, size in machine.stored_once.items())
    begin_together = len({programs[rank].starts_ns for rank in stands_in}) == 1
    return replace(trace, until_ns=None if begin_together else _until_ns(trace), stored_once=once)


def _until_ns(trace: Trace) -> int:
    """Return when the first of the ranks with computes has ended its last compute [ns]."""
    spans = trace.spans.whole()
    computes, last_ns = pick(spans, spans["kind"] == COMPUTE), np.full(len(trace.issued), -1)
    np.maximum.at(last_ns, computes["rank"], computes["end_ns"])
    return int(min(last_ns[last_ns >= 0], default=0))


class RankRun:
    """One rank set up to run its program. At time 0 each tensor that exists is at home.

    Parameters
    ----------
    machine
        What it shares with the other ranks.
    rank_id
        Its number.
    program, columns
        What it runs, and the compiled graph.
    checkpoint
        Called now and then.

    Attributes
    ----------
    rank
        What it has and does.
    computes
        Number of computes that it will run.
    """

    def __init__(
        self, machine: Machine, rank_id: int, program: Program, columns: Columns, checkpoint: Callable[[], None]
    ) -> None:
        self._machine, self._program, plan, hardware = machine, program, program.plan, machine.hardware
        machine.contended |= {rank_id} if columns.is_contended else set()
        rooms = [machine.room(tier, rank_id, program) for tier in range(len(hardware.tiers))]
        clock, recorder = machine.clock, machine.recorder
        self.rank = rank = Rank(clock, machine.network, recorder, rank_id, columns, rooms)
        rank.waits_for_ends = machine.switches.copies_wait_for == "end"
        machine.add_links(rank)
        room = rooms[rank.tier]
        is_remapped = program.allocator == "best_fit" and hardware.allocator.compaction is not None
        if isinstance(room, AddressedRoom) and (is_remapped or program.allocator == "caching"):
            Compactor(rank, room, hardware.allocator)
        self._take_homes()
        order, priced = self._issues()
        self._host = HostThread(rank, order, hardware.host.queue_depth, checkpoint)
        self._ledger = Ledger(rank, self._host, recorder.waits)
        rank.on_change = self._ledger.look_later
        rank.on_start = self._on_start
        self._set_kernels()
        launches = not callable(plan.actions) or plan.static_parts
        begins_ns = program.starts_ns + (hardware.host.fixed.launch_ns if launches else 0)
        clock.process(self._host.run(begins_ns, priced))
        for stream in rank.streams:
            clock.process(rank.run_stream(stream))
        steps = program.graph.steps
        self.computes = (
            len(program.graph.ops) * steps if plan.fixed is None else plan.fixed.kind.count(COMPUTE) * plan.repeats
        )

    def _on_start(self, compute: Compute) -> None:
        """Tell the host and the ledger that a compute starts."""
        self._host.note_start()
        self._ledger.end(compute)

    def _take_homes(self) -> None:
        """Take the room of what is at home, but for what another rank stores there for all."""
        rank, tensors = self.rank, self._program.graph.tensors
        for tensor, home in enumerate(self._program.plan.home):
            if home >= 0:
                if (rank.id, home, tensor) not in self._machine.stored:
                    rank.rooms[home].take_home(tensor, rank.columns.size_bytes[tensor], tensors[tensor].name)
                rank.valid[home][tensor] = True
                rank.hold((tensor,), home)

    def _issues(self) -> tuple[Order, Iterable[tuple[Code, int]]]:
        """Return what lays out the actions that the host issues, and these, each with its price."""
        program, plan, recorder = self._program, self._program.plan, self._machine.recorder
        costs, rows = self._machine.hardware.host, recorder.issued[self.rank.id]
        if callable(plan.actions):
            view = ReactiveView(program, self.rank)
            return view, view.priced(plan.actions(view), costs, rows)
        if plan.repeats == program.graph.steps:
            recorder.laps[self.rank.id] = len(plan.actions)
        else:
            rows += b"".join(code_row(*code) for code in plan.actions.codes()) * plan.repeats
        codes = chain.from_iterable(repeat(tuple(plan.actions.codes()), plan.repeats))
        return Order(program, self.rank), zip(codes, repeat(costs.fixed.step_ns), strict=False)

    def _set_kernels(self) -> None:
        """Set up kernels whose time depends on what shares the device with them, or on ranks that they meet."""
        machine, rank, ops, meets = self._machine, self.rank, self._program.graph.ops, {}
        for op, call in rank.columns.roles.calls.items():
            if (collective := ops[op].collective) is not None:
                members = rank.columns.roles.members[call][rank.id]
                meets[op] = machine.communicator(call, members), collective
        paths = machine.kernel_paths(rank.id)
        if meets or paths:
            rank.kernel = Kernels(rank, self._ledger, ops, machine.hardware, meets, paths).run

    def blocked(self) -> tuple[list[str], list[str]]:
        """Explain what this rank lacks, and which ranks it waits for, if it is not done."""
        sentences = Explainer(self._program.graph, self.rank, self._host).sentences()
        if not self._machine.has_ranks:
            return sentences
        lacked, peers = ([f"rank {self.rank.id}: {sentence}" for sentence in part] for part in sentences)
        return lacked, peers
