"""The run of any plan as a solution of `optimal`'s program: what it decides, and when it starts what.

This is what makes the program a bound: every run of a plan of its kind is one of its solutions.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from simulator.plan import COMPUTE, COPY, DETACH, Plan
from simulator.policies.optimal.program import Program
from simulator.policies.optimal.space import Space
from simulator.policies.problem import Problem
from simulator.trace import Trace


@dataclass
class Observed:
    """What a run did in its last step.

    Attributes
    ----------
    starts
        When each op started [ns], from the start of the window; from the launch if there is only one step.
    outs, ins
        Copy out -> when it started; gap -> when the copy in that ends it did [ns].
    away
        Gaps whose tensors left the compute tier.
    taken
        Choices that were taken.
    """

    starts: list[int] = field(default_factory=list)
    outs: dict[int, int] = field(default_factory=dict)
    ins: dict[int, int] = field(default_factory=dict)
    away: set[int] = field(default_factory=set)
    taken: set[int] = field(default_factory=set)


def observe(problem: Problem, space: Space, plan: Plan, trace: Trace) -> Observed | str:
    """Read the last step of a run.

    Parameters
    ----------
    problem
        What was planned for, with all its steps.
    space
        What there is to decide.
    plan, trace
        A plan, and what happened.

    Returns
    -------
    Observed or str
        What makes the plan one that is not of the program's kind, if it is not: it is decided while it runs, or has a
        `Sync`, an op that runs again, a copy over a third tier or across a barrier, a second copy out of the same
        version, or a tensor that comes back unread.
    """
    steps = plan.fixed
    if steps is None:
        return "it decides while it runs"
    spans = trace.spans.whole()
    begun: dict[int, int] = dict(zip(spans["issue"].tolist(), spans["start_ns"].tolist(), strict=True))
    first = len(steps) * (plan.repeats - 1)
    computes = [first + i for i, kind in enumerate(steps.kind) if kind == COMPUTE]
    leads = [computes[-1] - len(steps)] * space.lead
    zero = begun[leads[0]] if leads else problem.hardware.host.fixed.launch_ns
    observer = _Observer(problem, space, plan)
    for issue, (kind, a, b, c) in enumerate(steps.codes(), first):
        strange = observer.see(kind, a, (b, c), begun.get(issue, zero) - zero)
        if strange:
            return strange
    observer.found.starts = [begun[issue] - zero for issue in leads + computes]
    observer.choose()
    return observer.found


class _Observer:
    """Follows the steps of a plan."""

    def __init__(self, problem: Problem, space: Space, plan: Plan) -> None:
        self.found = Observed()
        self._problem, self._space, self._plan = problem, space, plan
        self._op = -1
        self._version = [-1] * len(problem.sizes)
        self._outs = {(out.tensor, out.written): o for o, out in enumerate(space.outs)}
        self._gaps: dict[int, list[int]] = {}
        for g, gap in enumerate(space.gaps):
            self._gaps.setdefault(gap.tensor, []).append(g)

    def see(self, kind: int, a: int, rest: tuple[int, int], start: int) -> str:
        """Follow one step; say what is strange about it if it is not one that the program knows."""
        if kind == COMPUTE:
            self._op += 1
            for tensor in self._problem.graph.ops[a].writes:
                self._version[tensor] = self._op + self._space.lead
            return "" if a == self._op else "an op runs again"
        if kind == DETACH:
            if rest[0] == self._problem.compute_tier and (gap := self._gap(a)) is not None:
                self.found.away.add(gap)
            return ""
        return self._copy(a, rest, start) if kind == COPY else "the host waits"

    def _copy(self, tensor: int, ends: tuple[int, int], start: int) -> str:
        here, away = self._problem.compute_tier, self._problem.away(tensor)[:1]
        name = repr(self._problem.graph.tensors[tensor].name)
        if away and ends == (here, *away):
            is_known = self._note(self.found.outs, self._outs.get((tensor, self._version[tensor])), start)
            return "" if is_known else f"it copies {name} out twice, or though it is at home there"
        if away and ends == (*away, here):
            is_known = self._note(self.found.ins, self._back(tensor), start)
            return "" if is_known else f"it copies {name} in where nobody reads it next, or across a barrier"
        return f"it copies {name} over a third tier"

    def _note(self, when: dict[int, int], name: int | None, start: int) -> bool:
        if name is None or name in when:
            return False
        when[name] = start
        return True

    def _back(self, tensor: int) -> int | None:
        """The gap that a copy in ends at the present point, unless nothing has left or a barrier is crossed."""
        g, space = self._gap(tensor), self._space
        if g is None or space.gaps[g].in_ns is None or not (g in self.found.away or g in space.leading):
            return None
        fence = self._problem.fences[space.gaps[g].before - space.lead]
        return g if self._op >= fence - 1 else None

    def _gap(self, tensor: int) -> int | None:
        """The gap of the tensor that the present point lies in."""
        at, gaps = self._op + self._space.lead, self._space.gaps
        return next((g for g in self._gaps.get(tensor, ()) if gaps[g].after <= at < gaps[g].before), None)

    def choose(self) -> None:
        """Say which choices the run has taken: homes, and gaps that were spent away."""
        space, found = self._space, self.found
        for choice, tensor in space.homes.items():
            if self._plan.home[tensor] != self._problem.compute_tier:
                found.taken.add(choice)
        for g in found.away:
            gap = space.gaps[g]
            is_copied = gap.out is None or gap.out in found.outs or space.outs[gap.out].needless_if in found.taken
            if gap.choice is not None and gap.choice not in space.homes and is_copied:
                found.taken.add(gap.choice)


def hold(program: Program, observed: Observed) -> None:
    """Leave no other solution than what the run decided and when it started what."""
    add, space = program.model.add, program.space
    for start, observed_ns in zip(program.starts, observed.starts, strict=True):
        add(start == observed_ns)
    for o, (start, made) in enumerate(program.outs):
        add(made == int(o in observed.outs))
        if o in observed.outs:
            add(start == observed.outs[o])
    for g, start_ns in observed.ins.items():
        add(program.ins[g] == start_ns)
    for c in range(space.choices):
        add(program.choices[c] == int(c in observed.taken))
