"""What no plan can beat, and what no plan can fit."""

from simulator.bounds.capacity import full
from simulator.bounds.critical_path import Timing
from simulator.bounds.levers import infeasible, raised, staged
from simulator.bounds.precedence import Precedence, own_streams
from simulator.bounds.step_time import Bound, Limits, mean_step
from simulator.bounds.symmetry import Team

__all__ = [
    "Bound",
    "Limits",
    "Precedence",
    "Team",
    "Timing",
    "full",
    "infeasible",
    "mean_step",
    "own_streams",
    "raised",
    "staged",
]
