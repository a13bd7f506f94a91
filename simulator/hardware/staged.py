"""Staged links: a way over several links, stored and forwarded chunk by chunk in the tiers between.

A copy over links with rates ``r_1 .. r_n`` is cut into ``k`` equal chunks of at most the link's ``chunk``. Each link
moves one chunk at a time; a tier between has room for two, one that comes in while the other one goes out. So the links
work side by side, the narrowest of them without a pause: ``k`` chunks take its time ``k c / r_min``, before which one
chunk passes the links before it, and after which one passes those behind it. In all

    latencies + *fill* + size / r_min,    fill = sum of c / r_i over all links but the narrowest.

With room for one chunk, neighbours would take turns; with room for more, nothing would be faster. The engine lets the
latencies and the fill pass, and then all bytes flow at once over all links of the way, sharing each with whoever else
uses it. Copies one link after another, with the whole tensor in the tier between, take the sum of the links' times.

*Room.* The two chunks are a pinned area that a runtime makes once: each channel of the link keeps it, for each device,
from the tiers between (`Tier.staging_bytes`), whether a copy is under way or not. So a copy never waits for it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction

from simulator.hardware.memory import Link, Tier
from simulator.units import FieldError, nearest

CHUNKS = 2
"""How many chunks a tier between has room for."""


def resolved(links: Mapping[str, Link]) -> dict[str, Link]:
    """The links, those that are staged with what follows from those that they go via.

    Parameters
    ----------
    links
        By name.

    Raises
    ------
    FieldError
        If what a link goes via is no way from its source to its target.
    """
    return {name: _settled(name, link.as_stated, links) if link.via else link for name, link in links.items()}


def _settled(name: str, link: Link, links: Mapping[str, Link]) -> Link:
    _check_way(name, link, links)
    stages = tuple(links[stage] for stage in link.via)
    carried = [
        rate * min(link.channels, stage.channels) if _serves(stage) else rate for stage, rate in _rates(link, stages)
    ]
    latency_ns = link.latency_ns if "latency_ns" in link.model_fields_set else sum(one.latency_ns for one in stages)
    return link.over(stages, min([link.bandwidth_bytes_per_s, *carried]), latency_ns)


def stage_rates(link: Link) -> list[int | float]:
    """What one copy over a staged link gets of each link on its way, if that is not busy otherwise [B/s].

    Parameters
    ----------
    link
        A staged link.
    """
    return [rate for _, rate in _rates(link, link.stages)]


def _rates(link: Link, stages: Sequence[Link]) -> list[tuple[Link, int | float]]:
    """A link on the way moves chunks: at the share that its curve has for one, on one channel of its servers."""
    found: list[tuple[Link, int | float]] = []
    for stage in stages:
        share = Fraction(stage.reached_fraction(link.chunk_bytes)) / (stage.channels if _serves(stage) else 1)
        bandwidth = stage.bandwidth_bytes_per_s
        found.append((stage, bandwidth if bandwidth == math.inf else max(1, math.floor(bandwidth * share))))
    return found


def _serves(link: Link) -> bool:
    return link.sharing == "servers"


def _check_way(name: str, link: Link, links: Mapping[str, Link]) -> None:
    at = ("links", name, "via")
    if len(link.via) == 1:
        must, do = "a link goes via two others at least", "add the rest of its way, or make it a link of its own"
        raise FieldError(must, ", ".join(link.via), do, at)
    place = link.source
    for stage in link.via:
        if stage not in links:
            raise FieldError("a link goes via other links", repr(stage), nearest(stage, tuple(links)), at)
        if links[stage].via:
            found = f"{stage!r}, which itself goes via others"
            raise FieldError("a link goes via links that are wires", found, "name the links that those are", at)
        if links[stage].source != place:
            found = f"{stage!r} from {links[stage].source!r}, where the way has come to {place!r}"
            do = "name links of which each begins where the one before it ends"
            raise FieldError("the links that a link goes via connect", found, do, at)
        place = links[stage].target
    if place != link.target:
        must, found = "the links that a link goes via end at its target", f"{place!r}, and the target {link.target!r}"
        raise FieldError(must, found, "add the rest of its way, or correct the target", at)
    if link.channels > 1 and not _serves(link) and any(_serves(links[stage]) for stage in link.via):
        must = "several channels over servers are servers, too"
        raise FieldError(must, f"sharing {link.sharing}", "write sharing: servers", ("links", name, "sharing"))


def room(links: Mapping[str, Link], tiers: Mapping[str, Tier], devices: Mapping[str, int]) -> dict[str, int]:
    """What staged links keep of each tier between [B].

    Parameters
    ----------
    links, tiers
        Of the machine.
    devices
        How many share a tier of each scope; each has its own chunks there.

    Raises
    ------
    FieldError
        If a tier has no room for them.
    """
    kept: dict[str, dict[str, int]] = {}
    for name, link in links.items():
        for stage in link.stages[1:]:
            of_links = kept.setdefault(stage.source, {})
            chunks = CHUNKS * link.chunk_bytes * link.channels * devices[tiers[stage.source].scope]
            of_links[name] = of_links.get(name, 0) + chunks
    for name, of_links in kept.items():
        _check_room(name, tiers[name], of_links)
    return {name: sum(of_links.values()) for name, of_links in kept.items()}


def _check_room(name: str, tier: Tier, of_links: Mapping[str, int]) -> None:
    """Refuse a tier without room for the chunks of all links that go via it."""
    kept, there = sum(of_links.values()), tier.capacity_bytes - tier.reserved_bytes
    if kept > there:
        whose = " and ".join(of_links)
        must = f"the tier {name!r} has room for the chunks that pass through it"
        found = f"{kept:,} B of chunks of {whose} and {there:,} B of room"
        do = f"make it at least {kept + tier.reserved_bytes:,} B, make the chunks smaller, or let fewer channels pass"
        raise FieldError(must, found, do, ("tiers", name, "capacity"))
