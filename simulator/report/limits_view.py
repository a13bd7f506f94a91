"""What limits a step, as it is shown."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from simulator.report.rows import listed, quantity, signed
from simulator.report.tables import figures
from simulator.report.views import Section, View, by, texts

_LEAST = 0.005
"""Less is written as 0 %, for 10 % more of the figure."""


def limits_view(rows: Sequence[Mapping[str, Any]], usual: Mapping[str, int], tried: int, title: str) -> View:
    """Show on which figures steps hang.

    Parameters
    ----------
    rows, usual
        See `simulator.run.limits`; and the step of each policy as the machine is [ns].
    tried
        How many figures were tried.
    title
        What was tried.
    """
    columns = [
        texts("policy", rows, lambda row: row["policy"]),
        texts("figure", rows, lambda row: row["figure"]),
        texts("value", rows, lambda row: row["value"], left=False),
        texts("origin", rows, lambda row: row["origin"]),
        *figures(rows, ("step_ns",)),
        texts("with 10 % more", rows, lambda row: signed(0.1 * row["elasticity"]), left=False),
    ]
    premise = f"Tried were {tried} figures of the machine, each with 10 % more of it and with plans made anew"
    return View(
        title, [Section(columns=columns)], [*_told(rows, usual), f"{premise}; those not listed change no step."]
    )


def _told(rows: Sequence[Mapping[str, Any]], usual: Mapping[str, int]) -> Iterator[str]:
    """Say for each policy what its step hangs on most, and how much of that is assumed."""
    own = {policy: found for (policy,), found in by(rows, "policy").items()}
    for policy, step_ns in usual.items():
        strong = [row for row in own.get(policy, []) if abs(row["elasticity"]) >= _LEAST]
        if not strong:
            yield f"{policy} takes {quantity(step_ns, 'ns')}, whatever figure is 10 % more."
            continue
        first, loose = strong[0], [row["figure"] for row in strong if row["origin"] not in ("cited", "mine")]
        most = f"with 10 % more of {first['figure']} it changes by {signed(0.1 * first['elasticity'])}"
        hangs = (
            f"It also hangs on {listed(loose)}, without a source." if loose else "All that it hangs on has a source."
        )
        yield f"{policy} takes {quantity(step_ns, 'ns')}; {most}. {hangs}"
