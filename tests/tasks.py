"""Tasks for the tests of processes; in a module of their own, which a fresh process can import."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path


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


class Once:
    """Square numbers; the first time, 3 kills its process. Which time it is, is known by a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __call__(self) -> Callable[[int], int]:
        """Make what does one task."""
        return self.do

    def do(self, number: int) -> int:
        """Square a number."""
        if number == 3 and not self.path.exists():
            self.path.touch()
            os._exit(1)
        return number * number


def measured(_: object, point: tuple[int, ...]) -> list[dict[str, object]]:
    """Say that a point ran; 3 kills its process, always."""
    return [{"policy": "static", "status": "ok", "step_ns": fragile()(point[0])}]


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


def has_module() -> Callable[[str], bool]:
    """Say whether a module of this name is imported there."""
    return lambda name: name in sys.modules
