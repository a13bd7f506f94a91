"""What limits a step, as it is shown."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from simulator.report.rows import listed, quantity, signed
from simulator.report.tables import figures
from simulator.report.views import Section, View, by, texts
from simulator.units import counted, human, parse, unit_of

_LEAST = 0.005
"""Less is written as 0 %: with 10 % more of the figure the step changes by less than 0.05 %."""

_LONG = 10
"""Letters of an amount such as ``752 TFLOP/s``, or fewer, are all read."""


def limits_view(
    rows: Sequence[Mapping[str, Any]], usual: Mapping[str, int], tried: int, capped: Sequence[str], title: str
) -> View:
    """Show on which figures steps hang.

    Parameters
    ----------
    rows, usual
        See `simulator.run.studies`; and the step of each policy as the machine is [ns].
    tried
        How many figures were tried.
    capped
        Sentences about rows that do not run, and figures that change nothing because something else is narrower.
    title
        What was tried.
    """
    columns = [
        texts("policy", rows, lambda row: row["policy"]),
        texts("figure", rows, lambda row: row["figure"]),
        texts("value", rows, lambda row: _short(row["value"]), left=False),
        texts("origin", rows, lambda row: row["origin"]),
        *figures(rows, ("step_ns",)),
        texts("with 10 % more", rows, lambda row: signed(0.1 * row["elasticity"]), left=False),
    ]
    premise = f"Tried were {tried} figures of the machine, each with 10 % more of it and with plans made anew"
    idle = [f"{premise}; those not listed change no step."] if usual else []
    told = [*_told(rows, usual), *capped, *idle, *_assumed(rows)]
    return View(title, [Section(columns=columns)], told)


def _short(value: object) -> object:
    """A value as the document states it, or, of one that was made, as people do."""
    unit = unit_of(value)
    return human(parse(value, unit), unit) if unit and len(str(value)) > _LONG else value


def _told(rows: Sequence[Mapping[str, Any]], usual: Mapping[str, int]) -> Iterator[str]:
    """Say for each policy what its step hangs on most."""
    own = {policy: found for (policy,), found in by(rows, "policy").items()}
    for policy, step_ns in usual.items():
        strong = [row for row in own.get(policy, []) if abs(row["elasticity"]) >= _LEAST]
        if not strong:
            yield f"{policy} takes {quantity(step_ns, 'ns')}, whatever figure is 10 % more."
            continue
        first = strong[0]
        most = f"with 10 % more of {first['figure']} it changes by {signed(0.1 * first['elasticity'])}"
        yield f"{policy} takes {quantity(step_ns, 'ns')}; {most}."


def _assumed(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Say on how many figures without a source the answer hangs, those that matter most first."""
    strong = sorted((row for row in rows if abs(row["elasticity"]) >= _LEAST), key=lambda row: -abs(row["elasticity"]))
    for origin in ("assumed", "fitted"):
        found = [*dict.fromkeys(row["figure"] for row in strong if row["origin"] == origin)]
        if found:
            yield f"The answer hangs on {counted(len(found), f'{origin} figure')}: {listed(found)}."
    if strong and all(row["origin"] in ("cited", "mine") for row in strong):
        yield "The answer hangs on no assumed figure by 0.05 % or more."
