"""What a search of layouts is about: decoders that train, alone or as programs of a job; and what a round of one takes.

A job, whose programs have ranks of their own, is estimated by its last round, as a replay counts it. Program P begins
round k at B_P and has done the last backward at H_P, both the latest of what it waits for. A micro-batch takes F_P
forward and G_P backward through all stages; f_P is from the first forward to the last one, and g_P the same of backward
where that of the last micro-batch is the first (GPipe; else 0). All micro-batches take W_P, and the end of a step u_P.
Before stage s one takes b_s, forward and backward, and those under way from there on are a d_s-th of all::

    B_P(k) = max(H_P(k - 1) + u_P, B_Q(k) + F_Q, H_R(k - lag) + u_R + the time to send it)
    H_P(k) = max(B_P(k) + W_P, B_Q(k) + F_Q + f_Q + F_P + G_P,
                 H_T(k) + G_P + max(0, g_P - g_T), B_P(k) + max_s(b_s + d_s (F_P + G_P - b_s + F_T + G_T)))

where Q hands it tensors in the round, R bytes, weights or what is older, and T gives gradients back. So programs of
which none gives back run beside one another, each as far ahead as nobody waits for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import product
from typing import NamedTuple, cast

from simulator.catalog import Loaded
from simulator.cost.collectives import collective_ns
from simulator.errors import insist
from simulator.graph import Collective, CollectiveKind
from simulator.hardware import Hardware
from simulator.workload import DecoderModel, Model, Workload
from simulator.workload.job import JobDocument


class Estimate(NamedTuple):
    """What a layout is expected to take and hold, and what it takes and holds at least.

    Attributes
    ----------
    step_ns, peak_bytes
        Estimated: a step, and the peak of the compute tier if nothing moves.
    is_roomy
        Whether there is room for that, or for what is left if all moves that may.
    least_step_ns, least_bytes
        Bounds that no row goes below.
    """

    step_ns: int
    peak_bytes: int
    is_roomy: bool
    least_step_ns: int
    least_bytes: int


class StageTimes(NamedTuple):
    """What the stages of a program take.

    Attributes
    ----------
    alone
        The estimate if it gets nothing from others.
    end_ns
        What follows the last backward of the first stage.
    forward_ns, backward_ns
        Time of a micro-batch through all stages.
    forwards_ns, backwards_ns
        Time from the first forward to the last one; and from the backward of the last micro-batch, if that is the first
        (GPipe), to the last one, else 0.
    work_ns
        Time of all micro-batches, to the end of the last backward.
    waves
        For each stage, all micro-batches by how many are under way at once from there on, and the time of one before.
    """

    alone: Estimate
    end_ns: int
    forward_ns: int
    backward_ns: int
    forwards_ns: int
    backwards_ns: int
    work_ns: int
    waves: tuple[tuple[float, int], ...]


def trained(loaded: Loaded) -> Workload:
    """Return the workload that trains a decoder.

    Raises
    ------
    ConfigError
        If it does not.
    """
    workload = loaded.workload
    odd = _untrained(workload)
    must, do = "layouts are searched for a decoder that trains", "name a workload with a model, and phase: train"
    insist(not odd, loaded.place("workload"), must, f"{workload.name} {odd}", do)
    return cast(Workload, workload)


def _untrained(work: Workload | JobDocument | None) -> str:
    """Return what keeps a workload from being searched; nothing if nothing does."""
    if work is None or work.decoder is None:
        return "is a delay" if work is None else "has no decoder"
    return "" if work.phase == "train" else f"has phase: {work.phase}"


def decoder_of(loaded: Loaded) -> DecoderModel:
    """Return the parts of the model that is trained.

    Raises
    ------
    ConfigError
        If the workload trains no model, or layers of one kind do not train alike.
    """
    workload, where = trained(loaded), loaded.place("workload")
    must, do = "layers of one kind train alike where layouts are searched", "drop frozen, or checkpoint.layers"
    is_alike = workload.frozen is None and (workload.checkpoint is None or workload.checkpoint.layers is None)
    insist(is_alike, where, must, "some that do not", do)
    return cast(Model, workload.decoder).decoder


def programs_of(loaded: Loaded) -> dict[str, Loaded]:
    """Return the scenario with each program of its job in place of the job, by name; itself if it has no job.

    Raises
    ------
    ConfigError
        If a program is no decoder that trains, or programs share ranks.
    """
    document = loaded.workload
    if not isinstance(document, JobDocument):
        return {"": replace(loaded, workload=trained(loaded))}
    must, do = "layouts are searched where each program has ranks of its own", "place programs apart"
    insist(not document.sharing, loaded.place("workload"), must, "programs that share some", do)
    works = {name: program.on(len(document.placed[name])) for name, program in document.programs.items()}
    odd = [f"{name} {why}" for name, work in works.items() if (why := _untrained(work))]
    must, do = "layouts are searched where all programs are decoders that train", "leave these programs out"
    insist(not odd, loaded.place("workload"), must, "; ".join(odd), do)
    return {name: replace(loaded, workload=cast(Workload, work)) for name, work in works.items()}


def round_ns(document: JobDocument, made: Mapping[str, StageTimes], machine: Hardware) -> int:
    """Return what the last round of a job takes, in which each program waits for others [ns]."""
    last, ready, end = ({name: [0] * document.steps for name in made} for _ in range(3))
    for k, _ in product(range(document.steps), made):  # as often as a wait may be for another wait of the round
        for name, of in made.items():
            starts, readies = [end[name][k - 1] if k else 0], list[int]()
            before_ns = (document.programs[name].runs - 1) * of.alone.step_ns
            for edge in document.edges:
                source, giver, lag = edge.from_, made[edge.from_], document.lag(edge)
                if edge.to != name or lag > k:
                    continue
                if edge.back:
                    both_ns = of.forward_ns + giver.forward_ns + giver.backward_ns + of.backward_ns
                    turned_ns = max(0, of.backwards_ns - giver.backwards_ns)
                    waves_ns = max(early_ns + int(waves * (both_ns - early_ns)) for waves, early_ns in of.waves)
                    readies += [ready[source][k] + turned_ns + of.backward_ns, last[name][k] + waves_ns]
                elif edge.tensors and not lag:
                    starts.append(last[source][k] + giver.forward_ns)
                    readies.append(starts[-1] + giver.forwards_ns + of.forward_ns + of.backward_ns)
                else:
                    of_source, of_name = document.placed[source], document.placed[name]
                    size = -(-(edge.bytes_ or 0) // min(len(of_source), len(of_name)))  # the fewer do one after another
                    sent = Collective(CollectiveKind.SEND, "edge", size)
                    sent_ns = collective_ns(sent, (of_source[0], of_name[0]), machine) * bool(size)
                    starts.append(end[source][k - lag] + sent_ns)
            last[name][k] = max(starts) + before_ns
            ready[name][k] = max(last[name][k] + of.work_ns, *readies, 0)
            end[name][k] = max(last[name][k] + of.alone.step_ns, ready[name][k] + of.end_ns)
    return max(ends[-1] - (ends[-2] if len(ends) > 1 else 0) for ends in end.values())
