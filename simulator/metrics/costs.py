"""What a step costs by the figures of the machine: energy, money, and wear.

Powers and prices are paid as long as the step lasts, whatever runs; what is stated for each operation and each byte is
paid on top. A figure that the machine does not state costs nothing, and a kind of cost of which none is stated is not
counted. Steps are taken to follow one another without a pause.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from simulator.graph import Graph
from simulator.hardware import Hardware
from simulator.trace import Block

_HOUR_NS = 3_600 * 10**9
_MONTH_NS = 730 * _HOUR_NS
_YEAR_NS = 8_766 * _HOUR_NS
"""Of 365.25 days."""


def energy_j(graph: Graph, hardware: Hardware, computes: Block, row: Mapping[str, Any]) -> float:
    """Count the energy of a step of one rank [J].

    Parameters
    ----------
    graph, hardware
        What ran, where.
    computes
        Spans of the step's computes; an op that runs again counts again, what its dynamic reads choose does not.
    row
        What was counted of the step: its time, and what links moved.
    """
    times = np.bincount(computes["item"], minlength=len(graph.ops)).tolist()
    flops = sum(often * op.flops for often, op in zip(times, graph.ops, strict=True))
    touched = sum(often * (op.read_bytes + op.write_bytes) for often, op in zip(times, graph.ops, strict=True))
    own, here = hardware.compute, hardware.tiers[hardware.compute_tier]
    fj = flops * (own.energy_fj_per_flop or 0) + touched * (here.energy_fj_per_byte or 0)
    fj += sum(row[f"moved_{name}_bytes"] * (link.energy_fj_per_byte or 0) for name, link in hardware.links.items())
    return float(fj + (own.power_mw or 0) * 1_000 * row["step_ns"]) / 1e15  # a mW for a ns is 1,000 fJ


def costs(hardware: Hardware, row: Mapping[str, Any], ranks: int, tokens: int | None) -> dict[str, float | None]:
    """Count what a step of all ranks costs, by column; nothing of what the machine does not state.

    Parameters
    ----------
    hardware, row
        Where, and what was counted of the row.
    ranks, tokens
        How many ranks ran; how many tokens all of them handle in a step, if that is known.
    """
    step_ns, found = row["step_ns"], dict[str, float | None]()
    if step_ns is None:
        return found
    tiers, sharing = hardware.tiers.items(), hardware.topology.sharing
    instances = {name: -(-ranks // sharing[tier.scope]) for name, tier in tiers}
    if (joules := row.get("energy_j")) is not None:
        found["energy_per_token_j"] = joules / tokens if tokens else None
    if hardware.states_prices:
        of_room = sum(
            row[f"peak_{name}_bytes"] * instances[name] * (tier.price_nusd_per_gb_month or 0) for name, tier in tiers
        )
        of_time = ranks * (hardware.compute.price_uusd_per_h or 0) / 1e6 / _HOUR_NS
        found["step_usd"] = dollars = step_ns * (of_time + of_room / 1e18 / _MONTH_NS)
        found["usd_per_million_tokens"] = dollars * 1e6 / tokens if tokens else None
    for name, tier in tiers:
        if tier.endurance_bytes is not None:
            into = hardware.wires(link for link, one in hardware.links.items() if one.target == name)
            written = sum(row[f"moved_{link}_bytes"] for link in into)
            life_ns = instances[name] * tier.endurance_bytes / written * step_ns if written else None
            found[f"life_{name}_years"] = None if life_ns is None else life_ns / _YEAR_NS
    return found
