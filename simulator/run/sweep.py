"""A sweep: vary documents over many points, measure each point in some process, and collect one tidy table.

A study says what varies and what is measured. Its points are given (a grid, a list, draws) or searched: next come the
candidates on one axis that lie between two points whose rows differ, until none is left.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field
from functools import cached_property, partial
from itertools import pairwise
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

from simulator import builders, catalog
from simulator.catalog import Axis, BudgetError, Loaded, MistypedError
from simulator.document import Document
from simulator.errors import CapacityError, ConfigError, HosimError, PlanError
from simulator.metrics import frame
from simulator.processes import Make, spawned
from simulator.report import files
from simulator.report.card import Card, cards, model_amounts, texts
from simulator.report.expectations import Verdict
from simulator.report.files import dumped
from simulator.report.views import SweepView
from simulator.run.kept import KeptRows
from simulator.run.provenance import provenance
from simulator.units import human

if TYPE_CHECKING:
    import pandas as pd

    from simulator.report.drawing import Drawn, Given


Row = dict[str, Any]
Rows = list[Row]
Point = tuple[Any, ...]  # a value for each axis of a study
Task = tuple[int, Point]  # the index of a study, and a point of it
Progress = Callable[[str, int, int], None]
"""Called now and then with a label of the work, the amount done, and the total."""
RunTasks = Callable[[Make, Sequence[tuple[int, Any]], int], Generator[tuple[int, Any], None, None]]
"""Function that runs tasks in processes, as `simulator.processes.spawned` does."""


def silent(label: str, done: int, total: int) -> None:
    """Show no progress."""


@dataclass(frozen=True, eq=False)
class Study:
    """Points on some axes, and how to measure each.

    Attributes
    ----------
    loaded
        The base: a scenario, its machine and its workload.
    measure
        Function that returns the rows at a point, from the documents there; it is pickled.
    axes, points
        The axes, and the points that are measured (first, if the study searches).
    candidates, differ
        Values of the one axis, ascending, that may be tried between two points; and the function that tells from the
        rows of these whether to. None: only the given points.
    about
        Columns that all rows have, before those of the axes.
    is_strict
        Whether an error of a document or a plan at a point is raised; else it becomes a row with status ``failed``.
    probes
        Points at which documents are checked before any is measured; none: nothing is checked; default: all given ones.
    key
        Function that returns the key under which a point's rows are kept; None: they are not kept.
    more
        Function that returns further points once no candidate lies between two points whose rows differ.
    """

    loaded: Loaded
    measure: Callable[[Loaded, Point], Rows]
    axes: tuple[Axis, ...] = ()
    points: Sequence[Point] = ((),)
    candidates: Sequence[Any] = ()
    differ: Callable[[Rows, Rows], bool] | None = None
    about: Mapping[str, Any] = field(default_factory=dict)
    is_strict: bool = False
    probes: Sequence[Point] | None = None
    key: Callable[[Point], bytes] | None = None
    more: Callable[[Mapping[Point, Rows]], list[Point]] | None = None

    def at(self, point: Point) -> Loaded:
        """Return the documents at a point."""
        varied = {axis: value for axis, value in zip(self.axes, point, strict=True) if axis.fields}
        return catalog.at(self.loaded, varied) if varied else self.loaded

    def check(self) -> None:
        """Refuse values that their fields can never hold, and wrong points: any of a strict study, else if all are."""
        probes, sound = self.points if self.probes is None else self.probes, dict[int, Document]()
        errors = [self._wrong(point, sound) for point in probes]
        first = next(filter(None, errors), None)
        if first and (self.is_strict or (all(errors) and all(self._wrong(point, sound) for point in self.points))):
            raise first

    def _wrong(self, point: Point, sound: dict[int, Document]) -> ConfigError | None:
        """Return what is wrong at a point, if not strict without its budget; the `sound`, by identity, were checked."""
        try:
            workload = self.at(point).workload
            if id(workload) not in sound:
                builders.check(workload)
                sound[id(workload)] = workload
        except MistypedError:
            raise
        except ConfigError as error:
            return error if self.is_strict or not isinstance(error, BudgetError) else None
        return None

    def rows(self, point: Point) -> Rows:
        """Measure a point."""
        try:
            return self.measure(self.at(point), point)
        except (ConfigError, PlanError, CapacityError) as error:
            if self.is_strict:
                raise
            return [{"status": "infeasible" if isinstance(error, BudgetError) else "failed", "notes": str(error)}]

    def labelled(self, point: Point, rows: Rows) -> Rows:
        """Return the rows of a point with the study's columns and the point's values in front."""
        where = {**self.about, **{axis.name: value for axis, value in zip(self.axes, point, strict=True)}}
        return [{**where, **row} for row in rows]

    def next_points(self, measured: Mapping[Point, Rows]) -> list[Point]:
        """Return the points to measure next: the given ones, then a candidate between any two whose rows differ."""
        missing = [point for point in dict.fromkeys(self.points) if point not in measured]
        if missing or self.differ is None:
            return missing
        wanted = list[Point]()
        for low, high in pairwise(sorted(measured)):
            first, last = bisect_right(self.candidates, *low), bisect_left(self.candidates, *high)
            if first < last and self.differ(measured[low], measured[high]):
                wanted.append((self.candidates[(first + last) // 2],))
        return wanted or (self.more(measured) if self.more else [])


class Pace:
    """Reports to `progress` how fast points are measured; if `by_line`, also by lines that stay."""

    def __init__(self, progress: Progress | None, workers: int, *, by_line: bool) -> None:
        self._progress, self._workers, self._by_line, self._since_s = progress or silent, workers, by_line, monotonic()
        self._new = self._done = self._total = 0

    def expect(self, tasks: int, new: int) -> None:
        """Add the number of further points, and of the new ones among them."""
        self._total = self._done + tasks
        self._done += tasks - new
        if self._by_line:
            self.say(f"{tasks:,} points, {tasks - new:,} of them kept from before")

    def say(self, line: str) -> None:
        """Report a line that stays."""
        self._progress(line, 0, -1)

    def tell(self) -> None:
        """Report that another point was measured."""
        now_s, since_s = monotonic(), self._since_s
        each_s = (now_s - since_s) / max(self._new, 1)
        self._since_s = since_s if self._new else now_s  # until the first, processes start and build what is shared
        self._new, self._done = self._new + 1, self._done + 1
        lacking = self._total - self._done
        left = human(round(each_s * lacking * 10**9), "ns")
        self._progress(f"{1 / max(each_s, 1e-9):.3g} points a second, {left} left", self._done, self._total)
        if self._by_line and self._new == self._workers + 1 and lacking:  # some process has measured its second point
            self.say(f"about {left} for the other {lacking:,}")


def sweep(studies: Sequence[Study], workers: int = 1, progress: Progress | None = None) -> Rows:
    """Measure all points of some studies; for parameters, errors and the order of rows see `streamed`."""
    return [row for rows in streamed(studies, workers, Pace(progress, workers, by_line=False)) for row in rows]


def streamed(
    studies: Sequence[Study], workers: int, pace: Pace, kept: KeptRows | None = None, run_tasks: RunTasks = spawned
) -> Iterator[Rows]:
    """Measure all points of some studies, and yield the rows of each point in order, as soon as they are ready.

    Parameters
    ----------
    studies
        The studies; all their points are checked before any is measured.
    workers
        Number of processes, which are spawned; the result does not depend on it.
    pace
        Reports progress.
    kept
        Rows of earlier sweeps, to which new ones are added at once; used for studies with a `key`.
    run_tasks
        Runs the tasks: in local processes, or on a cluster.

    Yields
    ------
    list of dict
        The rows of a point, study by study and point by point; if a study searches, only at the end.

    Raises
    ------
    ConfigError
        If a document is not valid at a point.
    HosimError
        If no process survives, or one dies twice at a point of a strict study.
    """
    for study in studies:
        study.check()
    measuring, is_searched = _Measuring(studies, workers, pace, kept, run_tasks), any(study.differ for study in studies)
    measured: list[dict[Point, Rows]] = [{} for _ in studies]
    while tasks := [(n, point) for n, study in enumerate(studies) for point in study.next_points(measured[n])]:
        with closing(measuring.in_order(tasks)) as outcomes:
            for (n, point), rows in outcomes:
                if is_searched:
                    measured[n][point] = rows
                else:  # yielded rows take no memory
                    yield studies[n].labelled(point, rows)
        if not is_searched:
            return
    for study, by_point in zip(studies, measured, strict=True):
        for point in sorted(by_point) if study.differ else study.points:
            yield study.labelled(point, by_point[point])


class _Measuring:
    """Measures points, and keeps their rows on disk."""

    def __init__(
        self, studies: Sequence[Study], workers: int, pace: Pace, kept: KeptRows | None, run_tasks: RunTasks
    ) -> None:
        self._studies, self._workers, self._pace, self._kept, self._run_tasks = studies, workers, pace, kept, run_tasks

    def _kept_rows(self, task: Task) -> Rows | None:
        """Return the kept rows of a point; None if there are none."""
        key = self._studies[task[0]].key
        return None if self._kept is None or key is None else self._kept.get(key(task[1]))

    def in_order(self, tasks: Sequence[Task]) -> Generator[tuple[Task, Rows], None, None]:
        """Yield the rows of points in order, and measure the points that have no kept rows."""
        new, ended = dict.fromkeys(task for task in tasks if self._kept_rows(task) is None), dict[Task, Rows]()
        self._pace.expect(len(tasks), len(new))
        with closing(self._measured(list(new))) as outcomes:
            for task in tasks:
                while task in new and task not in ended:
                    ended |= [next(outcomes)]
                yield task, ended.pop(task) if task in new else self._kept_rows(task) or []

    def _measured(self, new: Sequence[Task]) -> Generator[tuple[Task, Rows], None, None]:
        """Measure points, and yield the rows of each as it ends. A point that kills its process twice is ``failed``."""
        processes = self._workers if min(self._workers, len(new)) > 1 else 0
        with closing(self._run_tasks(partial(_measure, self._studies), list(enumerate(new)), processes)) as outcomes:
            lost = dict(enumerate(new))
            for index, rows in outcomes:
                study, point = lost.pop(index)
                if self._kept is not None and (key := self._studies[study].key) is not None:
                    self._kept.put(key(point), rows)
                self._pace.tell()
                yield (study, point), rows
        if lost and (len(lost) == len(new) or any(self._studies[study].is_strict for study, _ in lost.values())):
            must = "a process survives until it has measured its points"
            do = "see whether memory is short, and use fewer; a script calls it under if __name__ == '__main__':"
            raise HosimError("workers", must, f"{len(lost)} that died", do)
        yield from ((task, [{"status": "failed", "notes": _LOST}]) for task in lost.values())


_LOST = "its process died, twice: see whether memory is short, and use fewer"


def _measure(studies: Sequence[Study]) -> Callable[[Task], Rows]:
    return lambda task: studies[task[0]].rows(task[1])


@dataclass(frozen=True, eq=False)
class Sweep:
    """Result of a sweep.

    Attributes
    ----------
    name
        The command, such as ``sweep``.
    loaded
        The scenarios, each with its machine and its workload.
    view
        Table, sentences and pictures of the rows.
    tables
        Tables that the rows summarise, by name; ``points`` has everything that was measured.
    more
        Further entries of ``summary.json``.
    points
        File to which rows were appended as they came; it moves into the folder of results.
    texts
        Further documents for the folder, by file name.
    also
        Function that makes further sweeps for page and summary when the result is written, such as `limits`.
    """

    name: str
    loaded: Sequence[Loaded] = field(repr=False)
    rows: Sequence[Row] = field(repr=False)
    view: SweepView = field(repr=False)
    tables: Mapping[str, Sequence[Row]] = field(default_factory=dict, repr=False)
    more: Mapping[str, Any] = field(default_factory=dict, repr=False)
    points: Path | None = field(default=None, repr=False)
    texts: Mapping[str, str] = field(default_factory=dict, repr=False)
    also: Callable[[], Sequence[Sweep]] = field(default=tuple, repr=False)

    @cached_property
    def table(self) -> pd.DataFrame:
        """Table of everything measured; times [ns] and sizes [B] stay integers even if a row lacks one."""
        return frame(self.tables.get("points", self.rows))

    @property
    def sentences(self) -> list[str]:
        """Sentences for people."""
        return list(self.view.sentences)

    @property
    def expectations(self) -> Sequence[Verdict]:
        """Verdicts on the expectations of the rows."""
        return ()

    def figure(self, ax: Given = None) -> Drawn:
        """Draw a curve for each policy or figure over the axis; over two or three axes, draw maps."""
        from simulator.report.pictures import curves, maps  # noqa: PLC0415 - drawing takes time to import

        view = self.view
        return maps(view.title, view.maps, ax) if view.maps else curves(view.title, view.panels, ax)

    @property
    def card(self) -> dict[str, Card]:
        """Model, machine and software of a single scenario, before anything varies; empty for several scenarios."""
        of_all = [cards(model_amounts(each.workload, None), each.hardware, each.software) for each in self.loaded[:1]]
        return {name: texts(amounts) for name, amounts in of_all[0].items()} if len(self.loaded) == 1 else {}

    def _repr_html_(self) -> str:
        return self.view._repr_html_()

    def json(self) -> bytes:
        """Write the rows and the sentences as JSON."""
        return dumped({"schema": f"hosim-{self.name}/1", **self.more, "rows": self.rows, "sentences": self.sentences})

    def __str__(self) -> str:
        return str(self.view)

    def _drawn(self, folder: Path) -> bytes:
        """Draw the picture into a folder, as PNG and SVG, and return the PNG."""
        from simulator.report.drawing import picture  # noqa: PLC0415 - drawing takes time to import

        drawn = picture(self.figure())
        for kind in ("png", "svg"):
            drawn.write(str(folder / f"{self.name}.{kind}"), kind)
        return (folder / f"{self.name}.png").read_bytes()

    def write(self, out: str | Path, command: str = "") -> None:
        """Write the rows, the tables, a page, the picture and the documents into a folder.

        Parameters
        ----------
        out
            The folder; filled under a temporary name and then renamed. The folder of an earlier run is replaced.
        command
            The command that reproduces the result, for the page.
        """
        with files.replaced(Path(out)) as folder:
            drawn = self._drawn(folder) if self.view.panels or self.view.maps else None
            origins = {loaded.scenario.name: provenance(loaded) for loaded in self.loaded}
            also = self.also()
            parts = [(other.view, None) for other in also]
            page = self.view.page(drawn, parts=parts, card=self.card, origins=origins, command=command)
            (folder / "report.html").write_text(page, encoding="utf-8")
            for name, table in self.tables.items():
                if name == "points" and self.points is not None and self.points.exists():
                    self.points.rename(folder / "points.csv")
                    continue
                frame(table).to_csv(folder / f"{name}.csv", index=False, lineterminator="\n")
            if len(self.loaded) == 1:
                files.write_texts(folder, {**self.loaded[0].documents(), **self.texts})
            origin = next(iter(origins.values())) if len(origins) == 1 else origins
            verdicts = [asdict(verdict) for verdict in self.expectations]
            more: dict[str, Any] = {other.name: {**other.more, "rows": other.rows} for other in also}
            more |= {**self.more, "sentences": self.sentences, "expectations": verdicts, "provenance": origin}
            files.write_summary(folder, self.rows, more)
