"""Bisection over values of a field: finds the last one with which a row or a bound meets a question's conditions."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from functools import cache, cached_property, lru_cache, partial
from itertools import pairwise
from typing import Any

from simulator import catalog, metrics
from simulator.catalog import Axis, Loaded
from simulator.catalog.text import errors_at
from simulator.errors import Shortfall, insist
from simulator.policies import POLICIES
from simulator.policies.decide import Policy
from simulator.report.expectations import OTHER, condition, unmet
from simulator.report.sentences import WAITED_FOR
from simulator.run.case import Case, Policies
from simulator.run.grid import Cells
from simulator.run.row import row_of, unmoved_row
from simulator.run.sweep import Point, Row, Rows, Study, silent
from simulator.scenario import Question
from simulator.scenario.question import BOUNDS, COMPUTE, FASTEST, UNMOVED
from simulator.units import listed, nearest

Asked = Mapping[str, Any]
_KEPT = 4
"""Cases kept built: rows are first tried with the same values."""
_BESIDE = (0.5, 0.8, 1.25, 2.0)
"""Multiples of an answer that are tried, too, to check that easier values hold and harder ones fail."""
_MOST_TRIED = 64
"""Most values to try: more are wanted only where a row's answer alternates."""
_FINE = 1.5
"""Where no value meets the conditions, a middle is tried between neighbours with a larger ratio: once per doubling."""
_ONCE = {"may_repeat": False, "in_turn": False}
"""Arguments for the bound on plans that run each op once per step."""
_MEETING = "collective", "peer", "order"
"""Causes of waits that a job has without offloading, too."""
_OF_BOUND = {"step_ns", "stall_ns", "recompute_ns", "tokens_per_s"}
"""Columns that a bound may have."""


class Search:
    """Tries values of a field on rows and on bounds.

    Parameters
    ----------
    loaded, policies
        The scenario and its rows, as in `simulator.run`.
    asked
        Fields of the question that override the scenario's; messages about them name the option.
    is_bounded
        Whether to search bounds, too.

    Attributes
    ----------
    question, axis
        The question, and the axis of its field.
    rows, named, bounds
        Row or bound -> function that tries a value; rows whose policies are no functions; bound -> its arguments.

    Raises
    ------
    ConfigError
        If the question is wrong, or names a row that does not exist or does not run.
    """

    def __init__(self, loaded: Loaded, asked: Asked, policies: Policies | None, *, is_bounded: bool = True) -> None:
        self.question = question = catalog.question(loaded, Question, asked)
        self._policies = policies
        self._where = partial(catalog.place_asking, loaded, question.key, asked)
        rows = [row.row for row in loaded.scenario.policies]
        names = tuple(dict.fromkeys([*rows, COMPUTE, UNMOVED, *POLICIES, FASTEST]))
        rule, do = "steps are compared with those of a row, compute or unmoved", nearest(question.over, names)
        insist(question.over in names, self._where("over"), rule, repr(question.over), do)
        self._documents = loaded.without_questions()
        self.base = catalog.unfixed(self._documents, question)
        self.axis = Axis(question.of, question.paths, self._where("of"), question.unit)
        with errors_at(self._where("such_that")):
            self._conditions = [condition(text, loaded.hardware) for text in question.such_that]
        columns = {column for clause in self._conditions for column in clause.columns}
        is_of_bounds = not columns.isdisjoint(metrics.columns(loaded.hardware, ("bound",)))
        self._cells = Cells(with_bounds=is_of_bounds)
        self.built, self._other = lru_cache(_KEPT)(self._built), cache(self._run_compared)
        case = self.built(self.first)
        self._has_ratio = question.over != FASTEST or any(clause.over == OTHER for clause in self._conditions)
        is_crossed = case.job.ranks > 1 or case.graph.meets or case.graph.on_host or case.graph.in_place
        of_wires = all(path.startswith(("links.", "buses.")) for path in question.paths)
        is_same = question.over == UNMOVED and of_wires and not is_crossed  # on one rank, and nothing moves
        self._value_for_over = (lambda _: None) if is_same else question.value_for_over
        if self._has_ratio and self._value_for_over(self.first) is None:
            self._other(None)  # refuse before anything is tried
        self.rows: dict[str, Callable[[Loaded, Point], Rows]] = {
            label: partial(self.try_row, label, decide) for label, decide in case.rows(policies).items()
        }
        self.named = [label for label in self.rows if not isinstance(policies, Mapping) or label not in policies]
        plain = [label for label in self.rows if is_bounded and not case.choice(label).set_]  # of the same machine
        in_turn = any(case.choice(label).staggered for label in plain)
        kinds = sorted({case.may_repeat(label) for label in plain})
        self.bounds = {BOUNDS[kind]: {"may_repeat": kind, "in_turn": in_turn} for kind in kinds}
        self.rows |= {name: partial(self.try_bound, name) for name in self.bounds}

    @cached_property
    def first(self) -> int | float:
        """The first value to try: the documents' own, or the next one that may be tried."""
        values, start = self.question.values, self.question.read("start")
        is_tried = values[0] <= start <= values[-1] and not self.question.multiple_of
        return start if is_tried else self.next_value(start)

    def next_value(self, value: float) -> int | float:
        """Return the least value of the question that is not below `value`; the last one if there is none."""
        values = self.question.values
        return values[min(bisect_left(values, value), len(values) - 1)]

    def search_from_bound(self, who: str) -> Rows:
        """Search a row's least value, from the least with which its bound meets the conditions; return all rows.

        A good plan needs little more than the bound, so most searches end after two tries. If the row fails there, the
        largest value is tried next: if that fails, too, nothing helps.
        """
        values, study, tried = self.question.values, self.study(who, ()), dict[int, Row]()

        def holds(index: int) -> bool:
            if index not in tried:
                (tried[index],) = study.labelled((values[index],), study.rows((values[index],)))
            return _meets(tried[index], math.inf)

        last, bound = len(values) - 1, partial(self.try_bound, BOUNDS[0], self.base)
        begin = bisect_left(values, self.first)
        index = bisect_left(values, True, begin, last, key=lambda value: _meets(bound((value,))[0], math.inf))
        if holds(index) or holds(last):
            step, is_held = (-1, True) if holds(index) else (4, False)  # failing values take longest to try
            while 0 <= index + step <= last and holds(index + step) == is_held:
                index, step = index + step, 2 * step
            low, high = sorted((index, max(-1, min(index + step, last))))
            bisect_left(range(len(values)), True, low + 1, high, key=holds)
        return [tried[index] for index in sorted(tried)]

    def study(self, who: str, points: Sequence[Point], **between: Any) -> Study:
        """Make a study of a row at these points, and perhaps `between` them (fields of `Study`)."""
        return Study(self.base, self.rows[who], (self.axis,), points, about={"policy": who}, **between)

    def edge(self, who: str) -> Study:
        """Make the study that finds a row's edge, outwards from the documents' value."""
        return self.study(who, [(self.first,)], candidates=self.question.values, differ=self.differ, more=self.more)

    def _built(self, value: int | float | None) -> Case:
        """Build the case with a value; None: with the documents unchanged."""
        return self._cells.case(self._documents if value is None else catalog.at(self.base, {self.axis: value}))

    def _run_compared(self, value: int | float | None) -> Row:
        """Run the row that others are compared with (the question's ``over``)."""
        case, over = self.built(value), self.question.over
        if over == COMPUTE:
            return {"step_ns": case.compute_ns}
        if over == UNMOVED:
            return unmoved_row(case)
        names = self._policies if over == FASTEST else [over]
        ran = [self._run(label, decide, value) for label, decide in case.rows(names).items()]
        if over != FASTEST:
            return ran[0]
        must, do = "a ratio is of a row that runs with the documents as they are", "say --over compute"
        able = [row for row in ran if row["status"] == "ok"]
        insist(able or value is not None, self._where("such_that"), must, "none", do)
        return min(able, key=lambda row: row["step_ns"], default={})

    def differ(self, fewer: Rows, more: Rows) -> bool:
        """Tell whether an answer lies between two values, by their rows."""
        return any(_meets(fewer[0], limit) != _meets(more[0], limit) for limit in self.question.limits)

    def more(self, measured: Mapping[Point, Rows]) -> list[Point]:
        """Double or halve until each answer is bracketed; then try values beside it, to check that easier ones hold."""
        if len(measured) >= _MOST_TRIED or any(rows[0]["status"] == "refused" for rows in measured.values()):
            return []
        wanted = (value for limit in self.question.limits for value in self._beyond(measured, limit))
        points = [(value,) for value in dict.fromkeys(map(self.next_value, wanted))]
        return [point for point in points if point not in measured]

    def _beyond(self, measured: Mapping[Point, Rows], limit: float) -> list[float]:
        """Return where to look next for the answer within a limit on the step."""
        values, held = self.question.values, {value: _meets(rows[0], limit) for (value,), rows in measured.items()}
        if len({*held.values()}) == 1:
            rises = next(iter(held.values())) == (self.question.sign > 0)
            edge, end = (max(held), values[-1]) if rises else (min(held), values[0])
            if edge != end:
                return [2 * edge if rises else edge / 2]
            ran = sorted(value for (value,), rows in measured.items() if rows[0]["status"] == "ok")
            middles = (math.sqrt(low * high) for low, high in pairwise(ran) if high > _FINE * low)
            return [] if any(held.values()) else list(middles)  # a figure may rise and fall again between neighbours
        answer = max((value for value in held if held[value]), key=lambda value: self.question.sign * value)
        return [] if self.question.slowdown else [times * answer for times in _BESIDE]  # else for each limit

    def try_row(self, label: str, decide: Policy, _: Loaded, point: Point) -> Rows:
        """Run a row with a value, and add its slowdown, and the condition that it violates, if any."""
        return [self._compare(self._run(label, decide, point[0]), point[0])]

    def try_bound(self, name: str, _: Loaded, point: Point) -> Rows:
        """Find the bound with a value: on plans that run each op once, or on all plans."""
        case, kind = self.built(point[0]), self.bounds.get(name, _ONCE)
        shortfalls = filter(None, (task.unfit(may_repeat=kind["may_repeat"]) for task in case.tasks))
        if short := max(shortfalls, key=lambda shortfall: shortfall.short_bytes, default=None):
            return [{"policy": name, "status": "infeasible", **_lacking(short)}]
        step_ns = case.bound(**kind).ns
        row = {"policy": name, "status": "ok", "step_ns": step_ns, **metrics.per_second(step_ns, **case.loaded.handled)}
        row[f"peak_{case.hardware.compute_tier}_bytes"] = case.problem.budget_bytes
        has_streams = any(op.stream for graph in case.job.graphs for op in graph.ops)  # a stall is of one of them
        if not (kind["may_repeat"] or has_streams):
            row["stall_ns"] = max(0, step_ns - case.compute_ns)  # the rest of a step, which may be longer, is compute
            row["recompute_ns"] = 0
        unknown = [clause.why for clause in self._conditions if not {*clause.columns} <= _OF_BOUND & {*row}]
        if unknown:
            return [{"policy": name, "status": "refused", "notes": f"no bound is known that tells of {unknown[0]}"}]
        return [self._compare(row, point[0])]

    def _compare(self, row: Row, value: int | float) -> Row:
        """Add a row's slowdown against the row ``over``, and the condition that it violates, if any."""
        other = self._other(self._value_for_over(value)) if self._has_ratio and row["status"] == "ok" else {}
        pace_ns = other.get("step_ns")
        row = row | {"slowdown": pace_ns and row["step_ns"] / pace_ns}
        lack = unmet(self._conditions, row, other) if row["status"] == "ok" else None
        if lack is None:
            return row
        met = {WAITED_FOR[cause]: ns for cause in _MEETING if (ns := row.get(f"wait_{cause}_ns"))}
        spared = row | {"stall_ns": row["stall_ns"] - sum(met.values())} if met else row
        only = {} if unmet(self._conditions, spared, other) else {"limit_only": listed([*met])}
        return row | {"is_unmet": True, "limit": lack[0], "limit_at": lack[1], **only}

    def _run(self, label: str, decide: Policy, value: int | float | None) -> Row:
        case = self.built(value)
        if case.choice(label).is_file:
            why = "a plan from a file is of one graph; name a policy"
            return {"policy": label, "status": "refused", "notes": why}
        ran = row_of(case, label, decide, silent, advice=False)
        lacks = _lacking(ran.shortfall) if ran.shortfall else {"limit": ran.status}
        return ran.summary if ran.is_ok else ran.summary | lacks

    def answer(self, rows: Rows, within: float) -> Row:
        """Summarise the search for one row, with a limit on its step."""
        question, label = self.question, rows[0]["policy"]
        rows = sorted(rows, key=lambda row: question.sign * row[question.of])  # the hardest value last
        last = max((index for index, row in enumerate(rows) if _meets(row, within)), default=-1)
        ran = {**rows[last], question.column: rows[last][question.of]} if last >= 0 else {"status": "infeasible"}
        answer = {"policy": label, question.column: None, **ran, "within": within}
        if refused := [row for row in rows if row["status"] == "refused"]:
            return answer | {"status": "refused", "notes": refused[0]["notes"]}
        holes = [row[question.of] for row in rows[: last + 1] if not _meets(row, within)]
        answer |= {"tried": len(rows), "holes": holes}
        if last + 1 == len(rows):
            return answer
        limit = rows[last + 1]
        lacks = {key: value for key, value in limit.items() if key.startswith("limit")}
        if not lacks:
            is_failed = limit["status"] == "failed"
            lacks = {"limit": "failed", "limit_at": limit["notes"]} if is_failed else {"limit": "step"}
        return answer | {"next": limit[question.of], "next_slowdown": limit.get("slowdown"), **lacks}


def _lacking(short: Shortfall) -> Row:
    """Return the columns that say which tier lacks room."""
    sizes = {"limit_demand_bytes": short.demand_bytes, "limit_capacity_bytes": short.capacity_bytes}
    return {"limit": short.tier, "limit_at": short.at, **sizes}


def _meets(row: Row, within: float) -> bool:
    """Tell whether a row runs, meets the conditions, and has a step within the limit."""
    is_met = row["status"] == "ok" and not row.get("is_unmet")
    return is_met and (within == math.inf or (row["slowdown"] or math.inf) <= within)
