"""How many blocks each tier has room for."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from simulator.builders import Iteration, iteration
from simulator.catalog import Loaded
from simulator.errors import ConfigError
from simulator.graph import Graph
from simulator.lifetime import live_bytes
from simulator.plan import FREE
from simulator.run.placement import home_ids
from simulator.serving.scheduler import longest
from simulator.units import human
from simulator.workload import DecoderModel, Request, Requests


class Rooms(NamedTuple):
    """Where KV blocks lie.

    Attributes
    ----------
    names, blocks
        The compute tier, and those below that keep blocks; and how many each has room for.
    keeps
        Whether the compute tier keeps what sequences leave.
    block_bytes
        Size of a block in all layers [B].
    """

    names: tuple[str, ...]
    blocks: tuple[float, ...]
    keeps: bool
    block_bytes: int


def rooms(loaded: Loaded, asked: Requests, requests: Sequence[Request]) -> Rooms:
    """Count the room for blocks in each tier that keeps some.

    In the compute tier that is what the scenario says, or else what the budget leaves beside the weights and all that
    the largest iteration holds at once; in others what it says, or else all that weights do not take there.

    Parameters
    ----------
    loaded, asked, requests
        The scenario, what its workload says of requests, and the requests.

    Raises
    ------
    ConfigError
        If there is less room than the scenario says, or the compute tier cannot hold the longest request.
    """
    hardware, model = loaded.hardware, loaded.workload.model
    here, kept = hardware.compute_tier, loaded.scenario.kv_tiers
    elements = model.kv_elements if isinstance(model, DecoderModel) else 0
    size = asked.block * elements * loaded.workload.dtypes.kv_bytes
    graph = _largest(loaded, asked, len(requests))
    names = (here, *(tier for tier in kept if tier != here))
    if here in kept and next(iter(kept)) != here:
        must, do = "tiers that keep blocks are named from the compute tier down", f"name {here} first"
        raise ConfigError(loaded.place("kv_tiers", here), must, f"{here} after {next(iter(kept))}", do)
    there = [_room_bytes(loaded, graph, tier) for tier in names]
    found = Rooms(names, tuple(_blocks(room, size) for room in there), here in kept or not kept, size)
    _check_longest(loaded, asked, requests, found)
    return found


def _blocks(room: float, size: int) -> float:
    return room if room == math.inf else int(room // size)


def _largest(loaded: Loaded, asked: Requests, requests: int) -> Graph:
    """The iteration that holds most at once, without KV blocks."""
    decoding = min(asked.max_sequences, requests)
    reading = asked.max_tokens - decoding
    return iteration(loaded.workload, Iteration(decoding=decoding, reading=reading, answers=decoding), 0)


def _room_bytes(loaded: Loaded, graph: Graph, tier: str) -> float:
    """What a tier has room for."""
    (homes,) = home_ids(loaded, [graph])
    names, here = loaded.hardware.tier_names, loaded.hardware.compute_tier
    lasting = [
        (names[home] if home != FREE else "free", one.size_bytes)
        for home, one in zip(homes, graph.tensors, strict=True)
        if one.persistent
    ]
    left: float = loaded.hardware.tiers[tier].usable_bytes
    if tier == here:
        left = left if loaded.scenario.budget_bytes is None else loaded.scenario.budget_bytes
        left -= int(live_bytes(graph).max()) - sum(size for _, size in lasting)
    left = max(0.0, left - sum(size for home, size in lasting if home == tier))
    said = loaded.scenario.kv_tiers.get(tier)
    if said is None and tier == here and any(home != here for home, _ in lasting):
        must, do = "with weights at home elsewhere, the room for KV blocks in the compute tier is said", "add it"
        raise ConfigError(loaded.place("kv_tiers", tier), must, "none", do)
    if said is not None and said > left:
        must = f"KV blocks get at most what weights and iterations leave of {tier} ({human(int(left), 'B')})"
        raise ConfigError(loaded.place("kv_tiers", tier), must, human(said, "B"), "lower it, or raise the capacity")
    return left if said is None else said


def _check_longest(loaded: Loaded, asked: Requests, requests: Sequence[Request], found: Rooms) -> None:
    number = longest(requests)
    one = requests[number]
    needed = -(-(one.prompt + one.output) // asked.block)
    if needed > found.blocks[0]:
        must = f"each request fits in the compute tier ({found.names[0]}, {found.blocks[0]:,} blocks of {asked.block})"
        said = f"request {number} of {one.prompt:,} and {one.output:,} tokens, {needed:,} blocks"
        do = "lower its tokens or max_tokens, or raise the budget or kv_tiers"
        raise ConfigError(f"workload {loaded.workload.name}, requests", must, said, do)
