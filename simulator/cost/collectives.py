"""Closed forms of collectives: what each sends over which fabric, and how long it takes alone.

A collective is a list of *phases*, one after another. In a phase every member sends and receives the same number of
bytes through its port of one fabric, after so many hops. Alone a phase takes ``hops * latency + bytes / (planes *
bandwidth * achieved)``, rounded up to whole ns, and the collective the sum of its phases. With n members and S bytes:

================================  ==========================  ===============
collective, algorithm             hops                        bytes each way
================================  ==========================  ===============
all_reduce, ring                  2 (n - 1)                   2 (n - 1) / n S
all_reduce, tree                  2 ceil(log2 n)              2 S
all_reduce, direct                2                           2 (n - 1) / n S
all_gather, reduce_scatter, ring  n - 1                       (n - 1) / n S
the same, direct                  1                           (n - 1) / n S
all_to_all, ring (pairwise)       n - 1                       (n - 1) / n S
all_to_all, direct                1                           (n - 1) / n S
broadcast, ring                   n - 1                       S
broadcast, tree                   ceil(log2 n)                S
send, recv                        1                           S
================================  ==========================  ===============

``tree`` is two trees; each rank is an inner node of at most one, so that the whole bandwidth is used both ways.
``direct`` sends to all members at once, which every switched fabric allows. ``hierarchical`` splits the members into
those of one node (k) and those of the same place in each of m nodes, and takes the fastest of the above for each part:
an all_reduce is a reduce_scatter of S in the node, an all_reduce of S / k across nodes, and an all_gather of S in the
node. Its broadcast loads the ports of all members in both phases, though across nodes only one in each node sends.

Not modelled: arithmetic and memory traffic of reductions, a cost of each message, reductions in the switch.

References
----------
R. Thakur, R. Rabenseifner, W. Gropp: Optimization of collective communication operations in MPICH. Int. J. High
Performance Computing Applications 19 (2005), 49-66: ring, pairwise, direct, and their bytes.
P. Patarasuk, X. Yuan: Bandwidth optimal all-reduce algorithms for clusters of workstations. J. Parallel and Distributed
Computing 69 (2009), 117-124: 2 (n - 1) / n S is the least.
P. Sanders, J. Speck, J. L. Träff: Two-tree algorithms for full bandwidth broadcast, reduction and scan. Parallel
Computing 35 (2009), 581-594.
NVIDIA nccl-tests, doc/PERFORMANCE.md: the same factors, as bus bandwidth.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain

from simulator.cost.service import FULL_RATE, ceil_div, work
from simulator.errors import ConfigError
from simulator.graph import Collective, CollectiveKind, Group
from simulator.hardware import Fabric, Hardware

AUTO, HIERARCHICAL = "auto", "hierarchical"


@dataclass(frozen=True, slots=True)
class Phase:
    """A part of a collective that uses one fabric.

    Attributes
    ----------
    fabric
        Its name.
    hops
        How often its latency is paid before bytes flow.
    port_bytes
        What each member sends through its port, and receives [B each way]. For a send and its receive: what the sender
        sends and the receiver receives.
    """

    fabric: str
    hops: int
    port_bytes: int


_Form = Callable[[int], tuple[int, int, int]]
"""From the number of members to hops, and the share of the size as numerator and denominator."""


def _depth(members: int) -> int:
    return (members - 1).bit_length()


_GATHERING: dict[str, _Form] = {"ring": lambda n: (n - 1, n - 1, n), "direct": lambda n: (1, n - 1, n)}
_POINT_TO_POINT: dict[str, _Form] = {"direct": lambda n: (1, 1, 1)}
_FORMS: dict[CollectiveKind, dict[str, _Form]] = {
    CollectiveKind.ALL_REDUCE: {
        "ring": lambda n: (2 * (n - 1), 2 * (n - 1), n),
        "tree": lambda n: (2 * _depth(n), 2, 1),
        "direct": lambda n: (2, 2 * (n - 1), n),
    },
    CollectiveKind.ALL_GATHER: _GATHERING,
    CollectiveKind.REDUCE_SCATTER: _GATHERING,
    CollectiveKind.ALL_TO_ALL: _GATHERING,
    CollectiveKind.BROADCAST: {"ring": lambda n: (n - 1, 1, 1), "tree": lambda n: (_depth(n), 1, 1)},
    CollectiveKind.SEND: _POINT_TO_POINT,
    CollectiveKind.RECV: _POINT_TO_POINT,
}

_IN, _ACROSS = True, False
_LEVELS: dict[CollectiveKind, tuple[tuple[bool, CollectiveKind, bool], ...]] = {
    CollectiveKind.ALL_REDUCE: (
        (_IN, CollectiveKind.REDUCE_SCATTER, False),
        (_ACROSS, CollectiveKind.ALL_REDUCE, True),
        (_IN, CollectiveKind.ALL_GATHER, False),
    ),
    CollectiveKind.ALL_GATHER: (
        (_ACROSS, CollectiveKind.ALL_GATHER, True),
        (_IN, CollectiveKind.ALL_GATHER, False),
    ),
    CollectiveKind.REDUCE_SCATTER: (
        (_IN, CollectiveKind.REDUCE_SCATTER, False),
        (_ACROSS, CollectiveKind.REDUCE_SCATTER, True),
    ),
    CollectiveKind.ALL_TO_ALL: (
        (_IN, CollectiveKind.ALL_TO_ALL, False),
        (_ACROSS, CollectiveKind.ALL_TO_ALL, False),
    ),
    CollectiveKind.BROADCAST: (
        (_ACROSS, CollectiveKind.BROADCAST, False),
        (_IN, CollectiveKind.BROADCAST, False),
    ),
}
"""The parts of a hierarchical collective: in the node or across nodes, what, and whether only of S / k."""


@dataclass(frozen=True, slots=True)
class _Spread:
    """How members lie: all that the time of a collective depends on.

    Attributes
    ----------
    members, nodes
        How many, on how many nodes.
    per_node
        Members on each node; 0 if they differ.
    """

    members: int
    nodes: int
    per_node: int


def fabric_of(members: Sequence[int], hardware: Hardware) -> str:
    """Name of the fabric that joins these ranks: the narrowest, and of several the first of the profile.

    Parameters
    ----------
    members
        Ranks that meet.
    hardware
        The machine.

    Raises
    ------
    ConfigError
        If there are fewer devices than ranks, or no fabric joins the members.
    """
    return _joining(_spread(members, hardware), hardware)


def algorithms(kind: CollectiveKind, members: Sequence[int], hardware: Hardware) -> tuple[str, ...]:
    """Algorithms that a collective of this kind may use on these members.

    Parameters
    ----------
    kind
        What it does.
    members
        Ranks that meet.
    hardware
        The machine.

    Raises
    ------
    ConfigError
        If there are fewer devices than ranks.
    """
    return _applicable(kind, _spread(members, hardware), hardware)


def phases(collective: Collective, members: Sequence[int], hardware: Hardware) -> tuple[Phase, ...]:
    """What a collective sends, phase after phase; nothing among one member.

    Parameters
    ----------
    collective
        Kind, size and algorithm. ``auto`` is the fastest alone, of those that the fabric's library has
        (`Fabric.algorithms`) and of two levels; of equals the first in the order ring, tree, direct, hierarchical.
    members
        Ranks that meet.
    hardware
        The machine.

    Raises
    ------
    ConfigError
        If there are fewer devices than ranks, no fabric joins the members, or the algorithm does not apply here.
    """
    return _phases(collective, _spread(members, hardware), hardware)


def phase_work(phase: Phase, fabric: Fabric) -> int:
    """Time of the phase's bytes at the full rate of a port, in 2^-32 ns."""
    return work(phase.port_bytes, fabric.planes * fabric.bandwidth_bytes_per_s)


def fabric_rate_cap(fabric: Fabric) -> int:
    """The share of a port's bandwidth that collectives reach, in fixed point."""
    return max(1, math.floor(fabric.achieved_bandwidth_fraction * FULL_RATE))


def phase_ns(phase: Phase, fabric: Fabric) -> int:
    """Time of a phase that has the fabric for itself: hops, then bytes, rounded up [ns]."""
    return phase.hops * fabric.latency_ns + ceil_div(phase_work(phase, fabric), fabric_rate_cap(fabric))


def collective_ns(collective: Collective, members: Sequence[int], hardware: Hardware) -> int:
    """Time of a collective alone, from the moment at which its last member has come [ns].

    Parameters
    ----------
    collective
        Kind, size and algorithm.
    members
        Ranks that meet.
    hardware
        The machine.

    Raises
    ------
    ConfigError
        As `phases`.
    """
    return _total_ns(phases(collective, members, hardware), hardware)


def group_ns(collective: Collective, group: Group, hardware: Hardware) -> int:
    """Time of a collective alone among those members of the group for which it is the longest [ns].

    Parameters
    ----------
    collective
        Kind, size and algorithm.
    group
        Whose members meet.
    hardware
        The machine.

    Raises
    ------
    ConfigError
        As `phases`.
    """
    spreads = dict.fromkeys(_spread(members, hardware) for members in group.members)
    return max((_total_ns(_phases(collective, spread, hardware), hardware) for spread in spreads), default=0)


def _total_ns(parts: Sequence[Phase], hardware: Hardware) -> int:
    return sum(phase_ns(part, hardware.fabrics[part.fabric]) for part in parts)


def _spread(members: Sequence[int], hardware: Hardware) -> _Spread:
    devices, on_node = hardware.topology.devices, hardware.topology.devices_per_node
    if max(members) >= devices:
        raise ConfigError(
            f"hardware {hardware.name!r}, topology",
            "each rank has a device of its own",
            f"rank {max(members)} and {devices} device{'s' * (devices != 1)}",
            "raise topology.nodes or topology.devices_per_node, or run fewer ranks",
        )
    counts = Counter(rank // on_node for rank in members).values()
    return _Spread(len(members), len(counts), max(counts) if len(set(counts)) == 1 else 0)


def _joining(spread: _Spread, hardware: Hardware) -> str:
    node, supernode = (
        [name for name, fabric in hardware.fabrics.items() if fabric.scope == scope] for scope in ("node", "supernode")
    )
    found = node + supernode if spread.nodes == 1 else supernode
    if found:
        return found[0]
    whom = f"{spread.members} ranks on {spread.nodes} node{'s' * (spread.nodes != 1)}"
    raise ConfigError(
        f"hardware {hardware.name!r}, fabrics",
        f"a fabric joins ranks that meet (here {whom})",
        ", ".join(f"{name} (scope {fabric.scope})" for name, fabric in hardware.fabrics.items()) or "none",
        f"add a fabric of scope {'node or supernode' if spread.nodes == 1 else 'supernode'}",
    )


def _applicable(kind: CollectiveKind, spread: _Spread, hardware: Hardware) -> tuple[str, ...]:
    two_levels = (
        kind in _LEVELS
        and spread.nodes > 1
        and spread.per_node > 1
        and any(fabric.scope == "node" for fabric in hardware.fabrics.values())
    )
    return (*_FORMS[kind], *([HIERARCHICAL] if two_levels else []))


def _phases(collective: Collective, spread: _Spread, hardware: Hardware) -> tuple[Phase, ...]:
    if spread.members == 1:
        return ()
    kind, size, algorithm = collective.kind, collective.size_bytes, collective.algorithm
    _joining(spread, hardware)
    known = _applicable(kind, spread, hardware)
    if algorithm == AUTO:
        return _fastest(kind, size, spread, hardware)
    if algorithm not in known:
        raise ConfigError(
            f"group {collective.group!r}",
            f"the algorithm of a collective applies to its kind and members (a {kind} of {_said(spread)})",
            repr(algorithm),
            f"choose one of {', '.join(known)} or {AUTO}",
        )
    return _form(kind, size, algorithm, spread, hardware)


def _said(spread: _Spread) -> str:
    if spread.nodes == 1:
        return f"{spread.members} ranks on one node"
    each = f"{spread.per_node} on each" if spread.per_node else "unevenly spread"
    return f"{spread.members} ranks on {spread.nodes} nodes, {each}"


def _fastest(kind: CollectiveKind, size: int, spread: _Spread, hardware: Hardware) -> tuple[Phase, ...]:
    """The fastest of what the library has, two levels included where they apply."""
    choices = (*hardware.fabrics[_joining(spread, hardware)].choices(kind), HIERARCHICAL)
    among = [algorithm for algorithm in _applicable(kind, spread, hardware) if algorithm in choices]
    found = (_form(kind, size, algorithm, spread, hardware) for algorithm in among)
    return min(found, key=lambda parts: _total_ns(parts, hardware))


def _form(kind: CollectiveKind, size: int, algorithm: str, spread: _Spread, hardware: Hardware) -> tuple[Phase, ...]:
    if algorithm == HIERARCHICAL:
        return _two_levels(kind, size, spread, hardware)
    hops, share, of = _FORMS[kind][algorithm](spread.members)
    return (Phase(_joining(spread, hardware), hops, ceil_div(size * share, of)),)


def _two_levels(kind: CollectiveKind, size: int, spread: _Spread, hardware: Hardware) -> tuple[Phase, ...]:
    inside, across = _Spread(spread.per_node, 1, spread.per_node), _Spread(spread.nodes, spread.nodes, 1)
    part = ceil_div(size, spread.per_node)
    return tuple(
        chain.from_iterable(
            _fastest(of, part if only_part else size, inside if in_node else across, hardware)
            for in_node, of, only_part in _LEVELS[kind]
        )
    )
