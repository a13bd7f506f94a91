"""The one place that turns decisions into a valid plan.

A policy says *fetch this, run that, store those*; the writer tracks where each action leads **as issued**: which
places are valid, stale or absent, and how many bytes each tier holds. It frees dead tensors, brings every persistent
tensor home at the end of the step, refuses nonsense at once, and knows the peak that the plan reaches in issue order.
A policy that decides before it writes hands over a list of moves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import pairwise
from operator import itemgetter
from typing import NamedTuple

import numpy as np

from simulator.errors import CapacityError, PlanError, Shortfall, filling
from simulator.offsets import tenancies_of
from simulator.plan import ABSENT, COMPUTE, COPY, DETACH, NOWHERE, VALID, Actions, PlacesAsIssued, Plan
from simulator.policies.problem import Problem


class Writer:
    """Write the actions of one step, and track where they lead.

    Parameters
    ----------
    problem
        Problem that the plan is for.
    policy
        Name of the policy.
    chosen_homes
        Tensor -> tier for persistent tensors whose home is free (default: the compute tier).

    Attributes
    ----------
    in_compute_tier
        State of the place of each tensor in the compute tier, as issued.
    """

    def __init__(self, problem: Problem, policy: str, chosen_homes: Mapping[int, int] | None = None) -> None:
        self.problem, self.policy = problem, policy
        self.homes = problem.resolved_homes(chosen_homes)
        self.steps = Actions()
        self._compute_tier, self._width = problem.compute_tier, len(problem.tiers)
        self._host_tier, self._on_host = problem.hardware.host_tier_id, problem.graph.on_host
        self._places = PlacesAsIssued(self.homes, self._width, self._compute_tier)
        self._state, self.in_compute_tier = self._places.state, self._places.in_compute_tier
        self._ops = problem.graph.ops
        self._live = [0] * self._width
        self.peak_bytes = [0] * self._width
        self._peak_position = [0] * self._width
        self._last_op: int | None = None
        for tensor, tier in enumerate(self.homes):
            if tier != NOWHERE:
                self._hold(tier, problem.sizes[tensor])

    def place(self, tensor: int, tier: int) -> int:
        """Return the state of a place as issued: `ABSENT`, `VALID` or `STALE`."""
        return self._state[tier][tensor]

    def resident(self, tensor: int) -> bool:
        """Return whether the tensor is valid in the compute tier, as issued."""
        return self.in_compute_tier[tensor] == VALID

    def live_bytes(self, tier: int) -> int:
        """Return the bytes that the tier holds, as issued [B]."""
        return self._live[tier]

    def compute(self, op: int, *, again: bool = False) -> None:
        """Run an op, and free tensors dead after it, unless the policy does that because ops run `again`."""
        node, tier = self._ops[op], self._host_tier if op in self._on_host else self._compute_tier
        missing = self._places.missing(node.reads, tier)
        if missing is not None:
            self._refuse(f"op {node.name!r}", "a tensor that an op reads is in the tier of its device", missing)
        for tensor in node.writes:
            if self._state[tier][tensor] == ABSENT:
                self._hold(tier, self.problem.sizes[tensor])
            self._places.write((tensor,), tier)
        self._hold(tier, 0, node.workspace_bytes)
        self.steps.append(COMPUTE, op, self.problem.streams[op])
        self._last_op = op
        for tensor in () if again else self.problem.lifetimes.dead_after[op]:
            self.release(tensor)

    def fetch(self, tensor: int) -> None:
        """Copy the tensor into the compute tier from the nearest tier where it is valid."""
        self.move(tensor, self._compute_tier)

    def recall(self, tensor: int) -> None:
        """Copy the tensor back into the compute tier, and free its other places but its home."""
        self.fetch(tensor)
        self.forget(tensor)

    def back_up(self, tensor: int, tier: int | None = None) -> None:
        """Copy the tensor out, unless another tier has a valid copy already.

        Parameters
        ----------
        tensor
            Tensor to copy.
        tier
            Target tier; default: the best tier that has room.
        """
        if self._is_away(tensor):
            return
        if tier is None:
            tiers, size = self.problem.away(tensor), self.problem.sizes[tensor]
            if not tiers:
                self._refuse("store", "a stored tensor may leave the compute tier", tensor)
            left = [capacity - live for capacity, live in zip(self.problem.capacities, self._live, strict=True)]
            fits = (t for t in tiers if size <= left[t] or self.place(tensor, t) != ABSENT)
            tier = next(fits, tiers[0])
        self.move(tensor, tier)

    def store(self, tensor: int) -> None:
        """Copy the tensor out, unless another tier has a valid copy already, and free its place in the compute tier."""
        self.back_up(tensor)
        self.evict(tensor)

    def evict(self, tensor: int) -> None:
        """Free the tensor's place in the compute tier; another tier must have a valid copy."""
        if not self._is_away(tensor):
            self._refuse("evict", "an evicted tensor is valid in another tier", tensor)
        self.detach(tensor, self._compute_tier)

    def forget(self, tensor: int) -> None:
        """Free the tensor's places outside the compute tier, but for its home."""
        for tier in range(self._width):
            if tier not in (self._compute_tier, self.homes[tensor]) and self.place(tensor, tier) != ABSENT:
                self.detach(tensor, tier)

    def release(self, tensor: int) -> None:
        """Free every place of the tensor."""
        for tier, state in enumerate(self._state):
            if state[tensor] != ABSENT:
                self.detach(tensor, tier)

    def detach(self, tensor: int, tier: int) -> None:
        """Free one place."""
        if broken_rule := self._places.detach(tensor, tier):
            self._refuse(f"detach from {self.problem.tiers[tier]!r}", broken_rule, tensor)
        self._live[tier] -= self.problem.sizes[tensor]
        self.steps.append(DETACH, tensor, tier)

    def copy(self, tensor: int, source: int, target: int) -> None:
        """Copy over one link; a stale target is refreshed in place."""
        is_joined, takes_room = (source, target) in self.problem.links, self._state[target][tensor] == ABSENT
        broken_rule = self._places.copy(tensor, source, target) if is_joined else "a link joins the two tiers"
        if broken_rule:
            tiers = self.problem.tiers
            self._refuse(f"copy from {tiers[source]!r} to {tiers[target]!r}", broken_rule, tensor)
        if takes_room:
            self._hold(target, self.problem.sizes[tensor])
        self.steps.append(COPY, tensor, source, target)

    def sync(self, tensor: int) -> None:
        """Make the host wait for all actions so far that name the tensor."""
        self.steps.sync(tensor)

    def drain(self) -> None:
        """Make the host wait until the last op so far has ended (if it names any tensor)."""
        op = self._last_op
        named = () if op is None else (*self._ops[op].writes, *self._ops[op].reads)
        if named:
            self.sync(named[0])

    def finish(self, notes: tuple[str, ...] = ()) -> Plan:
        """End the step and return the plan.

        Persistent tensors that live elsewhere go home first, then those that live in the compute tier come back,
        and at last the outputs are released.

        Raises
        ------
        CapacityError
            If a tier holds more than its capacity, in issue order.
        """
        persistent = (t for t, tensor in enumerate(self.problem.graph.tensors) if tensor.persistent)
        for tensor in sorted(persistent, key=lambda t: self.homes[t] == self._compute_tier):
            home = self.homes[tensor]
            if self._state[home][tensor] != VALID:
                self.move(tensor, home)
            for tier, state in enumerate(self._state):
                if tier != home and state[tensor] != ABSENT:
                    self.detach(tensor, tier)
        for tensor, fields in enumerate(self.problem.graph.tensors):
            if not fields.persistent:
                self.release(tensor)
        for tier, capacity in enumerate(self.problem.capacities):
            if self.peak_bytes[tier] > capacity:
                raise CapacityError(self._shortfall(tier))
        return Plan(self.policy, self.problem.tiers, self.homes, self.steps, self.problem.graph.steps, notes)

    def move(self, tensor: int, target: int) -> None:
        """Copy the tensor into a tier from the nearest one where it is valid, over other tiers if it must."""
        sources = [tier for tier, state in enumerate(self._state) if state[tensor] == VALID]
        if not sources:
            self._refuse("copy", "a tensor to copy is valid somewhere", tensor)
        nearest = min(sources, key=lambda source: self.problem.copy_ns(tensor, source, target))
        path = self.problem.path(nearest, target)
        passed = [tier for tier in path[1:-1] if self.place(tensor, tier) == ABSENT]
        for source, next_tier in pairwise(path):
            if next_tier == target or self.place(tensor, next_tier) != VALID:
                self.copy(tensor, source, next_tier)
        for tier in passed:
            self.detach(tensor, tier)

    def _is_away(self, tensor: int) -> bool:
        return any(state[tensor] == VALID for state in self._state if state is not self.in_compute_tier)

    def _hold(self, tier: int, size_bytes: int, workspace_bytes: int = 0) -> None:
        """Count what a tier holds from now on, and its peak with the workspace of an op."""
        self._live[tier] += size_bytes
        if self._live[tier] + workspace_bytes > self.peak_bytes[tier]:
            self.peak_bytes[tier] = self._live[tier] + workspace_bytes
            self._peak_position[tier] = len(self.steps)

    def _refuse(self, where: str, must: str, tensor: int) -> None:
        found = f"{self.problem.graph.tensors[tensor].name!r} {self._places.as_text(tensor, self.problem.tiers)}"
        raise PlanError(f"policy {self.policy!r}, {where}", must, found, "correct the policy's decision")

    def _shortfall(self, tier: int) -> Shortfall:
        """Report the tensors at the tier's peak, the op at which it fills up, and the last allocation before."""
        problem, worst, levers = self.problem, self._peak_position[tier], list[str]()
        plan = Plan(self.policy, problem.tiers, self.homes, self.steps)
        tenancies = tenancies_of(problem.graph, plan, tier)
        first = int((tenancies.live_bytes() > problem.capacities[tier]).argmax()) - 1
        stay = np.unique(tenancies.owner[(tenancies.first <= worst) & (worst <= tenancies.last)])
        stay = stay[tenancies.item[stay] >= 0]
        stay = stay[np.argsort(tenancies.taken[stay], kind="stable")]
        held, taken = tenancies.item[stay].tolist(), tenancies.taken[stay].tolist()
        came = [problem.graph.tensors[t].name for t, step in zip(held, taken, strict=True) if 0 <= step <= first]
        if tier == self._compute_tier and self.policy != "static" and not all(map(problem.pinned, held)):
            levers.append("choose a policy that moves more data, such as 'static'")
        full = filling(self._op_from(max(first, 0)), self._op_from(worst), came[-1] if came else "")
        return problem.shortfall(tier, self.peak_bytes[tier], self._op_from(worst), held, levers, full)

    def _op_from(self, step: int) -> str:
        """Name the first op from a step on."""
        for kind, a in zip(self.steps.kind[step:], self.steps.a[step:], strict=True):
            if kind == COMPUTE:
                return f"op {self._ops[a].name}"
        return "the end of the step"


class Move(NamedTuple):
    """An operation of the writer on a tensor at a program point.

    Attributes
    ----------
    point
        The op before which it is done; the number of ops is the end of the step.
    do
        A method of the writer, such as ``Writer.fetch``, or a function of a writer and a tensor.
    """

    point: int
    do: Callable[[Writer, int], None]
    tensor: int


def write(
    problem: Problem,
    policy: str,
    moves: Iterable[Move],
    notes: tuple[str, ...] = (),
    chosen_homes: Mapping[int, int] | None = None,
) -> Plan:
    """Write the plan that makes these moves; moves at the same point keep their order.

    Raises
    ------
    CapacityError
        If a tier holds more than its capacity, in issue order.
    """
    writer, done = Writer(problem, policy, chosen_homes), 0
    end = Move(len(problem.graph.ops), lambda _writer, _tensor: None, NOWHERE)
    for point, do, tensor in (*sorted(moves, key=itemgetter(0)), end):
        for op in range(done, point):
            writer.compute(op)
        done = max(done, point)
        do(writer, tensor)
    return writer.finish(notes)
