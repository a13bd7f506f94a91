"""Hugging Face's ``config.json``: turns a decoder's dimensions into a workload, with the key of each figure as origin.

``hf_families.toml`` holds the meaning and the default of each key. A key of the file is either used, known to change
nothing that hosim counts, or reported as dropped.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from difflib import SequenceMatcher
from math import prod
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from simulator.builders import check
from simulator.document import inside
from simulator.errors import ConfigError, insist
from simulator.faults import faults
from simulator.importers.hf_kept import quantized
from simulator.importers.hf_keys import ALIASES, CAPTURE, FAMILIES, PARTS, TIES, TOWERS, UNBUILT, Config, is_irrelevant
from simulator.importers.hf_model import whole_model_of
from simulator.importers.imported import Imported, named
from simulator.importers.recordings import json_of
from simulator.inputs import shown
from simulator.units import FieldError, suggestion
from simulator.workload import Workload

# Largest file (real ones have some kB); default tokens of a sequence.
_MOST_BYTES, _DEFAULT_SEQUENCE = 16_000_000, 4096
# Keys of a multimodal model's decoder; and keys beside it that apply to the decoder, too.
_DECODERS = ("text_config", "llm_config", "language_config", "thinker_config", "decoder")
_OF_BOTH = ("quantization_config", "quantization", "tie_word_embeddings", "torch_dtype", "dtype")
# Fields of the workload that options set.
_OPTION_FIELDS = ("batch", "sequence", "chunk", "new_tokens", "kv", "parallel", "requests")
# What an option is called whose field has another name.
_OPTIONS = {"kv": "block", "count": "requests", "output": "answer"}
_READ_HERE = {*_OF_BOTH, "max_position_embeddings", "seq_length"}
_JOINS = ("rows", "pooled")  # fields of a part of an end
_DTYPES = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}
_BEHIND = "what takes a tower's output to the decoder (multi_modal_projector)"
# Parts of a name that say that weights are kept otherwise than they are computed.
_KEPT = re.compile(r"(nv|mx|n)fp?4|fp8|awq|gptq|int[48]|[48]-?bit|w[48]a(8|16)", re.IGNORECASE)
Phase = Literal["train", "prefill", "decode", "requests"]


def read_hf(  # noqa: PLR0913 - the command has an option for each
    source: str | Path,
    *,
    part: Literal["decoder", "encoder", "vision", "audio"] = "decoder",
    phase: Phase | None = None,
    batch: int | None = None,
    sequence: int | None = None,
    chunk: int | None = None,
    new_tokens: int | None = None,
    block: int | None = None,
    kv_cache: Literal["bf16", "fp16", "fp32", "fp8"] | None = None,
    experts: Literal["together", "grouped", "each"] | None = None,
    tensor: int = 1,
    data: int = 1,
    expert: int = 1,
    pipeline: int = 1,
    zero_stage: int = 0,
    requests: int | None = None,
    prompt: int | None = None,
    answer: int | None = None,
) -> Imported:
    """Read the ``config.json`` of a decoder, and make a workload from it.

    Parameters
    ----------
    source
        The file, or the folder that holds it.
    part
        Which part of the model: its decoder (of a model that is one encoder, that), the encoder before it, or a tower.
    phase
        What the model runs: a training step (train); reading prompts (prefill); adding tokens to sequences (decode); or
        serving requests that come and leave (requests, for `hosim serve`). Default: decode; of an encoder, prefill.
    batch
        Sequences in the batch; default: 1.
    sequence
        Tokens of each sequence; with decode, those in the KV cache before the step; default: 4,096, or the model's
        maximum if that is less.
    chunk
        With prefill: tokens of each prompt that run at a time (chunked prefill); default: all.
    new_tokens
        With decode: tokens that a step adds to each sequence; default: 1.
    block
        With prefill and decode: tokens per block of the KV cache; default: a layer's whole cache is one tensor.
    kv_cache
        With prefill, decode and requests: data type of the KV cache; default: that of arithmetic.
    experts
        With prefill and decode: the experts of a layer share one tensor for each matrix (together), and perhaps one
        grouped kernel (grouped); or each expert is a tensor of its own, read only if chosen (each).
    tensor
        Ranks that share each layer (tensor parallelism).
    data
        With train and requests: replicas, each with its own samples or requests (data parallelism).
    expert
        With train and requests: ranks that share the experts of a layer: a divisor of `data`, or all ranks.
    pipeline
        With train: stages, each with some of the layers (pipeline parallelism).
    zero_stage
        With train: what ZeRO shards over the replicas (1: optimizer state, 2: gradients too, 3: weights too; default:
        nothing).
    requests
        With requests: number of requests, which arrive at two a second on average; default: 100.
    prompt
        With requests: mean tokens per prompt; default: 2,048.
    answer
        With requests: mean tokens per answer; default: 256.

    Raises
    ------
    ConfigError
        If the file cannot be read; if its ``model_type`` is unknown or has parts that hosim cannot build; or if an
        option does not suit the phase or the model.
    """
    path = Path(source, "config.json") if Path(source).is_dir() else Path(source)
    outer = _parsed(path)
    config, dropped = _decoder(outer, shown(path)) if part == "decoder" else _part(outer, part, shown(path))
    model = whole_model_of(config)
    phase = phase or ("decode" if model.get("causal", True) else "prefill")
    rows = model.get("positions") or max(sequence or 0, _DEFAULT_SEQUENCE)
    limit = config.count("max_position_embeddings", "seq_length", derived=rows)
    wanted = _tokens(limit, model, (new_tokens or 1) if phase == "decode" else 0) if sequence is None else sequence
    if wanted > limit:
        config.derived.append(f"{wanted:,} tokens are more than the model's {limit:,} positions.")
    axes = {"tensor": tensor, "data": data, "expert": expert, "pipeline": pipeline, "zero_stage": zero_stage}
    axes = {axis: size for axis, size in axes.items() if size != (axis != "zero_stage")}
    asked: dict[str, Any] = {"batch": 1 if batch is None else batch, "sequence": wanted}
    if arriving := _arrivals(phase, requests=requests, prompt=prompt, answer=answer):
        asked = {"batch": batch, "sequence": sequence, "requests": arriving}
    asked |= {"chunk": chunk, "new_tokens": new_tokens, "experts": experts}
    asked |= {"kv": None if block is None else {"block": block}, "parallel": {"ranks": "all", **axes} if axes else None}
    name, cache = named(_name(outer, path)), {"kv_cache": kv_cache} if kv_cache else {}
    document: dict[str, Any] = {"name": name, "title": f"{name}, {phase}", "model": model, "phase": phase}
    document["dtypes"] = _dtypes(config, path, phase, model) | cache
    _check_read(config)
    document |= {key: value for key, value in asked.items() if value is not None}
    workload = _validated(document | _origins(config, document), config)
    left, derived = dict.fromkeys(config.left(), 1), tuple(dict.fromkeys(config.derived))
    return Imported({".yaml": workload}, derived=derived, dropped=left | dropped)


def _tokens(limit: int, model: dict[str, Any], added: int) -> int:
    """Return the tokens of a sequence, if no option says them: most, but no more than the model has positions for."""
    tokens: int = min(_DEFAULT_SEQUENCE, limit - added * bool(model.get("positions")))
    joined: int = prod(part.get(key, 1) for parts in model.get("mergers", [])[:1] for part in parts for key in _JOINS)
    return tokens - int(tokens - model.get("registers", 0)) % joined


def _arrivals(phase: str, **options: int | None) -> dict[str, Any]:
    """Return requests that arrive at random; nothing in other phases."""
    given = {option: value for option, value in options.items() if value is not None}
    first, found = next(iter(given), ""), f"it with phase {phase}"
    insist(phase == "requests" or not given, f"--{first}", f"{first} is for phase requests", found, "remove it")
    count, prompt, answer = ({"requests": 100, "prompt": 2048, "answer": 256} | given).values()
    requests = {"count": count, "prompt": {"mean": prompt}, "output": {"mean": answer}}
    return requests | {"arrivals": {"process": "poisson", "interval": "500 ms"}} if phase == "requests" else {}


def _parsed(path: Path) -> dict[str, Any]:
    config = json_of(path, _MOST_BYTES)
    must, do = "a config.json is an object that names its model_type", "name the file config.json of a model"
    insist(isinstance(config, dict), shown(path), must, f"a {type(config).__name__}", do)
    return dict(config)


def _decoder(outer: dict[str, Any], where: str, section: str = "") -> tuple[Config, dict[str, int]]:
    """Return the keys of the decoder, and as dropped the keys beside it; `section` leads to these in the file."""
    is_one = outer.get("model_type") in (*FAMILIES,)  # whose own keys say all
    key_of_decoder = next((key for key in _DECODERS if key in outer and not (is_one and key == "decoder")), "")
    inner = outer[key_of_decoder] if key_of_decoder else outer
    insist(isinstance(inner, dict), f"{where}, {section}{key_of_decoder}", "this is an object", repr(inner))
    ties, way = "tie_word_embeddings", TIES.get(str(outer.get("model_type")), "") if key_of_decoder else ""
    passed = {ties} if way in ("inside", "never") or (way == "either" and inner.get(ties) is True) else set()
    shared = {key: outer[key] for key in _OF_BOTH if key in {*outer} - passed}
    inside = f"{section}{key_of_decoder}." if key_of_decoder else section
    if any(key in inner for key in _DECODERS) and key_of_decoder:  # a part that speaks stands beside one that thinks
        config, dropped = _decoder(shared | inner, where, inside)
        config.places |= {key: f"{section}{key}" for key in shared.keys() - inner.keys()}
        return config, dropped | {key: 1 for key in outer if key != key_of_decoder and not is_irrelevant(key)}
    kind = inner.get("model_type") or outer.get("model_type")
    name = ALIASES.get(kind, kind) if isinstance(kind, str) else None
    if name not in FAMILIES:
        lacks = UNBUILT.get(str(kind), "")
        found = "none" if kind is None else f"{kind!r}, which {f'has {lacks}' if lacks else 'it does not know'}"
        do = CAPTURE if lacks else f"{'add it; ' * (kind is None)}{_nearest(inner, str(kind))}; {CAPTURE}"
        raise ConfigError(f"{where}, {inside}model_type", "a family is one that hosim knows", found, do)
    dropped = {f"{tower} (a tower beside the decoder)": 1 for tower in TOWERS if outer.get(tower)}
    names = [_found(outer, tower.partition("_")[0])[-1] for tower in TOWERS if outer.get(tower)]
    dropped |= {} if all(name and FAMILIES[name].merger for name in names) else {_BEHIND: 1}
    if key_of_decoder:
        used = {key_of_decoder, "model_type", "encoder", "text_encoder", *shared, *TOWERS}
        dropped |= {key: 1 for key in outer if key not in used and not is_irrelevant(key)}
    if way == "never" and ties in {*outer, *inner}:
        dropped[f"{ties} (no such class ties them)"] = 1
    inner = {key: value for key, value in inner.items() if key not in (*TOWERS, *[ties] * (way == "never"))}
    towers = {tower: outer[tower] for tower in (*TOWERS, "encoder") if isinstance(outer.get(tower), dict)}
    of_towers = {f"{tower}.{key}": value for tower, keys in towers.items() for key, value in keys.items()}
    config = Config(of_towers | inner | shared, FAMILIES[str(name)], where, inside)
    config.places |= {key: f"{section}{key}" for key in (*shared, *of_towers)}
    return config, dropped


def _part(outer: dict[str, Any], part: str, where: str) -> tuple[Config, dict[str, int]]:
    """Return the keys of an encoder or a tower, and of what takes its output to the decoder, or that as dropped."""
    outer = {**(held if isinstance(held := outer.get("thinker_config"), dict) else {}), **outer}
    tower, inner, kinds, name = _found(outer, part)
    has = [f"--part {other}" for other in ("encoder", "vision", "audio") if _found(outer, other)[-1]]
    must = f"a model has the part, {part}, and hosim knows it"
    do = f"{CAPTURE}, or choose {' or '.join(has) or 'the decoder: leave --part out'}"
    found = f"{', '.join(map(repr, kinds)) or 'no model_type'}, {'which is not known' if tower else 'without one'}"
    insist(name, f"{where}, {tower or 'model_type'}", must, found, do)
    taken, must = outer.get("vision_feature_layer"), "a projector takes one layer's output"
    is_one = not (isinstance(taken, list) and len(taken) > 1)
    insist(is_one, f"{where}, vision_feature_layer", must, f"{taken!r:.60}", CAPTURE)
    section = next((f"{key}." for key, value in outer.items() if value is inner), "")
    data = {key: outer[key] for key in _OF_BOTH[-2:] if key in outer} | inner
    c = Config({f"whole.{key}": value for key, value in outer.items()} | data, FAMILIES[name], where, section)
    if "whole.width" in repr(c.family.merger):
        decoder, _ = _decoder(outer, where)
        c.data["whole.width"] = decoder.count("hidden_size", path="model.mergers")
        c.places["whole.width"] = decoder.path_of("hidden_size")
        c.defaults_taken = {decoder.named(key): value for key, value in decoder.defaults_taken.items()}
    return c, {_BEHIND: 1} if tower in TOWERS and not c.family.merger else {}


def _found(outer: dict[str, Any], part: str) -> tuple[str, dict[str, Any], list[str], str]:
    """Return the key of a part, if it has one, the keys in it, what these name it, and its family, if it is known."""
    towers = ("encoder", "text_encoder") if part == "encoder" else [key for key in TOWERS if key.startswith(part)]
    tower = next((key for key in towers if isinstance(outer.get(key), dict)), "")
    nested = (outer[key] for key in _DECODERS if isinstance(outer.get(key), dict))
    inner = outer[tower] if tower else next(nested, outer)
    stated = (inner.get("model_type"), outer.get("model_type"))
    kinds = [*dict.fromkeys(kind for kind in stated if isinstance(kind, str))]
    alone = [name for kind in kinds[:1] if tower for name in (f"{kinds[-1]} {kind}", f"{kind} as {part}", kind)]
    names = [ALIASES.get(name, name) for name in (*(f"{kind} {part}" for kind in kinds), *alone)]
    name = next((name for name in names if name in FAMILIES and not FAMILIES[name].model.get("head", True)), "")
    return tower, inner, kinds, name


def _check_read(c: Config) -> None:
    """Refuse keys that state sizes which nothing reads."""
    unread, kind = c.sizes(), str(c.own.get("model_type", c.family.config))
    must = f"each key that states a size or a structure is one that hosim reads of {kind!r}"
    found = ", ".join(f"{c.named(key)} {json.dumps(c.data[key])[:30]}" for key in unread)
    if unread:
        sizes = {*c.family.defaults, *c.family.keys.values()} - {*c.family.implied, *c.family.sums, *c.data}
        close, do = suggestion(unread[0], sizes), f"{CAPTURE}, or remove a key if the model does without it"
        do = f"correct the key{close}; " * bool(close) + f"{_nearest(c.own, kind)}; {do}"
        raise ConfigError(c.where_is(unread[0]), must, found, do)


def _nearest(data: Mapping[str, Any], kind: str) -> str:
    """Name the families that read the most of some keys, and what each would not read, or refuses."""
    tried, has = list[tuple[bool, float, str]](), "has all these keys" if len(data) > 1 else "by its name alone"
    for name, family in FAMILIES.items():
        if name == kind or " " in name:  # a part of a model
            continue
        named = (*PARTS["model"]["layers"], family.keys.get("num_hidden_layers", ""))
        few = {key: min(value, 12) for key in named if type(value := data.get(key)) is int}  # which tell as much
        c, refused = Config({key: data[key] for key in data.keys() - _READ_HERE} | few, family, ""), ""
        try:
            whole_model_of(c)
        except ConfigError as error:
            refused = f"refuses {error.where.removeprefix(', ')}"
        unread = [*map(c.named, c.sizes())]
        left = f"would not read {', '.join(unread[:3])}{' ...' * (len(unread) > 3)}" if unread else ""
        text = " and ".join(filter(None, [left, refused])) or has
        alike = max(c.is_own, SequenceMatcher(None, name, kind[:100]).ratio())
        # So a refusal counts as three keys, and the very name as six: families alike come first among those near.
        far = len(unread) + 3 * bool(refused) - 6 * alike
        tried.append((alike < 0.8, far, f"{name} ({text})"))  # so alike are versions of a family (deepseek_v3, v4)
    return f"nearest are {', '.join(text for _, _, text in sorted(tried)[:3])}".replace("\n", "\\n")


def _name(outer: Mapping[str, Any], path: Path) -> str:
    name = str(outer.get("_name_or_path") or "").rstrip("/").rpartition("/")[2]
    return name or (path.absolute().parent.name if path.stem == "config" else path.stem)


def _dtypes(c: Config, path: Path, phase: str, model: dict[str, Any]) -> dict[str, Any]:
    """Return the data types of arithmetic and weights, and of the KV cache if the file states it."""
    name = c.get("dtype", "torch_dtype")
    compute = _DTYPES.get(name.removeprefix("torch.")) if isinstance(name, str) else None
    if compute is None:
        lacks = "no type for arithmetic (torch_dtype)" if name is None else f"{name!r}, in which no arithmetic is done"
        c.derived.append(f"bf16, as config.json names {lacks}.")
    dtypes: dict[str, Any] = {"compute": compute or "bf16"}
    beside = path.with_name("hf_quant_config.json")  # as ModelOpt writes it
    states = _DTYPES.get(str(c.get("mamba_ssm_cache_dtype", "mamba_ssm_dtype")))
    dtypes |= {"states": states} if states and phase != "train" else {}
    stated = c.get("quantization_config", "quantization") or (_parsed(beside) if beside.is_file() else None)
    if stated and phase == "train":
        c.derived.append("Training is in the type of arithmetic; quantization_config is of weights that only infer.")
    elif stated:
        dtypes |= quantized(stated, c, model, dtypes["compute"])
    elif kept := _KEPT.search(f"{_name(c.data, path)} {path.absolute().parent.name} {path.name}"):
        lacks = f"neither config.json nor {beside.name} beside it says how weights are kept"
        c.derived.append(f"Weights count as computed: the name says {kept[0]}, but {lacks}.")
    return dtypes


def _origins(c: Config, document: dict[str, Any]) -> dict[str, Any]:
    """Return the origin of each figure: a key of the file, a default of transformers, or an option."""
    if c.defaults_taken:
        defaults = ", ".join(f"{key} {value}" for key, value in c.defaults_taken.items())
        c.derived.insert(0, f"Defaults of {c.version}, as config.json lacks them: {defaults}.")
    stated = {path: [{"from": text, "basis": basis}] for path, _, _, text, basis in c.found}
    sources = {path: stated[path] for path in sorted(stated) if inside(document, path.split(".")) is not None}
    sources["model"] = [{"from": f"config.json ({c.data.get('model_type', c.family.config)})", "basis": "quoted"}]
    assumed = [key for key in document if key in _OPTION_FIELDS]
    return {"sources": sources, "assumed": dict.fromkeys(assumed, "chosen when it was imported; change it to yours")}


def _validated(document: dict[str, Any], c: Config) -> Workload:
    """Make the workload, and check it like a document written by hand."""
    try:
        workload = Workload.model_validate(document)
        check(workload)
    except ValidationError as error:
        raise _by_its_keys(faults(error, document)[0], document, c) from None
    except ConfigError as error:
        place = error.where.removeprefix(f"workload {document['name']}")
        fault = FieldError(error.must, error.found, error.do, (*place.removeprefix(", ").split("."),))
        is_field = fault.path[0] in document
        raise (_by_its_keys(fault, document, c) if is_field else fault.at(f"{c.where}{place}")) from None
    return workload


def _by_its_keys(fault: FieldError, document: dict[str, Any], c: Config) -> ConfigError:
    """Say what is wrong with a field of the workload by the keys of the file, or by the option that set it."""
    path = fault.path

    def likeness(entry: tuple[str, Any, str, str, str]) -> tuple[bool, bool]:
        *inner, name = entry[0].split(".")
        return inside(document, (*path[:-1], name)) == entry[1], inner[-1:] == [*path[-2:-1]]

    keys = {place.rpartition(".")[2]: key for place, _, key, *_ in sorted(c.found, key=likeness)}
    rule, defaults = re.findall(r"\w+", fault.must), {*map(c.named, c.defaults_taken)}
    about = [keys[name] for name in (path[-1], rule[0], rule[-1]) if name in keys]  # a rule of two has them at its ends
    others = (*about, *(keys[name] for name in rule if name in keys), "")  # a default is blamed last
    key = next((key for key in about if key not in defaults), others[0])
    where, do = (f"{c.where}, {key}", fault.do) if key else (c.where, f"correct the keys that say so, or {CAPTURE}")
    if path[0] in (*_OPTION_FIELDS, "phase", "experts") or path[-1] == "kv_cache":
        where = f"--{_OPTIONS.get(path[:2][-1], path[:2][-1]).replace('_', '-')}"
        do = fault.do.replace(".".join(path), where)
    elif key in c.lacks:
        do = f"correct what it is made of, or add {c.lacks[key]}"
    return FieldError(fault.must, fault.found, do, path).at(where, keys)
