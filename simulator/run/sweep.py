"""A sweep: documents at many points, measured in as many processes as asked, as one tidy table.

A study says what varies and what is measured. Its points are given beforehand (a grid, a list, draws), or searched: of
candidates on one axis those are tried next that lie between two whose rows differ, until none is left between them.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from simulator import builders, catalog
from simulator.catalog import Axis, Loaded
from simulator.errors import CapacityError, ConfigError, PlanError
from simulator.processes import worked
from simulator.report import files
from simulator.report.summaries import dumped
from simulator.report.view import View
from simulator.run.provenance import provenance

if TYPE_CHECKING:
    import pandas as pd

    from simulator.report.drawing import Picture


Row = dict[str, Any]
Rows = list[Row]
Point = tuple[Any, ...]
"""A value for each axis of a study."""
Progress = Callable[[str, int, int], None]
Task = TypeVar("Task")
Outcome = TypeVar("Outcome")

_ATTEMPTS = 2
"""A task whose process dies is begun so often again, alone: a second death is not the fault of its neighbours."""


@dataclass(frozen=True, eq=False)
class Study:
    """What varies, and what is measured.

    Attributes
    ----------
    loaded
        The base: a scenario, its machine and its workload.
    measure
        Rows of the documents at a point; it is sent between processes. What it raises because of a document or a plan
        is a row with the status ``failed``.
    axes, points
        What varies, and the points that are measured (first).
    candidates
        Of one axis, ascending: what may be tried between two values that were, if their rows differ.
    differ
        Whether rows differ so that values between are tried; None: no more points than those given.
    about
        Columns that all rows have, in front of those of the axes.
    known
        Rows of points that were measured before.
    is_strict
        Whether what a point raises is raised, and is not a row.
    """

    loaded: Loaded
    measure: Callable[[Loaded, Point], Rows]
    axes: tuple[Axis, ...] = ()
    points: Sequence[Point] = ((),)
    candidates: Sequence[Any] = ()
    differ: Callable[[Rows, Rows], bool] | None = None
    about: Mapping[str, Any] = field(default_factory=dict)
    known: Mapping[Point, Rows] = field(default_factory=dict)
    is_strict: bool = False

    def at(self, point: Point) -> Loaded:
        """Return the documents at a point."""
        return catalog.at(self.loaded, dict(zip(self.axes, point, strict=True))) if point else self.loaded

    def check(self) -> None:
        """Refuse points at which a document, or what is built from it, is not valid."""
        for point in self.points:
            builders.check(self.at(point).workload)

    def rows(self, point: Point) -> Rows:
        """Measure a point."""
        try:
            return self.measure(self.at(point), point)
        except (ConfigError, PlanError, CapacityError) as error:
            if self.is_strict:
                raise
            return [failed(str(error))]

    def wanted(self, known: Mapping[Point, Rows]) -> list[Point]:
        """List the points to be measured next: those given, then candidates between two whose rows differ."""
        missing = [point for point in dict.fromkeys(self.points) if point not in known]
        if missing or self.differ is None:
            return missing
        tried = sorted(value for (value,) in known)
        turning = (pair for pair in pairwise(tried) if self.differ(*(known[value,] for value in pair)))
        inside = ((bisect_right(self.candidates, low), bisect_left(self.candidates, high)) for low, high in turning)
        return [(self.candidates[(first + last) // 2],) for first, last in inside if first < last]

    def labelled(self, known: Mapping[Point, Rows]) -> Rows:
        """List the rows of all points, each with what the study and its point are."""
        points = sorted(known) if self.differ else self.points
        names = [axis.name for axis in self.axes]
        return [
            {**self.about, **dict(zip(names, point, strict=True)), **row} for point in points for row in known[point]
        ]


def failed(why: str) -> Row:
    """Return the row of a point that could not be measured."""
    return {"status": "failed", "notes": why}


def sweep(studies: Sequence[Study], workers: int = 1, progress: Progress | None = None) -> Rows:
    """Measure all points of some studies.

    Parameters
    ----------
    studies
        What varies and what is measured; all their points are checked before any is measured.
    workers
        How many processes; the result does not depend on it.
    progress
        Called with the number of points that are measured, and of those that are known to be wanted.

    Returns
    -------
    list of dict
        A row for each that was measured, study by study and point by point.

    Raises
    ------
    ConfigError
        If a document is not valid at a point.
    """
    for study in studies:
        study.check()
    known = [dict(study.known) for study in studies]
    done = 0
    while tasks := [(n, point) for n, study in enumerate(studies) for point in study.wanted(known[n])]:
        tell = partial(_tell, progress, done, done + len(tasks))
        tell(0)
        lost = partial(_lost, studies)
        for (number, point), rows in zip(
            tasks, spread(partial(_measure, studies), tasks, workers, lost, tell), strict=True
        ):
            known[number][point] = rows
        done += len(tasks)
    return [row for study, own in zip(studies, known, strict=True) for row in study.labelled(own)]


def _tell(progress: Progress | None, before: int, total: int, done: int) -> None:
    if progress is not None:
        progress("points", before + done, total)


def _measure(studies: Sequence[Study]) -> Callable[[tuple[int, Point]], Rows]:
    return lambda task: studies[task[0]].rows(task[1])


def _lost(studies: Sequence[Study], task: tuple[int, Point]) -> Rows:
    study, point = studies[task[0]], task[1]
    if study.is_strict:
        found = f"one that died twice, at {point}" if point else "one that died twice"
        raise ConfigError(
            study.loaded.scenario.name, "a point is measured by a process", found, "run it alone: hosim run"
        )
    return [failed("its process died") | {"status": "lost"}]


def spread(
    make: Callable[[], Callable[[Task], Outcome]],
    tasks: Sequence[Task],
    workers: int,
    lost: Callable[[Task], Outcome],
    tell: Callable[[int], None],
) -> list[Outcome]:
    """Do many tasks in several processes; their outcomes come in the order of the tasks, whoever does them.

    Parameters
    ----------
    make
        Builds what does one task, once in each process, which starts afresh (spawn).
    tasks
        The tasks; they and their outcomes are sent between processes.
    workers
        How many processes; 1 does everything in this one.
    lost
        The outcome of a task whose process dies at each attempt.
    tell
        Called with the number of tasks that are done.
    """
    done: dict[int, Outcome] = {}
    is_small = workers <= 1 or len(tasks) < 2
    for processes in (0,) if is_small else (workers, *[1] * _ATTEMPTS):
        left = [(number, task) for number, task in enumerate(tasks) if number not in done]
        with closing(worked(make, left, processes)) as outcomes:
            for number, outcome in outcomes:
                done[number] = outcome
                tell(len(done))
    return [done[number] if number in done else lost(task) for number, task in enumerate(tasks)]


@dataclass(frozen=True, eq=False)
class Sweep:
    """What came of a sweep.

    Attributes
    ----------
    name
        The command: ``scaling``, ``largest``, ``robust``, ``sensitivity`` or ``validate``.
    loaded
        The scenarios, each with its machine and its workload.
    rows
        What there is to say, a row each.
    view
        How they are shown.
    outcomes
        All that was measured, if the rows sum it up.
    more
        Further entries of ``summary.json``.
    """

    name: str
    loaded: Sequence[Loaded] = field(repr=False)
    rows: Sequence[dict[str, Any]] = field(repr=False)
    view: View = field(repr=False)
    outcomes: Sequence[dict[str, Any]] = field(default=(), repr=False)
    more: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @cached_property
    def table(self) -> pd.DataFrame:
        """All that was measured, tidy; times [ns] and sizes [B] are whole numbers even where a row has none."""
        return frame(self.outcomes or self.rows)

    @property
    def sentences(self) -> list[str]:
        """What a person would say."""
        return list(self.view.sentences)

    def figure(self) -> Picture:
        """Draw a curve for each policy, or for each figure, over what varied."""
        from simulator.report.curves import curves  # noqa: PLC0415 - drawing takes time to import

        return curves(self.view.title, self.view.panels)

    def json(self) -> bytes:
        """Write the rows and the sentences as JSON."""
        return dumped({"schema": f"hosim-{self.name}/1", **self.more, "rows": self.rows, "sentences": self.sentences})

    def __str__(self) -> str:
        return str(self.view)

    def write(self, out: str | Path) -> None:
        """Write the rows, all that was measured, a page, the picture and the documents into a folder.

        Parameters
        ----------
        out
            The folder; filled beside its place and renamed. An earlier run's is replaced.
        """
        with filled(out, self.loaded, self.rows, {**self.more, "sentences": self.sentences}) as folder:
            picture = self.figure() if self.view.panels else None
            if picture is not None:
                for kind in ("png", "svg"):
                    picture.write(str(folder / f"{self.name}.{kind}"), kind)
            (folder / "report.html").write_text(self.view.page(picture.png() if picture else None), encoding="utf-8")
            if self.outcomes:
                self.table.to_csv(folder / "points.csv", index=False, lineterminator="\n")


def frame(rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """Make a table of rows; times [ns] and sizes [B] are whole numbers even where a row has none."""
    import pandas as pd  # noqa: PLC0415 - slow to import, and the text needs none

    found = pd.DataFrame(list(rows))
    columns, ends = map(str, found), ("_ns", "_bytes")
    whole = [column for column in columns if column.endswith(ends) or column.startswith("largest_")]
    return found.astype(dict.fromkeys(whole, "Int64"))


@contextmanager
def filled(
    out: str | Path, loaded: Sequence[Loaded], rows: Sequence[Mapping[str, Any]], more: Mapping[str, Any]
) -> Iterator[Path]:
    """Give a folder to fill, and write beside what it is filled with the documents and the summary.

    Parameters
    ----------
    out
        The folder; filled beside its place and renamed. An earlier run's is replaced.
    loaded, rows
        The documents that were resolved, written out if they are of one scenario; and the rows of the summary.
    more
        Further entries of ``summary.json``; where everything comes from is added.
    """
    with files.replaced(Path(out)) as folder:
        yield folder
        if len(loaded) == 1:
            files.write_texts(folder, loaded[0].documents())
        origins = {one.scenario.name: provenance(one) for one in loaded}
        origin = next(iter(origins.values())) if len(origins) == 1 else origins
        files.write_summary(folder, rows, {**more, "provenance": origin})
