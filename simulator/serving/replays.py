"""What iterations take: each is a graph that the row's policy plans and the engine replays, alike ones once.

*What ops take.* FLOPs and bytes of each op grow evenly with the numbers of an iteration (tokens that are cached, pairs
that attend to one another, ...), so a few graphs tell both sides of its roofline for all numbers, and so what all ops
take, each alone. Of experts few tokens leave some out, which are then not read: how many is a closed form, and a number
of its own; what each takes is known from an iteration of few tokens.

*A class.* Each number is rounded to the nearest multiple of what costs a part of the scale of the iteration, which is
the power of two below what its ops take; but not to 0. A number's price is that at which one more costs most; of
tokens it is the higher, the fewer experts others have chosen. Tokens that are copied are rounded alike, to whole
blocks, at the price of their links. A part is 1/8; where compute then waits for more than 1/100 of the time, it is
1/64.

*One for all.* An iteration takes what the one of its class takes that is replayed, and what its own ops take more or
less, each alone. What the class has in common is how ops, copies and the host wait for one another.

*The error.* With the same order of ops and copies, no end moves by more than they do together, as it waits for each at
most once. So what a number makes wrong is at most half a part, and only in so far as waits change with it: where they
do not, it is a few nanoseconds of rounding.

Before the steps of the plan is copied, whatever the row's policy thinks of it:

*Stores*: copies of blocks to other tiers, whose source and target are the cache's rule. They run beside the iteration,
which ends when they have.

*Loads*, if they are more than an engine may queue (`Requests.queued_blocks`): the thread that launches ops submits the
copies of what was found below, and once so many are under way it cannot go on. So all are issued at once, and the host
waits for those that are too many before it issues the first op.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain, filterfalse, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator import metrics
from simulator.builders import Iteration, decoder_of, further, iteration, lone
from simulator.builders.inference import cache_name
from simulator.builders.inference import loaded as loaded_name
from simulator.builders.inference import stored as stored_name
from simulator.builders.tape import read_experts
from simulator.builders.weights import blocks
from simulator.catalog import Loaded
from simulator.cost import memory_rate_cap, roofline
from simulator.cost.service import NS_PER_S
from simulator.errors import CapacityError, ScopeError
from simulator.graph import Job
from simulator.plan import COPY, DETACH, SYNC, Actions, Code, Plan, View
from simulator.policies import Problem
from simulator.run.case import Case, prepare
from simulator.run.row import checked
from simulator.serving.blocks import asked_of, groups_of
from simulator.trace import CAUSES
from simulator.workload import Experts

PARTS = (8, 64)
"""Into so many parts the scale of an iteration is cut; and if compute waits."""
WAITS = 1 / 100
"""Less than this share of the time is no wait."""
_LARGE = (1 << 12, 1 << 24, 1 << 16, 1 << 24, 1 << 36, 1 << 11)
_LARGE_NEAR = (1 << 24, 1 << 24, 1 << 36)
"""Numbers beside which a nanosecond of rounding is nothing, and all experts are chosen; for each further reach, too."""
_TOKENS = (0, 2)
"""Which of the numbers are tokens, that choose experts."""
Numbers = NDArray[np.float64]


class _Shape:
    """Iterations that have the same ops, and differ in numbers.

    Parameters
    ----------
    loaded
        The scenario, its machine and its workload of requests.
    some
        One of them, without copies.
    """

    def __init__(self, loaded: Loaded, some: Iteration) -> None:
        self._loaded, self._is_all = loaded, some.answers == some.decoding + some.reading
        parts = dict.fromkeys(part for _, part in decoder_of(loaded.workload).kinds if isinstance(part, Experts))
        self._experts = [part for part in parts if part.top_k < part.routed]
        there, large_ones = self._told(some), (*_LARGE, *_LARGE_NEAR * len(some.near))
        large = [number if n else 0 for number, n in zip(large_ones, there, strict=True)]
        base, *more = ([n * (1 + (i == at)) for i, n in enumerate(large)] for at in range(-1, len(large)))
        at_large, names, flops = self._sides(base)
        beside = [(max(1, n), *self._sides(one)) for one, n in zip(more, large, strict=True)]
        slopes = np.array([(sides - at_large) / n for n, sides, *_ in beside])
        self._flops_slopes: Numbers = np.array([(other - flops) / n for n, _, _, other in beside])
        self._flops_constant = flops - float(np.dot(large, self._flops_slopes))
        constant = at_large - np.tensordot(large, slopes, 1)
        fewer = self._fewer(names, [min(1 + (at in _TOKENS), n) for at, n in enumerate(there)], slopes, constant)
        both, self._counts = np.unique(np.concatenate([constant[None], slopes, *fewer]), axis=-1, return_counts=True)
        self._constant, self._slopes = both[0], both[1:].reshape(len(both) - 1, -1)
        self._prices_ns: Numbers = both[1:].max(axis=1) @ self._counts

    def _told(self, work: Iteration) -> list[int]:
        """The numbers that an iteration tells; answers that are as many as all tokens are none of their own."""
        return [*work[:5], 0 if self._is_all else work.answers, *chain.from_iterable(work.near)]

    def alike(self, work: Iteration, part_ns: float, most_sequences: int, most_tokens: int) -> Iteration:
        """The same with numbers that are rounded to what costs a part [ns], but to at most so many."""
        prices_ns, tokens = self._prices_ns[: len(self._flops_slopes)].copy(), work.decoding + work.reading
        if self._experts:  # a token costs the more for experts, the fewer others choose
            more = np.subtract(self._unread(tokens), self._unread(tokens // 2))
            prices_ns[[*_TOKENS]] += more @ self._prices_ns[len(prices_ns) :] / max(1, tokens - tokens // 2)
        rounded = [_near(*one, part_ns) for one in zip(self._told(work), prices_ns, strict=True)]
        rounded[0] = min(rounded[0], most_sequences)
        rounded[2] = min(rounded[2], most_tokens - rounded[0])
        return self._made(rounded)

    def _made(self, numbers: Sequence[int]) -> Iteration:
        """The iteration that tells some numbers."""
        decoding, context, reading, cached, pairs, answers, *near = numbers
        answers = decoding + reading if self._is_all else answers
        triples = [(near[at], near[at + 1], near[at + 2]) for at in range(0, len(near), 3)]
        return Iteration(decoding, context, reading, cached, pairs, answers, tuple(triples))

    def flops(self, work: Iteration) -> int:
        """The arithmetic of an iteration."""
        return round(self._flops_constant + float(np.dot(self._told(work), self._flops_slopes)))

    def ops_ns(self, work: Iteration) -> float:
        """What the ops of an iteration take, each alone."""
        numbers = [*self._told(work), *self._unread(work.decoding + work.reading)]
        sides = self._constant + np.dot(numbers, self._slopes).reshape(self._constant.shape)
        return float(sides.max(axis=0) @ self._counts)

    def _sides(self, numbers: Sequence[int]) -> tuple[Numbers, list[str], int]:
        """Both sides of the roofline of each op [ns]; what the ops are called; and their arithmetic [FLOP]."""
        hardware, graph = self._loaded.hardware, iteration(self._loaded.workload, self._made(numbers), 1)
        cap, launch_ns, found = memory_rate_cap(hardware), hardware.compute.launch_ns, []
        for op in graph.ops:
            least_ns, traffic = roofline(op, hardware)
            found.append((least_ns, launch_ns + traffic / cap if traffic else 0))
        return np.array(found, np.float64).T, [op.name for op in graph.ops], sum(graph.arithmetic.values())

    def _unread(self, tokens: int) -> list[int]:
        """Minus how many experts of a layer so many tokens leave out, of each kind of layers with experts."""
        return [read_experts(part, tokens) - part.held for part in self._experts]

    def _fewer(self, names: Sequence[str], few: list[int], slopes: Numbers, constant: Numbers) -> list[Numbers]:
        """What an expert more takes of both sides of each op [ns], from an iteration of few tokens."""
        saved = constant + np.tensordot(few, slopes, 1) - self._sides(few)[0] if self._experts else constant
        model = decoder_of(self._loaded.workload)
        parts = dict(zip(blocks(model.layers), map(model.layer, range(model.layers)), strict=True))
        of_op = [parts[block].feed_forward if (block := name.split("/")[0]) in parts else None for name in names]
        found = zip(self._experts, self._unread(sum(few[at] for at in _TOKENS)), strict=True)
        return [np.where([one == part for one in of_op], saved / max(1, -number), 0)[None] for part, number in found]


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
        self._asked, self._groups, self._problem = asked_of(loaded), groups_of(loaded), _smallest(loaded).problem
        self._sizes = [group.block_bytes(self._asked.block) for group in self._groups]
        self.further = further(decoder_of(loaded.workload))
        self._shapes: dict[tuple[bool, ...], _Shape] = {}
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
        shape = self.shape(work)
        own_ns = shape.ops_ns(work)
        for parts in PARTS:
            alike = self._alike(work, shape, 2.0 ** math.floor(math.log2(max(own_ns, 1))) / parts)
            known = self._replayed(alike)
            if known["status"] != "ok":
                return known
            if known["stall_ns"] + known["drain_ns"] <= WAITS * known["took_ns"]:
                break
        took_ns = known["took_ns"] + round(own_ns - shape.ops_ns(alike))
        more = self._moved(work)
        more.subtract(self._moved(alike))
        moved = {(column := f"moved_{link}_bytes"): known[column] + number for link, number in more.items()}
        return {**known, "took_ns": took_ns, **moved, "flops": shape.flops(work)}

    def shape(self, work: Iteration) -> _Shape:
        """What is known of the iterations that have the same ops as one."""
        near = map(bool, chain.from_iterable(work.near))
        kind = (*map(bool, work[:6]), work.answers == work.decoding + work.reading, *near)
        if kind not in self._shapes:
            self._shapes[kind] = _Shape(self._loaded, work)
        return self._shapes[kind]

    def _alike(self, work: Iteration, shape: _Shape, part_ns: float) -> Iteration:
        """The iteration that is replayed for a class."""
        links, block = self._loaded.hardware.links, self._asked.block

        def near(tokens: Sequence[int], *way: str) -> tuple[int, ...]:
            rates = [links[link].bandwidth_bytes_per_s for link in self._links(*way)]
            block_ns = [sum(size * NS_PER_S / rate for rate in rates) for size in self._sizes]
            return tuple(block * _near(n // block, each, part_ns) for n, each in zip(tokens, block_ns, strict=True))

        here = self._loaded.hardware.compute_tier
        loads = tuple((tier, near(tokens, tier, here)) for tier, tokens in work.loads)
        stores = tuple((way, near(tokens, *way)) for way, tokens in work.stores)
        alike = shape.alike(work, part_ns, self._asked.max_sequences, self._asked.max_tokens)
        return alike._replace(loads=loads, stores=stores)

    def _links(self, source: str, target: str) -> list[str]:
        """Links that a copy from one tier to another takes, with those that they go via."""
        problem, links, tiers = self._problem, self._loaded.hardware.links, self._problem.tiers
        hops = pairwise(problem.path(tiers.index(source), tiers.index(target)))
        return [one for name in map(problem.link_names.__getitem__, hops) for one in (name, *links[name].via)]

    def _moved(self, work: Iteration) -> Counter[str]:
        """Bytes that the loads and stores of an iteration move over each link."""
        here, found = self._loaded.hardware.compute_tier, Counter[str]()
        for way, tokens in (*(((tier, here), tokens) for tier, tokens in work.loads), *work.stores):
            size_bytes = sum(n // self._asked.block * size for n, size in zip(tokens, self._sizes, strict=True))
            for link in self._links(*way):
                found[link] += size_bytes
        return found

    def _replayed(self, work: Iteration) -> dict[str, Any]:
        if work not in self._known:
            self._known[work] = self._replay(work)
        return self._known[work]

    def _replay(self, work: Iteration) -> dict[str, Any]:
        here = self._loaded.hardware.compute_tier
        leaving = [tokens for (tier, _), tokens in work.stores if tier == here]
        left = sum(n * group.token_bytes for tokens in leaving for group, n in zip(self._groups, tokens, strict=True))
        job = Job.of(iteration(self._loaded.workload, work, self._room_bytes - left))
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


def _near(number: int, price_ns: float, part_ns: float) -> int:
    """The nearest multiple of as many as cost a part; what costs nothing is one, and 0 alone is 0."""
    step = max(1.0, part_ns / price_ns) if price_ns > 0 else math.inf
    return min(1, number) if step == math.inf else max(min(1, number), round(round(number / step) * step))
