"""A machine as a software drives it: the figures of the best case, changed by what its profile says.

Nothing else knows of software: the machine that runs has fewer bytes per second, a host that pays more, and less room.
Each change keeps the origin that the software's document gives it. None makes a run faster than the best case: shares
are at most 1, and where both documents state a share or a time, the slower one holds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from fnmatch import fnmatchcase
from itertools import chain
from math import inf
from operator import attrgetter
from typing import Any

from simulator.catalog.settings import FieldChange, apply
from simulator.errors import insist
from simulator.graph import OP_CLASSES, lesser_shares
from simulator.hardware import Hardware, Rates
from simulator.software import BLOCKING, THROUGH_A_BUFFER, KernelShares, Software
from simulator.units import decimal, exact, nearest
from simulator.workload import Workload
from simulator.workload.job import JobDocument

Place = Callable[..., str]
"""Returns the place of a field of the software, by the keys that lead to it."""
Changes = Iterator[tuple[str, Any, str]]
"""Fields of the machine, each with its new value, and the field of the software that says so."""


def drive(machine: Hardware, software: Software, workload: Workload | JobDocument, place: Place) -> Hardware:
    """Return the machine as the software drives it.

    Parameters
    ----------
    machine, software, workload
        The documents. The workload tells which kind of run this is, and whether there are several ranks.
    place
        Returns the place of a field of the software, for errors.

    Raises
    ------
    ConfigError
        If the software is for other machines, or names what this one does not have.
    """
    named = {pattern for pattern in software.for_ if fnmatchcase(machine.name, pattern.removeprefix("!"))}
    is_for = bool(named) and not any(pattern.startswith("!") for pattern in named)
    rule, do = "a machine is one that its software is for", "name other software, or change for"
    insist(is_for, place("for"), rule, f"{machine.name!r}, and for: {', '.join(software.for_)}", do)
    wires = tuple(name for name, link in machine.links.items() if not link.via)
    for pattern in software.copies.links:
        rule = "copies.links names links of the machine that go via no other"
        is_there = any(fnmatchcase(name, pattern) for name in wires)
        insist(is_there, place("copies", "links", pattern), rule, repr(pattern), nearest(pattern, wires))
    parts = [*(_copies(machine, software, name) for name in wires), _kernels(machine, software, workload, place)]
    parts += [_host(machine, software, workload, place), _memory(machine, software, workload)]
    driven = _applied(machine, chain(*parts), software, place)
    return _applied(driven, _of_sockets(driven, software), software, place)


def _applied(machine: Hardware, stated: Changes, software: Software, place: Place) -> Hardware:
    changes, why = dict[str, FieldChange](), f"as {software.name} drives it"
    for path, value, source in stated:
        changes[path] = FieldChange.stated(software, source, value, place(*source.split(".")), why)
    return apply(machine, changes)


def unread(machine: Hardware, software: Software, workload: Workload | JobDocument) -> dict[str, str]:
    """Return which figures of a software no run of a workload reads on a machine: pattern of paths -> the reason."""
    idle = {"host.step": "only serving pays for iterations"}
    idle = idle if workload.requests is not None else dict.fromkeys(_SERVED, "hosim serve reads it")
    idle |= {} if workload.meets else {"memory.communication": "there is one rank"}
    is_read = machine.host_compute and machine.host_compute.sockets > 1
    idle |= {} if is_read else {"cores.sockets": "no host has several sockets of cores"}
    others = (f"kernels.{kind}.*" for kind in software.kernels.keys() - {*software.kinds(_phases(workload))})
    idle |= dict.fromkeys(others, "the run is of another kind")
    patterns = (pattern for kernels in (*software.kernels.values(), software.cores) for pattern in kernels.machines)
    away = [pattern for pattern in patterns if not fnmatchcase(machine.name, pattern)]
    return idle | {f"*.machines.{pattern}.*": "it is for other machines" for pattern in away}


_SERVED = ("host.iteration", "host.request", "host.ahead")


def _phases(workload: Workload | JobDocument) -> set[str]:
    """Return the phases of the programs; of a graph ``default``."""
    programs = workload.programs.values() if isinstance(workload, JobDocument) else None
    works = [workload] if programs is None else [program.work for program in programs]
    return {"default" if work.graph is not None else work.phase for work in works if work is not None}


def _copies(machine: Hardware, software: Software, name: str) -> Changes:
    """Yield how a wire copies; a staged link copies as the wires on its way do."""
    link, tier = machine.links[name], machine.compute_tier
    source, mode = software.copies.of_link(name, ends_here=link.target == tier, begins_here=link.source == tier)
    rate, share = link.bandwidth_bytes_per_s, decimal(mode.share)
    slower = min(rate if rate == inf else max(1, int(rate * share)), mode.rate_bytes_per_s)
    if slower < rate:
        key = "rate" if slower == mode.rate_bytes_per_s else "share"
        yield f"links.{name}.bandwidth", exact(slower, "B/s"), f"{source}.{key}"
    if mode.latency_ns:
        yield f"links.{name}.latency", exact(link.latency_ns + mode.latency_ns, "ns"), f"{source}.latency"
    if mode.mode in BLOCKING and not link.blocking:
        yield f"links.{name}.blocking", True, f"{source}.mode"
    times = mode.host_passes or (3 if mode.mode in THROUGH_A_BUFFER else 1)
    if more := {end: times for end in sorted({link.source, link.target} - {tier}) if times > link.passes_at(end)}:
        yield f"links.{name}.passes", {**link.passes, **more}, f"{source}.host_passes"


def _host(machine: Hardware, software: Software, workload: Workload | JobDocument, place: Place) -> Changes:
    """Yield what the host pays: only serving pays for iterations, all else for steps."""
    is_served, times = workload.requests is not None, software.host
    for path, key, is_paid in (
        ("fixed.compute", "op", True), ("reactive.compute", "op", True), ("fixed.copy", "copy", True),
        ("reactive.copy", "copy", True), ("each_layer", "layer", True), ("each_step", "step", not is_served),
        ("serving.iteration", "iteration", is_served), ("serving.request", "request", is_served),
    ):  # fmt: skip
        if is_paid and (ns := getattr(times, f"{key}_ns")) > attrgetter(f"{path}_ns")(machine.host):
            yield f"host.{path}", exact(ns, "ns"), f"host.{key}"
    _check_classes(times.class_ns, place("host", "class"), *machine.compute.achieved_fraction.keys() - {"default"})
    stated = machine.host.each_class_ns
    if longer := {name: exact(ns, "ns") for name, ns in times.class_ns.items() if ns > stated.get(name, 0)}:
        yield "host.each_class", {name: exact(ns, "ns") for name, ns in stated.items()} | longer, "host.class"
    if is_served and times.ahead:
        yield "host.serving.ahead", True, "host.ahead"


def _kernels(machine: Hardware, software: Software, workload: Workload | JobDocument, place: Place) -> Changes:
    """Yield shares and times of kernels: on the accelerator those of the kind of the run, and those on cores."""
    for device, ((key, reads), (other, adds)) in software.reached(_phases(workload)).items():
        if (rates := getattr(machine, device)) is None:
            continue
        for field, kernels, source, most in (
            ("achieved_fraction", reads, f"{key}.arithmetic", (1.0, 1.0)),
            ("class_bandwidth", adds, f"{other}.class_bandwidth", (rates.achieved_bandwidth_fraction, adds.bandwidth)),
        ):
            shares = _class_shares(machine, rates, kernels, source, place)
            if less := lesser_shares(getattr(rates, field), shares, most):
                yield f"{device}.{field}", less, source
        if adds.bandwidth < rates.achieved_bandwidth_fraction:
            yield f"{device}.achieved_bandwidth", adds.bandwidth, f"{other}.bandwidth"
        for field, kernels, source in (("fill", reads, key), ("launch", adds, other)):
            if (ns := getattr(kernels, f"{field}_ns")) > getattr(rates, f"{field}_ns"):
                yield f"{device}.{field}", exact(ns, "ns"), f"{source}.{field}"


def _of_sockets(machine: Hardware, software: Software) -> Changes:
    """Yield what cores of several sockets reach together, of all that each of them reaches."""
    cores = machine.host_compute
    if cores and (part := software.cores.part(cores.sockets)) < 1:
        peaks = {dtype: exact(max(1, int(rate * part)), "FLOP/s") for dtype, rate in cores.peak_flops.items()}
        yield "host_compute.peak", peaks, "cores.sockets"
        shares = {"default": cores.achieved_bandwidth_fraction, **cores.class_bandwidth}
        shares = {name: float(decimal(share) * part) for name, share in shares.items()}
        yield "host_compute.achieved_bandwidth", shares.pop("default"), "cores.sockets"
        yield from [("host_compute.class_bandwidth", shares, "cores.sockets")] if shares else ()


def _class_shares(
    machine: Hardware, rates: Rates, kernels: KernelShares, source: str, place: Place
) -> dict[str, float]:
    """Return the shares that a software states of classes of ops on a device of a machine."""
    *keys, field = source.split(".")
    shares, others = dict[str, float](), {*rates.achieved_fraction, "default"}
    others -= {"default"} if field == "class_bandwidth" else set()
    for pattern, of_pattern in [("*", kernels), *kernels.machines.items()]:
        stated, more = getattr(of_pattern, field), () if of_pattern is kernels else ("machines", pattern)
        _check_classes(stated, place(*keys, *more, field), *others)
        shares |= stated if fnmatchcase(machine.name, pattern) else {}
    return shares


def _check_classes(names: Iterable[str], where: str, *others: str) -> None:
    classes = (*OP_CLASSES, *sorted({*others} - {*OP_CLASSES}))
    odd, do = next((name for name in names if name not in classes), ""), "a graph may have classes of its own"
    insist(not odd, where, "figures are of classes of ops", repr(odd), f"{nearest(odd, classes)}; {do}")


def refuse_classes(machine: Hardware, place: Place) -> None:
    """Refuse figures of a machine that are of no class that ops of a model have."""
    _check_classes(machine.compute.achieved_fraction, place("compute", "achieved_fraction"), "default")
    _check_classes(machine.compute.class_bandwidth, place("compute", "class_bandwidth"))
    _check_classes(machine.host.each_class_ns, place("host", "each_class"))


def _memory(machine: Hardware, software: Software, workload: Workload | JobDocument) -> Changes:
    """Yield what the compute tier holds beside tensors, and how much of it the framework takes."""
    name, memory = machine.compute_tier, software.memory
    tier = machine.tiers[name]
    kept = memory.context_bytes + memory.workspace_bytes + workload.meets * memory.communication_bytes
    if memory.taken_fraction < tier.taken_fraction:
        yield f"tiers.{name}.taken", memory.taken_fraction, "memory.taken"
    if kept > tier.reserved_bytes:
        yield f"tiers.{name}.reserved", exact(kept, "B"), "memory"
    if memory.lost_fraction > tier.lost_fraction:
        yield f"tiers.{name}.lost", memory.lost_fraction, "memory.lost"
