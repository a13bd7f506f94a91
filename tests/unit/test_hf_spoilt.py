"""Files of Hugging Face that went wrong, of all families: each is read, or refused in the words of the file."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from examples import examples
from hf_small import DEEPSEEK_V4
from mutations import changed

import simulator as hosim
from simulator.errors import ConfigError
from simulator.importers.hf_keys import FAMILIES, PARTS
from simulator.workload import DecoderModel

SIZES = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4, "num_attention_heads": 4}
SIZES |= {"vocab_size": 128, "num_experts_per_tok": 2}
STATED = {
    name: {"model_type": name} | {key: size for key, size in SIZES.items() if key in family.defaults} | family.defaults
    for name, family in FAMILIES.items()
    if " " not in name
}
"""Family -> what its class says if nothing is stated."""
KEYS = sorted({key for family in FAMILIES.values() for key in (*family.defaults, *family.keys.values())})
KEYS += ["layer_types", "per_layer_config", "block_configs", "quantization_config", "text_config", "architectures"]
OF_FILES = {*KEYS} | {key for part in PARTS.values() for keys in part.values() for key in keys}
SCHEMA = DecoderModel.model_json_schema()
OURS = {name for part in (SCHEMA, *SCHEMA["$defs"].values()) for name in part.get("properties", {}) if "_" in name}
OURS = (OURS | {name for family in FAMILIES.values() for name in family.sums}) - OF_FILES
"""What hosim calls fields of a model, and values that it makes of several keys; no file has such a key."""
OPTIONS: list[dict[str, Any]] = [
    *({"phase": phase, "sequence": 16} for phase in ("train", "prefill", "decode")),
    {"phase": "train", "sequence": 16, "tensor": 2},
    {"phase": "prefill", "sequence": 16, "chunk": 8, "block": 4},
    {"phase": "requests"},
    {"part": "encoder"},
    {},
]


def spoilt(number: int) -> tuple[str, dict[str, Any]]:
    """A file whose sizes are others, or whose values are missing, hostile or those of another family; and options."""
    random, names = Random(f"config {number}"), [*STATED]
    name = names[number % len(names)]
    config = dict(STATED[name])
    sizes = [key for key, value in config.items() if type(value) is int]
    for key in random.sample(sizes, min(len(sizes), random.choice((1, 1, 2, 3)))):
        config[key] = random.choice((0, 1, 3, 7, 100_001, config[key] + 1, 3 * config[key], config[key] // 2))
    if random.random() < 0.2:
        config[random.choice(KEYS)] = random.choice(
            (None, 0, -1, 1, 10**6, "x", [0, 0], [28, 28], [], {"a": [1]}, True)
        )
    config = {"text_config": config, "vision_config": {}} if random.random() < 0.1 else config
    config = changed(config, random) if random.random() < 0.4 else config
    return json.dumps(config), random.choice(OPTIONS)


def check(number: int, folder: Path) -> bool:
    """Read such a file; return whether that went well."""
    text, options = spoilt(number)
    Path(folder, "config.json").write_text(text, encoding="utf-8")
    try:
        found = hosim.read_hf(folder / "config.json", **options)
    except ConfigError as error:
        message = str(error)
        assert len(message) < 2000, message
        assert message.isprintable(), ascii(message)
        assert error.where.startswith("--") or "config.json" in error.where, message  # noqa: PT017 - of two outcomes
        theirs = {*re.findall(r"\w+", text), *options}
        assert not set(re.findall(r"\w+", message)) & OURS - theirs, message
        assert not re.search(r"\b(model|dtypes)\.[a-z]", message), message
        return False
    assert all(isinstance(line, str) for line in (*found.derived, *found.dropped))
    assert hosim.catalog.dump(found.workload)
    return True


def test_a_file_of_any_family_that_went_wrong_is_read_or_refused(tmp_path: Path) -> None:
    assert {check(number, tmp_path) for number in range(0, 30 * 7, 7)} == {True, False}


@pytest.mark.slow
def test_many_files_of_all_families_that_went_wrong(tmp_path: Path) -> None:
    assert {check(number, tmp_path) for number in range(examples(10_000))} == {True, False}


@pytest.mark.slow
def test_the_largest_encoder_is_read_layer_by_layer(tmp_path: Path) -> None:
    """Each of its layers is looked at a few times: where each looked at all others, this took minutes."""
    Path(tmp_path, "config.json").write_text(json.dumps(STATED["xlm-roberta"] | {"num_hidden_layers": 10_000}))
    model = hosim.read_hf(tmp_path).workload.model
    assert isinstance(model, DecoderModel)
    assert model.layers == 10_000


NO_EXPERTS = [{"moe_layer_start_index": [28, 28]}, {"moe_layer_end_index": [0, 0]}]


@pytest.mark.parametrize("stated", NO_EXPERTS, ids=["from the last on", "up to the first"])
def test_keys_of_experts_say_nothing_where_no_layer_has_some(stated: dict[str, Any], tmp_path: Path) -> None:
    """Keys of the family's own names among them; a size that is wrong is told by its place in the file."""
    Path(tmp_path, "config.json").write_text(json.dumps(STATED["ernie4_5_moe_vl"] | stated), encoding="utf-8")
    model = hosim.read_hf(tmp_path).workload.model
    assert isinstance(model, DecoderModel)
    assert {part.kind for _, part in model.kinds} == {"dense"}


def paths(config: dict[str, Any], section: str = "") -> Iterator[str]:
    """Yield the path of each key of a file."""
    for key, value in config.items():
        yield f"{section}{key}"
        if isinstance(value, dict):
            yield from paths(value, f"{section}{key}.")


def wrong_sizes(name: str, section: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield a path and a file in which that size is wrong; half of them leave all else to the class."""
    for key, value in STATED[name].items():
        is_size = type(value) is int and "." not in key  # of a section beside it otherwise
        for number, wrong in enumerate((0, -1, "x", 10**12, value + 1, 7, 10_007) if is_size else ()):
            stated = {"model_type": name} if number % 2 else STATED[name]
            config = stated | {key: wrong}
            yield f"{section}{key}", {section.rstrip("."): config} if section else config


def check_names(name: str, section: str, folder: Path) -> int:
    """Read such files, and return how many are refused: each names keys of the file by their whole paths."""
    faults = list[tuple[str, dict[str, Any], ConfigError]]()
    for path, config in wrong_sizes(name, section):
        Path(folder, "config.json").write_text(json.dumps(config), encoding="utf-8")
        try:
            hosim.read_hf(folder, phase="train", sequence=16)
        except ConfigError as error:
            faults.append((path, config, error))
    for path, config, error in faults:
        named = {word.rstrip(".") for word in re.findall(r"[\w.-]+", str(error).partition("config.json, ")[2])}
        asks = error.where.startswith("--") or error.found == "none"  # for another option, or a key that lacks
        assert asks or named & {*paths(config)}, (path, str(error))
    return len(faults)


@pytest.mark.parametrize("section", ["", "text_config."], ids=["alone", "nested"])
def test_a_wrong_size_is_told_by_its_path_in_the_file(section: str, tmp_path: Path) -> None:
    assert sum(check_names(name, section, tmp_path) for name in [*STATED][60 * bool(section) :: 120]) > 20


@pytest.mark.slow
@pytest.mark.parametrize("section", ["", "text_config."], ids=["alone", "nested"])
def test_a_wrong_size_of_any_family_is_told_by_its_path_in_the_file(section: str, tmp_path: Path) -> None:
    assert sum(check_names(name, section, tmp_path) for name in STATED) > 1_000


IN_FILE = {
    "an entry of a list": (
        STATED["ernie4_5_moe_vl"] | {"moe_layer_start_index": [-1, 1]},
        "moe_layer_start_index.0: this is a whole number from 0 to 1,000,000,000, found -1; correct it",
    ),
    "a flag": (
        STATED["mllama_text_model"] | {"tie_word_embeddings": True},
        "tie_word_embeddings: a tied embedding has the rows of the vocabulary, found 128,264 rows for 128,256; set it",
    ),
    "inside of an object": (
        STATED["dbrx"] | {"ffn_config": {"moe_num_experts": 4, "moe_top_k": 5}},
        "ffn_config.moe_top_k: ffn_config.moe_top_k is at most ffn_config.moe_num_experts, found 5 and 4; lower it",
    ),
    "of some layers": (
        STATED["bamba"] | {"attn_layer_indices": [3], "mamba_n_groups": 3},
        "mamba_n_groups: mamba_n_groups divides mamba_n_heads, found 3 and 128; set mamba_n_groups to 2 or 4",
    ),
    "heads that do not divide the width": (
        STATED["pp_formulanet_text"] | {"decoder_attention_heads": 7},
        "decoder_attention_heads: decoder_attention_heads divides d_model, found 7 and 512; correct one of them",
    ),
    "a width that heads do not divide, of a class": (
        {"model_type": "pp_formulanet_text", "d_model": 513},
        "d_model: decoder_attention_heads divides d_model, found 16 and 513; correct one of them",
    ),
    "a picture smaller than a patch": (
        {"text_config": {"model_type": "mllama_text_model"}, "vision_config": {"image_size": 7, "patch_size": 14}},
        "vision_config.patch_size: vision_config.patch_size is at most vision_config.image_size, found 14 and 7; corr",
    ),
    "a window of nothing": (
        {"text_config": STATED["gemma2"] | {"sliding_window": 0}},
        "text_config.sliding_window: this is a whole number from 1 to 1,000,000,000, found 0; correct it",
    ),
    "residuals that are none": (
        DEEPSEEK_V4 | {"hc_mult": 0},
        "hc_mult: this is a whole number from 1 to 1,000,000,000, found 0; correct it",
    ),
    "a wide head": (
        {"text_config": STATED["llama"] | {"num_key_value_heads": 5}},
        "text_config.num_key_value_heads: text_config.num_key_value_heads divides text_config.num_attention_heads, fou",
    ),
}
OPTION = {
    "a field of the model": (
        {"phase": "train", "sequence": 64, "pipeline": 2},
        "--pipeline: a model with tied embeddings has one stage, found 2 stages; set pipeline to 1, or tie_word_embed",
    ),
    "another name": (
        {"phase": "prefill", "sequence": 64, "chunk": 5, "block": 3},
        "--block: a chunk fills whole blocks, found chunks of 5 and blocks of 3 tokens; set --block to 1 or 5",
    ),
}
REFUSED = {name: (config, dict[str, Any](), f"config.json, {message}") for name, (config, message) in IN_FILE.items()}
REFUSED |= {name: (STATED["gpt2"], options, message) for name, (options, message) in OPTION.items()}


@pytest.mark.parametrize("name", REFUSED)
def test_a_fault_of_the_model_is_told_by_the_keys_of_the_file(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, options, message = REFUSED[name]
    monkeypatch.chdir(tmp_path)
    Path("config.json").write_text(json.dumps(config), encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        hosim.read_hf("config.json", **options)
    assert str(caught.value).startswith(message)
