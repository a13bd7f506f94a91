"""What no plan can beat, and what no plan can fit."""

from simulator.bounds.before import Before
from simulator.bounds.fit import infeasible
from simulator.bounds.full import full
from simulator.bounds.laps import of_laps
from simulator.bounds.levers import lowered, raised, smaller_chunks, staged
from simulator.bounds.limits import Limits
from simulator.bounds.order import Order
from simulator.bounds.ranks import Team
from simulator.bounds.step_time import Bound, bound
from simulator.plan import FREE

__all__ = [
    "FREE",
    "Before",
    "Bound",
    "Limits",
    "Order",
    "Team",
    "bound",
    "full",
    "infeasible",
    "lowered",
    "of_laps",
    "raised",
    "smaller_chunks",
    "staged",
]
