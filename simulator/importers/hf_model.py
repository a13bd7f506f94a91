"""The dimensions of a decoder, from the keys of a ``config.json``.

The table ``hf_families.toml`` lists the families by ``model_type``, with the meaning of their keys and their defaults.
No code is specific to a model.
"""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from copy import copy
from itertools import islice, zip_longest
from math import inf
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from simulator.errors import ConfigError, insist
from simulator.units import nearest
from simulator.workload.models import MOST_OTHERS

VERSION = "transformers 5.24.0"
"""Origin of the facts in the table."""

Family = SimpleNamespace
"""How to read the files of one ``model_type``; ``[base]`` of the table explains the fields."""


def _families(base: dict[str, Any], table: Mapping[str, dict[str, Any]]) -> dict[str, Family]:
    """Make a family from each entry of the table, which says how it differs from an earlier one, or from `base`."""
    families: dict[str, Family] = {}
    for name, entry in table.items():
        family = _joined(vars(families[entry["like"]]) if "like" in entry else base, entry)
        defaults = {key: value for key, value in family["defaults"].items() if key not in entry.get("absent", ())}
        families[name] = Family(**family | {"defaults": defaults})
    return families


def _joined(family: dict[str, Any], entry: dict[str, Any]) -> dict[str, Any]:
    """Return what holds of a family where an entry says how it differs; some fields of both are put together."""
    both = ("defaults", "keys", "model", "attention", "feed_forward", "state", "when")
    return family | entry | {key: family[key] | entry.get(key, {}) for key in both}


_TABLE = tomllib.loads(Path(__file__).with_name("hf_families.toml").read_text(encoding="utf-8"))
FAMILIES = _families(_TABLE["base"], _TABLE["families"])
"""``model_type`` -> family."""
ALIASES: dict[str, str] = _TABLE["aliases"]
"""Other names -> families: multimodal models with a decoder, and their ``text_config``."""
IRRELEVANT, _ENDINGS = frozenset(_TABLE["irrelevant"].split()), tuple(_TABLE["endings"].split())
"""Keys that change neither memory nor time, besides those with such an ending."""
PARTS = {part: {name: keys.split() for name, keys in table.items()} for part, table in _TABLE["parts"].items()}
"""Part of a model -> field -> keys that may hold it."""
RULES = frozenset(_TABLE["rules"].split())
"""Keys that tell which layers have a sliding window where no key lists the type of each layer."""
CAPTURE = "capture a step of it instead (hosim import torch package.module:function)"
"""What to do about a model that hosim does not read."""
STRUCTURE = frozenset(_TABLE["structure"].split())
"""Keys whose very presence states a structure, whatever they say."""
OF_EXPERTS = frozenset(_TABLE["of_experts"].split())
"""Keys that say nothing in a model without experts."""
OF_ATTENTION = frozenset(_TABLE["of_attention"].split())
"""Keys that say nothing in a model without attention."""
OF_CHOICES = frozenset(_TABLE["of_choices"].split())
"""Keys of the rule by which layers choose tokens, where no key lists them."""
TOLD: dict[str, str] = _TABLE["told"]
"""Keys of what is known and not counted, and what they stand for."""
TOWERS = tuple(_TABLE["towers"])
"""Keys of towers beside the decoder of a multimodal model."""


def is_irrelevant(key: str) -> bool:
    """Tell whether a key changes neither memory nor time."""
    return key in IRRELEVANT or (key.endswith(_ENDINGS) and key not in STRUCTURE)


def states_size(value: Any) -> bool:
    """Tell whether a value may state a size or a structure: a flag that is on, a number from 1 on, or some of these."""
    if isinstance(value, (list, dict)):
        inside = value if isinstance(value, list) else value.values()
        return any(isinstance(entry, str) or states_size(entry) for entry in inside)
    return isinstance(value, (int, float)) and 1 <= abs(value) < inf


CODES: dict[str, list[str]] = _TABLE["codes"]
"""Key with a number for each layer -> word for 0, and for 1."""
WORDS: dict[str, str] = _TABLE["words"]
"""Word for a layer -> what it is: ``full``, ``near`` (to a window), ``state``, ``mlp`` or ``moe``."""


class Config:
    """The keys of a file; notes which ones are used, and the origins of figures.

    Parameters
    ----------
    data
        The keys of the decoder in the file.
    family
        The family that its ``model_type`` names.
    where
        The file, for messages.
    """

    def __init__(self, data: Mapping[str, Any], family: Family, where: str) -> None:
        self.data, self.family, self.where = {**family.unbuilt, **data}, family, where
        self.used = set[str]()
        for entry in family.inside:
            key, _, prefix = entry.partition("=")
            self.used.add(key)
            inner = data.get(key) or {}
            insist(isinstance(inner, dict), f"{where}, {key}", "this is an object", repr(inner))
            self.data = {**self.data, **{f"{prefix}{name}": value for name, value in inner.items()}}
        self.defaults_taken: dict[str, Any] = {}  # key that the file lacks -> default that was taken
        self.derived: list[str] = []
        self.origins: dict[str, tuple[str, str]] = {}  # field of the workload -> where it comes from, and its basis
        for condition, entry in family.when.items():
            if all(map(self._holds, condition.split())):
                self.family = Family(**_joined(vars(self.family), entry))
        self.used |= STRUCTURE if "norm_weights" in self.family.model else set()

    def _holds(self, condition: str) -> bool:
        """Tell whether a key is true, or has the value behind a ``=``."""
        key, _, wanted = condition.partition("=")
        used, value = {*self.used}, self.get(key)
        is_held = str(value).lower() == (wanted or "true")
        if not is_held and states_size(value) and value is not True:  # which says more than that it does not hold
            self.used = used
        return is_held

    def get(self, *keys: str, path: str = "") -> Any:
        """Return the value of the first key that the file has, or else that the family has; None if neither has one.

        Where a family has a name of its own for a key, that is the first one.
        """
        keys = (*filter(None, map(self.family.keys.get, keys)), *keys)
        for key in filter(self.data.__contains__, keys):
            self.used |= {other for other in keys if self.data.get(other, ...) == self.data[key]}
            self.origins |= {path: (f"config.json, {key}", "quoted")} if path else {}
            return self.data[key]
        for key in filter(self.family.defaults.__contains__, keys):
            if path:
                self._check_own(key)
                text = f"{VERSION}, {self.family.config}.{key} (config.json has no such key)"
                self.origins[path], self.defaults_taken[key] = (text, "quoted"), self.family.defaults[key]
            return self.family.defaults[key]
        return None

    def _check_own(self, key: str) -> None:
        """Refuse a default for a size in a file that says that it is of another class, which has its own."""
        classes, value = self.data.get("architectures"), self.family.defaults[key]
        reader = classes[0] if isinstance(classes, list) and classes and isinstance(classes[0], str) else ""
        usual = self.family.config.removesuffix("Config").removesuffix("Text").lower()
        must = f"{reader} states its sizes: {value} is what {self.family.config} takes, which is another class"
        fits = not reader or reader.lower().startswith(usual) or type(value) is not int
        insist(fits, f"{self.where}, {key}", must, "none", "add it")

    def unread(self) -> list[str]:
        """Return the keys that say something, and are neither read nor irrelevant nor implied by the family."""
        left = self.data.keys() - self.used - {*self.family.implied}
        return sorted(key for key in left if self.data[key] and not is_irrelevant(key))

    def sizes(self) -> list[str]:
        """Return the keys that state a size or a structure, and are not read."""
        told = {*TOLD} | (STRUCTURE if self.family.model.get("norm_weights") == "both" else set())
        return [key for key in self.unread() if key not in told and (key in STRUCTURE or states_size(self.data[key]))]

    def view(self, entry: dict[str, Any], data: dict[str, Any]) -> Config:
        """Return what holds of some layers: the family and the keys as these differ; what it notes, this notes."""
        other = copy(self)
        own = {name for key, name in entry.get("keys", {}).items() if key not in data and name not in self.data}
        taken = {name: self.family.defaults[name] for name in own if name in self.family.defaults}
        self.defaults_taken |= taken
        other.family, other.data = Family(**_joined(vars(self.family), entry)), {**self.data, **taken, **data}
        return other

    def count(self, *keys: str, path: str = "", least: int = 1, derived: int | None = None) -> int:
        """Return a whole number; `derived` if no key states it."""
        value = self.get(*keys, path=path)
        if value in (None, "auto") and derived is not None:
            self.origins |= {path: (f"config.json, which has no {keys[0]}: from other keys", "derived")} if path else {}
            return derived
        where = f"{self.where}, {self.family.keys.get(keys[0], keys[0])}"
        insist(value is not None, where, "a model has this key", "none", "add it")
        fits = isinstance(value, int) and not isinstance(value, bool) and least <= value <= 10**9
        insist(fits, where, f"this is a whole number from {least} to 1,000,000,000", repr(value))
        return int(value)

    def flag(self, key: str, path: str = "") -> bool:
        """Return whether a key is true; an absent one is not."""
        value = self.get(key, path=path)
        insist(value in (True, False, None), f"{self.where}, {key}", "this is true or false", repr(value))
        return bool(value)

    def counts(self, part: str, path: str) -> dict[str, int]:
        """Return the whole numbers of a part (its keys are in `PARTS`) by field, with their origins below `path`."""
        fields = PARTS[part].items()
        return {
            name: self.count(*keys, path=f"{path}.{name}", least=int(name != "vocabulary")) for name, keys in fields
        }

    def list_of(self, key: str, kind: type, length: int | None = None) -> list[Any] | None:
        """Return a list of texts or numbers; None if the key is absent."""
        values = self.get(key)
        if values is None:
            return None
        fits = isinstance(values, list) and all(type(value) is kind for value in values)
        insist(fits, f"{self.where}, {key}", "this is a list of one kind of value", repr(values))
        must = f"this has an entry for each of {length} layers"
        insist(length is None or len(values) >= length, f"{self.where}, {key}", must, str(len(values)))
        return list(values[:length])


def model_of(c: Config) -> dict[str, Any]:
    """Return the dimensions of the model."""
    listed = [c.data.get(key) for key in ("layers_block_type", "hybrid_override_pattern", "layer_types")]
    layers = next((len(words) for words in listed if isinstance(words, (list, str)) and words), None)
    if not any(key in c.data for key in PARTS["model"]["layers"]) and layers:
        c.data = {**c.data, "num_hidden_layers": layers}
    model: dict[str, Any] = {"family": "decoder", **c.counts("model", "model")}
    layers, hidden = model["layers"], model["hidden"]
    insist(layers <= 10_000, f"{c.where}, num_hidden_layers", "a model has at most 10,000 layers", f"{layers:,}")
    model["tied_embeddings"] = c.flag("tie_word_embeddings", "model.tied_embeddings")
    model.update(c.family.model)
    types = _layer_types(c, layers)
    own = _of_layers(c, layers)
    parts = {"attention": _attentions(c, types, own, hidden), "feed_forward": _feed_forwards(c, types, own, hidden)}
    others: list[dict[str, Any]] = []
    for part, (kinds, of_layer) in parts.items():
        usual = max({*of_layer}, key=lambda i: (kinds[i]["kind"] == "experts", of_layer.count(i), -i))
        model[part] = kinds[usual]
        for kind in {*of_layer} - {usual}:
            alike = [layer for layer, other in enumerate(of_layer) if other == kind]
            others += [{**run, part: kinds[kind]} for run in islice(runs(alike, layers), MOST_OTHERS + 1)]
    if others:
        model["others"] = others
        c.origins["model.others"] = ("config.json, the keys that say which layers differ", "derived")
    return model


def runs(held: list[int], layers: int) -> Iterator[dict[str, int]]:
    """Split layers into ranges (start, every, stop), as few as a greedy search finds."""
    while held:
        left, every, run = {*held}, held[1] - held[0] if len(held) > 1 else 1, held[:1]
        while run[-1] + every in left:
            run.append(run[-1] + every)
        fields = {key: value for key, value, usual in (("start", run[0], 0), ("every", every, 1)) if value != usual}
        yield fields | ({"stop": run[-1] + 1} if run[-1] + every < layers else {})
        held = sorted(left - {*run})


def _of_layers(c: Config, layers: int) -> list[dict[str, Any]]:
    """Return the keys that each layer has for itself."""
    own: list[dict[str, Any]] = [{} for _ in range(layers)]
    for key, listed in c.family.lists.items():
        values = c.get(listed)
        for layer, value in zip(own, values[:layers] if isinstance(values, list) else (), strict=False):
            layer[key] = value
    stated = c.get("per_layer_config") or {}
    where, must = f"{c.where}, per_layer_config", f"this has an object for some of {layers} layers"
    fits = isinstance(stated, dict) and all(key.isdecimal() and int(key) < layers for key in stated)
    insist(fits and all(isinstance(value, dict) for value in stated.values()), where, must, repr(stated))
    for key, value in stated.items():
        own[int(key)] |= value
    blocks = [_of_block(c, block) for block in c.list_of("block_configs", dict, layers) or ()]
    return [keys | block for keys, block in zip_longest(own, blocks, fillvalue={})]


def _of_block(c: Config, block: dict[str, Any]) -> dict[str, Any]:
    """Return what an object of ``block_configs`` says of its layer (DeciLM, as Llama-Nemotron is built)."""
    halves: Any = [block.get(half) or {} for half in ("attention", "ffn")]
    stated = {key: value for half in halves if isinstance(half, dict) for key, value in half.items() if value}
    must, known = "what a layer has is known", ("n_heads_in_group", "ffn_mult", "no_op")
    unknown = [key for key in stated if key not in known]
    insist(not unknown, f"{c.where}, block_configs", must, ", ".join(map(repr, unknown)), CAPTURE)
    group, times = (half.get(key) or 0 for half, key in zip(halves, known, strict=False))
    numbers = isinstance(group, int) and isinstance(times, (int, float)) and group >= 0 and 0 <= times < inf
    insist(numbers, f"{c.where}, block_configs", "these are numbers from 0 on", f"{group!r:.40}, {times!r:.40}")
    keys: dict[str, Any] = {"absent": [half.get("no_op") for half in halves]}
    keys |= {"num_key_value_heads": c.count("num_attention_heads") // group} if group else {}
    return keys | ({"intermediate_size": -(-int(2 * times * c.count("hidden_size") / 3) // 256) * 256} if times else {})


Kinds = tuple[list[dict[str, Any]], list[int]]
"""The kinds of a part, and each layer's index among them."""


def _kinds(words: list[str], own: list[dict[str, Any]], make: Callable[[str, dict[str, Any]], dict[str, Any]]) -> Kinds:
    """Make the part of each kind of layer, the most frequent one last, so that its origins stay."""
    kinds, named = list[dict[str, Any]](), [(word, repr(keys)) for word, keys in zip(words, own, strict=True)]
    made = {name: make(name[0], own[named.index(name)]) for name, _ in reversed(Counter(named).most_common())}
    for part in map(made.__getitem__, dict.fromkeys(named)):
        kinds += [part] if part not in kinds else []
    return kinds, [kinds.index(made[name]) for name in named]


# attention


def _attentions(c: Config, types: list[str], own: list[dict[str, Any]], hidden: int) -> Kinds:
    words = [WORDS[word] for word in types]
    window = c.get(c.family.window) if c.family.local != "none" or "near" in words else None
    for word, entry in (("near", c.family.near), ("full", c.family.far)):
        c.used |= {*entry.get("keys", {}).values()} if word not in words else set()
    c.used |= set() if {"full", "near"} & {*words} else OF_ATTENTION
    if "state" not in words:
        c.used |= {key for keys in PARTS.get(c.family.state.get("kind", ""), {}).values() for key in keys}
    if window and "chunked_attention" in types:
        c.derived.append(f"Chunks of {window:,} tokens that attend among themselves count as windows.")

    def make(word: str, keys: dict[str, Any]) -> dict[str, Any]:
        view = c.view(c.family.near if word == "near" else c.family.far if word == "full" else {}, keys)
        if word in ("mlp", "moe") or keys.get("absent", [False])[0]:
            return {"kind": "none"}
        if word == "state":
            return _state(view, hidden, "model.attention" if 2 * words.count("state") > len(words) else "")
        part = _latent_attention(view) if c.family.latent else _grouped_query_attention(view, hidden)
        part |= {"beside": _state(view, hidden, "")} if c.family.beside else {}
        is_near = window and word == "near"
        return part | ({"window": view.count(c.family.window, path="model.attention.window")} if is_near else {})

    return _kinds(words, own, make)


def _state(c: Config, hidden: int, path: str) -> dict[str, Any]:
    """Return the part of layers with a state; `path` is where its origins go, if that is the model's attention."""
    family, kind = c.family, c.family.state.get("kind", "")
    must, found = "layers with a state are of a family that has some", f"{c.data.get('model_type')!r}"
    insist(kind, f"{c.where}, layer_types", must, found, "name another family")
    part: dict[str, Any] = dict(family.state)
    expand = c.count("mamba_expand", "expand", derived=2)
    inner = c.count("mamba_d_ssm", "mamba_intermediate_size", derived=expand * hidden)
    for field, keys in PARTS[family.state_part or kind].items():
        each = part.get("heads", 1)
        usual = {"mamba.heads": inner, "mamba.rank": -(-hidden // 16), "mamba2.head_size": inner // each}
        usual |= {"convolution.heads": hidden, "linear.head_size": hidden // each}
        part[field] = c.count(*keys, path=path and f"{path}.{field}", derived=usual.get(f"{kind}.{field}"))
    biased = [end for key, ends in family.state_biases.items() if not key or c.flag(key) for end in ends.split()]
    return part | ({"biases": biased} if biased else {})


def _grouped_query_attention(c: Config, hidden: int) -> dict[str, Any]:
    path, family = "model.attention", c.family
    heads = c.count("num_attention_heads", path=f"{path}.heads")
    kv_heads = c.count("num_key_value_heads", "multi_query_group_num", path=f"{path}.kv_heads", derived=heads)
    head_size = c.count("head_dim", "kv_channels", path=f"{path}.head_size", derived=hidden // heads)
    biased = {letter for key, letters in family.biases.items() if not key or c.flag(key) for letter in letters}
    norms = c.flag(family.qk_norms) if family.qk_norms in family.defaults else family.qk_norms
    part = {"kind": "gqa", "heads": heads, "kv_heads": kv_heads, "head_size": head_size}
    v_head = c.count("v_head_dim", path=f"{path}.v_head", derived=head_size)
    part |= {"v_head": v_head} if v_head != head_size else {}
    more = {"biases": [*filter(biased.__contains__, "qkvo")], "qk_norms": norms, "sink_logits": family.sink_logits}
    return {**part, **{key: value for key, value in more.items() if value}, **family.attention}


def _latent_attention(c: Config) -> dict[str, Any]:
    must, do = "hosim builds latent attention without biases", "set it to false, if they do not matter"
    insist(not c.flag("attention_bias"), f"{c.where}, attention_bias", must, "true", do)
    c.used |= {"num_key_value_heads", "head_dim"}  # each head has its own key, whose width other keys state
    part: dict[str, Any] = {"kind": "mla", **c.counts("mla", "model.attention"), **c.family.attention}
    if c.get("q_lora_rank") is not None:
        part["q_lora_rank"] = c.count("q_lora_rank", path="model.attention.q_lora_rank")
    if c.get("index_topk") is not None:
        part["indexer"] = c.counts("indexer", "model.attention.indexer")
        part["indexer"] |= {"again": True} if c.get("indexer_type") == "shared" else {}
        c.used |= {*OF_CHOICES} if "indexer_types" in c.data else set()
    return part


def _layer_types(c: Config, layers: int) -> list[str]:
    """Return a word for each layer: from the keys that list them, or by the rule of the family."""
    types = c.list_of("layer_types", str, layers) or c.list_of("layers_block_type", str, layers)
    pattern = c.get("hybrid_override_pattern")
    if not types and isinstance(pattern, str):
        must = f"this has a letter for each of {layers} layers"
        insist(len(pattern) >= layers, f"{c.where}, hybrid_override_pattern", must, f"{len(pattern)}", "correct it")
        types = [*pattern][:layers]
    for key, words in CODES.items():
        types = types or [words[bool(code)] for code in c.list_of(key, int, layers) or ()]
    for unknown in {*types} - {*WORDS}:
        must, do = "a type of layer is known", nearest(unknown, tuple(WORDS))
        raise ConfigError(f"{c.where}, layer_types", must, repr(unknown), do)
    if types:
        c.used |= RULES | {c.family.keys.get(rule, rule) for rule in (*RULES, c.family.window)}
        return types
    usual = "chunked_attention" if c.family.local == "chunks" else "sliding_attention"
    if c.family.state:
        attending = _attending_layers(c, layers)
        return ["full_attention" if layer in attending else "linear_attention" for layer in range(layers)]
    must = "this says which layers have a window"
    insist(c.family.local != "listed", f"{c.where}, layer_types", must, "none", "add it")
    local = _windowed_layers(c, layers)
    return [usual if layer in local else "full_attention" for layer in range(layers)]


def _attending_layers(c: Config, layers: int) -> set[int]:
    """Return the layers with attention in a model whose other layers have a state."""
    if c.family.beside:
        return {*range(layers)}
    for key, first in {"attn_layer_indices": 0, "full_attn_idxs": 0, "linear_full_attn_layers": 1}.items():
        if (listed := c.list_of(key, int)) is not None:
            return {layer - first for layer in listed}
    if c.family.local in ("all", "odd"):
        return {*range(0, layers, 2)}
    if c.family.single:
        return set()
    period = c.count("attn_layer_period", "full_attention_interval", "layer_group_size", derived=0)
    must, do = "this says which layers attend, and which have a state", "add it"
    insist(period, f"{c.where}, layer_types", must, "none", do)
    offset = c.count("attn_layer_offset", least=0, derived=period - 1)
    return {*range(offset, layers, period)}


def _windowed_layers(c: Config, layers: int) -> set[int]:
    """Return the layers with a sliding window, if the model has one."""
    is_on = c.flag("use_sliding_window") if c.get("use_sliding_window") is not None else True
    first = c.count("max_window_layers", least=0, derived=0)
    pattern = c.count("sliding_window_pattern", derived=1)
    turned = dict(enumerate(c.list_of("no_rope_layers", int) or ()))
    interval = c.count("no_rope_layer_interval", derived=1)
    by_rule = {
        "none": range(0),
        "all": range(layers),
        "after": range(first, layers),
        "odd": range(0, layers, 2),
        "unlisted": {*range(layers)} - {*(c.list_of("fullatt_block_indexes", int) or ())},
        "between": [i for i in range(1, layers) if (i + 1) % pattern],
        "behind": [i for i in range(layers) if i % pattern],
        "pattern": [i for i in range(layers) if (i + 1) % pattern],
        "chunks": [i for i in range(layers) if turned.get(i, (i + 1) % interval)],
    }
    return set(by_rule[c.family.local]) if is_on else set()


# feed-forwards


def _feed_forwards(c: Config, types: list[str], own: list[dict[str, Any]], hidden: int) -> Kinds:
    family, routed = c.family, PARTS["experts"]["routed"]
    c.used |= set() if any(map(c.data.get, routed)) else OF_EXPERTS
    words = ["dense"] * len(types)
    if family.single:
        words = [{"mlp": "dense", "moe": "moe"}.get(WORDS[word], "none") for word in types]
    elif family.experts and c.get(*routed):
        dense = _dense_layers(c, len(types))
        words = ["dense" if layer in dense else "moe" for layer in range(len(types))]
    c.used |= {family.width} if "dense" not in words else set()
    c.used |= {*OF_EXPERTS, family.expert_width} if family.experts and "moe" not in words else set()
    at = {word: "model.feed_forward" if word == words[-1] else "model.others" for word in words}

    def make(word: str, keys: dict[str, Any]) -> dict[str, Any]:
        view, path = c.view({}, keys), at[word]
        if word == "none" or keys.get("absent", [False])[-1]:
            return {"kind": "none"}
        biases = view.flag(family.ffn_biases) if isinstance(family.ffn_biases, str) else family.ffn_biases
        more: dict[str, Any] = ({"biases": True} if biases else {}) | family.feed_forward
        if word == "moe":
            return _experts(view, path) | more
        width = view.count(family.width, path=f"{path}.width", derived=family.times * hidden or None)
        return {"kind": "dense", "width": _adjusted(view, width), **more}

    return _kinds(words, own, make)


def _adjusted(c: Config, width: int) -> int:
    """Return two thirds of a width, times a factor, as a multiple of some number, if keys ask for that (LFM2)."""
    times, multiple = c.get("block_ffn_dim_multiplier"), c.count("block_multiple_of", derived=1)
    if not c.flag("block_auto_adjust_ff_dim"):
        return width
    width = 2 * width // 3
    must, found = "this is a number above 0", repr(times)
    insist(times is None or (type(times) in (int, float) and 0 < times < 100), c.where, must, found)
    return width if times is None else -(-int(times * width) // multiple) * multiple


def _experts(c: Config, path: str) -> dict[str, Any]:
    family, part = c.family, {"kind": "experts", **c.counts("experts", path)}
    part["width"] = c.count(family.expert_width, path=f"{path}.width")
    part |= {"router_bias": True} if family.router_bias else {}
    if latent := c.count("moe_latent_size", least=0, path=f"{path}.latent", derived=0):
        part["latent"] = latent
    shared, wide = c.count("n_shared_experts", least=0, path=f"{path}.shared", derived=family.shared), 0
    if shared and family.shared_width:
        wide = c.count(family.shared_width, least=0, path=f"{path}.shared_width")
    if shared and (wide or not family.shared_width):
        part |= {"shared": shared} | ({"shared_gate": True} if family.shared_gate else {})
        part |= {"shared_width": wide} if wide else {}
    return part


def _dense_layers(c: Config, layers: int) -> set[int]:
    """Return the layers without experts."""
    if isinstance(c.get("moe_layer_freq"), list):
        return {layer for layer, code in enumerate(c.list_of("moe_layer_freq", int, layers) or ()) if not code}
    first, every = c.count("first_k_dense_replace", least=0, derived=0), c.count("moe_layer_freq", derived=1)
    step = c.count("decoder_sparse_step", "interleave_moe_layer_step", derived=1)
    types, with_experts = c.list_of("mlp_layer_types", str, layers), c.list_of("moe_layers", int)
    without = {*(c.list_of("mlp_only_layers", int) or ())}
    if types is not None:
        return {layer for layer, kind in enumerate(types) if kind == "dense"}
    if with_experts is not None:
        return {*range(layers)} - {*with_experts}
    last = c.count("moe_layer_end_index", least=-1, derived=-1) % layers
    period, offset = c.count("expert_layer_period", derived=1), c.count("expert_layer_offset", least=0, derived=0)
    of_period = {i for i in range(layers) if i % period != offset}
    return of_period | {
        i for i in range(layers) if not first <= i <= last or i % every or (i + 1) % step or i in without
    }
