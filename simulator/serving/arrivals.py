"""Which requests come when: drawn from a seed, or read from a file."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from simulator import formats
from simulator.catalog import Loaded
from simulator.workload import Arrivals, Arriving, Lengths, Prefixes, Request, Requests


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
    asked = loaded.workload.requests or Requests(file="")
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
    prefixes = _prefixes(asked.prefixes, number, seed)
    tokens = asked.prefixes.tokens if asked.prefixes else 0
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


def _prefixes(about: Prefixes | None, number: int, seed: int) -> list[int]:
    if about is None:
        return [0] * number
    shares: NDArray[np.float64] = np.arange(1, about.number + 1, dtype=np.float64) ** -about.skew
    bounds = np.cumsum(shares) / shares.sum()
    points = np.random.default_rng((seed, 3)).random(number)
    return [min(int(at), about.number - 1) for at in np.searchsorted(bounds, points, side="right")]
