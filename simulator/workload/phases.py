"""Which keys of a workload are for which phases, and which of them a recommender has."""

from __future__ import annotations

INFERENCE = ("prefill", "decode")
_OF_A_LENGTH = ("train", "serve", *INFERENCE)
_TRAINS = "optimizer lora frozen checkpoint kernels loss_chunks on.optimizer on.tables dtypes.gradients dtypes.router "
_TRAINS += "dtypes.optimizer_bytes_per_parameter dtypes.logits_copies_fp32 dtypes.gradient_copies_fp32"
_KEYS = {
    _OF_A_LENGTH: "batch sequence replicas outputs steps",
    (*_OF_A_LENGTH, "requests"): "swiglu",
    ("train",): _TRAINS,
    ("prefill",): "chunk",
    ("decode",): "new_tokens answers on.attention",
    INFERENCE: "kv experts on.experts on.layers",
    ("train", "prefill"): "masked",
    ("train", *INFERENCE): "on in_place dtypes.scores_bytes",
    ("train", *INFERENCE, "requests"): "parallel dtypes.weights dtypes.experts dtypes.others dtypes.dequantize",
    ("serve",): "pools",
    ("requests",): "requests",
    (*INFERENCE, "requests"): "dtypes.kv_cache dtypes.arithmetic dtypes.states",
}
PHASES_OF = {key: phases for phases, keys in _KEYS.items() for key in keys.split()}
"""Key -> the phases that it is for."""
OF_A_LENGTH = frozenset(_KEYS[_OF_A_LENGTH].split())
"""Keys of what has a length, graphs from files included."""
_OF_RECOMMENDER = "batch outputs steps dtypes dtypes.compute dtypes.gradients dtypes.optimizer_bytes_per_parameter "
_OF_RECOMMENDER += "parallel parallel.ranks parallel.data parallel.micro_batches on on.tables"
OF_RECOMMENDER = frozenset(_OF_RECOMMENDER.split())
"""Keys that a recommender may state, of those that depend on the phase."""
