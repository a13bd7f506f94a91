"""A sweep: set documents to many points, measure each in some process, and collect one tidy table.

A study says what varies and what is measured. Its points are given beforehand (a grid, a list, draws), or searched: of
candidates on one axis those are tried next that lie between two whose rows differ, until none is left between them.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, nullcontext, suppress
from dataclasses import asdict, dataclass, field
from functools import cached_property, partial
from itertools import pairwise
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

from simulator import builders, catalog
from simulator.catalog import Axis, BudgetError, Loaded
from simulator.errors import CapacityError, ConfigError, HosimError, PlanError
from simulator.metrics import figure_of
from simulator.processes import Make, spawned
from simulator.report import files
from simulator.report.card import Card, machine_card, model_card
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
Point = tuple[Any, ...]
"""A value for each axis of a study."""
Task = tuple[int, Point]
"""Which study, and a point of it."""
Progress = Callable[[str, int, int], None]
"""Called now and then with what is at work, how much of it is done, and how much there is in all."""
Does = Callable[[Make, Sequence[tuple[int, Any]], int], Generator[tuple[int, Any], None, None]]
"""Does tasks in some processes, as `simulator.processes.spawned` does."""


def silent(label: str, done: int, total: int) -> None:
    """Show no progress."""


@dataclass(frozen=True, eq=False)
class Study:
    """What varies, and what is measured.

    Attributes
    ----------
    loaded
        The base: a scenario, its machine and its workload.
    measure
        Rows of the documents at a point; it is sent between processes.
    axes, points
        What varies, and the points that are measured (first).
    candidates, differ
        Of one axis, ascending: what may be tried between two values that were; and whether their rows differ so that it
        is. None: no more points than those given.
    about
        Columns that all rows have, in front of those of the axes.
    is_strict
        Whether what a point raises because of a document or a plan is raised; else it is a row, ``failed``.
    probes
        Points at which documents are checked before any is measured; default: all that are given.
    key
        What the rows of a point are kept under; None: they are not kept.
    more
        Points that are wanted further, where no candidate lies between any two whose rows differ.
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
        """Refuse points at which a document, or what is built from it, is wrong; a budget too large becomes a row."""
        last = None
        for point in self.points if self.probes is None else self.probes:
            with nullcontext() if self.is_strict else suppress(BudgetError):
                workload = self.at(point).workload
                if workload is not last:
                    builders.check(workload)
                last = workload

    def rows(self, point: Point) -> Rows:
        """Measure a point."""
        try:
            return self.measure(self.at(point), point)
        except (ConfigError, PlanError, CapacityError) as error:
            if self.is_strict:
                raise
            return [{"status": "infeasible" if isinstance(error, BudgetError) else "failed", "notes": str(error)}]

    def placed(self, point: Point, rows: Rows) -> Rows:
        """Put what the study is about, and the values of a point, in front of the rows of the point."""
        where = {**self.about, **{axis.name: value for axis, value in zip(self.axes, point, strict=True)}}
        return [{**where, **row} for row in rows]

    def wanted(self, known: Mapping[Point, Rows]) -> list[Point]:
        """Return the points to measure next: those given first, then a candidate between any two whose rows differ."""
        missing = [point for point in dict.fromkeys(self.points) if point not in known]
        if missing or self.differ is None:
            return missing
        turning = (pair for pair in pairwise(sorted(known)) if self.differ(known[pair[0]], known[pair[1]]))
        inside = (
            (bisect_right(self.candidates, low), bisect_left(self.candidates, high)) for (low,), (high,) in turning
        )
        wanted = [(self.candidates[(first + last) // 2],) for first, last in inside if first < last]
        return wanted or (self.more(known) if self.more else [])


class Pace:
    """Tells `progress` how fast points are measured, and of how many; if it `is_told`, in lines of their own, too."""

    def __init__(self, progress: Progress | None, workers: int, *, is_told: bool) -> None:
        self._progress, self._workers, self._is_told, self._since_s = progress or silent, workers, is_told, monotonic()
        self._new = self._done = self._total = 0

    def more(self, tasks: int, new: int) -> None:
        """Note that so many more points are wanted, and that so many of them are new."""
        self._total = self._done + tasks
        self._done += tasks - new
        if self._is_told:  # -1 stands for a line of its own
            self._progress(f"{tasks:,} points, {tasks - new:,} of them kept from before", 0, -1)

    def tell(self) -> None:
        """Tell that one more point was measured."""
        now_s, since_s = monotonic(), self._since_s
        each_s = (now_s - since_s) / max(self._new, 1)
        self._since_s = since_s if self._new else now_s  # before the first, processes start and build what is shared
        self._new, self._done = self._new + 1, self._done + 1
        lacking = self._total - self._done
        left = human(round(each_s * lacking * 10**9), "ns")
        self._progress(f"points, {1 / max(each_s, 1e-9):.3g} a second, {left} left", self._done, self._total)
        if self._is_told and self._new == self._workers + 1 and lacking:  # one process has measured its second
            self._progress(f"about {left} for the other {lacking:,}", 0, -1)


def sweep(studies: Sequence[Study], workers: int = 1, progress: Progress | None = None) -> Rows:
    """Measure all points of some studies; parameters, errors and the order of rows are those of `streamed`."""
    return [row for rows in streamed(studies, workers, Pace(progress, workers, is_told=False)) for row in rows]


def streamed(
    studies: Sequence[Study], workers: int, pace: Pace, kept: KeptRows | None = None, does: Does = spawned
) -> Iterator[Rows]:
    """Measure all points of some studies, and give the rows of each as soon as all before it are there.

    Parameters
    ----------
    studies
        What varies and what is measured; all their points are checked before any is measured.
    workers
        How many processes, which start afresh; the result does not depend on it.
    pace
        Tells how fast it goes.
    kept
        Rows that were measured before; what is new is kept there at once.
    does
        What does the tasks: processes here, or a cluster.

    Yields
    ------
    list of dict
        The rows of a point, study by study and point by point. Where a study searches, they come in the end.

    Raises
    ------
    ConfigError
        If a document is not valid at a point.
    HosimError
        If no process lives, or one dies twice at a point of a study that is strict.
    """
    for study in studies:
        study.check()
    measuring = _Measuring(studies, workers, pace, kept, does)
    if any(study.differ for study in studies):
        yield from _searched(studies, measuring)
        return
    tasks = list(dict.fromkeys((n, point) for n, study in enumerate(studies) for point in study.points))
    new, ended = measuring.missing(tasks), dict[Task, Rows]()
    with closing(measuring.measured(list(new))) as outcomes:
        for number, point in tasks:
            while (number, point) in new and (number, point) not in ended:
                ended |= [next(outcomes)]
            rows = ended.pop((number, point), None) or measuring.kept(number, point) or []
            yield studies[number].placed(point, rows)


def _searched(studies: Sequence[Study], measuring: _Measuring) -> Iterator[Rows]:
    """Measure what studies want next until none wants more, and then give the rows of all points in their order."""
    known: list[dict[Point, Rows]] = [{} for _ in studies]
    while tasks := [(n, point) for n, study in enumerate(studies) for point in study.wanted(known[n])]:
        measuring.missing(tasks)
        for (number, point), rows in measuring.measured(tasks):
            known[number][point] = rows
    for study, found in zip(studies, known, strict=True):
        for point in sorted(found) if study.differ else study.points:
            yield study.placed(point, found[point])


class _Measuring:
    """Measures points, and keeps their rows."""

    def __init__(self, studies: Sequence[Study], workers: int, pace: Pace, kept: KeptRows | None, does: Does) -> None:
        self._studies, self._workers, self._pace, self._kept, self._does = studies, workers, pace, kept, does

    def _key(self, number: int, point: Point) -> bytes | None:
        key = self._studies[number].key
        return key(point) if key is not None and self._kept is not None else None

    def kept(self, number: int, point: Point) -> Rows | None:
        """Return the rows of a point that was measured before; None if it was not."""
        key = self._key(number, point)
        return None if self._kept is None or key is None else self._kept.get(key)

    def missing(self, tasks: Sequence[Task]) -> dict[Task, None]:
        """Return the points that were not measured before, in their order."""
        new = dict.fromkeys(task for task in tasks if self.kept(*task) is None)
        self._pace.more(len(tasks), len(new))
        return new

    def measured(self, new: Sequence[Task]) -> Generator[tuple[Task, Rows], None, None]:
        """Measure points, and give the rows of each once it ends. A point that kills its process twice has failed.

        Raises
        ------
        HosimError
            If no process lives, or of a study that is strict one dies.
        """
        processes = self._workers if min(self._workers, len(new)) > 1 else 0
        with closing(self._does(partial(_measure, self._studies), list(enumerate(new)), processes)) as outcomes:
            lost = dict(enumerate(new))
            for at, rows in outcomes:
                if self._kept is not None and (key := self._key(*new[at])):
                    self._kept.put(key, rows)
                self._pace.tell()
                yield lost.pop(at), rows
        if lost and (len(lost) == len(new) or any(self._studies[number].is_strict for number, _ in lost.values())):
            must = "a process lives until it has measured its points"
            do = "see whether memory is short, and use fewer; a script calls it under if __name__ == '__main__':"
            raise HosimError("workers", must, f"{len(lost)} that died", do)
        yield from ((task, [{"status": "failed", "notes": _LOST}]) for task in lost.values())


_LOST = "its process died, twice: see whether memory is short, and use fewer"


def _measure(studies: Sequence[Study]) -> Callable[[Task], Rows]:
    return lambda task: studies[task[0]].rows(task[1])


@dataclass(frozen=True, eq=False)
class Sweep:
    """What came of a sweep.

    Attributes
    ----------
    name
        The command, such as ``sweep``.
    loaded
        The scenarios, each with its machine and its workload.
    rows
        What there is to say, a row each.
    view
        How they are shown.
    tables
        By name, what the rows sum up: ``points``, all that was measured.
    more
        Further entries of ``summary.json``.
    points
        File to which all rows were appended as they came; it moves into the folder of results.
    texts
        Further documents of the folder, by file name.
    also
        Finds, when it is written, what else stands on the page and in the summary, such as what limits.
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
        """All that was measured, tidy; times [ns] and sizes [B] are whole numbers even where a row has none."""
        return frame(self.tables.get("points", self.rows))

    @property
    def sentences(self) -> list[str]:
        """What a person would say."""
        return list(self.view.sentences)

    @property
    def expectations(self) -> Sequence[Verdict]:
        """Verdicts on what is expected of the rows."""
        return ()

    def figure(self, ax: Given = None) -> Drawn:
        """Draw a curve for each policy or figure over what varied; over two axes or three, maps."""
        from simulator.report.pictures import curves, maps  # noqa: PLC0415 - drawing takes time to import

        view = self.view
        return maps(view.title, view.maps, ax) if view.maps else curves(view.title, view.panels, ax)

    @property
    def card(self) -> dict[str, Card]:
        """The model and the machine of the one scenario, before anything varies; nothing of several scenarios."""
        one = self.loaded[0] if len(self.loaded) == 1 else None
        return {"model": model_card(one.workload, None), "machine": machine_card(one.hardware)} if one else {}

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
            The folder; filled beside its place and renamed. An earlier run's is replaced.
        command
            What gives the same again, for the page.
        """
        with files.replaced(Path(out)) as folder:
            drawn = self._drawn(folder) if self.view.panels or self.view.maps else None
            origins = {one.scenario.name: provenance(one) for one in self.loaded}
            also = self.also()
            parts = [(one.view, None) for one in also]
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
            told = [asdict(verdict) for verdict in self.expectations]
            more: dict[str, Any] = {one.name: {**one.more, "rows": one.rows} for one in also}
            more |= {**self.more, "sentences": self.sentences, "expectations": told, "provenance": origin}
            files.write_summary(folder, self.rows, more)


def frame(rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """Make a table of rows; times [ns] and sizes [B] are whole numbers even where a row has none."""
    import pandas as pd  # noqa: PLC0415 - slow to import, and the text needs none

    table = pd.DataFrame(list(rows))
    known = [column for column in map(str, table) if figure_of(column).unit in ("ns", "B")]
    asked = [column for column in map(str, table) if column.startswith("largest_")]
    return table.astype(dict.fromkeys((*known, *asked), "Int64"))
