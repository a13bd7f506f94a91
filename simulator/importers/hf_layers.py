"""Which layers of a model are of which kind, and the keys that a layer has for itself, from a ``config.json``."""

from __future__ import annotations

from typing import Any

from simulator.errors import ConfigError, insist
from simulator.importers.hf_keys import CAPTURE, SETS, WORDS, Config
from simulator.units import nearest

Keys = dict[str, Any]
"""Keys that a layer has for itself."""


def of_layers(c: Config, layers: int) -> list[Keys]:
    """Return the keys that each layer has for itself."""
    of_layers: list[Keys] = [{} for _ in range(layers)]
    for key, listed in c.family.lists.items():
        kind, is_listed = str if listed.endswith("_types") else int, listed != key or isinstance(c.get(key), list)
        values = _turned(c, layers) if key == "turned" else c.list_of(listed, kind, layers) if is_listed else None
        c.places |= {key: c.named(listed)} if values else {}
        for keys, value in zip(of_layers, values or (), strict=False):
            keys[key] = value
    sources, must = c.list_of("kv_source_layers", int, layers), "each layer makes keys and values of its own"
    insist(sources in (None, [*range(layers)]), c.where_is("kv_source_layers"), must, repr(sources), CAPTURE)
    stated = c.get("per_layer_config") or {}
    where, must = c.where_is("per_layer_config"), f"this has an object for some of {layers} layers"
    fits = isinstance(stated, dict) and all(key.isdecimal() and int(key) < layers for key in stated)
    insist(fits and all(isinstance(value, dict) for value in stated.values()), where, must, repr(stated))
    for key, value in stated.items():
        of_layers[int(key)] |= value
    reusing = c.count("num_kv_shared_layers", least=0, derived=0) if c.family.reuses else 0
    must, do = "some of the layers make keys and values", f"{CAPTURE}, with the model that makes them"
    insist(reusing < layers, c.where_is("num_kv_shared_layers"), must, f"{reusing:,} that reuse them", do)
    wide = {c.family.width: 2 * c.count(c.family.width)} if reusing and c.flag("use_double_wide_mlp") else {}
    for keys in of_layers[layers - reusing :]:
        keys.update({"reuses": True} | wide)
    if c.family.encoded and (alone := c.list_of("cross_attention_layers", int)) is not None:
        where = c.where_is("cross_attention_layers", "num_hidden_layers")
        insist(set() < {*alone} < {*range(layers)}, where, f"some of {layers} layers see an encoder alone", repr(alone))
        for layer, keys in enumerate(of_layers):
            keys["across"] = "alone" if layer in alone else "never"
    for keys, block in zip(of_layers, c.list_of("block_configs", dict, layers) or (), strict=False):
        keys |= _of_block(c, block)  # noqa: PLW2901 - it adds to the layer's
    return of_layers


def _of_block(c: Config, block: dict[str, Any]) -> Keys:
    """Return what an object of ``block_configs`` says of its layer (DeciLM, as Llama-Nemotron is built)."""
    attention, part = (half if isinstance(half := block.get(key), dict) else {} for key in ("attention", "ffn"))
    where, built = c.where_is("block_configs"), ("n_heads_in_group", "ffn_mult", "no_op")
    unknown = [key for half in (attention, part) for key, value in half.items() if value and key not in built]
    insist(not unknown, where, "the parts of a layer are known", ", ".join(map(repr, unknown)), CAPTURE)
    group, times = attention.get("n_heads_in_group") or 0, part.get("ffn_mult") or 0
    fits = type(group) is int and isinstance(times, (int, float)) and group >= 0 and 0 <= times < 1e6
    insist(fits, where, "these are numbers from 0 to a million", f"{group!r:.40}, {times!r:.40}")
    keys: Keys = {"absent": [bool(attention.get("no_op")), bool(part.get("no_op"))]}
    keys |= {"num_key_value_heads": c.count("num_attention_heads") // group} if group else {}
    return keys | ({"intermediate_size": -(-int(2 * times * c.count("hidden_size") / 3) // 256) * 256} if times else {})


def layer_types(c: Config, layers: int) -> list[str]:
    """Return a word for each layer: from the keys that list them, or by the rule of the family."""
    types = c.list_of("layer_types", str, layers) or c.list_of("layers_block_type", str, layers) or []
    if isinstance(pattern := c.get("hybrid_override_pattern"), str):
        c.data = {**c.data, "hybrid_override_pattern": [*pattern]}
    types = types or c.list_of("hybrid_override_pattern", str, layers) or []
    for key, words in c.family.codes.items():
        coded = c.get(key)
        if isinstance(coded, list) and all(isinstance(word, str) for word in coded) and coded:
            coded = [coded[i % len(coded)] for i in range(layers)]  # they repeat
        elif coded is not None:
            coded = c.list_of(key, int, layers)
        types = types or [words.get(str(code), str(code)) for code in (coded or ())[:layers]]
    rare = {"pooled", "chosen", "blocks", "both"} - {*c.family.words}
    named = [word for word, kind in WORDS.items() if kind not in rare]
    for unknown in sorted({*types} - {*named}):
        must, do = "a type of layer is known", nearest(unknown, tuple(named))
        raise ConfigError(c.where_is("layer_types"), must, repr(unknown), do)
    if types:
        rules = SETS["rules"]
        c.used |= rules | {c.family.keys.get(rule, rule) for rule in (*rules, c.family.window)}
        return types
    is_listed = c.family.local == "listed" and not c.family.state
    insist(not is_listed, c.where_is("layer_types"), "this says which have a window", "none", "add it")
    rest = "linear" if c.family.state else "chunked" if c.family.local == "chunks" else "sliding"
    full = _attending_layers(c, layers) if c.family.state else {*range(layers)} - _windowed_layers(c, layers)
    return ["full_attention" if layer in full else f"{rest}_attention" for layer in range(layers)]


def _attending_layers(c: Config, layers: int) -> set[int]:
    """Return the layers with attention in a model whose other layers have a state."""
    if c.family.beside:
        return {*range(layers)}
    for key, first in {"attn_layer_indices": 0, "full_attn_idxs": 0, "linear_full_attn_layers": 1}.items():
        if (listed := c.list_of(key, int)) is not None:
            return {layer - first for layer in listed}
    if c.family.single or c.family.local in ("all", "odd"):
        return {*range(0, 0 if c.family.single else layers, 2)}
    period = c.count("attn_layer_period", "full_attention_interval", "layer_group_size", derived=0)
    insist(period, c.where_is("layer_types"), "this says which layers attend, which have a state", "none", "add it")
    offset = c.count("attn_layer_offset", least=0, derived=period - 1)
    return {*range(offset, layers, period)}


def _turned(c: Config, layers: int) -> list[int]:
    """Return of each layer whether its queries and keys turn by position: as listed, or in all but one an interval."""
    interval = c.count("no_rope_layer_interval", derived=1)
    return c.list_of("no_rope_layers", int, layers) or [int((layer + 1) % interval > 0) for layer in range(layers)]


def _windowed_layers(c: Config, layers: int) -> set[int]:
    """Return the layers with a sliding window, if the model has one."""
    is_on = c.flag("use_sliding_window") if c.get("use_sliding_window") is not None else True
    pattern = c.count("sliding_window_pattern", derived=1)
    by_rule = {
        "all": range(layers),
        "after": range(c.count("max_window_layers", least=0, derived=0), layers),
        "odd": range(0, layers, 2),
        "unlisted": {*range(layers)} - {*(c.list_of("fullatt_block_indexes", int) or ())},
        "between": [i for i in range(1, layers) if (i + 1) % pattern],
        "behind": [i for i in range(layers) if i % pattern],
        "pattern": [i for i in range(layers) if (i + 1) % pattern],
        "chunks": [i for i, turns in enumerate(_turned(c, layers)) if turns],
    }
    return {*by_rule.get(c.family.local, ())} if is_on else set()


def fed_by(c: Config, layers: int) -> list[str]:
    """Return of each layer whether it is ``dense``, has experts (``moe``), or has such as a table chooses (``hash``).

    The table says of each token of the vocabulary which experts it goes through.
    """
    first, codes = c.count("first_k_dense_replace", least=0, derived=0), c.get("moe_layer_freq")
    step = c.count("decoder_sparse_step", "interleave_moe_layer_step", derived=1)
    types, with_experts = c.list_of("mlp_layer_types", str, layers), c.list_of("moe_layers", int)
    without = {*(c.list_of("mlp_only_layers", int) or ())}
    if types is not None:
        return [{"dense": "dense", "hash_moe": "hash"}.get(kind, "moe") for kind in types]
    if isinstance(codes, list):
        codes = c.list_of("moe_layer_freq", bool if [*map(type, codes)][:1] == [bool] else int, layers) or []
        first = c.data.get("first_k_dense_replace") or 0
        must = f"{c.path_of('moe_layer_freq')} has none in these layers"
        insist(not any(codes[:first]), c.where_is("first_k_dense_replace"), must, f"{first:,}", "correct one of them")
        with_experts = [i for i, code in enumerate(codes) if code]
    if with_experts is not None:
        return ["moe" if i in with_experts else "dense" for i in range(layers)]
    every = c.count("moe_layer_freq", derived=1)
    last = c.count("moe_layer_end_index", least=-1, derived=-1)  # -1: the last layer of all
    period, offset = c.count("expert_layer_period", derived=1), c.count("expert_layer_offset", least=0, derived=0)
    hashed = c.count("num_hash_layers", least=0, derived=0)
    dense = {i for i in range(layers) if i % period != offset or i < first or 0 <= last < i or i in without}
    dense |= {i for i in range(layers) if i % every or (i + 1 - c.family.late) % step}
    return ["dense" if i in dense else "hash" if i < hashed else "moe" for i in range(layers)]
