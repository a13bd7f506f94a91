"""Reads in place in plans: which tensors stay where they are, while the policy plans as if no op read them.

A policy sees the graph without the reads of these tensors (`Graph.without_reads`), whose ops take as long as they do
when they load them alone. Its plan is one of the whole graph, as reading in place needs no action (semantics, rule 3);
so it is tried, and runs, with what loads take from its copies.

*Choice.* A tensor costs what its readers take longer when they load it, and saves its room and its copy in. So tensors
are taken in the order of that cost by the time of the copy, those of equal cost evenly spread over the step. None,
those that cost at most half of their copy, half of the others, and all are planned and tried, and the fastest plan is
kept.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from fractions import Fraction

from simulator.cost import load_ns, loaded_bytes
from simulator.errors import ScopeError
from simulator.plan import FREE, Plan
from simulator.policies.decide import Best
from simulator.policies.problem import Problem, Replay
from simulator.units import human


def in_place(problem: Problem, choice: str, decide: Callable[[Problem], Plan]) -> Plan:
    """Decide what is read in place, and plan the rest.

    Parameters
    ----------
    problem
        Problem to plan for.
    choice
        ``never``, ``always`` or ``choose`` (`simulator.scenario.PolicyChoice`).
    decide
        A policy with its options.

    Raises
    ------
    ScopeError
        If all that may be read in place should be, and none lies in a tier that kernels load from.
    CapacityError
        If no plan was found that fits: that of the least demand.
    """
    if not (problem.graph.in_place and problem.hardware.loads):
        return decide(problem)
    away, free = _in_order(problem)
    if choice == "always" and not away:
        must, do = "a tensor read in place has its home in a tier that kernels load from", "give it one"
        raise ScopeError("in_place", must, "none such", do)
    if choice != "choose":
        return _planned(problem, away if choice == "always" else (), decide)
    best = Best[Plan](problem)
    for count in sorted({0, free, (free + len(away)) // 2, len(away)}):
        with best.trying():
            plan = _planned(problem, away[:count], decide)
            best.offer(plan, plan)
    return best.chosen()


def _planned(problem: Problem, away: Sequence[int], decide: Callable[[Problem], Plan]) -> Plan:
    """Plan with these tensors read in place."""
    left, sizes = frozenset(away), problem.sizes
    view, whole = problem.graph.without_reads(left), replace(problem.graph, in_place=left)
    durations_ns = [*map(max, problem.durations_ns, _loading_ns(problem, left))]
    homes = tuple(_home(problem, t) if t in left else home for t, home in enumerate(problem.homes))

    def trial(tried: Problem, plan: Plan) -> Replay:
        """Try a plan with its reads in place."""
        graph, alone_ns = whole.over(tried.graph.steps), problem.durations_ns
        return problem.trial(replace(tried, graph=graph, durations_ns=alone_ns, trial=problem.trial), plan)

    graph = replace(view, in_place=frozenset())
    plan = decide(replace(problem, graph=graph, homes=homes, durations_ns=durations_ns, trial=trial))
    notes = [f"{human(sum(sizes[t] for t in left), 'B')} are read in place"] if left else []
    return replace(plan, notes=(*plan.notes, *notes))


def _loading_ns(problem: Problem, away: Collection[int]) -> list[int]:
    """Return what each op takes alone to load what it reads of these tensors; 0 if it reads none [ns]."""
    hardware, takes_ns = problem.hardware, list[int]()
    links = [*hardware.links.values()]
    for op in problem.graph.ops:
        sizes = Counter[int]()
        for tensor in set(op.reads).intersection(away):
            sizes[hardware.loads[_home(problem, tensor)]] += problem.sizes[tensor]
        loads = (load_ns(op, loaded_bytes(op, size), links[link], hardware) for link, size in sizes.items())
        takes_ns.append(max(loads, default=0))
    return takes_ns


def _home(problem: Problem, tensor: int) -> int:
    """Return where a tensor lies that is read in place; by default in the first tier that kernels load from."""
    return problem.homes[tensor] if problem.homes[tensor] != FREE else next(iter(problem.hardware.loads))


def _in_order(problem: Problem) -> tuple[list[int], int]:
    """List what can be read in place, what costs least of its copy first; and count what costs half of that at most."""
    able = [t for t in sorted(problem.graph.in_place) if _home(problem, t) in problem.hardware.loads]
    times = zip(_loading_ns(problem, frozenset(able)), problem.durations_ns, strict=True)
    longer = [max(0, loading_ns - alone_ns) for loading_ns, alone_ns in times]
    costs = {t: sum(longer[op] for op in problem.lifetimes.uses[t]) for t in able}
    copies_ns = {t: max(1, problem.copy_ns(t, _home(problem, t), problem.compute_tier)) for t in able}
    spread = {t: f"{position:b}"[::-1] for position, t in enumerate(able)}
    order = sorted(able, key=lambda t: (Fraction(costs[t], copies_ns[t]), spread[t], t))
    return order, sum(2 * costs[t] <= copies_ns[t] for t in able)
