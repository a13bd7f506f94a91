"""`hosim sweep`: the rows of a scenario in every cell of a grid over fields of its documents."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from simulator import catalog, engine, metrics
from simulator.catalog import Axis, Loaded, path_of
from simulator.catalog.text import validated
from simulator.errors import insist
from simulator.graph import Job
from simulator.inputs import digest
from simulator.interrupts import no_garbage_search
from simulator.metrics.figures import Of
from simulator.metrics.statistics import Summed, summed
from simulator.processes import spawned
from simulator.report.grids import curve_view, grid_view, needs
from simulator.report.views import ALL, Varied
from simulator.run.axes import MOST_VALUES, Grid, Values, axes_and_points, check_apart, probes_of
from simulator.run.case import Case, Policies, names_in, prepare, rows_named
from simulator.run.cluster import clustered
from simulator.run.conditions import Once, jittered, uncertain
from simulator.run.kept import SUFFIXES, KeptRows, appending, code_key, key_of
from simulator.run.provenance import provenance
from simulator.run.row import rows_of
from simulator.run.sweep import Pace, Point, Progress, Rows, Study, Sweep, streamed
from simulator.scenario import Scenario
from simulator.scenario.study import Sample, StudyDocument

_DRAWS = 20
"""Default number of draws of jitter."""
_MOST_CELLS = 10_000
"""Most cells that run unless more are asked for: at half a second each they take under an hour on two cores."""
COUNTED: tuple[Of, ...] = ("run", "rank", "ranks", "addresses", "cost", "table", "real")
"""Kinds of figures that need no bounds."""
_KEPT = 4
"""Workloads that a process keeps built: a large one takes hundreds of MB."""


@dataclass(eq=False)
class Cells:
    """Measures cells; each process builds what several cells share once.

    Attributes
    ----------
    with_bounds
        Whether to compute the bounds of rows, which takes longer.
    jitter, seed
        Spread of the times of ops and links, or the index of its axis, and the seed of the draws; the last value of a
        point is the number of its draw. See `simulator.run.conditions.jittered`.
    once
        Plans that are replayed unchanged in each cell; None: each cell is planned anew.
    """

    policies: Policies | None = None
    with_bounds: bool = True
    jitter: float | int | None = None
    seed: int = 0
    once: Once | None = None
    _built: dict[str, Job] = field(default_factory=dict, init=False, repr=False)
    _case: Case | None = field(default=None, init=False, repr=False)

    @no_garbage_search()
    def __call__(self, loaded: Loaded, point: Point) -> Rows:
        """Run the rows of a cell."""
        case, tokens = self.case(loaded), loaded.workload.tokens
        if self.jitter is not None:
            level = point[self.jitter] if isinstance(self.jitter, int) else self.jitter
            case = jittered(case, level, point[-1], self.seed)
        ran = () if self.once else rows_of(case, self.policies, advice=False)
        rows = self.once.rows(case) if self.once else [row.summary for row in ran]
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
    at_most: int = _MOST_CELLS,
    uncertainty: int = 0,
    jitter: float | Sequence[float] = (),
    draws: int | None = None,
    seed: int | None = None,
    plans: str = "",
    headroom: float = 0.0,
    bounds: bool | None = None,
    out: str | Path | None = None,
) -> Sweep:
    """Run a scenario at every point of a study.

    Parameters
    ----------
    scenario
        A study, or a scenario: a name in the catalogue, a path that ends in ``.yaml``, or the document itself.
    grid
        Field path -> values, see `axis`; default: those of the study, or the curve of the scenario (its key ``sweep``).
        The last axis varies fastest.
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
    jitter, draws, seed
        Spreads of the times of ops and links; number of draws of each, by default 20; and the seed of all draws, by
        default 0. See `simulator.run.conditions.jittered`.
    plans
        ``once``: plans are made for the documents as they are, and replayed unchanged in each cell, beside runtimes,
        which decide as they run; default: that of the study, or ``anew``.
    headroom
        Share of the budget that plans which are made once leave free, in reserve.
    bounds
        Whether to add the columns of bounds, which takes longer; default: for a curve alone.
    out
        A folder for all results, or a file for the rows alone (``.csv`` or ``.parquet``). Rows are appended as they
        come: to that file, or to ``<folder>.points.csv``, which moves into the folder in the end. The returned rows
        then have only the columns that are shown, so memory hardly grows with them.

    Returns
    -------
    Sweep
        One row per cell and policy: the fields that vary, the columns of `simulator.run`'s summary, ``ranks``,
        ``tokens`` and ``tokens_per_s``. A policy that cannot run in a cell is a row with its status and the reason.
        Over a curve (a ``list`` of fields, some of the workload, and nothing else) rows are sorted by policy, and have
        ``efficiency``: tokens per second and rank, relative to the policy's first point that ran.

    Raises
    ------
    ConfigError
        If a document is wrong, a path names no field, a value does not suit its axis, there are too many cells, or
        `out` or `cluster` cannot be used.
    """
    drawing = {"uncertainty": uncertainty, "jitter": jitter, "draws": draws, "seed": seed}
    study, loaded, (axes, shown, points) = _read(
        scenario, grid, set, at_most, **drawing, plans=plans, headroom=headroom
    )
    base, rows_asked = loaded.without_questions(), policies or study.policies or None
    is_curve = not (study.grid or study.sample) and any(axis.is_of_work for axis in axes)
    with_bounds = is_curve if bounds is None else bounds
    measured = _keyed_study(base, study, rows_asked, axes, points, with_bounds=with_bounds)
    if cache is False or isinstance(rows_asked, Mapping):
        measured = replace(measured, key=None)
    folder, file = (Path(place) if isinstance(place, str | Path) else None for place in (cache, out))
    if file is not None and file.suffix not in SUFFIXES:
        file = file.with_name(f"{file.name}.points.csv")
    columns = metrics.columns(base.hardware) if with_bounds else metrics.columns(base.hardware, COUNTED)
    head = [*(axis.name for axis in axes), "policy", *columns, "tokens", "short_at", "notes", "remarks"]
    needed = needs(shown, base.hardware) if file and not is_curve else None
    workers = workers or os.cpu_count() or 1
    pace, run_tasks = Pace(progress, workers, by_line=True), partial(clustered, cluster) if cluster else spawned
    keeping = partial(KeptRows, folder, None if folder else pace.say) if measured.key else None
    run = partial(streamed, [measured], workers, pace, run_tasks=run_tasks)
    rows, story = list[dict[str, Any]](), base.scenario
    with closing(_appended(run, keeping, partial(appending, file, head) if file else None)) as done:
        for new in done:
            rows += new if needed is None else [{key: row[key] for key in needed if key in row} for row in new]
    cells, more = _summed(rows, shown)
    rows = _along_curve(rows) if is_curve else rows
    shows = curve_view if is_curve else partial(grid_view, cells=cells)
    view = shows(rows, shown, base.hardware, study.title or story.heading, story.budget_bytes)
    again = study.model_copy(update={"scenario": "scenario.yaml", "set_": {}, "policies": names_in(rows_asked)})
    return Sweep("sweep", [loaded], rows, view, {"points": rows}, more, file, {"study.yaml": catalog.dump(again)})


def _appended(
    run: Callable[..., Iterator[Rows]],
    keeping: Callable[[], KeptRows] | None,
    writing: Callable[[], AbstractContextManager[Callable[[Rows], None]]] | None,
) -> Generator[Rows, None, None]:
    """Yield rows as they come, each kept and appended to a file before."""
    with ExitStack() as using:
        kept = using.enter_context(closing(keeping())) if keeping else None
        append = using.enter_context(writing()) if writing else None
        for new in run(kept=kept):
            if append is not None:
                append(new)
            yield new


def _read(
    asked: str | Path | Scenario | StudyDocument,
    grid: Mapping[str, Values] | None = None,
    changes: Mapping[str, Any] | None = None,
    at_most: int = MOST_VALUES,
    **more: Any,
) -> tuple[StudyDocument, Loaded, Grid]:
    """Read a study, or make one from a scenario and a grid; return it with its points."""
    study, loaded = catalog.studied(asked, changes)
    where = loaded.place("grid") if study is None else f"study {study.name}"
    if study is None or grid is not None:
        crossed = {key: values if isinstance(values, str) else tuple(values) for key, values in (grid or {}).items()}
        plain = StudyDocument.model_construct(name=loaded.scenario.name, scenario=loaded.scenario.name)
        curve = {} if crossed or study or more.get("uncertainty") or more.get("jitter") else loaded.scenario.sweep
        study = (study or plain).model_copy(update={"grid": crossed, "list_": curve, "sample": None})
    study = _with_draws(study, loaded, where, **more) if more else study
    place = partial(loaded.place, "sweep") if study.list_ is loaded.scenario.sweep else None
    varied = axes_and_points(study, where, at_most, place)
    check_apart(varied[0], loaded, where)
    return study, loaded, varied


def _with_draws(  # noqa: PLR0913 - what draws a study, and what its plans know of it
    study: StudyDocument,
    loaded: Loaded,
    where: str,
    *,
    uncertainty: int,
    jitter: float | Sequence[float],
    draws: int | None,
    seed: int | None,
    plans: str,
    headroom: float,
) -> StudyDocument:
    """Return a study with the draws that are asked for beside it, and with plans made once or anew."""
    update: dict[str, Any] = {"plans": plans or study.plans, "headroom": headroom or study.headroom}
    rule, found = "headroom, from 0 % to below 100 %, is of plans that are made once", f"{100 * update['headroom']:g} %"
    is_right = 0 <= update["headroom"] < 1 and (update["plans"] == "once" or not update["headroom"])
    insist(is_right, "headroom", rule, f"{found} of plans made {update['plans']}", "say --plans once, or less")
    rule, do = "draws are of jitter, and uncertainty states its own number", "leave draws out, or say jitter alone"
    insist(draws is None or (jitter and not uncertainty), "draws", rule, f"{draws} without jitter alone", do)
    rule, do = "a seed is of draws that are asked for beside it", "leave it out, or say jitter or uncertainty"
    insist(seed is None or jitter or uncertainty, "seed", rule, f"{seed} without", do)
    if uncertainty or jitter:
        rule, do = "a study that draws names its own uncertain figures", "leave the draws out, or name its scenario"
        insist(study.sample is None, where, rule, "a sample", do)
        of = uncertain(loaded, uncertainty).of if uncertainty else {}
        asked = {"size": uncertainty or draws or _DRAWS, "seed": seed or 0, "of": of, "jitter": jitter or 0.0}
        update["sample"] = validated(Sample, asked, "sample", lambda *keys: f"--{keys[0]}".replace("size", "draws"))
    return study.model_copy(update=update)


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
    jitter, seed = (study.sample.jitter, study.sample.seed) if study.sample and study.sample.jitter else (None, 0)
    rule, do = "bounds are of a machine without jitter", "leave --bounds out, or jitter"
    insist(not (with_bounds and jitter), base.place("bounds"), rule, f"jitter of {jitter}", do)
    once = Once(base, policies, study.headroom) if study.plans == "once" else None
    if names := names_in(policies):
        rows_named(base.scenario, names)
    about = [provenance(base, names or None), code_key(), with_bounds, (jitter, seed), once and once.headroom]
    about += [engine.in_use(), [(axis.fields, axis.unit) for axis in axes]]
    about.append(None if "scenario" in base.sha256 else base.scenario.model_dump_json())
    of_software = [i for i, axis in enumerate(axes) if any(path.endswith("software") for path in axis.fields)]
    named = sorted({point[i] for i in of_software for point in points} - {None})
    about.append([digest(path_of(name, "software")) for name in named])
    key = partial(key_of, key_of(about).hex())
    level = len(study.grid) if isinstance(jitter, tuple) else jitter
    cells = Cells(policies, with_bounds, level, seed, once)
    return Study(base, cells, axes, points, probes=probes_of(points), key=key)


def _summed(rows: Rows, axes: Sequence[Varied]) -> tuple[list[Summed], dict[str, Any]]:
    """Summarise draws, if there are any; return also what varies, and what draws tell, for the summary."""
    fixed, more = [axis.name for axis in axes if not axis.is_drawn], {"grid": {axis.name: axis.values for axis in axes}}
    if len(fixed) == len(axes):
        return [], more
    cells = summed(rows, fixed)
    beats = [{**cell.values, **pair._asdict()} for cell in cells for pair in cell.beats]
    return cells, {**more, "quantiles": [line for cell in cells for line in cell.quantiles], "beats": beats}


def _along_curve(measured: Rows) -> Rows:
    """Sort rows by policy, a point that fails being a row of each, and compare tokens per second and rank."""
    labels, first = list(dict.fromkeys(row["policy"] for row in measured if "policy" in row)), dict[str, float]()
    rows = [{**row, "policy": name} for name in labels or [ALL] for row in measured if row.get("policy", name) == name]
    for row in rows:
        each = row.get("tokens_per_s") and row["tokens_per_s"] / row["ranks"]
        row["efficiency"] = each and each / first.setdefault(row["policy"], each)
    return rows


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
    Study(loaded.without_questions(), Cells(), axes, points, probes=probes_of(points)).check()
    return len(points)
