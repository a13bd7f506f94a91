"""What varies in a sweep: axes with their values, and the points of a study."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

from simulator.catalog import Axis, Loaded
from simulator.catalog.text import errors_at, scalar
from simulator.errors import insist
from simulator.report.views import Varied
from simulator.run.conditions import drawn
from simulator.run.sweep import Point
from simulator.scenario.study import StudyDocument
from simulator.units import exact, parse, unit_of

MOST_VALUES = 1_000_000
"""Most values of a range: they take some 100 MB before cells are counted."""
_RANGE = re.compile(r"(?P<first>.+?)\s*\.\.\s*(?P<last>.+?)\s*:\s*(?P<count>\d+)(?P<log>\s*log)?")
_UNITS = re.compile(r"[\d.eE+-]*\s*(.*)")
_FACTOR = re.compile(r"\d+(\.\d+)?x")
_WRITE = "write it as 'links.*.bandwidth=16..200 GB/s:8', or list values: 'batch=1,2,4'"

_JITTER = "jitter"
"""Column of the spread of times, if several are tried."""
Grid = tuple[tuple[Axis, ...], list[Varied], list[Point]]
"""Axes of a study, how each is shown, and the points."""
Values = str | Sequence[Any]
"""Values of an axis: a list, or a text such as ``16..200 GB/s:8``, ``1..256:9 log`` or ``32 GB, 64 GB``."""


def axis(key: str, asked: Values, kind: str = "grid", where: str = "") -> tuple[Axis, list[Any]]:
    """Read an axis of a grid.

    Parameters
    ----------
    key
        Field path, each part of which may be a pattern: of the machine (``links.*.bandwidth``), of the workload
        (``workload.batch``) or of the scenario (``scenario.budget``).
    asked
        Its values; factors (``0.5x``) multiply figures of the machine. A range ``first..last:n`` has n values, evenly
        spaced, or with ``log`` in equal ratios. Sizes, rates and times are rounded to whole bytes, bytes per second and
        nanoseconds, and counts to whole numbers; equal ones, as in ``1..10:10 log``, count once.
    kind
        ``grid``, whose values must differ, or ``list``.
    where
        The place that asks for it, for errors; default: kind and key.

    Returns
    -------
    tuple
        The axis, and its values in the given order.

    Raises
    ------
    ConfigError
        If there is no value, a value occurs twice, or a range is malformed.
    """
    where = where or f"{kind}, {key}"
    listed = [part.strip() for part in asked.split(",")] if isinstance(asked, str) else list(asked)
    if isinstance(asked, str) and (match := _RANGE.fullmatch(asked.strip())):
        listed = _spaced(match, where, asked)
    insist(listed and "" not in listed, where, "an axis has values", repr(asked), _WRITE)
    units = {unit_of(value) for value in listed}
    unit = units.pop() if len(units) == 1 and "inf" not in listed else None
    if all(isinstance(value, str) and _FACTOR.fullmatch(value) for value in listed):
        made, values = Axis(key, (key,), where, "x"), [float(value[:-1]) for value in listed]
    elif unit:
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


def axes_and_points(study: StudyDocument, where: str, at_most: int, place: Callable[[str], str] | None = None) -> Grid:
    """Return axes and points of a study: each cell of the grid with each entry of the list and each draw."""
    sample, do = study.sample, "name an axis: --grid 'links.*.bandwidth=16..200 GB/s:8', or name a study"
    insist(study.grid or study.list_ or sample, where, "a sweep varies something", "nothing", do)
    crossed = [axis(key, values) for key, values in study.grid.items()]
    if sample and isinstance(sample.jitter, tuple):
        crossed.append((Axis(_JITTER, (), where), list(sample.jitter)))
    listed = [axis(key, values, "list", place(key) if place else "") for key, values in study.list_.items()]
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


def check_apart(axes: Sequence[Axis], loaded: Loaded, where: str) -> None:
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


def probes_of(points: Sequence[Point]) -> list[Point]:
    """Choose points that have, for each axis, its least and largest number and each value that is no number."""
    probes: dict[Point, None] = {}
    for index in range(len(points[0])):
        first = {point[index]: point for point in reversed(points)}
        numbers = [value for value in first if isinstance(value, int | float)]
        ends = [min(numbers), max(numbers)] if numbers else []
        others = [value for value in first if not isinstance(value, int | float)]
        probes |= {first[value]: None for value in (*ends, *others)}
    return list(probes)
