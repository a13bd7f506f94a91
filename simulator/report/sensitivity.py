"""How claims depend on what their sources leave open, for people: where each holds, and how far its figure moves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import Any

from simulator.report.expectations import Verdict, signed
from simulator.report.rows import listed
from simulator.report.text import Column, aligned
from simulator.scenario import Unstated
from simulator.units import human

_SEEN = 0.0005
"""A smaller change of a share is not shown."""


@dataclass(frozen=True, slots=True)
class Dependence:
    """How one printed figure depends on one parameter.

    Attributes
    ----------
    scenario
        Name of the scenario.
    parameter
        What varies.
    taken
        What the scenario takes for it, as a number of its unit.
    verdicts
        Of each value that was tried, ascending, and of the one that is taken: on the figure.
    """

    scenario: str
    parameter: Unstated
    taken: float
    verdicts: Mapping[float, Verdict]

    @property
    def nominal(self) -> Verdict:
        """With what the scenario takes."""
        return self.verdicts[self.taken]

    @property
    def is_shown(self) -> bool:
        """Whether the figure is only shown, so that it is near what is printed, and does not hold."""
        return self.nominal.kind == "shown"

    @property
    def ends(self) -> tuple[float, float]:
        """The least and the largest value that were tried."""
        return min(self.verdicts), max(self.verdicts)

    @property
    def holding(self) -> list[tuple[float, float]]:
        """Stretches of values in which the figure holds, by the first and the last one that was tried in each."""
        runs = groupby(sorted(self.verdicts), lambda value: self.verdicts[value].holds)
        stretches = [list(values) for holds, values in runs if holds]
        return [(stretch[0], stretch[-1]) for stretch in stretches]

    @property
    def errors(self) -> list[float]:
        """Differences from what is printed over all values, as shares."""
        return [verdict.error for verdict in self.verdicts.values() if verdict.error is not None]

    @property
    def is_monotone(self) -> bool:
        """Whether the figure only rises, or only falls, with the parameter, by what can be seen."""
        ordered = [self.verdicts[value].error for value in sorted(self.verdicts)]
        steps = [later - earlier for earlier, later in pairwise(error for error in ordered if error is not None)]
        return min(steps, default=0) >= -_SEEN or max(steps, default=0) <= _SEEN

    @property
    def swing(self) -> float:
        """How far the figure moves, as a share of what is printed; values with which no step ends count as endless."""
        if len(self.errors) < len(self.verdicts):
            return float("inf")
        return max(self.errors) - min(self.errors)

    def shown(self, value: float) -> str:
        """Write a value for people."""
        if self.parameter.is_factor:
            return f"{value:.3g}x"
        if self.parameter.unit is not None:
            return human(value, self.parameter.unit)
        return f"{value:,}" if isinstance(value, int) or self.parameter.multiple_of else f"{value:.3g}"

    @property
    def holds(self) -> str:
        """Say where it holds."""
        if not self.holding:
            return "nowhere"
        if self.holding == [self.ends]:
            return "all"
        stretches = (_joined(self.shown(first), self.shown(last)) for first, last in self.holding)
        return listed(list(stretches))


def _joined(first: str, last: str) -> str:
    return first if first == last else f"{first} to {last}"


def rows(found: Sequence[Dependence]) -> list[dict[str, Any]]:
    """List what each figure depends on.

    Parameters
    ----------
    found
        What came of it.

    Returns
    -------
    list of dict
        ``scenario``, ``claim``, ``figure``, ``row``, ``column``, ``printed``, ``kind``; ``parameter``, ``unit``;
        ``taken``, ``low``, ``high``, as numbers; ``obtained``, ``obtained_low``, ``obtained_high``, for people, and
        ``error``, ``error_low``, ``error_high``, as shares of what is printed, with what is taken and at the ends;
        ``swing``; ``holds``, a list of stretches (of what is only shown: where it is near); ``tried``, with how many
        values.
    """
    return [
        {
            "scenario": one.scenario,
            "claim": claim(one.nominal),
            "figure": one.nominal.figure,
            "row": one.nominal.row,
            "column": one.nominal.column,
            "printed": one.nominal.printed,
            "kind": one.nominal.kind,
            "parameter": one.parameter.parameter,
            "unit": one.parameter.unit or "",
            "taken": one.taken,
            "low": one.ends[0],
            "high": one.ends[1],
            **{f"obtained{end}": verdict.found for end, verdict in _ends(one)},
            **{f"error{end}": verdict.error for end, verdict in _ends(one)},
            "swing": one.swing if one.swing < float("inf") else None,
            "holds": [list(stretch) for stretch in one.holding],
            "tried": len(one.verdicts),
        }
        for one in found
    ]


def _ends(one: Dependence) -> Iterator[tuple[str, Verdict]]:
    low, high = one.ends
    yield from (("", one.nominal), ("_low", one.verdicts[low]), ("_high", one.verdicts[high]))


def claim(verdict: Verdict) -> str:
    """Name a claim for people."""
    return verdict.why or f"{verdict.row}: {verdict.column}"


def by_figure(found: Sequence[Dependence]) -> list[list[Dependence]]:
    """Put what a figure depends on together, what moves it most first.

    Parameters
    ----------
    found
        What came of it.
    """
    groups: dict[tuple[str, str], list[Dependence]] = {}
    for one in found:
        groups.setdefault((one.scenario, one.nominal.asks), []).append(one)
    return [sorted(group, key=lambda one: -one.swing) for group in groups.values()]


def text(found: Sequence[Dependence]) -> str:
    """Write a table for each figure, and in a sentence how all this is meant.

    Parameters
    ----------
    found
        What came of it.
    """
    parts = [f"{headline(group[0])}\n{aligned([table(group)])}" for group in by_figure(found)]
    return "\n\n".join((*parts, "\n".join(sentences(found))))


def headline(one: Dependence) -> str:
    """Say what is claimed, printed and obtained.

    Parameters
    ----------
    one
        How the figure depends on some parameter.
    """
    verdict = one.nominal
    accepted = f", {verdict.tolerance} {'is near' if one.is_shown else 'accepted'}"
    word = "shown" if one.is_shown else verdict.word
    said = f"{claim(verdict)}: {word}, {verdict.printed} printed, {verdict.found} obtained"
    return f"{said}{accepted}" if verdict.tolerance.endswith("%") else said


def table(group: Sequence[Dependence]) -> list[Column]:
    """Make the table of a figure: a line per parameter.

    Parameters
    ----------
    group
        What it depends on.
    """

    def at_ends(one: Dependence) -> str:
        said = " to ".join(signed(one.verdicts[end].error) for end in one.ends)
        return said if one.is_monotone else f"{said}, {signed(min(one.errors))} to {signed(max(one.errors))} between"

    return [
        Column("  what is not stated", tuple(f"  {one.parameter.parameter}" for one in group), left=True),
        Column("taken", tuple(one.shown(one.taken) for one in group)),
        Column("tried", tuple(_joined(*map(one.shown, one.ends)) for one in group)),
        Column("error at the ends", tuple(at_ends(one) for one in group), left=True),
        Column("near for" if group[0].is_shown else "holds for", tuple(one.holds for one in group), left=True),
    ]


def sentences(found: Sequence[Dependence]) -> list[str]:
    """Say what each figure depends on most, and how all this is meant.

    Parameters
    ----------
    found
        What came of it.
    """
    told = [sentence for group in by_figure(found) for sentence in _told(group)]
    return [*told, f"{_MEANT} {_NEAR}" if any(one.is_shown for one in found) else _MEANT]


def _told(group: Sequence[Dependence]) -> Iterator[str]:
    """Say of one figure for what it holds, or is near, and with what it goes up and down."""
    name, nominal = claim(group[0].nominal), group[0].nominal
    does, would = ("is near", "would be near") if group[0].is_shown else ("holds", "would hold")
    some = [f"{one.parameter.parameter} {one.holds}" for one in group if one.holds not in ("all", "nowhere")]
    wide = [one.parameter.parameter for one in group if one.holds == "all"]
    if some:
        yield f"{name} {does if nominal.holds else would} for {listed(some)}."
    elif not nominal.holds:
        yield f"{name} {does} with no value that was tried."
    if wide:
        yield f"{name} {does} for any {listed(wide)} that was tried."
    if jumping := [one.parameter.parameter for one in group if not one.is_monotone]:
        yield f"{name} goes up and down with {listed(jumping)}, so that where it {does} is no range."


_MEANT = (
    "One parameter varies at a time, and nothing is fitted again. The ends of a stretch were searched by halving; "
    "between two values that were tried and both hold, or both fail on the same side, nothing was looked at."
)
_NEAR = "A figure that is only shown does not hold: told is for which values ours is near to what is printed."
