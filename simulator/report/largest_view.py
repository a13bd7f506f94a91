"""The largest values with which rows fit, as they are shown: the table, and what is in the way of the next one."""

from __future__ import annotations

from simulator.report.rows import ABSENT, quantity
from simulator.report.view import Row, Rows, Section, View, quantities, texts
from simulator.scenario import Largest


def largest_view(rows: Rows, question: Largest, tier: str, title: str) -> View:
    """Show how far each row fits.

    Parameters
    ----------
    rows
        See `simulator.run.largest`.
    question
        What was searched.
    tier
        The compute tier.
    title
        What was swept.
    """

    def value(row: Row) -> str:
        fits = row[question.column]
        if fits is None:
            return "none" if "tried" in row else ABSENT
        return f"{fits:,}" if "next" in row else f"{fits:,} or more"

    def bound(row: Row) -> str:
        most = row.get(question.bound)
        return ABSENT if most is None else f"{most:,}"

    columns = [
        texts("policy", rows, lambda row: row["policy"]),
        texts(f"largest {question.field}", rows, value, left=False),
        texts("no plan beyond", rows, bound, left=False),
        quantities("step", rows, "step_ns"),
        quantities(f"peak {tier}", rows, f"peak_{tier}_bytes", "B"),
        quantities("least peak", rows, "least_peak_bytes", "B"),
        texts("limited by", rows, lambda row: row.get("limit") or ABSENT),
        texts("at", rows, lambda row: row.get("limit_at") or ABSENT),
    ]
    first, last = question.values[0], question.values[-1]
    size = f"multiples of {question.multiple_of:,}" if question.multiple_of > 1 else "whole numbers"
    tried = f"Tried were {size} from {first:,} to {last:,}, halving the distance between one that fits and one that"
    premise = f"{tried} does not: what fits is taken to fit with less, too."
    return View(title, [Section(columns=columns)], [*(_limit(row, question) for row in rows), premise])


def _limit(row: Row, question: Largest) -> str:
    """Say what is in the way of the next value."""
    policy, value, bound = row["policy"], row[question.column], row.get(question.bound)
    if "tried" not in row:
        return f"{policy} was not searched: {row['notes']}."
    if "next" not in row:
        return (
            f"{policy} fits with the largest {question.field} that was to be tried, {value:,}; raise at_most to go on."
        )
    lack = f"its plan is {row['limit']}"
    if "limit_at" in row:
        demand, capacity = row["limit_demand_bytes"], row["limit_capacity_bytes"]
        short = quantity(demand - capacity, "B")
        lack = f"{row['limit']} is short by {short} of {quantity(demand, 'B')} at {row['limit_at']}"
    why = f"with {row['next']:,} {lack}"
    if value is None:
        return f"{policy} fits with no {question.field} that was to be tried: even {why}."
    beyond = "" if bound is None else ", no plan further" if bound == value else f", no plan beyond {bound:,}"
    return f"{policy} fits up to {question.field} {value:,}{beyond}: {why}."
