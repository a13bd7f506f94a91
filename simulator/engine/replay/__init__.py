"""Stands in for the compiled replay until that is there."""

from __future__ import annotations

from typing import Any


def is_built() -> bool:
    """Return whether the extension is there, and made of these sources."""
    return False


def why_not(*_: Any) -> str:
    """Return why it does not cover a run; empty if it does."""
    return "nothing of it is there yet"


def replay(*_: Any, **__: Any) -> None:
    """Replay, or return None."""
