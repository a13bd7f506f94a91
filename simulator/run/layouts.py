"""`hosim layout search`: all layouts of a training step on so many devices, screened by estimates; the best replayed.

Of a job they are all ways to share the devices out among its programs, each with all layouts on the ranks that it gets.

A replay of many micro-batches is made of two of few: once a 1F1B pipeline is full, each further micro-batch adds the
same time and the same bytes. So a step of m micro-batches is that of n, and m - n times what one more adds to it. Plans
that offload may differ by more than that; where one more makes a step wait less for anything, all m are replayed.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, islice, product
from operator import itemgetter
from typing import Any, cast

from simulator import catalog
from simulator.catalog import Axis, Loaded, MistypedError, Named
from simulator.catalog.text import errors_at
from simulator.cost.service import NS_PER_S
from simulator.errors import ConfigError, insist
from simulator.metrics.statistics import grouped
from simulator.processes import Make, spawned
from simulator.report.answers import layouts_view
from simulator.report.views import ALL
from simulator.run.axes import Values, axis
from simulator.run.case import Policies, names_in, rows_named
from simulator.run.estimates import estimate, room_bytes
from simulator.run.grid import Cells
from simulator.run.sweep import Point, Progress, Row, Rows, Study, Sweep, silent, sweep
from simulator.run.trainings import StageTimes, decoder_of, programs_of, trained
from simulator.scenario import Layouts
from simulator.units import human
from simulator.workload import Experts, Gqa, Workload
from simulator.workload.job import JobDocument

_MOST_LAYOUTS = 50_000
"""Most layouts that are estimated: at a hundredth of a second each they take some minutes on two cores."""
_DEGREES = ("data", "tensor", "pipeline", "context", "expert", "sequence", "zero_stage")
_FIELDS = (*(f"parallel.{name}" for name in _DEGREES), "batch", "parallel.micro_batches")
"""Fields that make a layout; others may be varied, too."""
_OF_PROGRAM = ("ranks", *(f"workload.parallel.{name}" for name in (*_DEGREES[:3], *_DEGREES[5:])), "workload.batch")
"""The same of a program of a job."""
_OUTER = re.compile(r"\b(programs|workload|parallel)\.")
_MESH, _BATCH = "data * context * tensor * pipeline is devices", "data * batch * micro_batches is global_batch"
_FULL = 4
"""Micro-batches beyond the number of stages, but at most twice as many, with which a 1F1B pipeline is long full."""


def layout_search(  # noqa: PLR0913 - what is asked, and by name what is seldom said
    scenario: Named,
    *,
    set: Mapping[str, Any] | None = None,  # noqa: A002 - the key of the document
    policies: Policies | None = None,
    workers: int | None = None,
    progress: Progress | None = None,
    memory: str | None = None,
    over: Mapping[str, Values] | None = None,
    whole: bool = False,
    **asked: int | None,
) -> Sweep:
    """Search the layouts of a training step, or of the programs of a job, on so many devices, and replay the best.

    All are estimated, and the fastest by the estimate run with every policy.

    Parameters
    ----------
    scenario
        A name in the catalogue, a path that ends in ``.yaml``, the document itself, or a `Loaded` one.
    set, policies
        As in `simulator.run`.
    workers
        Processes; default: one for each core. The result does not depend on it.
    progress
        Called when a layout was estimated or replayed.
    memory
        Budget of the compute tier, such as ``58 GB``; default: that of the scenario.
    over
        Workload field -> its values, as a list or a text; they win over those of the scenario's key ``layout``.
    whole
        Whether all micro-batches are replayed one by one, however many there are.
    **asked
        Further fields of that key: ``devices``, ``global_batch`` and ``replay``.

    Returns
    -------
    Sweep
        A row for each replayed layout and policy, the most tokens per second first; the table ``layouts`` has all
        layouts with their estimates and bounds, or the reason for which one cannot be.

    Raises
    ------
    ConfigError
        If a document or the question is wrong, or there are too many layouts.
    """
    loaded = catalog.resolve(scenario, {**(set or {}), **({"budget": memory} if memory else {})} or None)
    loaded = loaded.without_questions()
    axes, listed, question = _asked(loaded, {**asked, "over": over})
    made = _listed(loaded, listed, question)
    rows = loaded.scenario.policies
    if names := names_in(policies):
        rows = tuple(rows_named(loaded.scenario, names))
    can_move = isinstance(policies, Mapping) or any(choice.policy != "resident" for choice in rows)
    workers, base, tell = workers or os.cpu_count() or 1, _alone(loaded), progress or silent
    screened = _screened(partial(_screening, base, axes, question, can_move=can_move), made, workers, tell)
    able = [row for row in screened if row["status"] == "estimated"]
    best = sorted(able, key=lambda row: (not row["is_roomy"], -row["estimated_tokens_per_s"]))[: question.replay]
    points, tier = [tuple(row[axis.name] for axis in axes) for row in best], loaded.hardware.compute_tier
    study = Study(base, LayoutCells(policies, whole=whole), axes, points, probes=())
    replayed = _beside(sweep([study], workers, progress), best, axes, tier)
    varied = [axis.name for axis in axes if len({row[axis.name] for row in screened}) > 1]
    view = layouts_view(replayed, screened, varied, tier, loaded.scenario.heading)
    more = question.model_dump(include={"devices", "global_batch"}, exclude_none=True)
    return Sweep("layouts", [loaded], replayed, view, {"points": replayed, "layouts": screened}, more)


def _listed(loaded: Loaded, listed: Mapping[str, Sequence[Any]], question: Layouts) -> list[Point]:
    """List all layouts."""
    is_job, where = isinstance(loaded.workload, JobDocument), loaded.place("layout")
    must, found, do = "a search of layouts states the global batch", "none", "add global_batch"
    if is_job:
        must, found, do = "the programs of a job state their batches", str(question.global_batch), "remove global_batch"
    insist((question.global_batch is None) == is_job, where, must, found, do)
    made = [*islice((_placements if is_job else _made)(loaded, listed, question), _MOST_LAYOUTS + 1)]
    must, do = "some degrees multiply to the devices", "correct devices, or leave degrees out of over"
    insist(made, where, must, f"none to {question.devices:,}", do)
    must, do = f"at most {_MOST_LAYOUTS:,} layouts are estimated", "restrict fields: --grid parallel.tensor=2,4,8"
    insist(len(made) <= _MOST_LAYOUTS, where, must, f"{len(made):,} or more", do)
    return made


def _screened(screening: Make, made: Sequence[Point], workers: int, tell: Progress) -> Rows:
    """Estimate layouts in some processes; return a row for each, in order."""
    rows, processes = dict[int, Row](), workers if len(made) > workers > 1 else 0
    with closing(spawned(screening, [*enumerate(made)], processes)) as estimates:
        for index, row in estimates:
            rows[index] = row
            tell("layouts are estimated", len(rows), len(made))
    return [rows[index] for index in sorted(rows)]


def _asked(loaded: Loaded, given: Mapping[str, Any]) -> tuple[tuple[Axis, ...], dict[str, Sequence[Any]], Layouts]:
    """Return the axes of layouts, the values of those that are stated, and the question."""
    stated = loaded.scenario.layout
    over = {**(stated.over if stated else {}), **(given["over"] or {})}
    over = {key.removeprefix("workload."): values for key, values in over.items()}
    read = {key: axis(f"workload.{key}", values, "over") for key, values in over.items()}
    for made, values in read.values():
        with errors_at(made.where):
            loaded.fields(made.name)
        for value in values:
            try:
                catalog.at(loaded, {made: value})
            except MistypedError:
                raise
            except ConfigError:  # alone; with other degrees it may be a layout
                continue
    where = loaded.place("layout")
    programs = loaded.workload.programs if isinstance(loaded.workload, JobDocument) else ()
    keys = tuple(f"programs.{name}.{key}" for name, key in product(programs, _OF_PROGRAM)) or _FIELDS
    usual = {key: Axis(key, (f"workload.{key}",), where) for key in keys}
    axes = usual | {key: made for key, (made, _) in read.items()}
    short = tuple(replace(made, name=_OUTER.sub("", key)) for key, made in axes.items())
    listed: dict[str, Sequence[Any]] = {key: values for key, (_, values) in read.items()}
    asked = {**given, "over": {key: tuple(values) for key, values in listed.items()} or None}
    return short, listed, catalog.question(loaded, Layouts, asked)


def _alone(loaded: Loaded) -> Loaded:
    """Return the documents without what the workload, or each program, states of the degrees that are tried."""
    document, usual = loaded.workload, {"ranks": "all", "layers": None}
    if not isinstance(document, JobDocument):
        return replace(loaded, workload=_with(trained(loaded), usual | dict.fromkeys(_DEGREES[:5], 1)))
    works = {name: _with(each.work, usual) for name, each in programs_of(loaded).items()}
    programs = {name: each.model_copy(update={"workload": works[name]}) for name, each in document.programs.items()}
    return replace(loaded, workload=document.model_copy(update={"programs": programs}))


def _with(workload: Workload, changes: Mapping[str, Any]) -> Workload:
    """Return a workload with other fields of its layout."""
    return workload.model_copy(update={"parallel": workload.parallel.model_copy(update=changes)})


def _made(loaded: Loaded, listed: Mapping[str, Sequence[Any]], question: Layouts) -> Iterator[Point]:
    """Yield all layouts as points; those whose degrees do not multiply only where `data` is stated."""
    devices, batches, kinds = question.devices, question.global_batch or 0, decoder_of(loaded).kinds
    divisors = [degree for degree in range(1, devices + 1) if devices % degree == 0]
    can_gather = all(isinstance(kind.attention, Gqa) and not kind.attention.chooses for kind in kinds)
    usual = {"tensor": divisors, "pipeline": divisors, "context": divisors if can_gather else [1]}
    others = [values for key, values in listed.items() if key not in _FIELDS]
    for cuts in product(*(listed.get(f"parallel.{name}", each) for name, each in usual.items())):
        data, left = divmod(devices, math.prod(cuts))
        for stated in listed.get("parallel.data", [] if left else [data]):
            for more in product(*_more(loaded, listed, stated, cuts), *others):
                expert, sequence, zero, batch, *rest = more
                usual_micros = [batches // (stated * batch) if stated else 0]
                for micros in listed.get("parallel.micro_batches", usual_micros):
                    yield stated, *cuts, expert, sequence, zero, batch, micros, *rest


def _placements(loaded: Loaded, listed: Mapping[str, Sequence[Any]], question: Layouts) -> Iterator[Point]:
    """Yield all ways to share the devices out among the programs of a job, each with a layout on its ranks."""
    alone, document = programs_of(loaded), cast(JobDocument, loaded.workload)
    fields = {f"programs.{name}.{key}" for name, key in product(alone, _OF_PROGRAM)}
    others, each = [values for key, values in listed.items() if key not in fields], list[list[Point]]()
    for name, of in alone.items():
        copies = len(document.placed[name]) // of.work.ranks
        stated = [listed.get(f"programs.{name}.{key}") for key in _OF_PROGRAM]
        each.append([*_of_program(of.work, copies, stated, question.devices)])
    for point in _shared_out(each, question.devices):  # one by one: there may be more than any search takes
        yield from ((*point, *more) for more in product(*others))


def _of_program(
    work: Workload, copies: int, stated: Sequence[Sequence[Any] | None], devices: int
) -> Iterator[tuple[Any, ...]]:
    """Yield the layouts of a program on up to so many devices: the fields `_OF_PROGRAM`.

    A micro-batch keeps its sequences, so that programs still have what they hand to one another.
    """
    parallel, sequences = work.parallel, work.batch * work.parallel.data * copies
    ranks, data, tensor, pipeline, sequence, zero, batch = stated
    for degrees in _degrees([data, tensor, pipeline], devices // parallel.context):
        count, (each, left) = math.prod(degrees) * parallel.context, divmod(sequences, degrees[0])
        if not left and count in (ranks or [count]) and each in (batch or [each]):
            cuts = sequence or [parallel.sequence and degrees[1] > 1]
            shards = zero or [parallel.zero_stage * (degrees[0] * parallel.context > 1)]
            yield from ((count, *degrees, *more, each) for more in product(cuts, shards))


def _degrees(stated: Sequence[Sequence[int] | None], devices: int) -> Iterator[tuple[int, ...]]:
    """Yield the degrees, those that are stated or any, whose product is at most so many devices."""
    if not stated:
        yield ()
    for degree in (stated[0] or range(1, devices + 1)) if stated else ():
        yield from (
            ((degree, *others) for others in _degrees(stated[1:], devices // degree)) if degree <= devices else ()
        )


def _shared_out(each: Sequence[Sequence[Point]], devices: int) -> Iterator[Point]:
    """Yield the choices of a layout for each program that take all devices together."""
    *before, last = each
    of_last = grouped(last, itemgetter(0))
    for chosen in product(*before):
        left = devices - sum(layout[0] for layout in chosen)
        yield from (tuple(chain(*chosen, layout)) for layout in of_last.get(left, ()))


def _more(
    loaded: Loaded, listed: Mapping[str, Sequence[Any]], data: int, cuts: Sequence[int]
) -> Iterator[Sequence[Any]]:
    """Yield the values of the fields of a layout that depend on its degrees, unless they are stated."""
    tensor, _, context = cuts
    has_experts = any(isinstance(kind.feed_forward, Experts) for kind in decoder_of(loaded).kinds)
    experts = [degree for degree in range(1, data + 1) if data % degree == 0]
    yield listed.get("parallel.expert", [*dict.fromkeys([*experts, data * tensor])] if has_experts else [1])
    yield listed.get("parallel.sequence", [False, True] if tensor > 1 else [False])
    yield listed.get("parallel.zero_stage", [0, 1, 2, 3] if data * context > 1 else [0])
    yield listed.get("batch", [trained(loaded).batch])


def _screening(base: Loaded, axes: Sequence[Axis], question: Layouts, *, can_move: bool) -> Callable[[Point], Row]:
    """Return the function that estimates a layout, or says why it cannot be."""
    tier, estimated = base.hardware.compute_tier, dict[str, StageTimes]()
    of_batch = (_BATCH, ("data", "batch", "micro_batches"), question.global_batch)
    rules = ((_MESH, _DEGREES[:4], question.devices), of_batch) if question.global_batch else ()

    def screen(point: Point) -> Row:
        row: Row = {axis.name: value for axis, value in zip(axes, point, strict=True)}
        try:
            for rule, names, whole in rules:
                insist((found := math.prod(row[name] for name in names)) == whole, "layout", rule, f"{found:,}")
            laid = catalog.at(base, dict(zip(axes, point, strict=True)))
            expected = estimate(laid, can_move=can_move, estimated=estimated)
            must, least = f"the homes in {tier} fit there", expected.least_bytes
            insist(least <= room_bytes(laid), "layout", must, f"{human(least, 'B')} at least")
        except ConfigError as error:
            return {**row, "status": "failed", "rule": error.must, "found": error.found}
        tokens = (laid.workload.tokens or 0) * NS_PER_S
        row |= {"status": "estimated", "is_roomy": expected.is_roomy, "estimated_step_ns": expected.step_ns}
        row |= {f"estimated_peak_{tier}_bytes": expected.peak_bytes, f"least_peak_{tier}_bytes": least}
        row |= {"least_step_ns": expected.least_step_ns, "estimated_tokens_per_s": tokens / expected.step_ns}
        return row | {"most_tokens_per_s": tokens / expected.least_step_ns}

    return screen


@dataclass(eq=False)
class LayoutCells:
    """Measures layouts: all rows of each.

    Attributes
    ----------
    whole
        Whether all micro-batches are replayed.
    """

    policies: Policies | None = None
    whole: bool = False

    def __call__(self, loaded: Loaded, point: Point) -> Rows:
        """Run the rows of a layout, or make them of those of two with fewer micro-batches."""
        cells = Cells(self.policies, with_bounds=False)
        if isinstance(loaded.workload, JobDocument):
            return cells(loaded, point)
        parallel = trained(loaded).parallel
        few = min(2 * parallel.pipeline, parallel.pipeline + _FULL)
        if self.whole or parallel.schedule != "1f1b" or parallel.micro_batches <= few + 1:
            return cells(loaded, point)
        micros = Axis("micro_batches", ("workload.parallel.micro_batches",), loaded.place("layout"))
        of_few = [cells(catalog.at(loaded, {micros: each}), point) for each in (few, few + 1)]
        pairs = [*zip(*([row for row in rows if "policy" in row] for rows in of_few), strict=True)]
        fell = any((more.get(key) or 0) < (less[key] or 0) for less, more in pairs for key in less if "wait_" in key)
        further, tokens = parallel.micro_batches - few, loaded.workload.tokens or 0
        return cells(loaded, point) if fell else [_continued(less, more, further, tokens) for less, more in pairs]


def _continued(less: Row, more: Row, further: int, tokens: int) -> Row:
    """Return the row of so many further micro-batches than the lesser of two rows has, of which the other has one."""
    if not less["status"] == more["status"] == "ok":
        return less if less["status"] != "ok" else more
    row = {key: more[key] for key in ("policy", "status", "ranks", "notes")}
    for key in more:
        if key.startswith(("step_ns", "peak_", "wait_")) and type(more[key]) is int and type(less[key]) is int:
            row[key] = less[key] + (more[key] - less[key]) * further
    waits = [(each.get("bubble_fraction") or 0) * each["step_ns"] for each in (less, more)]
    row["bubble_fraction"] = (waits[0] + (waits[1] - waits[0]) * further) / row["step_ns"]
    return row | {"tokens": tokens, "tokens_per_s": tokens * NS_PER_S / row["step_ns"]}


def _beside(replayed: Rows, screened: Rows, axes: Sequence[Axis], tier: str) -> Rows:
    """Add to each row what was estimated for its layout; the most tokens per second first.

    Those that no other one beats in both tokens per second and peak are marked.
    """
    names = [axis.name for axis in axes]
    estimates = {tuple(row[name] for name in names): row for row in screened}
    rows = [{**estimates[tuple(row[name] for name in names)], "policy": ALL, **row} for row in replayed]
    rows.sort(key=lambda row: -(row.get("tokens_per_s") or 0))
    least, peak = math.inf, f"peak_{tier}_bytes"
    for row in rows:
        row["front"] = row["status"] == "ok" and row[peak] < least
        least = row[peak] if row["front"] else least
    return rows
