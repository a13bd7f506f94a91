"""The story of `hosim serve`: requests come and leave, iteration by iteration, under each policy."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from simulator import catalog, formats
from simulator.catalog import Loaded
from simulator.errors import insist
from simulator.report.card import line
from simulator.report.expectations import Verdict, verdicts
from simulator.run import asked_for
from simulator.run.sweep import Progress, Sweep, frame, silent
from simulator.scenario import Scenario
from simulator.serving import latencies
from simulator.serving.blocks import Rooms, asked_of, rooms
from simulator.serving.replays import Replays, rows_of
from simulator.serving.scheduler import Served
from simulator.serving.story import Story, serve_row, summary
from simulator.units import nearest
from simulator.workload import Arrivals, Arriving, Lengths, Prefixes, Request, Requests

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, eq=False)
class Serving(Sweep):
    """What came of it; one row per policy, see `simulator.serving.story.summary`.

    Attributes
    ----------
    is_changed
        Whether the machine was changed for this run; what the scenario expects is then not checked.
    """

    is_changed: bool = False

    def __str__(self) -> str:
        return "\n".join(f"{name}: {line(card)}" for name, card in self.card.items()) + f"\n\n{self.view}"

    @cached_property
    def requests(self) -> pd.DataFrame:
        """One line per policy and request: when it came, was admitted, had its first and last token; what it hit."""
        return frame(self.tables["requests"])

    @cached_property
    def iterations(self) -> pd.DataFrame:
        """One line per policy and iteration: who ran, what it took, waits by cause, and bytes moved."""
        return frame(self.tables["iterations"])

    @cached_property
    def expectations(self) -> list[Verdict]:
        """What the scenario expects of these rows, and whether it holds; nothing if the machine was changed."""
        expected = () if self.is_changed else self.loaded[0].scenario.expect
        return verdicts(expected, {str(row["policy"]): row for row in self.rows})


def serve(  # noqa: PLR0913 - who is served, where, and how
    scenario: str | Path | Scenario | None = None,
    *,
    hardware: str | Path | None = None,
    workload: str | Path | None = None,
    set: Mapping[str, Any] | None = None,  # noqa: A002 - the key of the document
    policies: Sequence[str] | None = None,
    progress: Progress | None = None,
    exact: bool = False,
) -> Serving:
    """Serve requests that come and leave.

    Iterations that are alike are replayed once: see `simulator.serving.replays`.

    Parameters
    ----------
    scenario
        A name in the catalogue, a path that ends in ``.yaml``, or the document itself; its workload has `requests`.
    hardware, workload
        Instead of a scenario: a machine and a workload with `requests`, as in `simulator.run`.
    set
        Changes to the hardware, as in `simulator.run`.
    policies
        Only these rows of the scenario, or policies with their default options.
    progress
        Called now and then.
    exact
        Whether every iteration is replayed as it is, which takes as many times as long as there are iterations in a
        class.

    Raises
    ------
    ConfigError
        If a document or the file of requests is wrong, or a request is longer than the compute tier can hold.
    """
    loaded = catalog.resolve(asked_for(scenario, hardware, workload, policies), set)
    asked = asked_of(loaded)
    progress = progress or silent
    names, come, room = read_served(loaded, policies, progress)
    every = sum(room.sizes(asked.block))
    enough = every * sum(one.prompt + one.output for one in come.requests)  # more than all together ever hold
    room_bytes = int(min(room.room_bytes[0], enough)) // every * every
    replays = {name: Replays(loaded, name, room_bytes, exact=exact) for name in names}
    stories = [serve_row(*one, room, asked, come.requests, progress) for one in replays.items()]
    rows = [summary(story, loaded, come, room) for story in stories]
    view = latencies.view(loaded.scenario.title or loaded.scenario.name, rows, stories)
    tables = {
        "requests": [row for story in stories for row in story.requests],
        "iterations": [row for story in stories for row in story.iterations],
    }
    return Serving("serve", [loaded], rows, view, tables, {"seed": loaded.scenario.seed}, is_changed=bool(set))


def read_served(
    loaded: Loaded, policies: Sequence[str] | None = None, progress: Progress = silent
) -> tuple[list[str], Arriving, Rooms]:
    """Read the rows and the requests of a scenario, and find the room for blocks; nothing runs.

    Parameters
    ----------
    loaded
        The scenario, its machine and its workload.
    policies, progress
        As for `serve`.

    Raises
    ------
    ConfigError
        As for `serve`.
    """
    for number, choice in enumerate(loaded.scenario.policies):
        rule, where = "all rows that serve run on one machine", loaded.place("policies", str(number), "set")
        insist(not choice.set_, where, rule, "changes to it", "move set out of the row")
    come = arriving(loaded, progress)
    room = rooms(loaded, come.requests)
    columns = tuple(summary(Story("", room.names, [Served(0, come.requests[0])]), loaded, come, room))
    for number, one in enumerate(loaded.scenario.expect):
        rule = "an expectation of what is served names a column of its summary, and no faster_than"
        is_known, where = one.column in columns, loaded.place("expect", str(number), "column")
        found = "faster_than" if is_known else repr(one.column)
        insist(is_known and one.faster_than is None, where, rule, found, nearest(one.column, columns))
    return rows_of(loaded, policies), come, room


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
