"""Inference: read prompts (``prefill``), whole or in chunks, or add tokens to sequences (``decode``).

Prefill runs ``batch`` prompts of ``sequence`` tokens, ``chunk`` tokens of each at a time, through all layers. What a
chunk adds to the KV cache of a layer is a tensor (``c0/L03/kv``; ``L03/kv`` if there is one chunk), which later chunks
read and which is there when the step ends. Only the last token of a prompt goes through the final norm and the logits.

Decode adds ``new_tokens`` tokens, one after another, to ``batch`` sequences that have ``sequence`` tokens cached
(``L03/kv``, persistent and only read); new ones join another tensor (``L03/kv.tail``), as paged caches do. The step is
repeated at the same lengths; what grows, grows by ``new_tokens``. With ``answers`` sequences end one after another, the
longest first in all tensors: a token is added to those that are left, and reads what is cached of them alone.

An encoder (a model that is not ``causal``) has prefill alone, without a cache: all tokens of a sequence see one another
at once, 4 * heads * head_size * sequence FLOP each, and the step ends with the rows of all of them, normalised if the
model's last ones are. Its head runs in training alone; its weights are there in both.

*Serving.* In one iteration sequences that decode and parts of prompts go through the layers together.

Linears, norms and the feed-forward run over all tokens at once, attention apart, as in both phases (`attention`): of
the sequences that add a token (``decode/L03/decode/attn.core``), and of the parts of prompts
(``prefill/L03/prefill/attn.core``). The last token of each sequence that gets one goes through the final norm and the
logits. Latent attention makes keys and values of at most ``max_tokens`` cached latents at a time, as vLLM does.

The KV cache of a layer is one tensor in the compute tier, as paged engines reserve it (``L03/kv``, written in place),
and all layers have equal room. Tokens found in a lower tier are a tensor of their own, which takes room from it, is at
home there (``L03/kv.from.ddr``) and is copied in by the policy before the prompts attend. Tokens that are stored in
another tier are a tensor that no op names (``L03/hbm.to.ddr``). Tensors hold the tokens of all sequences together, so
that a copy moves what an iteration moves in a layer; of a window, those that it still sees. States of linear attention
(``L03/state``) stay.

On data ranks the numbers of an iteration are those of each: rows of all are that many times as many, cut among them.
Where expert ranks are tensor ranks, too, rows are filled up to a whole number for each.

*Two pools.* A prefill rank runs `batch` prompts of `sequence` tokens through all layers. Roped k and v of a layer are
its KV cache (2 * tokens * kv * e bytes); they are sent as soon as they are made, layer by layer, and the first token
of each answer at the end. A decode rank serves the prompts of prefill / decode ranks: it keeps the received cache of a
layer in one block for each sender (``L03/kv``), which is only read, and its own tokens in another (``L03/kv.tail``,
room for all new tokens), as paged caches do. Token i (from 0) of an answer attends to sequence + i + 1 tokens: 4 * h
FLOP and 2 * kv * e bytes for each of them, so that decode reads more with each token; every token reads all weights.

Head and sampling: only the last token of a prompt goes through the final norm and the logits.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import NamedTuple

from simulator.builders.attention import attend, attend_to_cache, attention_inputs, gated_output
from simulator.builders.attention_gradients import attend_whole
from simulator.builders.cache import (
    Cache,
    CacheRoom,
    Store,
    cache_name,
    cached_layers,
    kept_by_reach,
    limited_reaches,
    parts_of,
)
from simulator.builders.ends import embed, finish, sample_tokens
from simulator.builders.layer import forward
from simulator.builders.specs import BATCH, ID_BYTES, numbered, part_prefixes
from simulator.builders.states import shifted_rows
from simulator.builders.tape import Tape
from simulator.builders.weights import Laid, lay
from simulator.errors import ConfigError
from simulator.graph import CollectiveKind, Graph, Job, Op, Tensor, check_sums
from simulator.lifetime import Lifetimes
from simulator.reach import Reach, TokenSpan
from simulator.workload import DecoderModel, Pools, Workload


def build(laid: Laid) -> Job:
    """Build the graph of prefill or of decode, for one rank or for all that share each layer."""
    t, work = Tape(laid), laid.workload
    t.phase, room = work.phase, CacheRoom(t)
    if not (laid.model.causal and laid.model.head):
        outputs = finish(t, _through_layers(t, embed(t)))
        for name in t.weights[t.block]:  # a head that does not run takes room, too
            t.weight(name)
    elif t.phase == "prefill":
        spans, x = chunks(work.sequence, work.chunk), ""
        for span, t.micro in zip(spans, part_prefixes("c", len(spans)), strict=True):
            t.rows = (work.batch * span.new,)
            x = _through_layers(t, embed(t), partial(room.add_prompts, span))
        token = sample_tokens(t, x, last=work.batch)
        outputs = [*(name for layer in t.layers for name in room.kept(layer)), token]
        outputs += [name for name in t.held if name.endswith("/kv.across")]
    else:
        t.rows = (work.batch,)
        for layer in t.layers:
            room.add_decode(layer)
        outputs = [*room.come, *_answers(t, part_prefixes("t", max(work.lengths, default=work.new_tokens)), room, [])]
    return Job.of(t.graph.build(outputs, steps=work.steps), t.mesh.ranks)


def _through_layers(t: Tape, x: str, find: Callable[[str], Cache] | None = None) -> str:
    """Go through all layers; `find` returns the cache of a layer; default: whole sequences attend to themselves."""
    for layer in t.layers:
        x = forward(t, layer, x, partial(attend_to_cache, t, find(layer)) if find else partial(attend_whole, t))
    return x


def _answers(t: Tape, prefixes: list[str], room: CacheRoom, tokens: list[str]) -> list[str]:
    """Add tokens to sequences one after another, the first ones from `tokens`; return the last ones."""
    lengths = t.workload.lengths
    for index, t.micro in enumerate(prefixes):
        if lengths:
            room.batch = sum(length > index for length in lengths)
            t.rows = (room.batch,)
        span = TokenSpan(t.workload.sequence + index, 1)
        tokens = [sample_tokens(t, _through_layers(t, embed(t, tokens), partial(room.cache, span)))]
    return tokens


def chunks(sequence: int, chunk: int | None) -> list[TokenSpan]:
    """Cut a prompt into chunks; the last one may be shorter."""
    size = chunk or sequence
    return [TokenSpan(start, min(size, sequence - start)) for start in range(0, sequence, size)]


def build_pools(laid: Laid, pools: Pools) -> Job:
    """Build the graphs of both pools, whose ranks each hold the whole model.

    Returns
    -------
    Job
        One graph for each prefill rank of a decode rank, and one for decode.
    """
    work, share = laid.workload, pools.prefill // pools.decode
    groups = numbered("kv.", share) if share > 1 else ("kv",)
    labels = [*(f"prefill for {group}" for group in groups), "decode"] if share > 1 else ["prefill", "decode"]
    graphs = list[Graph]()
    for slot, label in enumerate(labels):
        is_decode = slot == share
        t = Tape(laid, f"{work.name} {label}", work.batch * share if is_decode else work.batch * work.sequence)
        for sender in range(share) if is_decode else (slot,):
            pairs = ((decode * share + sender, pools.prefill + decode) for decode in range(pools.decode))
            t.graph.group(groups[sender], pairs)
        graphs.append(_serve(t, pools.new_tokens, groups) if is_decode else _send_cache(t, groups[slot]))
    graph_of = tuple(rank % share for rank in range(pools.prefill)) + (share,) * pools.decode
    return Job(work.name, tuple(graphs), graph_of, tuple(labels))


def _send_cache(t: Tape, group: str) -> Graph:
    """Build the graph of a prefill rank."""
    t.phase, t.kinds = "prefill", {"rope.k.out": "kv_cache", "attn.v.out": "kv_cache"}
    x = embed(t)
    for layer in t.layers:
        x = forward(t, layer, x, partial(attend_whole, t))
        made = [t.name("rope.k.out"), t.name("attn.v.out")]
        t.meet("send", CollectiveKind.SEND, group, t.made_bytes(*made), made, [])
    token = sample_tokens(t, x, last=t.workload.batch)
    t.meet("send", CollectiveKind.SEND, group, t.workload.batch * ID_BYTES, [token], [])
    return t.graph.build(steps=t.workload.steps)


def _serve(t: Tape, new_tokens: int, groups: Sequence[str]) -> Graph:
    """Build the graph of a decode rank."""
    t.phase, (rows,), prompts, length = "decode", t.rows, t.workload.batch, t.workload.sequence
    room, layers = CacheRoom(t, rows), [*t.layers]

    def receive(group: str, name: str, size_bytes: int, kind: str) -> str:
        t.graph.tensor(t.name(name), size_bytes, kind)
        t.meet(f"recv.{group}", CollectiveKind.RECV, group, size_bytes, [], [t.name(name)])
        return t.name(name)

    for t.block in layers:
        store, _ = room.stores[t.block] = Store(), Store()
        store.add(length, [receive(group, group, prompts * length * t.token_bytes, "kv_cache") for group in groups])
        t.graph.tensor(t.name("kv.tail"), rows * new_tokens * t.token_bytes, "kv_cache")
        store.add(length + new_tokens, [t.name("kv.tail")])
    t.block = "head"
    tokens = [receive(group, f"token.{group}", prompts * ID_BYTES, "activation") for group in groups]

    _answers(t, [f"{name}/" for name in numbered("t", new_tokens, 2)], room, tokens)
    return t.graph.build(steps=t.workload.steps)


class Iteration(NamedTuple):
    """Sequences and parts of prompts that run together.

    Attributes
    ----------
    decoding, context
        Number of sequences that add a token, and of the tokens that they have cached, all together.
    reading, cached, pairs
        Of all parts of prompts together: tokens, tokens cached before them, and pairs of tokens that attend.
    answers
        Number of sequences that get a token.
    near
        For each of `limited_reaches` of the model, `context`, `cached` and `pairs` within it. For linear attention: the
        number of parts of prompts, of those that go on, and of pairs of their tokens that attend in blocks.
    loads
        Tier -> tokens that are copied in from there, in the layers of each reach (`cached_layers`).
    stores
        (source, target) -> tokens that are copied from one tier to another, in the same way.
    """

    decoding: int = 0
    context: int = 0
    reading: int = 0
    cached: int = 0
    pairs: int = 0
    answers: int = 0
    near: tuple[tuple[int, int, int], ...] = ()
    loads: tuple[tuple[str, tuple[int, ...]], ...] = ()
    stores: tuple[tuple[tuple[str, str], tuple[int, ...]], ...] = ()


def loaded_name(tier: str) -> str:
    """Return the last part of the names of tensors with the tokens that are copied in from a tier."""
    return f"kv.from.{tier}"


def stored_name(source: str, target: str) -> str:
    """Return the last part of the names of tensors with the tokens that are copied from one tier to another."""
    return f"{source}.to.{target}"


def decoder_of(workload: Workload) -> DecoderModel:
    """Return the model of a workload, as a decoder's parts.

    Raises
    ------
    ConfigError
        If it has none.
    """
    if workload.decoder is None:
        where, found = f"workload {workload.name}", "a recommender" if workload.model else "a graph"
        raise ConfigError(where, "requests are served by a decoder", found, "choose a workload with a decoder")
    return workload.decoder.decoder


def least_iteration(workload: Workload) -> Iteration:
    """Return the least iteration of a workload with requests: one sequence adds a token to one."""
    return Iteration(decoding=1, context=1, answers=1, near=((1, 1, 1),) * len(limited_reaches(decoder_of(workload))))


def iteration(workload: Workload, work: Iteration, room_bytes: int) -> Graph:
    """Build the graph of an iteration of serving requests, which runs once, on each rank alike.

    Parameters
    ----------
    workload
        Workload with a model and requests.
    work
        Sequences and parts of prompts that run together, on each of the data ranks.
    room_bytes
        Room of the KV cache of all layers in the compute tier, less what leaves it [B].
    """
    laid = lay(workload, decoder_of(workload))
    return _iteration(laid, work, room_bytes, [*laid.layers])


def _iteration(laid: Laid, work: Iteration, room_bytes: int, layers: Sequence[str]) -> Graph:
    """Build the graph of an iteration, of these layers alone."""
    dtypes, rows = laid.workload.dtypes, work.decoding + work.reading
    parallel = laid.workload.parallel
    groups = cached_layers(laid.model, dtypes, parallel.tensor)
    parts = parallel.expert // parallel.expert_replicas  # rows are filled up where ranks cut them
    t = Tape(laid, rows=-(-rows // parts) * parts * laid.mesh.size(BATCH))
    t.phase, reaches = "prefill" if work.reading else "decode", [part.reach for part in groups]
    coming = sum(group.token_bytes * n for _, tokens in work.loads for group, n in zip(groups, tokens, strict=True))
    copied = [(loaded_name(tier), tokens) for tier, tokens in work.loads]
    copied += [(stored_name(*way), tokens) for way, tokens in work.stores]
    keeping = sum(len(parts_of(part)) for part in laid.attentions.values())
    for t.block, part in ((layer, part) for layer in layers for part in parts_of(laid.attentions[layer])):
        t.declare(t.name(cache_name(part)), max(0, room_bytes - coming) // keeping, "kv_cache")
        for name, tokens in copied:
            kept = kept_by_reach(part, dtypes).items()
            if size_bytes := sum(tokens[reaches.index(reach)] * token_bytes for reach, token_bytes in kept):
                t.declare(t.name(name), size_bytes, "kv_cache")
    if not rows:
        t.graph.tensor("idle", 0)
        t.graph.op("idle", [], ["idle"], "compute", duration_ns=0)
        return t.graph.build(steps=1)
    x = embed(t)
    for layer in layers:
        x = forward(t, layer, x, partial(_attend_apart, t, work))
    if work.answers:
        x = sample_tokens(t, x, last=work.answers if work.answers < rows else 0)
    return t.graph.build([x], steps=1)


class Iterations:
    """Graphs of the iterations of a workload, equal to those that `iteration` builds.

    Iterations of one *shape* have the same ops on the same tensors, and differ in numbers. The graph of a shape is
    built once, and kept. Of every iteration only the *few* are built, the first layer of each kind with what is before
    and behind all layers: they tell its shape, and the numbers of all layers.

    Parameters
    ----------
    workload
        Workload with a model and requests.
    """

    def __init__(self, workload: Workload) -> None:
        self._laid = laid = lay(workload, decoder_of(workload))
        sizes = {block: [held.size_bytes for held in part.values()] for block, part in laid.weights.items()}
        kinds = {block: (kind, *sizes[block]) for block, kind in laid.layers.items()}  # whose weights may be kept apart
        first = {kind: block for block, kind in reversed(kinds.items())}
        self._first = {block: first[kind] for block, kind in kinds.items()}
        self._kept: dict[Hashable, tuple[Graph, list[int], list[int]]] = {}

    def __len__(self) -> int:
        """Count the shapes so far."""
        return len(self._kept)

    def graph(self, work: Iteration, room_bytes: int) -> Graph:
        """Return the graph of an iteration; the parameters are those of `iteration`."""
        few = _iteration(self._laid, work, room_bytes, [*dict.fromkeys(self._first.values())])
        shape = few.shape
        if shape not in self._kept:
            whole = _iteration(self._laid, work, room_bytes, [*self._first])
            tensors, ops = self._alike(few.tensors, whole.tensors), self._alike(few.ops, whole.ops)
            self._kept[shape] = whole, tensors, ops
            return whole
        kept, tensors, ops = self._kept[shape]
        graph = kept.with_numbers(few, tensors, ops)
        check_sums(graph, f"workload {self._laid.workload.name}")
        graph.known[Lifetimes] = Lifetimes.of(kept)
        return graph

    def _alike(self, few: Sequence[Tensor | Op], whole: Sequence[Tensor | Op]) -> list[int]:
        """Return, for each tensor or op of the whole, the one of the few that stands in the first layer of its kind."""
        position = {of_few.name: index for index, of_few in enumerate(few)}
        paths = (map(self._first.get, parts := wanted.name.split("/"), parts) for wanted in whole)
        return [position["/".join(path)] for path in paths]


_ENDLESS = TokenSpan(0, 1 << 62)
"""Sequences of any length, whose tokens lie in the same tensors."""


def _attend_apart(t: Tape, work: Iteration, x: str) -> str:
    """Attend apart, into one tensor: sequences that add a token, and parts of prompts."""
    attention, phase, rows, keeper = t.attention, t.phase, t.rows, t.keeper
    cached = f"{keeper}/{cache_name(attention)}"
    coming = [name for name in (f"{keeper}/{loaded_name(tier)}" for tier, _ in work.loads) if name in t.held]
    near = dict(zip(limited_reaches(t.model), work.near, strict=True))
    of_all = (work.context, work.cached, work.pairs)

    def adding(reach: Reach) -> tuple[int, int]:
        if reach.block:
            return work.decoding, work.decoding
        context, more = near.get(reach, of_all)[0], work.decoding
        if reach.sparse:
            more = near[reach._replace(counted="made")][0] if reach.counted == "compressed" else 0
        return context, context + more

    def reading(reach: Reach) -> tuple[int, int]:
        return near.get(reach, of_all)[1:]

    def found(reach: Reach) -> tuple[int, int]:
        return adding(reach)[0] + reading(reach)[0], 0

    parts, after = next((near[each][0] for each in Reach.all_of(attention) if each.block), 0), list[str]()
    both = Cache(t, work.decoding + parts, work.decoding + work.reading, found)
    both.states = cached
    if t.mixer == "ffn":
        return shifted_rows(t, x, both)
    inputs, out = attention_inputs(t, x, both), t.of_heads(f"{t.mixer}.core.out", attention.width)
    gates = t.linear("attn.gate", x) if attention.sparse else ""
    of_phases = (("decode", work.decoding, work.decoding, adding), ("prefill", parts, work.reading, reading))
    for t.phase, sequences, new, seen in of_phases:
        if not new:
            continue
        t.micro, t.rows = f"{t.phase}/", (new * t.replicas,)
        cache, store = Cache(t, sequences, new, seen), Store()
        cache.held = [cached] if t.phase == "decode" else [*coming, cached]
        store.add(_ENDLESS.length, cache.held)
        cache.span, cache.store, cache.compressed, cache.gates = _ENDLESS, store, store, gates
        cache.added, cache.states, cache.out, cache.after = [cached], cached, out, after
        cache = cache.reused(t) if keeper != t.block else cache
        if t.workload.requests:
            cache.expanded = min(cache.seen, t.workload.requests.max_tokens)
        attend(t, cache, inputs, x)
        after = [out]
    t.micro, t.phase, t.rows = "", phase, rows
    return gated_output(t, out, x)
