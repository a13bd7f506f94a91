"""What stands before the layers of a model and after them, and beside them, from the keys of a ``config.json``."""

from __future__ import annotations

from math import prod
from typing import Any

from simulator.errors import insist
from simulator.importers.hf_model import Config, model_of

_ENCODED = 512
"""Rows of an encoder's output, where no key states them."""


def whole_model_of(c: Config) -> dict[str, Any]:
    """Return the dimensions of a model, or of a tower, with its ends."""
    if grid := c.family.window_grid:
        size, patch = (c.count(key) for key in grid)
        c.data = {**c.data, c.family.window: (size // patch) ** 2}
    model, family = model_of(c), c.family
    hidden, more = model["hidden"], dict[str, Any]()
    if (narrow := c.count(family.narrow, path="model.embedding_width", derived=hidden)) != hidden:
        more["embedding_width"] = narrow
    for table, key in family.tables.items():
        rows = c.count(key, path=f"model.{table}", least=0)
        more |= {table: rows + family.more_positions * (table == "positions")} if rows else {}
    if family.stem:
        more |= {"stem": [_product(c, words) for words in family.stem]}
    if family.grid:
        size, patch = (c.count(key) for key in family.grid)
        more["positions"] = (size // patch) ** 2 + model.get("registers", 0)
    if family.encoded:
        rows = c.count(family.encoded, path="model.encoded", derived=_ENCODED)
        c.derived.append(f"The output of the encoder, {rows:,} rows of it, is an input (--part encoder runs it).")
        more["encoded"] = rows
    if family.merger:
        rows, width = (c.count(family.merger[key]) for key in ("rows", "width"))
        more["merger"] = {
            "rows": rows**2,
            "width": width,
            "further": len(c.list_of(family.merger["further"], int) or ()),
        }
    if family.buckets:
        biased = model["attention"] | {"buckets": c.count(family.buckets, path="model.others")}
        must = "layers of one kind share the biases of distances"
        insist("others" not in model, f"{c.where}, {family.buckets}", must, "several kinds")
        more |= {"attention": biased} if family.buckets_of_all else {"others": [{"stop": 1, "attention": biased}]}
    return model | more


def _product(c: Config, words: str) -> int:
    """Multiply numbers and the values of keys."""
    return prod(int(word) if word.isdigit() else c.count(word) for word in words.split())
