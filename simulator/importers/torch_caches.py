"""Caches of keys, values and states that a step of PyTorch is given, and returns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

_NAMES = ("cache", "cache_params", "kv_cache", "past_key_values")


def cached(named: Mapping[str, Any], values: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield path and tensor of all that caches hold: objects whose class is named so, and inputs of such names.

    Parameters
    ----------
    named
        Inputs by name.
    values
        Nested containers.
    """
    caches = [named[name] for name in _NAMES if named.get(name) is not None]
    caches += filter(_is_cache, tree_leaves(values, is_leaf=_is_cache))
    seen = set[int]()
    for position, cache in enumerate({id(cache): cache for cache in caches}.values()):
        yield from _tensors(f"cache{position or ''}", cache, seen)


def _is_cache(value: Any) -> bool:
    return type(value).__name__.endswith("Cache")


def _tensors(path: str, value: Any, seen: set[int]) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield paths and tensors of an object and of all that it holds, each object once."""
    if isinstance(value, torch.Tensor):
        yield path, value
    elif id(value) not in seen and not isinstance(value, torch.nn.Module | type):
        seen.add(id(value))
        parts = dict(enumerate(value)) if isinstance(value, list | tuple) else getattr(value, "__dict__", value)
        for name, part in parts.items() if isinstance(parts, Mapping) else ():
            yield from _tensors(f"{path}.{name}", part, seen)
