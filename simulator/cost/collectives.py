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

**Levels in a pipeline.** Where the fabric across nodes has a ``chunk`` of C bytes, the size is passed from level to
level in chunks, so that while one chunk is across nodes the next is in the node. The first chunk goes through level
after level, with their hops; the bytes of the rest flow over all fabrics side by side, and the fullest fabric
decides: ``sum over levels of (hops * latency + bytes(C) / rate) + max over fabrics of (bytes(S) - bytes(C)) / rate``.
Both phases in the node use one fabric, so that their bytes add up there. Without a chunk levels run one after another.

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
M. Cho, U. Finkler, M. Serrano, D. Kung, H. Hunter: BlueConnect: decomposing all-reduce for deep learning on
heterogeneous network hierarchy. IBM J. Research and Development 63 (2019): the parts of a collective by level.
Z. Hu et al.: Demystifying NCCL, arXiv 2507.04786: data passes through channels in slots of a fixed size, in a pipeline
over the links inside and between nodes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product

from simulator.cost.service import Phase, ceil_div, total_ns
from simulator.errors import ConfigError, insist
from simulator.graph import Collective, CollectiveKind, Group
from simulator.hardware import Hardware
from simulator.units import counted

AUTO, HIERARCHICAL = "auto", "hierarchical"


_Form = Callable[[int], tuple[int, int, int]]
"""From the number of members to hops (of a tree twice or once its depth), and the share of the size as a fraction."""


_GATHERING: dict[str, _Form] = {"ring": lambda n: (n - 1, n - 1, n), "direct": lambda n: (1, n - 1, n)}
_POINT_TO_POINT: dict[str, _Form] = {"direct": lambda n: (1, 1, 1)}
_FORMS: dict[CollectiveKind, dict[str, _Form]] = {
    CollectiveKind.ALL_REDUCE: {
        "ring": lambda n: (2 * (n - 1), 2 * (n - 1), n),
        "tree": lambda n: (2 * (n - 1).bit_length(), 2, 1),
        "direct": lambda n: (2, 2 * (n - 1), n),
    },
    CollectiveKind.ALL_GATHER: _GATHERING,
    CollectiveKind.REDUCE_SCATTER: _GATHERING,
    CollectiveKind.ALL_TO_ALL: _GATHERING,
    CollectiveKind.BROADCAST: {"ring": lambda n: (n - 1, 1, 1), "tree": lambda n: ((n - 1).bit_length(), 1, 1)},
    CollectiveKind.SEND: _POINT_TO_POINT,
    CollectiveKind.RECV: _POINT_TO_POINT,
}

_IN, _ACROSS = True, False
_ALL_GATHER, _REDUCE_SCATTER = CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER
_ALL_REDUCE, _ALL_TO_ALL, _BROADCAST = CollectiveKind.ALL_REDUCE, CollectiveKind.ALL_TO_ALL, CollectiveKind.BROADCAST
_LEVELS: dict[CollectiveKind, tuple[tuple[bool, CollectiveKind, bool], ...]] = {
    _ALL_REDUCE: ((_IN, _REDUCE_SCATTER, False), (_ACROSS, _ALL_REDUCE, True), (_IN, _ALL_GATHER, False)),
    _ALL_GATHER: ((_ACROSS, _ALL_GATHER, True), (_IN, _ALL_GATHER, False)),
    _REDUCE_SCATTER: ((_IN, _REDUCE_SCATTER, False), (_ACROSS, _REDUCE_SCATTER, True)),
    _ALL_TO_ALL: ((_IN, _ALL_TO_ALL, False), (_ACROSS, _ALL_TO_ALL, False)),
    _BROADCAST: ((_ACROSS, _BROADCAST, False), (_IN, _BROADCAST, False)),
}
"""The parts of a hierarchical collective: in the node or across nodes, what, and whether only of S / k."""


@dataclass(frozen=True, slots=True)
class _Spread:
    """Positions of members: all that the time of a collective depends on.

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

    def __str__(self) -> str:
        return f"{counted(self.members, 'rank')} on {counted(self.nodes, 'node')}"


def algorithms(kind: CollectiveKind, members: Sequence[int], hardware: Hardware) -> tuple[str, ...]:
    """Return the algorithms that a collective of this kind may use on these members.

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
    spread = _spread(members, hardware)
    has_levels = kind in _LEVELS and any(fabric.scope == "node" for fabric in hardware.fabrics.values())
    return (*_FORMS[kind], *([HIERARCHICAL] if has_levels and spread.nodes > 1 and spread.per_node > 1 else []))


def phases(collective: Collective, members: Sequence[int], hardware: Hardware) -> tuple[Phase, ...]:
    """Return what a collective sends, phase after phase; nothing among one member.

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
    spread = _spread(members, hardware)
    if spread.members == 1:
        return ()
    kind, size, algorithm = collective.kind, collective.size_bytes, collective.algorithm
    usable, library = algorithms(kind, members, hardware), _library(kind, spread, hardware)
    names = [name for name in usable if name in (*library, HIERARCHICAL)] if algorithm == AUTO else [algorithm]
    rule = f"the algorithm of a collective applies to its kind and members ({kind} of {spread})"
    do = f"choose one of {', '.join(usable)} or {AUTO}"
    insist(algorithm in (AUTO, *usable), f"group {collective.group!r}", rule, repr(algorithm), do)
    forms = (_form(kind, size, name, spread, hardware) for name in names)
    return min(forms, key=lambda parts: total_ns(parts, hardware))


def collective_ns(collective: Collective, members: Sequence[int], hardware: Hardware) -> int:
    """Return the time of a collective alone, from the moment at which its last member has come [ns].

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
    return total_ns(phases(collective, members, hardware), hardware)


def group_ns(collective: Collective, group: Group, hardware: Hardware) -> int:
    """Return the time of a collective alone among those members of the group that take longest [ns].

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
    alike = {_spread(members, hardware): members for members in group.members}
    return max((collective_ns(collective, members, hardware) for members in alike.values()), default=0)


def _spread(members: Sequence[int], hardware: Hardware) -> _Spread:
    devices, on_node = hardware.topology.devices, hardware.topology.devices_per_node
    rule, found = "each rank has a device of its own", f"rank {max(members)} and {counted(devices, 'device')}"
    do = "raise topology.nodes or topology.devices_per_node, or run fewer ranks"
    insist(max(members) < devices, f"hardware {hardware.name!r}, topology", rule, found, do)
    counts = Counter(rank // on_node for rank in members).values()
    return _Spread(len(members), len(counts), max(counts) if len(set(counts)) == 1 else 0)


def _joining(spread: _Spread, hardware: Hardware) -> str:
    """Return the fabric that joins so many ranks: the narrowest, and of several the first of the profile."""
    scopes = ("node", "supernode") if spread.nodes == 1 else ("supernode",)
    joining = [name for scope in scopes for name, fabric in hardware.fabrics.items() if fabric.scope == scope]
    if not joining:
        found = ", ".join(f"{name} (scope {fabric.scope})" for name, fabric in hardware.fabrics.items()) or "none"
        rule, do = f"a fabric joins ranks that meet (here {spread})", f"add a fabric of scope {' or '.join(scopes)}"
        raise ConfigError(f"hardware {hardware.name!r}, fabrics", rule, found, do)
    return joining[0]


def _library(kind: CollectiveKind, spread: _Spread, hardware: Hardware) -> tuple[str, ...]:
    """Return the algorithms on one fabric that the machine's library has for these members, in order."""
    choices = hardware.fabrics[_joining(spread, hardware)].choices(kind)
    return tuple(algorithm for algorithm in _FORMS[kind] if algorithm in choices)


def _form(kind: CollectiveKind, size: int, algorithm: str, spread: _Spread, hardware: Hardware) -> tuple[Phase, ...]:
    if algorithm == HIERARCHICAL:
        return _two_levels(kind, size, spread, hardware)
    hops, share, of = _FORMS[kind][algorithm](spread.members)
    return (Phase(_joining(spread, hardware), hops, ceil_div(size * share, of)),)


def _two_levels(kind: CollectiveKind, size: int, spread: _Spread, hardware: Hardware) -> tuple[Phase, ...]:
    """Return the phases of the fastest choice of an algorithm for each level."""
    inside, across = _Spread(spread.per_node, 1, spread.per_node), _Spread(spread.nodes, spread.nodes, 1)
    levels = [
        (of, inside if in_node else across, spread.per_node if part else 1) for in_node, of, part in _LEVELS[kind]
    ]
    chunk = hardware.fabrics[_joining(across, hardware)].chunk_bytes
    first = size if chunk is None else min(size, chunk)

    def form(size: int, names: Sequence[str]) -> list[Phase]:
        """Return the phase of each level, if the whole collective is of this size."""
        every = zip(levels, names, strict=True)
        return [_form(of, ceil_div(size, parts), name, whom, hardware)[0] for (of, whom, parts), name in every]

    choices = product(*(_library(of, whom, hardware) for of, whom, _ in levels))
    pipelines = (_pipeline(form(first, names), form(size, names)) for names in choices)
    return min(pipelines, key=lambda parts: total_ns(parts, hardware))


def _pipeline(begin: Sequence[Phase], whole: Sequence[Phase]) -> tuple[Phase, ...]:
    """Send the first chunk level after level, and then the rest of the whole over all fabrics side by side."""
    left: Counter[str] = Counter()
    for first, all_ in zip(begin, whole, strict=True):
        left[first.fabric] += all_.port_bytes - first.port_bytes
    rest = [(fabric, left_bytes) for fabric, left_bytes in left.items() if left_bytes]
    return (*begin, *(Phase(fabric, 0, left_bytes, index > 0) for index, (fabric, left_bytes) in enumerate(rest)))
