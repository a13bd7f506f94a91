"""The story of `hosim serve`: requests come and leave, iteration by iteration, under each policy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simulator import catalog
from simulator.catalog import Loaded
from simulator.errors import ConfigError
from simulator.report.expectations import Verdict, verdicts
from simulator.report.view import Section, View
from simulator.run.row import Progress, silent
from simulator.run.sweep import Sweep, filled, frame
from simulator.scenario import Scenario
from simulator.serving import latencies
from simulator.serving.asked import Rooms, arriving, asked_of, rooms
from simulator.serving.counts import iterations_of, requests_of, summary
from simulator.serving.replays import MOST_REPLAYED, Replays, rows_of
from simulator.serving.scheduler import Served
from simulator.serving.story import Story, serve_row
from simulator.units import nearest
from simulator.workload import Arriving

if TYPE_CHECKING:
    import pandas as pd

    from simulator.report.drawing import Picture


@dataclass(frozen=True, eq=False)
class Serving(Sweep):
    """What came of it; one row per policy, see `simulator.serving.counts.summary`.

    Attributes
    ----------
    is_changed
        Whether the machine was changed for this run; what the scenario expects is then not checked.
    """

    is_changed: bool = False
    _stories: Sequence[Story] = field(default=(), repr=False)

    @cached_property
    def requests(self) -> pd.DataFrame:
        """One line per policy and request: when it came, was admitted, had its first and last token; what it hit."""
        return frame([row for story in self._stories for row in requests_of(story)])

    @cached_property
    def iterations(self) -> pd.DataFrame:
        """One line per policy and iteration: who ran, what it took, waits by cause, and bytes moved."""
        return frame([row for story in self._stories for row in iterations_of(story)])

    @cached_property
    def expectations(self) -> list[Verdict]:
        """What the scenario expects of these rows, and whether it holds; nothing if the machine was changed."""
        if self.is_changed:
            return []
        return verdicts(self.loaded[0].scenario.expect, {str(row["policy"]): row for row in self.rows})

    def figure(self) -> Picture:
        """Draw who has the first token after how long, what a further one takes, and how many wait."""
        from simulator.serving.latency_figure import serving_picture  # noqa: PLC0415 - drawing takes time to import

        about = {story.policy: (requests_of(story), iterations_of(story)) for story in self._stories}
        return serving_picture(about, self.view.title)

    def write(self, out: str | Path) -> None:
        """Write the rows, the requests, the iterations, the picture and the documents into a folder.

        Parameters
        ----------
        out
            The folder; filled beside its place and renamed. An earlier run's is replaced.
        """
        told, seed = [asdict(verdict) for verdict in self.expectations], self.loaded[0].scenario.seed
        more = {"sentences": self.sentences, "expectations": told, "seed": seed}
        with filled(out, self.loaded, self.rows, more) as folder:
            for name, table in (("requests", self.requests), ("iterations", self.iterations)):
                table.to_csv(folder / f"{name}.csv", index=False, lineterminator="\n")
            picture = self.figure()
            for kind in ("png", "svg"):
                picture.write(str(folder / f"serving.{kind}"), kind)


def serve(
    scenario: str | Path | Scenario,
    *,
    set: Mapping[str, Any] | None = None,  # noqa: A002 - the key of the document
    policies: Sequence[str] | None = None,
    exact: bool = False,
    replays: int = MOST_REPLAYED,
    progress: Progress | None = None,
) -> Serving:
    """Serve requests that come and leave.

    Parameters
    ----------
    scenario
        A name in the catalogue, a path that ends in ``.yaml``, or the document itself; its workload has `requests`.
    set
        Changes to the hardware, as in `simulator.run`.
    policies
        Only these rows of the scenario, or policies with their default options.
    exact
        Whether each iteration is replayed as it is; else what it attends to is rounded up (less than 1/16), so that
        alike ones are replayed once.
    replays
        The most iterations of a row that are replayed; one that needs more, or a hundred times as many in all, ends
        there, as ``unfinished``.
    progress
        Called now and then.

    Raises
    ------
    ConfigError
        If a document or the file of requests is wrong, or a request is longer than the compute tier can hold.
    """
    loaded = catalog.resolve(scenario, set)
    asked = asked_of(loaded)
    progress = progress or silent
    names, come, room = read_served(loaded, policies, progress)
    token_bytes = room.block_bytes // asked.block
    enough = sum(one.prompt + one.output for one in come.requests)  # more blocks than all together ever hold
    tokens = int(min(room.blocks[0], enough)) * asked.block
    stories = []
    for name in names:
        known = Replays(loaded, name, tokens, exact=exact, most=replays)
        stories.append(serve_row(name, known, room, asked, come.requests, progress))
    rows = [summary(story, loaded, come, token_bytes) for story in stories]
    title = loaded.scenario.title or loaded.scenario.name
    view = View(title, [Section(latencies.table(rows))], latencies.sentences(rows))
    return Serving("serving", [loaded], rows, view, is_changed=bool(set), _stories=stories)


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
    if loaded.scenario.trace == "none":
        must, do = "only hosim run knows of trace", "remove it: hosim serve keeps no trace of what it replays"
        raise ConfigError(loaded.place("trace"), must, "trace: none", do)
    come = arriving(loaded, progress)
    room = rooms(loaded, come.requests)
    one_came = Story("", room.names, [Served(0, come.requests[0])])
    columns = tuple(summary(one_came, loaded, come, 0))
    for number, choice in enumerate(loaded.scenario.policies):
        if choice.set_:
            where = loaded.place("policies", str(number), "set")
            raise ConfigError(
                where, "all rows that serve run on one machine", "changes to it", "move set out of the row"
            )
    for number, one in enumerate(loaded.scenario.expect):
        if one.column not in columns or one.faster_than is not None:
            must = "an expectation of what is served names a column of its summary, and no faster_than"
            found = repr(one.column) if one.column not in columns else "faster_than"
            where = loaded.place("expect", str(number), "column")
            raise ConfigError(where, must, found, nearest(one.column, columns))
    return rows_of(loaded, policies), come, room
