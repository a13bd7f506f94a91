"""What ranks share is stored once: room that their rows count and that is not taken."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from simulator.errors import InvariantError
from simulator.graph import Job
from simulator.hardware import Hardware
from simulator.plan import Plan
from simulator.trace import Trace


def spare_bytes(job: Job, hardware: Hardware, plans: Sequence[Plan], tier: str) -> dict[int, int]:
    """Add up what ranks have at home in each instance of a tier less what is stored there, all shared tensors [B].

    Parameters
    ----------
    job, hardware, plans
        What ranks run, where, and by which plans.
    tier
        Name of the tier.
    """
    number, scope = hardware.tier_names.index(tier), hardware.tiers[tier].scope
    each = hardware.topology.devices_per_node
    counted: Counter[int] = Counter()
    stored: dict[tuple[int, int, str, int], int] = {}
    if scope == "device":
        return counted
    at_home: dict[int, list[tuple[str, int, bool]]] = {}
    for rank, plan in enumerate(plans):
        if id(plan) not in at_home:
            tensors = (job.graph(rank).tensors[t] for t, home in enumerate(plan.home) if home == number)
            shared = (t for t in tensors if t.shared and t.persistent)
            at_home[id(plan)] = [(t.name, t.size_bytes, t.shared == "node") for t in shared]
        instance = rank // each if scope == "node" else 0
        for name, size, by_node in at_home[id(plan)]:
            counted[instance] += size
            stored[instance, rank // each if by_node else 0, name, size] = size
    for (instance, *_), size in stored.items():
        counted[instance] -= size
    return counted


def check(hardware: Hardware, trace: Trace, once: Mapping[str, Mapping[int, int]]) -> None:
    """Check that a trace says what is stored once, for each instance of a tier that has a simulated rank.

    Parameters
    ----------
    hardware, trace
        The machine, and what happened there.
    once
        For each tier what `spare_bytes` found.
    """
    told: Counter[tuple[str, int]] = Counter()
    for rank, tier, _, size in trace.stored_once:
        name = hardware.tier_names[tier]
        node = hardware.tiers[name].scope == "node"
        told[name, rank // hardware.topology.devices_per_node if node else 0] += size
    for name, spare in once.items():
        on_node = hardware.topology.devices_per_node if hardware.tiers[name].scope == "node" else len(trace.stands_in)
        for instance in {rank // on_node for rank in trace.stands_in}:
            if told[name, instance] != spare.get(instance, 0):
                must = f"what is stored once in {name} is counted once"
                found = f"{told[name, instance]:,} B less on instance {instance}, not {spare.get(instance, 0):,} B"
                raise InvariantError("trace, stored_once", must, found, "report this: it is a bug of hosim")
