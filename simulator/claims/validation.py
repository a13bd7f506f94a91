"""The sweep of `hosim validate`: run every claim, and hold what came out against what is printed.

A line is told per printed figure, and how many free parameters explain how many.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from string import ascii_lowercase
from typing import Any, NamedTuple

from simulator import catalog
from simulator.catalog import Axis, Loaded
from simulator.document import Fit
from simulator.errors import ConfigError
from simulator.report.expectations import Check, Summaries, Verdict, check, untested, verdicts
from simulator.report.rows import ABSENT, listed
from simulator.report.view import Section, View, texts
from simulator.run import prepare, run_case
from simulator.run.sweep import Point, Progress, Rows, Study, Sweep, sweep
from simulator.scenario import Expectation, PolicyChoice
from simulator.serving import serve
from simulator.units import counted


@dataclass(frozen=True, slots=True)
class Fitted:
    """A free parameter of a scenario.

    Attributes
    ----------
    parameter, figure, why
        What was fitted, to which printed figure, and how.
    fields
        Where it stands: paths of fields.
    """

    parameter: str
    figure: str
    why: str
    fields: tuple[str, ...]

    @property
    def key(self) -> tuple[str, str]:
        """What makes it one free parameter, in whatever scenario."""
        return self.parameter, self.figure


class Judged(NamedTuple):
    """A verdict on what a scenario expects, and the free parameters that its row stands on."""

    scenario: str
    verdict: Verdict
    fits: tuple[Fitted, ...] = ()

    @property
    def row(self) -> dict[str, Any]:
        """The verdict as a row: printed and obtained are for people, the error is a share of what is printed."""
        one = self.verdict
        return {
            "scenario": self.scenario,
            "row": one.row,
            "column": one.column,
            "claim": one.why or str(one),
            "figure": one.figure,
            "source": one.source,
            "printed": one.printed,
            "obtained": one.found,
            "error": one.error,
            "tolerance": one.tolerance or one.must,
            "verdict": one.word,
            "kind": one.kind,
            "fitted": ", ".join(fit.parameter for fit in self.fits),
            "missed": one.missed,
        }

    @property
    def name(self) -> str:
        """What names the printed figure, in whatever scenario."""
        return self.verdict.figure or self.verdict.why or str(self.verdict)


def claims_view(judged: Sequence[Judged]) -> View:
    """Show verdicts: a line for each printed figure, and for each other expectation that fails.

    Parameters
    ----------
    judged
        All that was expected.
    """
    title, lines = (
        "Printed figures, recomputed",
        [one for one in judged if one.verdict.printed or one.verdict.is_broken],
    )
    if not lines:
        all_hold = f"No figure is printed; {counted(len(judged), 'expectation')}, which all hold."
        return View(title, (), [all_hold])
    free = _free(judged)
    letters = dict(zip(free, map("".join, (*ascii_lowercase, *product(ascii_lowercase, repeat=2))), strict=False))
    sources = list(dict.fromkeys(one.verdict.source for one in lines if one.verdict.source))
    missed: dict[str, list[str]] = {}
    for one in lines:
        if one.verdict.word == "missed":
            missed.setdefault(one.verdict.missed, []).append(one.verdict.why)
    rows = [one.row | {"fits": " ".join(letters[fit.key] for fit in one.fits), "of": one.verdict} for one in lines]
    columns = [
        texts("claim", rows, lambda row: row["of"].why or f"{row['row']}: {row['column']}"),
        texts("source", rows, lambda row: sources.index(row["source"]) + 1 if row["source"] else ABSENT, left=False),
        texts("printed", rows, lambda row: row["printed"] or ABSENT, left=False),
        texts("obtained", rows, lambda row: row["obtained"], left=False),
        texts("error", rows, lambda row: row["of"].difference or ABSENT, left=False),
        texts("tolerance", rows, lambda row: row["tolerance"], left=False),
        texts("verdict", rows, lambda row: row["verdict"]),
        texts("fitted", rows, lambda row: row["fits"] or ABSENT),
    ]
    fitted = [
        (letters[key], f"{fit.parameter} ({', '.join(fit.fields)}), to {fit.figure}: {fit.why}")
        for key, fit in free.items()
    ]
    notes = {
        "Sources": [(str(number), name) for number, name in enumerate(sources, 1)],
        "Fitted": fitted,
        "Missed": [("", f"{'; '.join(claims)}: {why}") for why, claims in missed.items()],
    }
    sections = [Section(head, notes=marked) for head, marked in notes.items() if marked]
    return View(title, [Section(columns=columns), *sections], sentences(judged))


def _free(judged: Sequence[Judged]) -> dict[tuple[str, str], Fitted]:
    """The free parameters, each once."""
    return {fit.key: fit for one in reversed(judged) for fit in one.fits}


def sentences(judged: Sequence[Judged]) -> list[str]:
    """Say how many free parameters explain how many printed figures, and what is missed or broken.

    Parameters
    ----------
    judged
        All that was expected. A printed figure that several of them are about counts once, by its worst verdict.
    """
    words: dict[str, set[str]] = {}
    for one in judged:
        if one.verdict.printed:
            words.setdefault(one.name, set()).add(one.verdict.word)
    worst = {name: next(word for word in _WORST_FIRST if word in found) for name, found in words.items()}
    count = Counter(worst.values())
    told = [_explained(judged, {name for name, word in worst.items() if word == "holds"})]
    rest = [f"{count[word]} {what}" for word, what in _TOLD.items() if count[word]]
    told += [f"Of {counted(len(worst), 'printed figure')} {listed(rest)}."] if rest else []
    guards = sum(one.verdict.is_broken and not one.verdict.printed for one in judged)
    told += (
        [f"BROKEN as well: {counted(guards, 'figure')} that nobody printed, but that we obtained."] if guards else []
    )
    for scenario, verdict, _ in judged:
        if verdict.is_broken:
            told.append(f"BROKEN: {scenario}: {verdict}")
        elif verdict.missed and verdict.holds:
            told.append(f"{scenario}: {verdict}: said to be missed, and holds; drop missed from the scenario.")
    return told


def _explained(judged: Sequence[Judged], held: set[str]) -> str:
    """Say how many figures that held stand on how many free parameters, and which of these no such figure needs."""
    uses = {one.name: one.fits for one in judged if one.verdict.printed and one.verdict.word == "holds"}
    groups = Counter(tuple(fit.parameter for fit in fits) for name, fits in uses.items() if name in held)
    alone = groups.pop((), 0)
    told: list[str] = []
    for names, number in groups.most_common():
        many, verb = len(names), "explains" if len(names) == 1 else "explain"
        first = f"{counted(many, 'free parameter')} ({listed(names)}) {verb} "
        first += f"{counted(number, 'printed figure')}, predicted and held"
        told.append(f"{many} ({listed(names)}) {verb} {number} more" if told else first)
    if not told:
        told = [f"{counted(alone, 'printed figure')}, predicted and held, with nothing fitted"]
    elif alone:
        told.append(f"{alone} more with nothing fitted")
    idle = [fit.parameter for fit in _free(judged).values() if not any(fit.parameter in names for names in groups)]
    needless = f" No figure that holds needs what else was fitted: {listed(idle)}." if idle else ""
    return f"{'; '.join(told)}.{needless}"


_WORST_FIRST = ("BROKEN", "missed", "fitted", "holds", "shown")
"""Words for verdicts; to be shown in one place says nothing against a figure that another place holds."""
_TOLD: Mapping[str, str] = {"fitted": "fitted", "shown": "only shown", "missed": "missed, as known", "BROKEN": "BROKEN"}


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
