"""Ops of the host in plans: a policy plans for the accelerator alone, and what the host needs is woven into its plan.

A policy sees ops of the host that use nothing (`Graph.on_accelerator`). As its actions come, the weaver writes them for
the whole graph, and adds moves between the tier of the host and where the policy has each tensor:

- What the accelerator makes and the host reads is copied out right behind the op that writes it, before the policy
  frees it; what else the host lacks, right before its op.
- What the host writes is copied, right behind its op, to where the policy believes that it is valid. So a tensor that
  the policy has in the tier of the host alone, or that only ops of the host use, needs no copy.
- A place in the tier of the host stays until the last op of the host in the step that uses the tensor, and is freed
  before the next op of the host.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import chain

from simulator.errors import ScopeError
from simulator.plan import ABSENT, COMPUTE, COPY, DETACH, VALID, Code, PlacesAsIssued, Plan, View
from simulator.policies.problem import Problem, Replay
from simulator.policies.writer import Writer
from simulator.trace import NONE


def woven(problem: Problem, decide: Callable[[Problem], Plan]) -> Plan:
    """Decide for the accelerator, and weave in what the host needs.

    Parameters
    ----------
    problem
        Problem to plan for, perhaps with ops of the host.
    decide
        A policy with its options; it tries its plans with what the host needs.

    Raises
    ------
    ScopeError
        If the plan consists of parts, as that of `hybrid`.
    """
    view = problem.on_accelerator
    if view is problem:
        return decide(problem)

    def trial(tried: Problem, plan: Plan) -> Replay:
        """Try a plan for the accelerator as a whole one."""
        homes = (
            home if t not in problem.graph.made_on_host else problem.homes[t] for t, home in enumerate(tried.homes)
        )
        graph = problem.graph.over(tried.graph.steps)
        whole = replace(tried, graph=graph, homes=tuple(homes), trial=problem.trial)
        return problem.trial(whole, _whole(whole, plan))

    return _whole(problem, decide(replace(view, trial=trial)))


def _whole(problem: Problem, plan: Plan) -> Plan:
    """Return a plan for the accelerator with what the host needs."""
    if plan.static_parts:
        must, found = "a plan with ops of the host is one list, or decided action by action", "one of static parts"
        raise ScopeError(f"policy {plan.policy!r}", must, found, "choose static or reactive")
    weaver = Weaver(problem, plan)
    if plan.fixed is None:
        return replace(plan, home=weaver.writer.homes, actions=partial(_decided, problem, plan))
    for code in plan.fixed:
        weaver.take(code)
    return replace(plan, home=weaver.writer.homes, actions=weaver.writer.finish().actions)


def _decided(problem: Problem, plan: Plan, view: View) -> Iterator[Code]:
    """Weave into a runtime's actions as it decides on them."""
    weaver = Weaver(problem, plan)
    if callable(plan.actions):
        for code in plan.actions(view):
            yield from weaver.take(code)


class Weaver:
    """Weaves what the host needs into the actions of a plan, step after step.

    Parameters
    ----------
    problem, plan
        The whole problem, and a plan for its accelerator.
    """

    def __init__(self, problem: Problem, plan: Plan) -> None:
        self._graph, self._tier, self._compute_tier = problem.graph, problem.hardware.host_tier_id, problem.compute_tier
        self.writer = Writer(problem, plan.policy, dict(enumerate(plan.home)))
        self._believed = PlacesAsIssued(plan.home, len(problem.tiers), problem.compute_tier)
        self._begun = [list(state) for state in self._believed.state]
        self._last_on_host = dict[int, int]()
        self._readers: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)  # tensor -> who made, who reads it
        self._stays = {*problem.graph.outputs, *(t for t, of in enumerate(problem.graph.tensors) if of.persistent)}
        wrote = dict[int, int]()
        for index, op in enumerate(self._graph.ops):
            if index in self._graph.on_host:
                self._last_on_host |= dict.fromkeys((*op.reads, *op.writes), index)
                for tensor in op.reads:
                    self._readers[tensor].append((wrote.get(tensor, NONE), index))
            wrote |= dict.fromkeys(op.writes, index)
        runs = (
            range(len(self._graph.ops)) if plan.fixed is None else [a for kind, a, *_ in plan.fixed if kind == COMPUTE]
        )
        named = ({*self._graph.ops[op].reads, *self._graph.ops[op].writes} for op in runs)
        self._uses = Counter(chain.from_iterable(named))  # of each tensor in a step
        self._ran, self._absent, self._left = set[int](), set(self._graph.made_on_host), self._uses.copy()
        self._due = list[int]()  # tensors whose places in the tier of the host may be freed

    def take(self, code: Code) -> Iterator[Code]:
        """Take the next action of the plan, and return what is issued for it."""
        kind, a, b, c = code
        issued, writer = len(self.writer.steps), self.writer
        if kind == COMPUTE:
            self._compute(a)
        elif kind == COPY:
            self._believed.copy(a, b, c)
            if a not in self._absent and writer.place(a, c) != VALID:
                writer.copy(a, b, c)
        elif kind == DETACH:
            self._believed.detach(a, b)
            last = self._last_on_host.get(a)  # op of the host that uses it; it may not have run in this step
            is_needed = b == self._tier and last is not None and last not in self._ran
            if writer.place(a, b) != ABSENT and not is_needed:
                if self._is_awaited(a):
                    self._bring(a)
                writer.detach(a, b)
        else:
            writer.sync(a)
        if len(self._ran) == len(self._graph.ops) and self._believed.state == self._begun:
            self._end_step()
        steps = writer.steps
        return zip(*(column[issued:] for column in (steps.kind, steps.a, steps.b, steps.c)), strict=True)

    def _compute(self, op: int) -> None:
        """Run an op, with what the host needs around it."""
        writer, node = self.writer, self._graph.ops[op]
        if len(self._ran) == len(self._graph.ops):
            self._end_step()
        if op in self._graph.on_host:
            self._free()
            for tensor in node.reads:
                self._bring(tensor)
            writer.compute(op, again=True)
            for tensor in node.writes:
                self._spread(tensor)
        else:
            writer.compute(op, again=True)
            self._believed.write(node.writes, self._compute_tier)
        self._ran.add(op)
        for tensor in node.writes:
            if self._is_awaited(tensor):
                self._bring(tensor)
        for tensor in dict.fromkeys((*node.reads, *node.writes)):
            self._left[tensor] -= 1
            self._give_up(tensor, op)

    def _bring(self, tensor: int) -> None:
        """Copy a tensor into the tier of the host, unless it is valid there."""
        if self.writer.place(tensor, self._tier) != VALID:
            self.writer.move(tensor, self._tier)

    def _spread(self, tensor: int) -> None:
        """Copy what the host wrote to where the policy believes that it is valid."""
        self._absent.discard(tensor)
        for tier, state in enumerate(self._believed.state):
            if state[tensor] == VALID and self.writer.place(tensor, tier) != VALID:
                self.writer.move(tensor, tier)

    def _give_up(self, tensor: int, op: int) -> None:
        """Free what nobody needs any more once an op has run."""
        is_dead = not self._left[tensor] and tensor not in self._stays
        if tensor in self._graph.made_on_host and is_dead:
            self.writer.release(tensor)
            self._absent.add(tensor)
        elif self._last_on_host.get(tensor) == op and tensor not in self._graph.made_on_host:
            self._due.append(tensor)

    def _free(self) -> None:
        """Free places that ops of the host have used for the last time.

        Not sooner: what the accelerator reads of a tensor behind its detach would wait for the op of the host, too.
        """
        for tensor in self._due:
            is_elsewhere = any(state[tensor] == VALID for state in self._believed.state)
            is_dead = not self._left[tensor] and tensor not in self._stays
            is_left = self._believed.state[self._tier][tensor] == ABSENT != self.writer.place(tensor, self._tier)
            if is_left and (is_dead or is_elsewhere):
                self.writer.detach(tensor, self._tier)
        self._due.clear()

    def _is_awaited(self, tensor: int) -> bool:
        """Return whether an op of the host that has not run in this step reads what a tensor holds by now."""
        ran, pairs = self._ran, self._readers.get(tensor, ())
        return any(reader not in ran and (maker == NONE or maker in ran) for maker, reader in pairs)

    def _end_step(self) -> None:
        """Release what the host made and outputs have kept, and begin the next step."""
        self._free()
        for tensor in self._graph.outputs:
            if not self._graph.tensors[tensor].persistent:
                self.writer.release(tensor)
        self._ran.clear()
        self._left = self._uses.copy()
        self._absent = set(self._graph.made_on_host)
