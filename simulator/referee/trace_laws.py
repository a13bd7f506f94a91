"""Checks a whole trace against the laws: rank by rank, and then across ranks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from simulator.graph import Graph, Job
from simulator.hardware import Hardware
from simulator.plan import Plan
from simulator.referee.facts import Facts, RankPlan, broken
from simulator.referee.findings import Findings, findings_of, merged
from simulator.referee.load_laws import Loads, check_loads
from simulator.referee.meeting_laws import check_meetings, check_peers, meetings
from simulator.referee.op_columns import ProgramColumns
from simulator.referee.place_laws import check_places, check_workspace
from simulator.referee.plan_laws import check_actions
from simulator.referee.room_laws import TierRoom, check_addresses, check_stored_once, stored_once
from simulator.referee.start_laws import RoomRequests, check_durations, check_issued, check_starts, check_tracks
from simulator.referee.traffic_laws import check_bandwidth
from simulator.referee.wait_laws import check_waits
from simulator.scenario import Switches
from simulator.trace import Block, Trace, pick


def check_trace(
    job: Job | Graph,
    hardware: Hardware,
    plans: Sequence[Plan | RankPlan],
    trace: Trace,
    budget_bytes: int | float | Sequence[int | float] | None = None,
    switches: Switches | None = None,
) -> Findings:
    """Check a trace against the laws, from its rows alone.

    Parameters
    ----------
    job, hardware
        What ran, where; a graph that all ranks run is a job, too.
    plans
        The plan of each rank, with draws or without; without, dynamic reads read all candidates.
    trace
        The trace.
    budget_bytes
        What may be used of the compute tier, by each rank or by all alike [B]; default: its capacity less what is
        reserved.
    switches
        Modelling choices about the machine; default: copies wait for a start.

    Returns
    -------
    Findings
        Remarks that are no breach.

    Raises
    ------
    InvariantError
        If a law is broken: the law, the row and the numbers.
    PlanError
        If a reactive plan issued an action that breaks a rule.
    """
    if budget_bytes is None:
        budget_bytes = hardware.rooms(len(plans))
    rooms = budget_bytes if isinstance(budget_bytes, Sequence) else [budget_bytes] * len(plans)
    job, switches = Job.of(job, len(plans)) if isinstance(job, Graph) else job, switches or Switches()
    ran = [plan if isinstance(plan, RankPlan) else RankPlan(plan, None) for plan in plans]
    stands_in, is_ok, decided = trace.stands_in, trace.status == "ok", [of_rank.plan for of_rank in ran]
    is_stated = (trace.status == "blocked") == bool(trace.blocked) and (is_ok or trace.status == "blocked")
    if not is_stated or len(trace.issued) != len(ran) or len(stands_in) != len(ran):
        must = "a trace is ok, or blocked with the reasons, and has the actions of each rank"
        found = f"{trace.status!r} with {len(trace.blocked)} reasons and {len(trace.issued)} of {len(ran)} ranks"
        raise broken("trace", must, found)
    _check_folded(job, hardware, ran, trace)
    spare = stored_once(job, hardware, decided)
    check_stored_once(hardware, trace, spare)
    room = TierRoom(hardware, stands_in, rooms, spare)
    changes = room.check_held(trace.residencies.whole())
    ranks, requests, findings = list[Facts](), dict[int, RoomRequests](), dict[int, Findings]()
    loads = dict[int, Loads]()
    for facts in _facts(job, hardware, ran, trace):
        rank, of_rank = facts.rank, ran[facts.rank]
        loads[rank] = check_loads(facts, _by_rank(trace.loads.whole(), len(ran))[rank])
        requests[rank], findings[rank] = _check_rank(facts, of_rank, switches, loads[rank])
        check_addresses(facts, trace, of_rank.allocator, rooms[rank])
        del facts.accesses  # the largest of its columns, which no law over ranks asks for
        ranks.append(facts)
    room.check_lines(changes, requests)
    if (met := meetings(job, stands_in, ranks)) is not None:
        check_meetings(hardware, met, complete=is_ok, contended=any(facts.program.is_contended for facts in ranks))
        if is_ok:
            check_peers(met, ranks, stands_in)
    check_bandwidth(hardware, stands_in, ranks, met, loads)
    return merged([findings[rank] for rank in stands_in])


def _check_folded(job: Job, hardware: Hardware, ran: Sequence[RankPlan], trace: Trace) -> None:
    """Check that a rank that stands for another runs the same, and that their nodes have the same mix of classes."""
    stands_in, each, plans = trace.stands_in, hardware.topology.devices_per_node, [of_rank.plan for of_rank in ran]
    if stands_in == tuple(range(len(plans))):
        return
    devices = hardware.devices(len(plans))
    company: dict[int, Counter[int]] = {}
    for rank, other in enumerate(stands_in):
        company.setdefault(rank // each, Counter())[other] += 1
    for rank, other in enumerate(stands_in):
        same = stands_in[other] == other and job.graph_of[other] == job.graph_of[rank]
        same = same and (plans[other] is plans[rank] or plans[other] == plans[rank])
        same = same and devices[other] is devices[rank] and ran[other].delays_ns == ran[rank].delays_ns
        if not same or company[rank // each] != company[other // each]:
            must = "a rank that stands for another runs the same, in the same company"
            raise broken("trace", must, f"rank {other} for rank {rank}")


def _facts(job: Job, hardware: Hardware, ran: Sequence[RankPlan], trace: Trace) -> Iterator[Facts]:
    """Lay out the rows of each simulated rank; ranks that ran the same program share its columns."""
    programs, devices = dict[Any, ProgramColumns](), hardware.devices(job.ranks)
    by_rank = {name: _by_rank(getattr(trace, name).whole(), len(ran)) for name in ("spans", "waits", "residencies")}
    for rank in sorted(set(trace.stands_in)):
        of_rank, device = ran[rank], devices[rank]
        key = job.graph_of[rank], id(of_rank.plan), id(device), *of_rank.delays_ns.items()
        if key not in programs:
            programs[key] = ProgramColumns(job.graph(rank), device, of_rank.plan, of_rank.delays_ns)
        program, issued = programs[key].with_draws(of_rank.draws), trace.issued[rank]
        is_recorded = len(issued) or of_rank.plan.fixed is None
        tables = {name: blocks[rank] for name, blocks in by_rank.items()}
        tables["issued"] = issued.whole() if is_recorded else program.planned()
        yield Facts(program, tables, rank, complete=trace.status == "ok")


def _by_rank(rows: Block, ranks: int) -> list[Block]:
    """Split the rows of a table by rank, each row with its number in the table."""
    rows = {**rows, "row": np.arange(len(rows["rank"]))}
    order = np.argsort(rows["rank"], kind="stable")
    ends = np.searchsorted(rows["rank"][order], np.arange(ranks + 1))
    return [rows] if ranks == 1 else [pick(rows, positions) for positions in np.split(order, ends)[1:-1]]


def _check_rank(facts: Facts, of_rank: RankPlan, switches: Switches, loads: Loads) -> tuple[RoomRequests, Findings]:
    """Check one rank against the laws of single ranks; return the actions that only room kept waiting, and findings."""
    if of_rank.plan.fixed is None and facts.complete:
        columns = facts.kind, facts.a, facts.b, facts.c
        check_actions(facts.program.graph, facts.program.hardware, of_rank, columns)
    check_issued(facts)
    check_tracks(facts)
    check_durations(facts, loads)
    held = check_places(facts)
    check_workspace(facts)
    requests, ready = check_starts(facts, held, switches, has_addresses=of_rank.allocator != "ideal")
    check_waits(facts, ready)
    return requests, findings_of(facts, held)
