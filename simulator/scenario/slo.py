"""What a service promises of latencies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import Field

from simulator.document import Part
from simulator.units import Nanoseconds, require


class Slo(Part):
    """Objectives of a service: what a request's latencies may be at most, for it to count as goodput.

    Attributes
    ----------
    ttft_ns, tpot_ns, e2e_ns
        Time to the first token, time of each output token after it, and time to the last one [ns].
    """

    ttft_ns: Nanoseconds | None = Field(None, alias="ttft")
    tpot_ns: Nanoseconds | None = Field(None, alias="tpot")
    e2e_ns: Nanoseconds | None = Field(None, alias="e2e")

    def _check(self) -> None:
        require(self.model_fields_set, "an objective names a latency", "none", do="add ttft, tpot or e2e")

    def is_met(self, latencies: Mapping[str, Any]) -> bool:
        """Whether a request that has left met them all: its latencies [ns] by the names of the attributes."""
        if latencies["e2e_ns"] is None:
            return False
        limits = ((name, getattr(self, name)) for name in type(self).model_fields)
        return all(limit is None or (latencies[name] or 0) <= limit for name, limit in limits)
