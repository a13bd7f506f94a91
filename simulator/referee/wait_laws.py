"""Laws of waits: with computes they fill each stream, and each has one cause, which lasts as long as the wait."""

from __future__ import annotations

import numpy as np

from simulator.plan import COMPUTE, COPY
from simulator.referee.facts import Facts, covered
from simulator.trace import CAUSES, NONE, Ints, firsts, pick

PEER = CAUSES.index("peer")
_COLLECTIVE, _TRANSFER, _HOST = (CAUSES.index(cause) for cause in ("collective", "transfer", "host_compute"))
_ROOM = (CAUSES.index("capacity"), CAUSES.index("compaction"), PEER)
"""Causes of waits that may go on when data, order, line and host let the op start."""


def check_waits(facts: Facts, ready: Ints) -> None:
    """Check the waits of a rank.

    Parameters
    ----------
    facts
        One rank's trace.
    ready
        By issue, when data, order and the line for room let the action start.
    """
    waits = facts.waits
    facts.check(waits["end_ns"] > waits["start_ns"], "a wait takes time", "waits", waits, "start_ns", "end_ns")
    has_cause = (waits["cause"] >= 0) & (waits["cause"] < len(CAUSES))
    facts.check(has_cause, f"a wait has one of the causes {', '.join(CAUSES)}", "waits", waits, "cause")
    _check_fill(facts)
    names_op = facts.a[waits["issue"]] == waits["op"]
    facts.check(names_op, "a wait names the op of its action", "waits", waits, "op", "issue")
    copies, many = facts.ran(COPY), len(facts.program.sizes) + 2
    under_way = facts.track[copies] * many + facts.a[copies], facts.start[copies], facts.end[copies]
    of_copies = pick(waits, waits["cause"] == _TRANSFER)  # of several of a tensor, back to back, as of one
    waited = of_copies["on"] * many + of_copies["blocker"], of_copies["start"], of_copies["end"]
    holds = covered(waited, under_way, facts.stride, joined=True)
    law = "a wait for a transfer lasts while that transfer is under way"
    facts.check(holds, law, "waits", of_copies, "start_ns", "end_ns", "on", "blocker")
    could_start = np.maximum(ready, facts.issued)[waits["issue"]]
    holds = np.isin(waits["cause"], _ROOM) | (waits["end"] <= could_start)
    law = "a wait that is not for room ends when data, order, line and host let the op start"
    facts.check(holds, law, "waits", waits, "op", "issue", "start_ns", "end_ns", "cause")
    ran = facts.ran(COMPUTE)
    _check_under_way(facts, ran[facts.program.is_host[facts.a[ran]]], _HOST, "an op of the host")
    if facts.program.meets.any() and facts.complete:
        _check_under_way(facts, facts.met, _COLLECTIVE, "a collective")
        of_peers = pick(waits, waits["cause"] == PEER)
        is_direct = facts.program.meets[of_peers["op"]]
        peers = (pick(of_peers, flags) for flags in (is_direct, ~is_direct))
        direct, indirect = ((rows["on"], rows["start"], rows["end"]) for rows in peers)
        holds = covered(indirect, direct, facts.stride, joined=True)
        law = "an op waits for a peer while a collective of its rank waits for that peer"
        facts.check(holds, law, "waits", pick(of_peers, ~is_direct), "start_ns", "end_ns", "on")


def _check_fill(facts: Facts) -> None:
    """Check that computes and waits fill each stream from 0 to its last end, and that each wait is of the next compute.

    A stream ends at a collective that never began: its rank may have arrived, after waits of its own.
    """
    waits, unmet, came_ns = facts.waits, facts.unmet, facts.arrived_ns[facts.unmet]
    computes = facts.ran(COMPUTE)
    stream = np.concatenate((facts.track[computes], facts.b[unmet], waits["stream"]))
    start = np.concatenate((facts.start_ns[computes], came_ns, waits["start_ns"]))
    end = np.concatenate((facts.end_ns[computes], came_ns, waits["end_ns"]))
    issue = np.concatenate((computes, unmet, waits["issue"]))
    order = np.lexsort((issue, end, start, stream))
    stream, start, end, issue = stream[order], start[order], end[order], issue[order]
    is_wait, before = order >= len(order) - len(waits["row"]), np.append(0, end)[:-1]
    before[firsts(stream)] = 0
    law = "every nanosecond of a stream, from 0 to its last end, is one compute or one wait"
    shown = ("starts at ns", start), ("the one before it ends at ns", before)
    facts.check_actions(issue, start == before, law, *shown)
    computes_at = np.where(is_wait, len(order), np.arange(len(order)))
    following = np.append(issue, NONE)[np.minimum.accumulate(computes_at[::-1])[::-1]]
    law = "a wait is of the compute that follows it"
    facts.check_actions(issue, (following == issue) | ~is_wait, law, ("stream", stream))


def _check_under_way(facts: Facts, ran: Ints, cause: int, noun: str) -> None:
    """Check that a wait for a collective, or for an op of the host, lasts while that runs."""
    waits = pick(facts.waits, facts.waits["cause"] == cause)
    waited = waits["blocker"], waits["start"], waits["end"]
    under_way = facts.a[ran], facts.start[ran], facts.end[ran]
    holds = covered(waited, under_way, facts.stride, joined=True)
    law = f"a wait for {noun} lasts while that is under way"
    facts.check(holds, law, "waits", waits, "start_ns", "end_ns", "blocker")
