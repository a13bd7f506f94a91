"""hosim, the offload referee: replay an LLM operator graph on a memory hierarchy and explain every stall.

>>> import hosim
>>> results = hosim.run("llama3_8b_train_910c")
>>> results.summary[["status", "step_ns", "stall_ns"]]      # a pandas table, one row per policy
>>> results.sentences                                       # what a person would say about them
>>> results["static"].waits                                 # every stall: which op, why, for what, on which link
>>> results["static"].timeline()                            # a matplotlib figure; shows itself in a notebook
>>> results.write("results/llama3_8b")                      # what ``hosim run --out`` writes

Names load when they are first used, so that ``import hosim`` and ``hosim --help`` take no time.
"""

import sys

__version__ = "0.1.0"

_NAMES = {
    "claims": "Validation validate",
    "errors": "CapacityError ConfigError HosimError InvariantError PlanError Shortfall",
    "execute.calibrate": "calibrate",
    "graph": "Collective CollectiveKind Graph Group Job Op OpKind Tensor TensorKind",
    "graph_builder": "GraphBuilder",
    "hardware": "Hardware",
    "importers.imported": "Imported",
    "plan": "Plan Actions View",
    "policies.problem": "Problem Replay",
    "report.changes": "Diff diff",
    "run": "run",
    "run.grid": "sweep",
    "run.layouts": "layout_search",
    "run.questions": "crossover frontier pareto",
    "run.results": "Result Results",
    "run.sliders": "interact",
    "run.studies": "limits",
    "run.sweep": "Sweep",
    "scenario": "Scenario",
    "serving": "Serving serve",
    "trace": "Trace",
    "workload": "Workload",
}
"""Module -> its names that are the package's, too, as are those of readers (`simulator.importers.KINDS`); the stub
beside this file says the same to type checkers."""
_HOMES = {name: f"simulator.{module}" for module, names in _NAMES.items() for name in names.split()}
_HOMES["torch"] = "simulator.execute"  # a module itself


def __getattr__(name: str) -> object:
    if name == "__all__" or name.startswith("read_"):
        from simulator.importers import KINDS  # noqa: PLC0415

        _HOMES.update({kind.name: f"simulator.importers.{kind.module}" for kind in KINDS.values()})
    if name == "__all__":
        return sorted(_HOMES)
    if name not in _HOMES:
        from simulator.retired import FUNCTIONS  # noqa: PLC0415

        now = f": {FUNCTIONS[name]}" if name in FUNCTIONS else ""
        raise AttributeError(f"module 'simulator' has no attribute {name!r}{now}")
    from importlib import import_module  # noqa: PLC0415

    module = import_module(_HOMES[name])
    value = module if name == "torch" else getattr(module, name)
    globals()[name] = value
    return value


class _Package(type(sys)):
    """Keeps ``simulator.run`` the function, whoever imports the module of that name first."""

    def __setattr__(self, name: str, value: object) -> None:
        module = value if name == "run" and isinstance(value, type(sys)) else None
        super().__setattr__(name, value if module is None else module.run)


sys.modules[__name__].__class__ = _Package


def __dir__() -> list[str]:
    return sorted({*globals(), *__getattr__("__all__")})
