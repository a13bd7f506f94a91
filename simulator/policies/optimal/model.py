"""A mixed-integer program in the making: variables, rows, and the call of the solver.

All numbers are whole: nanoseconds, bytes, flags. Only the solver gets fractions, with times in a unit that keeps its
tolerances far below what matters; from what it finds the flags are taken, and all times are found anew.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simulator.bounds.linear import unheard

Term = tuple[int, int]
"""A coefficient and a variable; the variable `ONE` is the constant 1."""
ONE = -1
Expression = list[Term]
"""A sum of terms."""
TRUE: Expression = [(1, ONE)]
FALSE: Expression = []

_UNITS = 1000
"""Length of the longest time in units of the solver."""

Values = NDArray[np.int64]


def times(factor: int, terms: Iterable[Term]) -> Expression:
    """The terms times a factor."""
    return [(factor * c, variable) for c, variable in terms]


def negated(terms: Iterable[Term]) -> Expression:
    """The terms with the other sign."""
    return times(-1, terms)


def no(flag: Expression) -> Expression:
    """1 less a flag; a constant if that is one."""
    if constant(flag):
        return FALSE if flag else TRUE
    return [(1, ONE), *negated(flag)]


def constant(flag: Expression) -> bool:
    """Whether a flag is `TRUE` or `FALSE`."""
    return flag in (TRUE, FALSE)


@dataclass(frozen=True, slots=True)
class Solution:
    """What the solver says.

    Attributes
    ----------
    values
        Of the variables, whole: flags as the solver set them, times as early as these flags allow; None if none were
        found.
    is_exact
        Whether the values keep to every row. If not, the solver has made use of its tolerances, and times are its own.
    is_complete
        Whether the search ended by itself: the values are the best there are, or there are none.
    least_ns
        No values have a lower objective, as far as the solver can tell [ns].
    """

    values: Values | None
    is_exact: bool
    is_complete: bool
    least_ns: float


class Model:
    """Collects variables and rows.

    A row has at most two times, one with 1 and one with -1: with all flags given, it says how much later the one is
    than the other at least. So the earliest times are longest paths, and whole.
    """

    def __init__(self) -> None:
        self._lower: list[int] = []
        self._upper: list[int] = []
        self._is_time: list[bool] = []
        self._is_flag: list[bool] = []
        self._rows: list[dict[int, int]] = []
        self._least: list[int] = []

    def time(self, lower: int, upper: int) -> int:
        """Add a time between two others [ns]."""
        return self._variable(lower, upper, is_time=True, is_flag=False)

    def flag(self) -> int:
        """Add a variable that is 0 or 1."""
        return self._variable(0, 1, is_time=False, is_flag=True)

    def share(self) -> int:
        """Add a variable from 0 to 1 that is whole, and 1 if it may be, in a solution whose flags are."""
        return self._variable(0, 1, is_time=False, is_flag=False)

    def _variable(self, lower: int, upper: int, *, is_time: bool, is_flag: bool) -> int:
        self._lower.append(lower)
        self._upper.append(upper)
        self._is_time.append(is_time)
        self._is_flag.append(is_flag)
        return len(self._lower) - 1

    def bounds(self, variable: int) -> tuple[int, int]:
        """Least and largest value of a variable."""
        return (1, 1) if variable == ONE else (self._lower[variable], self._upper[variable])

    def largest(self, terms: Iterable[Term]) -> int:
        """The largest value that the bounds of the variables allow for a sum."""
        return sum(c * self.bounds(v)[int(c > 0)] for c, v in terms)

    def least(self, terms: Iterable[Term]) -> int:
        """The least value that the bounds of the variables allow for a sum."""
        return sum(c * self.bounds(v)[int(c < 0)] for c, v in terms)

    def value(self, terms: Iterable[Term], values: Values) -> int:
        """A sum, with the values of a solution."""
        return sum(c * (1 if v == ONE else int(values[v])) for c, v in terms)

    def at_least(self, terms: Iterable[Term], lower: int = 0) -> None:
        """Add a row: the sum of the terms is at least `lower`."""
        merged: dict[int, int] = {}
        for coefficient, variable in terms:
            merged[variable] = merged.get(variable, 0) + coefficient
        lower -= merged.pop(ONE, 0)
        merged = {variable: c for variable, c in merged.items() if c}
        if not merged and lower <= 0:
            return
        self._rows.append(merged)
        self._least.append(lower)

    def minimise(self, variable: int, time_limit_s: float, held: Mapping[int, int] | None = None) -> Solution:
        """Minimise a time; `held` variables have a value while flags are looked for, but not when times are."""
        from scipy.optimize import Bounds, LinearConstraint, milp  # noqa: PLC0415 - an extra
        from scipy.sparse import csr_array  # noqa: PLC0415 - an extra

        is_time = np.array(self._is_time)
        lower, upper = np.array(self._lower), np.array(self._upper)
        for one, value in (held or {}).items():
            if not lower[one] <= value <= upper[one]:
                return Solution(None, is_exact=False, is_complete=True, least_ns=math.inf)
            lower[one] = upper[one] = value
        unit = max(1.0, self._upper[variable] / _UNITS)
        column = np.where(is_time, unit, 1.0)
        scale = np.array([1 / unit if any(self._is_time[v] for v in row) else 1.0 for row in self._rows])
        columns = np.array([v for row in self._rows for v in row], np.int64)
        starts = np.cumsum([0, *map(len, self._rows)])
        data = np.array([c for row in self._rows for c in row.values()], float)
        data *= column[columns] * np.repeat(scale, np.diff(starts))
        objective = np.zeros(len(column))
        objective[variable] = 1
        with unheard():
            found = milp(
                objective,
                integrality=np.array(self._is_flag),
                bounds=Bounds(lower / column, upper / column),
                constraints=LinearConstraint(
                    csr_array((data, columns, starts), shape=(len(scale), len(column))),
                    np.array(self._least) * scale,
                    np.inf,
                ),
                options={"time_limit": max(0.1, time_limit_s), "mip_rel_gap": 0.0},
            )
        is_infeasible = found.status == 2
        least_ns = -math.inf if found.mip_dual_bound is None else float(found.mip_dual_bound) * unit
        is_complete = is_infeasible or found.status == 0
        if found.x is None:
            least_ns = math.inf if is_infeasible else least_ns
            return Solution(None, is_exact=False, is_complete=is_complete, least_ns=least_ns)
        is_share = ~is_time & ~np.array(self._is_flag)
        values = np.rint(found.x * column + np.where(is_share, 0.499, 0)).astype(np.int64)
        exact = self._earliest(values)
        return Solution(values if exact is None else exact, exact is not None, is_complete, least_ns)

    def _earliest(self, values: Values) -> Values | None:
        """The same flags, and the earliest times that they allow; None if they allow none."""
        found = np.append(np.where(self._is_time, self._lower, values), 0)
        paths: list[tuple[int, int, int]] = []
        for row, least in zip(self._rows, self._least, strict=True):
            lack = least - sum(c * int(found[v]) for v, c in row.items() if not self._is_time[v])
            ends = {c: v for v, c in row.items() if self._is_time[v]}
            if ends or lack > 0:
                paths.append((ends.get(-1, ONE), ends.get(1, ONE), lack))
        return self._follow(found, paths)

    def _follow(self, found: Values, paths: list[tuple[int, int, int]]) -> Values | None:
        """Move times later until all paths, from one time to another that is so much later, are kept to.

        The last value is the moment 0, by the name of `ONE`, which cannot move.
        """
        upper = np.append(self._upper, 0)
        for _ in range(len(found) + 1):
            is_settled = True
            for early, late, by in paths:
                due = by + int(found[early])
                if found[late] < due:
                    found[late], is_settled = due, False
                    if due > upper[late]:
                        return None
            if is_settled:
                return found[:-1]
        return None
