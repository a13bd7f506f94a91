"""Holds a trace against the laws: rank by rank, and then what ranks do together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from simulator.draws import Draws
from simulator.errors import PlanError
from simulator.graph import Graph, Job
from simulator.hardware import Hardware
from simulator.plan import Plan
from simulator.referee import (
    address_laws,
    bandwidth_laws,
    data_laws,
    meeting_laws,
    place_laws,
    stored_once,
    time_laws,
    work_laws,
)
from simulator.referee.breach import broken
from simulator.referee.earlier import Earlier
from simulator.referee.facts import Facts, Part
from simulator.referee.findings import Findings, Look, merged
from simulator.referee.meeting_laws import meetings
from simulator.referee.op_columns import Program
from simulator.referee.parts import LEAST_STEPS, Parts, numbered, whole
from simulator.referee.walk import Walk
from simulator.scenario import AllocatorKind, Switches
from simulator.trace import CAUSES, Block, Trace

_ROOM_CAUSES = tuple(CAUSES.index(name) for name in ("capacity", "compaction", "peer"))


class Drawn(NamedTuple):
    """A plan with what late reads choose on the rank that ran it, how places get addresses there, and what stays."""

    plan: Plan
    draws: Draws | None
    allocator: AllocatorKind = "ideal"
    pinned: Collection[int] = ()


def check_trace(
    job: Job | Graph,
    hardware: Hardware,
    plans: Sequence[Plan | Drawn],
    trace: Trace,
    budget_bytes: int | float | None = None,
    switches: Switches | None = None,
) -> Findings:
    """Check a trace against the laws, from its rows alone.

    Parameters
    ----------
    job, hardware
        What ran, where; a graph that all ranks run is a job, too.
    plans
        What was decided, for each rank; with draws, what its late reads choose. Without, all candidates are read.
    trace
        What happened.
    budget_bytes
        What may be used of the compute tier [B]; default: its capacity less what is reserved.
    switches
        Readings of the machine that were chosen; default: copies wait for a start, kernels are not slowed down.

    Returns
    -------
    Findings
        Remarks that are no breach.

    Raises
    ------
    InvariantError
        If a law is broken: the law, the row and the numbers.
    PlanError
        If a reactive plan issued a step that breaks a rule.
    """
    switches = switches or Switches()
    if budget_bytes is None:
        budget_bytes = hardware.tiers[hardware.compute_tier].usable_bytes
    job = Job.of(job, len(plans)) if isinstance(job, Graph) else job
    ran = [one if isinstance(one, Drawn) else Drawn(one, None) for one in plans]
    decided = [one.plan for one in ran]
    _check_status(decided, trace)
    _check_folded(job, hardware, decided, trace)
    once = {tier: stored_once.spare_bytes(job, hardware, decided, tier) for tier in hardware.tiers}
    stored_once.check(hardware, trace, once)
    room = place_laws.Room(hardware, trace.stands_in, budget_bytes, once)
    room.take(trace.residencies.whole())
    tables = [numbered(table, len(plans)) for table in (trace.spans, trace.waits, trace.residencies)]
    ranks, lines = list[Facts](), work_laws.Lines(room)
    found: dict[int, Findings] = {}
    programs: dict[tuple[int, int], Program] = {}
    for rank, drawn in enumerate(ran):
        if trace.stands_in[rank] == rank:
            key = job.graph_of[rank], id(drawn.plan)
            if key not in programs:
                programs[key] = Program(job.graph(rank), hardware, drawn.plan)
            one = RankWatch(programs[key].with_draws(drawn.draws), drawn, rank, switches)
            ranks.append(one.take(whole(one.program, trace, [table[rank] for table in tables], rank)))
            lines.take(rank, one.requests)
            found[rank] = one.look.found(ranks[-1])
            address_laws.check_addresses(ranks[-1], trace, drawn.allocator, budget_bytes)
    lines.check()
    met, complete = meetings(job, trace.stands_in, ranks), trace.status == "ok"
    if met is not None:
        meeting_laws.check_meetings(hardware, met, complete=complete, contended=switches.hbm_contention)
    if met is not None and complete:
        meeting_laws.check_peers(met, ranks, trace.stands_in)
    bandwidth_laws.check_bandwidth(ranks, met, trace.stands_in, switches)
    return merged([found[rank] for rank in trace.stands_in])


def _check_folded(job: Job, hardware: Hardware, plans: Sequence[Plan], trace: Trace) -> None:
    """Check that who stands for another runs the same, and that all that are like it have the like on their nodes."""
    stands_in, each = trace.stands_in, hardware.topology.devices_per_node
    if stands_in == tuple(range(len(plans))):
        return
    company: dict[int, Counter[int]] = {}
    for rank, found in enumerate(stands_in):
        company.setdefault(rank // each, Counter())[found] += 1
    for rank, found in enumerate(stands_in):
        same = stands_in[found] == found and job.graph_of[found] == job.graph_of[rank]
        same = same and (plans[found] is plans[rank] or plans[found] == plans[rank])
        if not same or company[rank // each] != company[found // each]:
            must = "a rank that stands for another runs the same, in the same company"
            raise broken("trace", must, f"rank {found} for rank {rank}")


def _check_status(plans: Sequence[Plan], trace: Trace) -> None:
    right = trace.status in {"ok", "blocked"} and (trace.status == "blocked") == bool(trace.blocked)
    if not right or len(trace.issued) != len(plans) or len(trace.stands_in) != len(plans):
        must = "a trace is ok, or blocked with the reasons, and has what each rank issued"
        found = f"{trace.status!r} with {len(trace.blocked)} reasons and {len(trace.issued)} of {len(plans)} ranks"
        raise broken("trace", must, found)


class RankWatch:
    """Holds one rank against the laws that concern it alone, part by part.

    Parameters
    ----------
    program, drawn, rank
        What it ran, as decided and drawn; which rank.
    switches
        Readings of the machine.

    Attributes
    ----------
    look, requests
        What is noticed; what room alone kept waiting in the last part.
    """

    def __init__(self, program: Program, drawn: Drawn, rank: int, switches: Switches) -> None:
        self.program, self._rank, self._switches = program, rank, switches
        graph, plan = program.graph, program.plan
        self._earlier, self.look = Earlier(graph, plan), Look()
        self._has_addresses = drawn.allocator != "ideal"
        self._walk = None
        if plan.fixed is None:
            self._walk = Walk(graph, program.hardware, plan, drawn.pinned, drawn.draws)
        self._refused: PlanError | None = None

    def take(self, part: Part) -> Facts:
        """Check a part."""
        facts = Facts(self.program, part, self._earlier, self._rank)
        self._check_issued(facts)
        self.look.take(facts, self._check(facts))
        facts.close()
        time_laws.check_all_ran(facts)
        return facts

    @property
    def settled_ns(self) -> int:
        """Before this time no step of a later part can have been kept waiting by room alone [ns].

        A compute comes after the one before it on its stream, a copy after the last compute issued before it.
        """
        filled = self._earlier.track_ns
        return min([self._earlier.host.last_start_ns, *(filled.get(("filled", s), 0) for s in self.program.streams)])

    def _check_issued(self, facts: Facts) -> None:
        """Walk what a reactive plan issued; if the run does not complete, nobody asks what was wrong with it."""
        if self._walk is None:
            return
        try:
            if self._refused is None:
                columns = (column.tolist() for column in (facts.kind, facts.a, facts.b, facts.c))
                self._walk.take(zip(*columns, strict=True))
            if facts.is_last and self._refused is None and facts.complete:
                self._walk.finish(facts.graph.steps)
        except PlanError as error:
            self._refused = error
        if self._refused is not None and facts.is_last and facts.complete:
            raise self._refused

    def _check(self, facts: Facts) -> place_laws.Held:
        """Hold a part against one law after another; what room alone kept waiting is in `requests`."""
        time_laws.check_issued(facts)
        track = time_laws.check_tracks(facts)
        point = time_laws.check_program_point(facts, self._switches)
        time_laws.check_host(facts)
        time_laws.check_durations(facts, self._switches)
        held = place_laws.check_held(facts)
        place_laws.check_ends_as_it_began(facts, held)
        stays = place_laws.check_outputs(facts, held)
        place_laws.check_there(facts, held)
        place_laws.check_taken_at_start(facts, held)
        place_laws.check_workspace(facts)
        in_turn = data_laws.check_order(facts, held, stays)
        taken = work_laws.taken_bytes(facts, held)
        line = work_laws.line(facts, taken)
        ready = np.maximum.reduce([in_turn, data_laws.check_valid(facts), line])
        data_laws.check_syncs(facts, in_turn)
        time_laws.check_waits(facts)
        data_laws.check_waits_have_cause(facts, ready, _ROOM_CAUSES)
        meeting_laws.check_waits_of_others(facts)
        allowed = track, point, ready
        self.requests = work_laws.check_started(facts, allowed, taken, has_addresses=self._has_addresses)
        return held


class Watch:
    """Holds a run of one rank against the laws while it goes on: what happened is forgotten when it was checked.

    It checks what `check_trace` checks, and raises the same. Nothing meets in such a run, and its places have no
    addresses.

    Parameters
    ----------
    graph, hardware, drawn
        What runs, where; as decided, with what late reads choose.
    budget_bytes, switches
        As for `check_trace`.
    least_steps
        So many steps are checked at a time, or more.
    """

    def __init__(
        self,
        graph: Graph,
        hardware: Hardware,
        drawn: Drawn,
        budget_bytes: int | float,
        switches: Switches | None = None,
        *,
        least_steps: int = LEAST_STEPS,
    ) -> None:
        program = Program(graph, hardware, drawn.plan).with_draws(drawn.draws)
        self._switches, self._parts = switches or Switches(), Parts(program, least_steps)
        self._one = RankWatch(program, drawn, 0, self._switches)
        self._room = place_laws.Room(hardware, (0,), budget_bytes)
        self._lines = work_laws.Lines(self._room)

    def take(self, happened: Mapping[str, Block]) -> None:
        """Take what happened since the last time.

        Parameters
        ----------
        happened
            Rows by table of the trace; ``issued`` for what a reactive plan issued.
        """
        self._room.take(happened["residencies"])
        part = self._parts.take(happened)
        if part is not None:
            self._check(part)

    def finish(self, trace: Trace) -> Findings:
        """Check what is left, and say what was noticed.

        Parameters
        ----------
        trace
            How the run ended; its tables do not count.
        """
        _check_status([self._one.program.plan], trace)
        return merged([self._one.look.found(self._check(self._parts.rest(complete=trace.status == "ok")))])

    def _check(self, part: Part) -> Facts:
        facts = self._one.take(part)
        self._lines.take(0, self._one.requests, None if part.is_last else self._one.settled_ns)
        if part.is_last:
            self._lines.check()
        bandwidth_laws.check_bandwidth([facts], None, (0,), self._switches)
        return facts
