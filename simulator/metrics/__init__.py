"""Counts what is in a trace: one row of numbers, and tidy tables with names.

Symbols of the formulas: ``n`` steps; ``E_k`` the end of the last compute of step ``k`` on the main stream (the stream
whose last compute ends last), ``E_0 = 0``; ``M`` the last end of anything.
"""

from simulator.metrics.frames import memory_frame, residencies_frame, spans_frame, waits_frame
from simulator.metrics.peaks import Peak, peak_breakdown, peaks_bytes
from simulator.metrics.summary import columns, summarise

__all__ = [
    "Peak",
    "columns",
    "memory_frame",
    "peak_breakdown",
    "peaks_bytes",
    "residencies_frame",
    "spans_frame",
    "summarise",
    "waits_frame",
]
