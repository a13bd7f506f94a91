"""A linear program whose minimum is bounded from below in whole numbers, whatever the solver says.

Weak duality: let ``x`` be any solution of ``A x >= b`` with ``0 <= x <= u``. For any ``y >= 0``::

    c x >= c x - y (A x - b) = y b + (c - y A) x >= y b + sum_j min(0, (c - y A)_j) u_j

The solver's dual values are good ones to take for ``y``, but the inequality needs nothing from them. Coefficients are
whole numbers, ``y`` is rounded to a whole multiple of a power of two, and the right side is added up in whole numbers:
the tolerances of a solver in floating point can make the bound lower, never wrong.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

from simulator.cost import ceil_div
from simulator.errors import ConfigError

_BITS = 40
"""Binary places of the dual values, relative to rows whose largest coefficient is about 1."""

Term = tuple[int, int]
"""A coefficient and a variable."""


@contextmanager
def unheard() -> Iterator[None]:
    """Let nothing reach standard output meanwhile that is not Python's: the solver prints a line now and then.

    It writes to the file descriptor, past `sys.stdout`, which has to be closed or redirected there.
    """
    try:
        kept = os.dup(1)
    except OSError:  # there is none
        yield
        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 1)
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)
        os.close(nowhere)


class LinearProgram:
    """Minimise a sum of variables that lie between 0 and a bound each.

    Attributes
    ----------
    variables
        How many there are.
    """

    def __init__(self) -> None:
        self._upper: list[int] = []
        self._cost: list[int] = []
        self._rows: list[list[Term]] = []
        self._least: list[int] = []

    @property
    def variables(self) -> int:
        """How many variables there are."""
        return len(self._upper)

    def variable(self, upper: int) -> int:
        """Add a variable between 0 and `upper`."""
        self._upper.append(upper)
        self._cost.append(0)
        return len(self._upper) - 1

    def charge(self, variable: int) -> None:
        """Let the objective count a variable."""
        self._cost[variable] = 1

    def widen(self, variable: int, upper: int) -> None:
        """Let a variable be up to `upper`, if that is more."""
        self._upper[variable] = max(self._upper[variable], upper)

    def at_least(self, terms: Iterable[Term], least: int) -> None:
        """Add a row: the sum of the terms is at least `least`. Each variable is named once."""
        self._rows.append(list(terms))
        self._least.append(least)

    def bound(self) -> int:
        """A whole number that the minimum is not below; 0 if the solver finds nothing.

        Raises
        ------
        ConfigError
            If scipy is not installed.
        """
        dual = self._solve()
        return 0 if dual is None else self._weak_bound(dual)

    def _solve(self) -> NDArray[np.float64] | None:
        """Dual values of the rows, each divided by its power of two, for variables as shares of their bounds."""
        try:
            from scipy.optimize import linprog  # noqa: PLC0415 - an extra
            from scipy.sparse import csr_array  # noqa: PLC0415 - an extra
        except ImportError:
            must = "the solver of the tighter bound is installed"
            raise ConfigError("bound: relaxation", must, "no scipy", 'pip install "hosim[solve]"') from None
        upper = [max(1, u) for u in self._upper]
        scale = max((c * u for c, u in zip(self._cost, upper, strict=True)), default=1) or 1
        columns = [v for row in self._rows for _, v in row]
        starts = np.cumsum([0, *map(len, self._rows)])
        exponents = [self._exponent(row) for row in self._rows]
        data = [-c * upper[v] / 2**e for row, e in zip(self._rows, exponents, strict=True) for c, v in row]
        least = [-value / 2**e for value, e in zip(self._least, exponents, strict=True)]
        with unheard():
            found = linprog(  # type: ignore[call-overload] # the stubs know no sparse rows
                [c * u / scale for c, u in zip(self._cost, upper, strict=True)],
                A_ub=csr_array((data, columns, starts), shape=(len(self._rows), len(upper))),
                b_ub=least,
                bounds=(0, 1),
                method="highs",
            )
        return None if found.status != 0 else np.maximum(-found.ineqlin.marginals, 0) * scale

    def _exponent(self, row: list[Term]) -> int:
        """Power of two that makes the row's coefficients, for variables as shares of their bounds, at most 1."""
        return max((abs(c) * max(1, self._upper[v]) for c, v in row), default=1).bit_length()

    def _weak_bound(self, dual: NDArray[np.float64]) -> int:
        """What weak duality says for these dual values, rounded up: the minimum is over whole nanoseconds."""
        exponents = [self._exponent(row) for row in self._rows]
        common = max(exponents, default=0)
        one = 1 << (_BITS + common)
        reduced = [c * one for c in self._cost]
        total = 0
        for row, least, exponent, value in zip(self._rows, self._least, exponents, dual.tolist(), strict=True):
            y = int(value * 2**_BITS) << (common - exponent)
            if y:
                total += y * least
                for c, v in row:
                    reduced[v] -= y * c
        total += sum(r * u for r, u in zip(reduced, self._upper, strict=True) if r < 0)
        return max(0, ceil_div(total, one))
