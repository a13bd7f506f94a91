"""The engine as SimPy processes: begins the ranks of a machine, runs them, and closes the trace."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from itertools import chain, repeat

from simulator.cost import issue_ns
from simulator.engine.program import Columns, Program
from simulator.engine.reference.blocked import Explainer
from simulator.engine.reference.host import HostThread
from simulator.engine.reference.ledger import Ledger
from simulator.engine.reference.order import Order
from simulator.engine.reference.rank import Rank
from simulator.engine.reference.supernode import Machine
from simulator.engine.reference.view import ReactiveView
from simulator.engine.shared import Budget, Shared, Stored
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
    budget_bytes: Budget,
    switches: Switches,
    stands_in: tuple[int, ...],
    progress: Progress | None = None,
) -> Trace:
    """Run one program per rank, as `simulator.engine.run` says; `stands_in` names who is simulated for each rank."""
    simulated = {rank: programs[rank] for rank, by in enumerate(stands_in) if rank == by}
    compiled = {program: Columns(program, hardware) for program in dict.fromkeys(simulated.values())}
    of_ranks = {rank: compiled[program] for rank, program in simulated.items()}
    stored = Stored.of(programs, hardware, stands_in)
    machine = Machine(Shared.of(hardware, budget_bytes, stands_in, of_ranks), of_ranks)
    computes, hosts = sum(of.computes for of in of_ranks.values()), list[HostThread]()

    def checkpoint() -> None:
        machine.recorder.flush()
        if progress is not None:
            progress(sum(host.rank.computes_ended for host in hosts), computes)

    with no_garbage_search():
        for (rank_id, program), elsewhere in zip(simulated.items(), stored.elsewhere, strict=True):
            rank = machine.rank(rank_id, program)
            rank.waits_for_ends = switches.copies_wait_for == "end"
            hosts.append(_begin(machine, rank, program, elsewhere, checkpoint))
        machine.clock.run()
        checkpoint()
        explainers = [Explainer(programs[host.rank.id].graph, host) for host in hosts]
        parts = [explainer.sentences(is_alone=len(programs) == 1) for explainer in explainers]
        blocked = chain(*(lacked for lacked, _ in parts), *(peers for _, peers in parts))
        trace = machine.recorder.trace(tuple(blocked), stands_in)
    return replace(trace, stored_once=stored.once)


def _begin(
    machine: Machine, rank: Rank, program: Program, elsewhere: Collection[int], checkpoint: Callable[[], None]
) -> HostThread:
    """Take the room of what is at home but not stored elsewhere, and begin the processes of a rank."""
    plan, costs = program.plan, machine.hardware.host
    rank.take_homes(program.graph, plan.home, elsewhere)
    order, priced = _issues(machine, rank, program)
    host = HostThread(rank, order, costs.queue_depth, checkpoint)
    ledger = Ledger(rank, host, machine.recorder.waits)

    rank.on_start, rank.on_wait_end, rank.on_change = host.note_start, ledger.end, ledger.look_later
    machine.add_kernels(rank, ledger, program.graph.ops)
    launches = not callable(plan.actions) or plan.static_parts
    rank.clock.process(host.run(program.starts_ns + (costs.fixed.launch_ns if launches else 0), priced))
    lines = dict.fromkeys(link.queue for link in rank.links)
    for process in (*map(rank.run_stream, rank.streams), *map(rank.run_copies, lines)):
        rank.clock.process(process)
    return host


def _issues(machine: Machine, rank: Rank, program: Program) -> tuple[Order, Iterable[tuple[Code, int]]]:
    """Return what lays out the actions that the host issues, and these, each with its price."""
    plan, recorder, costs = program.plan, machine.recorder, machine.hardware.host
    rows = recorder.issued[rank.id]
    if callable(plan.actions):
        view = ReactiveView(program, rank)
        return view, view.priced(plan.actions(view), costs, rows)
    if plan.repeats == program.graph.steps:
        recorder.laps[rank.id] = len(plan.actions)
    else:
        rows += b"".join(code_row(*code) for code in plan.actions.codes()) * plan.repeats
    codes, prices_ns, more_ns = tuple(plan.actions.codes()), costs.fixed.prices_ns, issue_ns(program.graph, costs)
    priced = [(code, prices_ns[code[0]] + (more_ns[code[1]] if code[0] == COMPUTE else 0)) for code in codes]
    return Order(program, rank), chain.from_iterable(repeat(priced, plan.repeats))
