"""Builds the machine and its ranks from programs, runs them to the end, and closes the trace."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain

import numpy as np

from simulator.engine.compaction import Compactor
from simulator.engine.dependencies import Counted, DependencyCounter, Routes
from simulator.engine.host import HostThread
from simulator.engine.kernels import Kernels
from simulator.engine.places import AddressedTier, Places
from simulator.engine.program import Columns, Program
from simulator.engine.stream import Stream
from simulator.engine.supernode import Machine
from simulator.engine.view import ReactiveView
from simulator.engine.waits import Explainer, Ledger
from simulator.graph import Roles
from simulator.hardware import Hardware
from simulator.interrupts import no_garbage_search
from simulator.plan import COMPUTE
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
    """Replay one program per rank, as `simulator.engine.run` says; `stands_in` names who is simulated for each rank."""
    machine = Machine(programs, hardware, budget_bytes, switches, stands_in)

    def checkpoint() -> None:
        machine.recorder.flush()
        if progress is not None:
            ended = sum(stream.ended.reached for rank in ranks for stream in rank.streams)
            progress(ended, sum(rank.computes for rank in ranks))

    compiled, ranks = dict[int, Columns](), list[Rank]()
    with no_garbage_search():
        for rank, program in enumerate(programs):
            if stands_in[rank] == rank:
                if id(program) not in compiled:
                    compiled[id(program)] = Columns(program, hardware.compute_tier_id)
                ranks.append(Rank(machine, rank, program, compiled[id(program)], checkpoint))
        for simulated in ranks:
            simulated.host.advance()
        machine.rounds.run()
        checkpoint()
        sentences = [rank.blocked() for rank in ranks]
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


class Rank:
    """One rank: a program on its device. At time 0 each tensor that exists is at home.

    Parameters
    ----------
    machine
        What it shares with the other ranks.
    rank
        Its number.
    program, columns
        What it runs, and the compiled graph.
    checkpoint
        Called now and then.

    Attributes
    ----------
    streams, host
        What runs its computes, and what issues them.
    computes
        Number of computes that it will run.
    """

    def __init__(
        self, machine: Machine, rank: int, program: Program, columns: Columns, checkpoint: Callable[[], None]
    ) -> None:
        hardware, plan, recorder = machine.hardware, program.plan, machine.recorder
        self._program, self._machine, self._rank = program, machine, rank
        machine.contended |= {rank} if columns.is_contended else set()
        tiers = [machine.tier(tier, rank, program) for tier in range(len(hardware.tiers))]
        self._places = Places(rank, columns.size_bytes, tiers, machine.rounds, recorder.residencies)
        self.streams = [Stream(i, self._places, columns, recorder) for i in range(columns.streams)]
        links = {name: machine.link(i, name, self._places) for i, name in enumerate(hardware.links)}
        for first, *others in hardware.queues:
            for other in others:
                links[other].share_queue(links[first])
        self._links, compute_tier = list(links.values()), tiers[columns.compute_tier]
        is_remapped = program.allocator == "best_fit" and hardware.allocator.compaction is not None
        if isinstance(compute_tier, AddressedTier) and (is_remapped or program.allocator == "caching"):
            tier_links = [link for link in self._links if columns.compute_tier in (link.source, link.target)]
            Compactor(compute_tier, hardware.allocator, self.streams, tier_links)
        copies_wait_for_ends = machine.switches.copies_wait_for == "end"
        for stream in self.streams:
            stream.pace = stream.ended if copies_wait_for_ends else stream.started
        self.host = HostThread(self._places, self.streams, self._laps(columns), hardware.host.queue_depth, checkpoint)
        launches = not callable(plan.actions) or plan.static_parts
        self.host.now = program.starts_ns + (hardware.host.fixed.launch_ns if launches else 0)
        self.host.looks = callable(plan.actions) and plan.looks
        for stream in self.streams:
            stream.ledger = Ledger(stream, self.host, recorder.waits)
            machine.rounds.accounts.append(stream.ledger)
        self._set_kernels(columns.roles)
        for tensor, home in enumerate(plan.home):
            if home >= 0:
                if (rank, home, tensor) not in machine.stored:
                    tiers[home].take_home(tensor, columns.size_bytes[tensor], program.graph.tensors[tensor].name)
                self._places.valid[home][tensor] = True
                self._places.hold((tensor,), home)
        fixed, ops = plan.fixed, len(program.graph.ops)
        self.computes = ops * program.graph.steps if fixed is None else fixed.kind.count(COMPUTE) * plan.repeats

    def _laps(self, columns: Columns) -> Iterator[Iterable[Counted]]:
        """Return the actions for the host, lap by lap: counted as it asks for them, or once if a fixed plan repeats."""
        program, plan, places = self._program, self._program.plan, self._places
        routes: Routes = [[None] * len(places.tiers) for _ in places.tiers]
        for link in reversed(self._links):
            routes[link.source][link.target] = link
        costs, rows = self._machine.hardware.host, self._machine.recorder.issued[self._rank]
        if callable(plan.actions):
            issued = ReactiveView(program, columns, places, self.streams, routes)
            return iter([issued.decided(plan.actions(issued), costs, rows)])
        if plan.repeats == program.graph.steps:
            self._machine.recorder.laps[self._rank] = len(plan.actions)
        else:
            rows += b"".join(code_row(*code) for code in plan.actions.codes()) * plan.repeats
        counter, price_ns = DependencyCounter(program, columns, places, self.streams, routes), costs.fixed.step_ns
        if plan.repeats > 1 and program.draws is None:
            return counter.laps(plan.actions.codes(), plan.repeats, price_ns)
        return iter([counter.actions(chain.from_iterable(plan.actions.codes() for _ in range(plan.repeats)), price_ns)])

    def _set_kernels(self, roles: Roles) -> None:
        """Set up kernels whose time depends on what shares the device with them, or on ranks that they meet."""
        machine, graph = self._machine, self._program.graph
        paths, meets = machine.kernel_paths(self._rank), {}
        for op, call in roles.calls.items():
            if (collective := graph.ops[op].collective) is not None:
                meets[op] = machine.communicator(call, roles.members[call][self._rank]), collective
        if meets or paths:
            kernels = Kernels(graph, machine.hardware, machine.network, meets, paths)
            for stream in self.streams:
                stream.kernel = kernels.begin

    def blocked(self) -> tuple[list[str], list[str]]:
        """Explain what this rank lacks, and which ranks it waits for, if it is not done."""
        sentences = Explainer(self._program.graph, self._places, self.streams, self._links).sentences(self.host)
        lacked, peers = ([f"rank {self._rank}: {sentence}" for sentence in part] for part in sentences)
        return (lacked, peers) if self._machine.has_ranks else sentences
