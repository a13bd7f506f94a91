"""Where a step computes: when its ops have ended, and how bytes go between its memory and the lower tier.

On the CPU a call has ended when it returns. An accelerator is behind: the host only puts work on its streams. But who
gets room is decided in the order in which copies and ops come to need it (rule 8), and the host can know that order
only while it is close to the device. So it runs a few ops ahead and no further, as the rate limiter of FSDP does; a
thread follows each copy. What an accelerator still does is known by events: a copy starts behind the ops that were
issued before it, and an op is issued once the copies that it needs have ended.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from threading import Lock
from time import perf_counter, sleep
from typing import Any, cast

import torch

from simulator.errors import insist
from simulator.execute.held import IN, OUT, ExecutionError
from simulator.execute.tiers import FileTier, free_memory

_AHEAD = 16
"""Ops that an accelerator may have before it: with 10 us an op, it works on while a thread of the host wakes up."""


class Processor:
    """The CPU, with RAM as the compute tier.

    Attributes
    ----------
    name, below
        Its name for PyTorch; its lower tier by default, ``disk`` or ``memory``.
    tiers
        Names of the compute tier and the lower one.
    """

    name, below, tiers = "cpu", "disk", ("ram", "disk")

    def holds(self, storage: Any) -> bool:
        """Tell whether the compute tier holds a storage.

        Raises
        ------
        ExecutionError
            If it lies on a device that the step does not know.
        """
        if storage.device.type != "cpu":
            do = 'move module and inputs there, or write device="cuda"'
            raise ExecutionError("a step within a budget", "all tensors are on the CPU", str(storage.device), do)
        return True

    def lower(self, folder: str | Path | None, pace: tuple[float, float] | None) -> FileTier | PinnedTier:
        """Make the lower tier: a file in a folder, or a place in RAM."""
        return FileTier(folder, pace=pace)

    def begin(self) -> None:
        """Begin to tell moments of a step."""

    def now(self) -> Any:
        """Return this moment in the work of the device, which `seconds` makes a number."""
        return perf_counter()

    def ended(self) -> Any:
        """Return the moment in which the op that was issued last ends."""
        return perf_counter()

    def seconds(self, moment: Any) -> float:
        """Return a moment as that of ``perf_counter`` [s]; an accelerator has finished."""
        return float(moment)

    def finish(self) -> None:
        """Wait until all that was issued has ended."""

    def resize(self, storage: Any, size_bytes: int) -> None:
        """Give a storage its size, or none."""
        storage.resize_(size_bytes)

    def move(self, way: str, storage: Any, tier: Any, place: int, after: Any) -> tuple[Any, Any]:
        """Copy a storage out or in once a moment is over, wait for it, and return when it began and ended."""
        begun = perf_counter()
        (tier.write if way == OUT else tier.read)(place, storage.data_ptr(), storage.nbytes())
        return begun, perf_counter()


class PinnedTier:
    """A lower tier in pinned memory of the host, which is allotted as it is needed and kept for later.

    Parameters
    ----------
    pinned
        Returns new pinned memory of so many bytes.
    pace
        As for `FileTier`.
    """

    def __init__(self, pinned: Callable[[int], torch.Tensor], pace: tuple[float, float] | None) -> None:
        self._pinned, self.pace, self._places, self._count = pinned, pace, dict[int, torch.Tensor](), count()
        self._left_bytes, self._lock = free_memory(), Lock()

    def allot(self, size: int) -> int:
        """Return a place for a tensor of so many bytes.

        Raises
        ------
        ConfigError
            If the host has no memory left for it.
        """
        with self._lock:
            must, found = f"pinned memory has room for {size:,} B", f"{self._left_bytes:,} B left"
            insist(_held(size) <= self._left_bytes, "tier in memory", must, found, "end other programs, or take a file")
            place = next(self._count)
            self._places[place] = self._pinned(size)
            self._left_bytes -= _held(size)
            return place

    def release(self, place: int, size: int) -> None:
        """Give back a place of so many bytes."""
        with self._lock:
            self._left_bytes += _held(size)
        del self._places[place]

    def at(self, place: int) -> torch.Tensor:
        """Return the bytes of a place."""
        return self._places[place]

    def close(self) -> None:
        """Give everything back."""
        self._places.clear()


def _held(size_bytes: int) -> int:
    """Return what PyTorch takes of the host for pinned memory: the next power of two [B]."""
    return 1 << (size_bytes - 1).bit_length()


class Accelerator(Processor):
    """A device with streams, such as a GPU: it computes on one, and each direction of copies has one.

    What goes to a file passes through pinned memory of each direction, as large as the largest storage.

    Parameters
    ----------
    device
        The device, with its index.
    torch_
        PyTorch, whose module `accelerator` knows the device.
    """

    below = "memory"

    def __init__(self, device: torch.device, torch_: Any = torch) -> None:
        self._torch, self._host, self.device, self.name = torch_, torch_.accelerator, device, str(device)
        self._behind, self._buffers = deque[Any](), dict[str, torch.Tensor]()
        self._ways = {way: self._torch.Stream(device) for way in (OUT, IN)}
        self.begin()

    def holds(self, storage: Any) -> bool:
        """Tell whether the device holds a storage; what the host holds takes no room of the budget."""
        if storage.device == self.device or storage.device.type == "cpu":
            return bool(storage.device == self.device)
        rule, do = f"all tensors are on {self.name} or the CPU", "move module and inputs there"
        raise ExecutionError("a step within a budget", rule, str(storage.device), do)

    def lower(self, folder: str | Path | None, pace: tuple[float, float] | None) -> FileTier | PinnedTier:
        """Make the lower tier: a file in a folder, or pinned memory of the host."""
        self.tiers = ("hbm", "ram" if folder is None else "disk")
        return PinnedTier(self._pinned, pace) if folder is None else FileTier(folder, pace=pace)

    def begin(self) -> None:
        """Begin to tell moments of a step, which computes on the stream that is current now."""
        self._compute = self._host.current_stream(self.device)
        self.finish()
        self._zero_s = perf_counter()  # no moment of the device is told later than it was
        self._zero = self.now()

    def now(self, stream: Any = None) -> Any:
        """Return this moment in the work of a stream; by default, of the one that computes."""
        return (stream or self._compute).record_event(self._torch.Event(self.device, enable_timing=True, blocking=True))

    def ended(self) -> Any:
        """Return the moment in which the last op ends; wait until the device is no more than a few ops behind.

        Raises
        ------
        ExecutionError
            If the op was put on another stream, for which no copy waits.
        """
        if self._host.current_stream(self.device) != self._compute:
            rule, do = "a step computes on the stream that was current when it began", "give it no other"
            raise ExecutionError("a step within a budget", rule, "an op on another one", do)
        moment = self.now()
        self._behind.append(moment)
        if len(self._behind) > _AHEAD:
            self._behind.popleft().synchronize()
        return moment

    def seconds(self, moment: Any) -> float:
        """Return a moment as that of ``perf_counter`` [s]; the device has finished."""
        return moment if isinstance(moment, float) else self._zero_s + self._zero.elapsed_time(moment) / 1e3

    def finish(self) -> None:
        """Wait until all that was issued has ended."""
        self._behind.clear()
        self._compute.synchronize()

    def resize(self, storage: Any, size_bytes: int) -> None:
        """Give a storage its size, or none, in memory that ops use in the order in which they were issued."""
        with self._on(self._compute):
            storage.resize_(size_bytes)

    def move(self, way: str, storage: Any, tier: Any, place: int, after: Any) -> tuple[Any, Any]:
        """Copy a storage out or in once a moment is over, wait for it, and return when it began and ended."""
        begun_s, size_bytes, stream = perf_counter(), storage.nbytes(), self._ways[way]
        is_pinned = isinstance(tier, PinnedTier)
        below = tier.at(place) if is_pinned else self._buffer(way, size_bytes)
        if way == IN and not is_pinned:
            tier.read(place, below.data_ptr(), size_bytes)
        with self._on(stream):
            stream.wait_event(after)
            above = torch.empty(0, dtype=torch.uint8, device=self.device).set_(storage)
            begun = self.now(stream)  # not before the ops that were issued earlier have ended
            self._copy(*((below, above) if way == OUT else (above, below)))
            ended = self.now(stream)
        ended.synchronize()
        if is_pinned and tier.pace is None:
            return begun, ended
        if is_pinned or way == OUT:  # else it began as it was read
            begun_s = self.seconds(begun)
        if is_pinned:
            sleep(max(0, begun_s + size_bytes / tier.pace[way == IN] - perf_counter()))
        elif way == OUT:
            tier.write(place, below.data_ptr(), size_bytes)
        return begun_s, perf_counter()

    def _buffer(self, way: str, size_bytes: int) -> torch.Tensor:
        if way not in self._buffers or self._buffers[way].numel() < size_bytes:
            self._buffers[way] = self._pinned(size_bytes)
        return self._buffers[way][:size_bytes]

    def _pinned(self, size_bytes: int) -> torch.Tensor:
        return cast(torch.Tensor, self._torch.empty(size_bytes, dtype=torch.uint8, pin_memory=True))

    def _copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Copy bytes on the current stream; the host goes on."""
        target.copy_(source, non_blocking=True)

    @contextmanager
    def _on(self, stream: Any) -> Iterator[None]:
        """Make a stream the current one of this thread for a while."""
        index, before = self._host.current_device_index(), self._host.current_stream(self.device)
        self._host.set_stream(stream)
        try:
            yield
        finally:
            self._host.set_stream(before)
            self._host.set_device_index(index)


def device_of(name: object) -> Processor:
    """Return the device of a step, by its name; by default the accelerator that there is, or else the CPU.

    Raises
    ------
    ConfigError
        If there is no such device.
    """
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    name = str(accelerator or "cpu") if name is None else str(name)  # of a torch.device, too
    if name == "cpu":
        return Processor()
    has_streams, where = hasattr(torch.accelerator, "current_device_index"), "hosim.torch.offload"
    insist(has_streams, where, "PyTorch 2.7 or later runs on accelerators", torch.__version__, 'write device="cpu"')
    kind, devices = (accelerator.type, torch.accelerator.device_count()) if accelerator else ("cpu", 0)
    names = dict.fromkeys(("cpu", kind, *(f"{kind}:{index}" for index in range(devices))))
    insist(name in names, where, "a device is there", repr(name), f"name one of {', '.join(names)}")
    index = torch.device(name).index
    return Accelerator(torch.device(kind, torch.accelerator.current_device_index() if index is None else index))
