"""Decides as a row does: over few steps, with the allocator of the row, as if alone or in turns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from simulator.graph import Graph
from simulator.plan import Plan
from simulator.policies.problem import Problem
from simulator.policies.turns import staggered
from simulator.run.granted import granted
from simulator.scenario import PolicyChoice

REHEARSED = 16
"""Most steps in which policies try their plans.

All steps of a graph are alike, so that a plan is chosen by how it does when it has settled. What a lap of a fixed plan
leaves to the next is shorter than a lap: persistent tensors are at home in between. A runtime also leaves a cache; one
that holds more than this many steps choose is judged while it still fills. What is chosen so runs, and is checked, over
all steps.
"""


def rehearsed(graph: Graph) -> Graph:
    """The graph over so few steps that plans can be tried; itself, if it has no more."""
    return replace(graph, steps=min(graph.steps, REHEARSED))


def decided(choice: PolicyChoice, decide: Callable[[Problem], Plan], problem: Problem) -> Plan:
    """Decide as a row does.

    Parameters
    ----------
    choice
        The row.
    decide
        What its policy does.
    problem
        What is to be solved.
    """
    if problem.rehearsal is None:
        return _decided(choice, decide, problem)
    return replace(_decided(choice, decide, problem.rehearsal), repeats=problem.graph.steps)


def _decided(choice: PolicyChoice, decide: Callable[[Problem], Plan], problem: Problem) -> Plan:
    if choice.allocator != "ideal" and problem.under is not None:
        problem, decide = problem.under(choice.allocator), partial(granted, decide=decide)
    if choice.staggered:
        return staggered(problem, decide)
    return decide(problem.lone or problem if choice.alone else problem)
