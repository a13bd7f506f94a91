"""A mixed-integer program in the making: variables, rows, and the call of the solver."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Term = tuple[float, int]
"""A coefficient and a variable; the variable `ONE` is the constant 1."""
ONE = -1
Expression = list[Term]
"""A sum of terms."""
TRUE: Expression = [(1, ONE)]
FALSE: Expression = []


def times(factor: float, terms: Iterable[Term]) -> Expression:
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
        Of the variables; None if none were found.
    is_complete
        Whether the search ended by itself: the values are the best there are, or there are none.
    least
        No values have a lower objective.
    """

    values: NDArray[np.float64] | None
    is_complete: bool
    least: float


class Model:
    """Collects variables and rows."""

    def __init__(self) -> None:
        self._lower: list[float] = []
        self._upper: list[float] = []
        self._whole: list[int] = []
        self._data: list[float] = []
        self._columns: list[int] = []
        self._starts: list[int] = [0]
        self._row_lower: list[float] = []

    def variable(self, lower: float, upper: float) -> int:
        """Add a continuous variable."""
        self._lower.append(lower)
        self._upper.append(upper)
        self._whole.append(0)
        return len(self._lower) - 1

    def flag(self) -> int:
        """Add a variable that is 0 or 1."""
        found = self.variable(0, 1)
        self._whole[found] = 1
        return found

    def bounds(self, variable: int) -> tuple[float, float]:
        """Least and largest value of a variable."""
        return (1, 1) if variable == ONE else (self._lower[variable], self._upper[variable])

    def largest(self, terms: Iterable[Term]) -> float:
        """The largest value that the bounds of the variables allow for a sum."""
        return sum(c * self.bounds(v)[int(c > 0)] for c, v in terms)

    def least(self, terms: Iterable[Term]) -> float:
        """The least value that the bounds of the variables allow for a sum."""
        return sum(c * self.bounds(v)[int(c < 0)] for c, v in terms)

    def value(self, terms: Iterable[Term], values: NDArray[np.float64]) -> float:
        """A sum, with the values of a solution."""
        return float(sum(c * (1 if v == ONE else values[v]) for c, v in terms))

    def at_least(self, terms: Iterable[Term], lower: float = 0) -> None:
        """Add a row: the sum of the terms is at least `lower`."""
        merged: dict[int, float] = {}
        for coefficient, variable in terms:
            merged[variable] = merged.get(variable, 0) + coefficient
        lower -= merged.pop(ONE, 0)
        merged = {variable: c for variable, c in merged.items() if c}
        if not merged and lower <= 0:
            return
        self._columns += merged.keys()
        self._data += merged.values()
        self._starts.append(len(self._data))
        self._row_lower.append(lower)

    def minimise(self, variable: int, time_limit_s: float) -> Solution:
        """Minimise one variable."""
        from scipy.optimize import Bounds, LinearConstraint, milp  # noqa: PLC0415 - an extra
        from scipy.sparse import csr_array  # noqa: PLC0415 - an extra

        shape = (len(self._row_lower), len(self._lower))
        rows = csr_array((self._data, self._columns, self._starts), shape=shape)
        objective = np.zeros(shape[1])
        objective[variable] = 1
        found = milp(
            objective,
            integrality=np.array(self._whole),
            bounds=Bounds(np.array(self._lower), np.array(self._upper)),
            constraints=LinearConstraint(rows, np.array(self._row_lower), np.inf),
            options={"time_limit": max(0.1, time_limit_s), "mip_rel_gap": 0.0},
        )
        is_infeasible = found.status == 2
        least = -math.inf if found.mip_dual_bound is None else float(found.mip_dual_bound)
        return Solution(found.x, is_infeasible or found.status == 0, math.inf if is_infeasible else least)
