"""Figures that were set and have no effect, as something else on the same way is narrower."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from fnmatch import fnmatchcase

from simulator.hardware.machine import Hardware
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
                f"{human(budget_bytes, 'B')}: beyond that it changes nothing, unless the budget is set as well."
            )
    return said


def _links_over_buses(hardware: Hardware, names: Collection[str]) -> Iterator[str]:
    for bus_name, bus in hardware.buses.items():
        rate = bus.bandwidth_bytes_per_s
        over = [name for name in names if name in bus.links and hardware.links[name].bandwidth_bytes_per_s >= rate]
        if over:
            fields = " and ".join(f"links.{name}.bandwidth" for name in over)
            rates = " and ".join({human(hardware.links[name].bandwidth_bytes_per_s, "B/s"): None for name in over})
            yield (
                f"{fields} {'is' if len(over) == 1 else 'are'} {rates}, but buses.{bus_name}, which they go over, "
                f"carries {human(rate, 'B/s')}: beyond that it changes nothing, unless "
                f"buses.{bus_name}.bandwidth is set as well."
            ).replace("which they go over", "which it goes over" if len(over) == 1 else "which they go over")


def _buses_over_links(hardware: Hardware, names: Collection[str]) -> Iterator[str]:
    for name in names:
        bus = hardware.buses[name]
        if not all(link in hardware.links for link in bus.links):
            continue
        asked = sum(hardware.links[link].bandwidth_bytes_per_s for link in bus.links)
        if bus.bandwidth_bytes_per_s >= asked:
            yield (
                f"buses.{name}.bandwidth is {human(bus.bandwidth_bytes_per_s, 'B/s')}, but its links carry at most "
                f"{human(asked, 'B/s')} together: beyond that it changes nothing."
            )
