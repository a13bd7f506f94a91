"""What is asked: which requests come when, drawn or read from a file, and how much room there is for blocks."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator import formats
from simulator.builders import Iteration, Kept, decoder_of, further, iteration, kept
from simulator.catalog import Loaded
from simulator.errors import ConfigError, insist
from simulator.graph import Graph
from simulator.lifetime import live_bytes
from simulator.plan import FREE
from simulator.run.placement import home_ids
from simulator.serving.scheduler import held_numbers
from simulator.units import human
from simulator.workload import Arrivals, Arriving, Lengths, Prefixes, Request, Requests


def asked_of(loaded: Loaded) -> Requests:
    """What the workload of a scenario says of requests.

    Raises
    ------
    ConfigError
        If it is none of requests.
    """
    if loaded.workload.requests is None:
        rule, do = "what is served is a workload of requests", "use hosim run, or add 'phase: requests' and requests"
        raise ConfigError(loaded.place("workload"), rule, f"phase {loaded.workload.phase}", do)
    return loaded.workload.requests


def arriving(loaded: Loaded, progress: Callable[[str, int, int], None]) -> Arriving:
    """The requests of a scenario, in the order in which they come.

    Parameters
    ----------
    loaded
        With a workload of requests.
    progress
        Called now and then while a file is read.

    Raises
    ------
    ConfigError
        If the file of requests is wrong, or too long.
    """
    asked = asked_of(loaded)
    if "requests" in loaded.paths:
        path = loaded.paths["requests"]
        return formats.read_requests(path, asked.count, lambda lines: progress(f"line {lines:,} of {path.name}", 0, 0))
    return Arriving(drawn(asked, loaded.scenario.seed))


def drawn(asked: Requests, seed: int) -> list[Request]:
    """Draw requests.

    What is drawn of one kind does not depend on the parameters of the others: a longer prompt changes no arrival.

    Parameters
    ----------
    asked
        How many, when, how long, and what they share.
    seed
        What the draws begin with.
    """
    number = asked.count or 0
    times = _arrivals(asked.arrivals or Arrivals(interval_ns=0), number, seed)
    prompts, outputs = (
        _lengths(about or Lengths(mean=1), number, (seed, kind))
        for kind, about in ((1, asked.prompt), (2, asked.output))
    )
    about = asked.prefixes or Prefixes(number=1, tokens=1)
    shares: NDArray[np.float64] = np.arange(1, about.number + 1, dtype=np.float64) ** -about.skew
    points = np.random.default_rng((seed, 3)).random(number)
    chosen = np.searchsorted(np.cumsum(shares) / shares.sum(), points, side="right")
    prefixes, tokens = np.minimum(chosen, about.number - 1).tolist(), about.tokens if asked.prefixes else 0
    rows = zip(times, prompts, outputs, prefixes, strict=True)
    return [Request(at, prompt, output, prefix, min(tokens, prompt)) for at, prompt, output, prefix in rows]


def _arrivals(about: Arrivals, number: int, seed: int) -> list[int]:
    if about.process == "even":
        return [i * about.interval_ns for i in range(number)]
    gaps = np.random.default_rng((seed, 0)).standard_exponential(number) * about.interval_ns
    return [round(at) for at in np.cumsum(gaps)]


def _lengths(about: Lengths, number: int, seed: tuple[int, int]) -> list[int]:
    sigma = math.sqrt(math.log1p(about.spread**2))
    normal = np.random.default_rng(seed).standard_normal(number)
    return [max(1, round(about.mean * math.exp(sigma * z - sigma**2 / 2))) for z in normal]


class Rooms(NamedTuple):
    """Where KV blocks lie.

    Attributes
    ----------
    names, room_bytes
        The compute tier, and those below that keep blocks; and what each has room for [B].
    keeps
        Whether the compute tier keeps what sequences leave.
    groups
        What layers keep of a sequence.
    """

    names: tuple[str, ...]
    room_bytes: tuple[float, ...]
    keeps: bool
    groups: tuple[Kept, ...]

    def sizes(self, block: int) -> list[int]:
        """What a block of so many tokens takes, of each group [B]."""
        return [group.block_bytes(block) for group in self.groups]


def groups_of(loaded: Loaded) -> tuple[Kept, ...]:
    """What the layers of the model keep of a sequence."""
    return kept(decoder_of(loaded.workload), loaded.workload.dtypes.kv_bytes)


def rooms(loaded: Loaded, requests: Sequence[Request]) -> Rooms:
    """Count the room for blocks in each tier that keeps some.

    In the compute tier that is what the scenario says, or else what the budget leaves beside the weights and all that
    the largest iteration holds at once; in others what it says, or else all that weights do not take there.

    Parameters
    ----------
    loaded, requests
        The scenario, and the requests.

    Raises
    ------
    ConfigError
        If there is less room than the scenario says, or the compute tier cannot hold the longest request.
    """
    asked, groups = asked_of(loaded), groups_of(loaded)
    here, kept_in = loaded.hardware.compute_tier, loaded.scenario.kv_tiers
    names = (here, *(tier for tier in kept_in if tier != here))
    if here in kept_in and next(iter(kept_in)) != here:
        rule, do = "tiers that keep blocks are named from the compute tier down", f"name {here} first"
        raise ConfigError(loaded.place("kv_tiers", here), rule, f"{here} after {next(iter(kept_in))}", do)
    decoding, many = min(asked.max_sequences, len(requests)), max(one.prompt for one in requests)
    near = ((1, 1, 1),) * len(further(decoder_of(loaded.workload)))
    fullest = Iteration(decoding, 1, asked.max_tokens - decoding, many, many, decoding, near)
    graph = iteration(loaded.workload, fullest, 0)
    found = Rooms(
        names, tuple(_room_bytes(loaded, graph, tier) for tier in names), here in kept_in or not kept_in, groups
    )
    number, longest = max(enumerate(requests), key=lambda one: one[1].prompt + one[1].output)
    taken = [len(held_numbers(group.reach, 0, longest, asked)) for group in groups]
    needed = sum(size * blocks for size, blocks in zip(found.sizes(asked.block), taken, strict=True))
    rule = f"each request fits in the compute tier ({here}, {human(found.room_bytes[0], 'B')} for KV blocks)"
    told = f"request {number} of {longest.prompt:,} and {longest.output:,} tokens, {human(needed, 'B')}"
    do = "lower its tokens or max_tokens, or raise the budget or kv_tiers"
    insist(needed <= found.room_bytes[0], f"workload {loaded.workload.name}, requests", rule, told, do)
    return found


def _room_bytes(loaded: Loaded, graph: Graph, tier: str) -> float:
    """What a tier has room for."""
    (homes,) = home_ids(loaded, [graph])
    names, here = loaded.hardware.tier_names, loaded.hardware.compute_tier
    lasting = Counter[str]()
    for home, tensor in zip(homes, graph.tensors, strict=True):
        lasting["free" if home == FREE else names[home]] += tensor.size_bytes if tensor.persistent else 0
    left, stated = loaded.hardware.tiers[tier].usable_bytes - lasting[tier], loaded.scenario.kv_tiers.get(tier)
    if tier == here:
        budget = loaded.scenario.budget_bytes
        left -= 0 if budget is None else loaded.hardware.tiers[tier].usable_bytes - budget
        left -= int(live_bytes(graph).max()) - lasting.total()
        rule = "with weights at home elsewhere, the room for KV blocks in the compute tier is said"
        is_said = stated is not None or lasting.total() == lasting[here]
        insist(is_said, loaded.place("kv_tiers", tier), rule, "none", "add it")
    left = max(0.0, left)
    if stated is None:
        return left
    rule = f"KV blocks get at most what weights and iterations leave of {tier} ({human(left, 'B')})"
    do = "lower it, or raise the capacity"
    insist(stated <= left, loaded.place("kv_tiers", tier), rule, human(stated, "B"), do)
    return stated
