"""Runs in which ranks stand for one another, or none does: which of the two a command decides by itself."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from simulator import engine


@contextmanager
def folded(fold: str) -> Iterator[None]:
    """Within the block a run folds its ranks like this: ``auto``, ``never``, or ``always``."""
    run = engine.run

    def with_fold(*args: Any, **more: Any) -> Any:
        return run(*args, **more | ({"fold": fold} if more.get("fold") == "auto" else {}))

    with mock.patch.object(engine, "run", with_fold):
        yield
