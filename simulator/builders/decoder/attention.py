"""Attention at inference: the kinds that a workload can name, each from the normed input to what ``attn.o`` takes.

Let n be the new tokens of a sequence, c those cached, and P = n * c + n * (n + 1) / 2 the pairs that attend.

``gqa``: 4 * heads * head_size FLOP a pair. ``mla`` has two forms of the same function (DeepSeek-V2, arXiv 2405.04434,
section 2.1.2 and appendix C; DeepSeek-V3, arXiv 2412.19437, section 2.1.1; l is the latent's width):

- *expanded*, for prefill: keys and values are made from the latents of all n + c tokens, those of an earlier chunk
  again, and each pair takes 2 * heads * (qk_nope + qk_rope + v_head) FLOP;
- *absorbed*, for decode: ``k_b`` is applied to q, and ``v_b`` to what comes out, so that heads attend to the cached
  latents themselves: 2 * heads * (2 * l + qk_rope) FLOP a pair, and l + qk_rope elements read of each cached token.
"""

from __future__ import annotations

from simulator.builders.decoder.cache import Cache, made_bytes
from simulator.builders.decoder.sparse import Query, sparse
from simulator.builders.decoder.tape import Tape
from simulator.workload import Gqa, Mla


def gqa(t: Tape, part: Gqa, cache: Cache, x: str) -> str:
    """Attend in groups of heads that share keys and values."""
    q, k, v = (t.linear(f"attn.{name}", x) for name in "qkv")
    if part.qk_norms:
        q, k = t.norm("attn.q_norm", q), t.norm("attn.k_norm", k)
    q, k = t.vector("rope.q", [q]), t.vector("rope.k", [k])
    width, key_bytes = part.heads * part.head_size, cache.token_bytes // 2
    query = Query([q], made_bytes(t, q), [k, v], width, 4 * width, (2 * width, key_bytes))
    return _attend(t, cache, query, x)


def expanded(t: Tape, part: Mla, cache: Cache, x: str) -> str:
    """Attend with a key and a value for each head, made from the latents."""
    q, latent = _latent(t, part, x)
    k = _expand(t, part, cache, ("attn.k_b", latent, part.heads * part.qk_nope))
    v = _expand(t, part, cache, ("attn.v_b", latent, part.heads * part.v_head))
    flops = 2 * cache.batch * cache.pairs * part.heads * (part.qk_nope + part.qk_rope + part.v_head)
    rope_bytes = part.qk_rope * (cache.held_bytes // part.kv_elements + cache.tokens * t.element_bytes)
    read_bytes = made_bytes(t, q, k, v) + rope_bytes
    return _core(t, cache, [q, latent, k, v], part.heads * part.v_head, flops, read_bytes)


def absorbed(t: Tape, part: Mla, cache: Cache, x: str) -> str:
    """Attend to the latents themselves."""
    q, latent = _latent(t, part, x)
    nope, rope = (cache.tokens * part.heads * width * t.element_bytes for width in (part.qk_nope, part.qk_rope))
    wide = part.heads * part.kv_lora_rank
    absorbing = _absorb(t, "attn.k_b", q, (wide, nope))
    score_flops = 2 * part.heads * (part.kv_lora_rank + part.qk_rope)
    scores = (score_flops, cache.token_bytes)
    query_bytes = made_bytes(t, absorbing) + rope
    query = Query([absorbing, q], query_bytes, [latent], wide, score_flops + 2 * wide, scores)
    mixed = _attend(t, cache, query, x)
    return _absorb(t, "attn.v_b", mixed, (part.heads * part.v_head, made_bytes(t, mixed)))


def _attend(t: Tape, cache: Cache, query: Query, x: str) -> str:
    """Attend as the part says: to what is in reach, or to the three views of sparse attention."""
    if cache.part.sparse is not None:
        return sparse(t, cache.part.sparse, cache, query, x)
    flops = cache.batch * cache.pairs * query.pair_flops
    read_bytes = query.taken_bytes + made_bytes(t, *query.new) + cache.held_bytes
    return _core(t, cache, [*query.taken, *query.new], query.width, flops, read_bytes)


def _core(t: Tape, cache: Cache, taken: list[str], width: int, flops: int, read_bytes: int) -> str:
    """Attend, and cache the new tokens."""
    out = t.tensor("attn.core.out", width, t.cut())
    t.op(
        "attn.core",
        [*taken, *cache.held],
        [out, *cache.added],
        flops=flops,
        op_class="attention",
        read_bytes=read_bytes,
        write_bytes=made_bytes(t, out) + cache.added_bytes,
    )
    return out


def _latent(t: Tape, part: Mla, x: str) -> tuple[str, str]:
    """Queries of all heads, and of each token the latent with the rotary part of the key; rope works in place."""
    if part.q_lora_rank:
        q = t.linear("attn.q_b", t.norm("attn.q_a_norm", t.linear("attn.q_a", x)))
    else:
        q = t.linear("attn.q", x)
    kv = t.linear("attn.kv_a", x)
    weight = t.weight("attn.kv_a_norm")
    latent = t.tensor("attn.latent", part.kv_elements, t.cut())
    t.op("attn.kv_a_norm", [kv, weight.name], [latent])
    for name, tensor, width in (("rope.q", q, part.heads * part.qk_rope), ("rope.k", latent, part.qk_rope)):
        turned_bytes = t.own_tokens * width * t.element_bytes
        t.op(name, [tensor], [tensor], read_bytes=turned_bytes, write_bytes=turned_bytes)
    return q, latent


def _expand(t: Tape, part: Mla, cache: Cache, about: tuple[str, str, int]) -> str:
    """Multiply the latents of all tokens, cached and new, by a weight."""
    name, latent, width = about
    weight = t.weight(name)
    rows = cache.batch * (cache.seen + cache.span.new)
    out = t.tensor(f"{name}.out", width, t.cut(), rows=(rows,))
    latents_bytes = cache.held_bytes // part.kv_elements + cache.tokens * t.element_bytes
    t.op(
        name,
        [latent, *cache.held, weight.name],
        [out],
        flops=2 * rows * weight.parameters,
        op_class="matmul",
        read_bytes=part.kv_lora_rank * latents_bytes + t.weight_bytes(weight),
    )
    return out


def _absorb(t: Tape, name: str, x: str, sizes: tuple[int, int]) -> str:
    """Multiply each head by its part of a weight; `sizes` are the width made and what is read of `x` [B]."""
    weight, (width, read_bytes) = t.weight(name), sizes
    out = t.tensor(f"{name}.out", width, t.cut())
    flops, read_bytes = 2 * t.own_tokens * weight.parameters, read_bytes + t.weight_bytes(weight)
    t.op(name, [x, weight.name], [out], flops=flops, op_class="matmul", read_bytes=read_bytes)
    return out
