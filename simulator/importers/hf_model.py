"""The dimensions of a model, with its ends, from the keys of a ``config.json``. No code is specific to a model."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import islice
from math import prod
from typing import Any

from simulator.errors import ConfigError, insist
from simulator.importers.hf_keys import CAPTURE, PARTS, SETS, WORDS, Config
from simulator.units import nearest
from simulator.workload.models import MOST_OTHERS

_ENCODED = 512
"""Rows of an encoder's output, where no key states them: what T5 was trained on (arXiv 1910.10683, section 3.1.1)."""
_HEADLESS = re.compile(r"(?<!Head)(?<!Heads)Model$|For(Sequence|Token)Classification$|ForQuestionAnswering$")
"""Names of classes that predict no tokens."""


def whole_model_of(c: Config) -> dict[str, Any]:
    """Return the dimensions of a model, or of a tower, with its ends."""
    family = c.family
    if family.window_grid:
        c.data = {**c.data, family.window: _patches(c, *family.window_grid)}
    for name, words in family.sums.items():
        c.data = {**c.data, name: _sum(c, words)}
    model, more = _model_of(c), dict[str, Any](stem=[_sum(c, words) for words in family.stem])
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
    whole = model | {field: value for field, value in more.items() if value}
    return whole | (_without_head(c, whole) if whole.get("head", True) and _HEADLESS.search(c.reader) else {})


def _without_head(c: Config, model: dict[str, Any]) -> dict[str, Any]:
    """Leave out the output projection of an encoder whose class has none; that of another model counts and is told."""
    if model.get("causal", True) or "embedding_width" in model:  # it decodes; or the head says where it is narrow
        c.derived.append(f"An output projection is counted, though the class that reads the file is {c.reader}.")
        return {}
    c.origins.pop("model.tied_embeddings", None)
    c.derived.append(f"{c.reader} has no output projection; a pooler or a classifier in its place is not counted.")
    return {"head": False, "tied_embeddings": False, "head_transform": False, "head_biases": []}


def _patches(c: Config, size: str, patch: str) -> int:
    """Count the patches of a square, from the keys of their sizes."""
    return (c.count(size) // c.count(patch)) ** 2


def _sum(c: Config, words: str) -> int:
    """Add up products of numbers and the values of keys."""
    products = (part.split() for part in words.split("+"))
    return int(sum(prod(float(word) if word[0].isdigit() else c.count(word) for word in part) for part in products))


def _model_of(c: Config) -> dict[str, Any]:
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
    about = c, types, _of_layers(c, layers), hidden
    parts = {"attention": _attentions(*about), "feed_forward": _feed_forwards(*about)}
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


Keys = dict[str, Any]
"""Keys that a layer has for itself."""


def _of_layers(c: Config, layers: int) -> list[Keys]:
    """Return the keys that each layer has for itself."""
    of_layers: list[Keys] = [{} for _ in range(layers)]
    for key, listed in c.family.lists.items():
        values = c.get(listed)
        for keys, value in zip(of_layers, values if isinstance(values, list) else (), strict=False):
            keys[key] = value
    stated = c.get("per_layer_config") or {}
    where, must = f"{c.where}, per_layer_config", f"this has an object for some of {layers} layers"
    fits = isinstance(stated, dict) and all(key.isdecimal() and int(key) < layers for key in stated)
    insist(fits and all(isinstance(value, dict) for value in stated.values()), where, must, repr(stated))
    for key, value in stated.items():
        of_layers[int(key)] |= value
    for keys, block in zip(of_layers, c.list_of("block_configs", dict, layers) or (), strict=False):
        keys |= _of_block(c, block)  # noqa: PLW2901 - it adds to the layer's
    return of_layers


def _of_block(c: Config, block: dict[str, Any]) -> Keys:
    """Return what an object of ``block_configs`` says of its layer (DeciLM, as Llama-Nemotron is built)."""
    attention, part = (half if isinstance(half := block.get(key), dict) else {} for key in ("attention", "ffn"))
    where, built = f"{c.where}, block_configs", ("n_heads_in_group", "ffn_mult", "no_op")
    unknown = [key for half in (attention, part) for key, value in half.items() if value and key not in built]
    insist(not unknown, where, "the parts of a layer are known", ", ".join(map(repr, unknown)), CAPTURE)
    group, times = attention.get("n_heads_in_group") or 0, part.get("ffn_mult") or 0
    fits = type(group) is int and isinstance(times, (int, float)) and group >= 0 and 0 <= times < 1e6
    insist(fits, where, "these are numbers from 0 to a million", f"{group!r:.40}, {times!r:.40}")
    keys: Keys = {"absent": [bool(attention.get("no_op")), bool(part.get("no_op"))]}
    keys |= {"num_key_value_heads": c.count("num_attention_heads") // group} if group else {}
    return keys | ({"intermediate_size": -(-int(2 * times * c.count("hidden_size") / 3) // 256) * 256} if times else {})


Kinds = tuple[list[dict[str, Any]], list[int]]
"""The kinds of a part, and each layer's index among them."""


def _kinds(words: list[str], of_layers: list[Keys], make: Callable[[str, Keys], dict[str, Any]]) -> Kinds:
    """Make the part of each kind of layer, the most frequent one last, so that its origins stay."""
    kinds, named = list[dict[str, Any]](), [(word, repr(keys)) for word, keys in zip(words, of_layers, strict=True)]
    made = {name: make(name[0], of_layers[named.index(name)]) for name, _ in reversed(Counter(named).most_common())}
    for part in map(made.__getitem__, dict.fromkeys(named)):
        kinds += [part] if part not in kinds else []
    return kinds, [kinds.index(made[name]) for name in named]


# attention


def _attentions(c: Config, types: list[str], of_layers: list[Keys], hidden: int) -> Kinds:
    words = [WORDS[word] for word in types]
    window = c.get(c.family.window) if c.family.local != "none" or "near" in words else None
    for word, entry in (("near", c.family.near), ("full", c.family.far)):
        c.used |= {*entry.get("keys", {}).values()} if word not in words else set()
    c.used |= SETS["of_attention"] if {*words} <= {"state", "mlp", "moe"} else set()
    if "state" not in words:
        c.used |= {key for keys in PARTS.get(c.family.state.get("kind", ""), {}).values() for key in keys}
    if window and "chunked_attention" in types:
        tokens = c.count(c.family.window)
        c.derived.append(f"Chunks of {tokens:,} tokens that attend among themselves count as windows.")

    def make(word: str, keys: Keys) -> dict[str, Any]:
        view = c.view(c.family.near if word == "near" else c.family.far if word == "full" else {}, keys)
        if word in ("mlp", "moe") or keys.get("absent", [False])[0]:
            return {"kind": "none"}
        if word == "state":
            return _state(view, hidden, "model.attention" if 2 * words.count("state") > len(words) else "")
        if c.family.one_row:
            return _row_attention(view, word)
        part = _latent_attention(view) if c.family.latent else _grouped_query_attention(view, hidden)
        part |= {"beside": _state(view, hidden, "")} if c.family.beside else {}
        is_near = window and word == "near"
        return part | ({"window": view.count(c.family.window, path="model.attention.window")} if is_near else {})

    return _kinds(words, of_layers, make)


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
    v_head = c.count("v_head_dim", path=f"{path}.v_head", derived=head_size)
    part = {"kind": "gqa", "heads": heads, "kv_heads": kv_heads, "head_size": head_size}
    more = {"biases": [*filter(biased.__contains__, "qkvo")], "qk_norms": norms, "sink_logits": family.sink_logits}
    more["v_head"] = v_head if v_head != head_size else None
    return {**part, **{key: value for key, value in more.items() if value}, **family.attention}


def _latent_attention(c: Config) -> dict[str, Any]:
    must, do = "hosim builds latent attention without biases", "set it to false, if they do not matter"
    insist(not c.flag("attention_bias"), f"{c.where}, attention_bias", must, "true", do)
    c.used |= {"num_key_value_heads", "head_dim"}  # each head has its own key, whose width other keys state
    part: dict[str, Any] = {"kind": "mla", **c.counts("mla", "model.attention"), **c.family.attention}
    if c.get("q_lora_rank") is not None:
        part["q_lora_rank"] = c.count("q_lora_rank", path="model.attention.q_lora_rank")
    if c.family.indexed and c.get("index_topk") is not None:
        part["indexer"] = c.counts("indexer", "model.attention.indexer")
        part["indexer"] |= {"again": True} if c.get("indexer_type") == "shared" else {}
        c.used |= SETS["of_choices"] if "indexer_types" in c.data else set()
    return part


def _row_attention(c: Config, word: str) -> dict[str, Any]:
    """Return attention to one row of each token in a window, and of compressed ones."""
    path = "model.attention"
    part: dict[str, Any] = {"kind": "mqa", **c.counts("mqa", path), **c.family.attention}
    part["window"] = c.count(c.family.window, path=f"{path}.window")
    pool: dict[str, Any] = c.counts(word, f"{path}.pool") if word in ("pooled", "chosen") else {}
    pool |= {"overlap": True, "indexer": c.counts("indexer", f"{path}.pool.indexer")} if word == "chosen" else {}
    return part | ({"pool": pool} if pool else {})


def _layer_types(c: Config, layers: int) -> list[str]:
    """Return a word for each layer: from the keys that list them, or by the rule of the family."""
    types = c.list_of("layer_types", str, layers) or c.list_of("layers_block_type", str, layers) or []
    pattern = c.get("hybrid_override_pattern")
    if not types and isinstance(pattern, str):
        must = f"this has a letter for each of {layers} layers"
        insist(len(pattern) >= layers, f"{c.where}, hybrid_override_pattern", must, f"{len(pattern)}", "correct it")
        types = list(pattern)[:layers]
    for key, words in c.family.codes.items():
        types = types or [words.get(str(code), str(code)) for code in c.list_of(key, int, layers) or ()]
    known = [word for word, kind in WORDS.items() if c.family.one_row or kind not in ("pooled", "chosen")]
    for unknown in sorted({*types} - {*known}):
        must, do = "a type of layer is known", nearest(unknown, tuple(known))
        raise ConfigError(f"{c.where}, layer_types", must, repr(unknown), do)
    if types:
        rules = SETS["rules"]
        c.used |= rules | {c.family.keys.get(rule, rule) for rule in (*rules, c.family.window)}
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
        "all": range(layers),
        "after": range(first, layers),
        "odd": range(0, layers, 2),
        "unlisted": {*range(layers)} - {*(c.list_of("fullatt_block_indexes", int) or ())},
        "between": [i for i in range(1, layers) if (i + 1) % pattern],
        "behind": [i for i in range(layers) if i % pattern],
        "pattern": [i for i in range(layers) if (i + 1) % pattern],
        "chunks": [i for i in range(layers) if turned.get(i, (i + 1) % interval)],
    }
    return {*by_rule.get(c.family.local, ())} if is_on else set()


# feed-forwards


def _feed_forwards(c: Config, types: list[str], of_layers: list[Keys], hidden: int) -> Kinds:
    family, routed = c.family, PARTS["experts"]["routed"]
    c.used |= set() if any(map(c.data.get, routed)) else SETS["of_experts"]
    words = ["dense"] * len(types)
    if family.single:
        words = [{"mlp": "dense", "moe": "moe"}.get(WORDS[word], "none") for word in types]
    elif family.experts and c.get(*routed):
        dense, hashed = _dense_layers(c, len(types)), _hashed_layers(c, len(types))
        words = ["dense" if i in dense else "hash" if i in hashed else "moe" for i in range(len(types))]
    c.used |= {family.width} if "dense" not in words else set()
    c.used |= SETS["of_experts"] | {family.expert_width} if family.experts and not {"moe", "hash"} & {*words} else set()

    def make(word: str, keys: Keys) -> dict[str, Any]:
        view, path = c.view({}, keys), "model.feed_forward" if word == words[-1] else "model.others"
        if word == "none" or keys.get("absent", [False])[-1]:
            return {"kind": "none"}
        biases = view.flag(family.ffn_biases) if isinstance(family.ffn_biases, str) else family.ffn_biases
        more: dict[str, Any] = ({"biases": True} if biases else {}) | family.feed_forward
        if word in ("moe", "hash"):
            return _experts(view, path, has_bias=family.router_bias and word == "moe") | more
        width = view.count(family.width, path=f"{path}.width", derived=family.times * hidden or None)
        return {"kind": "dense", "width": _adjusted(view, width), **more}

    return _kinds(words, of_layers, make)


def _adjusted(c: Config, width: int) -> int:
    """Return two thirds of a width, times a factor, as a multiple of some number, if keys ask for that (LFM2)."""
    times, multiple = c.get("block_ffn_dim_multiplier"), c.count("block_multiple_of", derived=1)
    if not c.flag("block_auto_adjust_ff_dim"):
        return width
    width = 2 * width // 3
    must, found = "this is a number above 0", repr(times)
    insist(times is None or (type(times) in (int, float) and 0 < times < 100), c.where, must, found)
    return width if times is None else -(-int(times * width) // multiple) * multiple


def _experts(c: Config, path: str, *, has_bias: bool) -> dict[str, Any]:
    family, part = c.family, {"kind": "experts", **c.counts("experts", path)}
    part["width"] = c.count(family.expert_width, path=f"{path}.width")
    latent = c.count("moe_latent_size", least=0, path=f"{path}.latent", derived=0)
    more: dict[str, Any] = {"router_bias": has_bias, "latent": latent}
    shared, wide = c.count("n_shared_experts", least=0, path=f"{path}.shared", derived=family.shared), 0
    if shared and family.shared_width:
        wide = c.count(family.shared_width, least=0, path=f"{path}.shared_width")
    if shared and (wide or not family.shared_width):
        more |= {"shared": shared, "shared_gate": family.shared_gate, "shared_width": wide}
    return part | {field: value for field, value in more.items() if value}


def _hashed_layers(c: Config, layers: int) -> set[int]:
    """Return the layers in which a table says for each token of the vocabulary which experts it goes through."""
    types = c.list_of("mlp_layer_types", str, layers)
    if types is None:
        return {*range(c.count("num_hash_layers", least=0, derived=0))}
    return {layer for layer, kind in enumerate(types) if kind == "hash_moe"}


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
        i
        for i in range(layers)
        if not first <= i <= last or i % every or (i + 1 - c.family.late) % step or i in without
    }
