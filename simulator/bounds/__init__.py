"""Lower bounds that no plan beats, and needs that no plan can avoid.

Premises of every bound here: each op runs once in each step (but see *recompute*), in its own time (no contention for
the compute tier); ops are issued in program order and run on the streams that graph and scenario name, those of stream
0 being the *line*; steps begin and end with the persistent tensors at home, and what is at home in the compute tier
stays there.

*The window.* The step time is the distance ``E_n - E_(n-1)`` of the ends of the last op of the line in the last two
steps; in a run of one step it is the makespan. Of several ranks it is that of the slowest. No op starts sooner after
``E_(n-1)`` than its *lead*, and from its end to ``E_n`` passes at least its *tail*: longest paths of what happens
before what, on all streams and, where ranks meet, over all ranks (proof in `critical_path`). On one stream these are
the sums of the computes before the op and after it. The longest path of all is the *critical path*.

Let ``S`` be the start of the last op of the line. *Every forced copy-in of a step lies between two such starts.* It is
issued after the previous step, so it cannot begin before that step's last compute begins. It must end before this
step's last op begins, because that op depends on a reader of the data. The same holds for copies out that make room for
an op, and for all copies of a run of one step, because the makespan counts them. If the last op takes equally long in
both steps, the distance of the ends is the distance of the starts, and a link that must carry ``b`` bytes in it at a
bandwidth ``w`` needs at least ``b / w``. If the last op reads dynamically, it may take less time than in the step
before; then the ends are closer to each other than the starts by that difference.

*Dynamic reads.* A plan need not bring what is not chosen, so that only certain reads count here. For plans fixed before
the run, which must bring all candidates, `mean_step` bounds all steps together.

*Collectives at the end.* Copies wait for the last op that was issued before them, on whatever stream. If that is a
collective, it counts from the moment at which its rank reaches it. If it surely comes after the last op of the line,
the copies of the next step lie between ``E_(n-1)`` and ``S`` of the next step, which takes ``b / w`` and that last op.
Otherwise, or if ops may run again behind it, nothing is known of when these copies start, and copies in are counted in
runs of one step only.

What is forced:

- *in*: a persistent tensor whose home is not the compute tier, if the first op of the step that uses it reads it;
- *back*: such a tensor once it was written. In a run of several steps the copy back may end in the next step or
  after the last compute, so it counts in runs of one step only;
- *by the budget*: while op ``k`` runs, what it uses and its workspace are in the compute tier. Of the other values
  that are needed later, those beyond the budget are not. Such a value, if an earlier op of the step made or used it,
  was in the compute tier and has been copied *out* since (in a run of one step, also if it has its home there; in a
  later step it may not yet have come home from the step before). If a later op of the step reads it, it is copied *in*
  after ``k``. Tensors that are forced in above are left out here, so that nothing counts twice. The largest excess
  over all ops is forced.

*Room at ops.* Copies that must go out before an op runs, or come in between two ops, take their time there and not
elsewhere: a budget that is tight at some ops can cost more than each of its copies hidden elsewhere would. The longest
path over such windows is a bound of its own; `windows` has the proof. Where paths over several ranks give leads or
tails, the windows of one rank meet the ends of steps of ranks that are alike, each once, so that the mean of their
steps is at least this.

*A full tier.* Values that fit neither the compute tier nor the tiers next to it while ``k`` runs are further away. So
both arguments hold for these tiers together as well, with the room of all and the links behind them, and so on
outwards; `cuts` has the proof.

*Several streams.* Program order then does not say what is there when ``k`` runs. A value counts while ``k`` runs only
if the op that made or used it has surely ended, and its reader has not begun (`idle`); it must go out only if it was
surely made in the window, and come in only if the last op of the line waits for its reader.

*An exchange.* Persistent tensors that do not fit together take turns, and each copy in holds room before it can be
read; `traffic` has the proof.

*A copy queue* serves its links with the same channels: a transfer of ``b`` bytes holds one of its ``c`` channels for at
least ``b / w`` of its link, so that all of them take at least the sum of these times over ``c``.

*Recompute.* A plan may run ops again, if the first runs of a step come in program order. Read "op" as the first run of
that op in the step, and all of the above holds but one thing: a value that is needed later need not be kept, because
the op that made it can run again. So *by the budget* and *room at ops* then count only the values that no op can make
again: those that the step began with, those of ops that are not repeatable, and what stays in the compute tier because
it is at home there. All else stands: every op runs at least once, in program order; what is forced in is read by some
first run and has ended when the last of them starts; and the step ends no sooner than that last first run. What copies
and repeated runs cost together at an op where the budget is tight is a bound of its own; `windows.Rematerialisation`
has the proof.

*What ranks share.* Ranks that are alike (`critical_path`) run the same plan and see the same, so that they do the same
at the same times if they begin together: bandwidth is shared max-min, and room of shared tiers is not short (else this
is not used). So their windows coincide, and a bus of a node or of the supernode carries in them what each of them is
forced to move, times the number of such ranks there. Of ranks that never meet, and may begin in turn, this holds for a
run of one step, which lies between time 0 and the last end of all.

A copy that is forced between a home and the compute tier passes every link (or bus) without which no path is left. A
staged link is a path of its own, and takes no room: what passes it passes the links that it goes via, whose bandwidth
it shares. So all staged links over a link (or bus) count with it, and add nothing to the bandwidth of a border.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from heapq import heappop, heappush

from simulator.bounds.capacity import infeasible as infeasible
from simulator.bounds.capacity import raise_advice as raise_advice
from simulator.bounds.capacity import staging_text as staging_text
from simulator.bounds.critical_path import Team as Team
from simulator.bounds.critical_path import Timing as Timing
from simulator.bounds.idle import Demand
from simulator.bounds.precedence import Precedence as Precedence
from simulator.bounds.precedence import streams_of as streams_of
from simulator.bounds.traffic import Traffic
from simulator.bounds.windows import MOST_POINTS, Rematerialisation, Windows
from simulator.cost import device_of, roofline, unit_work
from simulator.cost.service import FULL_RATE, ceil_div
from simulator.graph import HOST, Graph
from simulator.hardware import Hardware

_HALVINGS = 12  # the bound on the peak is found to one part in 4,096 of what may be live
_FEWER = 8  # so many times fewer ops show that a budget is too small, if they do, in a tenth of the time


@dataclass(frozen=True, slots=True)
class Bound:
    """A lower bound on the step time, and what sets it.

    Attributes
    ----------
    kind
        What sets it: ``compute``, ``critical path``, ``matrix unit`` or ``vector unit`` (perhaps ``of the host``),
        ``memory TIER``, ``room at OP``
        (or at so many ops, perhaps after a ``link NAME before OP`` that brings what comes from home, or before a ``link
        NAME after OP`` that takes it there), ``room or recompute at OP``, ``link NAME``, ``queue NAME``, ``bus NAME``,
        ``links into TIERS``, ``links out of TIERS`` or ``exchange in TIER``.
    terms
        Kind -> the time that it alone would take [ns].
    """

    ns: int
    kind: str
    terms: dict[str, int] = field(default_factory=dict)


class Limits:
    """Lower bounds of one graph on one machine, for any budget.

    Parameters
    ----------
    timing
        Timing of the graph's ops, alone or among those of other ranks.
    hardware, homes
        The machine; the tier id of each tensor at time 0, or `FREE`; ignored for what does not exist then.
    may_repeat
        Whether the bounds hold for plans that run ops again as well; the timing is then for such plans, too.
    sharers
        For each bus that ranks share, how many of them do there at the same time what this one does.
    """

    def __init__(
        self,
        timing: Timing,
        hardware: Hardware,
        homes: Sequence[int],
        *,
        may_repeat: bool = False,
        sharers: Mapping[str, int] | None = None,
    ) -> None:
        graph, sharers = timing.precedence.graph, sharers or {}
        self._timing, self._tier = timing, hardware.compute_tier
        self._demand = demand = Demand(timing.precedence, hardware, homes, may_repeat=may_repeat)
        placed, compute_tier = zip(graph.tensors, homes, strict=True), hardware.compute_tier_id
        self._at_home = sum(tensor.size_bytes for tensor, home in placed if home == compute_tier)
        timed = zip(graph.ops, timing.precedence.streams, timing.durations_ns, strict=True)
        self._compute_ns = sum(ns for op, stream, ns in timed if not stream and op.collective is None)
        self._device = _device_terms(timing, hardware, sharers)
        self._traffic, self._windows = Traffic(timing, demand, sharers), Windows(timing, demand, sharers)
        self._again = Rematerialisation(timing, demand) if may_repeat else None
        self._shares = (_FEWER, 1) if len(graph.ops) > MOST_POINTS // 4 else (1,)

    @cached_property
    def step(self) -> Callable[..., Bound]:
        """Budget [B] -> shortest step that any plan can have: the largest bound, see the module's proof."""
        return cache(self._step)

    def _step(self, budget_bytes: int | float, share: int = 1) -> Bound:
        """Find the bound, or with a larger share a lower one: looked at so many times fewer ops, all of the same."""
        timing = self._timing
        between_starts = self._traffic.terms(budget_bytes)
        if exchange_ns := self._traffic.exchange_ns(budget_bytes):
            between_starts[f"exchange in {self._tier}"] = exchange_ns
        terms = {"compute": self._compute_ns, "critical path": timing.path_ns, **self._device}
        if timing.path_ns <= self._compute_ns:
            del terms["critical path"]
        terms |= {term: max(0, ns - timing.shorter_ns) for term, ns in between_starts.items()}
        for ns, name in (part.longest(budget_bytes, share) for part in (self._windows, self._again) if part):
            if ns > max(terms.values()):
                terms[name] = ns
        return _largest(terms)

    def peak_bytes(self, step_ns: int) -> int:
        """Return a peak in the compute tier [B] that no plan beats whose step takes at most `step_ns`.

        A run that peaks at some bytes is a plan for a budget of that size. So a budget whose bound on the step is
        above `step_ns` is below the peak, and so is every smaller one, for which no bound is lower.
        Of many ops, few may show that a budget is too small.
        """
        demand = self._demand
        least = max(int(demand.held.max()), self._at_home)
        most = max(least, int((demand.work + demand.idle).max()))
        if self.step(least).ns <= step_ns:
            return least
        for _ in range(_HALVINGS):
            middle = (least + most) // 2
            if any(self.step(middle, share).ns > step_ns for share in self._shares):
                least = middle + 1
            else:
                most = middle
        return least


def _device_terms(timing: Timing, hardware: Hardware, sharers: Mapping[str, int]) -> dict[str, int]:
    """Bound a step by what each unit of a device, and its memory, do in it, where several streams share them.

    So do the cores of the host always, for all ranks that share them: `Timing.hosted` where ranks meet, else `sharers`
    of its memory, which do the same at the same time.

    *Proof.* An op that surely starts after the window has begun (its lead is known) and ends before the window does
    (its tail is known) does all its arithmetic in it, and moves all its traffic. No unit computes faster than at its
    peak, nor does the memory carry more than its bandwidth, or for cores more than the largest share of it that an
    op of theirs reaches alone (semantics, rule 10). Where ranks meet, windows of several ranks are on the paths that
    leads and tails come from: of the device's own ops this then holds for runs of one step only, and of those of hosts
    where ranks that are alike do the same at the same times, so that their windows are one.
    """
    graph, cores, reached, at_once = timing.precedence.whole, hardware.host_compute, FULL_RATE, 1
    is_alone = timing.precedence.is_contended and not (graph.meets and graph.steps > 1)
    if cores and (rate := hardware.tiers[cores.tier].bandwidth_bytes_per_s):  # their share is of whole B/s, rounded up
        reached = min(reached, math.ceil((cores.largest_share + 1 / rate) * FULL_RATE))
        at_once = sharers.get(f"memory.{cores.tier}", 1)
    ends = zip(graph.ops, timing.leads_ns, timing.tails_ns, strict=True)
    ops = [(op, at_once if op.device == HOST else 1, lead, tail) for op, lead, tail in ends]
    ops = [*(of for of in ops if (is_alone if of[0].device != HOST else not graph.meets)), *timing.hosted]
    inside: dict[str, list[tuple[int, int, int]]] = {}
    for op, ranks, lead_ns, tail_ns in ops:
        if min(lead_ns, tail_ns) >= 0 and op.collective is None and op.duration_ns is None:
            unit, _, arithmetic = unit_work(op, hardware)
            share, of = (reached, " of the host") if op.device == HOST else (FULL_RATE, "")
            traffic = ceil_div(ranks * roofline(op, hardware)[1] * FULL_RATE, share)
            inside.setdefault(f"{unit} unit{of}", []).append((lead_ns, ranks * arithmetic, tail_ns))
            inside.setdefault(f"memory {device_of(op, hardware).tier}", []).append((lead_ns, traffic, tail_ns))
    return {name: least_ns for name, ops in inside.items() if (least_ns := _served_ns(ops))}


def _served_ns(ops: Sequence[tuple[int, int, int]]) -> int:
    """Bound the window in which something serves ops by the lead, the work [2^-32 ns] and the tail of each [ns].

    *Proof.* Of any set of ops the least lead, the sum of all work and the least tail lie one after another in the
    window. The largest such sum is the time that serving takes if the op with the longest tail is always served first,
    and others wait, begun or not (Jackson's preemptive schedule).
    """
    waiting, clock, least = list[tuple[int, int]](), 0, 0
    coming = sorted(((lead * FULL_RATE, work, tail * FULL_RATE) for lead, work, tail in ops if work), reverse=True)
    while coming or waiting:
        clock = clock if waiting else max(clock, coming[-1][0])
        while coming and coming[-1][0] <= clock:
            _, work, tail = coming.pop()
            heappush(waiting, (-tail, work))
        tail, work = heappop(waiting)
        served = min(work, coming[-1][0] - clock) if coming else work
        clock += served
        if served < work:
            heappush(waiting, (tail, work - served))
        least = max(least, clock - tail)
    return ceil_div(least, FULL_RATE)


def mean_step(graph: Graph, hardware: Hardware, homes: Sequence[int]) -> Bound:
    """Bound the mean step of a plan that repeats itself in each step, whatever dynamic reads choose.

    At time 0 a tensor whose home is not the compute tier is nowhere else. A plan that is fixed before the run, and
    right whatever is chosen, issues a copy in of each candidate of a dynamic read in its first step; so in every step,
    as all have the same. It does the same with all that is read before it is written, and copies home what was written.
    A run has ended when all its copies have. So the links that lead from there to the compute tier carry in ``n`` steps
    ``n`` times what they must carry in one, and the makespan is at least ``n`` times as long as that takes. A single
    step may take less, because an op with dynamic reads waits only for what is chosen: the rest may come behind it, in
    the next step.

    Parameters
    ----------
    graph, hardware, homes
        As for `Limits`; all candidates of dynamic reads are among what ops read.

    Returns
    -------
    Bound
        Bound of one step: the time that each link, queue and bus needs for what must pass it.
    """
    precedence = Precedence.of(replace(graph, steps=1))
    timing = Timing.alone(precedence, [0] * len(graph.ops))
    traffic = Traffic(timing, Demand(precedence, hardware, homes), {})
    return _largest(traffic.terms(math.inf))


def _largest(terms: dict[str, int]) -> Bound:
    kind = max(terms, key=lambda term: terms[term])
    return Bound(terms[kind], kind, terms)
