"""What an iteration copies before the steps of its plan, whatever the row's policy thinks of it.

*Stores*: copies of blocks to other tiers, whose source and target are the cache's rule. They run beside the iteration;
see `simulator.serving.outlast` for when it ends.

*Loads*, if they are more than an engine may queue (`Requests.queued_blocks`): the thread that launches ops submits the
copies of what was found below, and once so many are under way it cannot go on. So all are issued at once, and the host
waits for those that are too many before it issues the first op.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, filterfalse, pairwise

from simulator.builders import Iteration
from simulator.builders.decoder.inference import loaded, stored
from simulator.graph import Graph
from simulator.plan import COPY, DETACH, SYNC, Code, Plan, Steps, View
from simulator.policies import Problem


def with_stores(plan: Plan, graph: Graph, problem: Problem, work: Iteration) -> Plan:
    """The plan of an iteration, with its stores before its steps."""
    codes: list[Code] = []
    for source, target in work.ways:
        path = problem.path(problem.tiers.index(source), problem.tiers.index(target))
        for tensor in ending(graph, stored(source, target)):
            codes += [*_moved(tensor, path), (DETACH, tensor, path[-1], 0)]
    return _changed(plan, codes)


def with_loads(plan: Plan, graph: Graph, problem: Problem, work: Iteration, queued: int) -> Plan:
    """The plan of an iteration, with its loads before its steps, and of them all but so many tokens waited for.

    Parameters
    ----------
    plan, graph, problem, work
        What the policy decided, about what.
    queued
        Tokens whose copies may be under way when the first op is issued; of fewer, the plan stays as it is.
    """
    here, found = problem.compute_tier, sum(tokens for _, tokens in work.loads)
    if found <= queued:
        return plan
    coming = {tensor: problem.tiers.index(tier) for tier, _ in work.loads for tensor in ending(graph, loaded(tier))}
    left = sum(graph.tensors[tensor].size_bytes for tensor in coming)
    still, waited = left * queued // found, -1
    codes: list[Code] = []
    for tensor in sorted(coming):
        codes += _moved(tensor, problem.path(coming[tensor], here))
        waited = tensor if left > still else waited
        left -= graph.tensors[tensor].size_bytes

    def is_done(code: Code) -> bool:
        kind, tensor, tier, _ = code
        return tensor in coming and (kind == COPY or (kind == DETACH and tier != here))

    return _changed(plan, [*codes, (SYNC, waited, 0, 0)], is_done)


def ending(graph: Graph, name: str) -> Sequence[int]:
    """Tensors of this last name, one for each layer."""
    return [tensor for tensor, one in enumerate(graph.tensors) if one.name.endswith(f"/{name}")]


def _moved(tensor: int, path: Sequence[int]) -> Iterator[Code]:
    """Copies of a tensor from the first tier of a path to the last one; it stays at both."""
    yield from ((COPY, tensor, start, end) for start, end in pairwise(path))
    yield from ((DETACH, tensor, tier, 0) for tier in path[1:-1])


def _changed(plan: Plan, codes: list[Code], is_done: Callable[[Code], bool] = lambda _: False) -> Plan:
    """The plan with some steps before its own, and without those of its own that are done by then."""
    if not codes:
        return plan
    if isinstance(plan.steps, Steps):
        columns = zip(*codes, *filterfalse(is_done, plan.steps.codes()), strict=True)
        return replace(plan, steps=Steps.from_columns(*columns))
    touched, decide = {tensor for _, tensor, *_ in codes}, plan.steps

    def steps(view: View) -> Iterator[Code]:
        return chain(codes, filterfalse(is_done, decide(view)))

    return replace(plan, steps=steps, untouched=plan.untouched - touched)
