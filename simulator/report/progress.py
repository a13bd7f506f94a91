"""How far a run is: a bar on a terminal that vanishes, and lines now and then elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Callable
from time import monotonic
from typing import Any

SELDOM_S = 30
"""Where there is no terminal, so long passes between two lines [s]; what is done sooner says nothing."""


class Shown:
    """Progress on stderr. What it yields takes a label, what is done, and of how much (0: that is not known)."""

    def __init__(self) -> None:
        self._bar: Any = None
        self._begun_s = self._told_s = monotonic()

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
        elif (now_s := monotonic()) >= self._told_s + SELDOM_S:
            self._told_s = now_s
            much = f", {done:,} of {total:,}" if total else ""
            sys.stderr.write(f"hosim: after {now_s - self._begun_s:,.0f} s: {label}{much}\n")
            sys.stderr.flush()

    def __exit__(self, *error: object) -> None:
        if self._bar is not None:
            self._bar.stop()
