"""A decoder, operator by operator, counted from its dimensions: its training step here, inference in `inference`.

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
ops. Causal attention takes 2*T*sequence*h (half of the square) and 2.5 times that in backward. Other ops only move
bytes: their arithmetic is below 0.1 % of the whole, runs on other units, and is not counted (0 FLOP).

The loss holds ``logits_copies_fp32`` fp32 copies of the logits as its workspace, each written and read once; its
backward holds one of them (if there is any) while it writes the gradient of the logits.

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
"""

from __future__ import annotations

from itertools import accumulate, pairwise
from math import gcd

from simulator.builders.decoder import inference, serve
from simulator.builders.decoder.inference import Iteration
from simulator.builders.decoder.stage import Stage
from simulator.builders.decoder.tape import blocks
from simulator.builders.decoder.weights import weights
from simulator.errors import ConfigError
from simulator.graph import Graph, Job
from simulator.layout import Mesh, Weight
from simulator.units import would_divide
from simulator.workload import DecoderModel, LlamaModel, Parallel, Workload

__all__ = ["Iteration", "build", "iteration", "spread_weights"]


def build(workload: Workload, model: LlamaModel | DecoderModel) -> Job:
    """Build the training step of `model` as `workload` runs it, or its inference.

    Parameters
    ----------
    workload
        Batch, sequence, data types, layout and number of steps.
    model
        The dimensions.

    Returns
    -------
    Job
        One graph for each pipeline stage, for each pool, or for the one rank of inference. Training on one rank takes
        42 ops a layer for forward and backward, then one update per weight. All run `workload.steps` times.

    Raises
    ------
    ConfigError
        If the model cannot be spread like that; the message says what would do.
    """
    where, parallel = f"workload {workload.name}", workload.parallel
    names, spread = blocks(model.layers), spread_weights(workload, model)
    mesh = _mesh(parallel)
    if workload.phase in ("prefill", "decode"):
        return inference.build(workload, model.decoder, mesh, spread)
    if workload.phase == "requests":
        must, do = "a run is of steps that are alike", "run hosim serve on a scenario with it"
        raise ConfigError(where, must, "requests that arrive over time", do)
    if isinstance(model, DecoderModel):
        must = "a model of the family decoder has phase prefill, decode or requests"
        raise ConfigError(where, must, workload.phase, "set phase, or use the family llama")
    if workload.pools is not None:
        return serve.build(workload, model, workload.pools, mesh, spread)
    ends = list(accumulate(_stage_layers(parallel, model, where), initial=0))
    parts = [names[start:end] for start, end in pairwise(ends)]
    graphs = tuple(Stage(workload, model, mesh, spread, place).graph() for place in enumerate(parts))
    labels = tuple(f"stage {i}" for i in range(len(graphs))) if len(graphs) > 1 else (workload.name,)
    return Job(workload.name, graphs, tuple(mesh.position(rank, ("pipeline",)) for rank in range(mesh.ranks)), labels)


def iteration(workload: Workload, work: Iteration, room: int) -> Graph:
    """Build one iteration of serving the requests of a workload.

    Parameters
    ----------
    workload
        With a model of the family decoder, and requests.
    work
        What runs together.
    room
        How many tokens the KV cache has room for in the compute tier, less those that leave it [tokens].
    """
    if not isinstance(workload.model, DecoderModel):
        where = f"workload {workload.name}"
        raise ConfigError(where, "requests are served by a decoder", "another model", "choose a decoder")
    weights = spread_weights(workload, workload.model)
    return inference.build_iteration(workload, weights, _mesh(workload.parallel), work, room)


def spread_weights(workload: Workload, model: LlamaModel | DecoderModel) -> dict[str, Weight]:
    """Lay the weights of `model` over ranks as `workload` says; parameters and errors as for `build`."""
    where = f"workload {workload.name}"
    if isinstance(model, LlamaModel):
        _check(workload, model, where)
        _stage_layers(workload.parallel, model, where)
    return weights(model.decoder, blocks(model.layers), _mesh(workload.parallel), workload.parallel, where)


def _mesh(parallel: Parallel) -> Mesh:
    matrix = parallel.device_matrix
    return Mesh((1,) * len(matrix) if parallel.ranks == "one" else tuple(matrix.values()), tuple(matrix))


def _check(workload: Workload, model: LlamaModel, where: str) -> None:
    """Refuse what does not divide, with what would."""
    parallel = workload.parallel
    if not parallel.layouts:
        whole = {name: getattr(model, name) for name in ("heads", "kv_heads", "ffn", "vocabulary")}
        for name, length in whole.items():
            if length % parallel.tensor:
                must = "tensor divides heads, kv_heads, ffn and vocabulary"
                do = would_divide("parallel.tensor", gcd(*whole.values()), parallel.tensor)
                raise ConfigError(f"{where}, parallel.tensor", must, f"{parallel.tensor}, and {length} {name}", do)
    experts = model.experts or 1
    if experts % parallel.expert:
        must = "the expert ranks have as many experts each"
        found = f"{parallel.expert} ranks for {model.experts or 'no'} experts"
        do = would_divide("parallel.expert", experts, parallel.expert)
        raise ConfigError(f"{where}, parallel.expert", must, found, do)
    tokens = workload.batch * workload.sequence
    if parallel.sequence and tokens % parallel.tensor:
        must, found = "with sequence the tokens of a micro-batch divide over tensor", f"{tokens} over {parallel.tensor}"
        do = would_divide("parallel.tensor", tokens, parallel.tensor)
        raise ConfigError(f"{where}, parallel.sequence", must, found, do)
    if model.tied_embeddings and parallel.pipeline > 1:
        must, found = "a model with tied embeddings has one stage", f"{parallel.pipeline} stages"
        raise ConfigError(f"{where}, parallel.pipeline", must, found, "set pipeline to 1, or tied_embeddings to false")


def _stage_layers(parallel: Parallel, model: LlamaModel, where: str) -> tuple[int, ...]:
    """Layers of each stage."""
    if model.layers < parallel.pipeline:
        must, found = "each stage has a layer", f"{parallel.pipeline} stages for {model.layers} layers"
        raise ConfigError(f"{where}, parallel.pipeline", must, found, f"set pipeline to at most {model.layers}")
    if parallel.layers is None:
        few, more = divmod(model.layers, parallel.pipeline)
        return tuple(few + (stage < more) for stage in range(parallel.pipeline))
    if sum(parallel.layers) != model.layers:
        must, found = f"the stages have the {model.layers} layers of the model", str(sum(parallel.layers))
        raise ConfigError(f"{where}, parallel.layers", must, found, "correct the numbers")
    return parallel.layers
