"""Times of iterations: each is a graph, which the row's policy plans and the engine replays once for all similar ones.

*Times of ops.* FLOPs and bytes of each op are linear in the numbers of an iteration (cached tokens, attending pairs,
...), so a few graphs give both sides of its roofline for all numbers, and with them the time of each op alone. Few
tokens leave some experts unread: their number has a closed form and is one more number of the iteration; the time of an
expert comes from an iteration of few tokens. Rows that expert ranks fill up are left out.

*Classes.* Each number is rounded to a multiple of the step that costs one part of the iteration's scale (the power of
two below the time of its ops), but never to 0. The price of a number is the most that one more can cost; for tokens it
is higher the fewer experts the other tokens have chosen. Copied tokens are rounded in the same way, to whole blocks, at
the price of their links. A part is 1/8; if compute then waits for more than 1/100 of the time, it is 1/64.

*Graphs.* Iterations with the same ops differ in numbers, so that the graph of the ops is kept, and gets the numbers of
each class (`simulator.builders.Iterations`).

*One stands for all.* An iteration takes as long as the replayed one of its class, corrected by the difference between
the times of their ops, each alone. So the class shares how ops, copies and the host wait for one another.

*Error.* With the same order of ops and copies, no end time changes by more than the sum of their changes, as it depends
on each at most once. So rounding a number causes an error of at most half a part, and only as far as waits change with
it: where they do not, the error is a few nanoseconds of rounding.

Two kinds of copies come before the plan's own actions, whatever the row's policy decides:

*Stores* copy blocks to other tiers; the cache's rules decide from where to where. They run beside the iteration, which
ends only when they have ended.

*Loads*, if there are more than the serving engine may queue (`Requests.queued_blocks`): the thread that launches ops
submits the copies of blocks found in lower tiers, and stalls once the queue is full. So all loads are issued at once,
and the host waits for those in excess of the queue before it issues the first op.

Loads before an admission are replayed alone, as stores to the compute tier of an iteration without ops.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from itertools import chain, filterfalse, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator import metrics
from simulator.builders import Iteration, Iterations, decoder_of, iteration, least_iteration, limited_reaches
from simulator.builders.cache import cache_name, parts_of
from simulator.builders.inference import loaded_name, stored_name
from simulator.builders.popularity import read_experts
from simulator.builders.specs import blocks
from simulator.catalog import Loaded
from simulator.cost import device_of, memory_rate_cap, roofline
from simulator.cost.collectives import group_ns
from simulator.cost.service import NS_PER_S
from simulator.errors import CapacityError, InvariantError, PlanError, ScopeError
from simulator.graph import Collective, Group, Job
from simulator.interrupts import no_garbage_search
from simulator.plan import COPY, DETACH, SYNC, Actions, Code, Plan
from simulator.policies import Problem
from simulator.run.case import Case, prepare
from simulator.run.row import checked
from simulator.serving.blocks import groups_of, requests_of
from simulator.serving.data_ranks import together
from simulator.workload import Experts

PARTS = (8, 64)
"""Parts into which an iteration's scale is divided; the finer one is for iterations in which compute waits, as waits
change with every number."""
WAITS = 1 / 100
"""A smaller share of waiting is ignored: its error is below a part."""
_LARGE = (1 << 12, 1 << 24, 1 << 16, 1 << 24, 1 << 36, 1 << 11)
_LARGE_NEAR = (1 << 24, 1 << 24, 1 << 36)
"""Numbers so large that rounding to a nanosecond is negligible and all experts are chosen; and those for each further
reach."""
_TOKENS = (0, 2)
"""Positions of the numbers that count tokens, which choose experts."""
Numbers = NDArray[np.float64]


class _Shape:
    """Iterations with the same ops, which differ only in numbers.

    Parameters
    ----------
    loaded, graphs
        The scenario, its machine and its workload of requests; the graphs of that workload's iterations.
    some
        One of these iterations, without copies.
    """

    def __init__(self, loaded: Loaded, graphs: Iterations, some: Iteration) -> None:
        self._loaded, self._graphs = loaded, graphs
        self._meets: list[tuple[Collective, Group]] = []
        self._is_all = some.answers == some.decoding + some.reading
        parts = dict.fromkeys(part for _, part in decoder_of(loaded.work).kinds if isinstance(part, Experts))
        self._experts = [part for part in parts if part.top_k < part.routed]
        numbers = self._numbers(some)
        large = [
            n if some_n else 0 for n, some_n in zip((*_LARGE, *_LARGE_NEAR * len(some.near)), numbers, strict=True)
        ]
        at_large, names, flops = self._sides(large)
        doubled = [[*large[:i], 2 * n, *large[i + 1 :]] for i, n in enumerate(large)]
        beside = [(max(1, n), *self._sides(more)) for n, more in zip(large, doubled, strict=True)]
        slopes = np.array([(sides - at_large) / n for n, sides, *_ in beside])
        self._flops_slopes: Numbers = np.array([(other - flops) / n for n, _, _, other in beside])
        self._flops_constant = flops - float(np.dot(large, self._flops_slopes))
        constant = at_large - np.tensordot(large, slopes, 1)
        few = [min(1 + (i in _TOKENS), n) for i, n in enumerate(numbers)]
        both = np.concatenate([constant[None], slopes, *self._expert_slopes(names, few, slopes, constant)])
        both, self._counts = np.unique(both, axis=-1, return_counts=True)
        self._constant, self._slopes = both[0], both[1:].reshape(len(both) - 1, -1)
        self._prices_ns: Numbers = both[1:, :2].max(axis=1) @ self._counts
        self._met = [(column, self._meets[int(place) - 1]) for column, place in enumerate(both[0, 3]) if place]
        self._units, self.known_ops_ns = cache(self._units_that_cost), cache(self.ops_ns)  # of those that are replayed

    def _numbers(self, work: Iteration) -> list[int]:
        """List the numbers of an iteration; answers are none of their own if every token has one."""
        return [*work[:5], 0 if self._is_all else work.answers, *chain.from_iterable(work.near)]

    def rounded(self, work: Iteration, part_ns: float, most_sequences: int, most_tokens: int) -> Iteration:
        """Round the numbers of an iteration to multiples that cost `part_ns`, up to the given limits."""
        units = self._units(part_ns, work.decoding + work.reading if self._experts else 0)
        rounded = [*map(_rounded, self._numbers(work), units)]
        rounded[0] = min(rounded[0], most_sequences)
        rounded[2] = min(rounded[2], most_tokens - rounded[0])
        return self._iteration(rounded)

    def _units_that_cost(self, part_ns: float, tokens: int) -> list[float]:
        """Return, for each number, how many cost `part_ns`, in an iteration of so many tokens."""
        prices_ns = self._prices_ns[: len(self._flops_slopes)].copy()
        if self._experts:  # the fewer experts others chose, the more one more token costs
            more = np.subtract(self._unread(tokens), self._unread(tokens // 2))
            prices_ns[[*_TOKENS]] += more @ self._prices_ns[len(prices_ns) :] / max(1, tokens - tokens // 2)
        return [_unit(price_ns, part_ns) for price_ns in prices_ns.tolist()]

    def _iteration(self, numbers: Sequence[int]) -> Iteration:
        """Make the iteration with these numbers."""
        decoding, context, reading, cached, pairs, answers, *near = numbers
        answers = decoding + reading if self._is_all else answers
        triples = zip(near[::3], near[1::3], near[2::3], strict=True)
        return Iteration(decoding, context, reading, cached, pairs, answers, tuple(triples))

    def flops(self, work: Iteration) -> int:
        """Count the arithmetic of an iteration [FLOP]."""
        return round(self._flops_constant + float(np.dot(self._numbers(work), self._flops_slopes)))

    def ops_ns(self, work: Iteration) -> float:
        """Return the sum of the times of an iteration's ops, each alone [ns]."""
        numbers = [*self._numbers(work), *self._unread(work.decoding + work.reading)]
        sides = self._constant + np.dot(numbers, self._slopes).reshape(self._constant.shape)
        alone_ns = sides[:2].max(axis=0)
        for column, (collective, group) in self._met:
            met = replace(collective, size_bytes=round(float(sides[2, column])))
            alone_ns[column] = group_ns(met, group, self._loaded.hardware)
        return float(alone_ns @ self._counts)

    def _sides(self, numbers: Sequence[int]) -> tuple[Numbers, list[str], int]:
        """Describe each op, and return the names of the ops, and their total arithmetic [FLOP].

        An op has both sides of its roofline [ns]; a collective its time, 0, its size [B], and its place in `_meets`.
        """
        hardware, graph = self._loaded.hardware, self._graphs.graph(self._iteration(numbers), 1)
        groups, sides = {group.name: group for group in graph.groups}, list[tuple[float, float, int, int]]()
        for op in graph.ops:
            if op.collective:
                met = replace(op.collective, size_bytes=0), groups[op.collective.group]
                self._meets += [met] if met not in self._meets else []
                took_ns, size_bytes = group_ns(op.collective, met[1], hardware), op.collective.size_bytes
                sides.append((took_ns, 0, size_bytes, 1 + self._meets.index(met)))
                continue
            rates, (least_ns, traffic) = device_of(op, hardware).rates, roofline(op, hardware)
            sides.append((least_ns, rates.launch_ns + traffic / memory_rate_cap(op, hardware) if traffic else 0, 0, 0))
        return np.array(sides, np.float64).T, [op.name for op in graph.ops], sum(graph.arithmetic.values())

    def _unread(self, tokens: int) -> list[int]:
        """Count, as a negative number, the experts of a layer that so many tokens leave unread, by kind of layer."""
        parallel = self._loaded.work.parallel
        return [read - held for read, held in (read_experts(part, tokens, parallel) for part in self._experts)]

    def _expert_slopes(self, names: Sequence[str], few: list[int], slopes: Numbers, constant: Numbers) -> list[Numbers]:
        """Return what one more expert adds to both sides of each op [ns], from an iteration of few tokens."""
        saved = constant + np.tensordot(few, slopes, 1) - self._sides(few)[0] if self._experts else constant
        model = decoder_of(self._loaded.work)
        parts = dict(zip(blocks(model.layers), map(model.layer, range(model.layers)), strict=True))
        of_op = [parts[block].feed_forward if (block := name.split("/")[0]) in parts else None for name in names]
        of_op = [None if meets else part for part, meets in zip(of_op, constant[3], strict=True)]
        unread = zip(self._experts, self._unread(sum(few[i] for i in _TOKENS)), strict=True)
        return [np.where([other == part for other in of_op], saved / max(1, -n), 0)[None] for part, n in unread]


class Replays:
    """Replays the iterations of a row.

    Parameters
    ----------
    loaded
        The scenario, its machine and its workload.
    row
        The row whose policy plans.
    room_bytes
        Room for the KV cache in the compute tier [B].
    exact
        Whether every iteration is replayed, rather than one of each class.

    Attributes
    ----------
    data, reaches
        Number of data ranks; reaches that iterations count besides all tokens: see `simulator.builders.Iteration`.
    engine
        Costs of the serving engine's host.
    """

    def __init__(self, loaded: Loaded, row: str, room_bytes: int, *, exact: bool = False) -> None:
        self._loaded, self._row, self._room_bytes, self._exact = loaded, row, room_bytes, exact
        self._asked, self._problem = requests_of(loaded), smallest(loaded).problem
        self._groups = groups_of(loaded)
        self._sizes = [group.block_bytes(self._asked.block) for group in self._groups]
        self.reaches, self.engine = limited_reaches(decoder_of(loaded.work)), loaded.hardware.host.serving
        self._graphs, self.data = Iterations(loaded.work), loaded.work.parallel.data
        self._shapes: dict[tuple[bool, ...], _Shape] = {}
        self._replayed = cache(self._replay)

    def __len__(self) -> int:
        """Count the iterations that were replayed."""
        return self._replayed.cache_info().currsize

    def of(self, *each: Iteration) -> dict[str, Any]:
        """Return the time of an iteration, given that of each data rank, and its waits.

        Returns
        -------
        dict
            ``status``, as in a row of `simulator.run`, and ``why`` it is not ``ok``. If it is: ``took_ns``, its time;
            of this ``stall_ns``, while compute waited, also by ``wait_<cause>_ns``, and ``drain_ns``, while copies ran
            after the last op; ``moved_<link>_bytes``; and ``flops``, its arithmetic (`Graph.arithmetic`), of a rank on
            average.
        """
        if self._exact:
            return self._counted(self._replayed(together(each)), together(each), each)
        shape = self.shape(work := together(each))
        own_ns = shape.ops_ns(work)
        for parts in PARTS:
            alike = self._representative(work, shape, 2.0 ** math.floor(math.log2(max(own_ns, 1))) / parts)
            counted = self._replayed(alike)
            if counted["status"] != "ok":
                return counted
            waits_ns = counted["stall_ns"] - counted["wait_collective_ns"] + counted["drain_ns"]
            if waits_ns <= WAITS * counted["took_ns"]:
                break
        took_ns = counted["took_ns"] + round(own_ns - shape.known_ops_ns(alike))
        return self._counted({**counted, "took_ns": took_ns, "flops": shape.flops(work)}, alike, each)

    def _counted(self, took: dict[str, Any], alike: Iteration, each: Sequence[Iteration]) -> dict[str, Any]:
        """Count what data ranks moved and computed in place of what the replayed iteration did."""
        if took["status"] != "ok" or each == (alike,):
            return took
        more, flops = self._moved(*each), took["flops"]
        more.subtract(self._moved(alike))
        if len(each) > 1:
            flops = sum(self.shape(work).flops(work) for work in each if work.decoding or work.reading) // len(each)
        moved = {(column := f"moved_{link}_bytes"): took[column] + size for link, size in more.items()}
        return {**took, **moved, "flops": flops}

    def shape(self, work: Iteration) -> _Shape:
        """Return the shape that this iteration has."""
        near = map(bool, chain.from_iterable(work.near))
        kind = (*map(bool, work[:6]), work.answers == work.decoding + work.reading, *near)
        return self._shapes.get(kind) or self._shapes.setdefault(kind, _Shape(self._loaded, self._graphs, work))

    def _representative(self, work: Iteration, shape: _Shape, part_ns: float) -> Iteration:
        """Return the iteration that is replayed for the class of this one."""
        links, block = self._loaded.hardware.links, self._asked.block

        def rounded(tokens: Sequence[int], *way: str) -> tuple[int, ...]:
            rates = [links[link].bandwidth_bytes_per_s for link in self._links(*way)]
            block_ns = [sum(size * NS_PER_S / rate for rate in rates) for size in self._sizes]
            units = (_unit(each, part_ns) for each in block_ns)
            return tuple(block * _rounded(n // block, unit) for n, unit in zip(tokens, units, strict=True))

        loads = tuple((tier, rounded(tokens, tier, self._loaded.hardware.compute_tier)) for tier, tokens in work.loads)
        stores = tuple((way, rounded(tokens, *way)) for way, tokens in work.stores)
        alike = shape.rounded(work, part_ns, self._asked.max_sequences, self._asked.max_tokens)
        return alike._replace(loads=loads, stores=stores)

    def _links(self, source: str, target: str) -> list[str]:
        """List the links of a copy from one tier to another, with those that they go via."""
        problem, links, tiers = self._problem, self._loaded.hardware.links, self._problem.tiers
        hops = pairwise(problem.path(tiers.index(source), tiers.index(target)))
        return [link for name in map(problem.link_names.__getitem__, hops) for link in (name, *links[name].via)]

    def _moved(self, *each: Iteration) -> Counter[str]:
        """Count the bytes that the loads and stores of equal parts of all ranks move over each link."""
        compute_tier, moved = self._loaded.hardware.compute_tier, Counter[str]()
        loads = (((tier, compute_tier), tokens) for work in each for tier, tokens in work.loads)
        for way, tokens in (*loads, *(copied for work in each for copied in work.stores)):
            size_bytes = sum(n // self._asked.block * size for n, size in zip(tokens, self._sizes, strict=True))
            for link in self._links(*way):
                moved[link] += size_bytes * self._loaded.work.ranks // len(each)
        return moved

    @no_garbage_search()
    def _replay(self, work: Iteration) -> dict[str, Any]:
        leaving = [tokens for way, tokens in work.stores if self._loaded.hardware.compute_tier in way]
        left = sum(n * group.token_bytes for tokens in leaving for group, n in zip(self._groups, tokens, strict=True))
        job = Job.of(self._graphs.graph(work, self._room_bytes - left), self._loaded.work.ranks)
        case = prepare(_with_homes(self._loaded, work), job)
        queued = self._asked.queued_blocks
        try:
            plan = case.rows([self._row])[self._row](case.problem)
            plan = _with_copies(plan, case.problem, work, None if queued is None else queued * self._asked.block)
            trace, _, ran = checked(case, self._row, [plan])
        except (CapacityError, ScopeError, PlanError, InvariantError) as error:
            return {"status": error.status, "why": error.reason}
        if trace.status != "ok":
            return {"status": trace.status, "why": "; ".join(trace.blocked[:1])}
        row = metrics.summarise(case.job, case.hardware, trace, ran=ran)
        columns = ["stall_ns", "drain_ns", *(f"wait_{cause}_ns" for cause in metrics.causes(case.hardware))]
        columns += [f"moved_{link}_bytes" for link in case.hardware.links]
        counted = {"took_ns": row["step_ns"], **{column: row[column] for column in columns}}
        return {"status": "ok", "why": "", **counted, "flops": sum(job.graphs[0].arithmetic.values())}


def rows_of(loaded: Loaded, policies: Sequence[str] | None) -> list[str]:
    """List the rows; see `simulator.run.case.Case.rows`."""
    return list(smallest(loaded).rows(policies))


def smallest(loaded: Loaded) -> Case:
    """Prepare the smallest iteration that there can be."""
    work = least_iteration(loaded.work)
    return prepare(_with_homes(loaded, work), Job.of(iteration(loaded.work, work, 1), loaded.work.ranks))


def _with_homes(loaded: Loaded, work: Iteration) -> Loaded:
    """Return the scenario of an iteration, in which cached blocks have their homes where they are."""
    named = {cache_name(part) for kind, _ in decoder_of(loaded.work).kinds for part in parts_of(kind)}
    homes = {f"*/{name}": loaded.hardware.compute_tier for name in sorted(named)}
    homes |= {f"*/{loaded_name(tier)}": tier for tier, _ in work.loads}
    homes |= {f"*/{stored_name(*way)}": way[0] for way, _ in work.stores}
    scenario = loaded.scenario
    return replace(loaded, scenario=scenario.model_copy(update={"homes": {**scenario.homes, **homes}, "expect": ()}))


def _with_copies(plan: Plan, problem: Problem, work: Iteration, queued: int | None) -> Plan:
    """Put the stores of an iteration, and loads of more than `queued` tokens, before the actions of its plan.

    The plan's actions then begin once all but `queued` tokens have been loaded.
    """
    tiers, compute_tier, codes = problem.tiers, problem.compute_tier, list[Code]()
    for (source, target), _ in work.stores:
        path = problem.path(tiers.index(source), tiers.index(target))
        for tensor in _tensors_named(problem, stored_name(source, target)):
            codes += [*_copies(tensor, path), (DETACH, tensor, path[-1], 0)]
    tokens, coming = sum(sum(groups) for _, groups in work.loads), dict[int, str]()
    if queued is not None and tokens > queued:
        coming = {tensor: tier for tier, _ in work.loads for tensor in _tensors_named(problem, loaded_name(tier))}
        sizes = {tensor: problem.graph.tensors[tensor].size_bytes for tensor in sorted(coming)}
        left, waited = sum(sizes.values()), -1
        still = left * queued // tokens
        for tensor, size in sizes.items():
            codes += _copies(tensor, problem.path(tiers.index(coming[tensor]), compute_tier))
            waited = tensor if left > still else waited
            left -= size
        codes.append((SYNC, waited, 0, 0))
    if not codes:
        return plan

    def is_done(code: Code) -> bool:
        kind, tensor, tier, _ = code
        return tensor in coming and (kind == COPY or (kind == DETACH and tier != compute_tier))

    if isinstance(plan.actions, Actions):
        columns = zip(*codes, *filterfalse(is_done, plan.actions.codes()), strict=True)
        return replace(plan, actions=Actions.from_columns(*columns))
    decide = plan.actions
    return replace(plan, actions=lambda view: chain(codes, filterfalse(is_done, decide(view))))


def _tensors_named(problem: Problem, last: str) -> Sequence[int]:
    """List the tensors whose path ends in this name, one for each layer."""
    return [index for index, tensor in enumerate(problem.graph.tensors) if tensor.name.endswith(f"/{last}")]


def _copies(tensor: int, path: Sequence[int]) -> Iterator[Code]:
    """Yield the actions that copy a tensor along a path of tiers; it stays in the first and the last."""
    yield from ((COPY, tensor, start, end) for start, end in pairwise(path))
    yield from ((DETACH, tensor, tier, 0) for tier in path[1:-1])


def _unit(price_ns: float, part_ns: float) -> float:
    """Return how many cost a part, at least 1; infinitely many without a price."""
    return max(1.0, part_ns / price_ns) if price_ns > 0 else math.inf


def _rounded(count: int, unit: float) -> int:
    """Round to a multiple of a unit; with an infinite one a count becomes 1, and only 0 becomes 0."""
    return min(1, count) if unit == math.inf else max(min(1, count), round(round(count / unit) * unit))
