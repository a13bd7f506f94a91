"""What iterations take: each is a graph that the row's policy plans and the engine replays, alike ones once.

Numbers of tokens vary from iteration to iteration. So that many are alike, tokens of prompts are rounded up to whole
blocks, and what is attended to (tokens cached, pairs) to five binary digits, less than 1/16 more. What is copied is not
rounded.

Copies of blocks to other tiers (stores) are issued before the first op and run beside the iteration, which ends when
they have ended; where they come from and go to is the cache's rule, not the policy's. So they are put before the steps
of its plan.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, pairwise

from simulator.builders import Iteration, iteration
from simulator.builders.decoder.serving import loaded as loaded_name
from simulator.builders.decoder.serving import stored as stored_name
from simulator.catalog import Loaded
from simulator.errors import CapacityError, ScopeError
from simulator.graph import Graph, Job
from simulator.plan import COPY, DETACH, Code, Plan, Steps, View
from simulator.run.case import Case, prepare_job
from simulator.run.row import replayed
from simulator.trace import CAUSES

_DIGITS = 5


@dataclass(frozen=True, slots=True)
class Replayed:
    """What became of an iteration.

    Attributes
    ----------
    status
        As of a row of `simulator.run`.
    ns, stall_ns, drain_ns
        How long it took; of it, how long compute waited, and for how long only copies ran after the last op [ns].
    waits_ns, moved_bytes
        Cause -> what of the stall it is [ns]; link -> what was copied over it [B].
    why
        What is in its way, if it did not run.
    """

    status: str
    ns: int = 0
    stall_ns: int = 0
    drain_ns: int = 0
    waits_ns: Mapping[str, int] | None = None
    moved_bytes: Mapping[str, int] | None = None
    why: str = ""


class Replays:
    """Replays the iterations of a row.

    Parameters
    ----------
    loaded
        The scenario, its machine and its workload.
    row
        Which of its policies decides.
    room
        How many tokens the KV cache has room for in the compute tier.
    exact
        Whether nothing is rounded.
    """

    def __init__(self, loaded: Loaded, row: str, room: int, *, exact: bool = False) -> None:
        self._loaded, self._row, self._room, self._exact = loaded, row, room, exact
        self._known: dict[Iteration, Replayed] = {}

    def __len__(self) -> int:
        """How many iterations were replayed."""
        return len(self._known)

    def of(self, work: Iteration) -> Replayed:
        """What an iteration takes."""
        key = work if self._exact else self._rounded(work)
        if key not in self._known:
            self._known[key] = self._replay(key)
        return self._known[key]

    def _rounded(self, work: Iteration) -> Iteration:
        asked = self._loaded.workload.requests
        block, most = (asked.block, asked.max_tokens) if asked else (1, 1)
        reading = min(-(-work.reading // block) * block, max(work.reading, most - work.decoding))
        context, cached, pairs = map(_up, (work.context, work.cached, work.pairs))
        return work._replace(reading=reading, context=context, cached=cached, pairs=pairs)

    def _replay(self, work: Iteration) -> Replayed:
        here = self._loaded.hardware.compute_tier
        leaving = sum(tokens for (source, _), tokens in work.stores if source == here)
        graph = iteration(self._loaded.workload, work, self._room - leaving)
        case = prepare_job(_with_homes(self._loaded, work), Job.of(graph))
        decide = case.rows([self._row])[self._row]
        try:
            plan = _storing(decide(case.problem), graph, case, work)
        except CapacityError as error:
            return Replayed("infeasible", why=str(error))
        except ScopeError as error:
            return Replayed("refused", why=error.reason)
        result = replayed(case, self._row, [plan])
        if result.status != "ok":
            return Replayed(result.status, why="; ".join(result.blocked[:1]))
        row = result.summary
        waits = {cause: row[f"wait_{cause}_ns"] for cause in CAUSES}
        moved = {link: row[f"moved_{link}_bytes"] for link in case.hardware.link_names}
        return Replayed("ok", row["step_ns"], row["stall_ns"], row["drain_ns"], waits, moved)


def rows_of(loaded: Loaded, policies: Sequence[str] | None) -> list[str]:
    """Say which rows there are; see `simulator.run.case.Case.rows`."""
    work = Iteration(decoding=1, answers=1)
    case = prepare_job(_with_homes(loaded, work), Job.of(iteration(loaded.workload, work, 1)))
    return list(case.rows(policies))


def _up(number: int) -> int:
    """Round up to five binary digits."""
    unit = 1 << max(0, number.bit_length() - _DIGITS)
    return -(-number // unit) * unit


def _with_homes(loaded: Loaded, work: Iteration) -> Loaded:
    """The scenario of an iteration: what is cached has its home where it lies."""
    here = loaded.hardware.compute_tier
    homes = {"*/kv": here}
    homes |= {f"*/{loaded_name(tier)}": tier for tier, _ in work.loads}
    homes |= {f"*/{stored_name(*way)}": way[0] for way, _ in work.stores}
    scenario = loaded.scenario
    return replace(loaded, scenario=scenario.model_copy(update={"homes": {**scenario.homes, **homes}, "expect": ()}))


def _storing(plan: Plan, graph: Graph, case: Case, work: Iteration) -> Plan:
    """The plan, with the stores before its steps."""
    codes = list(_stores(graph, case, work))
    if not codes:
        return plan
    if isinstance(plan.steps, Steps):
        kinds, *columns = zip(*codes, *plan.steps.codes(), strict=True)
        return replace(plan, steps=Steps.from_columns(kinds, *columns))
    stored, decide = {tensor for _, tensor, *_ in codes}, plan.steps

    def steps(view: View) -> Iterator[Code]:
        return chain(codes, decide(view))

    return replace(plan, steps=steps, untouched=plan.untouched - stored)


def _stores(graph: Graph, case: Case, work: Iteration) -> Iterator[Code]:
    """The copies of what is stored, over the links that lead there; what is there then, is the cache's to count."""
    problem, names = case.problem, {way: stored_name(*way) for way, _ in work.stores}
    for (source, target), name in names.items():
        path = problem.path(problem.tiers.index(source), problem.tiers.index(target))
        for tensor, one in enumerate(graph.tensors):
            if one.name.endswith(f"/{name}"):
                yield from ((COPY, tensor, start, end) for start, end in pairwise(path))
                yield from ((DETACH, tensor, tier, 0) for tier in path[1:])
