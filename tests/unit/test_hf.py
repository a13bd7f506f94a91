"""Hugging Face's ``config.json``: what is read, derived, dropped and refused."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from random import Random
from typing import Any

import hf_small
import pytest
from examples import examples, some
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mutations import broken, changed

import simulator as hosim
from simulator.builders import build_job
from simulator.errors import ConfigError
from simulator.importers.hf_keys import ALIASES, FAMILIES, SETS
from simulator.importers.imported import Imported
from simulator.layout import runs
from simulator.workload import DecoderModel, Experts, Gqa, Mla, Workload

FOLDER = Path(__file__).parents[3] / "shared" / "data" / "hf_configs"
FILES = sorted(FOLDER.glob("*.json")) if FOLDER.is_dir() else []
TINY: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 128,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def read(config: dict[str, Any] | str | bytes, **options: Any) -> Imported:
    text = json.dumps(config) if isinstance(config, dict) else config
    Path("config.json").write_bytes(text.encode() if isinstance(text, str) else text)
    return hosim.read_hf("config.json", **options)


def model(config: dict[str, Any], **options: Any) -> DecoderModel:
    found = read(config, **{"sequence": 32, **options}).workload.model
    assert isinstance(found, DecoderModel)
    return found


def refusal(config: dict[str, Any] | str | bytes, **options: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        read(config, **options)
    return str(caught.value)


def kind(name: str, **more: Any) -> dict[str, Any]:
    """A tiny model of a family, without the keys of experts that the family does not have."""
    family = FAMILIES[ALIASES.get(name, name)]
    known = {*family.defaults, *("num_experts_per_tok",) * family.experts}
    return TINY | {"model_type": name} | {key: more[key] for key in more if key in known or key not in EXPERTS}


EXPERTS = {"num_experts": 8, "num_local_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
LATENT = {"q_lora_rank": 24, "kv_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 8}
LATENT |= {"n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "first_k_dense_replace": 1}
DSA = LATENT | {"index_topk": 6, "index_head_dim": 8, "index_n_heads": 2}

# the samples


@pytest.mark.skipif(not FILES, reason="the sample files are not there")
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
@pytest.mark.parametrize("phase", ["train", "prefill", "decode", "requests"])
def test_sample_files_become_workloads(file: Path, phase: str) -> None:
    options = {} if phase in ("requests", "train") else {"sequence": 1024}
    found = hosim.read_hf(file, phase=phase, **options)
    assert found.workload.phase == phase
    assert set(found.dropped) <= {"num_nextn_predict_layers (layers that only predict further tokens)"}
    assert found.workload.origins()["mine"] == 0


@pytest.mark.skipif(not FILES, reason="the sample files are not there")
@pytest.mark.parametrize(("name", "status"), [("Qwen--Qwen3-8B", "ok"), ("deepseek-ai--DeepSeek-V3.2", "infeasible")])
def test_a_sample_file_runs(name: str, status: str, folder: Path) -> None:
    found = hosim.read_hf(FOLDER / f"{name}.json", batch=2, sequence=256)
    found.write("mine.yaml")
    found = hosim.run(hardware="ascend_910c_die", workload="mine.yaml", policies=["reactive"])
    assert found["reactive"].status == status


@pytest.mark.slow
@pytest.mark.skipif(not FILES, reason="the sample files are not there")
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_every_sample_file_runs_and_serves(file: Path, folder: Path) -> None:
    """What does not fit is said to be infeasible, or is refused as too large, with what would do."""
    hosim.read_hf(file, batch=2, sequence=256).write("run.yaml")
    found = hosim.run(hardware="h100_sxm", workload="run.yaml", policies=["resident"])
    fits = file.stem in {"Qwen--Qwen3-8B", "Qwen--Qwen3-30B-A3B", "meta-llama--Meta-Llama-3.1-8B"}
    assert found["resident"].status == ("ok" if fits else "infeasible")
    hosim.read_hf(file, phase="requests", requests=5, prompt=100, answer=4).write("serve.yaml")
    text = "schema: hosim/scenario/1\nname: story\nhardware: h100_sxm\nworkload: serve.yaml\npolicies: [static]\n"
    Path("story.yaml").write_text(text)
    if fits:
        assert hosim.serve("story.yaml").rows[0]["finished"] == 5
    else:
        with pytest.raises(ConfigError, match="each request fits in the compute tier"):
            hosim.serve("story.yaml")


# each figure names its origin


def test_each_figure_names_the_key_that_it_comes_from(folder: Path) -> None:
    work = read(TINY, batch=3, sequence=32).workload
    assert {path: work.sources[path][0].text for path in work.sources if path.startswith("model.")} == {
        "model.layers": "config.json, num_hidden_layers",
        "model.hidden": "config.json, hidden_size",
        "model.vocabulary": "config.json, vocab_size",
        "model.tied_embeddings": "config.json, tie_word_embeddings",
        "model.attention.heads": "config.json, num_attention_heads",
        "model.attention.kv_heads": "config.json, num_key_value_heads",
        "model.attention.head_size": "config.json, which has no head_dim: hidden_size // num_attention_heads",
        "model.feed_forward.width": "config.json, intermediate_size",
    }
    assert set(work.assumed) == {"batch", "sequence"}
    assert work.name == folder.name


def test_what_a_file_leaves_out_is_a_default_of_its_reader(folder: Path) -> None:
    work = read({"model_type": "gemma2", "torch_dtype": "float32"}).workload
    assert isinstance(work.model, DecoderModel)
    assert (work.model.hidden, work.model.layers, work.dtypes.compute) == (2304, 26, "fp32")
    told = "transformers 5.24.0, Gemma2Config.head_dim (config.json has no such key)"
    assert work.sources["model.attention.head_size"][0].text == told


def test_figures_that_a_file_lacks_are_told_once(folder: Path) -> None:
    bare = {key: value for key, value in TINY.items() if key not in ("hidden_size", "tie_word_embeddings")}
    (told,) = read(bare | {"num_attention_heads": 32}, sequence=32).derived
    lacks = "hidden_size 4096, tie_word_embeddings False"
    assert told == f"Defaults of transformers 5.24.0, as config.json lacks them: {lacks}."
    assert read(TINY, sequence=32).derived == ()


def test_the_name_is_the_models(folder: Path) -> None:
    assert read(TINY | {"_name_or_path": "me/My model"}).workload.name == "My-model"
    Path("other.json").write_text(json.dumps(TINY))
    assert hosim.read_hf("other.json").workload.name == "other"
    assert read(TINY).workload.name == hosim.read_hf(folder).workload.name == folder.name


def test_what_is_written_reads_back_equal(folder: Path) -> None:
    config = kind("gpt_oss", **EXPERTS, sliding_window=8)
    found = read(config, sequence=32, batch=2)
    found.write("mine.yaml")
    assert hosim.catalog.read_workload("mine.yaml") == found.workload
    assert "parameters" in str(found)


# attention


def test_biases_and_norms_are_those_of_the_family(folder: Path) -> None:
    families: dict[str, dict[str, Any]] = {
        "llama": {},
        "qwen2": {"biases": ["q", "k", "v"]},
        "qwen3": {"qk_norms": True},
        "glm4": {"biases": ["q", "k", "v"]},
        "minimax_m2": {"qk_norms": "all"},
        "gpt_oss": {"biases": ["q", "k", "v", "o"], "sink_logits": True},
    }
    for name, said in families.items():
        part = model(kind(name, **EXPERTS, sliding_window=None, head_dim=16)).attention
        usual = {"biases": (), "qk_norms": False, "sink_logits": False}
        wanted = usual | {key: tuple(value) if isinstance(value, list) else value for key, value in said.items()}
        assert {key: getattr(part, key) for key in usual} == wanted, name


@pytest.mark.parametrize(
    ("config", "biases"),
    [
        (kind("llama", attention_bias=True), "qkvo"),
        (kind("seed_oss", attention_bias=True), "qkv"),
        (kind("seed_oss", attention_bias=False, attention_out_bias=True), "o"),
        (kind("qwen2_moe", **EXPERTS, qkv_bias=False), ""),
    ],
)
def test_keys_switch_biases(config: dict[str, Any], biases: str, folder: Path) -> None:
    part = model(config).attention
    assert isinstance(part, Gqa)
    assert "".join(part.biases) == biases


def test_heads_may_be_wider_than_the_hidden_size_over_them(folder: Path) -> None:
    assert model(kind("qwen3", head_dim=48)).attention.width == 4 * 48
    assert model(kind("llama", num_key_value_heads=None)).attention.kv_heads == 4
    assert model(kind("gemma3_text", head_dim=32, sliding_window=None)).norms == "both"


WINDOWS = {
    "mistral": ({}, {0, 1, 2, 3, 4, 5, 6, 7}),
    "qwen2": ({"use_sliding_window": True, "max_window_layers": 5}, {5, 6, 7}),
    "qwen3": ({"use_sliding_window": False, "max_window_layers": 5}, set()),
    "gemma2": ({"head_dim": 16}, {0, 2, 4, 6}),
    "gemma3_text": ({"head_dim": 16, "sliding_window_pattern": 3}, {0, 1, 3, 4, 6, 7}),
    "gpt_oss": ({"head_dim": 16}, {0, 2, 4, 6}),
    "llama4_text": ({"head_dim": 16, "attention_chunk_size": 8}, {0, 1, 2, 4, 5, 6}),
    "smollm3": ({"layer_types": ["sliding_attention"] * 3 + ["full_attention"] * 5}, {0, 1, 2}),
}


@pytest.mark.parametrize("name", WINDOWS)
def test_layers_that_see_a_window(name: str, folder: Path) -> None:
    more, near = WINDOWS[name]
    window = {"sliding_window": 8} if name != "llama4_text" else {}
    config = kind(name, num_hidden_layers=8, **window, **EXPERTS) | more
    found = model(config)
    assert {layer for layer in range(8) if found.layer(layer).attention.window == 8} == near
    assert {found.layer(layer).attention.window for layer in range(8)} <= {8, None}


def test_types_of_layers_come_before_the_rule_of_the_family(folder: Path) -> None:
    config = kind("gemma3_text", head_dim=16, sliding_window=8, layer_types=["full_attention", "sliding_attention"] * 2)
    found = model(config)
    assert [found.layer(i).attention.window for i in range(4)] == [None, 8, None, 8]
    assert len(found.others) == 1


def test_windows_that_no_token_leaves_stay_for_longer_sequences(folder: Path) -> None:
    found = read(kind("mistral", sliding_window=64), sequence=32)
    assert isinstance(found.workload.model, DecoderModel)
    assert found.workload.model.attention.window == 64
    assert found.derived == ()


def test_latent_attention_and_what_chooses_tokens(folder: Path) -> None:
    part = model(kind("deepseek_v32", **DSA)).attention
    assert isinstance(part, Mla)
    assert part.indexer is not None
    assert (part.indexer.heads, part.indexer.head_size, part.indexer.top) == (2, 8, 6)
    assert part.kv_elements == 16 + 4 + 8
    plain = model(kind("deepseek_v2", **LATENT | {"q_lora_rank": None})).attention
    assert isinstance(plain, Mla)
    assert (plain.q_lora_rank, plain.indexer) == (None, None)
    found = model(kind("glm_moe_dsa", **DSA, indexer_types=["full", "shared", "shared", "full"], index_topk_freq=3))
    layers = [found.layer(index).attention for index in range(4)]
    assert [layer.indexer.again for layer in layers if isinstance(layer, Mla) and layer.indexer] == [0, 1, 1, 0]
    assert [layer.kv_elements for layer in layers] == [28, 20, 20, 28]
    assert "found index_topk_freq 3; " in refusal(kind("glm_moe_dsa", **DSA, index_topk_freq=3))


def test_layers_with_linear_attention(folder: Path) -> None:
    more = {"head_dim": 16, **EXPERTS, "block_size": 8}
    for said in (
        {"attn_type_list": [0, 0, 1, 0]},
        {"layer_types": [f"{x}_attention" for x in ["linear", "linear", "full", "linear"]]},
    ):
        found = model(kind("minimax", **more, **said))
        assert [found.layer(i).attention.kind for i in range(4)] == ["linear", "linear", "gqa", "linear"]
    found = model(kind("minimax", **more))
    assert [found.layer(i).attention.kind for i in range(4)] == ["gqa", "linear", "gqa", "linear"]
    assert "layers with a state are of a family that has some" in refusal(
        TINY | {"layer_types": ["linear_attention"] * 4}
    )


# feed-forwards

DENSE = {
    "first": (kind("deepseek_v3", **LATENT | {"first_k_dense_replace": 3}), {0, 1, 2}),
    "named": (kind("deepseek_v3", **LATENT, mlp_layer_types=["dense", "sparse", "sparse", "dense"]), {0, 3}),
    "every other": (kind("llama4_text", **EXPERTS, interleave_moe_layer_step=2, intermediate_size_mlp=96), {0, 2}),
    "moe layers": (kind("llama4_text", **EXPERTS, moe_layers=[2], intermediate_size_mlp=96), {0, 1, 3}),
    "every third": (kind("qwen3_moe", **EXPERTS, decoder_sparse_step=3), {0, 1, 3}),
    "only": (kind("qwen3_moe", **EXPERTS, mlp_only_layers=[1]), {1}),
    "frequency": (kind("deepseek_v3", **LATENT | {"moe_layer_freq": 2, "first_k_dense_replace": 0}), {1, 3}),
    "none": (kind("qwen3_moe", **EXPERTS), set()),
    "flags": (kind("exaone_moe", **EXPERTS, is_moe_layer=[False, True, False, True], sliding_window=8), {0, 2}),
    "flags and first": (
        kind("exaone_moe", **EXPERTS, is_moe_layer=[False, True, True, True], first_last_k_dense_replace=1)
        | {"first_k_dense_replace": 1, "sliding_window": 8},
        {0},
    ),
    "named before flags": (
        kind("exaone_moe", **EXPERTS, is_moe_layer=[True] * 4, mlp_layer_types=["dense"] * 2 + ["sparse"] * 2)
        | {"sliding_window": 8},
        {0, 1},
    ),
}


@pytest.mark.parametrize("name", DENSE)
def test_layers_without_experts(name: str, folder: Path) -> None:
    config, dense = DENSE[name]
    found = model(config)
    assert {i for i in range(4) if not isinstance(found.layer(i).feed_forward, Experts)} == dense
    assert isinstance(found.feed_forward, Experts)
    assert {found.layer(i).feed_forward.width for i in dense} <= {96}


def test_experts_whose_number_does_not_divide_the_tokens_are_trained(folder: Path) -> None:
    found = read(kind("qwen3_moe", **EXPERTS | {"num_local_experts": 12, "num_experts_per_tok": 5}), phase="train")
    assert found.workload.sequence == 4096
    assert build_job(found.workload).ranks == 1


def test_all_layers_may_be_dense(folder: Path) -> None:
    assert model(kind("deepseek_v3", **LATENT | {"first_k_dense_replace": 4})).feed_forward.kind == "dense"
    found = model(kind("qwen3_moe", **EXPERTS, mlp_only_layers=[0, 1, 2, 3]))
    assert (found.feed_forward.kind, found.others) == ("dense", ())


def test_shared_experts_have_a_width_of_their_own(folder: Path) -> None:
    part = model(kind("qwen2_moe", **EXPERTS, shared_expert_intermediate_size=40)).feed_forward
    assert isinstance(part, Experts)
    assert (part.shared, part.shared_width, part.width) == (1, 40, 16)
    part = model(kind("deepseek_v3", **LATENT, n_shared_experts=2)).feed_forward
    assert isinstance(part, Experts)
    assert (part.shared, part.shared_width, part.router_bias) == (2, None, True)


@given(st.sets(st.integers(0, 30)), st.integers(0, 5))
def test_runs_of_layers_hold_these_layers(held: set[int], more: int) -> None:
    layers = max(held, default=0) + 1 + more
    found = [
        range(run.get("start", 0), run.get("stop", layers), run.get("every", 1)) for run in runs(sorted(held), layers)
    ]
    assert sorted(layer for run in found for layer in run) == sorted(held)


# how weights are kept

FP8 = {"quant_method": "fp8", "weight_block_size": [128, 128]}
GROUP = {"group_0": {"weights": {"num_bits": 4, "type": "int", "group_size": 32}}}
KEPT: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "fp8": (FP8, {"weights": "fp8"}),
    "mxfp4": ({"quant_method": "mxfp4"}, {"experts": "mxfp4"}),
    "awq": ({"quant_method": "awq", "bits": 4, "group_size": 128}, {"weights": "int4"}),
    "gptq": ({"quant_method": "gptq", "bits": 4, "group_size": 32}, {"weights": "int4_of_32"}),
    "auto-round": ({"quant_method": "auto-round", "bits": 4, "group_size": 128}, {"weights": "int4"}),
    "bnb": ({"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}, {"weights": "nf4"}),
    "bnb8": ({"quant_method": "bitsandbytes", "load_in_8bit": True}, {"weights": "fp8"}),
    "mlx": (
        {"group_size": 64, "bits": 4},
        {"weights": "int4_of_32", "others": dict.fromkeys(("embed/tokens.weight", "head/lm.weight"), "int4_of_32")},
    ),
    "gptq8": ({"quant_method": "gptq", "bits": 8, "group_size": 128}, {"weights": "fp8"}),
    "experts": (
        {"quant_method": "compressed-tensors", "config_groups": GROUP, "ignore": ["re:.*self_attn.*", "lm_head"]},
        {"experts": "int4_of_32"},
    ),
    "groups": (
        {
            "quant_method": "compressed-tensors",
            "config_groups": {
                "a": {
                    "targets": ["re:.*self_attn.*", "re:.*shared_experts.*"],
                    "weights": {"num_bits": 8, "type": "int"},
                },
                "b": {"targets": ["re:.*mlp.experts.*"], "weights": {"num_bits": 4, "type": "int", "group_size": 128}},
            },
        },
        {"weights": "fp8", "experts": "int4"},
    ),
    "floats": (
        {"quant_method": "compressed-tensors", "config_groups": {"a": {"weights": {"num_bits": 8, "type": "float"}}}},
        {"weights": "fp8", "others": {"head/lm.weight": "fp8"}},
    ),
    "nvfp4": ({"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head"]}, {"weights": "nvfp4"}),
    "cache": ({"quant_algo": "FP8", "kv_cache_scheme": "FP8"}, {"weights": "fp8", "kv_cache": "fp8"}),
}


@pytest.mark.parametrize("name", KEPT)
def test_how_weights_are_kept(name: str, folder: Path) -> None:
    said, kept = KEPT[name]
    dtypes = read(kind("mixtral", **EXPERTS, quantization_config=said)).workload.dtypes
    assert dtypes.model_dump(exclude_unset=True) == {"compute": "bf16"} | kept


def test_training_is_in_the_type_of_arithmetic(folder: Path) -> None:
    found = read(TINY | {"quantization_config": FP8}, phase="train", sequence=32)
    assert found.workload.dtypes.weights is None
    assert "Training is in the type of arithmetic; quantization_config is of weights that only infer." in found.derived


def test_what_modelopt_says_stands_beside(folder: Path) -> None:
    beside = {"quantization": {"quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8", "exclude_modules": ["lm_head"]}}
    Path("hf_quant_config.json").write_text(json.dumps(beside))
    dtypes = read(TINY).workload.dtypes
    assert (dtypes.weights, dtypes.kv_cache) == ("nvfp4", "fp8")


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"quant_method": "hqq"}, "how weights are kept is known, found quant_method 'hqq'"),
        ({"quant_method": "awq", "bits": 3}, "integers are kept in 4 or 8 bits, found 3"),
        ({"quant_method": "compressed-tensors"}, "a group says how weights are kept, found None"),
        ({"quant_method": "compressed-tensors", "config_groups": {"a": {"weights": {"type": "float"}}}}, "4 or 8 bits"),
        ("fp8", "this is an object, found 'fp8'"),
        *(
            ({"quant_method": "fp8", "weight_block_size": block}, "weight_block_size: a block has two sizes, whole ")
            for block in (0, [], [128], [128, 0], [128, -1], [128] * 3, [128, "128"], [128, True])
        ),
        *(
            ({"quant_method": "gptq", "bits": 4, "group_size": group}, "group_size: a group has a size from 1 on, or ")
            for group in (0, -2, "128", [128])
        ),
    ],
)
def test_what_is_kept_otherwise_is_refused(said: Any, message: str, folder: Path) -> None:
    assert message in refusal(TINY | {"quantization_config": said})


def test_what_counts_otherwise_than_it_is_kept_is_told(folder: Path) -> None:
    """MXFP8 has finer scales than fp8."""
    layers = {"model.layers.0.self_attn.q_proj": {"quant_algo": "MXFP8"}}
    layers |= {f"model.layers.0.mlp.experts.{i}.up_proj": {"quant_algo": "NVFP4"} for i in range(8)}
    mixed = {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "quantized_layers": layers}
    found = read(kind("qwen3_moe", **EXPERTS) | {"quantization_config": mixed})
    assert found.workload.dtypes.others == {"L00/attn.q.weight": "fp8", "L00/ffn.up.weight": "nvfp4"}
    assert "MXFP8 counts as fp8, with its scales." in found.derived


GROUPED: dict[str, Any] = LATENT | {"n_routed_experts": 8, "n_group": 2, "topk_group": 1}
UNFIT: list[tuple[str, dict[str, Any], str]] = [
    ("mixtral", {"num_local_experts": 0}, "num_local_experts: this is a whole number from 1 to"),
    ("mixtral", {"num_local_experts": None}, "num_local_experts: this is a whole number, found null; correct it, or "),
    ("mixtral", {"num_key_value_heads": None}, "num_key_value_heads: this is a whole number, found null"),
    ("deepseek_v3", LATENT | {"n_routed_experts": 0}, "n_routed_experts: this is a whole number from 1 to"),
    (
        "deepseek_v3",
        LATENT | {"first_k_dense_replace": None},
        "first_k_dense_replace: this is a whole number, found null",
    ),
    (
        "deepseek_v3",
        LATENT | {"num_nextn_predict_layers": "1"},
        'num_nextn_predict_layers: this is a whole number, found "1"',
    ),
    ("deepseek_v3", GROUPED | {"n_group": 3}, "n_group: n_group divides n_routed_experts, found 3 and 8"),
    ("deepseek_v3", GROUPED | {"n_group": 8}, "2 is at most n_routed_experts // n_group, found 1; correct it"),
    ("deepseek_v3", GROUPED | {"n_group": 0}, "n_group: this is a whole number from 1 to"),
    ("deepseek_v3", GROUPED | {"topk_group": 3}, "topk_group: topk_group is at most n_group, found 3 and 2"),
    (
        "deepseek_v3",
        GROUPED | {"num_experts_per_tok": 5},
        "num_experts_per_tok: num_experts_per_tok is at most topk_group * n_routed_experts / n_group, found 5 and 4",
    ),
    ("mixtral", EXPERTS | {"num_experts_per_tok": 9}, "num_experts_per_tok is at most num_local_experts, found 9"),
    ("nemotron_h", {"hybrid_override_pattern": ["*", 1, "-", "M"]}, "hybrid_override_pattern: this is a list of one"),
    ("nemotron_h", {"hybrid_override_pattern": 4}, "hybrid_override_pattern: this is a list of one kind of value"),
    ("bailing_moe_linear", {"layer_group_size": 3}, "layer_group_size: layer_group_size divides num_hidden_layers"),
    (
        "exaone_moe",
        EXPERTS | {"is_moe_layer": [False, True, True, True], "first_k_dense_replace": 2},
        "first_k_dense_replace: is_moe_layer has none in these layers, found 2; correct one of them",
    ),
    (
        "deepseek_v3",
        GROUPED | {"qk_rope_head_dim": 5},
        "qk_rope_head_dim: 2 divides qk_rope_head_dim, found 5; correct it",
    ),
    ("deepseek_v3", GROUPED | {"num_key_value_heads": 0}, "num_key_value_heads: this is a whole number from 1 to"),
    ("kimi_linear", LATENT | {"num_expert_group": 3}, "num_expert_group: num_expert_group divides n_routed_experts"),
    ("llama", {"head_dim": 17}, "head_dim: 2 divides head_dim, found 17; correct it"),
    ("llama", {"hidden_size": 66}, "num_attention_heads divides hidden_size, found 4 and 66"),
    ("llama", {"tie_word_embeddings": None}, "tie_word_embeddings: this has a value, found null"),
    ("llama", {"layer_types": ["full_attention"] * 5}, "layer_types: this has an entry for each of 4 layers, found 5"),
    ("laguna", {"num_attention_heads_per_layer": 4}, "num_attention_heads_per_layer: this is a list of one kind"),
    ("jamba", {"expert_layer_offset": 2}, "found 3 and 2; correct one of them"),
    (
        "jamba",
        {"attn_layer_offset": 8},
        "config.json, attn_layer_offset: (attn_layer_offset + 1) is at most attn_layer_period, found 9 and 8",
    ),
]
"""Values that the class that reads the file refuses, or of which it makes no model that runs."""


@pytest.mark.parametrize(("name", "stated", "message"), UNFIT, ids=[f"{name} {[*of][-1]}" for name, of, _ in UNFIT])
def test_values_that_no_model_has_are_refused(name: str, stated: dict[str, Any], message: str, folder: Path) -> None:
    assert message in refusal(kind(name, **stated))


def test_words_that_no_class_knows_are_told(folder: Path) -> None:
    """An activation and rotary positions count like any other; one that is misspelt is not taken without a word."""
    known = TINY | {"hidden_act": "silu", "rope_scaling": {"type": "yarn", "factor": 4.0}}
    assert not read(known).dropped
    told = [*read(TINY | {"hidden_act": "sillu", "rope_scaling": {"rope_type": "yarm", "factor": 4.0}}).dropped]
    assert [text.partition(" (")[0] for text in told] == ["hidden_act 'sillu'", "rope_scaling 'yarm'"]
    by_layers = {"full_attention": {"rope_type": "defualt"}, "sliding_attention": {"rope_type": "default"}}
    for keys, found in (
        ({"rope_scaling": "yarn of 4"}, "rope_scaling 'yarn of 4'"),
        ({"rope_parameters": by_layers}, "rope_parameters 'defualt'"),
        ({"hidden_act": 5}, "hidden_act '5'"),
    ):
        assert [text.partition(" (")[0] for text in read(TINY | keys).dropped] == [found]


def test_a_pattern_of_layers_is_a_text_or_a_list(folder: Path) -> None:
    keys = {"hidden_size": 64, "num_attention_heads": 4, "vocab_size": 128, "mamba_num_heads": 4, "mamba_head_dim": 16}
    keys |= {"n_groups": 2, "num_key_value_heads": 2}
    found = [
        model({"model_type": "nemotron_h", "hybrid_override_pattern": pattern} | keys)
        for pattern in ("*M-M", ["*", "M", "-", "M"])
    ]
    assert found[0] == found[1]
    assert [found[1].layer(i).attention.kind for i in range(4)] == ["gqa", "mamba2", "none", "mamba2"]


@pytest.mark.parametrize(("stated", "window"), [({}, 129), ({"sliding_window": 7}, 7), ({"sliding_window_size": 8}, 9)])
def test_a_window_of_so_many_before_a_token_is_one_longer(stated: dict[str, int], window: int, folder: Path) -> None:
    sizes = {"head_dim": 24, "v_head_dim": 16, "moe_intermediate_size": 16, "n_routed_experts": 8, "n_group": 1}
    found = model(kind("mimo_v2_flash", **sizes, num_experts_per_tok=2, hybrid_layer_pattern=[0, 1, 1, 0]) | stated)
    assert getattr(found.layer(1).attention, "window", None) == window


def test_values_that_say_nothing_in_a_model_are_not_refused(folder: Path) -> None:
    """Groups that the class does not use, all layers dense, a pattern in letters beside a list, lists that go on."""
    assert model(kind("deepseek_v2", **GROUPED | {"n_group": 3}, topk_method="greedy")) == model(
        kind("deepseek_v2", **GROUPED, topk_method="greedy")
    )
    dense = [model(kind("deepseek_v3", **LATENT | {"first_k_dense_replace": first})) for first in (4, 5, 1_000)]
    assert dense[0] == dense[1] == dense[2]
    assert model(kind("qwen3_moe", **EXPERTS | {"num_experts": 0})).feed_forward.kind == "dense"
    listed = kind("exaone4", layer_types=["full_attention"] * 4, sliding_window_pattern="LLLG")
    assert model(listed).attention.window is None
    types = ["dense"] + ["sparse"] * 4
    assert len(model(kind("glm4_moe_lite", **LATENT, mlp_layer_types=types)).others) == 1
    multimodal = {"model_type": "mllama", "text_config": {"model_type": "mllama_text_model", "num_hidden_layers": 40}}
    null = {"text_config": multimodal["text_config"] | {"cross_attention_layers": None}}  # type: ignore[operator]
    assert read(multimodal).workload.model == read(multimodal | null).workload.model


# what is not used


def test_keys_that_nobody_knows_are_named(folder: Path) -> None:
    found = read(
        TINY | {"fancy_act": "very", "share": 0.5, "off": False, "rope_theta": 1e4, "nothing": None, "none": 0}
    )
    assert found.dropped == {"fancy_act": 1, "share": 1}
    found = read(kind("deepseek_v3", **LATENT, num_nextn_predict_layers=1))
    assert found.dropped == {"num_nextn_predict_layers (layers that only predict further tokens)": 1}
    assert not read(kind("qwen2_moe", **EXPERTS, shared_expert_intermediate_size=40)).dropped


GEMMA4 = {"enable_moe_block": True, "num_experts": 8, "top_k_experts": 2, "moe_intermediate_size": 16}
GEMMA4 |= {"global_head_dim": 32, "num_global_key_value_heads": 1, "num_kv_shared_layers": 0}
COMPRESSED = {"compress_ratios": [0, 4, 128, 4], "o_groups": 2, "o_lora_rank": 16, "kv_lora_rank": 16}


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (kind("gemma3_text", head_dim=16) | GEMMA4, "found enable_moe_block true, global_head_dim 32, moe_inter"),
        (kind("gemma3_text", head_dim=16) | GEMMA4, "nearest are "),
        (kind("llama", layer_norm_eps=1e-5), "reads of 'llama', found layer_norm_eps 1e-05; nearest are "),
        (kind("deepseek_v3", **LATENT | COMPRESSED), "compress_ratios [0, 4, 128, 4], o_groups 2, o_lora_rank 16; "),
        (TINY | {"num_experts": 8, "moe_intermediate_size": 16}, "found moe_intermediate_size 16, num_experts 8; "),
        (kind("qwen3", mamba={"state": 16}), "found mamba {"),
        (kind("qwen3", blocks=["attention", "mamba"]), "found blocks ["),
        (kind("qwen3", use_gate=True), "found use_gate true; "),
        (kind("qwen3", mlp_ratio=3.5), "found mlp_ratio 3.5; "),
        (
            {"hiden_size" if key == "hidden_size" else key: value for key, value in TINY.items()},
            "found hiden_size 64; correct the key (did you mean 'hidden_size'?); nearest are ",
        ),
        (kind("qwen3", mixer="mamba"), 'found mixer "mamba"; '),
        (kind("laguna", **EXPERTS, gating="per-layer"), 'found gating "per-layer"; '),
        ({"model_type": "gpt2", "add_cross_attention": True}, "found add_cross_attention true; "),
        (kind("afmoe", **EXPERTS, attention_bias=True), "found attention_bias true; "),
        (kind("nemotron_h", **EXPERTS, layers_block_type=["moe"] * 4, mlp_bias=True), "found mlp_bias true; "),
    ],
)
def test_a_key_that_states_a_size_is_never_dropped(config: dict[str, Any], message: str, folder: Path) -> None:
    assert message in refusal(config)


@pytest.mark.parametrize(
    ("name", "keys"),
    [
        ("opt", {"output_projection": True}),
        ("jamba", {"mamba_inner_layernorms": True, "n_ctx": 262144}),
        ("nemotron_h", {"n_shared_experts": 2}),
        ("nemotron_h", {"attention_bias": True}),
        ("nemotron_h", {"tie_word_embeddings": True}),
        ("kimi_linear", {"tie_word_embeddings": True}),
        ("laguna", {"gating": "per-head"}),
        ("mimo_v2_flash", {"swa_num_key_value_heads": 4}),
    ],
)
def test_keys_without_an_effect_in_transformers_have_none(name: str, keys: dict[str, Any], folder: Path) -> None:
    config = {"model_type": "opt"} if name == "opt" else kind(name, **EXPERTS)
    config |= {"layers_block_type": ["mamba", "moe", "full_attention", "mlp"]} if name == "nemotron_h" else {}
    assert read(config | keys).workload.model == read(config).workload.model


def test_a_model_with_one_expert_may_say_how_many_a_token_has(folder: Path) -> None:
    """As Jamba2 3B does, whose layers are dense."""
    dense = kind("jamba") | {"num_experts": 1}
    assert read(dense | {"num_experts_per_tok": 1}).workload.model == read(dense).workload.model


@pytest.mark.parametrize(("said", "gate"), [(True, "heads"), (False, "elements"), ("per-element", "elements")])
def test_a_word_says_what_a_gate_is_of(said: Any, gate: str, folder: Path) -> None:
    found = model(kind("laguna", **EXPERTS, gating=said))
    assert {part.gate for part, _ in found.kinds} == {gate}


def test_the_nearest_family_is_that_of_the_class_that_reads_the_file(folder: Path) -> None:
    found = refusal(kind("llama", layer_norm_eps=1e-5, architectures=["PhiForCausalLM"]))
    assert "nearest are phi (has all these keys), " in found


def test_sizes_that_are_another_familys_are_asked_for(folder: Path) -> None:
    """A default is that of the class that reads the file."""
    bare = kind("deepseek_v3", **LATENT)
    del bare["kv_lora_rank"]
    assert "kv_lora_rank 512, " in read(bare | {"architectures": ["DeepseekV3ForCausalLM"]}).derived[0]
    said = "config.json, kv_lora_rank: DeepseekV4ForCausalLM states its sizes: 512 is the default of DeepseekV3Config, "
    assert said in refusal(bare | {"architectures": ["DeepseekV4ForCausalLM"]})


@pytest.mark.parametrize("name", ["Qwen3-8B-NVFP4", "Qwen3-8B-AWQ", "Qwen3-8B-FP8-dynamic", "m-int4", "m-w4a16"])
def test_a_name_that_says_how_weights_are_kept_is_not_passed_over(name: str, folder: Path) -> None:
    told = read(TINY | {"_name_or_path": f"me/{name}"}, sequence=32).derived
    assert len(told) == 1
    assert "neither config.json nor hf_quant_config.json beside it says how weights are kept" in told[0]
    assert read(TINY | {"_name_or_path": f"me/{name}", "quantization_config": FP8}, sequence=32).derived == ()
    assert read(TINY | {"_name_or_path": "me/Qwen3-8B"}, sequence=32).derived == ()


def test_a_decoder_inside_of_a_multimodal_model(folder: Path) -> None:
    more = {key: value for key, value in EXPERTS.items() if key != "num_local_experts"}
    of_both = ("torch_dtype", "tie_word_embeddings")
    inner = {key: value for key, value in kind("qwen3_moe", **more).items() if key not in of_both}
    outer = {"model_type": "qwen3_vl_moe", "text_config": inner | {"model_type": "qwen3_vl_moe_text"}}
    outer |= {"vision_config": {"depth": 2}, "image_token_id": 3, "tie_word_embeddings": True, "odd": 1}
    outer |= {"torch_dtype": "float16", "quantization_config": FP8}
    found = read(outer, sequence=32)
    assert isinstance(found.workload.model, DecoderModel)
    assert found.workload.model.tied_embeddings
    assert (found.workload.dtypes.compute, found.workload.dtypes.weights) == ("fp16", "fp8")
    assert found.dropped == {"vision_config (a tower beside the decoder)": 1, "odd": 1}


def test_a_tower_that_makes_the_rows_of_the_decoder_needs_no_projector(folder: Path) -> None:
    found = read({"model_type": "qwen2_vl", "text_config": TINY, "vision_config": {"depth": 2}}, sequence=32)
    assert found.dropped == {"vision_config (a tower beside the decoder)": 1}


@pytest.mark.parametrize("key", ["llm_config", "language_config"])
def test_the_decoder_may_have_another_key(key: str, folder: Path) -> None:
    found = read({"model_type": "odd_chat", key: TINY, "vision_config": {"depth": 2}, "audio_token_id": 7}, sequence=32)
    assert found.workload.model == read(TINY, sequence=32).workload.model
    joins = "what takes a tower's output to the decoder (multi_modal_projector)"
    assert found.dropped == {"vision_config (a tower beside the decoder)": 1, joins: 1}
    outer = read({"model_type": "odd_chat", key: TINY, "tie_word_embeddings": True}).workload.model
    assert isinstance(outer, DecoderModel)
    assert outer.tied_embeddings


def test_no_key_is_both_used_and_irrelevant() -> None:
    used = {key for family in FAMILIES.values() for key in family.defaults}
    assert not used & SETS["irrelevant"]
    assert set(ALIASES.values()) <= set(FAMILIES)


def test_a_family_says_nothing_but_what_the_base_has() -> None:
    fields = vars(FAMILIES["llama"]).keys()  # which is like no other one
    assert all(vars(family).keys() - fields <= {"like", "absent"} for family in FAMILIES.values())


# options


def test_each_phase_has_options_of_its_own(folder: Path) -> None:
    work = read(TINY, phase="prefill", batch=2, sequence=32, chunk=8, block=8, kv_cache="fp8", tensor=2).workload
    assert (work.chunk, work.kv.block, work.dtypes.kv_cache, work.parallel.tensor) == (8, 8, "fp8", 2)  # type: ignore[union-attr]
    work = read(TINY, phase="decode", new_tokens=3).workload
    assert (work.new_tokens, work.sequence) == (3, 2048)
    work = read(TINY, phase="train", sequence=32, data=2, pipeline=2, zero_stage=1).workload
    assert (work.parallel.data, work.parallel.pipeline, work.parallel.zero_stage) == (2, 2, 1)
    work = read(TINY, phase="requests", requests=7, prompt=50, answer=5).workload
    assert work.requests is not None
    assert (work.requests.count, work.requests.prompt.mean, work.requests.output.mean) == (7, 50, 5)  # type: ignore[union-attr]
    assert build_job(read(kind("mixtral", **EXPERTS), experts="each").workload).ranks == 1


def test_more_tokens_than_the_model_knows_positions_for_are_told(folder: Path) -> None:
    found = read(TINY | {"max_position_embeddings": 16}, sequence=32)
    assert found.derived == ("32 tokens are more than the model's 16 positions.",)
    assert read(TINY | {"max_position_embeddings": 16}).workload.sequence == 16
    assert read(TINY | {"torch_dtype": "odd"}).derived[0].startswith("bf16, as config.json names 'odd'")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"chunk": 8}, "chunk is for phase prefill, found it with phase decode"),
        ({"phase": "train", "block": 8}, "kv is for phase prefill, decode"),
        ({"phase": "requests", "batch": 8}, "batch is for phase train, serve, prefill, decode"),
        ({"data": 2}, "inference is spread over tensor ranks alone"),
        ({"tensor": 3}, "tensor divides heads, ffn, vocabulary"),
        ({"batch": 10**10}, "less than or equal to"),
        ({"phase": "decode", "new_tokens": 10**8}, "most"),
        (
            {"phase": "decode", "answer": 10},
            "--answer: answer is for phase requests, found it with phase decode; remove",
        ),
        ({"phase": "decode", "experts": "grouped"}, "found grouped of a model without experts; remove it"),
    ],
)
def test_options_that_do_not_suit_are_refused(options: dict[str, Any], message: str, folder: Path) -> None:
    assert message in refusal(TINY, **options)


# what is refused


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ("", "a file holds something, found an empty one"),
        ("[1]", "is an object that names its model_type, found a list"),
        ("{" * 5, "the file is JSON"),
        ("[" * 10_000 + "]" * 10_000, "the file is JSON"),
        ('{"a": ' * 10_000 + "1" + "}" * 10_000, "the file is JSON"),
        (b"\x80\x04\x95", "an input is data, not a program"),
        (b"\xff\xfe{\x00}\x00", "a file is text in UTF-8"),
        ({}, "config.json, model_type: a family is one that hosim knows, found none; add it; nearest are "),
        ({"model_type": 3}, "one that hosim knows, found 3, which it does not know; nearest are "),
        ({"model_type": "qwen4"}, "found 'qwen4', which it does not know; nearest are qwen2 (by its name alone), "),
        ({"model_type": "deepseek_v5"} | COMPRESSED, "does not know; nearest are deepseek_v3 (would not read "),
        ({"model_type": "xlnet"}, "'xlnet', which has two streams of attention; capture a "),
        (kind("llama", layer_types=["compressed_sparse_attention"] * 4), "known, found 'compressed_sparse_attention'"),
        ({"model_type": "qwen4"}, "; capture a step of it instead (hosim import torch package.module:function)"),
        (json.dumps(TINY)[:-1] + ', "num_hidden_layers": 2}', "each key comes once, found 'num_hidden_layers' again"),
        ('{"model_type": "llama", "quantization_config": {"bits": 4, "bits": 8}}', "each key comes once, found 'bits'"),
        (
            gzip.compress(b" " * 17_000_000),
            "an input has at most 16,000,000 bytes, unpacked, found more than 16,000,000 bytes",
        ),
        ({"model_type": "spiral", "spiral_size": 16, "turns": 2}, " (would not read spiral_size, turns"),
        ({"model_type": "llama", "text_config": 3}, "text_config: this is an object, found 3"),
        (TINY | {"hidden_size": "64"}, 'config.json, hidden_size: this is a whole number, found "64"'),
        (TINY | {"hidden_size": True}, "config.json, hidden_size: this is a whole number"),
        (TINY | {"num_attention_heads": 0}, "config.json, num_attention_heads: this is a whole number"),
        (TINY | {"num_attention_heads": 1e300}, "num_attention_heads: this is a whole number"),
        (TINY | {"num_hidden_layers": 10**6}, "a model has at most 10,000 layers"),
        (TINY | {"num_hidden_layers": None}, "num_hidden_layers: this is a whole number, found null; correct it"),
        (
            TINY | {"num_key_value_heads": 3},
            "num_key_value_heads divides num_attention_heads, found 3 and 4; set num_key_value_heads to 2 or 4",
        ),
        (TINY | {"tie_word_embeddings": "yes"}, "tie_word_embeddings: this is true or false, found 'yes'"),
        (
            TINY | {"num_attention_heads": 65},
            "config.json, num_attention_heads: num_attention_heads divides hidden_size, found 65 and 64; correct ",
        ),
        (TINY | {"layer_types": ["full_attention"]}, "this has an entry for each of 4 layers, found 1"),
        (TINY | {"layer_types": ["spiral"] * 4}, "a type of layer is known, found 'spiral'"),
        (TINY | {"layer_types": "full"}, "this is a list of one kind of value"),
        (
            kind("mixtral", **EXPERTS | {"num_experts_per_tok": 9}),
            "num_experts_per_tok is at most num_local_experts, found 9 and 8",
        ),
        (kind("deepseek_v3", **LATENT, attention_bias=True), "found attention_bias true; "),
    ],
)
def test_what_cannot_be_read_is_refused(config: Any, message: str, folder: Path) -> None:
    found = refusal(config)
    assert message in found
    assert len(found) < 2000


def test_layers_that_differ_without_a_rule_are_refused(folder: Path) -> None:
    draw = Random(1)
    types = [draw.choice(["full_attention", "sliding_attention"]) for _ in range(10_000)]
    config = kind("gemma3_text", head_dim=16, sliding_window=8, num_hidden_layers=10_000, layer_types=types)
    assert "at most 100 runs of them, found more" in refusal(config, sequence=16)


@pytest.mark.usefixtures("folder")
def test_the_card_says_which_layers_keep_a_window() -> None:
    types = ["sliding_attention", "full_attention", *["sliding_attention"] * 2]
    some = kind("gemma3_text", head_dim=16, sliding_window=8, layer_types=types)
    assert read(some, sequence=32).card["KV cache"] == "512 B a token, in 3 of 4 layers only the last 8 tokens"
    every = read(kind("mistral", sliding_window=8), sequence=32)
    assert every.card["KV cache"] == "512 B a token, in 4 of 4 layers only the last 8 tokens"


def test_what_is_no_file_is_refused(folder: Path) -> None:
    with pytest.raises(ConfigError, match="an input is a file"):
        hosim.read_hf("nowhere.json")
    Path("config.json").write_bytes(b" " * 17_000_000)
    with pytest.raises(ConfigError, match="at most 16,000,000 bytes"):
        hosim.read_hf("config.json")
    Path("bomb.json.gz").write_bytes(gzip.compress(b" " * 50_000_000))
    with pytest.raises(ConfigError, match="at most 16,000,000 bytes"):
        hosim.read_hf("bomb.json.gz")
    Path("small.json.gz").write_bytes(gzip.compress(json.dumps(TINY).encode()))
    assert hosim.read_hf("small.json.gz", sequence=32).workload.sequence == 32


@pytest.mark.parametrize(
    "config",
    [kind("deepseek_v3", **LATENT), kind("deepseek_v32", **DSA), kind("mistral", sliding_window=8)],
    ids=["latent", "chosen", "window"],
)
def test_every_kind_of_attention_is_served(config: dict[str, Any], folder: Path) -> None:
    options = {"requests": 3, "prompt": 20, "answer": 4}
    read(config, phase="requests", **options).write("mine.yaml")
    Path("story.yaml").write_text(
        "schema: hosim/scenario/1\nname: story\nhardware: h100_sxm\nworkload: mine.yaml\npolicies: [static]\n"
    )
    (row,) = hosim.serve("story.yaml").rows
    assert (row["status"], row["finished"]) == ("ok", 3)


@pytest.mark.parametrize("option", ["batch", "sequence", "block"])
def test_an_option_of_zero_is_not_its_default(option: str, folder: Path) -> None:
    assert "input should be greater than or equal to 1, found 0" in refusal(TINY, **{option: 0})


def test_infinities_as_python_writes_them_are_read(folder: Path) -> None:
    assert read(TINY | {"odd_limit": [0.0, float("inf")]}).dropped == {"odd_limit": 1}
    assert read(TINY | {"router_noise": float("nan")}).dropped == {"router_noise": 1}
    assert "this is a whole number" in refusal(TINY | {"hidden_size": float("inf")})
    assert "the file is JSON" in refusal('{"a": Infinity')
    assert "the file is JSON" in refusal('{"a": ' * 10_000 + "NaN" + "}" * 10_000)


@pytest.mark.parametrize(
    ("said", "compute", "told"),
    [
        ("torch.float16", "fp16", ""),
        ("int3", "bf16", "bf16, as config.json names 'int3', in which no arithmetic is done."),
        (None, "bf16", "bf16, as config.json names no type for arithmetic (torch_dtype)."),
    ],
)
def test_a_type_that_is_unknown_is_named(said: str | None, compute: str, told: str, folder: Path) -> None:
    found = read(TINY | {"torch_dtype": said})
    assert found.workload.dtypes.compute == compute
    assert found.derived == ((told,) if told else ())


def test_mlx_names_it_by_another_key(folder: Path) -> None:
    found = read(TINY | {"quantization": {"group_size": 64, "bits": 4}}, sequence=32)
    assert (found.workload.dtypes.weights, found.dropped) == ("int4_of_32", {})


def test_a_tower_beside_the_keys_of_a_decoder_is_told_once(folder: Path) -> None:
    found = read(kind("qwen2_vl", vision_config={"depth": 2}))
    assert found.dropped == {"vision_config (a tower beside the decoder)": 1}


# fuzz

SEEDS = [TINY, kind("mixtral", **EXPERTS), kind("deepseek_v32", **DSA), kind("llama4_text", **EXPERTS)]
SEEDS += [kind("gpt_oss", **EXPERTS), kind("gemma3_text", sliding_window=8, layer_types=["full_attention"] * 4)]
SEEDS += [{"model_type": "gemma3", "text_config": kind("gemma3_text")}, TINY | {"quantization_config": FP8}]
KEYS = sorted({key for seed in SEEDS for key in seed} | {key for one in FAMILIES.values() for key in one.defaults})
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 300) | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)
TYPES = st.sampled_from([*FAMILIES, *ALIASES, "unheard of"])


@st.composite
def spoilt(draw: st.DrawFn) -> bytes:
    """A file whose keys are other ones, missing, or say something else; or whose bytes are."""
    config = dict(draw(st.sampled_from(SEEDS)))
    for key in draw(st.lists(st.sampled_from(KEYS), max_size=4)):
        config[key] = draw(VALUES)
    for key in draw(st.lists(st.sampled_from(KEYS), max_size=2)):
        config.pop(key, None)
    if draw(st.booleans()):
        config["model_type"] = draw(TYPES)
    text = json.dumps(config).encode()
    if draw(st.integers(0, 9)) == 0:
        start, stop = sorted(draw(st.tuples(st.integers(0, len(text)), st.integers(0, len(text)))))
        text = text[:start] + draw(st.binary(max_size=8)) + text[stop:]
    return text


def check_spoilt(text: bytes, phase: str) -> None:
    Path("config.json").write_bytes(text)
    try:
        found = hosim.read_hf("config.json", phase=phase, **({} if phase == "requests" else {"sequence": 16}))
    except ConfigError as error:
        assert len(str(error)) < 2000  # noqa: PT017 - one of two outcomes
    else:
        assert isinstance(found.workload, Workload)


PHASES = st.sampled_from(["train", "prefill", "decode", "requests"])
QUIET = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]


@settings(max_examples=50, deadline=None, suppress_health_check=QUIET)
@given(spoilt(), PHASES)
def test_spoilt_files_are_read_or_refused(folder: Path, text: bytes, phase: str) -> None:
    check_spoilt(text, phase)


@pytest.mark.slow
@settings(max_examples=examples(10_000), deadline=None, suppress_health_check=QUIET)
@given(spoilt(), PHASES)
def test_many_spoilt_files_are_read_or_refused(folder: Path, text: bytes, phase: str) -> None:
    check_spoilt(text, phase)


def spoilt_sample(random: Random) -> bytes:
    text = random.choice(FILES).read_bytes()
    if random.random() < 0.4:
        return broken(text, random)
    return json.dumps(changed(json.loads(text), random), ensure_ascii=False).encode(errors="surrogatepass")


@pytest.mark.skipif(not FILES, reason="the sample files are not there")
@pytest.mark.parametrize("numbers", [range(20), pytest.param(range(20, 60 + examples(10_000)), marks=pytest.mark.slow)])
def test_samples_that_went_wrong_are_read_or_refused(folder: Path, numbers: range) -> None:
    for number in numbers:
        random = Random(f"hf {number}")
        check_spoilt(spoilt_sample(random), random.choice(["train", "prefill", "decode", "requests"]))


# what is imported runs

RUNNING = {
    "gpt_oss": kind("gpt_oss", **EXPERTS, head_dim=16, sliding_window=8, quantization_config={"quant_method": "mxfp4"}),
    "gemma3": kind("gemma3_text", head_dim=16, sliding_window=8, sliding_window_pattern=2, tie_word_embeddings=True),
    "deepseek_v32": kind("deepseek_v32", **DSA, quantization_config=FP8),
    "llama4": kind("llama4_text", **EXPERTS, intermediate_size_mlp=96, interleave_moe_layer_step=2),
    "minimax_m2": kind("minimax_m2", **EXPERTS, head_dim=16),
    "minimax": kind("minimax", **EXPERTS, attn_type_list=[0, 0, 0, 1]),
    "chosen again": kind("glm_moe_dsa", **DSA, indexer_types=["full", "shared", "shared", "full"]),
    "gemma4": kind(
        "gemma4_text", head_dim=16, sliding_window=8, layer_types=["sliding_attention", "full_attention"] * 2
    )
    | {"enable_moe_block": True, "num_experts": 8, "top_k_experts": 2, "moe_intermediate_size": 16}
    | {"hidden_size_per_layer_input": 0, "attention_k_eq_v": True}
    | {"global_head_dim": 32, "num_global_key_value_heads": 1},
    "mimo": kind("mimo_v2_flash", head_dim=24, v_head_dim=16, sliding_window=8, swa_num_key_value_heads=4)
    | {"n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "swa_v_head_dim": 16}
    | {"hybrid_layer_pattern": [0, 1, 1, 0], "moe_layer_freq": [0, 1, 1, 1], "n_shared_experts": 0},
    "latent experts": {"model_type": "nemotron_h", "hybrid_override_pattern": "M*E-", "hidden_size": 64}
    | {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 128, "n_routed_experts": 8}
    | {"mamba_num_heads": 4, "mamba_head_dim": 16, "n_groups": 2, "ssm_state_size": 8, "num_experts_per_tok": 2}
    | {"moe_intermediate_size": 16, "moe_shared_expert_intermediate_size": 32, "moe_latent_size": 24},
    "blocks": kind("nemotron-nas", num_key_value_heads=None, intermediate_size=None)
    | {
        "block_configs": [{"attention": {"n_heads_in_group": 2}, "ffn": {"ffn_mult": 2.0}}] * 2
        + [{"attention": {"no_op": True}, "ffn": {"ffn_mult": 1.0}}] * 2
    },
    "compressed": hf_small.DEEPSEEK_V4,
    "shared": hf_small.GEMMA4,
    "predicted": hf_small.GEMMA3N,
    "zero": hf_small.LONGCAT,
    "plain residuals": hf_small.HY_V4,
    "chosen blocks": hf_small.MINIMAX_M3,
}


OPTIONS: list[dict[str, Any]] = [
    {"phase": "decode", "new_tokens": 2},
    {"phase": "decode", "block": 8, "experts": "each"},
    {"phase": "prefill", "chunk": 16, "experts": "grouped"},
]


@pytest.mark.parametrize(
    ("name", "options"),
    some([(name, {"phase": "train"} if i % 2 else OPTIONS[i % 3]) for i, name in enumerate(RUNNING)], 3)
    + [
        pytest.param(name, OPTIONS[number % 3] if number % 2 else {"phase": "train"}, marks=pytest.mark.slow)
        for number, name in enumerate(RUNNING)
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(map(str, value.values())),
)
def test_what_is_imported_runs_under_checked_plans(name: str, options: dict[str, Any], folder: Path) -> None:
    if name in ("gemma3", "blocks", "shared", "predicted", "plain residuals") or (
        name == "zero" and options.get("experts") == "each"
    ):
        options = {key: value for key, value in options.items() if key != "experts"}
    read(RUNNING[name], batch=2, sequence=32, **options).write("mine.yaml")
    found = hosim.run(hardware="h100_sxm", workload="mine.yaml", policies=["resident", "reactive", "static"])
    assert {row.status for row in found.values()} == {"ok"}
