"""The compiled module, if it is there and was made of the sources that lie beside it, as in a checkout."""

from __future__ import annotations

from hashlib import sha256
from importlib import import_module
from pathlib import Path
from typing import Any


def is_stale() -> bool:
    """Return whether the module is there, but was made of other sources."""
    return any(Path(__file__).parent.glob("_replay*.[sp][oy]*"))


def loaded() -> Any:
    """Return the module; None without it, or if it is of other sources: what was changed is not what would run."""
    try:
        module = import_module("simulator.engine.replay._replay")
    except ImportError:
        return None
    sources = sorted(Path(__file__).parent.glob("*.[ch]pp"))
    made_of = sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()
    return module if not sources or made_of == module.sources else None
