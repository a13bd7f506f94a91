"""Small models of families with layers of their own, as their ``config.json`` states them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from building import build

import simulator as hosim
from simulator.graph import Graph

DEEPSEEK_V4: dict[str, Any] = {
    "model_type": "deepseek_v4", "hidden_size": 32, "num_attention_heads": 4, "head_dim": 16, "q_lora_rank": 24,
    "num_hidden_layers": 3, "mlp_layer_types": ["hash_moe", "moe", "moe"], "vocab_size": 64, "hc_mult": 4,
    "layer_types": ["sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention"],
    "compress_rates": {"compressed_sparse_attention": 4, "heavily_compressed_attention": 8},
    "sliding_window": 8, "o_groups": 2, "o_lora_rank": 12, "index_n_heads": 2, "index_head_dim": 8,
    "index_topk": 3, "n_routed_experts": 4, "num_experts_per_tok": 2, "n_shared_experts": 1,
    "moe_intermediate_size": 8, "num_key_value_heads": 1, "qk_rope_head_dim": 2, "torch_dtype": "bfloat16",
}  # fmt: skip
GEMMA4: dict[str, Any] = {
    "model_type": "gemma4_text", "hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 8, "global_head_dim": 16, "intermediate_size": 48, "num_hidden_layers": 6, "vocab_size": 64,
    "layer_types": ["sliding_attention", "full_attention"] * 3, "num_kv_shared_layers": 2, "use_double_wide_mlp": True,
    "sliding_window": 8, "hidden_size_per_layer_input": 12, "vocab_size_per_layer_input": 40, "torch_dtype": "bfloat16",
}  # fmt: skip
GEMMA3N = {key: GEMMA4[key] for key in GEMMA4 if key not in ("use_double_wide_mlp", "global_head_dim")}
GEMMA3N |= {"model_type": "gemma3n_text", "altup_num_inputs": 3, "laurel_rank": 5}
GEMMA3N |= {"intermediate_size": [48, 40, 48, 40, 32, 24]}
LONGCAT: dict[str, Any] = {
    "model_type": "longcat_flash", "hidden_size": 64, "num_attention_heads": 4, "vocab_size": 128, "num_layers": 1,
    "ffn_hidden_size": 96, "expert_ffn_hidden_size": 16, "n_routed_experts": 8, "zero_expert_num": 4, "moe_topk": 3,
    "q_lora_rank": 24, "kv_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 8,
    "zero_expert_type": "identity", "torch_dtype": "bfloat16", "tie_word_embeddings": False,
}  # fmt: skip
MINIMAX_M3: dict[str, Any] = {
    "model_type": "minimax_m3_vl_text", "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 16, "vocab_size": 128, "num_hidden_layers": 2, "layer_types": ["full_attention", "minimax_m3_sparse"],
    "mlp_layer_types": ["dense", "sparse"], "dense_intermediate_size": 96, "intermediate_size": 16,
    "shared_intermediate_size": 24, "num_local_experts": 4, "num_experts_per_tok": 2, "index_n_heads": 2,
    "index_head_dim": 8, "index_block_size": 4, "index_topk_blocks": 3, "rotary_dim": 8, "torch_dtype": "bfloat16",
}  # fmt: skip
HY_V4: dict[str, Any] = {
    "model_type": "hy_v4", "hidden_size": 64, "num_attention_heads": 4, "vocab_size": 128, "intermediate_size": 96,
    "num_hidden_layers": 2, "mlp_layer_types": ["dense", "dense"], "indexer_types": ["full", "shared"], "hc_mult": 3,
    "q_lora_rank": 24, "kv_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 8,
    "index_n_heads": 2, "index_head_dim": 8, "index_topk": 6, "torch_dtype": "bfloat16",
}  # fmt: skip


def read(config: dict[str, Any], folder: Path, **options: Any) -> hosim.Imported:
    """Read what a ``config.json`` says."""
    file = folder / "config.json"
    file.write_text(json.dumps(config))
    return hosim.read_hf(file, **options)


def graph_of(config: dict[str, Any], folder: Path, **options: Any) -> Graph:
    """Build the graph of what a ``config.json`` says."""
    built: Graph = build(read(config, folder, **options).workload)
    return built
