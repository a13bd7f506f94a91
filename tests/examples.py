"""How many random cases a law is tried with."""

import os
from collections.abc import Sequence
from typing import Any

import pytest

PROFILE = os.environ.get("HYPOTHESIS_PROFILE", "laws")


def some(every: Sequence[Any], nth: int) -> list[Any]:
    """Each ``nth`` of these cases by default, from the first on; the others are slow."""
    return [case if n % nth == 0 else pytest.param(case, marks=pytest.mark.slow) for n, case in enumerate(every)]


def examples(most: int) -> int:
    """So many where one looks further, a quarter of them by default."""
    return most // 4 if PROFILE == "laws" else most
