"""Holds a trace against the laws, rank by rank."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from simulator.errors import InvariantError
from simulator.graph import Graph
from simulator.hardware import Hardware
from simulator.plan import Plan, Steps
from simulator.referee import data_laws, place_laws, time_laws
from simulator.referee.facts import Facts
from simulator.referee.findings import Findings, look
from simulator.referee.plan import check_plan
from simulator.trace import CAUSES, Trace

_ROOM_CAUSES = tuple(CAUSES.index(name) for name in ("capacity", "compaction", "peer"))


def check_trace(
    graph: Graph,
    hardware: Hardware,
    plans: Sequence[Plan],
    trace: Trace,
    budget_bytes: int | float | None = None,
    switches: time_laws.Switches | None = None,
) -> Findings:
    """Check a trace against the laws, from its rows alone.

    Parameters
    ----------
    graph, hardware
        What ran, where.
    plans
        What was decided, for each rank.
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
    _check_status(plans, trace)
    place_laws.check_capacity(hardware, plans, trace, budget_bytes)
    found = []
    for rank, plan in enumerate(plans):
        facts = Facts(graph, hardware, plan, trace, rank)
        if plan.fixed is None and facts.complete:
            check_plan(graph, hardware, _record(facts))
        found.append(_check_rank(facts, switches))
    return found[0] if len(found) == 1 else _merge(found)


def _check_status(plans: Sequence[Plan], trace: Trace) -> None:
    right = trace.status in {"ok", "blocked"} and (trace.status == "blocked") == bool(trace.blocked)
    if not right or len(trace.issued) != len(plans):
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
    time_laws.check_bandwidth(facts, switches)
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
    return look(facts, held)


def _merge(found: Sequence[Findings]) -> Findings:
    dead: Counter[str] = Counter()
    for one in found:
        dead.update(one.dead_byte_ns)
    worst = sorted((row for one in found for row in one.worst), key=lambda row: -row[2] * row[3])
    return Findings(
        dict(dead), tuple(worst[:5]), sum(f.unread_copies for f in found), sum(f.unread_bytes for f in found)
    )
