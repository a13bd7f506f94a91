"""Jitter: the run that was planned for, with other times; and its plan on another graph.

Every op takes its time times a factor of its own; every link's time is multiplied by a factor, one for each link and
draw, because what slows a link down (other traffic, a clock) lasts longer than a step.

Factors are log-normal with mean 1 and the level as their coefficient of variation ``c``: ``exp(s z - s^2 / 2)`` with
``s^2 = ln(1 + c^2)`` and ``z`` normal. Times are whole nanoseconds, at least 1 where they were not 0. A draw has the
same ``z`` at all levels, so that levels can be compared. Such a factor is skewed: its median is ``1 / sqrt(1 + c^2)``,
0.98 at 20 % and 0.71 at 100 %. So where a step hangs on one link, its median under large jitter lies below its mean,
and may lie below the nominal step.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from simulator.cost import durations_ns
from simulator.errors import PlanError
from simulator.graph import Graph
from simulator.hardware import Hardware
from simulator.plan import COMPUTE, NOWHERE, Plan, Steps
from simulator.run.case import Case


def jittered(case: Case, level: float, draw: int, seed: int) -> Case:
    """Give the ops of a case, and its links, other times.

    Parameters
    ----------
    case
        As it was planned for; of one rank.
    level, draw, seed
        Coefficient of variation, number of the draw, and what draws begin with.
    """
    graph, hardware, (task,) = case.graph, case.hardware, case.tasks
    normal = np.random.default_rng((seed, draw)).standard_normal(len(graph.ops) + len(hardware.links))
    factors = _factors(normal, level).tolist()
    ops = tuple(
        replace(op, duration_ns=max(1, round(ns * factor)) if ns else 0)
        for op, ns, factor in zip(graph.ops, case.problem.durations_ns, factors, strict=False)
    )
    graph, hardware = replace(graph, ops=ops), _stretched(hardware, factors[len(ops) :])
    times = durations_ns(graph, hardware)
    problem = replace(task.problem, graph=graph, hardware=hardware, durations_ns=times, rehearsal=None)
    return replace(case, tasks=(replace(task, problem=problem),))


def _factors(normal: NDArray[np.float64], level: float) -> NDArray[np.float64]:
    """Log-normal factors with mean 1."""
    sigma = math.sqrt(math.log1p(level**2))
    found: NDArray[np.float64] = np.exp(sigma * normal - sigma**2 / 2)
    return found


def _stretched(hardware: Hardware, factors: Sequence[float]) -> Hardware:
    """The machine with the time of each link multiplied; a staged link is as slow as those that it goes via."""
    links = dict(hardware.links)
    for (name, link), factor in zip(hardware.links.items(), factors, strict=True):
        if link.via:
            continue
        bandwidth = link.bandwidth_bytes_per_s
        slower = bandwidth if bandwidth == math.inf else max(1, round(bandwidth / factor))
        changes = {"bandwidth_bytes_per_s": slower, "latency_ns": round(link.latency_ns * factor)}
        links[name] = link.model_copy(update=changes)
    return hardware.with_links(links)


def carried(plan: Plan, graph: Graph, to: Graph) -> Plan:
    """The decisions of a fixed plan for another graph with the same names.

    Parameters
    ----------
    plan
        A fixed plan.
    graph, to
        What it was made for, and what it shall run.

    Raises
    ------
    PlanError
        If an op or a tensor is missing on one side.
    """
    ops = _renumbered(plan, "op", [op.name for op in graph.ops], [op.name for op in to.ops])
    tensors = _renumbered(plan, "tensor", [t.name for t in graph.tensors], [t.name for t in to.tensors])
    steps = plan.fixed
    if steps is None or (ops == list(range(len(ops))) and tensors == list(range(len(tensors)))):
        return plan
    home = [NOWHERE] * len(tensors)
    for tensor, tier in enumerate(plan.home):
        home[tensors[tensor]] = tier
    a = [ops[a] if kind == COMPUTE else tensors[a] for kind, a in zip(steps.kind, steps.a, strict=True)]
    return replace(plan, home=tuple(home), steps=Steps.from_columns(steps.kind, a, steps.b, steps.c))


def _renumbered(plan: Plan, what: str, names: Sequence[str], others: Sequence[str]) -> list[int]:
    """The id in the other graph of each id in the first."""
    number = {name: i for i, name in enumerate(others)}
    odd = set(names).symmetric_difference(others)
    if odd:
        must = f"a plan is carried over to a graph with the same {what}s"
        raise PlanError(f"plan {plan.name!r}", must, f"{min(odd)!r} on one side only", "make a plan for that graph")
    return [number[name] for name in names]
