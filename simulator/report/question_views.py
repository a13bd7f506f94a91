"""Answers as they are shown: how far a field may go, what a peak costs, and where two rows swap."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from simulator.metrics import figure_of
from simulator.report.panels import Panel
from simulator.report.rows import ABSENT, listed, present, quantity, ratio, shown
from simulator.report.tables import Column, figures, occurring
from simulator.report.views import Section, View, by, texts
from simulator.scenario import Largest

Row = Mapping[str, Any]
Rows = Sequence[Row]
BOUNDS = "bound", "bound with recompute"
"""The rows that no plan beats: that runs each op once, and that may run it again."""
PRICES = (1.01, 1.1, 1.5)
"""How many times as long as all computes a step is whose least peak is told."""
_GB = 1e9
_ENDS = "from", "to"


def is_bound(row: Row) -> bool:
    """Whether a row tells what no plan beats."""
    return row["policy"] in BOUNDS


def frontier_view(rows: Rows, tried: Rows, question: Largest, tier: str, capped: Sequence[str], title: str) -> View:
    """Show how far each row goes.

    Parameters
    ----------
    rows, tried
        See `simulator.run.questions`; and all that was tried, for a picture.
    question
        What was searched.
    tier
        The compute tier.
    capped
        Sentences about what is searched and changes nothing, as something else is narrower.
    title
        What was swept.
    """
    more, less = ("more", "less")[:: question.sign]

    def value(row: Row) -> str:
        end = "" if "next" in row or "tried" not in row else f" or {more}"
        return (question.written(row[question.column]) or ("none" if end or "next" in row else ABSENT)) + end

    asked = [texts("within", rows, lambda row: question.within(row["within"]))] if question.slowdown else []
    slow = [texts("slowdown", rows, lambda row: _longer(row.get("slowdown"), question), left=False)]
    columns = [
        texts("policy", rows, lambda row: row["policy"]),
        *asked,
        texts(f"{question.direction} {question.field}", rows, value, left=False),
        *figures(rows, ("step_ns",)),
        *(slow if any(row.get("slowdown") for row in rows) else []),
        *figures(rows, occurring(rows, (f"peak_{tier}_bytes", "least_peak_bytes"))),
        *figures(rows, _paid(rows)),
        texts("limited by", rows, lambda row: row.get("limit") or ABSENT),
        texts("at", rows, lambda row: row.get("limit_at") or _longer(row.get("next_slowdown"), question)),
    ]
    first, last = map(question.written, (question.values[0], question.values[-1]))
    tries = f"Tried were {question.size} from {first} to {last}, halving the distance between one that does and one"
    premise = f"{tries} that does not: what fits is taken to fit with {less}, too{question.assurance}."
    told = [*(_limit(row, question) for row in rows), *capped, premise]
    return View(title, [Section(columns=columns)], told, [_steps_over(tried, question)] if tried else [])


def _steps_over(tried: Rows, question: Largest) -> Panel:
    """Steps over what was searched."""
    size = _GB if question.unit in ("B", "B/s") else 1
    ran = (row for row in tried if present(row.get("step_ns")))
    drawn = sorted(({**row, "at": row[question.field] / size} for row in ran), key=lambda row: row["at"])
    axis = f"{question.field} [{'G' * (size > 1)}{question.unit}]" if question.unit else question.field
    return Panel("one step", axis, "ns", drawn, "at", "step_ns")


def free_told(row: Row, question: Largest, what: str) -> str:
    """Say with which amount a row is free: it neither stalls nor runs ops again.

    Parameters
    ----------
    row, question
        An answer, and what was searched.
    what
        What it is an amount of, for people.
    """
    who, value = row["policy"], row[question.column]
    if value is None:
        why = f": with {question.written(row['next'])} {_lack(row, question)}" if "next" in row else ""
        return f"No {what} that was tried makes {who} free{why}."
    start = question.read("start")
    has = f"; now it has {question.written(start)}" if question.unit != "x" else ""
    verb = "would be free (no stall, no recompute)" if value > start else "is free (no stall, no recompute), even"
    beyond = f" (with {question.written(row['next'])} {_lack(row, question)})" if "next" in row else " or less"
    return f"{who} {verb} with {question.path} {question.written(value)}{beyond}{has}."


def _longer(slowdown: float | None, question: Largest) -> str:
    """Write how many times as long a step is, with as many digits as tell it from what was asked for."""
    if slowdown is None or all(limit == round(limit, 2) for limit in question.limits):
        return ratio(slowdown)
    return f"{slowdown:.4f}x"


def _limit(row: Row, question: Largest) -> str:
    """Say how far a row goes, what that costs, and what is in the way of the next value."""
    value, who = question.written(row[question.column]), row["policy"]
    if "tried" not in row:
        return f"{who} was not searched: {row['notes']}."
    does = question.does(row["within"])
    if is_bound(row):
        if not value:
            return f"{who}: no plan {does} with any {question.field} that was tried."
        if "next" in row:
            return f"{who}: no plan {does} with {('more', 'less')[question.sign < 0]} than {question.field} {value}."
        return f"{who}: nothing rules out that a plan {does} with {question.field} {value}, where the search ended."
    told = f"{who} {does} with {f'{question.field} {value}' if value else f'no {question.field} that was tried'}"
    told += f", with a step of {_longer(row['slowdown'], question)} {question.over}" if row.get("slowdown") else ""
    if row["holes"]:
        told += f"; not with {listed([*map(question.written, row['holes'])])}, so that it may with what was not tried"
    if "next" not in row:
        do = "raise at_most" if question.sign > 0 else "lower at_least"
        return f"{told}, the {question.direction} that was tried; {do} to go on."
    return f"{told}: with {question.written(row['next'])} {_lack(row, question)}."


def _lack(row: Row, question: Largest) -> str:
    """Say what is in the way."""
    if row["limit"] == "step" and "limit_at" not in row:
        return f"a step takes {_longer(row['next_slowdown'], question)} {question.over}"
    if "limit_at" not in row:
        return f"its plan is {row['limit']}"
    if "limit_demand_bytes" not in row:
        return str(row["limit_at"]) if row["limit"] == "failed" else f"{row['limit']} is {row['limit_at']}"
    short = quantity(row["limit_demand_bytes"] - row["limit_capacity_bytes"], "B")
    return f"{row['limit']} is short by {short} at {row['limit_at']}"


def pareto_view(rows: Rows, floors: Mapping[str, Mapping[float, int]], column: str, tier: str, title: str) -> View:
    """Show what a peak, or a cost, is paid for with, row by row.

    Parameters
    ----------
    rows
        Per policy the amounts of which none has a shorter step with a lower one: see `simulator.run.questions`.
    floors
        Per bound and price, what no plan goes below.
    column
        The peak, or the cost.
    tier
        The compute tier.
    title
        What was swept.
    """
    peak, own = f"peak_{tier}_bytes", by(rows, "policy")
    name = f"peak of {tier}" if column == peak else figure_of(column).head
    least = [found[0] for found in own.values()]
    paid = [one for one in _paid(least) if one != column]
    columns = [
        texts("policy", least, lambda row: row["policy"]),
        Column.figure(least, column, f"least {name.removesuffix(f' of {tier}')}"),
        Column.figure(least, "step_ns", "step there"),
        texts("vs compute", least, lambda row: ratio(row["slowdown"]), left=False),
    ]
    costs = {
        price: {
            who: floors[who][price] if who in floors else _cost(found, price, column) for (who,), found in own.items()
        }
        for price in PRICES
    }
    columns += [
        Column.texts(f"within {price:g}x", (shown(column, cost) for cost in found.values()), left=False)
        for price, found in costs.items()
    ]
    columns += figures(least, paid)
    size, unit = (_GB, "GB") if column == peak else (1, figure_of(column).unit)
    drawn = [{**row, "at": row[column] / size} for row in rows]
    panel = Panel("one step", f"{name} [{unit}]", "ns", drawn, "at", "step_ns")
    premise = (
        f"Tried were capacities of {tier} from the least that any plan needs to what all needs at once; within so many "
        "times compute."
    )
    bounds = " No plan goes below a bound: of plans that run each op once, or that may run it again."
    told = [*_prices(costs, name, column), *_dearer(own, name, paid), premise + (bounds if floors else "")]
    return View(title, [Section(columns=columns)], told, [panel])


def _cost(rows: Rows, price: float, column: str) -> float | None:
    """The least amount whose step is short enough; None if none is."""
    return min((row[column] for row in rows if row["slowdown"] <= price), default=None)


def _prices(costs: Mapping[float, Mapping[str, float | None]], name: str, column: str) -> Iterator[str]:
    """Say for each price who has the lowest amount, and what no plan goes below."""
    for price, every in costs.items():
        found = {who: amount for who, amount in every.items() if amount is not None}
        ran = [who for who in found if who not in BOUNDS]
        bounds = [f"{who}, {shown(column, found[who])}" for who in found if who not in ran]
        beside = f" (no plan goes below its {listed(bounds)})" if bounds else ""
        told = "no row runs"
        if ran:
            least = shown(column, min(found[who] for who in ran))
            best = [who for who in ran if shown(column, found[who]) == least]  # as far as people are shown digits
            told = f"the lowest {name} that was tried is {least}, of {listed(best)}"
        yield f"Within {price:g}x compute, {told}{beside}."


def _dearer(own: Mapping[tuple[Any, ...], Rows], name: str, paid: Sequence[str]) -> Iterator[str]:
    """Say what each row costs with its least amount, and with its shortest step."""
    column = paid[0] if paid else ""
    for (who,), found in own.items():
        if len(found) > 1 and present(found[0].get(column)):
            least, most = (shown(column, row[column]) for row in (found[0], found[-1]))
            head = figure_of(column).head
            yield f"{who} has a {head} of {least} with its least {name}, and of {most} with its shortest step."


def _paid(rows: Rows) -> list[str]:
    """Columns of the money and the energy of rows, for each token where tokens are known."""
    kinds = ("usd_per_million_tokens", "step_usd"), ("energy_per_token_j", "energy_j")
    return [one for kind in kinds for one in occurring(rows, kind)[:1]]


def crossover_view(rows: Rows, tried: Rows, names: Sequence[str], question: Largest, title: str) -> View:
    """Show which of two rows is faster where.

    Parameters
    ----------
    rows, tried
        Ranges, and all that was tried: see `simulator.run.questions`.
    names
        The two rows.
    question
        What was searched.
    title
        What was swept.
    """
    columns = [Column.texts(end, (question.written(row[end]) for row in rows), left=False) for end in _ENDS]
    columns.append(texts("faster", rows, lambda row: row["faster"]))
    for name in names:
        columns.append(texts(name, rows, partial(_steps, name), left=False))
    low, high = question.written(rows[0]["from"]), question.written(rows[-1]["to"])
    told = (
        f"{names[0]} and {names[1]} do not swap between {question.field} {low} and {high}: {_faster(rows[0], names)}."
    )
    if len(rows) > 1:
        where = (
            f"from {question.written(row['from'])} to {question.written(row['to'])} {_faster(row, names)}"
            for row in rows
        )
        told = f"Over {question.field}, {'; '.join(where)}."
    tries = f"Tried were {len(tried) // 2} {question.size} from {low} to {high}"
    premise = f"{tries}; between two with the same answer there may be more turns."
    return View(title, [Section(columns=columns)], [told, premise], [_steps_over(tried, question)])


def _steps(name: str, row: Row) -> str:
    """Write the steps of a row at the ends of a range."""
    return " to ".join(dict.fromkeys(quantity(row.get(f"{end}_{name}_ns"), "ns") for end in _ENDS))


def _faster(row: Row, names: Sequence[str]) -> str:
    """Say which row is faster in a range."""
    if row["faster"] in names:
        return f"{row['faster']} is faster"
    return "both take as long" if row["faster"] == "tie" else "neither runs"
