"""Plans that are made once, for the documents as they are, and replayed unchanged on other machines and workloads."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

from simulator import catalog
from simulator.catalog import Axis, Loaded
from simulator.errors import CapacityError, PlanError, insist
from simulator.graph import Graph
from simulator.plan import Plan
from simulator.policies.decide import Policy
from simulator.policies.problem import Problem
from simulator.run.case import Case, Policies, prepare
from simulator.run.row import row_of
from simulator.run.sweep import Rows, silent


@dataclass(frozen=True, eq=False)
class Once:
    """Decides once; each process does so for itself, as runtimes cannot be sent.

    Attributes
    ----------
    loaded, policies
        What is planned for, and the rows, as in `simulator.run`.
    headroom
        Share of the budget that the plan of the first row leaves free.
    """

    loaded: Loaded
    policies: Policies | None
    headroom: float = 0.0

    def __reduce__(self) -> tuple[object, ...]:
        return Once, (self.loaded, self.policies, self.headroom)

    @cached_property
    def case(self) -> Case:
        """What is planned for.

        Raises
        ------
        ConfigError
            If it has several ranks.
        """
        case = prepare(self.loaded)
        rule, do = "what is planned once is of one rank", "run one rank's slice of the workload"
        insist(case.job.ranks == 1, case.job.name, rule, f"{case.job.ranks}", do)
        return case

    @cached_property
    def plans(self) -> dict[str, Plan | CapacityError]:
        """The plan of each row, or why there is none."""
        plans, headroom = dict[str, Plan | CapacityError](), self.headroom
        for label, decide in self.case.rows(self.policies).items():
            own, levers = self.case.of(label), tuple[str, ...]()
            if headroom and own.problem.budget_bytes != math.inf:
                less = Axis("headroom", ("scenario.budget",), "headroom", "B")
                own = prepare(catalog.at(own.loaded, {less: int(own.problem.budget_bytes * (1 - headroom))}))
                levers = (f"leave less headroom than {100 * headroom:g} %",)
            try:
                plans[label] = decide(own.problem)
            except CapacityError as error:
                plans[label] = CapacityError(replace(error.report, levers=levers)) if levers else error
            headroom = 0.0
        return plans

    def rows(self, case: Case) -> Rows:
        """Replay the plans in a case; what cannot be carried over has failed."""
        found = []
        for label, decide in case.rows(self.policies).items():
            try:
                found.append(row_of(case, label, partial(self._carried, label, decide), silent, advice=False).summary)
            except PlanError as error:
                found.append({"policy": label, "status": "failed", "notes": str(error)})
        return found

    def _carried(self, label: str, decide: Policy, problem: Problem) -> Plan:
        """The plan; a runtime, which knows where it runs, decides there."""
        plan, nominal = self.plans[label], self.case.graph
        if isinstance(plan, CapacityError):
            raise plan
        if plan.fixed is None:
            return decide(problem)
        rule, do = "a plan is carried over to a graph with the same ops and tensors", "leave longer sequences out"
        if _names(problem.graph) != _names(nominal):
            raise PlanError(f"plan {plan.name!r}", rule, "others", do)
        return plan


def _names(graph: Graph) -> Sequence[Sequence[str]]:
    return [op.name for op in graph.ops], [tensor.name for tensor in graph.tensors]
