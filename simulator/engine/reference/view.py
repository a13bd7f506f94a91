"""The state that a reactive plan may look at: every place as issued, and what has happened on the device.

It also refuses an action that cannot act at once, because a reactive plan cannot be checked before its run, and prices
each action: those of a compiled static part cost the host less than those that are decided as it runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain

from simulator.cost import issue_ns
from simulator.cost.service import ceil_div
from simulator.engine.program import Program
from simulator.engine.reference.order import IssuedReads, Order
from simulator.engine.reference.rank import Rank
from simulator.errors import PlanError
from simulator.hardware import Host as HostCosts
from simulator.hardware.device import MIB
from simulator.plan import ABSENT, COMPUTE, COPY, PART, STATES, SYNC, Code
from simulator.trace import code_row


class ReactiveView(Order):
    """The `View` of a reactive plan, which also lays out what the plan issues.

    Parameters
    ----------
    program, rank
        What the rank runs, and the rank.
    """

    def __init__(self, program: Program, rank: Rank) -> None:
        super().__init__(program, rank)
        self._plan = program.plan
        self._candidates = program.graph.candidates
        self._select_ns = self._owed_ns = 0

    def priced(self, codes: Iterable[Code], costs: HostCosts, rows: bytearray) -> Iterator[tuple[Code, int]]:
        """Price what a reactive plan issues, as the host asks for it.

        Parameters
        ----------
        codes
            The plan.
        costs
            What the host pays. With static parts, only what is decided about dynamic reads has the price of a runtime.
        rows
            Takes the codes, for the trace.
        """
        parts, dynamic, runtime = self._plan.static_parts, self.dynamic.step_of if self.dynamic else {}, costs.reactive
        self._select_ns, prices_ns, more_ns = runtime.select_ns, runtime.prices_ns, issue_ns(self._graph, costs)
        streams, sizes = len(self._streams), self._columns.size_bytes
        if parts:
            codes = chain.from_iterable(parts[code[1]].codes() if code[0] == PART else (code,) for code in codes)
        for kind, a, b, c in codes:
            rows += code_row(kind, a, b, c)
            if kind == COMPUTE and (a in dynamic or not 0 <= b < streams):
                self._check_compute(a, b)
            is_out = kind == COPY and b == self._columns.compute_tier
            pinned_bytes = sizes[a] if is_out and self.issued.state[c][a] == ABSENT else 0
            price_ns = prices_ns[kind] + ceil_div(pinned_bytes, MIB) * runtime.pin_ns
            if parts and kind != SYNC and a not in (dynamic if kind == COMPUTE else self._candidates):
                price_ns = costs.fixed.prices_ns[kind]
            if kind == COMPUTE:
                price_ns += more_ns[a]
            if is_out and self._graph.tensors[a].persistent:
                price_ns += runtime.update_ns
            if self._owed_ns and (kind != COMPUTE or a in dynamic):
                price_ns += self._owed_ns
                self._owed_ns = 0
            yield (kind, a, b, c), price_ns

    @property
    def steps(self) -> int:
        """Number of times that the graph runs."""
        return self._graph.steps

    @property
    def now_ns(self) -> int:
        """The time [ns]."""
        self._check_looks("now_ns")
        return self._clock.now

    def place(self, tensor: int, tier: int) -> str:
        """Return the state of a place once all issued actions have acted: ``absent``, ``valid`` or ``stale``."""
        return STATES[self.issued.state[tier][tensor]]

    def room_bytes(self, tier: int) -> int | float:
        """Return what is free in the tier now [B]."""
        self._check_looks("room_bytes")
        return self._rank.rooms[tier].level

    def settled(self, tensor: int) -> bool:
        """Return whether every issued action that names the tensor has ended."""
        self._check_looks("settled")
        return not self._unended(tensor) and not self._unended_computes(self._uses, tensor)

    def chosen(self, op: int) -> tuple[int, ...]:
        """Return the candidates that the next run of an op reads; known once the op that reveals them has ended."""
        dynamic = self._reads_revealed(op, IssuedReads.is_revealed)
        chosen = dynamic.draws.chosen(op, dynamic.step_of[op])
        self._owed_ns += len(chosen) * self._select_ns
        return chosen

    def predicted(self, op: int, accuracy: float) -> tuple[int, ...]:
        """Guess what the next run of an op chooses; possible from the reveal before its own on.

        Parameters
        ----------
        op
            An op with dynamic reads. Before the first reveal of a step comes the last one of the step before.
        accuracy
            Probability that each choice is guessed right; in place of the others, wrong candidates are guessed.
        """
        dynamic = self._reads_revealed(op, IssuedReads.is_predictable)
        step = dynamic.step_of[op]
        return dynamic.draws.predicted(op, step, accuracy) if step < self._graph.steps else ()

    def _reads_revealed(self, op: int, is_known: Callable[[IssuedReads, int], bool]) -> IssuedReads:
        """Return all dynamic reads; refuse the question if what the op chooses is not known yet."""
        dynamic, name, reads = self.dynamic, self._graph.ops[op].name, self._graph.ops[op].dynamic
        where = f"action {self.number} (reads of op {name!r})"
        if dynamic is None or op not in dynamic.step_of or reads is None:
            raise PlanError(where, "only an op with dynamic reads has a choice", repr(name), "ask for another")
        if not is_known(dynamic, op):
            by = self._graph.ops[reads.revealed_by].name
            must = f"a choice is known once the op that reveals it ({by!r}) has ended"
            raise PlanError(where, must, "a look before that", "sync an output of that op first")
        return dynamic

    def _check_looks(self, name: str) -> None:
        """Refuse a look at the machine unless the plan says that it looks."""
        if not self._plan.looks:
            must = "only a plan that says so looks at the machine"
            raise PlanError(f"action {self.number}", must, f"a look at {name}", "make the plan with looks=True")

    def _check_compute(self, op: int, stream: int) -> None:
        """Refuse a stream that does not exist, and a compute whose dynamic reads are neither revealed nor all valid."""
        if not 0 <= stream < len(self._streams):
            must, do = f"a reactive plan uses compute streams 0 to {len(self._streams) - 1}", "issue it on stream 0"
            raise PlanError(f"action {self.number} (compute)", must, f"stream {stream}", f"{do}, or make a fixed plan")
        dynamic = self.dynamic
        if dynamic is not None and not dynamic.is_revealed(op):
            missing = self.issued.missing(dynamic.possible[op], self._columns.compute_tier)
            if missing is not None:
                rule = "until its choice is revealed, all candidates of a compute are valid in the compute tier"
                do = "copy all in first, or sync an output of the op that reveals the choice"
                self.refuse(f"compute {self._graph.ops[op].name}", rule, missing, do)

    def refuse(self, action: str, must: str, tensor: int, do: str) -> None:
        """Refuse an action that cannot act: nobody could check a reactive plan before its run."""
        states = self.issued.as_text(tensor, (tier.name for tier in self._rank.rooms))
        found = f"{self._graph.tensors[tensor].name!r} {states}"
        raise PlanError(f"action {self.number} ({action})", must, found, do)
