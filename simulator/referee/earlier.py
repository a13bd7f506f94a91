"""What the steps of earlier parts of a run leave to the laws of later ones.

A run is checked part by part, each so many steps in issue order that have all ended. What laws have to know of the
parts before is kept here, per tensor, place, track and tier, so that it does not grow with the run. A run that is
checked as a whole is one part, before which there was nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from simulator.columns import NONE, Ints
from simulator.graph import Graph
from simulator.plan import NOWHERE, Plan


class Moved(NamedTuple):
    """What went over the links, or the ports, of one name: whose, how much, from when to when."""

    rank: Ints
    size_bytes: Ints
    start_ns: Ints
    end_ns: Ints


@dataclass(eq=False)
class Host:
    """What a host has done.

    Attributes
    ----------
    paid_ns, spare_ns
        What its steps cost, at least, and by how much the last one may have come later than that [ns].
    computes, started_ns
        Computes that it has issued, and when the last of these came to their start, no more than its queue is deep.
    last_start_ns, last_end_ns
        Start (for a collective, when it had come) and end of the computes issued last.
    ended_ns, synced_ns, line_ns
        When all computes, and the latest of what it synced, had ended; when the latest compute had come to its start.
    """

    paid_ns: int = 0
    spare_ns: int = 0
    computes: int = 0
    started_ns: Ints = field(default_factory=lambda: np.empty(0, np.int64))
    last_start_ns: int = NONE
    last_end_ns: int = NONE
    ended_ns: int = NONE
    synced_ns: int = NONE
    line_ns: int = NONE


class Earlier:
    """What is known of a rank's steps before the part that is checked; each law notes what it will ask for.

    Parameters
    ----------
    graph, plan
        What ran, as decided.

    Attributes
    ----------
    steps
        How many were issued.
    runs
        By op, how often it ran.
    host
        See `Host`.
    ended_ns, exclusive_ns
        By tensor, when the last step that names it had ended, and the last one that others wait for.
    valid_ns
        By place (``tensor * tiers + tier``), when it last became valid.
    taken_ns, taken_row
        By place that is held, since when and by which row of the residencies; else `NONE`.
    track_ns
        By kind of track (stream, channel, queue) and number, when its last step had ended, or started.
    copies
        Columns (link, tensor, start, end) of transfers that a wait to come may have waited for.
    flows
        By link, bus, port or memory, what is under way in stretches of time to which later copies may belong.
    parted
        By output that does not persist, where it is valid.
    used_ns, undecided_ns, dead_ns, unread
        By tensor, when the last compute that names it had ended. By place, for how long tensors were dead and held: if
        no compute to come reads them first, and in any case. By place, whether it was copied to and not used since.
    """

    def __init__(self, graph: Graph, plan: Plan) -> None:
        tensors, places = len(graph.tensors), len(graph.tensors) * len(plan.tiers)
        self.steps = 0
        self.runs = np.zeros(len(graph.ops), np.int64)
        self.host = Host()
        self.ended_ns, self.exclusive_ns, self.used_ns = (np.full(tensors, NONE, np.int64) for _ in range(3))
        self.valid_ns, self.taken_ns, self.taken_row = (np.full(places, NONE, np.int64) for _ in range(3))
        home = np.array(plan.home, np.int64)
        housed = np.flatnonzero(home != NOWHERE)
        self.valid_ns[housed * len(plan.tiers) + home[housed]] = 0
        self.track_ns: dict[tuple[str, int], int] = {}
        self.copies = np.empty((4, 0), np.int64)
        self.flows: dict[str, Moved] = {}
        mortal = (t for t in graph.outputs if not graph.tensors[t].persistent)
        self.parted = {t: {plan.home[t]} - {NOWHERE} for t in mortal}
        self.undecided_ns, self.dead_ns = np.zeros(places, np.int64), np.zeros(places, np.int64)
        self.unread = np.zeros(places, bool)

    def moments_ns(self) -> Iterable[Ints]:
        """All times that a law may compare with those of a part [ns]."""
        yield from (self.ended_ns, self.exclusive_ns, self.valid_ns, self.taken_ns)
        yield from (self.copies[2], self.copies[3], self.host.started_ns)
        yield np.array([*self.track_ns.values(), self.host.last_start_ns, self.host.last_end_ns], np.int64)
        yield np.array([self.host.ended_ns, self.host.synced_ns, self.host.line_ns, 0], np.int64)
