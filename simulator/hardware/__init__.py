"""The hardware profile: tiers, links, buses, compute, the costs of the runtime, and how devices are joined.

One YAML document describes one machine as one of its devices sees it. Every figure in it is cited
(``sources``), or says why it was assumed (``assumed``) or what it was fitted to (``fitted``).
"""

from simulator.hardware.device import Allocator, Compaction, Compute, FixedHost, Host, ReactiveHost
from simulator.hardware.machine import Fabric, Hardware, OnChip, Topology, asked_bytes_per_s, without_effect
from simulator.hardware.memory import Bus, EfficiencyPoint, Link, Tier, stage_rates

__all__ = [
    "Allocator", "Bus", "Compaction", "Compute", "EfficiencyPoint", "Fabric", "FixedHost", "Hardware", "Host", "Link",
    "OnChip", "ReactiveHost", "Tier", "Topology", "asked_bytes_per_s", "stage_rates",
    "without_effect",
]  # fmt: skip
