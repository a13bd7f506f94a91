"""Counts what is in a trace: one row of numbers, and tidy tables with names."""

from simulator.metrics.figures import Figure, columns, figure_of
from simulator.metrics.frames import Frames, blocker_name, op_name, place_name
from simulator.metrics.peaks import Instances, Peak, peak_breakdown, peaks_bytes
from simulator.metrics.ranks import Crowd, by_rank, crowds, summarise
from simulator.metrics.steps import IssuedSteps, Ran, keeps_program, laid_out, repeats
from simulator.metrics.summary import counted, exposed_ns, waits_by_place

__all__ = [
    "Crowd",
    "Figure",
    "Frames",
    "Instances",
    "IssuedSteps",
    "Peak",
    "Ran",
    "blocker_name",
    "by_rank",
    "columns",
    "counted",
    "crowds",
    "exposed_ns",
    "figure_of",
    "keeps_program",
    "laid_out",
    "op_name",
    "peak_breakdown",
    "peaks_bytes",
    "place_name",
    "repeats",
    "summarise",
    "waits_by_place",
]
