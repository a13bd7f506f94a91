"""Walks a fixed plan in issue order and names the first action that breaks a rule.

Each place (a tensor in a tier) is absent, valid or stale. A compute makes what it writes valid in the compute tier and
stale elsewhere; it may read in place what the graph allows. A copy makes its target valid; a detach makes its place
absent. A training step is over once every op has run and persistent tensors are valid at home and nowhere else, and
nothing else is held. A plan that repeats is walked once, because it must end where it began. Copies of candidates of
dynamic reads, which no op writes, may stay from one step to the next, as in a cache, until the plan ends.

An op may run again within a training step, and ops may run in another order. A tensor that an op reads must be valid,
as always, and hold the *value* that program order gives it: the one that the last op before it made, or with which the
training step began. Each rank comes to the collectives of a group in program order, once each, on one stream. A copy
into the compute tier that is issued before a barrier must be used before it, except that what comes home at the end of
a training step stays for the next, whatever barriers that has.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import numpy as np

from simulator.draws import Draws
from simulator.errors import PlanError
from simulator.graph import Call, Graph, Op, Roles
from simulator.hardware import Hardware
from simulator.plan import COMPUTE, COPY, DETACH, NOWHERE, SYNC, Code, Plan
from simulator.referee.facts import Fault, RankPlan, Report, describe, refuse
from simulator.referee.place_laws import check_homes
from simulator.referee.values import Values
from simulator.trace import Ints, digest

ABSENT, VALID, STALE = range(3)
_STATES = ("absent", "valid", "stale")
_STREAMS = 64
"""More streams than a graph may name (32); collectives may have others beside them."""
_END = "end of the plan"

Position = tuple[int, Code]
"""The index of an action in the plan, and the action."""


def check_plan(
    graph: Graph,
    hardware: Hardware,
    plan: Plan,
    pinned: Collection[int] = (),
    draws: Draws | None = None,
    report: Report = refuse,
) -> None:
    """Check a plan before it runs.

    Parameters
    ----------
    graph, hardware
        The graph and the machine.
    plan
        A fixed plan, or the record of what a reactive one issued; of a reactive plan only the homes are checked.
    pinned
        Tensors (ids) that the scenario keeps in the compute tier because it names that as their home.
    draws
        What dynamic reads choose, for a plan that was made when that was known, such as a record. A plan that repeats
        cannot know it, and must have all candidates valid, as without draws.
    report
        Takes each fault of the actions; by default the first is raised.

    Raises
    ------
    PlanError
        If a home, or an action, breaks a rule: it names the action, the tensor and the rule.
    """
    check_homes(graph, hardware, plan)
    if (fixed := plan.fixed) is not None:
        of_rank = RankPlan(plan, draws if plan.repeats == 1 else None, pinned=pinned)
        columns = [np.array(column, np.int64) for column in (fixed.kind, fixed.a, fixed.b, fixed.c)]
        check_actions(graph, hardware, of_rank, columns, report)


def check_actions(
    graph: Graph, hardware: Hardware, of_rank: RankPlan, columns: Sequence[Ints], report: Report = refuse
) -> None:
    """Walk all actions of a plan; not again if the same were found right before, as on a machine with other bandwidths.

    Parameters
    ----------
    graph, hardware, report
        As for `check_plan`.
    of_rank
        The plan, and what its rank draws.
    columns
        The codes of its actions.
    """
    plan, draws = of_rank.plan, of_rank.draws
    steps = graph.steps // (plan.repeats if plan.fixed is not None else 1)
    scopes = [tier.scope for tier in hardware.tiers.values()]
    machine = hardware.compute_tier, hardware.host_tier_id, hardware.hops, *hardware.loads, *scopes
    about = PlanWalk, *machine, plan.tiers, plan.home, frozenset(of_rank.pinned), steps, digest(*columns)
    if draws is None and about in graph.known:
        return
    walk = PlanWalk(graph, hardware, plan, of_rank.pinned, draws)
    walk.report = report
    walk.take(zip(*(column.tolist() for column in columns), strict=True))
    walk.finish(steps)
    if draws is None and report is refuse:
        graph.known[about] = None


class PlanWalk:
    """A walk over the actions of a plan.

    Parameters
    ----------
    graph, hardware, plan, pinned, draws
        As for `check_plan`; the actions of the plan are those that `take` gets.
    """

    report: Report = staticmethod(refuse)

    def __init__(
        self, graph: Graph, hardware: Hardware, plan: Plan, pinned: Collection[int] = (), draws: Draws | None = None
    ) -> None:
        self._owed, self._staying = set[int](), set[int]()  # valid as if a fault were mended; kept between steps
        self._graph, self._plan, self._draws, self._tiers = graph, plan, draws, len(plan.tiers)
        self._compute_tier = plan.tiers.index(hardware.compute_tier)
        cores, self._device_of = hardware.host_compute, dict[int, str]()
        self._host_tier = plan.tiers.index(cores.tier if cores else hardware.compute_tier)
        self._loads = [plan.tiers.index(hardware.tier_names[tier]) for tier in hardware.loads]
        self._linked = {tuple(map(plan.tiers.index, (k.source, k.target))) for k in hardware.links.values()}
        self._state, self._between = (bytearray(len(graph.tensors) * self._tiers) for _ in range(2))
        for t, (tensor, home) in enumerate(zip(graph.tensors, plan.home, strict=True)):
            if home != NOWHERE:
                self._state[t * self._tiers + home] = VALID
                self._between[t * self._tiers + home] = VALID if tensor.persistent else ABSENT
            if tensor.persistent and t in pinned:
                self._staying.add(t * self._tiers + self._compute_tier)
            if tensor.persistent and tensor.shared and hardware.tiers[plan.tiers[home]].scope != "device":
                self._staying.add(t * self._tiers + home)
        self._unlike = sum(a != b for a, b in zip(self._state, self._between, strict=True))
        self._outputs = {t for t in graph.outputs if not graph.tensors[t].persistent}
        self._lost_at, self._ran = dict[int, Position](), set[int]()
        self._values, self._roles = Values(graph), Roles(graph)
        self._met, self._stream_of = dict.fromkeys(self._roles.ops, 0), dict[Call, int]()
        self._has_barriers, self._unused = any(op.barrier for op in graph.ops), set[int]()
        self._position: Position = (NOWHERE, (SYNC, 0, 0, 0))
        self._checked, self._last_move, self._steps_done = set[Code](), self._position, 0
        self._cacheable, self._cached = graph.cacheable, 0
        self._certain = {i: {*graph.ops[i].reads} - {*reads.candidates} for i, reads in graph.dynamic_reads.items()}
        ops, streams = ("an op id", len(graph.ops)), ("a stream id", _STREAMS)
        tensors, tiers = ("a tensor id", len(graph.tensors)), ("a tier id", self._tiers)
        self._operands = {
            COMPUTE: (ops, streams), COPY: (tensors, tiers, tiers), DETACH: (tensors, tiers), SYNC: (tensors,),
        }  # fmt: skip

    def take(self, codes: Iterable[Code]) -> None:
        """Walk the next actions."""
        for index, code in enumerate(codes, self._position[0] + 1):
            self._position = index, code
            if code not in self._checked:
                if not self._has_operands(*code):
                    continue
                self._checked.add(code)
            kind, a, b, c = code
            if kind == COMPUTE:
                self._compute(a, b)
            elif kind == COPY:
                self._copy(a, b, c)
            elif kind == DETACH:
                self._detach(a, b)
            if len(self._ran) == len(self._graph.ops) and not self._unlike and not self._values.unlike:
                self._end_training_step()

    def _has_operands(self, kind: int, *ids: int) -> bool:
        if kind not in self._operands:
            must, do = "an action is compute, copy, detach or sync (0 to 3)", "correct its kind"
            self._tell_error(("no such action", NOWHERE), must, str(kind), do)
            return False
        for operand, (name, count) in zip(ids, self._operands[kind], strict=False):
            if not 0 <= operand < count:
                must, do = f"{name} lies between 0 and {count - 1:,}", "make the plan for this graph"
                self._tell_error(("no such name", NOWHERE), must, str(operand), do)
                return False
        return True

    def finish(self, training_steps: int) -> None:
        """Check the end of the plan, which must have run so many training steps."""
        is_short = self._steps_done < training_steps
        missing = [op for op in range(len(self._graph.ops)) if op not in self._ran] if is_short else []
        if missing:
            more = f" and {len(missing) - 1:,} more" if len(missing) > 1 else ""
            found = f"no compute of op {self._graph.ops[missing[0]].name!r}{more}"
            found += f" in training step {self._steps_done + 1} of {training_steps}"
            self._tell_error(("op left out", NOWHERE), "every op runs in every training step", found, "add it", _END)
        elif is_short and self._values.unlike and not self._unlike:
            must = "a tensor that outlasts a training step ends it with its value in program order"
            unlike = self._values.first_unlike()
            do = "run the op that makes this value last"
            self._tell_error(("another value at the end", unlike[0]), must, self._values.difference(*unlike), do, _END)
        elif is_short or self._unlike or self._cached:
            self._refuse_end(_END)
        if not is_short and (overwritten := self._values.first_made()) is not None:
            must = "no op after the last training step changes a tensor that outlasts it"
            found = f"that one writes {self._name(overwritten)} again"
            self._tell_error(("written after the end", overwritten), must, found, "remove it", _END)

    def _end_training_step(self) -> None:
        for position, t in sorted((self._lost_at[t], t) for t in self._outputs & self._lost_at.keys()):
            if position[0] < self._last_move[0]:
                must, last = "an output keeps a valid copy until the training step ends", self._action(self._last_move)
                found = f"that it detaches the only valid copy of {self._name(t)} before {last}"
                self._tell_error(("output detached early", t), must, found, "detach outputs last", position)
        self._ran.clear()
        self._unused.clear()
        self._values.begin_step()
        self._steps_done += 1

    def _compute(self, op_id: int, stream: int) -> None:
        op, tiers, state = self._graph.ops[op_id], self._tiers, self._state
        tier, reads, writes = self._host_tier if op.device == "host" else self._compute_tier, op.reads, op.writes
        if op.device != (device := self._device_of.setdefault(stream, op.device)):
            must, found = "ops of one stream are of one device", f"one of the {op.device} after others of the {device}"
            self._tell_error(("two devices on a stream", NOWHERE), must, found, "issue it on another stream")
        if op.dynamic is not None and self._draws is not None:
            chosen = self._draws.chosen(op_id, self._steps_done)
            reads, unchosen = (*self._certain[op_id], *chosen), {*op.dynamic.candidates}.difference(chosen)
            writes = tuple([t for t in writes if t not in unchosen])
        for t in reads:
            if state[t * tiers + tier] != VALID:
                loads = self._loads if t in self._graph.in_place else ()
                if not any(state[t * tiers + source] == VALID for source in loads):
                    self._refuse_read(t, tier, f"op {op.name!r}")
        self._check_values(op_id)
        self._values.write(op_id)
        if op_id in self._roles.calls:
            self._check_turn(op_id, stream)
        if self._has_barriers:
            self._check_barrier(op)
        for t in writes:
            for place in range(t * tiers, (t + 1) * tiers):
                if state[place] == VALID:
                    self._put(place, STALE)
            self._put(t * tiers + tier, VALID)
            self._lost_at.pop(t, None)
        self._ran.add(op_id)
        self._last_move = self._position

    def _check_values(self, op: int) -> None:
        """Check that the op may run, if it runs again, and that it reads the values that it reads in program order.

        If only a tensor left somewhere keeps a training step from ending, and another is to come, it is blamed instead.
        """
        wrong, is_again = self._values.wrong_read(op), op in self._ran and not self._graph.ops[op].repeatable
        if wrong is None and not is_again:
            return
        has_all = len(self._ran) == len(self._graph.ops) and not self._values.unlike
        if has_all and self._steps_done + 1 != self._graph.steps // self._plan.repeats:
            self._refuse_end(f"end of training step {self._steps_done + 1}")
            self._end_training_step()
            return
        if is_again:
            must = "an op that is not repeatable runs once in a training step"
            do = "keep or move its outputs, instead of rerunning it"
            self._tell_error(("op that may not run again", NOWHERE), must, "it again", do)
        if wrong is not None:
            must = "an op, also one that runs again, reads the values that program order gives it"
            do = "run it while they are there, or make them again before"
            self._tell_error(("use of another value", wrong[0]), must, self._values.difference(*wrong), do)

    def _check_turn(self, op: int, stream: int) -> None:
        call, ops = self._roles.calls[op], self._graph.ops
        line = self._roles.ops[call]
        due, own_stream = line[self._met[call] % len(line)], self._stream_of.setdefault(call, stream)
        self._met[call] += 1
        if due != op or own_stream != stream:
            must = f"collectives of group {call.group!r} are issued in program order, once each, on one stream"
            found = f"op {ops[op].name!r} on stream {stream} where op {ops[due].name!r} on stream {own_stream} is due"
            do = "issue them so, or the other members meet something else"
            self._tell_error(("collective out of turn", NOWHERE), must, found, do)

    def _check_barrier(self, op: Op) -> None:
        self._unused.difference_update(op.reads, op.writes)
        if op.barrier and self._unused:
            names = ", ".join(self._name(t) for t in sorted(self._unused)[:3])
            found = f"{names} copied in before it and not used yet ({len(self._unused)} in all)"
            must = f"no copy in is moved across barrier {op.name!r}"
            about = "prefetch across a barrier", min(self._unused)
            self._tell_error(about, must, found, "copy it in behind the barrier")

    def _copy(self, tensor: int, source: int, target: int) -> None:
        if (source, target) not in self._linked:
            found = f"none from {self._plan.tiers[source]} to {self._plan.tiers[target]}"
            must, do = "a link joins the two tiers of a copy", "copy along the links of the machine"
            self._tell_error(("copy without a link", tensor), must, found, do)
        if self._state[tensor * self._tiers + source] != VALID:
            self._refuse_read(tensor, source, f"a copy (action {self._position[0]:,})")
        place = tensor * self._tiers + target
        is_unsure = self._draws is not None and target != self._compute_tier and tensor in self._graph.updated
        if self._state[place] == VALID and place not in self._owed and not is_unsure:
            kind = "double prefetch" if target == self._compute_tier else "double store"
            found = f"{self._name(tensor)} valid in {self._plan.tiers[target]} already"
            must = "a copy has work to do: its target is absent or stale"
            self._tell_error((kind, tensor), must, found, "drop this copy")
        self._owed.discard(place)
        if target == self._compute_tier and self._state[place] != STALE:  # what the host wrote is renewed in its place
            self._unused.add(tensor)
        self._put(place, VALID)
        self._last_move = self._position

    def _detach(self, tensor: int, tier: int) -> None:
        place, name = tensor * self._tiers + tier, self._plan.tiers[tier]
        was = self._state[place]
        if was == ABSENT:
            do = "drop this detach, or make the tensor before it"
            found = f"{self._name(tensor)} absent from {name}"
            self._tell_error(("double detach", tensor), "a tensor to detach is there", found, do)
        if place in self._staying:
            must = f"a tensor that the scenario puts into {name}, or that ranks share there, stays there"
            do = "keep it; or leave its home free, or do not share it"
            self._tell_error(("detach of a fixed tensor", tensor), must, f"that it detaches {self._name(tensor)}", do)
        self._put(place, ABSENT)
        if tier == self._compute_tier:
            self._unused.discard(tensor)
        if was == VALID and VALID not in self._state[tensor * self._tiers : (tensor + 1) * self._tiers]:
            self._lost_at[tensor] = self._position

    def _put(self, place: int, state: int) -> None:
        like = self._between[place]
        change = (state != like) - (self._state[place] != like)
        if like == ABSENT and place // self._tiers in self._cacheable:
            self._cached += change
        else:
            self._unlike += change
        self._state[place] = state

    def _refuse_read(self, tensor: int, tier: int, reader: str) -> None:
        """Blame the detach of the only valid copy, or else the reader."""
        if tensor in self._lost_at:
            must = "a tensor used later keeps a valid copy"
            do = "store it elsewhere first, or detach it after its last use"
            found = f"that it detaches the only valid copy of {self._name(tensor)}, which {reader} reads later"
            self._tell_error(("detach before the store", tensor), must, found, do, self._lost_at.pop(tensor))
            self._put(tensor * self._tiers + tier, VALID)
            return
        places = self._state[tensor * self._tiers : (tensor + 1) * self._tiers]
        valid = [name for name, state in zip(self._plan.tiers, places, strict=True) if state == VALID]
        name, elsewhere = self._plan.tiers[tier], f"valid in {' and '.join(valid)}" if valid else "not written before"
        found = f"{self._name(tensor)} {_STATES[places[tier]]} in {name}, {elsewhere}"
        do = f"{f'copy it into {name}' if valid else 'write it'} before this action"
        kind = "use before it is made" if not valid else "use before the prefetch"
        self._tell_error((kind, tensor), f"a tensor that an action reads is valid ({name})", found, do)
        self._owed.add(tensor * self._tiers + tier)
        self._put(tensor * self._tiers + tier, VALID)

    def _refuse_end(self, moment: str) -> None:
        """Blame each place that differs from its state between steps, or the detach of its last valid copy."""
        for place, (state, between) in enumerate(zip(self._state, self._between, strict=True)):
            if state == between:
                continue
            tensor, tier = divmod(place, self._tiers)
            if tensor in self._lost_at and self._graph.tensors[tensor].persistent:
                found = f"that it detaches the only valid copy of persistent {self._name(tensor)}"
                must, do = "a tensor used later keeps a valid copy", "copy it to its home first"
                self._tell_error(("detach before the store", tensor), must, found, do, self._lost_at.pop(tensor))
            else:
                must = "a training step ends as it began: persistent tensors valid at home, and nothing else held"
                home, tiers = self._plan.home[tensor], self._plan.tiers
                at_home = f" (home {tiers[home]})" if home != NOWHERE else ""
                found = f"{self._name(tensor)}{at_home} {_STATES[state]} in {tiers[tier]}"
                do = "copy it home, if it has one, and detach its other copies"
                self._tell_error(("not as the step began", tensor), must, found, do, moment)
            self._put(place, between)

    def _name(self, tensor: int) -> str:
        return repr(self._graph.tensors[tensor].name)

    def _action(self, position: Position) -> str:
        index, code = position
        return f"action {index:,} ({describe(self._graph, self._plan.tiers, code)})"

    def _tell_error(self, about: tuple[str, int], must: str, found: str, do: str, where: str | Position = "") -> None:
        """Report a fault: its kind and the tensor, or `NOWHERE`; the rule, what breaks it, the remedy, and where."""
        (kind, tensor), blamed, names = about, where or self._position, [op.name for op in self._graph.ops]
        index, place = (NOWHERE, blamed) if isinstance(blamed, str) else (blamed[0], self._action(blamed))
        name = self._graph.tensors[tensor].name if tensor != NOWHERE else ""
        _, (action, op, _, _) = self._position
        used_by = names[op] if action == COMPUTE and index != NOWHERE and op in range(len(names)) else ""
        error = PlanError(f"plan {self._plan.name!r}, {place}", must, found, do)
        self.report(Fault(kind, index, used_by, name, error))
