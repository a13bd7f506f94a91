"""Figures that were set and have no effect, as something else on the same way is narrower."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from fnmatch import fnmatchcase

from simulator.hardware.machine import Hardware
from simulator.hardware.memory import Bus, Link
from simulator.units import human


def without_effect(hardware: Hardware, budget_bytes: int | float | None, keys: Collection[str]) -> list[str]:
    """Say which of the figures that were set change nothing beyond a limit, and what that is.

    Parameters
    ----------
    hardware
        The machine with all that was set.
    budget_bytes
        What a scenario lets plans use of the compute tier [B]; None if it says nothing.
    keys
        What was set: dotted paths, each part of which may be a pattern.

    Returns
    -------
    list of str
        A sentence for each limit.
    """

    def is_set(*path: str) -> bool:
        parts = (key.split(".") for key in keys)
        return any(
            len(part) == len(path) and all(fnmatchcase(one, pattern) for one, pattern in zip(path, part, strict=True))
            for part in parts
        )

    links = [name for name in hardware.links if is_set("links", name, "bandwidth")]
    said = list(_links_over_buses(hardware, links))
    said += _buses_over_links(hardware, [name for name in hardware.buses if is_set("buses", name, "bandwidth")])
    tier = hardware.compute_tier
    if budget_bytes is not None and is_set("tiers", tier, "capacity"):
        usable = hardware.tiers[tier].usable_bytes
        if budget_bytes < usable:
            said.append(
                f"tiers.{tier}.capacity leaves {human(usable, 'B')}, but the scenario's budget lets plans use "
                f"{human(budget_bytes, 'B')}: more changes nothing, unless the budget is set as well."
            )
    return said


def asked_bytes_per_s(hardware: Hardware, bus: Bus) -> int | float:
    """What the links of a bus carry at most together, of all devices that share it [B/s].

    Endless if a port of a fabric is among them.
    """
    topology = hardware.topology
    devices = {"device": 1, "node": topology.devices_per_node, "supernode": topology.devices}[bus.scope]
    links = [hardware.links.get(name) for name in bus.links]
    return devices * sum(math.inf if link is None else link.bandwidth_bytes_per_s for link in links)


def _links_over_buses(hardware: Hardware, names: Collection[str]) -> Iterator[str]:
    for bus_name, bus in hardware.buses.items():
        over = [name for name in names if name in bus.links and _fills(hardware.links[name], bus)]
        if over:
            fields = " and ".join(f"links.{name}.bandwidth" for name in over)
            rates = " and ".join({human(hardware.links[name].bandwidth_bytes_per_s, "B/s"): None for name in over})
            is_, they = ("is", "it goes") if len(over) == 1 else ("are", "they go")
            yield (
                f"{fields} {is_} {rates}, but buses.{bus_name}, which {they} over, carries "
                f"{human(bus.bandwidth_bytes_per_s, 'B/s')}: more changes nothing, unless "
                f"buses.{bus_name}.bandwidth is set as well."
            )


def _fills(link: Link, bus: Bus) -> bool:
    """Whether a single copy of any size fills the bus, on one channel."""
    least = min((point.fraction for point in link.efficiency), default=1.0)
    share = least / link.channels if link.sharing == "servers" else least
    return link.bandwidth_bytes_per_s * share >= bus.bandwidth_bytes_per_s


def _buses_over_links(hardware: Hardware, names: Collection[str]) -> Iterator[str]:
    for name in names:
        bus, asked = hardware.buses[name], asked_bytes_per_s(hardware, hardware.buses[name])
        if asked <= bus.bandwidth_bytes_per_s:
            yield (
                f"buses.{name}.bandwidth is {human(bus.bandwidth_bytes_per_s, 'B/s')}, but its links carry at most "
                f"{human(asked, 'B/s')} together: more changes nothing."
            )
