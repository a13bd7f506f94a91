"""What iterations take: each is a graph that the row's policy plans and the engine replays, alike ones once.

Numbers of tokens vary from iteration to iteration. So that many are alike, tokens of prompts are rounded up to whole
blocks, and what is attended to (tokens cached, pairs) to five binary digits, less than 1/16 more. What is copied is not
rounded.

What is copied before the steps of the plan is in `simulator.serving.ahead`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from simulator import metrics
from simulator.builders import Iteration, iteration
from simulator.builders.decoder.inference import loaded as loaded_name
from simulator.builders.decoder.inference import stored as stored_name
from simulator.catalog import Loaded
from simulator.errors import CapacityError, ScopeError
from simulator.graph import Graph, Job
from simulator.plan import COPY, Plan
from simulator.policies import Problem
from simulator.run.case import Case, prepare_job
from simulator.run.row import checked
from simulator.serving.ahead import ending, with_loads, with_stores
from simulator.serving.outlast import Replayed, Stored
from simulator.trace import CAUSES, Trace
from simulator.units import counted
from simulator.workload import DecoderModel

_DIGITS = 5
MOST_REPLAYED = 10_000
"""Unless another number is given, a row ends that needs more replays: minutes of a small model, an hour of others."""
_ALIKE = 100
"""A row also ends that needs so many times as many iterations: about that many that are known take as long as a replay.
"""


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
    most
        How many are replayed; what comes then and is not known is ``unfinished``. So is, known or not, what comes after
        a hundred times as many iterations.
    """

    def __init__(self, loaded: Loaded, row: str, room: int, *, exact: bool = False, most: int = MOST_REPLAYED) -> None:
        self._loaded, self._row, self._room, self._exact, self._most = loaded, row, room, exact, most
        self._known: dict[Iteration, Replayed] = {}
        self._told = 0

    @property
    def layers(self) -> int:
        """How many layers the model has."""
        model = self._loaded.workload.model
        return model.layers if isinstance(model, DecoderModel) else 1

    def __len__(self) -> int:
        """How many iterations were replayed."""
        return len(self._known)

    def of(self, work: Iteration) -> Replayed:
        """What an iteration takes."""
        key = work if self._exact else self._rounded(work)
        if self._told == _ALIKE * self._most:
            return _unfinished(f"{self._told:,} iterations, the most that may be with {counted(self._most, 'replay')}")
        if key not in self._known:
            if len(self._known) == self._most:
                rounded = ", leave --exact out" if self._exact else ""
                return _unfinished(f"{counted(self._most, 'replay')}, the most that may be", rounded)
            self._known[key] = self._replay(key)
        self._told += 1
        return self._known[key]

    def _rounded(self, work: Iteration) -> Iteration:
        asked = self._loaded.workload.requests
        block, most = (asked.block, asked.max_tokens) if asked else (1, 1)
        reading = min(-(-work.reading // block) * block, max(work.reading, most - work.decoding))
        context, cached, pairs = map(_up, (work.context, work.cached, work.pairs))
        return work._replace(reading=reading, context=context, cached=cached, pairs=pairs)

    def _replay(self, work: Iteration) -> Replayed:
        here = self._loaded.hardware.compute_tier
        leaving = sum(tokens for (source, _), tokens in work.stored(self.layers, 0).items() if source == here)
        graph = iteration(self._loaded.workload, work, self._room - leaving)
        case = prepare_job(_with_homes(self._loaded, work), Job.of(graph))
        decide = case.rows([self._row])[self._row]
        try:
            plan = self._with_copies(decide(case.problem), graph, case.problem, work)
        except CapacityError as error:
            return Replayed("infeasible", why=str(error))
        except ScopeError as error:
            return Replayed("refused", why=error.reason)
        trace, _, ran = checked(case, self._row, [plan])
        if trace.status != "ok":
            return Replayed(trace.status, why="; ".join(trace.blocked[:1]))
        row = metrics.summarise(case.job, case.hardware, trace, ran=ran)
        waits = {cause: row[f"wait_{cause}_ns"] for cause in CAUSES}
        moved = {link: row[f"moved_{link}_bytes"] for link in case.hardware.link_names}
        stores = tuple(_stored(case, trace, work, self.layers)) if work.ways else ()
        return Replayed("ok", row["step_ns"], row["stall_ns"], row["drain_ns"], waits, moved, stores=stores)

    def _with_copies(self, plan: Plan, graph: Graph, problem: Problem, work: Iteration) -> Plan:
        """The plan, with what is copied before its steps."""
        asked = self._loaded.workload.requests
        if asked is not None and asked.queued_blocks is not None:
            plan = with_loads(plan, graph, problem, work, asked.queued_blocks * asked.block)
        return with_stores(plan, graph, problem, work)


def _unfinished(took: str, more: str = "") -> Replayed:
    return Replayed("unfinished", why=f"it took {took}; raise --replays{more}, or serve fewer requests")


def rows_of(loaded: Loaded, policies: Sequence[str] | None) -> list[str]:
    """Say which rows there are; see `simulator.run.case.Case.rows`."""
    work = Iteration(decoding=1, answers=1)
    case = prepare_job(_with_homes(loaded, work), Job.of(iteration(loaded.workload, work, 1)))
    return list(case.rows(policies))


def _stored(case: Case, trace: Trace, work: Iteration, layers: int) -> Iterator[Stored]:
    """What became of each store."""
    spans = trace.spans.whole()
    links, tensors = case.hardware.link_names, case.graph.tensors
    for way in work.ways:
        token_bytes = 0
        for tensor in ending(case.graph, stored_name(*way)):
            size = tensors[tensor].size_bytes
            token_bytes = token_bytes or size // work.stored(layers, 0)[way]
            mine = (spans["kind"] == COPY) & (spans["item"] == tensor)
            moved = tuple((links[link], size) for link in spans["track"][mine].tolist())
            ends = int(spans["start_ns"][mine].min()), int(spans["end_ns"][mine].max())
            yield Stored(way, size // token_bytes, *ends, moved)


def _up(number: int) -> int:
    """Round up to five binary digits."""
    unit = 1 << max(0, number.bit_length() - _DIGITS)
    return -(-number // unit) * unit


def _with_homes(loaded: Loaded, work: Iteration) -> Loaded:
    """The scenario of an iteration: what is cached has its home where it lies."""
    here = loaded.hardware.compute_tier
    homes = {"*/kv": here}
    homes |= {f"*/{loaded_name(tier)}": tier for tier, _ in work.loads}
    homes |= {f"*/{stored_name(*way)}": way[0] for way in work.ways}
    scenario = loaded.scenario
    return replace(loaded, scenario=scenario.model_copy(update={"homes": {**scenario.homes, **homes}, "expect": ()}))
