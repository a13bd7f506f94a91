"""The dimensions of a decoder, from the keys of a ``config.json``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

from simulator.errors import ConfigError, insist
from simulator.importers.hf_families import PARTS, RULES, VERSION, Family
from simulator.units import nearest
from simulator.workload.models import MOST_OTHERS

_NEAR = ("sliding_attention", "chunked_attention")
# Types of layers: those that see, or choose from, all tokens before; those that see a window; those with a state.
_TYPES = ("full_attention", "attention", "indexed_attention", "deepseek_sparse_attention", *_NEAR, "linear_attention")


class Config:
    """The keys of a file, each noted when it is asked for.

    Parameters
    ----------
    data
        What the file says of a decoder.
    family
        How it is read.
    where
        The file, for messages.
    """

    def __init__(self, data: Mapping[str, Any], family: Family, where: str) -> None:
        self.data, self.family, self.where = data, family, where
        self.used: set[str] = set()
        self.usual: dict[str, Any] = {}  # key of a figure that the file does not have -> its default
        self.derived: list[str] = []
        self.origins: dict[str, tuple[str, str]] = {}  # field of the workload -> where it comes from, and its basis

    def get(self, *keys: str, path: str = "") -> Any:
        """What the first of some keys says that the file has, or its family; None if none does."""
        key = next((key for key in keys if key in self.data), None)
        if key is not None:
            self.used |= {other for other in keys if self.data.get(other, ...) == self.data[key]}
            self._note(path, f"config.json, {key}", "quoted")
            return self.data[key]
        key = next((key for key in keys if key in self.family.defaults), None)
        if key is None:
            return None
        self._note(path, f"{VERSION}, {self.family.config}.{key} (config.json has no such key)", "quoted")
        self.usual |= {key: self.family.defaults[key]} if path else {}
        return self.family.defaults[key]

    def _note(self, path: str, text: str, basis: str) -> None:
        if path:
            self.origins[path] = (text, basis)

    def count(self, *keys: str, path: str = "", least: int = 1, derived: int | None = None) -> int:
        """A whole number; `derived` where no key says it."""
        found = self.get(*keys, path=path)
        if found is None and derived is not None:
            self._note(path, f"config.json, which has no {keys[0]}: from other keys", "derived")
            return derived
        insist(found is not None, f"{self.where}, {keys[0]}", "a decoder has this key", "none", "add it")
        fits = isinstance(found, int) and not isinstance(found, bool) and least <= found <= 10**9
        insist(fits, f"{self.where}, {keys[0]}", f"this is a whole number from {least} to 1,000,000,000", repr(found))
        return int(found)

    def flag(self, key: str, path: str = "") -> bool:
        """Whether a key says yes."""
        found = self.get(key, path=path)
        insist(found in (True, False, None), f"{self.where}, {key}", "this is true or false", repr(found))
        return bool(found)

    def counts(self, part: str, path: str) -> dict[str, int]:
        """The whole numbers of a part, as `PARTS` names their keys, each for the field below `path` of its name."""
        return {name: self.count(*keys, path=f"{path}.{name}") for name, keys in PARTS[part].items()}

    def list_of(self, key: str, kind: type, length: int | None = None) -> list[Any] | None:
        """A list of texts or numbers, None if there is none."""
        found = self.get(key)
        if found is None:
            return None
        fits = isinstance(found, list) and all(type(one) is kind for one in found)
        insist(fits, f"{self.where}, {key}", "this is a list of one kind of value", repr(found))
        must = f"this has an entry for each of {length} layers"
        insist(length is None or len(found) >= length, f"{self.where}, {key}", must, str(len(found)))
        return list(found[:length])


def model_of(c: Config) -> dict[str, Any]:
    """The dimensions of the model."""
    model: dict[str, Any] = {"family": "decoder", **c.counts("model", "model")}
    layers, hidden = model["layers"], model["hidden"]
    insist(layers <= 10_000, f"{c.where}, num_hidden_layers", "a model has at most 10,000 layers", f"{layers:,}")
    model["tied_embeddings"] = c.flag("tie_word_embeddings", "model.tied_embeddings")
    if c.family.norms != "before":
        model["norms"] = c.family.norms
    parts = {"attention": _attentions(c, layers, hidden), "feed_forward": _feed_forwards(c, layers)}
    others: list[dict[str, Any]] = []
    for part, (kinds, of_layer) in parts.items():
        usual = max({*of_layer}, key=lambda i: (kinds[i]["kind"] == "experts", of_layer.count(i), -i))
        model[part] = kinds[usual]
        for number in {*of_layer} - {usual}:
            held = [layer for layer, one in enumerate(of_layer) if one == number]
            others += [{**run, part: kinds[number]} for run in islice(runs(held, layers), MOST_OTHERS + 1)]
    if others:
        model["others"] = others
        c.origins["model.others"] = ("config.json, the keys that say which layers differ", "derived")
    return model


def runs(held: list[int], layers: int) -> Iterator[dict[str, int]]:
    """Some layers as few ranges."""
    while held:
        left, every, run = {*held}, held[1] - held[0] if len(held) > 1 else 1, held[:1]
        while run[-1] + every in left:
            run.append(run[-1] + every)
        found = {key: value for key, value, usual in (("start", run[0], 0), ("every", every, 1)) if value != usual}
        if run[-1] + every < layers:
            found["stop"] = run[-1] + 1
        yield found
        held = sorted(left - {*run})


# attention

Kinds = tuple[list[dict[str, Any]], list[int]]
"""The kinds of a part, and for each layer which of them it has."""


def _attentions(c: Config, layers: int, hidden: int) -> Kinds:
    full = _latent(c) if c.family.latent else _grouped(c, hidden)
    types, kinds = _types(c, layers), [full]
    window = c.get(c.family.window) if c.family.local != "none" or {*_NEAR} & {*types} else None
    if window and {*_NEAR} & {*types}:
        window = c.count(c.family.window, path="model.attention.window")
        if "chunked_attention" in types:
            c.derived.append(f"Chunks of {window:,} tokens that attend among themselves count as windows.")
        kinds.append(full | {"window": window})
    near = len(kinds) - 1
    if "linear_attention" in types:
        insist(c.family.linear, f"{c.where}, layer_types", "linear attention is that of MiniMax", "another one")
        block = c.count("block_size", path="model.attention.block")
        kinds.append({"kind": "linear", "heads": full["heads"], "head_size": full["head_size"], "block": block})
    return kinds, [near if kind in _NEAR else len(kinds) - 1 if kind == "linear_attention" else 0 for kind in types]


def _grouped(c: Config, hidden: int) -> dict[str, Any]:
    at, family = "model.attention", c.family
    heads = c.count("num_attention_heads", path=f"{at}.heads")
    part: dict[str, Any] = {
        "kind": "gqa",
        "heads": heads,
        "kv_heads": c.count("num_key_value_heads", "multi_query_group_num", path=f"{at}.kv_heads", derived=heads),
        "head_size": c.count("head_dim", "kv_channels", path=f"{at}.head_size", derived=hidden // heads),
    }
    biased = {letter for key, letters in family.biases.items() if not key or c.flag(key) for letter in letters}
    norms = c.flag(family.qk_norms) if family.qk_norms in family.defaults else family.qk_norms
    more = {"biases": [one for one in "qkvo" if one in biased], "qk_norms": norms, "sink_logits": family.sink_logits}
    return part | {key: value for key, value in more.items() if value}


def _latent(c: Config) -> dict[str, Any]:
    at = "model.attention"
    must, do = "biases of latent attention are not built", "set it to false, if they do not matter"
    insist(not c.flag("attention_bias"), f"{c.where}, attention_bias", must, "true", do)
    c.used |= {"num_key_value_heads", "head_dim"}  # each head has its own key, whose width other keys say
    part: dict[str, Any] = {"kind": "mla", **c.counts("mla", at)}
    if c.get("q_lora_rank") is not None:
        part["q_lora_rank"] = c.count("q_lora_rank", path=f"{at}.q_lora_rank")
    if c.get("index_topk") is not None:
        part["indexer"] = c.counts("indexer", f"{at}.indexer")
        if again := (c.list_of("indexer_types", str) or []).count("shared"):
            c.derived.append(f"{again} layers that reuse what a layer before has chosen count as choosing themselves.")
    return part


def _types(c: Config, layers: int) -> list[str]:
    """What each layer sees: by ``layer_types``, or as the family does."""
    codes = c.list_of("attn_type_list", int, layers)  # MiniMax-Text-01: 0 is lightning attention
    said = c.list_of("layer_types", str, layers) or [("linear", "full")[bool(i)] + "_attention" for i in codes or ()]
    for one in {*said} - {*_TYPES}:
        must, do = "a type of layer is known", nearest(one, _TYPES)
        raise ConfigError(f"{c.where}, layer_types", must, repr(one), do)
    if said:
        c.used |= RULES
        return said
    usual = "chunked_attention" if c.family.local == "chunks" else "sliding_attention"
    found = ("full_attention", "linear_attention") if c.family.linear else (usual, "full_attention")
    near = _near(c, layers)
    return [found[layer not in near] for layer in range(layers)]


def _near(c: Config, layers: int) -> set[int]:
    """Layers that see a window, if the model has one."""
    on = c.flag("use_sliding_window") if c.get("use_sliding_window") is not None else True
    first = c.count("max_window_layers", least=0, derived=0)
    pattern = c.count("sliding_window_pattern", derived=1)
    turned = c.list_of("no_rope_layers", int)
    interval = c.count("no_rope_layer_interval", derived=1)
    found = {
        "none": range(0),
        "all": range(layers),
        "after": range(first, layers),
        "odd": range(0, layers, 2),
        "pattern": [i for i in range(layers) if (i + 1) % pattern],
        "chunks": [i for i in range(layers) if (turned[i] if turned and i < len(turned) else (i + 1) % interval)],
    }[c.family.local]
    return set(found) if on else set()


# feed-forwards


def _feed_forwards(c: Config, layers: int) -> Kinds:
    family, at = c.family, "model.feed_forward"
    biases = c.flag(family.ffn_biases) if isinstance(family.ffn_biases, str) else family.ffn_biases
    more: dict[str, Any] = {"biases": True} if biases else {}
    if not family.experts or c.get(*PARTS["experts"]["routed"]) is None:
        return [{"kind": "dense", "width": c.count(family.width, path=f"{at}.width"), **more}], [0] * layers
    part: dict[str, Any] = {"kind": "experts", **c.counts("experts", at), **more}
    part["width"] = c.count(family.expert_width, path=f"{at}.width")
    part |= {"router_bias": True} if family.router_bias else {}
    if shared := c.count("n_shared_experts", least=0, path=f"{at}.shared", derived=family.shared):
        part["shared"] = shared
        if family.shared_width:
            part["shared_width"] = c.count(family.shared_width, path=f"{at}.shared_width")
    dense = _dense(c, layers)
    width = c.count(family.width, path="model.others" if len(dense) < layers else f"{at}.width")
    return [part, {"kind": "dense", "width": width, **more}], [int(layer in dense) for layer in range(layers)]


def _dense(c: Config, layers: int) -> set[int]:
    """Layers without experts."""
    first, every = c.count("first_k_dense_replace", least=0, derived=0), c.count("moe_layer_freq", derived=1)
    step = c.count("decoder_sparse_step", "interleave_moe_layer_step", derived=1)
    types, named_ones = c.list_of("mlp_layer_types", str, layers), c.list_of("moe_layers", int)
    without = {*(c.list_of("mlp_only_layers", int) or ())}
    if types is not None:
        return {i for i, one in enumerate(types) if one == "dense"}
    if named_ones is not None:
        return {*range(layers)} - {*named_ones}
    return {i for i in range(layers) if i < first or i % every or (i + 1) % step or i in without}
