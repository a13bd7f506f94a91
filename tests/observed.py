"""The run of any plan as a solution of `optimal`'s program: what it decides, and when it starts what.

This is what makes the program a bound: every run of a plan of its kind is one of its solutions.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from simulator.plan import COMPUTE, COPY, DETACH, Plan
from simulator.policies.optimal.schedule import ScheduleModel
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
        Tensor and the op that made its version -> when its copy out started; idle interval -> when the copy in that
        ends it did [ns].
    away
        Idle intervals whose tensors left the compute tier.
    homes
        Tensors of free home that lived away.
    spent
        Idle interval that may be spent away or not -> whether it was.
    """

    starts: list[int] = field(default_factory=list)
    outs: dict[tuple[int, int], int] = field(default_factory=dict)
    ins: dict[int, int] = field(default_factory=dict)
    away: set[int] = field(default_factory=set)
    homes: set[int] = field(default_factory=set)
    spent: dict[int, bool] = field(default_factory=dict)


def observe(problem: Problem, program: ScheduleModel, plan: Plan, trace: Trace) -> Observed | str:
    """Read the last step of a run.

    Parameters
    ----------
    problem
        What was planned for, with all its steps.
    program
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
    leads = [computes[-1] - len(steps)] * program.lead
    zero = begun[leads[0]] if leads else problem.hardware.host.fixed.launch_ns
    observer = _Observer(problem, program, plan)
    for issue, (kind, a, b, c) in enumerate(steps.codes(), first):
        strange = observer.see(kind, a, (b, c), begun.get(issue, zero) - zero)
        if strange:
            return strange
    observer.found.starts = [begun[issue] - zero for issue in leads + computes]
    observer.choose()
    return observer.found


class _Observer:
    """Follows the steps of a plan."""

    def __init__(self, problem: Problem, program: ScheduleModel, plan: Plan) -> None:
        self.found = Observed()
        self._problem, self._program, self._plan = problem, program, plan
        self._op = -1
        self._version = [-1] * len(problem.sizes)
        self._intervals: dict[int, list[int]] = {}
        for g, idle in enumerate(program.idle):
            self._intervals.setdefault(idle.tensor, []).append(g)

    def see(self, kind: int, a: int, rest: tuple[int, int], start: int) -> str:
        """Follow one step; say what is strange about it if it is not one that the program knows."""
        if kind == COMPUTE:
            self._op += 1
            for tensor in self._problem.graph.ops[a].writes:
                self._version[tensor] = self._op + self._program.lead
            return "" if a == self._op else "an op runs again"
        if kind == DETACH:
            if rest[0] == self._problem.compute_tier and (idle := self._interval(a)) is not None:
                self.found.away.add(idle)
            return ""
        return self._copy(a, rest, start) if kind == COPY else "the host waits"

    def _copy(self, tensor: int, ends: tuple[int, int], start: int) -> str:
        here, away = self._problem.compute_tier, self._problem.away(tensor)[:1]
        name = repr(self._problem.graph.tensors[tensor].name)
        if away and ends == (here, *away):
            version = tensor, self._version[tensor]
            is_known = self._note(self.found.outs, version if version in self._program.outs else None, start)
            return "" if is_known else f"it copies {name} out twice, or though it is at home there"
        if away and ends == (*away, here):
            is_known = self._note(self.found.ins, self._back(tensor), start)
            return "" if is_known else f"it copies {name} in where nobody reads it next, or across a barrier"
        return f"it copies {name} over a third tier"

    def _note(self, when: dict, name, start: int) -> bool:
        if name is None or name in when:
            return False
        when[name] = start
        return True

    def _back(self, tensor: int) -> int | None:
        """The interval that a copy in ends at the present point, unless nothing has left or a barrier is crossed."""
        g, program = self._interval(tensor), self._program
        if g is None or program.idle[g].back is None:
            return None
        if g not in self.found.away and program.idle[g].after >= program.lead:
            return None
        fence = self._problem.fences[program.idle[g].before - program.lead]
        return g if self._op >= fence - 1 else None

    def _interval(self, tensor: int) -> int | None:
        """The interval of the tensor that the present point lies in."""
        at, intervals = self._op + self._program.lead, self._program.idle
        return next(
            (g for g in self._intervals.get(tensor, ()) if intervals[g].after <= at < intervals[g].before), None
        )

    def choose(self) -> None:
        """Say what lived away; and of each interval within the step whether it was spent away, with a valid copy."""
        found, program, tensors = self.found, self._program, self._problem.graph.tensors
        found.homes = {tensor for tensor in program.homes if self._plan.home[tensor] != self._problem.compute_tier}
        for g, one in enumerate(program.idle):
            is_last = one.before == len(program.starts)
            if one.after >= program.lead and not (is_last and tensors[one.tensor].persistent):
                lives_away = one.version < 0 and one.tensor in found.homes
                is_copied = one.out is None or (one.tensor, one.version) in found.outs or lives_away
                found.spent[g] = g in found.away and is_copied


def hold(program: ScheduleModel, observed: Observed) -> None:
    """Leave no other solution than what the run decided and when it started what."""
    add = program.model.add
    for start, observed_ns in zip(program.starts, observed.starts, strict=True):
        add(start == observed_ns)
    for version, out in program.outs.items():
        add(out.made == int(version in observed.outs))
        if version in observed.outs:
            add(out.start == observed.outs[version])
    for g, start_ns in observed.ins.items():
        add(program.idle[g].back.start == start_ns)
    for tensor, lives_away in program.homes.items():
        add(lives_away == int(tensor in observed.homes))
    for g, is_spent in observed.spent.items():
        add(program.idle[g].away == int(is_spent))
