"""Lower tiers of a step that runs: a file past the page cache, or a second place in RAM.

A copy goes between an address in memory and an offset of the tier. It blocks its thread and lets others run.

Past the page cache, the kernel moves bytes only between addresses and offsets that are multiples of its *grain*; what a
framework allocates begins anywhere. So a tensor is cut in three. Its inner part, which begins at a multiple of the
grain, goes straight between its place and the file: no buffer, no move in memory. Its two edges, some 2 kB at most, are
kept beside the file. If it comes back to a place that lies otherwise to the grain, its inner part is read next to where
it belongs, less than a grain away, and moved there.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import math
import mmap
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryFile
from threading import Lock
from time import perf_counter, sleep
from typing import IO

from simulator.outputs import refusing

_ROOM_BYTES = 4096
"""Offsets of tensors are multiples of this [B]."""
_GRAINS = ((64, 512), (512, 512), (4096, 4096))
"""Multiples that a kernel may want of addresses, and of sizes [B]; the best first: PyTorch allocates at 64s."""
_WRITABLE = 0x200  # PyBUF_WRITE

_view_of = ctypes.pythonapi.PyMemoryView_FromMemory
_view_of.restype, _view_of.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int)


def _room_of(size: int) -> int:
    """Return the bytes of a file that a tensor occupies."""
    return -(-max(size, 1) // _ROOM_BYTES) * _ROOM_BYTES


def free_memory() -> int:
    """Return the memory that programs may still take, in this container [B]."""
    free = dict(line.split()[:2] for line in Path("/proc/meminfo").read_text().splitlines())["MemAvailable:"]
    limits, group = [int(free) << 10], Path("/sys/fs/cgroup")
    with suppress(OSError, ValueError):  # no such group, or no limit
        limits.append(int((group / "memory.max").read_text()) - int((group / "memory.current").read_text()))
    return min(limits)


class FileTier:
    """A lower tier in a file without a name: nothing is left of it, even if the process is killed.

    One thread may write while another one reads; further ones wait for these.

    Parameters
    ----------
    folder
        Where the file lies; None: in RAM, as a second place there.
    pace
        Bandwidth of writes and reads [B/s]: a copy sleeps until it has taken so long. None: as fast as it goes.

    Attributes
    ----------
    is_direct
        Whether copies go past the page cache.

    Raises
    ------
    ConfigError
        If no file can be made there.
    """

    def __init__(self, folder: str | Path | None, *, pace: tuple[float, float] | None = None) -> None:
        self._where, self._pace = f"tier in {folder or 'memory'}", pace or (math.inf,) * 2
        with refusing(self._where, "a file can be made where a tier lies", "name another folder"):
            if folder is None:
                self._file: IO[bytes] = open(os.memfd_create("hosim-tier"), "r+b", buffering=0)  # noqa: SIM115
            else:
                self._file = TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115
        self._lock, self._locks, self._used_bytes, self._end = Lock(), (Lock(), Lock()), 0, 0
        self._grain, self._step = (1, 1) if folder is None else self._probed()
        self.is_direct = self._grain > 1
        self._holes: list[tuple[int, float]] = [(0, math.inf)]  # start and end, in order, none beside another
        self._edges: dict[int, tuple[bytes, bytes]] = {}  # offset -> what is before and behind the inner part

    def _grow(self, end: int) -> None:
        os.posix_fallocate(self._file.fileno(), self._end, end - self._end)

    def _probed(self) -> tuple[int, int]:
        """Switch the page cache off; return the grain of addresses and of sizes, each 1 if the cache stays on."""
        file, buffer = self._file.fileno(), memoryview(mmap.mmap(-1, 5 * _ROOM_BYTES))
        flags = fcntl.fcntl(file, fcntl.F_GETFL)
        with suppress(OSError, AttributeError):  # not every system has the flag
            self._grow(len(buffer))
            fcntl.fcntl(file, fcntl.F_SETFL, flags | os.O_DIRECT)
            for grain, step in _GRAINS:
                with suppress(OSError):
                    for call in (os.pwritev, os.preadv):  # over several pages, as tensors lie
                        call(file, [buffer[grain : 3 * _ROOM_BYTES + grain + step]], 0)
                    return grain, step
        fcntl.fcntl(file, fcntl.F_SETFL, flags)
        return 1, 1

    def allot(self, size: int) -> int:
        """Return the offset of room for a tensor of so many bytes: the first hole that takes it, or new room.

        Raises
        ------
        ConfigError
            If the disk is full.
        """
        rule, do = f"a tier has room for a tensor of {size:,} B", "put it in another folder, or make room there"
        with self._lock:
            room = _room_of(size)
            index, (start, end) = next(hole for hole in enumerate(self._holes) if hole[1][1] - hole[1][0] >= room)
            if start + room > self._end:
                with refusing(self._where, f"{rule} beside {self._used_bytes:,} B", do):
                    self._grow(start + room)
                self._end = start + room
            self._holes[index : index + 1] = [(start + room, end)] if start + room < end else []
            self._used_bytes += size
            return start

    def release(self, offset: int, size: int) -> None:
        """Give back the room of a tensor of so many bytes."""
        with self._lock:
            end = offset + _room_of(size)
            beside = [hole for hole in self._holes if hole[1] == offset or hole[0] == end]
            whole = min([offset, *(start for start, _ in beside)]), max([end, *(end for _, end in beside)])
            self._holes = sorted([*(hole for hole in self._holes if hole not in beside), whole])
            self._edges.pop(offset, None)
            self._used_bytes -= size

    def write(self, offset: int, address: int, size: int) -> None:
        """Copy the bytes of a tensor from an address to an offset that was allotted.

        Raises
        ------
        ConfigError
            If the system fails to, or the tier is closed.
        """
        self._copy(False, offset, address, size)

    def read(self, offset: int, address: int, size: int) -> None:
        """Copy the bytes of a tensor from an offset, where they were written, to an address; errors as for `write`."""
        self._copy(True, offset, address, size)

    def close(self) -> None:
        """Wait for copies under way, and give everything back; once is enough."""
        with self._locks[0], self._locks[1]:
            self._file.close()
            self._edges.clear()

    def _copy(self, is_read: bool, offset: int, address: int, size: int) -> None:
        """Copy one way, and keep to the pace."""
        rule = f"{'reading' if is_read else 'writing'} {size:,} B at {offset:,} works"
        do = "see to the disk, or put the tier in another folder"
        with self._locks[is_read], refusing(self._where, rule, do):
            begun = perf_counter()
            if self._file.closed:
                raise OSError(errno.EBADF, "a tier that is closed")
            (self._read if is_read else self._write)(offset, address, size)
            early = begun + size / self._pace[is_read] - perf_counter()
            if early > 0:  # to sleep for no time would give way to other threads
                sleep(early)

    def _write(self, offset: int, address: int, size: int) -> None:
        head = min(-address % self._grain, size)
        inner = self._inner(head, size)
        end = address + head + inner
        self._edges.pop(offset, None)  # nothing is there if this fails in the middle
        self._transfer(os.pwritev, offset, address + head, inner)
        self._edges[offset] = ctypes.string_at(address, head), ctypes.string_at(end, size - head - inner)

    def _read(self, offset: int, address: int, size: int) -> None:
        if offset not in self._edges:
            raise OSError(errno.ENODATA, "nothing that was written there")
        before, behind = self._edges[offset]
        head = len(before)
        inner = self._inner(head, size)
        beside = address + -address % self._grain
        self._transfer(os.preadv, offset, beside, inner)
        if inner and beside != address + head:
            ctypes.memmove(address + head, beside, inner)
        ctypes.memmove(address, before, head)
        ctypes.memmove(address + head + inner, behind, len(behind))

    def _inner(self, head: int, size: int) -> int:
        """Return the size of the inner part: behind it, there is room to read it as far up as the grain may ask."""
        return max(0, (size - head - self._grain + 1) // self._step * self._step)

    def _transfer(self, call: Callable[..., int], offset: int, address: int, size: int) -> None:
        """Move bytes to or from the file; the system may take several calls for it."""
        view = _view_of(address, size, _WRITABLE) if size else b""
        while view:
            count = call(self._file.fileno(), [view], offset)
            if not count:
                raise OSError(errno.EIO, f"an end {len(view):,} B early")
            view, offset = view[count:], offset + count
