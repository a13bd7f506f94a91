"""Serving from two pools: prefill ranks read prompts and send their KV cache, decode ranks receive it and answer.

A prefill rank runs `batch` prompts of `sequence` tokens through all layers. Roped k and v of a layer are its KV cache
(2 * tokens * kv * e bytes); they are sent as soon as they are there, layer by layer, and the first token of each answer
at the end. A decode rank serves the prompts of prefill / decode ranks: it keeps what it received of a layer in one
block for each sender (``L03/kv``), which is only read, and what it adds in another (``L03/kv.tail``, room for all new
tokens), as paged caches do. Token i (from 0) of an answer attends to sequence + i + 1 tokens: 4 * h FLOP and 2 * kv * e
bytes for each of them, so that decode reads more with each token; every token reads all weights.

Head and sampling: only the last token of a prompt goes through the final norm and the logits.
"""

from __future__ import annotations

from functools import partial

from simulator.builders.decoder.attention import attended
from simulator.builders.decoder.cache import Cache, Span, Store
from simulator.builders.decoder.ends import answer, embed
from simulator.builders.decoder.layer import Layer, forward
from simulator.builders.decoder.tape import ID_BYTES, Tape, blocks, numbered
from simulator.graph import Collective, CollectiveKind, Graph, Job
from simulator.layout import Mesh, Weight
from simulator.workload import LlamaModel, Pools, Workload


def build(workload: Workload, model: LlamaModel, pools: Pools, mesh: Mesh, weights: dict[str, Weight]) -> Job:
    """Build what the ranks of both pools run.

    Parameters
    ----------
    workload, model, pools
        What is served, and by how many ranks.
    mesh
        Of one rank: each holds the whole model.
    weights
        The whole model.

    Returns
    -------
    Job
        One graph for each prefill rank of a decode rank, and one for decode.
    """
    share = pools.prefill // pools.decode
    groups = numbered("kv.", share) if share > 1 else ["kv"]
    members = {
        group: [(decode * share + slot, pools.prefill + decode) for decode in range(pools.decode)]
        for slot, group in enumerate(groups)
    }
    labels = [f"prefill for {group}" for group in groups] if share > 1 else ["prefill"]
    graphs = []
    for group, label in zip(groups, labels, strict=True):
        tape = Tape(workload, mesh, weights, f"{workload.name} {label}", workload.batch * workload.sequence)
        tape.graph.group(group, members[group])
        graphs.append(_prefill(tape, workload, model, group))
    tape = Tape(workload, mesh, weights, f"{workload.name} decode", workload.batch * share)
    for group in groups:
        tape.graph.group(group, members[group])
    graphs.append(_decode(tape, workload, model, pools.new_tokens, groups))
    graph_of = tuple(rank % share for rank in range(pools.prefill)) + (share,) * pools.decode
    return Job(workload.name, tuple(graphs), graph_of, (*labels, "decode"))


def _prefill(t: Tape, workload: Workload, model: LlamaModel, group: str) -> Graph:
    """One prefill rank."""
    t.phase, t.kinds = "prefill", {"rope.k.out": "kv_cache", "attn.v.out": "kv_cache"}
    x = embed(t, t.cut())
    for block in blocks(model.layers):
        x = Layer(t, model, workload.sequence, block).forward(x)
        _send(t, group, [t.name("rope.k.out"), t.name("attn.v.out")], 0)
    token = answer(t, x, tied=model.tied_embeddings, last=workload.batch)
    _send(t, group, [token], workload.batch * ID_BYTES)
    return t.graph.build(steps=workload.steps)


def _send(t: Tape, group: str, tensors: list[str], size_bytes: int) -> None:
    size_bytes = size_bytes or t.made_bytes(*tensors)
    t.op("send", tensors, [], collective=Collective(CollectiveKind.SEND, group, size_bytes))


def _decode(t: Tape, workload: Workload, model: LlamaModel, new_tokens: int, groups: list[str]) -> Graph:
    """One decode rank."""
    t.phase, part, batch = "decode", model.decoder.attention, t.own_tokens
    token_bytes, caches = part.kv_elements * t.element_bytes, {}
    for t.block in blocks(model.layers):
        size_bytes = workload.batch * workload.sequence * token_bytes
        store = caches[t.block] = Store()
        store.add(workload.sequence, [_receive(t, group, group, size_bytes, "kv_cache") for group in groups])
        t.graph.tensor(t.name("kv.tail"), batch * new_tokens * token_bytes, "kv_cache")
        store.add(workload.sequence + new_tokens, [t.name("kv.tail")])
    t.block = "head"
    tokens = [_receive(t, group, f"token.{group}", workload.batch * ID_BYTES, "activation") for group in groups]
    for number, step in enumerate(numbered("t", new_tokens, 2)):
        t.micro, span = f"{step}/", Span(workload.sequence + number, 1)
        x = embed(t, t.cut(), tokens)
        for block, store in caches.items():
            cache = Cache(part, store, batch, span, token_bytes, Store())
            x = forward(t, block, x, partial(attended, t, cache), Layer(t, model, 1, block).feed_forward)
        tokens = [answer(t, x, tied=model.tied_embeddings)]
    return t.graph.build(steps=workload.steps)


def _receive(t: Tape, group: str, name: str, size_bytes: int, kind: str) -> str:
    t.graph.tensor(t.name(name), size_bytes, kind)
    about = Collective(CollectiveKind.RECV, group, size_bytes)
    t.op(f"recv.{group}", [], [t.name(name)], collective=about)
    return t.name(name)
