"""The engine as SimPy processes: builds the machine and its ranks from programs, runs them, and closes the trace."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import chain, repeat

from simulator.cost import issue_ns
from simulator.engine.program import Columns, Program
from simulator.engine.reference.actions import ComputeAction
from simulator.engine.reference.addresses import AddressedRoom
from simulator.engine.reference.blocked import Explainer
from simulator.engine.reference.compaction import Compactor
from simulator.engine.reference.host import HostThread
from simulator.engine.reference.kernels import Kernels
from simulator.engine.reference.ledger import Ledger
from simulator.engine.reference.order import Order
from simulator.engine.reference.rank import Rank
from simulator.engine.reference.supernode import Machine
from simulator.engine.reference.view import ReactiveView
from simulator.engine.shared import Shared, Stored, memories
from simulator.hardware import Hardware
from simulator.interrupts import no_garbage_search
from simulator.plan import COMPUTE, Code
from simulator.scenario import Switches
from simulator.trace import Trace, code_row

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
    """Run one program per rank, as `simulator.engine.run` says; `stands_in` names who is simulated for each rank."""
    simulated = [rank for rank, by in enumerate(stands_in) if rank == by]
    distinct = {id(programs[rank]): programs[rank] for rank in simulated}
    compiled = {key: Columns(program, hardware) for key, program in distinct.items()}
    columns = {rank: compiled[id(programs[rank])] for rank in simulated}
    contended = memories({rank: of.device for rank, of in columns.items() if of.is_contended})
    reads_in_place = any(of.in_place for of in columns.values())
    shared = Shared.of(hardware, budget_bytes, stands_in, contended, reads_in_place=reads_in_place)
    machine = Machine(hardware, shared, {rank: of.roles for rank, of in columns.items()})
    stored, ranks = Stored.of(programs, hardware, stands_in), list[SimulatedRank]()

    def checkpoint() -> None:
        machine.recorder.flush()
        if progress is not None:
            progress(sum(of.rank.computes_ended for of in ranks), sum(of.computes for of in ranks))

    with no_garbage_search():
        for rank, elsewhere in zip(simulated, stored.elsewhere, strict=True):
            run_of_rank = SimulatedRank(machine, rank, programs[rank], columns[rank])
            run_of_rank.rank.waits_for_ends = switches.copies_wait_for == "end"
            run_of_rank.begin(frozenset(elsewhere), checkpoint)
            ranks.append(run_of_rank)
        machine.clock.run()
        checkpoint()
        sentences = [of.blocked(is_alone=len(programs) == 1) for of in ranks]
        blocked = chain(*(lacked for lacked, _ in sentences), *(peers for _, peers in sentences))
        trace = machine.recorder.trace(tuple(blocked), stands_in)
    return replace(trace, stored_once=stored.once)


class SimulatedRank:
    """One rank set up to run its program. At time 0 each tensor that exists is at home.

    Parameters
    ----------
    machine
        What it shares with the other ranks.
    rank_id
        Its number.
    program, columns
        What it runs, and the compiled graph.

    Attributes
    ----------
    rank
        What it has and does.
    computes
        Number of computes that it will run.
    """

    def __init__(self, machine: Machine, rank_id: int, program: Program, columns: Columns) -> None:
        self._machine, self._program, hardware = machine, program, machine.hardware
        rooms = machine.rooms(rank_id, program)
        self.rank = rank = Rank(machine.clock, machine.network, machine.recorder, rank_id, columns, rooms)
        machine.add_links(rank)
        room = rooms[rank.tier]
        is_remapped = program.allocator == "best_fit" and hardware.allocator.compaction is not None
        if isinstance(room, AddressedRoom) and (is_remapped or program.allocator == "caching"):
            Compactor(rank, room, hardware.allocator)
        fixed, ops = program.plan.fixed, len(program.graph.ops)
        self.computes = ops * program.graph.steps if fixed is None else fixed.kind.count(COMPUTE) * program.plan.repeats

    def begin(self, elsewhere: frozenset[int], checkpoint: Callable[[], None]) -> None:
        """Take the room of what is at home, and begin its processes.

        Parameters
        ----------
        elsewhere
            Tensors that another rank stores for all.
        checkpoint
            Called now and then.
        """
        rank, plan, costs = self.rank, self._program.plan, self._machine.hardware.host
        for tensor, home in enumerate(plan.home):
            if home >= 0:
                if tensor not in elsewhere:
                    name = self._program.graph.tensors[tensor].name
                    rank.rooms[home].take_home(tensor, rank.columns.size_bytes[tensor], name)
                rank.valid[home][tensor] = True
                rank.hold((tensor,), home)
        order, priced = self._issues()
        self._host = HostThread(rank, order, costs.queue_depth, checkpoint)
        self._ledger = Ledger(rank, self._host, self._machine.recorder.waits)
        rank.on_change, rank.on_start = self._ledger.look_later, self._on_start
        self._set_kernels()
        launches = not callable(plan.actions) or plan.static_parts
        begins_ns = self._program.starts_ns + (costs.fixed.launch_ns if launches else 0)
        rank.clock.process(self._host.run(begins_ns, priced))
        for stream in rank.streams:
            rank.clock.process(rank.run_stream(stream))

    def _on_start(self, compute: ComputeAction) -> None:
        """Tell the host and the ledger that a compute starts."""
        self._host.note_start()
        self._ledger.end(compute)

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
        codes, prices_ns, more_ns = tuple(plan.actions.codes()), costs.fixed.prices_ns, issue_ns(program.graph, costs)
        priced = [(code, prices_ns[code[0]] + (more_ns[code[1]] if code[0] == COMPUTE else 0)) for code in codes]
        return Order(program, self.rank), chain.from_iterable(repeat(priced, plan.repeats))

    def _set_kernels(self) -> None:
        """Set up kernels whose time depends on what shares the device with them, or on ranks that they meet."""
        machine, rank, ops, meets = self._machine, self.rank, self._program.graph.ops, {}
        for op, call in rank.columns.roles.calls.items():
            if (collective := ops[op].collective) is not None:
                meets[op] = machine.communicator(rank.id, call), collective
        paths = machine.kernel_paths(rank.id)
        if meets or paths or rank.columns.in_place:
            kernels = Kernels(rank, self._ledger, ops, rank.columns.device, meets, paths)
            rank.kernel, kernels.loads = kernels.run, machine.recorder.loads

    def blocked(self, *, is_alone: bool) -> tuple[list[str], list[str]]:
        """Explain what this rank lacks, and which ranks it waits for, if it is not done."""
        sentences = Explainer(self._program.graph, self.rank, self._host).sentences()
        if is_alone:
            return sentences
        lacked, peers = ([f"rank {self.rank.id}: {sentence}" for sentence in part] for part in sentences)
        return lacked, peers
