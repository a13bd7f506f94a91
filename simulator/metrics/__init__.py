"""Counts what is in a trace: one row of numbers, and tidy tables with names."""

from simulator.metrics.crowds import Crowd, crowds
from simulator.metrics.figures import Figure, columns, figure_of
from simulator.metrics.frames import Frames, blocker_name, op_name, place_name
from simulator.metrics.issued import IssuedSteps
from simulator.metrics.peaks import Instances, Peak, peak_breakdown, peaks_bytes
from simulator.metrics.ran import Following, Ran
from simulator.metrics.ranks import by_rank, summarise
from simulator.metrics.steps import keeps_program, recomputes, run_numbers, steps_of
from simulator.metrics.summary import counted, exposed_ns, waits_by_place

__all__ = [
    "Crowd",
    "Figure",
    "Following",
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
    "op_name",
    "peak_breakdown",
    "peaks_bytes",
    "place_name",
    "recomputes",
    "run_numbers",
    "steps_of",
    "summarise",
    "waits_by_place",
]
