"""Families of decoders by ``model_type`` of Hugging Face: the meaning of their keys, and their defaults.

The table is ``hf_families.toml``; no code knows a model.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

VERSION = "transformers 5.24.0"
"""The origin of the facts in the table."""


Family = SimpleNamespace
"""How the files of one ``model_type`` are read; ``[base]`` of the table has the fields and their meaning."""


def _families(base: dict[str, Any], table: Mapping[str, dict[str, Any]]) -> dict[str, Family]:
    """Make a family of each entry of the table, which says how it differs from one above it, or from `base`."""
    families: dict[str, Family] = {}
    for name, entry in table.items():
        like = vars(families[entry["like"]]) if "like" in entry else base
        defaults = like["defaults"] | entry.get("defaults", {})
        defaults = {key: value for key, value in defaults.items() if key not in entry.get("absent", ())}
        families[name] = Family(**like | entry | {"defaults": defaults})
    return families


_TABLE = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
FAMILIES = _families(_TABLE["base"], _TABLE["families"])
"""``model_type`` -> family."""
ALSO: dict[str, str] = _TABLE["also"]
"""Other names -> families: of models with a decoder and towers for images, and of their ``text_config``."""
IRRELEVANT = frozenset(_TABLE["irrelevant"].split())
"""Keys that change neither memory nor time, besides those of tokens."""
PARTS = {part: {name: keys.split() for name, keys in table.items()} for part, table in _TABLE["parts"].items()}
"""Part of a model -> field -> keys that may state it."""
RULES = frozenset(_TABLE["rules"].split())
"""Keys that tell which layers see a window where no key names the type of each."""
TOWERS = tuple(_TABLE["towers"])
"""Keys of towers beside the decoder of a multimodal model."""


def is_irrelevant(key: str) -> bool:
    """Tell whether a key changes neither memory nor time."""
    return key in IRRELEVANT or key.endswith(("_token_id", "_token_index"))
