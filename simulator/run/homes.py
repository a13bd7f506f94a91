"""Where tensors live: what a scenario says of homes, for the graphs of a job."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from simulator.catalog import Loaded
from simulator.errors import ConfigError
from simulator.graph import Graph, TensorKind
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
    """The graph in which an output whose home is another tier lasts: with room there, where each step ends with it.

    An output without a home may end a step in any tier, and is gone then; in the compute tier it stays until then.

    Parameters
    ----------
    loaded, graph, homes
        The scenario, a graph of its job, and the homes of its tensors (see `home_ids`).
    """
    here, there = (FREE, loaded.hardware.tier_names.index(loaded.hardware.compute_tier)), set(graph.inputs)
    lasting = {t for t in graph.outputs if homes[t] not in here and t not in there}
    if not lasting:
        return graph
    tensors = (replace(one, persistent=True) if t in lasting else one for t, one in enumerate(graph.tensors))
    return replace(graph, tensors=tuple(tensors))


def _unmatched(loaded: Loaded, pattern: str, graph: Graph) -> ConfigError:
    must = f"a home is for a tensor kind ({', '.join(sorted(TensorKind))}) or for names that some tensor has"
    do = f"correct the pattern; the first tensor is {graph.tensors[0].name!r}" if graph.tensors else "drop it"
    return ConfigError(loaded.place("homes", pattern), must, repr(pattern), do)
