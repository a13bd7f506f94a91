"""What each ``model_type`` of Hugging Face means: which keys say what, and what holds where a key is absent.

The table is ``hf_families.toml``; no code knows a model.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

VERSION = "transformers 5.24.0"
"""Where the facts of the table come from."""

Local = Literal["none", "all", "after", "odd", "pattern", "chunks"]
"""Which layers see a window, unless ``layer_types`` says so: none, or all; those from ``max_window_layers`` on; every
other one, from the first on; all but each ``sliding_window_pattern``-th; all but each ``no_rope_layer_interval``-th."""


@dataclass(frozen=True)
class Family:
    """How the files of one ``model_type`` are read.

    Attributes
    ----------
    config
        The class of transformers that reads them, whose defaults these are.
    defaults
        Key -> value where a file has none.
    latent
        Whether attention is latent (MLA).
    biases
        Key that switches biases -> matrices of attention that have one; the key ``""`` is always on.
    qk_norms
        Whether q and k are normalised (of each head, or ``all`` as one), or the key that says so.
    sink_logits
        Whether each head has a score for attending to nothing.
    norms
        Norms before, or before and behind, each part.
    local
        Which layers see a window.
    window
        Key of the window.
    linear
        Whether layers that see no window have lightning attention.
    width
        Key of the inner width of a dense feed-forward.
    expert_width
        Key of that of an expert.
    experts
        Whether layers have experts.
    shared
        How many shared experts there are, where no key says so.
    shared_width
        Key of their width together; default: that of an expert each.
    router_bias
        Whether the router has a bias.
    ffn_biases
        Whether feed-forwards have biases, or the key that says so.
    implied
        Keys that say what holds of the family anyway.
    uncounted
        What such models have beside, which is told and not counted.
    """

    config: str
    defaults: dict[str, Any] = field(default_factory=dict)
    latent: bool = False
    biases: Mapping[str, str] = field(default_factory=dict)
    qk_norms: bool | str = False
    sink_logits: bool = False
    norms: Literal["before", "both"] = "before"
    local: Local = "none"
    window: str = "sliding_window"
    linear: bool = False
    width: str = "intermediate_size"
    expert_width: str = "moe_intermediate_size"
    experts: bool = False
    shared: int = 0
    shared_width: str = ""
    router_bias: bool = False
    ffn_biases: bool | str = False
    implied: list[str] = field(default_factory=list)
    uncounted: str = ""


def _families(table: Mapping[str, dict[str, Any]]) -> dict[str, Family]:
    """Make families of what the table says, each of which differs from one above it."""
    found: dict[str, Family] = {}
    for name, said in table.items():
        base, absent = found.get(said.pop("like", ""), Family("")), said.pop("absent", ())
        defaults = base.defaults | said.pop("defaults", {})
        found[name] = replace(base, defaults={key: defaults[key] for key in defaults if key not in absent}, **said)
    return found


_TABLE = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
FAMILIES = _families(_TABLE["families"])
"""``model_type`` -> family."""
ALSO: dict[str, str] = _TABLE["also"]
"""Other names: of what holds a decoder and towers for images, and of its ``text_config``."""
IRRELEVANT = frozenset(_TABLE["irrelevant"].split())
"""Keys that change nothing in memory or time, beside those of tokens."""
PARTS = {part: {name: keys.split() for name, keys in table.items()} for part, table in _TABLE["parts"].items()}
"""Part of a model -> field of it -> keys that may say it."""
RULES = frozenset(_TABLE["rules"].split())
"""Keys that say which layers see a window where no key names the type of each."""
TOWERS = tuple(_TABLE["towers"])
"""Keys of what stands beside the decoder of a multimodal model."""


def is_irrelevant(key: str) -> bool:
    """Whether a key changes nothing in memory or time."""
    return key in IRRELEVANT or key.endswith(("_token_id", "_token_index"))
