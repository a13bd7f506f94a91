"""Claims beside what hosim obtains: a line per printed figure, and how many free parameters explain how many."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from string import ascii_lowercase
from typing import Any, NamedTuple

from simulator.report.expectations import Verdict
from simulator.report.rows import ABSENT, listed
from simulator.report.view import Section, View, texts
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
