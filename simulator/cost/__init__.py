"""How long one op, one transfer, or one collective takes alone."""

from simulator.cost.collectives import algorithms as algorithms
from simulator.cost.collectives import collective_ns as collective_ns
from simulator.cost.collectives import group_ns as group_ns
from simulator.cost.collectives import phases as phases
from simulator.cost.ops import chosen_op as chosen_op
from simulator.cost.ops import duration_ns as duration_ns
from simulator.cost.ops import durations_ns as durations_ns
from simulator.cost.ops import expected_op as expected_op
from simulator.cost.ops import memory_rate_cap as memory_rate_cap
from simulator.cost.ops import roofline as roofline
from simulator.cost.service import FULL_RATE as FULL_RATE
from simulator.cost.service import NS_PER_S as NS_PER_S
from simulator.cost.service import Phase as Phase
from simulator.cost.service import ceil_div as ceil_div
from simulator.cost.service import fabric_rate_cap as fabric_rate_cap
from simulator.cost.service import lead_ns as lead_ns
from simulator.cost.service import phase_work as phase_work
from simulator.cost.service import rate_cap as rate_cap
from simulator.cost.service import stages as stages
from simulator.cost.service import transfer_ns as transfer_ns
from simulator.cost.service import work as work
