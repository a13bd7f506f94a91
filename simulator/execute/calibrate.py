"""Measures this machine as a step uses it, and describes it in a hardware profile whose sources are the measurements.

Everything is timed in several rounds, which are spread over the whole call. So the spread that a figure states is that
which a second call meets; and where the medians of its rounds differ, the machine is noisy, and the profile says so.
"""

from __future__ import annotations

import ctypes
import os
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass, field
from datetime import date
from functools import partial
from importlib import import_module
from itertools import chain, product
from mmap import mmap
from operator import iadd, setitem
from pathlib import Path
from statistics import median
from time import perf_counter, process_time
from typing import Any, cast

import numpy as np

from simulator import catalog
from simulator.errors import insist
from simulator.execute.tiers import FileTier, free_memory
from simulator.hardware import Hardware
from simulator.importers.imported import named
from simulator.outputs import check_file, written
from simulator.run.sweep import Progress, silent
from simulator.units import counted, exact, human

_NOISY = 0.1
"""On a quiet machine, the medians of a figure's rounds differ less, and other programs take less of the cores."""
_MIB = 1 << 20
_SIZES, _SHAPES = (4096, 65536, _MIB, 16 * _MIB, 128 * _MIB), (256, 512, 1024, 2048)
_LONGEST_S, _BOTH_S = 0.25, 0.2  # most time of a matmul; time in which copies go both ways
_BEHIND = 64  # PyTorch's storages begin so many bytes behind the start of a page
_DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16", "fp64": "float64", "tf32": ""}


@dataclass(frozen=True)
class Probe:
    """What is timed, and what that gave.

    Attributes
    ----------
    about
        What a reader must know to repeat it.
    amount, unit
        What it moves or computes, and the unit of its rate; or 1, and ``ns``.
    once
        Does it once, and returns how long that took [s].
    """

    about: str
    amount: int
    unit: str
    once: Callable[[], float]
    rounds: list[list[float]] = field(default_factory=list)

    @property
    def median(self) -> float:
        """The median over all rounds, to the four digits that a profile has."""
        return float(f"{median(chain(*self.rounds)):.4g}")

    @property
    def citation(self) -> dict[str, str]:
        """Itself as the source of a figure, which is noisy if the medians of its rounds differ."""
        values, medians = [*chain(*self.rounds)], [*map(median, self.rounds)]
        factor = max(medians) / min(medians)
        middle, least, most = (human(value, self.unit) for value in (self.median, min(values), max(values)))
        value = f"median {middle}, least {least}, most {most}, of {len(values):,}"
        noise = {"note": f"noisy: its rounds differ by a factor of {factor:.3g}"} if factor > 1 + _NOISY else {}
        return {"from": self.about, "value": value, "basis": "measured", "confidence": "A"} | noise


Probes = dict[str, list[Probe]]
"""Path of what they are the source of -> probes."""


def calibrate(
    out: str | Path, *, folder: str | Path = ".", quick: bool = False, progress: Progress | None = None
) -> Hardware:
    """Measure this machine in at most two minutes, and write its hardware profile; a file that is there is replaced.

    The compute tier is the memory of the GPU, or else RAM; below it are RAM and a file.

    Parameters
    ----------
    out
        The profile to write, such as this.yaml.
    folder
        Where the file lies that copies go to.
    quick
        Whether to take ten seconds at most: fewer sizes, shapes and repetitions.
    progress
        Called with what is measured, how much is done, and of how much.

    Returns
    -------
    Hardware
        The profile.

    Raises
    ------
    ConfigError
        If the profile, or a file in the folder, cannot be written, or there is too little memory.
    """
    begun, others_s = perf_counter(), _others_s()
    path, free, library = Path(out), free_memory(), cast(Any, np)
    insist(path.suffix == ".yaml", f"-o {out}", "a profile is a .yaml", repr(path.name), "write for example this.yaml")
    check_file("-o", path)
    with suppress(ImportError):
        library = import_module("torch")
    on_gpu = hasattr(library, "cuda") and library.cuda.is_available()
    sizes = [size for size in _SIZES[: 4 if quick else None] if size <= free / 16]
    insist(len(sizes) > 1, "memory", f"{_MIB:,} B of it are free", f"{free:,} B", "end other programs")
    with closing(FileTier(folder)) as tier:
        probes = _of_kernels(library, "cuda" if on_gpu else "cpu", _SHAPES[: 2 if quick else None], sizes)
        probes |= _of_file(tier, sizes, ("links.write", "links.read") if on_gpu else ("links.d2h", "links.h2d"))
        probes |= _of_gpu(library, sizes) if on_gpu else {}
        _measure(probes, *((2, 1.5) if quick else (3, 60.0)), progress or silent)
    capacities = {"hbm": library.cuda.mem_get_info()[0]} if on_gpu else {}
    capacities |= {"ram": free, "disk": shutil.disk_usage(folder).free}
    noisy = ["note" in probe.citation for every in probes.values() for probe in every]
    cores = os.cpu_count() or 1
    share = (_others_s() - others_s) / (perf_counter() - begun) / cores
    how = f"{date.today()} by hosim calibrate{' --quick' * quick}, {counted(cores, 'core')}"
    cache = f"{'past' if tier.is_direct else 'through'} the page cache"
    title = f"Measured {how}, {library.__name__} {library.__version__}, a file {cache}"
    if any(noisy) or share > _NOISY:
        title += f"; noisy: {sum(noisy)} of {len(noisy)} figures, and others took {share:.0%} of the cores"
    hardware = _profile({"name": named(path.stem), "title": title}, probes, capacities)
    with written(path, option="-o") as (part,):
        part.write_text(catalog.dump(hardware), encoding="utf-8")
    return hardware


def _others_s() -> float:
    """Return the time that other programs have had the cores so far, all cores together [s]."""
    ticks = [int(count) for count in Path("/proc/stat").read_text().split()[1:9]]
    return (sum(ticks) - sum(ticks[3:5])) / os.sysconf("SC_CLK_TCK") - process_time()  # idle, or waiting for a disk


def _measure(probes: Probes, rounds: int, time_s: float, progress: Progress) -> None:
    """Time all probes round after round; each gets the same time."""
    every = [(path, probe) for path, group in probes.items() for probe in group] * rounds
    for done, (path, probe) in enumerate(every):
        progress(f"measuring {path}", done, len(every))
        times_s = _repeated(probe.once, time_s / len(every))
        probe.rounds.append([time * 1e9 if probe.unit == "ns" else probe.amount / time for time in times_s])


def _repeated(once: Callable[[], float], time_s: float) -> list[float]:
    """Do something once, and again until so much time has passed; return how long each took [s]."""
    end = perf_counter() + time_s
    times_s = [once()]
    while perf_counter() < end:
        times_s.append(once())
    return times_s


def _timed(function: Any, *arguments: Any, times: int = 1, settle: Any = bool, **more: Any) -> float:
    settle()
    begun = perf_counter()
    for _ in range(times):
        function(*arguments, **more)
    settle()
    return (perf_counter() - begun) / times


def _address(memory: mmap) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(memory)) + _BEHIND


def _copies(sizes: Iterable[int], about: str, copy: Callable[[int], float]) -> list[Probe]:
    return [Probe(f"{exact(size, 'B')} {about}", size, "B/s", partial(copy, size)) for size in sizes]


def _of_file(tier: FileTier, sizes: Sequence[int], paths: tuple[str, str]) -> Probes:
    """Probes of copies to and from a file, as in a step: what is read comes into new memory."""
    source, large = mmap(-1, sizes[-1] + _BEHIND), sizes[:4][-1]
    offsets, beside = {size: tier.allot(size) for size in sizes}, tier.allot(large)

    def write(size: int, offset: int | None = None) -> float:
        return _timed(tier.write, offsets[size] if offset is None else offset, _address(source), size)

    def read(size: int) -> float:
        target = mmap(-1, size + _BEHIND)
        return _timed(tier.read, offsets[size], _address(target), size)

    def both() -> float:
        """Return the time in which a copy goes each way while others do."""
        begun, copies = perf_counter(), (partial(write, large, beside), partial(read, large))
        with ThreadPoolExecutor(2) as pool:
            count = sum(map(len, pool.map(_repeated, copies, (_BOTH_S, _BOTH_S))))
        return (perf_counter() - begun) * 2 / count

    ctypes.memset(_address(source), 1, sizes[-1])
    for size in sizes:
        write(size)
    return {
        paths[0]: _copies(sizes, "to a file", write),
        paths[1]: _copies(sizes, "from a file into new memory", read),
        "buses.file.bandwidth": [Probe(f"{exact(large, 'B')} each way at once", 2 * large, "B/s", both)],
        "host.reactive.copy": [Probe("handing a copy to a thread that waits for it", 1, "ns", _hand_over)],
    }


def _hand_over() -> float:
    with ThreadPoolExecutor(1) as pool:
        pool.submit(bool).result()  # from now on it waits
        return _timed(pool.submit, bool)


def _of_kernels(library: Any, device: str, shapes: Sequence[int], sizes: Sequence[int]) -> Probes:
    """Probes of matmuls by type and shape, of a copy in memory by size, and of an op that computes next to nothing."""
    on, settle = ({}, bool) if library is np else ({"device": device}, getattr(library, device).synchronize)
    random, probes, timed = np.random.default_rng(0), Probes(), partial(_timed, settle=settle)

    def tensor(*shape: int, dtype: str = "float32") -> Any:
        return library.asarray(random.random(shape, np.float32), dtype=getattr(library, dtype), **on)

    for name, dtype in _DTYPES.items():
        for shape in shapes if hasattr(library, dtype) else ():
            factor = tensor(shape, shape, dtype=dtype)
            once = partial(timed, library.matmul, factor, factor, out=library.empty_like(factor))
            probe = Probe(f"{library.__name__}.matmul of {shape} x {shape}", 2 * shape**3, "FLOP/s", once)
            probes.setdefault(f"compute.peak.{name}", []).append(probe)
            if min(once(), once()) * 8 > _LONGEST_S:  # the first one also prepares what later ones use
                break
    for size in sizes[-2:]:
        about, once = f"{exact(size, 'B')} copied, read and written", partial(timed, setitem, tensor(size // 4))
        probe = Probe(about, 2 * size, "B/s", partial(once, slice(None), tensor(size // 4)))
        probes.setdefault(f"tiers.{'hbm' if device == 'cuda' else 'ram'}.bandwidth", []).append(probe)
    adding = partial(timed, iadd, tensor(1), 1, times=100)
    return probes | {"compute.launch": [Probe("one of 100 additions to a number", 1, "ns", adding)]}


def _of_gpu(torch: Any, sizes: Sequence[int]) -> Probes:
    """Probes of copies between a GPU and pinned memory; besides, pageable memory, and a GPU that computes."""
    ways, factor = [torch.cuda.Stream(), torch.cuda.Stream()], torch.rand(4096, 4096, device="cuda")
    below, other, pageable = (torch.ones(sizes[-1], dtype=torch.uint8, pin_memory=pin) for pin in (True, True, False))
    above, back = torch.ones_like(below, device="cuda"), torch.ones_like(below, device="cuda")

    def issue(size: int, *copies: tuple[Any, Any]) -> None:
        for stream, (target, source) in zip(ways, copies, strict=False):
            with torch.cuda.stream(stream):
                target[:size].copy_(source[:size], non_blocking=True)

    def copied(copies: Sequence[tuple[Any, Any]], kernels: int, size: int) -> float:
        torch.cuda.synchronize()
        for _ in range(kernels):
            torch.mm(factor, factor)
        return _timed(issue, size, *copies) + sum(_timed(stream.synchronize) for stream in ways)

    both, issuing = [(below, above), (back, other)], partial(_timed, issue, sizes[0], (above, below))
    kinds = (("pinned", below, 0), ("pageable", pageable, 0), ("pinned, beside 8 matmuls", below, 8))
    links = Probes()
    for (way, order), (kind, place, kernels) in product((("d2h", 1), ("h2d", -1)), kinds):
        copy = partial(copied, [(place, above)[::order]], kernels)
        links.setdefault(f"links.{way}", []).extend(_copies(sizes, kind, copy))
    return links | {
        "buses.pcie.bandwidth": [Probe("each way at once", 2 * sizes[-1], "B/s", partial(copied, both, 0, sizes[-1]))],
        "host.reactive.copy": [Probe("issuing a copy of pinned memory", 1, "ns", issuing)],
    }


def _profile(about: Mapping[str, str], probes: Probes, capacities: Mapping[str, int]) -> Hardware:
    """Make the profile of what was measured; `capacities` are those of its tiers, the compute tier first [B]."""
    (top, below), figures = [*capacities][:2], {path: max(p.median for p in every) for path, every in probes.items()}
    ends = {"d2h": (top, below), "h2d": (below, top), "write": ("ram", "disk"), "read": ("disk", "ram")}
    links = {name: dict(zip(("source", "target"), pair, strict=True)) | _link(probes[f"links.{name}"])
             for name, pair in ends.items() if f"links.{name}" in probes}  # fmt: skip
    buses = {"file": [*links][-2:]} | ({"pcie": ["d2h", "h2d"]} if top == "hbm" else {})
    # A bus carries what one of its links carries alone, even if both together moved less.
    carried = {bus: max(figures[f"buses.{bus}.bandwidth"], *(figures[f"links.{link}"] for link in joined))
               for bus, joined in buses.items()}  # fmt: skip
    peaks = {dtype: figures.get(f"compute.peak.{dtype}", figures["compute.peak.fp32"]) for dtype in _DTYPES}
    missing = [path for path in map("compute.peak.{}".format, _DTYPES) if path not in probes]
    free = {"from": "what was free during calibration", "basis": "measured", "confidence": "A"}
    tiers = {tier: {"scope": "node", "capacity": exact(capacity, "B")} for tier, capacity in capacities.items()}
    bandwidth = probes[f"tiers.{top}.bandwidth"][-1].median  # of the largest size, which no cache holds
    tiers[top] |= {"scope": "device", "bandwidth": _rounded(bandwidth, "B/s")}
    return Hardware.model_validate({
        **about,
        "compute_tier": top,
        "compute": {"peak": {dtype: _rounded(rate, "FLOP/s") for dtype, rate in peaks.items()},
                    "launch": _rounded(figures["compute.launch"], "ns")},
        "host": {"reactive": {"copy": _rounded(figures["host.reactive.copy"], "ns")}},
        "tiers": tiers,
        "links": links,
        "buses": {bus: {"links": buses[bus], "bandwidth": _rounded(rate, "B/s")} for bus, rate in carried.items()},
        "sources": {path: [probe.citation for probe in every] for path, every in probes.items()}
                   | {f"tiers.{tier}.capacity": [free] for tier in tiers},
        "assumed": dict.fromkeys(missing, "as fp32: this machine does not compute in it"),
    })  # fmt: skip


def _rounded(value: float, unit: str) -> str:
    return exact(int(float(f"{value:.4g}")), unit)


def _link(probes: Sequence[Probe]) -> dict[str, Any]:
    """Return the figures of a link on which a copy of each size takes as long as in the first probe of that size."""
    times_s = {probe.amount: probe.amount / probe.median for probe in reversed(probes)}
    least, fastest = min(times_s), max(size / time_s for size, time_s in times_s.items())
    # Of each time some is left for bytes.
    latency_s = min(times_s[least] - least / fastest, 0.9 * min(times_s.values()))
    rates = {size: size / (times_s[size] - latency_s) for size in sorted(times_s)}
    best = max(rates.values())
    points = [{"size": exact(size, "B"), "fraction": round(rate / best, 4)} for size, rate in rates.items()]
    return {"bandwidth": _rounded(best, "B/s"), "latency": _rounded(latency_s * 1e9, "ns"), "efficiency": points}
