"""`hosim sweep`: the rows of a scenario in every cell of a grid over fields of its documents."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from simulator import catalog, engine, metrics
from simulator.catalog import Axis, Loaded, path_of
from simulator.catalog.text import errors_at, scalar
from simulator.errors import insist
from simulator.graph import Job
from simulator.inputs import digest
from simulator.metrics.figures import Of
from simulator.metrics.statistics import Summed, summed
from simulator.processes import spawned
from simulator.report.grids import grid_view, needs
from simulator.report.views import Varied
from simulator.run.case import Case, Policies, names_in, prepare, rows_named
from simulator.run.cluster import clustered
from simulator.run.conditions import Once, drawn, jittered, uncertain
from simulator.run.kept import SUFFIXES, KeptRows, appending, code_key, key_of
from simulator.run.provenance import provenance
from simulator.run.row import rows_of
from simulator.run.sweep import Pace, Point, Progress, Rows, Study, Sweep, streamed
from simulator.scenario import Scenario
from simulator.scenario.study import StudyDocument
from simulator.units import exact, parse, unit_of

MOST_CELLS = 10_000
"""Most cells that run unless more are asked for: at half a second each they take under an hour on two cores."""
MOST_VALUES = 1_000_000
"""Most values of a range: they take some 100 MB before cells are counted."""
_RANGE = re.compile(r"(?P<first>.+?)\s*\.\.\s*(?P<last>.+?)\s*:\s*(?P<count>\d+)(?P<log>\s*log)?")
_UNITS = re.compile(r"[\d.eE+-]*\s*(.*)")
COUNTED: tuple[Of, ...] = ("run", "rank", "ranks", "addresses", "cost", "table", "real")
"""Kinds of figures that need no bounds."""
_KEPT = 4
"""Workloads that a process keeps built: a large one takes hundreds of MB."""
_WRITE = "write it as 'links.*.bandwidth=16..200 GB/s:8', or list values: 'batch=1,2,4'"

Grid = tuple[tuple[Axis, ...], list[Varied], list[Point]]
"""Axes of a study, how each is shown, and the points."""
Values = str | Sequence[Any]
"""Values of an axis: a list, or a text such as ``16..200 GB/s:8``, ``1..256:9 log`` or ``32 GB, 64 GB``."""


def axis(key: str, asked: Values, kind: str = "grid") -> tuple[Axis, list[Any]]:
    """Read an axis of a grid.

    Parameters
    ----------
    key
        Field path, each part of which may be a pattern: of the machine (``links.*.bandwidth``), of the workload
        (``workload.batch``) or of the scenario (``scenario.budget``).
    asked
        Its values. A range ``first..last:n`` has n values, evenly spaced, or with ``log`` in equal ratios. Sizes, rates
        and times are rounded to whole bytes, bytes per second and nanoseconds, and counts to whole numbers; equal ones,
        as in ``1..10:10 log``, count once.
    kind
        ``grid``, whose values must differ, or ``list``.

    Returns
    -------
    tuple
        The axis, and its values in the given order.

    Raises
    ------
    ConfigError
        If there is no value, a value occurs twice, or a range is malformed.
    """
    where = f"{kind}, {key}"
    listed = [part.strip() for part in asked.split(",")] if isinstance(asked, str) else list(asked)
    if isinstance(asked, str) and (match := _RANGE.fullmatch(asked.strip())):
        listed = _spaced(match, where, asked)
    insist(listed and "" not in listed, where, "an axis has values", repr(asked), _WRITE)
    units = {unit_of(value) for value in listed}
    unit = units.pop() if len(units) == 1 and "inf" not in listed else None
    if unit:
        made, values = Axis(key, (key,), where, unit), [parse(value, unit) for value in listed]
    else:
        made, values = Axis.listing(key, (key,), where, [_plain(value) for value in listed])
    rule, do = "the values of an axis are distinct", "leave one of them out"
    insist(kind == "list" or len(set(values)) == len(values), where, rule, repr(asked), do)
    return made, values


def _plain(value: Any) -> Any:
    """Return a value as a document states it; ``inf`` stays a text."""
    return scalar(value) if isinstance(value, str) and unit_of(value) is None else value


def _spaced(match: re.Match[str], where: str, asked: str) -> list[Any]:
    """Return the values of a range, as a document states them."""
    first, last, count = match["first"], match["last"], int(match["count"])
    if unit_of(first) is None and (name := _UNITS.fullmatch(last)) is not None:
        first = f"{first} {name[1]}".strip()  # 16..200 GB/s
    unit = unit_of(first)
    with errors_at(where):
        ends = [parse(end, unit) if unit else scalar(end) for end in (first, last)]
    numbers = [end for end in ends if isinstance(end, int | float) and math.isfinite(end)]
    rule = "a range goes from a number up to a larger one, in 2 values or more"
    insist(len(numbers) == 2 and count > 1 and numbers[0] < numbers[-1], where, rule, repr(asked), _WRITE)
    rule = f"a range has at most {MOST_VALUES:,} values"
    insist(count <= MOST_VALUES, where, rule, f"{count:,}", "ask for fewer")  # before the list takes memory
    low, high = numbers
    insist(low > 0 or not match["log"], where, "even ratios begin above 0", repr(asked), "raise the first value")
    is_whole = unit is not None or all(isinstance(end, int) for end in ends)
    rule, between = "a range has no more values than whole numbers lie between its ends", math.floor(high - low + 1)
    insist(not is_whole or count <= between, where, rule, f"{count:,} of {between:,}", "ask for fewer, or list them")
    shares = [index / (count - 1) for index in range(count)]
    spaced = [low * (high / low) ** share if match["log"] else low + (high - low) * share for share in shares]
    if not is_whole:
        return spaced
    whole = list(dict.fromkeys(map(round, spaced)))
    return whole if unit is None else [exact(value, unit) for value in whole]


@dataclass(eq=False)
class Cells:
    """Measures cells; each process builds what several cells share once.

    Attributes
    ----------
    with_bounds
        Whether to compute the bounds of rows, which takes longer.
    jitter, seed
        Spread of the times of ops and links, and the seed of the draws; the last value of a point is the number of its
        draw. See `simulator.run.conditions.jittered`.
    once
        Plans that are replayed unchanged in each cell; None: each cell is planned anew.
    """

    policies: Policies | None = None
    with_bounds: bool = True
    jitter: float = 0
    seed: int = 0
    once: Once | None = None
    _built: dict[str, Job] = field(default_factory=dict, init=False, repr=False)
    _case: Case | None = field(default=None, init=False, repr=False)

    def __call__(self, loaded: Loaded, point: Point) -> Rows:
        """Run the rows of a cell."""
        case, tokens = self.case(loaded), loaded.workload.tokens
        if self.jitter:
            case = jittered(case, self.jitter, point[-1], self.seed)
        if self.once is not None:
            rows = self.once.rows(case)
        else:
            rows = [result.summary for result in rows_of(case, self.policies, advice=False)]
        return [row | {"ranks": case.job.ranks, "tokens": tokens} for row in rows]

    def case(self, loaded: Loaded) -> Case:
        """Build the case of a cell; reuse the job of an earlier cell with the same workload."""
        if self._case is None or self._case.loaded is not loaded:  # else only the draw differs
            key = f"{loaded.scenario.homes} {loaded.workload_dir} {loaded.workload.model_dump_json()}"
            self._case = prepare(loaded, self._built.pop(key, None), with_bounds=self.with_bounds)
            self._built[key] = self._case.job  # the last one used is the last to go
            if len(self._built) > _KEPT:
                del self._built[next(iter(self._built))]
        return self._case


def sweep(  # noqa: PLR0913 - what is asked, what varies, and by name what is seldom said
    scenario: str | Path | Scenario | StudyDocument,
    grid: Mapping[str, Values] | None = None,
    *,
    set: Mapping[str, Any] | None = None,  # noqa: A002 - the key of the document
    policies: Policies | None = None,
    workers: int | None = None,
    cluster: str = "",
    progress: Progress | None = None,
    cache: str | Path | bool = True,
    at_most: int = MOST_CELLS,
    uncertainty: int = 0,
    bounds: bool = False,
    out: str | Path | None = None,
) -> Sweep:
    """Run a scenario at every point of a study.

    Parameters
    ----------
    scenario
        A study, or a scenario: a name in the catalogue, a path that ends in ``.yaml``, or the document itself.
    grid
        Field path -> values, see `axis`; default: those of the study. The last axis varies fastest.
    set, policies
        As in `simulator.run`; default: those of the study.
    workers
        Processes; default: one for each core. More than one needs ``if __name__ == "__main__":`` around the call in a
        script. The result does not depend on it.
    cluster
        Address of a Dask scheduler, whose workers then run the cells; the result does not depend on it.
    progress
        Called after each cell that is measured.
    cache
        Folder with rows of earlier sweeps, to which new rows are added at once; True: the default folder
        (``$XDG_CACHE_HOME/hosim``, else ``~/.cache/hosim``); False: none. Rows of policies that are functions are not
        kept.
    at_most
        Most cells; a study with more is refused.
    uncertainty
        Draws of the machine's uncertain figures, in each of which all policies meet the same values: those whose
        sources print a range, and those that were assumed; see `simulator.run.conditions.uncertain`.
    bounds
        Whether to add the columns of bounds, which takes longer.
    out
        A folder for all results, or a file for the rows alone (``.csv`` or ``.parquet``). Rows are appended as they
        come: to that file, or to ``<folder>.points.csv``, which moves into the folder in the end. The returned rows
        then have only the columns that are shown, so memory hardly grows with them.

    Returns
    -------
    Sweep
        One row per cell and policy: the fields that vary, the columns of `simulator.run`'s summary, ``ranks``,
        ``tokens`` and ``tokens_per_s``. A policy that cannot run in a cell is a row with its status and the reason.

    Raises
    ------
    ConfigError
        If a document is wrong, a path names no field, a value does not suit its axis, there are too many cells, or
        `out` or `cluster` cannot be used.
    """
    study, loaded, (axes, shown, points) = _read(scenario, grid, set, at_most, uncertainty)
    base, rows_asked = loaded.without_questions(), policies or study.policies or None
    measured = _keyed_study(base, study, rows_asked, axes, points, with_bounds=bounds)
    if cache is False or isinstance(rows_asked, Mapping):
        measured = replace(measured, key=None)
    folder = Path(cache) if isinstance(cache, str | Path) else None
    file = Path(out) if out is not None else None
    if file is not None and file.suffix not in SUFFIXES:
        file = file.with_name(f"{file.name}.points.csv")
    columns = metrics.columns(base.hardware) if bounds else metrics.columns(base.hardware, COUNTED)
    head = [*(axis.name for axis in axes), "policy", *columns, "tokens", "short_at", "notes", "remarks"]
    needed, rows = needs(shown, base.hardware), list[dict[str, Any]]()
    workers = workers or os.cpu_count() or 1
    pace, run_tasks = Pace(progress, workers, by_line=True), partial(clustered, cluster) if cluster else spawned
    with ExitStack() as using:
        say = None if folder else pace.say
        kept = using.enter_context(closing(KeptRows(folder, say))) if measured.key else None
        append = using.enter_context(appending(file, head)) if file else None
        for new in streamed([measured], workers, pace, kept, run_tasks):
            if append is not None:
                append(new)
            rows += [{key: row[key] for key in needed if key in row} for row in new] if append else new
    story = base.scenario
    cells, more = _summed(rows, shown)
    view = grid_view(rows, shown, base.hardware, study.title or story.heading, story.budget_bytes, cells)
    again = study.model_copy(update={"scenario": "scenario.yaml", "set_": {}, "policies": names_in(rows_asked)})
    texts = {"study.yaml": catalog.dump(again)}
    return Sweep("sweep", [loaded], rows, view, {"points": rows}, more, file, texts)


def _read(
    asked: str | Path | Scenario | StudyDocument,
    grid: Mapping[str, Values] | None = None,
    changes: Mapping[str, Any] | None = None,
    at_most: int = MOST_VALUES,
    uncertainty: int = 0,
) -> tuple[StudyDocument, Loaded, Grid]:
    """Read a study, or make one from a scenario and a grid; return it with its points."""
    study, loaded = catalog.studied(asked, changes)
    where = loaded.place("grid") if study is None else f"study {study.name}"
    if study is None or grid is not None:
        crossed = {key: values if isinstance(values, str) else tuple(values) for key, values in (grid or {}).items()}
        plain = StudyDocument.model_construct(name=loaded.scenario.name, scenario=loaded.scenario.name)
        study = (study or plain).model_copy(update={"grid": crossed, "list_": {}, "sample": None})
    if uncertainty:
        rule, do = "a study that draws names its own uncertain figures", "leave --uncertainty out, or name its scenario"
        insist(study.sample is None, where, rule, "a sample", do)
        study = study.model_copy(update={"sample": uncertain(loaded, uncertainty)})
    varied = _axes_and_points(study, where, at_most)
    _check_apart(varied[0], loaded, where)
    return study, loaded, varied


def _keyed_study(
    base: Loaded,
    study: StudyDocument,
    policies: Policies | None,
    axes: tuple[Axis, ...],
    points: Sequence[Point],
    *,
    with_bounds: bool,
) -> Study:
    """Make the study to measure; the key of a point covers all that its rows depend on."""
    jitter, seed = (study.sample.jitter, study.sample.seed) if study.sample and study.sample.jitter else (0, 0)
    rule, do = "bounds are of a machine without jitter", "leave --bounds out, or jitter"
    insist(not (with_bounds and jitter), base.place("bounds"), rule, f"jitter of {jitter:g}", do)
    once = Once(base, policies) if study.plans == "once" else None
    if names := names_in(policies):
        rows_named(base.scenario, names)
    about = [provenance(base, names or None), code_key(), with_bounds, (jitter, seed), once is not None]
    about += [engine.in_use(), [(axis.fields, axis.unit) for axis in axes]]
    about.append(None if "scenario" in base.sha256 else base.scenario.model_dump_json())
    of_software = [i for i, axis in enumerate(axes) if any(path.endswith("software") for path in axis.fields)]
    named = sorted({point[i] for i in of_software for point in points} - {None})
    about.append([digest(path_of(name, "software")) for name in named])
    key = partial(key_of, key_of(about).hex())
    return Study(base, Cells(policies, with_bounds, jitter, seed, once), axes, points, probes=_probes(points), key=key)


def _summed(rows: Rows, axes: Sequence[Varied]) -> tuple[list[Summed], dict[str, Any]]:
    """Summarise draws, if there are any; return also what varies, and what draws tell, for the summary."""
    fixed, more = [axis.name for axis in axes if not axis.is_drawn], {"grid": {axis.name: axis.values for axis in axes}}
    if len(fixed) == len(axes):
        return [], more
    cells = summed(rows, fixed)
    beats = [{**cell.values, **pair._asdict()} for cell in cells for pair in cell.beats]
    return cells, {**more, "quantiles": [line for cell in cells for line in cell.quantiles], "beats": beats}


def _axes_and_points(study: StudyDocument, where: str, at_most: int) -> Grid:
    """Return axes and points of a study: each cell of the grid with each entry of the list and each draw."""
    sample, do = study.sample, "name an axis: --grid 'links.*.bandwidth=16..200 GB/s:8', or name a study"
    insist(study.grid or study.list_ or sample, where, "a sweep varies something", "nothing", do)
    crossed = [axis(key, values) for key, values in study.grid.items()]
    listed = [axis(key, values, "list") for key, values in study.list_.items()]
    lengths = {len(values) for _, values in listed} or {1}
    rule, do = "the fields of a list are equally long", "list as many values everywhere"
    insist(len(lengths) == 1, f"{where}, list", rule, " and ".join(map(str, sorted(lengths))), do)
    cells = math.prod([*(len(values) for _, values in crossed), *lengths, sample.size if sample else 1])
    rule = f"at most {at_most:,} cells are run unless more are asked for"
    insist(cells <= at_most, where, rule, f"{cells:,}", f"ask for fewer, or say --most-cells {cells}")
    of_draws, draws = drawn(sample, f"{where}, sample") if sample is not None else ((), [()])
    together = list(zip(*(values for _, values in listed), strict=True)) or [()]
    cross = product(product(*(values for _, values in crossed)), together, draws)
    points = list(dict.fromkeys((*cell, *entry, *draw) for cell, entry, draw in cross))
    axes = (*(fixed for fixed, _ in (*crossed, *listed)), *of_draws)
    columns = [list(dict.fromkeys(column)) for column in zip(*points, strict=True)]
    shown = [
        Varied(each.name, each.unit, column, each in of_draws, each.is_of_work)
        for each, column in zip(axes, columns, strict=True)
    ]
    return axes, shown, points


def _check_apart(axes: Sequence[Axis], loaded: Loaded, where: str) -> None:
    """Refuse two axes that vary one field: the second value would silently override the first."""
    varied: dict[tuple[str, ...], str] = {}
    for axis in axes:
        with errors_at(axis.where):
            paths = [path for key in axis.fields for path, _ in loaded.fields(key)]
        for path in paths:
            other = next((name for before, name in varied.items() if before[: len(path)] == path[: len(before)]), None)
            both = f"{'.'.join(path[path[0] == 'hardware' :])} on {other} and on {axis.name}"
            insist(other is None, where, "each field varies on one axis", both, "leave one of them out")
        varied |= dict.fromkeys(paths, axis.name)


def _probes(points: Sequence[Point]) -> list[Point]:
    """Choose points that have, for each axis, its least and largest number and each value that is no number."""
    probes: dict[Point, None] = {}
    for index in range(len(points[0])):
        first = {point[index]: point for point in reversed(points)}
        numbers = [value for value in first if isinstance(value, int | float)]
        ends = [min(numbers), max(numbers)] if numbers else []
        others = [value for value in first if not isinstance(value, int | float)]
        probes |= {first[value]: None for value in (*ends, *others)}
    return list(probes)


def points_in(path: Path) -> int:
    """Check a study without running anything, and count its points.

    Parameters
    ----------
    path
        Path of the study.

    Raises
    ------
    ConfigError
        As `sweep` does.
    """
    _, loaded, (axes, _, points) = _read(path)
    Study(loaded.without_questions(), Cells(), axes, points, probes=_probes(points)).check()
    return len(points)
