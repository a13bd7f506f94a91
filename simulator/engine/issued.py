"""The state that a reactive plan may look at: every place as it will be once all issued steps have acted.

It is also where a step that cannot act is refused at once, because nobody could check a reactive plan before its run.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial

from simulator.engine.book import Book, Routes
from simulator.engine.late import LateReads
from simulator.engine.link import CopyStep
from simulator.engine.places import Places
from simulator.engine.program import Columns, Program
from simulator.engine.steps import ComputeStep, DetachStep, SyncStep
from simulator.engine.waits import Counter, Issuer, Step
from simulator.errors import PlanError
from simulator.hardware import Host as HostCosts
from simulator.plan import COMPUTE, COPY, DETACH, SYNC, Code

ABSENT, VALID, STALE = range(3)
_STATES = ("absent", "valid", "stale")


class Issued(Book):
    """A book that also follows the places; read-only for the plan.

    Parameters
    ----------
    places, columns, routes
        See `Book`; places also for what has happened on the device.
    program
        Names for messages; where tensors are at time 0, and whether the plan looks at the machine.
    noted
        Takes the codes of the steps, for the trace.

    Attributes
    ----------
    noted
        The same.
    """

    __slots__ = (
        "_candidates",
        "_changes",
        "_compute_tier",
        "_count_copy",
        "_count_detach",
        "_decided",
        "_graph",
        "_kept",
        "_late_ns",
        "_look_up_step",
        "_looks",
        "_more_ns",
        "_owed_ns",
        "_select_ns",
        "_state",
        "_update_ns",
        "noted",
    )

    def __init__(self, places: Places, columns: Columns, routes: Routes, program: Program, noted: list[Code]) -> None:
        self._look_up_step, self._count_copy, self._count_detach = super()._look_up, super()._copy, super()._detach
        super().__init__(places, columns, routes)
        self._looks, home = program.plan.looks, program.plan.home
        self.noted, self.note = noted, noted.append
        if self._looks:
            self._light = [None] * len(self._light)
        self._graph, self._compute_tier = program.graph, columns.compute_tier
        self._candidates, self._changes = program.graph.candidates, [t.persistent for t in program.graph.tensors]
        self._kept = "the plan calls untouched"
        self._decided: Collection[int] = ()
        self._more_ns = [0] * (SYNC - COPY)
        self._late_ns = self._owed_ns = self._select_ns = self._update_ns = 0
        self._state = [[ABSENT] * len(home) for _ in places.tiers]
        for tensor, tier in enumerate(home):
            if tier >= 0:
                self._state[tier][tensor] = VALID

    def charge(self, costs: HostCosts, *, is_compiled: bool) -> None:
        """Let the host pay for what the kind of a step does not tell.

        With a backbone that is the price of a runtime for what is decided about late reads. Under any, it is what is
        selected, with the next step that is no compute or with the op that reads it; and what goes home changed.
        """
        self._select_ns, self._update_ns = costs.reactive.select_ns, costs.reactive.update_ns
        if is_compiled:
            self._charge_decisions(costs)
        if self._select_ns or self._update_ns:
            count_compute, *counts = self._count
            self._count = (count_compute, *(partial(self._billed, count) for count in counts))

    def _billed(self, count: Callable[[Code], Step], code: Code) -> Step:
        self.pay_selection()
        if self.host is not None:
            self.host.now += self._update_of(code)
        return count(code)

    def _update_of(self, code: Code) -> int:
        """What the host pays for an update that goes home with a copy [ns]."""
        kind, tensor, source, _ = code
        return self._update_ns if kind == COPY and source == self._compute_tier and self._changes[tensor] else 0

    def pay_selection(self) -> None:
        """Let the host pay for what was selected since it last did."""
        if self.host is not None:
            self.host.now += self._owed_ns
            self._owed_ns = 0

    def _charge_decisions(self, costs: HostCosts) -> None:
        late, *self._more_ns, _ = [price - costs.fixed.step_ns for price in costs.reactive.prices_ns]
        self._late_ns, self._decided = late, self._candidates

    def _pay(self, kind: int) -> None:
        """Pay what a step of this kind costs more if it is decided at run time."""
        if self.host is not None:
            self.host.now += self._more_ns[kind - COPY]

    def count_backbone(self, codes: Iterable[Code]) -> list[tuple[int, Step]]:
        """Count a lap of the backbone, whose steps are then none of this book's; each with its kind.

        Parameters
        ----------
        codes
            The lap. From now on what is decided names candidates of late reads that no step of it names.
        """
        codes = list(codes)
        lap = Book(self._places, self._columns, self._routes)
        if self.late is not None:
            lap.decider = self
            lap.take_late(self.late)
        self._kept = "the backbone names, or the plan calls untouched,"
        own = self._candidates.difference([code[1] for code in codes if code[0] != COMPUTE])
        self._tracked = [tracked and tensor in own for tensor, tracked in enumerate(self._tracked)]
        counted = lap.laps(codes)
        if not (self._select_ns or self._update_ns):
            return counted
        return [self._with_bill(step, code) for (_, step), code in zip(counted, codes, strict=True)]

    def _with_bill(self, step: Step, code: Code) -> tuple[int, Step]:
        if isinstance(step, CopyStep | DetachStep | SyncStep):
            billed = BilledStep()
            billed.step, billed.more_ns, billed.decider = step, self._update_of(code), self
            return code[0], billed
        return code[0], step

    def go_past(self, computes: int) -> None:
        """So many computes of the backbone are issued."""
        self._computes[0] += computes

    def meet_late(self, op: int, stream: Counter, number: int) -> tuple[tuple[int, ...], Sequence[int]]:
        """Check and note a compute of the backbone that reads late or reveals.

        Parameters
        ----------
        op, stream, number
            The compute, where it is issued, and its number among all there.

        Returns
        -------
        tuple
            What it reads late; for each tensor, after how many of its moves it may be read.
        """
        late = self.late
        if late is None:
            return (), self._fence
        if op in late:
            self._admit_late(op, late)
        reads = late.needed(op, stream, number)
        self._check_reads(op, reads)
        for tensor in late.possible[op]:
            self._last_use[0][tensor] = number
        return reads, self._fence

    @property
    def steps(self) -> int:
        """How many times the graph runs."""
        return self._graph.steps

    @property
    def now_ns(self) -> int:
        """The time [ns]."""
        self._look("now_ns")
        return self._places.rounds.clock.now

    def place(self, tensor: int, tier: int) -> str:
        """State of a place once all issued steps have acted: ``absent``, ``valid`` or ``stale``."""
        return _STATES[self._state[tier][tensor]]

    def room_bytes(self, tier: int) -> int | float:
        """What is free in the tier now [B]."""
        self._look("room_bytes")
        instance = self._places.tiers[tier]
        return instance.capacity - instance.used

    def settled(self, tensor: int) -> bool:
        """Whether every issued step that names the tensor has ended."""
        self._look("settled")
        return super().settled(tensor)

    def chosen(self, op: int) -> tuple[int, ...]:
        """What the next issue of an op reads of its candidates; known once the op that reveals it has ended."""
        late = self._of_late(op)
        if not late.is_revealed(op):
            raise self._not_revealed(op)
        chosen = late.draws.chosen(op, late.step_of(op))
        self._owed_ns += len(chosen) * self._select_ns
        return chosen

    def predicted(self, op: int, accuracy: float) -> tuple[int, ...]:
        """A guess at what the next issue of an op chooses, made when what was revealed before that is known.

        Parameters
        ----------
        op
            An op with late reads; what is revealed first is guessed at after what is last in the step before.
        accuracy
            With this probability each of what is chosen is guessed; for others something else is.
        """
        late = self._of_late(op)
        if not late.is_predictable(op):
            raise self._not_revealed(op)
        step = late.step_of(op)
        return late.draws.predicted(op, step, accuracy) if step < self._graph.steps else ()

    def _of_late(self, op: int) -> LateReads:
        if self.late is None or op not in self.late:
            must, do = "what is chosen is asked of an op with late reads", "ask for another"
            raise PlanError(f"step {self._number}", must, repr(self._graph.ops[op].name), do)
        return self.late

    def _not_revealed(self, op: int) -> PlanError:
        what = self._graph.ops[op]
        by = self._graph.ops[what.late.revealed_by].name if what.late else ""
        return PlanError(
            f"step {self._number} (what op {what.name!r} reads)",
            f"what is chosen is known once the op that reveals it ({by!r}) has ended",
            "a look before that",
            "sync what that op writes first",
        )

    def _admit_late(self, op: int, late: LateReads) -> None:
        """Pay for an op with late reads, and for selecting; check that all is there if nobody knows what it reads."""
        self._owed_ns += self._late_ns
        self.pay_selection()
        if late.is_revealed(op):
            return
        here = self._state[self._compute_tier]
        for tensor in late.possible[op]:
            if here[tensor] != VALID:
                must = "before it is revealed what a compute reads, all that it may read is valid in the compute tier"
                do = "copy all in first, or sync what the op writes that reveals it"
                self._refuse(f"compute {self._graph.ops[op].name}", must, tensor, self._compute_tier, do)

    def _look(self, what: str) -> None:
        if not self._looks:
            must = "only a plan that says so looks at the machine"
            raise PlanError(f"step {self._number}", must, f"a look at {what}", "make the plan with looks=True")

    def _look_up(self, op: int, stream: int, reads: tuple[int, ...], writes: tuple[int, ...]) -> ComputeStep:
        """Check and note what no earlier compute has seen to."""
        step = self._look_up_step(op, stream, reads, writes)
        self._check_reads(op, reads)
        here = self._state[self._compute_tier]
        for tensor in writes:
            for state in self._state:
                if state[tensor] == VALID:
                    state[tensor] = STALE
            here[tensor] = VALID
        return step

    def _check_reads(self, op: int, reads: tuple[int, ...]) -> None:
        here = self._state[self._compute_tier]
        for tensor in reads:
            if here[tensor] != VALID:
                self._refuse(f"compute {self._graph.ops[op].name}", "what a compute reads is valid in the compute tier",
                             tensor, self._compute_tier, "copy it in first")  # fmt: skip

    def _copy(self, code: Code) -> CopyStep:
        _, tensor, source, target = code
        if tensor in self._decided:
            self._pay(COPY)
        if self._state[source][tensor] != VALID:
            self._refuse("copy", "the source of a copy is valid", tensor, source, "copy from where it is valid")
        if self._state[target][tensor] == VALID:
            self._refuse("copy", "the target of a copy is not valid yet", tensor, target, "drop this copy")
        if not self._tracked[tensor]:
            self._refuse_touch("copy", tensor, source)
        self._state[target][tensor] = VALID
        return self._count_copy(code)

    def _detach(self, code: Code) -> DetachStep:
        _, tensor, tier, _ = code
        if tensor in self._decided:
            self._pay(DETACH)
        if self._state[tier][tensor] == ABSENT:
            self._refuse("detach", "a detached place is present", tensor, tier, "drop this detach")
        if not self._tracked[tensor]:
            self._refuse_touch("detach", tensor, tier)
        self._state[tier][tensor] = ABSENT
        return self._count_detach(code)

    def _sync(self, code: Code) -> SyncStep:
        if not self._tracked[code[1]]:
            self._refuse_touch("sync", code[1], self._compute_tier)
        return super()._sync(code)

    def _refuse_touch(self, what: str, tensor: int, tier: int) -> None:
        self._refuse(what, f"a tensor that {self._kept} is not named", tensor, tier, "leave it out there")

    def _parts_with_output(self, tensor: int) -> bool:
        return all(state[tensor] != VALID for state in self._state)

    def _refuse(self, what: str, must: str, tensor: int, tier: int, do: str) -> None:
        name, where = self._graph.tensors[tensor].name, self._places.tiers[tier].name
        found = f"{name!r} {_STATES[self._state[tier][tensor]]} in {where}"
        raise PlanError(f"step {self._number} ({what})", must, found, do)


class BilledStep:
    """A step of a backbone, no compute, that may pay for what is decided besides.

    Attributes
    ----------
    step
        The step.
    more_ns
        What it pays itself [ns].
    decider
        Who knows what is owed.
    """

    step: CopyStep | DetachStep | SyncStep
    more_ns: int
    decider: Issued
    __slots__ = ("decider", "more_ns", "step")

    def issue(self, host: Issuer) -> bool:
        """Pay, and issue the step; if that waits, all is paid when it is issued again."""
        self.decider.pay_selection()
        host.now += self.more_ns
        return self.step.issue(host)
