"""A device's arithmetic, the costs of its runtime, and the rules of its framework's memory allocator."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from math import ceil, floor, inf
from re import fullmatch
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, PrivateAttr, StrictBool, WithJsonSchema

from simulator.document import MOST_RANKS, Count, Key, OpClass, Part, Ranks, Share
from simulator.hardware.memory import Tier
from simulator.units import (
    Bytes,
    EnergyPerFlop,
    FlopsPerSecond,
    Milliwatts,
    Nanoseconds,
    PricePerHour,
    decimal,
    require,
)


class Rates(Part):
    """How fast what computes is.

    Attributes
    ----------
    peak_flops
        Data type -> peak rate [FLOP/s].
    achieved_fraction
        Op class -> share of the peak that its kernels reach. A class that is not listed has that of the one whose name
        its own goes on from (``attention_backward``; ``matmul_w8``, ``matmul_w4``), else ``default``.
    achieved_bandwidth_fraction, class_bandwidth
        Share of its tier's bandwidth that a memory-bound kernel reaches; and by op class, where it is another.
    launch_ns
        Fixed device time of each kernel [ns].
    fill_ns
        Time that the arithmetic of a kernel takes however little it is, but of one of class ``vector``: its tiles fill
        the matrix units in waves [ns].
    """

    peak_flops: dict[Key, FlopsPerSecond] = Field(alias="peak", min_length=1)
    achieved_fraction: dict[Key, Share] = {"default": 1.0}
    achieved_bandwidth_fraction: Share = Field(1.0, alias="achieved_bandwidth")
    class_bandwidth: dict[OpClass, Share] = {}
    launch_ns: Nanoseconds = Field(0, alias="launch")
    fill_ns: Nanoseconds = Field(0, alias="fill")


class Compute(Rates):
    """The arithmetic of one device.

    Attributes
    ----------
    power_mw
        Constant power of a device, with its share of the server if you want that counted [mW].
    energy_fj_per_flop
        Energy of a floating-point operation on top of that [fJ].
    price_uusd_per_h
        Price of a device per hour, with its share of the server if you want that counted [millionths of a dollar].
    """

    power_mw: Milliwatts | None = Field(None, alias="power")
    energy_fj_per_flop: EnergyPerFlop | None = Field(None, alias="energy")
    price_uusd_per_h: PricePerHour | None = Field(None, alias="price")
    _factor: Fraction = PrivateAttr(Fraction(1))

    def own_ns(self, measured_ns: int) -> int:
        """Return how long takes here what took so long on the device that the machine describes [ns]."""
        return ceil(measured_ns / self._factor)


_NUMBER = BeforeValidator(lambda text: float(text[:-1]) if fullmatch(r"\d+(\.\d+)?x", str(text)) else text)  # 0.8x
_FORMS = [{"type": "number", "exclusiveMinimum": 0, "maximum": 10}, {"type": "string", "pattern": "^[0-9.]+x$"}]
Factor = Annotated[float, _NUMBER, Field(gt=0, le=10, strict=True), WithJsonSchema({"anyOf": _FORMS})]
"""How many times as fast: above 10 is no other device of a kind, but a share in percent."""


class DevicePace(Part):
    """How devices are unlike the one that the machine describes: slower ones, or another generation.

    Attributes
    ----------
    compute
        Factor of its arithmetic: of all peaks, of the time to fill its units, and of times that were measured on the
        device that the machine describes. What a kernel's launch takes stays.
    memory, capacity
        Factors of the bandwidth and of the capacity of its compute tier.
    """

    compute: Factor = 1.0
    memory: Factor = 1.0
    capacity: Factor = 1.0

    def of(self, device: Compute, memory: Tier) -> tuple[Compute, Tier]:
        """Return a device that is so much faster, and its memory; rates are rounded down to whole ones, times up."""
        factor = decimal(self.compute)
        peaks = {dtype: _times(rate, factor) for dtype, rate in device.peak_flops.items()}
        rate = _times(memory.bandwidth_bytes_per_s or inf, decimal(self.memory))
        size = _times(memory.capacity_bytes, decimal(self.capacity))
        unlike = device.model_copy(update={"peak_flops": peaks, "fill_ns": ceil(device.fill_ns / factor)})
        unlike._factor = factor
        return unlike, memory.model_copy(update={"bandwidth_bytes_per_s": rate, "capacity_bytes": size})


def _times(figure: int | float, factor: Fraction) -> int | float:
    """Return so many times a rate or a capacity, if it has a limit."""
    return figure if figure == inf else max(1, floor(int(figure) * factor))


def span(key: str) -> range:
    """Return the ranks that a key names: ``5``, or ``8-15``."""
    first, _, last = key.partition("-")
    return range(int(first), int(last or first) + 1)


def check_paces(ranks: Mapping[str, DevicePace], memory: Tier, devices: int) -> None:
    """Refuse the pace of a device that there is not, or that has another pace, too, or no room for what is reserved."""
    end, before, must = 0, "", "a key of ranks is a rank or several: 5, or 8-15"
    for key in ranks:
        require(fullmatch(r"\d{1,7}(-\d{1,7})?", key), must, repr(key), "ranks", key, do="correct it")
    for key in sorted(ranks, key=lambda key: span(key).start):
        must = f"ranks are some of 0 to {devices - 1:,}, one for each device, in order"
        require(0 < len(span(key)) <= devices - span(key).start, must, repr(key), "ranks", key, do="correct it")
        must, do = "the device of a rank has one pace", "let them have no rank in common"
        require(span(key).start >= end, must, f"{before!r} and {key!r}", "ranks", key, do=do)
        end, before = span(key).stop, key
        size, kept = _times(memory.capacity_bytes, decimal(ranks[key].capacity)), memory.reserved_bytes
        must, do = "reserved memory is part of the capacity", "lower what is reserved"
        require(kept <= size * memory.taken_fraction, must, f"{kept:,} of {size:,} B", "ranks", key, "capacity", do=do)


class Topology(Part):
    """The devices of the machine: rank r runs on the r-th device, node after node.

    Attributes
    ----------
    devices_per_node
        Devices of each node.
    nodes
        Number of nodes; all of them together are the supernode.
    """

    devices_per_node: Ranks = 1
    nodes: Ranks = 1

    @property
    def devices(self) -> int:
        """Number of devices."""
        return self.devices_per_node * self.nodes

    @property
    def sharing(self) -> dict[str, int]:
        """Scope -> how many devices share an instance of that scope."""
        return {"device": 1, "node": self.devices_per_node, "supernode": self.devices}

    def _check(self) -> None:
        must = f"there are at most {MOST_RANKS:,} devices"
        require(self.devices <= MOST_RANKS, must, f"{self.devices:,}", "nodes", do="lower it")


class HostCompute(Rates):
    """The cores of a host, which all devices in the scope of its tier share.

    Attributes
    ----------
    tier
        Name of the tier that they work in: another one than the compute tier, with a bandwidth.
    sockets
        How many have these cores; software says what each further one adds.
    """

    tier: Key
    sockets: Count = 1

    @property
    def largest_share(self) -> float:
        """The share of their tier's bandwidth that all ops together reach: the largest that one alone does."""
        return max(self.achieved_bandwidth_fraction, *self.class_bandwidth.values(), 0.0)


class FixedHost(Part):
    """Costs of the host under a fixed plan, which was sunk to the device before the run.

    Attributes
    ----------
    launch_ns
        Time for each run of the compiled graph [ns].
    step_ns
        Time for each action of the plan [ns].
    compute_ns, copy_ns
        Time for each compute, and for each copy, on top of that: the price without a compiled graph [ns].
    """

    launch_ns: Nanoseconds = Field(0, alias="launch")
    step_ns: Nanoseconds = Field(0, alias="step")
    compute_ns: Nanoseconds = Field(0, alias="compute")
    copy_ns: Nanoseconds = Field(0, alias="copy")

    @property
    def prices_ns(self) -> tuple[int, int, int, int]:
        """Costs of a compute, a copy, a detach and a sync [ns]."""
        return self.step_ns + self.compute_ns, self.step_ns + self.copy_ns, self.step_ns, self.step_ns


class ReactiveHost(Part):
    """Costs of the host for each action that a runtime decides while it runs [ns each].

    Attributes
    ----------
    inspect_ns
        Looking at the state before each compute.
    compute_ns
        Issuing a compute.
    copy_ns
        Issuing a copy.
    detach_ns
        Issuing a detach.
    sync_ns
        Waiting for the device, on top of the wait itself.
    select_ns
        Looking up one candidate that a dynamic read has chosen, such as a block of a KV cache, once it is revealed.
    update_ns
        Registering at home the change of a persistent tensor, on top of each copy of it out of the compute tier. A
        fixed plan that leaves dynamic reads to the run pays this and `select`, too.
    pin_ns
        Getting page-locked memory, for each MiB, where a copy out of the compute tier takes a new place. 0: a pool has
        it ready.
    """

    inspect_ns: Nanoseconds = Field(0, alias="inspect")
    compute_ns: Nanoseconds = Field(0, alias="compute")
    copy_ns: Nanoseconds = Field(0, alias="copy")
    detach_ns: Nanoseconds = Field(0, alias="detach")
    sync_ns: Nanoseconds = Field(0, alias="sync")
    select_ns: Nanoseconds = Field(0, alias="select")
    update_ns: Nanoseconds = Field(0, alias="update")
    pin_ns: Nanoseconds = Field(0, alias="pin")

    @property
    def prices_ns(self) -> tuple[int, int, int, int]:
        """Costs of a compute, a copy, a detach and a sync [ns]."""
        return self.inspect_ns + self.compute_ns, self.copy_ns, self.detach_ns, self.sync_ns


class ServingHost(Part):
    """Costs of the host for a serving engine, beside those of the actions that it issues.

    Attributes
    ----------
    iteration_ns
        Time for each iteration: choosing its sequences, filling its inputs, handing over its tokens [ns].
    request_ns
        Time for each request that is admitted, in its first iteration [ns].
    ahead
        Whether the host works on an iteration while the device runs the one before, which then hides as much of its
        work as it takes; else the device waits for all of it.
    """

    iteration_ns: Nanoseconds = Field(0, alias="iteration")
    request_ns: Nanoseconds = Field(0, alias="request")
    ahead: StrictBool = False


class Host(Part):
    """The runtime on the host: the cost of each action, and how far it may run ahead.

    Attributes
    ----------
    queue_depth
        Most computes that are issued and not yet started, on all streams together.
    each_step_ns, each_layer_ns, each_class_ns
        Time before the first op of the graph, in each step, before the first op of each layer (the first part of the
        names of its ops), and, by op class as shares are, before each op, under any plan [ns].
    fixed, reactive
        The costs under a fixed plan, and under a reactive one.
    serving
        The costs of a serving engine, of which each iteration is a plan.
    """

    queue_depth: Count = 1024
    each_step_ns: Nanoseconds = Field(0, alias="each_step")
    each_layer_ns: Nanoseconds = Field(0, alias="each_layer")
    each_class_ns: dict[OpClass, Nanoseconds] = Field({}, alias="each_class")
    fixed: FixedHost = FixedHost()
    reactive: ReactiveHost = ReactiveHost()
    serving: ServingHost = ServingHost()

    @property
    def issues_freely(self) -> bool:
        """Whether no action of a fixed plan costs anything."""
        return not any((*self.fixed.prices_ns, self.each_step_ns, self.each_layer_ns, *self.each_class_ns.values()))


MIB = 1 << 20
Size = Annotated[Bytes, Field(gt=0)]
"""A size above 0 [B]."""


class Compaction(Part):
    """Cost of a compaction, which runs while nothing else does: per page, or per compaction.

    Attributes
    ----------
    per_page_ns, per_event_ns
        Time for each page that is unmapped and mapped again, or for each compaction, of any size [ns].
    pages
        Which pages count: all ``in_use`` (a remap lays out the whole pool anew), or those of places that are ``moved``.
    """

    per_page_ns: Nanoseconds | None = Field(None, alias="per_page")
    per_event_ns: Nanoseconds | None = Field(None, alias="per_event")
    pages: Literal["in_use", "moved"] = "in_use"

    def cost_ns(self, pages: int) -> int:
        """Return the time of a compaction of `pages` pages [ns]."""
        return (self.per_page_ns or 0) * pages if self.per_event_ns is None else self.per_event_ns

    def _check(self) -> None:
        once = (self.per_page_ns is None) != (self.per_event_ns is None)
        require(once, "a compaction costs so much per_page, or per_event", "neither or both", do="write one of them")


class Caching(Part):
    """Rules of a caching allocator, which keeps segments of device memory and gives out blocks of them.

    The defaults are PyTorch's, as its source states them (c10/cuda/CUDACachingAllocator.cpp: ``round_size``,
    ``get_allocation_size``, ``should_split``); torch_npu has the same sizes (github.com/Ascend/pytorch,
    torch_npu/csrc/core/npu/NPUCachingAllocator.cpp, its constants).

    Attributes
    ----------
    rounding_bytes
        The size of a block is a multiple of this [B].
    small_bytes
        A block of at most this size is small [B]; small and large ones come from different segments.
    small_segment_bytes, large_segment_bytes
        Size of a segment for small blocks, and of one for blocks that are larger, but below `own_segment` [B].
    own_segment_bytes
        A block of at least this size gets a segment of its own size, rounded up [B].
    segment_rounding_bytes
        The size of such a segment is a multiple of this [B].
    remaps
        Whether compaction is tried where releasing cached segments does not help. PyTorch gives up there; here, without
        compaction, the request waits for a hole.
    """

    rounding_bytes: Size = Field(512, alias="rounding")
    small_bytes: Size = Field(MIB, alias="small")
    small_segment_bytes: Size = Field(2 * MIB, alias="small_segment")
    large_segment_bytes: Size = Field(20 * MIB, alias="large_segment")
    own_segment_bytes: Size = Field(10 * MIB, alias="own_segment")
    segment_rounding_bytes: Size = Field(2 * MIB, alias="segment_rounding")
    remaps: StrictBool = True

    def block_bytes(self, size: int) -> int:
        """Return the size of the block for a place of this size [B]."""
        return -(-max(size, 1) // self.rounding_bytes) * self.rounding_bytes

    def segment_bytes(self, block: int) -> int:
        """Return the size of the new segment for a block that fits in no cached one [B]."""
        if block <= self.small_bytes:
            return self.small_segment_bytes
        if block < self.own_segment_bytes:
            return self.large_segment_bytes
        return -(-block // self.segment_rounding_bytes) * self.segment_rounding_bytes

    def least_rest_bytes(self, block: int) -> int:
        """Return the least remainder for which a cached block is split [B]."""
        return self.rounding_bytes if block <= self.small_bytes else self.small_bytes + 1

    def _check(self) -> None:
        for key, block, segment in (
            ("small_segment", self.small_bytes, self.small_segment_bytes),
            ("large_segment", self.own_segment_bytes, self.large_segment_bytes),
        ):
            found = f"{segment:,} B for blocks up to {block:,} B"
            require(segment >= block, "a segment holds the largest block that it is for", found, key, do="raise it")


class Allocator(Part):
    """Figures of the allocators that a row may name; see `simulator.scenario.PolicyChoice`.

    Attributes
    ----------
    page_bytes
        Size of a page of mapped memory [B].
    compaction
        Its cost; None: the framework does not compact, and a place that fits in no hole waits for one.
    caching
        Rules of the allocator ``caching``.
    """

    page_bytes: Size = Field(2 * MIB, alias="page")
    compaction: Compaction | None = None
    caching: Caching = Caching()
