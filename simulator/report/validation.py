"""Claims beside what hosim obtains: a line per printed figure, and how many free parameters explain how many."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from string import ascii_lowercase
from textwrap import fill
from typing import Any

from simulator.report.expectations import Verdict
from simulator.report.rows import ABSENT, listed
from simulator.report.text import PIPE_WIDTH, Column, aligned
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


@dataclass(frozen=True, slots=True)
class Checked:
    """What came of a scenario.

    Attributes
    ----------
    scenario
        Its name.
    verdicts
        On all that it expects.
    fits
        Row -> the free parameters that it stands on.
    """

    scenario: str
    verdicts: tuple[Verdict, ...]
    fits: Mapping[str, tuple[Fitted, ...]] = field(default_factory=dict)

    def fits_of(self, verdict: Verdict) -> tuple[Fitted, ...]:
        """The free parameters that a verdict stands on; none where nothing ran."""
        return self.fits.get(verdict.row, ())


COLUMNS = ("scenario", "row", "column", "claim", "figure", "source", "printed", "obtained", "error", "tolerance",
           "verdict", "kind", "fitted", "missed")  # fmt: skip
"""Columns of `rows`."""


def rows(checked: Sequence[Checked]) -> list[dict[str, Any]]:
    """List printed figures, and other expectations that fail.

    Parameters
    ----------
    checked
        One per scenario.

    Returns
    -------
    list of dict
        ``scenario``, ``row``, ``column``, ``claim`` (in words), ``figure`` (its name), ``source``, ``printed`` and
        ``obtained`` (for people), ``error`` (share of what is printed), ``tolerance`` (for people), ``verdict``
        (``holds``, ``fitted``, ``shown``, ``missed``, ``BROKEN``), ``kind``, ``fitted`` (the free parameters) and
        ``missed`` (why).
    """
    return [
        {
            "scenario": one.scenario,
            "row": verdict.row,
            "column": verdict.column,
            "claim": verdict.why or str(verdict),
            "figure": verdict.figure,
            "source": verdict.source,
            "printed": verdict.printed,
            "obtained": verdict.found,
            "error": verdict.error,
            "tolerance": verdict.tolerance or verdict.must,
            "verdict": verdict.word,
            "kind": verdict.kind,
            "fitted": ", ".join(fit.parameter for fit in one.fits_of(verdict)),
            "missed": verdict.missed,
        }
        for one, verdict in _lines(checked)
    ]


def _lines(checked: Sequence[Checked]) -> Iterator[tuple[Checked, Verdict]]:
    for one in checked:
        for verdict in one.verdicts:
            if verdict.printed or verdict.is_broken:
                yield one, verdict


def text(checked: Sequence[Checked]) -> str:
    """Write the table, the sources, what was fitted, what is missed and why, and what all that comes to.

    Parameters
    ----------
    checked
        One per scenario.
    """
    if not any(_lines(checked)):
        expected = sum(len(one.verdicts) for one in checked)
        return f"No figure is printed; {counted(expected, 'expectation')}, which all hold."
    parts = [aligned([table(checked)])]
    parts += [part for head, marked in notes(checked).items() for part in _noted(head, marked)]
    return "\n\n".join((*parts, "\n".join(sentences(checked))))


def table(checked: Sequence[Checked]) -> list[Column]:
    """Make the table: a line for each printed figure, and for each other expectation that fails.

    Parameters
    ----------
    checked
        One per scenario.
    """
    lines = list(_lines(checked))
    sources, letters = _numbered(checked), _lettered(checked)
    stands_on = [" ".join(letters[fit.key] for fit in one.fits_of(verdict)) or ABSENT for one, verdict in lines]
    return [
        Column("claim", tuple(verdict.why or f"{verdict.row}: {verdict.column}" for _, verdict in lines), left=True),
        Column("source", tuple(str(sources.get(verdict.source, ABSENT)) for _, verdict in lines)),
        Column("printed", tuple(verdict.printed or ABSENT for _, verdict in lines)),
        Column("obtained", tuple(verdict.found for _, verdict in lines)),
        Column("error", tuple(verdict.difference or ABSENT for _, verdict in lines)),
        Column("tolerance", tuple(verdict.tolerance or verdict.must for _, verdict in lines)),
        Column("verdict", tuple(verdict.word for _, verdict in lines), left=True),
        Column("fitted", tuple(stands_on), left=True),
    ]


def notes(checked: Sequence[Checked]) -> dict[str, list[tuple[str, str]]]:
    """Say what the table refers to: the sources, what was fitted, and what is missed and why.

    Parameters
    ----------
    checked
        One per scenario.

    Returns
    -------
    dict
        Head -> notes, each with the mark by which the table refers to it, if it does.
    """
    letters = _lettered(checked)
    fitted = [
        (letters[key], f"{fit.parameter} ({', '.join(fit.fields)}), to {fit.figure}: {fit.why}")
        for key, fit in _free(checked).items()
    ]
    return {
        "Sources": [(str(number), name) for name, number in _numbered(checked).items()],
        "Fitted": fitted,
        "Missed": [("", f"{'; '.join(claims)}: {why}") for why, claims in _missed(checked).items()],
    }


def _noted(head: str, notes: Sequence[tuple[str, str]]) -> list[str]:
    """Write notes under a head, each with its mark; nothing if there are none."""
    indent = 2 + max((len(mark) + 2 for mark, _ in notes if mark), default=0)
    wrapped = [
        fill(
            text,
            PIPE_WIDTH,
            initial_indent=f"  {mark}".ljust(indent),
            subsequent_indent=" " * (indent + 2 * (not mark)),
        )
        for mark, text in notes
    ]
    return ["\n".join((head, *wrapped))] if notes else []


def _missed(checked: Sequence[Checked]) -> dict[str, list[str]]:
    """By the reason, what is missed."""
    found: dict[str, list[str]] = {}
    for _, verdict in _lines(checked):
        if verdict.word == "missed":
            found.setdefault(verdict.missed, []).append(verdict.why)
    return found


def _numbered(checked: Sequence[Checked]) -> dict[str, int]:
    """The sources of what is printed, each with its number."""
    names = dict.fromkeys(verdict.source for _, verdict in _lines(checked) if verdict.source)
    return {name: number for number, name in enumerate(names, 1)}


def _lettered(checked: Sequence[Checked]) -> dict[tuple[str, str], str]:
    """The free parameters, each with its letter."""
    return dict(zip(_free(checked), _letters(), strict=False))


def _free(checked: Sequence[Checked]) -> dict[tuple[str, str], Fitted]:
    """The free parameters of all scenarios, each once."""
    return {fit.key: fit for one in reversed(checked) for fits in one.fits.values() for fit in fits}


def _letters() -> Iterator[str]:
    yield from ascii_lowercase
    yield from (first + second for first in ascii_lowercase for second in ascii_lowercase)


def sentences(checked: Sequence[Checked]) -> list[str]:
    """Say how many free parameters explain how many printed figures, and what is missed or broken.

    Parameters
    ----------
    checked
        One per scenario. A printed figure that several of them are about counts once, by its worst verdict.
    """
    words: dict[str, set[str]] = {}
    for _, verdict in _lines(checked):
        if verdict.printed:
            words.setdefault(_name(verdict), set()).add(verdict.word)
    worst = {name: next(word for word in _WORST_FIRST if word in found) for name, found in words.items()}
    count = {word: sum(one == word for one in worst.values()) for word in _WORST_FIRST}
    said = [_explained(checked, [name for name, word in worst.items() if word == "holds"])]
    rest = [f"{count[word]} {what}" for word, what in _TOLD.items() if count[word]]
    said += [f"Of {counted(len(worst), 'printed figure')} {listed(rest)}."] if rest else []
    guards = sum(verdict.is_broken and not verdict.printed for one in checked for verdict in one.verdicts)
    said += (
        [f"BROKEN as well: {counted(guards, 'figure')} that nobody printed, but that we obtained."] if guards else []
    )
    for one in checked:
        for verdict in one.verdicts:
            if verdict.is_broken:
                said.append(f"BROKEN: {one.scenario}: {verdict}")
            elif verdict.missed and verdict.holds:
                said.append(f"{one.scenario}: {verdict}: said to be missed, and holds; drop missed from the scenario.")
    return said


def _name(verdict: Verdict) -> str:
    return verdict.figure or verdict.why or str(verdict)


def _explained(checked: Sequence[Checked], held: Sequence[str]) -> str:
    """Say how many figures that held stand on how many free parameters, and which of these no such figure needs."""
    holding = [(one, verdict) for one, verdict in _lines(checked) if verdict.printed and verdict.word == "holds"]
    uses = {_name(verdict): one.fits_of(verdict) for one, verdict in holding if _name(verdict) in held}
    groups = Counter(tuple(fit.parameter for fit in fits) for fits in uses.values())
    alone = groups.pop((), 0)
    told = [_explain(names, number, is_first=not place) for place, (names, number) in enumerate(groups.most_common())]
    if not told:
        told = [f"{counted(alone, 'printed figure')}, predicted and held, with nothing fitted"]
    elif alone:
        told.append(f"{alone} more with nothing fitted")
    said = f"{'; '.join(told)}."
    idle = [fit.parameter for fit in _free(checked).values() if not any(fit.parameter in names for names in groups)]
    return f"{said} No figure that holds needs what else was fitted: {listed(idle)}." if idle else said


def _explain(names: Sequence[str], number: int, *, is_first: bool) -> str:
    """Say how many figures some free parameters explain."""
    many, verb = len(names), "explains" if len(names) == 1 else "explain"
    if is_first:
        explained = f"{counted(number, 'printed figure')}, predicted and held"
        return f"{counted(many, 'free parameter')} ({listed(names)}) {verb} {explained}"
    return f"{many} ({listed(names)}) {verb} {number} more"


_WORST_FIRST = ("BROKEN", "missed", "fitted", "holds", "shown")
"""Words for verdicts; to be shown in one place says nothing against a figure that another place holds."""
_TOLD = {"fitted": "fitted", "shown": "only shown", "missed": "missed, as known", "BROKEN": "BROKEN"}
