"""Parameters of published decoders, read from what their ``config.json`` says, against published counts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from building import build
from hf_models import PUBLISHED, RELATIVES, Published
from parameters import count

import simulator as hosim
from simulator.workload import DecoderModel

BUILT = {name: one for name, one in (PUBLISHED | RELATIVES).items() if name not in ("ChatGLM2-6B", "DeepSeekMoE-16B")}
"""What transformers has modules of."""


def read(published: Published, folder: Path) -> DecoderModel:
    file = folder / "config.json"
    file.write_text(json.dumps(published.config))
    model = hosim.read_hf(file, phase="prefill", sequence=64).workload.model
    assert isinstance(model, DecoderModel)
    return model


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_in_all_are_the_published_ones(name: str, tmp_path: Path) -> None:
    published = PUBLISHED[name]
    found = count(read(published, tmp_path)).total / 1e9
    assert found == pytest.approx(published.total, rel=0.005)
    if published.source.startswith("safetensors.total"):
        assert round(found * 1e9) == round(published.total * 1e9)  # to the last one


@pytest.mark.parametrize("name", [name for name, one in PUBLISHED.items() if one.active])
def test_parameters_that_a_token_goes_through_are_the_published_ones(name: str, tmp_path: Path) -> None:
    """Within 0.5 %, or what rounds to the digits that are printed."""
    published = PUBLISHED[name]
    assert published.active is not None
    found = count(read(published, tmp_path))
    active = (found.active - published.tables_out * found.table) / 1e9
    digits = len(str(published.active).partition(".")[2]) if isinstance(published.active, float) else 0
    assert active == pytest.approx(published.active, rel=0.005) or round(active, digits) == published.active


def known(published: Published, transformers: Any) -> tuple[str, Any]:
    """The family and the configuration as transformers has it."""
    if not transformers.__version__.startswith("5."):
        pytest.skip("the defaults are those of transformers 5")
    kind = {"kimi_k2": "deepseek_v3"}.get(published.config["model_type"], published.config["model_type"])
    return kind, transformers.CONFIG_MAPPING[kind](**{k: v for k, v in published.config.items() if k != "model_type"})


@pytest.mark.slow
@pytest.mark.parametrize("name", BUILT)
def test_files_that_transformers_writes_are_read_as_the_same_models(name: str, tmp_path: Path) -> None:
    """With all their keys, of which none is dropped but what is not counted."""
    published = BUILT[name]
    model = read(published, tmp_path)
    _, config = known(published, pytest.importorskip("transformers"))
    config.save_pretrained(tmp_path / "saved")
    found = hosim.read_hf(tmp_path / "saved", phase="prefill", sequence=64)
    assert found.workload.model == model
    assert all(key.startswith("num_nextn_predict") for key in found.dropped)


@pytest.mark.slow
@pytest.mark.parametrize("name", BUILT)
def test_parameters_are_those_of_the_modules_of_transformers(name: str, tmp_path: Path) -> None:
    """Where it is installed: the module is made of the same keys, without memory, by other people's code."""
    transformers, torch = pytest.importorskip("transformers"), pytest.importorskip("torch")
    published = BUILT[name]
    _, config = known(published, transformers)
    made = transformers.AutoModelForCausalLM if read(published, tmp_path).causal else transformers.AutoModelForMaskedLM
    with torch.device("meta"):
        module = made.from_config(config)
    module.tie_weights()
    counted = sum({id(one): one.numel() for one in module.parameters()}.values())
    counted += sum(one.numel() for key, one in module.named_buffers() if "e_score_correction_bias" in key)
    assert count(read(published, tmp_path)).total == counted


@pytest.mark.parametrize(
    ("name", "size_bytes"),
    [
        ("gpt-oss-20b", 13_761_264_768),  # total_size of model.safetensors.index.json, with biases, sinks and scales
        ("gpt-oss-120b", 65_248_815_744),  # the same; arXiv 2508.10925, table 1: 60.8 GiB
        ("Qwen3-32B", 65_524_246_528),  # the same, in bf16
    ],
)
def test_weights_take_as_many_bytes_as_the_published_files(name: str, size_bytes: int, tmp_path: Path) -> None:
    kept = {"quantization_config": {"quant_method": "mxfp4"}} if name.startswith("gpt-oss") else {}
    file = tmp_path / "config.json"
    file.write_text(json.dumps(PUBLISHED[name].config | kept))
    graph = build(hosim.read_hf(file, sequence=256).workload)
    assert sum(t.size_bytes for t in graph.tensors if t.kind in ("weight", "expert")) == size_bytes
