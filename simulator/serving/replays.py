"""What iterations take: each is a graph that the row's policy plans and the engine replays, alike ones once.

Numbers of tokens vary from iteration to iteration. So that many are alike, tokens of prompts are rounded up to whole
blocks, and what is attended to (tokens cached, pairs) to five binary digits, less than 1/16 more. What is copied is not
rounded.

Before the steps of the plan is copied, whatever the row's policy thinks of it:

*Stores*: copies of blocks to other tiers, whose source and target are the cache's rule. They run beside the iteration;
see below for when it ends.

*Loads*, if they are more than an engine may queue (`Requests.queued_blocks`): the thread that launches ops submits the
copies of what was found below, and once so many are under way it cannot go on. So all are issued at once, and the host
waits for those that are too many before it issues the first op.

*An iteration ends* with its last op if the room that its stores leave is not needed yet, else with its stores. A store
is of a layer. One that has begun when the last op ends is waited for, as nothing in flight is called off; those that
have not are left to the next iteration, whose copies they contend with. No more has happened by then than in a replay
of all of them, which begin one after another.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, filterfalse, pairwise
from typing import NamedTuple

from simulator import metrics
from simulator.builders import Iteration, iteration
from simulator.builders.inference import loaded as loaded_name
from simulator.builders.inference import stored as stored_name
from simulator.catalog import Loaded
from simulator.errors import CapacityError, ScopeError
from simulator.graph import Graph, Job
from simulator.plan import COPY, DETACH, SYNC, Code, Plan, Steps, View
from simulator.policies import Problem
from simulator.run.case import Case, prepare
from simulator.run.row import checked
from simulator.serving.asked import asked_of
from simulator.trace import CAUSES, Trace
from simulator.units import counted
from simulator.workload import DecoderModel

Way = tuple[str, str]


class Stored(NamedTuple):
    """The copies of a layer's blocks from one tier to another.

    Attributes
    ----------
    way, tokens
        From where to where, and how much.
    start_ns, end_ns
        When the first of them begins and the last one ends, from the start of the iteration [ns].
    moved_bytes
        Links that they pass, each with what goes over it [B].
    """

    way: Way
    tokens: int
    start_ns: int
    end_ns: int
    moved_bytes: tuple[tuple[str, int], ...]


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
    stores
        Its stores.
    """

    status: str
    ns: int = 0
    stall_ns: int = 0
    drain_ns: int = 0
    waits_ns: Mapping[str, int] = field(default_factory=dict)
    moved_bytes: Mapping[str, int] = field(default_factory=dict)
    why: str = ""
    stores: tuple[Stored, ...] = ()

    def until(self, at_ns: int) -> tuple[Replayed, Counter[Way]]:
        """What it comes to if it ends at a time, or with the stores that have begun by then; and what is left.

        Parameters
        ----------
        at_ns
            Not before its last op has ended [ns].

        Returns
        -------
        tuple
            What became of it, and tokens of a layer that are left of each way.
        """
        waiting = [one for one in self.stores if one.start_ns >= at_ns]
        if not waiting:
            return self, Counter()
        begun = (one.end_ns for one in self.stores if one.start_ns < at_ns)
        ns = max(at_ns, max(begun, default=0))
        moved, left = Counter(self.moved_bytes), Counter[Way]()
        for one in waiting:
            moved.subtract(dict(one.moved_bytes))
            left[one.way] += one.tokens
        return replace(self, ns=ns, drain_ns=self.drain_ns - (self.ns - ns), moved_bytes=dict(moved)), left

    @property
    def ops_ns(self) -> int:
        """When its last op ended [ns]."""
        return self.ns - self.drain_ns


def _with_stores(plan: Plan, graph: Graph, problem: Problem, work: Iteration) -> Plan:
    """The plan of an iteration, with its stores before its steps."""
    codes: list[Code] = []
    for source, target in work.ways:
        path = problem.path(problem.tiers.index(source), problem.tiers.index(target))
        for tensor in _ending(graph, stored_name(source, target)):
            codes += [*_moved(tensor, path), (DETACH, tensor, path[-1], 0)]
    return _changed(plan, codes)


def _with_loads(plan: Plan, graph: Graph, problem: Problem, work: Iteration, queued: int) -> Plan:
    """The plan of an iteration, with its loads before its steps, and of them all but so many tokens waited for.

    Of fewer tokens than may be under way when the first op is issued, the plan stays as it is.
    """
    here, found = problem.compute_tier, sum(tokens for _, tokens in work.loads)
    if found <= queued:
        return plan
    coming = {
        tensor: problem.tiers.index(tier) for tier, _ in work.loads for tensor in _ending(graph, loaded_name(tier))
    }
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


def _ending(graph: Graph, name: str) -> Sequence[int]:
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
        self._asked = asked_of(loaded)
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
        block, most = self._asked.block, self._asked.max_tokens
        reading = min(-(-work.reading // block) * block, max(work.reading, most - work.decoding))
        context, cached, pairs = map(_up, (work.context, work.cached, work.pairs))
        return work._replace(reading=reading, context=context, cached=cached, pairs=pairs)

    def _replay(self, work: Iteration) -> Replayed:
        here = self._loaded.hardware.compute_tier
        leaving = sum(tokens for (source, _), tokens in work.stored(self.layers, 0).items() if source == here)
        graph = iteration(self._loaded.workload, work, self._room - leaving)
        case = prepare(_with_homes(self._loaded, work), Job.of(graph))
        decide = case.rows([self._row])[self._row]
        try:
            plan, about = decide(case.problem), (graph, case.problem, work)
            if self._asked.queued_blocks is not None:
                plan = _with_loads(plan, *about, self._asked.queued_blocks * self._asked.block)
            plan = _with_stores(plan, *about)
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


def _unfinished(took: str, more: str = "") -> Replayed:
    return Replayed("unfinished", why=f"it took {took}; raise --replays{more}, or serve fewer requests")


def rows_of(loaded: Loaded, policies: Sequence[str] | None) -> list[str]:
    """Say which rows there are; see `simulator.run.case.Case.rows`."""
    work = Iteration(decoding=1, answers=1)
    case = prepare(_with_homes(loaded, work), Job.of(iteration(loaded.workload, work, 1)))
    return list(case.rows(policies))


def _stored(case: Case, trace: Trace, work: Iteration, layers: int) -> Iterator[Stored]:
    """What became of each store."""
    spans = trace.spans.whole()
    links, tensors = case.hardware.link_names, case.graph.tensors
    for way in work.ways:
        token_bytes = 0
        for tensor in _ending(case.graph, stored_name(*way)):
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
