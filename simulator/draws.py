"""Choices of dynamic reads in each step: drawn from a distribution with a seed, or read from a file; and delays.

Ops with the same candidates, samples and number of choices choose alike: they are one *chooser*, such as the router of
a layer, and what it chooses may stick from one draw to the next. An op that updates takes the choice of the op before
it that chose alike by the same reveal, if there is one. Each of its samples draws its candidates one after another,
each with its share among those that the sample has not drawn yet. Draws follow from the graph, the distribution, the
seed and the rank alone. Ranks that run the same graph have the same shares, as they have the same
router, and each draws for itself; choices recorded in a file hold for each of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import fsum, log1p, sqrt
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from simulator.cost import chosen_op, duration_ns
from simulator.errors import ConfigError, insist
from simulator.graph import LARGEST, DynamicReads, Graph
from simulator.hardware import Hardware
from simulator.scenario import DrawsOrigin
from simulator.trace import Bools, Ints
from simulator.units import counted

_TRIES = 3
"""Draws of a candidate that may be held already, which is quick, before one is drawn from the others alone."""

Floats = NDArray[np.float64]
_Of = TypeVar("_Of")

_SEEDS_APART = 1_000_003  # distance between the seeds of two ranks

_RANKS, _CHOICES, _REHEARSAL, _PREDICTIONS, _DELAYS = range(5)
"""Uses of random numbers: each has a stream of its own."""


@dataclass(frozen=True)
class Shares:
    """Shares of the experts of each layer, from a file.

    Attributes
    ----------
    by_layer
        Layer -> expert -> its share, which may be 0.
    source
        Name of the file in messages.
    """

    by_layer: Mapping[int, Mapping[int, float]]
    source: str


@dataclass(frozen=True)
class Routing:
    """Recorded choices, from a file.

    Attributes
    ----------
    by_step
        (step, name of an op) -> positions of the chosen ones among the op's candidates.
    source
        Name of the file in messages.
    """

    by_step: Mapping[tuple[int, str], tuple[int, ...]]
    source: str


Origin = DrawsOrigin | Shares | Routing
"""Source of draws."""


@dataclass(frozen=True)
class Draws:
    """Choices of each op with dynamic reads in each step.

    Attributes
    ----------
    graph, hardware, seed
        Graph whose draws they are; machine that it runs on; seed of predictions.
    chosen_flags
        Op -> by step and candidate, whether it is chosen.
    """

    graph: Graph
    hardware: Hardware
    seed: int
    chosen_flags: Mapping[int, Bools]

    @cached_property
    def _candidates(self) -> dict[int, Ints]:
        return {op: np.array(reads.candidates, np.int64) for op, reads in self.graph.dynamic_reads.items()}

    def chosen(self, op: int, step: int) -> tuple[int, ...]:
        """Return the tensors that an op chooses in a step, in the order of its candidates."""
        return tuple(self._candidates[op][self.chosen_flags[op][step]].tolist())

    def chosen_bytes(self, op: int) -> Ints:
        """Return, for each step, the size of an op's choices [B]."""
        sizes = np.array([self.graph.tensors[t].size_bytes for t in self._candidates[op].tolist()], np.int64)
        return np.asarray(self.chosen_flags[op] @ sizes)

    def durations_ns(self, op: int) -> list[int]:
        """Return, for each step, how long an op takes alone with its choices [ns]."""
        node, chosen = self.graph.ops[op], self.chosen_bytes(op).tolist()
        times = {size: duration_ns(chosen_op(node, size), self.hardware) for size in set(chosen)}
        return [times[size] for size in chosen]

    def step_durations_ns(self, durations_ns: Sequence[int], step: int) -> list[int]:
        """Return how long all ops take with their choices in a step [ns], from their planned durations."""
        changed = {op: self.durations_ns(op)[step] for op in self.chosen_flags}
        return [changed.get(op, planned_ns) for op, planned_ns in enumerate(durations_ns)]

    def predicted(self, op: int, step: int, accuracy: float) -> tuple[int, ...]:
        """Guess the choices of an op in a step.

        Parameters
        ----------
        op, step
            Op and step of the draw.
        accuracy
            Probability that each choice is guessed right; in place of the others, wrong candidates are guessed.
        """
        chosen = self.chosen_flags[op][step]
        rng = np.random.default_rng((self.seed, _PREDICTIONS, op, step))
        right, others = np.flatnonzero(chosen), np.flatnonzero(~chosen)
        is_right = rng.random(len(right)) < accuracy
        wrong = rng.permutation(others)[: int((~is_right).sum())]
        return tuple(self._candidates[op][np.sort(np.concatenate((right[is_right], wrong)))].tolist())


def popularity(graph: Graph, origin: Origin, seed: int = 0) -> dict[int, tuple[float, ...]]:
    """Return, for each op with dynamic reads, how likely each candidate is: its share of the draws.

    Parameters
    ----------
    graph
        Graph whose ops read dynamically.
    origin, seed
        Source of the draws, and their seed, which decides which candidates are the likely ones.

    Raises
    ------
    ConfigError
        If a file does not fit the graph.
    """
    return {op: tuple(shares.tolist()) for op, shares in _with_updates(graph, _shares(graph, origin, seed)).items()}


def drawn(
    graph: Graph, hardware: Hardware, origin: Origin, seed: int = 0, *, rank: int = 0, rehearsal: bool = False
) -> Draws:
    """Draw the choices of each step of a graph.

    Parameters
    ----------
    graph, hardware
        Graph that runs; machine that it runs on.
    origin
        Source of the draws.
    seed
        Seed of the draws, which also decides which candidates are the likely ones.
    rank
        Rank that draws.
    rehearsal
        Draw other choices with the same shares, for policies to try plans with.

    Raises
    ------
    ConfigError
        If a file does not fit the graph.
    """
    if isinstance(origin, Routing) and not rehearsal:
        return Draws(graph, hardware, seed, _recorded_flags(graph, origin))
    own_seed = seed + rank * _SEEDS_APART
    shares = _shares(graph, origin, seed)
    stickiness = origin.stickiness if isinstance(origin, DrawsOrigin) else 0.0
    rng = np.random.default_rng((own_seed, _REHEARSAL if rehearsal else _CHOICES))
    flags: dict[int, Bools] = {}
    alike: dict[tuple[int, int, int, int], dict[DynamicReads, list[int]]] = {}
    for reads, ops in _choosers(graph).items():
        alike.setdefault((len(reads.candidates), reads.samples, reads.each, len(ops)), {})[reads] = ops
    for group in alike.values():
        flags |= _draw_group(group, np.stack([shares[ops[0]] for ops in group.values()]), stickiness, graph.steps, rng)
    return Draws(graph, hardware, own_seed, dict(sorted(_with_updates(graph, flags).items())))


def _draw_group(
    group: Mapping[DynamicReads, list[int]], shares: Floats, stickiness: float, steps: int, rng: np.random.Generator
) -> dict[int, Bools]:
    """Draw all steps of choosers with equal numbers of candidates, samples, choices and ops, side by side."""
    choosers, candidates = shares.shape
    reads, first = next(iter(group.items()))
    flags = np.zeros((choosers, len(first), steps, candidates), bool)
    chooser = np.repeat(np.arange(choosers), reads.samples)
    held = np.full((len(chooser), reads.each), -1, np.int64)
    for step in range(steps):
        for turn in range(len(first)):
            held = np.where(rng.random(held.shape) < stickiness, held, -1)
            _draw_missing(held, shares, chooser, rng)
            flags[chooser[:, None], turn, step, held] = True
    return {op: flags[i, turn] for i, ops in enumerate(group.values()) for turn, op in enumerate(ops)}


def _draw_missing(held: Ints, shares: Floats, chooser: Ints, rng: np.random.Generator) -> None:
    """Fill the empty slots (-1) of each row one after another, each with a candidate that the row does not hold yet.

    A candidate that is held already is drawn again; after a few times, from the shares of the others alone: both give
    the same distribution.
    """
    candidates = shares.shape[1]
    flat = (np.cumsum(shares, axis=1) + np.arange(len(shares))[:, None]).ravel()
    flat[candidates - 1 :: candidates] = np.arange(1, len(shares) + 1)
    for slot in range(held.shape[1]):
        rows = np.flatnonzero(held[:, slot] < 0)
        for _ in range(_TRIES):
            owner = chooser[rows]
            choice = np.searchsorted(flat, rng.random(len(rows)) + owner, "right") - owner * candidates
            choice = np.clip(choice, 0, candidates - 1)
            is_new = (held[rows] != choice[:, None]).all(axis=1) & (shares[owner, choice] > 0)
            held[rows[is_new], slot] = choice[is_new]
            rows = rows[~is_new]
            if not len(rows):
                break
        else:
            left, holding = shares[chooser[rows]], held[rows]
            row, taken = np.nonzero(holding >= 0)
            left[row, holding[row, taken]] = 0.0
            cumulative = np.cumsum(left, axis=1)
            thresholds = rng.random(len(left)) * cumulative[:, -1]
            last_likely = candidates - 1 - np.argmax(left[:, ::-1] > 0, axis=1)
            held[rows, slot] = np.minimum((cumulative <= thresholds[:, None]).sum(axis=1), last_likely)


def _choosers(graph: Graph) -> dict[DynamicReads, list[int]]:
    """Group ops with dynamic reads by how they choose; the op that reveals a choice does not matter for that."""
    ops_of: dict[DynamicReads, list[int]] = {}
    for op, reads in _own_reads(graph).items():
        ops_of.setdefault(replace(reads, revealed_by=-1, updates=False), []).append(op)
    return ops_of


def _chosen_before(graph: Graph) -> dict[int, int]:
    """Return, for each op that updates what another op has chosen, that op."""
    last, before = dict[DynamicReads, int](), dict[int, int]()
    for op, reads in graph.dynamic_reads.items():
        alike = replace(reads, updates=False)
        if reads.updates and alike in last:
            before[op] = last[alike]
        else:
            last[alike] = op
    return before


def _own_reads(graph: Graph) -> dict[int, DynamicReads]:
    """Return the dynamic reads of ops that choose for themselves."""
    updates = _chosen_before(graph)
    return {op: reads for op, reads in graph.dynamic_reads.items() if op not in updates}


def _with_updates(graph: Graph, of_ops: dict[int, _Of]) -> dict[int, _Of]:
    """Add what holds of ops that choose to the ops that update what these have chosen."""
    return of_ops | {op: of_ops[other] for op, other in _chosen_before(graph).items()}


def _shares(graph: Graph, origin: Origin, seed: int) -> dict[int, Floats]:
    """Return, for each op with dynamic reads, the share of each candidate; they add up to 1."""
    choosers = _choosers(graph)
    if isinstance(origin, Routing):
        recorded = _recorded_flags(graph, origin)
        # once more than recorded, so that none is impossible
        counts = {op: flags.sum(axis=0) + 1.0 for op, flags in recorded.items()}
        return {op: np.asarray(times / times.sum()) for op, times in counts.items()}
    if isinstance(origin, Shares):
        by_layer = _shares_of_file(origin, choosers)
    else:
        by_layer = [_skewed_shares(origin, len(reads.candidates), seed, index) for index, reads in enumerate(choosers)]
    return {op: shares for shares, ops in zip(by_layer, choosers.values(), strict=True) for op in ops}


def _skewed_shares(origin: DrawsOrigin, count: int, seed: int, index: int) -> Floats:
    """Return the shares of a chooser by a distribution; which candidate has which rank is drawn."""
    if origin.distribution == "uniform":
        return np.full(count, 1.0 / count)
    shares = _as_shares([rank**-origin.skew for rank in range(1, count + 1)])
    return np.random.default_rng((seed, _RANKS, index)).permutation(shares)


def _as_shares(weights: list[float]) -> Floats:
    """Divide weights by their sum, which is exact: in any order, on any processor, equal ones stay equal."""
    return np.asarray(weights) / fsum(weights)


def _shares_of_file(origin: Shares, choosers: Mapping[DynamicReads, list[int]]) -> list[Floats]:
    """Return the shares of a file: its layers, ascending, are the choosers in program order."""
    layers, do = sorted(origin.by_layer), "correct the file, or take that of this model"
    rule, found = "there is a layer for each op that chooses, in program order", counted(len(layers), "layer")
    insist(len(layers) == len(choosers), origin.source, rule, f"{found} for {len(choosers):,}", do)
    by_layer = []
    for layer, reads in zip(layers, choosers, strict=True):
        named, count = origin.by_layer[layer], len(reads.candidates)
        likely = sum(share > 0 for share in named.values())
        rule = f"experts 0 to {count - 1} of layer {layer} have a share, at least {reads.each} of them above 0"
        found = f"{len(named):,} up to expert {max(named)}, {likely:,} of them above 0"
        insist(named.keys() == set(range(count)) and likely >= reads.each, origin.source, rule, found, do)
        by_layer.append(_as_shares([named[expert] for expert in range(count)]))
    return by_layer


def _recorded_flags(graph: Graph, origin: Routing) -> dict[int, Bools]:
    """Return the recorded choices of each op in each step."""
    flags = dict[int, Bools]()
    for op, reads in _own_reads(graph).items():
        name, least, count = graph.ops[op].name, reads.each, len(reads.candidates)
        most, flags[op] = min(count, reads.samples * least), np.zeros((graph.steps, count), bool)
        for step in range(graph.steps):
            chosen = set(origin.by_step.get((step, name), ()))
            if not chosen <= set(range(count)) or not least <= len(chosen) <= most:
                rule = f"{name!r} chooses {least} to {most} of candidates 0 to {count - 1} in step {step:,}"
                found = ", ".join(map(str, sorted(chosen)[-5:])) or "nothing"
                raise ConfigError(origin.source, rule, found, "take the file of this model and batch, or lower steps")
            flags[op][step, list(chosen)] = True
    return _with_updates(graph, flags)


def delays_ns(graph: Graph, seed: int = 0, rank: int = 0) -> dict[int, int]:
    """Draw how long the delays of a rank take that vary [ns], the same in each step.

    Parameters
    ----------
    graph, seed, rank
        The graph, and the seed and the rank for which is drawn.
    """
    if not graph.spreads:
        return {}
    rng, drawn_ns = np.random.default_rng((seed + rank * _SEEDS_APART, _DELAYS)), dict[int, int]()
    for op, spread in graph.spreads.items():
        mean_ns, deviation_ns = graph.ops[op].duration_ns or 0, spread.deviation_ns
        if spread.distribution == "lognormal":
            sigma = sqrt(log1p((deviation_ns / mean_ns) ** 2)) if mean_ns else 0.0
            varied_ns = mean_ns * rng.lognormal(-(sigma**2) / 2, sigma)
        elif spread.distribution == "exponential":
            varied_ns = rng.exponential(mean_ns)
        else:
            varied_ns = mean_ns + sqrt(3) * deviation_ns * (2 * rng.random() - 1)
        drawn_ns[op] = min(max(0, round(varied_ns)), LARGEST)
    return drawn_ns
