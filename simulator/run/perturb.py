"""The same run under other conditions than it was planned for.

``jitter``
    Every op takes its time times a factor of its own; every link's time is multiplied by a factor, one for each link
    and draw, because what slows a link down (other traffic, a clock) lasts longer than a step. Factors are log-normal
    with mean 1 and the level as their coefficient of variation ``c``: ``exp(s z - s^2 / 2)`` with ``s^2 = ln(1 + c^2)``
    and ``z`` normal. Times are whole nanoseconds, at least 1 where they were not 0. A draw has the same ``z`` at all
    levels, so that levels can be compared. Such a factor is skewed: its median is ``1 / sqrt(1 + c^2)``, 0.98 at 20 %
    and 0.71 at 100 %. So where a step hangs on one link, its median under large jitter lies below its mean, and may lie
    below the nominal step.
``copy jitter``
    Every op as above, and every copy takes its time times a factor of its own: drawn by its issue number, so that it
    depends on nothing else that happens. Links themselves stay as they are.
``slower links``
    Every link has its bandwidth times ``1 - level``.
``inspection``
    What a runtime pays to look at the state before each compute, which is measured nowhere: the level is that time.
``longer sequence``
    The workload's model is built again with its sequence times ``1 + level``, rounded; a fixed plan is carried over by
    the names of ops and tensors, a runtime decides anew.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from pydantic import PrivateAttr

from simulator.cost import FULL_RATE, Stretch, durations_ns
from simulator.errors import ConfigError, PlanError
from simulator.graph import Graph
from simulator.hardware import Hardware
from simulator.plan import COMPUTE, NOWHERE, Plan, Steps
from simulator.run.case import Case, prepare
from simulator.scenario import Switches

_BLOCK = 4096
"""Factors of copies are drawn so many at a time."""

LARGEST_LOSS = 0.99
"""Most that a link may lose of its bandwidth."""

LONGEST_INSPECTION_NS = 1e9
"""Most that a look at the state may take [ns]."""

NOMINAL, JITTER, COPIES, LINKS, SEQUENCE = "nominal", "jitter", "copy jitter", "slower links", "longer sequence"
INSPECTION = "inspection"


@dataclass(frozen=True, slots=True)
class Condition:
    """What differs from the plan's world.

    Attributes
    ----------
    kind
        ``nominal``, ``jitter``, ``copy jitter``, ``slower links``, ``inspection`` or ``longer sequence``.
    level
        How much, as a share; of an inspection, its time [ns]. 0 is nominal.
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
        As it was planned for; of one rank.
    condition
        What differs.
    seed
        Of the draws.
    """
    if condition.kind in (JITTER, COPIES):
        return _jittered(case, condition, seed)
    if condition.kind == LINKS:
        return _changed(case, case.graph, _stretched(case.hardware, [1 / (1 - condition.level)]))
    if condition.kind == INSPECTION:
        return _changed(case, case.graph, _inspecting(case.hardware, round(condition.level)))
    if condition.kind == SEQUENCE:
        workload = case.loaded.workload
        sequence = max(1, round(workload.sequence * (1 + condition.level)))
        return prepare(replace(case.loaded, workload=workload.model_copy(update={"sequence": sequence})))
    return case


def _jittered(case: Case, condition: Condition, seed: int) -> Case:
    graph, links = case.graph, case.hardware.links
    normal = np.random.default_rng((seed, condition.draw)).standard_normal(len(graph.ops) + len(links))
    factors = _factors(normal, condition.level).tolist()
    ops = tuple(
        replace(op, duration_ns=max(1, round(ns * factor)) if ns else 0)
        for op, ns, factor in zip(graph.ops, case.problem.durations_ns, factors, strict=False)
    )
    if condition.kind == COPIES:
        found = _changed(case, replace(graph, ops=ops), case.hardware)
        switches = JitteryCopies(found.problem.switches, seed, condition)
        return replace(found, tasks=(replace(found.tasks[0], problem=replace(found.problem, switches=switches)),))
    return _changed(case, replace(graph, ops=ops), _stretched(case.hardware, factors[len(ops) :]))


def _factors(normal: NDArray[np.float64], level: float) -> NDArray[np.float64]:
    """Log-normal factors with mean 1."""
    sigma = math.sqrt(math.log1p(level**2))
    found: NDArray[np.float64] = np.exp(sigma * normal - sigma**2 / 2)
    return found


class JitteryCopies(Switches):
    """The switches of a machine on which each copy takes its time times a factor of its own.

    Parameters
    ----------
    switches
        Those of the nominal machine.
    seed, condition
        What the factors are drawn by, beside the issue number of a copy.
    """

    _seed: tuple[int, int] = PrivateAttr()
    _level: float = PrivateAttr()
    _drawn: dict[int, list[int]] = PrivateAttr(default_factory=dict)

    def __init__(self, switches: Switches, seed: int, condition: Condition) -> None:
        super().__init__(**switches.model_dump())
        self._seed, self._level = (seed, condition.draw), condition.level

    @property
    def stretch(self) -> Stretch:
        """By issue number of a copy: its factor, in 2^-32."""
        return self._factor

    def _factor(self, issue: int) -> int:
        block, at = divmod(issue, _BLOCK)
        if block not in self._drawn:
            normal = np.random.default_rng((*self._seed, 1 + block)).standard_normal(_BLOCK)
            self._drawn[block] = [max(1, round(f * FULL_RATE)) for f in _factors(normal, self._level).tolist()]
        return self._drawn[block][at]


def _stretched(hardware: Hardware, factors: Sequence[float]) -> Hardware:
    """The machine with the time of each link multiplied (by the same factor, if there is one only).

    A staged link is as slow as those that it goes via.
    """
    links = dict(hardware.links)
    for number, (name, link) in enumerate(hardware.links.items()):
        if link.via:
            continue
        bandwidth, factor = link.bandwidth_bytes_per_s, factors[number % len(factors)]
        slower = bandwidth if bandwidth == math.inf else max(1, round(bandwidth / factor))
        changes = {"bandwidth_bytes_per_s": slower, "latency_ns": round(link.latency_ns * factor)}
        links[name] = link.model_copy(update=changes)
    return hardware.with_links(links)


def _inspecting(hardware: Hardware, inspect_ns: int) -> Hardware:
    """The machine whose runtime pays so much to look at the state."""
    reactive = hardware.host.reactive.model_copy(update={"inspect_ns": inspect_ns})
    return hardware.model_copy(update={"host": hardware.host.model_copy(update={"reactive": reactive})})


def _changed(case: Case, graph: Graph, hardware: Hardware) -> Case:
    times, (task,) = durations_ns(graph, hardware), case.tasks
    problem = replace(task.problem, graph=graph, hardware=hardware, durations_ns=times, rehearsal=None)
    return replace(case, tasks=(replace(task, problem=problem),))


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
    most, limit = {
        LINKS: (LARGEST_LOSS, "99 %"),
        JITTER: (1.0, "100 %"),
        COPIES: (1.0, "100 %"),
        SEQUENCE: (99.0, "9,900 %"),
        INSPECTION: (LONGEST_INSPECTION_NS, "1 s"),
    }[kind]
    for level in levels:
        if kind == INSPECTION and not 1 <= level <= most:
            do = "write times, such as 100ns,5us"
            raise ConfigError(f"levels of {kind}", f"a level is from 1 ns to {limit}", f"{level:g} ns", do)
        if not 0 < level <= most:
            must = f"a level is above 0 % and at most {limit}"
            raise ConfigError(f"levels of {kind}", must, f"{100 * level:g} %", "correct it")
    if kind == SEQUENCE and levels and case.loaded.workload.model is None:
        must = "only the step of a model can be built for a longer sequence"
        raise ConfigError("levels of longer sequence", must, "a graph from a file", "leave them out")
