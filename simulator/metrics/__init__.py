"""Counts what is in a trace: one row of numbers, and tidy tables with names."""

from simulator.metrics.figures import causes, columns, figure_of
from simulator.metrics.frames import Frames, frame, peak_breakdown
from simulator.metrics.pacing import interval, pace_of, quantile, real_figures
from simulator.metrics.ranks import Crowd, by_rank, crowds, hit_fraction, summarise
from simulator.metrics.steps import (
    Instances,
    RankRun,
    keeps_program,
    mean_bytes,
    peaks_bytes,
    repeats,
    step_starts,
    with_steps,
)
from simulator.metrics.summary import derived, flop_rates, per_second, rank_figures, tried_figures

__all__ = [
    "Crowd", "Frames", "Instances", "RankRun", "by_rank", "causes", "columns", "crowds", "derived",
    "figure_of", "flop_rates", "frame", "hit_fraction", "interval", "keeps_program", "mean_bytes", "pace_of",
    "peak_breakdown", "peaks_bytes", "per_second", "quantile", "rank_figures", "real_figures",
    "repeats", "step_starts", "summarise", "tried_figures", "with_steps",
]  # fmt: skip
