"""The sweep of `hosim validate`: run every claim, and hold what came out against what is printed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from simulator import catalog
from simulator.catalog import Axis, Loaded
from simulator.claims.verdict_table import Fitted, Judged, claims_view
from simulator.document import Fit
from simulator.errors import ConfigError
from simulator.report.expectations import Check, Summaries, Verdict, check, untested, verdicts
from simulator.run import prepare, run_case
from simulator.run.sweep import Point, Progress, Rows, Study, sweep
from simulator.run.swept import Sweep
from simulator.scenario import Expectation, PolicyChoice
from simulator.serving import serve


@dataclass(frozen=True, eq=False)
class Validation(Sweep):
    """What came of it; one row per printed figure, and per other expectation that fails.

    Attributes
    ----------
    judged
        Verdicts on all that is expected.
    """

    judged: Sequence[Judged] = field(default=(), repr=False)

    @property
    def is_broken(self) -> bool:
        """Whether something that must hold does not."""
        return any(one.verdict.is_broken for one in self.judged)

    @property
    def checks(self) -> dict[str, list[Check]]:
        """What it fails for, as tests, by scenario."""
        found: dict[str, list[Check]] = {one.scenario.name: [] for one in self.loaded}
        for one in self.judged:
            found[one.scenario].append(check(one.verdict))
        return found


def claims() -> list[str]:
    """Name the scenarios of the catalogue that put a claim to the test, papers before measurements."""
    found = {name: catalog.read_scenario(name) for name in catalog.names("scenario")}
    names = [name for name, scenario in found.items() if scenario.claim and scenario.expect]
    return sorted(names, key=lambda name: catalog.path_of(name, "scenario").parent.name)


def validate(
    scenarios: Sequence[str | Path] | None = None,
    *,
    scale: Mapping[str, float] | None = None,
    workers: int = 1,
    progress: Progress | None = None,
) -> Validation:
    """Recompute printed figures, and say of each whether it is reproduced.

    Parameters
    ----------
    scenarios
        Names in the catalogue, or paths that end in ``.yaml``; default: all of the catalogue with a claim.
    scale
        Dotted path of figures of the machines -> what they are multiplied by, to see which claims depend on them:
        ``{"links.*.bandwidth": 0.5}``. A scenario whose machine has no such figure runs as it is.
    workers
        Processes; more than one needs ``if __name__ == "__main__":`` around the call in a script. The result does not
        depend on it.
    progress
        Called when a scenario is done.

    Raises
    ------
    HosimError
        If a document, an option or a plan is wrong.
    ConfigError
        If there is nothing to validate, or no machine has a figure that is to be multiplied.
    """
    loaded = [catalog.resolve(name) for name in (claims() if scenarios is None else scenarios)]
    if not loaded:
        raise ConfigError("scenarios", "a claim is named to be validated", "none", "name one, or leave them out")
    axes = {Axis(path, (path,), "scale", "x"): factor for path, factor in (scale or {}).items()}
    for axis, factor in axes.items():
        if not any(_has(one, axis, factor) for one in loaded):
            catalog.at(loaded[0], {axis: factor})
    studies = []
    for one in loaded:
        own = tuple(axis for axis, factor in axes.items() if _has(one, axis, factor))
        studies.append(Study(one, checked, own, [tuple(axes[axis] for axis in own)], is_strict=True))
    judged = [row["judged"] for row in sweep(studies, workers, progress)]
    view = claims_view(judged)
    rows = [one.row for one in judged if one.verdict.printed or one.verdict.is_broken]
    more = {"broken": any(one.verdict.is_broken for one in judged)}
    return Validation("validate", loaded, rows, view, more=more, judged=judged)


def _has(loaded: Loaded, axis: Axis, factor: float) -> bool:
    """Whether the machine has a figure that is to be multiplied."""
    try:
        catalog.at(loaded, {axis: factor})
    except ConfigError:
        return False
    return True


def checked(loaded: Loaded, point: Point) -> Rows:
    """Run, or serve, the rows of a scenario that something is expected of, and judge."""
    scenario = loaded.scenario
    if not scenario.expect:
        must, do = "a scenario that is validated expects something of a row", "add expect, or run it: hosim run"
        raise ConfigError(loaded.place("expect"), must, "nothing", do)
    if loaded.workload.requests is not None:
        changes = dict(scenario.set_) if point else None
        served = serve(loaded.paths["scenario"], set=changes, policies=_labels(scenario.expect)).rows
        found = _verdicts(loaded, scenario.expect, {str(row["policy"]): row for row in served})
    else:
        found = judged(loaded, scenario.expect)
    found += untested(scenario.claim) if scenario.claim else []
    fits = {choice.row: tuple(_fits(loaded, choice)) for choice in scenario.policies}
    return [{"judged": Judged(scenario.name, verdict, fits.get(verdict.row, ()))} for verdict in found]


def judged(loaded: Loaded, expected: Sequence[Expectation]) -> list[Verdict]:
    """Run the rows that something is expected of, and judge.

    Parameters
    ----------
    loaded
        The scenario, its machine and its workload.
    expected
        What is expected, whether or not a document was changed.
    """
    return _verdicts(loaded, expected, run_case(prepare(loaded), _labels(expected)).summaries)


def _verdicts(loaded: Loaded, expected: Sequence[Expectation], rows: Summaries) -> list[Verdict]:
    claim = loaded.scenario.claim
    return verdicts(expected, rows, claim.source if claim else "")


def _labels(expected: Sequence[Expectation]) -> list[str]:
    """The rows that expectations are about."""
    every = (row for one in expected for row in (one.row, one.faster_than, one.over))
    return list(dict.fromkeys(filter(None, every)))


def _fits(loaded: Loaded, choice: PolicyChoice) -> Iterator[Fitted]:
    """What was fitted in the documents of a row, each once; nothing of the allocator if it has none."""
    fields: dict[Fit, list[str]] = {}
    for document in (loaded.scenario, loaded.hardware, loaded.workload):
        for path, fit in document.fitted.items():
            if choice.allocator != "ideal" or not path.startswith("allocator."):
                fields.setdefault(fit, []).append(path)
    for fit, paths in fields.items():
        yield Fitted(fit.parameter, fit.figure, fit.why, tuple(dict.fromkeys(paths)))
