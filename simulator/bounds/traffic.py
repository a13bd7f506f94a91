"""Copies that each step forces, and the links that they take: the package has the proof, and `cuts` that of full tiers.

*An exchange.* Let ``Q`` be persistent tensors that may leave the compute tier and are *kept*: the first op of a step
that uses one reads it, and so does each op that writes it, so that its value is needed at all times. Let the smallest
of them have ``s`` bytes. They and what is pinned have ``x`` bytes more than the budget. In the window of a step,
from the start of the last op to its start a step later, links carry into the compute tier at least ``x + s`` bytes; or
else ``x`` bytes, and all of these after one of ``Q`` was copied out.

*Proof.* Between two steps each persistent tensor is at home and nowhere else. Let ``A`` be those of ``Q`` whose homes
are other tiers, and ``N`` the others. ``N`` and what is pinned have room in the compute tier, so that ``A`` has at
least ``x`` bytes. Each of ``A`` is read in the step, so that a copy of it lies in the window. Say the copies of ``Q``
that lie there have less than ``x + s`` bytes. Then they are one of each of ``A``, and no other: another one would bring
``s`` bytes. Let the first of them start at ``t``: it takes its place then, of ``s`` bytes at least. Were all of ``N``
in their places, too, ``A`` would have at least ``x + s`` bytes, but it has less. So at ``t`` some ``b`` of ``N`` has no
place. It is read in the step. If a copy in of ``b`` issued in the step before had not started at ``t``, it would lie in
the window, which it cannot. So ``b`` was there when the window began, and has left since. Its value is needed, and was
nowhere else between the steps: so a copy of ``b`` out, issued in this step, has ended at ``t``. The copies of ``A``, of
``x`` bytes or more, follow.

This holds for any ``Q``. Of all tensors of at least some size, each size is tried.

*Reads in place.* What may be read in place needs no place. But its bytes cross a link into the compute tier once a
step, in a copy or in a load: of all that an op is the first to read, at least what it would load, as no load is larger
than a copy. Copies lie in the window above, and so do loads, as the last op of the line loads nothing here. Tensors
whose home is free may be at home in the compute tier; but no more of them than the budget holds beside what is pinned.

*Premises.* All ops are on one stream and no ranks meet, so that the window is simple. Ops run once. Candidates of
dynamic reads that no op writes are left out: their copies may outlast a step.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain

from simulator.bounds.critical_path import Timing
from simulator.bounds.cuts import Cut, rate_of, time_ns
from simulator.bounds.idle import Demand
from simulator.cost import loaded_bytes
from simulator.cost.service import ceil_div, transfer_ns
from simulator.hardware import reachable
from simulator.plan import FREE

ForcedMove = tuple[int, int, list[int]]
"""Ids of the source and target tier, one of them the compute tier; sizes of the tensors that must get there [B]."""

Crossing = tuple[Cut, int, int]
"""A cut, and the least bytes that the room within forces in and out [B]."""


class Traffic:
    """Copies that each step forces, whatever the budget.

    Parameters
    ----------
    timing, demand, sharers
        As for `simulator.bounds.Limits`; what must be held while each op runs.
    """

    def __init__(self, timing: Timing, demand: Demand, sharers: Mapping[str, int]) -> None:
        self.hardware, self.demand, self.sharers = demand.hardware, demand, sharers
        rest_ns = _rest_ns(timing, may_repeat=demand.may_repeat)
        self._rest_ns = rest_ns or 0
        self._moves = _moves(timing, demand) if rest_ns is not None else []
        self._alone_ns = dict[str, int]()  # of all transfers of whole tensors that must pass a link
        for name, link in self.hardware.links.items():
            sizes = Counter(chain(*(sizes for *_, sizes in self._moves_over({name}))))
            self._alone_ns[name] = sum(count * transfer_ns(size, link) for size, count in sizes.items())
        self._pinned_bytes, self._kept_sizes = _kept_sizes(timing, demand)
        self._loaded = _loaded(timing, demand)

    def terms(self, budget_bytes: int | float) -> dict[str, int]:
        """Return the time of these copies and of what comes after them, by bus, link and queue, for a budget [ns]."""
        hardware, links = self.hardware, self.hardware.links
        demand, crossing = self.demand, list[Crossing]()
        for cut, *idle in zip(demand.cuts, demand.read_in, demand.made_in, strict=True):
            room = budget_bytes + cut.room_bytes
            into, out_of = (int(max(0, int((demand.work + idle_bytes).max()) - room)) for idle_bytes in idle)
            crossing.append((cut, into, out_of))

        def needs(names: Iterable[str], rate: int | float, times: int = 1) -> int:
            return time_ns(times * self._forced_bytes(names, crossing), rate)

        away, rest = self._loaded  # what must enter the compute tier, or be loaded: see the module
        loads = max(away, int(max(0, away + rest - max(0, budget_bytes - self._pinned_bytes))))
        terms = {}
        for name, bus in hardware.caps.items():
            passing = hardware.passing(bus.links)
            times = min(passing.values()) * self.sharers.get(name, 1)
            terms[f"bus {name}"] = needs(passing, bus.bandwidth_bytes_per_s, times)
        for name, link in links.items():
            alone_ns = ceil_div(self._alone_ns[name], link.channels)
            terms[f"link {name}"] = max(needs(hardware.passing((name,)), link.bandwidth_bytes_per_s), alone_ns)
        for name, served in hardware.copy_queues.items():
            busy = (max(needs((link,), links[link].bandwidth_bytes_per_s), self._alone_ns[link]) for link in served)
            terms[f"queue {name}"] = ceil_div(sum(busy), min(links[link].channels for link in served))
        for cut in demand.cuts:
            for way, names in (("into", cut.into), ("out of", cut.out_of)):
                loaded = loads if cut is demand.cuts[0] and names is cut.into else 0
                if len(names) > 1 or loaded:
                    size = self._forced_bytes(names, crossing) + loaded
                    terms[f"links {way} {cut.name}"] = time_ns(size, rate_of(names, hardware))
        return {term: ns + self._rest_ns if ns else 0 for term, ns in terms.items()}

    def exchange_ns(self, budget_bytes: int | float) -> int:
        """Return the time of copies of persistent tensors that do not fit a budget [B] together; 0 if they do [ns]."""
        cut = self.demand.cuts[0]
        into, out_of = (rate_of(names, self.hardware) for names in (cut.into, cut.out_of))
        held_bytes, longest_ns = self._pinned_bytes, 0
        for size, count in self._kept_sizes:
            held_bytes += size * count
            if (excess := int(max(0, held_bytes - budget_bytes))) > 0:
                first_out_ns = time_ns(size, out_of) + time_ns(excess, into)
                longest_ns = max(longest_ns, min(time_ns(excess + size, into), first_out_ns))
        return longest_ns

    def _forced_bytes(self, names: Iterable[str], crossings: Sequence[Crossing]) -> int:
        """Count the bytes that must pass these links: over any cut, or over all, each link for its innermost cut."""
        rest, together = set(names), 0
        most = max(self._crossing_bytes(crossing, rest) for crossing in crossings)
        for crossing in crossings:
            crossed = rest.intersection((*crossing[0].into, *crossing[0].out_of))
            together += self._crossing_bytes(crossing, crossed)
            rest -= crossed
        return max(most, together)

    def _crossing_bytes(self, crossing: Crossing, names: set[str]) -> int:
        """Count the bytes that must pass these links, of what crosses a cut."""
        cut, in_bytes, out_bytes = crossing
        if not names:
            return 0
        whole = sum(sum(sizes) for *ends, sizes in self._moves_over(names) if not cut.tiers.issuperset(ends))
        back = in_bytes if cut.into and names.issuperset(cut.into) else 0
        return whole + back + (out_bytes if cut.out_of and names.issuperset(cut.out_of) else 0)

    def _moves_over(self, names: set[str]) -> list[ForcedMove]:
        """List the moves that have no way around these links."""
        links = zip(self.hardware.links, self.hardware.hops, strict=True)
        ways = [hop for name, hop in links if name not in names]
        return [move for move in self._moves if move[1] not in reachable(move[0], ways)]


def _moves(timing: Timing, demand: Demand) -> list[ForcedMove]:
    """List the moves of whole tensors that must get home, or from home to the compute tier."""
    graph, homes, hardware = timing.precedence.graph, demand.homes, demand.hardware
    compute_tier, moves = hardware.compute_tier_id, dict[tuple[int, int], list[int]]()
    awaited = (t for t, due in demand.enters.items() if graph.steps == 1 or due < len(graph.ops))
    come = ((homes[t], compute_tier, t) for t in awaited if t not in timing.staying)
    go = [(compute_tier, homes[t], t) for t in demand.leaves]
    go += [(compute_tier, hardware.host_tier_id, t) for t in timing.precedence.handed_over if graph.steps == 1]
    for source, target, t in (*come, *go):
        if source != target:
            moves.setdefault((source, target), []).append(graph.tensors[t].size_bytes)
    return [(*ends, sizes) for ends, sizes in moves.items()]


def _loaded(timing: Timing, demand: Demand) -> tuple[int, int]:
    """Return what a step copies or loads of tensors that are at home elsewhere, and of those whose home is free [B]."""
    precedence, homes, tier = timing.precedence, demand.homes, demand.hardware.compute_tier_id
    marked, seen, away, rest = precedence.in_place, set[int](), 0, 0
    if marked is None or not precedence.in_line or precedence.graph.meets or timing.shorter_ns:
        return 0, 0
    for op in marked.ops:
        first = marked.in_place.intersection(op.reads) - seen
        seen |= first
        sizes = [(marked.tensors[t].size_bytes, homes[t]) for t in first if homes[t] != tier]
        elsewhere = loaded_bytes(op, sum(size for size, home in sizes if home != FREE))
        away += elsewhere
        rest += loaded_bytes(op, sum(size for size, _ in sizes)) - elsewhere
    return away, rest


def _kept_sizes(timing: Timing, demand: Demand) -> tuple[int, list[tuple[int, int]]]:
    """Return the bytes of pinned tensors [B]; and sizes of kept tensors that may leave, with counts, largest first."""
    graph, lifetimes, staying = timing.precedence.graph, demand.lifetimes, timing.staying
    compute_tier = demand.hardware.compute_tier_id
    pinned_bytes, sizes = 0, Counter[int]()
    if not timing.precedence.in_line or graph.meets or demand.may_repeat:
        return 0, []
    for t, tensor in enumerate(graph.tensors):
        readers = (*lifetimes.uses[t][:1], *lifetimes.writes[t])
        if tensor.persistent and demand.homes[t] == compute_tier:
            pinned_bytes += tensor.size_bytes
        elif tensor.persistent and t not in staying and readers and all(t in graph.ops[op].reads for op in readers):
            sizes[tensor.size_bytes] += 1
    return pinned_bytes, sorted(sizes.items(), reverse=True)


def _rest_ns(timing: Timing, *, may_repeat: bool) -> int | None:
    """Return the least time of a step beside the copies that it forces [ns]; None if they may take more than a step.

    They are issued after all of the step before, so they start after its last op was reached.
    """
    precedence, graph = timing.precedence, timing.precedence.graph
    if graph.steps == 1 or not graph.meets:
        return 0
    final = len(graph.ops) - 1
    if may_repeat or precedence.last < 0 or final == precedence.last or precedence.ended[final] != precedence.last:
        return None if graph.ops[final].collective else 0
    return timing.last_ns
