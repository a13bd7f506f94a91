"""Published decoders: what their ``config.json`` says beyond the defaults of transformers, and how many parameters.

Totals are those of the published weights: ``safetensors.total`` of the model card in the Hub's API, without what stands
beside the decoder (towers, layers that only predict further tokens), where nothing else is said.
"""

from __future__ import annotations

from typing import Any, NamedTuple


class Published(NamedTuple):
    """A model: its keys, its parameters in all and for a token [billions, as printed], and where they are printed.

    A count of active parameters leaves out so many of the two tables, the input's and the output's.
    """

    config: dict[str, Any]
    total: float
    active: float | None = None
    source: str = "safetensors.total"
    tables_out: int = 0


def _sizes(hidden: int, ffn: int, layers: int, heads: int, kv_heads: int, **more: Any) -> dict[str, Any]:
    names = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads")
    return dict(zip(names, (hidden, ffn, layers, heads, kv_heads), strict=True)) | more


def _llama(*sizes: int, **more: Any) -> dict[str, Any]:
    return {"model_type": "llama"} | _sizes(*sizes, **more)


def _qwen2(*sizes: int, **more: Any) -> dict[str, Any]:
    return {"model_type": "qwen2"} | _sizes(*sizes, **more)


TIED = {"tie_word_embeddings": True}
GLM = {"model_type": "glm4_moe", "head_dim": 128, "attention_bias": True}
PUBLISHED = {
    "Llama-2-7b": Published(_llama(4096, 11008, 32, 32, 32), 6.738415616),
    "Llama-2-70b": Published(_llama(8192, 28672, 80, 64, 8), 68.976648192),
    "Llama-3.2-1B": Published(_llama(2048, 8192, 16, 32, 8, vocab_size=128256, head_dim=64, **TIED), 1.2358144),
    "Llama-3.2-3B": Published(_llama(3072, 8192, 28, 24, 8, vocab_size=128256, head_dim=128, **TIED), 3.212749824),
    "Llama-4-Scout": Published(
        {"model_type": "llama4_text"}, 107.8, 17, "model card: 109 B with a tower of 0.87 B; 17 B active"
    ),
    "Llama-4-Maverick": Published(
        {"model_type": "llama4_text", "num_local_experts": 128, "interleave_moe_layer_step": 2},
        400,
        17,
        "model card: 400 B, 17 B active",
    ),
    "Mistral-7B-v0.1": Published({"model_type": "mistral"}, 7.241732096),
    "Mistral-7B-v0.3": Published({"model_type": "mistral", "sliding_window": None, "vocab_size": 32768}, 7.248023552),
    "Mixtral-8x22B": Published(
        {"model_type": "mixtral"} | _sizes(6144, 16384, 56, 48, 8), 141, 39, "mistral.ai/news/mixtral-8x22b"
    ),
    "Qwen2.5-0.5B": Published(_qwen2(896, 4864, 24, 14, 2, **TIED), 0.494032768),
    "Qwen2.5-7B": Published(_qwen2(3584, 18944, 28, 28, 4, vocab_size=152064), 7.615616512),
    "Qwen2.5-72B": Published(_qwen2(8192, 29568, 80, 64, 8, vocab_size=152064), 72.7, None, "model card"),
    "Qwen1.5-MoE-A2.7B": Published({"model_type": "qwen2_moe"}, 14.315784192, 2.7, "safetensors.total; model card"),
    "Qwen2-57B-A14B": Published(
        {"model_type": "qwen2_moe", "moe_intermediate_size": 2560, "shared_expert_intermediate_size": 20480}
        | {"num_experts": 64, "num_experts_per_tok": 8}
        | _sizes(3584, 18944, 28, 28, 4),
        57.4,
        14,
        "arXiv 2407.10671, table 1: 57 B, 14 B active; qwenlm.github.io/blog/qwen2: 57.41 B",
    ),
    "Qwen3-4B": Published({"model_type": "qwen3"} | _sizes(2560, 9728, 36, 32, 8, **TIED), 4.022468096),
    "Qwen3-8B": Published({"model_type": "qwen3"} | _sizes(4096, 12288, 36, 32, 8), 8.190735360),
    "Qwen3-32B": Published({"model_type": "qwen3"} | _sizes(5120, 25600, 64, 64, 8), 32.762123264),
    "Qwen3-30B-A3B": Published(
        {"model_type": "qwen3_moe", "head_dim": 128, "num_hidden_layers": 48},
        30.532122624,
        3.35,
        "safetensors.total; model card: 3.3 B, cut off",
    ),
    "Qwen3-Coder-480B-A35B": Published(
        {"model_type": "qwen3_moe", "head_dim": 128, "num_experts": 160, "moe_intermediate_size": 2560}
        | _sizes(6144, 8192, 62, 96, 8),
        480,
        35,
        "model card",
    ),
    "gemma-2-2b": Published({"model_type": "gemma2"}, 2.614341888),
    "gemma-2-9b": Published(
        {"model_type": "gemma2"} | _sizes(3584, 14336, 42, 16, 8),
        9.242164736,
        None,
        "arXiv 2408.00118, table 2: 917,962,752 of the table and 8,324,201,984 others",
    ),
    "gemma-2-27b": Published(
        {"model_type": "gemma2", "head_dim": 128} | _sizes(4608, 36864, 46, 32, 16),
        27.227717632,
        None,
        "arXiv 2408.00118, table 2: 1,180,237,824 of the table and 26,047,480,320 others",
    ),
    "gemma-3-1b": Published(
        {"model_type": "gemma3_text", "sliding_window": 512, "vocab_size": 262144} | _sizes(1152, 6912, 26, 4, 1),
        0.999885952,
    ),
    "gemma-3-27b": Published(
        {"model_type": "gemma3_text", "sliding_window": 1024, "head_dim": 128} | _sizes(5376, 21504, 62, 32, 16),
        27.016,
        None,
        "arXiv 2503.19786, table 1: 1,416 M of the table and 25,600 M others",
    ),
    "Phi-3-mini": Published({"model_type": "phi3", "sliding_window": 2047}, 3.821079552),
    "phi-4": Published({"model_type": "phi3", "vocab_size": 100352} | _sizes(5120, 17920, 40, 40, 10), 14.659507200),
    "Phi-4-mini": Published(
        {"model_type": "phi3", "vocab_size": 200064} | _sizes(3072, 8192, 32, 24, 8, **TIED), 3.83602176
    ),
    "Phi-3.5-MoE": Published(
        {"model_type": "phimoe", "attention_bias": True, "lm_head_bias": True}, 41.9, 6.6, "model card"
    ),
    "DeepSeek-V2": Published(
        {"model_type": "deepseek_v2", "hidden_size": 5120, "intermediate_size": 12288, "num_hidden_layers": 60}
        | {"num_attention_heads": 128, "n_routed_experts": 160, "num_experts_per_tok": 6, "first_k_dense_replace": 1}
        | {"moe_intermediate_size": 1536},
        236,
        21,
        "arXiv 2405.04434, abstract",
        1,
    ),
    "DeepSeek-V2-Lite": Published(
        {"model_type": "deepseek_v2", "hidden_size": 2048, "intermediate_size": 10944, "num_hidden_layers": 27}
        | {"num_attention_heads": 16, "q_lora_rank": None, "num_experts_per_tok": 6, "first_k_dense_replace": 1}
        | {"moe_intermediate_size": 1408},
        15.706484224,
    ),
    "DeepSeek-V3": Published(
        {"model_type": "deepseek_v3"},
        671.026419200,
        36.6,
        "safetensors.total without layer 61; README_WEIGHTS.md: 36.6 B active with the head",
        1,
    ),
    "DeepSeekMoE-16B": Published(
        {"model_type": "deepseek", "vocab_size": 102400, "n_routed_experts": 64, "num_experts_per_tok": 6}
        | {"n_shared_experts": 2, "moe_intermediate_size": 1408, "first_k_dense_replace": 1}
        | _sizes(2048, 10944, 28, 16, 16),
        16.4,
        2.8,
        "arXiv 2401.06066, section 5.1.2: 16.4 B, 2.8 B active",
    ),
    "Kimi-K2": Published(
        {"model_type": "kimi_k2", "num_attention_heads": 64, "n_routed_experts": 384, "first_k_dense_replace": 1}
        | {"vocab_size": 163840},
        1026.408232448,
        32,
        "safetensors.total; model card: 32 B active",
        1,
    ),
    "gpt-oss-20b": Published(
        {"model_type": "gpt_oss", "num_hidden_layers": 24, "num_local_experts": 32},
        20.914757184,
        3.61,
        "safetensors.total; arXiv 2508.10925, table 1: active with the head",
        1,
    ),
    "gpt-oss-120b": Published(
        {"model_type": "gpt_oss"},
        116.829156672,
        5.13,
        "safetensors.total; arXiv 2508.10925, table 1: active with the head",
        1,
    ),
    "ChatGLM2-6B": Published(
        {"model_type": "chatglm", "num_layers": 28, "hidden_size": 4096, "ffn_hidden_size": 13696}
        | {"num_attention_heads": 32, "multi_query_group_num": 2, "kv_channels": 128, "padded_vocab_size": 65024}
        | {"add_qkv_bias": True, "add_bias_linear": False},
        6.243584,
        None,
        "counted by peft: github.com/hiyouga/ChatGLM-Efficient-Tuning, issue 396",
    ),
    "GLM-4-9B-0414": Published({"model_type": "glm4"}, 9.400279040),
    "GLM-4.5": Published(
        GLM
        | _sizes(5120, 12288, 92, 96, 8, moe_intermediate_size=1536, n_routed_experts=160, use_qk_norm=True)
        | {"first_k_dense_replace": 3},
        352.8,
        32,
        "arXiv 2508.06471, table 1: 355 B with the layer of further tokens (3.9 B), without both tables (1.6 B)",
        2,
    ),
    "GLM-5": Published({"model_type": "glm_moe_dsa"}, 744, None, "model card: 744 B"),
    "MiniMax-M2": Published({"model_type": "minimax_m2"}, 228.689764864, 10, "safetensors.total; model card: 10 B", 1),
    "MiniMax-Text-01": Published(
        {"model_type": "minimax", "head_dim": 128, "num_local_experts": 32, "vocab_size": 200064}
        | {"layer_types": (["linear_attention"] * 7 + ["full_attention"]) * 10}
        | _sizes(6144, 9216, 80, 64, 8),
        456.089655296,
        45.9,
        "safetensors.total; arXiv 2501.08313, abstract",
        2,
    ),
    "OLMoE-1B-7B": Published(
        {"model_type": "olmoe", "intermediate_size": 1024}, 6.919161856, 1.3, "safetensors.total; arXiv 2409.02060"
    ),
    "Seed-OSS-36B": Published({"model_type": "seed_oss", "hidden_size": 5120}, 36.151104512),
    "SmolLM3-3B": Published({"model_type": "smollm3"}, 3.075098624),
}
_RELATIVES: dict[str, dict[str, Any]] = {
    "cohere": {"num_key_value_heads": 8},
    "cohere2": {},
    "dots1": {"n_routed_experts": 128, "n_shared_experts": 2, "num_experts_per_tok": 6, "first_k_dense_replace": 1},
    "ernie4_5": {"use_bias": True},
    "exaone4": {},
    "glm": {},
    "glm4_moe_lite": {},
    "granitemoe": {},
    "laguna elements": {"gating": "per-element"},
    "mimo_v2_flash": {"num_key_value_heads": 2},
    "granitemoeshared": {"shared_intermediate_size": 1024},
    "helium": {},
    "hunyuan_v1_dense": {"head_dim": 128},
    "internlm3": {"attention_bias": True, "mlp_bias": True},
    "ministral": {"head_dim": 128},
    "ministral3": {},
    "olmo": {},
    "olmo2": {},
    "olmo3": {},
    "gpt2": {},
    "gpt2 xl": {"n_embd": 1600, "n_layer": 48, "n_head": 25},
    "gpt_bigcode": {},
    "gpt_bigcode heads": {"multi_query": False, "num_key_value_heads": 12},
    "gptj": {},
    "codegen": {},
    "gpt_neo": {},
    "gpt_neox": {},
    "gpt_neox after": {"use_parallel_residual": False, "attention_bias": False},
    "phi": {},
    "phi normed": {"qk_layernorm": True},
    "persimmon": {},
    "stablelm": {},
    "stablelm 2": {"use_qkv_bias": True, "use_parallel_residual": True, "qk_layernorm": True, "num_key_value_heads": 8},
    "starcoder2": {},
    "nemotron": {"num_key_value_heads": 8},
    "bloom": {"hidden_size": 1024, "n_layer": 24, "n_head": 16},
    "falcon": {},
    "falcon 40b": {"hidden_size": 8192, "num_hidden_layers": 60, "num_attention_heads": 128, "num_kv_heads": 8}
    | {"new_decoder_architecture": True, "ffn_hidden_size": 32768},
    "falcon 11b": {"hidden_size": 4096, "num_hidden_layers": 60, "num_attention_heads": 32, "num_kv_heads": 8}
    | {"new_decoder_architecture": True, "ffn_hidden_size": 16384, "num_ln_in_parallel_attn": 1},
    "falcon rw": {"hidden_size": 2048, "num_hidden_layers": 24, "num_attention_heads": 32, "alibi": True, "bias": True}
    | {"multi_query": False, "parallel_attn": False, "ffn_hidden_size": 8192, "num_kv_heads": 32},
    "mpt": {},
    "opt": {},
    "opt 350m": {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "ffn_dim": 4096}
    | {"word_embed_proj_dim": 512, "do_layer_norm_before": False},
    "opt 175b": {"hidden_size": 12288, "num_hidden_layers": 96, "num_attention_heads": 96, "ffn_dim": 49152}
    | {"word_embed_proj_dim": 12288},
    "xglm": {},
    "biogpt": {},
    "bert": {},
    "roberta": {"max_position_embeddings": 514, "type_vocab_size": 1},
    "xlm-roberta": {},
    "camembert": {},
    "distilbert": {},
    "electra": {},
    "electra base": {"embedding_size": 768, "hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072},
    "modernbert": {},
    "modernbert biased": {"norm_bias": True, "attention_bias": True, "mlp_bias": True, "classifier_bias": True},
    "bert decoder": {"is_decoder": True},
    "bert across": {"is_decoder": True, "add_cross_attention": True},
    "xlm": {},
    "trocr": {},
    "cohere normed": {"use_qk_norm": True, "num_key_value_heads": 8},
}
RELATIVES = {name: Published({"model_type": name.split()[0]} | keys, 0.0) for name, keys in _RELATIVES.items()}
"""Families of which no published model is here: with the sizes of transformers' defaults, to be held against these."""
