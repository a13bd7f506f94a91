"""How the weights of a model are kept, from the ``quantization_config`` of a ``config.json``.

It states a data type, and names the modules that have it, or have it not; the table ``hf_families.toml`` lists what
files call the matrices of hosim. Patterns are regular expressions in some files: those that are no more than words,
gaps and alternatives are read, and no other.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from fnmatch import fnmatchcase, translate
from itertools import islice
from math import prod
from typing import Any

from pydantic import ValidationError

from simulator.builders.specs import specs
from simulator.errors import ConfigError, insist
from simulator.importers.hf_keys import ALGORITHMS, METHODS, MODULES, PLAIN, Config
from simulator.inputs import globs_of
from simulator.workload import DecoderModel, Experts, Recurrent

# What may stand before the layers in a name; and the most patterns that a workload gets.
_PREFIX = re.compile(r"(\*\.)?((model|language_model|text_model|backbone|transformer|llm|decoder|thinker)\.)+")
_MOST = 256
# Names that rules have where a file need not have them, or their matrices.
_IMPLIED = ("lm_head", "embed_tokens", "*.experts")

Rule = tuple[list[str], str]
"""Names or patterns of modules, and how these are kept: ``""`` as computed."""


def quantized(config: Any, c: Config, model: dict[str, Any], compute: str) -> dict[str, Any]:
    """Return the dtypes that a quantized model states: ``weights``, ``experts`` and ``others``, perhaps ``kv_cache``.

    Parameters
    ----------
    config
        The value of ``quantization_config``.
    c
        Collects what was derived.
    model
        The model, as a document says it.
    compute
        The data type of arithmetic.

    Raises
    ------
    ConfigError
        If hosim does not know the quantization.
    """
    where = c.where_is("quantization_config", "quantization")
    config = config.get("quantization", config) if isinstance(config, dict) else config
    insist(isinstance(config, dict), where, "this is an object", repr(config))
    odd = [key for key in ("dynamic", "extra_config") if not isinstance(config.get(key) or {}, dict)]
    insist(not odd, f"{where}, {''.join(odd[:1])}", "this is an object", f"{[config[key] for key in odd]!r:.80}")
    usual, rules = _rules(config, c, where)
    if config.get("expert_dtype", c.get("expert_dtype")) == "fp4" and usual:  # of DeepSeek-V4
        rules.append((["*.experts"], "mxfp4"))
    cache = config.get("kv_cache_quant_algo") or config.get("kv_cache_scheme")
    is_fp8 = cache == "FP8" or (isinstance(cache, dict) and (cache.get("num_bits"), cache.get("type")) == (8, "float"))
    try:
        kept, most = _kept(DecoderModel.model_validate(model), usual, rules, c)
    except ValidationError:  # which is told where the workload is made
        return {}
    weights = most.get("weight", "")
    dtypes: dict[str, Any] = {"weights": weights} if weights else {}
    dtypes |= {"experts": most["expert"] or compute} if most.get("expert", weights) != weights else {}
    others, left = dict[str, str](), {name: dtype for name, (kind, dtype) in kept.items() if dtype != most[kind]}
    while left and len(others) <= _MOST:  # each pattern is as wide as all that fits it is kept alike
        name, dtype = next(iter(left.items()))
        block, module = name.split("/")
        first, second, *_ = module.split(".")
        ways = (f"*/{first}.*", f"*/{first}.{second}.*", f"*/{module}", f"{block}/*", f"{block}/{first}.*", name)
        for pattern in ways if block[0] == "L" else [name]:
            if all(kept[other][1] == dtype for other in kept if fnmatchcase(other, pattern)):
                break
        others[pattern] = dtype or compute
        left = {other: dtype for other, dtype in left.items() if not fnmatchcase(other, pattern)}
    c.derived += ["More matrices are kept otherwise than a workload has patterns: they count as most."] * bool(left)
    return dtypes | ({"others": others} if others and not left else {}) | ({"kv_cache": "fp8"} if is_fp8 else {})


def _rules(config: dict[str, Any], c: Config, where: str) -> tuple[str, list[Rule]]:
    """Return how matrices of layers are kept that no rule is about, and the rules, of which the first that fits counts.

    What else must be known is noted.
    """
    method, algorithm = config.get("quant_method"), str(config.get("quant_algo")).upper()
    bits, group = config.get("bits", config.get("w_bit")), config.get("group_size", config.get("q_group_size"))
    dynamic = {f"re:{key.removeprefix('+:')}": about for key, about in (config.get("dynamic") or {}).items()}
    plain = [f"re:{key[5:]}" for key in dynamic if key.startswith("re:-:")]  # as GPTQModel writes it
    rules: list[Rule] = [(_names(next(filter(None, map(config.get, PLAIN)), []), where) + plain, "")]
    layers, usual, algorithms = config.get("quantized_layers"), "", {algorithm}
    if method is None and bits and isinstance(group, int):
        method, group = "gptq", group // 2  # MLX keeps a scale and an offset for each group, of tables, too
        rules.append((["lm_head", "embed_tokens"], _number(bits, group, where, c)))
    if method == "mxfp4":
        c.derived.append("Routed experts are kept as mxfp4 (quantization_config), all else as computed.")
        rules.append((["*.experts"], "mxfp4"))
    elif method in ("fp8", "fbgemm_fp8"):
        block, must, usual = config.get("weight_block_size"), "a block has two sizes, whole numbers from 1", "fp8"
        fits = isinstance(block, list) and [type(size) is int and size > 0 for size in block] == [True, True]
        insist(fits or block is None, f"{where}, weight_block_size", must, repr(block))
        c.derived += ["Scales of fp8 count as one for each block of 128 x 128."] * (block != [128, 128])
    elif method == "bitsandbytes":
        usual = "nf4" if config.get("load_in_4bit") else _number(8, group, where, c)
    elif method in ("auto-round", "awq", "gptq"):
        usual, apart = _number(bits, group, where, c), {**config, **dynamic, **(config.get("extra_config") or {})}
        few = {key: value.get("bits", 16) for key, value in apart.items() if isinstance(value, dict) and value}
        few |= {key: bits if value else 16 for key, value in apart.items() if value is False or key == "lm_head"}
        rules[:0] = [([key], "" if size == 16 else _number(size, group, where, c)) for key, size in few.items()]
    elif isinstance(layers, dict) and algorithm not in ALGORITHMS:
        of_kind = dict[str, list[str]]()
        for name, about in layers.items():
            of_kind.setdefault(str(about.get("quant_algo") if isinstance(about, dict) else ""), []).append(name)
        algorithms = {*of_kind}
        insist(algorithms <= {*ALGORITHMS}, where, "these are known", f"{sorted(algorithms - {*ALGORITHMS})[:3]}")
        rules += [(names, ALGORITHMS[kind]) for kind, names in of_kind.items()]
    elif method == "compressed-tensors" or (algorithm not in ALGORITHMS and "config_groups" in config):
        usual = _of_groups(config.get("config_groups"), rules, c, where)
    elif method in ("modelopt", None) and algorithm in ALGORITHMS:
        usual = ALGORITHMS[algorithm]
    else:
        do = f"use one of {', '.join(METHODS)}, or remove quantization_config to count weights as they are computed"
        raise ConfigError(where, "how weights are kept is known", f"quant_method {method!r}", do)
    c.derived += ["MXFP8 counts as fp8, with its scales."] * ("MXFP8" in algorithms)
    return usual, rules


def _names(listed: Any, where: str) -> list[str]:
    listed = [listed] if isinstance(listed, str) else listed
    fits = isinstance(listed, list) and all(isinstance(name, str) for name in listed)
    insist(fits, where, "modules are named in a list", f"{listed!r:.80}")
    return list(listed)


def _of_groups(groups: Any, rules: list[Rule], c: Config, where: str) -> str:
    """Add the rules of compressed-tensors, and return how all else is kept: as the group of a class of modules."""
    usual = ""
    for about in (list(groups.values()) if isinstance(groups, dict) else []) or [{}]:
        kept: Any = about.get("weights") if isinstance(about, dict) else None
        insist(isinstance(kept, dict), f"{where}, config_groups", "a group says how weights are kept", repr(groups))
        targets, is_float = _names(about.get("targets") or ["Linear"], where), kept.get("type") == "float"
        dtype = _number(kept.get("num_bits"), kept.get("group_size"), where, c, is_float=is_float)
        names = [name for name in targets if not name[:1].isupper()]
        rules.append((names + ["lm_head"] * ("Linear" in targets), dtype))
        usual = dtype if len(names) < len(targets) else usual
    return usual


def _number(bits: Any, group: Any, where: str, c: Config, *, is_float: bool = False) -> str:
    """Return the dtype of numbers that share a scale in groups."""
    must = f"{'floats' if is_float else 'integers'} are kept in 4 or 8 bits"
    insist(bits in (4, 8), f"{where}, bits", must, repr(bits), "remove quantization_config to count as computed")
    fits = group in (None, -1) or (type(group) is int and group > 0)
    insist(fits, f"{where}, group_size", "a group has a size from 1 on, or is all of a row (-1)", repr(group))
    if is_float or bits == 8:
        dtype = "fp8" if bits == 8 else "nvfp4" if group == 16 else "mxfp4"
        note = "" if is_float else "Integers of 8 bits count as fp8, with its scales."
    else:
        dtype = {128: "int4", 32: "int4_of_32"}.get(group, "") if isinstance(group, int) else ""
        note = "" if dtype else f"Scales of int4 count as one for 128 inputs, not {group!r:.40}."
    c.derived += [note] * bool(note)
    return dtype or "int4"


def _named(entries: list[str], c: Config, experts: int) -> dict[str, str]:
    """Return of each entry a regular expression of the modules that it names, or that are in one, unless it says more.

    A name stands for what it ends, and for parts of that; a pattern for all that it fits. Of a layer's experts, of
    which there are so many, all count like most of them.
    """
    texts, alike = dict[str, str](), defaultdict[str, list[str]](list)
    for name in dict.fromkeys(entries):
        alike[re.sub(r"\bexperts\.(\d+)", lambda n: "experts.0" if int(n[1]) < experts else n[0], name)].append(name)
    some = {entry: names for entry, names in alike.items() if ".experts.0" in f".{entry}" and len(names) < experts}
    for names in [*some.values()][:1]:
        c.derived.append(f"{len(names)} of {experts:,} experts are named: all count like most ({names[0]:.60}).")
    for entry in (entry for entry in alike if entry not in some or 2 * len(some[entry]) >= experts):
        globs = globs_of(entry[3:]) if entry.startswith("re:") else [entry, "*." + entry][: 2 - ("*" in entry)]
        texts[entry] = "|".join(translate(_PREFIX.sub("", glob))[:-2] + r"(\..*)?\Z" for glob in globs)
        c.derived += [f"A pattern of modules is not understood, and leaves none out: {entry[:60]!r}."] * (globs == [])
    must, found = "at most 20,000 modules are named, all experts of a layer as one", f"{len(texts):,}"
    insist(len(texts) <= 20_000, c.where_is("quantization_config", "quantization"), must, found, "name less")
    return texts


Kept = dict[str, tuple[str, str]]
"""Matrix -> its kind, ``""`` if it counts apart, and how it is kept."""


def _kept(model: DecoderModel, usual: str, rules: list[Rule], c: Config) -> tuple[Kept, dict[str, str]]:
    """Return how each matrix is kept, and how most of a kind are."""
    experts = max((part.routed for _, part in model.kinds if isinstance(part, Experts)), default=0)
    stated = [(_named(entries, c, experts), dtype) for entries, dtype in rules]
    named = [(re.compile("|".join(filter(None, texts.values())) or "(?!)").match, dtype) for texts, dtype in stated]
    kept, sizes, every = Kept(), Counter[tuple[str, str]](), set[str]()
    for block, part in specs(model):
        is_layer = block[0] == "L"
        place = f"layers.{int(block[1:])}." if is_layer else ""
        has_state = is_layer and isinstance(model.layer(int(block[1:])).attention, Recurrent)
        for module, spec in part.items():
            if len(spec.shape) == 1 or module.endswith(".bias"):
                continue
            called = module.replace("attn.", "state.", has_state) if is_layer else f"{block}.{module}"
            first, _, rest = called.partition(".")
            words, ends = (MODULES.get(key, text).split() for key, text in ((first, first), (called, rest)))
            inside, kind = "experts.0." * (spec.kind == "expert"), spec.kind * (is_layer and module != "ffn.router")
            names = [f"{place}{word}.{inside}{end}" for word in words for end in ends]
            every.update(names)
            fitting = (dtype for fits, dtype in named if any(map(fits, names)))
            kept[f"{block}/{module}.weight"] = pair = kind, next(fitting, usual if kind else "")
            sizes[pair] += prod(spec.shape)
    texts = {name: text for texts, _ in stated for name, text in texts.items() if text and name not in _IMPLIED}
    idle = (name for name, text in texts.items() if not any(map(re.compile(text).match, every)))
    few = ", ".join(f"{name:.60}" for name in islice(idle, 3))
    c.derived += [f"No matrix here is what quantization_config names, such as: {few}"] * bool(few)
    return kept, dict(pair for pair, _ in sorted(sizes.items(), key=lambda item: item[::-1])) | {"": ""}
