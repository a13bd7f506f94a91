"""A machine as a software drives it: the figures of the best case, changed by what its profile says.

Nothing else knows of software: the machine that runs has fewer bytes per second, a host that pays more, and less room.
Each change keeps the origin that the software's document gives it. None makes a run faster than the best case: shares
are at most 1, and where both documents state a share or a time, the slower one holds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from fnmatch import fnmatchcase
from fractions import Fraction
from math import inf
from typing import Any, NamedTuple

from simulator.catalog.settings import FieldChange, apply
from simulator.errors import insist
from simulator.hardware import Hardware
from simulator.software import CopyMode, Software
from simulator.units import exact, nearest

Place = Callable[..., str]
"""Returns the place of a field of the software, by the keys that lead to it."""


class _Change(NamedTuple):
    """A field of the machine, its new value, and the field of the software that says so."""

    path: str
    value: Any
    said: tuple[str, ...]


def drive(machine: Hardware, software: Software, place: Place) -> Hardware:
    """Return the machine as the software drives it.

    Parameters
    ----------
    machine, software
        The documents.
    place
        Returns the place of a field of the software, for errors.

    Raises
    ------
    ConfigError
        If the software is for other machines, or names what this one does not have.
    """
    rule, do = "a machine is one that its software is for", f"name other software, or add {machine.name!r} to for"
    is_for = any(fnmatchcase(machine.name, pattern) for pattern in software.for_)
    insist(is_for, place("for"), rule, f"{machine.name!r}, and for: {', '.join(software.for_)}", do)
    why = f"as {software.name} drives it"
    changes = {
        change.path: FieldChange.stated(software, ".".join(change.said), change.value, place(*change.said), why)
        for change in _copies(machine, software, place)
    }
    return apply(machine, changes)


def _copies(machine: Hardware, software: Software, place: Place) -> Iterator[_Change]:
    """Yield the rates and latencies of wires; a staged link copies as the wires on its way do."""
    copies, wires = software.copies, {name: link for name, link in machine.links.items() if not link.via}
    for pattern in copies.links:
        rule = "what copies names is a link of the machine, and none that goes via others"
        is_there = any(fnmatchcase(name, pattern) for name in wires)
        insist(is_there, place("copies", "links", pattern), rule, repr(pattern), nearest(pattern, tuple(wires)))
    for name, link in wires.items():
        mode, said = copies.default, tuple[str, ...](("copies", "default"))
        for key, way, end in (("in", copies.into, link.target), ("out", copies.out, link.source)):
            if way is not None and end == machine.compute_tier:
                mode, said = way, ("copies", key)
        for pattern, named in copies.links.items():
            if fnmatchcase(name, pattern):
                mode, said = named, ("copies", "links", pattern)
        yield from _changed(f"links.{name}", link.bandwidth_bytes_per_s, link.latency_ns, mode, said)


def _changed(link: str, rate: int | float, latency_ns: int, mode: CopyMode, said: tuple[str, ...]) -> Iterator[_Change]:
    if mode.share < 1 and rate != inf:
        slower = max(1, int(rate * Fraction(str(mode.share))))
        yield _Change(f"{link}.bandwidth", exact(slower, "B/s"), (*said, "share"))
    if mode.latency_ns:
        yield _Change(f"{link}.latency", exact(latency_ns + mode.latency_ns, "ns"), (*said, "latency"))
