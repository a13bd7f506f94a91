"""How far a run is, shown on a terminal while it goes on."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any


class Shown:
    """Progress on a terminal; silence in a pipe. What it yields takes a label, what is done, and of how much."""

    def __init__(self) -> None:
        self._bar: Any = None

    def __enter__(self) -> Callable[[str, int, int], None]:
        if sys.stderr.isatty():
            from rich.console import Console  # noqa: PLC0415 - a pipe needs none of it
            from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn  # noqa: PLC0415

            columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
            self._bar = Progress(*columns, console=Console(stderr=True), transient=True)
            self._task = self._bar.add_task("reading", total=None)
            self._bar.start()
        return self._tell

    def _tell(self, label: str, done: int, total: int) -> None:
        if self._bar is not None:
            self._bar.update(self._task, description=label, completed=done, total=total or None)

    def __exit__(self, *error: object) -> None:
        if self._bar is not None:
            self._bar.stop()
