"""Views of answers: how far a field may go, the cost of a peak, where two rows swap, and what limits a step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from simulator.metrics import figure_of
from simulator.metrics.figures import Figure, present
from simulator.metrics.statistics import by
from simulator.report.tables import WAITS, Column, figures, filled, occurring
from simulator.report.views import Panel, Row, Rows, Section, SweepView
from simulator.report.words import ABSENT, quantity, ratio, shown, signed
from simulator.scenario import Question
from simulator.scenario.question import BOUNDS
from simulator.units import counted, human, listed, parse, unit_of

FREE = 1.001
"""Most times that a step of a free row is as long as if nothing moved."""
PRICES = (1.01, 1.1, 1.5)
"""Step times, in multiples of all computes, for which the least peak is shown: hardly, somewhat and much longer."""
_ENDS = "from", "to"


def is_bound(row: Row) -> bool:
    """Tell whether a row is a bound that no plan beats, not a policy."""
    return row["policy"] in BOUNDS


def frontier_view(
    rows: Rows, tried: Rows, question: Question, tier: str, capped: Sequence[str], title: str
) -> SweepView:
    """Show the answer of each row: the least or largest value with which it meets the conditions.

    Parameters
    ----------
    rows, tried
        The answers (see `simulator.run.questions`), and all points that were tried, for a picture.
    question
        The question.
    tier
        The compute tier.
    capped
        Sentences about searched fields that change nothing because something else is narrower.
    title
        The title.
    """
    more, less = ("more", "less")[:: question.sign]

    def value(row: Row) -> str:
        end = "" if "next" in row or "tried" not in row else f" or {more}"
        return (question.written(row[question.column]) or ("none" if end or "next" in row else ABSENT)) + end

    columns = figures(rows, ("policy",))
    if question.slowdown:
        columns.append(Column("within", (question.within(row["within"]) for row in rows)))
    columns.append(Column(f"{question.direction} {question.of}", map(value, rows), left=False))
    columns += figures(rows, ("step_ns",))
    columns += filled([Column("slowdown", (_slowdown(row.get("slowdown"), question) for row in rows), left=False)])
    held = map(figure_of, occurring(rows, (f"peak_{tier}_bytes", "least_peak_bytes")))
    columns += figures(rows, (*held, *_cost_columns(rows)))
    columns.append(Column("limited by", (row.get("limit") or ABSENT for row in rows)))
    ends = (row.get("limit_at") or _slowdown(row.get("next_slowdown"), question) for row in rows)
    columns.append(Column("at", ends))
    first, last = map(question.written, (question.values[0], question.values[-1]))
    tries = f"hosim tried {question.size} from {first} to {last} by bisection"
    is_found = any(row[question.column] is not None for row in rows)
    assurance = ", and checked that beside each answer" if is_found and not question.slowdown else ""
    premise = f"{tries}, assuming that a row that fits also fits with {less}{assurance}."
    sentences = [*(_reached(row, question) for row in rows), *capped, premise]
    return SweepView(title, [Section(columns=columns)], sentences, [_steps_over(tried, question)] if tried else [])


def _steps_over(tried: Rows, question: Question) -> Panel:
    """Make a panel of the step over the field that was searched."""
    ran = sorted((row for row in tried if present(row.get("step_ns"))), key=lambda row: row[question.of])
    return Panel("one step", question.of, "ns", ran, question.of, "step_ns", question.unit or "")


def free_sentence(row: Row, question: Question, amount: str, *, has_budget: bool = False) -> str:
    """Say how much bandwidth, or capacity, a row needs to be free: its step is no longer than if nothing moved.

    Parameters
    ----------
    row, question
        An answer, and its question.
    amount
        The name of the amount, for people.
    has_budget
        Whether the scenario has a budget; the search ignores it.
    """
    who, value, start = row["policy"], row[question.column], question.read("start")
    is_longer = "next" in row and row["limit"] == "step"
    place, free, why, near = " + ".join(question.paths), "as fast as if nothing moved", "", f"any tried {amount}"
    if "next" in row:
        why = f"its step takes {row['limit_at']} as long" if is_longer else _obstacle(row, question)
        near = question.written(row["next"])
    if value is None:
        return f"Even at {place} {near}, {who} is not {free}: {why}." if why else f"{who} is not {free} at {near}."
    now = "" if question.unit == "x" else f" (now {question.written(start)})"
    now = f", without its budget of {question.written(start)}," if has_budget else now
    much = f"needs {'' if value > start else 'only '}{place} {question.written(value)}{'' if why else ' or less'}"
    return f"{who} {much}{now} to be {free}{why and f'; at {near} {why}'}."


def _slowdown(slowdown: float | None, question: Question) -> str:
    """Write a slowdown with enough digits to tell it from the limits that were asked for."""
    if slowdown is None or all(limit == round(limit, 2) for limit in question.limits):
        return ratio(slowdown)
    return f"{slowdown:.4f}x"


def _reached(row: Row, question: Question) -> str:
    """Say with which value a row meets the conditions, how slow it is there, and why it fails with the next value."""
    value, who = question.written(row[question.column]), row["policy"]
    if "tried" not in row:
        return f"{who} was not searched: {row['notes']}."
    does = question.does(row["within"])
    if is_bound(row) and row.get("limit") != "failed":
        none = "no plan" if who == BOUNDS[1] else "no plan that runs each op once"
        if not value:
            return f"{who}: {none} {does} at any {question.of} tried."
        if "next" in row:
            return f"{who}: {none} {does} {('above', 'below')[question.sign < 0]} {question.of} {value}."
        return f"{who}: a plan that {does} is not ruled out at {question.of} {value}, where the search ended."
    text = f"{who} {does} at {f'{question.of} {value}' if value else f'no {question.of} tried'}"
    text += f", with a step of {_slowdown(row['slowdown'], question)} {question.over}" if row.get("slowdown") else ""
    if row["holes"]:
        text += f", but not at {listed([*map(question.written, row['holes'])])}, and perhaps at values not tried"
    if "next" in row:
        return f"{text}; at {question.written(row['next'])} {_obstacle(row, question)}."
    further = ("lower --at-least", "raise --at-most")[question.sign > 0]
    go_on = f"the {question.direction} tried; {further} to go on"
    return f"{text}, {'the least possible' if (value, question.sign) == ('1', -1) else go_on}."


def _obstacle(row: Row, question: Question) -> str:
    """Say why a row does not meet the conditions with the next value."""
    if row["limit"] == "step" and "limit_at" not in row:
        return f"its step takes {_slowdown(row['next_slowdown'], question)} {question.over}"
    if "limit_at" not in row:
        return f"its plan is {row['limit']}"
    if "limit_demand_bytes" not in row:
        why = f"it fails: {row['limit_at']}" if row["limit"] == "failed" else f"{row['limit']} is {row['limit_at']}"
        unmoved = "that remain if nothing moves; ask for step <= 1.001x --over unmoved"
        return f"{why}, all of it waits for {row['limit_only']} {unmoved}" if "limit_only" in row else why
    short = quantity(row["limit_demand_bytes"] - row["limit_capacity_bytes"], "B")
    return f"{row['limit']} is {short} short at {row['limit_at']}"


def pareto_view(rows: Rows, floors: Mapping[str, Mapping[float, int]], column: str, tier: str, title: str) -> SweepView:
    """Show the trade-off of each row: its peak, or its cost, against its step.

    Parameters
    ----------
    rows
        The Pareto front of each policy: see `simulator.run.questions`.
    floors
        Bound -> multiple of all computes -> the amount that no plan goes below.
    column
        The peak, or the cost.
    tier
        The compute tier.
    title
        The title.
    """
    is_peak, fronts = column == f"peak_{tier}_bytes", {who: front for (who,), front in by(rows, "policy").items()}
    figure, step = figure_of(column), figure_of("step_ns")
    name = f"peak of {tier}" if is_peak else figure.head
    least = [front[0] for front in fronts.values()]
    paid = [cost for cost in _cost_columns(least) if cost != column]
    costs: dict[float, dict[str, float | None]] = {price: {} for price in PRICES}
    for price, amounts in costs.items():
        for who, front in fronts.items():
            within = min((row[column] for row in front if row["slowdown"] <= price), default=None)
            amounts[who] = floors[who][price] if who in floors else within
    columns = [
        *figures(least, ("policy", figure.headed(f"least {'peak' if is_peak else name}"), step.headed("step there"))),
        Column("vs compute", (ratio(row["slowdown"]) for row in least), left=False),
    ]
    for price, amounts in costs.items():
        cells = (shown(column, amount) for amount in amounts.values())
        columns.append(Column(f"within {price:g}x", cells, left=False))
    columns += figures(least, paid)
    panel = Panel("one step", name, "ns", rows, column, "step_ns", figure.unit)
    tries = f"hosim tried capacities of {tier} from the lower bound of all plans to the size of all data"
    bounds = f" Lower bounds: {BOUNDS[0]!r} of plans that run each op once, {BOUNDS[1]!r} of all." if floors else ""
    premise = f"{tries}; limits such as 1.01x are multiples of compute.{bounds}"
    sentences = [*_prices(costs, name, column), *_costs_at_ends(fronts, name, paid), premise]
    return SweepView(title, [Section(columns=columns)], sentences, [panel])


def _prices(costs: Mapping[float, Mapping[str, float | None]], name: str, column: str) -> Iterator[str]:
    """Say for each slowdown which rows have the lowest amount, and the bound below which no plan goes."""
    for price, amounts in costs.items():
        bounds = [f"{who}, {shown(column, amounts[who])}" for who in BOUNDS if amounts.get(who) is not None]
        beside = f" (lower bounds: {listed(bounds)})" if bounds else ""
        ran = {who: amount for who, amount in amounts.items() if amount is not None and who not in BOUNDS}
        least = shown(column, min(ran.values(), default=None))
        best = [who for who in ran if shown(column, ran[who]) == least]  # as far as people are shown digits
        have = f"{listed(best)} {'have' if best[1:] else 'has'}"
        lowest = f"{have} the lowest {name} tried, {least}" if ran else "no row runs"
        yield f"Within {price:g}x compute, {lowest}{beside}."


def _costs_at_ends(fronts: Mapping[str, Rows], name: str, paid: Sequence[str]) -> Iterator[str]:
    """Say what each row costs at its least amount, and at its shortest step."""
    for who, front in fronts.items():
        for column in paid[:1]:
            if len(front) > 1 and present(front[0].get(column)):
                least, most = (shown(column, row[column]) for row in (front[0], front[-1]))
                costs = f"{who} has a {figure_of(column).head} of {least}"
                yield f"{costs} at its least {name}, and of {most} at its shortest step."


def _cost_columns(rows: Rows) -> list[str]:
    """Name the columns of money and energy that rows have: per token where tokens are known."""
    kinds = ("usd_per_million_tokens", "step_usd"), ("energy_per_token_j", "energy_j")
    return [column for kind in kinds for column in occurring(rows, kind)[:1]]


def crossover_view(rows: Rows, tried: Rows, names: Sequence[str], question: Question, title: str) -> SweepView:
    """Show over which ranges of a field which of two rows is faster.

    Parameters
    ----------
    rows, tried
        Ranges, and all points that were tried: see `simulator.run.questions`.
    names
        The two rows.
    question
        The question.
    title
        The title.
    """
    columns = [Column(end, (question.written(row[end]) for row in rows), left=False) for end in _ENDS]
    columns += figures(rows, (Figure("faster", "text", "faster"),))
    columns += (Column(name, (_steps(name, row) for row in rows), left=False) for name in names)
    ends = [(question.written(row["from"]), question.written(row["to"])) for row in rows]
    ranges = [f"at {low}" if low == high else f"from {low} to {high}" for low, high in ends]
    where = "; ".join(f"{place} {_faster(row, names)}" for place, row in zip(ranges, rows, strict=True))
    low, high = ends[0][0], ends[-1][1]
    answer = f"Over {question.of}, {where}."
    if len(rows) == 1:
        answer = f"{listed(names)} do not swap between {question.of} {low} and {high}: {_faster(rows[0], names)}."
    tries = f"hosim tried {len({row[question.of] for row in tried})} {question.size} from {low} to {high}"
    premise = f"{tries}; two crossovers between neighbouring values would be missed."
    return SweepView(title, [Section(columns=columns)], [answer, premise], [_steps_over(tried, question)])


def _steps(name: str, row: Row) -> str:
    """Write the step of a row at both ends of a range."""
    return " to ".join(dict.fromkeys(quantity(row.get(f"{end}_{name}_ns"), "ns") for end in _ENDS))


def _faster(row: Row, names: Sequence[str]) -> str:
    """Say which of two rows is faster in a range."""
    if row["faster"] in names:
        return f"{row['faster']} is faster"
    why = f": {row['notes']}" if "notes" in row else ""
    return "both take equally long" if row["faster"] == "tie" else f"neither runs{why}"


_LEAST = 0.005
"""A lower elasticity is written as 0 %: with 10 % more of the figure the step changes by less than 0.05 %."""
_LONG = 10
"""Amounts with more characters, such as ``752.32 TFLOP/s``, are written with three digits."""


def limits_view(rows: Rows, usual: Mapping[str, int], tried: int, capped: Sequence[str], title: str) -> SweepView:
    """Show how sensitive steps are to each figure of the machine.

    Parameters
    ----------
    rows, usual
        The elasticities (see `simulator.run.studies`), and the step of each policy on the machine as it is [ns].
    tried
        The number of figures that were tried.
    capped
        Sentences about rows that do not run, and figures that change nothing because something else is narrower.
    title
        The title.
    """
    columns = figures(rows, ("policy", Figure("figure", "text", "figure")))
    stated = ((row["value"], unit_of(row["value"])) for row in rows)
    short = (human(parse(value, unit), unit) if unit and len(str(value)) > _LONG else value for value, unit in stated)
    columns.append(Column("value", short, left=False))
    columns += figures(rows, (Figure("origin", "text", "origin"), "step_ns"))
    columns.append(Column("with 10 % more", (signed(0.1 * row["elasticity"]) for row in rows), left=False))
    premise = f"hosim raised each of {tried} figures of the machine by 10 % and planned anew"
    idle = [f"{premise}; figures not listed change no step."] if usual else []
    return SweepView(title, [Section(columns=columns)], [*_strongest(rows, usual), *capped, *idle, *_assumed(rows)])


def _strongest(rows: Rows, usual: Mapping[str, int]) -> Iterator[str]:
    """Say for each policy to which figure its step is most sensitive."""
    for policy, step_ns in usual.items():
        strong = [row for row in rows if row["policy"] == policy and abs(row["elasticity"]) >= _LEAST]
        effect = "; 10 % more of any figure changes nothing"
        if strong:
            effect = f"; 10 % more of {strong[0]['figure']} changes the step by {signed(0.1 * strong[0]['elasticity'])}"
        yield f"{policy} takes {quantity(step_ns, 'ns')}{effect}."


def _assumed(rows: Rows) -> Iterator[str]:
    """Say to how many assumed and fitted figures the answer is sensitive, the most influential first."""
    strong = sorted((row for row in rows if abs(row["elasticity"]) >= _LEAST), key=lambda row: -abs(row["elasticity"]))
    for origin in ("assumed", "fitted"):
        if names := [*dict.fromkeys(row["figure"] for row in strong if row["origin"] == origin)]:
            yield f"The answer depends on {counted(len(names), f'{origin} figure')}: {listed(names)}."
    if strong and all(row["origin"] in ("cited", "mine") for row in strong):
        yield "No assumed figure changes the answer by 0.05 % or more."


def layouts_view(rows: Rows, screened: Rows, names: Sequence[str], tier: str, title: str) -> SweepView:
    """Show the layouts that were replayed, and what is known of the others.

    Parameters
    ----------
    rows, screened
        The replayed rows, and all layouts: see `simulator.run.layouts`.
    names
        The fields in which layouts differ.
    tier
        The compute tier.
    title
        The title.
    """
    peak, ran = f"peak_{tier}_bytes", [row for row in rows if row["status"] == "ok"]
    columns = [*figures(rows, ("policy",))]
    columns += [Column(name, (row.get(name, ABSENT) for row in rows), left=False) for name in names]
    estimate = Figure("estimated_step_ns", "ns", "estimate")
    columns += figures(rows, (estimate, "status", "step_ns", "tokens_per_s", figure_of(peak)))
    columns += figures(rows, occurring(rows, ("bubble_fraction", *WAITS)))
    columns.append(Column("front", ("*" if row.get("front") else "" for row in rows)))
    table = [Section(columns=filled(columns))]
    front = [{**row, "set": "Pareto front"} for row in ran if row["front"]]
    loose = ("replayed", "estimated, if nothing moves")
    points = [*front, *({**row, "set": loose[0]} for row in ran if not row["front"])]
    made = [row for row in screened if row["status"] == "estimated"]
    drawn = {peak: f"estimated_{peak}", "tokens_per_s": "estimated_tokens_per_s"}
    points += [{key: row[column] for key, column in drawn.items()} | {"set": loose[1]} for row in made]
    panel = Panel("tokens/s", f"peak of {tier}", "", points, peak, "tokens_per_s", "B", of="set", loose=loose)
    sentences = [*_layouts_found(ran, front, names, peak), *_layouts_left(ran, screened, made, names)]
    return SweepView(title, table, sentences, [panel] if points else [])


def _layout(row: Row, names: Sequence[str]) -> str:
    return ", ".join(f"{name} {row[name]}" for name in names)


def _layouts_found(ran: Rows, front: Rows, names: Sequence[str], peak: str) -> Iterator[str]:
    """Say which layout is fastest, which others no one beats, and how far estimates were off."""
    for row in ran[:1]:
        much = f"{shown('tokens_per_s', row['tokens_per_s'])} tokens/s, with a step of {quantity(row['step_ns'], 'ns')}"
        spread = f" with {_layout(row, names)}" if names else ""
        yield f"{row['policy']}{spread} is the fastest of the replayed layouts: {much}."
    for row in front[1:]:
        less = f"{quantity(row[peak], 'B')}, {ratio(row['tokens_per_s'] / front[0]['tokens_per_s'])} as many tokens/s"
        yield f"Less memory: {row['policy']} with {_layout(row, names)} has a peak of {less}."
    best = {_layout(row, names): row for row in reversed(ran)}.values()
    off = sorted(row["estimated_step_ns"] / row["step_ns"] - 1 for row in best)
    if off:
        yield f"Estimates of the replayed layouts' fastest rows were off by {signed(off[0])} to {signed(off[-1])}."


def _layouts_left(ran: Rows, screened: Rows, made: Rows, names: Sequence[str]) -> Iterator[str]:
    """Say what is known of layouts that were not replayed, and why others cannot be."""
    best, tried = max((row["tokens_per_s"] for row in ran), default=0), {_layout(row, names) for row in ran}
    left = [row for row in made if _layout(row, names) not in tried]
    slower = sum(row["most_tokens_per_s"] < best for row in left)
    proved = f"a bound rules out {slower:,} of {len(left):,} that were not replayed" if left else "all were replayed"
    others = f", the estimate alone the other {len(left) - slower:,}" * (slower < len(left))
    yield f"hosim estimated {len(made):,} of {len(screened):,} layouts; {proved}{others}."
    barred = [row for row in screened if row["status"] == "failed"]
    for (rule,), group in sorted(by(barred, "rule").items(), key=lambda pair: -len(pair[1])):
        such = f"such as {_layout(group[0], names)}: {group[0]['found']}"
        yield f"{len(group):,} of {len(screened):,} layouts are impossible: {rule} ({such})."
