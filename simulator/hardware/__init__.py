"""The hardware profile: tiers, links, buses, compute, the costs of the runtime, and how devices are joined.

One YAML document describes one machine as one of its devices sees it. Every figure in it is cited
(``sources``), or says why it was assumed (``assumed``) or what it was fitted to (``fitted``).
"""

from simulator.hardware.allocator import Allocator, Compaction
from simulator.hardware.caps import asked_bytes_per_s, without_effect
from simulator.hardware.compute import Compute, FixedHost, Host, ReactiveHost
from simulator.hardware.machine import Hardware
from simulator.hardware.memory import Bus, EfficiencyPoint, Link, Tier
from simulator.hardware.staged import stage_rates
from simulator.hardware.topology import Fabric, OnChip, Topology

__all__ = [
    "Allocator", "Bus", "Compaction", "Compute", "EfficiencyPoint", "Fabric", "FixedHost", "Hardware", "Host", "Link",
    "OnChip", "ReactiveHost", "Tier", "Topology", "asked_bytes_per_s", "stage_rates",
    "without_effect",
]  # fmt: skip
