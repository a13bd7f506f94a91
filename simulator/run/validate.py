"""The story of `hosim validate`: run every claim, and hold what came out against what is printed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simulator import catalog
from simulator.catalog import Loaded
from simulator.document import Fit
from simulator.errors import ConfigError
from simulator.report import junit
from simulator.report import validation as report
from simulator.report.expectations import Summaries, Verdict, untested, verdicts
from simulator.report.summaries import dumped
from simulator.report.validation import Checked, Fitted
from simulator.run import Case, Progress, read, run_case
from simulator.run.serving import serve
from simulator.run.workers import spread
from simulator.scenario import Expectation, PolicyChoice

if TYPE_CHECKING:
    import pandas as pd


SCHEMA = "hosim-validate/1"
"""The schema of what is written as JSON."""


@dataclass(frozen=True, eq=False)
class Validation:
    """What came of it.

    Attributes
    ----------
    checked
        One per scenario, in the order in which they were asked for.
    """

    checked: Sequence[Checked] = field(repr=False)

    @property
    def is_broken(self) -> bool:
        """Whether something that must hold does not."""
        return any(verdict.is_broken for one in self.checked for verdict in one.verdicts)

    @cached_property
    def rows(self) -> list[dict[str, Any]]:
        """One per printed figure, and per other expectation that fails: see `simulator.report.validation.rows`."""
        return report.rows(self.checked)

    @cached_property
    def table(self) -> pd.DataFrame:
        """The rows, one a line."""
        import pandas as pd  # noqa: PLC0415 - slow to import, and the text needs none

        return pd.DataFrame(self.rows, columns=list(report.COLUMNS))

    @cached_property
    def sentences(self) -> list[str]:
        """How many free parameters explain how many printed figures, and what is missed or broken."""
        return report.sentences(self.checked)

    def write(self, out: str | Path) -> None:
        """Write the rows, and a page with the table, its notes and its count of free parameters, into a folder.

        Parameters
        ----------
        out
            The folder; filled beside its place and renamed. An earlier run's is replaced.
        """
        from simulator.report import files, pages  # noqa: PLC0415 - what draws takes time to import

        with files.replaced(Path(out)) as folder:
            (folder / "report.html").write_text(pages.of_claims(self.checked), encoding="utf-8")
            files.write_summary(folder, self.rows, {"sentences": self.sentences})

    @property
    def checks(self) -> dict[str, list[junit.Case]]:
        """What it fails for, as tests, by scenario."""
        return {one.scenario: [junit.case(verdict) for verdict in one.verdicts] for one in self.checked}

    def json(self) -> bytes:
        """Write the rows and the sentences as JSON."""
        return dumped({"schema": SCHEMA, "broken": self.is_broken, "rows": self.rows, "sentences": self.sentences})

    def __str__(self) -> str:
        return report.text(self.checked)


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
    names = claims() if scenarios is None else [str(name) for name in scenarios]
    if not names:
        raise ConfigError("scenarios", "a claim is named to be validated", "none", "name one, or leave them out")
    tasks = [(name, _having(name, scale or {})) for name in names]
    _check_scale(scale or {}, tasks)

    def tell(done: int) -> None:
        if progress is not None:
            progress(f"{done} of {len(tasks)} scenarios", done, len(tasks))

    tell(0)
    return Validation(spread(_checker, tasks, workers, _lost, tell))


Task = tuple[str, Mapping[str, float]]
"""A scenario, and what figures of its machine are multiplied by."""


def _having(name: str, scale: Mapping[str, float]) -> dict[str, float]:
    """What of the scale is about figures that the scenario's machine has."""
    machine, found = catalog.resolve(name).hardware, {}
    for path, factor in scale.items():
        try:
            catalog.multiplied(machine, {path: factor})
        except ConfigError:
            continue
        found[path] = factor
    return found


def _check_scale(scale: Mapping[str, float], tasks: Sequence[Task]) -> None:
    for path, factor in scale.items():
        if not any(path in factors for _, factors in tasks):
            catalog.resolve(tasks[0][0], scale={path: factor})


def _checker() -> Callable[[Task], Checked]:
    """Return what a worker does; nothing is shared between scenarios."""
    return _checked


def _checked(task: Task) -> Checked:
    """Run, or serve, the rows of a scenario that something is expected of, and judge."""
    name, scale = task
    loaded = catalog.resolve(name, scale=scale)
    scenario = loaded.scenario
    if not scenario.expect:
        must, do = "a scenario that is validated expects something of a row", "add expect, or run it: hosim run"
        raise ConfigError(loaded.place("expect"), must, "nothing", do)
    is_served = loaded.workload.requests is not None
    found = _served(loaded, scale) if is_served else judged(read(name, scale=scale), scenario.expect)
    found += untested(scenario.claim) if scenario.claim else []
    fits = {choice.row: tuple(_fits(loaded, choice)) for choice in scenario.policies}
    return Checked(scenario.name, tuple(found), fits)


def _served(loaded: Loaded, scale: Mapping[str, float]) -> list[Verdict]:
    path, expected = loaded.paths["scenario"], loaded.scenario.expect
    changes = catalog.multiplied(catalog.resolve(path).hardware, scale)
    found = serve(path, set=changes, policies=_labels(expected)).rows
    return _verdicts(loaded, expected, {str(row["policy"]): row for row in found})


def judged(case: Case, expected: Sequence[Expectation]) -> list[Verdict]:
    """Run the rows that something is expected of, and judge.

    Parameters
    ----------
    case
        What runs, and where.
    expected
        What is expected, whether or not the case was changed.
    """
    return _verdicts(case.loaded, expected, run_case(case, _labels(expected)).summaries)


def _verdicts(loaded: Loaded, expected: Sequence[Expectation], rows: Summaries) -> list[Verdict]:
    claim = loaded.scenario.claim
    return verdicts(expected, rows, claim.source if claim else "")


def _lost(task: Task) -> Checked:
    raise ConfigError(task[0], "a claim is validated by a process", "one that died twice", "run it alone: hosim run")


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
