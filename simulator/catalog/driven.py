"""A machine as a software drives it: the figures of the best case, changed by what its profile says.

Nothing else knows of software: the machine that runs has fewer bytes per second, a host that pays more, and less room.
Each change keeps the origin that the software's document gives it. None makes a run faster than the best case: shares
are at most 1, and where both documents state a share or a time, the slower one holds.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from fnmatch import fnmatchcase
from fractions import Fraction
from itertools import chain
from math import inf
from operator import attrgetter
from typing import Any

from simulator.catalog.settings import FieldChange, apply
from simulator.errors import insist
from simulator.graph import OP_CLASSES
from simulator.hardware import Hardware
from simulator.software import CopyMode, Kernels, Software
from simulator.units import exact, nearest
from simulator.workload import Workload

Place = Callable[..., str]
"""Returns the place of a field of the software, by the keys that lead to it."""
Changes = Iterator[tuple[str, Any, str]]
"""Fields of the machine, each with its new value, and the field of the software that says so."""


def drive(machine: Hardware, software: Software, workload: Workload, place: Place) -> Hardware:
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
    rule, do = "a machine is one that its software is for", "name other software, or change for"
    named = {pattern for pattern in software.for_ if fnmatchcase(machine.name, pattern.removeprefix("!"))}
    is_for = bool(named) and not any(pattern.startswith("!") for pattern in named)
    insist(is_for, place("for"), rule, f"{machine.name!r}, and for: {', '.join(software.for_)}", do)
    for pattern in software.copies.links:
        rule, wires = "what copies.links names is a link of the machine that goes via no other", _wires(machine)
        is_there = any(fnmatchcase(name, pattern) for name in wires)
        insist(is_there, place("copies", "links", pattern), rule, repr(pattern), nearest(pattern, tuple(wires)))
    parts = (_copies(machine, software), _host(machine, software, workload), _kernels(machine, software, workload))
    why, changes = f"as {software.name} drives it", dict[str, FieldChange]()
    for path, value, source in chain(*parts, _memory(machine, software, workload)):
        changes[path] = FieldChange.stated(software, source, value, place(*source.split(".")), why)
    return apply(_listing(machine, changes), changes)


def _listing(machine: Hardware, paths: Collection[str]) -> Hardware:
    """Return the machine with a fraction of its own for each op class that changes."""
    fractions, classes = machine.compute.achieved_fraction, {path.rpartition("fraction.")[2] for path in paths}
    more = {name: fractions.get("default", 1.0) for name in sorted(classes.intersection(OP_CLASSES) - fractions.keys())}
    compute = machine.compute.model_copy(update={"achieved_fraction": fractions | more})
    return machine.model_copy(update={"compute": compute}) if more else machine


def _wires(machine: Hardware) -> list[str]:
    """List the links that go via no other; a staged link copies as those on its way do."""
    return [name for name, link in machine.links.items() if not link.via]


def _copies(machine: Hardware, software: Software) -> Changes:
    for name in _wires(machine):
        link, (source, mode) = machine.links[name], _mode(machine, software, name)
        rate, share = link.bandwidth_bytes_per_s, Fraction(str(mode.share))
        slower = min(rate if rate == inf else max(1, int(rate * share)), mode.rate_bytes_per_s)
        if slower < rate:
            key = "rate" if slower == mode.rate_bytes_per_s else "share"
            yield f"links.{name}.bandwidth", exact(slower, "B/s"), f"{source}.{key}"
        if mode.latency_ns:
            yield f"links.{name}.latency", exact(link.latency_ns + mode.latency_ns, "ns"), f"{source}.latency"
        if mode.is_blocking and not link.blocking:
            yield f"links.{name}.blocking", True, f"{source}.mode"
        lower = {link.source, link.target} - {machine.compute_tier}
        if more := {tier: mode.passes for tier in sorted(lower) if mode.passes > link.passes_at(tier)}:
            yield f"links.{name}.passes", {**link.passes, **more}, f"{source}.host_passes"


def _mode(machine: Hardware, software: Software, name: str) -> tuple[str, CopyMode]:
    """Return how a link copies, and where the software says so."""
    copies, link = software.copies, machine.links[name]
    ways = ((copies.into, link.target, "in"), (copies.out, link.source, "out"))
    found = [(f"copies.{key}", mode) for mode, end, key in ways if mode is not None and end == machine.compute_tier]
    found += [(f"copies.links.{key}", mode) for key, mode in copies.links.items() if fnmatchcase(name, key)]
    return [("copies.default", copies.default), *found][-1]


_HOST = {
    "fixed.compute": "op", "reactive.compute": "op", "fixed.copy": "copy", "reactive.copy": "copy",
    "each_layer": "layer", "each_step": "step", "serving.iteration": "iteration", "serving.request": "request",
}  # fmt: skip
"""Cost of the machine's host -> that of the software: those under any plan."""


def _host(machine: Hardware, software: Software, workload: Workload) -> Changes:
    if software.host.ahead and workload.requests is not None:
        yield "host.serving.ahead", True, "host.ahead"
    unpaid = "each_step" if workload.requests is not None else "serving."
    for path, key in _HOST.items():
        if path.startswith(unpaid):
            continue
        if (ns := getattr(software.host, f"{key}_ns")) > attrgetter(f"{path}_ns")(machine.host):
            yield f"host.{path}", exact(ns, "ns"), f"host.{key}"


def _kernels(machine: Hardware, software: Software, workload: Workload) -> Changes:
    """Yield shares and times of kernels: those of the kind of the run."""
    is_served, compute = workload.phase in ("requests", "serve"), machine.compute
    key, kernels = _of_kind(software, "prefill" if is_served else workload.phase, workload)
    stated, said = compute.achieved_fraction, kernels.arithmetic
    for name in sorted({*OP_CLASSES, *stated} - {"default"} if said else ()):
        share = said.get(name, said.get("default", 1.0))
        if share < stated.get(name, stated.get("default", 1.0)):
            source = name if name in said else "default"
            yield f"compute.achieved_fraction.{name}", share, f"kernels.{key}.arithmetic.{source}"
    if kernels.fill_ns > compute.fill_ns:
        yield "compute.fill", exact(kernels.fill_ns, "ns"), f"kernels.{key}.fill"
    key, kernels = _of_kind(software, "decode" if is_served else workload.phase, workload)
    if kernels.bandwidth is not None and kernels.bandwidth < compute.achieved_bandwidth_fraction:
        yield "compute.achieved_bandwidth", kernels.bandwidth, f"kernels.{key}.bandwidth"
    if kernels.launch_ns > compute.launch_ns:
        yield "compute.launch", exact(kernels.launch_ns, "ns"), f"kernels.{key}.launch"


def _of_kind(software: Software, kind: str, workload: Workload) -> tuple[str, Kernels]:
    """Return what kernels reach in a kind of run, and its key."""
    named = {str(key): kernels for key, kernels in software.kernels.items()}
    key = kind if kind in named and workload.graph is None else "default"
    return key, named.get(key, Kernels())


def _memory(machine: Hardware, software: Software, workload: Workload) -> Changes:
    """Yield what the compute tier holds beside tensors, and how much of it the framework takes."""
    name, memory = machine.compute_tier, software.memory
    tier, several = machine.tiers[name], workload.parallel.ranks == "all" or workload.phase == "serve"
    kept = memory.context_bytes + memory.workspace_bytes + several * memory.communication_bytes
    if memory.taken_fraction < tier.taken_fraction:
        yield f"tiers.{name}.taken", memory.taken_fraction, "memory.taken"
    if kept > tier.reserved_bytes:
        yield f"tiers.{name}.reserved", exact(kept, "B"), "memory"
    if memory.lost_fraction > tier.lost_fraction:
        yield f"tiers.{name}.lost", memory.lost_fraction, "memory.lost"
