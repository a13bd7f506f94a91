"""What type checkers see of the package; it loads these names when they are first used."""

from simulator import execute
from simulator.claims import Validation as Validation
from simulator.claims import validate as validate
from simulator.errors import (
    CapacityError as CapacityError,
)
from simulator.errors import (
    ConfigError as ConfigError,
)
from simulator.errors import (
    HosimError as HosimError,
)
from simulator.errors import (
    InvariantError as InvariantError,
)
from simulator.errors import (
    PlanError as PlanError,
)
from simulator.errors import (
    Shortfall as Shortfall,
)
from simulator.execute.calibrate import calibrate as calibrate
from simulator.graph import (
    Collective as Collective,
)
from simulator.graph import (
    CollectiveKind as CollectiveKind,
)
from simulator.graph import (
    Graph as Graph,
)
from simulator.graph import (
    Group as Group,
)
from simulator.graph import (
    Job as Job,
)
from simulator.graph import (
    Op as Op,
)
from simulator.graph import (
    OpKind as OpKind,
)
from simulator.graph import (
    Tensor as Tensor,
)
from simulator.graph import (
    TensorKind as TensorKind,
)
from simulator.graph_builder import GraphBuilder as GraphBuilder
from simulator.hardware import Hardware as Hardware
from simulator.importers.chakra import read_chakra as read_chakra
from simulator.importers.hf import read_hf as read_hf
from simulator.importers.imported import Imported as Imported
from simulator.importers.kineto import read_kineto as read_kineto
from simulator.importers.onnx import read_onnx as read_onnx
from simulator.importers.pytorch_trace import read_pytorch_trace as read_pytorch_trace
from simulator.importers.recordings import read_graph as read_graph
from simulator.importers.request_traces import read_request_trace as read_request_trace
from simulator.importers.torch import read_torch as read_torch
from simulator.plan import Actions as Actions
from simulator.plan import Plan as Plan
from simulator.plan import View as View
from simulator.policies.problem import Problem as Problem
from simulator.policies.problem import Replay as Replay
from simulator.report.changes import Diff as Diff
from simulator.report.changes import diff as diff
from simulator.run import run as run
from simulator.run.grid import sweep as sweep
from simulator.run.layouts import layout_search as layout_search
from simulator.run.questions import crossover as crossover
from simulator.run.questions import frontier as frontier
from simulator.run.questions import pareto as pareto
from simulator.run.results import Result as Result
from simulator.run.results import Results as Results
from simulator.run.sliders import interact as interact
from simulator.run.studies import limits as limits
from simulator.run.sweep import Sweep as Sweep
from simulator.scenario import Scenario as Scenario
from simulator.serving import Serving as Serving
from simulator.serving import serve as serve
from simulator.trace import Trace as Trace
from simulator.workload import Workload as Workload

__version__: str
__all__: list[str]
torch = execute
