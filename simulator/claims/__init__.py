"""The sweep of `hosim validate`: run every claim, and compare its figures with the printed ones.

The table has a line for each printed figure; sentences count the figures that rest on fits and choices.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from operator import attrgetter
from pathlib import Path
from time import monotonic
from typing import Any, NamedTuple

from simulator import catalog
from simulator.catalog import Axis, Loaded
from simulator.document import Fit
from simulator.errors import ConfigError, insist
from simulator.metrics.statistics import by, grouped
from simulator.report.expectations import Verdict, untested, verdicts
from simulator.report.junit import Check, check
from simulator.report.tables import Column
from simulator.report.views import Section, SweepView
from simulator.report.words import ABSENT, percent
from simulator.run import run_case
from simulator.run.case import prepare
from simulator.run.sweep import Point, Progress, Rows, Study, Sweep, sweep
from simulator.scenario import Expectation, Scenario
from simulator.serving import serve
from simulator.units import counted, listed


class Judged(NamedTuple):
    """A verdict on an expectation of a scenario, and the fits and choices that its row rests on.

    Attributes
    ----------
    scenario, verdict
        The scenario, and whether its expectation holds.
    fits
        Fitted numbers, each with the field paths that it sets.
    chosen
        Choices that were made because they explain the figures, each with the reason.
    setting
        The setting that the scenario states where its source prints none.
    counted
        Recorded sentences on how many settings of the open choices reproduce figures; none if the machine was changed,
        for which nothing was counted.
    seconds
        How long the rows of the scenario took, with its first verdict.
    """

    scenario: str
    verdict: Verdict
    fits: Mapping[Fit, Collection[str]] = {}
    chosen: Mapping[str, str] = {}
    setting: str = ""
    counted: Sequence[str] = ()
    seconds: float = 0.0

    @property
    def row(self) -> dict[str, Any]:
        """The verdict as a row: printed and obtained are text, the error is a share of the printed figure."""
        verdict = self.verdict
        return {
            "scenario": self.scenario,
            "row": verdict.row,
            "column": verdict.column,
            "claim": verdict.why or str(verdict),
            "figure": verdict.figure,
            "source": verdict.source,
            "printed": verdict.printed,
            "obtained": verdict.found,
            "range": verdict.range,
            "error": verdict.error,
            "difference": verdict.difference,
            "tolerance": verdict.tolerance or verdict.must,
            "verdict": verdict.word,
            "kind": verdict.kind,
            "fitted": ", ".join(fit.parameter for fit in self.fits),
            "chosen": ", ".join(self.chosen),
            "setting": self.setting,
            "agrees_if": verdict.agrees_if,
            "missed": verdict.missed,
        }

    @property
    def is_shown(self) -> bool:
        """Whether it has a line in the table: it is about a printed figure, is a headline, or fails."""
        return bool(self.verdict.printed) or self.verdict.headline or self.verdict.is_broken


def claims_view(judged: Sequence[Judged], changed: str = "") -> SweepView:
    """Show verdicts: a line for each printed figure, and for each other one that is a headline or fails.

    Parameters
    ----------
    judged
        Verdicts on all expectations.
    changed
        Changes to the machines, for people; empty if there are none.
    """
    title, rows = "Printed figures, recomputed", [claim.row for claim in judged if claim.is_shown]
    if not rows:
        return SweepView(title, (), [f"No figure is printed; of {counted(len(judged), 'expectation')} none fails."])
    heads = ("claim", "printed", "obtained", "difference", "tolerance", "verdict", "fitted")
    numbers = {"printed", "obtained", "difference", "tolerance"}
    ranges = [{**row, "obtained": f"{row['obtained']} ({row['range']})"} if row["range"] else row for row in rows]
    sections = [
        Section(
            source or "No source",
            [Column(head, tuple(row[head] or ABSENT for row in group), left=head not in numbers) for head in heads],
        )
        for (source,), group in by(ranges, "source").items()
    ]
    free = {(fit.parameter, fit.figure): (fit, fields) for claim in judged for fit, fields in claim.fits.items()}
    fitted = [(fit.parameter, f"{', '.join(fields)}, to {fit.figure}: {fit.why}") for fit, fields in free.values()]
    chosen = list({name: why for claim in judged for name, why in claim.chosen.items()}.items())
    shown = list[tuple[str, str]]()
    for (scenario, setting), group in by((row for row in rows if row["agrees_if"]), "scenario", "setting").items():
        agreements = (f"{row['claim']}: agrees if {row['agrees_if']}" for row in group)
        shown += [("", text) for text in (f"{scenario}: {setting}", *agreements)]
    missed = by((row for row in rows if row["verdict"] == "missed"), "missed")
    why = [("", f"{'; '.join(row['claim'] for row in group)}: {reason}") for (reason,), group in missed.items()]
    noted = {"Fitted": fitted, "Chosen": chosen, "Shown in a setting that no source states": shown, "Missed": why}
    for claim in judged:
        head = f"Counted by python tests/choices.py {claim.scenario}, and recorded"
        noted[head] = [("", line) for line in claim.counted]
    notes = [Section(head, notes=lines) for head, lines in noted.items() if lines]
    return SweepView(title, [*sections, *notes], sentences(judged, changed))


_WORST_FIRST = ("BROKEN", "missed", "fitted", "by construction", "guarded", "holds", "shown")
"""Words for verdicts; a figure that is only shown in one place may still hold in another."""


def sentences(judged: Sequence[Judged], changed: str = "") -> list[str]:
    """Say how many printed figures hold, on which fits and choices they rest, and which are missed or broken.

    Parameters
    ----------
    judged
        Verdicts on all expectations. A printed figure with several expectations counts once, by its worst verdict.
    changed
        Changes to the machines, for people; if there are any, nothing is predicted.
    """
    words: dict[str, str] = {}
    about: dict[str, list[Judged]] = {}
    for claim in judged:
        if claim.verdict.printed:
            figure, word = claim.verdict.figure or claim.verdict.why or str(claim.verdict), claim.verdict.word
            words[figure] = min(word, words.get(figure, word), key=_WORST_FIRST.index)
            about.setdefault(figure, []).extend([claim] if word == "holds" else [])
    count = Counter(words.values())
    held = [about[figure] for figure, word in words.items() if word == "holds"]
    kinds = [f"{len(group)} {kind}{_largest_error(group)}" for kind, group in grouped(held, _fits_and_choices).items()]
    lines = [f"{counted(len(held), 'printed figure')} predicted and held{': ' if kinds else ''}{'; '.join(kinds)}."]
    if changed:
        lines = [f"{counted(len(held), 'printed figure')} held on machines with {changed}, which predicts nothing."]
    if rest := _count_by_verdict(count, "holds"):
        lines.append(f"Of {counted(len(words), 'printed figure')} {rest}.")
    if headlines := Counter[str](claim.verdict.word for claim in judged if claim.verdict.headline):
        lines.append(f"Of {counted(headlines.total(), 'headline expectation')} {_count_by_verdict(headlines)}.")
    for scenario, verdict, *_ in judged:
        if verdict.is_broken:
            lines.append(f"BROKEN: {scenario}: {verdict}")
        elif verdict.missed and verdict.holds and not changed:
            lines.append(f"{scenario}: {verdict}: holds, though marked missed; drop missed from the scenario.")
    return lines


def _count_by_verdict(count: Mapping[str, int], unsaid: str = "") -> str:
    """Say how many figures have each verdict."""
    return listed([f"{count[word]} {word}" for word in reversed(_WORST_FIRST) if count[word] and word != unsaid])


def _fits_and_choices(group: Sequence[Judged]) -> str:
    """Name the fits and choices that figures rest on."""
    fitted = list(dict.fromkeys(fit.parameter for claim in group for fit in claim.fits))
    chosen = list(dict.fromkeys(name for claim in group for name in claim.chosen))
    texts = [f"{counted(len(fitted), 'number')} fitted ({', '.join(fitted)})"] if fitted else []
    explain = "choice that explains" if len(chosen) == 1 else "choices that explain"
    texts += [f"{len(chosen)} {explain} ({', '.join(chosen)})"] if chosen else []
    return f"with {listed(texts) or 'nothing fitted or chosen'}"


def _largest_error(held: Sequence[Sequence[Judged]]) -> str:
    """Say how far off the figures that hold are, as a wide tolerance hides it."""
    errors = [abs(claim.verdict.error) for group in held for claim in group if claim.verdict.error is not None]
    return f", off by at most {percent(max(errors))}" if errors else ""


@dataclass(frozen=True, eq=False)
class Validation(Sweep):
    """Result of `hosim validate`: a row for each printed figure, and for each other headline or broken expectation."""

    judged: Sequence[Judged] = field(default=(), repr=False)

    @property
    def is_broken(self) -> bool:
        """Whether an expectation that must hold is broken."""
        return any(claim.verdict.is_broken for claim in self.judged)

    @property
    def checks(self) -> dict[str, list[Check]]:
        """Expectations as test cases, by scenario."""
        by_scenario = grouped(self.judged, attrgetter("scenario"))
        return {name: [check(c.verdict)._replace(seconds=c.seconds) for c in by_scenario[name]] for name in by_scenario}


def claims(has: Callable[[Scenario], object] = attrgetter("expect")) -> list[str]:
    """List the scenarios of the catalogue that test a claim and meet a predicate, papers before measurements."""
    documents = map(catalog.read_scenario, catalog.names("scenario"))
    names = [scenario.name for scenario in documents if scenario.claim and has(scenario)]
    return sorted(names, key=lambda name: catalog.path_of(name, "scenario").parent.name)


def validate(
    scenarios: Sequence[str | Path] | None = None,
    *,
    scale: Mapping[str, float] | None = None,
    headline: bool = False,
    workers: int = 1,
    progress: Progress | None = None,
) -> Validation:
    """Recompute printed figures, and judge whether each is reproduced.

    Parameters
    ----------
    scenarios
        Names in the catalogue, or paths that end in ``.yaml``; default: all scenarios of the catalogue with a claim.
    scale
        Dotted path of machine figures -> factor that multiplies them, to see which claims depend on them:
        ``{"links.*.bandwidth": 0.5}``. A scenario whose machine has no such figure runs unchanged.
    headline
        Whether to check only headlines: the claims that their sources lead with.
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
        If there is nothing to validate, or no machine has a figure of ``scale``.
    """
    expected: Callable[[Scenario], Scenario] = _headlines if headline else lambda scenario: scenario
    every = claims(lambda scenario: expected(scenario).expect) if scenarios is None else map(str, scenarios)
    names = list(dict.fromkeys(every))
    insist(names, "scenarios", "a claim is named to be validated", "none", "name one, or leave them out")
    loaded = [replace(base, scenario=expected(base.scenario)) for base in map(catalog.resolve, names)]
    axes = {Axis(path, (path,), "scale", "x"): factor for path, factor in (scale or {}).items()}
    studies = []
    for base in loaded:
        scaled = {axis: factor for axis, factor in axes.items() if _has_figure(base, axis, factor)}
        studies.append(Study(base, checked, tuple(scaled), [tuple(scaled.values())], is_strict=True))
    for axis in axes.keys() - {axis for study in studies for axis in study.axes}:
        catalog.at(loaded[0], {axis: axes[axis]})  # refuses what no machine has
    judged = [row["judged"] for row in sweep(studies, workers, progress)]
    rows, more = (
        [base.row for base in judged if base.is_shown],
        {"broken": any(base.verdict.is_broken for base in judged)},
    )
    changed = listed([f"{path} x {factor:g}" for path, factor in (scale or {}).items()])
    return Validation("validate", loaded, rows, claims_view(judged, changed), more=more, judged=judged)


def _headlines(scenario: Scenario) -> Scenario:
    """Keep only the expectations that are headlines."""
    expect = tuple(expectation for expectation in scenario.expect if expectation.headline)
    claim = scenario.claim and scenario.claim.model_copy(update={"untested": ()})
    return scenario.model_copy(update={"expect": expect, "claim": claim})


def _has_figure(loaded: Loaded, axis: Axis, factor: float) -> bool:
    """Tell whether the machine has the figure that an axis multiplies."""
    try:
        catalog.at(loaded, {axis: factor})
    except ConfigError:
        return False
    return True


def checked(loaded: Loaded, point: Point) -> Rows:
    """Judge all expectations of a scenario, each with the fits and choices that its row rests on."""
    scenario, claim = loaded.scenario, loaded.scenario.claim
    rule = "a scenario that is validated expects something of a row"
    do = "add expect, or run it: hosim run; --headline runs only claims marked headline: true"
    insist(scenario.expect, loaded.place("expect"), rule, "nothing", do)
    begun_s = monotonic()
    judgements = judged(loaded, scenario.expect) + (untested(claim) if claim else [])
    seconds = monotonic() - begun_s
    fits: dict[str, dict[Fit, dict[str, None]]] = {choice.row: {} for choice in scenario.policies}
    for document in (scenario, loaded.hardware, loaded.workload):
        for choice, (path, fit) in product(scenario.policies, document.fitted.items()):
            if choice.allocator != "ideal" or not path.startswith("allocator."):
                fits[choice.row].setdefault(fit, {})[path] = None
    more = (claim.chosen, claim.setting, () if point else claim.counted) if claim else ()
    first, *others = (Judged(scenario.name, verdict, fits.get(verdict.row, {}), *more) for verdict in judgements)
    return [{"judged": each} for each in (first._replace(seconds=seconds), *others)]


def judged(loaded: Loaded, expected: Sequence[Expectation], *, with_bounds: bool = True) -> list[Verdict]:
    """Run or serve the rows that have expectations, and judge these.

    Parameters
    ----------
    loaded
        The scenario, its machine and its workload.
    expected
        The expectations; judged even if a document was changed.
    with_bounds
        Whether to compute the bounds of rows, too, so that the law of bounds is checked.
    """
    labels = list(dict.fromkeys(row for expectation in expected for row in expectation.rows.values()))
    rows: Mapping[str, Mapping[str, Any]]
    if loaded.workload.requests is None:
        rows = run_case(prepare(loaded, with_bounds=with_bounds), labels).summaries
    else:
        rows = {str(row["policy"]): row for row in serve(loaded, policies=labels).rows}
    return verdicts(expected, rows, loaded.scenario.claim.source if loaded.scenario.claim else "")
