"""How many transfers are under way at once on what ranks share, and how much more than it carries they ask for."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

import numpy as np
from numpy.typing import NDArray

from simulator.columns import Ints
from simulator.hardware import Hardware
from simulator.plan import COPY
from simulator.trace import Trace, instances, pick


@dataclass(frozen=True, slots=True)
class Crowd:
    """The most at once on the fullest instance of a bus.

    Attributes
    ----------
    transfers
        How many were under way.
    demand
        Bandwidth of their links, together, as a multiple of that of the bus: above 1 they slow one another down.
    """

    transfers: int
    demand: float


def crowds(hardware: Hardware, trace: Trace) -> dict[str, Crowd]:
    """Find the most that transfers ask of each bus that ranks share, in the whole run.

    Parameters
    ----------
    hardware, trace
        Where, and what happened.

    Returns
    -------
    dict
        By bus with links, of a node or of the supernode; those without a limit are left out.
    """
    spans, found = trace.spans.whole(), {}
    copies = pick(spans, (spans["kind"] == COPY) & (spans["end_ns"] > spans["start_ns"]))
    for name, bus in hardware.buses.items():
        rates = {
            hardware.link_names.index(link): times * hardware.links[link].bandwidth_bytes_per_s
            for link, times in hardware.passing(bus.links).items()
            if link in hardware.links
        }
        if bus.scope == "device" or not rates or inf in (bus.bandwidth_bytes_per_s, *rates.values()):
            continue
        mine = pick(copies, np.isin(copies["track"], list(rates)))
        where, times = instances(bus.scope, hardware.topology.devices_per_node, trace.stands_in)
        count = times[mine["rank"]]
        asked = count * np.array([rates[link] for link in mine["track"].tolist()], np.float64)
        moments = (where[mine["rank"]], mine["start_ns"], mine["end_ns"])
        most = int(_most(*moments, count)), float(_most(*moments, asked)) / bus.bandwidth_bytes_per_s
        found[name] = Crowd(*most)
    return found


def _most(instance: Ints, start: Ints, end: Ints, size: NDArray[np.float64] | Ints) -> float:
    """Most at once on an instance, where what ends gives way to what starts at the same time."""
    change = np.concatenate((size, -size))
    order = np.lexsort((change > 0, np.concatenate((start, end)), np.concatenate((instance, instance))))
    return float(np.cumsum(change[order]).max(initial=0))
