"""The cards of a model and of a machine, and the layout of a job over its ranks, counted from its graphs."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from simulator.builders import iteration, least_iteration
from simulator.builders.weights import parameters
from simulator.graph import HOST, PAIRED, Graph, Group, Job, TensorKind
from simulator.hardware import Hardware
from simulator.layout import Weight
from simulator.lifetime import Lifetimes, live_bytes
from simulator.metrics.figures import local
from simulator.metrics.statistics import grouped
from simulator.report.tables import aligned, figures
from simulator.software import Software
from simulator.units import counted, exact, human
from simulator.workload import DecoderModel, DlrmModel, Gqa, Parallel, Workload
from simulator.workload.job import JobDocument

Card = dict[str, str]
"""Name of an amount -> the amount for people, in the order of the card."""
Amounts = dict[str, tuple[str, dict[str, Any]]]
"""Name of an amount -> the amount for people, and its numbers by name, for programs."""

_WEIGHTS = (TensorKind.WEIGHT, TensorKind.EXPERT)
_FIGURES = local(
    text=("program", "ranks", "at op", "weights", "shape", "cut along", "phase", "collective", "group", "who meets"),
    count=("ops", "how many", "ranks that hold it", "times"),
    B=("in all", "each rank", "size", *(str(kind).replace("_", " ") for kind in TensorKind)),
)
"""The columns of the tables of a layout."""
_MOST_MEMBERS, _MOST_RANKS = 3, 8
"""Most members of a group, and most ranks, that are listed: more do not fit in a line."""


def texts(amounts: Amounts) -> Card:
    """Return amounts for people."""
    return {name: text for name, (text, _) in amounts.items()}


def plain(amounts: Amounts) -> dict[str, Any]:
    """Return all numbers of amounts, for programs."""
    return {name: count for _, counts in amounts.values() for name, count in counts.items()}


def model_amounts(workload: Workload | JobDocument | None, job: Job | None) -> Amounts:
    """Describe a model: parameters (all, and active per token), weights, KV cache, FLOPs per token, ops, tensors.

    Parameters
    ----------
    workload
        The workload; None if the job was not built from it.
    job
        The graphs of all ranks; None for requests, whose weights and arithmetic are those of the smallest iteration.
    """
    card, tokens = Amounts(), None if workload is None else workload.tokens
    work = workload if isinstance(workload, Workload) else None
    if isinstance(workload, JobDocument):
        card["programs"] = _programs(workload), {"programs": {n: [*ranks] for n, ranks in workload.placed.items()}}
    is_served, alone = job is None and work is not None and work.requests is not None, None
    if work is not None and is_served:
        job = Job.of(iteration(work, least_iteration(work), 0), work.ranks)
        whole = work.model_copy(update={"parallel": Parallel()})  # what ranks fill up or copy is no token's
        alone = Job.of(iteration(whole, least_iteration(whole), 0))
    if work is not None and (counts := parameters(work)):
        every, active = map(amount, counts)
        text = every + (f", {active} active for a token" if counts[1] < counts[0] else "")
        card["parameters"] = text, {"parameters": counts[0], "active_parameters": counts[1]}
    elif work is not None and isinstance(work.model, DlrmModel):
        card["parameters"] = amount(work.model.parameters), {"parameters": work.model.parameters}
    whose = " a rank" if job and job.ranks > 1 else ""
    if job is not None:
        weights, persistent = (max(_bytes(g, kinds) for g in job.graphs) for kinds in (_WEIGHTS, tuple(TensorKind)))
        if persistent:
            name, size = ("weights", weights) if weights else ("persistent tensors", persistent)
            card[name] = human(size, "B") + whose, {"weight_bytes": weights, "persistent_bytes": persistent}
    model = work.decoder.decoder if work is not None and work.decoder is not None and work.phase != "train" else None
    if work is not None and model is not None and model.causal and model.head:
        card["KV cache"] = _cache(model, work)
    if job is not None:
        card |= _arithmetic(alone or job, 1 if alone else tokens)
    if job is not None and (ops := max(sum(op.device == HOST for op in graph.ops) for graph in job.graphs)):
        theirs = max(sum(graph.tensors[t].size_bytes for t in graph.of_host) for graph in job.graphs)
        text = f"{counted(ops, 'op')}, and {human(theirs, 'B')} that nothing else uses{whose}"
        card["on the host"] = text, {"host_ops": ops, "host_bytes": theirs}
    if is_served:
        text, flops = card["arithmetic"]
        card["arithmetic"] = f"{text}, the first of a sequence", flops
    elif job is not None:
        card["graph"] = _graph(job)
    return card


def _graph(job: Job) -> tuple[str, dict[str, Any]]:
    """Count the ops and tensors of the graphs of a job; people see those of the first four."""
    ops, tensors = [len(graph.ops) for graph in job.graphs], [len(graph.tensors) for graph in job.graphs]
    pairs = zip(ops[:4], tensors[:4], strict=True)
    text = ", ".join(f"{counted(many, 'op')} and {counted(more, 'tensor')}" for many, more in pairs)
    text += f" in {counted(job.ranks, 'rank')}" if job.ranks > 1 else ""
    return text, {"ops": ops, "tensors": tensors, "ranks": job.ranks}


def _cache(model: DecoderModel, work: Workload) -> tuple[str, dict[str, Any]]:
    """Write what a rank keeps per token, over all layers, which layers keep only a window, and which a state."""
    token_bytes, near, stateful, dtypes = 0, Counter[int](), Counter[str](), work.dtypes
    compressed, across_bytes = Counter[int](), 0
    whose = " and rank" if work.parallel.tensor > 1 else ""
    for kind, layers in model.kinds.items():
        part = kind.attention.of_one(work.parallel.tensor)
        if isinstance(part, Gqa) and model.across(kind) != "never":
            across_bytes += layers * part.seen_elements * dtypes.kv_bytes
        token_bytes += layers * part.views * part.kv_elements * dtypes.kv_bytes
        near[part.window or 0] += layers
        if part.compress:
            compressed[part.compress.stride] += layers * part.compressed_elements * dtypes.kv_bytes
        if kept := part.kept_bytes(dtypes.element_bytes, dtypes.state_bytes):
            stateful.update(layers=layers, bytes=layers * sum(kept.values()), lasting=part.state is not None)
    kept_text = f"{human(stateful['bytes'], 'B')} a sequence{whose}"
    states = [f"in {stateful['layers']} of {model.layers} layers a state of {kept_text}"]
    states += ["so that no prefix is found again"] if work.requests and stateful["lasting"] else []
    windows = [f"in {n} of {model.layers} layers only the last {w:,} tokens" for w, n in near.items() if w]
    windows += [f"{human(size, 'B')} more for every {tokens:,} tokens" for tokens, size in compressed.items()]
    rows = f"{human(across_bytes, 'B')} of each of {model.encoded:,} rows of the encoder's output"
    windows += [rows] if model.encoded else []
    text = ", ".join((f"{human(token_bytes, 'B')} a token{whose}", *windows, *(states if stateful else ())))
    counts = {"kv_token_bytes": token_bytes, "window_layers": {n: layers for n, layers in near.items() if n}}
    counts |= {"compressed_bytes": dict(compressed)} if compressed else {}
    return text, counts | ({"state_bytes": stateful["bytes"]} if stateful else {})


def _bytes(graph: Graph, kinds: tuple[TensorKind, ...]) -> int:
    return sum(tensor.size_bytes for tensor in graph.tensors if tensor.persistent and tensor.kind in kinds)


def _arithmetic(job: Job, tokens: int | None) -> Amounts:
    """Write the arithmetic of all ranks (`Graph.arithmetic`), per token where tokens are known."""
    flops = sum(ranks * sum(job.graphs[index].arithmetic.values()) for index, ranks in Counter(job.graph_of).items())
    if not flops:
        return {}
    much = human(flops / (tokens or 1), "FLOP/s").removesuffix("/s")
    numbers = {"flops": flops, "tokens": tokens}
    return {"arithmetic": (f"{much} a {'token' if tokens else 'step'}", numbers)}


def machine_amounts(hardware: Hardware) -> Amounts:
    """Describe a machine: peak arithmetic, capacity and bandwidth of each tier, and the costs of a device, if stated.

    Parameters
    ----------
    hardware
        The machine.
    """
    peaks = (f"{dtype} {human(rate, 'FLOP/s')}" for dtype, rate in hardware.compute.peak_flops.items())
    card: Amounts = {"peak arithmetic": (", ".join(peaks), {"peak_flops_per_s": dict(hardware.compute.peak_flops)})}
    for name, tier in hardware.tiers.items():
        reading = [link.bandwidth_bytes_per_s for link in hardware.links.values() if link.source == name]
        rate = tier.bandwidth_bytes_per_s or max(reading, default=None)
        text = human(tier.capacity_bytes, "B") + ("" if rate is None else f", {human(rate, 'B/s')}")
        if tier.endurance_bytes is not None:
            text += f", endures {human(tier.endurance_bytes, 'B')}"
        if tier.price_nusd_per_gb_month:  # 0: it is part of the price of a device
            text += f", {exact(tier.price_nusd_per_gb_month, 'nUSD/GB/month')}"
        size = int(tier.capacity_bytes) if tier.capacity_bytes < math.inf else None
        card[name] = text, {f"{name}_bytes": size, f"{name}_bytes_per_s": rate}
    costs = {"mW": hardware.compute.power_mw, "uUSD/h": hardware.compute.price_uusd_per_h}
    if stated := [exact(cost, unit) for unit, cost in costs.items() if cost is not None]:
        card["a device"] = ", ".join(stated), dict(zip(("power_mw", "price_uusd_per_h"), costs.values(), strict=True))
    return card


def cards(model: Amounts, machine: Hardware, software: Software | None) -> dict[str, Amounts]:
    """Return the cards of a run: model, machine, and what drives it, which is the best case if nothing is named."""
    driver: Amounts = {"best case:": ("pinned copies, best kernels (no software named)", {"name": None})}
    driver = {f"{software.name}:": (software.heading, {"name": software.name})} if software else driver
    return {"model": model, "machine": machine_amounts(machine), "software": driver}


def line(card: Card) -> str:
    """Write a card in one line."""
    return "; ".join(f"{name} {much}" for name, much in card.items())


def amount(count: int) -> str:
    """Write a count for people, with three digits: ``8.03 billion``."""
    for name, size in (("trillion", 10**12), ("billion", 10**9), ("million", 10**6)):
        if count >= 0.9995 * size:
            return f"{count / size:#.3g}".removesuffix(".") + f" {name}"
    return f"{count:,}"


class Holding(NamedTuple):
    """The bytes that each rank of a program holds.

    Attributes
    ----------
    kept_bytes
        Kind of tensor -> bytes held through the whole step, before ZeRO gathers shards.
    peak_bytes
        Kind (or ``workspace``) -> bytes at the op with the most, if nothing moves.
    """

    program: str
    ranks: tuple[int, ...]
    ops: int
    kept_bytes: Counter[str]
    peak_bytes: Counter[str]
    peak_op: str


class Exchange(NamedTuple):
    """Collectives of a program that share phase, kind, group and size, in one step."""

    label: str
    phase: str
    kind: str
    group: Group
    times: int
    size_bytes: int


def layout_text(job: Job, workload: Workload | JobDocument, weights: Mapping[str, Weight]) -> str:
    """Write the layout of a job as tables: the memory of ranks, the cuts of weights, and the communication.

    Parameters
    ----------
    job, workload
        The graphs of all ranks, and the workload that they were built from.
    weights
        The cuts of weights; may be empty.
    """
    programs, exchanged = holdings(job), [_exchanged(exchange) for exchange in exchanges(job)]
    kept = [{"program": p.program, "ranks": numbers(p.ranks), "ops": p.ops, **_sizes(p.kept_bytes)} for p in programs]
    peaks = [{"program": p.program, **_sizes(p.peak_bytes), "at_op": p.peak_op} for p in programs]
    parts = {
        "held all step, by each rank": kept,
        "live at most, if nothing moves": peaks,
        "how weights are cut, before ZeRO": _cuts(weights),
        "communicated in a step, by each rank": exchanged,
    }
    tables = list[str]()
    for head, rows in ((head, rows) for head, rows in parts.items() if rows):
        used = [column for column in rows[0] if _FIGURES[column].unit != "B" or any(row[column] for row in rows)]
        tables.append(f"{head}\n{aligned(figures(rows, used, _FIGURES), 2)}")
    tables += [] if exchanged else ["nothing is communicated"]
    return "\n\n".join([f"{job.name}: {counted(job.ranks, 'rank')}{_parts(workload)}", *tables])


def _sizes(kinds: Counter[str]) -> dict[str, int]:
    """Return the bytes of each kind of tensor, and of all, by column."""
    return {**{f"{kind}_bytes": kinds[kind] for kind in map(str, TensorKind)}, "in_all_bytes": kinds.total()}


def layout_data(job: Job, weights: Mapping[str, Weight]) -> dict[str, Any]:
    """Return the layout of a job as plain data: sizes in bytes, all ranks by number, all members of groups.

    Parameters
    ----------
    job, weights
        See `layout_text`.
    """
    cuts = []
    for weight in weights.values():
        mesh = weight.layout.mesh
        cut = {"weight": weight.name, "shape": weight.whole_shape, "device_matrix": mesh.device_matrix}
        cut |= {"axis_names": mesh.axis_names, "tensor_map": weight.layout.tensor_map}
        cuts.append(cut | {"rank_bytes": weight.size_bytes, "held_by_ranks": _holders(weight)})
    return {
        "schema": "hosim-layout/1",
        "name": job.name,
        "ranks": job.ranks,
        "programs": [program._asdict() for program in holdings(job)],
        "weights": cuts,
        "groups": {group.name: group.members for graph in job.graphs for group in graph.groups},
        "collectives": [exchange._asdict() | {"group": exchange.group.name} for exchange in exchanges(job)],
    }


def holdings(job: Job) -> list[Holding]:
    """Count the bytes that a rank of each program holds: through the whole step, and at its peak."""
    programs = []
    for index, (label, graph) in enumerate(zip(job.labels, job.graphs, strict=True)):
        lifetimes, op = Lifetimes(graph), int(live_bytes(graph).argmax())
        kept, peak = Counter[str](), Counter({str(TensorKind.WORKSPACE): graph.ops[op].workspace_bytes})
        for t, tensor in enumerate(graph.tensors):
            if tensor.persistent:
                kept[str(tensor.kind)] += tensor.size_bytes
            if 0 <= lifetimes.born[t] <= op <= lifetimes.dies[t]:
                peak[str(tensor.kind)] += tensor.size_bytes
        programs.append(Holding(label, job.ranks_of(index), len(graph.ops), kept, peak, graph.ops[op].name))
    return programs


def exchanges(job: Job) -> Iterator[Exchange]:
    """Count the collectives of each program in a step, in the order of first appearance."""
    for index, graph in enumerate(job.graphs):
        ranks, groups = set(job.ranks_of(index)), {group.name: group for group in graph.groups}
        met = ((op.phase, op.collective) for op in graph.ops if op.collective is not None)
        counts = Counter((phase, str(c.kind), c.group, c.size_bytes) for phase, c in met)
        for (phase, kind, name, size_bytes), times in counts.items():
            takes_part = {"send": slice(0, 1), "recv": slice(-1, None)}.get(kind, slice(None))
            meeting = tuple(members for members in groups[name].members if not ranks.isdisjoint(members[takes_part]))
            yield Exchange(job.labels[index], phase, kind, Group(name, meeting), times, size_bytes)


def _parts(workload: Workload | JobDocument) -> str:
    """Write the programs of ranks; or the axes of the mesh, that of neighbouring ranks last, and the ZeRO stage."""
    if isinstance(workload, JobDocument):
        return f" = {_programs(workload)}"
    parallel, pools = workload.parallel, workload.pools
    axes = [f"{name} {getattr(parallel, name)}" for name in parallel.device_matrix if name != "expert"]
    axes = axes if parallel.ranks == "all" else []
    text = f" = {' x '.join(axes)}" if axes else ""
    text += f" = prefill {pools.prefill} + decode {pools.decode}, each with the whole model" if pools else ""
    return text + (f"; ZeRO {parallel.zero_stage}" if parallel.zero_stage else "")


def _programs(document: JobDocument) -> str:
    """Write which ranks run the programs of a job."""
    return ", ".join(f"{name} on {numbers(ranks)}" for name, ranks in document.placed.items())


def _cuts(weights: Mapping[str, Weight]) -> list[dict[str, Any]]:
    """Return a row for each pattern of weights (names that differ only in numbers), its shape, cut and stored size."""

    def alike(weight: Weight) -> tuple[str, str, str, int]:
        cut = ", ".join("+".join(axes) or "-" for axes in weight.layout.tensor_map)
        return re.sub(r"\d+", "*", weight.name), " x ".join(map(str, weight.whole_shape)), f"[{cut}]", weight.size_bytes

    rows = []
    for (name, shape, cut, size_bytes), group in grouped(weights.values(), alike).items():
        row: dict[str, Any] = {"weights": name, "how_many": len(group), "shape": shape, "cut_along": cut}
        rows.append(row | {"each_rank_bytes": size_bytes, "ranks_that_hold_it": _holders(group[0])})
    return rows


def _holders(weight: Weight) -> int:
    """Count the ranks that hold the same shard; each layer is in a single pipeline stage."""
    mesh, cut = weight.layout.mesh, (*weight.layout.cut, "pipeline")
    return mesh.size([axis for axis in mesh.axis_names if axis not in cut]) * weight.copies


def _exchanged(exchange: Exchange) -> dict[str, Any]:
    """Return the row of a collective for the table."""
    members, arrow = exchange.group.members, exchange.kind in PAIRED
    shown = [f"{a} > {b}" if arrow else numbers((a, *rest, b)) for a, *rest, b in members[:_MOST_MEMBERS]]
    meets = " | ".join(shown) + (f" | ... ({len(members)})" if len(members) > _MOST_MEMBERS else "")
    row: dict[str, Any] = {"program": exchange.label, "phase": exchange.phase, "collective": exchange.kind}
    row |= {"group": exchange.group.name, "times": exchange.times, "size_bytes": exchange.size_bytes}
    return row | {"in_all_bytes": exchange.times * exchange.size_bytes, "who_meets": meets}


def numbers(ranks: Sequence[int]) -> str:
    """Write ranks: ``0-3`` if they are consecutive, ``0,2,4``, or the first ones and how many there are."""
    if len(ranks) > 1 and list(ranks) == list(range(ranks[0], ranks[-1] + 1)):
        return f"{ranks[0]}-{ranks[-1]}"
    if len(ranks) <= _MOST_RANKS:
        return ",".join(map(str, ranks))
    return f"{ranks[0]},{ranks[1]},...,{ranks[-1]} ({len(ranks)})"
