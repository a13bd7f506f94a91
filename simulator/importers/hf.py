"""Hugging Face's ``config.json``: a decoder's dimensions become a workload, with the key that each figure comes from.

What a key means, and what holds where it is absent, is in `hf_families`. Each key of the file is used, known to change
nothing that is counted, or told as dropped.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from simulator.builders import check
from simulator.document import faults
from simulator.errors import ConfigError, insist
from simulator.importers.hf_families import ALSO, FAMILIES, TOWERS, VERSION, is_irrelevant
from simulator.importers.hf_model import Config, model_of
from simulator.importers.imported import Imported, named
from simulator.importers.recordings import json_of
from simulator.inputs import shown
from simulator.workload import Workload

_MOST_BYTES, _USUAL_SEQUENCE = 16_000_000, 4096
# Where a multimodal model says what its decoder is; and keys that stand outside of it and hold for it, too.
_DECODERS = ("text_config", "llm_config", "language_config")
_OF_BOTH = ("quantization_config", "quantization", "tie_word_embeddings", "torch_dtype", "dtype")
_ASKED = ("batch", "sequence", "chunk", "new_tokens", "kv", "parallel", "requests")
_DTYPES = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}
Phase = Literal["train", "prefill", "decode", "requests"]


def read_hf(  # noqa: PLR0913 - the command has an option for each
    source: str | Path,
    *,
    phase: Phase = "decode",
    batch: int | None = None,
    sequence: int | None = None,
    chunk: int | None = None,
    new_tokens: int | None = None,
    block: int | None = None,
    kv_cache: Literal["bf16", "fp16", "fp32", "fp8"] | None = None,
    experts: Literal["together", "grouped", "each"] | None = None,
    tensor: int = 1,
    data: int = 1,
    pipeline: int = 1,
    zero_stage: int = 0,
    requests: int | None = None,
    prompt: int | None = None,
    answer: int | None = None,
) -> Imported:
    """Read the ``config.json`` of a decoder, and make a workload of it.

    Parameters
    ----------
    source
        The file, or the folder that holds it.
    phase
        What the model does: a training step; read prompts; add tokens to sequences; or serve requests that come and
        leave (`hosim serve`).
    batch
        Sequences that run together; default: 1.
    sequence
        Tokens of each sequence, with decode those that are in the KV cache before the step; default: 4,096, or as many
        as the model knows positions for.
    chunk
        With prefill: tokens of each prompt that run at a time; default: all.
    new_tokens
        With decode: tokens that a step adds to each sequence; default: 1.
    block
        With prefill and decode: tokens of a block of the KV cache; default: a layer's cache is one tensor.
    kv_cache
        With prefill, decode and requests: the type that the KV cache is kept in; default: that of arithmetic.
    experts
        With prefill and decode: the experts of a layer lie together in a tensor for each matrix; the same, and one
        grouped kernel runs them; or each is a tensor, which is read only if it is chosen.
    tensor
        With all but requests: ranks that share each layer.
    data
        With train: replicas with samples of their own.
    pipeline
        With train: stages with some of the layers each.
    zero_stage
        With train: what is sharded over the replicas (1: optimizer state, 2: gradients too, 3: weights too; default:
        nothing).
    requests
        With requests: how many requests come, on average two a second; default: 100.
    prompt
        With requests: mean tokens of a prompt; default: 2,048.
    answer
        With requests: mean tokens of an answer; default: 256.

    Raises
    ------
    ConfigError
        If the file is none that can be read; if its ``model_type`` is unknown, or says what hosim cannot; or if an
        option does not suit the phase or the model.
    """
    path = Path(source, "config.json") if Path(source).is_dir() else Path(source)
    outer = _parsed(path)
    config, told = _decoder(outer, shown(path))
    limit = config.count("max_position_embeddings", "seq_length", derived=_USUAL_SEQUENCE)
    wanted = min(_USUAL_SEQUENCE, limit) if sequence is None else sequence
    if wanted > limit:
        config.derived.append(f"{wanted:,} tokens are more than the {limit:,} that the model knows positions for.")
    model = model_of(config)
    axes = {"tensor": tensor, "data": data, "pipeline": pipeline, "zero_stage": zero_stage}
    spread = {axis: number for axis, number in axes.items() if number != (axis != "zero_stage")}
    asked: dict[str, Any] = {"batch": 1 if batch is None else batch, "sequence": wanted}
    if come := _come(phase, requests=requests, prompt=prompt, answer=answer):
        asked = {"batch": batch, "sequence": sequence, "requests": come}
    asked |= {"chunk": chunk, "new_tokens": new_tokens, "experts": experts}
    asked["kv"] = None if block is None else {"block": block}
    asked["parallel"] = {"ranks": "all", **spread} if spread else None
    name, cache = named(_name(outer, path)), {"kv_cache": kv_cache} if kv_cache else {}
    document: dict[str, Any] = {"name": name, "title": f"{name}, {phase}", "model": model, "phase": phase}
    document["dtypes"] = _dtypes(config, path, phase) | cache
    document |= {key: value for key, value in asked.items() if value is not None}
    work = _validated(document | _origins(config, document), config)
    return Imported({".yaml": work}, {}, tuple(config.derived), _dropped(config) | told)


def _come(phase: str, **options: int | None) -> dict[str, Any]:
    """Requests that come at random; nothing in other phases."""
    given = {option: value for option, value in options.items() if value is not None}
    first, found = next(iter(given), ""), f"it with phase {phase}"
    insist(phase == "requests" or not given, f"--{first}", f"{first} is for phase requests", found, "remove it")
    number, asks, answers = ({"requests": 100, "prompt": 2048, "answer": 256} | given).values()
    come = {"count": number, "prompt": {"mean": asks}, "output": {"mean": answers}}
    return come | {"arrivals": {"process": "poisson", "interval": "500 ms"}} if phase == "requests" else {}


def _parsed(path: Path) -> dict[str, Any]:
    found = json_of(path, _MOST_BYTES, distinct=True)
    must, do = "a config.json is an object that names its model_type", "name the file config.json of a model"
    insist(isinstance(found, dict), shown(path), must, f"a {type(found).__name__}", do)
    return dict(found)


def _decoder(outer: dict[str, Any], where: str) -> tuple[Config, dict[str, int]]:
    """What the file says of a decoder, and what stands beside it."""
    at = next((key for key in _DECODERS if key in outer), "")
    inner = outer[at] if at else outer
    insist(isinstance(inner, dict), f"{where}, {at}", "this is an object", repr(inner))
    kind = inner.get("model_type") or outer.get("model_type")
    name = ALSO.get(kind, kind) if isinstance(kind, str) else None
    do = "capture a step of it (hosim import torch package.module:function), or name a family with the same layers"
    insist(name in FAMILIES, f"{where}, model_type", "this is a family of decoders that hosim knows", repr(kind), do)
    told = {f"{tower} (a tower beside the decoder)": 1 for tower in TOWERS if outer.get(tower)}
    shared = {key: outer[key] for key in _OF_BOTH if key in outer}
    if at:
        own = {at, "model_type", *shared, *TOWERS}
        told |= {key: 1 for key in outer if key not in own and not is_irrelevant(key)}
    inner = {key: value for key, value in inner.items() if key not in TOWERS}
    return Config(inner | shared, FAMILIES[str(name)], where), told


def _name(outer: dict[str, Any], path: Path) -> str:
    said = str(outer.get("_name_or_path") or "")
    return said.rstrip("/").rpartition("/")[2] or (path.absolute().parent.name if path.stem == "config" else path.stem)


def _dtypes(c: Config, path: Path, phase: str) -> dict[str, str]:
    said = c.get("dtype", "torch_dtype")
    compute = _DTYPES.get(said.removeprefix("torch.")) if isinstance(said, str) else None
    found = {"compute": compute or "bf16"}
    if compute is None:
        lacks = "no type for arithmetic (torch_dtype)" if said is None else f"{said!r}, in which no arithmetic is done"
        c.derived.append(f"bf16, as config.json names {lacks}.")
    beside = path.with_name("hf_quant_config.json")  # where ModelOpt says it
    quantized = c.get("quantization_config", "quantization") or (_parsed(beside) if beside.is_file() else None)
    if quantized and phase == "train":
        c.derived.append("Training is in the type of arithmetic; quantization_config is of weights that only infer.")
    elif quantized:
        kept, told = _kept_as(quantized, c.where)
        c.derived += told
        found |= kept
    return found


def _origins(c: Config, document: dict[str, Any]) -> dict[str, Any]:
    """The origin of each figure: a key of the file, a default of its reader, which is told, or an option."""
    if c.usual:
        usual = ", ".join(f"{key} {value}" for key, value in c.usual.items())
        c.derived.insert(0, f"config.json lacks these, so they are what {VERSION} takes: {usual}.")
    stated = sorted(path for path in c.origins if _has(document, path.split(".")))
    sources = {path: [{"from": c.origins[path][0], "basis": c.origins[path][1]}] for path in stated}
    sources["model"] = [{"from": f"config.json ({c.data.get('model_type', c.family.config)})", "basis": "quoted"}]
    mine = [key for key in document if key in _ASKED]
    return {"sources": sources, "assumed": dict.fromkeys(mine, "chosen when it was imported; change it to yours")}


def _has(value: Any, path: list[str]) -> bool:
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    return value is not None


def _validated(document: dict[str, Any], c: Config) -> Workload:
    """The workload, checked as one that is written by hand."""
    try:
        work = Workload.model_validate(document)
    except ValidationError as error:
        fault = faults(error, document)[0]
        at = ".".join(fault.path)
        keys = (text for field, (text, _) in c.origins.items() if f"{field}.".startswith(f"{at}.") and field != "model")
        where = f"{c.where}, {next(keys, at).removeprefix('config.json, ')}"
        raise ConfigError(where, fault.must, fault.found, fault.do) from None
    if work.phase != "requests":
        check(work)
    return work


def _dropped(c: Config) -> dict[str, int]:
    """Keys that are neither read nor known to change nothing; and what a family has beside."""
    left = c.data.keys() - c.used - {*c.family.implied}
    told = {key for key in left if c.data[key] and not is_irrelevant(key)}
    ahead = dict.fromkeys(("num_nextn_predict_layers", "num_mtp_modules"), " (layers that only predict further tokens)")
    found = [f"{key}{ahead.get(key, '')}" for key in sorted(told)]
    return dict.fromkeys([*found, c.family.uncounted] if c.family.uncounted else found, 1)


_ROUTED = re.compile(r"(?<!shared_)experts")
_METHODS = ("auto-round", "awq", "bitsandbytes", "compressed-tensors", "fbgemm_fp8", "fp8", "gptq", "modelopt", "mxfp4")
# Inputs that share a scale -> the format in four bits.
_GROUPS = {128: "int4", 32: "int4_of_32"}


def _kept_as(said: Any, where: str) -> tuple[dict[str, str], list[str]]:
    """Say how weights are kept.

    Parameters
    ----------
    said
        The value of ``quantization_config``.
    where
        The file, for messages.

    Returns
    -------
    dict
        ``weights`` or ``experts`` of the workload's dtypes, and perhaps ``kv_cache``.
    list of str
        What was worked out.

    Raises
    ------
    ConfigError
        If weights are kept in a way that hosim does not know.
    """
    where = f"{where}, quantization_config"
    said = said.get("quantization", said) if isinstance(said, dict) else said
    insist(isinstance(said, dict), where, "this is an object", repr(said))
    found, told = _weights(said, where)
    cache = said.get("kv_cache_quant_algo") or said.get("kv_cache_scheme")
    is_fp8 = cache == "FP8" or (isinstance(cache, dict) and cache.get("num_bits") == 8 and cache.get("type") == "float")
    return found | ({"kv_cache": "fp8"} if is_fp8 else {}), told


def _weights(said: dict[str, Any], where: str) -> tuple[dict[str, str], list[str]]:
    method, algorithm = said.get("quant_method"), str(said.get("quant_algo")).upper()
    names = ("ignore", "modules_to_not_convert", "exclude_modules")
    left: Any = next(filter(None, map(said.get, names)), [])
    alone = "experts" if isinstance(left, list) and any("self_attn" in str(one) for one in left) else "weights"
    if method == "mxfp4":
        return {"experts": "mxfp4"}, ["Routed experts are kept as mxfp4 (quantization_config), all else as computed."]
    if method in ("fp8", "fbgemm_fp8"):
        block = said.get("weight_block_size")
        told = [] if block == [128, 128] else ["Scales of fp8 count as one for each block of 128 x 128."]
        return {"weights": "fp8"}, told
    if method == "bitsandbytes":
        return ({alone: "nf4"}, []) if said.get("load_in_4bit") else _integers(8, None, alone, where)
    bits, group = said.get("bits", said.get("w_bit")), said.get("group_size", said.get("q_group_size"))
    if method is None and bits and isinstance(group, int):
        method, group = "gptq", group // 2  # MLX has a scale and an offset for each group
    if method in ("auto-round", "awq", "gptq"):
        return _integers(bits, group, alone, where)
    if method == "compressed-tensors":
        return _compressed(said, alone, where)
    if method in ("modelopt", None) and algorithm in ("NVFP4", "FP8"):
        return {alone: algorithm.lower()}, []
    do = f"use one of {', '.join(_METHODS)}, or remove quantization_config to count weights as they are computed"
    raise ConfigError(where, "how weights are kept is known", f"quant_method {method!r}", do)


def _compressed(said: dict[str, Any], alone: str, where: str) -> tuple[dict[str, str], list[str]]:
    """Of ``config_groups``: of several, those whose targets are the routed experts are for these."""
    groups, found, told = said.get("config_groups"), dict[str, str](), list[str]()
    each = list(groups.values()) if isinstance(groups, dict) else []
    for one in each or [dict[str, Any]()]:
        about = one.get("weights") if isinstance(one, dict) else None
        insist(isinstance(about, dict), f"{where}, config_groups", "a group says how weights are kept", repr(groups))
        of = "experts" if len(each) > 1 and _ROUTED.search(str(one.get("targets"))) else alone
        kept, why = _group(about, of, where)
        told += [] if found.keys() & kept.keys() else why
        found = kept | found
    return found, told


def _group(about: Any, of: str, where: str) -> tuple[dict[str, str], list[str]]:
    bits, group = about.get("num_bits"), about.get("group_size")
    if about.get("type") != "float":
        return _integers(bits, group, of, where)
    insist(bits in (4, 8), f"{where}, num_bits", "floats are kept in 4 or 8 bits", repr(bits))
    return {of: "fp8" if bits == 8 else "nvfp4" if group == 16 else "mxfp4"}, []


def _integers(bits: Any, group: Any, alone: str, where: str) -> tuple[dict[str, str], list[str]]:
    must = "integers are kept in 4 or 8 bits"
    insist(bits in (4, 8), f"{where}, bits", must, repr(bits), "remove quantization_config to count as computed")
    if bits == 8:
        return {alone: "fp8"}, ["Integers of 8 bits count as fp8, with its scales."]
    kept = _GROUPS.get(group) if isinstance(group, int) else None
    told = [] if kept else [f"Scales of int4 count as one for 128 inputs, not {group!r:.40}."]
    return {alone: kept or "int4"}, told
