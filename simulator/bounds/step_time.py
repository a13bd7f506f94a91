"""What no plan can beat, and what no plan can fit.

Premises of every bound here: each op runs once in each step (but see *recompute*), in its own time (no contention for
the compute tier); ops are issued in program order and run on the streams that the scenario says, computes on one, the
*line*; steps begin and end with the persistent tensors at home, and what has its home in the compute tier stays there.

*The window.* The step time is the distance ``E_n - E_(n-1)`` of the ends of the last op of the line in the last two
steps; in a run of one step it is the makespan. Of several ranks it is that of the slowest. No op starts sooner after
``E_(n-1)`` than its *head*, and from its end to ``E_n`` passes at least its *tail*: longest paths of what happens
before what, on all streams and, where ranks meet, over all ranks (proof in `order`). On one stream these are the sums
of the computes before the op and after it. The longest path of all is the *critical path*.

Let ``S`` be the start of the last op of the line. *All copies into the compute tier that a step forces lie between two
such starts*: they are issued after the step before, so that none starts before that step's last compute has started;
and each brings data that some op reads which the last op of the line waits for, so that all have ended when that one
starts. The same holds for copies out that make room for an op, and for what no op of the run's only step waits for,
because the makespan counts it. If the last op takes equally long in both steps, the distance of the ends is the
distance of the starts, and a link that must carry ``b`` bytes in it at a bandwidth ``w`` needs at least ``b / w``. If
it reads late, it may take less than in the step before; by that the ends are closer to each other than the starts.

*Late reads.* No plan must bring what is not chosen, so that only what ops read for certain counts here. Of plans fixed
before the run, which must bring all candidates, more is known of all steps together (`laps`).

*Collectives at the end.* Copies wait for the last op that was issued before them, on whatever stream. If that is a
collective, it counts from the moment at which its rank comes to it. If it surely comes after the last op of the line,
the copies of the next step lie between ``E_(n-1)`` and ``S`` of the next step, which takes ``b / w`` and that last op.
Otherwise, or if ops may run again behind it, nothing is known of when these copies start, and what must come in counts
in runs of one step only.

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

*Room at ops.* What must be out while an op runs, and what must come in between two of them, takes its time there and
not elsewhere: a budget that is tight at some ops can cost more than each of its copies hidden elsewhere would. The
longest path over such windows is a bound of its own; `windows` has the proof. Where paths over several ranks give heads
or tails, the windows of one rank meet the ends of steps of ranks that are alike, each once, so that the mean of their
steps is at least this.

*A full tier.* What neither the compute tier nor the tiers next to it have room for while ``k`` runs is further away. So
both arguments hold of these tiers together as well, with the room of all and the links behind them, and so on outwards;
`rings` has the proof.

*Several streams.* Program order then does not say what is there when ``k`` runs. A value counts while ``k`` runs only
if what made or used it has ended for certain, and what reads it has not begun (`idle`); as what must go out only if
it was made in the window for certain, and as what must come in only if the last op of the line waits for its reader.

*An exchange.* What is persistent and has no room together takes turns, and each copy in holds room before it can be
read; `exchange` has the proof.

*A copy queue* serves its links with the same channels: a transfer of ``b`` bytes holds one of its ``c`` channels for at
least ``b / w`` of its link, so that all of them take at least the sum of these times over ``c``.

*Recompute.* A plan may run ops again, if the first runs of a step come in program order. Read "op" as the first run of
that op in the step, and all of the above holds but one thing: a value that is needed later need not be kept, because
the op that made it can run again. So *by the budget* and *room at ops* then count only the values that no op can make
again: those that the step began with, those of ops that are not repeatable, and what stays in the compute tier because
it is at home there. All else stands: every op runs at least once, in program order; what is forced in is read by some
first run and has ended when the last of them starts; and the step ends no sooner than that last first run. What copies
and repeated runs cost together at an op, of a budget that is tight there, is a bound of its own; `again` has the proof.

*What ranks share.* Ranks that are alike (`ranks`) run the same plan and see the same, so that they do the same at the
same times if they begin together: bandwidth is shared max-min, and room of shared tiers is not short (else this is not
used). So their windows are one, and a bus of a node or of the supernode carries in it what each of them is forced to
move, as often as there are such ranks there. Of ranks that never meet, and may begin in turn, this holds for a run of
one step, which lies between time 0 and the last end of all.

A copy that is forced between a home and the compute tier passes every link (or bus) without which no path is left. A
staged link is a path of its own, and no room besides: what passes it passes the links that it goes via, whose bandwidth
it shares. So with a link (or bus) go all staged links over it, and those add nothing to the bandwidth of a border.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from simulator.bounds.again import Again
from simulator.bounds.before import Before
from simulator.bounds.carriers import rate_of
from simulator.bounds.exchange import Exchange
from simulator.bounds.forced import Forced, forced, time_ns
from simulator.bounds.idle import Idle
from simulator.bounds.order import Order
from simulator.bounds.windows import Windows
from simulator.graph import Graph
from simulator.hardware import Hardware


@dataclass(frozen=True, slots=True)
class Bound:
    """A lower bound on the step time.

    Attributes
    ----------
    ns
        The bound [ns].
    kind
        What sets it: ``compute``, ``critical path``, ``room at OP`` (or at so many ops, perhaps after a ``link NAME
        before OP`` that brings what comes from home, or before a ``link NAME after OP`` that takes it there), ``room or
        recompute at OP``, ``link NAME``, ``queue NAME``, ``bus NAME``, ``links into TIERS``, ``links out of TIERS`` or
        ``exchange in TIER``.
    terms
        Kind -> what it alone would take [ns].
    """

    ns: int
    kind: str
    terms: dict[str, int] = field(default_factory=dict)


def bound(
    graph: Graph,
    hardware: Hardware,
    durations_ns: Sequence[int],
    homes: Sequence[int],
    budget_bytes: int | float,
    *,
    may_repeat: bool = False,
) -> Bound:
    """Find the largest of the combinatorial lower bounds on the step time of one rank, whatever other ranks do.

    Parameters
    ----------
    graph, hardware
        What runs, where.
    durations_ns
        Time of each op alone [ns]; of a collective, among those that one rank meets.
    homes
        Tier id of each tensor at time 0, or `FREE`; of no account for what does not exist then.
    budget_bytes
        What may be used of the compute tier [B].
    may_repeat
        Whether the bound holds for plans that run ops again as well.

    Returns
    -------
    Bound
        The largest of compute, critical path, forced bytes over each link, queue and bus, the exchange, and the longest
        path over windows; see the module's proof and premises.
    """
    order = Order.alone(Before.of(graph), durations_ns, may_repeat=may_repeat)
    idle = Idle(graph, hardware, homes, may_repeat=may_repeat, before=order.before)
    return combinatorial(order, hardware, homes, idle)(budget_bytes)


def combinatorial(
    order: Order, hardware: Hardware, homes: Sequence[int], idle: Idle, sharers: Mapping[str, int] | None = None
) -> Callable[[int | float], Bound]:
    """The same for any budget.

    Parameters
    ----------
    order
        Of the graph, alone or among other ranks.
    hardware, homes
        As for `bound`.
    idle
        Of the graph; it takes most of the time to find.
    sharers
        For each bus that ranks share, how many do there at the same time what this one does.
    """
    graph = order.before.graph
    timed = zip(graph.ops, order.durations_ns, strict=True)
    compute_ns = sum(0 if op.collective else ns for op, ns in timed)
    exchange = Exchange.of(order, hardware, homes, idle)
    windows = Windows(order, hardware, homes, idle, sharers or {})
    again = Again(order, hardware, idle) if idle.may_repeat else None

    def at(budget_bytes: int | float) -> Bound:
        found = forced(order, hardware, homes, idle, budget_bytes)
        terms = {"compute": compute_ns}
        if order.path_ns > compute_ns:
            terms["critical path"] = order.path_ns
        between_starts = copy_terms(found, hardware, sharers or {})
        exchange_ns = exchange.ns(budget_bytes, rate_of(found.into, hardware), rate_of(found.out_of, hardware))
        if exchange_ns:
            between_starts[f"exchange in {hardware.compute_tier}"] = exchange_ns
        terms |= {term: max(0, ns - order.shorter_ns) for term, ns in between_starts.items()}
        longest = windows.longest(budget_bytes)
        if longest.ns > max(terms.values()):
            terms[longest.said(graph)] = longest.ns
        again_ns, op = again.longest(budget_bytes) if again else (0, -1)
        if again_ns > max(terms.values()):
            terms[f"room or recompute at {graph.ops[op].name}"] = again_ns
        kind = max(terms, key=lambda term: terms[term])
        return Bound(terms[kind], kind, terms)

    return at


def copy_terms(found: Forced, hardware: Hardware, sharers: Mapping[str, int]) -> dict[str, int]:
    """What the forced bytes take on each bus, link and queue, and what comes after them."""
    terms = {}
    for name, bus in hardware.buses.items():
        size_bytes = sharers.get(name, 1) * found.over(hardware.passing(bus.links))
        terms[f"bus {name}"] = time_ns(size_bytes, bus.bandwidth_bytes_per_s)
    for name, link in hardware.links.items():
        bytes_ns = time_ns(found.over(hardware.passing((name,))), link.bandwidth_bytes_per_s)
        terms[f"link {name}"] = max(bytes_ns, found.channels_ns(name, link))
    for name, links in hardware.copy_queues.items():
        terms[f"queue {name}"] = found.queue_ns({link: hardware.links[link] for link in links})
    for ring in (one.ring for one in found.beyond):
        for what, names in (("into", ring.into), ("out of", ring.out_of)):
            if len(names) > 1:
                terms[f"links {what} {ring.name}"] = time_ns(found.over(names), rate_of(names, hardware))
    return {term: ns + found.rest_ns if ns else 0 for term, ns in terms.items()}
