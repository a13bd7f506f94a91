"""Counts what is in a trace: one row of numbers, and tidy tables with names."""

from simulator.metrics.figures import columns, figure_of
from simulator.metrics.frames import Frames, place_name
from simulator.metrics.peaks import Instances, peak_breakdown, peaks_bytes
from simulator.metrics.ranks import Crowd, by_rank, crowds, summarise
from simulator.metrics.steps import IssuedActions, Ran, keeps_program, laid_out, repeats
from simulator.metrics.summary import counted, waits_by_place

__all__ = [
    "Crowd",
    "Frames",
    "Instances",
    "IssuedActions",
    "Ran",
    "by_rank",
    "columns",
    "counted",
    "crowds",
    "figure_of",
    "keeps_program",
    "laid_out",
    "peak_breakdown",
    "peaks_bytes",
    "place_name",
    "repeats",
    "summarise",
    "waits_by_place",
]
