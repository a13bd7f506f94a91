"""`hosim sweep`: the rows of a scenario at every cell of a grid over fields of its documents."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Collection, Mapping, Sequence
from contextlib import closing, nullcontext
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from simulator import catalog, metrics
from simulator.catalog import Axis, Loaded
from simulator.catalog.shelf import told_at
from simulator.catalog.text import scalar
from simulator.errors import insist
from simulator.graph import Job
from simulator.metrics.figures import Of
from simulator.report.grids import Shown, grid_view
from simulator.run.case import Case, Policies, prepare
from simulator.run.kept import Kept, code_key, key_of, usual_folder
from simulator.run.provenance import provenance
from simulator.run.row import rows_of
from simulator.run.sweep import Point, Progress, Rows, Study, Sweep
from simulator.run.sweep import sweep as measured
from simulator.scenario import Scenario
from simulator.units import exact, parse, unit_of

MOST_CELLS = 10_000
"""More are run only if they are asked for: an hour on two cores, where a cell takes half a second."""
MOST_VALUES = 1_000_000
"""Of a range, which is made before cells are counted: some 100 MB."""
_RANGE = re.compile(r"(?P<first>.+?)\s*\.\.\s*(?P<last>.+?)\s*:\s*(?P<count>\d+)(?P<log>\s*log)?")
_UNITS = re.compile(r"[\d.eE+-]*\s*(.*)")
_WHERE = "grid, {}"
COUNTED: tuple[Of, ...] = ("run", "rank", "ranks", "addresses", "table")
"""Kinds of figures that need no bound."""
_WRITE = "write it as 'links.*.bandwidth=16..200 GB/s:8', or list values: 'batch=1,2,4'"

Values = str | Sequence[Any]
"""Values of an axis: a list, or a text such as ``16..200 GB/s:8``, ``1..256:9 log`` or ``32 GB, 64 GB``."""


def axis(key: str, asked: Values) -> tuple[Axis, list[Any]]:
    """Read an axis of a grid.

    Parameters
    ----------
    key
        Field path, of which each part may be a pattern: of the machine (``links.*.bandwidth``), of the workload
        (``workload.batch``) or of the scenario (``scenario.budget``).
    asked
        Its values. A range ``first..last:n`` has n of them, evenly spaced, or with ``log`` in even ratios; sizes, rates
        and times are rounded to whole bytes, bytes a second and nanoseconds.

    Returns
    -------
    tuple
        The axis, and its values in the order in which they are asked for.

    Raises
    ------
    ConfigError
        If there is no value, one is there twice, or a range is none.
    """
    where = _WHERE.format(key)
    listed = [part.strip() for part in asked.split(",")] if isinstance(asked, str) else list(asked)
    if isinstance(asked, str) and (found := _RANGE.fullmatch(asked.strip())):
        listed = _spaced(found, where, asked)
    insist(listed and "" not in listed, where, "an axis has values", repr(asked), _WRITE)
    units = {unit_of(one) for one in listed}
    unit = units.pop() if len(units) == 1 and "inf" not in listed else None
    values = [parse(one, unit) if unit else _plain(one) for one in listed]
    insist(len(set(values)) == len(values), where, "values of an axis differ", repr(asked), "leave one of them out")
    return Axis(key, (key,), where, unit), values


def _plain(one: Any) -> Any:
    """A value as a document states it; ``inf`` stays a text."""
    return scalar(one) if isinstance(one, str) and unit_of(one) is None else one


def _spaced(found: re.Match[str], where: str, asked: str) -> list[Any]:
    """The values of a range, as a document states them."""
    first, last, count = found["first"], found["last"], int(found["count"])
    if unit_of(first) is None and (name := _UNITS.fullmatch(last)) is not None:
        first = f"{first} {name[1]}".strip()  # 16..200 GB/s
    unit = unit_of(first)
    with told_at(where):
        ends = [parse(one, unit) if unit else scalar(one) for one in (first, last)]
    numbers = [one for one in ends if isinstance(one, int | float) and math.isfinite(one)]
    rule = "a range goes from a number up to a larger one, in 2 values or more"
    insist(len(numbers) == 2 and count > 1 and numbers[0] < numbers[-1], where, rule, repr(asked), _WRITE)
    rule = f"a range has at most {MOST_VALUES:,} values"
    insist(count <= MOST_VALUES, where, rule, f"{count:,}", "ask for fewer")  # before a list takes memory
    low, high = numbers
    insist(low > 0 or not found["log"], where, "even ratios begin above 0", repr(asked), "raise the first value")
    shares = [number / (count - 1) for number in range(count)]
    spaced = [low * (high / low) ** share if found["log"] else low + (high - low) * share for share in shares]
    if unit is None and not all(isinstance(one, int) for one in ends):
        return spaced
    whole = list(dict.fromkeys(map(round, spaced)))
    return whole if unit is None else [exact(one, unit) for one in whole]


class Cells:
    """Measures cells: what is the same in several of them is built once in a process.

    Parameters
    ----------
    policies
        As in `simulator.run`.
    asked
        Columns that are asked for; None: all.
    """

    def __init__(self, policies: Policies | None = None, asked: Collection[str] | None = None) -> None:
        self._policies, self._asked = policies, asked
        self._last: tuple[str, Job] | None = None

    def __call__(self, loaded: Loaded, point: Point) -> Rows:
        """Run the rows of a cell."""
        case, tokens = self.case(loaded), loaded.workload.tokens
        return [
            row.summary | {"ranks": case.job.ranks, "tokens": tokens}
            for row in rows_of(case, self._policies, advice=False)
        ]

    def case(self, loaded: Loaded) -> Case:
        """Build a cell; what it has in common with the last one is not built again."""
        said = f"{loaded.scenario.homes} {loaded.workload_dir} {loaded.workload.model_dump_json()}"
        job = self._last[1] if self._last is not None and self._last[0] == said else None
        case = prepare(loaded, job, asked=self._asked)
        self._last = said, case.job
        return case


def sweep(  # noqa: PLR0913 - a scenario, what varies, and by name what is seldom said
    scenario: str | Path | Scenario,
    grid: Mapping[str, Values] | None = None,
    *,
    set: Mapping[str, Any] | None = None,  # noqa: A002 - the key of the document
    policies: Policies | None = None,
    workers: int | None = None,
    progress: Progress | None = None,
    cache: str | Path | bool = True,
    at_most: int = MOST_CELLS,
    bounds: bool = False,
) -> Sweep:
    """Run a scenario at every cell of a grid.

    Parameters
    ----------
    scenario
        A name in the catalogue, a path that ends in ``.yaml``, or the document itself.
    grid
        Field path -> values, see `axis`; default: the key ``grid`` of the scenario. The last axis varies fastest.
    set, policies
        As in `simulator.run`.
    workers
        Processes; default: one for each core. More than one needs ``if __name__ == "__main__":`` around the call in a
        script. The result does not depend on it.
    progress
        Called when a cell is measured.
    cache
        Folder of rows that were measured before, to which new ones are added at once; True: the usual one
        (``$XDG_CACHE_HOME/hosim``, else ``~/.cache/hosim``); False: none. Rows of functions as policies are not kept.
    at_most
        More cells are refused.
    bounds
        Whether columns about bounds are counted as well, which takes longer.

    Returns
    -------
    Sweep
        One row per cell and policy: the fields that vary, the columns of `simulator.run`'s summary, ``ranks``,
        ``tokens`` and ``tokens_per_s``. What cannot run in a cell is a row with its status and its reason.

    Raises
    ------
    ConfigError
        If a document is wrong, a path names no field, a value is none of an axis, or there are too many cells.
    """
    loaded = catalog.resolve(scenario, set)
    asked = loaded.scenario.grid if grid is None else grid
    place, do = loaded.place("grid"), "say what varies: --grid 'links.*.bandwidth=16..200 GB/s:8'"
    insist(asked, place, "a sweep varies something", "nothing", do)
    axes, values = zip(*(axis(key, one) for key, one in asked.items()), strict=True)
    cells, rule = math.prod(map(len, values)), f"at most {at_most:,} cells are run unless more are asked for"
    insist(cells <= at_most, place, rule, f"{cells:,}", f"ask for fewer, or say --at-most {cells}")
    base = loaded.asking_nothing()
    columns = None if bounds else metrics.columns(base.hardware, COUNTED)
    first = tuple(one[0] for one in values)
    probes = [(*first[:n], value, *first[n + 1 :]) for n, own in enumerate(values) for value in own]
    names = None if policies is None or isinstance(policies, Mapping) else list(policies)
    is_kept = cache is not False and not isinstance(policies, Mapping)
    about = [provenance(base, names), code_key(), bounds, [(one.fields, one.unit) for one in axes]]
    study = Study(
        base,
        Cells(policies, columns),
        axes,
        list(product(*values)),
        probes=probes,
        key=partial(key_of, key_of(about).hex()),
    )
    folder = Path(cache) if isinstance(cache, str | Path) else usual_folder()
    with closing(Kept(folder)) if is_kept else nullcontext() as kept:
        rows = measured([study], workers or os.cpu_count() or 1, progress, kept)
    shown = [Shown(one.name, one.unit, own) for one, own in zip(axes, values, strict=True)]
    view = grid_view(rows, shown, base.hardware, base.scenario.title or base.scenario.name)
    return Sweep("sweep", [loaded], rows, view, {"points": rows}, {"grid": {one.name: one.values for one in shown}})
