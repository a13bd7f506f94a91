"""The sweep of `hosim validate`: run every claim, and hold what came out against what is printed.

A line is told per printed figure, and how many stand on what was fitted and chosen.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from simulator import catalog
from simulator.catalog import Axis, Loaded
from simulator.document import Fit
from simulator.errors import ConfigError
from simulator.report.expectations import Check, Verdict, check, untested, verdicts
from simulator.report.rows import ABSENT, grouped, listed, percent
from simulator.report.tables import Column
from simulator.report.views import Section, SweepView, by
from simulator.run import run_case
from simulator.run.case import prepare
from simulator.run.sweep import Point, Progress, Rows, Study, Sweep, sweep
from simulator.scenario import Expectation, Scenario
from simulator.serving import serve
from simulator.units import counted


class Judged(NamedTuple):
    """A verdict on what a scenario expects, and what was fitted and chosen that its row stands on.

    Attributes
    ----------
    scenario, verdict
        What was expected where, and whether it holds.
    fits
        What was fitted, each with the paths of the fields where it stands.
    chosen
        What was chosen because it explains, each with the reason.
    counted
        For how many settings of what is left open figures hold, when that was last counted; nothing on a machine that
        was changed, for which it was never counted.
    """

    scenario: str
    verdict: Verdict
    fits: Mapping[Fit, Collection[str]] = {}
    chosen: Mapping[str, str] = {}
    counted: Sequence[str] = ()

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
            "difference": one.difference,
            "tolerance": one.tolerance or one.must,
            "verdict": one.word,
            "kind": one.kind,
            "fitted": ", ".join(fit.parameter for fit in self.fits),
            "chosen": ", ".join(self.chosen),
            "missed": one.missed,
        }

    @property
    def is_shown(self) -> bool:
        """Whether it has a line: if it is about a printed figure, stands for a headline, or fails."""
        return bool(self.verdict.printed) or self.verdict.headline or self.verdict.is_broken


def claims_view(judged: Sequence[Judged], changed: str = "") -> SweepView:
    """Show verdicts: a line for each printed figure, and for what else stands for a headline, or fails.

    Parameters
    ----------
    judged
        All that was expected.
    changed
        What of the machines is not as the documents say, if anything.
    """
    title, rows = "Printed figures, recomputed", [one.row for one in judged if one.is_shown]
    if not rows:
        return SweepView(title, (), [f"No figure is printed; {counted(len(judged), 'expectation')}, which all hold."])
    heads = ("claim", "printed", "obtained", "difference", "tolerance", "verdict", "fitted")
    numbers = {"printed", "obtained", "difference", "tolerance"}
    sections = [
        Section(
            source or "No source",
            [Column(head, tuple(row[head] or ABSENT for row in own), left=head not in numbers) for head in heads],
        )
        for (source,), own in by(rows, "source").items()
    ]
    free = {(fit.parameter, fit.figure): (fit, fields) for one in judged for fit, fields in one.fits.items()}
    fitted = [(fit.parameter, f"{', '.join(fields)}, to {fit.figure}: {fit.why}") for fit, fields in free.values()]
    chosen = list({name: why for one in judged for name, why in one.chosen.items()}.items())
    missed = by((row for row in rows if row["verdict"] == "missed"), "missed")
    why = [("", f"{'; '.join(row['claim'] for row in own)}: {reason}") for (reason,), own in missed.items()]
    told = {f"Counted by hosim sensitivity {one.scenario} --choices, and recorded": one.counted for one in judged}
    noted = {"Fitted": fitted, "Chosen": chosen, "Missed": why} | {
        head: [("", line) for line in lines] for head, lines in told.items()
    }
    notes = [Section(head, notes=lines) for head, lines in noted.items() if lines]
    return SweepView(title, [*sections, *notes], sentences(judged, changed))


_WORST_FIRST = ("BROKEN", "missed", "fitted", "by construction", "guarded", "holds", "shown")
"""Words for verdicts; to be shown in one place says nothing against a figure that another place holds."""


def sentences(judged: Sequence[Judged], changed: str = "") -> list[str]:
    """Say how many printed figures hold, with what fitted and chosen, and what is missed or broken.

    Parameters
    ----------
    judged
        All that was expected. A printed figure that several of them are about counts once, by its worst verdict.
    changed
        What of the machines is not as the documents say, if anything: then nothing is predicted.
    """
    words: dict[str, str] = {}
    about: dict[str, list[Judged]] = {}
    for one in judged:
        if one.verdict.printed:
            figure, word = one.verdict.figure or one.verdict.why or str(one.verdict), one.verdict.word
            words[figure] = min(word, words.get(figure, word), key=_WORST_FIRST.index)
            about.setdefault(figure, []).extend([one] if word == "holds" else [])
    count = Counter(words.values())
    held = [about[figure] for figure, word in words.items() if word == "holds"]
    kinds = [f"{len(own)} {kind}{_off(own)}" for kind, own in grouped(held, _stand_on).items()]
    told = [f"{counted(len(held), 'printed figure')} predicted and held{': ' if kinds else ''}{'; '.join(kinds)}."]
    if changed:
        told = [f"{counted(len(held), 'printed figure')} held on machines with {changed}, which predicts nothing."]
    if rest := _of_each(count, "holds"):
        told.append(f"Of {counted(len(words), 'printed figure')} {rest}.")
    if headlines := Counter[str](one.verdict.word for one in judged if one.verdict.headline):
        told.append(f"Of {counted(headlines.total(), 'headline expectation')} {_of_each(headlines)}.")
    for scenario, verdict, *_ in judged:
        if verdict.is_broken:
            told.append(f"BROKEN: {scenario}: {verdict}")
        elif verdict.missed and verdict.holds and not changed:
            told.append(f"{scenario}: {verdict}: said to be missed, and holds; drop missed from the scenario.")
    return told


def _of_each(count: Mapping[str, int], unsaid: str = "") -> str:
    """Say how many have each verdict."""
    return listed([f"{count[word]} {word}" for word in reversed(_WORST_FIRST) if count[word] and word != unsaid])


def _stand_on(own: Sequence[Judged]) -> str:
    """Say what was fitted and chosen that a figure stands on."""
    fitted = list(dict.fromkeys(fit.parameter for one in own for fit in one.fits))
    chosen = list(dict.fromkeys(name for one in own for name in one.chosen))
    told = [f"{counted(len(fitted), 'number')} fitted ({', '.join(fitted)})"] if fitted else []
    explain = "choice that explains" if len(chosen) == 1 else "choices that explain"
    told += [f"{len(chosen)} {explain} ({', '.join(chosen)})"] if chosen else []
    return f"with {listed(told) or 'nothing fitted or chosen'}"


def _off(held: Sequence[Sequence[Judged]]) -> str:
    """Say how far those are off that hold, which a wide tolerance does not tell."""
    errors = [abs(one.verdict.error) for own in held for one in own if one.verdict.error is not None]
    return f", off by at most {percent(max(errors))}" if errors else ""


@dataclass(frozen=True, eq=False)
class Validation(Sweep):
    """What came of it; one row per printed figure, and per other expectation that stands for a headline or fails.

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
        return {
            one.scenario.name: [check(own.verdict) for own in self.judged if own.scenario == one.scenario.name]
            for one in self.loaded
        }


def claims(has: Callable[[Scenario], object] = lambda one: one.expect) -> list[str]:
    """Name the scenarios of the catalogue that put a claim to the test, papers before measurements.

    Parameters
    ----------
    has
        What such a scenario must have; default: an expectation.
    """
    found = {name: catalog.read_scenario(name) for name in catalog.names("scenario")}
    names = [name for name, one in found.items() if one.claim and has(one)]
    return sorted(names, key=lambda name: catalog.path_of(name, "scenario").parent.name)


def read(
    scenarios: Sequence[str | Path] | None, must: str, has: Callable[[Scenario], object] = lambda one: one.expect
) -> list[Loaded]:
    """Read the scenarios that are named, or those of the catalogue that have something.

    Parameters
    ----------
    scenarios
        Names in the catalogue, or paths; None: see `claims`.
    must, has
        What is to be named; and what those of the catalogue have.

    Raises
    ------
    ConfigError
        If there is none, or a document is wrong.
    """
    names = claims(has) if scenarios is None else list(dict.fromkeys(map(str, scenarios)))
    if not names:
        raise ConfigError("scenarios", must, "none", "name one, or leave them out")
    return [catalog.resolve(name) for name in names]


def validate(
    scenarios: Sequence[str | Path] | None = None,
    *,
    scale: Mapping[str, float] | None = None,
    headline: bool = False,
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
    headline
        Whether only that is checked which stands for a claim that its source leads with.
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
    expected: Callable[[Scenario], Scenario] = _headlines if headline else lambda one: one
    loaded = read(scenarios, "a claim is named to be validated", lambda one: expected(one).expect)
    loaded = [replace(one, scenario=expected(one.scenario)) for one in loaded]
    axes = {Axis(path, (path,), "scale", "x"): factor for path, factor in (scale or {}).items()}
    own = [{axis: factor for axis, factor in axes.items() if _has(one, axis, factor)} for one in loaded]
    for axis in axes.keys() - {axis for scaled in own for axis in scaled}:
        catalog.at(loaded[0], {axis: axes[axis]})
    studies = [
        Study(one, checked, tuple(scaled), [tuple(scaled.values())], is_strict=True)
        for one, scaled in zip(loaded, own, strict=True)
    ]
    judged = [row["judged"] for row in sweep(studies, workers, progress)]
    rows, more = [one.row for one in judged if one.is_shown], {"broken": any(one.verdict.is_broken for one in judged)}
    changed = listed([f"{path} x {factor:g}" for path, factor in (scale or {}).items()])
    return Validation("validate", loaded, rows, claims_view(judged, changed), more=more, judged=judged)


def _headlines(scenario: Scenario) -> Scenario:
    """The same, of which only that is expected which stands for a headline."""
    expect = tuple(one for one in scenario.expect if one.headline)
    claim = scenario.claim and scenario.claim.model_copy(update={"untested": ()})
    return scenario.model_copy(update={"expect": expect, "claim": claim})


def _has(loaded: Loaded, axis: Axis, factor: float) -> bool:
    """Whether the machine has a figure that is to be multiplied."""
    try:
        catalog.at(loaded, {axis: factor})
    except ConfigError:
        return False
    return True


def checked(loaded: Loaded, point: Point) -> Rows:
    """Run, or serve, the rows of a scenario that something is expected of, and judge."""
    scenario, claim = loaded.scenario, loaded.scenario.claim
    if not scenario.expect:
        must = "a scenario that is validated expects something of a row"
        do = "add expect, or run it: hosim run; --headline asks for what is marked headline: true alone"
        raise ConfigError(loaded.place("expect"), must, "nothing", do)
    found = judged(loaded, scenario.expect, is_changed=bool(point)) + (untested(claim) if claim else [])
    fits: dict[str, dict[Fit, dict[str, None]]] = {choice.row: {} for choice in scenario.policies}
    for document in (scenario, loaded.hardware, loaded.workload):
        for choice, (path, fit) in product(scenario.policies, document.fitted.items()):
            if choice.allocator != "ideal" or not path.startswith("allocator."):
                fits[choice.row].setdefault(fit, {})[path] = None
    more = (claim.chosen, () if point else claim.counted) if claim else ()
    return [{"judged": Judged(scenario.name, verdict, fits.get(verdict.row, {}), *more)} for verdict in found]


def judged(
    loaded: Loaded, expected: Sequence[Expectation], *, is_changed: bool = False, with_bounds: bool = True
) -> list[Verdict]:
    """Run, or serve, the rows that something is expected of, and judge.

    Parameters
    ----------
    loaded
        The scenario, its machine and its workload.
    expected
        What is expected, whether or not a document was changed.
    is_changed
        Whether the machine is another one than the documents say.
    with_bounds
        Whether rows are held against their bounds, so that the law of bounds is held, too.
    """
    labels = list(dict.fromkeys(row for one in expected for row in one.rows.values()))
    rows: Mapping[str, Mapping[str, Any]]
    if loaded.workload.requests is None:
        rows = run_case(prepare(loaded, with_bounds=with_bounds), labels).summaries
    else:
        changes = dict(loaded.scenario.set_) if is_changed else None
        rows = {str(row["policy"]): row for row in serve(loaded.paths["scenario"], set=changes, policies=labels).rows}
    return verdicts(expected, rows, loaded.scenario.claim.source if loaded.scenario.claim else "")
