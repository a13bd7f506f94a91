"""Models of transformers of many families, small, made of their configurations; none was used to write the capture."""

import torch
import transformers as hf

WORDS = 512
_SIZES = {"vocab_size": WORDS, "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2}
_HEADS = {**_SIZES, "num_attention_heads": 4}
_SHARED = {**_HEADS, "num_key_value_heads": 2}
_PARTS = {
    "vocab_size": WORDS, "d_model": 128, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 256, "decoder_ffn_dim": 256,
}  # fmt: skip
_LATENT = {
    "q_lora_rank": 32, "kv_lora_rank": 32, "qk_rope_head_dim": 16, "qk_nope_head_dim": 16, "v_head_dim": 16,
    "n_routed_experts": 8, "n_group": 2, "topk_group": 1, "num_experts_per_tok": 2, "moe_intermediate_size": 64,
    "first_k_dense_replace": 1, "experts_implementation": "batched_mm",
}  # fmt: skip
_SEEN = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}


def _text(family, **sizes):
    """A language model and some text; ``For`` and what follows may be part of the name."""
    config = getattr(hf, f"{family.partition('For')[0]}{'Text' if family.startswith('Gemma3') else ''}Config")(**sizes)
    ids = torch.randint(0, WORDS, (2, 128))
    model = getattr(hf, family if "For" in family or "LMHead" in family else f"{family}ForCausalLM")(config)
    return model, {"input_ids": ids, "labels": ids}


def _short(family, **sizes):
    """The same in bf16."""
    model, named = _text(family, **sizes)
    return model.to(torch.bfloat16), named


def gpt2():
    ids = torch.randint(0, WORDS, (2, 128))
    model = hf.GPT2LMHeadModel(hf.GPT2Config(vocab_size=WORDS, n_embd=128, n_layer=2, n_head=4))
    return model, {"input_ids": ids, "labels": ids}


def vit():
    model = hf.ViTForImageClassification(hf.ViTConfig(**_SEEN))
    return model, {"pixel_values": torch.randn(2, 3, 224, 224), "labels": torch.zeros(2, dtype=torch.long)}


def whisper():
    ids = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}
    model = hf.WhisperForConditionalGeneration(hf.WhisperConfig(**_PARTS, **ids))
    return model, {"input_features": torch.randn(1, 80, 3000), "labels": torch.randint(3, WORDS, (1, 32))}


def clip():
    ends = {"bos_token_id": 1, "eos_token_id": 2}
    seen = {**_SEEN, "image_size": 64, "patch_size": 16}
    config = hf.CLIPConfig(text_config={**_SEEN, "vocab_size": WORDS, **ends}, vision_config=seen)
    given = {"input_ids": torch.randint(3, WORDS, (2, 16)), "pixel_values": torch.randn(2, 3, 64, 64)}
    return hf.CLIPModel(config), {**given, "return_loss": True}


def segformer():
    given = {"pixel_values": torch.randn(1, 3, 128, 128), "labels": torch.zeros(1, 128, 128, dtype=torch.long)}
    return hf.SegformerForSemanticSegmentation(hf.SegformerConfig()), given


def detr():
    sizes = {"d_model": 64, "encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64}
    backbone = {"use_timm_backbone": False, "use_pretrained_backbone": False, "backbone": None}
    config = hf.DetrConfig(backbone_config=hf.ResNetConfig(out_features=["stage4"]), **backbone, **sizes)
    labels = [{"class_labels": torch.zeros(2, dtype=torch.long), "boxes": torch.rand(2, 4)}]
    return hf.DetrForObjectDetection(config), {"pixel_values": torch.randn(1, 3, 128, 128), "labels": labels}


def wav2vec2():
    model = hf.Wav2Vec2ForSequenceClassification(hf.Wav2Vec2Config(**_SEEN, apply_spec_augment=False))
    return model, {"input_values": torch.randn(1, 16000), "labels": torch.zeros(1, dtype=torch.long)}


MODELS = {
    "gpt2": gpt2,
    "bert": lambda: _text("BertForMaskedLM", **_HEADS),
    "opt": lambda: _text("OPT", **{**_HEADS, "ffn_dim": 256, "word_embed_proj_dim": 128}),
    "qwen3": lambda: _text("Qwen3", **_SHARED, head_dim=32),
    "gemma2": lambda: _text("Gemma2", **_SHARED, head_dim=32),
    "gemma3": lambda: _text("Gemma3ForCausalLM", **_SHARED, head_dim=32),
    "mixtral, experts in groups": lambda: _short("Mixtral", **_SHARED, num_local_experts=4),
    "mixtral, experts in batches": lambda: _short(
        "Mixtral", **_SHARED, num_local_experts=4, experts_implementation="batched_mm"
    ),
    "deepseek_v3": lambda: _text("DeepseekV3", **_HEADS, **_LATENT),
    "bart": lambda: _text("BartForConditionalGeneration", **_PARTS),
    "mamba": lambda: _text("Mamba", vocab_size=WORDS, hidden_size=64, num_hidden_layers=2),
    "mamba2": lambda: _text(
        "Mamba2", vocab_size=WORDS, hidden_size=64, num_heads=4, head_dim=32, n_groups=1, num_hidden_layers=2
    ),
    "vit": vit,
    "segformer": segformer,
    "clip": clip,
    "whisper": whisper,
    "detr": detr,
    "wav2vec2": wav2vec2,
}
"""Name -> a function that makes a model and its inputs by name."""

ASK_FOR_VALUES = ("detr", "wav2vec2")
"""Models whose step depends on the values of tensors."""
