"""The largest value with which each row fits, for people: the table, and what is in the way of the next one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from simulator.report.rows import ABSENT, quantity
from simulator.report.text import Column, aligned
from simulator.scenario import Largest

Rows = Sequence[Mapping[str, Any]]


def table(rows: Rows, asked: Largest, tier: str) -> str:
    """Write a line per policy.

    Parameters
    ----------
    rows
        See `simulator.run.largest.Largest`.
    asked
        What was searched.
    tier
        The compute tier.
    """
    columns = [
        Column("policy", tuple(str(row["policy"]) for row in rows), left=True),
        Column(f"largest {asked.field}", tuple(_value(row, asked) for row in rows)),
        Column("no plan beyond", tuple(_beyond(row, asked) for row in rows)),
        *(
            Column(head, tuple(quantity(row.get(key), unit) for row in rows))
            for head, key, unit in (
                ("step", "step_ns", "ns"),
                (f"peak {tier}", f"peak_{tier}_bytes", "B"),
                ("least peak", "least_peak_bytes", "B"),
            )
        ),
        Column("limited by", tuple(str(row.get("limit") or ABSENT) for row in rows), left=True),
        Column("at", tuple(str(row.get("limit_at") or ABSENT) for row in rows), left=True),
    ]
    return aligned([columns])


def _value(row: Mapping[str, Any], asked: Largest) -> str:
    value = row[asked.column]
    if value is None:
        return "none" if "tried" in row else ABSENT
    return f"{value:,}" if "next" in row else f"{value:,} or more"


def _beyond(row: Mapping[str, Any], asked: Largest) -> str:
    bound = row.get(asked.bound)
    return ABSENT if bound is None else f"{bound:,}"


def sentences(rows: Rows, asked: Largest) -> list[str]:
    """Say of each row what is in the way of the next value, and what the search takes for granted.

    Parameters
    ----------
    rows, asked
        As for `table`.
    """
    first, last = asked.values[0], asked.values[-1]
    size = f"multiples of {asked.multiple_of:,}" if asked.multiple_of > 1 else "whole numbers"
    found = f"Tried were {size} from {first:,} to {last:,}, halving the distance between one that fits and one that"
    return [*(_said(row, asked) for row in rows), f"{found} does not: what fits is taken to fit with less, too."]


def _said(row: Mapping[str, Any], asked: Largest) -> str:
    who, value = row["policy"], row[asked.column]
    if "tried" not in row:
        return f"{who} was not searched: {row['notes']}."
    if "next" not in row:
        return f"{who} fits with the largest {asked.field} that was to be tried, {value:,}; raise at_most to go on."
    why = f"with {row['next']:,} {_lack(row)}"
    if value is None:
        return f"{who} fits with no {asked.field} that was to be tried: even {why}."
    bound = row[asked.bound]
    beyond = "" if bound is None else ", no plan further" if bound == value else f", no plan beyond {bound:,}"
    return f"{who} fits up to {asked.field} {value:,}{beyond}: {why}."


def _lack(row: Mapping[str, Any]) -> str:
    if "limit_at" not in row:
        return f"its plan is {row['limit']}"
    demand, capacity = row["limit_demand_bytes"], row["limit_capacity_bytes"]
    short = quantity(demand - capacity, "B")
    return f"{row['limit']} is short by {short} of {quantity(demand, 'B')} at {row['limit_at']}"
