"""How the weights of a model are kept, from the ``quantization_config`` of a ``config.json``."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

from simulator.errors import ConfigError, insist
from simulator.importers.hf_keys import PARTS, Config

_ROUTED = re.compile(r"(?<!shared_)experts")
_METHODS = ("auto-round", "awq", "bitsandbytes", "compressed-tensors", "fbgemm_fp8", "fp8", "gptq", "modelopt", "mxfp4")
# Name of ModelOpt -> how weights are kept.
_ALGORITHMS = {"FP8": "fp8", "NVFP4": "nvfp4", "W4A16_NVFP4": "nvfp4", "W4A4_NVFP4": "nvfp4", "MXFP8": "fp8"}


def quantized(config: Any, c: Config) -> dict[str, str]:
    """Return the dtypes that a quantized model states: ``weights`` or ``experts``, and perhaps ``kv_cache``.

    Parameters
    ----------
    config
        The value of ``quantization_config``.
    c
        Collects what was derived.

    Raises
    ------
    ConfigError
        If hosim does not know the quantization.
    """
    where = c.where_is("quantization_config", "quantization")
    config = config.get("quantization", config) if isinstance(config, dict) else config
    insist(isinstance(config, dict), where, "this is an object", repr(config))
    dtypes: dict[str, str] = {}
    for part, dtype, note in _weights(config, where):
        others = f"Some {part} are kept as {dtype}; all count as {dtypes.get(part)}, as most are."
        c.derived += [note] if note and part not in dtypes else [others] if dtypes.get(part, dtype) != dtype else []
        dtypes.setdefault(part, dtype)
    kept = config.get("expert_dtype", c.get("expert_dtype"))  # of DeepSeek-V4
    dtypes |= {"experts": "mxfp4"} if kept == "fp4" and "weights" in dtypes else {}
    if "experts" in dtypes and not c.get(*PARTS["experts"]["routed"]):
        c.derived += ["Feed-forwards count as computed, as attention is kept: the file's weights take less."]
    cache = config.get("kv_cache_quant_algo") or config.get("kv_cache_scheme")
    is_fp8 = cache == "FP8" or (isinstance(cache, dict) and cache.get("num_bits") == 8 and cache.get("type") == "float")
    return dtypes | ({"kv_cache": "fp8"} if is_fp8 else {})


def _weights(config: dict[str, Any], where: str) -> Iterator[tuple[str, str, str]]:
    """Yield parts of the weights, each with its dtype and a note for people; the first entry of a part counts."""
    method, algorithm = config.get("quant_method"), str(config.get("quant_algo")).upper()
    unquantized: Any = next(filter(None, map(config.get, ("ignore", "modules_to_not_convert", "exclude_modules"))), [])
    has_plain_attention = isinstance(unquantized, list) and any("self_attn" in str(name) for name in unquantized)
    part = "experts" if has_plain_attention else "weights"
    bits, group = config.get("bits", config.get("w_bit")), config.get("group_size", config.get("q_group_size"))
    if method is None and bits and isinstance(group, int):
        method, group = "gptq", group // 2  # MLX keeps a scale and an offset for each group
    if method == "mxfp4":
        yield "experts", "mxfp4", "Routed experts are kept as mxfp4 (quantization_config), all else as computed."
    elif method in ("fp8", "fbgemm_fp8"):
        block, must = config.get("weight_block_size"), "a block has two sizes, whole numbers from 1"
        fits = isinstance(block, list) and [type(size) is int and size > 0 for size in block] == [True, True]
        insist(fits or block is None, f"{where}, weight_block_size", must, repr(block))
        yield "weights", "fp8", "" if block == [128, 128] else "Scales of fp8 count as one for each block of 128 x 128."
    elif method in ("auto-round", "awq", "bitsandbytes", "gptq"):
        bits, is_nf4 = (8, config.get("load_in_4bit")) if method == "bitsandbytes" else (bits, False)
        yield part, *(("nf4", "") if is_nf4 else _number(bits, group, where))
    elif method == "compressed-tensors" or (algorithm not in _ALGORITHMS and "config_groups" in config):
        groups = config.get("config_groups")
        several = list(groups.values()) if isinstance(groups, dict) else []
        for about in sorted(several, key=lambda about: -len(str(about))) or [{}]:
            kept: Any = about.get("weights") if isinstance(about, dict) else None
            insist(isinstance(kept, dict), f"{where}, config_groups", "a group says how weights are kept", repr(groups))
            is_routed = len(several) > 1 and _ROUTED.search(str(about.get("targets")))
            stated = kept.get("num_bits"), kept.get("group_size"), where
            yield "experts" if is_routed else part, *_number(*stated, is_float=kept.get("type") == "float")
    elif method in ("modelopt", None) and algorithm in _ALGORITHMS:
        yield part, _ALGORITHMS[algorithm], "MXFP8 counts as fp8, with its scales." * (algorithm == "MXFP8")
    elif algorithm == "MIXED_PRECISION" and isinstance(layers := config.get("quantized_layers"), dict):
        kept = [(name, str(about.get("quant_algo"))) for name, about in layers.items() if isinstance(about, dict)]
        parts = Counter(("experts" if _ROUTED.search(name) else "weights", algorithm) for name, algorithm in kept)
        insist({kind for _, kind in parts} <= {*_ALGORITHMS}, where, "these are known", f"{[*parts]}", "remove it")
        for (part, algorithm), _ in parts.most_common():
            yield part, _ALGORITHMS[algorithm], "MXFP8 counts as fp8, with its scales." * (algorithm == "MXFP8")
    else:
        do = f"use one of {', '.join(_METHODS)}, or remove quantization_config to count weights as they are computed"
        raise ConfigError(where, "how weights are kept is known", f"quant_method {method!r}", do)


def _number(bits: Any, group: Any, where: str, *, is_float: bool = False) -> tuple[str, str]:
    """Return the dtype of numbers that share a scale in groups, and a note."""
    must = f"{'floats' if is_float else 'integers'} are kept in 4 or 8 bits"
    insist(bits in (4, 8), f"{where}, bits", must, repr(bits), "remove quantization_config to count as computed")
    fits = group in (None, -1) or (type(group) is int and group > 0)
    insist(fits, f"{where}, group_size", "a group has a size from 1 on, or is all of a row (-1)", repr(group))
    if is_float or bits == 8:
        dtype = "fp8" if bits == 8 else "nvfp4" if group == 16 else "mxfp4"
        return dtype, "" if is_float else "Integers of 8 bits count as fp8, with its scales."
    dtype = {128: "int4", 32: "int4_of_32"}.get(group, "") if isinstance(group, int) else ""
    return dtype or "int4", "" if dtype else f"Scales of int4 count as one for 128 inputs, not {group!r:.40}."
