"""Tasks for the tests of the workers; in a module of their own, which a fresh process can import."""

from __future__ import annotations

import os
from collections.abc import Callable


def squares() -> Callable[[int], int]:
    """Square numbers."""
    return lambda number: number * number


def fragile() -> Callable[[int], int]:
    """Square numbers; 3 kills its process, always."""

    def do(number: int) -> int:
        if number == 3:
            os._exit(1)
        return number * number

    return do


def failing() -> Callable[[int], int]:
    """Refuse 2."""

    def do(number: int) -> int:
        if number == 2:
            raise ValueError("no twos")
        return number

    return do
