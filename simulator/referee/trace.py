"""Holds a trace against the laws: rank by rank, and then what ranks do together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from simulator.draws import Draws
from simulator.errors import InvariantError
from simulator.graph import Graph, Job
from simulator.hardware import Hardware
from simulator.plan import Plan, Steps
from simulator.referee import address_laws, bandwidth_laws, data_laws, meeting_laws, place_laws, stored_once, time_laws
from simulator.referee.facts import Facts, Program, RankRows
from simulator.referee.findings import Findings, look
from simulator.referee.late import LateUses
from simulator.referee.meetings import meetings
from simulator.referee.plan import check_plan
from simulator.scenario import AllocatorKind
from simulator.trace import CAUSES, Trace

_ROOM_CAUSES = tuple(CAUSES.index(name) for name in ("capacity", "compaction", "peer"))


class Drawn(NamedTuple):
    """A plan with what late reads choose on the rank that ran it, and how places get addresses there."""

    plan: Plan
    draws: Draws | None
    allocator: AllocatorKind = "ideal"


def check_trace(
    job: Job | Graph,
    hardware: Hardware,
    plans: Sequence[Plan | Drawn],
    trace: Trace,
    budget_bytes: int | float | None = None,
    switches: time_laws.Switches | None = None,
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
    if budget_bytes is None:
        budget_bytes = hardware.tiers[hardware.compute_tier].usable_bytes
    job = Job.of(job, len(plans)) if isinstance(job, Graph) else job
    draws = [one.draws if isinstance(one, Drawn) else None for one in plans]
    decided = [one.plan if isinstance(one, Drawn) else one for one in plans]
    _check_status(decided, trace)
    _check_folded(job, hardware, decided, trace)
    once = {tier: stored_once.spare_bytes(job, hardware, decided, tier) for tier in hardware.tiers}
    stored_once.check(hardware, trace, once)
    place_laws.check_capacity(hardware, trace, budget_bytes, once)
    rows, ranks = RankRows(trace), []
    programs: dict[tuple[int, int], Program] = {}
    for rank, plan in enumerate(decided):
        if trace.stands_in[rank] == rank:
            key = job.graph_of[rank], id(plan)
            if key not in programs:
                programs[key] = Program(job.graph(rank), hardware, plan)
            program = programs[key]
            drawn = draws[rank]
            if drawn is not None:
                program = Program(program.graph, hardware, plan, LateUses(program.graph, hardware, drawn))
            ranks.append(Facts(program, rows, rank))
    found = {}
    for facts in ranks:
        if facts.plan.fixed is None and facts.complete:
            check_plan(facts.graph, hardware, _record(facts), draws=draws[facts.rank])
        found[facts.rank] = _check_rank(facts, switches)
        one = plans[facts.rank]
        kind: AllocatorKind = one.allocator if isinstance(one, Drawn) else "ideal"
        address_laws.check_addresses(facts, trace, kind, budget_bytes, hardware)
    _check_together(job, hardware, trace, ranks, switches)
    return _merge([found[rank] for rank in trace.stands_in])


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
            raise InvariantError("trace", must, f"rank {found} for rank {rank}", "report this: it is a bug of hosim")


def _check_together(
    job: Job, hardware: Hardware, trace: Trace, ranks: Sequence[Facts], switches: time_laws.Switches | None
) -> None:
    """Check what ranks do together: meet, and share bandwidth."""
    complete = trace.status == "ok"
    met = meetings(job, trace.stands_in, ranks)
    if met is not None:
        contended = switches is not None and switches.hbm_contention
        meeting_laws.check_meetings(hardware, met, complete=complete, contended=contended)
        if complete:
            meeting_laws.check_peers(met, ranks, trace.stands_in)
    bandwidth_laws.check_bandwidth(ranks, met, trace.stands_in, switches)


def _check_status(plans: Sequence[Plan], trace: Trace) -> None:
    right = trace.status in {"ok", "blocked"} and (trace.status == "blocked") == bool(trace.blocked)
    if not right or len(trace.issued) != len(plans) or len(trace.stands_in) != len(plans):
        must = "a trace is ok, or blocked with the reasons, and has what each rank issued"
        found = f"{trace.status!r} with {len(trace.blocked)} reasons and {len(trace.issued)} of {len(plans)} ranks"
        raise InvariantError("trace", must, found, "report this: it is a bug of hosim")


def _record(facts: Facts) -> Plan:
    """What a reactive plan issued, as a fixed plan."""
    steps = Steps.from_columns(*(column.tolist() for column in (facts.kind, facts.a, facts.b, facts.c)))
    return replace(facts.plan, steps=steps, repeats=1)


def _check_rank(facts: Facts, switches: time_laws.Switches | None) -> Findings:
    time_laws.check_issued(facts)
    time_laws.check_tracks(facts)
    time_laws.check_program_point(facts, switches)
    time_laws.check_host(facts)
    time_laws.check_durations(facts, switches)
    held = place_laws.check_held(facts)
    place_laws.check_ends_as_it_began(facts, held)
    place_laws.check_outputs(facts, held)
    place_laws.check_there(facts, held)
    place_laws.check_taken_at_start(facts, held)
    place_laws.check_workspace(facts)
    in_turn = data_laws.check_order(facts, data_laws.accesses(facts, held))
    ready = np.maximum(in_turn, data_laws.check_valid(facts))
    data_laws.check_syncs(facts, in_turn)
    time_laws.check_waits(facts)
    data_laws.check_waits_have_cause(facts, ready, _ROOM_CAUSES)
    meeting_laws.check_waits_of_others(facts)
    return look(facts, held)


def _merge(found: Sequence[Findings]) -> Findings:
    """What was noticed on all ranks, of those that were folded, too."""
    dead: Counter[str] = Counter()
    for one in found:
        dead.update(one.dead_byte_ns)
    worst = sorted((row for one in found for row in one.worst), key=lambda row: -row[2] * row[3])
    copies = ("unread_copies", "unread_bytes", "unchosen_copies", "unchosen_bytes")
    return Findings(dict(dead), tuple(worst[:5]), *(sum(getattr(one, key) for one in found) for key in copies))
