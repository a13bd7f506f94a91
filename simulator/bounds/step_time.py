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

*Room at an op.* The values that must be out while op ``k`` of the line runs left between the start of the window and
the start of ``k``, as ops of the step made them; while they are out they hold no room, so that their copies in begin
after ``k`` has ended, and they end before the last op starts. So a step takes at least ``max(out / w_out, head of k) +
k + max(in / w_in + the last op, tail of k)``, for every ``k``: a budget that is tight at one op can cost more than each
of its copies hidden elsewhere would. Where paths over several ranks give head or tail, that of ``k`` on one rank and
its copies meet the ends of steps of ranks that are alike, each once, so that the mean of their steps is at least this.

*A full tier.* What neither the compute tier nor the tiers next to it have room for while ``k`` runs is further away. So
both arguments hold of these tiers together as well, with the room of all and the links behind them, and so on outwards;
`rings` has the proof.

*Several streams.* Program order then does not say what is there when ``k`` runs. A value counts while ``k`` runs only
if what made or used it has ended for certain, and what reads it has not begun (`idle`); as what must go out only if
it was made in the window for certain, and as what must come in only if the last op of the line waits for its reader.

*An exchange.* What is persistent and has no room together takes turns, and each copy in holds room before it can be
read; `exchange` has the proof.

*What is put out.* Of the outputs that ``k`` or a later op makes, what the last op leaves no room for is copied out
after ``k`` has ended and before the last op starts, when what must come back comes in: side by side on links of their
own, in turn on the channels of a copy queue.

*A copy queue* serves its links with the same channels: a transfer of ``b`` bytes holds one of its ``c`` channels for at
least ``b / w`` of its link, so that all of them take at least the sum of these times over ``c``.

*Recompute.* A plan may run ops again, if the first runs of a step come in program order. Read "op" as the first run of
that op in the step, and all of the above holds but one thing: a value that is needed later need not be kept, because
the op that made it can run again. So *by the budget* and *room at an op* then count only the values that no op can make
again: those that the step began with, those of ops that are not repeatable, and what stays in the compute tier because
it is at home there. All else stands: every op runs at least once, before ``k`` and after it; what is forced in is read
by some first run and has ended when the last of them starts; and the step ends no sooner than that last first run.

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
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.bounds.before import Before
from simulator.bounds.exchange import Exchange
from simulator.bounds.forced import NS_PER_S, Forced, forced, time_ns
from simulator.bounds.idle import Idle
from simulator.bounds.order import Order
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
        What sets it: ``compute``, ``critical path``, ``room at OP``, ``link NAME``, ``queue NAME``,
        ``bus NAME``, ``links into TIERS``, ``links out of TIERS`` or ``exchange in TIER``.
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
        ``max(compute, critical path, forced bytes / bandwidth of each link, queue and bus, room at each op)``; see the
        module's proof and premises.
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

    def at(budget_bytes: int | float) -> Bound:
        found = forced(order, hardware, homes, idle, budget_bytes)
        terms = {"compute": compute_ns}
        if order.path_ns > compute_ns:
            terms["critical path"] = order.path_ns
        op, room_ns = _room(idle, found, hardware, order, budget_bytes)
        if room_ns > max(terms.values()):
            terms[f"room at {graph.ops[op].name}"] = room_ns
        between_starts = copy_terms(found, hardware, sharers or {})
        exchange_ns = exchange.ns(budget_bytes, _rate(found.into, hardware), _rate(found.out_of, hardware))
        if exchange_ns:
            between_starts[f"exchange in {hardware.compute_tier}"] = exchange_ns
        terms |= {term: max(0, ns - order.shorter_ns) for term, ns in between_starts.items()}
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
                terms[f"links {what} {ring.name}"] = time_ns(found.over(names), _rate(names, hardware))
    return {term: ns + found.rest_ns if ns else 0 for term, ns in terms.items()}


def _rate(names: Sequence[str], hardware: Hardware) -> int | float:
    """Bandwidth of these links together [B/s]."""
    return sum(hardware.links[name].bandwidth_bytes_per_s for name in hardware.wires(names))


class _Border(NamedTuple):
    """A ring's room with the budget [B], the bandwidths out of it and into it [B/s], and who asks for room, by op."""

    room_bytes: int | float
    out_of: int | float
    into: int | float
    made_here: NDArray[np.int64]
    read_later: NDArray[np.int64]


def _borders(idle: Idle, hardware: Hardware, budget_bytes: int | float) -> list[_Border]:
    return [
        _Border(
            budget_bytes + ring.room_bytes,
            _rate(ring.out_of, hardware),
            _rate(ring.into, hardware),
            idle.work + made_here,
            idle.work + read_later,
        )
        for ring, made_here, read_later in zip(idle.rings, idle.made_in, idle.read_in, strict=True)
    ]


def _room(idle: Idle, found: Forced, hardware: Hardware, order: Order, budget_bytes: int | float) -> tuple[int, int]:
    """Find the op whose lack of room costs most, and what a step takes at least because of it [ns]."""
    borders = _borders(idle, hardware, budget_bytes)
    best, last = (0, order.path_ns), order.before.last
    together = _in_turn(found, hardware)
    for k in _promising(idle, order, borders, together):
        left_ns = max(time_ns(_beyond(b.made_here[k], b.room_bytes), b.out_of) for b in borders)
        back_ns, *further_ns = (time_ns(_beyond(b.read_later[k], b.room_bytes), b.into) for b in borders)
        stored_ns = time_ns(_beyond(idle.work[last] + idle.put_out[k], budget_bytes), borders[0].out_of)
        in_turn_ns = (back_ns + stored_ns) // together if together else 0
        copies_ns = max(back_ns, stored_ns, in_turn_ns, *further_ns)
        behind_ns = max(copies_ns + order.last_ns if copies_ns else 0, order.tails_ns[k])
        cost_ns = max(left_ns, order.heads_ns[k]) + order.durations_ns[k] + behind_ns
        if cost_ns > best[1]:
            best = (k, cost_ns)
    return best


def _in_turn(found: Forced, hardware: Hardware) -> int:
    """How many channels serve the one link out of the compute tier and the one into it; 0 if they don't share any."""
    if len(found.into) != 1 or len(found.out_of) != 1:
        return 0
    both = {*found.into, *found.out_of}
    shared = any(both <= set(queue) for queue in hardware.copy_queues.values())
    return hardware.links[found.into[0]].channels if shared else 0


def _promising(idle: Idle, order: Order, borders: Sequence[_Border], together: int) -> list[int]:
    """Ops of the line that may cost most: floating point is good enough to leave out those that are far from it."""
    durations, heads, tails = (np.array(x, float) for x in (order.durations_ns, order.heads_ns, order.tails_ns))
    inner = borders[0]
    stored = _about_ns(idle.work[order.before.last] + idle.put_out, inner.room_bytes, inner.out_of)
    back = _about_ns(inner.read_later, inner.room_bytes, inner.into)
    copies = np.maximum(np.maximum(back, stored), (back + stored) / together if together else 0.0)
    left = _about_ns(inner.made_here, inner.room_bytes, inner.out_of)
    for border in borders[1:]:
        copies = np.maximum(copies, _about_ns(border.read_later, border.room_bytes, border.into))
        left = np.maximum(left, _about_ns(border.made_here, border.room_bytes, border.out_of))
    later = np.where(copies > 0, copies + order.last_ns, 0.0)
    cost = np.maximum(left, heads) + durations + np.maximum(later, tails)
    is_tight = np.zeros(len(cost), bool)
    for border in borders:
        is_tight |= np.maximum(border.made_here, border.read_later) > border.room_bytes
    is_tight &= np.array(order.before.streams) == 0
    limit = cost[is_tight].max(initial=0.0) * (1 - 1e-9) - 4
    found: list[int] = np.flatnonzero(is_tight & (cost >= limit)).tolist()
    return found


def _about_ns(demand: NDArray[np.int64], room_bytes: int | float, rate: int | float) -> NDArray[np.float64]:
    """Time for what is beyond the room, in floating point [ns]."""
    found: NDArray[np.float64] = np.maximum(demand - float(room_bytes), 0.0) * (NS_PER_S / rate if rate else 0.0)
    return found


def _beyond(demand: np.int64, room_bytes: int | float) -> int:
    return int(max(0, demand - room_bytes))
