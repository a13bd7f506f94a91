"""What an address space costs beyond the bytes in it: what is reserved, and how often holes are made one."""

from __future__ import annotations

from typing import Any

import numpy as np

from simulator.hardware import Hardware
from simulator.trace import Trace

COMPACTIONS = "compactions"
"""Column: how many were asked for in the measured step."""


def columns(hardware: Hardware) -> tuple[str, ...]:
    """Name the columns that only rows have whose places have addresses."""
    return COMPACTIONS, _peak(hardware)


def _peak(hardware: Hardware) -> str:
    return f"peak_reserved_{hardware.compute_tier}_bytes"


def fragmentation(hardware: Hardware, trace: Trace, window_ns: tuple[int, int] | None) -> dict[str, Any]:
    """Count what the allocator of the compute tier did; nothing if places have no addresses.

    Parameters
    ----------
    hardware, trace
        Where, and what happened.
    window_ns
        The measured step [ns]; None if there is none.

    Returns
    -------
    dict
        ``compactions``
            Those that were asked for in the measured step; that cached segments were given back is none.
        ``peak_reserved_<tier>_bytes``
            The most that the allocator ever kept: of one pool where its last place ends, else the sum of its segments.
    """
    if not len(trace.reserved):
        return {}
    found = trace.compactions.whole()
    asked = found["asked_ns"][found["is_remap"] == 1]
    count = None if window_ns is None else int(np.count_nonzero((asked >= window_ns[0]) & (asked < window_ns[1])))
    return {COMPACTIONS: count, _peak(hardware): int(trace.reserved.whole()["reserved_bytes"].max())}
