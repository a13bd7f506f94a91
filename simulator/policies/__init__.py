"""Policies: what moves, when, and where to. A graph and a machine in, a plan out.

Adding one is a module with an ``Options`` model and a function ``plan(problem, options)``, and an entry here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from pydantic import ValidationError

from simulator.document import Part
from simulator.faults import faults
from simulator.plan import FREE, Plan
from simulator.policies import baselines, hybrid, optimal, reactive, recompute, static
from simulator.policies.problem import Problem, Replay
from simulator.policies.weave import woven

__all__ = ["FREE", "POLICIES", "PolicyEntry", "Problem", "Replay"]


@dataclass(frozen=True, slots=True)
class PolicyEntry:
    """A policy that scenarios can name.

    Attributes
    ----------
    may_repeat
        Says for its options whether its plans may run an op again.
    chooses
        Whether it compares times, so that it chooses what runs a part that a workload leaves open.
    """

    name: str
    function: Callable[..., Plan]
    options: type[Part]
    summary: str
    may_repeat: Callable[[Any], bool] = lambda _: False
    chooses: bool = False

    def read_options(self, given: Mapping[str, Any], place: Callable[..., str] | None = None) -> Part:
        """Check the options of a row as a person wrote them.

        Parameters
        ----------
        given
            Option name -> value.
        place
            Says where an option, or with more keys a part of it, was written; default: the policy and the option.

        Raises
        ------
        ConfigError
            If an option is unknown or has a wrong value.
        """
        try:
            return self.options.model_validate(dict(given))
        except ValidationError as error:
            fault = faults(error, dict(given))[0]
            where = place(*fault.path) if place else f"policy {self.name!r}, option {'.'.join(fault.path)!r}"
            raise fault.at(where) from None

    def plan(self, problem: Problem, options: Part | Mapping[str, Any] | None = None) -> Plan:
        """Make a plan.

        Parameters
        ----------
        problem
            Problem to plan for.
        options
            The options, read already or as option name -> value.

        Raises
        ------
        ConfigError
            If an option is wrong.
        ScopeError
            If this policy does not know how to plan this.
        CapacityError
            If no plan of this policy fits.
        """
        read = options if isinstance(options, Part) else self.read_options(options or {})
        return woven(problem, partial(self.function, options=read))


_RESIDENT = "moves only tensors with a home elsewhere"
_REACTIVE = "a runtime that fetches on demand and evicts under pressure"
_LOOKAHEAD = "copies at fixed distances, counted in ops"
_SAVED = "moves every tensor saved for backward that has the time to go and return"
_UPSTREAM = "the open-source HyperOffload planner: longest idle intervals in ops leave, copies in at their consumer"
_RECOMPUTE = "drops repeatable tensors, and reruns their ops; copies nothing"
_STATIC = "a compiler that places copies by time, bandwidth and room"
_HYBRID = "static for all reads known before the run, a cache for dynamic reads"
_OPTIMAL = "the best plan over one lower tier, for a small graph"

_ENTRIES = (
    PolicyEntry("resident", baselines.resident, baselines.Resident, _RESIDENT),
    PolicyEntry("reactive", reactive.plan, reactive.Options, _REACTIVE),
    PolicyEntry("lookahead", baselines.lookahead, baselines.Lookahead, _LOOKAHEAD),
    PolicyEntry("offload_saved", baselines.offload_saved, baselines.OffloadSaved, _SAVED),
    PolicyEntry("upstream_greedy", baselines.upstream_greedy, baselines.UpstreamGreedy, _UPSTREAM),
    PolicyEntry("recompute", recompute.plan, recompute.Options, _RECOMPUTE, lambda _: True),
    PolicyEntry("static", static.plan, static.Options, _STATIC, lambda options: options.recompute, chooses=True),
    PolicyEntry("hybrid", hybrid.plan, hybrid.Options, _HYBRID, chooses=True),
    PolicyEntry("optimal", optimal.plan, optimal.Options, _OPTIMAL, chooses=True),
)
POLICIES = {entry.name: entry for entry in _ENTRIES}
"""The policies by name, in the order in which they are listed."""
