"""Placement before a run: homes of tensors, shares of ranks in tiers and buses, and whether ranks may take turns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from simulator.catalog import Loaded
from simulator.errors import insist
from simulator.graph import Graph, Job
from simulator.hardware import Hardware
from simulator.lifetime import duplicates
from simulator.plan import FREE


def home_ids(loaded: Loaded, graphs: Sequence[Graph]) -> list[tuple[int, ...]]:
    """Resolve the homes of a scenario; the last match wins.

    Without one, persistent tensors live in the compute tier, those that ops of the host alone use in their tier, and
    those that the workload calls remote in the tier below.

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
        If a pattern matches no tensor, or none that may have another home than the compute tier.
    """
    hardware = loaded.hardware
    ids = {**{name: i for i, name in enumerate(hardware.tiers)}, "free": FREE}
    homes = [[ids[hardware.compute_tier] if t.persistent else FREE for t in graph.tensors] for graph in graphs]
    for home, graph in zip(homes, graphs, strict=True):
        for t in graph.of_host:
            home[t] = hardware.host_tier_id
    stated = {pattern: _below(loaded) for pattern in getattr(loaded.workload, "remote", ())} | loaded.scenario.homes
    for pattern, tier in stated.items():
        chosen = [graph.matching(pattern) for graph in graphs]
        _check_home(loaded, graphs, pattern, chosen)
        for home, matches in zip(homes, chosen, strict=True):
            for tensor in matches:
                home[tensor] = ids[tier]
    return [tuple(home) for home in homes]


def _below(loaded: Loaded) -> str:
    """Return the tier to which the first link of the compute tier leads."""
    hardware, must = loaded.hardware, "a machine for remote tensors has a tier below the compute tier"
    insist("below" in hardware.roles, f"hardware {hardware.name!r}, links", must, "none", "add a link to it")
    return hardware.tier_names[hardware.roles["below"]]


def _check_home(loaded: Loaded, graphs: Sequence[Graph], pattern: str, chosen: Sequence[Sequence[int]]) -> None:
    """Refuse a home of no tensor, and another tier than the compute tier for tensors that no step keeps there."""
    compute_tier, is_remote = loaded.hardware.compute_tier, pattern not in loaded.scenario.homes
    tier = _below(loaded) if is_remote else loaded.scenario.homes[pattern]
    where = loaded.place("remote", of="workload") if is_remote else loaded.place("homes", pattern)
    kinds = sorted({tensor.kind for graph in graphs for tensor in graph.tensors})
    must = f"a home is for a kind of tensor that there is ({', '.join(kinds)}), or for names that some tensor has"
    first = next((tensor.name for graph in graphs for tensor in graph.tensors), None)
    do = f"correct it; the first tensor is {first!r}" if first else "drop it"
    insist(any(chosen), where, must, repr(pattern), do)
    pairs = zip(graphs, chosen, strict=True)
    lasts = any(not {*graph.inputs, *graph.outputs}.isdisjoint(matches) for graph, matches in pairs)
    must = f"a home in another tier than {compute_tier} is for lasting tensors: persistent ones, inputs, outputs"
    do = f"say free (a policy may move them: static does, where that pays) or {compute_tier} (they stay); or drop it"
    found = f"{tier} for {pattern}: tensors that are new in each step, and gone before it ends"
    insist(lasts or tier in {"free", compute_tier}, where, must, found, do)


def check_in_place(loaded: Loaded, job: Job) -> None:
    """Refuse reads in place on a machine whose kernels load over no link, and rows that ask for such as nothing allows.

    Raises
    ------
    ConfigError
        If the scenario has one of these.
    """
    is_allowed, hardware = any(graph.in_place for graph in job.graphs), loaded.hardware
    must, do = "kernels read in place over a link that states loads", "add loads, or drop in_place of the workload"
    insist(not is_allowed or hardware.loads, f"hardware {hardware.name!r}, links", must, "none that does", do)
    for position, choice in enumerate(loaded.scenario.policies):
        must = "a row reads in place only tensors that the workload allows"
        do = "remove it, or name tensors in the workload's in_place"
        where = loaded.place("policies", str(position), "in_place")
        insist(is_allowed or choice.in_place is None, where, must, "nothing", do)


def with_lasting_outputs(loaded: Loaded, graph: Graph, homes: Sequence[int]) -> Graph:
    """Return the graph with each output made persistent whose home is another tier than the compute tier.

    Such an output has room at home from the start, and is there at the end of each step. An output without a home may
    end a step in any tier and is then gone; one at home in the compute tier stays until the step ends.

    Parameters
    ----------
    loaded, graph, homes
        The scenario, a graph of its job, and the homes of its tensors (see `home_ids`).
    """
    compute_tier, tensors = loaded.hardware.compute_tier_id, list(graph.tensors)
    lasting = [t for t in graph.outputs if homes[t] not in (FREE, compute_tier) and t not in graph.inputs]
    for t in lasting:
        tensors[t] = replace(tensors[t], persistent=True)
    return replace(graph, tensors=tuple(tensors)) if lasting else graph


def shares(job: Job, hardware: Hardware, homes: Sequence[tuple[int, ...]]) -> list[tuple[int | float, ...]]:
    """Divide the room of tiers that ranks share: each gets room for its homes, and an equal part of the rest.

    Parameters
    ----------
    job, hardware
        The job and the machine.
    homes
        For each graph and tensor a tier id, or `FREE`.

    Returns
    -------
    list of tuple
        For each graph and tier what one of its ranks may use [B], the least over its ranks. It is less than the homes
        take if the homes of all do not fit.
    """
    at_home = [Counter[int]() for _ in job.graphs]
    for graph, home, taken in zip(job.graphs, homes, at_home, strict=True):
        for tensor in graph.inputs:
            taken[home[tensor]] += graph.tensors[tensor].size_bytes
    again = list(duplicates([(job.graphs[i], homes[i]) for i in job.graph_of], hardware))
    shared: list[list[int | float]] = [[tier.usable_bytes for tier in hardware.tiers.values()] for _ in job.graphs]
    for index, tier in enumerate(hardware.tiers.values()):
        sharing, spare = min(job.ranks, hardware.topology.sharing[tier.scope]), Counter[int]()
        for stored in again:
            spare[stored.rank // sharing] += stored.size_bytes if stored.tier == index else 0
        for start in range(0, job.ranks, sharing):
            graphs = job.graph_of[start : start + sharing]
            left = tier.usable_bytes - sum(at_home[i][index] for i in graphs) + spare[start // sharing]
            for i in set(graphs):
                shared[i][index] = min(shared[i][index], at_home[i][index] + left // len(graphs))
    return [tuple(rooms) for rooms in shared]


def sharers(ranks: int, hardware: Hardware) -> dict[str, int]:
    """Return, for each bus of links that several ranks share, how many ranks share one instance of it.

    Parameters
    ----------
    ranks, hardware
        The number of ranks, and the machine.
    """
    buses = {name: bus for name, bus in hardware.caps.items() if not hardware.links.keys().isdisjoint(bus.links)}
    counts = {name: min(ranks, hardware.topology.sharing[bus.scope]) for name, bus in buses.items()}
    return {name: count for name, count in counts.items() if count > 1}


_GROUPS = (2, 4, 8)
"""Numbers of groups to try: more groups gain little, and each is simulated."""
_LEAST_STEPS = 3
"""Ranks begin in turn in the first step, and end in turn in the last; the measured step has all of them at work."""


def turns(job: Job, hardware: Hardware, shared: Mapping[str, int]) -> tuple[int, ...]:
    """Return into how many groups, starting one after another, the ranks of each shared bus and node divide evenly.

    Parameters
    ----------
    job, hardware
        The job and the machine.
    shared
        What `sharers` found.

    Returns
    -------
    tuple of int
        Empty if ranks do not all run the same, or meet: ranks that meet in each step wait for the last one. Also empty
        in a run of less than three steps: no step that counts has all ranks at work.
    """
    graph = job.graphs[0]
    if len(job.graphs) > 1 or graph.meets or graph.steps < _LEAST_STEPS:
        return ()
    counts = (*shared.values(), min(job.ranks, hardware.topology.devices_per_node))
    return tuple(groups for groups in _GROUPS if not any(count % groups for count in counts))
