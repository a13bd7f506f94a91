"""How many transfers are under way at once on what ranks share, and how much more than it carries they ask for."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from math import inf

import numpy as np
from numpy.typing import NDArray

from simulator.hardware import Bus, Hardware
from simulator.plan import COPY
from simulator.trace import Trace


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
    copies = [{name: block[name][block["kind"] == COPY] for name in _COLUMNS} for block in trace.spans.blocks()]
    rank, track, start, end = (
        np.concatenate([np.empty(0, np.int64), *(block[name] for block in copies)]) for name in _COLUMNS
    )
    found = {}
    for name, bus in hardware.buses.items():
        rates = {
            hardware.link_names.index(link): times * _rate(hardware, link)
            for link, times in hardware.passing(bus.links).items()
            if link in hardware.links
        }
        if bus.scope == "device" or not rates or inf in (bus.bandwidth_bytes_per_s, *rates.values()):
            continue
        mine = np.isin(track, list(rates)) & (end > start)
        where, times = _instances(hardware, trace, bus)
        count = times[rank[mine]]
        asked = count * np.array([rates[link] for link in track[mine].tolist()], np.float64)
        moments = (where[rank[mine]], start[mine], end[mine])
        most = int(_most(*moments, count)), float(_most(*moments, asked)) / bus.bandwidth_bytes_per_s
        found[name] = Crowd(*most)
    return found


_COLUMNS = ("rank", "track", "start_ns", "end_ns")
Ints = NDArray[np.int64]


def _rate(hardware: Hardware, link: str) -> int | float:
    return hardware.links[link].bandwidth_bytes_per_s


def _instances(hardware: Hardware, trace: Trace, bus: Bus) -> tuple[Ints, Ints]:
    """By rank, which instance of the bus it uses, and how many ranks of that it was simulated for."""
    on_node = hardware.topology.devices_per_node if bus.scope == "node" else len(trace.stands_in)
    here = Counter(stands for rank, stands in enumerate(trace.stands_in) if rank // on_node == stands // on_node)
    ranks = range(len(trace.stands_in))
    return np.array([rank // on_node for rank in ranks]), np.array([here[rank] for rank in ranks])


def _most(instance: Ints, start: Ints, end: Ints, size: NDArray[np.float64] | Ints) -> float:
    """Most at once on an instance, where what ends gives way to what starts at the same time."""
    change = np.concatenate((size, -size))
    order = np.lexsort((change > 0, np.concatenate((start, end)), np.concatenate((instance, instance))))
    return float(np.cumsum(change[order]).max(initial=0))
