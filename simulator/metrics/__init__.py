"""Counts what is in a trace: one row of numbers, and tidy tables with names."""

from simulator.metrics.figures import causes as causes
from simulator.metrics.figures import columns as columns
from simulator.metrics.figures import figure_of as figure_of
from simulator.metrics.frames import Frames as Frames
from simulator.metrics.frames import peak_breakdown as peak_breakdown
from simulator.metrics.frames import place_name as place_name
from simulator.metrics.pacing import Ratios as Ratios
from simulator.metrics.pacing import interval as interval
from simulator.metrics.pacing import pace_of as pace_of
from simulator.metrics.pacing import real_figures as real_figures
from simulator.metrics.ranks import Crowd as Crowd
from simulator.metrics.ranks import by_rank as by_rank
from simulator.metrics.ranks import crowds as crowds
from simulator.metrics.ranks import summarise as summarise
from simulator.metrics.steps import Instances as Instances
from simulator.metrics.steps import RankRun as RankRun
from simulator.metrics.steps import keeps_program as keeps_program
from simulator.metrics.steps import peaks_bytes as peaks_bytes
from simulator.metrics.steps import repeats as repeats
from simulator.metrics.steps import step_starts as step_starts
from simulator.metrics.steps import with_steps as with_steps
from simulator.metrics.summary import derived as derived
from simulator.metrics.summary import flop_rates as flop_rates
from simulator.metrics.summary import per_second as per_second
from simulator.metrics.summary import rank_figures as rank_figures
from simulator.metrics.summary import waits_by_place as waits_by_place
