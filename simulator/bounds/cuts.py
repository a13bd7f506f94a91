"""What a full tier forces further away, and what carries it: the compute tier and the tiers around it, cut by cut.

*Within* cut 0 is the compute tier alone. Within cut ``r`` are the tiers within cut ``r - 1`` and all that a wire leads
to from there: copies out of them pass a link that leaves them, copies back one that enters them. Cut 0 has the room of
the budget, each further cut that of its other tiers as well. All that the package says about the budget and the links
of the compute tier holds for every cut, with its room and its links.

*Out.* A value that is needed later is valid somewhere while op ``k`` runs. Values that do not fit the tiers within,
beside what ``k`` uses, have no place there. If such a value was within earlier in the step, a copy has carried it over
a link out, and had ended when ``k`` started: until it ends, its source keeps its place. It was within if an op of the
step made it in the compute tier or, in a run of one step, if its home is within. A value at home further out was valid
there from the start, and does not count.

*Back.* A value that has no place within at the end of ``k``, and that a later op reads for which the last op of the
line waits, enters over a link after ``k`` has ended, as a copy takes its place when it starts; and it has entered
before the last op starts. This holds wherever the value was when the step began; values at home outside are left out
all the same, because they may count as forced in from there.

*Pinned.* Only tensors at home in the compute tier stay there. Any other home may be given up until the step ends, so
that a value counts against the room of a cut only while it is surely needed: until its last reader.

*Several cuts.* A copy between the compute tier and the outside of a cut passes the links of both. Bytes over different
links add up: so of the links of a bus, each counts for the innermost cut that it crosses; or else all of them count for
the one cut for which they carry most.

*Ranks.* Each rank counts as if it had all the room of a tier that ranks share. So the bound holds for each rank,
whatever the others keep there, and is weaker the more they keep. Alike ranks on one bus count together only where all
tiers that ranks share are ample: these then force nothing further.

*Bottlenecks.* A copy takes no less than its time alone, so that a link is no faster than its channels are with the
tensors that they carry quickest. Over links that share the channels of a copy queue, or a bus, both ways take their
time in turn. A copy over a staged link passes the wires on its way, and holds no room between: that of its chunks is
kept.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from simulator.cost.service import NS_PER_S, ceil_div, transfer_ns
from simulator.hardware import Hardware


def time_ns(size_bytes: int, bandwidth_bytes_per_s: int | float) -> int:
    """Return the least time that bytes need at a bandwidth [ns]; 0 without one, or if it has no limit."""
    if not bandwidth_bytes_per_s or bandwidth_bytes_per_s == math.inf:
        return 0  # where no link leads, `infeasible` knows more
    return ceil_div(size_bytes * NS_PER_S, int(bandwidth_bytes_per_s))


def ns_per_byte(bandwidth_bytes_per_s: int | float) -> float:
    """Return the time of a byte, in floating point [ns]."""
    return NS_PER_S / bandwidth_bytes_per_s if bandwidth_bytes_per_s else 0.0


class Cut(NamedTuple):
    """A cut around the compute tier and all tiers within so many links of it.

    Attributes
    ----------
    room_bytes
        Room of the tiers beside the compute tier [B].
    into, out_of
        Names of the links that enter and that leave.
    """

    tiers: frozenset[int]
    name: str
    room_bytes: int | float
    into: list[str]
    out_of: list[str]


def cuts_of(hardware: Hardware, most_bytes: int) -> list[Cut]:
    """Find the cuts that may be short of room, that around the compute tier first.

    Parameters
    ----------
    hardware
        The machine.
    most_bytes
        The most that may ask for room at once [B].
    """
    names, links, cuts = hardware.tier_names, hardware.links, list[Cut]()
    wider, tiers = {hardware.compute_tier}, set[str]()
    while wider != tiers:
        tiers = wider
        within = [name for name in names if name in tiers]
        room = sum(hardware.tiers[name].usable_bytes for name in within if name != hardware.compute_tier)
        into = [name for name, link in links.items() if link.target in tiers and link.source not in tiers]
        out_of = [name for name, link in links.items() if link.source in tiers and link.target not in tiers]
        if cuts and (room >= most_bytes or not (into or out_of)):
            break
        cuts.append(Cut(frozenset(map(names.index, within)), " and ".join(within), room, into, out_of))
        wider = tiers.union(link.target for link in links.values() if link.source in tiers and not link.via)
    return cuts


class Bottleneck(NamedTuple):
    """A bottleneck of the copies over a cut: its links one way, or what both ways share.

    Attributes
    ----------
    name
        Name for people: ``link h2d``.
    into, out_of
        Bandwidths of copies in, and of copies out [B/s]; 0 for those that do not pass it.
    channels
        Number of copies that it serves at the same time.
    times
        Number of ranks that do the same there at the same time.
    """

    name: str
    cut: int
    into: int | float
    out_of: int | float
    channels: int = 1
    times: int = 1

    def ns(self, in_bytes: int, out_bytes: int) -> int:
        """Return the least time that it needs for bytes in and out [ns]."""
        if self.into == self.out_of:
            return ceil_div(time_ns(self.times * (in_bytes + out_bytes), self.into), self.channels)
        alone_ns = time_ns(self.times * in_bytes, self.into) + time_ns(self.times * out_bytes, self.out_of)
        return ceil_div(alone_ns, self.channels)

    def about(self, rate: int | float) -> float:
        """Return its time for a byte at one of its bandwidths, in floating point [ns]."""
        return self.times * ns_per_byte(rate) / self.channels


def bottlenecks(
    cuts: Sequence[Cut], hardware: Hardware, sizes: Sequence[int], sharers: Mapping[str, int]
) -> list[Bottleneck]:
    """Find the bottlenecks of the copies over each cut.

    Parameters
    ----------
    cuts
        Cuts that may be short of room.
    hardware
        The machine.
    sizes
        Sizes of the tensors that may have to be copied [B].
    sharers
        For each bus, how many ranks do there at the same time what this one does.
    """
    narrow = []
    for index, cut in enumerate(cuts):
        into, out_of = (rate_of(names, hardware, sizes) for names in (cut.into, cut.out_of))
        for way, names, ends in (("into", cut.into, (into, 0)), ("out of", cut.out_of, (0, out_of))):
            wires = hardware.wires(names)
            name = f"link {wires[0]}" if len(wires) == 1 else f"links {way} {cut.name}"
            narrow.append(Bottleneck(name, index, *ends))
        for name, queue in hardware.copy_queues.items():
            if len(cut.into) == len(cut.out_of) == 1 and {*cut.into, *cut.out_of} <= set(queue):
                narrow.append(Bottleneck(f"queue {name}", index, into, out_of, hardware.links[cut.into[0]].channels))
        for name, bus in hardware.caps.items():
            passing, rate = hardware.passing(bus.links), bus.bandwidth_bytes_per_s
            into, out_of = (rate if names and passing.keys() >= set(names) else 0 for names in (cut.into, cut.out_of))
            if into or out_of:
                times = min(passing.values()) * sharers.get(name, 1)
                narrow.append(Bottleneck(f"bus {name}", index, into, out_of, times=times))
    return narrow


def rate_of(names: Sequence[str], hardware: Hardware, sizes: Sequence[int] = ()) -> int | float:
    """Return the most that these links carry together [B/s].

    Parameters
    ----------
    names, hardware
        Names of the links; their machine.
    sizes
        Sizes of the tensors that are copied, if they are known [B].
    """
    total: int | float = 0
    for link in hardware.wires(names):
        rate = hardware.links[link].bandwidth_bytes_per_s
        alone = [(size, transfer_ns(size, hardware.links[link])) for size in sizes]
        is_alone = len(hardware.passing((link,))) == 1  # otherwise it also carries what is staged
        if alone and is_alone and all(ns for _, ns in alone):
            best = max(ceil_div(size * NS_PER_S, ns) for size, ns in alone)
            rate = min(rate, hardware.links[link].channels * best)
        total += rate
    return total
