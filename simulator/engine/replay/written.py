"""Reactive plans, written out before the run: the actions that a runtime issues, each with its price.

A plan that does not look at the machine asks for steps, for places as issued, and for what its ops choose. All of this
follows from issue order and draws, so it can be run to its end before anything is simulated. One thing depends on the
device: a choice is known once the op that reveals it has ended. The host makes sure of that by a sync of a tensor that
this op names. A plan that asks without it, that breaks a rule, or that does not end is not written out, and an engine
that pulls it as it runs decides.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, NamedTuple, NoReturn

import numpy as np
from numpy.typing import NDArray

from simulator.cost import issue_ns
from simulator.draws import Draws
from simulator.engine.program import Program, Reveals, runtime_streams
from simulator.graph import Graph
from simulator.hardware import Hardware
from simulator.hardware.device import MIB
from simulator.plan import COMPUTE, COPY, DETACH, PART, STATES, SYNC, Actions, Code, PlacesAsIssued
from simulator.trace import Ints

_MOST_CODES = 64
"""Codes for each op that runs and each tensor; a plan that issues more may have no end, but a run of it that blocks."""


class WrittenPlan(NamedTuple):
    """What a runtime issues.

    Attributes
    ----------
    actions
        All actions, those of static parts where they are issued. Ops, streams, tensors and tiers are there; whether
        each action can act (`simulator.plan.PlacesAsIssued`, and links) is not checked.
    prices_ns
        What the host pays for each [ns].
    """

    actions: Actions
    prices_ns: Ints


def written_out(program: Program, hardware: Hardware) -> WrittenPlan | None:
    """Write out a reactive plan; None where what it issues is not sure before the run, or breaks a rule.

    Parameters
    ----------
    program, hardware
        What the rank runs; the machine.
    """
    plan = program.plan
    if not callable(plan.actions) or plan.looks:
        return None
    view = _View(program, hardware)
    try:
        view.issue(plan.actions(view))
        rows = np.frombuffer(array("q", view.codes), np.int64).reshape(-1, 4)
    except Exception:  # an engine that pulls the plan meets the same, in its place in the run
        return None
    graph = program.graph
    if not view.is_sure or not in_range(rows.T, graph, len(hardware.tiers), runtime_streams(graph)):
        return None
    kind, operands = rows[:, 0].astype(np.int8), rows[:, 1:].astype(np.int32).T
    actions = Actions.from_columns(array("b", kind.tobytes()), *(array("i", operand.tobytes()) for operand in operands))
    return WrittenPlan(actions, _prices_ns(program, hardware, rows, view.looks))


class _UnsureError(Exception):
    """What the plan asks for depends on the device, or what it issues cannot act."""


class _View(Reveals):
    """What a plan sees while it is written out (`simulator.plan.View`).

    Attributes
    ----------
    steps
        Number of times that the graph runs.
    codes
        The codes issued so far, one after another.
    is_sure
        Whether all that was asked for is known from issue order.
    looks
        For each look at a choice: how many actions were issued before, and how many candidates were chosen.
    """

    def __init__(self, program: Program, hardware: Hardware) -> None:
        graph, plan = program.graph, program.plan
        super().__init__(graph)
        self._graph, self._plan, self._draws, self.steps = graph, plan, program.draws, graph.steps
        self.codes, self.is_sure, self.looks = list[int](), True, list[tuple[int, int]]()
        self._unsynced: dict[int, frozenset[int]] = {}  # op that reveals, and may not have ended -> tensors it names
        self._tier = hardware.compute_tier_id
        self._places = PlacesAsIssued(plan.home, len(hardware.tiers), self._tier)
        self._followed = self._placed = 0

    def issue(self, codes: Iterator[Code]) -> None:
        """Issue all codes of the plan."""
        graph, issued = self._graph, self.codes
        parts = [[*chain.from_iterable(part.codes())] for part in self._plan.static_parts]
        most = 4 * _MOST_CODES * (len(graph.ops) * graph.steps + len(graph.tensors))
        for kind, a, b, c in codes:
            issued += parts[a] if kind == PART else (kind, a, b, c)
            if len(issued) > most:
                self._give_up()
        self._follow()

    def place(self, tensor: int, tier: int) -> str:
        """Return the state of a place once all issued actions have acted."""
        self._follow()
        return STATES[self._places_after(len(self.codes) // 4).state[tier][tensor]]

    def chosen(self, op: int) -> tuple[int, ...]:
        """Return the candidates that the next run of an op reads, if its reveal was synced."""
        chosen = self._known(op, self.is_revealed).chosen(op, self.step_of[op])
        self.looks.append((len(self.codes) // 4, len(chosen)))
        return chosen

    def predicted(self, op: int, accuracy: float) -> tuple[int, ...]:
        """Guess what the next run of an op chooses, if the reveal before its own was synced."""
        draws, step = self._known(op, self.is_predictable), self.step_of[op]
        return draws.predicted(op, step, accuracy) if step < self.steps else ()

    @property
    def now_ns(self) -> int:
        """The time, which depends on the device."""
        self._give_up()

    def settled(self, tensor: int) -> bool:
        """Whether actions have ended, which depends on the device."""
        self._give_up()

    def room_bytes(self, tier: int) -> int | float:
        """Free bytes, which depend on the device."""
        self._give_up()

    def _give_up(self) -> NoReturn:
        """Stop: the plan cannot be written out, even if it goes on."""
        self.is_sure = False
        raise _UnsureError

    def _known(self, op: int, is_known: Callable[[int], bool]) -> Draws:
        """Return the draws, if the choice that is asked for is sure to be known."""
        self._follow()
        if self._draws is None or op not in self.step_of or not is_known(op):
            self._give_up()
        return self._draws

    def _has_ended(self, op: int) -> bool:
        """Return whether an op is sure to have ended."""
        return op not in self._unsynced

    def _follow(self) -> None:
        """Follow what was issued since the last time, as far as it says something about choices."""
        first, self._followed = self._followed, len(self.codes)
        codes = zip(self.codes[first::4], self.codes[first + 1 :: 4], strict=True)
        for position, (kind, operand) in enumerate(codes if self._draws else (), first // 4):
            if kind == SYNC:
                self._unsynced = {op: named for op, named in self._unsynced.items() if operand not in named}
            elif kind == COMPUTE and operand in self.step_of:
                if not self.is_revealed(operand):  # all that it may read is in place, then
                    candidates = self._graph.candidates.intersection(self._graph.ops[operand].reads)
                    if self._places_after(position).missing(candidates, self._tier) is not None:
                        self._give_up()
                self.step_of[operand] += 1
            if kind == COMPUTE and operand in self.issues:
                op = self._graph.ops[operand]
                self.issues[operand] += 1
                self._unsynced[operand] = frozenset((*op.reads, *op.writes))

    def _places_after(self, actions: int) -> PlacesAsIssued:
        """Return the places as so many actions leave them, which are no fewer than the last time."""
        first, self._placed = self._placed, actions
        for action in range(first, actions):
            kind, a, b, c = self.codes[4 * action : 4 * action + 4]
            if kind == COMPUTE:
                self._places.write(self._graph.ops[a].writes, self._tier)
            elif (kind == COPY and self._places.copy(a, b, c)) or (kind == DETACH and self._places.detach(a, b)):
                self._give_up()
        return self._places


def in_range(codes: Iterable[NDArray[Any]], graph: Graph, tiers: int, streams: int) -> bool:
    """Return whether each action is on ops, streams, tensors and tiers that there are.

    Parameters
    ----------
    codes
        The columns of the actions' codes.
    graph, tiers, streams
        Ops and tensors; how many tiers and streams there are.
    """
    kind, a, b, c = codes
    is_compute, unused = kind == COMPUTE, 1 << 31
    limits = (
        (kind, SYNC + 1),
        (a, np.where(is_compute, len(graph.ops), len(graph.tensors))),
        (b, np.where(is_compute, streams, np.where(kind == SYNC, unused, tiers))),
        (c, np.where(kind == COPY, tiers, unused)),
    )
    return all(bool(((values >= 0) & (values < limit)).all()) for values, limit in limits)


def _prices_ns(program: Program, hardware: Hardware, rows: Ints, looks: Sequence[tuple[int, int]]) -> Ints:
    """Return what the host pays for each action [ns].

    With static parts, only what is decided about dynamic reads has the price of a runtime. The next action that is no
    compute, or one with dynamic reads, pays for a look at a choice.
    """
    graph, plan, runtime = program.graph, program.plan, hardware.host.reactive
    (kind, a, b, _), ops = rows.T, len(graph.ops)
    is_compute, out = kind == COMPUTE, np.flatnonzero((kind == COPY) & (b == hardware.compute_tier_id))
    at_run_time = np.zeros(ops + len(graph.tensors), bool)  # of ops, then of tensors
    at_run_time[[*(graph.dynamic_reads if program.draws else ()), *(ops + t for t in graph.candidates)]] = True
    is_decided = at_run_time[np.where(is_compute, a, ops + a)]
    prices_ns: Ints = np.array(runtime.prices_ns, np.int64)[kind]
    if runtime.pin_ns:
        prices_ns += _pinned_mib(program, hardware, rows) * runtime.pin_ns
    if plan.static_parts:
        fixed_ns, is_static = np.array(hardware.host.fixed.prices_ns, np.int64)[kind], ~is_decided & (kind != SYNC)
        prices_ns[is_static] = fixed_ns[is_static]
    prices_ns[is_compute] += np.array(issue_ns(graph, hardware.host), np.int64)[a[is_compute]]
    prices_ns[out] += graph.columns.is_persistent[a[out]] * np.int64(runtime.update_ns)
    pays = np.flatnonzero(~is_compute | is_decided)
    for position, chosen in looks if runtime.select_ns else ():
        prices_ns[pays[np.searchsorted(pays, position) :][:1]] += chosen * runtime.select_ns
    return prices_ns


def _pinned_mib(program: Program, hardware: Hardware, rows: Ints) -> Ints:
    """Return the page-locked memory that each action takes: that of a copy out to a new place, in whole MiB."""
    held, sizes, tier = set(enumerate(program.plan.home)), program.graph.columns.size_bytes, hardware.compute_tier_id
    pinned_mib = np.zeros(len(rows), np.int64)
    for position, (kind, tensor, source, target) in enumerate(rows.tolist()):
        if kind == COPY:
            if source == tier and (tensor, target) not in held:
                pinned_mib[position] = -(-sizes[tensor] // MIB)
            held.add((tensor, target))
        elif kind == DETACH:
            held.discard((tensor, source))
    return pinned_mib
