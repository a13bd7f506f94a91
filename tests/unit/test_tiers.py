"""Lower tiers that copies go to: what comes back is what went, whatever its size and place; and nothing is left."""

import ctypes
import errno
import fcntl
import math
import mmap
import os
import random
import re
import subprocess
import sys
import time
from pathlib import Path
from threading import Barrier, Event, Thread

import pytest

from simulator.errors import ConfigError
from simulator.execute import tiers
from simulator.execute.tiers import FileTier

MIB = 1 << 20


class Place:
    """Memory in which a tensor lies some bytes behind the start of a page, between guards that must stay."""

    def __init__(self, size, behind=64, content=b""):
        self.memory, self.behind, self.size = mmap.mmap(-1, size + behind + 64), behind, size
        self.memory[:] = b"\xa5" * len(self.memory)
        self.memory[behind : behind + size] = content or bytes(size)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.memory)) + behind

    @property
    def bytes(self):
        end = self.behind + self.size
        assert set(self.memory[: self.behind] + self.memory[end:]) == {0xA5}, "written beside the tensor"
        return self.memory[self.behind : end]


def put(tier, offset, size, behind=64, content=b""):
    place = Place(size, behind, content)
    tier.write(offset, place.address, size)


@pytest.fixture(params=["file", "cached", "memory"])
def tier(request, tmp_path, monkeypatch):
    """A tier of each kind; `cached` is a file where the system takes no direct I/O."""
    if request.param == "cached":
        monkeypatch.setattr(tiers, "_GRAINS", ())
    made = FileTier(None) if request.param == "memory" else FileTier(tmp_path)
    yield made
    made.close()


def left_open():
    return {os.readlink(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd") if name.isdigit()
            and os.path.lexists(f"/proc/self/fd/{name}")}  # fmt: skip


@pytest.mark.parametrize("behind", [0, 8, 64, 448, 511, 512, 4032])
def test_what_comes_back_is_what_went(tier, behind):
    """Of all sizes about a grain and a page, from any place to any other."""
    draw = random.Random(behind)
    sizes = [
        0,
        1,
        63,
        511,
        512,
        513,
        575,
        1023,
        1535,
        4095,
        4096,
        4097,
        8191,
        8704,
        40_000,
        *(draw.randrange(200_000) for _ in range(6)),
    ]
    for size in sizes:
        content, offset = draw.randbytes(size), tier.allot(size)
        put(tier, offset, size, behind, content)
        for other in (behind, 64, 0, 200, 500):
            target = Place(size, other)
            tier.read(offset, target.address, size)
            assert target.bytes == content, (size, behind, other)


def test_the_later_of_two_writes_counts(tier):
    """Also if it came from a place that lies otherwise."""
    offset = tier.allot(70_000)
    for behind, letter in ((64, b"a"), (200, b"b"), (0, b"c")):
        put(tier, offset, 70_000, behind, letter * 70_000)
        target = Place(70_000, 320)
        tier.read(offset, target.address, 70_000)
        assert target.bytes == letter * 70_000


def test_both_ways_at_once(tier):
    """A thread a direction, as copies run beside a step: each tensor comes back whole."""
    draw, ready = random.Random(0), Barrier(2)
    contents = [draw.randbytes(draw.randrange(1, 300_000)) for _ in range(60)]
    offsets, written, wrong = [tier.allot(len(content)) for content in contents], [], []

    def write():
        ready.wait()
        for index, content in enumerate(contents):
            put(tier, offsets[index], len(content), 64 * (index % 9), content)
            written.append(index)

    def read():
        ready.wait()
        for index, content in enumerate(contents):
            while len(written) <= index:
                time.sleep(0)
            target = Place(len(content), 64 * (index % 7))
            tier.read(offsets[index], target.address, len(content))
            wrong.extend([index] if target.bytes != content else [])

    threads = [Thread(target=task) for task in (write, read)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(written) == len(contents)
    assert wrong == []


def test_room_is_used_again(tier):
    """Rooms never overlap; what is released is merged, and taken by the first that fits."""
    draw, held, highest = random.Random(1), {}, 0
    for _ in range(400):
        if held and draw.random() < 0.5:
            offset = draw.choice([*held])
            tier.release(offset, held.pop(offset))
        else:
            size = draw.choice([0, 1, 4096, 5000, 20_000, 70_000])
            offset = tier.allot(size)
            rooms = [(start, start + max(held_size, 1)) for start, held_size in held.items()]
            assert all(offset >= end or offset + max(size, 1) <= start for start, end in rooms)
            assert offset % 4096 == 0
            held[offset], highest = size, max(highest, offset + size)
    for offset, size in held.items():
        tier.release(offset, size)
    assert tier.allot(highest) == 0  # all holes have become one
    tier.release(0, highest)
    first, second = tier.allot(8192), tier.allot(8192)
    tier.release(first, 8192)
    assert tier.allot(100) == first
    assert tier.allot(4096) == first + 4096
    assert second == 8192


def test_a_full_disk_is_an_error_that_names_tier_and_size(tmp_path, monkeypatch):
    """Room that was not got is not counted: a smaller tensor fits still."""
    tier, grow = FileTier(tmp_path), os.posix_fallocate

    def full(file, offset, size):
        if offset + size > 8192:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        grow(file, offset, size)

    monkeypatch.setattr(os, "posix_fallocate", full)
    monkeypatch.setattr(tier, "_end", 0)  # as before the probe of the grain
    with pytest.raises(ConfigError, match=rf"tier in {re.escape(str(tmp_path))}: .* 8,193 B .*No space left on device"):
        tier.allot(8193)
    assert tier.allot(8192) == 0
    tier.close()


@pytest.mark.parametrize("way", ["write", "read"])
def test_a_copy_that_fails_names_tier_and_size(tier, monkeypatch, way):
    """It raises in the thread that copies. What could not be read is there still; of a write that failed nothing is."""
    content, offset = random.Random(2).randbytes(100_000), tier.allot(100_000)
    place = Place(100_000, 64, content)
    tier.write(offset, place.address, 100_000)

    def fails(*_):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr(os, f"p{way}v", fails)
        verb = {"write": "writing", "read": "reading"}[way]
        with pytest.raises(
            ConfigError, match=rf"tier in .*: {verb} 100,000 B at {offset:,} works, found Input/output error"
        ):
            getattr(tier, way)(offset, place.address, 100_000)
    target = Place(100_000, 200)
    if way == "write":
        with pytest.raises(ConfigError, match=r"reading 100,000 B at .* works, found nothing that was written there"):
            tier.read(offset, target.address, 100_000)
        tier.write(offset, place.address, 100_000)
    tier.read(offset, target.address, 100_000)
    assert target.bytes == content


def test_short_reads_and_writes_go_on(tier, monkeypatch):
    """The system may move less than it was asked for; of a file that ends early nothing is made up."""
    move = {name: getattr(os, name) for name in ("preadv", "pwritev")}
    for name, call in move.items():
        monkeypatch.setattr(os, name, lambda file, views, at, call=call: call(file, [views[0][:4096]], at))
    content, offset = random.Random(3).randbytes(50_000), tier.allot(50_000)
    put(tier, offset, 50_000, 64, content)
    for behind in (64, 200):
        target = Place(50_000, behind)
        tier.read(offset, target.address, 50_000)
        assert target.bytes == content
    monkeypatch.setattr(os, "preadv", lambda *_: 0)
    with pytest.raises(ConfigError, match=r"reading 50,000 B .* found an end [0-9,]+ B early"):
        tier.read(offset, target.address, 50_000)


def test_a_paced_tier_sleeps_up_to_its_bandwidth(tmp_path, monkeypatch):
    """As long as each direction says, less what the copy took itself; an unpaced one sleeps not at all."""
    slept, now = [], iter(range(100))
    monkeypatch.setattr(tiers, "sleep", slept.append)
    monkeypatch.setattr(tiers, "perf_counter", lambda: next(now))  # each copy takes 1 s
    for tier in (
        FileTier(tmp_path, pace=(1e5, 2e5)),
        FileTier(None, pace=(1e5, 2e5)),
        FileTier(None, pace=(1e9, math.inf)),
    ):
        offset, place = tier.allot(600_000), Place(600_000)
        tier.write(offset, place.address, 600_000)
        tier.read(offset, place.address, 600_000)
        tier.close()
    assert slept == [5, 2, 5, 2]
    tier = FileTier(None)
    put(tier, tier.allot(10), 10)
    tier.close()
    assert len(slept) == 4


def test_closing_leaves_nothing(tmp_path):
    """No file, not even while it is open; no descriptor, no thread. Once more does nothing, and copies are refused."""
    before = left_open()
    for make in (lambda: FileTier(tmp_path), lambda: FileTier(None)):
        tier = make()
        offset, place = tier.allot(MIB), Place(MIB)
        tier.write(offset, place.address, MIB)
        assert os.listdir(tmp_path) == []
        assert left_open() > before
        tier.close()
        tier.close()
        with pytest.raises(ConfigError, match="found a tier that is closed"):
            tier.read(offset, place.address, MIB)
    assert left_open() == before


def test_nothing_is_left_of_a_process_that_is_killed(tmp_path):
    """In the middle of a write: the file has no name."""
    code = f"""
import ctypes, mmap, os, signal, sys
from simulator.execute.tiers import FileTier
tier, memory = FileTier({str(tmp_path)!r}), mmap.mmap(-1, 1 << 20)
tier.write(tier.allot(1 << 20), ctypes.addressof(ctypes.c_char.from_buffer(memory)), 1 << 20)
os.kill(os.getpid(), signal.SIGKILL)
"""
    assert subprocess.run([sys.executable, "-c", code], check=False, cwd=Path(__file__).parents[2]).returncode == -9
    assert os.listdir(tmp_path) == []


def test_a_folder_where_no_file_can_be_made_is_refused(tmp_path):
    """With what is wrong with it."""
    with pytest.raises(ConfigError, match=r"tier in .*none: .*found No such file or directory; name another folder"):
        FileTier(tmp_path / "none")


def test_where_direct_io_works_no_page_is_cached(tmp_path):
    """The file's flags say so, and so does `is_direct`; where the system refuses, copies go through the cache."""
    with open(os.open(tmp_path, os.O_TMPFILE | os.O_RDWR, 0o600), "r+b", buffering=0) as file:
        try:
            fcntl.fcntl(file, fcntl.F_SETFL, fcntl.fcntl(file, fcntl.F_GETFL) | os.O_DIRECT)
        except OSError:
            pytest.skip("the folder of tests takes no direct I/O")
    tier = FileTier(tmp_path)
    assert tier.is_direct
    assert fcntl.fcntl(tier._file.fileno(), fcntl.F_GETFL) & os.O_DIRECT
    tier.close()


def test_closing_waits_for_a_copy_under_way(tmp_path, monkeypatch):
    """Else the file's number might be another file's by the time that the copy goes on."""
    tier, reading, go_on, found = FileTier(tmp_path), Event(), Event(), []
    offset, place, call = tier.allot(MIB), Place(MIB), os.preadv
    tier.write(offset, place.address, MIB)

    def waits(file, views, at):
        reading.set()
        go_on.wait(10)
        found.append(tier._file.closed)
        return call(file, views, at)

    monkeypatch.setattr(os, "preadv", waits)
    threads = [Thread(target=tier.read, args=(offset, place.address, MIB)), Thread(target=tier.close)]
    threads[0].start()
    reading.wait(10)
    threads[1].start()
    threads[1].join(0.05)
    go_on.set()
    for thread in threads:
        thread.join()
    assert found == [False]
    assert tier._file.closed
