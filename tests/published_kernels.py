"""Attention of transformers' modules by functions of autograd that save what published kernels save."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


class _Lightning(torch.autograd.Function):
    """As Lightning Attention-2 (``lightning_attn2.py`` of its authors): it saves q, k and v."""

    @staticmethod
    def forward(ctx: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(q, k, v)
        return torch.tril(q @ k.transpose(-1, -2)) @ v

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        q, k, v = ctx.saved_tensors
        return q, k, v


class Lightning(nn.Module):
    """`MiniMaxLightningAttention` with that kernel in place of its loop over blocks."""

    def __init__(self, module: Any) -> None:
        super().__init__()
        self.module = module

    def forward(self, hidden_states: torch.Tensor, **_: Any) -> tuple[torch.Tensor, None]:
        m, (batch, length, _) = self.module, hidden_states.shape
        qkv = m.act_fn(m.qkv_proj(hidden_states)).view(batch, length, m.num_attention_heads, 3 * m.head_dim)
        parts = (one.transpose(1, 2).contiguous() for one in qkv.split(m.head_dim, dim=3))
        out = _Lightning.apply(*parts).transpose(1, 2).reshape(batch, length, -1)
        return m.out_proj(torch.sigmoid(m.output_gate(hidden_states)) * m.norm(out)), None


class _Chosen(torch.autograd.Function):
    """As TileLang's ``examples/dsa_sparse_finetune/dsa.py``: attention to chosen latents, and their scores."""

    @staticmethod
    def forward(ctx: Any, q: torch.Tensor, kv: torch.Tensor, *index_and_sizes: Any) -> torch.Tensor:
        *index, top, width = index_and_sizes
        index_q, index_k, weights = index
        logits = torch.relu(torch.einsum("bshd,btd->bhst", index_q.float(), index_k.float()))
        scores = torch.einsum("bhst,bsh->bst", logits, weights.float())
        scores, chosen = scores.topk(top, dim=-1)
        rows = torch.einsum("bshd,btd->bhst", q.float(), kv.float())
        lse = rows.logsumexp(-1)
        out = torch.einsum("bhst,btd->bshd", (rows - lse[..., None]).exp(), kv[..., :width].float()).to(q.dtype)
        ctx.save_for_backward(q, kv, *index, chosen.int(), scores, out, lse)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        return *ctx.saved_tensors[:5], None, None


class Chosen(nn.Module):
    """`DeepseekV32Attention` absorbed, with that kernel; the indexer's input is detached."""

    def __init__(self, module: Any) -> None:
        super().__init__()
        self.module = module

    def forward(self, hidden_states: torch.Tensor, position_embeddings: Any, **_: Any) -> tuple[torch.Tensor, None]:
        m, index, shape = self.module, self.module.indexer, hidden_states.shape[:-1]
        nope, rope, rank, value = m.qk_nope_head_dim, m.qk_rope_head_dim, m.kv_lora_rank, m.v_head_dim
        cos, sin = (one[..., None, : rope // 2] for one in position_embeddings)

        def turned(x: torch.Tensor) -> torch.Tensor:
            a, b = x[..., 0::2], x[..., 1::2]
            return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)

        def by_head(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
            return torch.bmm(x.flatten(0, 1).transpose(0, 1), weight).transpose(0, 1).unflatten(0, shape)

        latent = m.q_a_layernorm(m.q_a_proj(hidden_states))
        q = m.q_b_proj(latent).view(*shape, m.num_heads, m.qk_head_dim)
        kv, key = m.kv_a_proj_with_mqa(hidden_states).split([rank, rope], dim=-1)
        kv = torch.cat([m.kv_a_layernorm(kv), turned(key[..., None, :]).squeeze(-2)], dim=-1)
        weight = m.kv_b_proj.weight.view(m.num_heads, nope + value, rank)
        q = torch.cat([by_head(q[..., :nope], weight[:, :nope]), turned(q[..., nope:])], dim=-1)
        x, latent = hidden_states.detach(), latent.detach()
        index_q = index.wq_b(latent).view(*shape, index.n_heads, index.head_dim)
        index_q = torch.cat([turned(index_q[..., :rope]), index_q[..., rope:]], dim=-1)
        index_k = index.k_norm(index.wk(x))
        index_k = torch.cat([turned(index_k[..., None, :rope]).squeeze(-2), index_k[..., rope:]], dim=-1)
        out = _Chosen.apply(q, kv, index_q, index_k, index.weights_proj(x), index.index_topk, rank)
        return m.o_proj(by_head(out, weight[:, nope:].transpose(1, 2)).reshape(*shape, -1)), None


class _View(torch.autograd.Function):
    """As the kernels of ``fla-org/native-sparse-attention``: they save q, k, v, what comes out and a number a row."""

    @staticmethod
    def forward(ctx: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *blocks: torch.Tensor) -> torch.Tensor:
        group = q.shape[2] // k.shape[2]
        rows = torch.einsum("bshd,bthd->bhst", q.float(), k.repeat_interleave(group, 2).float())
        lse = rows.logsumexp(-1)
        scores = (rows - lse[..., None]).exp()
        out = torch.einsum("bhst,bthd->bshd", scores, v.repeat_interleave(group, 2).float()).to(q.dtype)
        ctx.save_for_backward(q, k, v, out, lse, *blocks)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        q, k, v, _, _, *blocks = ctx.saved_tensors
        return q, k, v, *(None for _ in blocks)


class _Compression(nn.Module):
    """Blocks of tokens of a head with their positions, through two linears."""

    def __init__(self, block: int, stride: int, width: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.block, self.stride = block, stride
        self.position = nn.Parameter(torch.randn(block, width, dtype=dtype))
        self.inner = nn.Linear(block * width, width, bias=False, dtype=dtype)
        self.outer = nn.Linear(width, width, bias=False, dtype=dtype)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        blocks = x.unfold(1, self.block, self.stride).transpose(-1, -2) + self.position
        made: torch.Tensor = self.outer(torch.nn.functional.silu(self.inner(blocks.flatten(-2))))
        return made


class Views(nn.Module):
    """`LlamaAttention` as three views of the tokens before (NSA, arXiv 2502.11089), with those kernels."""

    def __init__(self, module: Any, sparse: dict[str, Any]) -> None:
        super().__init__()
        self.module, config, dtype = module, module.config, module.q_proj.weight.dtype
        self.size, self.heads, self.kv_heads = module.head_dim, config.num_attention_heads, config.num_key_value_heads
        self.number, self.top = 3 if sparse["caches"] == "own" else 1, sparse["select"]["top"]
        if self.number > 1:
            width = self.number * self.kv_heads * self.size
            for name in ("k_proj", "v_proj"):
                setattr(module, name, nn.Linear(config.hidden_size, width, bias=False, dtype=dtype))
        self.gate = nn.Linear(config.hidden_size, 3 * self.heads, bias=False, dtype=dtype)
        self.of_keys, self.of_values = (_Compression(**sparse["compress"], width=self.size, dtype=dtype) for _ in "kv")

    def forward(self, hidden_states: torch.Tensor, position_embeddings: Any, **_: Any) -> tuple[torch.Tensor, None]:
        m, shape, (cos, sin) = self.module, hidden_states.shape[:-1], position_embeddings

        def turned(x: torch.Tensor) -> torch.Tensor:
            a, b = x.chunk(2, dim=-1)
            return x * cos[:, :, None] + torch.cat([-b, a], dim=-1) * sin[:, :, None]

        def views(x: torch.Tensor) -> list[torch.Tensor]:
            return [*x.view(*shape, self.number, self.kv_heads, self.size).unbind(2)] * (3 // self.number)

        q = turned(m.q_proj(hidden_states).view(*shape, self.heads, self.size))
        k = turned(m.k_proj(hidden_states).view(*shape, -1, self.size))
        (far_k, some_k, near_k), (far_v, some_v, near_v) = views(k), views(m.v_proj(hidden_states))
        blocks = torch.zeros(*shape, self.kv_heads, self.top, dtype=torch.int32)
        mixed = [
            _View.apply(q, self.of_keys(far_k), self.of_values(far_v)),
            _View.apply(q, near_k, near_v),
            _View.apply(q, some_k, some_v, blocks),
        ]
        gates = torch.sigmoid(self.gate(hidden_states)).view(*shape, self.heads, 3, 1).unbind(-2)
        out = sum(gate * view for gate, view in zip(gates, mixed, strict=True))
        return m.o_proj(out.reshape(*shape, -1)), None
