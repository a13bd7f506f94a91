"""Encoders, decoders and towers against the modules of transformers, and small models against what PyTorch runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from building import build
from parameters import count
from trained import flops

import simulator as hosim
from simulator.builders import build_job
from simulator.builders.weights import parameters as parameters_in
from simulator.errors import ConfigError
from simulator.workload import DecoderModel, Workload

torch, hf = pytest.importorskip("torch"), pytest.importorskip("transformers")

BOTH: dict[str, dict[str, Any]] = {
    "t5": {},
    "t5 v1.1": {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
    **{name: {} for name in ("mt5", "umt5", "bart", "mbart", "pegasus", "marian", "m2m_100", "whisper")},
    **{name: {} for name in ("longt5", "bigbird_pegasus")},
}
TOWERS = {
    # model_type: keys, and the attribute of the whole model that is the tower
    "vit": ({}, ""),
    "clip_vision_model": ({}, ""),
    "siglip_vision_model": ({"vision_use_head": False}, ""),
    "siglip2_vision_model": ({"vision_use_head": False}, ""),
    "idefics3_vision": ({}, ""),
    "smolvlm_vision": ({}, ""),
    "chinese_clip_vision_model": ({}, ""),
    "altclip_vision_model": ({}, ""),
    "metaclip_2_vision_model": ({}, ""),
    "deit": ({}, ""),
    "blip_vision_model": ({}, ""),
    "voxtral_encoder": ({}, ""),
    "pixtral": ({}, ""),
    "qwen2_audio_encoder": ({}, ""),
    "qwen2_vl": ({}, "visual"),
    "qwen2_5_vl": ({}, "visual"),
    "qwen3_vl": ({}, "visual"),
    "qwen3_vl_moe": ({}, "visual"),
    "qwen3_5": ({}, "visual"),
    "qwen3_5_moe": ({}, "visual"),
}  # fmt: skip
ON_META: dict[str, tuple[str, dict[str, Any]]] = {
    "vit": ("ViTModel", {"add_pooling_layer": False}),
    "deit": ("DeiTModel", {"add_pooling_layer": False}),
    "altclip_vision_model": ("AltCLIPVisionModel", {}),
    "metaclip_2_vision_model": ("MetaClip2VisionModel", {}),
    "blip_vision_model": ("BlipVisionModel", {}),
}
"""Classes by name: looking one up imports it, which takes seconds."""


def parameters_of(module: Any) -> int:
    getattr(module, "tie_weights", bool)()
    return sum({id(one): one.numel() for one in module.parameters()}.values())


def saved(name: str, folder: Path, keys: dict[str, Any]) -> tuple[Any, Path]:
    """The configuration as transformers has it, and the folder that it writes it to."""
    if not hf.__version__.startswith("5."):
        pytest.skip("the defaults are those of transformers 5")
    config = hf.CONFIG_MAPPING[name.split(maxsplit=1)[0]](**keys)
    config.save_pretrained(folder)
    return config, folder


def part_of(folder: Path, part: str, phase: str = "prefill") -> tuple[Workload, DecoderModel]:
    found = hosim.read_hf(folder, part=part, phase=phase)
    assert not {key for key in found.dropped if "pooler" not in key}
    assert isinstance(found.workload.model, DecoderModel)
    return found.workload, found.workload.model


@pytest.mark.slow
@pytest.mark.parametrize("name", BOTH)
def test_encoder_and_decoder_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    config, folder = saved(name, tmp_path, BOTH[name])
    with torch.device("meta"):
        made = hf.AutoModelForSpeechSeq2Seq if name == "whisper" else hf.AutoModelForSeq2SeqLM
        module = made.from_config(config)
    encoder, decoder = (part_of(folder, part)[1] for part in ("encoder", "decoder"))
    table = encoder.vocabulary * encoder.hidden  # is that of both
    assert count(encoder).total + count(decoder).total - table == parameters_of(module)
    assert (encoder.causal, decoder.causal, encoder.head, decoder.encoded > 0) == (False, True, False, True)


@pytest.mark.slow
@pytest.mark.parametrize("name", TOWERS)
def test_towers_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    keys, attribute = TOWERS[name]
    config, folder = saved(name, tmp_path, keys)
    with torch.device("meta"):
        if name in ON_META:
            made, more = ON_META[name]
            module = getattr(hf, made)(config, **more)
        else:
            module = hf.AutoModel.from_config(config)
    module = getattr(module, attribute) if attribute else module
    workload, model = part_of(folder, "vision" if attribute else "decoder")
    assert count(model).total == parameters_of(module)
    held = sum(t.size_bytes for t in build(workload).tensors if t.kind == "weight")
    assert held == workload.dtypes.element_bytes * count(model).total


SMALL = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4}
GPT = {"n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 128}
TINY: dict[str, dict[str, Any]] = {
    "gpt2": GPT,
    "gpt_bigcode": GPT,
    "gptj": GPT | {"rotary_dim": 8},
    "codegen": GPT | {"rotary_dim": 8},
    "gpt_neo": {"hidden_size": 64, "num_layers": 2, "num_heads": 4, "attention_types": [[["global", "local"], 1]]},
    "gpt_neox": SMALL,
    "phi": SMALL,
    "stablelm": SMALL | {"num_key_value_heads": 2},
    "starcoder2": SMALL | {"num_key_value_heads": 2},
    "nemotron": SMALL | {"num_key_value_heads": 2, "head_dim": 16},
    "cohere": SMALL | {"num_key_value_heads": 2},
    "bloom": {"hidden_size": 64, "n_layer": 2, "n_head": 4},
    "falcon": {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "ffn_hidden_size": 256},
    "mpt": {"d_model": 64, "n_layers": 2, "n_heads": 4},
    "opt": {"hidden_size": 64, "ffn_dim": 96, "num_hidden_layers": 2, "num_attention_heads": 4}
    | {"word_embed_proj_dim": 32, "do_layer_norm_before": False},
    "bert": SMALL,
    "modernbert": SMALL,
}
"""Sizes of small models; with a vocabulary of 128 words."""
EAGER = ("gpt_neo", "bloom", "mpt", "falcon")
"""Whose attention is no kernel of its own."""


@pytest.mark.slow
@pytest.mark.parametrize("name", TINY)
def test_as_much_work_as_pytorch_runs(name: str, tmp_path: Path) -> None:
    """Of all products with weights in a training step, forward and backward, as the capture counts them."""
    ends = {"vocab_size": 128, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    config, folder = saved(name, tmp_path, ends | TINY[name])
    workload = hosim.read_hf(folder, phase="train", batch=2, sequence=16).workload
    assert isinstance(workload.model, DecoderModel)
    made = hf.AutoModelForCausalLM if workload.model.causal else hf.AutoModelForMaskedLM
    is_eager = name in EAGER
    with hosim.torch.fake():
        module = made.from_config(config, attn_implementation="eager" if is_eager else "sdpa").eval()
        ids = torch.randint(0, 128, (2, 16))
    graph = hosim.torch.capture(module, input_ids=ids, labels=ids).graph
    found, built = sum(op.flops for op in graph.ops if op.op_class == "matmul"), build(workload)
    pairs = 2 * (2 * 16) * 16 * is_eager  # of both layers, which attend in products like others
    assert found == flops(built, "forward", "matmul") + flops(built, "backward", "matmul") + 3 * pairs * 4 * 64


def config(folder: Path, **keys: Any) -> Path:
    (folder / "config.json").write_text(json.dumps(keys))
    return folder


def test_an_encoder_reads_by_default_and_does_not_decode(tmp_path: Path) -> None:
    folder = config(tmp_path, model_type="bert")
    assert hosim.read_hf(folder).workload.phase == "prefill"
    with pytest.raises(ConfigError, match="an encoder, or a model without a head, adds no tokens, found phase decode"):
        hosim.read_hf(folder, phase="decode")


BERT_HEAD = 768 * 768 + 768 + 2 * 768 + 30_522
"""A linear with a bias, a norm, and the bias of the output projection, whose matrix is the embedding's."""


@pytest.mark.parametrize(
    ("reader", "without", "told"),
    [
        ("BertForMaskedLM", 0, ""),
        ("BertLMHeadModel", 0, ""),
        ("BertModel", BERT_HEAD, "BertModel has no output projection; a pooler or a classifier in its place"),
        ("BertForSequenceClassification", BERT_HEAD, "BertForSequenceClassification has no output projection; "),
    ],
)
def test_an_encoder_has_the_head_of_its_class(reader: str, without: int, told: str, tmp_path: Path) -> None:
    folder = config(tmp_path, model_type="bert", architectures=[reader])
    for phase in ("train", "prefill"):
        found = hosim.read_hf(folder, phase=phase)
        (parameters, _), model = parameters_in(found.workload) or (0, 0), found.workload.model
        assert (parameters, model.head) == (109_514_298 - without, not without)
        assert sum(t.size_bytes for t in build(found.workload).tensors if t.kind == "weight") == 2 * parameters
        assert bool(told) == any(text.startswith(told) for text in found.derived if "projection" in text)


@pytest.mark.parametrize("reader", ["LlamaForSequenceClassification", "LlamaModel", "LlamaForCausalLM"])
def test_a_decoder_keeps_its_head_and_tells(reader: str, tmp_path: Path) -> None:
    folder = config(tmp_path, model_type="llama", architectures=[reader])
    told = f"An output projection is counted, though the class that reads the file is {reader}."
    assert (told in hosim.read_hf(folder).derived) == (reader != "LlamaForCausalLM")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"phase": "requests"}, r"--phase: a decoder behind an encoder is not served, found phase requests; set "),
        ({"phase": "train", "pipeline": 2}, r"--pipeline: an encoder's output reaches one stage, found 2 stag"),
    ],
)
def test_a_decoder_behind_an_encoder_says_what_is_not_built(options: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        hosim.read_hf(config(tmp_path, model_type="t5"), **options)


def test_data_ranks_that_share_nothing_are_not_served(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--data: data ranks .* found 2 engines of their own; add expert"):
        hosim.read_hf(config(tmp_path, model_type="llama"), phase="requests", data=2)


@pytest.mark.parametrize(
    ("keys", "part", "message"),
    [
        (
            {"model_type": "llama"},
            "vision",
            r"a model has the part, vision, and hosim knows it, found 'llama', without one",
        ),
        (
            {"model_type": "llava", "vision_config": {"model_type": "cnn"}},
            "vision",
            r"found 'cnn', 'llava', which is not",
        ),
        ({"model_type": "bert"}, "encoder", r"a model has the part, encoder, .* found 'bert', without one"),
        ({"model_type": "whisper"}, "audio", r"found 'whisper', without one; capture .*, or choose --part encoder$"),
        ({"model_type": ["bert"]}, "vision", r"found no model_type, without one"),
        ({"vision_config": {"depth": 2}}, "vision", r"found no model_type, which is not known"),
    ],
)
def test_parts_that_are_not_there_are_refused(keys: dict[str, Any], part: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        hosim.read_hf(config(tmp_path, **keys), part=part)


def test_parts_are_told(tmp_path: Path) -> None:
    """The encoder's output is an input of the decoder, which says so."""
    folder = config(tmp_path, model_type="whisper")
    found = hosim.read_hf(folder)
    assert found.workload.phase == "decode"
    assert any("1,500 rows" in text and "--part encoder" in text for text in found.derived)
    assert hosim.read_hf(folder, part="encoder").workload.sequence == 1500


def test_a_tower_takes_no_words(tmp_path: Path) -> None:
    """So it does not tell of a default for them."""
    found = hosim.read_hf(config(tmp_path, vision_config={"model_type": "clip_vision_model"}), part="vision")
    assert "hidden_size 768" in found.derived[0]
    assert "vocab_size" not in found.derived[0]


def test_an_encoder_has_no_cache_and_a_decoder_that_of_its_input(tmp_path: Path) -> None:
    folder = config(tmp_path, model_type="whisper")
    card = hosim.read_hf(folder).card
    assert card["KV cache"] == "6.14 kB a token, 6.14 kB of each of 1,500 rows of the encoder's output"
    assert "KV cache" not in hosim.read_hf(folder, part="encoder").card


BERT = {"model_type": "bert", "is_decoder": True, "add_cross_attention": True}


def test_a_model_of_two_others_has_the_parts_of_both(tmp_path: Path) -> None:
    """The decoder attends to the encoder, which has no head that predicts tokens."""
    vit = {"model_type": "vit", "hidden_size": 768}
    folder = config(tmp_path, model_type="vision-encoder-decoder", decoder=BERT, encoder=vit)
    _, decoder = part_of(folder, "decoder")
    _, encoder = part_of(folder, "encoder")
    assert (decoder.causal, decoder.encoded > 0, decoder.head_transform) == (True, True, True)
    assert (encoder.causal, encoder.head, encoder.registers) == (False, False, 1)
    config(tmp_path, model_type="encoder-decoder", decoder=BERT, encoder={"model_type": "bert"})
    _, encoder = part_of(folder, "encoder")
    assert (encoder.head, encoder.head_transform, encoder.head_biases) == (False, False, ())


@pytest.mark.parametrize(
    ("keys", "part", "message"),
    [
        ({"model_type": "encoder-decoder", "encoder": {"model_type": "roberta"}}, "encoder", "found 'roberta', 'enc"),
        ({"model_type": "blip_text_model", "encoder_hidden_size": 1024}, "decoder", "as wide as .* 1,024 and 768"),
        ({"model_type": "switch_transformers", "num_sparse_decoder_layers": 6}, "decoder", "num_sparse_decoder_layers"),
        ({"model_type": "switch_transformers", "router_bias": True}, "decoder", "router_bias"),
        (
            {"model_type": "longt5", "encoder_attention_type": "transient-global", "global_block_size": 16},
            "encoder",
            "glo",
        ),
        ({"model_type": "doge", "is_moe": True}, "decoder", "is_moe"),
    ],
)
def test_what_relatives_lack_is_refused(keys: dict[str, Any], part: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        hosim.read_hf(config(tmp_path, **keys), part=part)


@pytest.mark.parametrize("part", ["decoder", "encoder"])
def test_layers_with_experts_are_the_second_of_each_four(part: str, tmp_path: Path) -> None:
    """Biases of distances in the first layer leave the others as they are."""
    folder = config(tmp_path, model_type="switch_transformers", decoder_sparse_step=4, encoder_sparse_step=4)
    model = hosim.read_hf(folder, part=part).workload.model  # type: ignore[arg-type]
    assert isinstance(model, DecoderModel)
    with_experts = [layer for layer in range(12) if model.layer(layer).feed_forward.kind == "experts"]
    assert with_experts == [1, 5, 9]
    assert [layer for layer in range(12) if getattr(model.layer(layer).attention, "buckets", 0)] == [0]


@pytest.mark.parametrize(
    ("keys", "window"),
    [
        ({"model_type": "big_bird", "attention_type": "block_sparse"}, 8 * 64),  # 3 near, 2 at the ends, 3 at random
        ({"model_type": "big_bird", "attention_type": "original_full", "block_size": 64}, None),
        ({"model_type": "bigbird_pegasus", "block_size": 32, "num_random_blocks": 2}, 7 * 32),
        ({"model_type": "pegasus_x", "block_size": 128, "num_global_tokens": 8}, 128 + 8),
        ({"model_type": "longt5", "local_radius": 63, "encoder_attention_type": "local"}, 2 * 63 + 1),
    ],
)
def test_blocks_that_a_token_sees_are_a_window(keys: dict[str, Any], window: int | None, tmp_path: Path) -> None:
    part = "decoder" if keys["model_type"] == "big_bird" else "encoder"
    model = hosim.read_hf(config(tmp_path, **keys), part=part).workload.model  # type: ignore[arg-type]
    assert isinstance(model, DecoderModel)
    assert {getattr(kind.attention, "window", 0) for kind in model.kinds} == {window}


@pytest.mark.parametrize("tensor", [1, 2])
def test_an_embedding_may_have_rows_that_no_output_is_of(tensor: int, tmp_path: Path) -> None:
    """Moshi's has one more, for tokens that are not yet there: each rank has all 32,001."""
    found = hosim.read_hf(config(tmp_path, model_type="moshi"), sequence=64, tensor=tensor).workload
    graph = build_job(found).graphs[0]
    table, head = (
        next(t for t in graph.tensors if t.name == name) for name in ("embed/tokens.weight", "head/lm.weight")
    )
    assert (table.size_bytes, head.size_bytes) == (2 * 32001 * 4096, 2 * 32000 * 4096 // tensor)
    tied = config(tmp_path, model_type="moshi", tie_word_embeddings=True)
    with pytest.raises(
        ConfigError,
        match="a tied embedding has the rows of the vocabulary, found 32,001 rows for 32,000; set it to false",
    ):
        hosim.read_hf(tied)
