"""What a device computes with, and what its runtime costs."""

from __future__ import annotations

from pydantic import Field

from simulator.document import Count, Key, Part
from simulator.hardware.numbers import Fraction
from simulator.units import FlopsPerSecond, Nanoseconds


class Compute(Part):
    """The arithmetic of one device.

    Attributes
    ----------
    peak_flops
        Data type -> peak rate [FLOP/s].
    achieved_fraction
        Op class (``matmul``, ``attention``, ``vector`` ...) -> share of the peak that kernels of the class reach;
        ``default`` covers these three where they are not listed.
    achieved_bandwidth_fraction
        Share of the compute tier's bandwidth that a memory-bound kernel reaches.
    launch_ns
        Fixed device time of each kernel [ns].
    """

    peak_flops: dict[Key, FlopsPerSecond] = Field(alias="peak", min_length=1)
    achieved_fraction: dict[Key, Fraction] = {"default": 1.0}
    achieved_bandwidth_fraction: Fraction = Field(1.0, alias="achieved_bandwidth")
    launch_ns: Nanoseconds = Field(0, alias="launch")


class FixedHost(Part):
    """What the host pays for a plan that was sunk to the device before the run.

    Attributes
    ----------
    launch_ns
        Once for each run of the compiled graph [ns].
    step_ns
        For each step [ns].
    """

    launch_ns: Nanoseconds = Field(0, alias="launch")
    step_ns: Nanoseconds = Field(0, alias="step")


class ReactiveHost(Part):
    """What the host pays for each step that a runtime decides while it runs [ns each].

    Attributes
    ----------
    inspect_ns
        Looking at the state before each compute.
    compute_ns, copy_ns, detach_ns
        Issuing a step of that kind.
    sync_ns
        Waiting for the device, on top of the wait itself.
    select_ns
        Finding one candidate that a late read has chosen, such as a block of a KV cache, when it is revealed.
    update_ns
        Entering at home what was changed of a persistent tensor, on top of each copy of it out of the compute tier.
        This and `select_ns` are paid under a compiled plan, too, if it leaves late reads to the run.
    """

    inspect_ns: Nanoseconds = Field(0, alias="inspect")
    compute_ns: Nanoseconds = Field(0, alias="compute")
    copy_ns: Nanoseconds = Field(0, alias="copy")
    detach_ns: Nanoseconds = Field(0, alias="detach")
    sync_ns: Nanoseconds = Field(0, alias="sync")
    select_ns: Nanoseconds = Field(0, alias="select")
    update_ns: Nanoseconds = Field(0, alias="update")

    @property
    def prices_ns(self) -> tuple[int, int, int, int]:
        """What a compute, a copy, a detach and a sync cost [ns]."""
        return self.inspect_ns + self.compute_ns, self.copy_ns, self.detach_ns, self.sync_ns


class Host(Part):
    """The runtime on the host: what it pays for each step, and how far it may run ahead.

    Attributes
    ----------
    queue_depth
        Computes that may be issued and not yet started.
    fixed, reactive
        The costs under a fixed plan, and under one that is decided while it runs.
    """

    queue_depth: Count = 1024
    fixed: FixedHost = FixedHost()
    reactive: ReactiveHost = ReactiveHost()
