"""The training step of a decoder, operator by operator, counted from its dimensions; inference is in `inference`.

Let T = batch * sequence tokens, h = hidden, kv = h * kv_heads / heads, f = ffn, V = vocabulary, and e the bytes of
an element (2 for bf16). All matrices are dense and all kernels unfused, but for flash attention.

Forward, 16 ops a layer::

    norm1   attn.q attn.k attn.v   rope.q rope.k   attn.core   attn.o   add1
    norm2   ffn.gate ffn.up   ffn.silu   ffn.mul   ffn.down   add2

Backward, 26 ops a layer: each linear has an op for the gradient of its input (``.dgrad``) and one for that of its
weight (``.wgrad``), 14 in all; one each for silu, mul, attention, both ropes and both norms (weight gradient
included); and five additions in place where gradients of one tensor meet (``.acc``).

Saved for backward per layer, in units of T * h * e bytes: the inputs of norm1 and norm2, both norms' outputs, roped
q and the attention's output (1 each), roped k and v (kv/h each), gate, up, silu and their product (f/h each): 20.5
for LLaMA3-8B, plus the attention's row statistics (fp32, heads * T * 4 bytes). Norm statistics are recomputed. Each
tensor dies at its true last use.

Work: a linear of i inputs and o outputs takes 2*T*i*o FLOP in forward, and as much again in each of its two backward
ops. Causal attention takes 2*T*sequence*h (half of the square) and 2.5 times that in backward; within a window of w
tokens the part w*(2*sequence - w) / sequence^2 of it. Other ops only move bytes: their arithmetic is below 0.1 % of the
whole, runs on other units, and is not counted (0 FLOP).

*Latent attention* runs expanded (`attention`): heads of keys of k = qk_nope + qk_rope elements and values of v. ::

    norm1   attn.q_a attn.q_a_norm attn.q_b   attn.kv_a attn.kv_a_norm   rope.q rope.k   attn.k_b attn.v_b   attn.core

Causal attention takes T*sequence*heads*(k + v) FLOP, and T*sequence*heads*(3*k + 2*v) in backward, which makes the
scores again. Saved per token, in elements: both norms' inputs and outputs (2 * q_lora_rank, 2 * l + 2 * qk_rope for
a latent of l), q (heads * k), keys without their rotary part, values and the attention's output (heads * (qk_nope + 2 *
v_head)), beside the residual's four; and the row statistics. Rotary embeddings are turned in place, forward and
backward, and the kernel takes the rotary part of the key from the latent, once for all heads. All of it but the
latents is cut by heads; ``q_a`` and ``kv_a`` are whole on every tensor rank, and gradients of both latents add up over
these.

*Experts* (`layer`) save of each token, in elements: top_k rows in and out (2 * top_k * h), four of each expert's width
for each of top_k and of the shared experts, and the shares (fp32, top_k * 4 bytes). The bias of a router has no
gradient, no optimizer state and no update: it is moved outside of the step.

*Adapters* (rank r) beside a linear of i inputs and o outputs are two more linears, whose result is added:
2*T*r*(i + o) FLOP in forward, twice that in backward, and r elements a token that are saved. A frozen linear has no
weight gradient, and its input is not saved for one. What comes before the first trained weight has no backward. With
``dropout`` an adapter multiplies a copy of i elements a token, which stays with a mask of as many bytes; with
``inputs: fp32`` an op turns the input into fp32 before, and another back. Eager kernels multiply its output by a scale.

*Checkpoints.* Of a checkpointed layer T * h elements are saved, its input. Backward runs all ops of its forward again
but the last ones, which nobody reads: the down projection and the addition behind it.

*Eager kernels.* A norm saves its input in fp32 and the normalised rows in place of its input; keys of latent attention
are whole (heads * k), and what attention puts out is copied. A router in fp32 saves a copy of its input.

The loss holds ``logits_copies_fp32`` fp32 copies of the logits as its workspace, each written and read once; its
backward holds ``gradient_copies_fp32`` of them (default: one, if there is any) while it writes the gradient of the
logits.

Each weight has one gradient, alive until the update of that weight at the end of the step. With ZeRO stage 1 the
optimizer state is this device's shard (parameters / data of each weight, rounded up to whole parameters), and an
update moves the bytes of that shard only.

Over many ranks (``parallel`` with ``ranks: all``) every tensor has a layout (`simulator.layout`), and a collective
stands wherever an op needs another layout than the one in which its input was made. Weights are cut as in Megatron: q,
k, v, gate, up and the logits by columns, o and down by rows, tables along the vocabulary. So each layer sums up four
times in a micro-batch, T * h * e bytes each: after attn.o and ffn.down in forward, before both norms in backward. With
``sequence`` what lies between is cut along the tokens: reduce-scatters and all-gathers instead, and what was gathered
in forward is gathered again in backward rather than saved. Micro-batches add up gradients in place. Not modelled:
clipping of gradients by their norm, dropout, tied embeddings over several stages.

*Replicas* add up gradients, and with ZeRO share optimizer state, gradients and weights in shards.

Gradients and weights of a block (a layer, the embedding, the head) move together, as frameworks fuse them into
buckets. Stage 0 and 1 reduce after the last micro-batch, in place; stage 2 and 3 reduce every micro-batch into a shard
that adds up. Stage 1 and 2 gather the updated weights. Stage 3 gathers the weights of a block before its forward and
again before its backward, but for the embedding and the head, which stay; the gathering of a block begins with the
block before it, so that two are there at once; `gathers_ahead` may say another number of blocks. Frozen weights in
another format lie in shards, and are gathered, as they are stored, scales included; each use makes its own matrix ready
from what was gathered, as on one device.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from itertools import accumulate, pairwise

from simulator.builders.attention_gradients import attend_whole
from simulator.builders.ends import embed, loss
from simulator.builders.layer import forward
from simulator.builders.specs import ID_BYTES, part_prefixes
from simulator.builders.tape import Tape
from simulator.builders.turns import Turn, pairs, stage_layers, turns
from simulator.builders.weights import Laid, is_matrix, passes_on
from simulator.graph import HOST, CollectiveKind, Graph, Job
from simulator.graph_builder import OpFields
from simulator.layout import Axes, Weight
from simulator.ordering import woven
from simulator.workload import ADAM_FLOPS

NEXT, PREVIOUS = "pipeline.next", "pipeline.previous"
"""Groups of pairs along the stages: activations go to the next one, gradients to the previous one."""


def build(laid: Laid) -> Job:
    """Build a graph for each stage of the pipeline."""
    workload, names, stages = laid.workload, [*laid.layers], laid.mesh.size(["pipeline"])
    ends = accumulate(stage_layers(workload, len(names), workload.name), initial=0)
    chunks, graphs = [names[start:stop] for start, stop in pairwise(ends)], list[Graph]()
    chunks[0].insert(0, "embed")
    chunks[-1].append("head")
    for index in range(stages):
        stage, starts = Stage(laid, index, chunks[index::stages]), list[int]()
        for turn in stage.order:
            stage.begin_turn(turn)
            starts.append(len(stage.graph))
            if stage.phase == "forward":
                stage.forward()
            else:
                stage.send_back()
                stage.backward()
        stage.send_back()
        starts.append(len(stage.graph))
        _update(stage)
        graph = stage.graph.build(steps=workload.steps)
        together = pairs(stage.order, workload.parallel) if workload.parallel.woven else ()
        graphs.append(woven(graph, [(starts[turn], starts[turn + 2]) for turn in together]) if together else graph)
    labels = tuple(f"stage {i}" for i in range(len(graphs))) if len(graphs) > 1 else (workload.name,)
    return Job(workload.name, tuple(graphs), tuple(laid.mesh.positions(("pipeline",))), labels)


# what replicas do together

Shared = tuple[Axes, list[Weight]]
"""Axes along which ranks share something of weights, and the weights."""


def _shard(t: Tape, weight: Weight) -> int:
    """Return how many parameters of a weight a ZeRO shard has; the last shard is filled up."""
    parallel = t.workload.parallel
    if not parallel.zero_stage:
        return weight.parameters
    return -(-weight.parameters // (parallel.data if parallel.ranks == "one" else t.mesh.size(weight.replicas)))


def _gather_before(t: Tape, block: str, start: list[str]) -> None:
    """Gather the weights of a block ahead of the current one, if they are sharded; at the first block, all up to that.

    Parameters
    ----------
    t, block
        Tape, and the current block.
    start
        The tensor that the block starts from, if it has one; the next gathering waits for it.
    """
    if t.zero_stage < 3:
        return
    order, suffix = [*t.weights], "gathered"
    if t.phase == "backward":
        order = [name for name in order[::-1] if name not in ("embed", "head") and t.goes_back(name)]
        suffix = "gathered.bwd"
    index = order.index(block)
    ahead = t.workload.parallel.gathers_ahead
    due = [(following, start) for following in order[index + (ahead if index else 1) : index + ahead + 1]]
    for t.block, waits_for in [(block, []), *due] if index == 0 else due:
        for axes, weights in _by_axes((weight, weight.replicas) for weight in t.weights[t.block].values()):
            for weight in weights:
                t.declare(weight.name, -(-_shard(t, weight) * weight.size_bytes // weight.parameters), weight.kind)
            for weight in weights:  # ops read the gathered tensor in place of the weight
                t.held[weight.name] = whole = f"{t.micro}{weight.name}.{suffix}"
                t.graph.tensor(whole, weight.size_bytes, weight.kind)
            reads = [*(weight.name for weight in weights), *waits_for]
            _meet(t, CollectiveKind.ALL_GATHER, (axes, weights), reads, [t.held[weight.name] for weight in weights])


def _by_axes(weights: Iterable[tuple[Weight, Axes]]) -> Iterable[Shared]:
    """Group weights by axes; those without axes are left out."""
    by_axes: dict[Axes, list[Weight]] = {}
    for weight, axes in weights:
        if axes:
            by_axes.setdefault(axes, []).append(weight)
    return by_axes.items()


def _meet(t: Tape, kind: CollectiveKind, shared: Shared, reads: list[str], writes: list[str]) -> None:
    """Add a collective along some axes that gathers weights, or adds up their gradients."""
    (axes, weights), is_gathered = shared, kind is CollectiveKind.ALL_GATHER
    each_bytes, name = t.workload.dtypes.gradient_bytes, "weights" if is_gathered else "grads"
    size_bytes = sum(weight.size_bytes if is_gathered else weight.parameters * each_bytes for weight in weights)
    t.meet(f"{name}.{kind}.{'.'.join(axes)}", kind, axes, size_bytes, reads, writes)


def _add_up(t: Tape) -> None:
    """Add up the gradients of a block over ranks: in place, or with ZeRO stage 2 and 3 into shards."""
    first_here = (weight for weight in t.weights[t.block].values() if weight.name.startswith(f"{t.block}/"))
    trained = [weight for weight in first_here if weight.is_trained]
    # ranks that saw other tokens of the same samples, or other heads
    others = {
        w.name: tuple(a for a in t.partial_sums[w.name] if a not in t.batch) for w in trained if w.name in t.graded
    }
    summed = _by_axes((weight, others.get(weight.name, ())) for weight in trained)
    shared = _by_axes((weight, weight.replicas) for weight in trained)
    copied = _by_axes((w, (t.copies_group(w.copies),) if w.copies > 1 else ()) for w in trained)
    sums = [(CollectiveKind.ALL_REDUCE, part) for part in (*summed, *copied)]
    if t.zero_stage < 2:
        kind = CollectiveKind.REDUCE_SCATTER if t.zero_stage else CollectiveKind.ALL_REDUCE
        sums += [(kind, part) for part in shared]
    for kind, part in sums:
        grads = [t.graded[weight.name] for weight in part[1]]
        _meet(t, kind, part, grads, grads)
    for part in shared if t.zero_stage > 1 else ():
        _into_shards(t, part)


def _into_shards(t: Tape, shared: Shared) -> None:
    """Reduce into shards; from the second micro-batch on, add them to the shards so far."""
    axes, weights = shared
    grads, size = [t.graded.pop(weight.name) for weight in weights], t.workload.dtypes.gradient_bytes
    is_first, parts = weights[0].name not in t.shards, list[str]()
    for weight in weights:
        parts.append(f"{weight.name}.grad.shard" if is_first else f"{t.micro}{weight.name}.grad.part")
        t.graph.tensor(parts[-1], _shard(t, weight) * size, "gradient")
    _meet(t, CollectiveKind.REDUCE_SCATTER, shared, grads, parts)
    shards = [t.shards.setdefault(weight.name, part) for weight, part in zip(weights, parts, strict=True)]
    if not is_first:
        t.op(f"grads.acc.{'.'.join(axes)}", [*shards, *parts], shards)


def _update(t: Tape) -> None:
    """Update all weights of the rank, each with its shard of the optimizer state, and gather sharded weights."""
    t.phase, t.micro = "update", ""
    share, parameters, of_host = t.workload.on.share("optimizer"), 0, 0
    for block, weights in t.weights.items():
        t.block, updated = block, dict[str, str]()
        for module, weight in weights.items():
            if weight.is_trained and weight.name.startswith(f"{block}/"):
                parameters += weight.parameters
                # as close to its share as can be
                is_of_host = 2 * of_host + weight.parameters <= 2 * share * parameters
                of_host += weight.parameters * is_of_host
                updated[weight.name] = _update_weight(t, module, weight, HOST if is_of_host else "accelerator")
        trained = ((weight, weight.replicas) for weight in weights.values() if weight.name in updated)
        for shared in _by_axes(trained) if t.zero_stage in {1, 2} else ():
            names = [weight.name for weight in shared[1]]
            _meet(t, CollectiveKind.ALL_GATHER, shared, [updated[name] for name in names], names)
    if of_host and getattr(t.workload.on.optimizer, "waits", True):
        t.block = "host"
        t.graph.tensor(t.name("done"), ID_BYTES)
        t.op("done", [], [t.name("done")], device=HOST)
        t.op("wait", [t.name("done")], [])


def _update_weight(t: Tape, module: str, weight: Weight, device: str) -> str:
    """Update a weight, or a shard of it; return what was written of it.

    The host makes the weight anew from its master weight, so that it reads and writes 28 B of a parameter with Adam in
    fp32 and all else in 16 bits; a shard that is gathered then is a tensor of its own.
    """
    name, shard, dtypes, optimizer = weight.name, _shard(t, weight), t.workload.dtypes, t.workload.optimizer
    state_bytes, flops = shard * dtypes.optimizer_bytes_per_parameter, 0
    if optimizer is not None:
        shape, shards = weight.layout.local_shape(weight.shape, name), -(-weight.parameters // shard)
        of_layer = is_matrix(module, shape) and t.block in t.layers
        state_bytes = optimizer.state_bytes(shape, shards, t.element_bytes, is_matrix=of_layer)
        flops = optimizer.update_flops(shape, is_matrix=of_layer)
    grad, states = t.shards.get(name) or t.graded[name], list[str]()
    if state_bytes:
        states = [t.declare(f"{name}.state", state_bytes, "optimizer_state")]
    write_bytes, updated, grad_bytes = state_bytes + shard * t.element_bytes, name, shard * dtypes.gradient_bytes
    more = OpFields(device=device, dtype="fp32", write_bytes=write_bytes, read_bytes=write_bytes + grad_bytes)
    if device == HOST:
        parallel, shard_bytes = t.workload.parallel, shard * t.element_bytes
        is_part = shard < weight.parameters and parallel.zero_stage < 3
        if is_part:
            updated = f"{name}.shard"
            t.graph.tensor(updated, shard_bytes, weight.kind)
            if name not in t.shards:
                whole, grad = grad, f"{name}.grad.shard"
                t.graph.tensor(grad, grad_bytes, "gradient")
                t.op(f"{module}.slice", [whole], [grad], read_bytes=grad_bytes)
        more |= OpFields(read_bytes=state_bytes + grad_bytes, op_class="vector", flops=ADAM_FLOPS * shard)
        t.op(module, [grad, *states], [*states, updated], **more)
        if is_part and parallel.ranks == "one":
            t.op(f"{module}.place", [updated, name], [name], read_bytes=shard_bytes, write_bytes=shard_bytes)
        return updated
    if flops:
        more |= OpFields(dtype=dtypes.compute, flops=flops, workspace_bytes=2 * weight.parameters * t.element_bytes)
        if t.zero_stage and weight.replicas:
            grad = _momentum(t, module, weight, [grad, *states])
    t.op(module, [grad, *states, name], [*states, name], **more)
    return name


def _momentum(t: Tape, module: str, weight: Weight, reads: list[str]) -> str:
    """Gather the momentum, which Muon makes orthogonal as a whole, from its shards (arXiv 2502.16982, algorithm 1)."""
    part, whole = f"{weight.name}.momentum.shard", f"{weight.name}.momentum"
    size_bytes = weight.parameters * t.element_bytes
    t.graph.tensor(part, _shard(t, weight) * t.element_bytes)
    t.graph.tensor(whole, size_bytes)
    t.op(f"{module}.momentum", reads, [*reads[1:], part], dtype="fp32")
    t.meet(f"{module}.momentum.gather", CollectiveKind.ALL_GATHER, weight.replicas, size_bytes, [part], [whole])
    return whole


class Stage(Tape):
    """One stage of the pipeline.

    In 1F1B a stage receives what it runs forward next before it sends a gradient back, as the stage before it sends
    before it receives; so ranks meet in program order even if they do one thing at a time.

    Parameters
    ----------
    laid
        The workload, and the weights of its model on the ranks.
    index, chunks
        Index of the stage, and the parts of the model that each of its chunks has.
    """

    def __init__(self, laid: Laid, index: int, chunks: list[list[str]]) -> None:
        self.index, self.stages, self.chunks = index, laid.mesh.size(["pipeline"]), chunks
        laid_here = laid._replace(weights={block: laid.weights[block] for blocks in chunks for block in blocks})
        super().__init__(laid_here, "" if self.stages == 1 else f"{laid.workload.name} stage {index}")
        names = [*laid.weights]
        before = [[laid.weights[name] for name in names[: names.index(blocks[0])]] for blocks in chunks]
        self._trained_before = [any(map(passes_on, weights)) for weights in before]
        self._micros = part_prefixes("mb", laid.workload.parallel.micro_batches)
        self.order = [*turns(laid.workload.parallel, index)]
        self._last_turns = {turn[2]: turn for turn in self.order}
        self.made: dict[tuple[str, int], dict[str, str]] = {}  # micro-batch, chunk -> layer -> its output; "" -> input
        self.unsent: tuple[str, str, str] | None = None

    def begin_turn(self, turn: Turn) -> None:
        """Begin with the next turn."""
        self.turn, (self.phase, micro, self.chunk) = turn, turn
        self.micro, self.blocks = self._micros[micro], self.chunks[self.chunk]
        self.has_trained_before = self._trained_before[self.chunk]
        self.is_first, self.is_last = self.blocks[0] == "embed", self.blocks[-1] == "head"
        self.names = [block for block in self.blocks if block in self.layers]

    def forward(self) -> None:
        """Run the current micro-batch forward."""
        if self.is_first:
            _gather_before(self, "embed", [])
            x = embed(self)
        else:
            x = self._receive(self.names[0], "in", NEXT)
        self.send_back()
        made = self.made[self.micro, self.chunk] = {"": x}
        for block in self.names:
            _gather_before(self, block, [x])
            made[block] = x = forward(self, block, x, partial(attend_whole, self))
        if self.is_last:
            _gather_before(self, "head", [x])
            loss(self, x)
        else:
            self._pass(CollectiveKind.SEND, x, NEXT)

    def backward(self) -> None:
        """Run the current micro-batch backward; the last one (with ZeRO 2 and 3 each) adds up gradients over ranks."""
        made, last = self.made.pop((self.micro, self.chunk)), self.names[-1]
        if not self.is_last and made[last] in self.wanting:
            self.add_gradients([made[last]], [self._receive(last, "out.grad", PREVIOUS)])
        for block in reversed(self.blocks):
            if block in made and self.goes_back(block):
                _gather_before(self, block, [self.grads[made[block]]])
            self.block = block
            self.go_back()
            if self.zero_stage > 1 or self.turn == self._last_turns[self.chunk]:
                _add_up(self)
        if made[""] in self.wanting and not self.is_first:
            self.unsent = (self.micro, self.names[0], self.grads.pop(made[""]))

    def send_back(self) -> None:
        """Send the last gradient to the previous stage, unless it was sent."""
        if self.unsent is not None:
            phase, micro = self.phase, self.micro
            (self.micro, self.block, dy), self.unsent, self.phase = self.unsent, None, "backward"
            self._pass(CollectiveKind.SEND, dy, PREVIOUS)
            self.phase, self.micro = phase, micro

    def _receive(self, block: str, name: str, group: str) -> str:
        self.block = block
        x = self.tensor(name, self.model.residuals * self.model.hidden, self.residual)
        if self.has_trained_before:
            self.wanting.add(x)
        self._pass(CollectiveKind.RECV, x, group)
        return x

    def _pass(self, kind: CollectiveKind, x: str, group: str) -> None:
        """Send a tensor to another stage, or receive it; in a ring, where all may send, on a stream of each sender."""
        by, is_sent = 1 if group == NEXT else -1, kind is CollectiveKind.SEND
        members = self.mesh.shifted("pipeline", by)
        if len(self.chunks) > 1:
            sender = (self.index - by * (not is_sent)) % self.stages
            lines, group = self.mesh.members(["pipeline"]), f"{group}.{sender}"
            members = tuple((ranks[sender], ranks[(sender + by) % self.stages]) for ranks in lines)
        if group not in self.graph.groups:
            self.graph.group(group, members)
        reads, writes = ([x], []) if is_sent else ([], [x])
        self.meet(str(kind), kind, group, self.spread[x].size_bytes, reads, writes)
