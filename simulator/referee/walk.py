"""Walks a fixed plan in issue order and names the first step that breaks a rule.

The state is one of absent, valid and stale for each place (a tensor in a tier). A compute makes what it writes valid
in the compute tier and stale elsewhere; a copy makes its target valid; a detach makes its place absent. A training
step is over where every op has run and all places are as they must be between steps: persistent tensors valid at home
and nowhere else, nothing else held. A plan that repeats is walked once, because it must end where it began. Copies of
what late reads may choose, and no op writes, may stay from one step to the next, as in a cache, until the plan ends.

An op may run again within a training step. What it reads must then be valid, as always, and hold the values that
program order gives it: run again after something was overwritten, it would make something else. The
collectives of a group of ranks are issued in program order, and no copy in crosses a barrier (`issue_order`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from simulator.draws import Draws
from simulator.errors import PlanError
from simulator.graph import Graph, Late
from simulator.hardware import Hardware
from simulator.plan import COMPUTE, COPY, DETACH, NOWHERE, SYNC, Code, Plan
from simulator.referee.breach import describe
from simulator.referee.issue_order import INITIAL, Barriers, Turns, Values

ABSENT, VALID, STALE = range(3)
_STATES = ("absent", "valid", "stale")
_STREAMS = 64

Place = tuple[int, Code]
"""Where a walk is: the number of a step, and the step."""


def check_plan(
    graph: Graph, hardware: Hardware, plan: Plan, pinned: Collection[int] = (), draws: Draws | None = None
) -> None:
    """Check a plan before it runs.

    Parameters
    ----------
    graph
        What runs.
    hardware
        Where.
    plan
        A fixed plan, or the record of what a reactive one issued; of a reactive plan only the homes are checked.
    pinned
        Tensors (ids) that the scenario keeps in the compute tier because it names that as their home.
    draws
        What late reads choose, for a plan that was made when that was known, such as a record; one that repeats cannot
        know it, and then brings all candidates, as without draws.

    Raises
    ------
    PlanError
        With the step, the tensor and the rule that it breaks.
    """
    _check_tiers(hardware, plan)
    _check_homes(graph, hardware, plan)
    steps = plan.fixed
    if steps is None:
        return
    if plan.repeats < 1 or graph.steps % plan.repeats:
        raise PlanError(
            f"plan {plan.name!r}",
            f"its repeats divide the {graph.steps} training steps of the graph",
            f"{plan.repeats} repeats",
            "make a plan of one training step and repeat it for each",
        )
    walk = Walk(graph, hardware, plan, pinned, draws if plan.repeats == 1 else None)
    walk.take(steps.codes())
    walk.finish(graph.steps // plan.repeats)


def _check_tiers(hardware: Hardware, plan: Plan) -> None:
    if plan.tiers != hardware.tier_names:
        raise PlanError(
            f"plan {plan.name!r}",
            f"its tiers are those of {hardware.name!r} ({', '.join(hardware.tier_names)})",
            ", ".join(plan.tiers) or "none",
            "make the plan for this machine",
        )


def _check_homes(graph: Graph, hardware: Hardware, plan: Plan) -> None:
    where = f"plan {plan.name!r}, homes"
    if len(plan.home) != len(graph.tensors):
        found = f"{len(plan.home):,} homes for {len(graph.tensors):,} tensors"
        raise PlanError(where, "every tensor has an entry", found, "make the plan for this graph")
    inputs = set(graph.inputs)
    demand = [0] * len(plan.tiers)
    for t, home in enumerate(plan.home):
        _check_home(graph, plan, t, t in inputs)
        if home != NOWHERE:
            demand[home] += graph.tensors[t].size_bytes
    for tier, used in zip(plan.tiers, demand, strict=True):
        room = hardware.tiers[tier].usable_bytes
        if tier != hardware.compute_tier and used > room:
            must = f"what has its home in {tier} fits there ({room:,} B)"
            raise PlanError(where, must, f"{used:,} B", "give some tensors another home, or raise the capacity")


def _check_home(graph: Graph, plan: Plan, tensor: int, exists: bool) -> None:
    name, home = graph.tensors[tensor].name, plan.home[tensor]
    where = f"plan {plan.name!r}, home of {name!r}"
    if not NOWHERE <= home < len(plan.tiers):
        must = f"a home is a tier id from 0 to {len(plan.tiers) - 1}, or {NOWHERE} for none"
        raise PlanError(where, must, str(home), "give it one of the tiers")
    if exists and home == NOWHERE:
        must = "what exists before the first op has a home"
        raise PlanError(where, must, "none", f"give it one of {', '.join(plan.tiers)}")
    if not exists and home != NOWHERE:
        must = "only what exists before the first op has a home (persistent tensors and inputs)"
        raise PlanError(where, must, plan.tiers[home], "leave it out: it appears at its first write")


class Walk:
    """One walk over the steps of a plan.

    Parameters
    ----------
    graph, hardware, plan, pinned, draws
        As for `check_plan`; of the plan only its name and homes.
    """

    def __init__(
        self,
        graph: Graph,
        hardware: Hardware,
        plan: Plan,
        pinned: Collection[int] = (),
        draws: Draws | None = None,
    ) -> None:
        self._graph, self._plan, self._pinned, self._draws = graph, plan, frozenset(pinned), draws
        self._tiers = len(plan.tiers)
        self._scopes = [hardware.tiers[name].scope for name in plan.tiers]
        self._compute_tier = plan.tiers.index(hardware.compute_tier)
        numbers = {name: i for i, name in enumerate(plan.tiers)}
        self._linked = {(numbers[k.source], numbers[k.target]) for k in hardware.links.values()}
        places = len(graph.tensors) * self._tiers
        self._state, self._between = bytearray(places), bytearray(places)
        for t, home in enumerate(plan.home):
            if home != NOWHERE:
                self._state[t * self._tiers + home] = VALID
                self._between[t * self._tiers + home] = VALID if graph.tensors[t].persistent else ABSENT
        self._unlike = sum(a != b for a, b in zip(self._state, self._between, strict=True))
        self._outputs = {t for t in graph.outputs if not graph.tensors[t].persistent}
        self._lost: dict[int, Place] = {}
        self._detached: dict[int, int] = {}
        self._ran: set[int] = set()
        self._values, self._turns = Values(graph), Turns(graph)
        self._barriers = Barriers(graph, self._compute_tier)
        self._here: Place = (NOWHERE, (SYNC, 0, 0, 0))
        self._last_move, self._done = self._here, 0
        self._cacheable, self._cached = graph.cacheable, 0

    def take(self, codes: Iterable[Code]) -> None:
        """Walk the next steps."""
        op, stream = ("an op id", len(self._graph.ops)), ("a stream id", _STREAMS)
        tensor, tier = ("a tensor id", len(self._graph.tensors)), ("a tier id", self._tiers)
        operands = {COMPUTE: (op, stream), COPY: (tensor, tier, tier), DETACH: (tensor, tier), SYNC: (tensor,)}
        for at, code in enumerate(codes, self._here[0] + 1):
            self._here = at, code
            kind, a, b, c = code
            if kind not in operands:
                raise self._error("a step is compute, copy, detach or sync (0 to 3)", str(kind), "correct its kind")
            for number, (what, count) in zip((a, b, c), operands[kind], strict=False):
                if not 0 <= number < count:
                    must = f"{what} lies between 0 and {count - 1:,}"
                    raise self._error(must, str(number), "make the plan for this graph")
            if kind == COMPUTE:
                self._compute(a)
            elif kind == COPY:
                self._copy(a, b, c)
            elif kind == DETACH:
                self._detach(a, b)
            breach = self._turns.step(kind, a, b) or self._barriers.step(*code)
            if breach is not None:
                raise self._error(*breach)
            if len(self._ran) == len(self._graph.ops) and not self._unlike and not self._values.unlike:
                self._end_training_step()
                self._done += 1

    def finish(self, training_steps: int) -> None:
        """Look at the end; the steps must hold so many training steps."""
        if self._done < training_steps or self._unlike or self._cached:
            self._explain_end(training_steps, self._done)
        overwritten = self._values.first_made()
        if overwritten is not None:
            must = "no op changes what outlasts the last training step after its end"
            raise self._end_error(must, f"that one writes {self._name(overwritten)} again", "remove it")

    def _end_training_step(self) -> None:
        self._check_outputs()
        self._ran.clear()
        self._values.begin_step()
        self._barriers.begin_step()

    def _compute(self, op: int) -> None:
        what, tiers, here, state = self._graph.ops[op], self._tiers, self._compute_tier, self._state
        for t in what.reads if what.late is None else self._needed(op, what.late):
            if state[t * tiers + here] != VALID:
                self._refuse_read(t, here, f"op {what.name!r}", "what an op reads is valid")
        self._check_values(op)
        for t in what.writes:
            for place in range(t * tiers, (t + 1) * tiers):
                if state[place] == VALID:
                    self._put(place, STALE)
            self._put(t * tiers + here, VALID)
            self._lost.pop(t, None)
        self._ran.add(op)
        self._last_move = self._here

    def _needed(self, op: int, late: Late) -> tuple[int, ...]:
        """What an op with late reads needs in this step: all candidates if nothing is known of the draws."""
        reads = self._graph.ops[op].reads
        if self._draws is None:
            return reads
        left_out = frozenset(late.candidates).difference(self._draws.chosen(op, self._done))
        return tuple([t for t in reads if t not in left_out])

    def _check_values(self, op: int) -> None:
        """Check that the op makes what it makes in program order, also if it runs again."""
        wrong, is_again = self._values.wrong_read(op), op in self._ran and not self._graph.ops[op].repeatable
        if wrong is not None or is_again:
            self._check_step_ended()
        if is_again:
            must = "an op that is not repeatable runs once in a training step"
            raise self._error(must, "it again", "keep or move what it makes, instead of making it again")
        if wrong is not None:
            must = "an op, also one that runs again, reads the values that program order gives it"
            do = "run it while they are there, or make them again before"
            raise self._error(must, self._held(*wrong), do)
        self._values.write(op)

    def _check_step_ended(self) -> None:
        """Blame what is left somewhere if nothing else keeps a training step from its end, and another is to come."""
        is_last = self._done + 1 == self._graph.steps // self._plan.repeats
        if len(self._ran) == len(self._graph.ops) and not self._values.unlike and not is_last:
            self._refuse_end(f"end of training step {self._done + 1}")

    def _held(self, tensor: int, maker: int, expected: int) -> str:
        """Say which value a tensor holds, and which it should."""
        found, wanted = (
            "as the training step began" if op == INITIAL else f"as op {self._graph.ops[op].name!r} makes it"
            for op in (maker, expected)
        )
        return f"{self._name(tensor)} {found}, not {wanted}"

    def _copy(self, tensor: int, source: int, target: int) -> None:
        if (source, target) not in self._linked:
            found = f"none from {self._plan.tiers[source]} to {self._plan.tiers[target]}"
            raise self._error("a link joins the two tiers of a copy", found, "copy along the links of the machine")
        if self._state[tensor * self._tiers + source] != VALID:
            must = "what is copied is valid at its source"
            self._refuse_read(tensor, source, f"a copy (step {self._here[0]:,})", must)
        if self._state[tensor * self._tiers + target] == VALID:
            found = f"{self._name(tensor)} valid in {self._plan.tiers[target]} already"
            raise self._error("a copy has work to do: its target is absent or stale", found, "drop this copy")
        self._put(tensor * self._tiers + target, VALID)
        self._last_move = self._here

    def _detach(self, tensor: int, tier: int) -> None:
        place = tensor * self._tiers + tier
        was = self._state[place]
        if was == ABSENT:
            found = f"{self._name(tensor)} absent from {self._plan.tiers[tier]}{self._since(place)}"
            raise self._error("what is detached is there", found, self._without(tensor))
        if tensor in self._pinned and tier == self._compute_tier and self._graph.tensors[tensor].persistent:
            here = self._plan.tiers[tier]
            found = f"that it detaches {self._name(tensor)}, whose home the scenario sets to {here}"
            raise self._error(f"what has its home in {here} stays there", found, "leave its home free, or keep it")
        if self._plan.home[tensor] == tier and self._stays_for_others(tensor, tier):
            must = f"what several ranks read in {self._plan.tiers[tier]} stays there (shared: node or supernode)"
            raise self._error(must, f"that it detaches {self._name(tensor)}", "keep it, or do not share the tensor")
        self._put(place, ABSENT)
        self._detached[place] = self._here[0]
        if was == VALID and VALID not in self._state[tensor * self._tiers : (tensor + 1) * self._tiers]:
            self._lost[tensor] = self._here

    def _without(self, tensor: int) -> str:
        """What to do about a detach of what is not there: an op that makes it may be missing."""
        ahead = (op.name for o, op in enumerate(self._graph.ops) if tensor in op.writes and o not in self._ran)
        maker = next(ahead, None)
        return "drop this detach" if maker is None else f"compute {maker!r}, which makes it, before it, or drop it"

    def _stays_for_others(self, tensor: int, tier: int) -> bool:
        what = self._graph.tensors[tensor]
        return what.shared is not None and what.persistent and self._scopes[tier] != "device"

    def _put(self, place: int, state: int) -> None:
        like = self._between[place]
        change = (state != like) - (self._state[place] != like)
        if like == ABSENT and place // self._tiers in self._cacheable:
            self._cached += change
        else:
            self._unlike += change
        self._state[place] = state

    def _refuse_read(self, tensor: int, tier: int, reader: str, must: str) -> None:
        """Blame the detach of the only valid copy, or else the reader."""
        if tensor in self._lost:
            raise self._error(
                "what is read later keeps a valid copy",
                f"that it detaches the only valid copy of {self._name(tensor)}, which {reader} reads later",
                "store it elsewhere first, or detach it after its last use",
                self._lost[tensor],
            )
        places = self._state[tensor * self._tiers : (tensor + 1) * self._tiers]
        valid = [name for name, state in zip(self._plan.tiers, places, strict=True) if state == VALID]
        here = self._plan.tiers[tier]
        elsewhere = f"valid in {' and '.join(valid)}" if valid else "not written before"
        found = f"{self._name(tensor)} {_STATES[places[tier]]} in {here}, {elsewhere}"
        do = f"copy it into {here} before this step" if valid else "write it before this step"
        raise self._error(f"{must} ({here})", found + self._since(tensor * self._tiers + tier), do)

    def _check_outputs(self) -> None:
        """An output stays valid until all that a training step runs or moves has been issued."""
        for at, t in sorted((self._lost[t], t) for t in self._outputs & self._lost.keys()):
            if at[0] < self._last_move[0]:
                raise self._error(
                    "an output keeps a valid copy until the training step ends",
                    f"that it detaches the only valid copy of {self._name(t)} before {self._step(self._last_move)}",
                    "detach outputs last",
                    at,
                )

    def _explain_end(self, training_steps: int, done: int) -> None:
        missing = [op for op in range(len(self._graph.ops)) if op not in self._ran]
        if missing and done < training_steps:
            more = f" and {len(missing) - 1:,} more" if len(missing) > 1 else ""
            name = self._graph.ops[missing[0]].name
            raise self._end_error(
                "every op runs in every training step",
                f"no compute of op {name!r}{more} in training step {done + 1} of {training_steps}",
                "add it",
            )
        if done < training_steps and self._values.unlike and not self._unlike:
            must = "what outlasts a training step ends it with the value that program order leaves in it"
            found = self._held(*self._values.first_unlike())
            raise self._end_error(must, found, "run the op that makes this value last")
        self._refuse_end("end of the plan")

    def _refuse_end(self, moment: str) -> None:
        """Blame the first place that is not as it must be between training steps."""
        place = next(p for p, (a, b) in enumerate(zip(self._state, self._between, strict=True)) if a != b)
        tensor, tier = place // self._tiers, self._plan.tiers[place % self._tiers]
        name = self._name(tensor)
        if not self._graph.tensors[tensor].persistent:
            must = "what is not persistent is detached everywhere when a training step ends"
            raise self._end_error(must, f"{name} held in {tier}", "detach it after its last use", moment)
        if tensor in self._lost:
            raise self._error(
                "a persistent tensor keeps a valid copy",
                f"that it detaches the only valid copy of persistent {name}",
                "copy it to its home first",
                self._lost[tensor],
            )
        must = "a persistent tensor ends a training step valid at home, and nowhere else, as it began it"
        home = self._plan.tiers[self._plan.home[tensor]]
        found = f"{name} (home {home}) {_STATES[self._state[place]]} in {tier}"
        raise self._end_error(must, found, f"copy it to {home} and detach its other copies", moment)

    def _since(self, place: int) -> str:
        at = self._detached.get(place)
        return "" if at is None else f" (detached by step {at:,})"

    def _name(self, tensor: int) -> str:
        return repr(self._graph.tensors[tensor].name)

    def _step(self, place: Place) -> str:
        at, code = place
        return f"step {at:,} ({describe(self._graph, self._plan.tiers, code)})"

    def _error(self, must: str, found: str, do: str, place: Place | None = None) -> PlanError:
        where = self._step(self._here if place is None else place)
        return PlanError(f"plan {self._plan.name!r}, {where}", must, found, do)

    def _end_error(self, must: str, found: str, do: str, moment: str = "end of the plan") -> PlanError:
        return PlanError(f"plan {self._plan.name!r}, {moment}", must, found, do)
