"""What iterations take: each is a graph that the row's policy plans and the engine replays, alike ones once.

Numbers of tokens vary from iteration to iteration; which of them are alike is said in `simulator.serving.classes`.

Before the steps of the plan is copied, whatever the row's policy thinks of it:

*Stores*: copies of blocks to other tiers, whose source and target are the cache's rule. They run beside the iteration,
which ends when they have.

*Loads*, if they are more than an engine may queue (`Requests.queued_blocks`): the thread that launches ops submits the
copies of what was found below, and once so many are under way it cannot go on. So all are issued at once, and the host
waits for those that are too many before it issues the first op.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain, filterfalse, pairwise
from typing import Any

from simulator import metrics
from simulator.builders import Iteration, decoder_of, further, iteration, lone
from simulator.builders.inference import cache_name
from simulator.builders.inference import loaded as loaded_name
from simulator.builders.inference import stored as stored_name
from simulator.catalog import Loaded
from simulator.errors import CapacityError, ScopeError
from simulator.graph import Job
from simulator.plan import COPY, DETACH, SYNC, Actions, Code, Plan, View
from simulator.policies import Problem
from simulator.run.case import Case, prepare
from simulator.run.row import checked
from simulator.serving.asked import asked_of, groups_of
from simulator.serving.classes import PARTS, WAITS, Classes
from simulator.trace import CAUSES


class Replays:
    """Replays the iterations of a row.

    Parameters
    ----------
    loaded
        The scenario, its machine and its workload.
    row
        Which of its policies decides.
    room_bytes
        What the KV cache has room for in the compute tier [B].
    exact
        Whether every iteration is replayed as it is, and none stands for others.

    Attributes
    ----------
    further
        What iterations tell of besides all tokens: see `simulator.builders.Iteration`.
    """

    def __init__(self, loaded: Loaded, row: str, room_bytes: int, *, exact: bool = False) -> None:
        self._loaded, self._row, self._room_bytes, self._exact = loaded, row, room_bytes, exact
        self.further = further(decoder_of(loaded.workload))
        self._asked, self._classes = asked_of(loaded), Classes(loaded, _smallest(loaded).problem)
        self._known: dict[Iteration, dict[str, Any]] = {}

    def __len__(self) -> int:
        """How many iterations were replayed."""
        return len(self._known)

    def of(self, work: Iteration) -> dict[str, Any]:
        """What an iteration takes.

        Returns
        -------
        dict
            ``status``, as of a row of `simulator.run`, and ``why`` it is not ``ok``. If it is: ``took_ns``, how long it
            took; of it ``stall_ns``, how long compute waited, by ``wait_<cause>_ns``, and ``drain_ns``, how long copies
            ran after the last op; ``moved_<link>_bytes``; and ``flops``, its arithmetic (`Graph.arithmetic`).
        """
        if self._exact:
            return self._replayed(work)
        for parts in PARTS:
            alike, more_ns = self._classes.of(work, parts)
            known = self._replayed(alike)
            if known["status"] != "ok":
                return known
            if known["stall_ns"] + known["drain_ns"] <= WAITS * known["took_ns"]:
                break
        more = self._classes.moved(work)
        more.subtract(self._classes.moved(alike))
        moved = {(column := f"moved_{link}_bytes"): known[column] + number for link, number in more.items()}
        return {**known, "took_ns": known["took_ns"] + more_ns, **moved, "flops": self._classes.flops(work)}

    def _replayed(self, work: Iteration) -> dict[str, Any]:
        if work not in self._known:
            self._known[work] = self._replay(work)
        return self._known[work]

    def _replay(self, work: Iteration) -> dict[str, Any]:
        here = self._loaded.hardware.compute_tier
        groups = groups_of(self._loaded)
        left = [
            n * groups[at].token_bytes for (tier, _), some in work.stores if tier == here for at, n in enumerate(some)
        ]
        job = Job.of(iteration(self._loaded.workload, work, self._room_bytes - sum(left)))
        case = prepare(_with_homes(self._loaded, work), job)
        try:
            plan = case.rows([self._row])[self._row](case.problem)
        except CapacityError as error:
            return {"status": "infeasible", "why": str(error)}
        except ScopeError as error:
            return {"status": "refused", "why": error.reason}
        queued = self._asked.queued_blocks
        plan = _with_copies(plan, case.problem, work, None if queued is None else queued * self._asked.block)
        trace, _, ran = checked(case, self._row, [plan])
        if trace.status != "ok":
            return {"status": trace.status, "why": "; ".join(trace.blocked[:1])}
        row = metrics.summarise(case.job, case.hardware, trace, ran=ran)
        columns = ["stall_ns", "drain_ns", *(f"wait_{cause}_ns" for cause in CAUSES)]
        columns += [f"moved_{link}_bytes" for link in case.hardware.links]
        counted = {"took_ns": row["step_ns"], **{column: row[column] for column in columns}}
        return {"status": "ok", "why": "", **counted, "flops": sum(job.graphs[0].arithmetic.values())}


def rows_of(loaded: Loaded, policies: Sequence[str] | None) -> list[str]:
    """Say which rows there are; see `simulator.run.case.Case.rows`."""
    return list(_smallest(loaded).rows(policies))


def _smallest(loaded: Loaded) -> Case:
    """The least that an iteration can be."""
    work = lone(loaded.workload)
    return prepare(_with_homes(loaded, work), Job.of(iteration(loaded.workload, work, 1)))


def _with_homes(loaded: Loaded, work: Iteration) -> Loaded:
    """The scenario of an iteration: what is cached has its home where it lies."""
    named = {cache_name(part) for part, _ in decoder_of(loaded.workload).kinds}
    homes = {f"*/{name}": loaded.hardware.compute_tier for name in sorted(named)}
    homes |= {f"*/{loaded_name(tier)}": tier for tier, _ in work.loads}
    homes |= {f"*/{stored_name(*way)}": way[0] for way, _ in work.stores}
    scenario = loaded.scenario
    return replace(loaded, scenario=scenario.model_copy(update={"homes": {**scenario.homes, **homes}, "expect": ()}))


def _with_copies(plan: Plan, problem: Problem, work: Iteration, queued: int | None) -> Plan:
    """The plan of an iteration, with its stores before its steps; and its loads, if they are more tokens than queued.

    Of these, all but so many tokens are waited for.
    """
    tiers, here, codes = problem.tiers, problem.compute_tier, list[Code]()
    for (source, target), _ in work.stores:
        path = problem.path(tiers.index(source), tiers.index(target))
        for tensor in _ending(problem, stored_name(source, target)):
            codes += [*_moved(tensor, path), (DETACH, tensor, path[-1], 0)]
    found, coming = sum(sum(tokens) for _, tokens in work.loads), dict[int, str]()
    if queued is not None and found > queued:
        coming = {tensor: tier for tier, _ in work.loads for tensor in _ending(problem, loaded_name(tier))}
        sizes = {tensor: problem.graph.tensors[tensor].size_bytes for tensor in sorted(coming)}
        left, waited = sum(sizes.values()), -1
        still = left * queued // found
        for tensor, size in sizes.items():
            codes += _moved(tensor, problem.path(tiers.index(coming[tensor]), here))
            waited = tensor if left > still else waited
            left -= size
        codes.append((SYNC, waited, 0, 0))
    if not codes:
        return plan

    def is_done(code: Code) -> bool:
        kind, tensor, tier, _ = code
        return tensor in coming and (kind == COPY or (kind == DETACH and tier != here))

    if isinstance(plan.actions, Actions):
        columns = zip(*codes, *filterfalse(is_done, plan.actions.codes()), strict=True)
        return replace(plan, actions=Actions.from_columns(*columns))
    decide = plan.actions

    def steps(view: View) -> Iterator[Code]:
        return chain(codes, filterfalse(is_done, decide(view)))

    return replace(plan, actions=steps)


def _ending(problem: Problem, name: str) -> Sequence[int]:
    """Tensors of this last name, one for each layer."""
    return [tensor for tensor, one in enumerate(problem.graph.tensors) if one.name.endswith(f"/{name}")]


def _moved(tensor: int, path: Sequence[int]) -> Iterator[Code]:
    """Copies of a tensor from the first tier of a path to the last one; it stays at both."""
    yield from ((COPY, tensor, start, end) for start, end in pairwise(path))
    yield from ((DETACH, tensor, tier, 0) for tier in path[1:-1])
