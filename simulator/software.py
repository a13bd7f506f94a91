"""The software profile: a document that says how a framework drives a machine.

The machine's figures are those of its best case: pinned copies, the best kernels' shares, memory that holds tensors
alone. A software profile says what a framework makes of them: how it copies, what its host does between ops, which
shares its kernels reach, and what else it keeps in memory. `simulator.catalog.driven` applies it to the machine.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from fractions import Fraction
from math import inf
from typing import Annotated, Literal

from pydantic import Field, StrictBool, StringConstraints

from simulator.document import Document, Few, Key, OpClass, Part, Share
from simulator.units import Bytes, BytesPerSecond, Nanoseconds, decimal, require

Pattern = Annotated[str, StringConstraints(pattern=r"^!?[A-Za-z0-9_*?\[\]-]+$")]
"""A shell pattern of names."""


BLOCKING = ("pageable", "staged")
"""Modes of copies that the host waits for."""
THROUGH_A_BUFFER = ("pageable", "bounced")
"""Modes whose copies are read, written and read again in the memory below."""


class CopyMode(Part):
    """How copies over a link are made.

    Attributes
    ----------
    mode
        ``pinned``: the device copies by itself between page-locked memory and its own; the rate of a link is that.
        ``pageable``: the driver copies through a pinned buffer of its own, while the host waits. ``bounced``: threads
        of the program copy through pinned buffers, and the host goes on. ``staged``: from pinned memory, but the host
        waits for each copy. ``unified``: pages move when they are touched.
    share, rate_bytes_per_s
        Share of the link's bandwidth that such copies reach, and the most that they reach over any link, as one core
        that fills a buffer does [B/s].
    latency_ns
        Time of each copy on top of the link's latency [ns]; it holds the channel, and takes no bandwidth.
    host_passes
        How often each byte passes the memory of the lower tier, if that states its bandwidth; default: 3 through a
        buffer (``pageable``, ``bounced``), else 1.
    """

    mode: Literal["pinned", "pageable", "bounced", "staged", "unified"] = "pinned"
    share: Share = 1.0
    rate_bytes_per_s: BytesPerSecond = Field(inf, alias="rate")
    latency_ns: Nanoseconds = Field(0, alias="latency")
    host_passes: Few | None = None

    def _check(self) -> None:
        stated = self.mode == "pinned" or self.model_fields_set & {"share", "rate_bytes_per_s"}
        must = "copies that are not pinned have a share of the link's bandwidth, or a rate"
        require(stated, must, f"{self.mode} without either", "share", do="add one, or write mode: pinned")


class Copies(Part):
    """How each link copies; the best case where nothing is said.

    Attributes
    ----------
    default
        Links that nothing below names.
    into, out
        Links that end in the compute tier, and links that begin there.
    links
        Pattern of names of links -> how these copy; the last match wins, and all of these win over the others.
    """

    default: CopyMode = CopyMode()
    into: CopyMode | None = Field(None, alias="in")
    out: CopyMode | None = None
    links: dict[Pattern, CopyMode] = {}

    def of_link(self, name: str, *, ends_here: bool, begins_here: bool) -> tuple[str, CopyMode]:
        """Return the field that says how a link copies, and how.

        Parameters
        ----------
        name
            Its name.
        ends_here, begins_here
            Whether it ends, or begins, in the compute tier.
        """
        modes = [("default", self.default), ("in", self.into if ends_here else None)]
        modes += [("out", self.out if begins_here else None)]
        modes += [(f"links.{key}", mode) for key, mode in self.links.items() if fnmatchcase(name, key)]
        return [(f"copies.{key}", mode) for key, mode in modes if mode is not None][-1]


class HostTimes(Part):
    """Times of the host to issue under any plan; larger times of the machine hold.

    Attributes
    ----------
    op_ns
        Each op: its Python, and its launch [ns].
    copy_ns
        Each copy: its Python, and its submission [ns].
    layer_ns
        Before the first op of each layer, such as for hooks of modules [ns].
    class_ns
        Before each op of a class, such as for what unpacks weights (``matmul_w4``) [ns].
    step_ns
        Before the first op of each step [ns]. What serves requests pays for iterations instead.
    iteration_ns, request_ns, ahead
        Of serving: time for each iteration, and for each admitted request [ns]; and whether the host works on an
        iteration while the device runs the one before.
    """

    op_ns: Nanoseconds = Field(0, alias="op")
    copy_ns: Nanoseconds = Field(0, alias="copy")
    layer_ns: Nanoseconds = Field(0, alias="layer")
    class_ns: dict[OpClass, Nanoseconds] = Field({}, alias="class")
    step_ns: Nanoseconds = Field(0, alias="step")
    iteration_ns: Nanoseconds = Field(0, alias="iteration")
    request_ns: Nanoseconds = Field(0, alias="request")
    ahead: StrictBool = False


class ClassShares(Part):
    """What kernels of each class of ops reach; where those of the machine reach less, that holds.

    Attributes
    ----------
    arithmetic
        Op class (``matmul``, ``attention``, ``vector`` ...) -> share of the peak; ``default`` covers all other classes.
        Without it those of the machine hold.
    class_bandwidth
        Op class (``matmul_w4``, ``dequantize`` ...) -> share of the bandwidth of the tier that they work in, where
        it is not ``bandwidth``.
    """

    arithmetic: dict[Key, Share] = {}
    class_bandwidth: dict[OpClass, Share] = {}


class KernelShares(ClassShares):
    """What kernels reach; where those of the machine reach less, that holds.

    Attributes
    ----------
    machines
        Pattern of names of machines -> what kernels reach there, where it is another; of a class the last match wins.
    bandwidth
        Share of the bandwidth of the tier that they work in.
    launch_ns
        Device time of each kernel [ns].
    fill_ns
        Time that the arithmetic of a kernel takes however little it is, but of one of class ``vector``: its tiles fill
        the matrix units in waves [ns].
    """

    machines: dict[Pattern, ClassShares] = {}
    bandwidth: Share = 1.0
    launch_ns: Nanoseconds = Field(0, alias="launch")
    fill_ns: Nanoseconds = Field(0, alias="fill")

    def _check(self) -> None:
        for pattern, shares in self.machines.items():
            must, do = "kernels reach other shares on such machines", "state arithmetic or class_bandwidth"
            require(any((shares.arithmetic, shares.class_bandwidth)), must, "none", "machines", pattern, do=do)


class CoreShares(KernelShares):
    """What kernels reach on the cores of a host.

    Attributes
    ----------
    sockets
        What each further socket adds to what the first reaches, as a share of that: less than all where cores of
        several run one op, and wait for one another and for each other's memory.
    """

    sockets: Annotated[float, Field(ge=0, le=1, strict=True)] = 1.0

    def part(self, sockets: int) -> Fraction:
        """Return what so many sockets reach together, as a share of all that they have."""
        return (1 + (sockets - 1) * decimal(self.sockets)) / sockets


class KeptMemory(Part):
    """What the compute tier holds that is no tensor.

    Attributes
    ----------
    taken_fraction
        Share of the capacity that the framework takes, losses and reserved memory included.
    context_bytes
        What a process holds before any tensor: the driver's context, and libraries with their kernels [B].
    workspace_bytes
        Workspaces of libraries and buffers of the framework that last [B].
    communication_bytes
        Buffers of the library for collectives, where there are several ranks [B].
    lost_fraction
        Of the rest, the share that nothing fits in: rounding of the allocator, and holes.
    """

    taken_fraction: Share = Field(1.0, alias="taken")
    context_bytes: Bytes = Field(0, alias="context")
    workspace_bytes: Bytes = Field(0, alias="workspace")
    communication_bytes: Bytes = Field(0, alias="communication")
    lost_fraction: Annotated[float, Field(ge=0, lt=1, strict=True)] = Field(0.0, alias="lost")


class Software(Document):
    """How a framework drives a machine.

    Attributes
    ----------
    for_
        Patterns of names of machines that the profile is for, or with ``!`` before, is not for; default: all.
    copies
        How it copies.
    host
        What its host pays.
    kernels
        Kind of run -> the rates of kernels in it: ``train``, ``prefill``, ``decode``, and ``default`` for kinds that
        are not listed, for graphs from files, and for jobs whose programs are of several kinds. Serving reads prompts
        and adds tokens at once: it takes the arithmetic of ``prefill``, and the bandwidth and the launch of ``decode``.
    cores
        The rates of its kernels on the cores of a host, in runs of any kind.
    memory
        What it holds beside tensors.
    """

    schema_: Literal["hosim/software/1"] = Field("hosim/software/1", alias="schema")
    for_: Annotated[tuple[Pattern, ...], Field(min_length=1)] = Field(("*",), alias="for")
    copies: Copies = Copies()
    host: HostTimes = HostTimes()
    kernels: dict[Literal["default", "train", "prefill", "decode"], KernelShares] = {}
    cores: CoreShares = CoreShares()
    memory: KeptMemory = KeptMemory()

    def kinds(self, phases: set[str]) -> tuple[str, str]:
        """Return the kinds of run whose arithmetic, and whose bandwidth, kernels of programs of these phases have."""
        (phase,) = phases if len(phases) == 1 else ("default",)
        kinds = ("prefill", "decode") if phase in ("requests", "serve") else (phase, phase)
        reads, adds = (kind if kind in self.kernels else "default" for kind in kinds)
        return reads, adds

    def reached(self, phases: set[str]) -> dict[str, tuple[tuple[str, KernelShares], tuple[str, KernelShares]]]:
        """Return device -> the kernels that say its arithmetic, and those that say its bandwidth; each with its key."""
        of_kind = {str(kind): kernels for kind, kernels in self.kernels.items()}
        reads, adds = [(f"kernels.{kind}", of_kind.get(kind, KernelShares())) for kind in self.kinds(phases)]
        return {"compute": (reads, adds), "host_compute": (("cores", self.cores), ("cores", self.cores))}
