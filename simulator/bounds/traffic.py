"""What must be copied in each step, and over which links; see `step_time` for the proof, and `cuts` for full tiers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from simulator.bounds.critical_path import Timing
from simulator.bounds.cuts import Cut, rate_of, reached, time_ns
from simulator.bounds.idle import Demand
from simulator.columns import Ints
from simulator.cost import ceil_div, transfer_ns
from simulator.hardware import Hardware
from simulator.plan import FREE, NOWHERE

Move = tuple[int, int, tuple[int, ...]]
"""From which tier (id) to which one; sizes of the tensors that must get there [B]. One is the compute tier."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """What must be copied in each step.

    Attributes
    ----------
    hardware
        The machine.
    moves
        Whole tensors that must get home, or from there to the compute tier.
    crossing
        For each cut how many bytes the room within forces in and out at least [B].
    rest_ns
        What the step takes beside all these copies at least [ns].
    """

    hardware: Hardware
    moves: tuple[Move, ...]
    crossing: tuple[tuple[Cut, int, int], ...]
    rest_ns: int

    @classmethod
    def of(
        cls, timing: Timing, hardware: Hardware, homes: Sequence[int], demand: Demand, budget_bytes: int | float
    ) -> Traffic:
        """Find what must be copied in each step within a budget.

        Parameters
        ----------
        timing, hardware, homes, demand, budget_bytes
            As for `simulator.bounds.step_time.Limits`; what must be held while each op runs.
        """
        rest_ns = _rest_ns(timing, may_repeat=demand.may_repeat)
        here = hardware.tier_names.index(hardware.compute_tier)
        rooms = [budget_bytes + cut.room_bytes for cut in demand.cuts]
        crossing = tuple(
            (cut, _excess(demand.work + read_later, room), _excess(demand.work + made_here, room))
            for cut, room, read_later, made_here in zip(demand.cuts, rooms, demand.read_in, demand.made_in, strict=True)
        )
        moves = _moves(timing, here, homes, demand) if rest_ns is not None else ()
        return cls(hardware, tuple(moves), crossing, rest_ns or 0)

    def rates(self) -> tuple[int | float, int | float]:
        """Bandwidths of all links into the compute tier together, and out of it [B/s]."""
        cut, *_ = self.crossing[0]
        return rate_of(cut.into, self.hardware), rate_of(cut.out_of, self.hardware)

    def terms(self, sharers: Mapping[str, int]) -> dict[str, int]:
        """What these bytes take on each bus, link and queue, with what comes after them [ns].

        Parameters
        ----------
        sharers
            For each bus that ranks share, how many do there at the same time what this one does.
        """
        hardware, links = self.hardware, self.hardware.links
        terms = {}
        for name, bus in hardware.buses.items():
            size_bytes = sharers.get(name, 1) * self._over(hardware.passing(bus.links))
            terms[f"bus {name}"] = time_ns(size_bytes, bus.bandwidth_bytes_per_s)
        alone_ns = {name: self._alone_ns(name) for name in links}
        for name, link in links.items():
            bytes_ns = time_ns(self._over(hardware.passing((name,))), link.bandwidth_bytes_per_s)
            terms[f"link {name}"] = max(bytes_ns, ceil_div(alone_ns[name], link.channels))
        for name, served in hardware.copy_queues.items():
            rates = {link: links[link].bandwidth_bytes_per_s for link in served}
            busy_ns = sum(max(time_ns(self._over((link,)), rate), alone_ns[link]) for link, rate in rates.items())
            terms[f"queue {name}"] = ceil_div(busy_ns, min(links[link].channels for link in served))
        for cut, *_ in self.crossing:
            for what, names in (("into", cut.into), ("out of", cut.out_of)):
                if len(names) > 1:
                    terms[f"links {what} {cut.name}"] = time_ns(self._over(names), rate_of(names, hardware))
        return {term: ns + self.rest_ns if ns else 0 for term, ns in terms.items()}

    def _over(self, names: Iterable[str]) -> int:
        """Bytes that must pass these links."""
        rest = set(names)
        most = max(self._through(crossing, rest) for crossing in self.crossing)
        together = 0
        for crossing in self.crossing:
            crossed = rest.intersection((*crossing[0].into, *crossing[0].out_of))
            together += self._through(crossing, crossed)
            rest -= crossed
        return max(most, together)

    def _through(self, crossing: tuple[Cut, int, int], names: set[str]) -> int:
        """Bytes that must pass these links, of what crosses a cut."""
        cut, in_bytes, out_bytes = crossing
        whole = sum(sum(sizes) for *ends, sizes in self._moves_over(names) if not cut.tiers.issuperset(ends))
        back = in_bytes if cut.into and names.issuperset(cut.into) else 0
        return whole + back + (out_bytes if cut.out_of and names.issuperset(cut.out_of) else 0)

    def _moves_over(self, names: set[str]) -> list[Move]:
        """What has no way that leaves out these links."""
        number = self.hardware.tier_names.index
        links = self.hardware.links.items() if names else ()
        rest = [(number(link.source), number(link.target)) for name, link in links if name not in names]
        return [move for move in self.moves if names and move[1] not in reached(move[0], rest)]

    def _alone_ns(self, name: str) -> int:
        """Time of all transfers of whole tensors that must pass a link, one after another [ns]."""
        sizes = list(chain(*(sizes for *_, sizes in self._moves_over({name}))))
        alone = {size: transfer_ns(size, self.hardware.links[name]) for size in set(sizes)}
        return sum(alone[size] for size in sizes)


def _moves(timing: Timing, here: int, homes: Sequence[int], demand: Demand) -> list[Move]:
    precedence, found = timing.precedence, demand.lifetimes
    graph = precedence.graph
    inward: dict[int, list[int]] = {}
    back: dict[int, list[int]] = {}
    for t in sorted(precedence.inputs - timing.staying):
        size, home = graph.tensors[t].size_bytes, homes[t]
        if home in {NOWHERE, FREE, here} or not found.uses[t]:
            continue
        first = found.first_use[t]
        if found.is_read(t, first) and (graph.steps == 1 or precedence.leads_on(first)):
            inward.setdefault(home, []).append(size)
        if found.writes[t] and graph.tensors[t].persistent and graph.steps == 1:
            back.setdefault(home, []).append(size)
    moves = [(home, here, tuple(sizes)) for home, sizes in inward.items()]
    return moves + [(here, home, tuple(sizes)) for home, sizes in back.items()]


def _rest_ns(timing: Timing, *, may_repeat: bool) -> int | None:
    """What a step takes at least beside the copies that each step forces; None if they may have more than a step.

    They are issued after all of the step before, so that they start after the last op there has been come to.
    """
    precedence, graph = timing.precedence, timing.precedence.graph
    if graph.steps == 1 or not graph.meets:
        return 0
    final = len(graph.ops) - 1
    if may_repeat or precedence.last < 0 or final == precedence.last or precedence.ended[final] != precedence.last:
        return None if graph.ops[final].collective else 0
    return timing.last_ns


def _excess(demand: Ints, room_bytes: int | float) -> int:
    largest = int(demand.max())
    return int(largest - room_bytes) if largest > room_bytes else 0
