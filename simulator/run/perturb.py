"""The same run under other conditions than it was planned for.

``jitter``
    Every op takes its time times a factor of its own; every link's time is multiplied by a factor, one for each link
    and draw, because what slows a link down (other traffic, a clock) lasts longer than a step. Factors are log-normal
    with mean 1 and the level as their coefficient of variation ``c``: ``exp(s z - s^2 / 2)`` with ``s^2 = ln(1 + c^2)``
    and ``z`` normal. Times are whole nanoseconds, at least 1 where they were not 0. A draw has the same ``z`` at all
    levels, so that levels can be compared. Such a factor is skewed: its median is ``1 / sqrt(1 + c^2)``, 0.98 at 20 %
    and 0.71 at 100 %. So where a step hangs on one link, its median under large jitter lies below its mean, and may lie
    below the nominal step.
``slower links``
    Every link has its bandwidth times ``1 - level``.
``longer sequence``
    The workload's model is built again with its sequence times ``1 + level``, rounded; a fixed plan is carried over by
    the names of ops and tensors, a runtime decides anew.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from simulator.cost import durations_ns
from simulator.errors import ConfigError, PlanError
from simulator.graph import Graph
from simulator.hardware import Hardware
from simulator.plan import COMPUTE, NOWHERE, Plan, Steps
from simulator.run.case import Case, prepare

LARGEST_LOSS = 0.99
"""Most that a link may lose of its bandwidth."""

NOMINAL, JITTER, LINKS, SEQUENCE = "nominal", "jitter", "slower links", "longer sequence"


@dataclass(frozen=True, slots=True)
class Condition:
    """What differs from the plan's world.

    Attributes
    ----------
    kind
        ``nominal``, ``jitter``, ``slower links`` or ``longer sequence``.
    level
        How much, as a share; 0 is nominal.
    draw
        Number of the draw.
    """

    kind: str = NOMINAL
    level: float = 0.0
    draw: int = 0


def perturbed(case: Case, condition: Condition, seed: int) -> Case:
    """Make the case under a condition.

    Parameters
    ----------
    case
        As it was planned for.
    condition
        What differs.
    seed
        Of the draws.
    """
    if condition.kind == JITTER:
        return _jittered(case, condition, seed)
    if condition.kind == LINKS:
        return _changed(case, case.graph, _stretched(case.hardware, [1 / (1 - condition.level)]))
    if condition.kind == SEQUENCE:
        workload = case.loaded.workload
        sequence = max(1, round(workload.sequence * (1 + condition.level)))
        return prepare(replace(case.loaded, workload=workload.model_copy(update={"sequence": sequence})))
    return case


def _jittered(case: Case, condition: Condition, seed: int) -> Case:
    graph, links = case.graph, case.hardware.links
    normal = np.random.default_rng((seed, condition.draw)).standard_normal(len(graph.ops) + len(links))
    sigma = math.sqrt(math.log1p(condition.level**2))
    factors = np.exp(sigma * normal - sigma**2 / 2).tolist()
    ops = tuple(
        replace(op, duration_ns=max(1, round(ns * factor)) if ns else 0)
        for op, ns, factor in zip(graph.ops, case.problem.durations_ns, factors, strict=False)
    )
    return _changed(case, replace(graph, ops=ops), _stretched(case.hardware, factors[len(ops) :]))


def _stretched(hardware: Hardware, factors: Sequence[float]) -> Hardware:
    """The machine with the time of each link multiplied (by the same factor, if there is one only)."""
    links = {}
    for number, (name, link) in enumerate(hardware.links.items()):
        bandwidth, factor = link.bandwidth_bytes_per_s, factors[number % len(factors)]
        slower = bandwidth if bandwidth == math.inf else max(1, round(bandwidth / factor))
        changes = {"bandwidth_bytes_per_s": slower, "latency_ns": round(link.latency_ns * factor)}
        links[name] = link.model_copy(update=changes)
    return hardware.model_copy(update={"links": links})


def _changed(case: Case, graph: Graph, hardware: Hardware) -> Case:
    times = durations_ns(graph, hardware)
    return replace(case, problem=replace(case.problem, graph=graph, hardware=hardware, durations_ns=times))


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
        raise PlanError(f"plan {plan.policy!r}", must, f"{min(odd)!r} on one side only", "make a plan for that graph")
    return [number[name] for name in names]


def check_levels(case: Case, kind: str, levels: Sequence[float]) -> None:
    """Refuse what cannot be done to this case.

    Parameters
    ----------
    case
        As it was planned for.
    kind, levels
        The conditions.

    Raises
    ------
    ConfigError
        If a level is out of range, or a graph from a file shall get a longer sequence.
    """
    most, limit = {LINKS: (LARGEST_LOSS, "99 %"), JITTER: (1.0, "100 %"), SEQUENCE: (99.0, "9,900 %")}[kind]
    for level in levels:
        if not 0 < level <= most:
            must = f"a level is above 0 % and at most {limit}"
            raise ConfigError(f"levels of {kind}", must, f"{100 * level:g} %", "correct it")
    if kind == SEQUENCE and levels and case.loaded.workload.model is None:
        must = "only the step of a model can be built for a longer sequence"
        raise ConfigError("levels of longer sequence", must, "a graph from a file", "leave them out")
