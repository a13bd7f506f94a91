"""What no plan can beat, and what no plan can fit."""

from simulator.bounds.fit import infeasible
from simulator.bounds.levers import raised
from simulator.bounds.limits import Limits
from simulator.bounds.step_time import Bound, bound
from simulator.plan import FREE

__all__ = ["FREE", "Bound", "Limits", "bound", "infeasible", "raised"]
