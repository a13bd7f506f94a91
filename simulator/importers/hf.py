"""Hugging Face's ``config.json``: a decoder's dimensions become a workload, with the key that each figure comes from.

What a key means, and what holds where it is absent, is in `hf_families`. Each key of the file is used, known to change
nothing that is counted, or told as dropped.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from simulator.builders import check
from simulator.document import faults
from simulator.errors import ConfigError, insist
from simulator.importers.hf_families import ALSO, FAMILIES, IRRELEVANT, TOWERS
from simulator.importers.hf_model import Config, model_of
from simulator.importers.imported import Imported, named
from simulator.importers.recordings import json_of
from simulator.inputs import shown
from simulator.workload import Workload

_MOST_BYTES, _USUAL_SEQUENCE = 16_000_000, 4096
# Keys that stand outside of a ``text_config`` and hold for it, too.
_OF_BOTH = ("quantization_config", "tie_word_embeddings", "torch_dtype", "dtype")
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
    requests: int = 100,
    prompt: int = 2048,
    answer: int = 256,
) -> Imported:
    """Read the ``config.json`` of a decoder, and make a workload of it.

    Parameters
    ----------
    source
        The file, or the folder that holds it.
    phase
        What runs of the model: a training step, prompts that are read, tokens that are added, or requests to serve.
    batch
        Sequences that run together; default: 1.
    sequence
        Tokens of each sequence; default: 4,096, or as many as the model knows positions for.
    chunk
        With prefill: tokens of each prompt that run at a time; default: all.
    new_tokens
        With decode: tokens that a step adds to each sequence; default: 1.
    block
        With prefill and decode: tokens of a block of the KV cache; default: a layer's cache is one tensor.
    kv_cache
        With prefill, decode and requests: the type that the KV cache is kept in; default: that of arithmetic.
    experts
        With prefill and decode: whether the experts of a layer are a tensor for each matrix of all of them, the same in
        one kernel, or each a tensor that is read only if it is chosen.
    tensor
        With all but requests: ranks that share each layer.
    data
        With train: replicas with samples of their own.
    pipeline
        With train: stages with some of the layers each.
    zero_stage
        With train: what is sharded over the replicas (1: optimizer state, 2: gradients too, 3: weights too).
    requests
        With requests: how many requests come, one in half a second.
    prompt
        With requests: mean tokens of a prompt.
    answer
        With requests: mean tokens of an answer.

    Raises
    ------
    ConfigError
        If the file is none that can be read; if its ``model_type`` is unknown, or says what hosim cannot; or if an
        option does not suit the phase or the model.
    """
    path = Path(source)
    path = path / "config.json" if path.is_dir() else path
    outer = _parsed(path)
    config, told = _decoder(outer, shown(path))
    limit = config.count("max_position_embeddings", derived=_USUAL_SEQUENCE)
    wanted = min(_USUAL_SEQUENCE, limit) if sequence is None else sequence
    if wanted > limit:
        config.derived.append(f"{wanted:,} tokens are more than the {limit:,} that the model knows positions for.")
    model = model_of(config)
    axes = {"tensor": tensor, "data": data, "pipeline": pipeline, "zero_stage": zero_stage}
    spread = {axis: number for axis, number in axes.items() if number != (axis != "zero_stage")}
    asked: dict[str, Any] = {"batch": 1 if batch is None else batch, "sequence": wanted}
    if phase == "requests":
        drawn = {"count": requests, "prompt": {"mean": prompt}, "output": {"mean": answer}}
        drawn["arrivals"] = {"process": "poisson", "interval": "500 ms"}
        asked = {"batch": batch, "sequence": sequence, "requests": drawn}
    asked |= {"chunk": chunk, "new_tokens": new_tokens, "experts": experts}
    asked["kv"] = None if block is None else {"block": block}
    asked["parallel"] = {"ranks": "all", **spread} if spread else None
    name, cache = named(_name(outer, path)), {"kv_cache": kv_cache} if kv_cache else {}
    document: dict[str, Any] = {"name": name, "title": f"{name}, {phase}", "model": model, "phase": phase}
    document["dtypes"] = _dtypes(config, path, phase) | cache
    document |= {key: value for key, value in asked.items() if value is not None}
    work = _validated(document | _origins(config, document), config)
    return Imported({".yaml": work}, {}, tuple(config.derived), _dropped(config) | told)


def _parsed(path: Path) -> dict[str, Any]:
    found = json_of(path, _MOST_BYTES, distinct=True)
    must, do = "a config.json is an object that names its model_type", "name the file config.json of a model"
    insist(isinstance(found, dict), shown(path), must, f"a {type(found).__name__}", do)
    return dict(found)


def _decoder(outer: dict[str, Any], where: str) -> tuple[Config, dict[str, int]]:
    """What the file says of a decoder, and what stands beside it."""
    inner = outer.get("text_config", outer)
    insist(isinstance(inner, dict), f"{where}, text_config", "this is an object", repr(inner))
    kind = inner.get("model_type") or outer.get("model_type")
    name = ALSO.get(kind, kind) if isinstance(kind, str) else None
    if name not in FAMILIES:
        like = sorted(_like(inner, where), key=lambda one: -SequenceMatcher(None, str(kind), one).ratio())[:5]
        do = "write its dimensions by hand, or capture a step of it (hosim import torch)"
        do = f"if it is like {', '.join(like)}, whose keys these are, write that; else {do}" if like else do
        raise ConfigError(f"{where}, model_type", "the family is known", repr(kind), do)
    told = {f"{tower} (a tower beside the decoder)": 1 for tower in TOWERS if outer.get(tower)}
    shared = {key: outer[key] for key in _OF_BOTH if key in outer}
    if inner is not outer:
        own = {"text_config", "model_type", *shared, *TOWERS} | IRRELEVANT
        told |= {key: 1 for key in outer if key not in own}
    else:
        inner = {key: value for key, value in outer.items() if key not in TOWERS}
    return Config(shared | inner, FAMILIES[name], where), told


def _like(inner: dict[str, Any], where: str) -> Iterator[str]:
    """Families that have a use for each key of a file, which has all that they need."""
    for name, family in FAMILIES.items():
        config = Config(inner, replace(family, defaults={}), where)
        with suppress(ConfigError):
            has_experts = model_of(config)["feed_forward"]["kind"] == "experts"
            if has_experts == family.experts and _unread(config).keys() <= {*_OF_BOTH, "max_position_embeddings"}:
                yield name


def _name(outer: dict[str, Any], path: Path) -> str:
    said = outer.get("_name_or_path")
    name = said.rstrip("/").rpartition("/")[2] if isinstance(said, str) else ""
    return name or (path.absolute().parent.name if path.stem == "config" else path.stem)


def _dtypes(c: Config, path: Path, phase: str) -> dict[str, str]:
    said = c.get("dtype", "torch_dtype")
    compute = _DTYPES.get(said.removeprefix("torch.")) if isinstance(said, str) else None
    found = {"compute": compute or "bf16"}
    if compute is None:
        no = "no type that arithmetic is done in (torch_dtype)"
        named_one = no if said is None else f"{said!r}, in which none is done here"
        c.derived.append(f"bf16, as config.json names {named_one}.")
    beside = path.with_name("hf_quant_config.json")  # where ModelOpt says it
    quantized = c.get("quantization_config") or (_parsed(beside) if beside.is_file() else None)
    if not quantized:
        return found
    kept, told = _kept_as(quantized, c.where)
    if phase == "train":
        c.derived.append("Training is in the type of arithmetic; quantization_config is of weights that only infer.")
        return found
    c.derived += told
    return found | kept


def _origins(c: Config, document: dict[str, Any]) -> dict[str, Any]:
    """The origin of each figure: a key of the file, a default of its reader, or an option."""
    model = document["model"]
    usual = {path for path in c.origins if not path.startswith("model.") or _stated(model, path.split(".")[1:])}
    sources = {path: [{"from": c.origins[path][0], "basis": c.origins[path][1]}] for path in sorted(usual)}
    sources["model"] = [{"from": f"config.json ({c.data.get('model_type', c.family.config)})", "basis": "quoted"}]
    mine = [key for key in document if key in _ASKED]
    return {"sources": sources, "assumed": dict.fromkeys(mine, "chosen when it was imported; change it to yours")}


def _stated(value: Any, path: list[str]) -> bool:
    for key in path:
        if not isinstance(value, dict) or key not in value:
            return False
        value = value[key]
    return True


def _validated(document: dict[str, Any], c: Config) -> Workload:
    """The workload, checked as one that is written by hand."""
    try:
        work = Workload.model_validate(document)
    except ValidationError as error:
        fault = faults(error, document)[0]
        at = ".".join(fault.at)
        keys = (text for field, (text, _) in c.origins.items() if f"{field}.".startswith(f"{at}.") and field != "model")
        where = f"{c.where}, {next(keys, at).removeprefix('config.json, ')}"
        raise ConfigError(where, fault.must, fault.found, fault.do) from None
    if work.phase != "requests":
        check(work)
    return work


def _unread(c: Config) -> dict[str, int]:
    """Keys that nobody asked for and that are not known to change nothing."""
    empty: tuple[Any, ...] = (None, False, 0, [], {}, "")
    known = c.used | IRRELEVANT | {*c.family.implied}
    return {key: 1 for key, value in c.data.items() if key not in known and value not in empty}


def _dropped(c: Config) -> dict[str, int]:
    """Keys that are not read; and what a family has beside."""
    found = _unread(c)
    mtp = {"num_nextn_predict_layers", "num_mtp_modules"} & {*found}
    told = {f"{key} (layers that only predict further tokens)": 1 for key in mtp}
    beside = {c.family.uncounted: 1} if c.family.uncounted else {}
    return {key: often for key, often in found.items() if key not in mtp} | told | beside


_ROUTED = re.compile(r"(?<!shared_)experts")
_METHODS = ("awq", "compressed-tensors", "fbgemm_fp8", "fp8", "gptq", "modelopt", "mxfp4")
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
    insist(isinstance(said, dict), where, "this is an object", repr(said))
    said = said.get("quantization", said)
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
    if method in ("awq", "gptq"):
        bits, group = said.get("bits", said.get("w_bit")), said.get("group_size", said.get("q_group_size"))
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
    for one in each or [None]:
        about = one.get("weights") if isinstance(one, dict) else None
        if not isinstance(one, dict) or not isinstance(about, dict):
            must, do = "a group says how weights are kept", "correct it"
            raise ConfigError(f"{where}, config_groups", must, repr(groups), do)
        of = "experts" if len(each) > 1 and _ROUTED.search(str(one.get("targets"))) else alone
        kept, why = _group(about, of, where)
        told += [] if found.keys() & kept.keys() else why
        found = kept | found
    return found, told


def _group(about: dict[str, Any], of: str, where: str) -> tuple[dict[str, str], list[str]]:
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
