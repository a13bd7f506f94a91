"""``quantization_config`` of a ``config.json``: in which format weights are kept."""

from __future__ import annotations

from typing import Any

from simulator.errors import ConfigError, insist

_METHODS = ("awq", "compressed-tensors", "fbgemm_fp8", "fp8", "gptq", "modelopt", "mxfp4")
_GROUPS = {128: "int4", 32: "int4_of_32"}
"""Inputs that share a scale -> the format in four bits."""


def kept_as(said: Any, where: str) -> tuple[dict[str, str], list[str]]:
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
    """Of the first group of ``config_groups``."""
    groups = said.get("config_groups")
    first = next(iter(groups.values()), None) if isinstance(groups, dict) else None
    about = first.get("weights") if isinstance(first, dict) else None
    if not isinstance(about, dict):
        raise ConfigError(f"{where}, config_groups", "a group says how weights are kept", repr(groups), "correct it")
    bits, group = about.get("num_bits"), about.get("group_size")
    if about.get("type") != "float":
        return _integers(bits, group, alone, where)
    insist(bits in (4, 8), f"{where}, num_bits", "floats are kept in 4 or 8 bits", repr(bits))
    return {alone: "fp8" if bits == 8 else "nvfp4" if group == 16 else "mxfp4"}, []


def _integers(bits: Any, group: Any, alone: str, where: str) -> tuple[dict[str, str], list[str]]:
    must = "integers are kept in 4 or 8 bits"
    insist(bits in (4, 8), f"{where}, bits", must, repr(bits), "remove quantization_config to count as computed")
    if bits == 8:
        return {alone: "fp8"}, ["Integers of 8 bits count as fp8, with its scales."]
    kept = _GROUPS.get(group) if isinstance(group, int) else None
    told = [] if kept else [f"Scales of int4 count as one for 128 inputs, not {group!r:.40}."]
    return {alone: kept or "int4"}, told
