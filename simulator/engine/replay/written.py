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
from dataclasses import dataclass
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from simulator.draws import Draws
from simulator.engine.program import Program
from simulator.graph import Graph
from simulator.hardware import Hardware
from simulator.hardware.device import MIB
from simulator.plan import COMPUTE, COPY, DETACH, PART, STATES, SYNC, Actions, Code, PlacesAsIssued
from simulator.trace import Bools, Ints

_ANY = 1 << 31
"""No operand that an action does not use is as large."""

_MOST_CODES = 64
"""Codes for each op that runs and each tensor; a plan that issues more may have no end, but a run of it that blocks."""


@dataclass(frozen=True, slots=True, eq=False)
class WrittenPlan:
    """What a runtime issues, in columns.

    Attributes
    ----------
    kind, a, b, c
        The codes of its actions, those of its static parts among them. Operands are in range; whether each action can
        act (`simulator.plan.PlacesAsIssued`, and links) is not checked.
    price_ns
        What the host pays for each [ns].
    issued
        The codes as rows of a trace (`simulator.trace.ISSUED`).
    """

    kind: NDArray[np.int8]
    a: NDArray[np.int32]
    b: NDArray[np.int32]
    c: NDArray[np.int32]
    price_ns: Ints
    issued: Ints


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
        rows = _with_parts(view.codes, plan.static_parts)
    except Exception:  # an engine that pulls the plan meets the same, in its place in the run
        return None
    if not view.is_sure or not _in_range(rows, program.graph, len(hardware.tiers)):
        return None
    if view.reveals is not None and not _all_there(program, hardware, rows, view.reveals.undecided):
        return None
    prices_ns, kind = _prices(program, hardware, rows, view.looks), rows[:, 0].astype(np.int8)
    a, b, c = np.ascontiguousarray(rows.T[1:], np.int32)
    return WrittenPlan(kind, a, b, c, prices_ns, rows)


class _UnsureError(Exception):
    """What the plan asks for depends on the device, or what it issues cannot act."""


class _View:
    """What a plan sees while it is written out (`simulator.plan.View`).

    Attributes
    ----------
    steps
        Number of times that the graph runs.
    codes
        The codes issued so far, one after another.
    is_sure
        Whether all that was asked for is known from issue order.
    reveals
        What is known of dynamic reads; None if nothing is drawn.
    looks
        For each look at a choice: how many actions were issued before, and how many candidates were chosen.
    """

    def __init__(self, program: Program, hardware: Hardware) -> None:
        self._program, self._hardware, self.steps = program, hardware, program.graph.steps
        self.codes, self.is_sure, self._placed = list[int](), True, 0
        self.reveals = None if program.draws is None else _Reveals(program.graph, program.plan.static_parts)
        self._places: PlacesAsIssued | None = None
        self.looks: list[tuple[int, int]] = []

    def issue(self, codes: Iterator[Code]) -> None:
        """Issue all codes of the plan."""
        graph, issued = self._program.graph, self.codes
        most = 4 * _MOST_CODES * (len(graph.ops) * graph.steps + len(graph.tensors))
        for kind, a, b, c in codes:
            issued += (kind, a, b, c)
            if len(issued) > most:
                self._give_up()
        if self.reveals is not None:
            self.reveals.follow(issued)

    def place(self, tensor: int, tier: int) -> str:
        """Return the state of a place once all issued actions have acted."""
        if self._places is None:
            self._places = _homes(self._program, self._hardware)
        parts, graph, codes = self._program.plan.static_parts, self._program.graph, self.codes
        for code in zip(*(codes[self._placed + operand :: 4] for operand in range(4)), strict=True):
            for action in parts[code[1]].codes() if code[0] == PART else (code,):
                if _broken_rule(self._places, graph, action):
                    self._give_up()
        self._placed = len(codes)
        return STATES[self._places.state[tier][tensor]]

    def chosen(self, op: int) -> tuple[int, ...]:
        """Return the candidates that the next run of an op reads, if its reveal was synced."""
        reveals, draws = self._known(op, _Reveals.is_revealed)
        chosen = draws.chosen(op, reveals.steps[op])
        self.looks.append((reveals.actions, len(chosen)))
        return chosen

    def predicted(self, op: int, accuracy: float) -> tuple[int, ...]:
        """Guess what the next run of an op chooses, if the reveal before its own was synced."""
        reveals, draws = self._known(op, _Reveals.is_predictable)
        step = reveals.steps[op]
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

    def _known(self, op: int, is_known: Callable[[_Reveals, int], bool]) -> tuple[_Reveals, Draws]:
        """Return what is known of dynamic reads, and the draws, if a choice is known."""
        reveals, draws = self.reveals, self._program.draws
        if reveals is None or draws is None:
            self._give_up()
        reveals.follow(self.codes)
        if op not in reveals.steps or not is_known(reveals, op):
            self._give_up()
        return reveals, draws

    def _give_up(self) -> NoReturn:
        """Stop: the plan cannot be written out, even if it goes on."""
        self.is_sure = False
        raise _UnsureError


class _Reveals:
    """Which choices are sure to be known, from issue order alone.

    Parameters
    ----------
    graph, parts
        The ops; the static parts of the plan.

    Attributes
    ----------
    steps
        By op with dynamic reads, the step that its next issue belongs to.
    actions
        How many actions were followed.
    undecided
        Position of a compute that was issued when its choice was not sure to be known -> its op.
    """

    def __init__(self, graph: Graph, parts: Sequence[Actions]) -> None:
        self._graph, self._reads_of, self._followed = graph, graph.dynamic_reads, 0
        self.steps, self.actions, self.undecided = dict.fromkeys(self._reads_of, 0), 0, dict[int, int]()
        self._times = dict.fromkeys(sorted({reads.revealed_by for reads in self._reads_of.values()}), 0)
        self._order, self._telling = [*self._times], self.steps.keys() | self._times.keys()
        self._unsynced: dict[int, frozenset[int]] = {}  # op that reveals, and may not have ended -> tensors it names
        self._parts = [(len(part), [*self._told(part.kind, part.a)]) for part in parts]

    def _told(self, kinds: Iterable[int], operands: Iterable[int]) -> Iterator[tuple[int, int, int]]:
        """Yield position, kind and operand of the parts and actions that tell something about choices."""
        telling = self._telling
        for position, (kind, operand) in enumerate(zip(kinds, operands, strict=True)):
            if kind >= SYNC or (kind == COMPUTE and operand in telling):
                yield position, kind, operand

    def follow(self, codes: Sequence[int]) -> None:
        """Follow what was issued since the last time; `codes` has all codes so far, one after another."""
        first, self._followed = self._followed, len(codes)
        before = self.actions  # the position of the first of them, without the parts among them
        for position, kind, operand in self._told(codes[first::4], codes[first + 1 :: 4]):
            if kind != PART:
                self._note(before + position, kind, operand)
                continue
            actions, told = self._parts[operand]
            for offset, *action in told:
                self._note(before + position + offset, *action)
            before += actions - 1
        self.actions = before + (len(codes) - first) // 4

    def _note(self, position: int, kind: int, operand: int) -> None:
        """Note a sync, or a compute that reveals a choice or reads one."""
        if kind == SYNC:
            self._unsynced = {op: named for op, named in self._unsynced.items() if operand not in named}
            return
        if operand in self.steps and not self.is_revealed(operand):
            self.undecided[position] = operand
        if operand in self._times:
            node = self._graph.ops[operand]
            self._times[operand] += 1
            self._unsynced[operand] = frozenset((*node.reads, *node.writes))
        if operand in self.steps:
            self.steps[operand] += 1

    def is_revealed(self, op: int) -> bool:
        """Return whether the next reads of an op are sure to be known."""
        by = self._reads_of[op].revealed_by
        return self._times[by] > self.steps[op] and by not in self._unsynced

    def is_predictable(self, op: int) -> bool:
        """Return whether the reveal before that of an op's next reads is sure to have ended."""
        position = self._order.index(self._reads_of[op].revealed_by)
        before, needed = self._order[position - 1], self.steps[op] + (position > 0)
        return self._times[before] >= needed > 0 and before not in self._unsynced


def _homes(program: Program, hardware: Hardware) -> PlacesAsIssued:
    """Return all places before the first action."""
    return PlacesAsIssued(program.plan.home, len(hardware.tiers), hardware.compute_tier_id)


def _broken_rule(places: PlacesAsIssued, graph: Graph, code: Sequence[int]) -> str:
    """Let an action take effect as issued; return the rule that it breaks."""
    kind, a, b, c = code
    if kind == COPY:
        return places.copy(a, b, c)
    if kind == DETACH:
        return places.detach(a, b)
    if kind == COMPUTE:
        places.write(graph.ops[a].writes)
    return ""


def _with_parts(codes: list[int], parts: Sequence[Actions]) -> Ints:
    """Return the codes as rows, the actions of a static part in place of each of its codes."""
    rows = np.frombuffer(array("q", codes), np.int64).reshape(-1, 4)
    if not parts:
        return rows
    blocks = [np.stack([np.asarray(column, np.int64) for column in (x.kind, x.a, x.b, x.c)], 1) for x in parts]
    lengths, starts = np.ones(len(rows), np.int64), np.arange(len(rows))
    is_part, lasts = rows[:, 0] == PART, np.cumsum([len(block) for block in blocks])
    which = rows[is_part, 1]
    lengths[is_part] = np.diff(lasts, prepend=0)[which]
    starts[is_part] = len(rows) + lasts[which] - lengths[is_part]
    ends = np.cumsum(lengths)
    within = np.arange(lengths.sum()) - np.repeat(ends - lengths, lengths)
    whole: Ints = np.concatenate((rows, *blocks))[np.repeat(starts, lengths) + within]
    return whole


def _in_range(rows: Ints, graph: Graph, tiers: int) -> bool:
    """Return whether each row is an action on ops, streams, tensors and tiers that there are."""
    kind, (a, b, c) = rows[:, 0], rows.T[1:]
    streams = 1 + int(graph.columns.streams.max()) + len(graph.groups)  # each group may have a stream of its own
    is_compute, has_tier = kind == COMPUTE, (kind == COPY) | (kind == DETACH)
    limits = (
        (kind, SYNC + 1),
        (a, np.where(is_compute, len(graph.ops), len(graph.tensors))),
        (b, np.where(is_compute, streams, np.where(has_tier, tiers, _ANY))),
        (c, np.where(kind == COPY, tiers, _ANY)),
    )
    return all(bool(((values >= 0) & (values < limit)).all()) for values, limit in limits)


def _all_there(program: Program, hardware: Hardware, rows: Ints, undecided: dict[int, int]) -> bool:
    """Return whether all candidates are in place, as issued, where a compute's choice was not sure to be known."""
    if not undecided:
        return True
    places, graph, candidates = _homes(program, hardware), program.graph, program.graph.candidates
    for position, code in enumerate(rows[: max(undecided) + 1].tolist()):
        if position in undecided:
            reads = graph.ops[undecided[position]].reads
            if places.missing(t for t in reads if t in candidates) is not None:
                return False
        if _broken_rule(places, graph, code):
            return False
    return True


def _prices(program: Program, hardware: Hardware, rows: Ints, looks: list[tuple[int, int]]) -> Ints:
    """Return what the host pays for each action [ns].

    With static parts, only what is decided about dynamic reads has the price of a runtime. The first action after a
    look at a choice that is decided at run time pays for the look.
    """
    graph, plan, host, here = program.graph, program.plan, hardware.host, hardware.compute_tier_id
    kind, a, b, _ = rows.T
    is_compute, out = kind == COMPUTE, np.flatnonzero((kind == COPY) & (b == here))
    at_run_time = np.zeros(len(graph.ops) + len(graph.tensors), bool)  # ops, then tensors
    at_run_time[[*(graph.dynamic_reads if program.draws else ()), *(len(graph.ops) + t for t in graph.candidates)]] = (
        True
    )
    is_decided = at_run_time[np.where(is_compute, a, len(graph.ops) + a)]
    prices_ns: Ints = np.array(host.reactive.prices_ns, np.int64)[kind]
    if host.reactive.pin_ns:
        new = out[_takes_new_place(rows, plan.home, len(hardware.tiers))[out]]
        prices_ns[new] += -(-graph.columns.size_bytes[a[new]] // MIB) * host.reactive.pin_ns
    if plan.static_parts:
        prices_ns[~is_decided & (kind != SYNC)] = host.fixed.step_ns
    prices_ns[out] += graph.columns.is_persistent[a[out]] * np.int64(host.reactive.update_ns)
    pays = np.flatnonzero(~is_compute | is_decided)
    for position, chosen in looks if host.reactive.select_ns else ():
        payer = pays[np.searchsorted(pays, position) :][:1]
        prices_ns[payer] += chosen * host.reactive.select_ns
    return prices_ns


def _takes_new_place(rows: Ints, home: Sequence[int], tiers: int) -> Bools:
    """Return which copies go to a tier where their tensor has no place as issued; other rows say nothing."""
    kind, a, b, c = rows.T
    moves = np.flatnonzero((kind == COPY) | (kind == DETACH))
    tier = np.where(kind[moves] == COPY, c[moves], b[moves])
    places = a[moves] * tiers + tier
    order = np.argsort(places, kind="stable")
    is_first = np.diff(places[order], prepend=-1) != 0
    was_detached = np.concatenate(([False], kind[moves[order]][:-1] == DETACH))
    is_away = np.array(home, np.int64)[a[moves]] != tier
    found = np.zeros(len(rows), bool)
    found[moves[order]] = np.where(is_first, is_away[order], was_detached)
    return found
