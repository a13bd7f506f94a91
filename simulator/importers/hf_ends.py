"""What stands before the layers of a model and after them, and beside them, from the keys of a ``config.json``."""

from __future__ import annotations

from math import prod
from typing import Any

from simulator.errors import insist
from simulator.importers.hf_keys import CAPTURE, Config
from simulator.importers.hf_model import model_of

_ENCODED = 512
"""Rows of an encoder's output, where no key states them."""


def whole_model_of(c: Config) -> dict[str, Any]:
    """Return the dimensions of a model, or of a tower, with its ends."""
    family = c.family
    if family.window_grid:
        c.data = {**c.data, family.window: _patches(c, *family.window_grid)}
    for name, words in family.sums.items():
        c.data = {**c.data, name: _sum(c, words)}
    model, more = model_of(c), dict[str, Any](stem=[_sum(c, words) for words in family.stem])
    narrow = c.count(family.narrow, path="model.embedding_width", derived=model["hidden"])
    more["embedding_width"] = narrow if narrow != model["hidden"] else None
    more["embedding_rows"] = _sum(c, family.rows) if family.rows else None
    for table, key in family.tables.items():
        rows = c.count(key, path=f"model.{table}", least=0)
        more[table] = rows and rows + family.more_positions * (table == "positions")
    if family.grid:
        more["positions"] = _patches(c, *family.grid) + model.get("registers", 0)
    if family.encoded:
        c.used.add("add_cross_attention")
        key, hidden = "cross_attention_hidden_size", model["hidden"]
        wide, must = c.count(key, derived=hidden), "an encoder is as wide as its decoder"
        insist(wide == hidden, f"{c.where}, {key}", must, f"{wide:,} and {hidden:,}", CAPTURE)
        more["encoded"] = rows = c.count(family.encoded, path="model.encoded", derived=_ENCODED)
        c.derived.append(f"The output of the encoder, {rows:,} rows of it, is an input (--part encoder runs it).")
    if family.merger:
        rows, width, further = family.merger["rows"], family.merger["width"], family.merger["further"]
        more["merger"] = {"rows": c.count(rows) ** 2, "width": c.count(width)}
        more["merger"]["further"] = len(c.list_of(further, int) or ())
    if family.buckets:
        biased = model["attention"] | {"buckets": c.count(family.buckets, path="model.others")}
        first = [*model.get("others", ()), {"stop": 1, "attention": biased}]
        more |= {"attention": biased} if family.buckets_of_all else {"others": first}
    if family.stem:  # which has no words, whatever the table needs
        c.origins.pop("model.vocabulary", None)
        c.defaults_taken.pop("vocab_size", None)
    return model | {field: value for field, value in more.items() if value}


def _patches(c: Config, size: str, patch: str) -> int:
    """Count the patches of a square, from the keys of their sizes."""
    return (c.count(size) // c.count(patch)) ** 2


def _sum(c: Config, words: str) -> int:
    """Add up products of numbers and the values of keys."""
    products = (part.split() for part in words.split("+"))
    return int(sum(prod(float(word) if word[0].isdigit() else c.count(word) for word in part) for part in products))
