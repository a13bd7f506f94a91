"""One graph of a job: what a policy has to solve for it, which ranks run what it decides, and what no plan can beat."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from simulator import bounds
from simulator.draws import Draws
from simulator.errors import Shortfall
from simulator.graph import Graph
from simulator.plan import NOWHERE
from simulator.policies.problem import Problem
from simulator.run.trial import Trier


@dataclass(frozen=True, eq=False)
class Task:
    """One graph of a job.

    Attributes
    ----------
    problem
        What every policy has to solve for it.
    number, team
        Which graph of the job it is; all ranks of the job, without what late reads choose.
    trier
        How plans are tried; it knows what late reads choose.
    """

    problem: Problem
    number: int
    team: bounds.Team
    trier: Trier

    @property
    def times_ns(self) -> Sequence[int]:
        """Time of each op in the step that is measured, alone [ns]."""
        return self.team.times_ns[self.number]

    def draws(self, rank: int) -> Draws | None:
        """What late reads of a rank choose; None if there are none."""
        return self.trier.lots.draws(self.graph, rank)

    @property
    def certain(self) -> Graph:
        """What runs, without what late reads choose."""
        return self.team.job.graphs[self.number]

    @property
    def label(self) -> str:
        """What its ranks are called."""
        return self.team.job.labels[self.number]

    @cached_property
    def ranks(self) -> tuple[int, ...]:
        """Ranks that run it, ascending."""
        return self.team.job.ranks_of(self.number)

    @property
    def graph(self) -> Graph:
        """What runs."""
        return self.problem.graph

    @property
    def said(self) -> str:
        """Its label with its ranks, for people."""
        first, last = self.ranks[0], self.ranks[-1]
        if len(self.ranks) == 1:
            return f"{self.label}, rank {first}"
        if last - first < len(self.ranks):
            return f"{self.label}, ranks {first} to {last}"
        return f"{self.label}, {len(self.ranks)} ranks from {first} to {last}"

    @property
    def bound_facts(self) -> tuple[list[int], int | float]:
        """What a bound may rely on: where each tensor is at time 0, and the budget [B]."""
        exists = self.problem.starts_with
        homes = [home if there else NOWHERE for home, there in zip(self.problem.homes, exists, strict=True)]
        return homes, self.problem.budget_bytes

    @property
    def pinned(self) -> list[int]:
        """Tensors (ids) that the scenario keeps in the compute tier."""
        return [tensor for tensor in range(len(self.graph.tensors)) if self.problem.pinned(tensor)]

    def bound(self, *, may_repeat: bool = False, in_turn: bool = False) -> bounds.Bound:
        """What no plan can beat; without `may_repeat`, no plan that runs each op once in a step."""
        found = self._bounds.get((may_repeat, in_turn))
        if found is None:
            limits = self.limits(may_repeat=may_repeat, in_turn=in_turn)
            found = self._bounds[may_repeat, in_turn] = limits.step(self.problem.budget_bytes)
        return found

    @cached_property
    def lap_bound(self) -> bounds.Bound:
        """What each lap of a plan takes at least on average that repeats, and is right whatever late reads choose."""
        return bounds.mean_step(self.graph, self.problem.hardware, self.bound_facts[0])

    def limits(self, *, may_repeat: bool = False, in_turn: bool = False) -> bounds.Limits:
        """All that no plan can beat, as far as it is asked for; `in_turn`, also none whose ranks do not begin together.

        Ranks that begin in turn need not do the same at the same time, and their steps that count may have different
        numbers; so each is then bounded as if the others came in time.
        """
        if (may_repeat, in_turn) not in self._limits:
            precedence = bounds.Precedence.of(self.certain, self.problem.streams)
            timing = (
                bounds.Timing.alone(precedence, self.times_ns, may_repeat=may_repeat)
                if in_turn
                else self.team.timings(may_repeat=may_repeat)[self.number]
            )
            shorter_ns = self.trier.lots.shorter_ns(self.graph, precedence.last, self.ranks)
            self._limits[may_repeat, in_turn] = bounds.Limits(
                replace(timing, shorter_ns=shorter_ns, outlasting=self.graph.cacheable),
                self.problem.hardware,
                self.bound_facts[0],
                may_repeat=may_repeat,
                sharers={} if in_turn else self.team.sharers(self.number),
            )
        return self._limits[may_repeat, in_turn]

    def unfit(self, *, may_repeat: bool = False) -> Shortfall | None:
        """What no plan can fit, if there is such a thing; without `may_repeat`, no plan that runs each op once."""
        if may_repeat not in self._unfit:
            facts = (self.certain, self.problem.hardware, *self.bound_facts)
            self._unfit[may_repeat] = bounds.infeasible(*facts, may_repeat=may_repeat)
        return self._unfit[may_repeat]

    @cached_property
    def _bounds(self) -> dict[tuple[bool, bool], bounds.Bound]:
        return {}

    @cached_property
    def _limits(self) -> dict[tuple[bool, bool], bounds.Limits]:
        return {}

    @cached_property
    def _unfit(self) -> dict[bool, Shortfall | None]:
        return {}
