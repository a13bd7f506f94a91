"""The card of a model and of a machine: what a reader asks first, counted from what was built."""

from __future__ import annotations

from collections import Counter

from simulator.builders import iteration, lone
from simulator.builders.weights import parameters
from simulator.graph import Graph, Job, TensorKind
from simulator.hardware import Hardware
from simulator.units import counted, exact, human
from simulator.workload import DecoderModel, Workload

Card = dict[str, str]
"""What it is -> how much, in the order in which it is told."""

_WEIGHTS = (TensorKind.WEIGHT, TensorKind.EXPERT)


def model_card(workload: Workload | None, job: Job | None) -> Card:
    """Say what runs: parameters in all and for a token, weights, KV cache and arithmetic of a token, ops and tensors.

    Parameters
    ----------
    workload
        The model, or the graph's document; None if the job is not of it.
    job
        What all ranks run; None of requests: weights and arithmetic are then those of the least iteration.
    """
    card, is_served = Card(), job is None and workload is not None and workload.requests is not None
    if workload is not None and is_served:
        job = Job.of(iteration(workload, lone(workload), 0))
    if workload is not None and (counts := parameters(workload)):
        every, active = map(amount, counts)
        card["parameters"] = every + (f", {active} active for a token" if counts[1] < counts[0] else "")
    whose = " a rank" if job and job.ranks > 1 else ""
    if job is not None:
        kept = {kinds: max(_bytes(graph, kinds) for graph in job.graphs) for kinds in (_WEIGHTS, tuple(TensorKind))}
        for name, size in zip(("weights", "persistent tensors"), kept.values(), strict=True):
            if size and name not in card and "weights" not in card:
                card[name] = human(size, "B") + whose
    if workload is not None and workload.model is not None and workload.phase != "train":
        card["KV cache"] = _cache(workload.model.decoder, workload.dtypes.kv_bytes)
    if job is not None:
        card |= _arithmetic(job, 1 if is_served else None if workload is None else workload.tokens)
    if is_served:
        card["arithmetic"] += ", the first of a sequence"
    elif job is not None:
        graphs = ", ".join(
            f"{counted(len(g.ops), 'op')} and {counted(len(g.tensors), 'tensor')}" for g in job.graphs[:4]
        )
        card["graph"] = graphs + (f" in {counted(job.ranks, 'rank')}" if whose else "")
    return card


def _cache(model: DecoderModel, kv_bytes: int) -> str:
    """What a token takes in all layers, and for how long in those that see a window."""
    every, near = human(model.kv_elements * kv_bytes, "B"), Counter[int]()
    for (part, _), layers in model.kinds.items():
        near[part.window or 0] += layers
    told = [f"in {n} of {model.layers} layers only the last {w:,} tokens" for w, n in near.items() if w]
    return ", ".join((f"{every} a token", *told))


def _bytes(graph: Graph, kinds: tuple[TensorKind, ...]) -> int:
    return sum(tensor.size_bytes for tensor in graph.tensors if tensor.persistent and tensor.kind in kinds)


def _arithmetic(job: Job, tokens: int | None) -> Card:
    """Arithmetic of all ranks (`Graph.arithmetic`), for each token where tokens are known."""
    flops = sum(times * sum(job.graphs[one].arithmetic.values()) for one, times in Counter(job.graph_of).items())
    if not flops:
        return {}
    much = human(flops / (tokens or 1), "FLOP/s").removesuffix("/s")
    return {"arithmetic": f"{much} a {'token' if tokens else 'step'}"}


def machine_card(hardware: Hardware) -> Card:
    """Say where it runs: peaks of arithmetic, the room and the rate of each tier, and what a device costs, if stated.

    Parameters
    ----------
    hardware
        The machine.
    """
    peaks = (f"{dtype} {human(rate, 'FLOP/s')}" for dtype, rate in hardware.compute.peak_flops.items())
    card = {"peak arithmetic": ", ".join(peaks)}
    for name, tier in hardware.tiers.items():
        rate = tier.bandwidth_bytes_per_s
        reached = [link.bandwidth_bytes_per_s for link in hardware.links.values() if link.source == name]
        rate = max(reached, default=None) if rate is None else rate
        card[name] = human(tier.capacity_bytes, "B") + ("" if rate is None else f", {human(rate, 'B/s')}")
        if tier.endurance_bytes is not None:
            card[name] += f", endures {human(tier.endurance_bytes, 'B')}"
    costs = ((hardware.compute.power_mw, "mW"), (hardware.compute.price_uusd_per_h, "uUSD/h"))
    if stated := [exact(cost, unit) for cost, unit in costs if cost is not None]:
        card["a device"] = ", ".join(stated)
    return card


def line(card: Card) -> str:
    """A card in one line."""
    return "; ".join(f"{name} {much}" for name, much in card.items())


def amount(number: int) -> str:
    """Write how many there are for people, with three digits: ``8.03 billion``."""
    for name, size in (("trillion", 10**12), ("billion", 10**9), ("million", 10**6)):
        if number >= 0.9995 * size:
            return f"{number / size:#.3g}".removesuffix(".") + f" {name}"
    return f"{number:,}"
