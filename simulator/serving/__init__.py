"""`hosim serve`: requests come and leave, iteration by iteration, under each policy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from simulator import catalog, formats
from simulator.catalog import Loaded, Named
from simulator.errors import insist
from simulator.metrics import frame
from simulator.report.card import line
from simulator.report.expectations import Verdict, verdicts
from simulator.run import scenario_to_run, with_software
from simulator.run.case import check_expectations
from simulator.run.effects import idle_line
from simulator.run.sweep import Progress, Sweep, silent
from simulator.serving import latencies
from simulator.serving.blocks import Rooms, requests_of, rooms
from simulator.serving.replays import Replays, rows_of, smallest
from simulator.serving.scheduler import Served
from simulator.serving.story import Story, serve_row, summary
from simulator.workload import Arrivals, Arriving, Lengths, Prefixes, Request, Requests

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, eq=False)
class Serving(Sweep):
    """Result of `hosim serve`; one row per policy, see `simulator.serving.story.summary`.

    Attributes
    ----------
    is_changed
        Whether the machine was changed for this run; the scenario's expectations are then not checked.
    """

    is_changed: bool = False

    def __str__(self) -> str:
        return "\n".join(f"{name}: {line(card)}" for name, card in self.card.items()) + f"\n\n{self.view}"

    @cached_property
    def requests(self) -> pd.DataFrame:
        """One row per policy and request: arrival, admission, first and last token [ns], hits, and preemptions."""
        return frame(self.tables["requests"])

    @cached_property
    def iterations(self) -> pd.DataFrame:
        """One row per policy and iteration: sequences, time, waits by cause, and bytes moved."""
        return frame(self.tables["iterations"])

    @cached_property
    def expectations(self) -> list[Verdict]:
        """Verdicts on the scenario's expectations of these rows; none if the machine was changed."""
        expected = () if self.is_changed else self.loaded[0].scenario.expect
        return verdicts(expected, {str(row["policy"]): row for row in self.rows})


def serve(  # noqa: PLR0913 - who is served, where, and how
    scenario: Named | None = None,
    *,
    hardware: str | Path | None = None,
    workload: str | Path | None = None,
    software: str | Path | None = None,
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
        A name in the catalogue, a path that ends in ``.yaml``, the document itself, or a `Loaded` one; its workload has
        `requests`.
    hardware, workload
        Instead of a scenario: a machine and a workload with `requests`, as in `simulator.run`.
    software
        How a framework drives the machine, as in `simulator.run`.
    set
        Changes to the hardware, as in `simulator.run`.
    policies
        Only these rows of the scenario, or policies with their default options.
    progress
        Called now and then, while a file is read and while requests are served.
    exact
        Whether every iteration is replayed, rather than one of each class of similar ones; this takes as many times
        as long as a class has iterations.

    Raises
    ------
    ConfigError
        If a document or the file of requests is wrong, or a request is longer than the compute tier can hold.
    """
    changes = with_software(set, software)
    loaded = catalog.resolve(scenario_to_run(scenario, hardware, workload, policies), changes)
    asked, progress = requests_of(loaded), progress or silent
    names, arrivals, room = read_served(loaded, policies, progress)
    size = sum(room.sizes(asked.block))
    requests = arrivals.requests
    enough = size * sum(request.prompt + request.output for request in requests)  # more than all ever hold at once
    room_bytes = int(min(room.room_bytes[0], enough)) // size * size
    replays = {name: Replays(loaded, name, room_bytes, exact=exact) for name in names}
    stories = [serve_row(name, replayed, room, asked, arrivals, progress) for name, replayed in replays.items()]
    rows = [summary(story, loaded, arrivals, room) for story in stories]
    view = latencies.view(loaded.scenario.heading, rows, stories)
    idle = idle_line(smallest(loaded), is_served=True)
    is_engine = loaded.software is None or loaded.software.host.iteration_ns > 0
    lines = [*view.sentences, *latencies.real(is_engine=is_engine), *([idle] if idle else [])]
    view = view._replace(sentences=lines)
    tables = {
        "requests": [row for story in stories for row in story.requests],
        "iterations": [row for story in stories for row in story.iterations],
    }
    return Serving("serve", [loaded], rows, view, tables, {"seed": loaded.scenario.seed}, is_changed=bool(changes))


def read_served(
    loaded: Loaded, policies: Sequence[str] | None = None, progress: Progress = silent
) -> tuple[list[str], Arriving, Rooms]:
    """Read the rows and the requests of a scenario, and find the room for KV blocks, without running anything.

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
    for index, choice in enumerate(loaded.scenario.policies):
        rule, where = "all rows that serve run on one machine", loaded.place("policies", str(index), "set")
        insist(not choice.set_, where, rule, "changes to it", "move set out of the row")
    rule, do = "the devices that serve are alike", "serve without ranks, or run the scenario"
    insist(not loaded.hardware.ranks, loaded.place("ranks", of="hardware"), rule, "some with a pace of their own", do)
    arrivals = arriving(loaded, progress)
    room = rooms(loaded, arrivals.requests)
    columns = tuple(summary(Story("", room.names, [Served(0, arrivals.requests[0])]), loaded, arrivals, room))
    for index, expected in enumerate(loaded.scenario.expect):
        rule, where = "an expectation of a served row has no faster_than", loaded.place("expect", str(index))
        insist(expected.faster_than is None, where, rule, "one", "compare a column of the summary")
    check_expectations(loaded, columns)
    return rows_of(loaded, policies), arrivals, room


def arriving(loaded: Loaded, progress: Progress) -> Arriving:
    """Read or draw the requests of a scenario, in order of arrival.

    Parameters
    ----------
    loaded
        The scenario, its machine, and its workload of requests.
    progress
        Called now and then while a file is read.

    Raises
    ------
    ConfigError
        If the file of requests is wrong, or too long.
    """
    asked = requests_of(loaded)
    if "requests" in loaded.paths:
        path = loaded.paths["requests"]
        return formats.read_requests(path, asked.count, lambda lines: progress(f"line {lines:,} of {path.name}", 0, 0))
    return Arriving(drawn(asked, loaded.scenario.seed), seed=loaded.scenario.seed)


def drawn(asked: Requests, seed: int) -> list[Request]:
    """Draw requests: in order of arrival, or of clients that converse, round by round.

    Arrivals, prompts, outputs and prefixes are drawn independently: longer prompts change no arrival. In a conversation
    all requests have the prefix of its first one, and then a prefix of their own, which is the whole conversation.

    Parameters
    ----------
    asked
        Number, arrivals, lengths and shared prefixes of the requests.
    seed
        Seed of the draws.
    """
    clients, about = asked.clients, asked.prefixes or Prefixes(number=1, tokens=1)
    count = clients.number * clients.rounds if clients else asked.count or 0
    arrivals_ns = _arrivals_ns(asked.arrivals, count, seed) if asked.arrivals else [0] * count
    prompts = (asked.prompt or Lengths(mean=1)).drawn(count, (seed, 1))
    outputs = (asked.output or Lengths(mean=1)).drawn(count, (seed, 2))
    shares: NDArray[np.float64] = np.arange(1, about.number + 1, dtype=np.float64) ** -about.skew
    points = np.random.default_rng((seed, 3)).random(count)
    chosen = np.searchsorted(np.cumsum(shares) / shares.sum(), points, side="right")
    prefixes, tokens = np.minimum(chosen, about.number - 1).tolist(), about.tokens if asked.prefixes else 0
    rows = zip(arrivals_ns, prompts, outputs, prefixes, strict=True)
    requests = [Request(ns, prompt, output, prefix, min(tokens, prompt)) for ns, prompt, output, prefix in rows]
    return _conversations(requests, clients.number, about.number) if clients else requests


def _conversations(rounds: list[Request], clients: int, prefixes: int) -> list[Request]:
    """Put rounds together, those of one client `clients` places apart; conversations are named after all prefixes."""
    whole = list[Request]()
    for index, request in enumerate(rounds):
        before = whole[index - clients] if index >= clients else None
        above = before.above if before else ((request.prefix, request.prefix_tokens),)
        prompt, client = request.prompt + (before.prefix_tokens if before else 0), index % clients
        whole.append(Request(0, prompt, request.output, prefixes + client, prompt + request.output, above))
    return whole


def _arrivals_ns(about: Arrivals, count: int, seed: int) -> list[int]:
    if about.process == "even":
        return [i * about.interval_ns for i in range(count)]
    gaps = np.random.default_rng((seed, 0)).standard_exponential(count) * about.interval_ns
    return [round(ns) for ns in np.cumsum(gaps)]
