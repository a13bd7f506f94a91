"""The sweep of `hosim sensitivity`: claims with other values of what their sources leave open."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from simulator import catalog
from simulator.catalog import Loaded
from simulator.errors import ConfigError
from simulator.report.claims_view import Judged
from simulator.report.sensitivity_view import dependences, sensitivity_view
from simulator.run.sweep import Point, Progress, Row, Rows, Study, sweep
from simulator.run.swept import Sweep
from simulator.run.validate import judged, validate
from simulator.scenario import LIMITS, Expectation

_PARTS = 4
"""A range is cut into so many parts at first: five values show whether a figure goes up and down."""


def open_claims() -> list[str]:
    """Name the scenarios of the catalogue whose claim leaves parameters open."""
    found = {name: catalog.read_scenario(name) for name in catalog.names("scenario")}
    return [name for name, one in found.items() if one.claim and one.claim.unstated]


def sensitivity(
    scenarios: Sequence[str | Path] | None = None, *, workers: int = 1, progress: Progress | None = None
) -> Sweep:
    """Recompute claims with other values of each parameter that their sources leave open, one at a time.

    Parameters
    ----------
    scenarios
        Names in the catalogue, or paths that end in ``.yaml``; default: all of the catalogue that say what is open.
    workers
        Processes; more than one needs ``if __name__ == "__main__":`` around the call in a script. The result does not
        depend on it.
    progress
        Called when a value was tried.

    Returns
    -------
    Sweep
        Its outcomes: a verdict per parameter, value and printed figure. Its rows: one per figure and parameter, see
        `simulator.report.sensitivity_view.dependences`.

    Raises
    ------
    ConfigError
        If a document is wrong, nothing is open or printed, or a document is not valid with a value.
    """
    names = open_claims() if scenarios is None else list(dict.fromkeys(map(str, scenarios)))
    loaded = [catalog.resolve(name) for name in names]
    for one in loaded:
        _check(one)
    if not loaded:
        raise ConfigError("scenarios", "a scenario whose claim leaves something open is named", "none", "name one")
    validation = validate(names, workers=workers, progress=progress)
    nominal = sweep([Study(one, figures, is_strict=True) for one in loaded], workers, progress)
    studies = []
    for one in loaded:
        verdicts = [row for row in nominal if row["scenario"] == one.scenario.name]
        studies += [_study(one, number, verdicts) for number in range(len(catalog.unstated(one)))]
    outcomes = sweep(studies, workers, progress)
    for row in outcomes:
        row["value"] = row.pop(row["parameter"])
    rows = dependences(outcomes)
    return Sweep("sensitivity", loaded, rows, sensitivity_view(rows, outcomes, validation.sentences), outcomes)


def _check(loaded: Loaded) -> None:
    """Refuse a claim that leaves nothing open, or prints nothing that ours could be held against."""
    if not catalog.unstated(loaded):
        must, do = "the claim says which parameters its source leaves open", "list them under claim: unstated"
        raise ConfigError(loaded.place("claim"), must, "none", f"{do}, with a range each")
    if not _compared(loaded):
        must = "something is held against a printed figure, or shown beside a number"
        raise ConfigError(loaded.place("expect"), must, "nothing", "add printed to an expectation")


def _study(loaded: Loaded, number: int, nominal: Rows) -> Study:
    """How one parameter is varied: a few values over its range, then between those where a figure turns."""
    one, axis, taken = catalog.unstated(loaded)[number], catalog.axis(loaded, number), catalog.taken(loaded, number)
    last = len(one.values) - 1
    points = [(taken,), *((one.values[part * last // _PARTS],) for part in range(_PARTS + 1))]
    about = {"parameter": one.parameter, "unit": one.unit or "", "taken": taken}
    known = {(taken,): nominal}
    return Study(loaded, figures, (axis,), points, one.values, _turned, about, known, is_strict=True)


def _turned(rows: Rows, others: Rows) -> bool:
    """Whether some figure holds with one of two values and not with the other, or passes what is printed."""

    def turns(one: Row, other: Row) -> bool:
        if one["holds"] or other["holds"] or one["error"] is None or other["error"] is None:
            return bool(one["holds"] != other["holds"])
        return bool((one["error"] < 0) != (other["error"] < 0))

    return any(map(turns, rows, others))


def _compared(loaded: Loaded) -> list[Expectation]:
    """What is held against a printed figure, or shown beside one number that it may be near to."""
    printed = (one for one in loaded.scenario.expect if one.printed is not None)
    return [one for one in printed if one.kind != "shown" or len(one.printed_ends) == 1]


def figures(loaded: Loaded, _: Point) -> Rows:
    """Run the rows with printed figures, and judge; what is only shown is held against what is printed, too."""
    ours: dict[str, object] = {**dict.fromkeys(LIMITS, None), "faster_than": None, "kind": "predicted"}
    compared = _compared(loaded)
    held = [one.model_copy(update=ours) if one.kind == "shown" else one for one in compared]
    return [
        Judged(loaded.scenario.name, verdict).row
        | {"claim": verdict.why or f"{verdict.row}: {verdict.column}", "kind": one.kind}
        | {"asks": verdict.asks, "holds": verdict.holds}
        for verdict, one in zip(judged(loaded, held), compared, strict=True)
    ]
