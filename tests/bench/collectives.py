"""Closed forms of collectives beside published measurements.

    python tests/bench/collectives.py

Machines are the shipped profiles as they are; nothing is fitted here. A row marked * is the measurement that a figure
of its profile was taken from (its achieved share of bandwidth, or its latency), so that its error says nothing.
Measured times are those of `nccl-tests` (out of place) and of HCCL kernels. ``bus`` is the bus bandwidth of
nccl-tests, doc/PERFORMANCE.md; sizes there are of the whole buffer.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import dataclass

from simulator import catalog
from simulator.cost.collectives import collective_ns
from simulator.graph import Collective, CollectiveKind
from simulator.hardware import Hardware

KB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30


@dataclass(frozen=True)
class Row:
    """One measurement: a collective of so many bytes among the first ranks of a machine."""

    setting: str
    machine: str
    kind: str
    members: int
    size_bytes: int
    printed_us: float
    taken: bool = False

    def obtained_us(self) -> float:
        """What the closed form says."""
        what = Collective(CollectiveKind(self.kind), self.setting, self.size_bytes)
        return collective_ns(what, range(self.members), machine(self.machine)) / 1000


def in_pipeline(chunk_bytes: int | None) -> list[float]:
    """Errors of the sums across servers, if levels pass on chunks of this size; None: they run one after another."""
    hardware = machine("dgx_h100")
    fabric = hardware.fabrics["infiniband"].model_copy(update={"chunk_bytes": chunk_bytes})
    changed = hardware.model_copy(update={"fabrics": {**hardware.fabrics, "infiniband": fabric}})
    found = []
    for row in rows_of("16 H100, InfiniBand, in-switch reduction"):
        what = Collective(CollectiveKind(row.kind), row.setting, row.size_bytes)
        found.append(collective_ns(what, range(row.members), changed) / 1000 / row.printed_us - 1)
    return found


def machine(name: str) -> Hardware:
    """A shipped profile; ``dies`` is a whole CloudMatrix384 die by die, for groups of more than one node."""
    if name != "dies":
        return catalog.read_hardware(name)
    node, whole = catalog.read_hardware("cloudmatrix384_node"), catalog.read_hardware("cloudmatrix384")
    wide = {"scope": "supernode", "latency_ns": whole.fabrics["ub"].latency_ns}
    topology = node.topology.model_copy(update={"nodes": whole.topology.nodes})
    return node.model_copy(update={"topology": topology, "fabrics": {"ub": node.fabrics["ub"].model_copy(update=wide)}})


SOURCES = {
    "8 A100, NVLink": "nccl-tests on 8x A100-SXM4-80GB, one process each (public note, file id 33201577724)",
    "8 H100, NVLink, in-switch reduction": "NVIDIA's NCCL recipe for DGX H100, sample output (file id 54019438871)",
    "8 H100, NVLink, ring": "NVIDIA/nccl-tests issue 309, NVLS disabled: 368.76 GB/s of bus bandwidth",
    "16 H100, InfiniBand, in-switch reduction": "NVIDIA/nccl-tests issue 309, two servers, NVLSTree",
    "4 GB200, NVLink, ring": "Azure/AI-benchmarking-guide, ND GB200 v6: bus bandwidth by size",
    "8 dies, HCCL": "Horacehxw/msModeling, comm_alignment_report: kernels on an Atlas 800 A3, CANN 8.5",
    "16 dies, HCCL": "Horacehxw/msModeling, comm_alignment_report: kernels on an Atlas 800 A3, CANN 8.5",
    "MoE dispatch, combine": "reading notes on arXiv 2506.12708: time, and bandwidth times time as bytes",
}


def nvidia() -> Iterator[Row]:
    """Rows of nccl-tests, all_reduce."""
    a100 = ((8, 20.26), (64 * KB, 31.82), (MIB, 37.89), (16 * MIB, 213.3), (64 * MIB, 615.7), (GIB, 8244.5))
    for size, us in a100:
        yield Row("8 A100, NVLink", "dgx_a100", "all_reduce", 8, size, us)
    yield Row("8 A100, NVLink", "dgx_a100", "all_reduce", 8, 4 * GIB, 32285, taken=True)
    h100 = ((8, 13.67), (MIB, 27.37), (16 * MIB, 123.8), (64 * MIB, 324.7), (GIB, 4029.4), (16 * GIB, 62648))
    for size, us in h100:
        yield Row("8 H100, NVLink, in-switch reduction", "dgx_h100", "all_reduce", 8, size, us)
    yield Row("8 H100, NVLink, ring", "dgx_h100", "all_reduce", 8, 16 * GIB, bus_us(8, 16 * GIB, 368.76))
    two = ((64, 25.29), (MIB, 71.93), (16 * MIB, 185.4), (64 * MIB, 466.1), (GIB, 4484.9), (16 * GIB, 68652))
    for size, us in two:
        yield Row("16 H100, InfiniBand, in-switch reduction", "dgx_h100", "all_reduce", 16, size, us)
    gb200 = ((KB, 0.10), (MIB, 80.48), (16 * MIB, 331.09), (64 * MIB, 550.73), (GIB, 646.87), (8 * GIB, 679.61))
    for size, bus in gb200:
        us = bus_us(4, size, bus)
        yield Row("4 GB200, NVLink, ring", "gb200_nvl72", "all_reduce", 4, size, us, taken=size == 8 * GIB)


def bus_us(members: int, size_bytes: int, bus: float) -> float:
    """Time of an all_reduce from its bus bandwidth [GB/s], in us."""
    return 2 * (members - 1) / members * size_bytes / bus / 1000


def ascend() -> Iterator[Row]:
    """Rows of HCCL and of the CloudMatrix paper; HCCL sizes are what each member puts in or takes out."""
    eight, sixteen = "8 dies, HCCL", "16 dies, HCCL"
    yield Row(eight, "cloudmatrix384_node", "all_gather", 8, 8 * KB, 5.4, taken=True)
    yield Row(eight, "cloudmatrix384_node", "all_gather", 8, 8 * 14 * KB, 5.6)
    yield Row(eight, "cloudmatrix384_node", "reduce_scatter", 8, 8 * 14 * KB, 6.1)
    yield Row(eight, "cloudmatrix384_node", "all_gather", 8, 28 * MIB, 166.9)
    yield Row(eight, "cloudmatrix384_node", "reduce_scatter", 8, 28 * MIB, 202.1)
    yield Row(sixteen, "cloudmatrix384_node", "all_reduce", 16, 160 * KB, 12.1)
    for each, us in ((74 * KB, 12.5), (297 * KB, 33.0), (5 * MIB, 435.1), (round(21.4 * MIB), 1628.0)):
        yield Row(sixteen, "cloudmatrix384_node", "all_gather", 16, 16 * each, us)
    for each, us in ((round(3.8 * MIB), 440.7), (round(21.4 * MIB), 2044.3)):
        yield Row(sixteen, "cloudmatrix384_node", "reduce_scatter", 16, 16 * each, us)
    yield Row(sixteen, "cloudmatrix384_node", "all_gather", 16, 640 * MIB, 3080.2, taken=True)
    yield Row(sixteen, "cloudmatrix384_node", "reduce_scatter", 16, 640 * MIB, 3664.6, taken=True)
    moe = ((8, 116, 71), (8, 118, 131), (256, 152, 54), (256, 149, 103))
    for members, us, gb_per_s in moe:
        yield Row("MoE dispatch, combine", "dies", "all_to_all", members, us * gb_per_s * 1000, us)


def rows_of(setting: str) -> list[Row]:
    """Measurements of one setting."""
    return [row for row in (*nvidia(), *ascend()) if row.setting == setting]


def errors(setting: str) -> list[float]:
    """By how much the closed form is off, for each measurement that no figure of the profile was taken from."""
    return [row.obtained_us() / row.printed_us - 1 for row in rows_of(setting) if not row.taken]


def main() -> None:
    """Print each measurement, what the closed form says, and how far that is off."""
    for setting, source in SOURCES.items():
        print(f"\n{setting}: {source}")
        for row in rows_of(setting):
            printed, obtained = row.printed_us, row.obtained_us()
            what = f"{row.kind:15}{row.members:>4} {row.size_bytes:>14,} B"
            off = f"{obtained / printed - 1:>+7.0%} {'*' if row.taken else ''}"
            print(f"  {what} {printed:>10.1f} us {obtained:>10.1f} us {off}".rstrip())
        sizes = [abs(error) for error in errors(setting)]
        print(f"  median error {statistics.median(sizes):.0%}, largest {max(sizes):.0%}")
    print("\n16 H100 across servers by the chunk that levels pass on: errors by size as above, median")
    for chunk in (None, 64 * MIB, 8 * MIB, MIB):
        found = in_pipeline(chunk)
        said = "one after another" if chunk is None else f"{chunk // MIB} MiB"
        median = statistics.median(map(abs, found))
        print(f"  {said:<18} {' '.join(f'{error:>+6.0%}' for error in found)} {median:>6.0%}")


if __name__ == "__main__":
    main()
