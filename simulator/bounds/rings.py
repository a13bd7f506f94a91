"""What a full tier forces further away: the compute tier and the tiers around it, ring by ring.

Ring 0 is the compute tier. Ring ``r`` is ring ``r - 1`` with all tiers that a wire leads to from there: what gets out
of ring ``r`` passes a link that leaves it, and what comes back one that enters it. Ring 0 holds the budget, each
further ring what its tiers have room for as well. All that `step_time` says of the budget and of the links of the
compute tier holds of every ring, with its room and its links.

*Out of a ring.* A value that is needed later is valid somewhere while op ``k`` runs. Those that the ring has no room
for, beside what ``k`` uses, have no place in it. If such a value was in the ring earlier in the step, a copy has
carried it over a link out of the ring, and had ended when ``k`` started: until it ends, its source keeps its place. It
was there if an op of the step made it in the compute tier or, in a run of one step, if its home is in the ring. What
has its home further out was valid there from the start: it does not count.

*Back into it.* What has no place in the ring at the end of ``k``, and is read by a later op that the last op of the
line waits for, enters over a link into the ring after ``k`` has ended, as a copy takes its place when it starts; and it
has entered before the last op starts. This holds wherever the value was when the step began; what has its home outside
the ring is left out all the same, because it may count as forced in from there.

*What is pinned.* Only what has its home in the compute tier stays there. Any other home may be given up until the step
ends, so that a value counts against the room of a ring only while it is needed for certain: until its last reader.

*Several rings.* Who moves between the compute tier and the outside of a ring passes the links of both. Bytes over
different links add up: so of the links of a bus, each counts for the innermost ring whose border it crosses; or else
all of them for the one ring for which they carry most.

*Ranks.* Of a tier that ranks share, each counts as if it had all the room. So this holds of each rank, whatever the
others keep there, and is weaker the more they keep. Alike ranks on one bus count together only where all tiers that
ranks share are ample: these then force nothing further.

A copy over a staged link passes the wires on its way, and holds no room between: that of its chunks is kept.
"""

from __future__ import annotations

from dataclasses import dataclass

from simulator.hardware import Hardware


@dataclass(frozen=True, slots=True)
class Ring:
    """The compute tier, and all tiers within so many links of it.

    Attributes
    ----------
    tiers
        Their ids.
    name
        Their names.
    room_bytes
        What those beside the compute tier have room for [B].
    into, out_of
        Names of the links that enter the ring and leave it.
    """

    tiers: frozenset[int]
    name: str
    room_bytes: int | float
    into: tuple[str, ...]
    out_of: tuple[str, ...]

    @classmethod
    def of(cls, hardware: Hardware, tiers: frozenset[str]) -> Ring:
        """Find the ring of some tiers, by their names."""
        names, links = hardware.tier_names, hardware.links.items()
        within = [name for name in names if name in tiers]
        return cls(
            tiers=frozenset(names.index(name) for name in within),
            name=" and ".join(within),
            room_bytes=sum(hardware.tiers[name].usable_bytes for name in within if name != hardware.compute_tier),
            into=tuple(name for name, link in links if link.target in tiers and link.source not in tiers),
            out_of=tuple(name for name, link in links if link.source in tiers and link.target not in tiers),
        )


def rings_of(hardware: Hardware, most_bytes: int) -> tuple[Ring, ...]:
    """Find the rings that may be short of room, the compute tier first.

    Parameters
    ----------
    hardware
        The machine.
    most_bytes
        What may ask for room at once at most [B].
    """
    tiers = frozenset({hardware.compute_tier})
    found = [Ring.of(hardware, tiers)]
    while True:
        wider = tiers.union(link.target for link in hardware.links.values() if link.source in tiers and not link.via)
        ring = Ring.of(hardware, wider)
        if wider == tiers or ring.room_bytes >= most_bytes or not (ring.into or ring.out_of):
            return tuple(found)
        found.append(ring)
        tiers = wider
