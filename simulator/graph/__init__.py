"""The operator graph: what runs, in which order, on which tensors; it knows no machine.

A *job* is what all ranks run together: one graph for all of them, or several. Ranks meet in *collectives*: ops on a
named group.
"""

from simulator.graph.job import Call as Call
from simulator.graph.job import Job as Job
from simulator.graph.job import Members as Members
from simulator.graph.job import Roles as Roles
from simulator.graph.ops import ALGORITHMS as ALGORITHMS
from simulator.graph.ops import LARGEST as LARGEST
from simulator.graph.ops import LARGEST_RUN as LARGEST_RUN
from simulator.graph.ops import OP_CLASSES as OP_CLASSES
from simulator.graph.ops import PAIRED as PAIRED
from simulator.graph.ops import PHASES as PHASES
from simulator.graph.ops import Collective as Collective
from simulator.graph.ops import CollectiveKind as CollectiveKind
from simulator.graph.ops import Graph as Graph
from simulator.graph.ops import Group as Group
from simulator.graph.ops import Late as Late
from simulator.graph.ops import Op as Op
from simulator.graph.ops import OpKind as OpKind
from simulator.graph.ops import Tensor as Tensor
from simulator.graph.ops import TensorKind as TensorKind
from simulator.graph.ops import check_run as check_run
from simulator.graph.ops import chosen_number as chosen_number
