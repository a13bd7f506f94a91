"""Where tensors live before a run, and what ranks share: room of a tier, a bus, and whether they may take turns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from simulator.catalog import Loaded
from simulator.errors import ConfigError
from simulator.graph import Graph, Job, TensorKind
from simulator.hardware import Hardware
from simulator.lifetime import repeated
from simulator.plan import FREE


def home_ids(loaded: Loaded, graphs: Sequence[Graph]) -> list[tuple[int, ...]]:
    """Resolve the homes of a scenario; the last match wins.

    Parameters
    ----------
    loaded
        Its scenario maps tensor kinds, or shell patterns of tensor names, to tiers.
    graphs
        The tensors.

    Returns
    -------
    list of tuple of int
        For each graph and tensor a tier id, or `FREE`.

    Raises
    ------
    ConfigError
        If a pattern matches no tensor.
    """
    hardware = loaded.hardware
    ids = {**{name: i for i, name in enumerate(hardware.tiers)}, "free": FREE}
    homes = [[ids[hardware.compute_tier] if t.persistent else FREE for t in graph.tensors] for graph in graphs]
    for pattern, tier in loaded.scenario.homes.items():
        chosen = [graph.matching(pattern) for graph in graphs]
        if not any(chosen) and pattern not in set(TensorKind):
            raise _unmatched(loaded, pattern, graphs[0])
        for home, tensors in zip(homes, chosen, strict=True):
            for tensor in tensors:
                home[tensor] = ids[tier]
    return [tuple(home) for home in homes]


def with_lasting_outputs(loaded: Loaded, graph: Graph, homes: Sequence[int]) -> Graph:
    """Return the graph with every output persistent that has its home in another tier than the compute tier.

    Such an output has room in its home from the start, and each step ends with it there. An output without a home may
    end a step in any tier and is then gone; one at home in the compute tier stays until the step ends.

    Parameters
    ----------
    loaded, graph, homes
        The scenario, a graph of its job, and the homes of its tensors (see `home_ids`).
    """
    here, there = (FREE, loaded.hardware.compute_tier_id), set(graph.inputs)
    lasting = {t for t in graph.outputs if homes[t] not in here and t not in there}
    if not lasting:
        return graph
    tensors = (replace(one, persistent=True) if t in lasting else one for t, one in enumerate(graph.tensors))
    return replace(graph, tensors=tuple(tensors))


def _unmatched(loaded: Loaded, pattern: str, graph: Graph) -> ConfigError:
    rule = f"a home is for a tensor kind ({', '.join(sorted(TensorKind))}) or for names that some tensor has"
    do = f"correct the pattern; the first tensor is {graph.tensors[0].name!r}" if graph.tensors else "drop it"
    return ConfigError(loaded.place("homes", pattern), rule, repr(pattern), do)


def shares(job: Job, hardware: Hardware, homes: Sequence[tuple[int, ...]]) -> list[tuple[int | float, ...]]:
    """Divide the room of tiers that ranks share: to each its homes, and of what is left an equal part.

    Parameters
    ----------
    job, hardware
        What runs, where.
    homes
        For each graph and tensor a tier id, or `FREE`.

    Returns
    -------
    list of tuple
        For each graph and tier what one of its ranks may use [B]; the least over its ranks. Less than its homes take if
        the homes of all do not fit.
    """
    at_home = [Counter[int]() for _ in job.graphs]
    for one, home, taken in zip(job.graphs, homes, at_home, strict=True):
        for tensor in one.inputs:
            taken[home[tensor]] += one.tensors[tensor].size_bytes
    again = list(repeated([(job.graphs[graph], homes[graph]) for graph in job.graph_of], hardware))
    shared: list[list[int | float]] = [[tier.usable_bytes for tier in hardware.tiers.values()] for _ in job.graphs]
    for number, tier in enumerate(hardware.tiers.values()):
        place = together(job.ranks, hardware)[tier.scope]
        spare: Counter[int] = Counter()
        for stored in again:
            spare[stored.rank // place] += stored.size_bytes if stored.tier == number else 0
        for start in range(0, job.ranks, place):
            mine = job.graph_of[start : start + place]
            left = tier.usable_bytes - sum(at_home[graph][number] for graph in mine) + spare[start // place]
            for graph in set(mine):
                shared[graph][number] = min(shared[graph][number], at_home[graph][number] + left // len(mine))
    return [tuple(rooms) for rooms in shared]


def together(ranks: int, hardware: Hardware) -> dict[str, int]:
    """Return how many ranks share one instance of what there is once in each device, each node, or the supernode."""
    return {"device": 1, "node": min(ranks, hardware.topology.devices_per_node), "supernode": ranks}


def sharers(ranks: int, hardware: Hardware) -> dict[str, int]:
    """Return, for each bus with links that several ranks share, how many ranks share one instance of it.

    Parameters
    ----------
    ranks, hardware
        How many there are, where.
    """
    shared = (name for name, bus in hardware.buses.items() if any(link in hardware.links for link in bus.links))
    return {name: count for name in shared if (count := together(ranks, hardware)[hardware.buses[name].scope]) > 1}


_GROUPS = (2, 4, 8)
"""Numbers of groups that are tried: more groups win little, and each is simulated."""
_LEAST_STEPS = 3


def turns(job: Job, hardware: Hardware, shared: Mapping[str, int]) -> tuple[int, ...]:
    """Return into how many groups ranks may be divided that begin one after another, alike on all that they share.

    Parameters
    ----------
    job, hardware
        What runs, where.
    shared
        What `sharers` found.

    Returns
    -------
    tuple of int
        Empty if ranks share no link, do not all run the same, or meet: ranks that meet in each step wait for the last
        one. Also empty in a run of less than three steps: no step that counts has all ranks at work.
    """
    graph = job.graphs[0]
    if not shared or len(job.graphs) > 1 or graph.meets or graph.steps < _LEAST_STEPS:
        return ()
    counts = (*shared.values(), min(job.ranks, hardware.topology.devices_per_node))
    return tuple(groups for groups in _GROUPS if not any(count % groups for count in counts))
