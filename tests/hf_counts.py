"""The families of transformers: what hosim reads of their default configurations, against transformers' own modules.

    python tests/hf_counts.py              a table of all families that make text or read it
    python tests/hf_counts.py NAME ...     of some

A module is made without memory (device meta) from the class's defaults, and hosim reads what `to_dict` says of them. Of
a multimodal model the decoder is held against the decoder, of a model with an encoder each part.
"""

from __future__ import annotations

import json
import logging
import sys
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import simulator as hosim
from simulator.builders.weights import parameters
from simulator.errors import ConfigError
from simulator.importers.hf_keys import FAMILIES

KINDS = ("SEQ_TO_SEQ_CAUSAL_LM", "CAUSAL_LM", "IMAGE_TEXT_TO_TEXT", "MULTIMODAL_LM")
"""Mappings of transformers whose families are counted."""
_ROTARY = {kind: {"rope_type": "default", "rope_theta": 10000.0} for kind in ("full_attention", "sliding_attention")}
STATED: dict[str, dict[str, Any]] = {
    "bamba": {"attn_layer_indices": [3]},
    "chameleon": {"vocabulary_map": {"<image>": 8711}},
    "cohere_compass_text": {"rope_parameters": _ROTARY},
    "cohere_compass": {"text_config": {"rope_parameters": _ROTARY}},
    "deepseek_ocr2": {"text_config": {"num_experts_per_tok": 6, "mlp_layer_types": ["dense"] + ["sparse"] * 31}},
    "deepseek_v2": {"num_experts_per_tok": 6},
    "dots1": {"n_routed_experts": 8, "num_experts_per_tok": 2, "n_shared_experts": 1},
    "hunyuan_v1_dense": {"head_dim": 128},
    "hunyuan_v1_moe": {"head_dim": 128, "num_experts": 8},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"] * 16},
    "ministral": {"head_dim": 128},
    "nemotron": {"head_dim": 128},
}
"""What is stated of families whose defaults transformers itself cannot build."""


class Row(NamedTuple):
    """A family: how it is read, parameters as hosim and as transformers count them, and why not, or what differs."""

    name: str
    verdict: str
    counted: int = 0
    right: int = 0
    note: str = ""


def names() -> list[str]:
    """Return the families that are counted."""
    from transformers.models.auto import modeling_auto

    return sorted({name for kind in KINDS for name in getattr(modeling_auto, f"MODEL_FOR_{kind}_MAPPING_NAMES")})


def module_of(name: str, config: Any) -> Any:
    """Make the module of a family without memory."""
    import torch
    import transformers

    classes = ("Seq2SeqLM", "CausalLM", "ImageTextToText", "MultimodalLM")
    for kind, end in zip(KINDS, classes, strict=True):
        if name in getattr(transformers.models.auto.modeling_auto, f"MODEL_FOR_{kind}_MAPPING_NAMES"):
            with torch.device("meta"):
                module = getattr(transformers, f"AutoModelFor{end}").from_config(config)
            module.tie_weights()
            return module
    raise LookupError(name)


def has_encoder(config: Any) -> bool:
    """Whether an encoder of words is a part, and not a tower of pictures alone."""
    text = f"{config.get_text_config(decoder=True).model_type} encoder"
    return getattr(config, "is_encoder_decoder", False) and (not hasattr(config, "vision_config") or text in FAMILIES)


def parts_of(config: Any, module: Any) -> dict[str, list[Any]]:
    """Return the parts that hosim reads, each with its modules."""
    text = config.get_text_config(decoder=True)
    if getattr(config, "is_encoder_decoder", False) and hasattr(module, "get_encoder"):
        encoder, decoder = module.get_encoder(), module.get_decoder()
        if any(part is encoder for part in decoder.modules()):  # of a model inside of a multimodal one
            decoder = decoder.get_decoder()
        return {"decoder": [decoder, module.get_output_embeddings()], "encoder": [encoder]}
    inner = [part for part in module.modules() if getattr(part, "config", None) is text]
    if text is config or not inner:
        return {"decoder": [module]}
    heads = [part for name, part in module.named_modules() if name.endswith(("lm_head", "projection_lm_head"))]
    return {"decoder": [inner[0], module.get_output_embeddings() or next(iter(heads), None)]}


def parameters_of(modules: list[Any]) -> int:
    """Count the parameters of modules, each once, and the biases by which routers choose, which are buffers."""
    found = {id(one): one.numel() for part in modules if part is not None for one in part.parameters()}
    buffers = (pair for part in modules if part is not None for pair in part.named_buffers())
    chosen = {id(one): one.numel() for name, one in buffers if "e_score_correction" in name or "expert_bias" in name}
    return sum((found | chosen).values())


def row_of(name: str) -> Row:
    """Read a family, and hold it against its module."""
    import transformers

    try:
        config = transformers.CONFIG_MAPPING[name](**STATED.get(name, {}))
    except Exception as error:
        return Row(name, "not built", note=f"transformers: {type(error).__name__}")
    with TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(config.to_json_string(use_diff=False))
        try:
            parts = {"decoder": hosim.read_hf(folder, phase="train", sequence=128)}
            if has_encoder(config):
                parts["encoder"] = hosim.read_hf(folder, phase="train", sequence=128, part="encoder")
        except ConfigError as error:
            return Row(name, "refused", note=reason(error))
    counted = {part: (parameters(found.workload) or (0, 0))[0] for part, found in parts.items()}
    told = ", ".join(dict.fromkeys(text for found in parts.values() for text in found.dropped if " " in text))
    try:
        module = module_of(name, config)
        modules = {part: found for part, found in parts_of(config, module).items() if part in counted}
    except Exception as error:
        return Row(name, "read", sum(counted.values()), note=f"transformers cannot build it: {type(error).__name__}")
    total = sum(counted[part] for part in modules)
    right = sum(map(parameters_of, modules.values()))
    if total == right:
        return Row(name, "exact", total, right)
    return Row(name, "differs", total, right, told)


def reason(error: ConfigError) -> str:
    """Say in few words why a file is refused."""
    if error.must == "a family is one that hosim knows":
        return error.found
    return f"{error.where.rpartition(', ')[2]}: {error.found}"[:90]


def report(rows: list[Row]) -> str:
    """Write the counts, what is told to differ, and what is refused."""
    counts = Counter(row.verdict for row in rows)
    of_each = [f"{counts[verdict]} {verdict}" for verdict in ("exact", "differs", "read", "refused", "not built")]
    lines = [f"{len(rows)} families: {', '.join(of_each)}"]
    for verdict in ("differs", "read", "refused", "not built"):
        lines += ["", f"{verdict}:"]
        for row in rows:
            if row.verdict == verdict:
                more = f"{row.counted:,} for {row.right:,}; " if verdict == "differs" else ""
                lines.append(f"  {row.name:26} {more}{row.note}".rstrip())
    exact = [row.name for row in rows if row.verdict == "exact"]
    return "\n".join([*lines, "", "exact:", *(f"  {line}" for line in wrapped(exact))])


def wrapped(texts: list[str], width: int = 110) -> Iterator[str]:
    """Yield lines of texts with commas between them."""
    line = ""
    for text in texts:
        if len(line) + len(text) > width:
            yield line.rstrip()
            line = ""
        line += f"{text}, " if text != texts[-1] else text
    yield line


def rows(wanted: list[str] | None = None) -> list[Row]:
    """Read all families, or some."""
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    return [row_of(name) for name in wanted or names()]


if __name__ == "__main__":
    asked = [word for word in sys.argv[1:] if word != "--json"]
    found = rows(asked)
    print(json.dumps(found) if "--json" in sys.argv else report(found))
