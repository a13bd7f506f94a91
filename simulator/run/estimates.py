"""Screens layouts: what a step takes and holds, from models of two layers of each kind, without the whole job.

A *unit* is built for each kind of layer: one stage with two such layers and one micro-batch, by the same builder, with
the same ranks but for the stages. Its ops run in order, each stream by itself, for the times that they take alone
(`simulator.cost`): so a collective hides behind computes that do not wait for it. What computes take and wait for is
booked to the *part* of the model whose op it is: a layer, the embedding, or the head. A stage is a sum of parts.

*Estimate.* With t_s a micro-batch's time in stage s, forward and backward, m micro-batches, c a send between stages and
e_s what follows the last backward (gradients that are still being added up, the update, weights that are gathered)::

    step = max(max_s(sum_{r < s}(t_r + 2 c) + m t_s) + e_0, max_s(m t_s + e_s))
    peak = max_s(lasting_s + k_s saved_s + the largest rest of one part)

with k_s the micro-batches that stage s has begun and not ended. Where that is above the budget, and a row may move
data, what is too much goes over the fastest link out of the compute tier and back, once a step if it lasts, else in
each micro-batch, beside all computes, while all other ranks do the same.

*Bounds.* With C_s the computes alone in place of t_s, U_0 those of stage 0's update, and nothing else, no step is
shorter: a step begins and ends on stage 0, and between the first forward that stage s gets from there and the last
gradient that it sends back it computes all its micro-batches. And no step holds less than what has its home in the
compute tier: what lasts, and gradients, which are all there before the update.

With v virtual stages on each, t_r / v stands before the sum's last term in the estimate, and nothing in the bound.

*A job* is estimated by its last round (`simulator.run.trainings`). Its bound is the largest of its programs, each of
which has to run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from simulator import bounds, builders
from simulator.catalog import Loaded
from simulator.cost import durations_ns
from simulator.cost.collectives import collective_ns
from simulator.cost.service import NS_PER_S
from simulator.errors import ConfigError
from simulator.graph import HOST, LARGEST, Collective, CollectiveKind, Graph
from simulator.lifetime import NEVER, Lifetimes, live_bytes
from simulator.plan import FREE
from simulator.run.placement import home_ids
from simulator.run.trainings import Estimate, StageTimes, decoder_of, programs_of, round_ns, trained
from simulator.workload.job import JobDocument

_UNIT_LAYERS = 2
"""Layers of a unit: forward is counted in the last one, backward in the first one, each behind one that is alike."""


@dataclass
class ModelPart:
    """What a part of the model takes and holds on a rank, for a micro-batch.

    Attributes
    ----------
    forward_ns, backward_ns, update_ns
        Computes and what they wait for; `update_ns` without waits, once a step.
    compute_ns
        Computes of forward and backward alone.
    exchange_forward_ns, exchange_backward_ns, exchange_update_ns
        Exchanges of replicas, which add up gradients and gather weights, by the phase of their ops.
    fixed_bytes, lasting_bytes
        What lasts, gradients included, and cannot leave the compute tier; all that lasts and has room there.
    saved_bytes, spare_bytes
        What is saved for backward; the most of what else there is at a time.
    """

    forward_ns: int = 0
    backward_ns: int = 0
    update_ns: int = 0
    compute_ns: int = 0
    exchange_forward_ns: int = 0
    exchange_backward_ns: int = 0
    exchange_update_ns: int = 0
    fixed_bytes: int = 0
    lasting_bytes: int = 0
    saved_bytes: int = 0
    spare_bytes: int = 0


def room_bytes(loaded: Loaded) -> int:
    """Return the room in the compute tier: the budget, or what is usable [B]."""
    usable = loaded.hardware.tiers[loaded.hardware.compute_tier].usable_bytes
    return int(min(usable, LARGEST) if loaded.scenario.budget_bytes is None else loaded.scenario.budget_bytes)


def estimate(loaded: Loaded, *, can_move: bool, estimated: dict[str, StageTimes] | None = None) -> Estimate:
    """Estimate the layout of a workload, or those of the programs of a job.

    Parameters
    ----------
    loaded
        The scenario; its workload trains a model, or is a job whose programs do.
    can_move
        Whether some row may move data.
    estimated
        Programs that were estimated before for the same scenario and machine, to which others are added.

    Raises
    ------
    ConfigError
        If a model cannot be spread over ranks so.
    """
    made, estimated = dict[str, StageTimes](), {} if estimated is None else estimated
    for name, program in programs_of(loaded).items():
        key = name and f"{name} {program.work.model_dump_json()}"  # a search of one model meets none again
        try:
            made[name] = estimated.get(key) or _stage_times(program, name, can_move=can_move)
        except ConfigError as error:
            rule = f"{name}: {error.must}" if name else error.must
            raise ConfigError(error.where, rule, error.found, error.do) from None
        estimated |= {key: made[name]} if key else {}
    alone, document = [of.alone for of in made.values()], loaded.workload
    return Estimate(
        round_ns(document, made, loaded.hardware) if isinstance(document, JobDocument) else alone[0].step_ns,
        max(each.peak_bytes for each in alone),
        all(each.is_roomy for each in alone),
        max(each.least_step_ns for each in alone),
        max(each.least_bytes for each in alone),
    )


def _stage_times(loaded: Loaded, program: str, *, can_move: bool) -> StageTimes:
    """Estimate the stages of a workload, which is that of a program of a job if that has a name."""
    parallel, stages = trained(loaded).parallel, _stages(loaded, program)
    micros, gpipe = parallel.micro_batches, parallel.schedule == "gpipe"
    chunks = parallel.chunks if parallel.schedule == "interleaved" else 1
    more = -(-len(stages) * (chunks - 1) // chunks)  # micro-batches that virtual stages begin earlier
    begun = [micros if gpipe else min(micros, len(stages) - index + more) for index in range(len(stages))]
    held = ([part.lasting_bytes + k * part.saved_bytes for part in of] for of, k in zip(stages, begun, strict=True))
    peaks = [sum(each) + max(part.spare_bytes for part in stage) for each, stage in zip(held, stages, strict=True)]
    over = [max(0, peak - room_bytes(loaded)) for peak in peaks]
    moved = [_moved(*each, micros) for each in zip(stages, over, begun, strict=True)]
    rate = _rate(loaded) if can_move else 0
    forms, sends_ns = (_forward_ns, _micro_ns, _end_ns), _send_ns(loaded)
    forwards, times, ends = ([form(stage, parallel.zero_stage) for stage in stages] for form in forms)
    times = [max(ns, rate and (each or 0) * NS_PER_S // rate) for ns, each in zip(times, moved, strict=True)]
    work_ns = _path_ns([ns // chunks + 2 * sends_ns for ns in times], [micros * ns for ns in times])
    backwards = [ns - forward for ns, forward in zip(times, forwards, strict=True)]
    turns = (forwards, backwards) if gpipe else (times, [0])
    forwards_ns, backwards_ns = ((micros - 1) * max(each) for each in turns)
    step_ns = max(work_ns + ends[0], *(micros * ns + end for ns, end in zip(times, ends, strict=True)))
    computes = [sum(part.compute_ns for part in stage) for stage in stages]
    before = computes if chunks == 1 else [0] * len(computes)  # virtual stages need not be alike
    least_ns = _path_ns(before, [micros * ns for ns in computes]) + sum(part.update_ns for part in stages[0])
    least_bytes = max(sum(part.fixed_bytes for part in stage) for stage in stages)
    is_roomy = not any(over) or (bool(rate) and None not in moved)
    alone = Estimate(step_ns, max(peaks), is_roomy, least_ns, least_bytes)
    first_ns, back_ns = (sum(each) + (len(stages) - 1) * sends_ns for each in (forwards, backwards))
    early_ns = [sum(times[:stage]) + 2 * stage * sends_ns for stage in range(len(stages))]
    waves = tuple(zip((micros / each for each in begun), early_ns, strict=True))
    return StageTimes(alone, ends[0], first_ns, back_ns, forwards_ns, backwards_ns, work_ns, waves)


def _stages(loaded: Loaded, program: str) -> list[list[ModelPart]]:
    """Return the parts of each stage."""
    workload, decoder = trained(loaded), decoder_of(loaded)
    builders.weights.check_divides(workload, decoder, f"workload {workload.name}")  # for all else units are refused
    micros = 1 + (workload.parallel.zero_stage > 1)  # then only the second one adds to what there is
    alone = {"pipeline": 1, "layers": None, "schedule": "1f1b", "chunks": 1, "woven": False}
    parallel = workload.parallel.model_copy(update={"micro_batches": micros, **alone})
    once = workload.model_copy(update={"parallel": parallel, "steps": 1})
    jobs = builders.of_kinds(once, decoder, _UNIT_LAYERS)
    graphs = [job.graphs[0] for job in jobs.values()]
    each = (_parts(loaded, *of) for of in zip(graphs, _homes(loaded, program, graphs), strict=True))
    units = dict(zip(jobs, each, strict=True))
    counts, layers = builders.stage_layers(workload, decoder.layers, workload.name), 0
    stages = [list[ModelPart]() for _ in range(workload.parallel.pipeline)]
    for index, count in enumerate(counts):  # of virtual stages, if there are any
        kinds = [units[decoder.layer(layer)] for layer in range(layers, layers + count)]
        layers += count
        first, last = index == 0, index == len(counts) - 1
        stages[index % len(stages)] += [
            *[kinds[0]["embed"]] * first, *(parts["layer"] for parts in kinds), *[kinds[-1]["head"]] * last,
        ]  # fmt: skip
    return stages


def _homes(loaded: Loaded, program: str, graphs: Sequence[Graph]) -> list[tuple[int, ...]]:
    """Resolve the homes of units, whose tensors begin with the name of their program; some are of other programs."""
    if not program:
        return home_ids(loaded, graphs)
    names = [[replace(t, name=f"{program}.{t.name}") for t in graph.tensors] for graph in graphs]
    graphs = [replace(graph, tensors=tuple(of)) for graph, of in zip(graphs, names, strict=True)]
    homes = {key: home for key, home in loaded.scenario.homes.items() if any(graph.matching(key) for graph in graphs)}
    return home_ids(replace(loaded, scenario=loaded.scenario.model_copy(update={"homes": homes})), graphs)


def _path_ns(before: Sequence[int], works: Sequence[int]) -> int:
    """Return the longest way of a step through the stages: to a stage, all its micro-batches, and back [ns]."""
    return max(way + ns for way, ns in zip(accumulate(before, initial=0), works, strict=False))


def _rate(loaded: Loaded) -> int:
    """Return the rate at which a rank copies out of the compute tier while all others do, by the fastest link [B/s]."""
    machine, parallel = loaded.hardware, trained(loaded).parallel
    ranks = parallel.data * parallel.context * parallel.tensor * parallel.pipeline
    rates = [0]
    for name, link in machine.links.items():
        caps = [bus for bus in machine.caps.values() if name in bus.links]
        shared = (bus.bandwidth_bytes_per_s / min(ranks, machine.topology.sharing[bus.scope]) for bus in caps)
        rates += [int(min(LARGEST, link.bandwidth_bytes_per_s, *shared))] if link.source == machine.compute_tier else []
    return max(rates)


def _moved(stage: Sequence[ModelPart], over: int, begun: int, micros: int) -> int | None:
    """Return how much of what is too much goes and comes back in each micro-batch [B]; None if less may move."""
    lasts = min(over, sum(part.lasting_bytes - part.fixed_bytes for part in stage))
    saved = (over - lasts) // begun
    return 2 * (saved + lasts // micros) if saved <= sum(part.saved_bytes for part in stage) else None


def _micro_ns(stage: Sequence[ModelPart], zero_stage: int) -> int:
    """Estimate the time of a micro-batch in a stage, forward and backward, with what its replicas exchange [ns]."""
    backward = sum(part.backward_ns for part in stage)
    exchange = sum(part.exchange_backward_ns for part in stage) if zero_stage > 1 else 0
    return _forward_ns(stage, zero_stage) + max(backward, exchange)


def _forward_ns(stage: Sequence[ModelPart], zero_stage: int) -> int:
    """Estimate the time of a micro-batch's forward in a stage, with what its replicas exchange [ns]."""
    exchange = sum(part.exchange_forward_ns for part in stage) if zero_stage > 1 else 0
    return max(sum(part.forward_ns for part in stage), exchange)


def _end_ns(stage: Sequence[ModelPart], zero_stage: int) -> int:
    """Estimate the time from the end of a stage's last backward to the next step [ns]."""
    back = [(part.backward_ns, part.exchange_backward_ns) for part in reversed(stage)]
    ahead = [(part.forward_ns, part.exchange_update_ns) for part in reversed(stage)]
    exposed = max(0, sum(part.exchange_backward_ns - part.backward_ns for part in stage)) * (zero_stage > 1)
    return _beyond(back) - exposed + sum(part.update_ns for part in stage) + _beyond(ahead)


def _beyond(pairs: Sequence[tuple[int, int]]) -> int:
    """Return how much longer computes and exchanges take than the computes, each of which an exchange follows [ns].

    In reverse order it is the same with each exchange before its compute.
    """
    computed = exchanged = 0
    for compute_ns, exchange_ns in pairs:
        computed += compute_ns
        exchanged = max(exchanged, computed) + exchange_ns
    return exchanged - computed


def _send_ns(loaded: Loaded) -> int:
    """Return the time to send a micro-batch's activations to the next stage [ns]."""
    workload, parallel = trained(loaded), trained(loaded).parallel
    if parallel.pipeline == 1:
        return 0
    cut = parallel.context * (parallel.tensor if parallel.sequence else 1)
    width = decoder_of(loaded).hidden * decoder_of(loaded).residuals
    size = workload.batch * workload.sequence * width * workload.dtypes.element_bytes // cut
    ends = 0, parallel.data * parallel.context * parallel.tensor
    return collective_ns(Collective(CollectiveKind.SEND, "stages", size), ends, loaded.hardware)


def _parts(loaded: Loaded, graph: Graph, homes: Sequence[int]) -> dict[str, ModelPart]:
    """Count the parts of a unit: a layer, ``layer``, and both ends, ``embed`` and ``head``."""
    parts = {block: ModelPart() for block in ("embed", "L00", "L01", "head")}
    _count_times(loaded, graph, parts)
    _count_sizes(graph, homes, [*loaded.hardware.tiers].index(loaded.hardware.compute_tier), parts)
    first, last = parts["L00"], parts["L01"]
    first.forward_ns, first.spare_bytes = last.forward_ns, max(first.spare_bytes, last.spare_bytes)
    return {"embed": parts["embed"], "layer": first, "head": parts["head"]}


def _count_times(loaded: Loaded, graph: Graph, parts: dict[str, ModelPart]) -> None:
    """Run the ops of a unit in order on their streams, and book what computes take, and wait for, to its parts."""
    streams = bounds.streams_of(graph, loaded.scenario.switches.collectives)
    free, made = dict[int, int](), [0] * len(graph.tensors)
    for op, ns, stream in zip(graph.ops, durations_ns(graph, loaded.hardware), streams, strict=True):
        micro, block = _place(op.name)
        before, part = free.get(stream, 0), parts[block]
        end = free[stream] = max([before, *(made[t] for t in op.reads)]) + ns
        for t in op.writes:
            made[t] = end
        is_first, is_last = micro in ("", "mb0"), micro in ("", "mb1")
        if op.collective is not None and op.name.rpartition("/")[2].startswith(("grads.", "weights.")):
            key = f"exchange_{op.phase}_ns"
            setattr(part, key, getattr(part, key) + ns * is_last)
        if op.device == HOST or (op.collective is not None and stream):
            continue
        if op.phase == "update":
            part.update_ns += ns * (op.collective is None)
            continue
        part.compute_ns += ns * (op.collective is None) * is_first
        key = "forward_ns" if op.phase == "forward" else "backward_ns"
        setattr(part, key, getattr(part, key) + (end - before) * is_last)


def _place(name: str) -> tuple[str, str]:
    """Return the micro-batch of an op or a tensor, empty if there is one, and its part of the model."""
    micro, _, rest = name.partition("/") if name.startswith("mb") else ("", "", name)
    return micro, rest.partition("/")[0]


def _count_sizes(graph: Graph, homes: Sequence[int], compute_tier: int, parts: dict[str, ModelPart]) -> None:
    """Book what lasts, what is saved for backward, and the most of the rest at a time, to the parts of a unit."""
    lifetimes, phases, rest = Lifetimes.of(graph), [op.phase for op in graph.ops], list[int]()
    for t, (tensor, home) in enumerate(zip(graph.tensors, homes, strict=True)):
        micro, block = _place(tensor.name)
        part = parts[block]
        first, last = lifetimes.first_use[t], lifetimes.last_use[t]
        if first == NEVER:
            continue
        if tensor.persistent or phases[last] == "update":
            part.lasting_bytes += tensor.size_bytes * (home in (compute_tier, FREE))
            part.fixed_bytes += tensor.size_bytes * (home == compute_tier)
        elif (phases[first], phases[last]) == ("forward", "backward"):
            part.saved_bytes += tensor.size_bytes * (micro in ("", "mb1"))
        else:
            rest.append(t)
    for op, held in zip(graph.ops, live_bytes(graph, rest), strict=True):
        part = parts[_place(op.name)[1]]
        part.spare_bytes = max(part.spare_bytes, int(held))
