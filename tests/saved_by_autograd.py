"""What PyTorch's autograd saves of one layer of a Hugging Face model, beside what hosim says that is saved.

    python tests/saved_by_autograd.py

prints the table of `docs/evidence/saved-bytes.md`. It needs torch and transformers.

A layer runs forward once, on the processor, in bf16. Counted are the storages that autograd saves, each once, but for
those of parameters and of the tables of the rotary embedding. Attention is PyTorch's own flash kernel
(``scaled_dot_product_attention`` without a mask), or one of `published_kernels`; experts run grouped (``grouped_mm``).
``eager`` is the module as transformers has it; in ``fused`` each norm is one function that saves its input, as fused
kernels do.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from published_kernels import Chosen, Lightning, Views
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode
from trained import saved_bytes

from simulator.builders import build_job
from simulator.graph import Graph
from simulator.workload import Workload

H, F, VOCABULARY, BATCH, SEQUENCE, RANK = 512, 1024, 100, 2, 128, 16
ALIKE = {"hidden_size": H, "intermediate_size": F, "num_hidden_layers": 2, "vocab_size": VOCABULARY}
ALIKE |= {"num_attention_heads": 8, "num_key_value_heads": 4}
LATENT = {"q_lora_rank": 192, "kv_lora_rank": 128, "qk_nope_head_dim": 64, "qk_rope_head_dim": 32, "v_head_dim": 96}
GQA = {"kind": "gqa", "heads": 8, "kv_heads": 4, "head_size": 64}
MLA = {"kind": "mla", "heads": 8, "q_lora_rank": 192, "kv_lora_rank": 128, "qk_nope": 64, "qk_rope": 32, "v_head": 96}
DENSE = {"kind": "dense", "width": F}
VIEWS: dict[str, Any] = {"compress": {"block": 16, "stride": 8}, "select": {"block": 16, "top": 4}, "window": 32}


class Family(NamedTuple):
    """A module of transformers: its prefix and file, its configuration; and the same for hosim."""

    prefix: str
    module: str
    config: dict[str, Any]
    attention: dict[str, Any]
    feed_forward: dict[str, Any]
    layer: int = 0
    dtypes: dict[str, Any] = {}
    model: dict[str, Any] = {}


_ROUTED = {"n_routed_experts": 16, "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1, "n_shared_experts": 1}
_DEEPSEEK = (
    ALIKE | LATENT | _ROUTED | {"num_key_value_heads": 8, "first_k_dense_replace": 1, "moe_intermediate_size": 256}
)
_EXPERTS = {"kind": "experts", "routed": 16, "top_k": 2, "width": 256, "shared": 1, "router_bias": True}
FAMILIES = {
    "llama": Family("Llama", "llama", ALIKE, GQA, DENSE),
    "qwen3": Family("Qwen3", "qwen3", ALIKE | {"head_dim": 96}, GQA | {"head_size": 96, "qk_norms": True}, DENSE),
    "qwen2": Family("Qwen2", "qwen2", ALIKE, GQA | {"biases": ["q", "k", "v"]}, DENSE),
    "olmoe": Family(
        "Olmoe", "olmoe", ALIKE | _ROUTED | {"num_experts": 16, "intermediate_size": 256, "eos_token_id": 1},
        GQA | {"qk_norms": "all"}, {"kind": "experts", "routed": 16, "top_k": 2, "width": 256},
    ),
    "qwen3_moe": Family(
        "Qwen3Moe", "qwen3_moe", ALIKE | _ROUTED | {"head_dim": 64, "num_experts": 16, "moe_intermediate_size": 256},
        GQA | {"qk_norms": True}, {"kind": "experts", "routed": 16, "top_k": 2, "width": 256},
    ),
    "mixtral": Family(
        "Mixtral", "mixtral", ALIKE | {"num_local_experts": 8, "num_experts_per_tok": 2}, GQA,
        {"kind": "experts", "routed": 8, "top_k": 2, "width": F},
    ),
    "starcoder2": Family(
        "Starcoder2", "starcoder2", ALIKE, GQA | {"biases": ["q", "k", "v", "o"]},
        DENSE | {"gate": False, "biases": True}, model={"norm_weights": "both"},
    ),
    "olmo": Family("Olmo", "olmo", ALIKE, GQA, DENSE, model={"norm_weights": "none"}),
    "deepseek_v3 dense": Family("DeepseekV3", "deepseek_v3", _DEEPSEEK, MLA, DENSE),
    "deepseek_v3 experts": Family("DeepseekV3", "deepseek_v3", _DEEPSEEK, MLA, _EXPERTS, 1, {"router": "fp32"}),
    "deepseek_v32": Family(
        "DeepseekV32", "deepseek_v32", _DEEPSEEK | {"index_topk": 32, "index_head_dim": 64, "index_n_heads": 4},
        MLA | {"indexer": {"heads": 4, "head_size": 64, "top": 32}}, DENSE,
    ),
    "llama with three views": Family("Llama", "llama", ALIKE, GQA | {"sparse": VIEWS | {"caches": "shared"}}, DENSE),
    "llama with views apart": Family("Llama", "llama", ALIKE, GQA | {"sparse": VIEWS | {"caches": "own"}}, DENSE),
    "minimax": Family(
        "MiniMax", "minimax",
        ALIKE | {"num_local_experts": 8, "num_experts_per_tok": 2, "layer_types": ["linear_attention"] * 2},
        {"kind": "linear", "heads": 8, "head_size": 64}, {"kind": "experts", "routed": 8, "top_k": 2, "width": F},
    ),
}  # fmt: skip


class Case(NamedTuple):
    """What is compared."""

    family: str
    norms: str = "eager"
    option: str = ""


CASES = [
    *(Case(family) for family in FAMILIES),
    *(Case(family, "fused") for family in ("llama", "qwen2", "qwen3", "mixtral", "olmoe", "qwen3_moe", "minimax")),
    *(Case("llama", "eager", option) for option in ("lora", "frozen", "checkpoint", "fp32")),
    *(Case("llama", "fused", option) for option in ("lora", "frozen", "checkpoint", "fp32")),
    *(Case("qwen3", "eager", option) for option in ("lora", "frozen")),
    *(Case("deepseek_v3 experts", "eager", option) for option in ("frozen", "checkpoint")),
]
OPTIONS: dict[str, dict[str, Any]] = {
    "": {},
    "lora": {"lora": {"rank": RANK}},
    "frozen": {"frozen": ["L01/*"]},
    "checkpoint": {"checkpoint": {}},
    "fp32": {"dtypes": {"compute": "fp32"}},
}


class _Norm(torch.autograd.Function):
    """A norm of rows in one kernel: it saves its input, and a number for each row."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        scale = torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + 1e-6)
        ctx.save_for_backward(x, weight, scale)
        return (weight * (x.float() * scale)).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        raise NotImplementedError


class FusedNorm(nn.Module):
    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.weight = norm.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return _Norm.apply(x, self.weight)


class Adapted(nn.Module):
    """A linear with two narrow ones beside it, as LoRA has them."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base, dtype = base, base.weight.dtype
        self.down = nn.Linear(base.in_features, RANK, bias=False, dtype=dtype)
        self.up = nn.Linear(RANK, base.out_features, bias=False, dtype=dtype)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base(x) + self.up(self.down(x))


def _replaced(layer: nn.Module, fits: Callable[[str, nn.Module], bool], by: Callable[[Any], nn.Module]) -> None:
    for parent in [*layer.modules()]:
        for name, child in [*parent.named_children()]:
            if fits(name, child):
                setattr(parent, name, by(child))


class Torch(NamedTuple):
    """The layer, how it runs, what it takes, and storages that are there before."""

    layer: nn.Module
    run: Callable[[torch.Tensor], torch.Tensor]
    x: torch.Tensor
    known: set[int]


def of_transformers(case: Case) -> Torch:
    """Make the layer of a case."""
    family, dtype = FAMILIES[case.family], torch.float32 if case.option == "fp32" else torch.bfloat16
    config = getattr(importlib.import_module("transformers"), f"{family.prefix}Config")(**family.config)
    config._attn_implementation, config._experts_implementation = "sdpa", "grouped_mm"
    module = importlib.import_module(f"transformers.models.{family.module}.modeling_{family.module}")
    torch.manual_seed(0)
    layer = getattr(module, f"{family.prefix}DecoderLayer")(config, family.layer).to(dtype)
    rotary = getattr(module, f"{family.prefix}RotaryEmbedding")(config)
    for one in layer.parameters():
        nn.init.normal_(one, std=0.02)
    for name, by in (("MiniMaxLightningAttention", Lightning), ("DeepseekV32Attention", Chosen)):
        _replaced(layer, lambda _, one, name=name: type(one).__name__ == name, by)
    if sparse := family.attention.get("sparse"):
        _replaced(layer, lambda _, one: type(one).__name__ == "LlamaAttention", lambda one: Views(one, sparse))
    if case.option in ("lora", "frozen"):
        layer.requires_grad_(requires_grad=False)
    if case.option == "lora":
        _replaced(layer, lambda name, _: name in ("q_proj", "v_proj"), Adapted)
    if case.norms == "fused":
        _replaced(layer, lambda _, one: type(one).__name__.endswith("RMSNorm"), FusedNorm)
    x = torch.randn(BATCH, SEQUENCE, H, dtype=dtype, requires_grad=True)
    positions = torch.arange(SEQUENCE)[None]
    tables = rotary(x, positions)
    known = {one.untyped_storage().data_ptr() for one in (*layer.parameters(), *tables)}

    def run(x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = layer(x, position_embeddings=tables, position_ids=positions, attention_mask=None)
        return out

    return Torch(layer, run, x, known)


def saved_by_torch(case: Case) -> int:
    """What autograd saves of the layer [B]."""
    _, run, x, known = of_transformers(case)
    found: dict[int, torch.Tensor] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        where = tensor.untyped_storage().data_ptr()
        if where not in known:
            found[where] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        out = checkpoint(run, x, use_reentrant=True) if case.option == "checkpoint" else run(x)
    assert out.requires_grad
    return sum(one.untyped_storage().nbytes() for one in found.values())


def graph_of(case: Case) -> Graph:
    """Three such layers as hosim builds them."""
    family = FAMILIES[case.family]
    model = {"family": "decoder", "layers": 3, "hidden": H, "vocabulary": VOCABULARY}
    model |= {"attention": family.attention, "feed_forward": family.feed_forward, **family.model}
    data = {"name": "w", "model": model, "batch": BATCH, "sequence": SEQUENCE, "kernels": case.norms}
    option = OPTIONS[case.option]
    data |= option | {"dtypes": family.dtypes | option.get("dtypes", {})}
    return build_job(Workload.model_validate(data)).graphs[0]


def saved_by_hosim(case: Case) -> int:
    """What hosim saves of the second layer [B]."""
    return saved_bytes(graph_of(case), "L01/")


def products_by_torch(case: Case) -> tuple[int, int]:
    """Work of the matrix products of the layer in forward and in backward [FLOP], but for those of attention."""
    _, run, x, _ = of_transformers(case)
    found = []
    with FlopCounterMode(display=False) as counter:
        out = run(x)
    found.append(counter.get_flop_counts()["Global"])
    with FlopCounterMode(display=False) as counter:
        out.sum().backward()
    found.append(counter.get_flop_counts()["Global"])
    names = ("mm", "addmm")
    forward, backward = (sum(n for op, n in one.items() if op.__name__ in names) for one in found)
    return forward, backward


def products_by_hosim(case: Case) -> tuple[int, int]:
    """The same of the second layer, but for routed experts and products by heads, which PyTorch counts otherwise."""
    routed = ("/ffn.gate", "/ffn.up", "/ffn.down") if "routed" in FAMILIES[case.family].feed_forward else ()
    routed += ("/attn.k_b", "/attn.v_b") if "indexer" in FAMILIES[case.family].attention else ()
    ops = [op for op in graph_of(case).ops if op.op_class == "matmul" and op.name.startswith("L01/")]
    ops = [op for op in ops if not any(name in op.name for name in routed)]
    forward, backward = (sum(op.flops for op in ops if op.phase == phase) for phase in ("forward", "backward"))
    return forward, backward


def lines() -> Iterator[str]:
    """The table, in Markdown."""
    yield "| layer of | norms | option | autograd saves | hosim says | differs by |"
    yield "|---|---|---|---|---|---|"
    for case in CASES:
        there, here = saved_by_torch(case), saved_by_hosim(case)
        each = [f"{size / (BATCH * SEQUENCE):,.0f} B" for size in (there, here)]
        yield f"| {case.family} | {case.norms} | {case.option or '-'} | {' | '.join(each)} | {here / there - 1:+.2%} |"


if __name__ == "__main__":
    print("\n".join(lines()))
