"""Tasks for the tests of processes; in a module of their own, which a fresh process can import."""

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


def whereabouts() -> Callable[[object], int]:
    """Say which process does it."""
    return lambda task: os.getpid()


def endless() -> Callable[[object], None]:
    """Say on standard output that it runs, and run."""

    def do(task: object) -> None:
        os.write(1, b"x")
        while True:
            pass

    return do
