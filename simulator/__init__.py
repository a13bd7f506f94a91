"""hosim, the offload referee: replay an LLM operator graph on a memory hierarchy and explain every stall.

>>> import simulator as hosim
>>> results = hosim.run("llama3_8b_train_910c")
>>> results.summary[["status", "step_ns", "stall_ns"]]      # a pandas table, one row per policy
>>> results.sentences                                       # what a person would say about them
>>> results["static"].waits                                 # every stall: which op, why, for what, on which link
>>> results["static"].timeline()                            # a matplotlib figure; shows itself in a notebook
>>> results.write("results/llama3_8b")                      # what ``hosim run --out`` writes

Names load when they are first used, so that ``import simulator`` and ``hosim --help`` take no time.
"""

import sys

__version__ = "0.1.0"

TYPE_CHECKING = False
"""True for type checkers; `typing` is slow to import, and an interrupt before ``__main__`` is a traceback."""

if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

    from simulator.claims import Validation, validate
    from simulator.claims.sensitivity import sensitivity
    from simulator.errors import CapacityError, ConfigError, HosimError, InvariantError, PlanError, Shortfall
    from simulator.graph import Collective, CollectiveKind, Graph, Group, Job, Op, OpKind, Tensor, TensorKind
    from simulator.graph_builder import GraphBuilder
    from simulator.hardware import Hardware
    from simulator.plan import Plan, Steps, View
    from simulator.policies.problem import Problem, Replay
    from simulator.run import Result, Results, run
    from simulator.run.diff import Diff, diff
    from simulator.run.largest import largest
    from simulator.run.robustness import robustness
    from simulator.run.scaling import scaling
    from simulator.run.sweep import Sweep
    from simulator.scenario import Scenario
    from simulator.serving import Serving, serve
    from simulator.trace import Trace
    from simulator.workload import Workload
else:
    ModuleType = type(sys)

_HOMES = {
    "simulator.claims.sensitivity": ("sensitivity",),
    "simulator.claims": ("Validation", "validate"),
    "simulator.errors": ("CapacityError", "ConfigError", "HosimError", "InvariantError", "PlanError", "Shortfall"),
    "simulator.graph": (
        "Collective",
        "CollectiveKind",
        "Graph",
        "Group",
        "Job",
        "Op",
        "OpKind",
        "Tensor",
        "TensorKind",
    ),
    "simulator.graph_builder": ("GraphBuilder",),
    "simulator.hardware": ("Hardware",),
    "simulator.plan": ("Plan", "Steps", "View"),
    "simulator.policies.problem": ("Problem", "Replay"),
    "simulator.run": ("Result", "Results", "run"),
    "simulator.run.diff": ("Diff", "diff"),
    "simulator.run.largest": ("largest",),
    "simulator.run.robustness": ("robustness",),
    "simulator.run.scaling": ("scaling",),
    "simulator.run.sweep": ("Sweep",),
    "simulator.scenario": ("Scenario",),
    "simulator.serving": ("Serving", "serve"),
    "simulator.trace": ("Trace",),
    "simulator.workload": ("Workload",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "CapacityError",
    "Collective",
    "CollectiveKind",
    "ConfigError",
    "Diff",
    "Graph",
    "GraphBuilder",
    "Group",
    "Hardware",
    "HosimError",
    "InvariantError",
    "Job",
    "Op",
    "OpKind",
    "Plan",
    "PlanError",
    "Problem",
    "Replay",
    "Result",
    "Results",
    "Scenario",
    "Serving",
    "Shortfall",
    "Steps",
    "Sweep",
    "Tensor",
    "TensorKind",
    "Trace",
    "Validation",
    "View",
    "Workload",
    "diff",
    "largest",
    "robustness",
    "run",
    "scaling",
    "sensitivity",
    "serve",
    "validate",
]


def __getattr__(name: str) -> "Any":
    if name not in _HOME_OF:
        raise AttributeError(f"module 'simulator' has no attribute {name!r}")
    from importlib import import_module  # noqa: PLC0415

    value = getattr(import_module(_HOME_OF[name]), name)
    globals()[name] = value
    return value


class _Package(ModuleType):
    """Keeps ``simulator.run`` the function, whoever imports the module of that name first."""

    def __setattr__(self, name: str, value: object) -> None:
        module = value if name == "run" and isinstance(value, ModuleType) else None
        super().__setattr__(name, value if module is None else module.run)


sys.modules[__name__].__class__ = _Package


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
