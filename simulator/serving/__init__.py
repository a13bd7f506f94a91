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
from simulator.run.row import Progress, silent
from simulator.scenario import Scenario
from simulator.serving import latencies
from simulator.serving.arrivals import arriving
from simulator.serving.counts import iterations_of, of_all, requests_of, summary
from simulator.serving.replays import MOST_REPLAYED, Replays, rows_of
from simulator.serving.rooms import rooms
from simulator.serving.scheduler import Served
from simulator.serving.story import Story, serve_row
from simulator.units import nearest
from simulator.workload import Arriving, Request, Requests

if TYPE_CHECKING:
    import pandas as pd

    from simulator.report.drawing import Picture


@dataclass(frozen=True, eq=False)
class Serving:
    """What came of it.

    Attributes
    ----------
    loaded
        The scenario, its machine and its workload.
    rows
        One per policy; see `simulator.serving.counts.summary`.
    is_changed
        Whether the machine was changed for this run; what the scenario expects is then not checked.
    """

    loaded: Loaded
    rows: Sequence[dict[str, Any]] = field(repr=False)
    is_changed: bool
    _stories: Sequence[Story] = field(repr=False)

    @cached_property
    def table(self) -> pd.DataFrame:
        """The rows, one a line; times [ns] and sizes [B] are whole numbers even where a row has none."""
        return _frame(self.rows)

    @cached_property
    def requests(self) -> pd.DataFrame:
        """One line per policy and request: when it came, was admitted, had its first and last token; what it hit."""
        return _frame([row for story in self._stories for row in requests_of(story)])

    @cached_property
    def iterations(self) -> pd.DataFrame:
        """One line per policy and iteration: who ran, what it took, waits by cause, and bytes moved."""
        return _frame([row for story in self._stories for row in iterations_of(story)])

    @cached_property
    def sentences(self) -> list[str]:
        """What a person would say."""
        return latencies.sentences(self.rows)

    @cached_property
    def expectations(self) -> list[Verdict]:
        """What the scenario expects of these rows, and whether it holds; nothing if the machine was changed."""
        if self.is_changed:
            return []
        return verdicts(self.loaded.scenario.expect, {str(row["policy"]): row for row in self.rows})

    def figure(self) -> Picture:
        """Draw who has the first token after how long, what a further one takes, and how many wait."""
        from simulator.serving.latency_figure import serving_picture  # noqa: PLC0415 - drawing takes time to import

        about = {story.policy: (requests_of(story), iterations_of(story)) for story in self._stories}
        return serving_picture(about, self.loaded.scenario.title or self.loaded.scenario.name)

    def __str__(self) -> str:
        return "\n\n".join(filter(None, (latencies.table(self.rows), "\n".join(self.sentences))))

    def write(self, out: str | Path) -> None:
        """Write the rows, the requests, the iterations, the picture and the documents into a folder.

        Parameters
        ----------
        out
            The folder; filled beside its place and renamed. An earlier run's is replaced.
        """
        from simulator.run.provenance import filled  # noqa: PLC0415

        told, seed = [asdict(verdict) for verdict in self.expectations], self.loaded.scenario.seed
        more = {"sentences": self.sentences, "expectations": told, "seed": seed}
        with filled(out, self.loaded, self.rows, more) as folder:
            for name, table in (("requests", self.requests), ("iterations", self.iterations)):
                table.to_csv(folder / f"{name}.csv", index=False, lineterminator="\n")
            picture = self.figure()
            for kind in ("png", "svg"):
                picture.write(str(folder / f"serving.{kind}"), kind)


def _frame(rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    import pandas as pd  # noqa: PLC0415 - slow to import, and the text needs none

    frame = pd.DataFrame(list(rows))
    whole = [column for column in map(str, frame) if column.endswith(("_ns", "_bytes"))]
    return frame.astype(dict.fromkeys(whole, "Int64"))


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
    asked = _asked(loaded)
    progress = progress or silent
    names, come = read_served(loaded, policies, progress)
    links = loaded.hardware.link_names
    room = rooms(loaded, asked, come.requests)
    token_bytes = room.block_bytes // asked.block
    tokens = int(min(room.blocks[0], _enough(come.requests))) * asked.block
    stories = []
    for name in names:
        known = Replays(loaded, name, tokens, exact=exact, most=replays)
        stories.append(serve_row(name, known, room, asked, come.requests, progress))
    shared = of_all(asked, come)
    return Serving(loaded, [summary(story, links, token_bytes) | shared for story in stories], bool(set), stories)


def read_served(
    loaded: Loaded, policies: Sequence[str] | None = None, progress: Progress = silent
) -> tuple[list[str], Arriving]:
    """Read the rows and the requests of a scenario; nothing runs.

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
    asked, come = _asked(loaded), arriving(loaded, progress)
    room = rooms(loaded, asked, come.requests)
    one_came = Story("", room.names, [Served(0, come.requests[0])])
    columns = tuple(summary(one_came, loaded.hardware.link_names, 0) | of_all(asked, come))
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
    return rows_of(loaded, policies), come


def _asked(loaded: Loaded) -> Requests:
    if loaded.workload.requests is None:
        must, do = "what is served is a workload of requests", "use hosim run, or add 'phase: requests' and requests"
        raise ConfigError(loaded.place("workload"), must, f"phase {loaded.workload.phase}", do)
    return loaded.workload.requests


def _enough(requests: Sequence[Request]) -> int:
    """More blocks than all requests together ever hold."""
    return sum(one.prompt + one.output for one in requests)
