"""The dimensions of a model, with its ends, from the keys of a ``config.json``. No code is specific to a model."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from itertools import islice
from typing import Any

from simulator.errors import insist
from simulator.importers.hf_keys import CAPTURE, FAMILIES, PARTS, SETS, WORDS, Config
from simulator.importers.hf_layers import Keys, fed_by, layer_types, of_layers
from simulator.layout import runs
from simulator.workload.models import MOST_OTHERS

_HEADLESS = re.compile(r"(?<!Head)(?<!Heads)Model$|For(Sequence|Token)Classification$|ForQuestionAnswering$")
"""Names of classes that predict no tokens."""


def whole_model_of(c: Config) -> dict[str, Any]:
    """Return the dimensions of a model, or of a tower, with its ends."""
    family = c.family
    for name, words in family.sums.items():
        c.data, c.places[name] = {**c.data, name: c.made(words)}, c.spelt(words)
    c.used |= {*family.sums}  # which no file has
    c.check()
    model = _model_of(c)
    more: dict[str, Any] = {"stem": _parts(c, family.stem)}
    narrow, hidden = c.count(family.narrow, path="model.embedding_width", derived="hidden_size"), model["hidden"]
    more["embedding_width"] = narrow if narrow != hidden else None
    more["embedding_rows"] = c.count("embedding_rows", path="model.embedding_rows", least=0)
    for table, key in family.tables.items():
        rows = c.count(key, path=f"model.{table}", least=int(table != "segments"))
        more[table] = rows and rows + family.more_positions * (table == "positions")
    if family.encoded:
        key, must = "cross_attention_hidden_size", "an encoder is as wide as its decoder"
        wide = c.count("encoder.hidden_size", key, derived="hidden_size")
        insist(wide == hidden, c.where_is("encoder.hidden_size", key), must, f"{wide:,} and {hidden:,}", CAPTURE)
        c.used.add("add_cross_attention")
        rows = more["encoded"] = c.count(family.encoded, path="model.encoded")
        who = " (--part encoder runs it)" * (f"{c.data.get('model_type')} encoder" in FAMILIES)
        c.derived.append(f"The output of the encoder, {rows:,} rows (encoded; set it to yours), is an input{who}.")
    if family.merger:
        merger, levels = _parts(c, family.merger), c.list_of(key := "deepstack_visual_indexes", int) or []
        fits, must = {*levels} <= {*range(model["layers"] - 1)}, "these are layers before the last of {:,}, from 0 on"
        insist(fits and len({*levels}) == len(levels), c.where_is(key), must.format(model["layers"]), repr(levels))
        more["mergers"] = [merger, *([merger[0] | {"norm": "both"}, *merger[1:]] for _ in levels)]
    if family.layer_inputs and (width := c.count(family.layer_inputs["width"], least=0, derived=0)):
        more["layer_inputs"] = {"rows": c.count(family.layer_inputs["rows"]), "width": width}
    for field, key in family.hybrid.items():
        path, is_flag = f"model.shared.{field}", field == "adapts_attention"
        more.setdefault("shared", {})[field] = c.flag(key, path) if is_flag else c.count(key, path=path, derived=1)
    if family.buckets:
        biased = model["attention"] | {"buckets": c.count(family.buckets, path="model.others")}
        first = [*model.get("others", ()), {"stop": 1, "attention": biased}]
        more |= {"attention": biased} if family.buckets_of_all else {"others": first}
    whole = model | {field: value for field, value in more.items() if value}
    return whole | (_without_head(c, whole) if whole.get("head", True) and _HEADLESS.search(c.reader) else {})


def _parts(c: Config, parts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the parts of an end of a tower, whose sizes are sums of keys and numbers, and whose bias may be a key."""
    sizes = ("rows", "pooled", "width", "taken")
    made = [part | {field: c.made(str(part[field])) for field in sizes if field in part} for part in parts]
    return [part | ({"bias": c.flag(key)} if isinstance(key := part.get("bias"), str) else {}) for part in made]


def _without_head(c: Config, model: dict[str, Any]) -> dict[str, Any]:
    """Leave out the output projection of an encoder whose class has none; that of another model counts and is told."""
    if model.get("causal", True) or "embedding_width" in model:  # it decodes; or the head says where it is narrow
        c.derived.append(f"An output projection is counted, though the class that reads the file is {c.reader}.")
        return {}
    c.forget("model.tied_embeddings")
    c.derived.append(f"{c.reader} has no output projection; a pooler or a classifier in its place is not counted.")
    return {"head": False, "tied_embeddings": False, "head_transform": False, "head_biases": []}


def _model_of(c: Config) -> dict[str, Any]:
    """Return the dimensions of the model."""
    if c.family.hybrid:
        _split(c)
    listed = [c.data.get(key) for key in ("layers_block_type", "hybrid_override_pattern", "layer_types")]
    layers = next((len(words) for words in listed if isinstance(words, (list, str)) and words), None)
    if not any(key in c.data for key in PARTS["model"]["layers"]) and layers:
        c.data = {**c.data, "num_hidden_layers": layers}
    model: dict[str, Any] = {"family": "decoder", **c.counts("model", "model")}
    layers, hidden = model["layers"], model["hidden"]
    insist(layers <= 10_000, c.where_is(*PARTS["model"]["layers"]), "a model has at most 10,000 layers", f"{layers:,}")
    model["tied_embeddings"] = c.flag("tie_word_embeddings", "model.tied_embeddings")
    model.update(c.family.model)
    about = c, layer_types(c, layers), of_layers(c, layers), hidden
    parts = {"attention": _attentions(*about), "feed_forward": _feed_forwards(*about)}
    others: list[dict[str, Any]] = []
    for part, (kinds, of_layer) in parts.items():
        usual = max({*of_layer}, key=lambda i: (kinds[i]["kind"] == "experts", of_layer.count(i), -i))
        model[part] = kinds[usual]
        for kind in {*of_layer} - {usual}:
            alike = [layer for layer, other in enumerate(of_layer) if other == kind]
            others += [{**run, part: kinds[kind]} for run in islice(runs(alike, layers), MOST_OTHERS + 1)]
    insist(len(others) <= MOST_OTHERS, c.where, f"layers differ in at most {MOST_OTHERS} runs of them", "more", CAPTURE)
    if others:
        model["others"] = others
        c.note("model.others", others, "the keys that say which layers differ", basis="derived")
    return model


def _split(c: Config) -> None:
    """Make two layers of one with attention, a feed-forward and a state: the first two, whose weights may be shared."""
    key, types = "layers_block_type", c.list_of("layers_block_type", str) or c.list_of("layer_types", str) or []
    insist(types, c.where_is(key), "this says which layers have shared weights", "none", "add it")
    of_two = {word: [word, "linear_attention"] for word, kind in WORDS.items() if kind == "both"}
    types = [part for word in types for part in of_two.get(word, [word])]
    c.data = {**c.data, key: types, "num_hidden_layers": len(types)}
    c.derived.append("Each hybrid layer is two: attention and feed-forward, whose weights are shared, and the state.")


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
        c.used.update(c.family.state_biases, *PARTS.get(c.family.state.get("kind", ""), {}).values())
    if window and "chunked_attention" in types:
        c.derived.append(f"Chunks of {c.count(c.family.window):,} tokens that see one another count as windows.")

    def make(word: str, keys: Keys) -> dict[str, Any]:
        view = c.view(c.family.near if word == "near" else c.family.far if word == "full" else {}, keys)
        if word in ("mlp", "moe") or keys.get("absent", [False])[0]:
            return {"kind": "none"}
        if word == "state":
            return _state(view, hidden, "model.attention" if 2 * words.count("state") > len(words) else "model.others")
        if c.family.one_row:
            return _row_attention(view, word)
        part = _latent_attention(view) if c.family.latent else _grouped_query_attention(view, hidden)
        part |= {"beside": _state(view, hidden, "model.attention.beside")} if c.family.beside else {}
        is_near = window is not None and word == "near"
        part |= {"indexer": view.counts("blocks", "model.attention.indexer")} if word == "blocks" else {}
        part |= {key: keys[key] for key in ("reuses", "across") if key in keys}
        part |= {"qk_norms": True} if keys.get("across") == "alone" else {}
        return part | ({"window": view.count(c.family.window, path="model.attention.window")} if is_near else {})

    return _kinds(words, of_layers, make)


def _state(c: Config, hidden: int, path: str) -> dict[str, Any]:
    """Return the part of layers with a state, whose origins go to `path`."""
    family, kind = c.family, c.family.state.get("kind", "")
    insist(kind, c.where_is("layer_types"), "layers with a state are of a family that has some", c.family.config)
    part: dict[str, Any] = dict(family.state)
    parts = PARTS[family.state_part or kind]
    expand, inner = c.stated("mamba_expand", "expand"), c.stated("mamba_d_ssm", "mamba_intermediate_size")
    inner = inner or f"{expand or 2} hidden_size"
    each = " / ".join(["", *filter(None, [c.stated(*parts.get("heads", ()))])])
    usual: dict[str, Any] = {"mamba.rank": -(-hidden // 16), "mamba.heads": inner, "mamba2.head_size": inner + each}
    for field, keys in parts.items():
        part[field] = c.count(*keys, path=f"{path}.{field}", derived=usual.get(f"{kind}.{field}"))
    biased = [end for key, ends in family.state_biases.items() if not key or c.flag(key) for end in ends.split()]
    return part | ({"biases": biased} if biased else {})


def _grouped_query_attention(c: Config, hidden: int) -> dict[str, Any]:
    path, family, heads_of, keys = "model.attention", c.family, "num_attention_heads", ("head_dim", "kv_channels")
    is_made = "head_dim" in family.implied or ("positions" in family.tables and "head_dim" not in family.defaults)
    sign = "/" if is_made or not family.model.get("head", True) else "//"  # such, and towers, refuse what others round
    heads, width = c.count(heads_of, path=f"{path}.heads"), f"{'2 ' * bool(family.hybrid)}hidden_size {sign} {heads_of}"
    kv_heads = c.count("num_key_value_heads", "multi_query_group_num", path=f"{path}.kv_heads", derived=heads_of)
    head_size = c.made(width) if is_made else c.count(*keys, path=f"{path}.head_size", derived=width)
    biased = {letter for key, letters in family.biases.items() if not key or c.flag(key) for letter in letters}
    norms = c.flag(family.qk_norms) if family.qk_norms in family.defaults else family.qk_norms
    v_head = c.count("v_head_dim", path=f"{path}.v_head", derived=head_size)
    part = {"kind": "gqa", "heads": heads, "kv_heads": kv_heads, "head_size": head_size}
    more = {"biases": [*filter(biased.__contains__, "qkvo")], "qk_norms": norms, "sink_logits": family.sink_logits}
    more["v_head"] = v_head if v_head != head_size else None
    return {**part, **{key: value for key, value in more.items() if value}, **family.attention}


def _latent_attention(c: Config) -> dict[str, Any]:
    c.used |= {"num_key_value_heads", "head_dim"}  # each head has its own key, whose width other keys state
    part: dict[str, Any] = {"kind": "mla", **c.counts("mla", "model.attention"), **c.family.attention}
    if c.get("turned") == 0:  # a layer without positions, whose keys are made of latents alone
        part |= {"qk_nope": part["qk_nope"] + part["qk_rope"], "qk_rope": 0}
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


# feed-forwards


def _feed_forwards(c: Config, types: list[str], of_layers: list[Keys], hidden: int) -> Kinds:
    family, routed = c.family, PARTS["experts"]["routed"]
    of_experts = SETS["of_experts"] | {family.keys.get(key, key) for key in SETS["of_experts"]}
    c.used |= set() if any(map(c.data.get, routed)) else of_experts
    words = ["dense"] * len(types)
    some = {*routed} & {*family.defaults} and family.config not in SETS["dense_without_experts"]
    some = family.experts and (c.get(*routed) or some or not (family.width in family.usual or c.stated(family.width)))
    if family.single:
        words = [{"mlp": "dense", "moe": "moe", "both": "dense"}.get(WORDS[word], "none") for word in types]
    elif some:
        words = fed_by(c, len(types))
    c.used |= {family.width} if "dense" not in words else set()
    c.used |= of_experts | {family.expert_width} if family.experts and not {"moe", "hash"} & {*words} else set()

    def make(word: str, keys: Keys) -> dict[str, Any]:
        view, path = c.view({}, keys), "model.feed_forward" if word == words[-1] else "model.others"
        if word == "none" or keys.get("absent", [False])[-1]:
            return {"kind": "none"}
        biases = view.flag(biased) if isinstance(biased := family.ffn_biases, str) else biased
        more: dict[str, Any] = ({"biases": True} if biases else {}) | family.feed_forward
        if word in ("moe", "hash"):
            insist(biases in (False, biased), c.where_is(str(biased)), "no expert has biases", "true", CAPTURE)
            return _experts(view, path, has_bias=family.router_bias and word == "moe") | more
        width = view.count(family.width, path=f"{path}.width")
        times, multiple = view.get("block_ffn_dim_multiplier"), view.count("block_multiple_of", derived=1)
        if view.flag("block_auto_adjust_ff_dim"):  # two thirds, times a factor, as a multiple of some number (LFM2)
            fits, where = times is None or (type(times) in (int, float) and 0 < times < 100), "block_ffn_dim_multiplier"
            insist(fits, view.where_is(where), "this is a number above 0", repr(times))
            width = 2 * width // 3 if times is None else -(-int(times * (2 * width // 3)) // multiple) * multiple
        return {"kind": "dense", "width": width, **more}

    return _kinds(words, of_layers, make)


def _experts(c: Config, path: str, *, has_bias: bool) -> dict[str, Any]:
    family, part = c.family, {"kind": "experts", **c.counts("experts", path)}
    part["width"] = c.count(family.expert_width, path=f"{path}.width")
    c.used |= {"n_group", "topk_group"}  # which change nothing that counts
    latent = c.count("moe_latent_size", least=0, path=f"{path}.latent", derived=0)
    more: dict[str, Any] = {"router_bias": has_bias, "latent": latent}
    more["zero"] = c.count("zero_expert_num", least=0, path=f"{path}.zero", derived=0)
    shared = c.count("n_shared_experts", least=0, path=f"{path}.shared", derived=family.shared)
    wide = c.count(family.shared_width, least=0, path=f"{path}.shared_width") if shared and family.shared_width else 0
    if shared and (wide or not family.shared_width):
        more |= {"shared": shared, "shared_gate": family.shared_gate, "shared_width": wide}
    return part | {field: value for field, value in more.items() if value}
